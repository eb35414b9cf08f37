# SPDX-License-Identifier: Apache-2.0
"""
The examples of mssql-changefeed's guides and readme, statement by statement, and what its own tests show.

Where an example has a mistake, a comment names it beside what it must say.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

from airflow_changefeed.core.ulid import Ulid
from tests.integration.mssql import guides
from tests.integration.mssql.server import Client, Database

BLOCK = 100_000_000_000


@pytest.fixture(scope="module")
def guide(database: Database) -> Database:
    """Set up the feeds of the guides."""
    with database.client() as client:
        guides.set_up(client)
    return database


@pytest.fixture
def client(guide: Database) -> Iterator[Client]:
    """Connect where the tables of the guides are, and nothing is in them."""
    with guide.client() as client:
        guides.clean(client)
        yield client


def test_outbox_example(client: Client) -> None:
    """OUTBOX.md, "Publisher code": two inserts in one transaction, two partitions by number."""
    client.results("begin transaction")
    client.results(
        "insert into myservice.MyEvent (AggregateID, Version, ChosenShoeSize) values (1000, 1, 38)"
    )
    client.results(
        "insert into [changefeed].[outbox:myservice.MyEvent] (shard_id, time_hint, AggregateID, Version) "
        "values (1000 % 2, '2023-05-31 12:00:00', 1000, 1)"
    )
    client.results("commit")
    ((ulid, *event),) = guides.read(client)
    assert event == [1000, 1, 38]
    assert guides.time(ulid) == "12:00"
    assert guides.read(client, shard=1) == []


def test_rows_of_one_insert_come_in_the_order_of_its_order_by(client: Client) -> None:
    """The numbers of ``insert ... select ... order by`` are drawn in that order."""
    values = ", ".join(f"({number % 7}, {number})" for number in range(40))
    client.results(
        "insert into myservice.MyEvent (AggregateID, Version, ChosenShoeSize) "
        f"select 1, n, 38 from (values {values}) as v (o, n)"
    )
    client.results(
        "insert into [changefeed].[outbox:myservice.MyEvent] (AggregateID, Version) "
        f"select 1, n from (values {values}) as v (o, n) order by o, n desc"
    )
    expected = sorted(range(40), key=lambda number: (number % 7, -number))
    assert [version for _, _, version, *_ in guides.read(client)] == expected


def test_read_type_has_the_shape_of_read(client: Client) -> None:
    """
    TestSetupFeedOutbox takes #read from type:read:T.

    Not every server can declare a variable of a type with a colon in its name, so its columns are compared.
    """
    columns = client.rows(
        "select c.name, c.max_length from sys.table_types as t "
        "inner join sys.columns as c on c.object_id = t.type_table_object_id "
        "where t.name = N'type:read:myservice.MyEvent' order by c.column_id"
    )
    assert [(name.lower(), length) for name, length in columns] == [
        ("ulid", 16),
        ("aggregateid", 8),
        ("version", 4),
    ]


def test_single_ulid(client: Client) -> None:
    """BLOCKING.md, "Single ULID": lock:T gives one, in the boilerplate of a server-side transaction."""
    client.results(
        guides.SAFELY.format(
            "declare @ulid binary(16) "
            "exec changefeed.[lock:myservice.ShoeEvent] @shard_id = 0, @ulid = @ulid output; "
            "insert into myservice.ShoeEvent (Shard, ULID, UserID, ChosenShoeSize) "
            "values (0, @ulid, 1234, 42);"
        )
    )
    ((shard, ulid, *event),) = client.rows("select * from myservice.ShoeEvent")
    assert (shard, event) == (0, [1234, 42])
    assert abs(Ulid.of_bytes(ulid).time - datetime.now(timezone.utc)) < timedelta(minutes=10)


def test_many_ulids_by_row_number(client: Client) -> None:
    """BLOCKING.md, "Using the ulid() function": numbered by row, and a second time behind a constant."""
    client.results(
        "drop table if exists #myinput; "
        "create table #myinput (UserID bigint, ChosenShoeSize tinyint, Time datetime2(3)); "
        "insert into #myinput values (1, 41, '2023-01-03'), (2, 42, '2023-01-01'), (3, 43, '2023-01-02')"
    )
    client.results(
        guides.SAFELY.format(
            "declare @ulid binary(16) "
            "exec changefeed.[lock:myservice.ShoeEvent] @shard_id = 0, @ulid = @ulid output; "
            "insert into myservice.ShoeEvent (Shard, ULID, UserID, ChosenShoeSize) "
            # The guide lacks the parenthesis that closes the call of ulid.
            "select 0, changefeed.[ulid:myservice.ShoeEvent](row_number() over (order by myinput.Time)), "
            "myinput.UserID, myinput.ChosenShoeSize from #myinput as myinput; "
            "insert into myservice.ShoeEvent (Shard, ULID, UserID, ChosenShoeSize) "
            "select 0, "
            "changefeed.[ulid:myservice.ShoeEvent](row_number() over (order by i.UserID) + 1000000), "
            "i.UserID, i.ChosenShoeSize from #myinput as i;"
        )
    )
    rows = client.rows("select ULID, UserID from myservice.ShoeEvent order by ULID")
    assert [user for _, user in rows] == [2, 3, 1, 1, 2, 3]
    places = [int.from_bytes(ulid, "big") for ulid, _ in rows]
    assert [place - places[0] for place in places] == [0, 1, 2, 1_000_000, 1_000_001, 1_000_002]


def test_low_level_version(client: Client) -> None:
    """BLOCKING.md, "Low-level version": the parts of the ULID, and no session context."""
    high, low, ulid, first, context = client.rows(
        "begin transaction; declare @ulid_high binary(8) declare @ulid_low bigint declare @ulid binary(16) "
        "exec changefeed.[lock:myservice.ShoeEvent] @shard_id = 0, @session_context = 0, "
        "@ulid_high = @ulid_high output, @ulid_low = @ulid_low output, @ulid = @ulid output; "
        "select @ulid_high, @ulid_low, @ulid, "
        "convert(binary(16), @ulid_high + convert(binary(8), @ulid_low)), "
        "convert(bigint, session_context(N'changefeed.transaction_id')); rollback"
    )[0]
    assert ulid == first == high + low.to_bytes(8, "big")
    assert context is None


def test_locks_of_one_transaction(client: Client) -> None:
    """TestHappyDayBlocking: each lock of one time is 10^11 further on; a later time begins anew, above."""
    ulid = "convert(binary(16), [changefeed].[ulid:myservice.ShoeEvent]({}))"
    lock = "exec [changefeed].[lock:myservice.ShoeEvent] @shard_id = 0{}"
    fixed = lock.format(", @time_hint = '2023-09-30'")
    client.results("begin transaction")
    a, b = client.rows(f"{fixed}; select {ulid.format(0)}, {ulid.format(1)}")[0]
    c = client.value(f"{fixed}; select {ulid.format(0)}")
    d = client.value(f"{fixed}; select {ulid.format(0)}")
    e = client.value(f"{lock.format('')}; select {ulid.format(0)}")
    client.results("commit")
    f = client.value(
        f"begin transaction; {fixed}; declare @f binary(16) = {ulid.format(0)}; commit; select @f"
    )
    places = [int.from_bytes(place, "big") for place in (a, b, c, d)]
    assert [place - places[0] for place in places] == [0, 1, BLOCK, 2 * BLOCK]
    assert d < e < f
    assert e[:8] == f[:8]


def test_lock_feed_with_the_sequence_for_one_row(client: Client) -> None:
    """The readme's lock_feed:T, and ulid of the next value for one row after the other."""
    one = (
        "insert into myservice.ShoeEvent (Shard, ULID, UserID, ChosenShoeSize) "
        "values (0, changefeed.ulid(next value for changefeed.sequence), {}, 40); "
    )
    lock = "exec changefeed.[lock_feed:myservice.ShoeEvent] @shard_id = 0; "
    client.results(guides.SAFELY.format(lock + one.format(1) + one.format(2)))
    client.results(guides.SAFELY.format(lock + one.format(3)))
    rows = client.rows("select UserID, ULID from myservice.ShoeEvent order by ULID")
    assert [user for user, _ in rows] == [1, 2, 3]
    assert int.from_bytes(rows[1][1], "big") - int.from_bytes(rows[0][1], "big") == 1


def test_lock_feed_with_the_sequence_for_many_rows(client: Client) -> None:
    """
    The readme's insert of many rows: ULIDs of the same time, in the order of the input.

    It says ``next value for ... over (order by i.Time)``, which not every server takes: here the input is
    ordered before numbers are drawn.
    """
    client.results(
        guides.SAFELY.format(
            "exec changefeed.[lock_feed:myservice.ShoeEvent] @shard_id = 0; "
            # The readme gives one value for four columns.
            "insert into myservice.ShoeEvent (Shard, ULID, UserID, ChosenShoeSize) "
            "select 0, changefeed.ulid(next value for changefeed.sequence), i.UserID, 40 "
            "from (select top (100) v.UserID "
            "from (values (1, '2023-03-01'), (2, '2023-01-01'), (3, '2023-02-01')) "
            "as v (UserID, Time) order by v.Time) as i;"
        )
    )
    rows = client.rows("select UserID, ULID from myservice.ShoeEvent order by ULID")
    assert [user for user, _ in rows] == [2, 3, 1]
    assert len({ulid[:6] for _, ulid in rows}) == 1


def test_spellings_of_the_readme(guide: Database) -> None:
    """@table, @shard_key_type and @serialize_writers as the readme has them, and the role for both sides."""
    shard = uuid.uuid4()
    with guide.client() as client:
        for name, mode in (("Uuid", "@outbox"), ("UuidSerialized", "@serialize_writers")):
            client.results(
                f"create table myservice.{name} (Shard uniqueidentifier not null, ULID binary(16) not null, "
                "UserID bigint not null, primary key (UserID))"
            )
            client.results(
                f"exec [changefeed].setup_feed @table = 'myservice.{name}', "
                f"@shard_key_type = 'uniqueidentifier', {mode} = 1"
            )
        client.results("create role myservice_user")
        # The readme writes [changefeed].[role:...]: a role has no schema.
        client.results("alter role [role:myservice.Uuid] add member myservice_user")
        # The readme's shard is 1000 % 2, which is no uniqueidentifier.
        client.results(
            f"insert into myservice.Uuid (Shard, ULID, UserID) values ('{shard}', 0x00, 7); "
            f"insert into [changefeed].[outbox:myservice.Uuid] (shard_id, time_hint, UserID) "
            f"values ('{shard}', '2023-05-31', 7)"
        )
        rows = client.rows(
            "create table #read (ulid binary(16) not null, UserID bigint not null); "
            f"declare @shard uniqueidentifier = '{shard}', @cursor binary(16) = 0x00, @pagesize int = 10; "
            "exec [changefeed].[read_feed:myservice.Uuid] @shard, @cursor, @pagesize; "
            "select UserID from #read"
        )
        assert rows == [(7,)]
        client.results(
            guides.SAFELY.format(
                f"exec changefeed.[lock_feed:myservice.UuidSerialized] @shard_id = '{shard}'; "
                "insert into myservice.UuidSerialized (Shard, ULID, UserID) "
                f"values ('{shard}', changefeed.ulid(next value for changefeed.sequence), 8);"
            )
        )
    with guide.source() as source:
        for name, key in (("Uuid", 7), ("UuidSerialized", 8)):
            events = source.read_feed(f"myservice.{name}", shard, Ulid.MIN).events
            assert [event.key for event in events] == [(key,)]
