# SPDX-License-Identifier: Apache-2.0
"""A timetable without a clock, and the plug-in by which Airflow knows it (``plugins/`` of the UI's home)."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable


class PastTimetable(CronDataIntervalTimetable):
    """Data intervals of a cron expression, for backfills and runs by hand; no run comes by itself."""

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Return None where the scheduler asks, for a DAG that does not catch up; backfills always do."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )


class PastPlugin(AirflowPlugin):
    """Makes the timetable known."""

    name = "changefeed_past"
    timetables = (PastTimetable,)
