# SPDX-License-Identifier: Apache-2.0
"""
What the T-SQL needs of the server's locks, tried with open transactions and in races.

What ADR 0005 could only reason; ``tests/tools/settled.py`` says which of these tests answers which question.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import mssql_python
import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import PurgedError
from tests.clocks import after_now
from tests.integration.mssql.server import Client, Database, Rows, new_database

FEED = "myservice.MyEvent"
OUTBOX = f"[changefeed].[outbox:{FEED}]"
READ = (
    f"set lock_timeout 5000; exec changefeed.[read_feed:{FEED}] @shard_id = 0, @cursor = 0x%s; "
    "select EventID, ulid from #read order by ulid"
)
#: How a database can be set, and the statements that set it; those that a server does not know leave it out.
SETTINGS = {
    "as it is": (),
    "read committed snapshot": ("set read_committed_snapshot on with rollback immediate",),
    "optimized locking": (
        "set accelerated_database_recovery = on with rollback immediate",
        "set read_committed_snapshot on with rollback immediate",
        "set optimized_locking = on with rollback immediate",
    ),
}


@pytest.fixture(params=SETTINGS)
def feed(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Give a database of its own with a feed, set in one of the ways that decide about locks."""
    with new_database() as database:
        name = database.description["database"]
        master = Client(database.description | {"database": "master"})
        try:
            for setting in SETTINGS[request.param]:
                master.results(f"alter database {name} {setting}")
        except mssql_python.Error as error:
            pytest.skip(f"this server has no {request.param}: {error}")
        finally:
            master.close()
        database.install()
        with database.client() as client:
            client.results(f"create table {FEED} (EventID int not null primary key)")
            client.results(f"exec changefeed.setup_feed N'{FEED}', @outbox = 1")
        yield database


@contextmanager
def _open(database: Database, *events: int) -> Iterator[Client]:
    """Write events in a transaction that stays open for the block, and ends with it if it is open still."""
    with database.client() as writer:
        writer.results("begin transaction")
        for event in events:
            _write(writer, event)
        yield writer
        writer.results("if @@trancount > 0 commit transaction")


def _write(client: Client, event: int, shard: int = 0) -> None:
    client.results(
        f"insert into {FEED} (EventID) values ({event}); "
        f"insert into {OUTBOX} (shard_id, EventID) values ({shard}, {event})"
    )


def _read(database: Database, level: str = "read committed") -> list[int]:
    """Read from the start to the head, page by page, in a session of this isolation level."""
    found: list[int] = []
    cursor = Ulid.MIN.bytes
    with database.client() as reader:
        try:
            reader.results(f"set transaction isolation level {level}")
        except mssql_python.Error as error:
            pytest.skip(f"this server has no {level}: {error}")
        reader.results("create table #read (ulid binary(16) not null, EventID int not null)")
        while rows := reader.rows(READ % cursor.hex()):
            found += [event for event, _ in rows]
            cursor = rows[-1][1]
    return found


@pytest.mark.parametrize("level", ["read uncommitted", "read committed", "repeatable read", "serializable"])
def test_no_isolation_level_shows_what_is_not_committed(feed: Database, level: str) -> None:
    """R5: read_feed sets its own level before its first read, and passes the rows of an open transaction."""
    with feed.client() as client:
        _write(client, 1)
    with _open(feed, 2) as writer:
        assert _read(feed, level) == [1]
        writer.results("rollback transaction")
    with feed.client() as client:
        _write(client, 3)
    assert _read(feed, level) == [1, 3]


def test_an_open_transaction_around_others_is_neither_waited_for_nor_torn(feed: Database) -> None:
    """R1, R6: what commits meanwhile is read; what it wrote comes when it has ended, in its order."""
    with _open(feed, 1) as late, feed.client() as client:
        _write(client, 2)
        _write(late, 3)
        _write(client, 4)
        assert _read(feed) == [2, 4]
        _write(late, 5)
        assert _read(feed) == [2, 4]
    assert _read(feed) == [2, 4, 1, 3, 5]


def test_a_drain_waits_for_no_writer_behind_its_end(feed: Database) -> None:
    """Of an outbox and of a capture; a second for a lock is no time for who would wait for the writer."""
    table = "myservice.ended"
    with feed.client() as client, feed.client() as writer:
        client.results(f"create table {table} (id int not null primary key)")
        client.results(f"exec changefeed.enable_capture N'{table}', @guard_schema = 0")
        for number in (1, 3):
            _write(client, number)
            client.results(f"insert into {table} (id) values ({number})")
            if number == 1:
                writer.results("begin transaction")
            _write(writer, number + 1)
            writer.results(f"insert into {table} (id) values ({number + 1})")
        for drained, left in (((1, 3), 2), ((2, 4), 0)):
            for name in (FEED, f"{table}_changes"):
                client.results(f"set lock_timeout 1000; exec changefeed.[drain_feed:{name}]")
                found = client.value(f"set lock_timeout -1; select count(*) from [changefeed].[feed:{name}]")
                assert found == 4 - left, drained
            writer.results("if @@trancount > 0 commit transaction")


def test_two_sessions_cannot_both_hold_a_cursor(feed: Database) -> None:
    """Who has checked it keeps it to the end of its transaction, whatever the server elides of the update."""
    with feed.client() as first, feed.client() as second:
        _write(first, 1)
        first.results(f"exec changefeed.[drain_feed:{FEED}]")
        first.results(f"exec changefeed.[begin_consumer:{FEED}] N'me', 0, 0x00, N'a test'")
        number = first.value(f"select feed_id from changefeed.feeds where name = N'{FEED}'")
        check = (
            f"begin transaction; exec changefeed.check_consumer @feed_id = {number}, @feed = N'{FEED}', "
            "@consumer = N'me', @shard = N'0'"
        )
        first.results(check)
        second.refuses(f"set lock_timeout 1000; {check}", "(?i)lock (request )?time ?out")
        second.results("if @@trancount > 0 rollback transaction")
        first.results("commit transaction")
        second.results(f"{check}; commit transaction")


def test_a_large_transaction_hides_nothing_of_other_shards(feed: Database) -> None:
    """R2: neither its pages nor the table are locked; 16,000 rows would escalate where that is allowed."""
    with feed.client() as large, feed.client() as client:
        large.results("begin transaction")
        large.results(
            "with n as (select 1 as i union all select 1), "
            "m as (select a.i from n a, n b, n c, n d, n e, n f, n g) "
            f"insert into {OUTBOX} (shard_id, EventID) "
            "select top (16000) 1, row_number() over (order by (select null)) from m a, m b"
        )
        _write(client, 1)
        assert _read(feed) == [1]
        coarse = _coarse_locks(large)
        large.results("rollback transaction")
    assert coarse == []


def _coarse_locks(client: Client) -> list[tuple[str, str]]:
    """Return the locks of this connection's transaction that hide rows of others."""
    if client.value("select object_id(N'sys.dm_tran_locks')") is None:
        pytest.skip("this server does not show its locks")
    rows = client.rows(
        "select resource_type, request_mode from sys.dm_tran_locks where request_session_id = @@spid "
        "and resource_type in ('OBJECT', 'PAGE', 'HOBT') and request_mode in ('S', 'U', 'X', 'SIX')"
    )
    return [(str(kind), str(mode)) for kind, mode in rows]


def test_a_shard_first_used_while_its_feed_is_sealed_begins_above_the_seal(feed: Database) -> None:
    """R7: whoever makes the shard's state and whoever raises the floor wait for each other."""
    with feed.source() as source, feed.client() as client:
        for shard in range(100, 120):
            client.results(f"insert into {FEED} (EventID) values ({shard})")
            race = _SealRace(feed, shard, after_now(source))
            race.start()
            client.results(
                f"insert into {OUTBOX} (shard_id, time_hint, EventID) values ({shard}, '2020-01-01', {shard})"
            )
            source.read_feed(FEED, shard, Ulid.MIN)
            race.join(60)
            assert race.below() == race.sealed


class _SealRace(threading.Thread):
    """
    Seals while somebody uses a new shard.

    :param until: where it seals.
    """

    def __init__(self, database: Database, shard: int, until: datetime) -> None:
        super().__init__(daemon=True)
        self._database, self._shard, self._until = database, shard, until
        #: What was below the seal when it was done; None if it failed.
        self.sealed: Rows | None = None

    def run(self) -> None:
        """Seal, and look."""
        with self._database.source() as source:
            source.seal(FEED, self._until)
        self.sealed = self.below()

    def below(self) -> Rows:
        """Return the shard's events below the seal."""
        bound = Ulid.floor(self._until).bytes.hex()
        with self._database.client() as client:
            return client.rows(
                f"select EventID from [changefeed].[feed:{FEED}] "
                f"where shard_id = {self._shard} and ulid < 0x{bound}"
            )


def test_a_reader_gets_every_event_or_is_told_that_they_are_purged(feed: Database) -> None:
    """R12: a purge beside a reader never lets it skip rows."""
    with feed.client() as client:
        client.results("set nocount on")
        for event in range(300):
            _write(client, event)
    with feed.source() as source:
        source.drain(FEED)
        source.seal(FEED, after_now(source))
        failures: list[str] = []
        ended = threading.Event()

        def read() -> None:
            with feed.source() as reader:
                while not ended.is_set():
                    try:
                        found = [event.key[0] for event in reader.read_feed(FEED, 0, Ulid.MIN).events]
                    except PurgedError:
                        return
                    if found != list(range(300)):
                        failures.append(f"{len(found)} events, the first {found[:1]}")
                        return

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        source.purge(FEED, source.now(), batch_rows=10)
        for reader in readers:
            reader.join(60)
        ended.set()
        assert failures == []


def test_each_statement_outside_of_a_transaction_is_one(feed: Database) -> None:
    """As the default of a column: two rows of a statement have one id, the next statement has another."""
    with feed.client() as client:
        for first in (1, 3):
            client.results(f"insert into {FEED} (EventID) values ({first}), ({first + 1})")
            client.results(f"insert into {OUTBOX} (EventID) values ({first}), ({first + 1})")
        ids = [one for (one,) in client.rows(f"select changefeed_tid from {OUTBOX} order by EventID")]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_a_capture_is_checked_beside_an_open_transaction(feed: Database) -> None:
    """
    One that is open alone makes no difference to a capture's check.

    Where rows and records differ, the check tells by row versions, or says that it cannot tell now.
    """
    table, check = "myservice.captured", "exec changefeed.[check_capture:myservice.captured_changes]"
    with feed.client() as client, feed.client() as writer:
        client.results(f"create table {table} (id int not null primary key)")
        client.results(f"exec changefeed.enable_capture N'{table}', @guard_schema = 0")
        writer.results(f"begin transaction; insert into {table} values (1), (2)")
        client.results(f"insert into {table} values (3)")
        client.results(check)
        client.results("update changefeed.capture_tables set base_rows = 1, base_catalog = 1")
        has_versions = client.value(
            "select case when is_read_committed_snapshot_on = 1 or snapshot_isolation_state = 1 "
            "then 1 else 0 end from sys.databases where database_id = db_id()"
        )
        if not has_versions:
            client.fails(77101, check, "does not match its recorded changes")
        writer.results("commit")
        client.fails(77142, check, "it has 3 rows, but should have 4")


def test_only_a_capture_of_one_table_lets_its_locks_escalate(feed: Database) -> None:
    """And only where row versions keep drains and exports from waiting for them."""
    escalation = "select lock_escalation_desc from sys.tables where object_id = object_id(N'myservice.both')"
    with feed.client() as client:
        if client.is_babelfish:
            pytest.skip("this server says TABLE of every table")
        has_versions = client.value(
            "select convert(int, is_read_committed_snapshot_on) from sys.databases where name = db_name()"
        )
        found = []
        for table in ("one", "two"):
            client.results(f"create table myservice.{table} (id int not null primary key)")
            capture = f"N'myservice.{table}', @capture = N'myservice.both', @guard_schema = 0"
            client.results(f"exec changefeed.enable_capture {capture}")
            found.append(client.value(escalation))
    assert found == ["TABLE" if has_versions else "DISABLE", "DISABLE"]
