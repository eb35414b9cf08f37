# SPDX-License-Identifier: Apache-2.0
"""Which windows are exported, as a calendar of cells, from names in the output; opens no file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_changefeed.core.completeness import Evidence, WindowState, judge, touched
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.times import from_milliseconds, to_milliseconds
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.output.store import ExportStore

#: Cells that one calendar may have.
MOST_CELLS = 10_000
# Object stores answer each listing late, and many at a time.
_THREADS = 8
_UNIT_FOLDER = "changefeed_unit="

Units = Mapping[Shard, Sequence[ExportUnit]]


@dataclass(frozen=True)
class Cell:
    """
    A piece of time.

    :param start: inclusive.
    :param end: exclusive.
    :param lacking: shards that are not exported, or not wholly, where it is ``MISSING``; None stands for all
        if no shard has anything.
    """

    start: datetime
    end: datetime
    state: WindowState
    lacking: frozenset[Shard | None] = frozenset()

    @property
    def missing(self) -> int:
        """How many shards are not exported, or not wholly."""
        return len(self.lacking)


def make_calendar(
    store: ExportStore, wanted: Window, length: timedelta, evidence: Evidence, *, now: datetime
) -> list[Cell]:
    """
    Say of each piece of a time whether it is exported.

    :param length: of a piece; the first one begins with the time.
    :param evidence: of the consumer; its shards are those that are looked at in the output.
    :param now: the database's clock.
    :raises InvalidArgumentError: more than ``MOST_CELLS`` pieces.
    """
    step = length // timedelta(milliseconds=1)
    start = to_milliseconds(wanted.start)
    borders = range(start, to_milliseconds(wanted.end), step)
    if len(borders) > MOST_CELLS:
        raise InvalidArgumentError(
            f"{len(borders)} pieces of {length} are too many; the maximum is {MOST_CELLS}: choose less time"
        )
    windows = [Window(from_milliseconds(border), from_milliseconds(border + step)) for border in borders]
    whole = Window(windows[0].start, windows[-1].end).range
    units = units_of(store, [one.shard for one in evidence.shards], whole)
    shards = [replace(one, files=tuple(unit.range for unit in units[one.shard])) for one in evidence.shards]
    verdict = judge(replace(evidence, shards=tuple(shards)), whole)
    with_rows = touched(windows, [(None, range_) for range_ in _with_rows(store, units)])
    judged = zip(windows, verdict.states(windows, now), verdict.lacking(windows), with_rows, strict=True)
    return [_cell(window, state, lacking, has_rows=bool(rows)) for window, state, lacking, rows in judged]


def _cell(window: Window, state: WindowState, lacking: frozenset[Shard | None], *, has_rows: bool) -> Cell:
    if state is WindowState.COMPLETE and not has_rows:
        state = WindowState.EMPTY
    return Cell(window.start, window.end, state, lacking if state is WindowState.MISSING else frozenset())


def units_of(store: ExportStore, shards: Sequence[Shard], wanted: UlidRange) -> dict[Shard, list[ExportUnit]]:
    """Return the units of shards that overlap a range."""
    with ThreadPoolExecutor(_THREADS) as threads:
        found = threads.map(lambda shard: list(store.overlapping(shard, wanted)), shards)
        return dict(zip(shards, found, strict=True))


def _with_rows(store: ExportStore, units: Units) -> Iterator[UlidRange]:
    """Return the ranges of the units that have files; one without rows has none."""
    by_folder: dict[str, list[ExportUnit]] = defaultdict(list)
    for own in units.values():
        for unit in own:
            by_folder[store.layout.unit(unit).rpartition("/")[0]].append(unit)
    with ThreadPoolExecutor(_THREADS) as threads:
        for folder, names in zip(by_folder, threads.map(store.files.names, by_folder), strict=True):
            placed = {name.removeprefix(_UNIT_FOLDER) for name in names}
            yield from (unit.range for unit in by_folder[folder] if unit.name in placed)


def missing_ranges(cells: Iterable[Cell]) -> list[Window]:
    """Return the unbroken runs of missing cells."""
    found: list[Window] = []
    for cell in cells:
        if cell.state is not WindowState.MISSING:
            continue
        if found and found[-1].end == cell.start:
            found[-1] = Window(found[-1].start, cell.end)
        else:
            found.append(Window(cell.start, cell.end))
    return found
