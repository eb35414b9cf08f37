# SPDX-License-Identifier: Apache-2.0
"""A database that is the demo's own: made, marked, made anew, and never one of somebody else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from airflow_changefeed.exceptions import ChangefeedError
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.errors import is_driver_error
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.names import quote
from tests.system.demo.engine import DemoError

#: An extended property of the database says who made it.
MARK = "made by make demo-mssql"
_HAS_MARK = "select 1 from sys.extended_properties where class = 0 and name = ?"


@contextmanager
def own_database(
    open_source: Callable[..., MssqlFeedSource], name: str, place: str, *, patience: float = 30.0
) -> Iterator[None]:
    """
    Make a database anew, and stay in it, so that nobody else makes it anew meanwhile.

    :param open_source: opens a source; ``database`` names another database.
    :param place: its name and its server, for people.
    :param patience: seconds for which a server may take connections to be open that are closed.
    :raises DemoError: the login may not make it, or a database of this name is somebody else's, or in use.
    """
    with closing(open_source(database="master")) as source, source.database.connect() as master:
        found = master.rows(
            "declare @name sysname = ?; "
            "select db_id(@name), has_perms_by_name(null, null, 'CREATE ANY DATABASE')",
            name,
        )
        ((number, may_create),) = found
        # Null where the server knows no such permission; then it says itself what it refuses.
        if may_create == 0:
            raise DemoError(
                f"the login may not make the {place}: give it the role dbcreator for the demo (alter server "
                "role dbcreator add member ...), or take another login"
            )
        if number is not None:
            _refuse_foreign(open_source, name, place)
            _drop(master, name, place, patience)
        master.execute(f"create database {quote(name)}")
    with closing(open_source()) as source, source.database.connect() as session:
        session.execute(f"exec sys.sp_addextendedproperty N'{MARK}', N'drop it when you like'")
        yield


def _refuse_foreign(open_source: Callable[..., MssqlFeedSource], name: str, place: str) -> None:
    with closing(open_source()) as source, source.database.connect() as session:
        if not session.rows(_HAS_MARK, MARK):
            raise DemoError(
                f"there is a {place} that the demo did not make, or was ended while making; it is left "
                f"alone. If nobody needs it: drop database {quote(name)}"
            )


def _drop(master: Session, name: str, place: str, patience: float) -> None:
    """Drop a database as soon as the server has noticed that connections to it are closed."""
    deadline = time.monotonic() + patience
    while True:
        try:
            master.execute(f"drop database {quote(name)}")
            return
        except Exception as error:
            if not (is_driver_error(error) or isinstance(error, ChangefeedError)):
                raise
            if time.monotonic() > deadline:
                raise DemoError(
                    f"the {place} is of an earlier demo and cannot be dropped. Another make demo-mssql may "
                    f"be running, or another program is in it: {error}"
                ) from None
            time.sleep(1)
