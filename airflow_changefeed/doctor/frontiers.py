# SPDX-License-Identifier: Apache-2.0
"""Until when a consumer has completed a feed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from airflow_changefeed.core.completeness import Verdict, judge, of_overview
from airflow_changefeed.core.consumer import FeedOverview
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import Fault
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.beginnings import events_before
from airflow_changefeed.cursors.window_grid import export_grids
from airflow_changefeed.doctor.dags import last_dag
from airflow_changefeed.exceptions import PurgedError
from airflow_changefeed.sources.base import FeedReader, FeedSource

_PAGE = 1_000


def whole_overview(source: FeedReader, feed: str) -> FeedOverview:
    """
    Return a feed at a glance, with all of its shards.

    :raises FeedNotFoundError: the database has no such feed.
    :raises FeedSetupError: one of the feed's tables is missing.
    """
    (found,) = source.overview([feed], shards=_PAGE)
    found.check()
    while len(found.shards) < found.shard_count:
        (more,) = source.overview([feed], first_shard=len(found.shards), shards=_PAGE)
        if not more.check().shards:
            break
        found = replace(found, shards=(*found.shards, *more.shards))
    return found


def judge_consumer(
    source: FeedReader, found: FeedOverview, consumer: str, rows: Sequence[CursorRow], now: datetime
) -> tuple[Verdict, datetime]:
    """Return what its cursors say of a consumer, and until when the feed is complete for it."""
    verdict = judge(of_overview(found, consumer, now, rows))
    return verdict, verdict.complete_until or _first_event(source, found, consumer, now)


def beginning_fault(source: FeedSource, found: FeedOverview, consumer: str) -> Fault | None:
    """Return the fault of events before an export's beginning, with the command of a backfill."""
    if events_before(found, consumer) is None:
        return None
    feed = found.info.name
    grid = export_grids(source, feed, [consumer]).get(consumer)
    left_out = events_before(found, consumer, None if grid is None else grid.window_length)
    rows = [one.row for one in found.positions(consumer)]
    return None if left_out is None else left_out.fault(last_dag(source, feed, consumer, rows))


def _first_event(source: FeedReader, found: FeedOverview, consumer: str, now: datetime) -> datetime:
    """Return the time of the first event that is not purged: a consumer that has nothing waits since then."""
    times, lost = [], found.lost_shards(consumer)
    for shard in found.shards:
        if shard.status.head is None and shard.shard in lost:
            # What it has lost is not known any more.
            times.append(Ulid.MIN.time)
        if shard.status.head is not None:
            try:
                # A page before the head orders nothing.
                page = source.read_feed(found.info.name, shard.shard, shard.status.purged_upto, 1)
            except PurgedError:
                times.append(shard.status.purged_upto.time)
            else:
                times += [event.ulid.time for event in page]
    return min(times, default=now)
