# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom: as long as the caller says, by the clock after the wait, set-ups one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

import mssql_python
import pytest

from airflow_changefeed.sources.mssql.connection.errors import thrown
from tests.integration.mssql.server import Client, Database

FEED, LOCKED = "myservice.Waiting", "myservice.WaitingLocked"
ACQUIRE = (
    f"declare @token bigint; exec changefeed.acquire_leases N'{FEED}', N'me', N'[0]', @all_or_none = 1, "
    "@fencing_token = @token output"
)


@pytest.fixture(scope="module")
def feeds(database: Database) -> Database:
    """Set up a feed of each kind, one with a consumer."""
    with database.client() as client:
        client.results(f"create table {FEED} (id int not null primary key)")
        client.results(f"create table {LOCKED} (ulid binary(16) not null primary key)")
        client.results(f"exec changefeed.setup_feed N'{FEED}', @outbox = 1")
        client.results(f"exec changefeed.setup_feed N'{LOCKED}', @blocking = 1")
        client.results(f"insert into [changefeed].[outbox:{FEED}] (id) values (1)")
        client.results(f"exec changefeed.[drain_feed:{FEED}]")
        client.results(f"exec changefeed.[begin_consumer:{FEED}] N'me', 0, 0x00, N'a test'")
    return database


@pytest.fixture
def client(feeds: Database) -> Iterator[Client]:
    """Connect."""
    with feeds.client() as client:
        yield client


@contextmanager
def _meanwhile(database: Database, sql: str) -> Iterator[Future[str]]:
    """Run a batch in a connection of its own; give what it throws, or nothing."""

    def run() -> str:
        with closing(Client(database.description)) as other:
            try:
                other.results(sql)
            except mssql_python.Error as error:
                return str(thrown(error) or error)
        return ""

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(run)


def _lock(client: Client, resource: str, mode: str = "Exclusive") -> None:
    """Begin a transaction, and lock what a procedure asks for."""
    client.results(
        f"begin transaction; exec sp_getapplock @Resource = N'{resource}', @LockMode = '{mode}', "
        "@LockOwner = 'Transaction', @LockTimeout = 10000, @DbPrincipal = N'changefeed.users'"
    )


NEW_SHARD = {
    "a drain": f"insert into [changefeed].[outbox:{FEED}] (shard_id, id) values (71, 2); "
    f"exec changefeed.[drain_feed:{FEED}] @shard_id = 71, @lock_timeout = 150",
    "a read": f"insert into [changefeed].[outbox:{FEED}] (shard_id, id) values (72, 2); "
    "create table #read (ulid binary(16) not null, id int not null); "
    f"exec changefeed.[read_feed:{FEED}] @shard_id = 72, @cursor = 0x00, @lock_timeout = 150",
    "a writer": f"begin transaction; exec changefeed.[lock:{LOCKED}] @shard_id = 0, @lock_timeout = 150",
}


@pytest.mark.parametrize("case", NEW_SHARD)
def test_a_new_shard_waits_for_a_seal_as_long_as_the_caller_says(
    feeds: Database, client: Client, case: str
) -> None:
    """For the lock of the floor, too, and not a minute whatever was said."""
    feed = LOCKED if case == "a writer" else FEED
    _lock(client, f"changefeed/{client.value(f'select object_id({feed!r})')}/floor")
    with feeds.client() as other:
        other.fails(77101, NEW_SHARD[case], "150 ms", "floor")
    client.results("rollback transaction")


def test_a_seal_waits_for_a_writer_that_makes_a_new_shard(feeds: Database, client: Client) -> None:
    """They share the lock of the floor: a shard that the seal does not see yet must begin above it."""
    _lock(client, f"changefeed/{client.value(f'select object_id({FEED!r})')}/floor", "Shared")
    with feeds.client() as other:
        seal = f"exec changefeed.[seal_feed:{FEED}] @until = '2020-01-01', @lock_timeout = 150"
        other.fails(77101, seal, "150 ms", "first transaction in a new shard")
    client.results("rollback transaction")


#: How an event with the key of history comes into the feed while the history waits for the shard.
MEANWHILE = {
    "drained": "insert into [changefeed].[feed:{0}] (shard_id, ulid, id) select shard_id, ulid, {1} from "
    "[changefeed].[state:{0}] where shard_id = 0; exec changefeed.[update_state:{0}] 0, null, 1; commit",
    # Below what was searched, so only its mark tells of it.
    "history": "insert into [changefeed].[feed:{0}] (shard_id, ulid, id) values (0, 0x02, {1}); insert into "
    "changefeed.stale_marks (feed_id, shard, after_ulid, upto_ulid, at, reason) select feed_id, N'0', 0x01, "
    "0x02, changefeed.now(), N'' from changefeed.feeds where name = N'{0}'; commit",
    "in a new shard": "exec changefeed.[update_state:{0}] 73, null, 1; insert into [changefeed].[feed:{0}] "
    "(shard_id, ulid, id) values (73, 0x02, {1}); commit",
    "nothing": "commit",
}


@pytest.mark.parametrize(("key", "case"), list(enumerate(MEANWHILE, 100)))
def test_history_sees_what_comes_while_it_waits_for_its_shard(
    feeds: Database, client: Client, key: int, case: str
) -> None:
    """It searches the feed before it has the lock, and what is newer with it."""
    client.results(f"insert into {FEED} (id) values ({key}); exec changefeed.[seal_feed:{FEED}] '2020-01-01'")
    client.results(f"begin transaction; exec changefeed.[lock_shard:{FEED}] 0, 10000")
    history = (
        "create table #history (changefeed_place int not null, changefeed_time datetime2(3) not null, "
        f"id int not null); insert into #history values (0, '2000-01-01', {key}); "
        f"exec changefeed.[insert_history:{FEED}] @shard_id = 0, @reason = N'a test'"
    )
    with _meanwhile(feeds, history) as waiting:
        time.sleep(1)
        assert not waiting.done()
        client.results(MEANWHILE[case].format(FEED, key))
    assert ("1 of the keys are already in the feed" in waiting.result()) == (case != "nothing")
    in_feed = f"select count(*) from [changefeed].[feed:{FEED}] where id = {key}"
    assert client.value(in_feed) == 1


def _lease(client: Client, seconds: float) -> int:
    client.results(f"{ACQUIRE}, @holder = N'one', @seconds = {seconds}")
    return int(client.value("select fencing_token from changefeed.consumers where consumer = N'me'"))


@contextmanager
def _locked_until_the_lease_is_over(client: Client) -> Iterator[None]:
    """Hold the consumer's row, as whoever moves it does, until its lease has run out."""
    row = "from changefeed.consumers where consumer = N'me'"
    client.results(
        "begin transaction; update changefeed.consumers set resource_version = resource_version "
        "where consumer = N'me'"
    )
    yield
    while not client.value(f"select count(*) {row} and lease_expires < changefeed.now()"):
        time.sleep(0.1)
    client.results("rollback transaction")


def test_a_lease_that_runs_out_while_one_waits_is_free(feeds: Database, client: Client) -> None:
    """The clock is read after the wait for the row, not before."""
    _lease(client, 3)
    take = f"{ACQUIRE}, @holder = N'two', @seconds = 1"
    with _meanwhile(feeds, take) as waiting, _locked_until_the_lease_is_over(client):
        assert not waiting.done()
    assert waiting.result() == ""
    assert client.value("select lease_holder from changefeed.consumers where consumer = N'me'") == "two"
    client.results("update changefeed.consumers set lease_holder = null, lease_expires = null")


def test_a_lease_that_runs_out_while_one_waits_moves_nothing(feeds: Database, client: Client) -> None:
    """Who waits for the row with a lease, and gets it without one, is told so."""
    token = _lease(client, 3)
    version = client.value("select resource_version from changefeed.consumers where consumer = N'me'")
    move = (
        f"exec changefeed.[move_cursor:{FEED}] @consumer = N'me', @shard_id = 0, @start_ulid = 0x00, "
        f"@ulid = 0x00, @expected_version = {version}, @fencing_token = {token}, @by = N'one'"
    )
    with _meanwhile(feeds, move) as waiting, _locked_until_the_lease_is_over(client):
        assert not waiting.done()
    assert "77133" in waiting.result()
    client.results("update changefeed.consumers set lease_holder = null, lease_expires = null")


def _of_feed(client: Client, name: str) -> int:
    return int(client.value(f"select count(*) from sys.objects where name like N'%:{name}'"))


def test_an_upgrade_waits_for_a_drop_and_leaves_nothing_behind(feeds: Database, client: Client) -> None:
    """It was between two objects of the feed, which is gone when it goes on."""
    client.results("create table myservice.Dropped (id int not null primary key)")
    client.results("exec changefeed.setup_feed N'myservice.Dropped', @outbox = 1")
    feed_id = client.value("select feed_id from changefeed.feeds where name = N'myservice.Dropped'")
    client.results("begin transaction; exec changefeed.lock_setup")
    upgrade = f"exec changefeed.create_feed_objects @feed_id = {feed_id}"
    with _meanwhile(feeds, upgrade) as waiting:
        time.sleep(1)
        assert not waiting.done()
        client.results("exec changefeed.drop_feed N'myservice.Dropped'; commit")
    assert "77106" in waiting.result()
    assert _of_feed(client, "myservice.Dropped") == 0
    # It may also begin so late that the feed is gone already.
    client.fails(77106, upgrade, f"feed {feed_id} was dropped")


def test_a_captured_table_that_cannot_be_upgraded_stops_no_other(client: Client) -> None:
    """It is named and keeps its triggers; a capture is of the new version when all of its tables are."""
    for table, capture in (("Broken", "Two"), ("Third", "Two"), ("Quiet", "One")):
        client.results(f"create table myservice.{table} (id int not null primary key)")
        if table == "Broken":
            client.results("alter table myservice.Broken add wide nchar(2500) null")
        of = f"N'myservice.{table}', @capture = N'myservice.{capture}', @guard_schema = 0"
        client.results(f"exec changefeed.enable_capture {of}")
    old = "select name from changefeed.captures where version <> changefeed.version() order by name"
    client.results("update changefeed.captures set version = '0.0.1'")
    rule = "update changefeed.captures set key_change = '{}' where name = N'myservice.Two'"
    client.results(rule.format("delete_insert"))
    client.fails(77160, "exec changefeed.upgrade_captures", "1 of 3 captured tables", '"myservice.Broken": ')
    assert client.rows(old) == [("myservice.Two",)]
    client.results(
        "insert into myservice.Broken (id) values (1); insert into myservice.Quiet (id) values (1)"
    )
    client.results(rule.format("new_only"))
    client.results("exec changefeed.upgrade_captures")
    assert client.rows(old) == []


def test_two_upgrades_of_a_capture_make_its_triggers_once(feeds: Database, client: Client) -> None:
    """The second one waits for the first, and then finds nothing to do."""
    client.results("create table myservice.Twice (id int not null primary key)")
    client.results("exec changefeed.enable_capture N'myservice.Twice', @guard_schema = 0")
    made = "select count(*), max(object_id) from sys.triggers where name like N'%Twice_changes'"
    before = client.rows(made)
    client.results("update changefeed.captures set version = '0.0.1' where name = N'myservice.Twice_changes'")
    client.results("begin transaction; exec changefeed.lock_setup")
    with _meanwhile(feeds, "exec changefeed.upgrade_captures") as waiting:
        time.sleep(1)
        assert not waiting.done()
        client.results("update changefeed.captures set version = changefeed.version(); commit")
    assert waiting.result() == ""
    assert client.rows(made) == before


def test_enabling_a_capture_waits_for_its_new_shard(feeds: Database, client: Client) -> None:
    """As for its table: for as long as the session says, and then it names what holds it."""
    table, capture = "myservice.WaitingTable{}", "myservice.WaitingCapture"
    for number in (1, 2):
        client.results(f"create table {table.format(number)} (id int not null primary key, v int null)")
    enable = f"exec changefeed.enable_capture @capture = N'{capture}', @guard_schema = 0"
    client.results(f"{enable}, @table = N'{table.format(1)}', @shard = N'id % 2'")
    second = f"{enable}, @table = N'{table.format(2)}', @shard = N'7'"
    client.results(
        "begin transaction; declare @result int; "
        f"exec changefeed.[feed_write_lock:{capture}] @shard_id = 7, @lock_timeout = 0, "
        "@lock_result = @result output"
    )
    with feeds.client() as other:
        said = other.fails(77101, f"set lock_timeout 3000; {second}", "or a shard all the time")
        assert "@lock_timeout" not in said
    client.results("rollback")
    client.results(second)
    assert [row[0] for row in client.results(f"exec changefeed.[shards:{capture}]")[0]] == [7]
