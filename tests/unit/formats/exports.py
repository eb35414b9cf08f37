# SPDX-License-Identifier: Apache-2.0
"""Exports with files in place, whose tables are opened, read and compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_changefeed.core.export_plan import FileFacts
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.formats.base import PARTITIONS, LakeTable, TableChange, TableFile, TableState
from airflow_changefeed.formats.publish import open_table
from airflow_changefeed.output.manifests import ManifestStore
from airflow_changefeed.output.schemas import file_schema
from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD
from tests.unit.formats.libraries import LIBRARIES, Row

FEED = "dbo.flights"
START = datetime(2013, 1, 1, tzinfo=timezone.utc)
#: What a table of numbers has.
COLUMNS = pa.schema([ULID_FIELD, TIME_FIELD, ("number", pa.int64())])


def unit(hour: int, shard: Shard = 0) -> ExportUnit:
    """Return the unit of an hour."""
    start = START + timedelta(hours=hour)
    return ExportUnit.of_window(shard, Window(start, start + timedelta(hours=1)))


@dataclass
class Export:
    """
    An export whose files are written by hand, and its table.

    :param folder: of everything that lies on this machine.
    :param path: of the output; by default in the folder.
    """

    format: str
    folder: Path
    path: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    feed: str = FEED

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.path or f"{self.folder}/lake"
        self.store = ManifestStore(self.path, self.feed, self.options)
        self.library = LIBRARIES[self.format](self.folder, self.store.layout.data)

    def table(self) -> LakeTable:
        """Open the table, as another process would."""
        return open_table(self.format, self.store, self.options, **self.library.named)

    def write(
        self,
        unit: ExportUnit,
        attempt: int,
        rows: Sequence[Row] | int = 1,
        schema: pa.Schema = COLUMNS,
        name: str = "part-00000-00000.parquet",
    ) -> TableFile:
        """
        Put a file in its place.

        :param rows: values of the columns beside ULID and time; a number makes as many rows.
        """
        window = unit.window
        assert window is not None
        given = [{"number": number} for number in range(rows)] if isinstance(rows, int) else rows
        ulids = [Ulid.floor(window.start + timedelta(seconds=number)) for number in range(len(given))]
        filled = [
            {"changefeed_ulid": str(ulid), "changefeed_time": ulid.time, **row}
            for ulid, row in zip(ulids, given, strict=True)
        ]
        sink = pa.BufferOutputStream()
        table = pa.Table.from_pylist(filled, schema).cast(file_schema(schema, self.format))
        pq.write_table(table, sink, version="2.6")
        content = sink.getvalue().to_pybytes()
        layout = self.store.layout
        folder = layout.placed(unit, attempt)
        self.put(f"{folder}/{name}", content)
        facts = FileFacts(name, len(filled), len(content), ulids[0], ulids[-1], 0)
        return TableFile(unit, attempt, f"{folder}/{name}".removeprefix(f"{layout.data}/"), facts)

    def put(self, path: str, content: bytes) -> None:
        """Write a file, also where nothing is yet."""
        with self.store.files.writer(path) as file:
            file.write(content)
        if self.store.files.has_uploads:
            assert self.store.files.complete(path, file.receipt, len(content))

    def expected(self, files: Iterable[TableFile]) -> list[Row]:
        """Return the rows of files with the partitions that their units have, in order."""
        found = []
        for file in files:
            where = f"{self.store.layout.data}/{file.path}"
            with self.store.files.reader(where) as reader:
                rows = pq.read_table(pa.py_buffer(reader.read()), partitioning=None).to_pylist()
            shard = file.unit.shard
            values = (
                shard if isinstance(shard, int) else shard_text(shard),
                date.fromisoformat(file.unit.date),
                file.unit.name,
                file.attempt,
            )
            found += [{**row, **dict(zip(PARTITIONS, values, strict=True))} for row in rows]
        return in_order(found)


def change(
    add: Sequence[TableFile] = (),
    remove: Iterable[str] = (),
    schema: pa.Schema = COLUMNS,
    *,
    has_uuid_shards: bool = False,
    **note: str,
) -> TableChange:
    """Return a change with a note."""
    return TableChange(schema, add, list(remove), note or {"changefeed.run": "tests"}, has_uuid_shards)


def paths(state: TableState) -> list[str]:
    """Return all files of a table."""
    return sorted(path for files in state.files.values() for path in files)


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Return rows by attempt and ULID, with their columns by name."""
    ordered = sorted(rows, key=lambda row: (row["changefeed_attempt"], row["changefeed_ulid"]))
    return [dict(sorted(row.items())) for row in ordered]


def first(export: Export) -> tuple[TableFile, TableState]:
    """Commit a file of hour 0; return it and the table then."""
    file = export.write(unit(0), 1)
    table = export.table()
    table.commit(table.look(), change([file]))
    return file, table.look()
