# SPDX-License-Identifier: Apache-2.0
"""From a task's context to its window, and waiting until that has ended; how errors reach Airflow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypeVar

from airflow_changefeed.core.fault import with_conn_id
from airflow_changefeed.core.values import duration, floor_to_millisecond, format_time, parse_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import (
    FutureTimeError,
    InvalidWindowError,
    NotYetError,
    StoppedError,
    TerminalError,
    TransientError,
)

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context, Param
    from airflow.timetables.trigger import CronPartitionTimetable

    from airflow_changefeed.sources.base import FeedSource

log = logging.getLogger(__name__)

# Longer than any change of a clock; and than the time between two partitions of any cron, that of leap days.
_LEAST_WALK, _MOST_WALK = timedelta(days=1), timedelta(days=366 * 9)
_EXPLICIT = (
    "give the task its window: window_start=\"{{ partition_date or '' }}\" and, for example, "
    "window_end=\"{{ partition_date.add(hours=1) if partition_date else '' }}\""
)


def partition_window(context: Mapping[str, Any]) -> Window | None:
    """
    Return the window of a partitioned run: from its partition date to the next one of the DAG's cron.

    Asked of the schedule, not of a length: a day of a local time zone has 23 or 25 hours twice a year, and a
    length that is too short would leave out events without a word.

    :return: None for a run without a partition date.
    :raises InvalidWindowError: the schedule does not say where the partition ends, or does not have it.
    """
    date = context.get("partition_date")
    if date is None:
        return None
    from airflow.sdk import CronPartitionTimetable
    from airflow.timetables.trigger import CronPartitionTimetable as CoreTimetable

    timetable = getattr(context.get("dag"), "timetable", None)
    if not isinstance(timetable, CronPartitionTimetable):
        raise InvalidWindowError(
            f"this run's partition begins at {format_time(date)}, but its DAG's schedule "
            f"({type(timetable).__name__}) does not define where a partition ends; {_EXPLICIT}"
        )
    # Without its offset, which shifts when a partition is exported, and not what it is.
    core = CoreTimetable(timetable.expression, timezone=timetable.timezone)
    start = _due(core, context.get("dag_run"), timetable.run_offset)
    if start is None:
        start = date
        if _aligned(core, date) != date and date not in _walk(core, date):
            raise InvalidWindowError(
                f"this run's partition begins at {format_time(date)}, which is not a partition of its "
                f"DAG's schedule {timetable.expression!r}: trigger the DAG with one of its partition "
                f"keys, or {_EXPLICIT}"
            )
    elif start != date:
        log.warning(
            "clocks change: with run_offset=%s Airflow dates this run %s, which is not the partition "
            "that the run is due for; the task takes the window that begins at %s",
            timetable.run_offset,
            format_time(date),
            format_time(start),
        )
    return Window(start, _next(core, start))


def _due(core: CronPartitionTimetable, run: Any, offset: object) -> datetime | None:
    """
    Return the partition that a scheduled run with a negative offset is due for; None for other runs.

    Airflow counts back by the cron's wall times. Some of them do not exist when clocks change: it then dates
    two runs alike, and none as the partition before. The times of the runs themselves are right.
    """
    if not isinstance(offset, int) or offset >= 0 or getattr(run, "run_type", None) != "scheduled":
        return None
    dates = _walk(core, run.run_after, at_least=-offset)
    is_found = dates[-1:] == [run.run_after] and len(dates) > -offset
    return dates[offset - 1] if is_found else None


def _walk(core: CronPartitionTimetable, upto: datetime, at_least: int = 0) -> list[datetime]:
    """
    Return the partitions up to a time, as Airflow's scheduler finds them: each one from the one before.

    :param at_least: partitions before the last one that are wanted, if the cron has so many.
    """
    length = _LEAST_WALK
    while True:
        dates = [_aligned(core, upto - length)]
        while dates[-1] < upto:
            dates.append(_next(core, dates[-1]))
        # The first one may be none: from within an hour that is skipped or repeated, Airflow finds others.
        if len(dates) > at_least + 1 or length > _MOST_WALK:
            return dates[1:]
        length *= 8


def _aligned(core: CronPartitionTimetable, date: datetime) -> datetime:
    """Return the first partition at or after a time."""
    return _found(core, None, date)


def _next(core: CronPartitionTimetable, date: datetime) -> datetime:
    from airflow.timetables.base import DagRunInfo

    from airflow_changefeed.version_compat import coerce_datetime

    before = DagRunInfo(
        run_after=coerce_datetime(date), data_interval=None, partition_date=None, partition_key=None
    )
    return _found(core, before, date)


def _found(core: CronPartitionTimetable, before: Any, date: datetime) -> datetime:
    from airflow.timetables.base import TimeRestriction

    from airflow_changefeed.version_compat import coerce_datetime

    following = core.next_dagrun_info_v2(
        last_dagrun_info=before,
        restriction=TimeRestriction(earliest=coerce_datetime(date), latest=None, catchup=True),
    )
    if following is None or following.partition_date is None:
        raise InvalidWindowError(f"schedule {core.summary!r} has no partition after {format_time(date)}")
    return following.partition_date


if TYPE_CHECKING:
    _Base = BaseOperator
else:
    _Base = object

#: The default of ``wait_timeout``.
WAIT_TIMEOUT = timedelta(hours=1)
#: Reads it.
WAIT_LENGTH = duration(shortest=timedelta(0))
#: Longest wait in the task itself: deferring takes a start of the task more.
SLEEP = timedelta(minutes=1)
#: Shortest pause, so that a clock that stands still is not asked in a busy loop.
_SHORTEST = timedelta(seconds=0.1)
#: Longest deferral: the clock is looked at again at least daily.
_LONGEST = timedelta(days=1)


class WaitsForWindow(_Base):
    """
    A task that waits until a window has ended.

    The database's clock alone says when that is. Airflow's clocks only measure how long to wait until it is
    looked at again, so they may differ from it.
    """

    feed: str
    wait_timeout: timedelta | float | str
    _is_killed = False
    _waits_since: datetime | None = None

    def on_kill(self) -> None:
        """End soon: Airflow's handler of SIGTERM calls this and lets the task go on."""
        self._is_killed = True
        super().on_kill()

    def execute_complete(self, context: Context, event: object = None, waits_since: str | None = None) -> Any:
        """
        Begin again after a deferral: whatever was checked before it may have changed.

        :param event: the trigger's; that it came says nothing about the database's clock.
        :param waits_since: when the task first began to wait, by Airflow's clock. ``dag.test`` loses it.
        """
        self._waits_since = parse_time(waits_since) if waits_since is not None else None
        try:
            return self.execute(context)
        finally:
            # dag.test retries with the same object.
            self._waits_since = None

    def _wait_until_ended(self, window: Window, source: FeedSource) -> None:
        """Return when a window has ended; defer if that takes more than a minute. Hold no lease meanwhile."""
        slept = timedelta(0)
        while (ahead := window.end - (clock := source.now())) > timedelta(0):
            ends = f"window {window} ends in {_text(ahead)} by the database's clock, {format_time(clock)}"
            if ahead > SLEEP:
                present = floor_to_millisecond(datetime.fromtimestamp(time.time(), timezone.utc))
                since = self._waits_since or present
                waited = max(present - since, timedelta(0))
                limit = WAIT_LENGTH(self.wait_timeout)
                ends += f" (this machine's: {format_time(present)})"
                if ahead > limit - waited:
                    already = f", and has waited {_text(waited)}" if waited else ""
                    raise FutureTimeError(
                        f"{ends}; the task waits {_text(limit)} at most{already}. Clear the task when "
                        "the window has ended, or raise wait_timeout",
                        start=window.start,
                        end=window.end,
                        now=clock,
                    )
                # A triggerer whose clock is ahead wakes the task too early again and again: a minute between.
                if slept or self._waits_since is None:
                    # A feed that does not exist is an error now, not after the wait.
                    self._check_feed(source)
                    source.close()
                    self.log.info("Deferring: %s", ends)
                    self._defer_until(present + min(ahead, _LONGEST), since)
            if slept > 2 * SLEEP:
                raise NotYetError(
                    f"{ends}, after {_text(slept)} of waiting. A retry looks again",
                    start=window.start,
                    end=window.end,
                    now=clock,
                )
            if not slept:
                self.log.info("Waiting: %s", ends)
            pause = min(max(ahead, _SHORTEST), SLEEP)
            self._sleep(window, pause)
            slept += pause

    def _check_feed(self, source: FeedSource) -> None:
        source.feed(self.feed)

    def _defer_until(self, moment: datetime, since: datetime) -> NoReturn:
        from airflow.providers.standard.triggers.temporal import DateTimeTrigger

        self.defer(
            trigger=DateTimeTrigger(moment),
            method_name=self.execute_complete.__name__,
            kwargs={"waits_since": format_time(since)},
        )

    def _pause(self, seconds: float) -> None:
        """Wait, but no longer than the task may go on."""
        end = time.monotonic() + seconds
        while not self._is_killed and (left := end - time.monotonic()) > 0:
            # A signal's handler runs at once, but the sleep it interrupts is slept to its end.
            time.sleep(min(left, 1.0))

    def _sleep(self, window: Window, length: timedelta) -> None:
        self._pause(length.total_seconds())
        if self._is_killed:
            raise StoppedError(
                f"task {self.task_id!r}: stopped on request while it waited for the end of window "
                f"{window}; nothing was done yet",
                start=window.start,
                end=window.end,
            )


def _text(length: timedelta) -> str:
    return str(timedelta(seconds=round(length.total_seconds())))


Task = TypeVar("Task")
P = ParamSpec("P")
R = TypeVar("R")
#: What an empty template renders to.
NOTHING = (None, "", "None", "null")
_INTERVAL = "data interval"


@contextmanager
def airflow_errors(conn_id: str | None = None) -> Iterator[None]:
    """
    Let Airflow fail a task at once where a retry would fail the same way; transient errors pass.

    :param conn_id: of the feeds, for the commands that an error suggests.
    :raises AirflowFailException: from a terminal error, with its class and message.
    """
    from airflow_changefeed.version_compat import AirflowFailException

    try:
        yield
    except TerminalError as error:
        # The message is complete; its cause would repeat it in the log.
        raise AirflowFailException(with_conn_id(f"{type(error).__name__}: {error}", conn_id)) from None
    except TransientError as error:
        error.message = with_conn_id(error.message, conn_id)
        error.args = (error.message,)
        raise
    except AirflowFailException as error:
        error.args = (with_conn_id(str(error), conn_id),)
        raise


def reports_errors(method: Callable[Concatenate[Task, P], R]) -> Callable[Concatenate[Task, P], R]:
    """Run a task's method within :func:`airflow_errors`, with the task's connection."""

    @wraps(method)
    def reporting(task: Task, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with airflow_errors(getattr(task, "changefeed_conn_id", None)):
            return method(task, *args, **kwargs)

    return reporting


def run_window(context: Mapping[str, Any], window_start: object, window_end: object) -> Window | None:
    """
    Return the window that a run is about: the task's own, else that of the run's ``params``, else its data
    interval, else its partition.

    :param window_start: inclusive; a time, ISO 8601 text with a zone, or nothing.
    :param window_end: exclusive; likewise.
    :return: None for a run without any, as one triggered by an asset.
    :raises InvalidWindowError: only one of two borders, no zone, reversed, or of zero length; or a partition
        whose end is unknown.
    """
    params = context.get("params") or {}
    # A run without a data interval, as one triggered by an asset, has no such keys at all.
    for origin, start, end in (
        ("window_start and window_end", window_start, window_end),
        ("params window_start and window_end", params.get("window_start"), params.get("window_end")),
        (_INTERVAL, context.get("data_interval_start"), context.get("data_interval_end")),
    ):
        if start in NOTHING and end in NOTHING:
            continue
        if start in NOTHING or end in NOTHING:
            raise InvalidWindowError(f"{origin}: give both or none, not {start!r} and {end!r}")
        if origin == _INTERVAL and start == end and context.get("partition_date") is not None:
            continue  # a person triggered a partition: its run has a point of time as well
        # A window says more of what is wrong with a datetime.
        times = [value if isinstance(value, datetime) else parse_time(value) for value in (start, end)]
        return Window(*times)
    return partition_window(context)


def window_end(context: Mapping[str, Any], what: str) -> datetime:
    """Return the end of a run's window; raise InvalidWindowError, which says what it is for, without any."""
    window = run_window(context, None, None)
    if window is None:
        raise InvalidWindowError(
            f"{what} its run's window, but this run has no window: give the task at=, or trigger the "
            "DAG with a logical date, or with params window_start and window_end"
        )
    return window.end


def window_params() -> dict[str, Param]:
    """
    Return params for a DAG whose Trigger form offers an explicit window: ``window_start`` and ``window_end``.

    Left empty, the run's own data interval counts.
    """
    from airflow.sdk import Param

    borders = {"window_start": "Begin of the window to export, inclusive", "window_end": "End, exclusive"}
    return {
        name: Param(
            None,
            type=["null", "string"],
            format="date-time",
            description=f"{text} (UTC); empty for the run's own interval",
        )
        for name, text in borders.items()
    }


def run_name(context: Mapping[str, Any]) -> str:
    """
    Return who runs, for plans, manifests and cursors: ``dag_id/run_id/task_id/try``, with the map index if
    any.
    """
    ti = context["ti"]
    index = getattr(ti, "map_index", -1)
    mapped = f"[{index}]" if isinstance(index, int) and index >= 0 else ""
    return f"{ti.dag_id}/{ti.run_id}/{ti.task_id}{mapped}/{ti.try_number}"


def check_no_window_asked(context: Mapping[str, Any], task_id: str) -> None:
    """Refuse a batch in a run that somebody gave a window to; a data interval is the schedule's own."""
    params = context.get("params") or {}
    given = [name for name in ("window_start", "window_end") if params.get(name) not in NOTHING]
    if given:
        raise InvalidWindowError(
            f"params {' and '.join(given)} ask for a window, but task {task_id!r} exports batches "
            "(mode='batch'): leave them empty, or export windows into another output"
        )
