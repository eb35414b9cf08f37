# SPDX-License-Identifier: Apache-2.0
"""A database of mssql-changefeed v2 becomes ours in place, while its users' programs go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sql.mssql import install_script
from tests.integration.contract.oracles import History, judge
from tests.integration.mssql.participants import Participant
from tests.integration.mssql.server import Client, Database
from tests.integration.mssql.upgrade_race import (
    BlockingReader,
    BlockingWriter,
    FeedReader,
    OutboxReader,
    OutboxWriter,
    Reader,
    StateWatcher,
    history,
)
from tests.integration.mssql.upstream import BLOCKING, DOTTED, OUTBOX, make_dotted, make_v2

_MEMBERS = (
    "select r.name, m.name from sys.database_role_members as x "
    "inner join sys.database_principals as r on r.principal_id = x.role_principal_id "
    "inner join sys.database_principals as m on m.principal_id = x.member_principal_id"
)


@dataclass
class Upgraded:
    """
    A database after the upgrade, and what was seen meanwhile.

    :param cursors: of each feed, taken before the upgrade, with the events that were read by then.
    """

    database: Database
    histories: dict[str, History]
    clocks: dict[str, list[bytes]]
    members: set[tuple[str, str]]
    cursors: dict[str, tuple[bytes, int]]


def _read_all(reader: Reader) -> Reader:
    reader.ending.set()
    reader.run()
    return reader


@pytest.fixture(scope="module")
def upgraded(empty_database: Database) -> Upgraded:
    """Upgrade with two writers and two readers on each feed."""
    database = empty_database
    with database.client() as client:
        make_v2(client, database.sequence_cache)
        members = set(client.rows(_MEMBERS))
        outbox_writers = [OutboxWriter(database, f"outbox writer {number}", number) for number in (1, 2)]
        blocking_writers = [
            BlockingWriter(database, f"blocking writer {number}", number) for number in (1, 2)
        ]
        # The first lock makes the shard's row, which v2 itself is not safe in on every server.
        blocking_writers[0].new_events.release()
        blocking_writers[0].step(client)
        outbox_readers = [OutboxReader(database, f"outbox reader {number}", number) for number in (1, 2)]
        outbox_writers[0].new_events.release()
        outbox_writers[0].step(client)
        outbox_readers[0].new_events.release()
        outbox_readers[0].step(client)
        blocking_readers = [
            BlockingReader(database, f"blocking reader {number}", number) for number in (1, 2)
        ]
        watcher = StateWatcher(database, "watcher", 0)
        writers = [*outbox_writers, *blocking_writers]
        readers = [*outbox_readers, *blocking_readers]
        for writer in writers:
            writer.followers = [*(outbox_readers if writer in outbox_writers else blocking_readers), watcher]
        running: list[Participant] = [*writers, *readers, watcher]
        for one in running:
            one.start()
        _work(writers, 10)
        cursors = {
            table: (reader.cursor, len(reader.content))
            for table, reader in (
                (OUTBOX, _read_all(OutboxReader(database, "before", 0))),
                (BLOCKING, _read_all(BlockingReader(database, "before", 0))),
            )
        }
        try:
            batches = install_script(sequence_cache=database.sequence_cache)
            for batch in batches:
                # The one that upgrades the feeds takes longest.
                for writer in writers:
                    writer.new_events.release(60 if "[upgrade_feeds];" in batch else 2)
                client.results(batch)
            _work(writers, 10)
        finally:
            _end(writers)
            _end([*readers, watcher])
        rows = {
            OUTBOX: client.rows(f"select AggregateID, Version from {OUTBOX}"),
            BLOCKING: [
                tuple(map(int, data.split())) for (data,) in client.rows(f"select Data from {BLOCKING}")
            ],
        }
    assert not watcher.failures
    return Upgraded(
        database,
        {
            OUTBOX: history(
                outbox_writers, outbox_readers, _read_all(OutboxReader(database, "feed", 0)), rows[OUTBOX]
            ),
            BLOCKING: history(
                blocking_writers, blocking_readers, _read_all(FeedReader(database, "feed", 0)), rows[BLOCKING]
            ),
        },
        watcher.seen,
        members,
        cursors,
    )


def _work(writers: list[Participant], transactions: int) -> None:
    goals = {writer: writer.steps + transactions for writer in writers}
    for writer in writers:
        writer.new_events.release(transactions)
    for writer, goal in goals.items():
        writer.await_steps(goal)


def _end(running: list[Participant]) -> None:
    for one in running:
        one.ending.set()
        one.new_events.release()
    for one in running:
        one.join(timeout=120)
        assert not one.is_alive(), f"{one.name} hangs"


@pytest.fixture
def client(upgraded: Upgraded) -> Iterator[Client]:
    """Connect to the upgraded database."""
    with upgraded.database.client() as client:
        yield client


@pytest.mark.parametrize("table", [OUTBOX, BLOCKING])
def test_programs_of_v2_go_on_through_the_upgrade(upgraded: Upgraded, table: str) -> None:
    """Nothing is lost, doubled or reordered, no program fails, and every reader reads the whole feed."""
    history = upgraded.histories[table]
    # An outbox that v2 made does not know its transactions.
    complaints = [one for one in judge(history) if not one.startswith("transactions_stay_together: ")]
    assert complaints == []
    assert len(history.feed[0]) > 100


@pytest.mark.parametrize("table", [OUTBOX, BLOCKING])
def test_a_cursor_of_before_goes_on_afterwards(upgraded: Upgraded, table: str) -> None:
    """What was not read by then, and only that, follows a cursor that was taken before the upgrade."""
    cursor, count = upgraded.cursors[table]
    reader = (OutboxReader if table == OUTBOX else FeedReader)(upgraded.database, "later", 0)
    reader.cursor = cursor
    _read_all(reader)
    assert not reader.failures
    assert tuple(reader.content) == upgraded.histories[table].feed[0][count:]
    assert reader.content


@pytest.mark.parametrize("table", [OUTBOX, BLOCKING])
def test_clocks_never_go_back(upgraded: Upgraded, table: str) -> None:
    """The next ULID of a shard only grows, whichever version's procedures move it."""
    seen = upgraded.clocks[table]
    assert all(before <= after for before, after in pairwise(seen))
    assert len(set(seen)) > 10


def test_roles_keep_their_members(upgraded: Upgraded, client: Client) -> None:
    """Who could write or read before can do so afterwards."""
    assert upgraded.members
    assert upgraded.members <= set(client.rows(_MEMBERS))


def test_the_feeds_are_in_the_list(upgraded: Upgraded) -> None:
    """Our source knows the feeds of v2 and reads what they hold."""
    with upgraded.database.source() as source:
        assert {info.name for info in source.feeds()} >= {OUTBOX, BLOCKING}
        for table in (OUTBOX, BLOCKING):
            expected = [ulid for ulid, _ in upgraded.histories[table].feed[0]]
            page = source.read_feed(table, 0, Ulid.MIN, page_size=100_000)
            assert [str(event.ulid) for event in page.events] == expected


@pytest.mark.parametrize(
    "call",
    [
        f"upgrade_feed N'{OUTBOX}', 1, 0",
        f"upgrade_feed @table_name = N'{BLOCKING}', @blocking = 1",
        f"setup_feed @table_name = N'{OUTBOX}', @outbox = 1",
        f"setup_feed @table = N'{BLOCKING}', @serialize_writers = 1",
    ],
)
def test_both_spellings_of_setting_up_work(client: Client, call: str) -> None:
    """Migrations of v2 and of its readme run again, and change neither events nor clocks."""
    sql = " union all ".join(
        f"select '{table}', s.ulid, count(*) from [changefeed].[state:{table}] as s "
        f"inner join [changefeed].[feed:{table}] as f on f.shard_id = s.shard_id group by s.ulid"
        for table in (OUTBOX, BLOCKING)
    )
    before = client.rows(sql)
    client.results(f"exec [changefeed].{call}")
    assert client.rows(sql) == before


def test_a_transaction_locked_by_v2_takes_its_ulids_from_ours(client: Client) -> None:
    """A transaction that was open while the functions were replaced ends as it began."""
    client.results(
        f"begin transaction; declare @id bigint = current_transaction_id(); "
        f"exec sp_set_session_context N'changefeed.transaction_id', @id; "
        f"exec sp_set_session_context N'changefeed.ulid_high', 0x0102030405060708; "
        f"exec sp_set_session_context N'changefeed.ulid_low', 5; "
        f"exec sp_set_session_context N'changefeed.transaction_id/{BLOCKING}', @id; "
        f"exec sp_set_session_context N'changefeed.ulid_high/{BLOCKING}', 0x0102030405060708; "
        f"exec sp_set_session_context N'changefeed.ulid_low/{BLOCKING}', 5"
    )
    rows = client.rows(
        f"select convert(binary(16), [changefeed].[ulid:{BLOCKING}](2)), "
        "convert(binary(16), [changefeed].[ulid](3))"
    )
    client.results("rollback transaction")
    high = bytes.fromhex("0102030405060708")
    assert rows == [(high + (7).to_bytes(8, "big"), high + (8).to_bytes(8, "big"))]


def test_a_sequence_of_its_own_is_kept(client: Client) -> None:
    """The drains of a feed of v2 take their bound from the sequence that its outbox draws from."""
    make_dotted(client)
    client.results(f"exec [changefeed].upgrade_feed N'{DOTTED}', 1, 0")
    expected = f"[changefeed].[sequence:{DOTTED}]"
    assert client.value(f"select sequence_name from [changefeed].[feeds] where name = '{DOTTED}'") == expected
