# SPDX-License-Identifier: Apache-2.0
"""The page in this process, mounted as Airflow mounts it, and users with roles of Airflow's auth manager."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import Any

from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.dag_processing.collection import update_dag_parsing_results_in_db
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.session import create_session
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import update

from airflow_changefeed.plugins.changefeed import URL_PREFIX, ChangefeedPlugin

CONN_ID = "changefeed_default"
BUNDLE = "page-tests"
# Airflow makes one of its own where there is none, and warns that it is short.
os.environ["AIRFLOW__API_AUTH__JWT_SECRET"] = secrets.token_hex(64)


def mounted() -> FastAPI:
    """Return an application that has the page where Airflow's has it."""
    app = FastAPI()
    for one in ChangefeedPlugin.fastapi_apps:
        app.mount(one["url_prefix"], one["app"])
    return app


def store_dags(*dags: DAG) -> None:
    """Write DAGs where the DAG processor writes them."""
    with create_session() as session:
        if session.get(DagBundleModel, BUNDLE) is None:
            session.add(DagBundleModel(name=BUNDLE))
            session.flush()
        lazy = [LazyDeserializedDAG.from_dag(dag) for dag in dags]
        update_dag_parsing_results_in_db(BUNDLE, None, lazy, {}, None, set(), session)


def pause(dag_id: str, *, is_paused: bool) -> None:
    """Pause a DAG, or let it go on."""
    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(is_paused=is_paused))


@dataclass
class Visitor:
    """
    Somebody who asks the page's server.

    :param role: of Airflow's simple auth manager; None for somebody who is not logged in.
    """

    role: str | None

    def __post_init__(self) -> None:
        self.client = TestClient(mounted(), base_url="http://testserver")
        manager = create_auth_manager()
        if self.role is not None:
            token = manager.generate_jwt(SimpleAuthManagerUser(username=self.role.lower(), role=self.role))
            self.client.cookies.set("_token", token)

    def ask(self, path: str, status: int = 200, **values: Any) -> Any:
        """Read something of the page's API, and check how it was answered."""
        answer = self.client.get(f"{URL_PREFIX}/api/{path}", params=values)
        assert answer.status_code == status, answer.text
        return answer.json()

    def send(self, path: str, body: dict[str, Any], status: int = 200, **values: Any) -> Any:
        """Change something, as the page itself does."""
        headers = {"Sec-Fetch-Site": "same-origin"}
        answer = self.client.post(f"{URL_PREFIX}/api/{path}", params=values, json=body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()
