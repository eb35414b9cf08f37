# SPDX-License-Identifier: Apache-2.0
"""Windows ``[start, end)`` of feed time, and the export units that they are cut into."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import (
    format_compact,
    format_time,
    from_milliseconds,
    parse_compact,
    to_milliseconds,
)
from airflow_changefeed.exceptions import InvalidArgumentError, InvalidWindowError

#: Units that a window may be cut into: eleven years of hours.
MAX_UNITS = 100_000
_MILLISECOND = timedelta(milliseconds=1)
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)


def is_border(after: Ulid) -> bool:
    """Whether a window may end with a ULID, and the next one begin after it; no event has such a ULID."""
    return after not in (Ulid.MIN, Ulid.MAX) and after.next() == Ulid.floor_milliseconds(after.next().ms)


@dataclass(frozen=True, order=True)
class Window:
    """
    Feed time from ``start`` (inclusive) to ``end`` (exclusive), in UTC and whole milliseconds.

    :raises InvalidWindowError: zero or negative length, no time zone, finer than a millisecond.
    """

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        # Before the milliseconds: the point that a bare cron string gives a run has a clock's microseconds.
        if self.start.tzinfo and self.end.tzinfo and self.start == self.end:
            raise InvalidWindowError(
                f"window [{self.start.isoformat()}, {self.end.isoformat()}) has zero length. Schedule "
                "the DAG with CronDataIntervalTimetable: a bare cron string is a CronTriggerTimetable, "
                "whose data intervals have no length. Trigger a DAG without a schedule with params "
                "window_start and window_end, and a partition by its key. With mode='batch' the task "
                "exports from the cursor",
                start=self.start,
                end=self.end,
            )
        start, end = to_milliseconds(self.start), to_milliseconds(self.end)
        if start > end:
            raise InvalidWindowError(
                f"window [{format_time(self.start)}, {format_time(self.end)}) ends before it starts",
                start=self.start,
                end=self.end,
            )
        object.__setattr__(self, "start", from_milliseconds(start))
        object.__setattr__(self, "end", from_milliseconds(end))

    def __str__(self) -> str:
        return f"[{format_time(self.start)}, {format_time(self.end)})"

    @cached_property
    def range(self) -> UlidRange:
        """
        The window as ULIDs, ``floor(start) <= u < floor(end)``.

        As a range it is written ``(floor(start)-1, floor(end)-1]``.
        """
        # Calendars of many consumers ask the same windows for it again and again.
        return UlidRange(Ulid.floor(self.start).previous(), Ulid.floor(self.end).previous())

    @property
    def length(self) -> timedelta:
        """How long the window is."""
        return self.end - self.start

    @cached_property
    def name(self) -> str:
        """The window for names of files and folders: ``20130101T000000Z_20130101T010000Z``."""
        return f"{format_compact(self.start)}_{format_compact(self.end)}"

    @classmethod
    def parse_name(cls, name: str) -> Window:
        """
        Read what :attr:`name` wrote.

        :raises InvalidWindowError: something else.
        """
        start, separator, end = name.partition("_")
        if not separator:
            raise InvalidWindowError(
                f"{name!r} is not a window of the form 20130101T000000Z_20130101T010000Z"
            )
        return cls(parse_compact(start), parse_compact(end))

    @classmethod
    def containing(cls, time: datetime, length: timedelta) -> Window:
        """Return the window of a length, aligned to 1970 UTC, that contains a time."""
        step = _milliseconds(length)
        start = to_milliseconds(time) // step * step
        return cls(from_milliseconds(start), from_milliseconds(start + step))

    def cut(self, unit: timedelta | None) -> list[Window]:
        """
        Cut the window into units aligned to 1970 UTC, in order and without a gap.

        Units are what export units are keyed by, so a window must begin and end on a unit's border: else two
        runs would cut the same hour in two ways.

        :param unit: length of a unit; None gives the window itself, whatever its length.
        :raises InvalidWindowError: a border of the window lies inside a unit, or it has over 100,000 units.
        """
        if unit is None:
            return [self]
        step, start, end = _milliseconds(unit), to_milliseconds(self.start), to_milliseconds(self.end)
        if start % step or end % step:
            raise InvalidWindowError(
                f"window {self} does not start and end on a multiple of the unit {unit}, counted from "
                "1970-01-01 UTC, a Thursday: omit unit, and each window is one unit, whatever its "
                "length; or choose a unit or a schedule that fits. Days of a time zone with summer "
                "time, and weeks from Monday, never fit",
                start=self.start,
                end=self.end,
            )
        borders = range(start, end, step)
        if len(borders) > MAX_UNITS:
            raise InvalidWindowError(
                f"window {self} has {len(borders)} units of {unit}, but one run has at most {MAX_UNITS}; "
                "use a shorter window or a longer unit",
                start=self.start,
                end=self.end,
            )
        return [Window(from_milliseconds(border), from_milliseconds(border + step)) for border in borders]


def _milliseconds(length: timedelta) -> int:
    milliseconds, rest = divmod(length, _MILLISECOND)
    if milliseconds <= 0 or rest:
        raise InvalidWindowError(f"a unit must be a positive number of whole milliseconds, not {length}")
    return int(milliseconds)


@dataclass(frozen=True)
class ExportUnit:
    """
    A window of a shard, or a batch from a cursor; never keyed by a run's logical date.

    :param window: None for a batch.
    :param range: ``(after, upto]``; a window's own range where there is a window.
    """

    shard: Shard
    range: UlidRange
    window: Window | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window.range != self.range:
            raise InvalidArgumentError(f"unit of window {self.window} must have the window's range")

    @classmethod
    def of_window(cls, shard: Shard, window: Window) -> ExportUnit:
        """Return the unit of a shard's window."""
        return cls(shard, window.range, window)

    @property
    def name(self) -> str:
        """
        Name for files and folders; sorts by time.

        For a window ``20130101T000000Z_20130101T010000Z``; a batch has its two ULIDs.
        """
        return self.window.name if self.window else f"{self.range.after}_{self.range.upto}"

    @property
    def date(self) -> str:
        """UTC date under which the unit is filed: that of its window's start, or of a batch's end."""
        time = self.window.start if self.window else self.range.upto.time
        return time.date().isoformat()

    def __str__(self) -> str:
        return f"shard {shard_text(self.shard)} {self.window or f'({self.range.after}, {self.range.upto}]'}"


def count_windows(range_: UlidRange, length: timedelta) -> int:
    """
    Return how many windows a range has that begins with one; one more if it ends within a window.

    :param length: of the windows. Where a day or more, they may follow local clocks, and have an hour more.
    """
    unit = length // _MILLISECOND
    spare = _HOUR // _MILLISECOND if length >= _DAY else 0
    return max(1, -((range_.after.ms - range_.upto.ms + spare) // unit))


def by_shard(units: Iterable[ExportUnit]) -> dict[Shard, list[ExportUnit]]:
    """Return the units of each shard, in order of time."""
    found: dict[Shard, list[ExportUnit]] = {}
    for unit in sorted(units, key=lambda unit: unit.range):
        found.setdefault(unit.shard, []).append(unit)
    return found


def overlapping(others: Iterable[ExportUnit], units: Iterable[ExportUnit]) -> list[ExportUnit]:
    """
    Return those of some units that overlap one of others.

    :param units: of one cut: they do not overlap each other.
    """
    ours = by_shard(units)
    ends = {shard: [unit.range.upto for unit in own] for shard, own in ours.items()}
    found = []
    for other in others:
        own = ours.get(other.shard, [])
        place = bisect_right(ends.get(other.shard, []), other.range.after)
        if place < len(own) and own[place].range.overlaps(other.range):
            found.append(other)
    return found
