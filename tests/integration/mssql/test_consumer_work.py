# SPDX-License-Identifier: Apache-2.0
"""Consumers on SQL Server: what work may do in T-SQL, lost connections, and a consumer without Python."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import mssql_python
import pytest

from airflow_changefeed.core.consumer import ConsumerSpec, Consumption
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ConsumerUseError, SourceUnavailableError, WorkTransactionError
from airflow_changefeed.sources.base_consumers import ConsumerSession
from airflow_changefeed.sources.mssql import MssqlFeedSource
from tests.integration.contract.consumers import refused
from tests.integration.mssql.line import Line, cut_everywhere
from tests.integration.mssql.server import Client, Database

FEED, ME, FIRST = "myservice.MyEvent", "audit", "host:1:first"
GUIDE = Path(__file__).parents[3] / "docs/reference/sql-server.md"
_FRESH = "delete from myservice.Audit; exec changefeed.drop_consumer N'myservice.MyEvent', N'audit'"


@pytest.fixture(scope="module")
def feed(database: Database) -> Database:
    """Set up a feed with three events, and a table for the work."""
    with database.client() as client:
        client.results(
            "create table myservice.MyEvent (AggregateID bigint not null, Version int not null, "
            "primary key (AggregateID, Version)); "
            "create table myservice.Audit (AggregateID bigint not null, Version int not null primary key)"
        )
        client.results(f"exec changefeed.setup_feed N'{FEED}', @outbox = 1")
        for version in (1, 2, 3):
            client.results(
                f"insert into [changefeed].[outbox:{FEED}] (AggregateID, Version) values (1, {version})"
            )
        client.results(f"exec changefeed.[drain_feed:{FEED}]")
    return database


@pytest.fixture
def client(feed: Database) -> Iterator[Client]:
    """Connect where there is no consumer, and no work was done."""
    with feed.client() as client:
        client.results(_FRESH)
        yield client


@pytest.fixture
def source(client: Client, feed: Database) -> Iterator[MssqlFeedSource]:
    """Give a source over a database with the consumer, at its beginning."""
    with feed.source() as source:
        spec = ConsumerSpec(ME, FEED)
        source.create_consumer(spec, begin=Ulid.MIN, starts={0: Ulid.MIN}, by="test")
        yield source


def _row(source: MssqlFeedSource) -> CursorRow:
    (row,) = source.cursors(FEED, ME)
    return row


def _lease(source: MssqlFeedSource, seconds: float = 60) -> CursorRow:
    return source.acquire_leases(ME, FEED, [0], holder=FIRST, seconds=seconds).rows[0]


def _step(row: CursorRow, upto: Ulid) -> Consumption:
    return Consumption(0, upto, row.resource_version, row.fencing_token, 60)


def _upto(source: MssqlFeedSource, count: int = 1) -> Ulid:
    return source.read_feed(FEED, 0, Ulid.MIN).events[count - 1].ulid


def _run(session: ConsumerSession, sql: str) -> None:
    with session.connection.cursor() as cursor:
        cursor.execute(sql)
        while cursor.nextset():
            pass


def _done(client: Client) -> list[int]:
    return [version for (version,) in client.rows("select Version from myservice.Audit order by Version")]


INSERT = "insert into myservice.Audit (AggregateID, Version) values (1, {}); "
#: What work may do by itself, and what of it stays.
LEGAL: dict[str, tuple[str, list[int]]] = {
    "a pair of its own": (f"begin transaction; {INSERT.format(1)} commit; {INSERT.format(2)}", [1, 2]),
    "pairs within pairs": (
        f"begin transaction; begin transaction; {INSERT.format(1)} commit; commit; {INSERT.format(2)}",
        [1, 2],
    ),
    "a savepoint": (
        f"{INSERT.format(1)} save transaction here; {INSERT.format(2)} rollback transaction here",
        [1],
    ),
    "settings of its own": ("set rowcount 1; set xact_abort off; set language Deutsch", []),
}


@pytest.mark.parametrize("case", LEGAL)
def test_work_may_nest_what_is_whole(source: MssqlFeedSource, client: Client, case: str) -> None:
    """It commits with the cursor, and not before; the next transaction is as if it had not been."""
    sql, done = LEGAL[case]
    row = _lease(source)
    with closing(source.open_session(ME, FEED)) as session:
        with refused(session, ZeroDivisionError):
            _run(session, sql)
            raise ZeroDivisionError
        assert _done(client) == []
        with session.transaction():
            _run(session, sql)
            session.consume(_step(row, _upto(source)))
        assert (_done(client), _row(source).ulid) == (done, _upto(source))
        row = _row(source)
        with refused(session, WorkTransactionError):
            _run(session, INSERT.format(7))
            with suppress(mssql_python.Error):
                _run(session, INSERT.format(7))
            session.consume(_step(row, _upto(source, 2)))
    assert (_done(client), _row(source)) == (done, row)


def test_the_context_info_of_works_session_is_its_own(source: MssqlFeedSource) -> None:
    """Triggers and row-level security may read it; in other sessions of ours it says who they are."""
    with closing(source.open_session(ME, FEED)) as session, session.connection.cursor() as cursor:
        assert cursor.execute("select context_info()").fetchone()[0] is None
    with source.database.connect() as ours:
        assert ours.rows("select context_info()") != [(None,)]


ILLEGAL = {
    "a transaction left open in its own": f"begin transaction; {INSERT.format(1)}",
    "a commit too many": f"{INSERT.format(1)} commit",
    "a commit, and a transaction of its own": f"{INSERT.format(1)} commit; begin transaction",
    "a rollback, and a transaction of its own": "rollback; begin transaction",
    "an error that T-SQL caught": (
        f"begin try {INSERT.format(1)} {INSERT.format(1)} end try begin catch select 1 end catch"
    ),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_work_that_ends_or_keeps_the_transaction_consumes_nothing(
    source: MssqlFeedSource, client: Client, case: str
) -> None:
    """Also where the database says nothing; what the work committed by itself stays, the rest does not."""
    row = _lease(source)
    with closing(source.open_session(ME, FEED)) as session:
        for has_step in (True, False):
            client.results("delete from myservice.Audit")
            with refused(session, WorkTransactionError):
                with suppress(mssql_python.Error):
                    _run(session, ILLEGAL[case])
                # What comes after is not committed by itself.
                _run(session, INSERT.format(5))
                if has_step:
                    session.consume(_step(row, _upto(source)))
            assert _row(source) == row
            assert _done(client) == ([1] if "commit" in case else [])
        with session.transaction():
            session.consume(_step(row, _upto(source)))
    assert _row(source).ulid == _upto(source)


def test_the_drivers_own_commit_and_rollback_do_nothing(source: MssqlFeedSource, client: Client) -> None:
    """The connection is in autocommit, and the transaction T-SQL's."""
    row = _lease(source)
    with closing(source.open_session(ME, FEED)) as session:
        with refused(session, ZeroDivisionError):
            _run(session, INSERT.format(1))
            session.connection.commit()
            raise ZeroDivisionError
        assert _done(client) == []
        with session.transaction():
            _run(session, INSERT.format(1))
            session.connection.rollback()
            session.consume(_step(row, _upto(source)))
    assert (_done(client), _row(source).ulid) == ([1], _upto(source))


def test_work_that_leaves_rows_unread_is_told_so(source: MssqlFeedSource, client: Client) -> None:
    """A connection does one thing at a time; with the cursor closed the step is taken."""
    row = _lease(source)
    with closing(source.open_session(ME, FEED)) as session:
        for has_step in (True, False):
            with refused(session, ConsumerUseError, "cursor"):
                _run(session, INSERT.format(1))
                cursor = session.connection.cursor()
                cursor.execute("select a.name from sys.objects a cross join sys.objects b")
                if has_step:
                    session.consume(_step(row, _upto(source)))
            assert (_done(client), _row(source)) == ([], row)
        with session.transaction():
            with session.connection.cursor() as cursor:
                cursor.execute("select a.name from sys.objects a cross join sys.objects b")
            session.consume(_step(row, _upto(source)))
    assert _row(source).ulid == _upto(source)


def test_a_consumption_cut_at_any_message(
    source: MssqlFeedSource, client: Client, line: Line, distant: MssqlFeedSource
) -> None:
    """Work and cursor are both there or neither; the caller learns that by reading the cursor again."""
    upto = _upto(source)
    row = _lease(source)
    errors: list[SourceUnavailableError] = []
    session = distant.open_session(ME, FEED)

    def prepare(number: int) -> None:
        client.results("delete from myservice.Audit")
        # A transaction each time on the connection that the last cut left, or on a new one.
        with session.transaction():
            pass

    def call(number: int) -> None:
        present = _row(source)
        try:
            with session.transaction():
                _run(session, INSERT.format(1))
                session.consume(replace(_step(row, upto), expected_version=present.resource_version))
        except SourceUnavailableError as error:
            errors.append(error)

    with closing(session):
        version = row.resource_version
        for _ in cut_everywhere(line, prepare, call):
            has_moved = _resolved(source, client).resource_version > version
            version = _row(source).resource_version
            assert _done(client) == ([1] if has_moved else [])
    assert has_moved
    assert {error.facts.get("is_unknown", False) for error in errors} == {True, False}


def _resolved(source: MssqlFeedSource, client: Client) -> CursorRow:
    """Return the row once the server has noticed that a connection was cut: until then it is locked."""
    client.results("update changefeed.consumers set resource_version = resource_version")
    return _row(source)


_EXAMPLE = re.compile(r"## Consuming events in T-SQL\n(.*?)\n## ", re.DOTALL)


def test_a_consumer_in_tsql(client: Client, feed: Database) -> None:
    """The guide's example: each run takes what is new, and an old lease consumes nothing."""
    found = _EXAMPLE.search(GUIDE.read_text(encoding="utf-8"))
    assert found is not None
    create, consume = re.findall(r"```sql\n(.*?)```", found[1], re.DOTALL)
    client.results(create)
    for _ in range(2):
        client.results(f"{consume}; drop table #read")
        assert _done(client) == [1, 2, 3]
    with feed.source() as source:
        assert _row(source).ulid == _upto(source, 3)
        old = _row(source).fencing_token
        assert (
            source.acquire_leases(ME, FEED, [0], holder="job 7", seconds=60, all_or_none=True).tokens[0] > old
        )
    client.fails(
        77133,
        f"begin transaction; {INSERT.format(9)} exec changefeed.[consume_events:{FEED}] N'audit', 0, "
        f"@upto = 0x00, @fencing_token = {old}; commit",
        "newest lease",
        "job 7",
    )
    assert _done(client) == [1, 2, 3]


ON = f"exec changefeed.[{{}}:{FEED}] "
OF = f"exec changefeed.{{}} N'{FEED}', "
ACQUIRE = OF.format("acquire_leases")
REFUSED: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "request in a transaction": (
        77100,
        f"begin transaction; {ACQUIRE}N'audit', N'[0]', N'a', 60",
        ("acquire_leases",),
    ),
    "no seconds": (77108, f"{ACQUIRE}N'audit', N'[0]', N'a', 0", ("31622400",)),
    "nobody": (77108, f"{ACQUIRE}N'audit', N'[0]', N'', 60", ("@holder",)),
    "none at most": (77108, f"{ACQUIRE}N'audit', N'[0]', N'a', 60, @at_most = 0", ("@at_most",)),
    "at most of all": (
        77108,
        f"{ACQUIRE}N'audit', N'[0]', N'a', 60, @at_most = 1, @all_or_none = 1",
        ("@all_or_none",),
    ),
    "a shard in other words": (77131, f"{ACQUIRE}N'audit', N'[\"00\"]', N'a', 60", ("shard 00",)),
    "begun in a transaction": (
        77100,
        "begin transaction; " + ON.format("begin_shards") + "N'audit', N'[0]', 1000",
        ("begin_shards",),
    ),
    "moved without a token": (
        77133,
        ON.format("create_consumer")
        + "N'other', @shards = N'[0]', @starts = 0x00000000000000000000000000000000; "
        + f"{ACQUIRE}N'other', N'[0]', N'a', 60; "
        + ON.format("move_cursor")
        + "N'other', 0, 0x00, 0x00, @expected_version = 1, @fencing_token = null, @by = N'a'",
        ("shard 0",),
    ),
    "a colon": (77108, ON.format("create_consumer") + "N'a:b'", ("colon",)),
    "no JSON": (77108, ON.format("create_consumer") + "N'x', N'stop'", ("JSON",)),
    "shards without starts": (77108, ON.format("create_consumer") + "N'x', @shards = N'[0]'", ("@starts",)),
    "an unknown state": (77108, OF.format("resolve_dead_letter") + "1, 'gone', N'me'", ("@state",)),
    "no entries": (77108, OF.format("list_invocations") + "N'audit', @limit = 0", ("@limit",)),
    "another transaction": (
        77150,
        "begin transaction; " + ON.format("consume_events") + "N'audit', 0, 0x00, 1, @transaction_id = 1",
        ("nothing was consumed",),
    ),
    "an unknown consumer": (
        77151,
        f"{ACQUIRE}N'nobody', N'[0]', N'a', 60",
        ("nobody", '"audit"'),
    ),
    "other settings": (77152, ON.format("create_consumer") + "N'audit', N'{}'", ("audit", "max_attempts")),
    "an export": (
        77153,
        ON.format("begin_consumer")
        + "N'export', 0, 0x00, N'me'; "
        + ON.format("create_consumer")
        + "N'export'",
        ("export",),
    ),
    "an unknown letter": (
        77154,
        OF.format("resolve_dead_letter") + "77, 'retry', N'me'",
        ("dead letter 77",),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_calls_are_refused(source: MssqlFeedSource, client: Client, case: str) -> None:
    """With number, reason and remedy; the connection is as good as before."""
    number, sql, words = REFUSED[case]
    client.fails(number, sql, *words)
    assert client.value("select @@trancount") == 0
    assert _row(source).ulid == Ulid.MIN


def test_settings_that_are_not_given_are_pythons(client: Client, feed: Database) -> None:
    """A consumer that T-SQL made without settings has those that Python gives by default."""
    client.results(ON.format("create_consumer") + "N'plain'")
    with feed.source() as source:
        assert source.consumer("plain", FEED).spec == ConsumerSpec("plain", FEED)
        source.create_consumer(ConsumerSpec("plain", FEED), begin=Ulid.MIN, starts={}, by="test")
        source.drop_consumer("plain", FEED)


@pytest.mark.parametrize(
    ("ulid", "previous"),
    [
        ("0x" + "00" * 16, "0x" + "00" * 16),
        ("0x" + "00" * 15 + "01", "0x" + "00" * 16),
        ("0x" + "00" * 7 + "01" + "00" * 8, "0x" + "00" * 8 + "ff" * 8),
        ("0x01" + "00" * 7 + "80" + "00" * 7, "0x01" + "00" * 7 + "7f" + "ff" * 7),
        ("0x01" + "00" * 7 + "80" + "00" * 6 + "01", "0x01" + "00" * 7 + "80" + "00" * 7),
        ("0x01" + "00" * 7 + "ff" * 8, "0x01" + "00" * 7 + "ff" * 7 + "fe"),
        ("0x0100" + "00" * 14, "0x00" + "ff" * 15),
    ],
)
def test_the_ulid_before_another(client: Client, ulid: str, previous: str) -> None:
    """As Python counts, with whole numbers of 16 bytes."""
    found = client.value(f"select convert(binary(16), changefeed.previous_ulid({ulid}))")
    assert found == bytes.fromhex(previous[2:])
