# SPDX-License-Identifier: Apache-2.0
"""
Which database a SQLite file is, and the resource versions of its feeds and captures.

Versions are kept beside a fingerprint of the columns of the event table (of a capture: of its tables), so
that a change beneath is a new version as soon as somebody reads or would write.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import uuid

from airflow_changefeed.core.feed import DatabaseIdentity
from airflow_changefeed.exceptions import FeedNotFoundError
from airflow_changefeed.sources.base_control import NOTHING, capture_text, check_version, feed_text
from airflow_changefeed.sources.sqlite.capture.gaps import drift_of, gaps
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.names import VERSIONS, FeedTables, is_installed, load_feeds

#: Of a feed that was dropped; no columns have it.
_DROPPED = ""


def check_beneath(database: SqliteDatabase, connection: sqlite3.Connection, feed: str | None = None) -> None:
    """
    Detect table changes for a reader; never waits, and skips what it cannot write.

    The version that it then reads is an old one, so that a write which names it is refused.

    :param feed: None for all.
    """
    if not _changed(connection, feed):
        return
    connection.execute("pragma busy_timeout = 0")
    try:
        note_changes(database, connection, feed)
    except sqlite3.OperationalError:
        pass
    finally:
        connection.execute(f"pragma busy_timeout = {int(database.lock_timeout * 1000)}")


def note_changes(database: SqliteDatabase, connection: sqlite3.Connection, feed: str | None = None) -> None:
    """
    Detect table changes for a writer, in a separate transaction: they stay recorded if the write is refused.

    :param feed: None for all.
    """
    if not _changed(connection, feed):
        return
    with database.write(connection):
        for tables in _changed(connection, feed):
            _store(connection, tables.info.name, _fingerprint(tables))


def begin_version(tables: FeedTables) -> None:
    """Give a new feed its first version: above those of earlier feeds with its name."""
    _store(tables.connection, tables.info.name, _fingerprint(tables))


def end_version(connection: sqlite3.Connection, feed: str) -> None:
    """Keep the version of a feed that is dropped."""
    _store(connection, feed, _DROPPED)


def bump_version(connection: sqlite3.Connection, feed: str) -> None:
    """Increment a feed's version; table changes were detected before."""
    VERSIONS.change(connection, {"feed": feed}, {})


def check_feed(tables: FeedTables, expected: int | None) -> None:
    """Raise StaleVersionError where a feed, or its capture, is not at the version that a write names."""
    # Another may have changed the columns since changes were noted, before the lock of this write.
    is_changed = tables.fingerprint is not None and tables.fingerprint != _fingerprint(tables)
    version = tables.info.resource_version + is_changed
    if expected in (None, version):
        return
    capture = tables.capture
    what, present = "feed", feed_text(tables.info)
    if capture is not None:
        what, present = (
            "capture",
            capture_text(
                [table.name for table in capture.tables],
                drift_of(tables.connection, capture),
                gaps(tables.connection, capture.name, is_open=True),
                is_enabled=capture.is_enabled,
            ),
        )
    check_version(f"{what} {tables.info.name!r}", expected, version, present)


def check_absent(what: str, expected: int | None) -> None:
    """Raise StaleVersionError if a write names a version of what does not exist."""
    check_version(what, expected, 0, NOTHING)


def _changed(connection: sqlite3.Connection, feed: str | None) -> list[FeedTables]:
    return [tables for tables in load_feeds(connection, feed) if tables.fingerprint != _fingerprint(tables)]


def _fingerprint(tables: FeedTables) -> str:
    """Return a hash of names, types, nullability, keys and order of the columns."""
    names = [tables.info.name]
    if tables.capture is not None:
        names = [table.name for table in tables.capture.tables]
    columns = tables.execute(
        'select t.key, c.name, c.type, c."notnull", c.pk from json_each(?) as t '
        "join pragma_table_xinfo(t.value) as c where c.hidden <> 1 order by t.key, c.cid",
        (json.dumps(names),),
    ).fetchall()
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()


def _store(connection: sqlite3.Connection, feed: str, fingerprint: str) -> None:
    if not VERSIONS.change(connection, {"feed": feed}, {"fingerprint": fingerprint}):
        VERSIONS.add(connection, {"feed": feed, "fingerprint": fingerprint, "resource_version": 1})


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
            "this database has no identity, because no feed was ever set up here; create a feed with "
            "set_up_feed",
            known=[],
        )
    ((identity,),) = connection.execute('select id from "changefeed.database"').fetchall()
    return DatabaseIdentity(str(identity))
