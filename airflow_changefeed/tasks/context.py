# SPDX-License-Identifier: Apache-2.0
"""From a task's context to its window; how errors reach Airflow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from airflow_changefeed.core.fault import with_conn_id
from airflow_changefeed.core.values import format_time, parse_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidWindowError, TerminalError, TransientError

if TYPE_CHECKING:
    from airflow.sdk import Param
    from airflow.timetables.trigger import CronPartitionTimetable


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
