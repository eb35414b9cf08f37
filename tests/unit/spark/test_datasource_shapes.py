# SPDX-License-Identifier: Apache-2.0
"""The data source over the feed of a capture: structs, and JSON in the shape that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.capture.shapes import shaped_batch
from airflow_changefeed.core.export_plan import SHAPES
from airflow_changefeed.exceptions import ColumnTypeError, InvalidArgumentError
from airflow_changefeed.spark.datasource.frames import feed_columns, read_pieces
from airflow_changefeed.spark.datasource.ranges import ReadOptions, parse_options, plan_partitions, resolve
from airflow_changefeed.spark.version_compat import utc_arrow_schema
from tests.unit.capture.source import COLUMNS, ROW, CaptureSource
from tests.unit.export.flights import FEED, Flights


@pytest.fixture
def source(tmp_path: Path) -> CaptureSource:
    """A capture with events in two shards."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(40, 0, shard=1)
    flights.add(20, 0, shard=2)
    return CaptureSource(flights.source)


def options(shape: str = "typed") -> ReadOptions:
    """Options that read all that is there; the source they name is not opened."""
    return parse_options({"type": "sqlite", "path": "x", "feed": FEED, "seal": "true", "shape": shape})


def read(source: Any, shape: str) -> pa.Table:
    """Read a feed as tasks do, into what Spark declares."""
    given = options(shape)
    columns = utc_arrow_schema(feed_columns(source, given))
    pieces = [piece for part in plan_partitions(source, FEED, resolve(source, given), 2) for piece in part]
    return pa.Table.from_batches(read_pieces(source, given, pieces, columns), columns)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_read(source: CaptureSource, shape: str) -> None:
    """The events are those of the stream, in exactly the types that were declared, with their shard."""
    found = read(source, shape).to_pylist()
    assert [row.pop("changefeed_shard") for row in found] == [1] * 40 + [2] * 20
    expected = [
        row
        for given in resolve(source, options(shape))
        for batch in source.stream(FEED, given.shard, given.range, batch_rows=100)
        for row in shaped_batch(batch, shape).to_pylist()
    ]
    assert found == expected


def test_structs_are_declared_field_by_field(source: CaptureSource) -> None:
    """With the types that a read of the export has."""
    columns = feed_columns(source, options("typed"))
    assert columns["new"].dataType.simpleString() == (
        "struct<id:bigint,text:string,amount:decimal(20,4),at:timestamp_ntz,at_100ns:smallint,raw:binary>"
    )
    assert columns["old"].dataType == columns["new"].dataType
    assert feed_columns(source, options("hasura")).fieldNames() == [
        "changefeed_ulid",
        "changefeed_time",
        "payload",
        "changefeed_shard",
    ]


def test_a_shape_of_a_plain_feed_is_refused(source: CaptureSource) -> None:
    """By ``load()``, with the remedy."""
    with pytest.raises(InvalidArgumentError, match=rf"{FEED}.*omit shape='hasura'"):
        feed_columns(source.source, options("hasura"))


def test_an_unknown_shape_is_refused_before_any_io() -> None:
    """The error names those that there are."""
    with pytest.raises(InvalidArgumentError, match="shape must be one of typed, envelope, hasura, debezium"):
        options("avro")


def test_a_time_of_the_day_in_a_row_is_refused_by_its_path(source: CaptureSource) -> None:
    """Spark takes none from Python, also not within a struct; in JSON it is a text."""
    fields = [*ROW, pa.field("start", pa.time64("us"))]
    with_time = CaptureSource(source.source, fields, [*COLUMNS, "start"])
    with pytest.raises(ColumnTypeError, match=r"column 'old\.start' holds a time of day"):
        feed_columns(with_time, options("typed"))
    assert "value" in feed_columns(with_time, options("debezium")).fieldNames()
