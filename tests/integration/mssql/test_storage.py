# SPDX-License-Identifier: Apache-2.0
"""
Filegroup, compression and the end of the key: of the tables that a set-up creates.

Babelfish takes all of them and stores as it always does, so there it is seen that the statements are right,
and on SQL Server also what they do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.feed import FeedStorage
from airflow_changefeed.exceptions import FeedSetupError, InvalidArgumentError
from tests.examples import examples, run_example
from tests.integration.mssql.server import Client, Database

PAGE = "how-to/maintain-feeds.md#choose-how-a-feed-is-stored"
EVENT, ORDERS = "myservice.MyEvent", "dbo.orders"


@pytest.fixture(scope="module")
def tables(database: Database) -> Database:
    """Make the tables of the page."""
    with database.client() as client:
        client.results(f"create table {EVENT} (EventID int not null primary key)")
        client.results(f"create table {ORDERS} (id int not null primary key, note nvarchar(max) null)")
        if client.is_babelfish:
            # Its catalog has no such option, though it takes it.
            client.results(
                "create or alter function [changefeed].[sequential_key]() returns nvarchar(50) as begin "
                "return N', optimize_for_sequential_key = on'; end"
            )
    return database


@pytest.fixture
def client(tables: Database) -> Iterator[Client]:
    """Connect, and drop the feeds in the end."""
    with tables.client() as client:
        yield client
        for feed in (EVENT, f"{ORDERS}_changes"):
            if client.value(f"select count(*) from changefeed.feeds where name = N'{feed}'"):
                client.results(f"exec changefeed.drop_feed N'{feed}'")
            client.results(f"drop table if exists {ORDERS}_changes")


def _stored(client: Client, table: str) -> tuple[str, str]:
    """Return filegroup and compression; Babelfish compresses in its own way."""
    ((filegroup, compression),) = client.rows(
        "select d.name, p.data_compression_desc from sys.indexes as i "
        "inner join sys.data_spaces as d on d.data_space_id = i.data_space_id "
        "inner join sys.partitions as p on p.object_id = i.object_id and p.index_id = i.index_id "
        f"where i.object_id = object_id(N'{table}') and i.index_id in (0, 1)"
    )
    return filegroup, "any" if client.is_babelfish else compression.lower()


def _expected(client: Client, compression: str) -> tuple[str, str]:
    return "PRIMARY", "any" if client.is_babelfish else compression


def _has_sequential_key(client: Client, table: str) -> bool:
    if client.is_babelfish or not client.value("select [changefeed].[sequential_key]()"):
        return True
    return bool(
        client.value(
            "select optimize_for_sequential_key from sys.indexes "
            f"where object_id = object_id(N'{table}') and index_id = 1"
        )
    )


def test_a_feed_is_stored_as_it_is_set_up(tables: Database, client: Client) -> None:
    """All its tables in the filegroup, and it works; the same again, or without options, is no change."""
    with tables.source() as source:
        none = FeedStorage("PRIMARY", "none")
        for storage in (none, none, None):
            assert source.set_up_feed(EVENT, storage=storage).resource_version == 1
        for name in ("feed", "outbox", "state"):
            assert _stored(client, f"[changefeed].[{name}:{EVENT}]") == _expected(client, "none")
        assert _has_sequential_key(client, f"[changefeed].[outbox:{EVENT}]")
        client.results(f"insert into [changefeed].[outbox:{EVENT}] (EventID) values (1), (2)")
        assert source.drain(EVENT) == {0: 2}
        with pytest.raises(FeedSetupError, match=r'in filegroup "PRIMARY" with compression none'):
            source.set_up_feed(EVENT, storage=FeedStorage("PRIMARY", "row"))
        with pytest.raises(InvalidArgumentError, match=r'filegroup "Nowhere" not found.*"PRIMARY"'):
            source.set_up_feed(EVENT, storage=FeedStorage("Nowhere"))
        client.results(f"exec changefeed.upgrade_feed N'{EVENT}', @outbox = 1")
        assert _stored(client, f"[changefeed].[feed:{EVENT}]") == _expected(client, "none")


def test_the_log_is_compressed_by_pages_unless_it_is_said(tables: Database, client: Client) -> None:
    """As it always was."""
    with tables.source() as source:
        source.set_up_feed(EVENT)
    assert _stored(client, f"[changefeed].[feed:{EVENT}]") == _expected(client, "page")


def test_a_capture_is_stored_as_it_is_enabled(tables: Database, client: Client) -> None:
    """Its table of events, too; the filegroup is that of its whole feed, the compression only its own."""
    spec = CaptureSpec((TableCapture(ORDERS),), guard_schema=False)
    with tables.source() as source:
        none = FeedStorage("PRIMARY", "none")
        for storage in (none, none, None):
            info = source.enable_capture(spec, storage=storage)
            assert (info.name, info.resource_version) == (f"{ORDERS}_changes", 1)
        assert _stored(client, f"{ORDERS}_changes") == _expected(client, "none")
        assert _stored(client, f"[changefeed].[feed:{ORDERS}_changes]") == _expected(client, "page")
        for name in ("outbox", "state", "balance"):
            assert _stored(client, f"[changefeed].[{name}:{ORDERS}_changes]") == _expected(client, "none")
        for table in (f"[changefeed].[outbox:{ORDERS}_changes]", f"{ORDERS}_changes"):
            assert _has_sequential_key(client, table)
        client.results(f"insert into {ORDERS} (id, note) values (1, N'long')")
        assert source.drain(info.name) == {0: 1}
        with pytest.raises(FeedSetupError, match=r'_changes" already exists, in filegroup'):
            source.enable_capture(spec, storage=FeedStorage("PRIMARY", "row"))


def test_the_statements_of_the_page_run(client: Client) -> None:
    """In their order, and a log that was rebuilt still takes events."""
    statements = examples(PAGE, {"N'FEEDS'": "N'PRIMARY'", "[FEEDS]": "[PRIMARY]"}, "sql")
    assert len(statements) == 6
    for sql in statements:
        if client.is_babelfish and re.search("^(alter index|create unique clustered)", sql):
            continue  # It alters no index, and does not replace one.
        plain = sql.replace("@table = N'dbo.orders'", "@table = N'dbo.orders', @guard_schema = 0")
        found = client.results(plain)
        if sql.startswith("select") and not client.is_babelfish:
            assert sorted(row[0] for row in found[0]) == [
                f"{one}:{EVENT}" for one in ("feed", "outbox", "state")
            ]
    client.results(f"insert into [changefeed].[outbox:{EVENT}] (EventID) values (1)")
    client.results(f"exec [changefeed].[drain_feed:{EVENT}]")
    assert client.value(f"select count(*) from [changefeed].[feed:{EVENT}]") == 1


def test_the_python_of_the_page_runs(tables: Database, client: Client) -> None:
    """The feed is stored as it says."""
    (code,) = examples(PAGE, {'"FEEDS"': '"PRIMARY"'})
    with tables.source() as source:
        run_example(code, {"source": source})
    assert _stored(client, f"[changefeed].[feed:{EVENT}]") == _expected(client, "row")
