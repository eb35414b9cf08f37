# SPDX-License-Identifier: Apache-2.0
"""Partitioned runs: the window of a partition date, for the sensor and the operator alike."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pendulum
import pytest
from airflow.sdk import DAG, Asset
from airflow.timetables.base import TimeRestriction

from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidWindowError
from airflow_changefeed.hooks.changefeed_context import run_window
from airflow_changefeed.sensors.changefeed import ChangefeedSensor
from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS, AirflowFailException
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_operator import HOUR, assert_complete, operator, path

if AIRFLOW_V_3_2_PLUS:
    from airflow.sdk import CronPartitionTimetable, PartitionedAssetTimetable
    from airflow.timetables.trigger import CronPartitionTimetable as CoreCronPartitionTimetable
else:

    def CronPartitionTimetable(*_: Any, **__: Any) -> None:
        """Let the tests be collected; they are skipped."""

    PartitionedAssetTimetable = CronPartitionTimetable

__all__ = ["path"]  # a fixture
pytestmark = since("3.2", "partitioned runs")
UTC = timezone.utc


def partition(date: datetime | None, schedule: Any, **more: Any) -> dict[str, Any]:
    """Return the context of a partitioned run: its DAG, and no data interval."""
    made: dict[str, Any] = context(dag=DAG("partitioned", schedule=schedule), partition_date=date, **more)
    return made


def cron(expression: str, zone: str = "UTC", **more: Any) -> CronPartitionTimetable:
    """Return a schedule of partitions."""
    return CronPartitionTimetable(expression, timezone=zone, **more)


@pytest.mark.parametrize(
    ("schedule", "date", "end"),
    [
        (cron("0 * * * *"), START, START + HOUR),
        (cron("@daily"), START, START + timedelta(days=1)),
        (cron("0 0 1 * *"), datetime(2013, 2, 1, tzinfo=UTC), datetime(2013, 3, 1, tzinfo=UTC)),
        (cron("0 * * * *", run_offset=-1), START, START + HOUR),
        (cron("0 0 * * *", "Europe/Copenhagen"), datetime(2013, 3, 30, 23, tzinfo=UTC), 23 * HOUR),
        (cron("0 0 * * *", "Europe/Copenhagen"), datetime(2013, 10, 26, 22, tzinfo=UTC), 25 * HOUR),
        (
            cron("0 0 * * *", "Europe/Copenhagen"),
            datetime(2013, 3, 31, tzinfo=ZoneInfo("Europe/Copenhagen")),
            23 * HOUR,
        ),
        (cron("0 0 * * 1-5"), datetime(2013, 1, 4, tzinfo=UTC), timedelta(days=3)),
    ],
    ids=lambda value: str(getattr(value, "expression", value)),
)
def test_a_partition_ends_where_the_next_one_begins(schedule: Any, date: datetime, end: Any) -> None:
    """Hours, days, months, days of 23 and 25 hours, weekends: nothing is left out and nothing twice."""
    window = run_window(partition(date, schedule), None, None)
    assert window == Window(date, date.astimezone(UTC) + end if isinstance(end, timedelta) else end)


@pytest.mark.parametrize("offset", [0, -1, 2])
@pytest.mark.parametrize("month", [3, 10])
def test_the_partitions_that_airflow_makes_are_seamless(month: int, offset: int) -> None:
    """Days in which Copenhagen's clocks change, as Airflow's own timetable makes them, with any offset."""
    schedule = cron("0 0 * * *", "Europe/Copenhagen", run_offset=offset)
    core = CoreCronPartitionTimetable("0 0 * * *", timezone="Europe/Copenhagen", run_offset=offset)
    first = pendulum.datetime(2013, month, 24, tz="Europe/Copenhagen")
    everything = TimeRestriction(earliest=first, latest=None, catchup=True)
    windows, last = [], None
    for _ in range(12):
        last = core.next_dagrun_info_v2(last_dagrun_info=last, restriction=everything)
        assert last is not None
        window = run_window(partition(last.partition_date, schedule), None, None)
        assert window is not None
        windows.append(window)
    assert [window.end for window in windows[:-1]] == [window.start for window in windows[1:]]
    assert len({window.length for window in windows}) == 2


def test_the_tasks_own_window_and_the_params_go_before() -> None:
    """As before the data interval; and a data interval goes before the partition, unless it is a point."""
    schedule, day = cron("0 0 * * *"), timedelta(days=1)
    params = {"window_start": "2013-01-05T00:00:00Z", "window_end": "2013-01-05T01:00:00Z"}
    made = partition(START, schedule, params=params)
    assert run_window(made, START, START + HOUR) == Window(START, START + HOUR)
    assert run_window(made, None, None) == Window(START + 4 * day, START + 4 * day + HOUR)
    interval = {"data_interval_start": START, "data_interval_end": START + HOUR}
    assert run_window(partition(START, schedule, **interval), None, None) == Window(START, START + HOUR)
    point = {"data_interval_start": START + HOUR, "data_interval_end": START + HOUR}
    assert run_window(partition(START, schedule, **point), None, None) == Window(START, START + day)


def test_a_run_without_a_partition_date_has_no_window() -> None:
    """A key that is not a time, or none: a batch, as ever."""
    assert run_window(partition(None, cron("0 0 * * *")), None, None) is None


@pytest.mark.parametrize(
    ("schedule", "date", "message"),
    [
        (
            PartitionedAssetTimetable(assets=Asset("a")),
            START,
            "PartitionedAssetTimetable.*does not say where",
        ),
        (None, START, "NullTimetable.*does not say where a partition ends.*window_start=.*window_end="),
        (cron("0 * * * *"), START + HOUR / 2, r"not a partition of its DAG's schedule '0 \* \* \* \*'"),
    ],
    ids=["by assets", "none", "between two"],
)
def test_a_partition_whose_end_nobody_knows_is_refused(schedule: Any, date: datetime, message: str) -> None:
    """The error names the schedule, and how to say it."""
    with pytest.raises(InvalidWindowError, match=message):
        run_window(partition(date, schedule), None, None)


def test_the_remedy_works() -> None:
    """What the error advises, as templates; they are nothing in a run without a partition."""
    task = operator(
        "/out",
        window_start="{{ partition_date or '' }}",
        window_end="{{ partition_date.add(hours=1) if partition_date else '' }}",
    )
    schedule = PartitionedAssetTimetable(assets=Asset("a"))
    made = partition(pendulum.datetime(2013, 1, 1), schedule)
    task.render_template_fields(made)
    assert run_window(made, task.window_start, task.window_end) == Window(START, START + HOUR)
    other = operator(
        "/out", window_start="{{ partition_date or '' }}", window_end="{{ partition_date or '' }}"
    )
    other.render_template_fields(partition(None, schedule))
    assert run_window(partition(None, schedule), other.window_start, other.window_end) is None


@pytest.mark.airflow
@pytest.mark.usefixtures("server")
def test_sensor_and_operator_agree(database: str, path: str) -> None:
    """The sensor waits for the end of the window that the operator exports; both refuse the same runs."""
    sensor = ChangefeedSensor(task_id="wait", feed=FEED, consumer=CONSUMER)
    export = operator(path, local_below=1000)
    made = partition(pendulum.datetime(2013, 1, 1), cron("0 */2 * * *"))
    assert sensor.poke(made).is_done
    assert export.execute(made)["windows"] == [
        "2013-01-01T00:00:00Z/2013-01-01T01:00:00Z",
        "2013-01-01T01:00:00Z/2013-01-01T02:00:00Z",
    ]
    assert_complete(database, path, 2)
    unknown = partition(pendulum.datetime(2013, 1, 1), PartitionedAssetTimetable(assets=Asset("a")))
    for run in (sensor.poke, export.execute):
        with pytest.raises(
            AirflowFailException, match=r"InvalidWindowError.*does not say where a partition ends"
        ):
            run(unknown)
