# SPDX-License-Identifier: Apache-2.0
"""Exports of captures in Spark: structs as they were written, also across a change of their fields."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.export_plan import ExportOptions
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.dataset import export_dataset
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.read import read_export
from tests.unit.capture.source import COLUMNS, ROW, CaptureSource, event, row
from tests.unit.export.flights import FEED, Flights, hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def store(tmp_path: Path) -> ExportStore:
    """An output."""
    return ExportStore(str(tmp_path / "out"), FEED)


def export(source: CaptureSource, store: ExportStore, hour: int, shape: str = "typed") -> None:
    """Export an hour of a capture."""
    options = ExportOptions(shape=shape)
    request = ExportRequest(FEED, store.path, "tests", "tests", hours(hour, hour + 1), options=options)
    run_here(source, store, make_plan(source, store, request), lambda line: None)


def rows(frame: Any) -> list[dict[str, Any]]:
    """All rows of a frame, by ULID."""
    return [each.asDict(recursive=True) for each in frame.orderBy("changefeed_ulid").collect()]


def test_structs_read_in_spark_as_in_arrow(spark: SparkSession, flights: Flights, store: ExportStore) -> None:
    """Field by field, null where there is no row, and a filter on a field finds what it should."""
    flights.add(60, 0)
    export(CaptureSource(flights.source), store, 0)
    frame = read_export(spark, store.path, FEED)
    assert dict(frame.dtypes)["new"] == (
        "struct<id:bigint,text:string,amount:decimal(20,4),at:timestamp_ntz,at_100ns:smallint,raw:binary>"
    )
    arrow = export_dataset(store.path, FEED).to_table().sort_by("changefeed_ulid").to_pylist()
    found = rows(frame)
    for name in ("type", "name", "tid", "epoch", "session_variables", "old", "new"):
        assert [each[name] for each in found] == [each[name] for each in arrow]
    wanted = [n for n in range(1, 61) if event(n).new and n + 1 > 40]
    assert frame.where("new.id > 40").count() == len(wanted)
    assert frame.where("old is null").count() == sum(event(n).old is None for n in range(1, 61))


def test_a_field_that_came_later_is_null_before(
    spark: SparkSession, flights: Flights, store: ExportStore
) -> None:
    """Units of before and after a refresh are one frame: by name within the structs, in the wider type."""
    for hour in range(2):
        flights.add(60, hour)
    source = CaptureSource(flights.source)
    export(source, store, 0)
    wider = [field if field.name != "id" else pa.field("id", pa.decimal128(20, 0)) for field in ROW]
    export(CaptureSource(flights.source, wider[::-1]), store, 1)
    with pytest.raises(ColumnTypeError, match=r"column 'old\.id' is "):
        read_export(spark, store.path, FEED, unify_schemas=True)
    later = [pa.field("late", pa.int64()), *ROW[::-1]]
    export(CaptureSource(flights.source, later, [*COLUMNS, "late"]), store, 1)
    with pytest.raises(ColumnTypeError, match=r"column 'old\.late' is int64 in .*unify_schemas=True"):
        read_export(spark, store.path, FEED)
    frame = read_export(spark, store.path, FEED, unify_schemas=True)
    found = rows(frame)
    assert len(found) == 120
    for number, got in enumerate(found, 1):
        for side, numbered in (("old", number), ("new", number + 1)):
            made = getattr(event(number), side)
            late = numbered * 10 if number > 60 else None
            assert got[side] == (None if made is None else {**row(numbered), "late": late})
    assert frame.where("new.late >= 1000").count() == sum(
        event(n).new is not None and (n + 1) * 10 >= 1000 for n in range(61, 121)
    )


def test_json_is_read_in_spark(spark: SparkSession, flights: Flights, store: ExportStore) -> None:
    """Columns of texts, whose decimals keep their digits."""
    flights.add(6, 0)
    export(CaptureSource(flights.source), store, 0, "debezium")
    frame = read_export(spark, store.path, FEED)
    assert frame.columns == ["changefeed_ulid", "changefeed_time", "key", "value", "changefeed_shard"]
    found = [json.loads(each["value"], parse_float=Decimal) for each in rows(frame)]
    for number, got in enumerate(found, 1):
        made = event(number).new
        assert (got["after"] or {}).get("amount") == (None if made is None else made["amount"])
