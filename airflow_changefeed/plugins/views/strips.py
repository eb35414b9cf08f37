# SPDX-License-Identifier: Apache-2.0
"""How a consumer does at one look: its last windows, and how old its frontier is; from cursors alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from airflow_changefeed.core.consumer import ConsumerInfo, ConsumerPosition, FeedOverview, ShardOverview
from airflow_changefeed.core.times import EPOCH, format_known, format_time
from airflow_changefeed.core.ulid import Ulid, UlidRange, uncovered
from airflow_changefeed.core.window import Window
from airflow_changefeed.hooks.changefeed_secrets import without_secrets
from airflow_changefeed.output.calendar import CellState
from airflow_changefeed.plugins.changefeed_runs import interval_of, running
from airflow_changefeed.plugins.changefeed_uses import Use
from airflow_changefeed.plugins.views.rows import Row

log = logging.getLogger(__name__)

#: Maximum number of windows in a strip.
WINDOWS = 48
_HOUR = timedelta(hours=1)
# A consumer that stopped long ago is shown where it stopped, as in the calendar.
_LONG_AGO, _AFTER = timedelta(days=7), WINDOWS // 2


@dataclass(frozen=True)
class Exports:
    """
    The exports of a connection's feeds.

    :param uses: tasks that the user may see.
    :param sees_runs: takes a DAG's id; whether the user may see its runs.
    """

    uses: Sequence[Use]
    sees_runs: Callable[[str], bool]
    _intervals: dict[str, timedelta | None] = field(default_factory=dict)
    _runs: dict[tuple[str, Window], list[tuple[datetime, datetime]]] = field(default_factory=dict)

    def of(self, feed: str, consumer: str) -> list[Use]:
        """Return the tasks that export windows of a feed for a consumer."""
        return [one for one in self.uses if (one.feed, one.consumer) == (feed, consumer) and one.has_windows]

    def unit(self, use: Use) -> timedelta:
        """Return the length of a task's windows."""
        if use.unit is not None:
            return use.unit
        if use.dag_id not in self._intervals:
            self._intervals[use.dag_id] = interval_of(use.dag_id)
        return self._intervals[use.dag_id] or _HOUR

    def runs(self, dag_id: str, window: Window) -> list[tuple[datetime, datetime]]:
        """Return the intervals of a DAG's queued and running runs in a window, if the user may see them."""
        if not self.sees_runs(dag_id):
            return []
        # Consumers that one DAG exports for mostly have the same windows.
        if (dag_id, window) not in self._runs:
            self._runs[dag_id, window] = running(dag_id, window)
        return self._runs[dag_id, window]


@dataclass(frozen=True)
class _Reach:
    """
    What a consumer has completed of a shard.

    :param start: exclusive; where it begins.
    :param until: exclusive end of what is complete without a gap; None if nothing is.
    :param ahead: complete ranges after a gap.
    """

    start: Ulid
    until: datetime | None
    ahead: tuple[UlidRange, ...] = ()

    @cached_property
    def upto(self) -> Ulid:
        """Inclusive end of what is complete without a gap."""
        return self.start if self.until is None else max(Ulid.floor(self.until).previous(), self.start)

    def before(self, gap: datetime) -> _Reach:
        """Return what of this counts while a gap of the capture is open: nothing after its begin."""
        end = Ulid.floor(gap).previous()
        ahead = tuple(UlidRange(one.after, min(one.upto, end)) for one in self.ahead if one.after < end)
        return _Reach(self.start, None if self.until is None else min(self.until, gap), ahead)

    def lacks(self, wanted: UlidRange) -> bool:
        """Whether a part of a range, after the start, is not complete."""
        if wanted.upto <= self.upto:
            return False
        return bool(uncovered(UlidRange(max(self.upto, wanted.after), wanted.upto), self.ahead))


def strip_of(found: FeedOverview, consumer: str, exports: Exports, now: datetime) -> Row:
    """
    Return a consumer's last windows, and until when it has completed the shards of the overview.

    For a consumer of events the windows are hours. ``strip`` is None if a DAG does not say what its windows
    are: it was deleted meanwhile, or its timetable raises. The log has the reason. ``is_late`` is whether a
    window is missing that should be complete; None if that is not known.

    :param now: the database's clock.
    """
    feed = found.info.name
    reaches = _reaches(found, consumer, now)
    # Where its windows begin, and where it stopped, whatever a gap makes of them.
    latest = max((one.until for one in reaches if one.until is not None), default=now)
    gap = min((one.begin for one in found.gaps or ()), default=None)
    if gap is not None:
        reaches = [one.before(gap) for one in reaches]
    times = [one.until for one in reaches]
    until = None if None in times else min((time for time in times if time is not None), default=None)
    strip: Row | None = None
    try:
        strip = _strip(exports.of(feed, consumer), reaches, latest, until, exports, now)
    except Exception as error:
        # Timetables are users' code. One that fails must not take the other consumers from the page.
        log.warning(
            "The page shows consumer %r of feed %r without its windows: %s: %s",
            consumer,
            feed,
            type(error).__name__,
            without_secrets(str(error)),
        )
    return {
        "complete_until": format_known(until),
        "age_seconds": None if until is None else max((now - until).total_seconds(), 0.0),
        "is_late": _is_late(until, gap, strip),
        "strip": strip,
    }


def _is_late(until: datetime | None, gap: datetime | None, strip: Row | None) -> bool | None:
    if until is None or gap is not None:
        return True
    if strip is None:
        return None
    return strip["is_missing_before"] or CellState.MISSING.value in strip["states"]


def _strip(
    uses: list[Use],
    reaches: list[_Reach],
    latest: datetime,
    until: datetime | None,
    exports: Exports,
    now: datetime,
) -> Row:
    """
    Return the last windows.

    :param latest: the frontier of the shard that is farthest.
    :param until: the frontier of all shards.
    """
    unit = min((exports.unit(use) for use in uses), default=_HOUR)
    is_long_ago = now - latest > max(_LONG_AGO, unit * WINDOWS)
    # Windows of an export begin where its frontier is: days of another zone, or weeks, not at those of 1970.
    border = latest if uses and any(one.until is not None for one in reaches) else EPOCH
    last = latest + unit * _AFTER if is_long_ago else now
    end = border + ((last - border) // unit + 1) * unit
    # No window begins before 1970.
    count = min(WINDOWS, (end - EPOCH) // unit)
    windows = [Window(end - unit * (number + 1), end - unit * number) for number in reversed(range(count))]
    whole = Window(windows[0].start, end)
    runs = [run for dag_id in {use.dag_id for use in uses} for run in exports.runs(dag_id, whole)]
    states = [_state(window, reaches, runs, now) for window in windows]
    return {
        "start": format_time(whole.start),
        "unit_seconds": unit.total_seconds(),
        "states": [state.value if state is not None else "running" for state in states],
        "is_missing_before": until is not None and until < whole.start,
    }


def _state(
    window: Window, reaches: list[_Reach], runs: list[tuple[datetime, datetime]], now: datetime
) -> CellState | None:
    """Return the state of a window; None if it runs."""
    wanted = window.range
    if all(wanted.upto <= reach.start for reach in reaches):
        return CellState.BEFORE
    if not any(reach.lacks(wanted) for reach in reaches):
        return CellState.COMPLETE
    if any(start < window.end and end > window.start for start, end in runs):
        return None
    return CellState.OPEN if window.end > now else CellState.MISSING


def _reaches(found: FeedOverview, consumer: str, now: datetime) -> list[_Reach]:
    settings = next((info for info in found.consumers if info.spec.consumer == consumer), None)
    reaches = []
    for shard in found.shards:
        position = next((one for one in shard.consumers if one.row.consumer == consumer), None)
        if position is not None:
            reaches.append(_reach(shard, position, settings, now))
        elif settings is not None:
            # It has yet to read the shards in which it has no cursor.
            has_events = shard.waiting or shard.status.head is not None
            reaches.append(_Reach(settings.begin, None if has_events else now))
    if settings is not None and found.shard_count == 0 and found.info.columns:
        # There was never an event; without columns the event table is gone, and nothing is known.
        reaches.append(_Reach(settings.begin, now))
    return reaches


def _reach(
    shard: ShardOverview, position: ConsumerPosition, settings: ConsumerInfo | None, now: datetime
) -> _Reach:
    row = position.row
    cursor, frontier = row.ulid, row.frontier
    if settings is None and cursor < Ulid.MAX and cursor.next() == Ulid.floor_milliseconds(cursor.next().ms):
        # The end of a window.
        return _Reach(frontier.start, _known(cursor.next().time), frontier.ahead)
    if settings is not None and row.ack < cursor:
        # An open dead letter holds it.
        return _Reach(frontier.start, _known(row.ack.time))
    if row.is_lost(shard.status.purged_upto):
        return _Reach(frontier.start, _known(cursor.time), frontier.ahead)
    if position.behind or shard.waiting:
        head = shard.status.head
        # The only event that it has not read is the last one; what waits in the outbox comes after it.
        known = head.time if position.behind == 1 and head is not None else cursor.time
        return _Reach(frontier.start, _known(known), frontier.ahead)
    return _Reach(frontier.start, now)


def _known(time: datetime) -> datetime | None:
    """Return a time; None for the start of a feed."""
    return None if time <= EPOCH + timedelta(milliseconds=1) else time
