# SPDX-License-Identifier: Apache-2.0
"""Which database a SQLite file is."""

from __future__ import annotations

import sqlite3
import uuid

from airflow_changefeed.core.feed import DatabaseIdentity
from airflow_changefeed.exceptions import FeedNotFoundError
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.names import is_installed


class SqliteIdentity:
    """The part of the source that knows which database it is."""

    database: SqliteDatabase

    def identity(self) -> DatabaseIdentity:
        with self.database.connect() as connection:
            return _identity(connection)

    def renew_identity(self) -> DatabaseIdentity:
        with self.database.connect() as connection:
            _identity(connection)
            with self.database.write(connection):
                connection.execute('update "changefeed.database" set id = ?', (str(uuid.uuid4()),))
            return _identity(connection)


def _identity(connection: sqlite3.Connection) -> DatabaseIdentity:
    if not is_installed(connection):
        raise FeedNotFoundError(
            "no feed was ever set up in this database, so it has no identity; create a feed with set_up_feed",
            known=[],
        )
    ((identity,),) = connection.execute('select id from "changefeed.database"').fetchall()
    return DatabaseIdentity(str(identity))
