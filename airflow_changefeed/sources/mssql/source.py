# SPDX-License-Identifier: Apache-2.0
"""The source for SQL Server, put together from its parts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.mssql.capture.control import MssqlCaptures
from airflow_changefeed.sources.mssql.capture.snapshots import MssqlSnapshots
from airflow_changefeed.sources.mssql.connection.driver import Server
from airflow_changefeed.sources.mssql.connection.options import DEFAULT_PORT, DriverOptions, read_connection
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.consumers.dead_letters import MssqlDeadLetters
from airflow_changefeed.sources.mssql.consumers.leases import MssqlLeases
from airflow_changefeed.sources.mssql.doctor.inspect import MssqlInspect
from airflow_changefeed.sources.mssql.feed.history import MssqlHistory
from airflow_changefeed.sources.mssql.feed.overview import MssqlOverview
from airflow_changefeed.sources.mssql.install.identity import MssqlIdentity
from airflow_changefeed.sources.mssql.install.setup import MssqlSetup
from airflow_changefeed.sources.mssql.opened import MssqlOpening


class MssqlFeedSource(
    MssqlIdentity,
    MssqlOpening,
    MssqlOverview,
    MssqlHistory,
    MssqlSetup,
    MssqlCaptures,
    MssqlSnapshots,
    MssqlLeases,
    MssqlDeadLetters,
    MssqlInspect,
):
    r"""
    Feeds in a database of SQL Server; implements :class:`~airflow_changefeed.sources.base.FeedSource`.

    Keeps a few connections between calls, which :meth:`close` gives back; may be used from any thread and
    kept across forks.

    :param host: of the server; ``host\instance`` for a named instance.
    :param port: 1 to 65,535; None lets the driver find it.
    :param schema: that changefeed is installed in.
    :param user: empty for Kerberos, and where Entra ID needs none.
    :param encrypt: the connection: ``yes``, ``no`` or ``strict`` (TDS 8).
    :param trust_server_certificate: without checking it; for tests only.
    :param lock_timeout: seconds to wait for locks, 0 to 86,400.
    :param read_only_replica: whether bulk reads may go to a readable secondary.
    :param driver_options: by name, see
        :class:`~airflow_changefeed.sources.mssql.connection.options.DriverOptions`; for example
        ``{"authentication": "ActiveDirectoryMSI"}``.
    :raises InvalidArgumentError: options are missing, unknown or out of range; all are named.
    """

    def __init__(
        self,
        host: str,
        *,
        database: str,
        user: str = "",
        password: str = "",
        port: int | None = DEFAULT_PORT,
        schema: str = "changefeed",
        encrypt: str = "yes",
        trust_server_certificate: bool = False,
        lock_timeout: float = 60.0,
        read_only_replica: bool = False,
        driver_options: Mapping[str, Any] | None = None,
    ) -> None:
        # All arguments, by their names.
        read, missing, problems = read_connection(locals())
        problems += [f"{name} is missing" for name in missing]
        InvalidArgumentError.collect(f"SQL Server source {host!r}", problems)
        self._read = read
        address = {name: read[name] for name in ("host", "port", "database", "user", "password", "encrypt")}
        self.database = MssqlDatabase(
            Server(
                **address,
                trust_server_certificate=read["trust_server_certificate"],
                options=DriverOptions(**read["driver_options"]),
            ),
            read["schema"],
            read["lock_timeout"],
            read_only_replica=read["read_only_replica"],
        )

    def __repr__(self) -> str:
        return f"MssqlFeedSource({self.database.server}, schema={self.database.schema!r})"

    def describe(self) -> dict[str, Any]:
        """Return what ``open_source`` needs to open the same database elsewhere; holds the password."""
        return {"type": "mssql", **self._read}

    def connected(self) -> AbstractContextManager[None]:
        # Connections are kept anyway.
        return nullcontext()

    def close(self) -> None:
        """Close the connections that are kept; the next call opens one again."""
        self.database.close()
