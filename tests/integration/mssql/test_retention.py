# SPDX-License-Identifier: Apache-2.0
"""How long a purge in T-SQL keeps events for consumers: ``@max_hold_ms`` of ``setup_feed``."""

from __future__ import annotations

from datetime import datetime, timezone

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.spark.datasource.ranges import ReadOptions, resolve
from tests.integration.mssql.server import Client, Database


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
