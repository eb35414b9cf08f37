# SPDX-License-Identifier: Apache-2.0
"""Which part of a range no complete unit covers: read from the names of manifests, without opening one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_changefeed.core.feed import Shard, parse_shard
from airflow_changefeed.core.ulid import Ulid, UlidRange, uncovered
from airflow_changefeed.core.unit import ExportUnit
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.output.layout import ManifestName, parse_unit
from airflow_changefeed.output.store import ExportStore

_RANDOM = (1 << 80) - 1


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
        problems = [
            f"{name} must be a datetime with a time zone, or None, not {value!r}"
            for name, value in (("start", start), ("end", end))
            if value is not None and not isinstance(value, datetime)
        ]
        times = [value for value in (start, end) if isinstance(value, datetime)]
        try:
            _check_times(times)
        except InvalidArgumentError as problem:
            problems.append(problem.message)
        named, wrong = _shards(shards)
        InvalidArgumentError.collect("the interval", problems + wrong)
        return cls(
            start if isinstance(start, datetime) else None, end if isinstance(end, datetime) else None, named
        )


def _check_times(times: Sequence[datetime]) -> None:
    if len(times) == 2:
        Window(*times)
    for time in times:
        Ulid.floor(time)


def _shards(shards: object) -> tuple[tuple[Shard, ...] | None, list[str]]:
    if shards is None:
        return None, []
    if isinstance(shards, (str, bytes)) or not isinstance(shards, Iterable):
        return None, [f"shards must be a list of shards, or None for all, not {shards!r}"]
    found, problems = [], []
    for shard in shards:
        try:
            found.append(parse_shard(shard))
        except InvalidArgumentError as problem:
            problems.append(problem.message)
    if not found and not problems:
        problems.append("shards is empty: name some, or None for all")
    return tuple(dict.fromkeys(found)), problems


@dataclass(frozen=True)
class Gap:
    """
    A range without a complete unit.

    :param shard: None where no shard has any unit.
    """

    shard: Shard | None
    range: UlidRange

    @property
    def unit(self) -> ExportUnit | None:
        """The gap as the one unit that would fill it; None without a shard."""
        return None if self.shard is None else _as_unit(self.shard, self.range)

    def __str__(self) -> str:
        if self.unit is not None:
            return str(self.unit)
        if self.range == Interval().range:
            return "any shard"
        return str(_as_unit(0, self.range)).replace("shard 0", "any shard", 1)


def _as_unit(shard: Shard, range_: UlidRange) -> ExportUnit:
    first, last = range_.after.next(), range_.upto.next() if range_.upto != Ulid.MAX else range_.upto
    if int(first) & _RANDOM or int(last) & _RANDOM:
        return ExportUnit(shard, range_)
    return ExportUnit.of_window(shard, Window(first.time, last.time))


def find_gaps(
    store: ExportStore, interval: Interval, units: Mapping[Shard, Sequence[ExportUnit]]
) -> list[Gap]:
    """
    Return what complete units leave out of an interval, by shard and time.

    A shard that was not named may have come later: before its first unit only that time is missing which no
    other shard has either.

    :param units: of each shard those that reach into the interval.
    """
    wanted = interval.range
    everything = [unit.range for own in units.values() for unit in own]
    gaps = []
    for shard, own in units.items():
        if not own and interval.shards is not None and not store.units(shard):
            # Without a unit there is no first or last one, where an open end could begin: a mistyped shard.
            gaps.append(Gap(shard, wanted))
            continue
        for gap in uncovered(_bounds(interval, own), [unit.range for unit in own]):
            came_later = interval.shards is None and gap.after == wanted.after
            if came_later and not _began_before(store, shard, wanted.after):
                gaps += [Gap(shard, piece) for piece in uncovered(gap, everything)]
            else:
                gaps.append(Gap(shard, gap))
    if not units and interval.start is not None and interval.end is not None:
        gaps.append(Gap(None, wanted))
    return gaps


def find_overlaps(units: Iterable[ExportUnit]) -> Iterator[tuple[ExportUnit, ExportUnit]]:
    """
    Find units that overlap an earlier one: each of them, and the earlier one that reaches furthest.

    :param units: of one shard, in order.
    """
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


def _began_before(store: ExportStore, shard: Shard, position: Ulid) -> bool:
    """Whether a shard has a unit that begins before a place; its dates sort as its units do."""
    folder = store.layout.shard_manifests(shard)
    for date in store.files.names(folder):
        parsed = [ManifestName.parse(name) for name in store.files.names(f"{folder}/{date}")]
        units = [unit for name in parsed if name and (unit := parse_unit(shard, name.unit))]
        if units:
            return any(unit.range.after < position for unit in units)
    return False
