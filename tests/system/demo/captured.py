# SPDX-License-Identifier: Apache-2.0
"""What became of the board's changes: counted by its writer, exported in windows of a minute, and folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_changefeed.core.window import Window
from airflow_changefeed.lake.snapshot_ranges import read_here
from airflow_changefeed.lake.snapshots import Snapshot
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources import open_source
from tests.exports import unit_files, verify
from tests.system.demo.board import CAPTURE
from tests.system.demo.flights import BOARD, BOARD_COLUMNS

MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TYPES = ("add", "upd", "del")


@dataclass(frozen=True)
class UnitResult:
    """
    A window, all shards together.

    :param exported: events by type; None when a shard's unit is not complete.
    """

    window: Window
    exported: Counter[str] | None


@dataclass(frozen=True)
class CapturedResult:
    """
    :param made: changes that were committed, by the type of event that each has to become.
    :param units: that were exported.
    :param damaged: files or units that are not as their manifests say.
    :param rows: of the board, by its own database.
    :param folded: rows that the fold gave.
    :param is_equal: whether these are the same rows, value by value.
    """

    made: Counter[str]
    units: tuple[UnitResult, ...]
    damaged: int
    rows: int
    folded: int
    is_equal: bool

    @property
    def exported(self) -> Counter[str]:
        """Events of all windows, by type."""
        return sum((unit.exported or Counter() for unit in self.units), Counter())

    @property
    def is_good(self) -> bool:
        """Whether each change is an event, once, and the events fold into the board."""
        is_whole = all(unit.exported is not None for unit in self.units)
        return is_whole and self.exported == self.made and not self.damaged and self.is_equal


def whole(start: datetime, end: datetime, unit: timedelta = MINUTE) -> Window:
    """Return the window of whole units around a time."""
    begin, last = (time - (time - EPOCH) % unit for time in (start, end))
    return Window(begin, last if last == end else last + unit)


def take_base(description: Mapping[str, Any], folded: Path) -> Snapshot:
    """Read the board as ``airflow-changefeed snapshot take`` does, in ranges of a few rows."""
    with closing(open_source(description)) as source:
        request = SnapshotRequest(CAPTURE, None, str(folded), "demo", range_rows=25)
        return take_snapshot(source, request, None, partial(read_here, source), lambda line: None)


def check(
    export: Path,
    folded: Path,
    window: Window,
    made: Counter[str],
    rows: Iterable[tuple[Any, ...]],
    unit: timedelta = MINUTE,
) -> CapturedResult:
    """
    Compare export and fold with what the board's writer and the board say.

    :param folded: root of the states, of which there is one.
    :param rows: of the board.
    """
    store = ExportStore(str(export), CAPTURE)
    types: dict[Window, Counter[str]] = {}
    for file in unit_files(store, window.start, window.end):
        found = types.setdefault(file.manifest.unit.window, Counter())
        found.update(_types(file.path))
    complete = Counter(manifest.unit.window for manifest in store.list(start=window.start, end=window.end))
    shards = len(store.shards())
    units = tuple(
        UnitResult(each, types.get(each, Counter()) if shards and complete[each] == shards else None)
        for each in window.cut(unit)
    )
    board, state = sorted(rows), sorted(_rows(folded / BOARD))
    damaged = len(verify(store, start=window.start, end=window.end))
    return CapturedResult(made, units, damaged, len(board), len(state), board == state)


def _types(path: str) -> list[str]:
    import pyarrow.parquet as pq

    found: list[str] = pq.ParquetFile(path).read(columns=["type"])["type"].to_pylist()
    return found


def _rows(folder: Path) -> list[tuple[Any, ...]]:
    import pyarrow.dataset as ds

    table = ds.dataset(str(folder), format="parquet").to_table(columns=list(BOARD_COLUMNS))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def show(console: Console, result: CapturedResult) -> None:
    """Print the table, a line for each window and one for all."""
    table = Table(title=f"Capture of the board: events of {CAPTURE}", header_style="bold")
    for name in ("window (UTC)", *TYPES):
        table.add_column(name, justify="left" if name.startswith("window") else "right")
    for unit in result.units:
        table.add_row(
            f"{unit.window.start:%Y-%m-%d %H:%M} + 1 min",
            *("missing" if unit.exported is None else str(unit.exported[name]) for name in TYPES),
            style="bold red" if unit.exported is None else None,
        )
    table.add_section()
    for label, counted in (("exported", result.exported), ("changed by the writer", result.made)):
        table.add_row(label, *(str(counted[name]) for name in TYPES), style="bold")
    console.print(table)
    console.print(
        f"The board has {result.rows:,} rows; folded from the export: {result.folded:,}, "
        + ("all equal" if result.is_equal else "[bold red]NOT EQUAL[/]")
    )
