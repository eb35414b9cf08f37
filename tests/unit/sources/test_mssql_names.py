# SPDX-License-Identifier: Apache-2.0
"""Names, types and statements of SQL Server's feeds, without a server."""

from __future__ import annotations

import uuid

import pytest

from airflow_changefeed.core.feed import Column, FeedKind, Shard, parse_shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.mssql.feed.feed import declared, stored_type
from airflow_changefeed.sources.mssql.feed.query import RangeQuery
from airflow_changefeed.sources.mssql.feed.reader import key_definitions
from airflow_changefeed.sources.mssql.names import quote, split_name
from tests.unit.sources.mssql_feeds import make_feed

ALL = UlidRange(Ulid.MIN, Ulid.MAX)


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ("myservice.MyEvent", ("myservice", "MyEvent")),
        ("MyEvent", ("dbo", "MyEvent")),
        ("s.a.b", ("s", "a.b")),
        ("s.[a]", ("s", "[a]")),
        ('s.quo"te', ("s", 'quo"te')),
        ("s.semi;colon' --", ("s", "semi;colon' --")),
        ("[a.b].[c]", ("a.b", "c")),
        ("[a.b].c.d", ("a.b", "c.d")),
        ('"a.b"."c"""', ("a.b", 'c"')),
        ("[a]]b].[c]]]", ("a]b", "c]")),
        ("[T]", ("dbo", "T")),
    ],
)
def test_a_tables_name_is_split_at_its_first_dot_unless_it_is_quoted(
    table: str, parts: tuple[str, str]
) -> None:
    """What a feed's name is made of, and what a person writes."""
    assert split_name(table) == parts


@pytest.mark.parametrize(
    "table", ["", ".", "s.", ".T", "[s", "[s].", "[s]T", "[a].[b].[c]", '"s].[T]', "[].[T]"]
)
def test_a_name_that_is_none_is_refused(table: str) -> None:
    """With the way to write one."""
    with pytest.raises(InvalidArgumentError, match=r"schema\.table"):
        split_name(table)


@pytest.mark.parametrize("name", ["plain", "a]b", "]", "a.b", "semi;'--", "?", "%(x)s"])
def test_a_quoted_name_is_read_back(name: str) -> None:
    """Quoting and splitting are each other's reverse."""
    assert split_name(f"{quote('s.x')}.{quote(name)}") == ("s.x", name)


def test_calls_type_their_parameters_and_leave_out_what_is_not_given() -> None:
    """A null would have no type; the procedure's default stands instead."""
    feed = make_feed(name="s.a]b", shard_key_type="smallint")
    sql, *values = feed.call("read_feed", {"shard_id": 3, "cursor": b"x", "pagesize": None})
    assert sql == (
        "declare @shard_id smallint = ?, @cursor binary(16) = ?; "
        "exec [changefeed].[read_feed:s.a]]b] @shard_id = @shard_id, @cursor = @cursor"
    )
    assert values == [3, b"x"]
    assert feed.call("shards", {}) == ("exec [changefeed].[shards:s.a]]b]",)


@pytest.mark.parametrize(
    ("kind", "shard", "is_good"),
    [
        ("tinyint", 255, True),
        ("tinyint", -1, False),
        ("bigint", 1 << 62, True),
        ("int", 1 << 31, False),
        ("int", True, False),
        ("uniqueidentifier", uuid.UUID(int=1), True),
        ("uniqueidentifier", 1, False),
    ],
)
def test_a_shard_must_fit_its_type(kind: str, shard: Shard, is_good: bool) -> None:
    """Before the server sees it."""
    feed = make_feed(shard_key_type=kind)
    if is_good:
        assert parse_shard(feed.to_sql(shard)) == shard
    else:
        with pytest.raises(InvalidArgumentError):
            feed.to_sql(shard)


def test_a_serialized_table_without_shards_has_shard_0_only() -> None:
    """Another one would read the same events."""
    feed = make_feed(FeedKind.SERIALIZED, ulid_column="ULID")
    assert feed.to_sql(0) == 0
    with pytest.raises(InvalidArgumentError, match="shard 0"):
        feed.to_sql(1)


@pytest.mark.parametrize(
    ("name", "length", "precision", "scale", "expected"),
    [
        ("nvarchar", 200, 0, 0, "nvarchar(100)"),
        ("nvarchar", -1, 0, 0, "nvarchar(max)"),
        ("sysname", 256, 0, 0, "nvarchar(128)"),
        ("varchar", 20, 0, 0, "varchar(20)"),
        ("nchar", 8, 0, 0, "nchar(4)"),
        ("varbinary", -1, 0, 0, "varbinary(max)"),
        ("decimal", 13, 20, 4, "decimal(20,4)"),
        ("datetime2", 7, 23, 3, "datetime2(3)"),
        ("time", 3, 8, 0, "time(0)"),
        ("timestamp", 8, 0, 0, "rowversion"),
        ("int", 4, 10, 0, "int"),
        ("float", 8, 53, 0, "float"),
    ],
)
def test_types_are_written_as_they_are_declared(
    name: str, length: int, precision: int, scale: int, expected: str
) -> None:
    """From the columns of the catalog, which counts bytes."""
    row = {"type": name, "max_length": length, "precision": precision, "scale": scale}
    assert declared(row) == expected


def test_a_range_takes_keys_from_the_feed_and_the_rest_from_the_table() -> None:
    """So that an event whose row is gone still has its keys."""
    query = RangeQuery(make_feed(), 5, ALL, "fail")
    assert query.sql == (
        "declare @after binary(16) = ?, @upto binary(16) = ?, @shard_id int = ?; "
        "select f.ulid as u, case when e.[k] is null then 1 else 0 end as m, f.[k] as c0, e.[v] as c1 "
        "from [changefeed].[feed:s.T] f left join [s].[T] e on e.[k] = f.[k] "
        "where f.shard_id = @shard_id and f.ulid > @after and f.ulid <= @upto order by f.ulid "
        "option (recompile)"
    )
    assert query.values == (Ulid.MIN.bytes, Ulid.MAX.bytes, 5)
    assert query.large_objects == []


def test_a_serialized_range_is_the_table_itself() -> None:
    """Which keeps ULID and shard, if it keeps shards apart."""
    columns = (Column("k", "int"), Column("text", "varchar(max)"), Column("U", "binary(16)"))
    feed = make_feed(FeedKind.SERIALIZED, columns=columns, ulid_column="U", shard_column="Sh")
    query = RangeQuery(feed, 1, ALL, "fail")
    assert query.sql.endswith(
        "select e.[U] as u, 0 as m, e.[k] as c0, cast(e.[text] as nvarchar(max)) as c1, e.[U] as c2 "
        "from [s].[T] e where e.[Sh] = @shard_id and e.[U] > @after and e.[U] <= @upto order by e.[U] "
        "option (recompile)"
    )
    assert [one.column.name for one in query.large_objects] == ["text"]
    assert "datalength(e.[text])" in query.sizes_sql
    alone = RangeQuery(make_feed(FeedKind.SERIALIZED, columns=columns, ulid_column="U"), 0, ALL, "fail")
    assert "@shard_id" not in alone.sql
    assert alone.values == (Ulid.MIN.bytes, Ulid.MAX.bytes)


def test_keys_are_handed_over_in_the_tables_own_type_and_collation() -> None:
    """Another collation would find other rows; a row version is stored as its bytes."""
    columns = (Column("k]", "nvarchar(100)"), Column("v", "rowversion"))
    assert key_definitions(make_feed(columns=columns, keys=columns), "ulid binary(16)") == (
        "ulid binary(16) not null, [k]]] nvarchar(100) collate Latin1_General_BIN2 not null, "
        "[v] binary(8) not null"
    )
    assert stored_type(columns[1]) == "binary(8)"


def test_keys_of_serialized_writers_that_are_the_ulid_are_not_fed_twice() -> None:
    """A key may be the ULID and the shard themselves."""
    keys = (Column("shard_id", "int"), Column("ULID", "binary(16)"), Column("k", "int"))
    feed = make_feed(
        FeedKind.SERIALIZED, columns=keys, keys=keys, ulid_column="ULID", shard_column="shard_id"
    )
    assert [column.name for column in feed.fed_keys] == ["k"]
