# SPDX-License-Identifier: Apache-2.0
"""What the demo prints: for each window what should be there, what is there, and whether it is the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from airflow_changefeed.core.unit import ExportUnit
from airflow_changefeed.core.window import Window
from airflow_changefeed.export.read import unit_files
from airflow_changefeed.export.store import ExportStore
from airflow_changefeed.export.verify import verify
from tests.system.demo.flights import COLUMNS, SHARDS, data_set, flights_by_hour, scheduled_hour

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class WindowResult:
    """
    One window, all shards together.

    :param expected: rows of the data set in the window.
    :param exported: rows that the manifests name; None when a shard's unit is not complete.
    :param is_verified: whether counts and checksums were computed again from the files and agree.
    :param is_equal: whether the exported rows are those of the data set, value by value.
    """

    window: Window
    expected: int
    exported: int | None
    is_verified: bool
    is_equal: bool

    @property
    def is_good(self) -> bool:
        """Whether nothing is missing, nothing too many and nothing changed."""
        return self.expected == self.exported and self.is_verified and self.is_equal


def check(store: ExportStore, windows: list[Window]) -> list[WindowResult]:
    """Compare the export of some windows with the data set."""
    start, end = windows[0].start, windows[-1].end
    damaged = {finding.unit for finding in verify(store, start=start, end=end) if finding.unit is not None}
    manifests = {manifest.unit: manifest for manifest in store.list(start=start, end=end)}
    exported = _exported(store, windows)
    results = []
    for window in windows:
        units = [ExportUnit.of_window(shard, window) for shard in SHARDS.values()]
        found = [manifests[unit] for unit in units if unit in manifests]
        is_complete = len(found) == len(units)
        results.append(
            WindowResult(
                window=window,
                expected=sum(flights_by_hour()[unit.shard, window.start] for unit in units),
                exported=sum(manifest.rows for manifest in found) if is_complete else None,
                is_verified=is_complete and damaged.isdisjoint(units),
                is_equal=_rows(_flights_in(window)) == _rows(exported[window]),
            )
        )
    return results


def _exported(store: ExportStore, windows: list[Window]) -> dict[Window, pd.DataFrame]:
    import pandas as pd
    import pyarrow.parquet as pq

    tables: dict[Window, list[Any]] = {window: [] for window in windows}
    for file in unit_files(store, windows[0].start, windows[-1].end):
        if file.manifest.unit.window in tables:
            tables[file.manifest.unit.window].append(pq.read_table(file.path, partitioning=None).to_pandas())
    empty = pd.DataFrame(columns=list(COLUMNS))
    return {window: pd.concat(frames) if frames else empty for window, frames in tables.items()}


def _flights_in(window: Window) -> pd.DataFrame:
    frame = data_set()
    hours = [
        hour for hour in frame["time_hour"].unique() if window.start <= scheduled_hour(hour) < window.end
    ]
    return frame[frame["time_hour"].isin(hours)]


def _rows(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return rows that can be compared, null for null, in the order of their key."""
    values = frame[list(COLUMNS)].astype(object)
    return sorted(values.where(values.notna(), None).itertuples(index=False, name=None))


def show(console: Console, results: list[WindowResult]) -> None:
    """Print the table, a line for each window and one for all."""
    table = Table(title="Export against data set", header_style="bold")
    for name in (
        "window (UTC)",
        "rows expected",
        "rows exported",
        "checksums agree",
        "rows equal the data set",
    ):
        table.add_column(name, justify="left" if name.startswith("window") else "right")
    for result in results:
        table.add_row(
            f"{result.window.start:%Y-%m-%d %H:%M} + 1 h",
            str(result.expected),
            "missing" if result.exported is None else str(result.exported),
            _yes(result.is_verified),
            _yes(result.is_equal),
            style=None if result.is_good else "bold red",
        )
    table.add_section()
    table.add_row(
        f"{len(results)} windows, {len(results) * len(SHARDS)} export units",
        str(sum(result.expected for result in results)),
        str(sum(result.exported or 0 for result in results)),
        _yes(all(result.is_verified for result in results)),
        _yes(all(result.is_equal for result in results)),
        style="bold",
    )
    console.print(table)


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "NO"
