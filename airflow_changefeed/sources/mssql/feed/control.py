# SPDX-License-Identifier: Apache-2.0
"""Drain, purge and insert history, in SQL Server; the procedures take the locks (ADR 0001)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from airflow_changefeed.core.feed import Shard, StaleMark, counted, parse_shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import HistoryError
from airflow_changefeed.sources.base_control import Purged
from airflow_changefeed.sources.mssql.connection.errors import is_driver_error, name_error
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.catalog import MssqlCalls
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.feed.reader import by_shard, key_definitions
from airflow_changefeed.sources.mssql.names import quote, without_zone
from airflow_changefeed.sources.shared import MAX_BATCH_ROWS, as_ulid, check_count, stale_mark


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


class MssqlHistory(MssqlCalls):
    """The part of the source that inserts history."""

    def insert_history(
        self, feed: str, shard: Shard, events: Sequence[tuple[datetime, tuple[Any, ...]]], *, reason: str
    ) -> StaleMark:
        timed = [(without_zone(time), tuple(key)) for time, key in events]
        with self._with_feed(feed, shard=shard) as (session, found):
            _check(found, shard, timed)
            arguments = {
                "shard_id": found.to_sql(shard),
                "reason": reason,
                "lock_timeout": self.database.lock_timeout_ms,
            }
            _stage(session, found, shard, timed)
            (row,) = session.records(*found.call("insert_history", arguments))
            session.execute("drop table #history")
            return stale_mark(row)


def _stage(
    session: Session, feed: MssqlFeed, shard: Shard, timed: list[tuple[datetime, tuple[Any, ...]]]
) -> None:
    """Put the events into the connection's temporary table, from which the procedure reads them."""
    definitions = key_definitions(feed, "changefeed_place int", "changefeed_time datetime2(3)")
    session.execute(f"drop table if exists #history; create table #history ({definitions})")
    names = ", ".join(
        ["changefeed_place", "changefeed_time", *(quote(column.name) for column in feed.fed_keys)]
    )
    marks = ", ".join("?" * (2 + len(feed.fed_keys)))
    rows = [(place, time, *key) for place, (time, key) in enumerate(timed, start=1)]
    try:
        session.insert(f"insert #history ({names}) values ({marks})", rows)
    except Exception as error:
        # A lost connection is translated; an unsuitable value is not.
        if not is_driver_error(error) or name_error(error) is not error:
            raise
        raise _refused(
            feed, shard, [f"a key holds a value that SQL Server cannot store ({error})"]
        ) from error


def _check(feed: MssqlFeed, shard: Shard, timed: list[tuple[datetime, tuple[Any, ...]]]) -> None:
    """Raise for what prevents passing the events at all; the procedure checks the rest."""
    if feed.is_serialized:
        problem = (
            "its writers keep the ULID in their own table. Insert the rows there, with ULIDs of their time"
        )
        raise _refused(feed, shard, [problem])
    if feed.capture is not None:
        problem = (
            "it is a capture, whose events are the changes of its tables. To include existing rows, "
            "enable the capture with a snapshot, or resolve it with resync"
        )
        raise _refused(feed, shard, [problem])
    if not timed:
        raise _refused(feed, shard, ["there are no events"])
    keys = [column.name for column in feed.info.key_columns]
    if any(len(key) != len(keys) for _, key in timed):
        raise _refused(feed, shard, [f"each key needs {counted(len(keys), 'value')} ({', '.join(keys)})"])
    if any(value is None for _, key in timed for value in key):
        raise _refused(feed, shard, ["a key contains a null"])


def _refused(feed: MssqlFeed, shard: Shard, problems: list[str]) -> HistoryError:
    return HistoryError(
        f"feed {feed.name!r} shard {shard_text(shard)} cannot take this history: {'; '.join(problems)}",
        feed=feed.name,
        shard=shard,
        problems=problems,
    )
