# SPDX-License-Identifier: Apache-2.0
"""The reference of event shapes: its examples are what an export writes, and its tables are complete."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from airflow_changefeed.capture.shapes import shaped_batch
from airflow_changefeed.core.export_plan import SHAPES
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.arrow import captured_schema
from tests.examples import DOCS, examples, section
from tests.unit.capture.events import START_MS, Event, capture_shape, captured_table, typed_batch

PAGE = "reference/event-shapes.md"
ROW = [
    pa.field("id", pa.int64()),
    pa.field("amount", pa.decimal128(18, 4)),
    pa.field("at", pa.timestamp("us")),
    pa.field("at_100ns", pa.uint8()),
    pa.field("due", pa.timestamp("us", "UTC")),
    pa.field("due_offset_minutes", pa.int16()),
    pa.field("raw", pa.binary()),
]
SHAPE = capture_shape(
    {"dbo.orders": captured_table(["id", "amount", "at", "due", "raw"])}, with_sequence=True
)


def event() -> pa.RecordBatch:
    """The page's event."""
    old = {
        "id": 2**53 + 1,
        "amount": Decimal("12.34"),
        "at": datetime(2026, 11, 22, 1, 2, 3, 123456),
        "at_100ns": 7,
    }
    new = {
        **old,
        "amount": Decimal("12.5"),
        "at_100ns": 8,
        "due": datetime(2026, 12, 1, 8),
        "due_offset_minutes": 60,
        "raw": b"\x00\xff",
    }
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    made = Event("u", old, new, tid=4711, session='{"x-hasura-role":"clerk"}', trace=trace)
    batch = typed_batch(SHAPE, ROW, [made], ulids=[Ulid.of_int((START_MS << 80) + 16)])
    number = batch.schema.get_field_index("sequence")
    return batch.set_column(number, batch.schema.field(number), pa.array([17], pa.int64()))


def loaded(text: str) -> Any:
    """Read JSON with every digit, and in order."""
    return json.loads(text, parse_float=lambda digits: ("number", digits), object_pairs_hook=list)


def test_the_examples_are_what_is_written() -> None:
    """Each shape's block, key by key and digit by digit; the typed event is the same one."""
    envelope, hasura, key, value = map(loaded, examples(PAGE, {}, "json"))
    found = shaped_batch(event(), "envelope").to_pylist()[0]
    assert [(name, found[name]) for name, _ in envelope] == envelope
    assert [name for name, _ in envelope] == list(found)[2:]
    assert loaded(shaped_batch(event(), "hasura")["payload"][0].as_py()) == hasura
    debezium = shaped_batch(event(), "debezium")
    assert (loaded(debezium["key"][0].as_py()), loaded(debezium["value"][0].as_py())) == (key, value)


def test_the_table_of_typed_columns_is_complete() -> None:
    """It names each, in order."""
    text = section("reference/capture.md#events").partition("\n### ")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    names = [name.strip(" `") for cell in cells for name in cell.split(",")]
    assert names == captured_schema(SHAPE, ROW).names


def test_the_page_has_a_section_for_every_shape() -> None:
    """Under its name."""
    text = (DOCS / PAGE).read_text(encoding="utf-8")
    assert all(f"\n## {shape}\n" in text for shape in SHAPES)
