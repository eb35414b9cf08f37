# SPDX-License-Identifier: Apache-2.0
"""From Airflow's connections and Variables to feeds."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
    InvalidArgumentError,
    SourceUnavailableError,
)
from airflow_changefeed.hooks.changefeed_connection import DESCRIBE
from airflow_changefeed.hooks.changefeed_secrets import hide_secrets
from airflow_changefeed.sources import SOURCES, open_source

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_changefeed.core.cursor import CursorRow
    from airflow_changefeed.sources.base import FeedSource

DEFAULT_LOCK_TIMEOUT = 60.0


class ChangefeedHook(BaseHook):
    """
    Open the feeds that an Airflow connection points at, and the Variables that publish cursors.

    The connection's type decides where the feeds live. ``sqlite``: a file, its path in the field *host*.
    ``mssql``: a database of SQL Server, in the fields of the ``microsoft.mssql`` provider (host, port, schema
    for the database, login, password); its extra may hold ``encrypt`` (yes, no, strict),
    ``trust_server_certificate``, ``read_only_replica`` (yes, no), ``changefeed_schema``, and the options of
    docs/reference/sql-server-connection.md: how to log in (Entra ID, Kerberos), certificates, time-outs.
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

        :raises ConnectionNotUsableError: no such connection, or one that holds no feeds; terminal.
        """
        connection = self._connection()
        kind = connection.conn_type
        if kind not in SOURCES:
            raise ConnectionNotUsableError(
                f"connection {self.changefeed_conn_id!r} is of type {kind!r}, which holds no feeds; use one "
                f"of {', '.join(sorted(SOURCES))}",
                conn_id=self.changefeed_conn_id,
                type=kind,
            )
        return {"type": kind, **DESCRIBE[kind](connection), "lock_timeout": self._lock_timeout(connection)}

    def source(self) -> FeedSource:
        """
        Open the source.

        :raises ConnectionNotUsableError: no such connection, or one that holds no feeds; terminal.
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
        Take over what a person wrote into a consumer's Variable; see
        :func:`~airflow_changefeed.cursors.recovery.adopt`.
        """
        from airflow_changefeed.cursors import recovery

        return recovery.adopt(self.source(), self.variables(), consumer, feed, by=by)

    def publish(self, consumer: str, feed: str) -> list[CursorRow]:
        """Overwrite a consumer's Variable; see :func:`~airflow_changefeed.cursors.recovery.publish`."""
        from airflow_changefeed.cursors import recovery

        return recovery.publish(self.source(), self.variables(), consumer, feed)

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the connection can be used, and its feeds."""
        try:
            feeds = self.source().feeds()
        except ChangefeedError as error:
            return False, f"{type(error).__name__}: {error}"
        return (
            True,
            f"{len(feeds)} feeds: {', '.join(feed.name for feed in feeds[:10])}" if feeds else "no feeds yet",
        )

    def _connection(self) -> Connection:
        from airflow.sdk.exceptions import AirflowNotFoundException

        try:
            connection = self.get_connection(self.changefeed_conn_id)
        except AirflowNotFoundException:
            raise ConnectionNotUsableError(
                f"Airflow has no connection {self.changefeed_conn_id!r}: create it (airflow connections add "
                f"{self.changefeed_conn_id} --conn-type sqlite --conn-host /path/to/feeds.db), or name "
                "another one by changefeed_conn_id",
                conn_id=self.changefeed_conn_id,
            ) from None
        hide_secrets(connection.extra_dejson)
        return connection

    def _lock_timeout(self, connection: Connection) -> float:
        if self.lock_timeout is not None:
            return self.lock_timeout
        text = connection.extra_dejson.get("lock_timeout", DEFAULT_LOCK_TIMEOUT)
        try:
            return float(text)
        except (TypeError, ValueError):
            raise InvalidArgumentError(
                f"connection {self.changefeed_conn_id!r}: lock_timeout in its extra must be seconds, not "
                f"{text!r}",
                conn_id=self.changefeed_conn_id,
            ) from None


class AirflowVariables:
    """
    Airflow's Variables, in tasks and outside; implements
    :class:`~airflow_changefeed.cursors.cursors.VariableStore`.

    In a task, an API that fails for a moment looks like a Variable that does not exist; outside, so does a
    secrets backend that fails. Absence counts only when a listing, which raises on errors, confirms it.
    """

    def get(self, key: str) -> str | None:
        """
        Return a Variable's text; None only when it certainly does not exist.

        :raises SourceUnavailableError: Airflow did not answer; transient.
        """
        with _named_errors(f"read Airflow Variable {key!r}"):
            value = _get_in_task(key) if _is_in_task() else _get_in_server(key)
            if value is None and key in (_keys_in_task(key) if _is_in_task() else _keys_in_server(key)):
                raise SourceUnavailableError(
                    f"Airflow lists Variable {key!r} but did not give its value; retry", key=key
                )
            return value

    def keys(self, prefix: str) -> list[str]:
        """
        Return the names of the Variables that begin so.

        :raises SourceUnavailableError: Airflow did not answer; transient.
        """
        with _named_errors(f"list Airflow Variables {prefix!r}"):
            return _keys_in_task(prefix) if _is_in_task() else _prefixed_in_server(prefix)

    def set(self, key: str, value: str) -> None:
        """
        Write a Variable.

        :raises SourceUnavailableError: Airflow did not take it; transient.
        """
        with _named_errors(f"write Airflow Variable {key!r}"):
            description = (
                "Published by airflow_changefeed: where a consumer stands. Edit it, then adopt or publish."
            )
            if _is_in_task():
                from airflow.sdk import Variable

                Variable.set(key, value, description=description)
            else:
                from airflow.models import Variable as ServerVariable

                ServerVariable.set(key, value, description=description)

    def delete(self, key: str) -> None:
        """
        Remove a Variable; harmless if it does not exist.

        :raises SourceUnavailableError: Airflow did not answer; transient.
        """
        with _named_errors(f"delete Airflow Variable {key!r}"):
            if _is_in_task():
                from airflow.sdk import Variable

                Variable.delete(key)
            else:
                from airflow.models import Variable as ServerVariable

                ServerVariable.delete(key)


def _is_in_task() -> bool:
    import sys

    # As Airflow itself decides; the module is there only in a task, a triggerer or a DAG processor.
    return (
        getattr(sys.modules.get("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS", None)
        is not None
    )


def _get_in_task(key: str) -> str | None:
    from airflow.sdk import Variable

    value: str | None = Variable.get(key, default=None)
    return value


def _keys_in_task(key: str) -> list[str]:
    from airflow.sdk import Variable

    return list(Variable.keys(prefix=key))


def _get_in_server(key: str) -> str | None:
    from airflow.models import Variable as ServerVariable

    value: str | None = ServerVariable.get(key, default_var=None)
    return value


def _keys_in_server(key: str) -> list[str]:
    from airflow.models import Variable as ServerVariable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return list(session.scalars(select(ServerVariable.key).where(ServerVariable.key == key)))


def _prefixed_in_server(prefix: str) -> list[str]:
    from airflow.models import Variable as ServerVariable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = select(ServerVariable.key).where(ServerVariable.key.startswith(prefix, autoescape=True))
        return sorted(session.scalars(found))


@contextlib.contextmanager
def _named_errors(doing: str) -> Any:
    from airflow.sdk.exceptions import AirflowRuntimeError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (AirflowRuntimeError, SQLAlchemyError, OSError) as error:
        raise SourceUnavailableError(f"could not {doing}: {type(error).__name__}: {error}") from error
