# SPDX-License-Identifier: Apache-2.0
"""The operator: seal, plan, job, manifest, cursor; killed and retried anywhere it gives the same result."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pendulum
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.cursor import CursorDocument
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.cursors import cursors
from airflow_changefeed.exceptions import MissingEventError, SupersededError
from airflow_changefeed.export import parts as run_module
from airflow_changefeed.export import planner
from airflow_changefeed.export import spec as spec_module
from airflow_changefeed.hooks.changefeed import AirflowVariables, ChangefeedHook
from airflow_changefeed.output import attempts
from airflow_changefeed.output.commit import Commit
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.spark import export_job
from airflow_changefeed.version_compat import AirflowException, AirflowFailException
from tests.unit.airflow.conftest import CONSUMER, FEED, KEY, START, insert
from tests.unit.airflow.fakes import InProcessHook, InProcessOperator, context
from tests.unit.export.test_planning_cost import Work

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]
HOUR = timedelta(hours=1)


class Crash(BaseException):
    """The process died here."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the export goes."""
    return str(tmp_path / "out")


def operator(path: str, **more: Any) -> InProcessOperator:
    """Return the operator, by hours."""
    arguments = {"task_id": "export", "feed": FEED, "path": path, "consumer": CONSUMER, "unit": HOUR}
    return InProcessOperator(**{**arguments, **more})


def exported(path: str) -> list[int]:
    """Read the ids that plain Parquet readers see."""
    data = Path(ExportStore(path, FEED).layout.data)
    files = sorted(data.rglob("*.parquet")) if data.exists() else []
    return sorted(number for file in files for number in pq.ParquetFile(file).read().column("id").to_pylist())


def places(database: str) -> dict[Any, Ulid]:
    """Return where the cursors stand."""
    return {row.shard: row.ulid for row in SqliteFeedSource(database).cursors(FEED, CONSUMER)}


def assert_complete(database: str, path: str, hours: int) -> None:
    """Check output, manifests, cursors and Variable of the first hours."""
    assert exported(path) == list(range(hours * 6))
    store = ExportStore(path, FEED)
    assert len(store.list()) == 2 * hours
    end = Ulid.floor(START + hours * HOUR).previous()
    assert places(database) == {0: end, 1: end}
    text = AirflowVariables().get(KEY)
    assert text is not None
    document = CursorDocument.from_json(text, key=KEY)
    assert document.is_intact
    assert {shard: cursor.ulid for shard, cursor in document.shards.items()} == {0: end, 1: end}
    assert not list(Path(store.layout.control).rglob("attempts/*/*")), "nothing of an attempt is left"


def test_the_data_interval_is_exported_by_units(database: str, path: str) -> None:
    """Three hours become six units, and the cursors stand at their end; the result says so."""
    result = operator(path).execute(context(START, START + 3 * HOUR))
    assert_complete(database, path, 3)
    assert (result["feed"], result["units"], result["rows"], result["attempt"]) == (FEED, 6, 18, 2)
    assert result["windows"][0] == "2013-01-01T00:00:00Z/2013-01-01T01:00:00Z"
    assert len(result["manifests"]) == 6
    assert all(Path(manifest).exists() for manifest in result["manifests"])
    assert result["cursors"] == {"0": str(places(database)[0]), "1": str(places(database)[1])}
    json.dumps(result)


def test_a_task_opens_few_connections(path: str, database: str) -> None:
    """One to plan and one behind the commit; the others write. Each reads the schema of all feeds."""
    task = operator(path, local_below=100)
    assert Work().of(lambda: task.execute(context(START, START + HOUR))).connections <= 7


def test_airflows_own_times_are_understood(database: str, path: str) -> None:
    """Airflow's data intervals are pendulum's."""
    start = pendulum.datetime(2013, 1, 1)
    operator(path).execute(context(start, start.add(hours=1)))
    assert_complete(database, path, 1)


def test_params_go_before_the_data_interval(database: str, path: str) -> None:
    """A window in the run's params, as the Trigger form gives it, is what is exported."""
    params = {"window_start": "2013-01-01T00:00:00Z", "window_end": "2013-01-01T02:00:00+00:00"}
    operator(path).execute(context(START + 4 * HOUR, START + 5 * HOUR, params=params))
    assert_complete(database, path, 2)


def test_an_explicit_window_goes_before_all(database: str, path: str) -> None:
    """The task's own window wins; empty params do not count."""
    params = {"window_start": None, "window_end": None}
    task = operator(path, window_start="2013-01-01T00:00:00Z", window_end="2013-01-01T01:00:00Z")
    task.execute(context(START + 4 * HOUR, START + 5 * HOUR, params=params))
    assert_complete(database, path, 1)


def test_a_run_without_a_window_exports_a_batch(database: str, path: str) -> None:
    """From the cursor to the head; a second run exports only what came since, if anything."""
    first = operator(path, unit=None, mode="batch").execute(context())
    assert (first["rows"], first["windows"], exported(path)) == (36, [], list(range(36)))
    spark = len(InProcessHook.commands)
    again = operator(path, unit=None, mode="batch").execute(context())
    assert (again["rows"], again["units"], len(InProcessHook.commands)) == (0, 0, spark)
    insert(database, range(100, 103), START)
    assert operator(path, unit=None, mode="batch").execute(context())["rows"] == 3
    assert exported(path) == [*range(36), 100, 101, 102]


def test_a_batch_is_said_and_its_runs_interval_does_not_count(database: str, path: str) -> None:
    """A point of time, as of a bare cron string or a logical date by hand, is no obstacle."""
    for start, end in ((START, START), (START, START + HOUR)):
        operator(path, unit=None, mode="batch").execute(context(start, end))
    assert exported(path) == list(range(36))


def test_a_batch_is_refused_where_a_person_asks_for_a_window(database: str, path: str) -> None:
    """The window that was filled in would be passed over in silence."""
    task = operator(path, unit=None, mode="batch")
    with pytest.raises(AirflowFailException, match=r"window_start ask for a window.*mode='batch'"):
        task.execute(context(params={"window_start": "2013-01-01T00:00:00Z", "window_end": None}))
    assert exported(path) == []


@pytest.mark.parametrize("unit", ["PT1H", "1:00:00", "3600", 3600, HOUR])
def test_a_unit_may_come_from_a_template(database: str, path: str, unit: Any) -> None:
    """As text, a number or what it is."""
    task = operator(path, unit="{{ params.unit }}")
    task.unit = unit  # as Airflow renders it
    task.execute(context(START, START + 3 * HOUR))
    assert_complete(database, path, 3)


@pytest.mark.parametrize("unit", ["", "None"])
def test_a_template_of_a_unit_may_have_nothing_to_say(database: str, path: str, unit: str) -> None:
    """Then the window is one unit."""
    task = operator(path, unit="{{ params.unit or '' }}")
    task.unit = unit  # type: ignore[assignment] # as Airflow renders it
    assert task.execute(context(START, START + 3 * HOUR))["units"] == 2


def test_an_idle_hour_commits_without_spark(database: str, path: str) -> None:
    """Complete with no rows is a result: manifests, cursors, and no Spark."""
    spark = len(InProcessHook.commands)
    result = operator(path).execute(context(START + 8 * HOUR, START + 9 * HOUR))
    assert (result["rows"], result["units"], len(InProcessHook.commands)) == (0, 2, spark)
    manifests = ExportStore(path, FEED).list()
    assert [manifest.rows for manifest in manifests] == [0, 0]
    columns = {column.name: str(column.type) for column in SqliteFeedSource(database).schema(FEED)}
    assert {"id", "origin"} <= set(columns)
    assert [dict(manifest.columns) for manifest in manifests] == [columns, columns]


def test_a_long_result_names_folders(database: str, path: str) -> None:
    """The result goes through Airflow's database, so it stays small."""
    minute = timedelta(minutes=1)
    result = operator(path, unit=minute).execute(context(START, START + 3 * HOUR))
    assert result["units"] == 360
    assert result["manifests"] == [ExportStore(path, FEED).layout.manifests]
    assert result["windows"] == ["2013-01-01T00:00:00Z/2013-01-01T03:00:00Z"]


def test_windows_may_finish_in_any_order(database: str, path: str) -> None:
    """Parallel runs of a backfill: the cursor waits for the missing hour, then passes all."""
    SqliteFeedSource(database).seal(FEED, START + 6 * HOUR)
    starts: dict[Shard, Ulid] = dict.fromkeys((0, 1), Ulid.floor(START).previous())
    SqliteFeedSource(database).begin_consumer(CONSUMER, FEED, starts, by="first")
    for hour in (2, 0, 1):
        operator(path).execute(context(START + hour * HOUR, START + (hour + 1) * HOUR))
        if hour == 2:
            assert set(places(database).values()) == {Ulid.floor(START).previous()}
    assert_complete(database, path, 3)


def crash_before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Let the process die when a function is called."""

    def die(*args: Any, **kwargs: Any) -> Any:
        raise Crash(name)

    monkeypatch.setattr(module, name, die)


def crash_after(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Let the process die when a function has done its work."""
    whole: Callable[..., Any] = getattr(module, name)

    def work_and_die(*args: Any, **kwargs: Any) -> Any:
        whole(*args, **kwargs)
        raise Crash(name)

    monkeypatch.setattr(module, name, work_and_die)


POINTS: list[tuple[Callable[[pytest.MonkeyPatch, Any, str], None], Any, str]] = [
    (crash_before, cursors, "resolve"),
    (crash_before, planner, "make_plan"),
    (crash_after, planner, "make_plan"),
    (crash_before, run_module, "begin"),
    (crash_after, run_module, "begin"),
    (crash_after, spec_module, "write_spec"),
    (crash_before, Commit, "add"),
    (crash_before, ExportStore, "place"),
    (crash_after, ExportStore, "place"),
    (crash_before, ExportStore, "write"),
    (crash_after, ExportStore, "write"),
    (crash_after, Commit, "add"),
    (crash_after, Commit, "finish"),
    (crash_before, export_job, "write_receipt"),
    (crash_after, export_job, "write_receipt"),
    (crash_before, spec_module, "read_receipt"),
    (crash_after, spec_module, "read_receipt"),
    (crash_after, spec_module, "remove_spec"),
    (crash_before, cursors, "advance"),
    (crash_before, SqliteFeedSource, "move_cursors"),
    (crash_after, SqliteFeedSource, "move_cursors"),
    (crash_before, AirflowVariables, "set"),
    (crash_after, AirflowVariables, "set"),
    (crash_after, cursors, "advance"),
    (crash_after, attempts, "forget"),
]


def assert_cursors_follow_manifests(database: str, path: str) -> None:
    """Check that no cursor has passed a window without a manifest."""
    complete = {manifest.unit for manifest in ExportStore(path, FEED).list()}
    windows = Window(START, START + 2 * HOUR).cut(HOUR)
    for row in SqliteFeedSource(database).cursors(FEED, CONSUMER):
        passed = {
            ExportUnit.of_window(row.shard, window) for window in windows if window.range.upto <= row.ulid
        }
        assert passed <= complete


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point[0].__name__}-{point[2]}")
def test_a_retry_after_a_crash_anywhere_gives_the_same_result(
    database: str, path: str, point: tuple[Any, Any, str]
) -> None:
    """The task dies at one point and Airflow tries again: output, cursors and Variable are whole."""
    crash, module, name = point
    with pytest.MonkeyPatch.context() as patch:
        crash(patch, module, name)
        with pytest.raises(Crash):
            operator(path).execute(context(START, START + 2 * HOUR))
    seen = exported(path)
    assert len(set(seen)) == len(seen)
    assert_cursors_follow_manifests(database, path)
    operator(path).execute(context(START, START + 2 * HOUR, attempt=2))
    assert_complete(database, path, 2)
    operator(path).execute(context(START, START + 2 * HOUR, attempt=3))
    assert_complete(database, path, 2)


def test_an_older_run_of_the_same_unit_is_superseded(
    database: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs export the same hour at once: the older one withdraws, may be retried, and harms nothing."""
    whole = Commit.add

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(Commit, "add", whole)
        operator(path).execute(context(START, START + HOUR, attempt=2))
        return whole(*args)

    monkeypatch.setattr(Commit, "add", overtaken)
    with pytest.raises(SupersededError, match="newer attempts count"):
        operator(path).execute(context(START, START + HOUR))
    assert_complete(database, path, 1)
    operator(path).execute(context(START, START + HOUR, attempt=3))
    assert_complete(database, path, 1)


def test_the_jobs_own_error_comes_back(database: str, path: str) -> None:
    """A terminal error of a Spark task fails the Airflow task at once, with its class and message."""
    import sqlite3

    with sqlite3.connect(database) as connection:
        connection.execute('delete from "nyc.Flight" where id = 3')
    connection.close()
    with pytest.raises(AirflowFailException, match=r"MissingEventError.*on_missing") as caught:
        operator(path).execute(context(START, START + HOUR))
    assert str(caught.value).startswith(MissingEventError.__name__)
    assert exported(path) in ([], [0, 2, 4]), "the other shard's unit stays if it was whole before"
    operator(path, options={"on_missing": "keys_only"}).execute(context(START, START + HOUR))
    assert_complete(database, path, 1)


def test_a_job_that_was_killed_is_retried(database: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """spark-submit failed and the job left no word: Airflow's own error passes, so a retry follows."""

    def killed(self: InProcessHook, application: str = "", **kwargs: Any) -> None:
        raise AirflowException("Cannot execute: spark-submit. Error code is: 137.")

    monkeypatch.setattr(InProcessHook, "submit", killed)
    with pytest.raises(AirflowException, match="137") as caught:
        operator(path).execute(context(START, START + HOUR))
    assert not isinstance(caught.value, AirflowFailException)


# ---- bad input


@pytest.mark.parametrize(
    ("arguments", "interval", "message"),
    [
        ({}, (START, START), "InvalidWindowError.*CronDataIntervalTimetable"),
        ({}, (START, datetime(9999, 1, 1, tzinfo=timezone.utc)), "FutureTimeError.*clock"),
        ({}, (START + HOUR / 2, START + HOUR), "InvalidWindowError.*multiple of the unit"),
        ({}, (None, None), "InvalidWindowError.*this run has no window.*mode='batch'"),
        ({"unit": None}, (None, None), "InvalidWindowError.*this run has no window.*mode='batch'"),
        ({"feed": "nyc.Weather"}, (START, START + HOUR), "FeedNotFoundError.*nyc.Weather"),
        ({"shards": [0, 7]}, (START, START + HOUR), "ShardNotFoundError.*7"),
        ({"changefeed_conn_id": "nowhere"}, (START, START + HOUR), "ConnectionNotUsableError.*'nowhere'"),
        ({"changefeed_conn_id": "spark_default"}, (START, START + HOUR), "ConnectionNotUsableError.*sqlite"),
        (
            {"conn_id": "nowhere"},
            (START, START + HOUR),
            r"SparkEnvironmentError.*'nowhere'.*YARN.*local\[\*\]",
        ),
        ({"conn_id": "uri"}, (START, START + HOUR), "SparkEnvironmentError.*'uri'.*YARN"),
        ({"conn_id": "cluster"}, (START, START + HOUR), "SparkEnvironmentError.*deploy mode"),
        ({"env_vars": {"JAVA_HOME": "/none"}}, (START, START + HOUR), "SparkEnvironmentError.*Java"),
        (
            {"conn_id": "standalone", "env_vars": {"JAVA_HOME": "/none"}},
            (START, START + HOUR),
            "SparkEnvironmentError.*Java",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_is_refused_and_changes_nothing(
    database: str,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    interval: tuple[Any, Any],
    message: str,
) -> None:
    """A clear terminal error; no output, no cursor, no seal."""
    monkeypatch.setenv("AIRFLOW_CONN_URI", "spark://local[*]")
    cluster = {"conn_type": "spark", "host": "spark://host:7077", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(cluster))
    monkeypatch.setenv("AIRFLOW_CONN_STANDALONE", '{"conn_type": "spark", "host": "spark://host:7077"}')
    with pytest.raises(AirflowFailException, match=message):
        operator(path, **arguments).execute(context(*interval))
    assert not Path(path).exists()
    source = SqliteFeedSource(database)
    assert source.cursors(FEED) == []
    assert {status.sealed_until for status in source.shards(FEED)} == {None}


def test_an_edited_variable_stops_the_export(database: str, path: str) -> None:
    """Nothing is exported and nothing moves until a person decides; publish is one of the ways."""
    operator(path).execute(context(START, START + HOUR))
    text = AirflowVariables().get(KEY) or ""
    AirflowVariables().set(KEY, text.replace("017FS", "017FR"))
    with pytest.raises(AirflowFailException, match=r"CursorEditedError.*publish.*adopt"):
        operator(path).execute(context(START + HOUR, START + 2 * HOUR))
    assert len(ExportStore(path, FEED).list()) == 2
    ChangefeedHook().publish(CONSUMER, FEED)
    operator(path).execute(context(START + HOUR, START + 2 * HOUR))
    assert_complete(database, path, 2)


def test_an_empty_answer_of_a_secrets_backend_is_said(
    database: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes before what is published, so that publishing again does not help."""
    operator(path).execute(context(START, START + HOUR))
    monkeypatch.setenv(f"AIRFLOW_VAR_{KEY.upper()}", "")
    for _ in range(2):
        with pytest.raises(
            AirflowFailException,
            match=rf"CursorFormatError: Airflow Variable '{KEY}' is empty.*secrets backend",
        ):
            operator(path).execute(context(START + HOUR, START + 2 * HOUR))
        ChangefeedHook().publish(CONSUMER, FEED)
    monkeypatch.delenv(f"AIRFLOW_VAR_{KEY.upper()}")
    operator(path).execute(context(START + HOUR, START + 2 * HOUR))
    assert_complete(database, path, 2)


def test_no_secret_reaches_the_command_line(database: str, path: str) -> None:
    """Arguments hold paths only; the connection's file is private and gone afterwards."""
    operator(path).execute(context(START, START + HOUR))
    command = InProcessHook.commands[-1]
    assert not any(database in argument for argument in command)
    connection = Path(command[command.index("--connection") + 1])
    assert not connection.parent.exists()
