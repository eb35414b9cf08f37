# SPDX-License-Identifier: Apache-2.0
"""Partitioned runs: from a run's partition date to the window that the partition is."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidWindowError

if TYPE_CHECKING:
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
            f"({type(timetable).__name__}) does not say where a partition ends; {_EXPLICIT}"
        )
    # Without its offset, which shifts when a partition is exported, and not what it is.
    core = CoreTimetable(timetable.expression, timezone=timetable.timezone)
    start = _due(core, context.get("dag_run"), timetable.run_offset)
    if start is None:
        start = date
        if _aligned(core, date) != date and date not in _walk(core, date):
            raise InvalidWindowError(
                f"this run's partition begins at {format_time(date)}, which is not a partition of its DAG's "
                f"schedule {timetable.expression!r}: trigger it with a partition key that is one, or "
                f"{_EXPLICIT}"
            )
    elif start != date:
        log.warning(
            "clocks change: with run_offset=%s Airflow dates this run %s, which is not the partition that it "
            "is due for; the window that begins at %s is taken",
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
    """Return the partition after another one."""
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
