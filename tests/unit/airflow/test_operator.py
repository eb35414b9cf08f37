# SPDX-License-Identifier: Apache-2.0
"""The operator: seal, plan, job, manifest, cursor; killed and retried anywhere it gives the same result."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
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
from airflow_changefeed.exceptions import SupersededError
from airflow_changefeed.export import job_spec as spec_module
from airflow_changefeed.export import parts as run_module
from airflow_changefeed.export import planner
from airflow_changefeed.export.verify import verify_export
from airflow_changefeed.hooks.changefeed import AirflowVariables, ChangefeedHook
from airflow_changefeed.output import attempts
from airflow_changefeed.output.commit import Commit
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.spark import export_job
from airflow_changefeed.version_compat import AirflowException, AirflowFailException
from tests.exports import verify
from tests.unit.airflow.conftest import CONSUMER, FEED, KEY, START, insert, path
from tests.unit.airflow.fakes import InProcessHook, InProcessOperator, context

__all__ = ["path"]  # for others, too
pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]
HOUR = timedelta(hours=1)


class Crash(BaseException):
    """The process died here."""


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
    """
    Three hours, in Airflow's own times, become six units, and the cursors stand at their end; the result says
    so. The command line has no secret, and the connection's file is gone afterwards.
    """
    start = pendulum.datetime(2013, 1, 1)
    result = operator(path).execute(context(start, start.add(hours=3)))
    assert_complete(database, path, 3)
    assert (result["feed"], result["units"], result["rows"], result["attempt"]) == (FEED, 6, 18, 2)
    assert result["windows"][0] == "2013-01-01T00:00:00Z/2013-01-01T01:00:00Z"
    assert len(result["manifests"]) == 6
    assert all(Path(manifest).exists() for manifest in result["manifests"])
    assert result["cursors"] == {"0": str(places(database)[0]), "1": str(places(database)[1])}
    json.dumps(result)
    command = InProcessHook.commands[-1]
    assert not any(database in argument for argument in command)
    assert not Path(command[command.index("--connection") + 1]).parent.exists()


def test_the_tasks_window_goes_before_that_of_params_and_that_before_the_runs(
    database: str, path: str
) -> None:
    """Empty params do not count; a unit may be a template, and one that gives nothing is none."""
    params = {"window_start": "2013-01-01T00:00:00Z", "window_end": "2013-01-01T02:00:00+00:00"}
    task = operator(path, unit="{{ params.unit }}")
    task.unit = "PT1H"  # type: ignore[assignment] # as Airflow renders it
    task.execute(context(START + 4 * HOUR, START + 5 * HOUR, params=params))
    assert_complete(database, path, 2)
    given = {"window_start": "2013-01-01T00:00:00Z", "window_end": "2013-01-01T03:00:00Z"}
    task = operator(f"{path}-own", unit="{{ params.unit or '' }}", **given)
    task.unit = ""  # type: ignore[assignment] # as Airflow renders it
    params = dict.fromkeys(params)  # type: ignore[arg-type]
    assert task.execute(context(START + 4 * HOUR, START + 5 * HOUR, params=params))["units"] == 2
    assert exported(f"{path}-own") == list(range(18))


def test_a_run_without_a_window_exports_a_batch(database: str, path: str) -> None:
    """
    From the cursor to the head; a later run exports only what came since, if anything. An interval of the run
    does not count, be it a point of time as of a bare cron string or not.
    """
    task = operator(path, unit=None, mode="batch")
    first = task.execute(context())
    assert (first["rows"], first["windows"], exported(path)) == (36, [], list(range(36)))
    spark = len(InProcessHook.commands)
    again = task.execute(context(START, START))
    assert (again["rows"], again["units"], len(InProcessHook.commands)) == (0, 0, spark)
    insert(database, range(100, 103), START)
    assert task.execute(context(START, START + HOUR))["rows"] == 3
    assert exported(path) == [*range(36), 100, 101, 102]


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
    end = START + timedelta(minutes=101)
    result = operator(path, unit=timedelta(minutes=1)).execute(context(START, end))
    assert result["units"] == 202
    assert result["manifests"] == [ExportStore(path, FEED).layout.manifests]
    assert result["windows"] == ["2013-01-01T00:00:00Z/2013-01-01T01:41:00Z"]


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
    (crash_after, planner, "make_plan"),
    (crash_after, run_module, "begin"),
    (crash_after, spec_module, "write_spec"),
    (crash_before, Commit, "add"),
    (crash_before, ExportStore, "place"),
    (crash_after, ExportStore, "place"),
    (crash_before, ExportStore, "write"),
    (crash_after, ExportStore, "write"),
    (crash_after, Commit, "add"),
    (crash_after, Commit, "finish"),
    (crash_after, export_job, "write_receipt"),
    (crash_after, spec_module, "read_receipt"),
    (crash_after, spec_module, "remove_spec"),
    (crash_before, cursors, "advance"),
    (crash_before, SqliteFeedSource, "move_cursors"),
    (crash_after, SqliteFeedSource, "move_cursors"),
    (crash_before, AirflowVariables, "set"),
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


#: Those of a task that writes by itself, where it differs; others are in ``tests/unit/export/test_run.py``.
HERE: list[tuple[Callable[[pytest.MonkeyPatch, Any, str], None], Any, str]] = [
    (crash_after, Commit, "add"),
    (crash_after, Commit, "finish"),
    (crash_before, cursors, "advance"),
    (crash_after, attempts, "forget"),
]


@pytest.mark.parametrize(
    ("point", "below"),
    [*((point, 0) for point in POINTS), *((point, 1000) for point in HERE)],
    ids=lambda value: f"{value[0].__name__}-{value[2]}" if isinstance(value, tuple) else str(value),
)
def test_a_retry_after_a_crash_anywhere_gives_the_same_result(
    database: str, path: str, point: tuple[Any, Any, str], below: int
) -> None:
    """The task dies at one point and Airflow tries again: output, cursors and Variable are whole."""
    crash, module, name = point
    with pytest.MonkeyPatch.context() as patch:
        crash(patch, module, name)
        with pytest.raises(Crash):
            operator(path, local_below=below).execute(context(START, START + 2 * HOUR))
    seen = exported(path)
    assert len(set(seen)) == len(seen)
    assert_cursors_follow_manifests(database, path)
    operator(path, local_below=below).execute(context(START, START + 2 * HOUR, attempt=2))
    assert_complete(database, path, 2)


@pytest.mark.parametrize("below", [0, 1000])
def test_an_older_run_of_the_same_unit_is_superseded(
    database: str, path: str, monkeypatch: pytest.MonkeyPatch, below: int
) -> None:
    """Two runs export the same hour at once: the older one withdraws, may be retried, and harms nothing."""
    whole = Commit.add

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(Commit, "add", whole)
        operator(path).execute(context(START, START + HOUR, attempt=2))
        return whole(*args)

    monkeypatch.setattr(Commit, "add", overtaken)
    with pytest.raises(SupersededError, match="newer attempts count"):
        operator(path, local_below=below).execute(context(START, START + HOUR))
    assert_complete(database, path, 1)
    operator(path, local_below=below).execute(context(START, START + HOUR, attempt=3))
    assert_complete(database, path, 1)


@pytest.mark.parametrize("below", [0, 1000])
def test_the_jobs_own_error_comes_back(
    database: str, path: str, monkeypatch: pytest.MonkeyPatch, below: int
) -> None:
    """A terminal error of a Spark task, or here, fails the task at once, with its class and remedy."""
    monkeypatch.setattr("airflow_changefeed.output.commit._PAUSE", 0)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute('delete from "nyc.Flight" where id = 3')
    with pytest.raises(AirflowFailException, match=r"^MissingEventError.*on_missing"):
        operator(path, local_below=below).execute(context(START, START + HOUR))
    assert exported(path) in ([], [0, 2, 4]), "the other shard's unit stays if it was whole before"
    keys = {"on_missing": "keys_only"}
    operator(path, local_below=below, options=keys).execute(context(START, START + HOUR))
    assert_complete(database, path, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "2013-01-01", f"CursorFormatError.*{KEY}"),
        (lambda text: json.dumps({**json.loads(text), "schema_version": 99}), "UnsupportedVersionError"),
        (lambda text: text.replace("017FS", "017FR"), r"CursorEditedError.*publish.*adopt"),
    ],
    ids=["other text", "newer version", "edited"],
)
def test_a_variable_that_somebody_changed_stops_the_export(
    database: str, path: str, change: Callable[[str], str], message: str
) -> None:
    """Nothing is overwritten, and no retry is made, until a person decides; publish is one of the ways."""
    operator(path).execute(context(START, START + HOUR))
    before = places(database)
    text = change(AirflowVariables().get(KEY) or "")
    AirflowVariables().set(KEY, text)
    with pytest.raises(AirflowFailException, match=message):
        operator(path).execute(context(START + HOUR, START + 2 * HOUR))
    assert AirflowVariables().get(KEY) == text
    assert places(database) == before
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


def test_batches_are_exported_again_when_the_cursor_is_put_back(database: str, path: str) -> None:
    """Each as it was cut, also with history that was inserted since; then what is new."""
    task = operator(path, unit=None, mode="batch", local_below=1000)
    task.execute(context())
    insert(database, range(36, 42), START)
    task.execute(context())
    with closing(sqlite3.connect(database)) as connection:
        connection.execute('insert into "nyc.Flight" values (42, ?)', ("JFK",))
        connection.commit()
    source = SqliteFeedSource(database)
    source.insert_history(FEED, 0, [(START + HOUR, (42,))], reason="late")
    insert(database, range(43, 45), START)
    document = json.loads(AirflowVariables().get(KEY) or "")
    for shard in document["shards"].values():
        shard["ulid"] = str(Ulid.MIN)
    AirflowVariables().set(KEY, json.dumps(document))
    ChangefeedHook().adopt(CONSUMER, FEED)
    result = task.execute(context())
    assert (result["units"], result["rows"]) == (6, 45)
    assert exported(path) == list(range(45))
    assert verify_export(path, FEED, source=source).faults == []


# ---- small plans, which the task writes by itself

#: A task that could not start a Spark.
NO_SPARK = {"conn_id": "nowhere", "env_vars": {"JAVA_HOME": "/none"}}


def test_a_small_plan_needs_no_spark(
    database: str, path: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a connection nor Java is looked for; the log says who has written. A batch may be small."""
    spark = len(InProcessHook.commands)
    operator(path, local_below=19, **NO_SPARK).execute(context(START, START + 3 * HOUR))
    assert_complete(database, path, 3)
    assert verify(ExportStore(path, FEED)) == []
    log = capsys.readouterr().out or caplog.text  # Airflow 3.0 logs by Python's own logging
    assert "18 rows are fewer than local_below=19: written here, without Spark" in log
    assert "changefeed progress: shard 0: 9 of 9 rows" in log
    batch = operator(f"{path}-batch", unit=None, mode="batch", local_below=1000, **NO_SPARK)
    assert batch.execute(context())["rows"] == 18
    assert len(InProcessHook.commands) == spark


def test_a_plan_at_the_bound_is_sparks_and_the_result_is_the_same(database: str, path: str) -> None:
    """What Spark lacks is named, and nothing is exported. Readers need not know who has written."""
    with pytest.raises(AirflowFailException, match=r"SparkEnvironmentError.*'nowhere'"):
        operator(path, local_below=18, **NO_SPARK).execute(context(START, START + 3 * HOUR))
    assert ExportStore(path, FEED).list() == []
    results = [
        operator(where, local_below=below).execute(context(START, START + 3 * HOUR))
        for where, below in ((path, 18), (f"{path}-here", 19))
    ]
    units = [
        [manifest.unit for manifest in ExportStore(f"{path}{end}", FEED).list()] for end in ("", "-here")
    ]
    assert units[0] == units[1]
    apart = [{name: result.pop(name) for name in ("manifests", "attempt")} for result in results]
    assert results[0] == results[1]
    assert apart[0]["attempt"] + 1 == apart[1]["attempt"], "a job draws a token besides its plan's"
    assert all(Path(manifest).exists() for manifest in apart[1]["manifests"])


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
    ("arguments", "run", "message"),
    [
        (
            {"unit": None, "mode": "batch"},
            {"params": {"window_start": "2013-01-01T00:00:00Z", "window_end": None}},
            r"window_start ask for a window.*mode='batch'",
        ),
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
    run: tuple[Any, Any] | dict[str, Any],
    message: str,
) -> None:
    """A clear terminal error; no output, no cursor, no seal."""
    monkeypatch.setenv("AIRFLOW_CONN_URI", "spark://local[*]")
    cluster = {"conn_type": "spark", "host": "spark://host:7077", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(cluster))
    monkeypatch.setenv("AIRFLOW_CONN_STANDALONE", '{"conn_type": "spark", "host": "spark://host:7077"}')
    with pytest.raises(AirflowFailException, match=message):
        operator(path, **arguments).execute(context(**run) if isinstance(run, dict) else context(*run))
    assert not Path(path).exists()
    source = SqliteFeedSource(database)
    assert source.cursors(FEED) == []
    assert {status.sealed_until for status in source.shards(FEED)} == {None}
