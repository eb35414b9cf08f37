# SPDX-License-Identifier: Apache-2.0
"""Where a new consumer begins: at the first event, at the next one, at a time, or after a ULID."""

from __future__ import annotations

from airflow_changefeed.core.consumer import (
    Beginning,
    ConsumerInfo,
    ConsumerSpec,
    Position,
    parse_position,
    place_before,
)
from airflow_changefeed.core.feed import Shard, ShardStatus, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    ConsumerNotFoundError,
    CursorBeyondFeedError,
    PurgedError,
)
from airflow_changefeed.sources.base import FeedSource


def create_consumer(
    source: FeedSource,
    spec: ConsumerSpec,
    start: Position | str = Beginning.EARLIEST,
    *,
    by: str,
) -> ConsumerInfo:
    """
    Create a consumer. Idempotent: repeating it with the same settings leaves its position unchanged.

    :param start: ``earliest``: at the first event not purged. ``latest``: after everything committed now,
        which is ordered first. A time: at the first event of that time or later. A ULID: after it. Shards
        created later are read from their first event, or from the same time or ULID.
    :param by: who creates it.
    :raises ConsumerSetupError: it exists with other settings, or as an export's cursor.
    :raises PurgedError: events after the start are purged.
    :raises FutureTimeError: the start is in the future by the database's clock.
    :raises CursorBeyondFeedError: the ULID is beyond the high-water time of every shard.
    :raises InvalidArgumentError: the start cannot be parsed, or settings are invalid.
    """
    position = parse_position(start)
    try:
        known = source.consumer(spec.consumer, spec.feed)
    except ConsumerNotFoundError:
        begin, starts = resolve(source, spec.feed, position)
    else:
        begin, starts = known.begin, {}
    return source.create_consumer(spec, begin=begin, starts=starts, by=by)


def resolve(source: FeedSource, feed: str, start: Position) -> tuple[Ulid, dict[Shard, Ulid]]:
    """Return where later shards begin, and where each existing shard begins; both exclusive."""
    if start is Beginning.EARLIEST:
        return Ulid.MIN, {status.shard: status.purged_upto for status in source.shards(feed)}
    if start is Beginning.LATEST:
        # Rows waiting in the outbox were committed before now, so they are not new.
        source.drain(feed)
        return Ulid.MIN, {status.shard: status.head or status.purged_upto for status in source.shards(feed)}
    before = place_before(start.time if isinstance(start, Ulid) else start, feed, source.now())
    after = start if isinstance(start, Ulid) else before
    statuses = source.shards(feed)
    _check_purged(feed, statuses, after)
    if isinstance(start, Ulid):
        _check_beyond(feed, statuses, after)
    # A shard refuses a cursor beyond its high-water time; all its later events are after its head anyway.
    return after, {status.shard: min(after, status.highest_cursor) for status in statuses}


def _check_purged(feed: str, statuses: list[ShardStatus], after: Ulid) -> None:
    purged = {status.shard: status.purged_upto for status in statuses if status.purged_upto > after}
    if purged:
        raise PurgedError(
            f"feed {feed!r}: a consumer cannot begin after {after}; events are purged up to "
            f"{', '.join(f'{upto} in shard {shard_text(shard)}' for shard, upto in purged.items())}. Begin "
            "at earliest, and read the earlier events from the export",
            feed=feed,
            after=after,
        )


def _check_beyond(feed: str, statuses: list[ShardStatus], after: Ulid) -> None:
    if statuses and all(after > status.highest_cursor for status in statuses):
        raise CursorBeyondFeedError(
            f"feed {feed!r}: a consumer cannot begin after {after}, which is beyond the high-water time of "
            "every shard; the ULID is from another feed, or the database was restored. Begin at latest",
            feed=feed,
            cursor=after,
        )
