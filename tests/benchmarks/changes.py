# SPDX-License-Identifier: Apache-2.0
"""The export of a made-up capture: rows that appear, change and go, in one day of hourly units."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_changefeed.core.capture import CapturedTable, CaptureShape, KeyChange, Operation
from airflow_changefeed.core.export_plan import FileFacts, Manifest
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.output.schemas import schema_text
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.arrow import EventColumns, byte_strings, captured_batch, captured_schema
from tests.benchmarks.orders import KINDS, kinds

CAPTURE, TABLE = "shop.Order_changes", "shop.Order"
START = datetime(2013, 6, 1, tzinfo=timezone.utc)
HOURS = 24
_IMAGE = [
    pa.field("id", pa.int64()),
    pa.field("customer", pa.int64()),
    pa.field("price", pa.float64()),
    pa.field("status", pa.string()),
    pa.field("placed_at", pa.string()),
    pa.field("note", pa.string()),
]
_TAKEN = (0, 4, 6, 7, 9)


def write(path: Path, events: int, keys: int, key_change: KeyChange) -> int:
    """
    Write an export, each hour a unit with one file.

    :return: rows that the table has in the end.
    """
    generator = np.random.default_rng(2013)
    chosen = np.concatenate([np.arange(keys), generator.integers(0, keys, events - keys)])
    operations, rows = _operations(chosen, generator.random(events) < 0.1)
    made = kinds()
    values = [[made[number % KINDS][place - 1] for number in range(KINDS)] for place in _TAKEN[1:]]
    images = [pa.array([made[n][0] for n in range(KINDS)], pa.int64())]
    images += [pa.array(own, field.type) for own, field in zip(values, _IMAGE[2:], strict=True)]
    store, schema = ExportStore(str(path), CAPTURE), captured_schema(_shape(key_change), _IMAGE)
    store.claim("")
    for hour in range(HOURS):
        part = slice(events * hour // HOURS, events * (hour + 1) // HOURS)
        ulids = _ulids(START + timedelta(hours=hour), part.stop - part.start)
        _write_unit(store, schema, hour, _events(chosen[part], operations[part], images, ulids, part.start))
    return rows


def _operations(chosen: np.ndarray, deletes: np.ndarray) -> tuple[np.ndarray, int]:
    """Return each event's kind: a row that is not there is added, else updated or now and then deleted."""
    there: set[int] = set()
    found = []
    for key, is_delete in zip(chosen.tolist(), deletes.tolist(), strict=True):
        found.append("i" if key not in there else "d" if is_delete else "u")
        if found[-1] == "d":
            there.remove(key)
        else:
            there.add(key)
    return np.array(found), len(there)


def _shape(key_change: KeyChange) -> CaptureShape:
    same = {field.name: field.name for field in _IMAGE}
    captured = CapturedTable(("id",), dict.fromkeys(Operation, same), is_whole=True)
    return CaptureShape(CAPTURE, key_change, False, {TABLE: captured})


def _ulids(start: datetime, count: int) -> np.ndarray:
    """Return ULIDs in order, spread over an hour; 16 bytes each."""
    first = int(Ulid.floor(start)) >> 80
    found = np.random.default_rng(first).integers(0, 256, (count, 16), dtype=np.uint8)
    times = first + np.arange(count) * 3_600_000 // count
    for place in range(6):
        found[:, place] = (times >> (8 * (5 - place))) & 255
    # Several share a millisecond: their number keeps their order.
    numbers = np.arange(count)
    for place in range(4):
        found[:, 6 + place] = (numbers >> (8 * (3 - place))) & 255
    return found


def _events(
    chosen: np.ndarray, operations: np.ndarray, images: Sequence[pa.Array], ulids: np.ndarray, first: int
) -> EventColumns:
    count = len(chosen)
    places = pa.array((chosen + first + np.arange(count)) % KINDS)
    new = [pa.array(chosen, pa.int64()), *(image.take(places) for image in images)]
    before = pa.array((chosen + first) % KINDS)
    old = [pa.array(chosen, pa.int64()), *(image.take(before) for image in images)]
    nothing = pa.nulls(count, pa.string())
    milliseconds = int(START.timestamp() * 1000) + first + np.arange(count)
    return EventColumns(
        ulids=ulids,
        tables=pa.array(np.zeros(count, dtype=np.int64)),
        kinds=byte_strings(operations.tolist(), pa.string()),
        tids=pa.array(first + np.arange(count) // 10, pa.int64()),
        sequences=None,
        captured_ms=pa.array(milliseconds, pa.int64()),
        session=nothing,
        trace=nothing,
        ddl=nothing,
        old=old,
        has_old=operations != "i",
        new=new,
        has_new=operations != "d",
    )


def _write_unit(store: ExportStore, schema: pa.Schema, hour: int, events: EventColumns) -> None:
    start = START + timedelta(hours=hour)
    unit = ExportUnit.of_window(0, Window(start, start + timedelta(hours=1)))
    batch = captured_batch(schema, events, [TABLE])
    path = Path(store.layout.placed(unit, 1)) / "part-00000-00000.parquet"
    path.parent.mkdir(parents=True)
    # As the export writes: dictionaries only where values repeat.
    repeating = ["name", "type", "is_snapshot", *(f"{image}.status" for image in ("old", "new"))]
    pq.write_table(pa.table(batch), path, compression="zstd", version="2.6", use_dictionary=repeating)
    ulids = batch.column("changefeed_ulid")
    first, last = (Ulid.parse_text(ulids[place].as_py()) for place in (0, batch.num_rows - 1))
    facts = FileFacts(path.name, batch.num_rows, path.stat().st_size, first, last, 0)
    columns = schema_text(schema)
    store.write(Manifest(CAPTURE, unit, 1, "benchmark", "benchmark", start, (facts,), None, 0, columns))
