# SPDX-License-Identifier: Apache-2.0
"""Airflow's *cluster policy* of the UI's home, which names it in its ``config/airflow_local_settings.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import DAG


def dag_policy(dag: DAG) -> None:
    """
    Take the clock from the example DAGs.

    By the clock they would begin with today's last hour, in which nothing flew, and the cursor would stand
    there. All else stays: other DAGs, backfills, runs by hand, and runs that assets ask for.

    (Airflow can also be told to create no runs by itself, but then assets ask in vain; and where a DAG has an
    ``end_date``, later runs by hand have no tasks.)
    """
    # Airflow reads this module while it is not all there yet.
    from airflow.timetables.interval import CronDataIntervalTimetable

    from tests.system.ui.timetable import PastTimetable

    if "changefeed" in dag.tags and isinstance(dag.timetable, CronDataIntervalTimetable):
        dag.timetable = PastTimetable.deserialize(dag.timetable.serialize())
