# SPDX-License-Identifier: Apache-2.0
"""The Arrow form of a capture's events, put together from what sources read."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.capture import METADATA_KEY
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.arrow import (
    TYPES,
    EventColumns,
    captured_batch,
    captured_schema,
    shape_of,
)
from tests.unit.capture.events import START_MS, Event, capture_shape, captured_table, typed_batch

ROW = [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())]
SHAPE = capture_shape(
    {"dbo.a": captured_table(["id", "text"]), "dbo.b": captured_table(["id"])}, with_sequence=True
)


def test_the_schema_says_what_is_captured() -> None:
    """The capture travels in the metadata; all fields of a row may be null, as some are other tables'."""
    schema = captured_schema(SHAPE, ROW)
    assert shape_of(schema) == SHAPE
    assert shape_of(pa.schema([("a", pa.int64())])) is None
    assert all(schema.field(side).type.field(number).nullable for side in ("old", "new") for number in (0, 1))
    assert schema.names == [
        "changefeed_ulid",
        "changefeed_time",
        "name",
        "type",
        "is_snapshot",
        "tid",
        "sequence",
        "epoch",
        "captured_at",
        "session_variables",
        "trace_context",
        "ddl",
        "old",
        "new",
    ]
    without = captured_schema(capture_shape(SHAPE.tables), ROW)
    assert set(schema.names) - set(without.names) == {"sequence"}
    assert json.loads(schema.metadata[METADATA_KEY])["name"] == SHAPE.name


def test_a_batch_has_each_event_as_it_was_read() -> None:
    """Tables by name, kinds as types, and a row that is not there as null, not as a row of nulls."""
    events = [
        Event("i", None, {"id": 1, "text": "x"}, session='{"a":"1"}', trace="t"),
        Event("u", {"id": 1, "text": "x"}, {"id": 1, "text": None}, table=1, tid=None),
        Event("u", None, {"id": 2}),
        Event("d", {"id": None, "text": None}, None),
        Event("r", None, {"id": 3}),
        Event("t"),
        Event("c", ddl='{"by":"anna"}'),
    ]
    batch = typed_batch(SHAPE, ROW, events)
    found = batch.to_pydict()
    assert found["name"] == ["dbo.a", "dbo.b", "dbo.a", "dbo.a", "dbo.a", "dbo.a", "dbo.a"]
    assert found["type"] == ["add", "upd", "upd", "del", "add", "reset", "ddl"]
    assert found["is_snapshot"] == [False, False, False, False, True, False, False]
    assert found["tid"] == [7, None, 7, 7, 7, 7, 7]
    assert found["sequence"] == [1, 2, 3, 4, 5, 6, 7]
    assert found["epoch"] == [START_MS // 1000] * 7
    assert found["captured_at"][1] == datetime.fromtimestamp((START_MS + 1) / 1000, timezone.utc)
    assert found["session_variables"][:2] == ['{"a":"1"}', None]
    assert found["trace_context"][:2] == ["t", None]
    assert found["ddl"] == [None] * 6 + ['{"by":"anna"}']
    assert found["old"] == [None, {"id": 1, "text": "x"}, None, {"id": None, "text": None}, *[None] * 3]
    assert [row and row["id"] for row in found["new"]] == [1, 1, 2, None, 3, None, None]
    assert found["new"][1] == {"id": 1, "text": None}
    assert found["changefeed_ulid"][0] == str(Ulid.of_int((START_MS << 80) + 1))
    batch.validate(full=True)


@pytest.mark.parametrize("kind", TYPES)
def test_every_kind_has_a_type(kind: str) -> None:
    """What is stored of an event is one letter; what readers see is a word."""
    assert typed_batch(SHAPE, ROW, [Event(kind)])["type"].to_pylist() == [TYPES[kind]]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20), st.integers(0, 5))
def test_columns_that_are_part_of_larger_ones_keep_their_values(
    there: list[tuple[bool, bool]], cut: int
) -> None:
    """Drivers give slices; a struct's children must begin where it does."""
    numbers = list(range(len(there) + cut))
    column = pa.array(numbers, pa.int64()).slice(cut)
    count = len(column)
    ulids = b"".join(((START_MS << 80) + number).to_bytes(16, "big") for number in range(count))
    milliseconds = pa.array([START_MS - cut + number for number in numbers], pa.int64())
    events = EventColumns(
        ulids=np.frombuffer(ulids, dtype=np.uint8).reshape(-1, 16),
        tables=pa.array([0] * count, pa.int64()),
        kinds=pa.array(["u"] * count, pa.string()),
        tids=column,
        sequences=None,
        captured_ms=milliseconds.slice(cut),
        session=pa.nulls(count, pa.string()),
        trace=pa.nulls(count, pa.string()),
        ddl=pa.nulls(count, pa.string()),
        old=[column],
        has_old=np.array([old for old, _ in there], dtype=bool),
        new=[column],
        has_new=np.array([new for _, new in there], dtype=bool),
    )
    shape = capture_shape({"dbo.a": captured_table(["id"])})
    batch = captured_batch(captured_schema(shape, ROW[:1]), events, ["dbo.a"])
    batch.validate(full=True)
    assert batch["old"].to_pylist() == [
        {"id": number} if old else None for number, (old, _) in zip(numbers[cut:], there, strict=True)
    ]
    assert batch["new"].to_pylist() == [
        {"id": number} if new else None for number, (_, new) in zip(numbers[cut:], there, strict=True)
    ]
    assert batch["epoch"].to_pylist() == [(START_MS + number) // 1000 for number in range(count)]
