# SPDX-License-Identifier: Apache-2.0
"""Which windows are exported, as a calendar of cells, from names in the output; opens no file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.times import from_milliseconds, to_milliseconds
from airflow_changefeed.core.ulid import Ulid, UlidRange, uncovered
from airflow_changefeed.core.unit import ExportUnit
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.output.coverage import Gap, Interval, find_gaps
from airflow_changefeed.output.store import ExportStore

#: Cells that one calendar may have.
MOST_CELLS = 10_000
# Object stores answer each listing late, and many at a time.
_THREADS = 8
_UNIT_FOLDER = "changefeed_unit="

Units = Mapping[Shard, Sequence[ExportUnit]]


class CellState(str, Enum):
    """
    What is known of a time.

    ``COMPLETE``: all shards are exported. ``EMPTY``: they are, and nothing happened. ``MISSING``: at least
    one shard is not exported, or not all of it. ``BEFORE``: the consumer began later. ``OPEN``: it is not
    over.
    """

    COMPLETE = "complete"
    EMPTY = "empty"
    MISSING = "missing"
    BEFORE = "before"
    OPEN = "open"


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
    state: CellState
    lacking: frozenset[Shard | None] = frozenset()

    @property
    def missing(self) -> int:
        """How many shards are not exported, or not wholly."""
        return len(self.lacking)


def make_calendar(
    store: ExportStore,
    wanted: Window,
    length: timedelta,
    *,
    shards: Sequence[Shard],
    begin: datetime | None,
    now: datetime,
    begins: Mapping[Shard, Ulid] = MappingProxyType({}),
) -> list[Cell]:
    """
    Say of each piece of a time whether it is exported.

    :param length: of a piece; the first one begins with the time.
    :param shards: those to look at. One that is not among ``begins`` counts since its first unit, and without
        any only where no other has one either.
    :param begin: where the consumer's first window begins; None where it has not begun.
    :param now: the database's clock.
    :param begins: exclusive; where shards begin for the consumer, from where on they are missed, be it that
        no unit of theirs was ever written.
    :raises InvalidArgumentError: more than ``MOST_CELLS`` pieces.
    """
    step = length // timedelta(milliseconds=1)
    start = to_milliseconds(wanted.start)
    borders = range(start, to_milliseconds(wanted.end), step)
    if len(borders) > MOST_CELLS:
        raise InvalidArgumentError(
            f"{len(borders)} pieces of {length} are too many; the maximum is {MOST_CELLS}: choose less time"
        )
    whole = Window(from_milliseconds(start), from_milliseconds(start + len(borders) * step))
    units = _units(store, shards, whole.range)
    grid = _Grid(start, step, len(borders))
    missing: dict[int, set[Shard | None]] = defaultdict(set)
    bare: set[int] = set()
    for gap in find_gaps(store, Interval(whole.start, whole.end), units):
        bare.update(grid.touched(gap.range))
        if gap.shard not in begins:
            for number in grid.touched(gap.range):
                missing[number].add(gap.shard)
    for gap in _missed(whole.range, units, begins):
        for number in grid.touched(gap.range):
            missing[number].add(gap.shard)
    full = {number for range_ in _with_rows(store, units) for number in grid.touched(range_)}
    return [
        _cell(
            (from_milliseconds(border), length),
            frozenset(missing[number]),
            is_bare=number in bare,
            is_full=number in full,
            begin=begin,
            now=now,
        )
        for number, border in enumerate(borders)
    ]


def _missed(wanted: UlidRange, units: Units, begins: Mapping[Shard, Ulid]) -> Iterator[Gap]:
    """Return what is missing of the shards whose beginning is known."""
    for shard, begin in begins.items():
        if shard in units and begin < wanted.upto:
            since = UlidRange(max(begin, wanted.after), wanted.upto)
            yield from (Gap(shard, piece) for piece in uncovered(since, [u.range for u in units[shard]]))


def _cell(
    place: tuple[datetime, timedelta],
    missing: frozenset[Shard | None],
    *,
    is_bare: bool,
    is_full: bool,
    begin: datetime | None,
    now: datetime,
) -> Cell:
    start, end = place[0], place[0] + place[1]
    state = CellState.COMPLETE if is_full else CellState.EMPTY
    if is_bare and not missing and (begin is None or end <= begin):
        state = CellState.BEFORE
    elif missing:
        state = CellState.MISSING
        # Exported windows are shown even if they were not required.
        if begin is None or end <= begin:
            state = CellState.BEFORE
        elif end > now:
            state = CellState.OPEN
    return Cell(start, end, state, missing if state is CellState.MISSING else frozenset())


@dataclass(frozen=True)
class _Grid:
    start: int
    step: int
    count: int

    def touched(self, range_: UlidRange) -> range:
        """Return the numbers of the pieces that a range touches."""
        if range_.is_empty:
            return range(0)
        first = (range_.after.next().ms - self.start) // self.step
        last = (range_.upto.ms - self.start) // self.step
        return range(max(first, 0), min(last + 1, self.count))


def _units(store: ExportStore, shards: Sequence[Shard], wanted: UlidRange) -> dict[Shard, list[ExportUnit]]:
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
        if cell.state is not CellState.MISSING:
            continue
        if found and found[-1].end == cell.start:
            found[-1] = Window(found[-1].start, cell.end)
        else:
            found.append(Window(cell.start, cell.end))
    return found


def length_of_units(units: Iterable[ExportUnit]) -> timedelta | None:
    """Return how long the shortest window among units is; None if there are none."""
    return min((unit.window.length for unit in units if unit.window is not None), default=None)


def begin_of(starts: Iterable[Ulid]) -> datetime | None:
    """
    Return where a consumer's first window begins.

    :param starts: of its frontiers, exclusive; none where it has not begun.
    """
    first = min(starts, default=None)
    return None if first is None else first.next().time
