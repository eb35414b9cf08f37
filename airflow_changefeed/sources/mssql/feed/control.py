# SPDX-License-Identifier: Apache-2.0
"""Drain and purge, in SQL Server; the procedures take the locks (ADR 0001)."""

from __future__ import annotations

import json
from datetime import datetime

from airflow_changefeed.core.feed import Shard, parse_shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.base_control import Purged
from airflow_changefeed.sources.messages import MAX_BATCH_ROWS, check_count
from airflow_changefeed.sources.mssql.feed.calls import MssqlCalls
from airflow_changefeed.sources.mssql.feed.reader import by_shard
from airflow_changefeed.sources.mssql.names import without_zone
from airflow_changefeed.sources.rows import as_ulid


class MssqlControl(MssqlCalls):
    """The part of the source that drains and purges."""

    def drain(self, feed: str) -> dict[Shard, int]:
        # Draining again orders and counts what is left.
        (rows,) = self._ask(feed, "drain_feed", {"lock_timeout": self.database.lock_timeout_ms})
        return {parse_shard(row["shard_id"]): int(row["rows"]) for row in by_shard(rows)}

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
        (rows,) = self._change(feed, "purge_feed", arguments)
        return [
            Purged(
                parse_shard(row["shard_id"]),
                int(row["rows"]),
                Ulid.of_bytes(row["upto"]),
                as_ulid(row["held_from"]),
                tuple(json.loads(row["held_by"])),
            )
            for row in by_shard(rows)
        ]

    def next_attempt(self, feed: str, *, above: int = 0) -> int:
        # A token lost on the way is simply never used.
        ((row,),) = self._ask(feed, "next_attempt", {"above": above})
        return int(row["attempt"])
