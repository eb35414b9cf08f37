# SPDX-License-Identifier: Apache-2.0
"""Snapshots of captured tables in SQL Server: reading them in ranges, and remembering which have begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    ReplicaBehindError,
    SnapshotError,
    SourceUnavailableError,
)
from airflow_changefeed.sources.base_capture import KeyRange, SnapshotClaim, TableColumns
from airflow_changefeed.sources.mssql.capture.registry import load_capture
from airflow_changefeed.sources.mssql.connection.session import Record, Session
from airflow_changefeed.sources.mssql.feed.catalog import MssqlCalls, call_feed, load_feed
from airflow_changefeed.sources.mssql.feed.feed import call
from airflow_changefeed.sources.mssql.names import without_zone
from airflow_changefeed.sources.shared import MAX_BATCH_ROWS, as_time, check_count

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_changefeed.sources.mssql.capture.table import SourceTable

#: Characters that the database keeps.
_LENGTHS = {"token": 64, "mark": 100, "path": 4000, "where": 4000}
#: Is there as long as the session is: a driver may replace a broken one without a word.
_WITNESS = "#changefeed_marking"


class MssqlSnapshots(MssqlCalls):
    """The part of the source that reads captured tables; see the protocol ``SnapshotStore``."""

    def table_columns(self, feed: str, table: str) -> TableColumns:
        from airflow_changefeed.sources.mssql.capture.table_query import table_columns

        return table_columns(self._table(feed, table))

    def cut_table(self, feed: str, table: str, rows: int, *, where: str = "") -> list[str]:
        """A readable secondary may cut, as ranges are whole wherever they are cut."""
        from airflow_changefeed.sources.mssql.capture.table_query import cut

        if rows < 1:
            raise InvalidArgumentError(f"rows must be at least 1, not {rows}")
        return cut(self._table(feed, table), rows, self._asker(feed), where)

    def stream_table(
        self, feed: str, table: str, range_: KeyRange, *, where: str = "", batch_rows: int = 65_536
    ) -> Iterator[pa.RecordBatch]:
        """Not resumed when the connection is lost, as rows have moved meanwhile."""
        from airflow_changefeed.sources.mssql.capture.table import load_table
        from airflow_changefeed.sources.mssql.capture.table_query import TableQuery, stream_range

        check_count("batch_rows", batch_rows, MAX_BATCH_ROWS)
        bulk = self.database.for_bulk_reads()
        with bulk.connect(feed=feed) as session:
            if bulk is not self.database:
                self.database.retry.call(lambda: self._check_replica(session, feed, table), feed=feed)
            found = load_table(session, self.database.schema, feed, table)
            query = TableQuery(found.feed, found, range_, found.conditions(where))
            yield from stream_range(session, query, batch_rows, self._asker(feed))

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
        _check_lengths(token=token, path=path, **({"where": where} if where else {}))
        arguments = {
            "table": table,
            "token": token,
            "path": path,
            "begin": without_zone(begin),
            # Names of DAGs, runs and tasks may be long together.
            "by": by,
            "seconds": float(seconds),
            "where": where,
        }
        # One that has begun already is returned.
        (row,) = self._ask_capture(feed, "begin_snapshot", arguments)
        return _claim(row)

    @contextmanager
    def marking(self, feed: str, table: str, *, token: str, mark: str, seconds: float) -> Iterator[None]:
        _check_lengths(token=token, mark=mark)
        arguments = {"feed": feed, "table": table, "token": token, "mark": mark, "seconds": float(seconds)}
        sql, *values = call(self.database.schema, "mark_snapshot", arguments)
        declared, _, called = sql.rpartition("exec ")
        with self.database.connect(feed=feed) as session:
            self._check_claim(session, feed, table, token)
            session.execute(f"drop table if exists {_WITNESS}; create table {_WITNESS} (nothing int null)")
            yield
            ((is_same,),) = session.rows(
                f"{declared}declare @is_same int = 0; if object_id(N'tempdb..{_WITNESS}') is not null "
                f"begin set @is_same = 1; drop table {_WITNESS}; exec {called}; end; select @is_same",
                *values,
            )
            if not is_same:
                raise SourceUnavailableError(
                    f"feed {feed!r}: the session that was open while table {table!r} was read was lost, "
                    "so the rows that were read may be incomplete; read the range again",
                    feed=feed,
                    table=table,
                )

    def snapshot_marks(self, feed: str, table: str, *, token: str) -> set[str]:
        rows = self._ask_capture(feed, "list_snapshot_marks", {"table": table, "token": token})
        return {row["mark"] for row in rows}

    def end_snapshot(self, feed: str, table: str, *, token: str) -> bool:
        arguments = {"feed": feed, "table": table, "token": token}
        with self.database.connect(feed=feed) as session:
            load_capture(session, self.database.schema, feed)
            (row,) = session.records(*call(self.database.schema, "end_snapshot", arguments))
        return bool(row["ended"])

    def snapshots(self, feed: str | None = None) -> list[SnapshotClaim]:
        if feed is None:
            return [_claim(row) for rows in self._ask_feeds(None, "list_snapshots") for row in rows]
        return [_claim(row) for row in self._ask_capture(feed, "list_snapshots")]

    def order_bound(self, feed: str) -> int:
        _, (row,) = self._inspect_outbox(feed)
        return int(row["bound"])

    def first_waiting(self, feed: str) -> int | None:
        rows, _ = self._inspect_outbox(feed)
        return min((int(row["first_sequence"]) for row in rows), default=None)

    # ---- parts of them

    def _ask_capture(
        self, feed: str, procedure: str, arguments: Mapping[str, Any] | None = None
    ) -> list[Record]:
        """Call a procedure common to all captures that may be called twice, and return its rows."""
        batch = call(self.database.schema, procedure, {"feed": feed, **(arguments or {})})

        def question(session: Session) -> list[Record]:
            load_capture(session, self.database.schema, feed)
            return session.records(*batch)

        return self.database.ask(question, feed=feed)

    def _inspect_outbox(self, feed: str) -> list[list[Record]]:
        def question(session: Session) -> list[list[Record]]:
            load_capture(session, self.database.schema, feed)
            return call_feed(session, load_feed(session, self.database.schema, feed), "inspect_outbox")

        return self.database.ask(question, feed=feed)

    def _table(self, feed: str, table: str) -> SourceTable:
        from airflow_changefeed.sources.mssql.capture.table import load_table

        schema = self.database.schema
        return self.database.ask(lambda session: load_table(session, schema, feed, table), feed=feed)

    def _asker(self, feed: str) -> Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Return what answers statements that read a table."""
        bulk = self.database.for_bulk_reads()
        return lambda sql, values: bulk.ask(lambda session: session.rows(sql, *values), feed=feed)

    def _claims(self, session: Session, feed: str) -> list[SnapshotClaim]:
        rows = session.records(*call(self.database.schema, "list_snapshots", {"feed": feed}))
        return [_claim(row) for row in rows]

    def _check_claim(self, session: Session, feed: str, table: str, token: str) -> None:
        load_capture(session, self.database.schema, feed)
        if (table, token) not in {(one.table, one.token) for one in self._claims(session, feed)}:
            raise SnapshotError(
                f"snapshot {token} of table {table!r} of feed {feed!r} was given up, or another "
                "snapshot has begun; its rows cannot be used. Begin a new snapshot",
                feed=feed,
                table=table,
                token=token,
            )

    def _check_replica(self, session: Session, feed: str, table: str) -> None:
        """Check that a secondary has the snapshot, which began after its feed was sealed (ADR 0005, R10)."""
        begun = self.database.ask(lambda primary: self._claims(primary, feed), feed=feed)
        wanted = {one.token for one in begun if one.table == table}
        if not wanted & {one.token for one in self._claims(session, feed) if one.table == table}:
            raise ReplicaBehindError(
                f"feed {feed!r}: the secondary does not have the snapshot of table {table!r} yet. "
                "Retry; if the secondary stays behind, check its redo queue, or read from the primary",
                feed=feed,
                table=table,
            )


def _claim(row: Mapping[str, Any]) -> SnapshotClaim:
    return SnapshotClaim(
        row["feed"],
        row["table_name"],
        row["token"],
        row["path"],
        as_time(row["begin_time"]),
        row["begun_by"],
        as_time(row["expires_at"]),
        row["where_text"],
    )


def _check_lengths(**given: str) -> None:
    """Refuse texts that the database would cut off."""
    problems = [
        f"{name} must have 1 to {_LENGTHS[name]} characters, not {len(text)}"
        for name, text in given.items()
        if not 1 <= len(text) <= _LENGTHS[name]
    ]
    InvalidArgumentError.collect("snapshot", problems)
