# SPDX-License-Identifier: Apache-2.0
"""The page in this process, mounted as Airflow mounts it, and users with roles of Airflow's auth manager."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.dag_processing.collection import update_dag_parsing_results_in_db
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import delete, func, select, update

from airflow_changefeed import ChangefeedToParquetOperator
from airflow_changefeed.plugins.changefeed import URL_PREFIX, ChangefeedPlugin
from tests.unit.airflow.conftest import CONSUMER, FEED, START

CONN_ID = "changefeed_default"
BUNDLE = "page-tests"
# Airflow makes one of its own where there is none, and warns that it is short.
os.environ["AIRFLOW__API_AUTH__JWT_SECRET"] = secrets.token_hex(64)


@cache
def mounted() -> FastAPI:
    """Return an application that has the page where Airflow's has it."""
    app = FastAPI()
    for one in ChangefeedPlugin.fastapi_apps:
        app.mount(one["url_prefix"], one["app"])
    return app


@cache
def token(role: str) -> str:
    """Log somebody in."""
    return create_auth_manager().generate_jwt(SimpleAuthManagerUser(username=role.lower(), role=role))


def store_dags(*dags: DAG) -> None:
    """Write DAGs where the DAG processor writes them."""
    with create_session() as session:
        if session.get(DagBundleModel, BUNDLE) is None:
            session.add(DagBundleModel(name=BUNDLE))
            session.flush()
        lazy = [LazyDeserializedDAG.from_dag(dag) for dag in dags]
        update_dag_parsing_results_in_db(BUNDLE, None, lazy, {}, None, set(), session)


def store_export(dag_id: str, schedule: Any, *tasks: Mapping[str, Any], **dag_arguments: Any) -> None:
    """
    Store a DAG of exports.

    :param schedule: a timetable, or the cron of intervals in UTC.
    :param tasks: arguments of each; what is not given is a task ``export`` of the usual feed and consumer.
    """
    if isinstance(schedule, str):
        schedule = CronDataIntervalTimetable(schedule, timezone="UTC")
    with DAG(dag_id, schedule=schedule, **{"start_date": START, "catchup": False, **dag_arguments}) as dag:
        for task in tasks:
            given = {"task_id": "export", "feed": FEED, "consumer": CONSUMER, "conn_id": "spark", **task}
            ChangefeedToParquetOperator(**given)
    store_dags(dag)


def pause(dag_id: str, *, is_paused: bool) -> None:
    """Pause a DAG, or let it go on."""
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(is_paused=is_paused))


def add_run(
    dag_id: str, start: datetime | None, state: DagRunState = DagRunState.RUNNING, **values: Any
) -> None:
    """Write a run of an hour, or of no interval."""
    hour = timedelta(hours=1)
    given: dict[str, Any] = {
        "run_id": f"run_{start or START:%d_%H}",
        "run_type": DagRunType.BACKFILL_JOB if start else DagRunType.MANUAL,
        "run_after": start or START,
        "triggered_by": DagRunTriggeredByType.BACKFILL,
        **({"data_interval": (start, start + hour)} if start else {}),
    }
    with create_session() as session:
        session.add(DagRun(dag_id=dag_id, logical_date=start, state=state, **{**given, **values}))


def remove_runs(*dag_ids: str) -> None:
    """Remove all runs of DAGs."""
    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id.in_(dag_ids)))


def logged() -> int:
    """Return how many changes of OP on the page are in Airflow's audit log."""
    with create_session() as session:
        count = select(func.count()).select_from(Log)
        return session.scalar(count.where(Log.event.like("changefeed_%"), Log.owner == "op")) or 0


@dataclass
class Visitor:
    """
    Somebody who asks the page's server.

    :param role: of Airflow's simple auth manager; None for somebody who is not logged in.
    """

    role: str | None

    def __post_init__(self) -> None:
        self.client = TestClient(mounted(), base_url="http://testserver")
        if self.role is not None:
            self.client.cookies.set("_token", token(self.role))

    def ask(self, path: str, status: int = 200, **values: Any) -> Any:
        """Read something of the page's API, and check how it was answered."""
        answer = self.client.get(f"{URL_PREFIX}/api/{path}", params=values)
        assert answer.status_code == status, answer.text
        return answer.json()

    def post(self, path: str, body: Any, **values: Any) -> Any:
        """Change something, as the page itself does; return the answer, whatever it is."""
        headers = {"Sec-Fetch-Site": "same-origin"}
        return self.client.post(f"{URL_PREFIX}/api/{path}", params=values, json=body, headers=headers)

    def send(self, path: str, body: Any, status: int = 200, **values: Any) -> Any:
        """Change something, and check how it was answered."""
        answer = self.post(path, body, **values)
        assert answer.status_code == status, answer.text
        return answer.json()


def listed(feed: str = FEED, role: str = "OP") -> dict[str, Any]:
    """Return what the list of feeds says of one."""
    (found,) = [one for one in Visitor(role).ask("feeds", conn_id=CONN_ID)["feeds"] if one["feed"] == feed]
    return dict(found)
