# SPDX-License-Identifier: Apache-2.0
"""The embedded source, put together from its parts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.sqlite.capture.control import SqliteCapture
from airflow_changefeed.sources.sqlite.capture.snapshots import SqliteSnapshots
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase, read_connection
from airflow_changefeed.sources.sqlite.consumers.dead_letters import SqliteDeadLetters
from airflow_changefeed.sources.sqlite.consumers.leases import SqliteLeases
from airflow_changefeed.sources.sqlite.doctor.inspect import SqliteInspect
from airflow_changefeed.sources.sqlite.feed.history import SqliteHistory
from airflow_changefeed.sources.sqlite.feed.overview import SqliteOverview
from airflow_changefeed.sources.sqlite.install.identity import SqliteIdentity
from airflow_changefeed.sources.sqlite.install.setup import SqliteSetup
from airflow_changefeed.sources.sqlite.opened import SqliteOpening


class SqliteFeedSource(
    SqliteIdentity,
    SqliteCapture,
    SqliteSnapshots,
    SqliteOpening,
    SqliteOverview,
    SqliteHistory,
    SqliteSetup,
    SqliteLeases,
    SqliteDeadLetters,
    SqliteInspect,
):
    """
    Feeds in a SQLite file; implements :class:`~airflow_changefeed.sources.base.FeedSource`.

    Holds nothing open between calls, so it may be used from any thread and kept across forks; a feed that is
    open has a connection, of one thread.

    :param path: of the file, which holds the event tables and gets the feeds beside them.
    :param lock_timeout: seconds to wait for another writer, 0 to 86,400.
    :param bulk_reader: ``sqlite3``, or ``adbc`` for a process in which nobody else has the file open
        (ADR 0003).
    :raises InvalidArgumentError: an option is out of range.
    """

    def __init__(self, path: str, *, lock_timeout: float = 60.0, bulk_reader: str = "sqlite3") -> None:
        # All arguments, by their names.
        self._read, missing, problems = read_connection(locals())
        problems += [f"{name} is missing; set it to the SQLite file" for name in missing]
        InvalidArgumentError.collect(f"SQLite source {path!r}", problems)
        self.database = SqliteDatabase(self._read["path"], self._read["lock_timeout"])
        self.bulk_reader: str = self._read["bulk_reader"]

    def describe(self) -> dict[str, Any]:
        """Return what ``open_source`` needs to open the same file elsewhere."""
        return {"type": "sqlite", **self._read}

    def connected(self) -> AbstractContextManager[None]:
        return self.database.keep()

    def close(self) -> None:
        """Do nothing: no connection outlives the call that opened it."""
