# SPDX-License-Identifier: Apache-2.0
"""Snapshots of captured tables, in SQLite: what they read, and what is remembered of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_changefeed.core.consumer import MAX_BY
from airflow_changefeed.core.times import from_milliseconds, to_milliseconds
from airflow_changefeed.exceptions import SnapshotError, storable
from airflow_changefeed.sources.base_snapshots import KeyRange, SnapshotClaim, TableColumns
from airflow_changefeed.sources.sqlite.capture.registry import load_capture
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.names import load_feed

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_changefeed.sources.sqlite.capture.table import TableQuery

_CLAIM = "capture, table_name, token, path, begin_ms, begun_by, expires_ms, where_text"
_OF = "capture = ? and table_name = ? and token = ?"


class SqliteSnapshots:
    """The part of the source for snapshots; see :class:`~...sources.base_snapshots.SnapshotStore`."""

    database: SqliteDatabase
    bulk_reader: str

    def table_columns(self, feed: str, table: str) -> TableColumns:
        with self.database.connect() as connection, self.database.snapshot(connection):
            return self._table_query(connection, feed, table, KeyRange()).described

    def cut_table(self, feed: str, table: str, rows: int, *, where: str = "") -> list[str]:
        from airflow_changefeed.sources.sqlite.capture.table import cut

        with self.database.connect() as connection:
            return cut(connection, self._table_query(connection, feed, table, KeyRange(), where), rows)

    def stream_table(
        self, feed: str, table: str, range_: KeyRange, *, where: str = "", batch_rows: int = 65_536
    ) -> Iterator[pa.RecordBatch]:
        from airflow_changefeed.sources.sqlite.feed import arrow

        if self.bulk_reader == "adbc":
            from airflow_changefeed.sources.sqlite.feed.adbc import stream_adbc

            with self.database.connect() as connection, self.database.snapshot(connection):
                query = self._table_query(connection, feed, table, range_, where)
                rows = arrow.bounded_rows(connection, query, batch_rows)
            yield from stream_adbc(self.database.path, query, rows, self.database.lock_timeout)
            return
        with self.database.connect() as connection, self.database.snapshot(connection):
            query = self._table_query(connection, feed, table, range_, where)
            rows = arrow.bounded_rows(connection, query, batch_rows)
            yield from arrow.stream_sqlite3(connection, query, rows)

    def _table_query(
        self, connection: sqlite3.Connection, feed: str, table: str, range_: KeyRange, where: str = ""
    ) -> TableQuery:
        from airflow_changefeed.sources.sqlite.capture.table import table_query

        load_capture(connection, feed)
        tables = load_feed(connection, feed)
        is_adbc = self.bulk_reader == "adbc"
        return table_query(connection, tables, table, range_, where, cuts_fractions=not is_adbc)

    def begin_snapshot(
        self,
        feed: str,
        table: str,
        *,
        token: str,
        path: str,
        begin: datetime,
        by: str,
        seconds: float,
        where: str = "",
    ) -> SnapshotClaim:
        with self.database.connect() as connection, self.database.write(connection):
            load_capture(connection, feed)
            expires = from_milliseconds(self._expires_ms(seconds))
            add_claim(connection, SnapshotClaim(feed, table, token, path, begin, by, expires, where))
            return next(claim for claim in claims(connection, feed) if claim.table == table)

    @contextmanager
    def marking(self, feed: str, table: str, *, token: str, mark: str, seconds: float) -> Iterator[None]:
        """
        No connection is held in between, as ADBC may read the file meanwhile (ADR 0003). So a first row of
        the mark takes the place of a session: a file that is put back to an earlier state loses it.
        """
        mine = (feed, table, token)
        with self.database.connect() as connection, self.database.write(connection):
            renew(connection, mine, self._expires_ms(seconds))
            connection.execute(
                'insert into "changefeed.snapshot_mark" (capture, table_name, token, mark) '
                "values (?, ?, ?, ?)",
                (*mine, mark),
            )
        yield
        with self.database.connect() as connection, self.database.write(connection):
            renew(connection, mine, self._expires_ms(seconds))
            connection.execute(
                f'update "changefeed.snapshot_mark" set is_read = 1 where {_OF} and mark = ?', (*mine, mark)
            )

    def snapshot_marks(self, feed: str, table: str, *, token: str) -> set[str]:
        with self.database.connect() as connection:
            rows = connection.execute(
                f'select mark from "changefeed.snapshot_mark" where {_OF} and is_read = 1',
                (feed, table, token),
            )
            return {mark for (mark,) in rows}

    def end_snapshot(self, feed: str, table: str, *, token: str) -> bool:
        with self.database.connect() as connection, self.database.write(connection):
            return forget(connection, (feed, table, token))

    def snapshots(self, feed: str | None = None) -> list[SnapshotClaim]:
        with self.database.connect() as connection, self.database.snapshot(connection):
            if feed is not None:
                load_capture(connection, feed)
            return claims(connection, feed)

    def order_bound(self, feed: str) -> int:
        return 1 + (self._waiting(feed, "max") or 0)

    def first_waiting(self, feed: str) -> int | None:
        return self._waiting(feed, "min")

    def _waiting(self, feed: str, which: str) -> int | None:
        with self.database.connect() as connection:
            load_capture(connection, feed)
            sql = f"select {which}(order_sequence) from {load_feed(connection, feed).outbox}"
            (found,) = connection.execute(sql).fetchone()
            return None if found is None else int(found)

    def _expires_ms(self, seconds: float) -> int:
        return self.database.now_ms() + int(seconds * 1000)


def add_claim(connection: sqlite3.Connection, claim: SnapshotClaim) -> None:
    """Remember that a snapshot has begun, unless one of the table has."""
    connection.execute(
        f'insert into "changefeed.snapshot" ({_CLAIM}) values (?, ?, ?, ?, ?, ?, ?, ?) '
        "on conflict do nothing",
        (
            claim.feed,
            claim.table,
            claim.token,
            claim.path,
            to_milliseconds(claim.begin),
            storable(claim.by, MAX_BY),
            to_milliseconds(claim.expires_at),
            claim.where,
        ),
    )


def claims(connection: sqlite3.Connection, feed: str | None = None) -> list[SnapshotClaim]:
    """Return the snapshots that have begun and not ended, of one capture or all, by begin."""
    rows = connection.execute(
        f'select {_CLAIM} from "changefeed.snapshot" where ?1 is null or capture = ?1 '
        "order by begin_ms, capture, table_name",
        (feed,),
    )
    return [_claim(row) for row in rows]


def renew(connection: sqlite3.Connection, mine: tuple[str, str, str], expires_ms: int) -> None:
    """
    Postpone when a snapshot expires.

    :param mine: the capture, the table and the token.
    :raises SnapshotError: it has ended.
    """
    renewed = connection.execute(
        f'update "changefeed.snapshot" set expires_ms = max(expires_ms, ?) where {_OF}',
        (expires_ms, *mine),
    )
    if not renewed.rowcount:
        feed, table, token = mine
        raise SnapshotError(
            f"snapshot {token} of table {table!r} of capture {feed!r} has ended: it was given up, or "
            "finished by another run. Take a new one",
            feed=feed,
            table=table,
            token=token,
        )


def position(connection: sqlite3.Connection, mine: tuple[str, str, str]) -> str | None:
    """Return the only mark of a snapshot into the feed; None if it has none."""
    row = connection.execute(f'select mark from "changefeed.snapshot_mark" where {_OF}', mine).fetchone()
    return row and str(row[0])


def move_to(connection: sqlite3.Connection, mine: tuple[str, str, str], mark: str) -> None:
    """Replace the only mark of a snapshot into the feed."""
    connection.execute(f'delete from "changefeed.snapshot_mark" where {_OF}', mine)
    connection.execute(
        'insert into "changefeed.snapshot_mark" (capture, table_name, token, mark, is_read) '
        "values (?, ?, ?, ?, 1)",
        (*mine, mark),
    )


def forget(connection: sqlite3.Connection, mine: tuple[str, str, str]) -> bool:
    """Forget a snapshot and its marks; False if it is not there."""
    connection.execute(f'delete from "changefeed.snapshot_mark" where {_OF}', mine)
    return connection.execute(f'delete from "changefeed.snapshot" where {_OF}', mine).rowcount > 0


def _claim(row: tuple[str, str, str, str, int, str, int, str]) -> SnapshotClaim:
    feed, table, token, path, begin_ms, by, expires_ms, where = row
    return SnapshotClaim(
        feed, table, token, path, from_milliseconds(begin_ms), by, from_milliseconds(expires_ms), where
    )
