# SPDX-License-Identifier: Apache-2.0
"""
Run the tasks of a DAG in this process, as a worker would: until they defer, and again when they may go on.

``python -m tests.system.deferred begin '{"dag_id": "waiting", "host": "/feeds.db", "window": [start, end]}'``
makes the connection ``changefeed_default`` and a run, and runs its tasks up to where they defer; ``go_on``
with the DAG's id alone runs those whose trigger has fired. Both print JSON at the end: the tasks' states, and
their results by map index.

No scheduler takes part, which would fork a worker for each task, and twice.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk import DAG

RUN_ID = "waiting"


def load(dag_id: str) -> DAG:
    """Parse the DAG folder, and tell Airflow's database of what is in it."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db

    manager = DagBundlesManager()
    manager.sync_bundles_to_db()
    (bundle,) = manager.get_all_dag_bundles()
    bundle.initialize()
    bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
    sync_bag_to_db(bag, bundle.name, bundle.version)
    return bag.dags[dag_id]


def begin(dag_id: str, host: str, window: tuple[str, str]) -> None:
    """Make a connection and a run, and run all of its tasks."""
    from airflow.models import Connection
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    dag = load(dag_id)
    start, end = (datetime.fromisoformat(time) for time in window)
    with create_session() as session:
        session.add(Connection(conn_id="changefeed_default", conn_type="sqlite", host=host))
        run = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)).create_dagrun(
            run_id=RUN_ID,
            logical_date=start,
            data_interval=(start, end),
            run_after=datetime.now(timezone.utc),
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state=DagRunState.RUNNING,
            session=session,
        )
        session.flush()
        tasks, _ = run.update_state(session=session)
        for task in tasks:
            task.try_number += 1
            task.state = TaskInstanceState.SCHEDULED
    go_on(dag_id)


def go_on(dag_id: str) -> None:
    """Run the tasks that wait for a worker."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select

    with create_session() as session:
        tasks = session.scalars(
            select(TaskInstance).where(TaskInstance.state == TaskInstanceState.SCHEDULED)
        ).all()
        for task in tasks:
            task.state = TaskInstanceState.QUEUED
        session.flush()
        session.expunge_all()
    dag = load(dag_id)
    for task in tasks:
        work(dag, task)


def work(dag: DAG, task: TaskInstance) -> None:
    """Run one task, as ``dag.test()`` does."""
    from airflow.sdk.api.datamodels._generated import TaskInstance as WorkersTaskInstance
    from airflow.sdk.execution_time.supervisor import run_task_in_process

    run_task_in_process(
        ti=WorkersTaskInstance(
            id=UUID(str(task.id)),
            task_id=task.task_id,
            dag_id=task.dag_id,
            run_id=task.run_id,
            try_number=task.try_number,
            map_index=task.map_index,
            dag_version_id=UUID(str(task.dag_version_id)),
        ),
        task=dag.task_dict[task.task_id],
    )


def outcome() -> dict[str, Any]:
    """Return the states of the tasks, and their results."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        states = list(session.scalars(select(TaskInstance.state)))
        results = session.execute(
            select(XComModel.map_index, XComModel.value).where(XComModel.key == "return_value")
        )
        return {"states": states, "results": dict(results.tuples().all())}


if __name__ == "__main__":
    # Also the API that tasks talk to is in this process, and looks connections up in the database.
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    {"begin": begin, "go_on": go_on}[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps(outcome()))
