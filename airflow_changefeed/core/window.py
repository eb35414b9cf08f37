# SPDX-License-Identifier: Apache-2.0
"""Windows ``[start, end)`` of feed time, and how an interval is cut into them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_changefeed.core.times import (
    format_compact,
    format_time,
    from_milliseconds,
    parse_compact,
    to_milliseconds,
)
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import InvalidWindowError

#: Units that a window may be cut into: eleven years of hours.
MAX_UNITS = 100_000
_MILLISECOND = timedelta(milliseconds=1)


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
                f"window [{self.start.isoformat()}, {self.end.isoformat()}) has zero length. In a DAG, "
                "schedule it with CronDataIntervalTimetable: a bare cron string is a CronTriggerTimetable, "
                "whose data intervals are points. Without a schedule, trigger it with params "
                "window_start and window_end; a partition, by its key. mode='batch' exports from the cursor",
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

    @property
    def range(self) -> UlidRange:
        """
        The window as ULIDs, ``floor(start) <= u < floor(end)``.

        As a range it is written ``(floor(start)-1, floor(end)-1]``.
        """
        return UlidRange(Ulid.floor(self.start).previous(), Ulid.floor(self.end).previous())

    @property
    def length(self) -> timedelta:
        """How long the window is."""
        return self.end - self.start

    @property
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
                f"window {self} does not start and end on a multiple of the unit {unit} (counted from 1970 "
                "UTC); use a schedule that does, or another unit",
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
