# SPDX-License-Identifier: Apache-2.0
"""The readable range of a shard: above what was purged, below what is not committed yet."""

from __future__ import annotations

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import PurgedError
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed


def check_purged(session: Session, feed: MssqlFeed, shard: Shard, after: Ulid) -> Ulid:
    """
    Return the lowest ULID that may still be assigned.

    :raises PurgedError: events after ``after`` were purged (ADR 0001, R12).
    """
    sql, values = feed.call("shard_bounds", {"shard_id": feed.to_sql(shard)})
    (row,) = session.records(sql, *values)
    purged = Ulid.of_bytes(row["purged_upto"])
    if after < purged:
        raise PurgedError(
            f"feed {feed.name!r} shard {shard_text(shard)}: events up to {purged} were purged, so reading "
            f"cannot start after {after}. Start at {purged}, or read the export of that time",
            feed=feed.name,
            shard=shard,
            after=after,
            purged_upto=purged,
        )
    return Ulid.of_bytes(row["next_ulid"])
