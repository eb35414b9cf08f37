# SPDX-License-Identifier: Apache-2.0
"""Where a new consumer begins: with the first event, with the next one, at a time, or behind a ULID."""

from __future__ import annotations

from datetime import datetime

from airflow_changefeed.core.consumer import Beginning, ConsumerInfo, ConsumerSpec, parse_beginning
from airflow_changefeed.core.feed import Shard, ShardStatus, shard_text
from airflow_changefeed.core.times import floor_to_millisecond
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    ConsumerNotFoundError,
    CursorBeyondFeedError,
    FutureTimeError,
    PurgedError,
)
from airflow_changefeed.sources.base import FeedSource


def create_consumer(
    source: FeedSource,
    spec: ConsumerSpec,
    start: Beginning | datetime | Ulid | str = Beginning.EARLIEST,
    *,
    by: str,
) -> ConsumerInfo:
    """
    Make a consumer; harmless to repeat with the same settings, which leaves it where it stands.

    :param start: ``earliest``: with the first event that is not purged. ``latest``: behind all that is
        committed now, which is ordered first. A time: with the events of that time and later. A ULID: behind
        it. Shards that come later are read from their first event, or from the same time or ULID.
    :param by: who makes it.
    :raises ConsumerSetupError: it exists with other settings, or as the consumer of an export; terminal.
    :raises PurgedError: events behind the start are purged; terminal.
    :raises FutureTimeError: the start lies in the future of the database's clock; terminal.
    :raises CursorBeyondFeedError: the ULID lies beyond the clocks of all shards; terminal.
    :raises InvalidArgumentError: a text that is none of these, or settings that are wrong; terminal.
    """
    position = (
        parse_beginning(start) if isinstance(start, str) and not isinstance(start, Beginning) else start
    )
    try:
        known = source.consumer(spec.consumer, spec.feed)
    except ConsumerNotFoundError:
        begin, starts = resolve(source, spec.feed, position)
    else:
        begin, starts = known.begin, {}
    return source.create_consumer(spec, begin=begin, starts=starts, by=by)


def resolve(
    source: FeedSource, feed: str, start: Beginning | datetime | Ulid
) -> tuple[Ulid, dict[Shard, Ulid]]:
    """
    Return where shards begin that come later, and where those begin that are there; exclusive both.

    :raises ChangefeedError: as :func:`create_consumer` says.
    """
    if start is Beginning.EARLIEST:
        return Ulid.MIN, {status.shard: status.purged_upto for status in source.shards(feed)}
    if start is Beginning.LATEST:
        # What waits in the outbox was committed before now, and is not new.
        source.drain(feed)
        return Ulid.MIN, {status.shard: status.head or status.purged_upto for status in source.shards(feed)}
    after = _after(source, feed, start)
    statuses = source.shards(feed)
    _check_purged(feed, statuses, after)
    if isinstance(start, Ulid):
        _check_beyond(feed, statuses, after)
    # A clock that has not come so far would refuse it; whatever comes there is later than what it has.
    return after, {status.shard: min(after, _highest(status)) for status in statuses}


def _after(source: FeedSource, feed: str, start: datetime | Ulid | Beginning) -> Ulid:
    now = source.now()
    time = start.time if isinstance(start, Ulid) else start
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise TypeError(f"a consumer begins at a Beginning, a time with its zone, or a Ulid, not {start!r}")
    if time > now:
        raise FutureTimeError(
            f"feed {feed!r}: a consumer cannot begin at {start}, as for the database it is "
            f"{now.isoformat()}. Begin at latest, which is now",
            feed=feed,
        )
    return start if isinstance(start, Ulid) else Ulid.floor(floor_to_millisecond(time)).previous()


def _check_purged(feed: str, statuses: list[ShardStatus], after: Ulid) -> None:
    purged = {status.shard: status.purged_upto for status in statuses if status.purged_upto > after}
    if purged:
        raise PurgedError(
            f"feed {feed!r}: a consumer cannot begin behind {after}, as events are purged up to "
            f"{', '.join(f'{upto} in shard {shard_text(shard)}' for shard, upto in purged.items())}. Begin "
            "at earliest, which is the first event that is left, and read the export of the time before",
            feed=feed,
            after=after,
        )


def _check_beyond(feed: str, statuses: list[ShardStatus], after: Ulid) -> None:
    if statuses and all(after > _highest(status) for status in statuses):
        raise CursorBeyondFeedError(
            f"feed {feed!r}: a consumer cannot begin behind {after}, which lies beyond the clocks of all its "
            "shards: it is another feed's, or the database was restored. Begin at latest",
            feed=feed,
            cursor=after,
        )


def _highest(status: ShardStatus) -> Ulid:
    """Return the highest place that a cursor may have in a shard."""
    clock = Ulid.floor(status.high_water).previous()
    return max(clock, status.head or Ulid.MIN, status.purged_upto)
