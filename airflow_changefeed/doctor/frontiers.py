# SPDX-License-Identifier: Apache-2.0
"""Until when a consumer has completed a feed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from airflow_changefeed.core.capture import CaptureGap
from airflow_changefeed.core.fault import Fault, FaultKind
from airflow_changefeed.core.feed import ShardStatus, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.doctor.cursors import FeedState
from airflow_changefeed.exceptions import PurgedError
from airflow_changefeed.sources.base import FeedReader

#: Returns the faults that a source finds in a feed.
Inspect = Callable[[], Iterable[Fault]]


def complete_until(
    source: FeedReader,
    state: FeedState,
    gaps: Sequence[CaptureGap],
    max_age: timedelta,
    inspect: Inspect,
) -> datetime:
    """
    Return until when a feed is complete for a consumer: the oldest frontier of its shards.

    Windows are complete until their end, with and without events. A batch, or a consumer of events, that has
    read everything is complete until now; else until the first event that it has not read, or that is a dead
    letter. Nothing is complete after the begin of an open gap: what a capture missed is in no feed.

    :param state: of this one consumer.
    :param gaps: of the feed's capture that are open.
    :param max_age: if the result is younger, it may be the cursor's time, which is earlier than the first
        event after it.
    :param inspect: with ``max_age`` as the limit of the outbox's age.
    """
    missed = [gap.begin for gap in gaps]
    return min([*missed, *_frontiers(source, state, max_age, inspect)], default=state.now)


def _frontiers(
    source: FeedReader, state: FeedState, max_age: timedelta, inspect: Inspect
) -> Iterator[datetime]:
    yield from (dead_letter.ulid.time for dead_letter in state.dead_letters)
    statuses = {status.shard: status for status in state.shards}
    # A consumer of events has yet to read the shards in which it has no cursor.
    cursors = {status.shard: info.begin for info in state.consumers.values() for status in state.shards}
    cursors |= {row.shard: row.ulid for row in state.rows}
    # A cursor within a window waits for the rest of it, whatever is complete after that.
    waiting = {row.shard for row in state.rows if next(iter(row.frontier.missing()), None) is not None}
    for shard, cursor in cursors.items():
        if not state.consumers and (shard in waiting or _is_end_of_window(cursor)):
            yield cursor.next().time
        elif shard in statuses:
            status = statuses[shard]
            is_behind = status.head is not None and status.head > cursor
            if cursor < status.purged_upto and (cursor > Ulid.MIN or not is_behind):
                # What it has lost is not known any more, only that it came after the cursor.
                yield cursor.time
            elif state.now - cursor.time <= max_age:
                yield cursor.time if is_behind else state.now
            elif is_behind:
                yield _first_after(source, state.feed, status, cursor)
            elif status.has_outbox and _waits(state.feed, status, inspect):
                yield cursor.time


def _is_end_of_window(cursor: Ulid) -> bool:
    return cursor < Ulid.MAX and cursor.next() == Ulid.floor_milliseconds(cursor.next().ms)


def _first_after(source: FeedReader, feed: str, status: ShardStatus, cursor: Ulid) -> datetime:
    """Return the time of the first event after a cursor that is before the head."""
    try:
        # A page before the head orders nothing.
        page = source.read_feed(feed, status.shard, max(cursor, status.purged_upto), 1)
    except PurgedError:
        return cursor.time
    return page.events[0].ulid.time if page.events else cursor.time


def _waits(feed: str, status: ShardStatus, inspect: Inspect) -> bool:
    """Whether the first row in a shard's outbox is old."""
    where = f"feed {feed}, shard {shard_text(status.shard)}"
    return any(fault.kind is FaultKind.OUTBOX_NOT_DRAINED and fault.where == where for fault in inspect())
