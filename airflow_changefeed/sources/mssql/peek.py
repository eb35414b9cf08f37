# SPDX-License-Identifier: Apache-2.0
"""One look at a feed in SQL Server: one call of one procedure, also for whether there is such a feed."""

from __future__ import annotations

from airflow_changefeed.core.feed import parse_shard
from airflow_changefeed.exceptions import TransientError
from airflow_changefeed.sources.base import Peek
from airflow_changefeed.sources.mssql.catalog import load_feed
from airflow_changefeed.sources.mssql.errors import name_error
from airflow_changefeed.sources.mssql.names import as_time, as_ulid, literal, quote
from airflow_changefeed.sources.mssql.session import Session


def look(session: Session, schema: str, feed: str, consumer: str) -> Peek:
    """
    Look for a consumer's news.

    :raises FeedNotFoundError: there is no such feed; names those that there are.
    :raises FeedSetupError: the feed's event table was dropped, or the login must not see it.
    """
    procedure = f"{quote(schema)}.{quote(f'peek_feed:{feed}')}"
    try:
        # Without a parameter, for which the driver would prepare and give up a statement: a second message.
        (_, facts), (_, shards) = session.execute(f"exec {procedure} @consumer = {literal(consumer)}")
    except Exception as error:
        if not isinstance(name_error(error), TransientError):
            # Whether there is such a feed comes first, as in every other call.
            load_feed(session, schema, feed)
        raise
    ((name, at, has_table),) = facts
    if name != feed or not has_table:
        load_feed(session, schema, feed)
    # Sorted here, as SQL Server sorts UUIDs by their last bytes first.
    return Peek.of(
        as_time(at),
        [
            (parse_shard(shard), as_ulid(head), bool(has_outbox), as_ulid(cursor))
            for shard, head, has_outbox, cursor in sorted(shards)
        ],
    )
