# SPDX-License-Identifier: Apache-2.0
"""Partitioned runs: the window of a partition date, for the sensor and the operator alike."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pendulum
import pytest
from airflow.sdk import DAG, Asset
from airflow.timetables.base import TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed.core.values import parse_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidWindowError
from airflow_changefeed.sensors.changefeed import ChangefeedSensor
from airflow_changefeed.tasks.context import run_window
from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS, AirflowFailException
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_operator import HOUR, assert_complete, operator

if AIRFLOW_V_3_2_PLUS:
    from airflow.sdk import CronPartitionTimetable, PartitionedAssetTimetable
    from airflow.timetables.trigger import CronPartitionTimetable as CoreCronPartitionTimetable
else:

    def CronPartitionTimetable(*_: Any, **__: Any) -> None:
        """Let the tests be collected; they are skipped."""

    PartitionedAssetTimetable = CronPartitionTimetable

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
    ("expression", "zone", "start", "end"),
    [
        ("0 * * * *", "UTC", "2013-01-01T00:00Z", "2013-01-01T01:00Z"),
        ("@daily", "UTC", "2013-01-01T00:00Z", "2013-01-02T00:00Z"),
        ("0 0 1 * *", "UTC", "2013-02-01T00:00Z", "2013-03-01T00:00Z"),
        ("0 0 * * 1-5", "UTC", "2013-01-04T00:00Z", "2013-01-07T00:00Z"),
        ("0 0 * * *", "Europe/Copenhagen", "2013-03-30T23:00Z", "2013-03-31T22:00Z"),
        ("0 0 * * *", "Europe/Copenhagen", "2013-10-26T22:00Z", "2013-10-27T23:00Z"),
        ("0 2 * * *", "Europe/Berlin", "2025-10-26T01:00Z", "2025-10-27T01:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2025-03-30T01:30Z", "2025-03-31T00:30Z"),
        ("0,30 2 * * *", "Europe/Berlin", "2025-03-30T01:00Z", "2025-03-31T00:00Z"),
        ("0 */2 * * *", "Europe/Berlin", "2025-10-25T22:00Z", "2025-10-26T01:00Z"),
        ("0 1 * * *", "Europe/London", "2025-10-26T01:00Z", "2025-10-27T01:00Z"),
        ("0 0 * * *", "America/Havana", "2025-03-09T05:00Z", "2025-03-10T04:00Z"),
        ("30 * * * *", "Europe/Berlin", "2025-10-26T00:30Z", "2025-10-26T01:30Z"),
    ],
)
def test_a_partition_ends_where_the_next_one_begins(expression: str, zone: str, start: str, end: str) -> None:
    """
    Hours, days, months, days of 23 and 25 hours, weekends: nothing is left out and nothing twice, also for a
    backfill and for a run that a person triggers, which have nothing but its date.
    """
    at = parse_time(start)
    local = at.astimezone(ZoneInfo(zone))
    # A local time of an hour that is repeated equals no other (PEP 495); Airflow's dates are in UTC.
    for date in (at, local) if local == at else (at,):
        for offset in (None, -1):
            made = partition(date, cron(expression, zone, run_offset=offset))
            assert run_window(made, None, None) == Window(at, parse_time(end))


#: Crons whose times fall into the hours that clocks skip or repeat, or near them.
CRONS = (
    "30 * * * *",
    "0 */2 * * *",
    "15,45 1-3 * * *",
    "0 0 * * *",
    "30 1,2 * * *",
    "0,30 2 * * *",
    "0 2 * * 0",
)
MORE_CRONS = (
    "30 */3 * * *",
    "0 0-22 * * *",
    "30 0 * * *",
    "0 1 * * *",
    "0 2 * * *",
    "30 2 * * *",
    "0 2,3 * * *",
    "0 0 * * 1-5",
)
#: Those with several times in an hour that is skipped.
SEVERAL_TIMES = ("15,45 1-3 * * *", "0,30 2 * * *")
#: Clocks that change by one hour, by half an hour, by two, at midnight, and the other way round.
ZONES = ("Africa/Casablanca", "America/Havana", "Antarctica/Troll", "Australia/Lord_Howe", "Europe/Berlin")
MORE_ZONES = (
    "Africa/Cairo",
    "America/New_York",
    "America/Santiago",
    "Atlantic/Azores",
    "Europe/London",
)
#: Those whose clocks change by half an hour, or by two.
BY_OTHERS = ("Antarctica/Troll", "Australia/Lord_Howe")
#: The gate takes some, ci all.
PLACES = [
    *((zone, CRONS) for zone in ZONES),
    *(
        pytest.param(zone, crons, marks=pytest.mark.ci)
        for zones, crons in ((ZONES, MORE_CRONS), (MORE_ZONES, CRONS + MORE_CRONS))
        for zone in zones
    ),
]


def changes(zone: str, year: int = 2025) -> list[pendulum.DateTime]:
    """Return the days of a year on which a zone's clocks change."""
    days = [pendulum.datetime(year, 1, 1, tz=zone).add(days=day) for day in range(366)]
    return [day for day, following in pairwise(days) if day.utcoffset() != following.utcoffset()]


def scheduled(timetable: Any, day: pendulum.DateTime) -> list[Any]:
    """Return ten runs that Airflow's scheduler makes, half of them after the night of a day."""
    is_daily = timetable._expression.endswith(" * * *")
    first = day.subtract(days=4 if is_daily else 45)
    restriction = TimeRestriction(earliest=first, latest=None, catchup=True)
    runs: list[Any] = []
    while len(runs) < 10 or runs[-5].run_after < day.add(hours=6):
        last = runs[-1] if runs else None
        runs.append(timetable.next_dagrun_info_v2(last_dagrun_info=last, restriction=restriction))
    return runs[-10:]


def assert_seamless(windows: list[Window | None]) -> None:
    """Each begins where the one before it ends."""
    for before, after in pairwise(windows):
        assert before is not None
        assert after is not None
        assert before.end == after.start


@pytest.mark.parametrize(("zone", "crons"), PLACES)
def test_the_partitions_that_airflow_schedules_are_seamless(zone: str, crons: tuple[str, ...]) -> None:
    """When clocks change, too, as Airflow's own timetable dates them; no hour is left out or comes twice."""
    for expression in crons:
        for offset in (0, -1, -3) if zone == "Europe/Berlin" else (0, -1):
            core = CoreCronPartitionTimetable(expression, timezone=zone, run_offset=offset)
            dag = DAG("partitions", schedule=cron(expression, zone, run_offset=offset))
            for day in changes(zone):
                runs = scheduled(core, day)
                windows = []
                for run in runs:
                    made = SimpleNamespace(run_type="scheduled", run_after=run.run_after)
                    given = {"dag": dag, "partition_date": run.partition_date, "dag_run": made}
                    windows.append(run_window(given, None, None))
                assert_seamless(windows)
                if offset == 0:
                    assert [each and each.start for each in windows] == [run.partition_date for run in runs]
                if offset == -1:
                    assert [each and each.end for each in windows] == [run.run_after for run in runs]


@pytest.mark.parametrize(("zone", "crons"), PLACES)
def test_the_intervals_that_airflow_schedules_are_windows(zone: str, crons: tuple[str, ...]) -> None:
    """
    When clocks change, too, and seamless where Airflow's own are: it leaves out a part of the hour that is
    skipped if a cron has several times in it, and repeats a part where clocks do not change by an hour.
    """
    for expression in crons:
        for day in changes(zone):
            timetable = CronDataIntervalTimetable(expression, timezone=zone)
            intervals = [run.data_interval for run in scheduled(timetable, day)]
            windows = [
                run_window({"data_interval_start": start, "data_interval_end": end}, None, None)
                for start, end in intervals
            ]
            assert windows == [Window(start, end) for start, end in intervals]
            if zone not in BY_OTHERS and expression not in SEVERAL_TIMES:
                assert_seamless(windows)


def test_a_partition_that_airflow_dates_twice_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """With run_offset=-1 its timetable leaves out the day before, which is what the run is there for."""
    run = SimpleNamespace(run_type="scheduled", run_after=parse_time("2025-09-07T04:00Z"))
    twice = parse_time("2025-09-07T04:00Z")
    made = partition(twice, cron("0 0 * * *", "America/Santiago", run_offset=-1), dag_run=run)
    assert run_window(made, None, None) == Window(parse_time("2025-09-06T04:00Z"), run.run_after)
    assert "clocks change" in caplog.text
    assert "2025-09-06T04:00:00Z" in caplog.text
    caplog.clear()
    run.run_after = parse_time("2025-09-08T03:00Z")
    assert run_window(made, None, None) == Window(twice, run.run_after)
    assert caplog.text == ""


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
            "PartitionedAssetTimetable.*does not define where",
        ),
        (None, START, "NullTimetable.*does not define where a partition ends.*window_start=.*window_end="),
        (cron("0 * * * *"), START + HOUR / 2, r"not a partition of its DAG's schedule '0 \* \* \* \*'"),
        (
            cron("0 2 * * *", "Europe/Berlin"),
            datetime(2025, 10, 26, 0, tzinfo=UTC),
            "not a partition of its DAG's schedule",
        ),
        (
            cron("0 */2 * * *", "Europe/Berlin"),
            datetime(2025, 3, 30, 0, tzinfo=UTC),
            "not a partition of its DAG's schedule",
        ),
    ],
    ids=["by assets", "none", "between two", "the hour before its repetition", "the hour before the skipped"],
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
            AirflowFailException, match=r"InvalidWindowError.*does not define where a partition ends"
        ):
            run(unknown)
