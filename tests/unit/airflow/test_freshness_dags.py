# SPDX-License-Identifier: Apache-2.0
"""What a task knows of a DAG, when a consumer is late."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow import settings
from sqlalchemy import create_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from airflow_changefeed.doctor.airflow import DagState
from airflow_changefeed.exceptions import AirflowUnavailableError
from airflow_changefeed.hooks.changefeed import AirflowVariables, find_dag
from tests.minors import since


class Supervisor:
    """Airflow's API as a task reaches it."""

    def __init__(self, dag: object, run: object) -> None:
        self.answers = {"GetDag": dag, "GetPreviousDagRun": SimpleNamespace(dag_run=run)}

    def send(self, question: Any) -> Any:
        """Answer, or fail."""
        answer = self.answers[type(question).__name__]
        if isinstance(answer, Exception):
            raise answer
        return answer


def api_error(status: int) -> Exception:
    """Return what a task gets if the API does not give it what it asked for."""
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse

    return AirflowRuntimeError(
        ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": status})
    )


FAILED_RUN = SimpleNamespace(run_id="r7", state=SimpleNamespace(value="failed"))


@since("3.2", "a task that sees whether a DAG is paused")
@pytest.mark.parametrize(
    ("dag", "run", "state"),
    [
        (SimpleNamespace(is_paused=True), None, DagState("hourly", is_paused=True)),
        (SimpleNamespace(is_paused=False), FAILED_RUN, DagState("hourly", True, False, "r7", "failed")),
        (api_error(404), None, DagState("hourly", is_there=False)),
    ],
    ids=["paused", "failed", "gone"],
)
def test_a_task_asks_airflow_s_api(
    monkeypatch: pytest.MonkeyPatch, dag: object, run: object, state: DagState
) -> None:
    """As it is not given the metadata database."""
    from airflow.sdk.execution_time import task_runner

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(dag, run), raising=False)
    assert find_dag("hourly") == state


@since("3.2", "a task that sees whether a DAG is paused")
def test_a_task_whose_airflow_does_not_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where to look."""
    from airflow.sdk.execution_time import task_runner

    away = Supervisor(api_error(500), None)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", away, raising=False)
    with pytest.raises(AirflowUnavailableError, match=r"state of DAG hourly: .* check Airflow's API server$"):
        find_dag("hourly")


def test_a_command_whose_metadata_database_is_new_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In one sentence, without the statement that failed."""
    engine = create_engine(f"sqlite:///{tmp_path / 'new.db'}")
    monkeypatch.setattr(settings, "Session", scoped_session(sessionmaker(engine)))
    for ask, doing in (
        (find_dag, "read the state of DAG hourly"),
        (AirflowVariables().get, "read Airflow Variable 'hourly'"),
        (AirflowVariables().keys, "list Airflow Variables 'hourly'"),
    ):
        with pytest.raises(AirflowUnavailableError) as refused:
            ask("hourly")
        assert refused.value.what.startswith(f"could not {doing}: OperationalError: no such table: ")
        assert refused.value.remedy.startswith("Run this where Airflow runs, with its configuration")
        assert refused.value.message == f"{refused.value.what}. {refused.value.remedy}"
    engine.dispose()
