# SPDX-License-Identifier: Apache-2.0
"""What a task knows of a DAG, when a consumer is late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_changefeed.doctor.dags import DagState
from airflow_changefeed.hooks.metadata.dags import find_dag
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
        (api_error(500), None, None),
    ],
    ids=["paused", "failed", "gone", "away"],
)
def test_a_task_asks_airflow_s_api(
    monkeypatch: pytest.MonkeyPatch, dag: object, run: object, state: DagState | None
) -> None:
    """And goes on without an answer."""
    from airflow.sdk.execution_time import task_runner

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(dag, run), raising=False)
    assert find_dag("hourly") == state
