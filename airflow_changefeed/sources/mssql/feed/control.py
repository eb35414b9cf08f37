# SPDX-License-Identifier: Apache-2.0
"""Drain and purge, in SQL Server; the procedures take the locks (ADR 0001)."""

from __future__ import annotations

import json
from datetime import datetime

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.base_control import Purged
from airflow_changefeed.sources.messages import MAX_BATCH_ROWS, check_count
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.catalog import load_feed
from airflow_changefeed.sources.mssql.feed.reader import by_shard
from airflow_changefeed.sources.mssql.names import without_zone
from airflow_changefeed.sources.rows import as_ulid


class MssqlControl:
    """The part of the source that drains and purges."""

    database: MssqlDatabase

    def drain(self, feed: str) -> dict[Shard, int]:
        def drain(session: Session) -> dict[Shard, int]:
            found = load_feed(session, self.database.schema, feed)
            sql, values = found.call("drain_feed", {"lock_timeout": self.database.lock_timeout_ms})
            return {
                found.from_sql(row["shard_id"]): int(row["rows"])
                for row in by_shard(session.records(sql, *values))
            }

        # Draining again orders and counts what is left.
        return self.database.ask(drain, feed=feed)

    def purge(
        self, feed: str, before: datetime, *, batch_rows: int = 10_000, dry_run: bool = False
    ) -> list[Purged]:
        check_count("batch_rows", batch_rows, MAX_BATCH_ROWS)
        arguments = {
            "before": without_zone(before),
            "batch_rows": batch_rows,
            "dry_run": dry_run,
            "lock_timeout": self.database.lock_timeout_ms,
        }
        with self.database.connect(feed=feed) as session:
            found = load_feed(session, self.database.schema, feed)
            sql, values = found.call("purge_feed", arguments)
            return [
                Purged(
                    found.from_sql(row["shard_id"]),
                    int(row["rows"]),
                    Ulid.of_bytes(row["upto"]),
                    as_ulid(row["held_from"]),
                    tuple(json.loads(row["held_by"])),
                )
                for row in by_shard(session.records(sql, *values))
            ]

    def next_attempt(self, feed: str, *, above: int = 0) -> int:
        def draw(session: Session) -> int:
            found = load_feed(session, self.database.schema, feed)
            sql, values = found.call("next_attempt", {"above": above})
            (row,) = session.records(sql, *values)
            return int(row["attempt"])

        # A token lost on the way is simply never used.
        return self.database.ask(draw, feed=feed)
