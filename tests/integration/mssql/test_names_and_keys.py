# SPDX-License-Identifier: Apache-2.0
"""Awkward names, wide keys, every type of key column and of shard, and another schema than ``changefeed``."""

from __future__ import annotations

import uuid

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.mssql.names import quote
from tests.integration.mssql.server import Client, Database

#: Declaration of each key column, and two values of it.
KEY_TYPES = (
    ("decimal(12, 4)", "12345678.1234", "-0.0001"),
    ("datetime2(7)", "'2023-05-31 12:00:00.1234567'", "'0001-01-01'"),
    ("varbinary(20)", "0x00ff", "0x"),
    ("nvarchar(20) collate Latin1_General_CI_AS", "N'Ærlig'", "N''"),
    ("varchar(20)", "'a'' ]b'", "'x'"),
    ("char(5)", "'ab'", "'cd'"),
    ("date", "'2023-05-31'", "'1753-01-01'"),
    ("bit", "1", "0"),
    ("tinyint", "255", "0"),
    ("smallint", "-32768", "1"),
    ("bigint", "9223372036854775807", "-1"),
    ("float", "0.1", "-1e300"),
    ("money", "1.5", "-2.25"),
    ("time(3)", "'23:59:59.999'", "'00:00'"),
    ("datetimeoffset(3)", "'2023-05-31 12:00:00.123 +02:00'", "'2000-01-01 00:00:00 +00:00'"),
    ("uniqueidentifier", "'6f9619ff-8b86-d011-b42d-00c04fc964ff'", "'00000000-0000-0000-0000-000000000000'"),
)


def _round_trip(
    client: Client, table: str, schema: str, shards: list[str], rows: list[list[str]], columns: int
) -> None:
    """Write rows, drain them, read them back by T-SQL, and compare with the table inside the server."""
    parts = table.split("].[")
    feed = f"{parts[0][1:]}.{parts[1][:-1]}"
    names = ", ".join(f"[k {place}]" for place in range(columns))
    for shard, row in zip(shards, rows, strict=True):
        client.results(
            f"insert into {table} ({names}) values ({', '.join(row)}); "
            f"insert into {schema}.[outbox:{feed}] (shard_id, time_hint, {names}) "
            f"values ({shard}, '2023-05-31', {', '.join(row)})"
        )
    drained = client.rows(f"exec {schema}.[drain_feed:{feed}]")
    assert sum(count for _, count in drained) == len(rows)
    for shard in dict.fromkeys(shards):
        client.results(
            f"drop table if exists #read; select top (0) ulid, {names} into #read from {schema}.[feed:{feed}]"
        )
        client.results(f"exec {schema}.[read_feed:{feed}] {shard}, 0x00")
        same = " and ".join(f"e.[k {place}] = r.[k {place}]" for place in range(columns))
        assert client.value(
            f"select count(*) from #read as r inner join {table} as e on {same}"
        ) == shards.count(shard)


def test_every_type_of_key_column(database: Database) -> None:
    """A key of 16 columns, each of another type, goes through outbox, drain and both ways to read."""
    columns = ", ".join(f"[k {place}] {kind} not null" for place, (kind, *_) in enumerate(KEY_TYPES))
    names = ", ".join(f"[k {place}]" for place in range(len(KEY_TYPES)))
    with database.client() as client:
        client.results(f"create table [myservice].[Types] ({columns}, primary key ({names}))")
        client.results("exec changefeed.setup_feed N'myservice.Types', @outbox = 1")
        rows = [[values[place] for _, *values in KEY_TYPES] for place in (0, 1)]
        _round_trip(client, "[myservice].[Types]", "[changefeed]", ["0", "0"], rows, len(KEY_TYPES))
    with database.source() as source:
        events = source.read_feed("myservice.Types", 0, Ulid.MIN).events
        assert [event.key[4] for event in events] == ["a' ]b", "x"]


def test_key_of_32_columns(database: Database) -> None:
    """The longest key that SQL Server allows."""
    with database.client() as client:
        columns = ", ".join(f"[k {place}] int not null" for place in range(32))
        names = ", ".join(f"[k {place}]" for place in range(32))
        client.results(f"create table [myservice].[Wide] ({columns}, primary key ({names}))")
        client.results(
            "exec changefeed.setup_feed N'myservice.Wide', @outbox = 1, @shard_key_type = 'bigint'"
        )
        rows = [[str(row * 100 + place) for place in range(32)] for row in (1, 2, 3)]
        _round_trip(client, "[myservice].[Wide]", "[changefeed]", ["0", "9223372036854775807", "0"], rows, 32)


def test_awkward_names_in_another_schema(empty_database: Database) -> None:
    """Tokens, spaces and unicode in names, and another schema than ours usually is."""
    # Brackets and quotes, and more in our schema's name, are left to the compile check.
    ours, schema, table, shard = "other_feeds", "my servïce", "Wïrd <<name>> 事件", uuid.uuid4()
    empty_database.install(ours)
    quoted = f"{quote(schema)}.{quote(table)}"
    feed = quote(f"{schema}.{table}")[1:-1]
    with empty_database.client() as client:
        client.results(f"create schema {quote(schema)}")
        client.results(f"create table {quoted} ([k 1] int not null primary key)")
        name = quoted.replace("'", "''")
        client.results(
            f"exec {quote(ours)}.setup_feed N'{name}', @outbox = 1, @shard_key_type = 'uniqueidentifier'"
        )
        client.results(
            f"insert into {quoted} ([k 1]) values (7); "
            f"insert into {quote(ours)}.[outbox:{feed}] (shard_id, [k 1]) values ('{shard}', 7)"
        )
        rows = client.rows(
            "create table #read (ulid binary(16) not null, [k 1] int not null); "
            f"exec {quote(ours)}.[read_feed:{feed}] '{shard}', 0x00; select [k 1] from #read"
        )
        assert rows == [(7,)]
    with empty_database.source(ours) as source:
        assert [info.name for info in source.feeds()] == [f"{schema}.{table}"]
        assert [event.key for event in source.read_feed(f"{schema}.{table}", shard, Ulid.MIN).events] == [
            (7,)
        ]


@pytest.mark.parametrize("shard_type", ["smallint", "tinyint"])
def test_small_shards(database: Database, shard_type: str) -> None:
    """A shard outside its type is refused by the server; one inside is a shard of its own."""
    table = f"myservice.Of_{shard_type}"
    with database.client() as client:
        client.results(f"create table {table} ([k 0] int not null primary key)")
        client.results(
            f"exec changefeed.setup_feed N'{table}', @outbox = 1, @shard_key_type = '{shard_type}'"
        )
        _round_trip(client, f"[myservice].[Of_{shard_type}]", "[changefeed]", ["200", "1"], [["1"], ["2"]], 1)
        client.refuses(
            f"insert into [changefeed].[outbox:{table}] (shard_id, [k 0]) values (40000, 3)", "range|overflow"
        )
