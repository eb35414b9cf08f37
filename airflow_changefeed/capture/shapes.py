# SPDX-License-Identifier: Apache-2.0
"""
The shapes in which a capture's events can be exported, other than the sources' typed columns.

docs/reference/event-shapes.md documents each, with its differences from the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_changefeed.capture.rows import EVENT_TYPES, Events, check_rows, present_rows, row_texts
from airflow_changefeed.capture.values import as_json, joined, json_texts, text_scalar
from airflow_changefeed.core.capture import METADATA_KEY, CaptureShape
from airflow_changefeed.core.codec import decode_text
from airflow_changefeed.core.export_plan import Shape
from airflow_changefeed.exceptions import ColumnTypeError, InvalidArgumentError
from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD, byte_strings
from airflow_changefeed.sources.mssql.names import split_name

#: Metadata key that names the shape of a file's events; absent for typed events.
SHAPE_KEY = b"changefeed.shape"
_TEXT = pa.string()
_HASURA_OPS = ("INSERT", "UPDATE", "DELETE", "RESET", "READY", "DDL")
_ENVELOPE = ("id", "name", "type", "old", "new", "tid", "sequence", "epoch", "ddl")
_DEBEZIUM_OPS = ("c", "u", "d", "t", "ready", "ddl")
#: Version of this form of ``source``, not of the package: re-exporting a window gives the same texts.
_DEBEZIUM_VERSION = "1"
_SNAPSHOT = len(EVENT_TYPES)
_TRACEPARENT = r"^[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}$"
_FIELDS = {
    Shape.HASURA: [pa.field("payload", _TEXT, nullable=False)],
    Shape.DEBEZIUM: [pa.field("key", _TEXT), pa.field("value", _TEXT, nullable=False)],
}


def shaped_schema(schema: pa.Schema, shape: Shape | str, *, feed: str = "") -> pa.Schema:
    """
    Return the columns of exported events.

    :param schema: of a feed, from its source.
    :raises InvalidArgumentError: unknown shape, or a shape other than typed for a feed that is not a
        capture.
    :raises ColumnTypeError: a captured column has no JSON form.
    """
    shape = known_shape(shape)
    if shape is Shape.TYPED:
        return schema
    found = _captured(schema, shape, feed)
    check_rows(found, schema.field("new").type)
    fields = _FIELDS.get(shape) or _envelope_fields(schema)
    return pa.schema(
        [ULID_FIELD, TIME_FIELD, *fields],
        metadata={METADATA_KEY: schema.metadata[METADATA_KEY], SHAPE_KEY: shape.value.encode()},
    )


def shaped_batch(batch: pa.RecordBatch, shape: Shape | str, *, feed: str = "") -> pa.RecordBatch:
    """
    Return events in a shape: the same number of rows, in the same order.

    :param batch: from the feed's source.
    :raises InvalidArgumentError: as :func:`shaped_schema`.
    :raises ColumnTypeError: a captured column has no JSON form, or the JSON exceeds Arrow's limit.
    :raises SchemaChangedError: the capture was changed during the read.
    """
    shape = known_shape(shape)
    if shape is Shape.TYPED:
        return batch
    schema = shaped_schema(batch.schema, shape, feed=feed)
    found = _captured(batch.schema, shape, feed)
    make = {Shape.ENVELOPE: _envelope, Shape.HASURA: _hasura, Shape.DEBEZIUM: _debezium}[shape]
    columns = {name: batch.column(name) for name in (ULID_FIELD.name, TIME_FIELD.name)}
    try:
        columns |= make(found, batch)
    except pa.ArrowException as problem:
        # Escaping can make a text exceed the limit.
        raise ColumnTypeError(
            f"feed {feed!r}: {batch.num_rows} events cannot be written as JSON: {problem}. Lower batch_rows; "
            "if a single event is too large, export with shape='typed'"
        ) from problem
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def known_shape(shape: Shape | str) -> Shape:
    """Read the name of a shape, or raise InvalidArgumentError."""
    try:
        return Shape(shape)
    except ValueError:
        known = ", ".join(each.value for each in Shape)
        raise InvalidArgumentError(f"shape must be one of {known}, not {shape!r}", shape=str(shape)) from None


@lru_cache(maxsize=16)
def _read(metadata: bytes) -> CaptureShape:
    return decode_text(CaptureShape, metadata, named="the schema's capture")


def _captured(schema: pa.Schema, shape: Shape, feed: str) -> CaptureShape:
    metadata = schema.metadata or {}
    if METADATA_KEY not in metadata or SHAPE_KEY in metadata:
        raise InvalidArgumentError(
            f"feed {feed!r} is not a capture, so its events have no old and new rows to shape; omit "
            f"shape={shape.value!r}, or capture a table with enable_capture",
            feed=feed,
            shape=shape.value,
        )
    return _read(metadata[METADATA_KEY])


def _envelope_fields(schema: pa.Schema) -> list[pa.Field]:
    own = {"id": pa.field("id", _TEXT, nullable=False)}
    own |= {name: pa.field(name, _TEXT) for name in ("old", "new")}
    names = [name for name in _ENVELOPE if name in own or name in schema.names]
    return [own[name] if name in own else schema.field(name) for name in names]


def _images(events: Events, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    old, new = batch.column("old"), batch.column("new")
    return row_texts(events, old, present_rows(old)), row_texts(events, new, present_rows(new))


def _envelope(shape: CaptureShape, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    old, new = _images(Events.of(shape, batch), batch)
    same = {name: batch.column(name) for name in _ENVELOPE if name in batch.schema.names}
    return {**same, "id": batch.column(ULID_FIELD.name), "old": old, "new": new}


def _hasura(shape: CaptureShape, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    events = Events.of(shape, batch)
    old, new = _images(events, batch)
    tables = [_table(name) for name in shape.tables]
    heads = [
        f'"table":{as_json({"schema": schema, "name": name})},'
        f'"trigger":{as_json({"name": shape.name})},"event":{{"op":"'
        for schema, name in tables
    ]
    created = json_texts("captured_at", batch.column("captured_at")).texts
    payload = joined(
        [
            '{"id":"',
            batch.column(ULID_FIELD.name),
            '","created_at":"',
            created,
            '",',
            _chosen(heads, events.tables),
            _chosen((*_HASURA_OPS, "MANUAL"), _kinds(events, batch)),
            '","data":{"old":',
            old,
            ',"new":',
            new,
            "}",
            _ddl(batch),
            ',"session_variables":',
            batch.column("session_variables"),
            ',"trace_context":',
            _trace(batch.column("trace_context")),
            '},"delivery_info":{"max_retries":0,"current_retry":0}}',
        ],
        null="null",
    )
    return {"payload": payload}


def _trace(texts: pa.Array) -> pa.Array:
    """Return W3C trace contexts in Hasura's form, any other text unchanged."""
    found = pc.extract_regex(texts, _TRACEPARENT)
    parts = found.flatten()
    known = joined(['{"trace_id":"', parts[0], '","span_id":"', parts[1], '"}'])
    return pc.coalesce(known, joined(['"', json_texts("trace_context", texts).texts, '"']))


def _ddl(batch: pa.RecordBatch) -> pa.Array:
    """Return the member for changed columns; nothing for any other event."""
    return pc.fill_null(joined([',"ddl":', batch.column("ddl")]), text_scalar(""))


def _debezium(shape: CaptureShape, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    events = Events.of(shape, batch)
    old, new = _images(events, batch)
    has_old, has_new = (present_rows(batch.column(name)) for name in ("old", "new"))
    key = pc.coalesce(
        row_texts(events, batch.column("new"), has_new, is_key=True),
        row_texts(events, batch.column("old"), has_old & ~has_new, is_key=True),
    )
    tids = batch.column("tid").cast(_TEXT)
    ops = _chosen((*_DEBEZIUM_OPS, "r"), _kinds(events, batch))
    value = joined(
        [
            '{"before":',
            old,
            ',"after":',
            new,
            ',"source":',
            _source(shape, events, batch),
            ',"op":"',
            ops,
            '",',
            *_times(batch.column(TIME_FIELD.name)),
            ',"transaction":',
            # What is known of a transaction; its end and an event's index in it are not.
            joined(['{"id":"', tids, '","total_order":null,"data_collection_order":null}']),
            _ddl(batch),
            "}",
        ],
        null="null",
    )
    return {"key": key, "value": value}


def _source(shape: CaptureShape, events: Events, batch: pa.RecordBatch) -> pa.Array:
    about = {"version": _DEBEZIUM_VERSION, "connector": "changefeed", "name": shape.name}
    places = [
        as_json({"db": None, "schema": schema, "table": name})[1:-1]
        for schema, name in map(_table, shape.tables)
    ]
    sequence: list[pa.Array | str] = ["null"]
    if "sequence" in batch.schema.names:
        sequence = ['"', batch.column("sequence").cast(_TEXT), '"']
    return joined(
        [
            as_json(about)[:-1] + ",",
            *_times(batch.column("captured_at")),
            ',"snapshot":"',
            batch.column("is_snapshot").cast(_TEXT),
            '",',
            _chosen(places, events.tables),
            ',"sequence":',
            *sequence,
            ',"change_lsn":null,"commit_lsn":null,"event_serial_no":null,"ulid":"',
            batch.column(ULID_FIELD.name),
            '"}',
        ]
    )


def _times(column: pa.Array) -> list[pa.Array | str]:
    """Return a time in Debezium's unit."""
    milliseconds = column.view(pa.int64()).cast(_TEXT)
    # 000 is not a JSON number.
    zeros = pc.if_else(pc.equal(milliseconds, text_scalar("0")), text_scalar(""), text_scalar("000"))
    return [
        '"ts_ms":',
        milliseconds,
        ',"ts_us":',
        milliseconds,
        zeros,
        ',"ts_ns":',
        milliseconds,
        zeros,
        zeros,
    ]


def _kinds(events: Events, batch: pa.RecordBatch) -> np.ndarray:
    """Return the number of each event's type; snapshot rows have a type of their own."""
    is_snapshot = batch.column("is_snapshot")
    bits = np.frombuffer(is_snapshot.buffers()[1], dtype=np.uint8)
    flags = np.unpackbits(bits, bitorder="little")[is_snapshot.offset :][: len(is_snapshot)]
    return np.where(flags == 1, _SNAPSHOT, events.kinds)


def _chosen(texts: Sequence[str], numbers: np.ndarray) -> pa.Array:
    places = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers.astype(np.int64))])
    return byte_strings(texts, _TEXT).take(places)


def _table(name: str) -> tuple[str | None, str]:
    """Return a table's schema and name; a database without schemas has None."""
    try:
        return split_name(name) if "." in name else (None, name)
    except InvalidArgumentError:
        return None, name
