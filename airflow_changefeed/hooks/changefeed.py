# SPDX-License-Identifier: Apache-2.0
"""From Airflow's connections and Variables to feeds, in tasks and outside."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_changefeed.connections.connection import DESCRIBE, find_connection, hide_secrets
from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.values import read_value
from airflow_changefeed.doctor.airflow import DagState
from airflow_changefeed.exceptions import AirflowUnavailableError, ChangefeedError, ConnectionNotUsableError
from airflow_changefeed.sources import SOURCES, open_source
from airflow_changefeed.version_compat import AIRFLOW_V_3_2_PLUS, AIRFLOW_V_3_3_PLUS, BaseHook

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Connection

    from airflow_changefeed.core.cursor import CursorRow
    from airflow_changefeed.doctor.freshness import Freshness
    from airflow_changefeed.sources.base import FeedSource


#: What to do if Airflow does not answer.
_IN_TASK = "Retry; if the error persists, check Airflow's API server"
_IN_SERVER = (
    "Run this where Airflow runs, with its configuration (sql_alchemy_conn) and its metadata database; a new "
    "database needs airflow db migrate"
)


class AirflowVariables:
    """
    Airflow's Variables, in tasks and outside; implements
    :class:`~airflow_changefeed.cursors.cursors.VariableStore`.

    In a task, an API that fails for a moment looks like a Variable that does not exist; outside, so does a
    secrets backend that fails. Absence counts only when the API itself or the metadata database confirms it.
    Before Airflow 3.3 a write that fails in a task is only logged, so it is read back. Where Airflow does not
    answer, each method raises AirflowUnavailableError.
    """

    def get(self, key: str) -> str | None:
        """Return a Variable's text; None only when it certainly does not exist."""
        with named_errors(f"read Airflow Variable {key!r}"):
            get, stored = (
                (_get_in_task, _stored_in_task) if is_in_task() else (_get_in_server, _stored_in_server)
            )
            # Somebody may create it between the two looks, so it is read once more.
            if (value := get(key)) is None and stored(key) is not None and (value := get(key)) is None:
                raise AirflowUnavailableError.of(
                    f"Airflow has Variable {key!r} but did not return its value",
                    "Retry; if the error persists, the Variable was written with another core.fernet_key",
                )
            return value

    def keys(self, prefix: str) -> list[str]:
        """Return the names of the Variables with this prefix; not in a task."""
        with named_errors(f"list Airflow Variables {prefix!r}"):
            return _prefixed_in_server(prefix)

    def set(self, key: str, value: str) -> None:
        """Write a Variable."""
        with named_errors(f"write Airflow Variable {key!r}"):
            description = (
                "Published by airflow_changefeed: the cursors of a consumer. After an edit, run cursor "
                "adopt or cursor publish."
            )
            if is_in_task():
                from airflow.sdk import Variable

                Variable.set(key, value, description=description)
                _confirm(key, value)
            else:
                from airflow.models import Variable as ServerVariable

                ServerVariable.set(key, value, description=description)

    def delete(self, key: str) -> None:
        """Remove a Variable; harmless if it does not exist."""
        with named_errors(f"delete Airflow Variable {key!r}"):
            if is_in_task():
                from airflow.sdk import Variable

                Variable.delete(key)
                _confirm(key, None)
            else:
                from airflow.models import Variable as ServerVariable

                ServerVariable.delete(key)


def is_in_task() -> bool:
    """Whether this process reaches Airflow by its API alone: a task, a triggerer or a DAG processor."""
    # As Airflow itself decides; the module is there only in these.
    return (
        getattr(sys.modules.get("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS", None)
        is not None
    )


def _get_in_task(key: str) -> str | None:
    from airflow.sdk import Variable

    value: str | None = Variable.get(key, default=None)
    return value


def _stored_in_task(key: str) -> str | None:
    """Ask the API alone; unlike ``Variable.get``, raises if it does not answer."""
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, GetVariable
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    answer: Any = SUPERVISOR_COMMS.send(GetVariable(key=key))
    if isinstance(answer, ErrorResponse):
        if answer.error == ErrorType.VARIABLE_NOT_FOUND:
            return None
        raise AirflowRuntimeError(answer)
    value: str | None = answer.value
    return value


def _confirm(key: str, value: str | None) -> None:
    """Before Airflow 3.3 a task's ``Variable.set`` and ``delete`` only log what goes wrong."""
    if not AIRFLOW_V_3_3_PLUS and _stored_in_task(key) != value:
        raise AirflowUnavailableError.of(f"Airflow did not take the change of Variable {key!r}", "Retry")


def _get_in_server(key: str) -> str | None:
    from airflow.models import Variable as ServerVariable

    value: str | None = ServerVariable.get(key, default_var=None)
    return value


def _stored_in_server(key: str) -> str | None:
    """Ask the metadata database alone; unlike ``Variable.get``, sees nothing else."""
    from airflow.models import Variable as ServerVariable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found: str | None = session.scalar(select(ServerVariable.key).where(ServerVariable.key == key))
        return found


def _prefixed_in_server(prefix: str) -> list[str]:
    from airflow.models import Variable as ServerVariable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = select(ServerVariable.key).where(ServerVariable.key.startswith(prefix, autoescape=True))
        return sorted(session.scalars(found))


@contextlib.contextmanager
def named_errors(doing: str) -> Any:
    """Raise AirflowUnavailableError, with what failed, in place of Airflow's and SQLAlchemy's errors."""
    from airflow.sdk.exceptions import AirflowRuntimeError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (AirflowRuntimeError, SQLAlchemyError, OSError) as error:
        # The driver's own words, without the statement and SQLAlchemy's address.
        cause = getattr(error, "orig", None) or error
        what = f"could not {doing}: {type(cause).__name__}: {' '.join(str(cause).split()).rstrip('.')}"
        raise AirflowUnavailableError.of(what, _IN_TASK if is_in_task() else _IN_SERVER) from error


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


class ChangefeedHook(BaseHook):
    """
    Open the feeds that an Airflow connection points at, and the Variables that publish cursors.

    The connection's type decides where the feeds live. ``sqlite``: a file, its path in the field *host*.
    ``mssql``: a database of SQL Server, in the fields of the ``microsoft.mssql`` provider (host, port, schema
    for the database, login, password); its extra may hold ``encrypt`` (yes, no, strict),
    ``trust_server_certificate``, ``read_only_replica`` (yes, no), ``changefeed_schema``, and the options of
    docs/reference/connections.md: login (Entra ID, Kerberos), certificates, time-outs.
    Both extras may hold ``lock_timeout``.

    :param changefeed_conn_id: id of the connection.
    :param lock_timeout: seconds to wait for locks, 0 to 86,400; None takes the connection's extra,
        else 60.
    """

    conn_name_attr = "changefeed_conn_id"
    default_conn_name = "changefeed_default"
    hook_name = "Changefeed"

    def __init__(
        self, changefeed_conn_id: str = default_conn_name, *, lock_timeout: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.changefeed_conn_id = changefeed_conn_id
        self.lock_timeout = lock_timeout

    def __repr__(self) -> str:
        return f"ChangefeedHook({self.changefeed_conn_id!r})"

    def describe(self) -> dict[str, Any]:
        """
        Describe the source for :func:`~airflow_changefeed.sources.open_source`; may hold secrets.

        :raises ConnectionNotUsableError: no such connection, or one that holds no feeds.
        :raises InvalidArgumentError: its extra has invalid values; all are named.
        """
        connection = self._connection()
        kind = connection.conn_type
        if kind not in SOURCES:
            raise ConnectionNotUsableError(
                f"connection {self.changefeed_conn_id!r} is of type {kind!r}, which cannot hold feeds; "
                f"use one of {', '.join(sorted(SOURCES))}",
                conn_id=self.changefeed_conn_id,
                type=kind,
            )
        described = {"type": kind, **DESCRIBE[kind](connection)}
        return described if self.lock_timeout is None else {**described, "lock_timeout": self.lock_timeout}

    def source(self) -> FeedSource:
        """
        Open the source.

        :raises ConnectionNotUsableError: no such connection, or one that holds no feeds.
        """
        return open_source(self.describe())

    def get_conn(self) -> FeedSource:
        """Return the source; every hook has this method."""
        return self.source()

    def variables(self) -> AirflowVariables:
        """Return Airflow's Variables, as :mod:`airflow_changefeed.cursors.cursors` uses them."""
        return AirflowVariables()

    def adopt(self, consumer: str, feed: str, *, by: str = "adopt") -> list[CursorRow]:
        """
        Set the cursors to what a person wrote into a consumer's Variable; see
        :func:`~airflow_changefeed.cursors.recovery.adopt`.
        """
        from airflow_changefeed.cursors import recovery

        return recovery.adopt(self.source(), self.variables(), consumer, feed, by=by)

    def publish(self, consumer: str, feed: str) -> list[CursorRow]:
        """Overwrite a consumer's Variable; see :func:`~airflow_changefeed.cursors.recovery.publish`."""
        from airflow_changefeed.cursors import recovery

        return recovery.publish(self.source(), self.variables(), consumer, feed)

    def freshness(
        self,
        max_age: timedelta | float | str,
        *,
        feed: str | Sequence[str] | None = None,
        consumer: str | None = None,
    ) -> Freshness:
        """
        Compute how old consumers' frontiers are, and why one is older than ``max_age``; see
        :func:`~airflow_changefeed.doctor.freshness.check_freshness`.

        :param max_age: a ``timedelta``, seconds, or a text such as ``2h``.
        """
        from airflow_changefeed.doctor.freshness import check_freshness
        from airflow_changefeed.tasks.arguments import MAX_AGE

        age = read_value("max_age", max_age, MAX_AGE)
        with closing(self.source()) as source:
            found = check_freshness(source, self.variables(), find_dag, age, feed=feed, consumer=consumer)
        return found.with_conn_id(self.changefeed_conn_id)

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the connection can be used, and its feeds."""
        try:
            feeds = self.source().feeds()
        except ChangefeedError as error:
            return False, f"{type(error).__name__}: {error}"
        names = ", ".join(feed.name for feed in feeds[:10])
        return True, f"{counted(len(feeds), 'feed')}: {names}" if feeds else "no feeds yet"

    def _connection(self) -> Connection:
        connection = find_connection(
            self.changefeed_conn_id,
            f"create it (airflow connections add {self.changefeed_conn_id} --conn-type mssql "
            "--conn-host SERVER --conn-schema DATABASE --conn-login LOGIN --conn-password ..., or "
            "--conn-type sqlite --conn-host /path/to/feeds.db), or name another connection with "
            "changefeed_conn_id (--conn-id)",
        )
        hide_secrets(connection.extra_dejson)
        return connection
