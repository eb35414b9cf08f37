# SPDX-License-Identifier: Apache-2.0
"""Reading hours without events: the frame has the columns and types of any other hour."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_changefeed.output.commit import commit_empty
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.read import read_export
from tests.unit.export.flights import FEED, Flights, hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_an_idle_hour_reads_like_a_busy_one(spark: SparkSession, flights: Flights, tmp_path: Path) -> None:
    """Columns and types are the same, the shard is a bigint in both."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    flights.add(10, 0, shard=5)
    flights.export(store, hours(0, 1))
    commit_empty(store, flights.plan(store, hours(1, 2)), flights.source.schema(FEED))
    busy = read_export(spark, store.path, FEED, end=hours(1, 2)[0].start)
    idle = read_export(spark, store.path, FEED, hours(1, 2)[0].start)
    assert (busy.count(), idle.count()) == (10, 0)
    assert busy.dtypes == idle.dtypes
    assert dict(busy.dtypes)["changefeed_shard"] == "bigint"
