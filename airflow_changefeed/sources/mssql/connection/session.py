# SPDX-License-Identifier: Apache-2.0
"""One connection to SQL Server: queries, and its handling in a forked child."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import mssql_python
    import pyarrow as pa

    from airflow_changefeed.sources.mssql.feed.feed import MssqlCapture


Record = dict[str, Any]
#: A result: names of its columns, and rows.
Result = tuple[list[str], list[tuple[Any, ...]]]


class Session:
    """A connection in autocommit."""

    def __init__(self, connection: mssql_python.Connection) -> None:
        self._connection = connection
        self.process = os.getpid()
        self.used_at = time.monotonic()
        self.lock_timeout_ms: int | None = None
        self.is_broken = False
        #: Cached columns of each feed's table, by the feed's key.
        self.columns: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
        #: The captures among the feeds, likewise.
        self.captures: dict[tuple[str, int, str], MssqlCapture] = {}
        _LIVE.add(self)

    @property
    def connection(self) -> mssql_python.Connection:
        """The driver's own connection."""
        return self._connection

    def execute(self, sql: str, *values: Any) -> list[Result]:
        """
        Run a batch to its end, because an error may follow its results.

        :param values: of the parameters ``?``.
        :return: column names and rows of each result that has columns.
        """
        with self._cursor() as cursor:
            results = []
            if values:
                cursor.execute(sql, values)
            else:
                cursor.execute(sql)
            while True:
                if cursor.description:
                    names = [column[0] for column in cursor.description]
                    results.append((names, [tuple(row) for row in cursor.fetchall()]))
                if not cursor.nextset():
                    return results

    @contextmanager
    def _cursor(self) -> Iterator[mssql_python.Cursor]:
        """Lend a cursor; after an error the connection's state is unknown."""
        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except BaseException:
            self.is_broken = True
            raise

    def set_lock_timeout(self, milliseconds: int, first: str = "") -> None:
        """
        Set the lock timeout.

        :param first: SQL sent before it, in the same batch.
        """
        # A literal: T-SQL documents no variable here.
        self.execute(f"{first}set lock_timeout {milliseconds}")
        self.lock_timeout_ms = milliseconds

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a batch with one result."""
        results = self.execute(sql, *values)
        return results[0][1] if results else []

    def results(self, sql: str, *values: Any) -> list[list[Record]]:
        """Return the rows of each result, by column name."""
        return [as_records(result) for result in self.execute(sql, *values)]

    def records(self, sql: str, *values: Any) -> list[Record]:
        """Return the rows of a batch with one result, or of all together, by column name."""
        return [row for rows in self.results(sql, *values) for row in rows]

    def insert(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        """Run an insert once for each row."""
        with self._cursor() as cursor:
            cursor.executemany(sql, rows)

    def arrow_batches(
        self, sql: str, values: tuple[Any, ...], next_rows: Callable[[], int]
    ) -> Iterator[pa.RecordBatch]:
        """
        Fetch the single result of a batch as non-empty Arrow batches.

        :param next_rows: maximum rows of the next one.
        """
        with self._cursor() as cursor:
            cursor.execute(sql, values)
            while (batch := cursor.arrow_batch(next_rows())).num_rows:
                yield batch
            # An error may follow the rows.
            cursor.nextset()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block as one transaction, which any error rolls back."""
        self.execute("set xact_abort on; begin transaction")
        try:
            yield
            self.execute("commit transaction")
        except BaseException:
            # Explicitly, because a server notices a closed connection only later.
            with suppress(Exception):
                self.execute("if @@trancount > 0 rollback transaction")
            raise

    def close(self) -> None:
        """Close the connection; ignores one already broken."""
        with suppress(Exception):
            self._connection.close()


def as_records(result: Result) -> list[Record]:
    """Return the rows of a result, by column name."""
    names, rows = result
    return [dict(zip(names, row, strict=True)) for row in rows]


#: All open connections; referenced across a fork, because the child's interpreter drops objects of other
#: threads, which would close them. And those of the parent process, which a child must not use or close.
_LIVE: weakref.WeakSet[Session] = weakref.WeakSet()
_HELD: list[Session] = []
_ABANDONED: list[Session] = []

os.register_at_fork(
    before=lambda: _HELD.extend(_LIVE),
    after_in_parent=_HELD.clear,
    after_in_child=lambda: _ABANDONED.extend(_HELD),
)


def abandon(session: Session) -> None:
    """Keep a parent's connection forever: closing it here would end the parent's session."""
    _ABANDONED.append(session)
