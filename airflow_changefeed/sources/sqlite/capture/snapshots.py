# SPDX-License-Identifier: Apache-2.0
"""Snapshots of captured tables, in SQLite: what they read, and what is remembered of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_changefeed.exceptions import SnapshotError
from airflow_changefeed.sources.base_capture import KeyRange, SnapshotClaim, TableColumns
from airflow_changefeed.sources.shared import as_row, as_value
from airflow_changefeed.sources.sqlite.capture.registry import load_capture
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.names import load_feed
from airflow_changefeed.sources.sqlite.records import Records

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_changefeed.sources.sqlite.capture.table import TableQuery

#: The columns of a claim's fields that have another name.
CLAIM = {
    "feed": "capture",
    "table": "table_name",
    "by": "begun_by",
    "expires_at": "expires",
    "where": "where_text",
}
CLAIMS = Records("snapshot", lambda row: as_value(SnapshotClaim, row, CLAIM), "begin_ms, capture, table_name")
MARKS = Records("snapshot_mark", lambda row: str(row["mark"]), "mark")


class SqliteSnapshots:
    """The part of the source for snapshots; see :class:`~...sources.base_capture.SnapshotStore`."""

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
        return table_query(tables, table, range_, where, cuts_fractions=not is_adbc)

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
            for claim in CLAIMS.find(connection, {"capture": feed, "table_name": table}):
                return claim
            expires = self.database.later(seconds)
            claim = SnapshotClaim(feed, table, token, path, begin, by, expires, where)
            return CLAIMS.add(connection, as_row(claim, CLAIM))

    @contextmanager
    def marking(self, feed: str, table: str, *, token: str, mark: str, seconds: float) -> Iterator[None]:
        """
        No connection is held in between, as ADBC may read the file meanwhile (ADR 0003). So a first row of
        the mark takes the place of a session: a file that is put back to an earlier state loses it.
        """
        mine = claim_key(feed, table, token)
        with self.database.connect() as connection, self.database.write(connection):
            renew(connection, mine, self.database.later(seconds))
            MARKS.add(connection, {**mine, "mark": mark})
        yield
        with self.database.connect() as connection, self.database.write(connection):
            renew(connection, mine, self.database.later(seconds))
            MARKS.change(connection, {**mine, "mark": mark}, {"is_read": 1}, keeps_version=True)

    def snapshot_marks(self, feed: str, table: str, *, token: str) -> set[str]:
        with self.database.connect() as connection:
            return set(MARKS.find(connection, {**claim_key(feed, table, token), "is_read": 1}))

    def end_snapshot(self, feed: str, table: str, *, token: str) -> bool:
        with self.database.connect() as connection, self.database.write(connection):
            return forget(connection, claim_key(feed, table, token))

    def snapshots(self, feed: str | None = None) -> list[SnapshotClaim]:
        with self.database.connect() as connection, self.database.snapshot(connection):
            if feed is not None:
                load_capture(connection, feed)
            return CLAIMS.find(connection, {"capture": feed})

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


def claim_key(feed: str, table: str, token: str) -> dict[str, str]:
    """Return the key of a snapshot, and of its marks."""
    return {"capture": feed, "table_name": table, "token": token}


def renew(connection: sqlite3.Connection, mine: Mapping[str, str], expires: datetime) -> None:
    """
    Postpone when a snapshot expires.

    :param mine: of :func:`claim_key`.
    :raises SnapshotError: it has ended.
    """
    for claim in CLAIMS.find(connection, mine):
        later = {"expires": max(claim.expires_at, expires)}
        CLAIMS.change(connection, mine, later, keeps_version=True)
        return
    feed, table, token = mine.values()
    raise SnapshotError(
        f"snapshot {token} of table {table!r} of capture {feed!r} has ended: it was given up, or "
        "another run finished it. Take a new snapshot",
        feed=feed,
        table=table,
        token=token,
    )


def move_to(connection: sqlite3.Connection, mine: Mapping[str, str], mark: str) -> None:
    """Replace the only mark of a snapshot into the feed."""
    MARKS.remove(connection, mine)
    MARKS.add(connection, {**mine, "mark": mark, "is_read": 1})


def forget(connection: sqlite3.Connection, mine: Mapping[str, str]) -> bool:
    """Forget a snapshot and its marks; False if it is not there."""
    MARKS.remove(connection, mine)
    return CLAIMS.remove(connection, mine) > 0
