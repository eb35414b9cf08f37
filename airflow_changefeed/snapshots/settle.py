# SPDX-License-Identifier: Apache-2.0
"""The time from which a snapshot is exact: all that was read has its event before it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import ShardStatus
from airflow_changefeed.exceptions import LockTimeoutError
from airflow_changefeed.sources.base import FeedSource

#: Seconds after which a commit that a reader has seen has given back its locks.
_RELEASE = 0.25
_PAUSE = 0.5
#: Seconds for which drains of others may hold back what was committed.
_PATIENCE = 300.0
_MILLISECOND = timedelta(milliseconds=1)


def settle(
    source: FeedSource, feed: str, begin: datetime, sleep: Callable[[float], None] = time.sleep
) -> datetime:
    """
    Order everything that was committed before the call, and seal the feed at a time above all of it.

    A seal orders what is committed. It passes rows whose locks are just being given back, and those that a
    dying drain holds: so nothing may wait behind it that was numbered before it. And no shard's clock may be
    beyond its time, as it is where others write on, or where a hint was ahead of the database's clock: then
    the feed is sealed again, at a later time.

    :param begin: of the snapshot; the time is later, also where the clock was set back.
    :raises LockTimeoutError: something that is committed stays hidden.
    :raises CaptureGapError: the capture has missed changes.
    """
    if source.capabilities.parallel_writers:
        sleep(_RELEASE)
    bound = source.order_bound(feed)
    end = time.monotonic() + _PATIENCE
    # Of the shards' clocks behind a seal by which all was ordered.
    highest: datetime | None = None
    while True:
        until = source.now()
        while until <= max(begin, highest or begin):
            sleep(max(_MILLISECOND, max(begin, highest or begin) - until).total_seconds())
            until = source.now()
        source.seal(feed, until)
        if not _waits(source, feed, bound):
            statuses = source.shards(feed)
            if highest is not None or all(_is_below(status, until) for status in statuses):
                return until
            highest = max(_clock(status) for status in statuses)
            continue
        highest = None
        if time.monotonic() > end:
            raise LockTimeoutError(
                f"feed {feed!r}: events that were committed wait in the outbox for more than "
                f"{_PATIENCE:.0f} s, although the feed was sealed; look for a drain that hangs, "
                f"and retry: {shell('doctor', '--feed', feed)}",
                feed=feed,
            )
        sleep(_PAUSE)


def _waits(source: FeedSource, feed: str, bound: int) -> bool:
    first = source.first_waiting(feed)
    return first is not None and first < bound


def _is_below(status: ShardStatus, until: datetime) -> bool:
    """Whether all events that a shard has given are before a time."""
    return status.high_water <= until and (status.head is None or status.head.time < until)


def _clock(status: ShardStatus) -> datetime:
    return status.high_water if status.head is None else max(status.high_water, status.head.time)
