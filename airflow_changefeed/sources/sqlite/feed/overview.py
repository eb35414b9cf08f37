# SPDX-License-Identifier: Apache-2.0
"""Overview of feeds, in SQLite: a few statements per feed, however many shards it has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from airflow_changefeed.core.consumer import (
    COUNTED,
    ConsumerInfo,
    ConsumerPosition,
    FeedOverview,
    OutputCheck,
    ShardOverview,
)
from airflow_changefeed.core.feed import Shard, ShardStatus, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.shared import as_time_or_none, as_ulid, check_overview, shard_status
from airflow_changefeed.sources.sqlite.capture.gaps import gaps
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.cursors import CHECKS, SETTINGS, cursor_row
from airflow_changefeed.sources.sqlite.feed.control import HINT_MS
from airflow_changefeed.sources.sqlite.feed.names import KNOWN, FeedTables, check_whole, load_feed, load_feeds
from airflow_changefeed.sources.sqlite.feed.reader import count_pieces
from airflow_changefeed.sources.sqlite.records import records
from airflow_changefeed.sources.sqlite.versions import check_beneath

#: Named as no event table can be.
_DEPTHS, _PAGE = '"changefeed.depths"', '"changefeed.page"'


class SqliteOverview:
    """The part of the source that gives overviews."""

    database: SqliteDatabase

    def overview(
        self, feeds: Sequence[str] | None = None, *, first_shard: int = 0, shards: int = 1_000
    ) -> list[FeedOverview]:
        check_overview(first_shard, shards)
        with self.database.connect() as connection:
            for feed in [None] if feeds is None else feeds:
                check_beneath(self.database, connection, feed)
            with self.database.snapshot(connection):
                found = (
                    load_feeds(connection)
                    if feeds is None
                    else [load_feed(connection, feed, is_whole=False) for feed in feeds]
                )
                consumers: dict[str, list[ConsumerInfo]] = {}
                for info in SETTINGS.find(connection) if found else ():
                    consumers.setdefault(info.spec.feed, []).append(info)
                checks: dict[str, list[OutputCheck]] = {}
                for check in CHECKS.find(connection) if found else ():
                    checks.setdefault(check.feed, []).append(check)
                has_captures = any(tables.capture is not None for tables in found)
                open_gaps = gaps(connection, is_open=True) if has_captures else []
                overviews = []
                for tables in found:
                    feed = tables.info.name
                    own = tuple(gap for gap in open_gaps if gap.capture == feed)
                    unread = FeedOverview(
                        tables.info,
                        (),
                        0,
                        tuple(consumers.get(feed, ())),
                        None if tables.capture is None else own,
                        tuple(checks.get(feed, ())),
                    )
                    overviews.append(self._filled(tables, unread, first_shard, shards))
                return overviews

    def _filled(
        self, tables: FeedTables, unread: FeedOverview, first_shard: int, shards: int
    ) -> FeedOverview:
        try:
            check_whole(tables)
            with self.database.named_errors():
                (count,) = tables.execute(
                    f"with {tables.known_shards} select count(*) from {KNOWN}"
                ).fetchone()
                found = _statuses(tables, first_shard, shards)
                positions = _positions(tables, [status for status, *_ in found])
        except FeedSetupError as problem:
            return replace(unread, problem=problem)
        overviews = (
            ShardOverview(status, waiting, since, tuple(positions.get(status.shard, ())), first)
            for status, waiting, since, first in found
        )
        return replace(unread, shards=tuple(overviews), shard_count=count)


def _statuses(
    tables: FeedTables, first_shard: int, shards: int
) -> list[tuple[ShardStatus, int, datetime | None, Ulid | None]]:
    """Return the states of the shards of a page, the rows that wait in each, since when, and first events."""
    more, waiting, since = "", "0", "null"
    if tables.capture is not None:
        # Its outbox has no index by shard, so all of its shards are counted at once.
        columns = "shard_id, count(*), min(order_sequence)"
        more = f", {_DEPTHS}(id, n, lowest) as (select {columns} from {tables.outbox} group by 1)"
        waiting = f"coalesce((select n from {_DEPTHS} as d where d.id = p.id), 0)"
        lowest = f"(select lowest from {_DEPTHS} as d where d.id = p.id)"
        since = f"(select {HINT_MS} from {tables.outbox} where order_sequence = {lowest})"
    elif not tables.is_serialized:
        own = f"from {tables.outbox} where shard_id = p.id"
        waiting = f"(select count(*) from (select 1 {own} limit ?3))"
        since = f"(select {HINT_MS} {own} order by order_sequence limit 1)"
    rows = records(
        tables.connection,
        f"with {tables.known_shards}{more}, {_PAGE} as "
        f"(select * from {KNOWN} order by id limit ?2 offset ?1) "
        "select id, max(time_ms, ?4) as time, purged_upto, has_outbox, nullif(?4, 0) as sealed_until, "
        f"(select max({tables.ulid}) from {tables.feed} where {tables.condition_of('p.id')}) as head, "
        f"(select min({tables.ulid}) from {tables.feed} where {tables.condition_of('p.id')}) as first_event, "
        f"min({waiting}, ?3) as waiting, {since} as since from {_PAGE} as p order by id",
        (first_shard, shards, COUNTED, tables.floor_ms),
    )
    return [
        (
            shard_status(tables.from_sql(row["id"]), row),
            row["waiting"],
            as_time_or_none(row["since"]),
            as_ulid(row["first_event"]),
        )
        for row in rows
    ]


def _positions(tables: FeedTables, shards: Sequence[ShardStatus]) -> dict[Shard, list[ConsumerPosition]]:
    """Return the positions of all consumers in the shards of a page, and how many events are around them."""
    shard = "c.shard" if tables.info.shard_key_type == "uniqueidentifier" else "cast(c.shard as integer)"
    beyond = f"from {tables.feed} as e where {tables.condition_of(shard)} and e.{tables.ulid} > c.ulid"
    rows = records(
        tables.connection,
        f"select c.*, (select count(*) from (select 1 {beyond} limit ?3)) as behind, "
        f"(select e.{tables.ulid} {beyond} order by 1 limit 1) as next_event "
        'from "changefeed.consumer" as c '
        "where c.feed = ?2 and c.shard in (select value from json_each(?1)) order by c.consumer",
        (json.dumps([shard_text(status.shard) for status in shards]), tables.info.name, COUNTED),
    )
    purged = {status.shard: status.purged_upto for status in shards}
    found: dict[Shard, list[ConsumerPosition]] = {}
    for record in rows:
        row = cursor_row(record)
        pieces = row.before_beginning(purged[row.shard])
        before = count_pieces(tables, row.shard, pieces, COUNTED)
        position = ConsumerPosition(row, record["behind"], as_ulid(record["next_event"]), *before)
        found.setdefault(row.shard, []).append(position)
    return found
