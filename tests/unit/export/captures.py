# SPDX-License-Identifier: Apache-2.0
"""Exports of captures, written by hand: a table, its changes, and what each window's files hold of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_changefeed.core.capture import CapturedTable, CaptureShape, KeyChange, Operation
from airflow_changefeed.core.export_plan import FileFacts, Manifest
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.output.schemas import schema_text
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.arrow import captured_schema
from tests.identity import DATABASE
from tests.unit.export.flights import START, hours

CAPTURE, TABLE = "shop.Shoe_changes", "shop.Shoe"
IMAGE = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(9, 2))])
Row = Mapping[str, Any]
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


def shoe(number: int, name: str | None = "boot", price: str = "9.50") -> dict[str, Any]:
    """A row of the table."""
    return {"id": number, "name": name, "price": Decimal(price)}


def minute(number: float) -> datetime:
    """A time of the first day."""
    return START + number * MINUTE


def shape(*tables: str, **changes: Any) -> CaptureShape:
    """Return the shape of a capture of all columns of each table, which was empty when it was enabled."""
    columns = {operation: {name: name for name in IMAGE.names} for operation in Operation}
    captured = CapturedTable(("id",), columns, is_whole=True)
    known = CaptureShape(CAPTURE, KeyChange.DELETE_INSERT, False, dict.fromkeys(tables or (TABLE,), captured))
    return replace(known, **changes)


def reshaped(known: CaptureShape, table: str = TABLE, **changes: Any) -> CaptureShape:
    """Return a shape in which a table's capture is another."""
    return replace(known, tables={**known.tables, table: replace(known.tables[table], **changes)})


@dataclass(frozen=True)
class Event:
    """
    A captured change.

    :param at: feed time.
    :param number: of the event within the millisecond.
    """

    at: datetime
    type: str
    old: Row | None = None
    new: Row | None = None
    table: str = TABLE
    number: int = 0
    is_snapshot: bool = False
    captured_at: datetime | None = None
    ddl: str | None = None

    @property
    def ulid(self) -> Ulid:
        """The event's ULID."""
        return Ulid.of_int(int(Ulid.floor(self.at)) + self.number)


@dataclass
class CapturedExport:
    """An export of a capture, window by window."""

    store: ExportStore
    shape: CaptureShape = field(default_factory=shape)
    image: pa.Schema = IMAGE
    attempt: int = 0

    @classmethod
    def create(cls, folder: Path, **more: Any) -> CapturedExport:
        """Begin an empty output."""
        export = cls(ExportStore(str(folder), CAPTURE), **more)
        export.store.claim(DATABASE)
        return export

    def write(
        self, events: Iterable[Event], window: Window | None = None, *, shard: int = 0, files: int = 1
    ) -> None:
        """Commit a unit of the events; the first hour where no window is given."""
        self.attempt += 1
        unit = ExportUnit.of_window(shard, window or hours(0, 1)[0])
        rows = sorted(events, key=lambda event: event.ulid)
        schema = captured_schema(self.shape, list(self.image))
        step = -(-len(rows) // files) or 1
        parts = [rows[begin : begin + step] for begin in range(0, len(rows), step)]
        facts = [
            self._write_file(unit, f"part-00000-{number:05d}.parquet", table_of(schema, part))
            for number, part in enumerate(parts)
        ]
        manifest = Manifest(
            feed=CAPTURE,
            unit=unit,
            attempt=self.attempt,
            consumer="tests",
            run="tests/run",
            made_at=START + timedelta(seconds=self.attempt),
            files=tuple(facts),
            sealed_until=None,
            stale_seen=0,
            schema=schema_text(schema),
        )
        self.store.write(manifest)

    def _write_file(self, unit: ExportUnit, name: str, table: pa.Table) -> FileFacts:
        folder = Path(self.store.layout.placed(unit, self.attempt))
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / name)
        ulids = table["changefeed_ulid"]
        first, last = (Ulid.parse_text(ulids[place].as_py()) for place in (0, -1))
        return FileFacts(name, table.num_rows, (folder / name).stat().st_size, first, last, 0)


def table_of(schema: pa.Schema, events: Sequence[Event]) -> pa.Table:
    """Return events as a file holds them."""
    rows = [
        {
            "changefeed_ulid": str(event.ulid),
            "changefeed_time": event.ulid.time,
            "name": event.table,
            "type": event.type,
            "is_snapshot": event.is_snapshot,
            "epoch": int(event.at.timestamp()),
            "captured_at": event.captured_at or event.at,
            "ddl": event.ddl,
            "old": event.old,
            "new": event.new,
        }
        for event in events
    ]
    return pa.Table.from_pylist(rows, schema)


def fold_in_python(
    events: Iterable[tuple[int, Event]], end: datetime, key: Sequence[str] = ("id",), table: str = TABLE
) -> list[dict[str, Any]]:
    """
    Return the rows that events leave behind, by a dictionary; the oracle of every fold.

    :param events: with the shard of each.
    """
    rows: dict[Any, dict[str, Any]] = {}
    homes: dict[Any, int] = {}
    for shard, event in sorted(events, key=lambda each: (each[0], each[1].ulid)):
        if event.table != table or event.ulid >= Ulid.floor(end):
            continue
        if event.type == "reset":
            rows = {name: row for name, row in rows.items() if homes[name] != shard}
            continue
        if event.old is not None:
            rows.pop(tuple(event.old[name] for name in key), None)
        if event.new is not None:
            place = tuple(event.new[name] for name in key)
            rows[place], homes[place] = dict(event.new), shard
    return [rows[place] for place in sorted(rows)]
