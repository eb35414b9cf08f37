# SPDX-License-Identifier: Apache-2.0
"""Installing changefeed in a database, upgrading it, setting feeds up and dropping them."""

from __future__ import annotations

from datetime import timedelta

from packaging.version import InvalidVersion, Version

from airflow_changefeed import __version__
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import FOREVER, FeedInfo, FeedKind, FeedStorage, check_settings
from airflow_changefeed.exceptions import FeedSetupError, PermissionDeniedError, UnsupportedVersionError
from airflow_changefeed.sources.base_control import Installed
from airflow_changefeed.sources.mssql.connection.errors import name_error
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.catalog import check_tables, load_feed, load_feeds
from airflow_changefeed.sources.mssql.feed.feed import call
from airflow_changefeed.sources.mssql.names import quote, split_name


def has_object(session: Session, schema: str, name: str) -> bool:
    """Return whether an object is there, as far as this login may see it."""
    ((number,),) = session.rows(
        "declare @name nvarchar(300) = ?; select object_id(@name)", f"{quote(schema)}.{quote(name)}"
    )
    return number is not None


def installed_version(session: Session, schema: str) -> str | None:
    """Return the result of the database's ``version()``; None if the function does not exist."""
    if not has_object(session, schema, "version"):
        return None
    ((version,),) = session.rows(f"select {quote(schema)}.[version]()")
    return str(version)


def is_complete(session: Session, schema: str) -> bool:
    """Return whether an installation came to its end; one that was interrupted is repeated, harmlessly."""
    return has_object(session, schema, "drop_feed")


def check_not_newer(present: str | None, database: MssqlDatabase) -> None:
    """
    Check that an installation would not go back.

    :param present: what is there; None is older than everything.
    :raises UnsupportedVersionError: it is newer than this package, or says nothing that can be compared.
    """
    if present is None or present == __version__:
        return
    where = f"schema {database.schema!r} of {database.server}"
    facts = {"installed": present, "package": __version__}
    try:
        is_newer = Version(present) > Version(__version__)
    except InvalidVersion:
        raise UnsupportedVersionError(
            f"{where} has version {present!r}, which cannot be compared with this package's "
            f"{__version__}; check what is installed there, then use force",
            **facts,
        ) from None
    if is_newer:
        raise UnsupportedVersionError(
            f"{where} has version {present}, which is newer than this package ({__version__}); upgrade the "
            "package (pip install --upgrade airflow-changefeed), or use force to downgrade",
            **facts,
        )


def install_text(schema: str, *, sequence_cache: int) -> str:
    """Return what :func:`run_batches` runs, as one text for DBAs."""
    from airflow_changefeed.sql.mssql import script

    return script(schema, sequence_cache=sequence_cache)


def run_batches(session: Session, database: MssqlDatabase, sequence_cache: int | None) -> None:
    """
    Run all batches of the script, which upgrade all feeds in the end.

    :param sequence_cache: None takes the script's own.
    :raises PermissionDeniedError: the login has not the right to; says how a DBA does it.
    """
    from airflow_changefeed.sql.mssql import SEQUENCE_CACHE, install_script

    cache = SEQUENCE_CACHE if sequence_cache is None else sequence_cache
    batches = install_script(database.schema, sequence_cache=cache)
    ((may,),) = session.rows("select has_perms_by_name(db_name(), 'DATABASE', 'CONTROL')")
    if not may:
        raise _may_not(database)
    try:
        for batch in batches:
            session.execute(batch)
    except Exception as error:
        if isinstance(name_error(error), PermissionDeniedError):
            raise _may_not(database) from error
        raise


def _may_not(database: MssqlDatabase) -> PermissionDeniedError:
    schema = database.schema
    return PermissionDeniedError(
        f"this login may not install changefeed in schema {schema!r} of {database.server}: it needs "
        "CONTROL on the database, which members of db_owner have. Use such a login, or ask a DBA to "
        f"run the script that this command prints: {shell('sql', '--schema', schema)}",
        schema=schema,
    )


_MILLISECOND = timedelta(milliseconds=1)


class MssqlSetup:
    """The part of the source that creates and drops its objects."""

    database: MssqlDatabase

    def set_up_feed(
        self,
        table: str,
        *,
        kind: FeedKind = FeedKind.OUTBOX,
        shard_key_type: str | None = None,
        time_tolerance: timedelta | None = None,
        max_hold: timedelta | None = None,
        storage: FeedStorage | None = None,
        resource_version: int | None = None,
    ) -> FeedInfo:
        """
        Installs changefeed first if it is missing and the login has the right to.

        :param table: ``schema.table``, or ``[schema].[table]`` where a name has a dot.
        """
        check_settings(table, shard_key_type, time_tolerance, max_hold)
        kind, storage = FeedKind(kind), storage or FeedStorage()
        schema, name = split_name(table)
        quoted = f"{quote(schema)}.{quote(name)}"
        arguments = {
            "table_name": quoted,
            "outbox": kind is FeedKind.OUTBOX,
            "blocking": kind is FeedKind.SERIALIZED,
            "shard_key_type": shard_key_type,
            "time_tolerance_ms": None if time_tolerance is None else time_tolerance // _MILLISECOND,
            "max_hold_ms": -1
            if max_hold == FOREVER
            else None
            if max_hold is None
            else max_hold // _MILLISECOND,
            "resource_version": resource_version,
            "filegroup": storage.filegroup,
            "compression": storage.compression,
        }
        feed = f"{schema}.{name}"
        with self.database.connect(feed=feed) as session:
            install_where_missing(session, self.database)
            _check_table(session, self.database, feed, quoted, kind)
            # It makes a new feed whole or not at all, and renews one while its readers and writers go on.
            session.execute(*call(self.database.schema, "setup_feed", arguments))
            return load_feed(session, self.database.schema, feed, is_fresh=True).info

    def version(self) -> str | None:
        with self.database.connect() as session:
            return installed_version(session, self.database.schema)

    def install(self, *, sequence_cache: int | None = None, force: bool = False) -> Installed:
        """Runs what ``airflow-changefeed sql`` prints. Of a sequence that is there the cache stays."""
        with self.database.connect() as session:
            before = installed_version(session, self.database.schema)
            if not force:
                check_not_newer(before, self.database)
            run_batches(session, self.database, sequence_cache)
            after = installed_version(session, self.database.schema)
        return Installed(before, after or __version__)

    def drop_feed(self, feed: str, *, resource_version: int | None = None) -> None:
        with self.database.connect(feed=feed) as session:
            found = load_feed(session, self.database.schema, feed, is_whole=False)
            arguments = {"table_name": found.table or found.name, "resource_version": resource_version}
            session.execute(*call(self.database.schema, "drop_feed", arguments))


def install_where_missing(session: Session, database: MssqlDatabase) -> None:
    """
    Install changefeed where it is not.

    :raises FeedSetupError: it is not, and the login has not the right to.
    """
    if is_complete(session, database.schema):
        return
    try:
        run_batches(session, database, None)
    except PermissionDeniedError as error:
        raise FeedSetupError(
            f"changefeed is not installed in schema {database.schema!r}: {error.message}",
            schema=database.schema,
        ) from error


def _check_table(session: Session, database: MssqlDatabase, feed: str, quoted: str, kind: FeedKind) -> None:
    """Raise for a missing table, or one without a ULID column for serialized writers."""
    check_tables(session, database.server, {feed: quoted}, feed=feed)
    if kind is not FeedKind.SERIALIZED or load_feeds(session, database.schema, feed):
        return
    columns = session.rows(
        "declare @table nvarchar(600) = ?; select c.name, t.name, c.max_length from sys.columns c "
        "join sys.types t on t.user_type_id = c.system_type_id where c.object_id = object_id(@table, N'U')",
        quoted,
    )
    if ("ulid", "binary", 16) not in [(name.lower(), kind.lower(), size) for name, kind, size in columns]:
        problem = "serialized writers need a binary(16) column named ulid; add it"
        raise FeedSetupError(f"table {feed!r} cannot become a feed: {problem}", feed=feed, problems=[problem])
