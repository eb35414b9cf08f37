# SPDX-License-Identifier: Apache-2.0
"""An export unit: one directory of output, keyed by feed, shard and interval, replaced as a whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidArgumentError


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
