# SPDX-License-Identifier: Apache-2.0
"""What is another way than in mssql-changefeed v2, and feeds of it that cannot be upgraded as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sql.mssql import install_script
from tests.integration.mssql.server import Client, Database
from tests.integration.mssql.upstream import BLOCKING, OUTBOX, make_blocking, make_negative, make_v2

#: Of v2 in blocking mode: without a key, with a column whose name is ours, and with a name that is too long.
KEYLESS, COLUMN = "myservice.Keyless", "myservice.Noted"
LONG = f"myservice.{'L' * 95}"
_LAST = "[upgrade_feeds];"


@dataclass(frozen=True)
class Upgraded:
    """
    A database after the upgrade.

    :param said: by the upgrade, of what it could not upgrade.
    """

    database: Database
    said: str


@pytest.fixture(scope="module")
def upgraded(empty_database: Database) -> Upgraded:
    """Upgrade feeds of v2, of which two cannot be."""
    with empty_database.client() as client:
        make_v2(client, empty_database.sequence_cache)
        for table, columns in (
            (KEYLESS, "ULID binary(16) not null, Shard int not null, Data varchar(9) not null"),
            (COLUMN, "ULID binary(16) not null primary key, changefeed_note int null"),
            (LONG, "ULID binary(16) not null primary key"),
        ):
            client.results(f"create table {table} ({columns})")
            make_blocking(client, table)
        for table in (OUTBOX, BLOCKING):
            make_negative(client, table)
        said = ""
        for batch in install_script(sequence_cache=empty_database.sequence_cache):
            if _LAST in batch:
                said = client.fails(77117, batch)
            else:
                client.results(batch)
    return Upgraded(empty_database, said)


@pytest.fixture
def database(upgraded: Upgraded) -> Database:
    """Give the upgraded database."""
    return upgraded.database


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    """Connect to it."""
    with database.client() as client:
        yield client


def test_each_feed_is_upgraded_by_itself(upgraded: Upgraded, client: Client) -> None:
    """Those that cannot be are named in the end, each with its reason; all others are upgraded."""
    failed = {COLUMN: 77115}
    # Where a server shortens such a name, there is no feed of it.
    if client.value("select count(*) from sys.tables where name = ?", LONG.partition(".")[2]):
        failed[LONG] = 77112
    assert f"{len(failed)} of {3 + len(failed)} feeds" in upgraded.said
    for feed, number in failed.items():
        # Not every server tells names in the case that they were declared in.
        assert f'"{feed}": changefeed {number}'.lower() in upgraded.said.lower()
    versions = dict(client.rows("select name, version from changefeed.feeds where upgrade_problem is null"))
    assert {OUTBOX, BLOCKING, KEYLESS} <= set(versions)
    assert set(versions.values()) == {client.value("select changefeed.version()")}


def test_a_feed_that_was_not_upgraded_is_refused_until_it_is_mended(
    upgraded: Upgraded, client: Client
) -> None:
    """Readers are told; its programs of v2 go on; once it is mended it is upgraded as any other."""
    with upgraded.database.source() as source:
        with pytest.raises(FeedSetupError, match=r"v2 and was not upgraded.*upgrade_feeds"):
            source.shards(COLUMN)
        ((ulid,),) = client.rows(
            f"begin transaction; exec changefeed.[lock:{COLUMN}]; "
            f"select convert(binary(16), changefeed.[ulid:{COLUMN}](0))"
        )
        client.results(f"insert into {COLUMN} (ULID) values (changefeed.[ulid:{COLUMN}](0)); commit")
        client.results(f"alter table {COLUMN} drop column changefeed_note")
        client.results(f"exec changefeed.upgrade_feed N'{COLUMN}', @blocking = 1")
        (event,) = source.read_feed(COLUMN, 0, Ulid.MIN).events
    assert event.ulid.bytes == ulid


def test_a_feed_of_ours_that_cannot_be_upgraded_is_refused_with_the_reason(
    upgraded: Upgraded, client: Client
) -> None:
    """Also when its version is the installed one; doctor's advice, and upgrade_feed, bring it back."""
    feed = "myservice.Ours"
    client.results(
        f"create table {feed} (a int not null, b int not null, constraint pk_ours primary key (a))"
    )
    client.results(f"exec changefeed.setup_feed N'{feed}', @outbox = 1")
    client.results(f"alter table {feed} drop constraint pk_ours")
    client.results(f"alter table {feed} add constraint pk_ours primary key (a, b)")
    client.fails(77117, "exec changefeed.upgrade_feeds", f'"{feed}": changefeed 77119')
    with upgraded.database.source() as source:
        with pytest.raises(FeedSetupError, match=r"could not be upgraded.*77119.*upgrade_feed\]"):
            source.shards(feed)
        client.results(f"alter table {feed} drop constraint pk_ours")
        client.results(f"alter table {feed} add constraint pk_ours primary key (a)")
        client.results(f"exec changefeed.upgrade_feed N'{feed}', @outbox = 1")
        assert source.shards(feed) == []
    assert client.value(f"select upgrade_problem from changefeed.feeds where name = N'{feed}'") is None


def _write(client: Client, table: str, columns: str, values: str) -> None:
    client.results(
        f"begin transaction; exec changefeed.[lock:{table}]; insert into {table} ({columns}) "
        f"select {values} from (values (0), (1), (2)) as n (i); commit"
    )


def test_a_blocking_feed_needs_no_primary_key(upgraded: Upgraded, client: Client) -> None:
    """As in v2: it takes locks and ULIDs, is read by T-SQL, sealed, counted and streamed."""
    _write(client, KEYLESS, "ULID, Shard, Data", f"changefeed.[ulid:{KEYLESS}](n.i), 0, concat('e', n.i)")
    client.results("create table #read (ulid binary(16) not null)")
    client.results(f"exec changefeed.[read_feed:{KEYLESS}] @shard_id = 0, @cursor = 0x00")
    read = [ulid for (ulid,) in client.rows("select ulid from #read order by ulid")]
    assert len(read) == 3
    with upgraded.database.source() as source:
        events = source.read_feed(KEYLESS, 0, Ulid.MIN).events
        assert [event.ulid.bytes for event in events] == read
        assert {event.key for event in events} == {()}
        assert source.seal(KEYLESS, source.now())
        assert source.count(KEYLESS, 0, [UlidRange(Ulid.MIN, Ulid.MAX)]) == [3]
        batches = list(source.stream(KEYLESS, 0, UlidRange(Ulid.MIN, Ulid.MAX), batch_rows=10))
        assert [row["Data"] for batch in batches for row in batch.to_pylist()] == ["e0", "e1", "e2"]
        # A new one may be without a key, too; an outbox tells its events apart by it.
        client.results("create table myservice.NoKey (ULID binary(16) not null)")
        assert source.set_up_feed("myservice.NoKey", kind=FeedKind.SERIALIZED).key_columns == ()


def _add(client: Client, values: str, columns: str = "shard_id, time_hint, AggregateID, Version") -> None:
    client.results(f"insert into [changefeed].[outbox:{OUTBOX}] ({columns}) values ({values})")


def test_clocks_of_v2_that_are_below_zero_count_on(upgraded: Upgraded, client: Client) -> None:
    """Half of v2's are; what is ordered at them, and what is locked, ascends as ever."""
    for version in range(3):
        _add(client, f"0, '2020-01-01', 1, {version}")
    _write(client, BLOCKING, "EventID, Data", f"changefeed.[ulid:{BLOCKING}](n.i), concat('e', n.i)")
    with upgraded.database.source() as source:
        for feed in (OUTBOX, BLOCKING):
            ulids = [event.ulid for event in source.read_feed(feed, 0, Ulid.MIN).events]
            assert ulids == sorted(ulids)
            assert len(ulids) == 3
            source.seal(feed, source.now())
            source.read_feed(feed, 0, ulids[-1])
        negative = [event.ulid.bytes[8] for event in source.read_feed(OUTBOX, 0, Ulid.MIN).events]
        assert {byte >> 7 for byte in negative} == {1}


READ = "drop table if exists #read; create table #read (ulid binary(16), AggregateID bigint, Version int); "
CALL = f"{READ} exec changefeed.[read_feed:{OUTBOX}] "


def test_a_shard_that_was_never_used_is_read_from_its_beginning(client: Client) -> None:
    """With the cursor that the guide names."""
    assert client.rows(f"{CALL} @shard_id = 78, @cursor = 0x00; select * from #read") == []


def test_an_order_number_of_the_writers_own_waits(upgraded: Upgraded, client: Client) -> None:
    """Above what the sequence has given; inspect_outbox, and so doctor, names it."""
    _add(
        client,
        "5, '2020-01-01', 5, 1, 9000000000000000000",
        "shard_id, time_hint, AggregateID, Version, order_sequence",
    )
    with upgraded.database.source() as source:
        assert source.read_feed(OUTBOX, 5, Ulid.MIN).events == ()
    first, _ = client.results(f"exec changefeed.[inspect_outbox:{OUTBOX}]")
    found = {row[0]: row[3] for row in first}
    assert found[5] == 9000000000000000000


def test_the_first_use_of_a_shard_has_a_clock_before_it(client: Client) -> None:
    """Which is the floor of the feed's seals; in v2 @previous_time is null then."""
    ((time, low),) = client.rows(
        "begin transaction; declare @time datetime2(3), @low bigint; "
        f"exec changefeed.[update_state:{OUTBOX}] @shard_id = 79, @time_hint = '2020-01-01', @count = 0, "
        "@previous_time = @time output, @previous_ulid_low = @low output; select @time, @low; rollback"
    )
    assert (time is None, low is None) == (False, False)


def test_the_key_of_a_new_feed_has_its_own_order(client: Client) -> None:
    """V2 put key columns into alphabetical order; feeds of v2 keep that."""
    client.results("create table myservice.Keyed (b int not null, a int not null, primary key (b, a))")
    client.results("exec changefeed.setup_feed N'myservice.Keyed', @outbox = 1")
    columns = client.rows(
        "select name from sys.columns where object_id = object_id(N'[changefeed].[feed:myservice.Keyed]') "
        "order by column_id"
    )
    assert [name for (name,) in columns] == ["shard_id", "ulid", "b", "a"]
