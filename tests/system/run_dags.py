# SPDX-License-Identifier: Apache-2.0
"""
Run DAGs, those of Airflow's DAG folder, with the metadata database of Airflow's home.

``python -m tests.system.run_dags '[["changefeed_hourly", "2013-01-01T01:00:00+00:00", null]]'``: DAG, what
its run is about, and run configuration of each. A logical date is run by ``dag.test()``; ``"partition:KEY"``
is triggered as from the UI; ``"assets"`` is the run that Airflow's scheduler makes when assets have changed;
``"partitions"`` the one that it makes when all partitions that a DAG waits for are there; ``"no date"`` has
no logical date.
The last line of the output is JSON: the states, the tasks' results, and the Variables by key.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from datetime import datetime, timezone
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_changefeed.version_compat import AIRFLOW_V_3_1_PLUS, AIRFLOW_V_3_2_PLUS
from tests.minors import DAGBAG, dag_serialization

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG


def run(runs: list[tuple[str, str, dict[str, Any] | None]]) -> None:
    """Run one after the other, and print what became of them."""
    from airflow.models import Variable
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    bag = import_module(DAGBAG).DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
    if not AIRFLOW_V_3_1_PLUS:  # later ones do so before a DAG's first test
        _synchronize()
    made = []
    for name, about, conf in runs:
        for task in bag.dags[name].tasks:
            # dag.test sleeps between tries; a mapped task has no attribute to set.
            getattr(task, "partial_kwargs", task.__dict__)["retries"] = 0
        done = _run(bag.dags[name], about, conf)
        made.append((name, done.run_id, str(done.state)))
    with create_session() as session:
        variables = {variable.key: variable.val for variable in session.query(Variable)}
        results = [
            [
                given.value
                for given in session.query(XComModel)
                .filter_by(dag_id=name, run_id=run_id, key="return_value")
                .order_by(XComModel.task_id, XComModel.map_index)
            ]
            for name, run_id, _ in made
        ]
    print(json.dumps({"states": [state for *_, state in made], "results": results, "variables": variables}))


def _run(dag: DAG, about: str, conf: dict[str, Any] | None) -> DagRun:
    if about == "partitions":
        return _run_tasks(dag, _rolled_up(dag))
    if about == "assets":
        return _run_tasks(dag, _due(dag))
    if about == "no date":
        return dag.test(logical_date=None, run_conf=conf)
    if about.startswith("partition:"):
        return _run_tasks(dag, _triggered(dag, about.removeprefix("partition:")))
    return dag.test(logical_date=datetime.fromisoformat(about), run_conf=conf)


def _triggered(dag: DAG, partition_key: str) -> str:
    """Trigger a partition as a person does, and return its run's id."""
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.utils.types import DagRunTriggeredByType

    _synchronize()
    run = trigger_dag(dag.dag_id, triggered_by=DagRunTriggeredByType.UI, partition_key=partition_key)
    assert run is not None
    return run.run_id


def _synchronize() -> None:
    """Write the folder's DAGs into the database, as the DAG processor does."""
    from airflow.cli.commands.dag_command import dag_reserialize

    dag_reserialize(Namespace(bundle_name=None))


def _due(dag: DAG) -> str:
    """Let Airflow's scheduler make the run that a DAG's assets ask for, and return its id."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        model = session.get(DagModel, dag.dag_id)
        assert model is not None, f"{dag.dag_id} is not in the database yet"
        now = {dag.dag_id: datetime.now(timezone.utc)}
        times = {} if AIRFLOW_V_3_2_PLUS else {"triggered_date_by_dag": now}
        SchedulerJobRunner(Job())._create_dag_runs_asset_triggered(
            dag_models=[model], **times, session=session
        )
        run = session.query(DagRun).filter_by(dag_id=dag.dag_id).order_by(DagRun.id.desc()).first()
        assert run is not None, f"no asset has asked for a run of {dag.dag_id}"
        return str(run.run_id)


def _rolled_up(dag: DAG) -> str:
    """Let Airflow's scheduler make the run of a partition whose parts are there, and return its id."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        SchedulerJobRunner(Job())._create_dagruns_for_partitioned_asset_dags(session)
        run = session.query(DagRun).filter_by(dag_id=dag.dag_id).one_or_none()
        assert run is not None, f"no partition that {dag.dag_id} waits for is whole"
        return str(run.run_id)


def _run_tasks(dag: DAG, run_id: str) -> DagRun:
    """Run a run's tasks, as ``dag.test`` runs those of its own runs."""
    from airflow.models.dagrun import DagRun
    from airflow.sdk.definitions.dag import _run_task
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState

    with create_session() as session:
        run = session.query(DagRun).filter_by(dag_id=dag.dag_id, run_id=run_id).one()
        server = dag_serialization()
        run.dag = server.deserialize_dag(server.serialize_dag(dag)) if AIRFLOW_V_3_1_PLUS else dag
        run.state = DagRunState.RUNNING
        session.commit()
        while run.state == DagRunState.RUNNING:
            session.expire_all()
            ready, _ = run.update_state(session=session)
            for ti in ready:
                ti.try_number += 1
                ti.state = TaskInstanceState.SCHEDULED
            session.commit()
            for ti in ready:
                ti.task = dag.task_dict[ti.task_id]
                _run_task(ti=ti, run_triggerer=True, **({"task": ti.task} if AIRFLOW_V_3_1_PLUS else {}))
        session.expunge_all()
        return run


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
