# SPDX-License-Identifier: Apache-2.0
"""The calendar of a task's windows: complete ones from its output, running ones from its DAG's runs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from functools import cached_property

from airflow_changefeed.connections.connection import without_secrets
from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.completeness import (
    ShardProgress,
    WindowState,
    due_until,
    judge,
    of_feed,
    of_row,
)
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.export_plan import Manifest
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import floor_to_millisecond, format_known, format_time
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.doctor.output import begins_later
from airflow_changefeed.exceptions import InvalidWindowError
from airflow_changefeed.output.claims import check_same
from airflow_changefeed.output.coverage import (
    Cell,
    make_calendar,
    missing_ranges,
    units_of,
)
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.plugins.access import RunNames
from airflow_changefeed.plugins.rows import Row
from airflow_changefeed.plugins.runs import check_time
from airflow_changefeed.plugins.strips import Exports, output_of
from airflow_changefeed.plugins.uses import Use
from airflow_changefeed.sources.base import FeedSource

#: Maximum number of shards in a calendar, and of files listed for a unit.
MOST_SHARDS, MOST_FILES = 50, 100
_HOUR, _DAY, _WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
#: Days in a calendar of hours, and weeks in a calendar of days.
_DAYS, _WEEKS = 7, 8
#: Cells of a chart, and manifests that are opened for it.
MOST_CELLS, MOST_MANIFESTS = 400, 2_000
_MOMENT = timedelta(milliseconds=1)
# Object stores answer each read late, and many at a time.
_THREADS = 8


@dataclass(frozen=True)
class Export:
    """What a task exports, whose feed, consumer and path are known."""

    source: FeedSource
    use: Use
    exports: Exports

    @cached_property
    def store(self) -> ExportStore:
        """Its output; raise OutputError if it is another database's export."""
        store = output_of(self.use)
        check_same(store.path, store.database(), self.source.identity().id, store.feed)
        return store

    @cached_property
    def rows(self) -> list[CursorRow]:
        """The cursors of its consumer."""
        return self.source.cursors(str(self.use.feed), str(self.use.consumer))

    @cached_property
    def all_shards(self) -> list[Shard]:
        """Its shards, in order."""
        if self.use.shards is not None:
            return list(self.use.shards)
        statuses = self.source.shards(str(self.use.feed))
        known = {*self.store.shards(), *(status.shard for status in statuses)}
        return sorted(
            known,
            key=lambda shard: (isinstance(shard, int), shard if isinstance(shard, int) else 0, str(shard)),
        )

    @property
    def shards(self) -> list[Shard]:
        """The shards that are looked at."""
        return self.all_shards[:MOST_SHARDS]

    @cached_property
    def newest(self) -> list[ExportUnit]:
        """The newest units of its first shard."""
        return [unit for shard in self.shards[:1] for unit in self.store.newest(shard)]

    @cached_property
    def unit(self) -> timedelta:
        """Length of a unit: as its output has it, or before the first export as the task will cut it."""
        return self.store.window_length() or self.exports.unit(self.use)

    @cached_property
    def now(self) -> datetime:
        """The database's clock."""
        return self.source.now()

    @property
    def most_lag(self) -> float | None:
        """Seconds from the end of a window until it must be exported, by the tasks that watch its age."""
        watched = [
            use.max_age
            for use in self.exports.uses
            if use.max_age is not None
            and use.consumer in (None, self.use.consumer)
            and fnmatchcase(str(self.use.feed), use.feed or "*")
        ]
        # Until the next window is exported, the frontier is older by a window.
        return max((min(watched) - self.unit).total_seconds(), 0.0) if watched else None

    @property
    def sees_runs(self) -> bool:
        """Whether the user may see the runs of its DAG."""
        return self.exports.run_names.sees(self.use.dag_id)

    def runs(self, wanted: Window) -> list[tuple[datetime, datetime]]:
        """Return the intervals of runs under way, of all DAGs that export it for the consumer."""
        path = str(self.use.path).rstrip("/")
        uses = self.exports.of(str(self.use.feed), str(self.use.consumer))
        dag_ids = {use.dag_id for use in uses if str(use.path).rstrip("/") == path}
        return [run for dag_id in sorted(dag_ids) for run in self.exports.runs(dag_id, wanted)]

    def cells(self, wanted: Window, length: timedelta) -> list[Cell]:
        """Return the calendar of a time, in cells of a length."""
        (found,) = self.source.overview([str(self.use.feed)], shards=0)
        rows = {row.shard: of_row(row) for row in self.rows}
        # In a shard without a cursor the consumer has not begun.
        shards = tuple(rows.get(shard, ShardProgress(shard, Ulid.MAX)) for shard in self.shards)
        evidence = replace(of_feed(found), shards=shards, runs=tuple(self.runs(wanted)))
        return make_calendar(self.store, wanted, length, evidence, now=due_until(self.now, self.unit))

    def missing_around(self, wanted: Window) -> Row:
        """
        Return a time in the last missing window before a calendar, and in the first one after it, by cursors.

        Where runs are under way is not looked at.
        """
        (found,) = self.source.overview([str(self.use.feed)], shards=0)
        evidence = replace(of_feed(found), shards=tuple(map(of_row, self.rows)))
        over = Ulid.floor(self.now - self.unit).previous()
        pieces = [one.range for one in judge(evidence, UlidRange(Ulid.MIN, over)).missing]
        start, end = wanted.range.after, wanted.range.upto
        before = [min(one.upto, start).time for one in pieces if one.after < start]
        after = [max(one.after, end).next().time for one in pieces if one.upto > end]
        return {
            "missing_before": format_known(max(before, default=None)),
            "missing_after": format_known(min(after, default=None)),
        }

    def to_dict(self) -> Row:
        """Return what every answer about it has."""
        return {
            "sees_runs": self.sees_runs,
            "dag_id": self.use.dag_id,
            "task_id": self.use.task_id,
            "feed": self.use.feed,
            "consumer": self.use.consumer,
            "unit_seconds": self.unit.total_seconds(),
            "shards_total": len(self.all_shards),
            "now": format_time(self.now),
        }


def windows_of(
    source: FeedSource, use: Use, exports: Exports, end: datetime | None, at: datetime | None
) -> Row:
    """
    Return the calendar of a task.

    :param end: exclusive end of the calendar, rounded up to a whole day; None for today, or for the day that
        the consumer has reached.
    :param at: a time that the calendar contains, whatever ``end`` says; None for any.
    """
    export = Export(source, use, exports)
    length = _cell_length(export.unit)
    cursors = [row.ulid.time for row in export.rows]
    exported = [one.range.upto.time for one in export.newest[-1:]]
    wanted = _span(end or _present(export.now, cursors, exported), length)
    if at is not None:
        check_time("at", at)
        if not wanted.start <= at < wanted.end:
            wanted = _span(at + _MOMENT, length)
    cells, runs = export.cells(wanted, length), export.runs(wanted)
    # One shard is enough: outputs are moved as a whole.
    later = begins_later(export.store, export.rows[0]) if export.rows else None
    return {
        **export.to_dict(),
        "cell_seconds": length.total_seconds(),
        "shards_shown": len(export.shards),
        "start": format_time(wanted.start),
        "end": format_time(wanted.end),
        "cells": [_cell_row(cell, runs) for cell in cells],
        "missing": [_range_row(one) for one in missing_ranges(cells)],
        **export.missing_around(wanted),
        "begins_later": later and without_secrets(f"{later.what}. {later.remedy}"),
    }


def window_of(source: FeedSource, use: Use, exports: Exports, at: datetime) -> Row:
    """
    Return a window of a task, and what its manifests say.

    :param at: a time in the window.
    :raises ManifestError: a manifest is damaged.
    """
    check_time("at", at)
    export = Export(source, use, exports)
    at = floor_to_millisecond(at)
    units = _units_at(export, Window(at, at + _MOMENT))
    window = _window_at(export, units, at)
    units = _units_at(export, window)
    (cell,) = export.cells(window, window.length)
    with ThreadPoolExecutor(_THREADS) as threads:
        read = threads.map(export.store.read, [unit for own in units.values() for unit in own])
        manifests = {manifest.unit: manifest for manifest in read if manifest is not None}
    return {
        **export.to_dict(),
        **_cell_row(cell, export.runs(window)),
        "end": format_time(window.end),
        "rows": sum(manifest.rows for manifest in manifests.values()),
        "size": sum(manifest.size for manifest in manifests.values()),
        "shards": [
            {
                "shard": shard_text(shard),
                "state": _shard_state(
                    cell, shard, [manifests[unit] for unit in own if unit in manifests]
                ).value,
                "manifests": [
                    _manifest_row(export.store, manifests[unit], exports.run_names)
                    for unit in own
                    if unit in manifests
                ],
            }
            for shard, own in units.items()
        ],
    }


def chart_of(source: FeedSource, use: Use, exports: Exports, start: datetime, end: datetime) -> Row:
    """
    Return rows and lag of a task's windows, by the cells of its calendar; opens their manifests.

    The lag is the time from the end of a window until its manifest was made, of its last shard.

    :param start: inclusive; of a cell.
    :param end: exclusive.
    :raises InvalidWindowError: the times are not a valid window, or it has too many cells.
    :raises ManifestError: a manifest is damaged.
    """
    check_time("start", start)
    check_time("end", end)
    window, export = Window(start, end), Export(source, use, exports)
    length = _cell_length(export.unit)
    count = -(-window.length // length)
    if count > MOST_CELLS:
        raise InvalidWindowError(f"{window} has {count} cells of {length}; choose at most {MOST_CELLS}")
    # A cell has one unit of a shard, or several shorter ones.
    each = max(int(length / export.unit), 1)
    shards = export.shards[: max(MOST_MANIFESTS // (count * each), 1)]
    units = [unit for own in _units_at(export, window, shards).values() for unit in own]
    with ThreadPoolExecutor(_THREADS) as threads:
        manifests = [one for one in threads.map(export.store.read, units[:MOST_MANIFESTS]) if one is not None]
    rows: dict[int, int] = {}
    lags: dict[int, float] = {}
    for manifest in manifests:
        last = manifest.unit.range.upto.next().time
        begin = manifest.unit.window.start if manifest.unit.window is not None else last
        number = min(max((begin - window.start) // length, 0), count - 1)
        rows[number] = rows.get(number, 0) + manifest.rows
        lags[number] = max(lags.get(number, 0.0), (manifest.made_at - last).total_seconds())
    return {
        **export.to_dict(),
        "shards_shown": len(shards),
        "cell_seconds": length.total_seconds(),
        "target_seconds": export.most_lag,
        "points": [
            {
                "start": format_time(window.start + number * length),
                "rows": rows.get(number),
                "lag_seconds": lags.get(number),
            }
            for number in range(count)
        ],
    }


def _units_at(
    export: Export, window: Window, shards: Sequence[Shard] | None = None
) -> dict[Shard, list[ExportUnit]]:
    chosen = export.shards if shards is None else shards
    return units_of(export.store, chosen, window.range)


def _window_at(export: Export, units: dict[Shard, list[ExportUnit]], at: datetime) -> Window:
    """Return the window that a time is in: as it was exported, else as it would be."""
    exported = [unit.window for own in units.values() for unit in own if unit.window is not None]
    return exported[0] if exported else export.exports.window_at(export.use, at, export.store.unit)


def _shard_state(cell: Cell, shard: Shard, manifests: list[Manifest]) -> WindowState:
    if cell.state is WindowState.MISSING and shard in cell.lacking:
        return WindowState.MISSING
    if not manifests:
        return WindowState.OPEN if cell.state is WindowState.OPEN else WindowState.BEFORE
    return WindowState.COMPLETE if any(one.files for one in manifests) else WindowState.EMPTY


def _manifest_row(store: ExportStore, manifest: Manifest, runs: RunNames) -> Row:
    """Return a manifest and where it is."""
    content = encode(manifest)
    # Arrow's serialized schema; ``columns`` says the same to people.
    del content["schema"]
    content["run"] = runs.shown(manifest.run)
    content["files"] = content["files"][:MOST_FILES]
    return {
        "path": without_secrets(store.layout.manifest(manifest.unit, manifest.attempt)),
        "attempt": manifest.attempt,
        "made_at": format_time(manifest.made_at),
        "rows": manifest.rows,
        "size": manifest.size,
        "files": len(manifest.files),
        "content": content,
    }


def _cell_length(unit: timedelta) -> timedelta:
    """Return the length of a cell: that of a unit, but at least an hour and at most a day."""
    if unit <= _HOUR:
        return _HOUR
    return unit if unit < _DAY and _DAY % unit == timedelta(0) else _DAY


def _present(now: datetime, cursors: list[datetime], exported: list[datetime]) -> datetime:
    """Return the last time to show: now, or the time that the consumer has reached if that is long ago."""
    reached = max([time for time in [*cursors, *exported] if time.year > 1970], default=now)
    return min(now, reached + _DAY) if now - reached > _DAYS * _DAY else now


def _span(last: datetime, length: timedelta) -> Window:
    """Return whole days, or whole weeks from Monday on, that end with the day or week of a time."""
    check_time("end", last)
    day = floor_to_millisecond(last.astimezone(timezone.utc)).replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    if length < _DAY:
        end = day if day == last else day + _DAY
        return Window(end - _DAYS * _DAY, end)
    end = day - day.weekday() * _DAY + _WEEK
    return Window(end - _WEEKS * _WEEK, end)


def _cell_row(cell: Cell, runs: list[tuple[datetime, datetime]]) -> Row:
    row: Row = {"start": format_time(cell.start), "state": cell.state.value}
    if cell.missing:
        row["missing"] = cell.missing
    if any(start < cell.end and end > cell.start for start, end in runs):
        row["running"] = True
    return row


def _range_row(window: Window) -> Row:
    return {"start": format_time(window.start), "end": format_time(window.end)}
