# SPDX-License-Identifier: Apache-2.0
"""Which database of SQL Server it is, and the resource versions of its feeds and captures."""

from __future__ import annotations

from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import DatabaseIdentity
from airflow_changefeed.exceptions import FeedNotFoundError
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.names import literal, quote


def note_schemas(schema: str, feed: str) -> str:
    """
    Return the statement with which a reader records schema changes of a feed's table, or of all.

    It passes over what it cannot write, as on a replica, and over a database without changefeed.

    :param feed: SQL of its name; of a null, all.
    """
    procedure = f"{quote(schema)}.[note_schemas]"
    return (
        f"begin try if object_id({literal(procedure)}) is not null "
        f"exec {procedure} @name = {feed} end try begin catch end catch;"
    )


def registered(schema: str, columns: str, condition: str = "") -> str:
    """
    Return the question for feeds of the registry, with their resource versions.

    :param columns: of the table of feeds, besides.
    """
    return f"select {columns}, resource_version from {quote(schema)}.[feeds] {condition}"


def load_versions(session: Session, schema: str) -> dict[int, int]:
    """Record schema changes of feeds' tables, and return the resource versions of all, by their numbers."""
    rows = session.records(f"{note_schemas(schema, 'null')} {registered(schema, 'feed_id')}")
    return {row["feed_id"]: int(row["resource_version"]) for row in rows}


#: Azure SQL Database has no such view, and a login that may not see the database's row gets none (the owner
#: may, and logins with VIEW ANY DATABASE, as public has by default).
_FORK = """
set nocount on;
declare @fork uniqueidentifier;
begin try
    exec sp_executesql N'select @fork = recovery_fork_guid from sys.database_recovery_status
where database_id = db_id()', N'@fork uniqueidentifier output', @fork = @fork output;
end try
begin catch
    set @fork = null;
end catch;
"""


class MssqlIdentity:
    """The part of the source that knows which database it is."""

    database: MssqlDatabase
    _identity: DatabaseIdentity | None = None

    def identity(self) -> DatabaseIdentity:
        """Queried once for each source: stop the exports before renewing it."""
        if self._identity is None:
            self._identity = self.database.ask(lambda session: _read(session, self.database))
        return self._identity

    def renew_identity(self) -> DatabaseIdentity:
        self._identity = None
        with self.database.connect() as session:
            _read(session, self.database)
            session.execute(f"exec {quote(self.database.schema)}.[renew_identity]")
        return self.identity()


def _read(session: Session, database: MssqlDatabase) -> DatabaseIdentity:
    schema = database.schema
    table = f"{quote(schema)}.[database_identity]"
    rows = session.rows(
        f"{_FORK} if object_id({literal(table)}) is not null "
        f"select convert(varchar(36), id), convert(varchar(36), @fork) from {table}"
    )
    if rows:
        ((identity, fork),) = rows
        return DatabaseIdentity(str(identity).lower(), None if fork is None else str(fork).lower())
    raise FeedNotFoundError(
        f"changefeed is not installed in schema {schema!r} of {database.server}, or this login cannot "
        f"see it; install it: {shell('install')}",
        known=[],
        schema=schema,
    )
