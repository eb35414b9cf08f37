# SPDX-License-Identifier: Apache-2.0
"""
Where the windows of an export begin: as its output says, or without one as its moves so far show.

An export of windows never stops inside one: a cursor there waits for a window that begins before it, and
waits forever if that window can no longer be exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from math import gcd

from airflow_changefeed.core.cursor import CursorChange
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.times import to_milliseconds
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import is_border
from airflow_changefeed.exceptions import OutputError, TransientError
from airflow_changefeed.output.manifests import ManifestStore
from airflow_changefeed.sources.base_cursors import CursorStore

#: Ends of windows that are compared, the newest ones: the length of the windows may have changed.
_COMPARED = 10
_READ = 200
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class WindowGrid:
    """
    Begins of windows.

    :param origin: one of them, milliseconds since 1970 UTC.
    :param length: of all windows, milliseconds, or of several together; None if only one begin is known.
    :param is_sure: whether it is that of each window.
    """

    origin: int
    length: int | None = None
    is_sure: bool = False

    @property
    def window_length(self) -> timedelta | None:
        """The length of each window; None if it is not known."""
        return None if self.length is None or not self.is_sure else timedelta(milliseconds=self.length)

    def is_begin(self, after: Ulid) -> bool:
        """Whether a window may begin after a ULID."""
        return is_border(after) and (not self.is_sure or self.floor(after) == after)

    def floor(self, after: Ulid) -> Ulid:
        """Return where the window begins, as the ULID before it, that has the event after a ULID."""
        if self.length is None:
            return Ulid.MIN
        begin = after.next().ms
        return Ulid.floor_milliseconds(max(begin - (begin - self.origin) % self.length, 0)).previous()

    def ceiling(self, after: Ulid) -> Ulid:
        """Return where the first window begins that has no event up to a ULID."""
        begin = self.floor(after)
        if self.length is None or begin == after:
            return begin
        return Ulid.floor_milliseconds(begin.next().ms + self.length).previous()

    def first_whole(self, purged_upto: Ulid) -> datetime | None:
        """Return the begin of the first window of which no event was purged, if that is known."""
        return self.ceiling(purged_upto).next().time if self.is_sure else None


def grid_of(changes: Iterable[CursorChange]) -> WindowGrid | None:
    """
    Find where the windows of an export begin.

    :param changes: of its cursors, newest first.
    :return: None for one that has exported nothing, or batches.
    """
    # Those that runs made. A run that only completed windows ahead of a gap leaves the cursor where it is.
    ends = [change.after for change in changes if change.why is None and change.before != change.after]
    newest = sorted(dict.fromkeys(ends[: 2 * _COMPARED]))[-_COMPARED:]
    if not newest or not all(map(is_border, newest)):
        return None
    begins = [end.next().ms for end in newest]
    steps = [second - first for first, second in pairwise(begins)]
    length = gcd(*steps)
    # One move may end several windows; two of the same length hardly do.
    return WindowGrid(begins[-1], length or None, is_sure=steps.count(length) > 1)


def output_grid(outputs: Iterable[ManifestStore], shard: Shard, place: Ulid) -> WindowGrid | None:
    """
    Return where windows begin around a place, by the first output that says it.

    :return: None where none does: it has no unit, and no window there, nor one that ends there; or it does
        not answer.
    """
    for output in outputs:
        with suppress(OutputError, TransientError):
            if output.unit is not None:
                return WindowGrid(0, output.unit // _MILLISECOND, is_sure=True)
            around = UlidRange(place if place == Ulid.MIN else place.previous(), place.next())
            windows = [unit.window for unit in output.overlapping(shard, around) if unit.window is not None]
            if windows:
                origin, length = to_milliseconds(windows[-1].start), windows[-1].length // _MILLISECOND
                return WindowGrid(origin, length, is_sure=True)
    return None


def export_grids(source: CursorStore, feed: str, consumers: Sequence[str]) -> dict[str, WindowGrid]:
    """
    Find where the windows of exports begin.

    :return: those that export windows.
    """
    grids = {one: grid_of(source.history(feed, one, limit=_READ)) for one in consumers}
    return {name: grid for name, grid in grids.items() if grid is not None}
