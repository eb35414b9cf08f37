# SPDX-License-Identifier: Apache-2.0
"""Numbers that a watch knows of a feed and a consumer besides its frontier."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow_changefeed.core.completeness import Verdict, Why
from airflow_changefeed.core.consumer import FeedOverview
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.beginnings import EventsBefore
from airflow_changefeed.doctor.cursors import FeedState


@dataclass(frozen=True)
class ConsumerCounts:
    """
    Numbers of a consumer of a feed.

    :param shards_behind: shards that have events after its cursor, those in the outbox left out.
    :param events_behind: events after its cursors, of each shard as many as an overview counts.
    :param windows_missing: ranges that hold a cursor back although later windows are complete.
    :param events_before: events before a beginning that nobody has chosen or accepted, of each shard as many
        as an overview counts.
    :param leases_held: shards that a process holds for it now.
    """

    shards_behind: int = 0
    events_behind: int = 0
    windows_missing: int = 0
    events_before: int = 0
    dead_letters: int = 0
    leases_held: int = 0


@dataclass(frozen=True)
class FeedCounts:
    """
    Numbers of a feed.

    :param outbox_rows: committed rows in the outbox, which have no place in the feed yet; of each shard as
        many as an overview counts.
    :param outbox_age: seconds since the oldest time hint of the shards' first rows; 0 if none waits.
    :param gaps_open: of a capture; None for other feeds, and if the login may not read them.
    """

    outbox_rows: int
    outbox_age: float
    gaps_open: int | None


def consumer_counts(
    state: FeedState, overview: FeedOverview, verdict: Verdict, left_out: EventsBefore | None
) -> ConsumerCounts:
    """Count what is known of a consumer, from its own state and verdict, and the overview of all."""
    names = {*state.consumers, *(row.consumer for row in state.rows)}
    begin = {status.shard: info.begin for info in state.consumers.values() for status in state.shards}
    cursors = begin | {row.shard: row.ulid for row in state.rows}
    heads = {status.shard: status.head or Ulid.MIN for status in state.shards}
    return ConsumerCounts(
        shards_behind=sum(heads.get(shard, Ulid.MIN) > cursor for shard, cursor in cursors.items()),
        events_behind=sum(position.behind for name in names for position in overview.positions(name)),
        windows_missing=sum(one.why is Why.HOLE for one in verdict.missing),
        events_before=0 if left_out is None else left_out.count,
        dead_letters=len(state.dead_letters),
        leases_held=sum(row.is_held(state.now) for row in state.rows),
    )


def feed_counts(overview: FeedOverview, now: datetime) -> FeedCounts:
    """Count what is known of a feed."""
    since = [shard.waiting_since for shard in overview.shards if shard.waiting_since is not None]
    return FeedCounts(
        outbox_rows=sum(shard.waiting for shard in overview.shards),
        outbox_age=max(0.0, (now - min(since, default=now)).total_seconds()),
        gaps_open=None if overview.gaps is None else len(overview.gaps),
    )
