# SPDX-License-Identifier: Apache-2.0
"""Tables that cannot become feeds: the error names the thing and the remedy, and nothing changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_changefeed.exceptions import (
    FeedSetupError,
)
from airflow_changefeed.sql import load_sql
from airflow_changefeed.sql.mssql import install_script
from tests.integration.mssql.server import Client, Database, Rows

#: Longer together than prefixes leave; neither alone is longer than every server takes.
LONG_SCHEMA, LONG = "S" * 45, "T" * 60
_KEY = "EventID int not null primary key"
#: What was done to a table before its primary key was made again, so that its feed no longer fits.
REKEYED = {"Widened": "EventID", "Extended": "EventID, Other"}


@pytest.fixture(scope="module")
def tables(database: Database) -> Database:
    """Create the tables, and a good feed that the others would disturb."""
    with database.client() as client:
        client.results(f"create table myservice.Good ({_KEY})")
        client.results("exec changefeed.setup_feed N'myservice.Good', @outbox = 1")
        client.results("create table myservice.NoKey (EventID int not null)")
        client.results(f"create schema {LONG_SCHEMA}")
        client.results(f"create table {LONG_SCHEMA}.{LONG} ({_KEY})")
        client.results(
            "create table myservice.Reserved (ulid binary(16) not null, time_hint int not null, "
            "primary key (ulid, time_hint))"
        )
        client.results(f"create table myservice.Ours ({_KEY}, changefeed_note int null)")
        client.results(f"create table myservice.Fine ({_KEY})")
        for table, key in REKEYED.items():
            client.results(
                f"create table myservice.{table} (EventID int not null constraint [pk:{table}] primary key, "
                "Other int not null)"
            )
            client.results(f"exec changefeed.setup_feed N'myservice.{table}', @outbox = 1")
            client.results(f"alter table myservice.{table} drop constraint [pk:{table}]")
            client.results(f"alter table myservice.{table} drop column EventID")
            kind = "bigint" if table == "Widened" else "int"
            client.results(f"alter table myservice.{table} add EventID {kind} not null")
            client.results(f"alter table myservice.{table} add constraint [pk2:{table}] primary key ({key})")
    return database


@pytest.fixture
def client(tables: Database) -> Iterator[Client]:
    """Connect, and see that nothing was changed in the end."""
    with tables.unchanged(_everything) as client:
        yield client


def _everything(client: Client) -> list[Rows]:
    return [
        sorted(client.rows("select name, type from sys.objects where schema_id <> schema_id('sys')")),
        sorted(client.rows("select name from sys.database_principals")),
        client.rows(
            "select feed_id, name, kind, shard_key_type, tolerance_ms, floor_time from [changefeed].[feeds] "
            "order by feed_id"
        ),
    ]


CALLS = {
    "not found": (
        "setup_feed N'myservice.Missing', @outbox = 1",
        71000,
        ["myservice.Missing", "with its schema"],
    ),
    "no name": ("setup_feed @outbox = 1", 71000, ["Could not find table"]),
    "no mode": ("setup_feed N'myservice.Fine'", 55000, ["@outbox=1", "@blocking=1"]),
    "both modes": ("setup_feed N'myservice.Fine', 1, 1", 55000, ["*either*"]),
    "both spellings": (
        "setup_feed N'myservice.Fine', @outbox = 1, @serialize_writers = 1",
        55000,
        ["*either*"],
    ),
    "no primary key": (
        "setup_feed N'myservice.NoKey', @outbox = 1",
        77110,
        ["myservice.NoKey", "primary key", "add one"],
    ),
    "other mode": (
        "setup_feed N'myservice.Good', @blocking = 1",
        77111,
        ["myservice.Good", "outbox", "drop"],
    ),
    "other shards": (
        "setup_feed N'myservice.Good', @outbox = 1, @shard_key_type = 'uniqueidentifier'",
        77111,
        ["myservice.Good", "int", "drop"],
    ),
    "unknown filegroup": (
        "setup_feed N'myservice.Fine', @outbox = 1, @filegroup = N'Nowhere'",
        77116,
        ["Nowhere", '"PRIMARY"'],
    ),
    "unknown compression": (
        "setup_feed N'myservice.Fine', @outbox = 1, @compression = N'zip'",
        77116,
        ["page, row or none", "zip"],
    ),
    "storage of serialized writers": (
        "setup_feed N'myservice.Fine', @blocking = 1, @filegroup = N'PRIMARY'",
        77116,
        ["your table", "omit"],
    ),
    "stored in another way": (
        "setup_feed N'myservice.Good', @outbox = 1, @compression = N'row'",
        77111,
        ["changefeed.feed:myservice.Good", "PRIMARY", "not moved", "omit"],
    ),
    "filegroup of a capture": (
        "enable_capture N'myservice.Fine', @guard_schema = 0, @filegroup = N'Nowhere'",
        77116,
        ["Nowhere", '"PRIMARY"'],
    ),
    "too long": (
        f"setup_feed N'{LONG_SCHEMA}.{LONG}', @outbox = 1",
        77112,
        [LONG, "106", " 4 more", "rename"],
    ),
    "reserved": ("setup_feed N'myservice.Reserved', @outbox = 1", 77114, ["ulid", "time_hint", "rename"]),
    "ours": ("setup_feed N'myservice.Ours', @outbox = 1", 77115, ["changefeed_note", "rename"]),
    "shard type": (
        "setup_feed N'myservice.Fine', @outbox = 1, @shard_key_type = 'float'",
        77116,
        ["float", "bigint"],
    ),
    "tolerance": (
        "setup_feed N'myservice.Fine', @outbox = 1, @time_tolerance_ms = -1",
        77116,
        ["milliseconds"],
    ),
    **{
        f"holds {hold}": (
            f"setup_feed N'myservice.Fine', 1, @max_hold_ms = {hold}",
            77116,
            ["@max_hold_ms must be 1 to 3153600000000"],
        )
        for hold in (0, -2, 3_153_600_000_001)
    },
    "ulid column": (
        "setup_feed N'myservice.Fine', @blocking = 1, @ulid_column = 'EventID'",
        55000,
        ["EventID", "binary(16)"],
    ),
    **{
        f"{table} key": (
            f"{call} N'myservice.{table}', {arguments}",
            77119,
            [f"myservice.{table}", "primary key", "drop"],
        )
        for table in REKEYED
        for call, arguments in (("setup_feed", "@outbox = 1"), ("upgrade_feed", "1, 0"))
    },
    "nothing to upgrade": ("upgrade_feed N'myservice.Fine', 1, 0", 77106, ["myservice.Fine", "setup_feed"]),
    "upgrade of the other mode": (
        "upgrade_feed N'myservice.Good', 0, 1",
        77111,
        ["myservice.Good", "outbox"],
    ),
    "nothing to drop": ("drop_feed N'myservice.Fine'", 77106, ["myservice.Fine"]),
}


@pytest.mark.parametrize("case", CALLS)
def test_sql_refuses(client: Client, case: str) -> None:
    """A procedure refuses what it cannot do, before it begins."""
    call, number, words = CALLS[case]
    client.fails(number, f"exec changefeed.{call}", *words)


def test_names_that_read_the_same_collide(tables: Database) -> None:
    """[a.b].[c] and [a].[b.c] would have the same objects: the second is refused."""
    with tables.client() as client:
        for schema, table in (("a.b", "c"), ("a", "b.c")):
            client.results(f"create schema [{schema}]")
            client.results(f"create table [{schema}].[{table}] ({_KEY})")
        client.results("exec changefeed.setup_feed N'[a.b].[c]', @outbox = 1")
        before = _everything(client)
        client.fails(77113, "exec changefeed.setup_feed N'[a].[b.c]', @outbox = 1", "a.b.c", "rename")
        with tables.source() as source, pytest.raises(FeedSetupError, match=r"a\.b\.c"):
            source.set_up_feed("[a].[b.c]")
        assert _everything(client) == before


_CHECK = "mssql/install/check_server.batch.sql"
#: What a server is asked: its edition, its version, and the level of the database.
_ASKED = (
    "serverproperty('EngineEdition')",
    "serverproperty('ProductMajorVersion')",
    "@level = d.compatibility_level",
)


@pytest.mark.parametrize(
    ("edition", "version", "level", "words"),
    [
        ("5", "12", "110", ("compatibility level 110", "needs 130", "set compatibility_level = 130")),
        ("3", "16", "120", ("compatibility level 120", "needs 130", "set compatibility_level = 130")),
        ("3", "13", "130", ("this server has version 1", "too old", "SQL Server 2017")),
        ("2", "null", "null", ("too old", "SQL Server 2017")),
    ],
)
def test_what_cannot_run_it_is_refused_before_anything_is_made(
    empty_database: Database, edition: str, version: str, level: str, words: tuple[str, ...]
) -> None:
    """A script that goes on after an error makes nothing, either; the reason is named with its number."""
    settings, refused = install_script("of_old", sequence_cache=1)[0], load_sql(_CHECK)
    for asked, answer in zip(_ASKED, (edition, version, f"@level = {level}"), strict=True):
        assert asked in refused
        refused = refused.replace(asked, answer)
    with empty_database.client() as client:
        client.results(settings)
        client.fails(77118, refused, *words)
    with empty_database.client() as client:
        assert client.value("select schema_id('of_old')") is None


def test_a_server_that_can_run_it_is_let_through(empty_database: Database) -> None:
    """The check says nothing where all is there."""
    with empty_database.client() as client:
        for batch in install_script("of_new", sequence_cache=1)[:2]:
            client.results(batch)
        assert client.value("select 1") == 1
