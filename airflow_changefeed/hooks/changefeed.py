# SPDX-License-Identifier: Apache-2.0
"""From Airflow's connections and Variables to feeds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.values import read_value
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
)
from airflow_changefeed.hooks.changefeed_connection import DESCRIBE, find_connection
from airflow_changefeed.hooks.changefeed_secrets import hide_secrets
from airflow_changefeed.hooks.changefeed_variables import AirflowVariables
from airflow_changefeed.sources import SOURCES, open_source
from airflow_changefeed.version_compat import BaseHook

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Connection

    from airflow_changefeed.core.cursor import CursorRow
    from airflow_changefeed.doctor.freshness import Freshness
    from airflow_changefeed.sources.base import FeedSource


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

        :raises ConnectionNotUsableError: no such connection, or one that holds no feeds.
        :raises InvalidArgumentError: its extra has values that mean nothing; all are named.
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
        Take over what a person wrote into a consumer's Variable; see
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
        from airflow_changefeed.hooks.changefeed_arguments import MAX_AGE
        from airflow_changefeed.hooks.metadata.dags import find_dag

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
            f"create it (airflow connections add {self.changefeed_conn_id} --conn-type mssql --conn-host "
            "SERVER --conn-schema DATABASE --conn-login LOGIN --conn-password ..., or --conn-type sqlite "
            "--conn-host /path/to/feeds.db), or name another one by changefeed_conn_id (--conn-id)",
        )
        hide_secrets(connection.extra_dejson)
        return connection
