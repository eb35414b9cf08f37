# SPDX-License-Identifier: Apache-2.0
"""What the demo prints: for each window what should be there, what is there, and whether it is the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.output.store import ExportStore
from tests.exports import unit_files, verify
from tests.system.demo.flights import HOUR_FORMAT, KEY, SHARDS, data_set, flights_by_hour, scheduled_hour

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class WindowResult:
    """
    One window, all shards together.

    :param expected: rows of the data set in the window.
    :param exported: rows that the manifests name; None when a shard's unit is not complete.
    :param is_verified: whether counts and checksums were computed again from the files and agree.
    :param is_equal: whether the exported rows are those of the data set, value by value, and of its types.
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


def check(store: ExportStore, windows: list[Window], schema: pa.Schema) -> list[WindowResult]:
    """
    Compare the export of some windows with the data set.

    :param schema: columns and types that the event table must have in the export.
    """
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
                is_equal=are_equal(flights_in(window, schema), exported[window]),
            )
        )
    return results


def _exported(store: ExportStore, windows: list[Window]) -> dict[Window, list[pa.Table]]:
    import pyarrow.parquet as pq

    tables: dict[Window, list[pa.Table]] = {window: [] for window in windows}
    for file in unit_files(store, windows[0].start, windows[-1].end):
        if file.manifest.unit.window in tables:
            tables[file.manifest.unit.window].append(pq.read_table(file.path, partitioning=None))
    return tables


def flights_in(window: Window, schema: pa.Schema) -> pa.Table:
    """Return a window's flights of the data set by their key, with these types."""
    import pyarrow as pa
    import pyarrow.compute as pc

    frame = data_set()
    hours = [
        hour for hour in frame["time_hour"].unique() if window.start <= scheduled_hour(hour) < window.end
    ]
    frame = frame[frame["time_hour"].isin(hours)]
    columns = []
    for field in schema:
        values = pa.array(frame[field.name], from_pandas=True)
        if pa.types.is_timestamp(field.type):
            values = pc.strptime(values.cast(pa.string()), format=HOUR_FORMAT, unit=field.type.unit)
        # What does not fit fails here: a smaller type than the data set needs is a mistake of the demo.
        columns.append(values.cast(field.type))
    return pa.table(columns, schema=schema)


def are_equal(expected: pa.Table, tables: list[pa.Table]) -> bool:
    """
    Whether an export has the expected rows: each once, in the same types, value for value and null for null.

    :param expected: by ascending key.
    :param tables: the files, in any order.
    """
    import pyarrow as pa

    names, schema = expected.column_names, expected.schema
    for table in tables:
        if not set(names) <= set(table.column_names) or table.select(names).schema.types != schema.types:
            return False
    # Without the files' own words on what may be null; and of no files Arrow makes no table.
    found = [expected.slice(0, 0), *(table.select(names).cast(schema) for table in tables)]
    return bool(pa.concat_tables(found).sort_by(KEY).equals(expected))


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
