# SPDX-License-Identifier: Apache-2.0
"""The state of a DAG: by Airflow's API in a task, from its metadata database outside."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow_changefeed.doctor.dags import DagState
from airflow_changefeed.hooks.changefeed_variables import is_in_task, named_errors
from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS

_NOT_FOUND = 404


def find_dag(dag_id: str) -> DagState:
    """
    Return what Airflow knows of a DAG.

    In a task, Airflow says only from 3.2 on whether a DAG is paused or gone, and the last run is that of the
    latest logical date.

    :raises AirflowUnavailableError: Airflow did not answer.
    """
    with named_errors(f"read the state of DAG {dag_id}"):
        return _find_in_task(dag_id) if is_in_task() else _find_in_server(dag_id)


def _find_in_task(dag_id: str) -> DagState:
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.comms import GetPreviousDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    is_paused = None
    if AIRFLOW_V_3_2_PLUS:
        from airflow.sdk.execution_time.comms import GetDag

        try:
            dag: Any = SUPERVISOR_COMMS.send(GetDag(dag_id=dag_id))
        except AirflowRuntimeError as error:
            if (error.error.detail or {}).get("status_code") == _NOT_FOUND:
                return DagState(dag_id, is_there=False)
            raise
        is_paused = bool(dag.is_paused)
    latest = datetime.max.replace(tzinfo=timezone.utc)
    answer: Any = SUPERVISOR_COMMS.send(GetPreviousDagRun(dag_id=dag_id, logical_date=latest))
    run = answer.dag_run
    if run is None:
        return DagState(dag_id, is_paused=is_paused)
    return DagState(dag_id, is_paused=is_paused, last_run=run.run_id, last_state=str(run.state.value))


def _find_in_server(dag_id: str) -> DagState:
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        dag = session.get(DagModel, dag_id)
        if dag is None or dag.is_stale:
            return DagState(dag_id, is_there=False)
        runs = select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.run_after.desc()).limit(1)
        run = session.scalar(runs)
        if run is None:
            return DagState(dag_id, is_paused=bool(dag.is_paused))
        return DagState(dag_id, is_paused=bool(dag.is_paused), last_run=run.run_id, last_state=str(run.state))
