# SPDX-License-Identifier: Apache-2.0
"""A group of plan, the user's own operator and finish: what each does, and what clearing one of them does."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator

from airflow_changefeed import ExportJob
from airflow_changefeed.export import job_spec as spec_module
from airflow_changefeed.export.job_spec import JobConnection, read_spec, write_spec
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark import export_job
from airflow_changefeed.spark.job import FILE_VARIABLE, TEXT_VARIABLE, read_connection
from airflow_changefeed.transfers.group import (
    ChangefeedFinishOperator,
    ChangefeedPlanOperator,
    changefeed_export_group,
)
from airflow_changefeed.version_compat import (
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
)
from tests.exports import verify
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import LocalSpark, context
from tests.unit.airflow.lineage import completed, failed, names, use_provider
from tests.unit.airflow.test_operator import exported, places

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]
HOUR = timedelta(hours=1)


class Submit(BaseOperator):
    """Starts a job somewhere."""

    template_fields = ("spec", "command")

    def __init__(self, spec: Any, command: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec, self.command = spec, command


class Group:
    """The three tasks, run by hand; XComs are kept as Airflow keeps them."""

    def __init__(self, path: str, **more: Any) -> None:
        def submit(job: ExportJob) -> Submit:
            return Submit(task_id="submit", spec=job.spec_uri, command=f"run {job.job_uri}")

        given = {"feed": FEED, "path": path, "program_path": f"{path}-program", "submit": submit}
        with DAG("dag"):
            group = changefeed_export_group(**{**given, "consumer": CONSUMER, "unit": HOUR, **more})
        self.tasks: dict[str, Any] = {task.task_id.partition(".")[2]: task for task in group}
        self.pushed: dict[str, Any] = {}
        self.planned: list[dict[str, str]] = []
        self.skipped: list[Any] = []
        self.state = "success"

    def _context(self, hours: int, attempt: int) -> Any:
        made = context(START, START + hours * HOUR, attempt=attempt)
        made["ti"].xcom_push = lambda *, key, value: self.pushed.update({key: value})
        made["ti"].get_task_states = lambda **_: {"run": {"export.plan": self.state}}
        made["ti"].xcom_pull = lambda task_ids, key, map_indexes: self.pushed.get(key)
        return made

    def plan(self, hours: int = 2, attempt: int = 1) -> None:
        """Run plan."""
        self.pushed.clear()
        self.skipped = []
        try:
            self.planned = self.tasks["plan"].execute(self._context(hours, attempt))
        except DownstreamTasksSkipped as skip:
            self.skipped = skip.tasks

    def submit(self) -> list[str]:
        """Run the job, as a cluster does: with the spec, and its own secret; return what it says."""
        lines: list[str] = []
        connection = JobConnection(ChangefeedHook().source().describe())
        export_job.run_spec(LocalSpark, self.pushed["spec_uri"], connection, lines.append)
        return lines

    def finish(self, hours: int = 2) -> dict[str, Any]:
        """Run finish."""
        result: dict[str, Any] = self.tasks["finish"].execute(self._context(hours, 1))
        return result


def test_the_group_has_three_steps_that_know_each_other(path: str) -> None:
    """Values are native in arguments and templates in texts; finish runs however the job ended."""
    tasks = Group(path).tasks
    assert set(tasks) == {"plan", "submit", "finish"}
    assert isinstance(tasks["plan"], ChangefeedPlanOperator)
    assert isinstance(tasks["finish"], ChangefeedFinishOperator)
    assert tasks["plan"].submits == ("export.submit",)
    assert tasks["submit"].upstream_task_ids == {"export.plan"}
    assert tasks["finish"].upstream_task_ids == {"export.plan", "export.submit"}
    assert tasks["finish"].trigger_rule == "all_done"
    assert tasks["submit"].spec.endswith("key='spec_uri', map_indexes=ti.map_index) }}")
    assert "job_uri" in tasks["submit"].command


def test_a_window_is_exported_by_the_three(database: str, path: str) -> None:
    """As by the operator: output, cursors, Variable and the result; what may be cleared stays."""
    group = Group(path)
    group.plan()
    assert {name: group.pushed[name] for name in ("rows", "units", "tasks")} == {
        "rows": 12,
        "units": 4,
        "tasks": 4,
    }
    assert read_spec(group.pushed["spec_uri"])[1].rows == 12
    for name in ("job_uri", "archive_uri"):
        assert Path(group.pushed[name]).is_relative_to(f"{path}-program")
        assert Path(group.pushed[name]).exists()
    group.submit()
    assert places(database) == dict.fromkeys((0, 1), places(database)[0])
    result = group.finish()
    assert (result["units"], result["rows"]) == (4, 12)
    assert exported(path) == list(range(12))
    store = ExportStore(path, FEED)
    assert verify(store) == []
    assert store.begun_attempts() == []
    assert store.specs() == [read_spec(group.pushed["spec_uri"])[1].attempt]


def test_finish_reports_what_was_planned_also_if_it_fails(
    database: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Feed, output and window; rows only if the job has written them."""
    use_provider(monkeypatch)
    group = Group(path)
    group.plan()
    with pytest.raises(AirflowFailException, match=r"left no receipt beside .*Clear export\.submit"):
        group.finish()
    planned = failed(group.tasks["finish"])
    group.submit()
    group.finish()
    done = completed(group.tasks["finish"])
    for found in (planned, done):
        assert names(found["inputs"]) == [(f"sqlite:{database}", FEED)]
        assert names(found["outputs"]) == [("file", f"{path}/{FEED}")]
        window = found["run_facets"]["changefeed_window"]
        times = (window["windowStart"], window["windowEnd"])
        assert (window["feed"], window["consumer"]) == (FEED, CONSUMER)
        assert times == ("2013-01-01T00:00:00Z", "2013-01-01T02:00:00Z")
    assert planned["outputs"][0]["outputFacets"] == {}
    assert done["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 12


def test_clearing_each_of_the_three_works(database: str, path: str) -> None:
    """
    Finish again changes nothing; the job again, or plan and all after it, exports everything again. So it is
    where a cluster starts the driver again, long after finish: that leaves nothing that is left out later.
    """
    group = Group(path)
    group.plan()
    group.submit()
    first, before = group.finish(), places(database)
    assert group.finish() == first
    group.submit()
    assert ExportStore(path, FEED).begun_attempts() == []
    second = group.finish()
    assert second["attempt"] > first["attempt"]
    group.plan(attempt=2)
    assert group.pushed["units"] == 4
    group.submit()
    group.finish()
    assert places(database) == before
    assert exported(path) == list(range(12))
    assert verify(ExportStore(path, FEED)) == []


def test_the_second_start_of_a_job_that_died_does_what_is_left(database: str, path: str) -> None:
    """Finish says what to clear, and moves nothing."""
    group = Group(path)
    group.plan()
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute('delete from "nyc.Flight" where id = 3')
        with pytest.raises(Exception, match="was deleted"):
            group.submit()
        with pytest.raises(
            AirflowFailException, match=r"MissingEventError: .*clear export\.submit and the tasks"
        ):
            group.finish()
        assert len(ExportStore(path, FEED).list()) < 4
        connection.execute('insert into "nyc.Flight" values (3, ?)', ("JFK",))
    group.submit()
    result = group.finish()
    assert (result["units"], result["rows"]) == (4, 12)
    assert exported(path) == list(range(12))
    assert verify(ExportStore(path, FEED)) == []
    assert set(places(database)) == {0, 1}


def test_an_idle_window_skips_the_job_only(database: str, path: str) -> None:
    """Its units are committed by plan, and finish tells of them."""
    group = Group(path, window_start="2013-01-01T08:00:00Z", window_end="2013-01-01T09:00:00Z")
    group.plan()
    assert group.skipped == ["export.submit"]
    assert (group.pushed["rows"], group.pushed["tasks"]) == (0, 0)
    result = group.finish()
    assert (result["units"], result["rows"]) == (2, 0)


def test_finish_tells_what_there_is_no_result_of(database: str, path: str) -> None:
    """
    A plan that failed, also one that was cleared, whose XCom of before proves nothing; a whole run that is
    skipped; files that a later start has half replaced, and a spec that somebody has cleaned up.
    """
    group = Group(path)
    with pytest.raises(AirflowFailException, match=r"task export\.plan has left no spec: clear that task"):
        group.finish()
    group.plan()
    group.submit()
    group.state = "skipped"
    with pytest.raises(AirflowSkipException):
        group.finish()
    group.state = "upstream_failed"
    with pytest.raises(AirflowFailException, match="has left no spec"):
        group.finish()
    group.state = "success"
    store, plan = read_spec(group.pushed["spec_uri"])
    name = next(iter(store.files.sizes(store.layout.data)))
    store.files.remove_file(f"{store.layout.data}/{name}")
    with pytest.raises(AirflowFailException, match=r"1 of 4 units are no longer whole"):
        group.finish()
    spec_module.remove_spec(store, plan.attempt)
    with pytest.raises(
        AirflowFailException, match=r"SpecNotFoundError.*Run the task that makes the plan again"
    ):
        group.finish()


def test_the_connection_comes_from_the_clusters_secret(
    commands: Commands, database: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that stays, or a text, as the command prints it; without any the job says what to do."""
    with pytest.raises(Exception, match=r"no connection: .* the output of the command job-connection"):
        read_connection(None)
    assert commands.run("job-connection", "--path", path) == 0, commands.err
    monkeypatch.setenv(TEXT_VARIABLE, commands.out)
    assert read_connection(None) == JobConnection(ChangefeedHook().source().describe())
    file = tmp_path / "secret.json"
    file.write_text(JobConnection({"type": "sqlite", "path": "/other.db"}).to_json())
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    assert read_connection(None).source["path"] == "/other.db"
    assert file.exists()


def test_old_specs_do_not_gather(database: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest stay, and nothing but specs goes."""
    monkeypatch.setattr(spec_module, "_MOST_SPECS", 2)
    group = Group(path)
    for attempt in range(1, 5):
        group.plan(attempt=attempt)
    store, plan = read_spec(group.pushed["spec_uri"])
    assert len(store.specs()) == 3
    write_spec(store, plan)
    assert store.specs()[-1] == plan.attempt


def test_other_runs_leave_a_spec_alone(database: str, path: str) -> None:
    """A plan waits for a slot while another DAG exports its window, or another one: its job still begins."""
    group, other = Group(path), Group(path)
    other.tasks["plan"].dag.dag_id = "other"
    group.plan()
    other.plan(hours=2)
    other.submit()
    other.finish()
    group.submit()
    assert group.finish()["units"] == 4
    assert exported(path) == list(range(12))
