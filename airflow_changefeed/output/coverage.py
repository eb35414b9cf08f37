# SPDX-License-Identifier: Apache-2.0
"""Which part of a range no complete unit covers, from the names of manifests; also as a calendar."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from airflow_changefeed.core.completeness import (
    Evidence,
    MissingRange,
    ShardProgress,
    WindowState,
    judge,
    touched,
)
from airflow_changefeed.core.feed import Shard, parse_shards
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import from_milliseconds, optional, parse_time, read_each, to_milliseconds
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.output.store import ExportStore

_MOST_NAMED = 20
_TIME = optional(parse_time)
_READ = {"start": _TIME, "end": _TIME, "shards": parse_shards}


@dataclass(frozen=True)
class Interval:
    """
    What is asked for.

    :param start: inclusive; None begins with each shard's first unit.
    :param end: exclusive; None ends with each shard's last unit.
    :param shards: None for all that have units. One that is named must be there from ``start`` on; of the
        others one may have come later.
    """

    start: datetime | None = None
    end: datetime | None = None
    shards: tuple[Shard, ...] | None = None

    @property
    def range(self) -> UlidRange:
        """All ULIDs asked for."""
        after = Ulid.floor(self.start).previous() if self.start is not None else Ulid.MIN
        return UlidRange(after, Ulid.floor(self.end).previous() if self.end is not None else Ulid.MAX)

    @classmethod
    def of(cls, start: object, end: object, shards: object) -> Interval:
        """
        Check what a person gave.

        :raises InvalidArgumentError: a time without a zone, a reversed or empty interval, something that is
            no shard; all are named.
        """
        read, problems = read_each({"start": start, "end": end, "shards": shards}, _READ)
        if None not in (read.get("start"), read.get("end")):
            try:
                Window(read["start"], read["end"])
            except InvalidArgumentError as problem:
                problems.append(problem.message)
        InvalidArgumentError.collect("the interval", problems)
        return cls(**read)


def find_missing(
    store: ExportStore, interval: Interval, units: Mapping[Shard, Sequence[ExportUnit]]
) -> list[MissingRange]:
    """
    Return what complete units leave out of an interval, by shard and time.

    A shard that was not named may have come later: before its first unit only that time is missing which no
    other shard has either.

    :param units: of each shard those that reach into the interval.
    """
    everything = [unit.range for own in units.values() for unit in own]
    missing: list[MissingRange] = []
    for shard, own in units.items():
        wanted, files = _bounds(interval, own), [unit.range for unit in own]
        if not own and interval.shards is not None and not store.units(shard):
            # Without a unit there is no first or last one, where an open end could begin: a mistyped shard.
            wanted = interval.range
        elif interval.shards is None and not any(
            unit.range.after < wanted.after for unit in store.oldest(shard)
        ):
            first = min((each.after for each in files), default=wanted.upto)
            files += [each for each in everything if each.after < first]
        progress = ShardProgress(shard, wanted.after, files=tuple(files))
        missing += judge(Evidence((progress,)), wanted).missing
    if not units and interval.start is not None and interval.end is not None:
        missing.append(MissingRange(None, interval.range))
    return missing


def named_missing(missing: Sequence[MissingRange]) -> str:
    """Name what is missing, for an error, the first ones only."""
    more = f"; and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return f"{'; '.join(map(str, missing[:_MOST_NAMED]))}{more}"


def find_overlaps(units: Iterable[ExportUnit]) -> Iterator[tuple[ExportUnit, ExportUnit]]:
    """Find units of a shard, in order, that overlap an earlier one: each, and the furthest before it."""
    furthest: ExportUnit | None = None
    for unit in units:
        if furthest is not None and furthest.range.overlaps(unit.range):
            yield unit, furthest
        if furthest is None or furthest.range.upto < unit.range.upto:
            furthest = unit


def _bounds(interval: Interval, units: Sequence[ExportUnit]) -> UlidRange:
    """Return the range that a shard's units must cover; without a start or end it is theirs."""
    wanted = interval.range
    if not units and (interval.start is None or interval.end is None):
        return UlidRange(wanted.after, wanted.after)
    after = wanted.after if interval.start is not None else min(unit.range.after for unit in units)
    return UlidRange(after, wanted.upto if interval.end is not None else max(u.range.upto for u in units))


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
            f"{len(borders)} pieces of {length} are too many; the maximum is {MOST_CELLS}: choose a "
            "shorter time"
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
