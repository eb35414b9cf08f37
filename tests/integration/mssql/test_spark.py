# SPDX-License-Identifier: Apache-2.0
"""Spark's tasks read SQL Server: the export, and the data source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_changefeed.core.window import Window
from airflow_changefeed.export.job_spec import JobConnection, write_spec
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.export.verify import verify_export
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.spark.datasource.source import ChangefeedDataSource
from airflow_changefeed.spark.export_job import run_spec
from airflow_changefeed.spark.read import read_export
from tests.integration.mssql.server import Client, Database
from tests.integration.spark.conftest import spark
from tests.unit.spark.queries import Checkpoint, Query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]  # a fixture

pytestmark = pytest.mark.spark

FEED = "myservice.Trip"
START = datetime(2020, 1, 1, tzinfo=timezone.utc)
HOURS, EACH, SHARDS = 4, 50, (0, 1)
WINDOW = Window(START, START + timedelta(hours=HOURS))
OPTIONS = ("type", "host", "port", "database", "user", "password", "encrypt", "trust_server_certificate")


@pytest.fixture(scope="module")
def source(database: Database) -> Iterator[MssqlFeedSource]:
    """A feed with events in each hour of both shards."""
    with database.client() as client:
        client.results(
            f"create table {FEED} "
            "(EventID int not null primary key, Note nvarchar(50) null, At datetime2(7) not null)"
        )
        client.results(f"exec changefeed.setup_feed N'{FEED}', @outbox = 1")
        for shard in SHARDS:
            for hour in range(HOURS):
                _write(client, shard, hour)
    with closing(MssqlFeedSource(**database.description | {"lock_timeout": 20})) as source:
        yield source


def _write(client: Client, shard: int, hour: int) -> None:
    hint = f"{START + timedelta(hours=hour):%Y-%m-%dT%H:%M:%S}"
    for number in range(EACH):
        key = (shard * HOURS + hour) * EACH + number
        note = "null" if key % 7 == 0 else f"N'trip {key}'"
        client.results(
            f"insert into {FEED} (EventID, Note, At) values ({key}, {note}, '{hint}.1234567'); "
            f"insert into [changefeed].[outbox:{FEED}] (shard_id, time_hint, EventID) "
            f"values ({shard}, '{hint}', {key})"
        )


def _frame(session: SparkSession, database: Database, **more: object) -> DataFrame:
    ChangefeedDataSource.register(session)
    given = {"type": "mssql", **database.description, **more}
    options = {name: str(given[name]) for name in (*OPTIONS, *more) if name in given}
    return session.read.format("changefeed").options(feed=FEED, **options).load()


def test_an_export_and_a_frame_hold_every_event(
    source: MssqlFeedSource, database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    """Both by Spark's tasks, in several parts: the same rows, types and order as were written, each once."""
    store = ExportStore(str(tmp_path), FEED)
    request = ExportRequest(FEED, str(tmp_path), "reader", "run", windows=WINDOW.cut(timedelta(hours=1)))
    plan = make_plan(source, store, request)
    connection = JobConnection(source.describe(), {})
    result = run_spec(lambda: spark, write_spec(store, plan), connection, lambda line: None)
    assert (result.rows, result.units) == (HOURS * EACH * len(SHARDS), HOURS * len(SHARDS))
    assert verify_export(str(tmp_path), FEED, source=source).damage == []
    order = ("changefeed_shard", "changefeed_ulid")
    exported = read_export(spark, str(tmp_path), FEED).orderBy(*order).collect()
    assert [row["EventID"] for row in exported] == list(range(HOURS * EACH * len(SHARDS)))
    frame = _frame(spark, database, end=WINDOW.end.isoformat(), partitions=3)
    assert frame.rdd.getNumPartitions() == 3
    assert frame.orderBy(*order).collect() == exported
    hour = frame.where("changefeed_shard = 1 and changefeed_time >= timestamp'2020-01-01 03:00:00Z'")
    assert [row["EventID"] for row in hour.orderBy(*order).collect()] == list(range(350, 400))


def test_a_stream_writes_each_event_once(source: MssqlFeedSource, database: Database) -> None:
    """Bounded, with a consumer, stopped and started, while writers write; the consumer follows."""
    given = {"type": "mssql", **database.description}
    connection = {name: given[name] for name in OPTIONS if name in given}
    log = Checkpoint()
    options: dict[str, Any] = {"feed": FEED, "maxEventsPerTrigger": 70, "consumer": "lake"}
    for hour in (0, 1):
        query = Query(connection, log, **options)
        query.run()
        query.stop()
        with database.client() as client:
            for number in range(10):
                key = 10_000 + hour * 10 + number
                client.results(
                    f"insert into {FEED} (EventID, At) values ({key}, '2020-01-02'); "
                    f"insert into [changefeed].[outbox:{FEED}] (shard_id, time_hint, EventID) "
                    f"values (2, '2020-01-02', {key})"
                )
    query = Query(connection, log, **options)
    query.run()
    query.stop()
    keys = [row["EventID"] for row in log.rows()]
    assert sorted(keys) == [*range(HOURS * EACH * len(SHARDS)), *range(10_000, 10_020)]
    by_shard: dict[int, list[str]] = {}
    for row in log.rows():
        by_shard.setdefault(row["changefeed_shard"], []).append(row["changefeed_ulid"])
    assert all(ulids == sorted(ulids) for ulids in by_shard.values())
    cursors = {row.shard: row.ulid for row in source.cursors(FEED, "lake")}
    assert sorted(cursors) == [0, 1, 2]
    assert [lease.holder for lease in source.leases(FEED) if lease.consumer == "lake"] == [None] * 3
