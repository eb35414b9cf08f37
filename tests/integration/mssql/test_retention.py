# SPDX-License-Identifier: Apache-2.0
"""How long a purge in T-SQL keeps events for consumers: ``@max_hold_ms`` of ``setup_feed``."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.spark.datasource.ranges import ReadOptions, resolve
from tests.integration.mssql.server import Client, Database

FEED = "myservice.Retained"
SETUP = f"exec changefeed.setup_feed N'{FEED}', @outbox = 1"
PURGE = f"exec changefeed.[purge_feed:{FEED}] @before = '2020-12-01'"
CENTURY = 3_153_600_000_000


def _hold(client: Client, since: str) -> None:
    """Hold no event that is older than a time."""
    client.results(
        f"declare @ms bigint = datediff_big(millisecond, '{since}', changefeed.now()); "
        f"{SETUP}, @max_hold_ms = @ms"
    )


def test_a_consumer_holds_nothing_back_that_is_older_than_it_may(client: Client) -> None:
    """Every reader may make one; none can stop purges for ever, and who still needed an event is told."""
    client.results(f"create table {FEED} (id int not null primary key)")
    client.results(SETUP)
    for number, hint in enumerate(("2020-01-01", "2020-06-01", "2020-09-01")):
        client.results(
            f"insert into [changefeed].[outbox:{FEED}] (time_hint, id) values ('{hint}', {number}); "
            f"exec changefeed.[drain_feed:{FEED}]"
        )
    client.results(f"exec changefeed.[seal_feed:{FEED}] @until = '2021-01-01'")
    client.results(f"exec changefeed.[begin_consumer:{FEED}] N'idle', 0, 0x00, N'a reader'")

    def purge() -> int:
        would = client.rows(f"{PURGE}, @dry_run = 1")[0][1]
        rows = client.rows(PURGE)[0][1]
        assert would == rows
        return int(rows)

    assert purge() == 0
    _hold(client, "2020-03-01")
    assert purge() == 1
    assert purge() == 0
    # What is not named stays.
    client.results(f"{SETUP}, @time_tolerance_ms = 1000")
    assert client.value("select max_hold_ms from changefeed.feeds where name = ?", FEED) > 0
    client.fails(
        77104,
        "create table #read (ulid binary(16) not null, id int not null); "
        f"exec changefeed.[read_feed:{FEED}] @shard_id = 0, @cursor = 0x00",
    )
    client.results(f"{SETUP}, @max_hold_ms = -1")
    assert purge() == 0
    # Older than anything could be.
    client.results(f"{SETUP}, @max_hold_ms = {CENTURY}")
    assert purge() == 0
    # Never beyond what was asked for.
    client.results(f"{SETUP}, @max_hold_ms = 1")
    assert purge() == 2
    client.results(f"exec changefeed.drop_consumer N'{FEED}', N'idle'")
    assert purge() == 0


@pytest.mark.parametrize("value", [0, -2, CENTURY + 1])
def test_what_cannot_be_held_is_refused(client: Client, value: int) -> None:
    """With what may be; the feed stays as it is."""
    feed = "myservice.Refused"
    client.results(f"if object_id(N'{feed}') is null create table {feed} (id int not null primary key)")
    client.results(f"exec changefeed.setup_feed N'{feed}', 1")
    client.fails(
        77116,
        f"exec changefeed.setup_feed N'{feed}', 1, @max_hold_ms = {value}",
        "@max_hold_ms must be 1 to 3153600000000",
    )
    assert client.value("select max_hold_ms from changefeed.feeds where name = ?", feed) == -1


def test_a_seal_that_stopped_half_way_promises_nothing(client: Client, database: Database) -> None:
    """It has raised the feed's floor, and not reached the shard: what comes there may still lie below."""
    feed = "myservice.Halfway"
    client.results(f"create table {feed} (id int not null primary key)")
    client.results(f"exec changefeed.setup_feed N'{feed}', @outbox = 1")

    def write(hint: str, number: int) -> None:
        client.results(
            f"insert into [changefeed].[outbox:{feed}] (time_hint, id) values ('{hint}', {number}); "
            f"exec changefeed.[drain_feed:{feed}]"
        )

    write("2020-01-01", 1)
    client.results(f"exec changefeed.[seal_feed:{feed}] @until = '2020-02-01'")
    client.results(f"update changefeed.feeds set floor_time = '2020-06-01' where name = N'{feed}'")
    with database.source() as source:
        (status,) = source.shards(feed)
        (seen,) = source.overview([feed])[0].shards
        assert status.sealed_until == status.high_water == datetime(2020, 2, 1, tzinfo=timezone.utc)
        assert seen.status.sealed_until == status.sealed_until
        (read,) = resolve(source, ReadOptions({}, feed))
        assert read.range.upto == Ulid.floor(status.sealed_until).previous()
        client.results(f"exec changefeed.[purge_feed:{feed}] @before = '2020-05-01'")
        write("2020-03-01", 2)
        (event,) = source.read_feed(feed, 0, read.range.upto)
        assert event.ulid.time == datetime(2020, 3, 1, tzinfo=timezone.utc)
        (seal,) = source.seal(feed, datetime(2020, 7, 1, tzinfo=timezone.utc)).values()
        assert (seal.until, seal.head) == (datetime(2020, 7, 1, tzinfo=timezone.utc), event.ulid)
        client.results(f"update changefeed.feeds set floor_time = '2020-08-01' where name = N'{feed}'")
        (again,) = source.seal(feed, datetime(2020, 7, 1, tzinfo=timezone.utc)).values()
        assert again.until == seal.until
