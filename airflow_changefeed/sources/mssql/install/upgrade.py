# SPDX-License-Identifier: Apache-2.0
"""Bringing a database's objects to this version, by the batches that DBAs get as a script."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from airflow_changefeed import __version__
from airflow_changefeed.core.fault import shell
from airflow_changefeed.exceptions import PermissionDeniedError, UnsupportedVersionError
from airflow_changefeed.sources.mssql.connection.errors import name_error
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.names import quote


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
            f"{where} has version {present!r}, which cannot be compared with this package's {__version__}; "
            "check what is installed there, then use force",
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
        f"this login may not install changefeed in schema {schema!r} of {database.server}: it needs CONTROL "
        "on the database, which members of db_owner have. Use such a login, or ask a DBA to run the script "
        f"that this prints: {shell('sql', '--schema', schema)}",
        schema=schema,
    )
