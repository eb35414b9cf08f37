# SPDX-License-Identifier: Apache-2.0
"""Calls on a feed that cannot be served: the error names the thing and the remedy, and nothing changes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import mssql_python
import pytest

from airflow_changefeed.exceptions import (
    FeedSetupError,
)
from airflow_changefeed.sources.base import FeedStatus
from airflow_changefeed.sources.mssql.connection.errors import thrown
from tests.integration.mssql.server import Client, Database, Rows

FEED = "myservice.MyEvent"
SERIALIZED = "myservice.Locked"
CREATE_READ = "create table #read (ulid binary(16) not null, EventID int not null); "
READ = f"exec changefeed.[read_feed:{FEED}] @shard_id = 0, @cursor = {{}}"


@pytest.fixture(scope="module")
def feeds(database: Database) -> Database:
    """Set up an outbox feed whose first events are purged, and a serialized one."""
    with database.client() as client:
        client.results(f"create table {FEED} (EventID int not null primary key)")
        client.results(f"exec changefeed.setup_feed N'{FEED}', @outbox = 1")
        client.results(f"create table {SERIALIZED} (ULID binary(16) not null primary key)")
        client.results(f"exec changefeed.setup_feed N'{SERIALIZED}', @blocking = 1")
        for number in range(1, 5):
            client.results(
                f"insert into {FEED} (EventID) values ({number}); "
                f"insert into [changefeed].[outbox:{FEED}] (time_hint, EventID) "
                f"values ('2020-01-0{number}', {number})"
            )
        client.results(f"exec changefeed.[seal_feed:{FEED}] @until = '2020-02-01'")
        client.results(f"exec changefeed.[purge_feed:{FEED}] @before = '2020-01-03'")
    return database


@pytest.fixture
def client(feeds: Database) -> Iterator[Client]:
    """Connect, and see that nothing was changed in the end."""
    with feeds.unchanged(_everything) as client:
        yield client


def _everything(client: Client) -> list[Rows]:
    return [
        sorted(client.rows(f"select * from [changefeed].[{table}]"))
        for table in (
            f"state:{FEED}",
            f"feed:{FEED}",
            f"outbox:{FEED}",
            f"state:{SERIALIZED}",
            "feeds",
            "consumers",
        )
    ]


CALLS = {
    "#read missing": (READ.format("0x00"), 77107, ["#read", "ulid", "key columns"]),
    "read in a transaction": (
        "begin transaction; " + CREATE_READ + READ.format("0x00"),
        77100,
        ["outside", "read_feed"],
    ),
    "no rows": (CREATE_READ + READ.format("0x00") + ", @pagesize = 0", 77108, ["@pagesize", "1 to 100000"]),
    "too many rows": (CREATE_READ + READ.format("0x00") + ", @pagesize = 100001", 77108, ["@pagesize"]),
    "no page size": (CREATE_READ + READ.format("0x00") + ", @pagesize = null", 77108, ["@pagesize"]),
    "no cursor": (CREATE_READ + READ.format("null"), 77108, ["@cursor", "0x00"]),
    "purged": (
        CREATE_READ + READ.format("0x00"),
        77104,
        [FEED, "shard 0", "purged", "Start at the purged position"],
    ),
    "beyond": (CREATE_READ + READ.format("0x" + "7f" * 16), 77105, [FEED, "shard 0", "beyond", "choose"]),
    "drain in a transaction": (
        f"begin transaction; exec changefeed.[drain_feed:{FEED}]",
        77100,
        ["drain_feed"],
    ),
    "drain of no rows": (f"exec changefeed.[drain_feed:{FEED}] @pagesize = 0", 77108, ["@pagesize"]),
    "seal in a transaction": (
        f"begin transaction; exec changefeed.[seal_feed:{FEED}] '2020-03-01'",
        77100,
        ["seal_feed"],
    ),
    "seal of nothing": (f"exec changefeed.[seal_feed:{FEED}] @until = null", 77108, ["@until"]),
    "seal soon": (
        f"declare @soon datetime2(3) = dateadd(second, 30, sysutcdatetime()); "
        f"exec changefeed.[seal_feed:{FEED}] @soon",
        77102,
        [FEED, "database's clock"],
    ),
    "seal far ahead": (f"exec changefeed.[seal_feed:{FEED}] '2100-01-01'", 77103, [FEED, "2100-01-01"]),
    "purge of nothing": (f"exec changefeed.[purge_feed:{FEED}]", 77108, ["@before", "@upto"]),
    "purge in a transaction": (
        f"begin transaction; exec changefeed.[purge_feed:{FEED}] @before = '2020-01-04'",
        77100,
        ["purge_feed"],
    ),
    "purge of no batch": (
        f"exec changefeed.[purge_feed:{FEED}] @before = '2020-01-04', @batch_rows = 0",
        77108,
        ["@batch_rows"],
    ),
    "unknown shard": (
        f"exec changefeed.[move_cursor:{FEED}] @consumer = N'export', @shard_id = 9, "
        "@start_ulid = 0x00, @ulid = 0x00, @expected_version = 1, @fencing_token = 1, @by = N'test'",
        77131,
        ["export", "shard 9", "begin_consumer"],
    ),
    "lock outside": (f"exec changefeed.[lock:{SERIALIZED}]", 77100, ["inside", "lock"]),
    "lock_feed outside": (f"exec changefeed.[lock_feed:{SERIALIZED}]", 77100, ["inside"]),
    "update_state outside": (
        f"exec changefeed.[update_state:{FEED}] @shard_id = 0, @time_hint = null, @count = 0",
        77100,
        ["inside"],
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_sql_refuses(client: Client, case: str) -> None:
    """A procedure refuses what it cannot do; the connection is as good as before."""
    sql, number, words = CALLS[case]
    client.fails(number, sql, *words)
    assert client.value("select @@trancount") == 0


@pytest.mark.parametrize("lock", ["lock", "lock_feed"])
def test_a_serialized_writer_is_refused_under_snapshot(feeds: Database, lock: str) -> None:
    """Its next statement would fail, as the transaction would begin in the lock, as read committed."""
    with feeds.client() as client:
        client.results("set transaction isolation level snapshot")
        sql = f"begin transaction; exec changefeed.[{lock}:{SERIALIZED}]"
        client.fails(77100, sql, SERIALIZED, "SNAPSHOT", "set transaction isolation level read committed")
        client.results(f"set transaction isolation level read committed; {sql}; commit")


@pytest.mark.parametrize("columns", ["ulid binary(16) not null", "EventID int not null"])
def test_read_of_another_shape_is_refused(client: Client, columns: str) -> None:
    """A #read without the ulid or a key column fails; not every server lets us say what it lacks."""
    client.refuses(
        f"create table #read ({columns}); " + READ.format("0x00"), "(?i)77107.*EventID|does not exist"
    )
    assert client.value("select @@trancount") == 0


def test_objects_of_another_version_are_named(feeds: Database) -> None:
    """A procedure that does not know what it is asked: the remedy is the install script."""
    procedure = "[changefeed].[poll_feed:myservice.Older]"
    with feeds.client() as client:
        client.results("create table myservice.Older (EventID int not null primary key)")
        client.results("exec changefeed.setup_feed N'myservice.Older', @outbox = 1")
        client.results(f"drop procedure {procedure}")
        client.results(f"create procedure {procedure} as select 1 as shard_id")
    with feeds.source() as source:
        with pytest.raises(FeedSetupError, match="install script"):
            source.poll("myservice.Older", "reader")
        # Whoever watches another feed beside it is not blinded.
        older, other = source.poll_many([("myservice.Older", "reader"), (SERIALIZED, "reader")])
    assert (type(older), type(other)) == (FeedSetupError, FeedStatus)


LOCK = f"exec changefeed.[lock:{SERIALIZED}]; "
LOCK_FEED = f"exec changefeed.[lock_feed:{SERIALIZED}]; "
ULID = f"select changefeed.[ulid:{SERIALIZED}](0)"
NEXT = "select changefeed.ulid(next value for changefeed.sequence)"
#: A rollback to a savepoint leaves the session's context, and gives back what the lock reserved.
SAVE, RELEASE = "save transaction here; ", "rollback transaction here; "

WRONG_ULIDS = {
    "without a lock": ("begin transaction; " + ULID, "after having called"),
    "after the transaction": (
        "begin transaction; " + LOCK + "commit; begin transaction; " + ULID,
        "after having called",
    ),
    "after the lock was rolled back": (
        "begin transaction; " + SAVE + LOCK + RELEASE + ULID,
        "after having called",
    ),
    "after the second lock was rolled back": (
        "begin transaction; " + LOCK + SAVE + LOCK + RELEASE + ULID,
        "after having called",
    ),
    "sequence after the lock was rolled back": (
        "begin transaction; " + SAVE + LOCK_FEED + RELEASE + NEXT,
        "lock_feed:T or lock:T",
    ),
    "of a shard after the lock was rolled back": (
        "begin transaction; " + SAVE + LOCK + RELEASE + f"select changefeed.[shard_ulid:{SERIALIZED}](0, 0)",
        "shard_ulid",
    ),
    "index after lock_feed": ("begin transaction; " + LOCK_FEED + ULID, "next value for"),
    "index of any feed after lock_feed": (
        "begin transaction; " + LOCK_FEED + "select changefeed.ulid(0)",
        "an index",
    ),
    "sequence after lock": (
        "begin transaction; " + LOCK + NEXT,
        "number is not of this lock|sequence numbers",
    ),
    "index too high": (
        "begin transaction; " + LOCK + f"select changefeed.[ulid:{SERIALIZED}](100000000000)",
        "10.11 - 1",
    ),
    "index below 0": (
        "begin transaction; " + LOCK + f"select changefeed.[ulid:{SERIALIZED}](-1)",
        "10.11 - 1",
    ),
    "no index": ("begin transaction; " + LOCK + f"select changefeed.[ulid:{SERIALIZED}](null)", "10.11 - 1"),
    "another shard": (
        "begin transaction; " + LOCK + f"select changefeed.[shard_ulid:{SERIALIZED}](1, 0)",
        "shard_ulid",
    ),
}


@pytest.mark.parametrize("case", WRONG_ULIDS)
def test_a_ulid_without_its_lock_is_refused(feeds: Database, case: str) -> None:
    """R13: a ULID is given only while the lock that reserved it is held, and each lock counts in one way."""
    sql, word = WRONG_ULIDS[case]
    with feeds.client() as client:
        client.refuses(sql, word)
        client.results("if @@trancount > 0 rollback transaction")
        # The connection can still write.
        client.results("begin transaction; " + LOCK + ULID + "; rollback")


def test_a_ulid_is_given_after_a_rollback_to_a_later_savepoint(feeds: Database) -> None:
    """R13: what the lock reserved before the savepoint stays reserved; so does a lock that is taken again."""
    ulids = f"select changefeed.[ulid:{SERIALIZED}](0), changefeed.[shard_ulid:{SERIALIZED}](0, 0)"
    with feeds.client() as client:
        for before in (LOCK + SAVE, LOCK + SAVE + LOCK, SAVE + LOCK):
            again = LOCK if before != LOCK + SAVE else ""
            client.results("begin transaction; " + before + RELEASE + again)
            ((one, other),) = client.rows(ulids)
            assert one == other
            client.results("rollback transaction")


def test_writers_that_lock_shards_in_opposite_orders(feeds: Database) -> None:
    """One of them is chosen as the victim, and told so; the other goes on."""
    lock = f"exec changefeed.[lock:{SERIALIZED}] @shard_id = "

    def try_to_lock(client: Client, shard: int) -> str:
        try:
            client.results(f"{lock}{shard}; rollback transaction")
        except mssql_python.Error as error:
            client.results("if @@trancount > 0 rollback transaction")
            return str(thrown(error))
        return "locked"

    with feeds.client() as one, feeds.client() as two, ThreadPoolExecutor(2) as pool:
        for client, shard in ((one, 0), (two, 1)):
            client.results(f"begin transaction; {lock}{shard}")
        victim, winner = sorted(pool.map(try_to_lock, (one, two), (1, 0)))
    assert winner == "locked"
    assert "77101" in victim
    assert "deadlock" in victim
    assert "shard" in victim


def test_a_connection_keeps_nothing_of_earlier_transactions_shards(feeds: Database) -> None:
    """What the lock of a shard leaves in the session goes with the next transaction: a session holds 1 MB."""
    with feeds.client() as client:
        feed_id = client.value(f"select feed_id from changefeed.feeds where name = N'{SERIALIZED}'")
        kept = ", ".join(f"session_context(N'changefeed.shard/{feed_id}/{shard}')" for shard in (5, 6, 7))
        for shards in ((5, 6), (7,)):
            locks = "".join(f"exec changefeed.[lock:{SERIALIZED}] @shard_id = {shard}; " for shard in shards)
            client.results(f"begin transaction; {locks} rollback transaction")
            ((*found,),) = client.rows(f"select {kept}")
            assert [value is not None for value in found] == [shard in shards for shard in (5, 6, 7)]


def test_a_callers_row_limit_ends_no_loop(feeds: Database) -> None:
    """A session with ``set rowcount`` drains and reads as any other."""
    with feeds.client() as client:
        for number in (101, 102, 103):
            client.results(
                f"insert into {FEED} (EventID) values ({number}); "
                f"insert into [changefeed].[outbox:{FEED}] (shard_id, EventID) values (1, {number})"
            )
        drained = client.rows(f"set rowcount 1; exec changefeed.[drain_feed:{FEED}]; set rowcount 0")
        assert [int(rows) for _, rows in drained] == [3]
