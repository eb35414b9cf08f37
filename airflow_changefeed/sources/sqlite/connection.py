# SPDX-License-Identifier: Apache-2.0
"""Connections to a SQLite file: how they are opened, locked and how their errors are named."""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.retry import retry, scattered
from airflow_changefeed.core.values import LOCK_TIMEOUT, Reader, from_milliseconds, one_of, read_fields
from airflow_changefeed.exceptions import (
    ConnectionNotUsableError,
    FeedSetupError,
    LockTimeoutError,
    SourceUnavailableError,
)

#: The fields of a connection, besides its path.
CONNECTION: Mapping[str, Reader] = MappingProxyType(
    {"lock_timeout": LOCK_TIMEOUT, "bulk_reader": one_of(("sqlite3", "adbc"))}
)


def read_connection(given: Mapping[str, Any], among: str = "") -> tuple[dict[str, Any], list[str], list[str]]:
    """
    Read a connection from Airflow, from Spark or from the arguments of the source.

    :param given: fields by the names of :class:`~airflow_changefeed.sources.sqlite.SqliteFeedSource`; None
        and the empty text count as not given.
    :param among: where they are, for the problems: ``" in its extra"``.
    :return: what that class takes; the fields that are missing; and a sentence for each problem.
    """
    found, problems = read_fields({name: given.get(name) for name in CONNECTION}, CONNECTION, among)
    path = str(given.get("path") or "")
    # A Spark job may run in another folder than this process.
    described = {"path": str(Path(path).expanduser().absolute()), "lock_timeout": 60.0, **found}
    return described, [] if path.strip() else ["path"], problems


class _Kept(threading.local):
    """A thread's connections that are kept and not in use, by the number of their database."""

    def __init__(self) -> None:
        self.connections: dict[int, sqlite3.Connection] = {}
        self.blocks: set[int] = set()


_KEPT = _Kept()


class SqliteDatabase:
    """
    A SQLite file in WAL mode.

    :param path: of the file.
    :param lock_timeout: seconds to wait for another writer, 0 to 86,400.
    """

    def __init__(self, path: str, lock_timeout: float) -> None:
        self.path = path
        self.lock_timeout = lock_timeout

    def now_ms(self) -> int:
        """Return the database's clock, which is this machine's: milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def now(self) -> datetime:
        """Return the database's clock."""
        return from_milliseconds(self.now_ms())

    def later(self, seconds: float) -> datetime:
        """Return the time by the database's clock when so many seconds have passed, to the millisecond."""
        return from_milliseconds(self.now_ms() + int(seconds * 1000))

    @contextmanager
    def connect(self, *, wal: bool = False) -> Iterator[sqlite3.Connection]:
        """
        Open a connection in autocommit and close it at the end; nothing is kept open in between.

        A missing file is an error and is not made: it holds neither feed nor table.

        :param wal: whether to put the file into WAL mode, which it keeps.
        :raises ConnectionNotUsableError: no such file, or not a SQLite database.
        :raises LockTimeoutError: another writer was busy for longer than the lock timeout.
        """
        kept = _KEPT.connections.pop(id(self), None)
        with self.named_errors():
            uri = f"{Path(self.path).absolute().as_uri()}?mode=rw"
            connection = kept or sqlite3.connect(
                uri, uri=True, timeout=self.lock_timeout, isolation_level=None
            )
            try:
                if wal:
                    self._to_wal(connection)
                yield connection
            finally:
                if kept is None:
                    connection.close()
                # Not if it is called when the block is over: a generator may be closed that late.
                elif id(kept) in _KEPT.blocks:
                    kept.text_factory = str
                    _KEPT.connections[id(self)] = kept

    @contextmanager
    def keep(self) -> Iterator[None]:
        """
        Run a block in which this thread's calls share a connection, one at a time.

        Opening one reads the file's schema, which grows with its feeds. Not for blocks that fork, or in which
        another library opens the file (ADR 0003).
        """
        with self.connect() as connection:
            _KEPT.connections[id(self)] = connection
            _KEPT.blocks.add(id(connection))
            try:
                yield
            finally:
                _KEPT.connections.pop(id(self), None)
                _KEPT.blocks.discard(id(connection))

    def _to_wal(self, connection: sqlite3.Connection) -> None:
        """
        Put the file into WAL mode.

        SQLite asks its busy handler not to wait here, where two who change the mode at once would wait for
        each other; so they try again.
        """
        retry(
            lambda: connection.execute("pragma journal_mode = wal"),
            lambda error: isinstance(error, sqlite3.OperationalError) and "locked" in str(error),
            scattered(0.02, 0.1),
            seconds=self.lock_timeout,
        )

    @contextmanager
    def write(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Run a block as one write transaction; ``begin immediate`` is the lock that all writers share."""
        connection.execute("begin immediate")
        try:
            yield
            connection.execute("commit")
        except BaseException:
            # A failed commit or a full disk may have rolled back already.
            if connection.in_transaction:
                connection.execute("rollback")
            raise

    @contextmanager
    def snapshot(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Run a block of reads on one snapshot; it neither waits nor blocks."""
        connection.execute("begin")
        try:
            yield
        finally:
            if connection.in_transaction:
                connection.execute("rollback")

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Give SQLite's errors our names."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise (_missing_table(str(error)) or self._name(error)) from error
        except sqlite3.DatabaseError as error:
            if "not a database" in str(error) or "malformed" in str(error):
                raise ConnectionNotUsableError(
                    f"{self.path} is not a usable SQLite database: {error}"
                ) from error
            raise

    def _name(self, error: sqlite3.OperationalError) -> Exception:
        text = str(error)
        if "locked" in text or "busy" in text:
            return LockTimeoutError(
                f"{self.path}: another writer was busy for more than {self.lock_timeout} s ({text}); retry, "
                "or check for a transaction left open",
                path=self.path,
                lock_timeout=self.lock_timeout,
            )
        if "unable to open" in text and self._can_be_written:
            return SourceUnavailableError(
                f"{self.path}: {text}, although the file and its folder can be written. Check for a disk "
                "without space or inodes, and for a limit of open files; then retry",
                path=self.path,
            )
        if "unable to open" in text:
            return ConnectionNotUsableError(
                f"{self.path}: {text}; check the path in the connection; the file and its event table must "
                "exist before a feed is set up",
                path=self.path,
            )
        if "readonly" in text or "read-only" in text:
            return ConnectionNotUsableError(
                f"{self.path}: {text}; this process needs write permission on the file and its folder",
                path=self.path,
            )
        if "disk I/O" in text or "disk is full" in text:
            return SourceUnavailableError(
                f"{self.path}: {text}; check the disk and its free space, then retry", path=self.path
            )
        return error

    @property
    def _can_be_written(self) -> bool:
        folder = os.path.dirname(os.path.abspath(self.path))
        may = os.R_OK | os.W_OK
        return os.path.isfile(self.path) and os.access(self.path, may) and os.access(folder, may | os.X_OK)


def _missing_table(text: str) -> FeedSetupError | None:
    missing = re.fullmatch(r"no such table: (?:main\.)?(.*)", text, re.DOTALL)
    if missing is None:
        return None
    return FeedSetupError(
        f"table {missing[1]!r} is missing: it was dropped or renamed. Restore it from a backup. To see "
        f"what else is missing: {shell('doctor')}",
        table=missing[1],
    )
