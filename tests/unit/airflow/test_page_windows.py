# SPDX-License-Identifier: Apache-2.0
"""The calendar of a task's windows, and which logical dates a backfill of a missing range has."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.models.backfill import ReprocessBehavior, _do_dry_run
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import delete, update

from airflow_changefeed import ChangefeedFreshnessOperator, ChangefeedToParquetOperator, window_params
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import format_time, parse_time
from airflow_changefeed.cursors.cursors import advance
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.plugins.access import HIDDEN_RUN
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.browser.exports import Nowhere
from tests.identity import DATABASE
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.page import CONN_ID, Visitor, store_dags
from tests.unit.export.flights import Flights, hours

pytestmark = since("3.1", "the page")

HOURLY, DAILY, BATCHES = "page_hourly_windows", "page_daily_windows", "page_batches"
HOUR = timedelta(hours=1)


@pytest.fixture
def flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flights:
    """Give a feed of six hours of which three are exported, and DAGs that export it."""
    made = Flights.create(tmp_path / "flights.db")
    for hour in range(6):
        made.add(4, hour)
    store = ExportStore(str(tmp_path / "out"), FEED)
    made.export(store, hours(0, 2))
    made.export(store, hours(4, 5))
    made.source.begin_consumer(CONSUMER, FEED, {0: Ulid.floor(START).previous()}, by="test")
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", f"sqlite:///{made.path}")
    return made


@pytest.fixture(autouse=True)
def dags(server: None, flights: Flights, tmp_path: Path) -> Iterator[None]:
    """Give DAGs with intervals of an hour and of a day, and one without."""
    for dag_id, cron, path in (
        (HOURLY, "0 * * * *", str(tmp_path / "out")),
        (DAILY, "0 0 * * *", str(tmp_path / "daily")),
        (BATCHES, None, "{{ var.value.path }}"),
    ):
        schedule = CronDataIntervalTimetable(cron, timezone="UTC") if cron else None
        with DAG(
            dag_id, schedule=schedule, start_date=START, end_date=START + 48 * HOUR, catchup=False
        ) as dag:
            ChangefeedToParquetOperator(
                task_id="export",
                feed=FEED,
                consumer=CONSUMER,
                path=path,
                conn_id="spark",
                unit=HOUR if cron else None,
            )
        store_dags(dag)
    yield
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id.in_([HOURLY, DAILY, BATCHES])))


def store_export(dag_id: str, timetable: Any, folder: Path) -> None:
    """Store a DAG that exports hours."""
    with DAG(dag_id, schedule=timetable, start_date=START, catchup=False) as dag:
        ChangefeedToParquetOperator(
            task_id="export",
            feed=FEED,
            consumer=CONSUMER,
            path=str(folder / "out"),
            conn_id="spark",
            unit=HOUR,
        )
    store_dags(dag)


def windows(role: str = "OP", dag_id: str = HOURLY, **values: Any) -> dict[str, Any]:
    """Return the calendar that somebody sees."""
    found: dict[str, Any] = Visitor(role).ask(
        "windows", conn_id=CONN_ID, dag_id=dag_id, task_id="export", **values
    )
    return found


def states(found: dict[str, Any]) -> dict[str, str]:
    """Return the states of cells by their start."""
    return {cell["start"]: cell["state"] for cell in found["cells"]}


def at(hour: int) -> str:
    """Return an hour as text."""
    return format_time(START + hour * HOUR)


def add_run(start: datetime, state: DagRunState) -> None:
    """Write a run of the hourly DAG."""
    with create_session() as session:
        session.add(
            DagRun(
                dag_id=HOURLY,
                run_id=f"run_{start:%H}",
                run_type=DagRunType.BACKFILL_JOB,
                logical_date=start,
                run_after=start,
                data_interval=(start, start + HOUR),
                state=state,
                triggered_by=DagRunTriggeredByType.BACKFILL,
            )
        )


def test_the_calendar_shows_the_time_that_the_consumer_has_come_to() -> None:
    """By hours of a week, the last of them where the export is, not where the clock is."""
    found = windows()
    assert (found["unit_seconds"], found["cell_seconds"], len(found["cells"])) == (3600, 3600, 7 * 24)
    known = states(found)
    assert [known[at(hour)] for hour in range(6)] == [
        "complete",
        "complete",
        "missing",
        "missing",
        "complete",
        "missing",
    ]
    assert known[at(-1)] == "before"
    assert found["missing"][0] == {"start": at(2), "end": at(4)}


def test_other_weeks_are_shown_by_their_end() -> None:
    """A whole day, exclusive."""
    found = windows(end="2013-01-01T00:00:00Z")
    assert (found["start"], found["end"]) == ("2012-12-25T00:00:00Z", "2013-01-01T00:00:00Z")
    assert set(states(found).values()) == {"before"}


def test_the_calendar_contains_the_time_of_a_link() -> None:
    """Also at midnight, where a week ends that was asked for by its end."""
    for time in ("2012-06-01T00:00:00Z", "2012-06-01T23:59:59.999Z"):
        found = windows(at=time)
        assert (found["start"], found["end"]) == ("2012-05-26T00:00:00Z", "2012-06-02T00:00:00Z")
    assert windows(at=at(3))["cells"] == windows()["cells"]


def test_what_is_queued_or_running_is_shown_to_who_may_see_runs() -> None:
    """What has ended is not running."""
    add_run(START + 2 * HOUR, DagRunState.RUNNING)
    add_run(START + 3 * HOUR, DagRunState.QUEUED)
    add_run(START + 5 * HOUR, DagRunState.FAILED)
    running = [cell["start"] for cell in windows("VIEWER")["cells"] if cell.get("running")]
    assert running == [at(2), at(3)]


def test_a_task_whose_output_is_a_template_has_no_calendar() -> None:
    """Nobody knows it before a run; nor of a task that is not there."""
    Visitor("OP").ask("windows", 404, conn_id=CONN_ID, dag_id=BATCHES, task_id="export")
    Visitor("OP").ask("windows", 404, conn_id=CONN_ID, dag_id=HOURLY, task_id="none")


def window(role: str = "OP", dag_id: str = HOURLY, **values: Any) -> dict[str, Any]:
    """Return a window that somebody sees."""
    found: dict[str, Any] = Visitor(role).ask(
        "window", conn_id=CONN_ID, dag_id=dag_id, task_id="export", **values
    )
    return found


def test_a_window_is_shown_with_what_its_manifests_say(tmp_path: Path) -> None:
    """Bounds, state, rows and each shard's manifest; any time in the window names it."""
    found = window(at=format_time(START + HOUR / 2))
    assert (found["start"], found["end"], found["state"]) == (at(0), at(1), "complete")
    assert (found["rows"], found["feed"], found["consumer"]) == (4, FEED, CONSUMER)
    (shard,) = found["shards"]
    (manifest,) = shard["manifests"]
    (unit,) = [
        one for one in ExportStore(str(tmp_path / "out"), FEED).list(0) if one.unit.window == hours(0, 1)[0]
    ]
    assert (shard["shard"], shard["state"], manifest["rows"]) == ("0", "complete", 4)
    assert (manifest["attempt"], manifest["size"], found["size"]) == (unit.attempt, unit.size, unit.size)
    assert manifest["content"]["files"][0]["name"] == unit.files[0].name
    assert manifest["content"]["run"] == unit.run
    assert "schema" not in manifest["content"]
    assert Path(manifest["path"]).is_file()


def test_a_window_that_is_missing_open_or_before_says_so() -> None:
    """Without manifests, and with the length that its neighbours have."""
    found = window(at=at(2))
    assert (found["start"], found["end"], found["state"], found["missing"]) == (at(2), at(3), "missing", 1)
    assert [(one["state"], one["manifests"]) for one in found["shards"]] == [("missing", [])]
    assert (found["rows"], found["size"]) == (0, 0)
    assert window(at=at(-1))["state"] == "before"
    assert window(at="2030-01-01T00:00:00Z")["state"] == "open"


def test_a_window_without_rows_is_complete_and_empty(flights: Flights, tmp_path: Path) -> None:
    """Its manifest names no file."""
    flights.export(ExportStore(str(tmp_path / "out"), FEED), hours(7, 8))
    found = window(at=at(7))
    assert (found["state"], found["shards"][0]["state"], found["shards"][0]["manifests"][0]["files"]) == (
        "empty",
        "empty",
        0,
    )


def test_a_window_that_one_shard_lacks_names_the_shard(flights: Flights, tmp_path: Path) -> None:
    """The other one's rows are shown."""
    flights.add(2, 0, 1)
    flights.source.drain(FEED)
    flights.source.begin_consumer(CONSUMER, FEED, {1: Ulid.floor(START).previous()}, by="test")
    found = window(at=at(0))
    assert (found["state"], found["missing"], found["rows"]) == ("missing", 1, 4)
    assert [(one["shard"], one["state"]) for one in found["shards"]] == [("0", "complete"), ("1", "missing")]


def test_a_window_of_a_schedule_is_its_interval(tmp_path: Path) -> None:
    """Where a unit is as long as the run, also by the clock of another zone."""
    with DAG(
        "page_new_york",
        schedule=CronDataIntervalTimetable("0 0 * * *", timezone="America/New_York"),
        start_date=START,
        catchup=False,
    ) as dag:
        ChangefeedToParquetOperator(
            task_id="export", feed=FEED, consumer=CONSUMER, path=str(tmp_path / "days"), conn_id="spark"
        )
    store_dags(dag)
    found = window(dag_id="page_new_york", at=at(24))
    assert (found["start"], found["end"]) == (at(5), at(29))
    assert found["state"] == "missing"


def test_the_unit_that_an_output_keeps_counts_more_than_what_a_task_says(tmp_path: Path) -> None:
    """As its runs are refused until they fit; and where the unit is a template, only the output says it."""
    ExportStore(str(tmp_path / "kept"), FEED).claim(DATABASE, unit=HOUR)
    for number, unit in enumerate((24 * HOUR, "{{ params.unit }}")):
        dag_id = f"page_kept_unit_{number}"
        schedule = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
        with DAG(dag_id, schedule=schedule, start_date=START, catchup=False) as dag:
            ChangefeedToParquetOperator(
                task_id="export",
                feed=FEED,
                consumer=CONSUMER,
                path=str(tmp_path / "kept"),
                conn_id="spark",
                unit=unit,
            )
        store_dags(dag)
        found = windows(dag_id=dag_id)
        assert (found["unit_seconds"], found["cell_seconds"]) == (3600, 3600)
        found = window(dag_id=dag_id, at=at(3))
        assert (found["start"], found["end"]) == (at(3), at(4))


def test_a_window_that_runs_says_so_to_who_may_see_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others learn no run's name either."""
    add_run(START, DagRunState.RUNNING)
    assert window(at=at(0))["running"] is True
    monkeypatch.setattr("airflow_changefeed.plugins.access.may_see_runs", lambda *_: False)
    found = window(at=at(0))
    assert (found["sees_runs"], found.get("running")) == (False, None)
    assert found["shards"][0]["manifests"][0]["content"]["run"] == HIDDEN_RUN


@pytest.mark.parametrize(
    ("values", "status", "words"),
    [
        ({"at": "noon"}, 422, "at: "),
        ({}, 422, "at: "),
        ({"at": "2013-01-01T00:00:00"}, 422, "expected a time with a zone"),
        ({"at": "9999-12-31T23:00:00Z"}, 422, "from 1970 to 9000"),
        ({"at": at(0), "task_id": "none"}, 404, "has no task 'none'"),
        ({"at": at(0), "dag_id": BATCHES}, 404, "has no task 'export'"),
        ({"at": at(0), "conn_id": "other"}, 404, "is not shown here"),
    ],
)
def test_a_window_that_cannot_be_shown_is_refused(values: dict[str, str], status: int, words: str) -> None:
    """No time, no task, no output that is known, a connection that nobody named."""
    given = {"conn_id": CONN_ID, "dag_id": HOURLY, "task_id": "export", **values}
    assert words in Visitor("OP").ask("window", status, **given)["detail"]


def chart(status: int = 200, **values: Any) -> dict[str, Any]:
    """Return the chart of some hours."""
    given = {
        "conn_id": CONN_ID,
        "dag_id": HOURLY,
        "task_id": "export",
        "start": at(-1),
        "end": at(7),
        **values,
    }
    found: dict[str, Any] = Visitor("VIEWER").ask("chart", status, **given)
    return found


def test_a_chart_has_rows_and_lag_of_each_window(flights: Flights, tmp_path: Path) -> None:
    """Nothing of those that are missing; an empty one has no rows, and was exported all the same."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    flights.export(store, hours(6, 7))
    found = chart()
    assert [point["start"] for point in found["points"]] == [at(hour) for hour in range(-1, 7)]
    assert [point["rows"] for point in found["points"]] == [None, 4, 4, None, None, 4, None, 0]
    (first,) = [one for one in store.list(0) if one.unit.window == hours(0, 1)[0]]
    lag = (first.made_at - START - HOUR).total_seconds()
    assert found["points"][1]["lag_seconds"] == lag
    assert [point["lag_seconds"] is None for point in found["points"]] == [
        point["rows"] is None for point in found["points"]
    ]


def test_a_chart_has_the_most_lag_that_a_task_which_watches_allows(flights: Flights) -> None:
    """Until the next window is exported, the last one is older by a window."""
    assert chart()["target_seconds"] is None
    with DAG("page_watch", schedule=None) as dag:
        ChangefeedFreshnessOperator(task_id="all", max_age=4 * HOUR)
        ChangefeedFreshnessOperator(task_id="flights", max_age=3 * HOUR, feed="nyc.*", consumer=CONSUMER)
        ChangefeedFreshnessOperator(task_id="others", max_age=2 * HOUR, feed="shop.*")
        ChangefeedFreshnessOperator(task_id="reader", max_age=2 * HOUR, consumer="reader")
    store_dags(dag)
    assert chart()["target_seconds"] == 2 * 3600


def test_a_calendar_without_missing_windows_leads_to_those_that_are(flights: Flights) -> None:
    """By the cursors: the last one before it, and the first one after it."""
    begin = START + 30 * 24 * HOUR
    done = [UlidRange(ulid(START), ulid(START + 2 * HOUR)), UlidRange(ulid(START + 3 * HOUR), ulid(begin))]
    flights.source.seal(FEED, begin)
    advance(flights.source, Nowhere(), CONSUMER, FEED, {0: done}, by="test")
    found = windows(end=format_time(begin - 10 * 24 * HOUR))
    assert found["missing_before"] == "2013-01-01T02:59:59.999Z"
    assert found["missing_after"] == format_time(begin)
    found = windows(at=found["missing_before"])
    assert states(found)[at(2)] == "missing"
    assert found["missing_before"] is None


def ulid(time: datetime) -> Ulid:
    """Return the exclusive end of windows that end at a time."""
    return Ulid.floor(time).previous()


def test_a_chart_sums_up_shards_and_says_if_they_are_not_all(
    flights: Flights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest is opened for each, so there is a limit."""
    flights.add(3, 8, 0)
    flights.add(2, 8, 1)
    flights.export(ExportStore(str(tmp_path / "out"), FEED), hours(8, 9))
    found = chart(start=at(8), end=at(9))
    assert (found["points"][0]["rows"], found["shards_shown"], found["shards_total"]) == (5, 2, 2)
    monkeypatch.setattr("airflow_changefeed.plugins.windows.MOST_MANIFESTS", 1)
    found = chart(start=at(8), end=at(9))
    assert (found["points"][0]["rows"], found["shards_shown"], found["shards_total"]) == (3, 1, 2)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"end": "noon"}, "end: "),
        ({"start": at(9)}, "ends before it starts"),
        ({"end": "2014-01-01T00:00:00Z"}, "choose at most 400"),
        ({"start": "2013-01-01T00:00:00"}, "expected a time with a zone"),
    ],
)
def test_a_chart_of_no_time_is_refused(values: dict[str, str], words: str) -> None:
    """Or of too much."""
    assert words in chart(422, **values)["detail"]


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    """To who may see the connection; it is not shown as missing."""
    path = Path(window(at=at(0))["shards"][0]["manifests"][0]["path"])
    path.write_text("{")
    given = {"conn_id": CONN_ID, "dag_id": HOURLY, "task_id": "export", "at": at(0)}
    assert path.name in Visitor("OP").ask("window", 502, **given)["detail"]
    assert path.name not in Visitor("VIEWER").ask("window", 502, **given)["detail"]


def test_a_backfill_of_hours_has_their_logical_dates() -> None:
    """The first and the last one, inclusive both, as Airflow's API wants them."""
    found = Visitor("ADMIN").ask("backfill", dag_id=HOURLY, start=at(2), end=at(4))
    assert (found["from_date"], found["to_date"], found["runs"]) == (at(2), at(3), 2)
    assert found["are_partitions"] is False


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_paused_dag_is_said_to_be_paused(is_paused: bool) -> None:
    """Its backfill would wait, and nobody would know what for."""
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == HOURLY).values(is_paused=is_paused))
    found = Visitor("ADMIN").ask("backfill", dag_id=HOURLY, start=at(2), end=at(4))
    assert found["is_paused"] is is_paused


def test_a_missing_weekend_is_filled_by_the_run_of_its_friday(tmp_path: Path) -> None:
    """The interval that holds a time is found, however long it is beside the others."""
    store_export("page_weekdays", CronDataIntervalTimetable("0 0 * * 1-5", timezone="UTC"), tmp_path)
    sunday = datetime(2013, 1, 6, tzinfo=timezone.utc)
    found = Visitor("ADMIN").ask(
        "backfill",
        dag_id="page_weekdays",
        start=format_time(sunday + 20 * HOUR),
        end=format_time(sunday + 21 * HOUR),
    )
    assert (found["from_date"], found["to_date"]) == ("2013-01-04T00:00:00Z", "2013-01-04T00:00:00Z")


@since("3.2", "partitioned runs")
def test_partitions_are_named_as_airflow_reads_their_dates(tmp_path: Path) -> None:
    """By the clock of the schedule's zone; of a missing hour the partition that it lies in."""
    from airflow.sdk import CronPartitionTimetable

    timetable = CronPartitionTimetable("0 0 * * *", timezone="America/New_York")
    store_export("page_partitions", timetable, tmp_path)
    for month, offset in ((1, 5), (7, 4)):
        midnight = datetime(2013, month, 2, offset, tzinfo=timezone.utc)
        found = Visitor("ADMIN").ask(
            "backfill",
            dag_id="page_partitions",
            start=format_time(midnight + 23 * HOUR),
            end=format_time(midnight + 25 * HOUR),
        )
        assert (found["runs"], found["are_partitions"]) == (2, True)
        with create_session() as session:
            runs = _do_dry_run(
                dag_id="page_partitions",
                from_date=parse_time(found["from_date"]),
                to_date=parse_time(found["to_date"]),
                reverse=False,
                reprocess_behavior=ReprocessBehavior.COMPLETED,
                session=session,
            )
            assert [run.partition_date for run in runs] == [midnight, midnight + 24 * HOUR]


@since("3.2", "partitioned runs")
def test_a_running_partition_is_shown(tmp_path: Path) -> None:
    """From its date to the next one's, although its run has no interval."""
    from airflow.sdk import CronPartitionTimetable

    timetable = CronPartitionTimetable("0 0 * * *", timezone="America/New_York")
    store_export("page_partitions", timetable, tmp_path)
    midnight = datetime(2013, 1, 1, 5, tzinfo=timezone.utc)
    run = DagRun(
        dag_id="page_partitions",
        run_id="partition",
        run_type=DagRunType.BACKFILL_JOB,
        run_after=midnight,
        partition_key="2013-01-01T00:00:00",
        partition_date=midnight,
        state=DagRunState.RUNNING,
        triggered_by=DagRunTriggeredByType.BACKFILL,
    )
    with create_session() as session:
        session.add(run)
    try:
        cells = windows(dag_id="page_partitions", end="2013-01-04T00:00:00Z")["cells"]
    finally:
        with create_session() as session:
            session.execute(delete(DagRun).where(DagRun.dag_id == "page_partitions"))
    running = [cell["start"] for cell in cells if cell.get("running")]
    assert (running[0], running[-1], len(running)) == (at(5), at(28), 24)


@pytest.mark.parametrize(
    "end", ["9999-12-31T23:00:00Z", "0001-01-01T00:00:00Z", "2013-01-01T00:00:00", "noon"]
)
def test_an_end_that_no_calendar_has_is_refused(end: str) -> None:
    """Out of bounds, without a zone, no time."""
    found = Visitor("OP").ask("windows", 422, conn_id=CONN_ID, dag_id=HOURLY, task_id="export", end=end)
    assert found["detail"].startswith("end: ")


def test_a_backfill_of_hours_by_a_daily_dag_runs_its_whole_days() -> None:
    """A missing hour is filled by the run of its day."""
    found = Visitor("ADMIN").ask("backfill", dag_id=DAILY, start=at(20), end=at(26))
    assert (found["from_date"], found["to_date"], found["runs"]) == (at(0), at(24), 2)


@pytest.mark.parametrize(
    ("dag_id", "start", "end", "status"),
    [
        (BATCHES, at(2), at(4), 409),
        (HOURLY, at(4), at(2), 422),
        (HOURLY, "noon", at(2), 422),
        (HOURLY, at(2), "2020-01-01T00:00:00Z", 422),
        (HOURLY, at(2), "9999-12-31T23:00:00Z", 422),
        ("no_such_dag", at(2), at(4), 404),
    ],
)
def test_a_backfill_that_cannot_be_is_refused(dag_id: str, start: str, end: str, status: int) -> None:
    """No schedule, a reversed range, no time at all, no DAG."""
    assert Visitor("ADMIN").ask("backfill", status, dag_id=dag_id, start=start, end=end)["detail"]


ON_DEMAND = "page_on_demand"


@pytest.fixture
def on_demand(tmp_path: Path) -> Iterator[None]:
    """Give a DAG without a schedule, whose runs name their window by params."""
    with DAG(ON_DEMAND, schedule=None, params=window_params()) as dag:
        ChangefeedToParquetOperator(
            task_id="export", feed=FEED, consumer=CONSUMER, path=str(tmp_path / "out"), conn_id="spark"
        )
    store_dags(dag)
    yield
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == ON_DEMAND))


def trigger(run_id: str, conf: Any, state: DagRunState = DagRunState.RUNNING) -> None:
    """Write a run that somebody triggered, as Airflow's API does."""
    with create_session() as session:
        session.add(
            DagRun(
                dag_id=ON_DEMAND,
                run_id=run_id,
                run_type=DagRunType.MANUAL,
                logical_date=None,
                run_after=START,
                conf=conf,
                state=state,
                triggered_by=DagRunTriggeredByType.REST_API,
            )
        )


@pytest.mark.usefixtures("on_demand")
def test_a_dag_without_intervals_is_run_by_params() -> None:
    """A run for each window; for a task with a unit of its own, which cuts them, one run for all."""
    found = Visitor("ADMIN").ask("backfill", dag_id=ON_DEMAND, start=at(2), end=at(4), unit_seconds=3600)
    assert (found["runs"], "from_date" in found) == (2, False)
    assert [one["conf"] for one in found["triggers"]] == [
        {"window_start": at(2), "window_end": at(3)},
        {"window_start": at(3), "window_end": at(4)},
    ]
    assert {one["logical_date"] for one in found["triggers"]} == {None}
    assert len({one["dag_run_id"] for one in found["triggers"]}) == 2
    (one,) = Visitor("ADMIN").ask("backfill", dag_id=ON_DEMAND, start=at(2), end=at(4))["triggers"]
    assert one["conf"] == {"window_start": at(2), "window_end": at(4)}


@pytest.mark.usefixtures("on_demand")
def test_of_two_who_run_the_same_window_airflow_refuses_the_second() -> None:
    """They ask for the same ids; who saw that the first has run asks for others."""

    def ids() -> list[str]:
        found = Visitor("ADMIN").ask("backfill", dag_id=ON_DEMAND, start=at(2), end=at(4), unit_seconds=3600)
        return [one["dag_run_id"] for one in found["triggers"]]

    first = ids()
    assert ids() == first
    for run_id in first:
        trigger(run_id, {}, DagRunState.FAILED)
    second = ids()
    assert not set(first) & set(second)
    for run_id in second:
        trigger(run_id, {}, DagRunState.FAILED)
    assert not {*first, *second} & set(ids())


@pytest.mark.usefixtures("on_demand")
def test_a_run_that_was_triggered_for_a_window_is_shown_as_running() -> None:
    """By its params; one without a window, or with something else there, is not."""
    trigger("one", {"window_start": at(2), "window_end": at(3)})
    for number, conf in enumerate(
        [
            None,
            {},
            {"window_start": at(3)},
            {"window_start": 5, "window_end": None},
            {"window_start": at(3), "window_end": "9999-12-31T23:59:59.999-23:00"},
        ]
    ):
        trigger(f"other{number}", conf)
    trigger("done", {"window_start": at(5), "window_end": at(6)}, DagRunState.SUCCESS)
    cells = windows(dag_id=ON_DEMAND)["cells"]
    assert [cell["start"] for cell in cells if cell.get("running")] == [at(2)]


@pytest.mark.parametrize(
    ("values", "status", "words"),
    [
        ({"unit_seconds": 60}, 422, "at most 100 runs"),
        ({"unit_seconds": 0}, 422, "unit_seconds: "),
        ({"unit_seconds": 7200}, 422, "multiple of the unit"),
        ({"dag_id": BATCHES}, 409, "window_params()"),
    ],
)
@pytest.mark.usefixtures("on_demand")
def test_runs_that_cannot_be_triggered_are_refused(values: dict[str, Any], status: int, words: str) -> None:
    """Too many, no length, windows that begin elsewhere, a DAG whose runs cannot name a window."""
    given = {"dag_id": ON_DEMAND, "start": at(1), "end": at(4), **values}
    assert words in Visitor("ADMIN").ask("backfill", status, **given)["detail"]
    Visitor("VIEWER").ask("backfill", 403, **{**given, "unit_seconds": 3600})


def test_who_may_not_run_dags_gets_no_dates() -> None:
    """Airflow refuses the backfill itself, too."""
    Visitor("VIEWER").ask("backfill", 403, dag_id=HOURLY, start=at(2), end=at(4))


def test_a_calendar_asks_nothing_of_a_week_that_is_not_over() -> None:
    """The present week is shown to its end, and what is to come is not missing."""
    now = datetime.now(timezone.utc)
    found = windows(end=format_time(now.replace(microsecond=0) + timedelta(hours=1)))
    assert found["cells"][-1]["state"] in ("open", "missing")
    assert found["end"] >= found["now"]


def test_an_output_that_cannot_be_read_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all of it is called missing; why and where is told to who may see the connection."""
    real, output = os.listdir, "/out/"

    def refuse(path: Any) -> list[str]:
        # A folder of an output is listed by its descriptor.
        if isinstance(path, int):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    monkeypatch.setattr("os.listdir", refuse)
    values = {"conn_id": CONN_ID, "dag_id": HOURLY, "task_id": "export"}
    told = Visitor("OP").ask("windows", 502, **values)["detail"]
    assert ("Permission denied" in told, output in told) == (True, True)
    told = Visitor("VIEWER").ask("windows", 502, **values)["detail"]
    assert ("not available now" in told, output in told) == (True, False)


def test_a_source_is_asked_for_cursors_shards_and_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calendar comes from the output: no event is read or counted."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("events were read")

    for name in ("read_feed", "count", "stream", "open"):
        monkeypatch.setattr(SqliteFeedSource, name, refuse)
    assert windows()["shards_total"] == 1
