# SPDX-License-Identifier: Apache-2.0
"""The source for SQL Server, put together from its parts; and a feed that was found for one operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.cursor import Began, check_consumer
from airflow_changefeed.core.feed import Seal, Shard, parse_shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.base import FeedState, RangePart
from airflow_changefeed.sources.mssql.capture.control import MssqlCaptures
from airflow_changefeed.sources.mssql.capture.snapshots import MssqlSnapshots
from airflow_changefeed.sources.mssql.connection.options import DEFAULT_PORT, DriverOptions, read_connection
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Record, Server, Session
from airflow_changefeed.sources.mssql.consumer_session import MssqlDeadLetters
from airflow_changefeed.sources.mssql.consumers import MssqlLeases
from airflow_changefeed.sources.mssql.cursors import MssqlCursors, cursor_row, in_order
from airflow_changefeed.sources.mssql.doctor.inspect import MssqlInspect
from airflow_changefeed.sources.mssql.feed.catalog import MAX_CALLS, Call, call_many, load_feed
from airflow_changefeed.sources.mssql.feed.control import MssqlControl, MssqlHistory
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.feed.poll import MssqlOverview
from airflow_changefeed.sources.mssql.feed.reader import (
    MssqlReader,
    by_shard,
    count_arguments,
    counted,
    split,
    statuses,
)
from airflow_changefeed.sources.mssql.names import without_zone
from airflow_changefeed.sources.mssql.setup import MssqlSetup
from airflow_changefeed.sources.mssql.versions import MssqlIdentity
from airflow_changefeed.sources.shared import as_time, as_ulid, stale_mark

if TYPE_CHECKING:
    import pyarrow as pa


class MssqlOpenFeed:
    """Implements :class:`~airflow_changefeed.sources.base.OpenFeed`: one request for each call."""

    def __init__(self, source: MssqlOpening, found: MssqlFeed) -> None:
        self._source = source
        self._found = found
        self.info = found.info
        self.database = found.database
        self.opened_at = found.read_at

    def schema(self) -> pa.Schema:
        from airflow_changefeed.sources.mssql.capture.query import feed_schema

        return feed_schema(self._found)

    def seal(self, until: datetime) -> dict[Shard, Seal]:
        arguments = {"until": without_zone(until), "lock_timeout": self._source.database.lock_timeout_ms}
        # Sealing again is harmless.
        (rows,) = self._call(("seal_feed", arguments), until=until)
        seals = (
            Seal(parse_shard(row["shard_id"]), as_time(row["until"]), as_ulid(row["head"]))
            for row in by_shard(rows)
        )
        return {seal.shard: seal for seal in seals}

    def _call(self, *calls: Call, **facts: object) -> list[list[Record]]:
        return self._source.database.ask(
            lambda session: call_many(session, self._found, calls), feed=self.info.name, **facts
        )

    def state(self, consumer: str) -> FeedState:
        marks, cursors, shards = self._call(
            ("list_stale_marks", {}), ("list_cursors", {"consumer": consumer}), ("shards", {})
        )
        rows = [cursor_row(self.info.name, row) for row in cursors]
        return FeedState(
            [stale_mark(row) for row in marks],
            {row.shard: row for row in rows},
            {status.shard: status for status in statuses(shards)},
        )

    def counts(self, ranges: Mapping[Shard, Sequence[UlidRange]]) -> dict[Shard, list[int]]:
        counts: dict[Shard, list[int]] = {}
        left = iter(ranges.items())
        while some := list(islice(left, MAX_CALLS)):
            calls = [("count_feed", count_arguments(self._found, *each)) for each in some]
            found = zip((shard for shard, _ in some), self._call(*calls), strict=True)
            counts |= {shard: counted(rows) for shard, rows in found}
        return counts

    def split(
        self, shard: Shard, range_: UlidRange, parts: int, *, rows: int | None = None
    ) -> list[RangePart]:
        def question(session: Session) -> list[RangePart]:
            return split(session, self._found, shard, range_, parts, rows)

        return self._source.database.ask(question, feed=self.info.name, shard=shard)

    def begin_export(self, consumer: str, starts: Mapping[Shard, Ulid], *, by: str, above: int = 0) -> int:
        check_consumer(consumer)
        if len(starts) >= MAX_CALLS:
            self._source.begin_consumer(consumer, self.info.name, starts, by=by)
            starts = {}
        given = {"consumer": consumer, "by": by, "began": Began.IMPLIED.value}
        begins: list[Call] = [
            ("begin_consumer", {**given, "shard_id": self._found.to_sql(shard), "after": starts[shard].bytes})
            for shard in in_order(starts)
        ]
        if begins:
            begins = ["set xact_abort on; begin transaction", *begins, "commit transaction"]
        # All of it may be repeated: a token that is lost on the way is never used.
        ((row,),) = self._call(*begins, ("next_attempt", {"above": above}))
        return int(row["attempt"])


class MssqlOpening(MssqlControl, MssqlReader, MssqlCursors):
    """The part of the source that opens feeds, and seals."""

    def seal(self, feed: str, until: datetime) -> dict[Shard, Seal]:
        with self.open(feed) as found:
            return found.seal(until)

    @contextmanager
    def open(self, feed: str) -> Iterator[MssqlOpenFeed]:
        schema = self.database.schema
        yield MssqlOpenFeed(
            self,
            self.database.ask(lambda session: load_feed(session, schema, feed, is_fresh=True), feed=feed),
        )


class MssqlFeedSource(
    MssqlIdentity,
    MssqlOpening,
    MssqlOverview,
    MssqlHistory,
    MssqlSetup,
    MssqlCaptures,
    MssqlSnapshots,
    MssqlLeases,
    MssqlDeadLetters,
    MssqlInspect,
):
    r"""
    Feeds in a database of SQL Server; implements :class:`~airflow_changefeed.sources.base.FeedSource`.

    Keeps a few connections between calls, which :meth:`close` gives back; may be used from any thread and
    kept across forks.

    :param host: of the server; ``host\instance`` for a named instance.
    :param port: 1 to 65,535; None lets the driver find it.
    :param schema: that changefeed is installed in.
    :param user: empty for Kerberos, and where Entra ID needs none.
    :param encrypt: the connection: ``yes``, ``no`` or ``strict`` (TDS 8).
    :param trust_server_certificate: without checking it; for tests only.
    :param lock_timeout: seconds to wait for locks, 0 to 86,400.
    :param read_only_replica: whether bulk reads may go to a readable secondary.
    :param driver_options: by name, see
        :class:`~airflow_changefeed.sources.mssql.connection.options.DriverOptions`; for example
        ``{"authentication": "ActiveDirectoryMSI"}``.
    :raises InvalidArgumentError: options are missing, unknown or out of range; all are named.
    """

    def __init__(
        self,
        host: str,
        *,
        database: str,
        user: str = "",
        password: str = "",
        port: int | None = DEFAULT_PORT,
        schema: str = "changefeed",
        encrypt: str = "yes",
        trust_server_certificate: bool = False,
        lock_timeout: float = 60.0,
        read_only_replica: bool = False,
        driver_options: Mapping[str, Any] | None = None,
    ) -> None:
        # All arguments, by their names.
        read, missing, problems = read_connection(locals())
        problems += [f"{name} is missing" for name in missing]
        InvalidArgumentError.collect(f"SQL Server source {host!r}", problems)
        self._read = read
        address = {name: read[name] for name in ("host", "port", "database", "user", "password", "encrypt")}
        self.database = MssqlDatabase(
            Server(
                **address,
                trust_server_certificate=read["trust_server_certificate"],
                options=DriverOptions(**read["driver_options"]),
            ),
            read["schema"],
            read["lock_timeout"],
            read_only_replica=read["read_only_replica"],
        )

    def __repr__(self) -> str:
        return f"MssqlFeedSource({self.database.server}, schema={self.database.schema!r})"

    def describe(self) -> dict[str, Any]:
        """Return what ``open_source`` needs to open the same database elsewhere; holds the password."""
        return {"type": "mssql", **self._read}

    def connected(self) -> AbstractContextManager[None]:
        # Connections are kept anyway.
        return nullcontext()

    def close(self) -> None:
        """Close the connections that are kept; the next call opens one again."""
        self.database.close()
