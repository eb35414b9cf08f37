# SPDX-License-Identifier: Apache-2.0
"""Partitioned runs: from a run's partition date to the window that the partition is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidWindowError

_TICK = timedelta(milliseconds=1)
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

    timetable = getattr(context.get("dag"), "timetable", None)
    if not isinstance(timetable, CronPartitionTimetable):
        raise InvalidWindowError(
            f"this run's partition begins at {format_time(date)}, but its DAG's schedule "
            f"({type(timetable).__name__}) does not say where a partition ends; {_EXPLICIT}"
        )
    if _next(timetable, date - _TICK) != date:
        raise InvalidWindowError(
            f"this run's partition begins at {format_time(date)}, which is not a partition of its DAG's "
            f"schedule {timetable.expression!r}: trigger it with a partition key that is one, or {_EXPLICIT}"
        )
    return Window(date, _next(timetable, date))


def _next(timetable: Any, date: datetime) -> datetime:
    """Return the first partition date after a time, as Airflow's scheduler finds it."""
    from airflow.timetables.base import DagRunInfo, TimeRestriction
    from airflow.timetables.trigger import CronPartitionTimetable

    from airflow_changefeed.version_compat import coerce_datetime

    # Without its offset, which shifts when a partition is exported, and not what it is.
    core = CronPartitionTimetable(timetable.expression, timezone=timetable.timezone)
    before = DagRunInfo(
        run_after=coerce_datetime(date), data_interval=None, partition_date=None, partition_key=None
    )
    following = core.next_dagrun_info_v2(
        last_dagrun_info=before, restriction=TimeRestriction(earliest=None, latest=None, catchup=True)
    )
    if following is None or following.partition_date is None:
        raise InvalidWindowError(
            f"schedule {timetable.expression!r} has no partition after {format_time(date)}"
        )
    return following.partition_date
