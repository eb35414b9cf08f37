# SPDX-License-Identifier: Apache-2.0
"""
Where the windows of an export begin, and the events before that beginning.

An export of windows never stops inside one: a cursor there waits for a window that begins before it, and
waits forever if that window can no longer be exported.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from math import gcd

from airflow_changefeed.core.consumer import COUNTED, FeedOverview
from airflow_changefeed.core.cursor import CursorChange
from airflow_changefeed.core.fault import Fault, FaultKind, shell
from airflow_changefeed.core.feed import Shard, counted
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import format_time, from_milliseconds, to_milliseconds
from airflow_changefeed.core.window import is_border
from airflow_changefeed.exceptions import OutputError, TransientError
from airflow_changefeed.output.manifests import ManifestStore
from airflow_changefeed.sources.base_consumers import CursorStore

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


def end_of_window(output: ManifestStore, at: datetime) -> datetime:
    """Return the end of the window that the moment before a time is in; without a known window, the time."""
    before = Ulid.floor(at).previous()
    # The output's unit needs no shard.
    grids = (output_grid([output], shard, before) for shard in output.shards() or [0])
    grid = next(filter(None, grids), None)
    return at if grid is None else grid.ceiling(before).next().time


def export_grids(source: CursorStore, feed: str, consumers: Sequence[str]) -> dict[str, WindowGrid]:
    """
    Find where the windows of exports begin.

    :return: those that export windows.
    """
    grids = {one: grid_of(source.history(feed, one, limit=_READ)) for one in consumers}
    return {name: grid for name, grid in grids.items() if grid is not None}


_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class EventsBefore:
    """
    Events before a beginning that nobody has chosen: a consumer's first run has left them out.

    :param count: in all shards, at most ``COUNTED`` of each.
    :param since: begin of the window that has it, or a little earlier.
    :param until: where the consumer begins, in the last shard that has such events.
    """

    feed: str
    consumer: str
    count: int
    is_more: bool
    first: datetime
    since: datetime
    until: datetime

    @property
    def what(self) -> str:
        """What is known, as a sentence."""
        events = f"{self.count} events or more" if self.is_more else counted(self.count, "event")
        lie, them = ("lies", "it") if events == "1 event" else ("lie", "them")
        return (
            f"{events} from {format_time(self.first)} on {lie} before the beginning of consumer "
            f"{self.consumer}, which its first run set to {format_time(self.until)}: no run exports "
            f"{them}"
        )

    def remedy(self, dag_id: str | None) -> str:
        """Return the ways on, with the DAG that exports for the consumer if it is known."""
        accept = shell("cursor accept-beginning", self.consumer, "--feed", self.feed, "--note", "...")
        return (
            f"Export them: {backfill_command(dag_id, self.since, self.until)}. If nobody needs these "
            f"events, accept the beginning: {accept}"
        )

    def fault(self, dag_id: str | None) -> Fault:
        """Return it as a fault."""
        where = f"feed {self.feed}, consumer {self.consumer}"
        return Fault(FaultKind.EVENTS_BEFORE_BEGINNING, where, self.what, self.remedy(dag_id))


def events_before(found: FeedOverview, consumer: str, length: timedelta | None = None) -> EventsBefore | None:
    """
    Return the events before a consumer's beginning, if its first run has set it and nobody accepted it.

    :param length: of its windows; None if it is not known.
    """
    left = [(one, one.before_from) for one in found.positions(consumer) if one.before_from is not None]
    if not left:
        return None
    first = min(event for _, event in left)
    return EventsBefore(
        found.info.name,
        consumer,
        sum(one.before for one, _ in left),
        any(one.before >= COUNTED for one, _ in left),
        first.time,
        min(_window_begin(one.row.frontier.start, event, length) for one, event in left),
        max(one.row.frontier.start for one, _ in left).next().time,
    )


def _window_begin(start: Ulid, event: Ulid, length: timedelta | None) -> datetime:
    """Return the begin of the window that has an event before the beginning, or a little earlier."""
    if length is None:
        # Windows are seldom longer than a day.
        return from_milliseconds(max(event.ms // _HOUR_MS * _HOUR_MS - 24 * _HOUR_MS, 0))
    begin, step = start.next().ms, length // timedelta(milliseconds=1)
    since = begin - -((event.ms - begin) // step) * step
    # Days of a zone begin an hour earlier or later in the other half of the year.
    return from_milliseconds(max(since - (_HOUR_MS if step >= 24 * _HOUR_MS else 0), 0))


def backfill_command(dag_id: str | None, since: datetime, until: datetime) -> str:
    """
    Return the command of a backfill.

    :param since: begin of the first window.
    :param until: end of the last window; Airflow itself leaves out windows that have not ended.
    """
    # Airflow includes the run whose window begins at the end.
    last = format_time(until.replace(microsecond=0) - timedelta(seconds=1))
    dag = "..." if dag_id is None else shlex.quote(dag_id)
    return f"airflow backfill create --dag-id {dag} --from-date {format_time(since)} --to-date {last}"
