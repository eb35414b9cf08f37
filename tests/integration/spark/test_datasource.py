# SPDX-License-Identifier: Apache-2.0
"""The data source in a real session; what needs no session is in tests/unit/spark."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_changefeed.exceptions import (
    ChangefeedError,
    InvalidArgumentError,
    NotSealedError,
    PurgedError,
    changefeed_error,
)
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.datasource.source import ChangefeedDataSource
from airflow_changefeed.spark.read import read_export
from airflow_changefeed.spark.version_compat import has_filter_pushdown
from tests.examples import examples, run_example
from tests.unit.export.flights import FEED, Flights, hours
from tests.unit.spark.feeds import make_flights

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session that knows the format."""
    ChangefeedDataSource.register(spark)
    return spark


def load(session: SparkSession, flights: Flights, **options: object) -> DataFrame:
    """The frame of a feed."""
    reader = session.read.format("changefeed").option("Type", "sqlite").option("PATH", str(flights.path))
    return reader.option("feed", FEED).options(**options).load()


def error_of(frame: Any) -> ChangefeedError | None:
    """Our error in the one that something of Spark raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever Spark makes of ours
        frame()
    found = changefeed_error(caught.value)
    assert found is not None, caught.value
    assert f"{type(found).__name__}: {found.message}" in str(caught.value)
    return found


def plans(frame: DataFrame) -> str:
    """All that Spark shows of a frame: what explain() prints, the UI draws and the event log keeps."""
    execution = frame._jdf.queryExecution()
    return f"{execution.toString()} {execution.optimizedPlan().toJSON()} {execution.executedPlan().toJSON()}"


@pytest.mark.parametrize("shard_key_type", ["int", pytest.param("uniqueidentifier", marks=pytest.mark.ci)])
def test_the_feed_is_what_spark_reads_of_its_export(
    session: SparkSession, tmp_path: Path, shard_key_type: str
) -> None:
    """The same columns, types and rows, each event once."""
    flights = make_flights(tmp_path / "feeds.db", shard_key_type)
    shards: list[Any] = [7, 8] if shard_key_type == "int" else [str(uuid.uuid4()), str(uuid.uuid4())]
    flights.add(300, 0, shard=shards[0], length=4)
    flights.add(50, 1, shard=shards[1], length=2)
    store = ExportStore(str(tmp_path / "out"), FEED)
    flights.export(store, hours(0, 4))
    frame, other = load(session, flights, partitions=3), read_export(session, store.path, FEED)
    assert frame.dtypes == other.dtypes
    assert frame.rdd.getNumPartitions() == 3
    key = ("changefeed_shard", "changefeed_ulid")
    assert frame.orderBy(*key).collect() == other.orderBy(*key).collect()


@pytest.mark.ci
def test_filters_read_less_and_give_the_same(session: SparkSession, flights: Flights) -> None:
    """
    A filter on time and shard leaves out what was purged, and gives what a session without it gives; before
    Spark 4.1 it gives the same, and reads all.
    """
    flights.add(40, 0, shard=1, length=4)
    flights.add(40, 0, shard=2, length=4)
    flights.source.seal(FEED, hours(3, 4)[0].end)
    condition = "changefeed_time >= timestamp'2013-01-01 03:00:00Z' and changefeed_shard = 2 and id % 2 = 0"
    session.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    session.dataSource.register(ChangefeedDataSource)
    expected = load(session, flights).where(condition).orderBy("id").collect()
    assert len(expected) == 5
    ChangefeedDataSource.register(session)
    assert load(session, flights).where(condition).orderBy("id").collect() == expected
    flights.source.purge(FEED, hours(0, 3)[-1].end)
    if has_filter_pushdown():
        assert load(session, flights).where(condition).orderBy("id").collect() == expected
    session.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    session.dataSource.register(ChangefeedDataSource)
    assert isinstance(error_of(load(session, flights).where(condition).collect), PurgedError)


def test_a_purge_reaches_the_user_by_name(session: SparkSession, flights: Flights) -> None:
    """Events that are purged before the plan, or under a task, end the frame as PurgedError."""
    flights.add(40, 0, shard=1, length=4)
    flights.source.seal(FEED, hours(3, 4)[0].end)
    frame = load(session, flights)
    rows = frame.rdd
    assert rows.getNumPartitions() == 1
    flights.source.purge(FEED, hours(0, 2)[-1].end)
    for action in (rows.count, frame.count):
        found = error_of(action)
        assert isinstance(found, PurgedError)
        assert found.message.startswith(f"feed {FEED!r} shard 1: events up to ")


@pytest.mark.ci
def test_spark_shows_no_option(session: SparkSession, flights: Flights) -> None:
    """Neither a plan nor an error has a password in it; a plan has no option at all."""
    flights.add(10, 0)
    flights.source.seal(FEED, hours(0, 1)[0].end)
    shown = plans(load(session, flights).where("id > 3"))
    assert "changefeed_ulid" in shown
    assert str(flights.path) not in shown
    assert FEED not in shown
    mssql = {"type": "mssql", "host": "h", "database": "d", "user": "u", "password": "hunter2", "feed": FEED}
    wrong = session.read.format("changefeed").options(**mssql, port="x")
    with_columns = session.read.format("changefeed").options(**mssql, port="x").schema("id long").load()
    # With columns of one's own nothing is looked at before the plan is made.
    analyzed = with_columns._jdf.queryExecution().analyzed()
    assert "hunter2" not in analyzed.toString() + analyzed.toJSON()
    for call in (wrong.load, with_columns.count):
        with pytest.raises(Exception, match="port must be a whole number") as caught:
            call()
        assert isinstance(changefeed_error(caught.value), InvalidArgumentError)
        assert "hunter2" not in str(caught.value)


@pytest.mark.ci
def test_the_guide_runs(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each example of docs/how-to/read-a-feed-with-spark.md, in order, as a notebook would."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(40, 0, shard=1, length=4)
    flights.source.seal(FEED, hours(3, 4)[0].end)
    monkeypatch.setenv("SHOP_PASSWORD", json.dumps("hunter2"))
    names: dict[str, Any] = {}
    for code in examples("how-to/read-a-feed-with-spark.md", {"/data/feeds": tmp_path / "feeds"}):
        run_example(code, names)
    assert "|               1|   40|" in capsys.readouterr().out
    assert [names[name].count() for name in ("flights", "present", "sealed", "complete", "morning")] == [
        40
    ] * 5
    assert isinstance(names["error"], NotSealedError)
