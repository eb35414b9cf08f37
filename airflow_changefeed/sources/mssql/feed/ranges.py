# SPDX-License-Identifier: Apache-2.0
"""Streaming a range of a feed in SQL Server: within its bounds, and on after a lost connection."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import IncompleteReadError, ReplicaBehindError
from airflow_changefeed.sources.arrow import check_schema
from airflow_changefeed.sources.base import ULID_COLUMN
from airflow_changefeed.sources.messages import check_purged_upto
from airflow_changefeed.sources.mssql.capture.query import range_query
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.feed.arrow import Recheck, computed, plan_batches, stream
from airflow_changefeed.sources.mssql.feed.catalog import load_feed

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_changefeed.sources.mssql.connection.session import Session
    from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
    from airflow_changefeed.sources.mssql.feed.query import RangeQuery


@dataclass
class RangeStream:
    """
    A stream of a range that goes on where it was when its connection is lost.

    That is safe, as nothing is committed any more at or below the bound that it has taken first, and rows
    come in ascending ULID: what follows the last batch is what was not given yet.

    :param range: what is left of it; ``(after, upto]``.
    :param batch_rows: rows of a batch, at most.
    :param columns: of a row, that are read; None for all.
    """

    database: MssqlDatabase
    feed: str
    shard: Shard
    range: UlidRange
    batch_rows: int
    on_missing: str
    columns: Collection[str] | None = None
    _begin: Ulid = field(init=False)
    _is_bounded: bool = field(default=False, init=False)
    _schema: pa.Schema | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._begin = self.range.after
        self._bulk = self.database.for_bulk_reads()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """
        Stream what is left.

        :raises ChangefeedError: as :meth:`~airflow_changefeed.sources.base.FeedReader.stream` says.
        """
        if not self.range.is_empty:
            yield from self.database.retry.resume(self._rest, feed=self.feed, shard=self.shard)

    def _rest(self) -> Iterator[pa.RecordBatch]:
        with self._bulk.connect(feed=self.feed, shard=self.shard) as session:
            found = load_feed(session, self._bulk.schema, self.feed, is_fresh=True)
            self._bound(session, found)
            query = range_query(found, self.shard, self.range, self.on_missing, self.columns)
            if self._schema is not None:
                check_schema(query.schema, self._schema, self.feed)
            self._schema = query.schema
            if not query.range.is_empty:
                with computed(query):
                    rows = plan_batches(session, query, self.batch_rows)
                    for batch in stream(session, query, rows, self._recheck(query)):
                        self.range = UlidRange(
                            Ulid.parse_text(batch.column(ULID_COLUMN)[-1].as_py()), self.range.upto
                        )
                        yield batch
            # A purge in between would have left rows out (ADR 0001, R12).
            self._next_ulid(session, found, self._begin)

    def _next_ulid(self, session: Session, feed: MssqlFeed, after: Ulid) -> Ulid:
        """Return the lowest ULID that may still be assigned, unless events after a position were purged."""
        (row,) = session.records(*feed.call("shard_bounds", {"shard_id": feed.to_sql(self.shard)}))
        check_purged_upto(feed.name, self.shard, after, Ulid.of_bytes(row["purged_upto"]))
        return Ulid.of_bytes(row["next_ulid"])

    def _bound(self, session: Session, feed: MssqlFeed) -> None:
        """Take the bound below which everything is committed; what comes while this reads stays out of it."""
        last = self._next_ulid(session, feed, self.range.after).previous()
        # A secondary that has seen the seal has seen all that was committed before it (ADR 0005, R10). A
        # primary that went back since the bound was taken is one that lost what it had.
        if (self._bulk is not self.database or self._is_bounded) and last < self.range.upto:
            raise ReplicaBehindError(
                f"feed {feed.name!r} shard {shard_text(self.shard)}: the secondary has replicated the feed "
                f"only up to {last}, not {self.range.upto}. Retry; if it stays behind, check its redo queue, "
                "or read from the primary. Events not sealed yet can be read only there",
                feed=feed.name,
                shard=self.shard,
            )
        if not self._is_bounded:
            upto = min(self.range.upto, last)
            self.range = UlidRange(min(self.range.after, upto), upto)
            self._is_bounded = True

    def _recheck(self, query: RangeQuery) -> Recheck:
        def ask(number: int, texts: Mapping[Ulid, str]) -> dict[Ulid, bytes]:
            def compare(session: Session) -> dict[Ulid, bytes]:
                sql, values = query.differing_sql(number, texts)
                different = {Ulid.of_bytes(ulid): value for ulid, value in session.rows(sql, *values)}
                sql, values = query.present_sql(number, texts)
                ((present,),) = session.rows(sql, *values)
                if present != len(texts):
                    raise IncompleteReadError(
                        f"feed {self.feed!r} shard {shard_text(self.shard)}: rows were deleted or changed "
                        "during the read, so the read cannot be resumed; retry",
                        feed=self.feed,
                        shard=self.shard,
                    )
                return different

            return self._bulk.ask(compare, feed=self.feed, shard=self.shard)

        return ask
