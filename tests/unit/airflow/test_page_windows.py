# SPDX-License-Identifier: Apache-2.0
"""The calendar of a task's windows, and which logical dates a backfill of a missing range has."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.models.backfill import ReprocessBehavior, _do_dry_run, _get_info_list
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.timetables.trigger import CronTriggerTimetable
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType

from airflow_changefeed import ChangefeedFreshnessOperator, window_params
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import format_time, parse_time
from airflow_changefeed.cursors.cursors import advance
from airflow_changefeed.exceptions import InvalidWindowError
from airflow_changefeed.links.changefeed import window_url
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.plugins.access import HIDDEN_RUN
from airflow_changefeed.plugins.runs import _dag
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.browser.exports import Nowhere
from tests.identity import DATABASE
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.page import CONN_ID, Visitor, add_run, pause, remove_runs, store_dags, store_export
from tests.unit.export.flights import Flights, hours

pytestmark = since("3.1", "the page")

HOURLY, DAILY = "page_hourly_windows", "page_daily_windows"
BATCHES, ON_DEMAND = "page_batches", "page_on_demand"
HOUR = timedelta(hours=1)


@pytest.fixture
def flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flights:
    """Give a feed of six hours of which three are exported."""
    made = Flights.create(tmp_path / "flights.db")
    for hour in range(6):
        made.add(4, hour)
    store = ExportStore(str(tmp_path / "out"), FEED)
    made.export(store, hours(0, 2))
    made.export(store, hours(4, 5))
    made.source.begin_consumer(CONSUMER, FEED, {0: Ulid.floor(START).previous()}, by="test")
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", f"sqlite:///{made.path}")
    return made


END = {"end_date": START + 48 * HOUR}


@pytest.fixture(autouse=True)
def dags(server: None, flights: Flights, tmp_path: Path) -> Iterator[None]:
    """Give a DAG with intervals of an hour."""
    store_export(HOURLY, "0 * * * *", {"path": str(tmp_path / "out"), "unit": HOUR}, **END)
    yield
    remove_runs(HOURLY, ON_DEMAND, "page_partitions")


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


def test_the_calendar_shows_the_time_that_the_consumer_has_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hours of a week, the last of them where the export is; no event is read or counted for it."""
    for name in ("read_feed", "count", "stream", "open"):
        monkeypatch.setattr(SqliteFeedSource, name, lambda *_, **__: pytest.fail("events were read"))
    found = windows()
    assert (found["unit_seconds"], found["cell_seconds"], len(found["cells"])) == (3600, 3600, 7 * 24)
    known = states(found)
    first = [known[at(hour)] for hour in range(-1, 6)]
    assert first == ["before", "complete", "complete", "missing", "missing", "complete", "missing"]
    assert found["missing"][0] == {"start": at(2), "end": at(4)}
    assert found["shards_total"] == 1


def test_other_weeks_are_shown_by_their_end_or_by_the_time_of_a_link() -> None:
    """The end is a whole day, exclusive; a link may lead to midnight. What is to come is not missing."""
    found = windows(end="2013-01-01T00:00:00Z")
    assert (found["start"], found["end"]) == ("2012-12-25T00:00:00Z", "2013-01-01T00:00:00Z")
    assert set(states(found).values()) == {"before"}
    for time in ("2012-06-01T00:00:00Z", "2012-06-01T23:59:59.999Z"):
        found = windows(at=time)
        assert (found["start"], found["end"]) == ("2012-05-26T00:00:00Z", "2012-06-02T00:00:00Z")
    assert windows(at=at(3))["cells"] == windows()["cells"]
    now = datetime.now(timezone.utc)
    found = windows(end=format_time(now.replace(microsecond=0) + timedelta(hours=1)))
    assert found["cells"][-1]["state"] in ("open", "missing")
    assert found["end"] >= found["now"]


def test_what_is_queued_or_running_is_shown_to_who_may_see_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has ended is not running. Others learn no run's name either."""
    for hour, state in {
        0: DagRunState.RUNNING,
        2: DagRunState.RUNNING,
        3: DagRunState.QUEUED,
        5: DagRunState.FAILED,
    }.items():
        add_run(HOURLY, START + hour * HOUR, state)
    assert running() == [at(0), at(2), at(3)]
    assert window(at=at(0))["running"] is True
    monkeypatch.setattr("airflow_changefeed.plugins.access.may_see_runs", lambda *_: False)
    found = window(at=at(0))
    assert (found["sees_runs"], found.get("running"), running()) == (False, None, [])
    assert found["shards"][0]["manifests"][0]["content"]["run"] == HIDDEN_RUN


def running(**values: Any) -> list[str]:
    """Return the windows that run now, by a viewer's calendar."""
    return [cell["start"] for cell in windows("VIEWER", **values)["cells"] if cell.get("running")]


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


def test_a_window_says_how_it_stands(flights: Flights, tmp_path: Path) -> None:
    """Missing as long as its neighbours, open, before the beginning, empty, or missing in one shard."""
    found = window(at=at(2))
    assert (found["start"], found["end"], found["state"], found["missing"]) == (at(2), at(3), "missing", 1)
    assert [(one["state"], one["manifests"]) for one in found["shards"]] == [("missing", [])]
    assert (found["rows"], found["size"]) == (0, 0)
    assert window(at=at(-1))["state"] == "before"
    assert window(at="2030-01-01T00:00:00Z")["state"] == "open"
    flights.export(ExportStore(str(tmp_path / "out"), FEED), hours(7, 8))
    found = window(at=at(7))
    assert (found["state"], found["shards"][0]["manifests"][0]["files"]) == ("empty", 0)
    flights.add(2, 0, 1)
    flights.source.drain(FEED)
    flights.source.begin_consumer(CONSUMER, FEED, {1: Ulid.floor(START).previous()}, by="test")
    found = window(at=at(0))
    assert (found["state"], found["missing"], found["rows"]) == ("missing", 1, 4)
    assert [(one["shard"], one["state"]) for one in found["shards"]] == [("0", "complete"), ("1", "missing")]


def test_a_window_of_a_schedule_is_its_interval(tmp_path: Path) -> None:
    """Where a unit is as long as the run, also by the clock of another zone."""
    days = CronDataIntervalTimetable("0 0 * * *", timezone="America/New_York")
    store_export("page_new_york", days, {"path": str(tmp_path / "days")})
    found = window(dag_id="page_new_york", at=at(24))
    assert (found["start"], found["end"]) == (at(5), at(29))
    assert found["state"] == "missing"


def test_the_unit_that_an_output_keeps_counts_more_than_what_a_task_says(tmp_path: Path) -> None:
    """As its runs are refused until they fit; and where the unit is a template, only the output says it."""
    ExportStore(str(tmp_path / "kept"), FEED).claim(DATABASE, unit=HOUR)
    for number, unit in enumerate((24 * HOUR, "{{ params.unit }}")):
        dag_id = f"page_kept_unit_{number}"
        store_export(dag_id, "0 0 * * *", {"path": str(tmp_path / "kept"), "unit": unit})
        found = windows(dag_id=dag_id)
        assert (found["unit_seconds"], found["cell_seconds"]) == (3600, 3600)
        found = window(dag_id=dag_id, at=at(3))
        assert (found["start"], found["end"]) == (at(3), at(4))


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


def backfill(dag_id: str, start: str, end: str, **values: Any) -> dict[str, Any]:
    """Return what runs the missing time between two times."""
    found: dict[str, Any] = Visitor("ADMIN").ask("backfill", dag_id=dag_id, start=start, end=end, **values)
    return found


def test_a_backfill_has_the_logical_dates_of_the_runs_that_hold_its_time(tmp_path: Path) -> None:
    """The first and the last one, inclusive both, as Airflow's API wants them; also of whole days."""
    found = backfill(HOURLY, at(2), at(4))
    assert (found["from_date"], found["to_date"], found["runs"]) == (at(2), at(3), 2)
    assert found["are_partitions"] is False
    # The backfill of a paused DAG would wait, and nobody would know what for.
    for is_paused in (True, False):
        pause(HOURLY, is_paused=is_paused)
        assert backfill(HOURLY, at(2), at(4))["is_paused"] is is_paused
    store_export(DAILY, "0 0 * * *", {"path": str(tmp_path / "daily"), "unit": HOUR}, **END)
    found = backfill(DAILY, at(20), at(26))
    assert (found["from_date"], found["to_date"], found["runs"]) == (at(0), at(24), 2)
    # A missing weekend is filled by the run of its Friday, however long that is beside the others.
    store_export("page_weekdays", "0 0 * * 1-5", {"path": str(tmp_path / "out"), "unit": HOUR})
    found = backfill("page_weekdays", at(5 * 24 + 20), at(5 * 24 + 21))
    assert (found["from_date"], found["to_date"]) == ("2013-01-04T00:00:00Z", "2013-01-04T00:00:00Z")


@since("3.2", "partitioned runs")
def test_partitions_are_named_as_airflow_reads_their_dates(tmp_path: Path) -> None:
    """By the clock of the schedule's zone; of a missing hour the partition that it lies in."""
    from airflow.sdk import CronPartitionTimetable

    timetable = CronPartitionTimetable("0 0 * * *", timezone="America/New_York")
    store_export("page_partitions", timetable, {"path": str(tmp_path / "out"), "unit": HOUR})
    for month, offset in ((1, 5), (7, 4)):
        midnight = datetime(2013, month, 2, offset, tzinfo=timezone.utc)
        times = (format_time(midnight + 23 * HOUR), format_time(midnight + 25 * HOUR))
        found = backfill("page_partitions", *times)
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
    store_export("page_partitions", timetable, {"path": str(tmp_path / "out"), "unit": HOUR})
    midnight = datetime(2013, 1, 1, 5, tzinfo=timezone.utc)
    partition = {"partition_key": "2013-01-01T00:00:00", "partition_date": midnight}
    add_run("page_partitions", None, run_type=DagRunType.BACKFILL_JOB, run_after=midnight, **partition)
    shown = running(dag_id="page_partitions", end="2013-01-04T00:00:00Z")
    assert (shown[0], shown[-1], len(shown)) == (at(5), at(28), 24)


#: What is asked of a route, how it is refused, and with which words.
REFUSED: tuple[tuple[str, dict[str, Any], int, str], ...] = (
    ("window", {"at": "noon"}, 422, "at: "),
    ("window", {}, 422, "at: "),
    ("window", {"at": "2013-01-01T00:00:00"}, 422, "expected a time with a zone"),
    ("window", {"at": "9999-12-31T23:00:00Z"}, 422, "from 1970 to 9000"),
    ("window", {"at": at(0), "task_id": "none"}, 404, "has no task 'none'"),
    ("window", {"at": at(0), "dag_id": BATCHES}, 404, "has no task 'export'"),
    ("window", {"at": at(0), "conn_id": "other"}, 404, "is not shown here"),
    ("windows", {"dag_id": BATCHES}, 404, "has no task 'export'"),
    ("windows", {"task_id": "none"}, 404, "has no task 'none'"),
    ("windows", {"end": "9999-12-31T23:00:00Z"}, 422, "end: "),
    ("windows", {"end": "0001-01-01T00:00:00Z"}, 422, "end: "),
    ("windows", {"end": "2013-01-01T00:00:00"}, 422, "end: "),
    ("windows", {"end": "noon"}, 422, "end: "),
    ("chart", {"start": at(-1), "end": "noon"}, 422, "end: "),
    ("chart", {"start": at(9), "end": at(7)}, 422, "ends before it starts"),
    ("chart", {"start": at(-1), "end": "2014-01-01T00:00:00Z"}, 422, "choose at most 400"),
    ("chart", {"start": "2013-01-01T00:00:00", "end": at(7)}, 422, "expected a time with a zone"),
    ("backfill", {"dag_id": BATCHES, "start": at(2), "end": at(4)}, 409, "schedule"),
    ("backfill", {"dag_id": BATCHES, "start": at(1), "end": at(4)}, 409, "window_params()"),
    ("backfill", {"start": at(4), "end": at(2)}, 422, ""),
    ("backfill", {"start": "noon", "end": at(2)}, 422, "start: "),
    ("backfill", {"start": at(2), "end": "2020-01-01T00:00:00Z"}, 422, ""),
    ("backfill", {"start": at(2), "end": "9999-12-31T23:00:00Z"}, 422, ""),
    ("backfill", {"dag_id": "no_such_dag", "start": at(2), "end": at(4)}, 404, "no_such_dag"),
)


def test_what_cannot_be_shown_or_run_is_refused() -> None:
    """No time, a time of no calendar, no task, no output that is known, a DAG without windows."""
    store_export(BATCHES, None, {"path": "{{ var.value.path }}"}, **END)
    for path, values, status, words in REFUSED:
        given = {"conn_id": CONN_ID, "dag_id": HOURLY, "task_id": "export", **values}
        found = Visitor("ADMIN").ask(path, status, **given)
        assert found["detail"], (path, values)
        assert words in found["detail"], (path, values)


@pytest.fixture
def on_demand(tmp_path: Path) -> None:
    """Give a DAG without a schedule, whose runs name their window by params."""
    store_export(ON_DEMAND, None, {"path": str(tmp_path / "out")}, params=window_params())


def trigger(run_id: str, conf: Any, state: DagRunState = DagRunState.RUNNING) -> None:
    """Write a run that somebody triggered, as Airflow's API does."""
    by = DagRunTriggeredByType.REST_API
    add_run(ON_DEMAND, None, state, run_id=run_id, conf=conf, triggered_by=by)


@pytest.mark.usefixtures("on_demand")
def test_a_dag_without_intervals_is_run_by_params() -> None:
    """
    A run for each window; for a task with a unit of its own, which cuts them, one run for all.

    Of two people who run the same window Airflow refuses the second: they ask for the same ids, until they
    can see that the first one's have run.
    """
    times, known = (at(2), at(4)), set[str]()
    for _ in range(2):
        found = backfill(ON_DEMAND, *times, unit_seconds=3600)
        assert (found["runs"], "from_date" in found) == (2, False)
        assert [one["conf"] for one in found["triggers"]] == [
            {"window_start": at(2), "window_end": at(3)},
            {"window_start": at(3), "window_end": at(4)},
        ]
        assert {one["logical_date"] for one in found["triggers"]} == {None}
        ids = [one["dag_run_id"] for one in found["triggers"]]
        again = backfill(ON_DEMAND, *times, unit_seconds=3600)["triggers"]
        assert [one["dag_run_id"] for one in again] == ids
        assert not known & {*ids}
        for run_id in ids:
            trigger(run_id, {}, DagRunState.FAILED)
        known |= {*ids}
    assert len(known) == 4
    (one,) = backfill(ON_DEMAND, *times)["triggers"]
    assert one["conf"] == {"window_start": at(2), "window_end": at(4)}


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
    assert running(dag_id=ON_DEMAND) == [at(2)]


@pytest.mark.usefixtures("on_demand")
def test_runs_that_cannot_be_triggered_are_refused() -> None:
    """Too many, no length, windows that begin elsewhere; and to who may not run DAGs, any dates."""
    given = {"dag_id": ON_DEMAND, "start": at(1), "end": at(4)}
    for seconds, words in ((60, "at most 100 runs"), (0, "unit_seconds: "), (7200, "multiple of the unit")):
        assert words in Visitor("ADMIN").ask("backfill", 422, **given, unit_seconds=seconds)["detail"]
    for dag_id in (ON_DEMAND, HOURLY):
        Visitor("VIEWER").ask("backfill", 403, **{**given, "dag_id": dag_id})


def test_an_output_that_cannot_be_read_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all of it is called missing; why and where is told to who may see the connection."""
    path = Path(window(at=at(0))["shards"][0]["manifests"][0]["path"])
    path.write_text("{")
    values = {"conn_id": CONN_ID, "dag_id": HOURLY, "task_id": "export"}
    assert path.name in Visitor("OP").ask("window", 502, **values, at=at(0))["detail"]
    assert path.name not in Visitor("VIEWER").ask("window", 502, **values, at=at(0))["detail"]
    real = os.listdir

    def refuse(path: Any) -> list[str]:
        # A folder of an output is listed by its descriptor.
        if isinstance(path, int):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path)

    monkeypatch.setattr("os.listdir", refuse)
    told = Visitor("OP").ask("windows", 502, **values)["detail"]
    assert ("Permission denied" in told, "/out/" in told) == (True, True)
    told = Visitor("VIEWER").ask("windows", 502, **values)["detail"]
    assert ("not available now" in told, "/out/" in told) == (True, False)


@pytest.mark.parametrize(
    "schedule",
    [
        CronDataIntervalTimetable("0 * * * *", timezone="Europe/Vienna"),
        CronTriggerTimetable("0 * * * *", timezone="UTC", interval=HOUR),
    ],
    ids=["interval", "trigger"],
)
def test_airflow_takes_the_dates_of_a_backfill_for_these_windows(schedule: Any, tmp_path: Path) -> None:
    """What the page's dialog sends to Airflow."""
    store_export("page_intervals", schedule, {"path": str(tmp_path)})
    dates = Visitor("OP").ask("backfill", dag_id="page_intervals", unit_seconds=3600, start=at(1), end=at(3))
    start, end = (parse_time(dates[name]) for name in ("from_date", "to_date"))
    found = _get_info_list(from_date=start, to_date=end, reverse=False, dag=_dag("page_intervals"))
    begins = [one.data_interval.start.timestamp() for one in found if one.data_interval]
    assert begins == [(START + HOUR).timestamp(), (START + 2 * HOUR).timestamp()]


def test_the_address_of_a_window_names_its_task_and_start() -> None:
    """The time in UTC, whatever its zone; names with signs of their own survive, and Airflow's path does."""
    start = START.astimezone(timezone(timedelta(hours=5)))
    url = window_url("feeds & more", "orders", "group.export", start, show_window=True)
    assert urlsplit(url).path == "/changefeed/"
    assert parse_qs(urlsplit(url).query) == {
        "conn_id": ["feeds & more"],
        "dag_id": ["orders"],
        "task_id": ["group.export"],
        "at": ["2013-01-01T00:00:00Z"],
        "show": ["window"],
    }
    for base_url, begin in {
        "/": "/changefeed/?",
        "http://airflow:8080": "http://airflow:8080/changefeed/?",
        "https://host/below/a/path": "https://host/below/a/path/changefeed/?",
        "https://host/below/": "https://host/below/changefeed/?",
    }.items():
        url = window_url("c", "d", "t", START, base_url=base_url)
        assert (url.startswith(begin), "show=" in url) == (True, False)
    for time in (datetime(2013, 1, 1), START + timedelta(microseconds=1)):
        with pytest.raises(InvalidWindowError):
            window_url("c", "d", "t", time)
