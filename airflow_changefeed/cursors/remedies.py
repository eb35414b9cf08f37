# SPDX-License-Identifier: Apache-2.0
"""What a person does about a Variable that differs from the cursors in the database."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_changefeed.core.cursor import RESTORED_PAGE, Cursor, seal_command
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.times import EPOCH, format_time, from_milliseconds
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.base import FeedSource


def recovery_commands(consumer: str, feed: str) -> tuple[str, str]:
    """Return the two commands that resolve an edited Variable: adopt it, or publish the rows."""
    return shell("cursor adopt", consumer, "--feed", feed), shell("cursor publish", consumer, "--feed", feed)


def beyond_remedy(
    source: FeedSource, consumer: str, feed: str, cursors: Mapping[Shard, Cursor]
) -> str | None:
    """
    Return what to do about a Variable of a later state of the database; None if it is not.

    It is beyond what its feed has reached, or, if that was sealed since, of a later version than the rows.
    """
    _, publish = recovery_commands(consumer, feed)
    ours = {row.shard: row.resource_version for row in source.cursors(feed, consumer)}
    ahead = ""
    if any(one.resource_version > ours[shard] for shard, one in cursors.items() if shard in ours):
        ahead = "The Variable is newer than the database's cursors, as after a restore of the database to an "
        ahead += "earlier state, so do not adopt it: events written since the restore would be skipped. "
    statuses = source.shards(feed)
    # A shard that never had an event is sealed like the others.
    sealed = max((status.sealed_until or EPOCH for status in statuses), default=EPOCH)
    highest = {status.shard: status.highest_cursor for status in statuses}
    others = Ulid.floor(sealed).previous()
    beyond = [one.ulid for shard, one in cursors.items() if one.ulid > highest.get(shard, others)]
    again = f"Then run the windows since the restored state again, as a backfill; {RESTORED_PAGE}"
    if not beyond:
        if not ahead:
            return None
        # Its window was sealed for when it was exported.
        reached = from_milliseconds(max(one.ulid.ms for one in cursors.values()) + 1)
        overwrite = "Overwrite it"
        if sealed < reached <= source.now():
            overwrite = f"First seal the feed: {seal_command(feed, reached)}. Then overwrite it"
        return f"{ahead}{overwrite} with the cursors of the database: {publish}. {again}"
    last = max(beyond)
    until = from_milliseconds(last.ms + 1)
    if until > source.now():
        # Never sealed, so this is an edit by hand.
        return (
            f"The Variable is in the future ({format_time(last.time)}). Overwrite it with the cursors of the "
            f"database: {publish}"
        )
    return (
        f"The Variable ({format_time(last.time)}) is beyond what the feed has reached, so do not adopt it. "
        "If the database was restored to an earlier state, first seal the feed: "
        f"{seal_command(feed, until)}. Then overwrite the Variable with the cursors of the database: "
        f"{publish}. {again}"
    )
