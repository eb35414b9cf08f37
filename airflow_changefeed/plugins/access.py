# SPDX-License-Identifier: Apache-2.0
"""Permissions on the page: Airflow's own, from its auth manager."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
    VariableDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.configuration import conf
from airflow.models import Connection, Variable
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request

from airflow_changefeed.core.consumer import LONGEST_RUN
from airflow_changefeed.core.cursor import variable_key

#: Anybody who may open Airflow's UI may read. Users see only the DAGs that Airflow shows them.
reading = requires_access_view(AccessView.WEBSITE)
_SAME_ORIGIN = "same-origin"
#: Instead of the name of a run.
HIDDEN_RUN = "a run that you may not see"
# dag_id/run_id/task_id/try in a sentence; where it is cut, a process may stand behind the second part.
_RUN = re.compile(r"(?<![^\s'\"(])([\w.~-]+)/[^\s'\"()/]+[/@][^\s'\"(),;]+")


def readable_dags(user: Any) -> set[str]:
    """Return the ids of the DAGs that a user may see."""
    return set(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


def may_backfill(user: Any, dag_id: str) -> bool:
    """Whether a user may start a backfill."""
    return get_auth_manager().is_authorized_dag(
        method="POST", access_entity=DagAccessEntity.RUN, details=_dag(dag_id), user=user
    )


def may_pause(user: Any, dag_id: str) -> bool:
    """Whether a user may pause a DAG."""
    return get_auth_manager().is_authorized_dag(method="PUT", details=_dag(dag_id), user=user)


def may_see_runs(user: Any, dag_id: str) -> bool:
    """Whether a user may see the runs of a DAG."""
    return get_auth_manager().is_authorized_dag(
        method="GET", access_entity=DagAccessEntity.RUN, details=_dag(dag_id), user=user
    )


@dataclass(frozen=True)
class RunNames:
    """
    The names of runs that moved a cursor, hold a lease or wrote a file, as a user may read them.

    A feed's database and output have them whatever Airflow says of their DAGs.

    :param sees: takes a DAG's id; whether the user may see its runs.
    """

    sees: Callable[[str], bool]

    def shown(self, name: str | None) -> str | None:
        """
        Return the name of a run, person or program, or words instead of it.

        :param name: ``dag_id/run_id/task_id/try``, with its process behind it if it consumes; long ones are
            cut, and need not have more than a part of the DAG's id.
        """
        if name is None:
            return None
        run, _, process = name.partition("@")
        dag_id, slash, _ = run.partition("/")
        is_cut = bool(process) and len(run) == LONGEST_RUN
        return HIDDEN_RUN if (slash or is_cut) and not self.sees(dag_id) else name

    def in_text(self, text: str) -> str:
        """Return a sentence with names of runs as :meth:`shown`."""
        return _RUN.sub(lambda found: found[0] if self.sees(found[1]) else HIDDEN_RUN, text)


def run_names(user: GetUserDep) -> RunNames:
    """Return the names of runs as a user may read them; each DAG is asked about once in a request."""
    return RunNames(cache(lambda dag_id: may_see_runs(user, dag_id)))


Runs = Annotated[RunNames, Depends(run_names)]


def _dag(dag_id: str) -> DagDetails:
    return DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id) if _has_teams() else None)


def may_change(user: Any, database: str, consumer: str, feed: str) -> bool:
    """Whether a user may change the Variable that publishes a consumer's cursors, and so may move them."""
    key = variable_key(database, consumer, feed)
    team = Variable.get_team_name(key) if _has_teams() else None
    return get_auth_manager().is_authorized_variable(
        method="PUT", details=VariableDetails(key=key, team_name=team), user=user
    )


def may_change_variables(user: Any) -> bool:
    """Whether a user may change Variables, and so create consumers; each is asked about by its own name."""
    return get_auth_manager().is_authorized_variable(method="PUT", user=user)


def may_see_connection(user: Any, conn_id: str) -> bool:
    """Whether a user may see a connection, and so the address and the errors of its database."""
    return _may_connection("GET", user, conn_id)


def may_edit_connection(user: Any, conn_id: str) -> bool:
    """Whether a user may edit a connection, and so change the captures of its database."""
    return _may_connection("PUT", user, conn_id)


def _may_connection(method: Literal["GET", "PUT"], user: Any, conn_id: str) -> bool:
    team = Connection.get_team_name(conn_id) if _has_teams() else None
    return get_auth_manager().is_authorized_connection(
        method=method, details=ConnectionDetails(conn_id=conn_id, team_name=team), user=user
    )


def _has_teams() -> bool:
    return bool(conf.getboolean("core", "multi_team", fallback=False))


def same_origin(request: Request) -> None:
    """
    Refuse cross-site requests, which a browser sends with this user's cookie.

    Only JSON is accepted, because an HTML form cannot send it.

    :raises HTTPException: 403 for another origin, 415 for anything but JSON.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "Content-Type must be application/json")
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    # Browsers without Sec-Fetch-Site send Origin; programs send neither.
    if site is not None:
        is_ours = site == _SAME_ORIGIN
    else:
        ours = {request.url.netloc, _host(conf.get("api", "base_url", fallback="") or "")} - {""}
        is_ours = origin is None or _host(origin) in ours
    if not is_ours:
        raise HTTPException(403, "Changes are accepted only from Airflow's own pages, not from another site")


def _host(url: str) -> str:
    return urlsplit(url).netloc
