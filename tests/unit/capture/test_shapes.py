# SPDX-License-Identifier: Apache-2.0
"""The shapes of events: the typed values in JSON, of each operation its own columns and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_changefeed.capture import values
from airflow_changefeed.capture.shapes import SHAPE_KEY, shaped_batch, shaped_schema
from airflow_changefeed.core.capture import METADATA_KEY
from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.export_plan import Shape
from airflow_changefeed.exceptions import ColumnTypeError, InvalidArgumentError, SchemaChangedError
from airflow_changefeed.sources.arrow import captured_schema, shape_of
from tests.unit.capture.events import START_MS, Event, capture_shape, captured_table, typed_batch

ROW = [
    pa.field("id", pa.int64()),
    pa.field("text", pa.string()),
    pa.field("amount", pa.decimal128(38, 10)),
    pa.field("at", pa.timestamp("us")),
    pa.field("at_100ns", pa.uint8()),
    pa.field("zoned", pa.timestamp("us", "UTC")),
    pa.field("zoned_offset_minutes", pa.int16()),
    pa.field("any", pa.string()),
    pa.field("any_type", pa.string()),
]
COLUMNS = ("id", "text", "amount", "at", "zoned", "any")
SHAPE = capture_shape({"dbo.orders": captured_table(COLUMNS)})
JSON_SHAPES = [shape for shape in Shape if shape is not Shape.TYPED]

_MOMENT = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31))
_ROWS = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "text": st.none() | st.text(max_size=20),
        "amount": st.none()
        | st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal((n < 0, _digits(n), -10))),
        "at": _MOMENT,
        "at_100ns": st.integers(0, 9),
        "zoned": _MOMENT,
        "zoned_offset_minutes": st.integers(-840, 840),
        "any": st.none() | st.text(max_size=5),
        "any_type": st.sampled_from(["int", "nvarchar(5)"]),
    }
)


def _digits(number: int) -> tuple[int, ...]:
    return tuple(int(digit) for digit in str(abs(number)))


@st.composite
def events(draw: st.DrawFn) -> Event:
    """Any event that a capture may record."""
    kind = draw(st.sampled_from("iudrt"))
    old = draw(_ROWS) if kind == "d" or (kind == "u" and draw(st.booleans())) else None
    new = draw(_ROWS) if kind in "iur" else None
    return Event(kind, old, new, tid=draw(st.none() | st.integers(0, 2**62)))


def expected(row: Any) -> Any:
    """Return what JSON has to say of a row's values."""
    if row is None:
        return None
    local = row["zoned"] + timedelta(minutes=row["zoned_offset_minutes"])
    minutes = abs(row["zoned_offset_minutes"])
    sign = "-" if row["zoned_offset_minutes"] < 0 else "+"
    return {
        "id": row["id"],
        "text": row["text"],
        "amount": row["amount"],
        "at": f"{row['at'].isoformat(timespec='microseconds')}{row['at_100ns']}",
        "zoned": f"{local.isoformat(timespec='microseconds')}{sign}{minutes // 60:02d}:{minutes % 60:02d}",
        "any": row["any"],
        "any_type": row["any_type"],
    }


def loaded(text: str | None) -> Any:
    """Read JSON without loss."""
    return None if text is None else json.loads(text, parse_float=Decimal)


def images(batch: pa.RecordBatch, shape: Shape) -> list[tuple[Any, Any]]:
    """Return the old and new rows of shaped events."""
    if shape is Shape.ENVELOPE:
        return [
            (loaded(old), loaded(new)) for old, new in zip(*map(_list(batch), ("old", "new")), strict=True)
        ]
    if shape is Shape.HASURA:
        data = [loaded(text)["event"]["data"] for text in batch["payload"].to_pylist()]
        return [(each["old"], each["new"]) for each in data]
    found = [loaded(text) for text in batch["value"].to_pylist()]
    return [(each["before"], each["after"]) for each in found]


def _list(batch: pa.RecordBatch) -> Any:
    return lambda name: batch[name].to_pylist()


@settings(max_examples=50)
@given(given_events=st.lists(events(), max_size=8), cut=st.integers(0, 3))
def test_json_equals_the_typed_values(given_events: list[Event], cut: int) -> None:
    """Of every event, in its place, wherever the batch begins; no event is lost or made, in any shape."""
    batch = typed_batch(SHAPE, ROW, given_events).slice(cut)
    wanted = [(expected(each.old), expected(each.new)) for each in given_events[cut:]]
    for shape in JSON_SHAPES:
        found = shaped_batch(batch, shape)
        found.validate(full=True)
        assert found.schema.equals(shaped_schema(batch.schema, shape), check_metadata=True)
        assert images(found, shape) == wanted
        for name in ("changefeed_ulid", "changefeed_time"):
            assert found[name].equals(batch[name])


def test_typed_is_what_the_source_gives() -> None:
    """Nothing is changed, nothing is copied; of feeds that are no captures as well."""
    batch = typed_batch(SHAPE, ROW, [Event("t")])
    assert shaped_batch(batch, "typed") is batch
    plain = pa.schema([("changefeed_ulid", pa.string()), ("n", pa.int64())])
    assert shaped_schema(plain, Shape.TYPED) is plain


def test_each_operation_has_its_own_columns() -> None:
    """In the table's names and order, also where the field has another one; other tables have theirs."""
    row = [pa.field("b", pa.string()), pa.field("a", pa.int64()), pa.field("a_2", pa.string())]
    shape = capture_shape(
        {
            "dbo.one": captured_table(["a", "b"], key=["a"], insert={"a": "a"}, delete={}),
            "two": captured_table({"a": "a_2"}, key=[]),
        }
    )
    one, two = {"a": 1, "b": "x"}, {"a_2": "y"}
    given_events = [
        Event("i", None, one),
        Event("u", one, one),
        Event("d", one, None),
        Event("r", None, one),
        Event("d", two, None, table=1),
        Event("i", None, two, table=1),
        Event("t", table=1),
    ]
    found = shaped_batch(typed_batch(shape, row, given_events), "envelope")
    assert found["old"].to_pylist() == [None, '{"b":"x","a":1}', "{}", None, '{"a":"y"}', None, None]
    assert found["new"].to_pylist() == [
        '{"a":1}',
        '{"b":"x","a":1}',
        None,
        '{"a":1}',
        None,
        '{"a":"y"}',
        None,
    ]
    assert found["name"].to_pylist() == ["dbo.one"] * 4 + ["two"] * 3
    debezium = shaped_batch(typed_batch(shape, row, given_events), "debezium")
    # A delete captures no column here, so it does not say whose key it is.
    assert debezium["key"].to_pylist() == ['{"a":1}', '{"a":1}', None, '{"a":1}', None, None, None]
    sources = [json.loads(text)["source"] for text in debezium["value"].to_pylist()]
    assert [(each["schema"], each["table"]) for each in sources[3:5]] == [("dbo", "one"), (None, "two")]


def test_an_operation_that_is_not_captured_has_all_columns() -> None:
    """A changed key may be recorded as a delete and an insert of a capture of updates alone."""
    table = captured_table(["id", "text"])
    only = {operation: columns for operation, columns in table.columns.items() if operation.value == "update"}
    shape = capture_shape({"dbo.t": type(table)(table.key_columns, only, False)})
    batch = typed_batch(shape, ROW[:2], [Event("d", {"id": 1, "text": "x"}, None)])
    assert shaped_batch(batch, "envelope")["old"].to_pylist() == ['{"id":1,"text":"x"}']


def test_a_column_with_a_second_ones_name_stays_one() -> None:
    """SQLite's own column ``at_100ns`` is not the digit of another column."""
    row = [pa.field("at", pa.timestamp("us")), pa.field("at_100ns", pa.int64()), pa.field("b", pa.string())]
    row += [pa.field("b_type", pa.string()), pa.field("c", pa.time64("us")), pa.field("c_100ns", pa.uint8())]
    shape = capture_shape({"t": captured_table(["at", "at_100ns", "b", "b_type", "c", "c_100ns"], key=[])})
    given_row = {"at": datetime(2026, 1, 1), "at_100ns": 3, "b": "x", "b_type": "y", "c": None, "c_100ns": 7}
    found = shaped_batch(typed_batch(shape, row, [Event("i", None, given_row)]), "envelope")
    assert loaded(found["new"][0].as_py()) == {**given_row, "at": "2026-01-01T00:00:00.000000"}


def test_the_envelope_has_what_comdb2_gives() -> None:
    """``id``, ``name``, ``type``, ``old``, ``new``, ``tid``, ``epoch``; ``sequence`` where there is one."""
    shape = capture_shape(SHAPE.tables, with_sequence=True)
    batch = typed_batch(shape, ROW[:1], [Event("i", None, {"id": 1}), Event("t", tid=None)])
    assert shape_of(batch.schema) == shape
    only_id = capture_shape({"dbo.orders": captured_table(["id"])}, with_sequence=True)
    found = shaped_batch(
        typed_batch(only_id, ROW[:1], [Event("i", None, {"id": 1}), Event("t", tid=None)]), "envelope"
    )
    assert found.schema.names == [
        "changefeed_ulid",
        "changefeed_time",
        "id",
        "name",
        "type",
        "old",
        "new",
        "tid",
        "sequence",
        "epoch",
        "ddl",
    ]
    assert found["id"].equals(found["changefeed_ulid"])
    assert found["type"].to_pylist() == ["add", "reset"]
    assert found["tid"].to_pylist() == [7, None]
    assert found["sequence"].to_pylist() == [1, 2]
    assert found["epoch"].to_pylist() == [START_MS // 1000] * 2
    without = capture_shape({"dbo.orders": captured_table(["id"])})
    assert "sequence" not in shaped_schema(captured_schema(without, ROW[:1]), "envelope").names


def test_hasura_has_what_its_webhooks_get() -> None:
    """Its payload, with the session and the trace of the writer."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    kinds = [
        Event("i", None, {"id": 1}, session='{"x-hasura-role":"admin"}', trace=trace),
        Event("u", {"id": 1}, {"id": 1}, trace='my "own" trace'),
        Event("d", {"id": 1}, None),
        Event("r", None, {"id": 1}),
        Event("t"),
    ]
    shape = capture_shape({"dbo.orders": captured_table(["id"])})
    batch = shaped_batch(typed_batch(shape, ROW[:1], kinds), "hasura")
    found = [json.loads(text) for text in batch["payload"].to_pylist()]
    assert found[0] == {
        "id": batch["changefeed_ulid"][0].as_py(),
        "created_at": "2026-11-22T01:02:03.004Z",
        "table": {"schema": "dbo", "name": "orders"},
        "trigger": {"name": "dbo.orders_changes"},
        "event": {
            "op": "INSERT",
            "data": {"old": None, "new": {"id": 1}},
            "session_variables": {"x-hasura-role": "admin"},
            "trace_context": {
                "trace_id": "0af7651916cd43dd8448eb211c80319c",
                "span_id": "b7ad6b7169203331",
            },
        },
        "delivery_info": {"max_retries": 0, "current_retry": 0},
    }
    assert [each["event"]["op"] for each in found] == ["INSERT", "UPDATE", "DELETE", "MANUAL", "RESET"]
    assert [each["event"]["trace_context"] for each in found[1:3]] == ['my "own" trace', None]
    assert found[1]["event"]["session_variables"] is None
    assert found[4]["event"]["data"] == {"old": None, "new": None}


def test_debezium_has_its_envelope() -> None:
    """Key and value with schemas disabled, as its connector for SQL Server writes them."""
    shape = capture_shape({"dbo.orders": captured_table(["id", "text"])}, with_sequence=True)
    one, two = {"id": 1, "text": "x"}, {"id": 1, "text": "y"}
    kinds = [Event("i", None, one), Event("u", one, two), Event("d", two, None), Event("r", None, one)]
    batch = shaped_batch(typed_batch(shape, ROW[:2], [*kinds, Event("t", tid=None)]), "debezium")
    assert batch["key"].to_pylist() == ['{"id":1}'] * 4 + [None]
    found = [json.loads(text) for text in batch["value"].to_pylist()]
    assert [each["op"] for each in found] == ["c", "u", "d", "r", "t"]
    assert [each["source"]["snapshot"] for each in found] == ["false", "false", "false", "true", "false"]
    assert [each["source"]["sequence"] for each in found] == ["1", "2", "3", "4", "5"]
    assert (found[1]["before"], found[1]["after"]) == (one, two)
    assert (found[4]["before"], found[4]["after"], found[4]["transaction"]) == (None, None, None)
    assert found[0]["transaction"] == {"id": "7", "total_order": None, "data_collection_order": None}
    source = found[0]["source"]
    assert {name: source[name] for name in ("connector", "name", "schema", "table", "db")} == {
        "connector": "changefeed",
        "name": "dbo.orders_changes",
        "schema": "dbo",
        "table": "orders",
        "db": None,
    }
    assert (source["ts_ms"], source["ts_us"], source["ts_ns"]) == (
        START_MS,
        START_MS * 10**3,
        START_MS * 10**6,
    )
    assert found[0]["ts_ms"] == START_MS
    assert source["ulid"] == batch["changefeed_ulid"][0].as_py()


def test_a_file_says_whose_events_it_has_and_in_which_shape() -> None:
    """The capture stays in the metadata, and nobody takes JSON for typed rows."""
    schema = shaped_schema(captured_schema(SHAPE, ROW), "hasura")
    assert schema.metadata[SHAPE_KEY] == b"hasura"
    assert METADATA_KEY in schema.metadata
    with pytest.raises(InvalidArgumentError, match="is not a capture"):
        shaped_schema(schema, "envelope")


def test_an_unknown_shape_is_refused() -> None:
    """The error names those that there are."""
    with pytest.raises(InvalidArgumentError, match="typed, envelope, hasura, debezium, not 'avro'"):
        shaped_schema(captured_schema(SHAPE, ROW), "avro")


def test_a_feed_that_is_no_capture_has_no_other_shape() -> None:
    """The error names the feed and the remedy, for the schema and for batches."""
    plain = pa.schema([("changefeed_ulid", pa.string()), ("n", pa.int64())])
    for shaped, one in ((shaped_schema, plain), (shaped_batch, pa.RecordBatch.from_pylist([], plain))):
        with pytest.raises(InvalidArgumentError, match=r"feed 'my.Feed' is not a capture.*omit"):
            shaped(one, "hasura", feed="my.Feed")


def test_a_column_without_a_form_in_json_is_refused_when_planned() -> None:
    """Before anything is read; the error names the column."""
    shape = capture_shape({"t": captured_table(["id", "list"])})
    schema = captured_schema(shape, [pa.field("id", pa.int64()), pa.field("list", pa.list_(pa.int64()))])
    with pytest.raises(ColumnTypeError, match="column 'list'"):
        shaped_schema(schema, "debezium")


def test_a_capture_that_was_changed_meanwhile_is_read_again() -> None:
    """A table or column that the capture and its rows do not agree about is transient, and named."""
    batch = typed_batch(SHAPE, ROW, [Event("t")])
    other = capture_shape({"dbo.other": captured_table(COLUMNS)})
    relabelled = batch.replace_schema_metadata(captured_schema(other, ROW).metadata)
    with pytest.raises(SchemaChangedError, match=r"no name 'dbo.orders'.*retry"):
        shaped_batch(relabelled, "envelope")
    more = capture_shape({"dbo.orders": captured_table([*COLUMNS, "late"])})
    with pytest.raises(SchemaChangedError, match=r"column 'late'.*refreshed.*retry"):
        shaped_schema(captured_schema(more, ROW), "envelope")


def test_too_much_json_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Arrow cannot hold stops the export, and says what to do."""
    monkeypatch.setattr(values, "MAX_TEXT_BYTES", 1000)
    shape = capture_shape({"dbo.orders": captured_table(["id", "text"])})
    batch = typed_batch(shape, ROW[:2], [Event("i", None, {"id": 1, "text": "x" * 2000})])
    with pytest.raises(ColumnTypeError, match="lower batch_rows"):
        shaped_batch(batch, "hasura")


def test_shaping_imports_no_pandas() -> None:
    """That takes a worker of Spark a second: pyarrow's conversions of Python's values would."""
    code = f"""
import sys
import numpy as np, pyarrow as pa
from airflow_changefeed.capture.shapes import shaped_batch
from airflow_changefeed.core.codec import decode
from airflow_changefeed.core.capture import CaptureShape
from airflow_changefeed.sources.arrow import byte_strings
from airflow_changefeed.sources.arrow import EventColumns, captured_batch, captured_schema

def numbers(*values, kind=pa.int64(), dtype=np.int64):
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.array(values, dtype=dtype))])

shape = decode(CaptureShape, {encode(SHAPE)!r}, named="shape")
row = [pa.field(*each) for each in (
    ("id", pa.int64()), ("text", pa.string()), ("amount", pa.float64()), ("at", pa.timestamp("us")),
    ("at_100ns", pa.uint8()), ("zoned", pa.timestamp("us", "UTC")), ("zoned_offset_minutes", pa.int16()),
    ("any", pa.binary()))]
texts = byte_strings(["a" + chr(34), "b"], pa.string())
columns = [numbers(1, 2), texts, numbers(1, 2, kind=pa.float64(), dtype=float),
    numbers(1, 2, kind=pa.timestamp("us")), numbers(1, 2, kind=pa.uint8(), dtype=np.uint8),
    numbers(1, 2, kind=pa.timestamp("us", "UTC")), numbers(1, 2, kind=pa.int16(), dtype=np.int16),
    texts.view(pa.binary())]
both = np.array([True, False])
events = EventColumns(ulids=np.zeros((2, 16), dtype=np.uint8), tables=numbers(0, 0),
    kinds=byte_strings(["u", "t"], pa.string()), tids=numbers(1, 2), sequences=None,
    captured_ms=numbers(0, 2), session=pa.nulls(2, pa.string()), trace=texts, ddl=pa.nulls(2, pa.string()),
    old=columns, has_old=both, new=columns, has_new=both)
batch = captured_batch(captured_schema(shape, row), events, list(shape.tables))
for name in ("envelope", "hasura", "debezium"):
    assert shaped_batch(batch, name).num_rows == 2
assert "pandas" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
