# SPDX-License-Identifier: Apache-2.0
"""Faults of snapshots that have begun and not ended."""

from __future__ import annotations

from datetime import datetime

from airflow_changefeed.core.fault import Fault, FaultKind
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_snapshots import SnapshotClaim


def begun_snapshots(source: FeedSource, feed: str | None) -> list[tuple[SnapshotClaim, Fault]]:
    """Return the snapshots of one feed or all that have begun and not ended, each with its fault."""
    now = source.now()
    claims = [claim for claim in source.snapshots() if feed in (None, claim.feed)]
    purged = {
        name: max((status.purged_upto for status in source.shards(name)), default=Ulid.MIN)
        for name in {claim.feed for claim in claims}
    }
    return [(claim, _fault(claim, now, purged[claim.feed])) for claim in claims]


def _fault(claim: SnapshotClaim, now: datetime, purged_upto: Ulid) -> Fault:
    where = f"feed {claim.feed}, table {claim.table}"
    begun, remedy = f"the {claim}", f"{claim.go_on}, or give it up: {claim.give_up}"
    if purged_upto >= Ulid.floor(claim.begin):
        what = f"{begun} is lost: events since its begin were purged, up to {format_time(purged_upto.time)}"
        remedy = f"Give it up: {claim.give_up}; then take it again"
        return Fault(FaultKind.SNAPSHOT_LOST, where, what, remedy)
    if claim.expires_at <= now:
        what = (
            f"{begun} made no progress and expired at {format_time(claim.expires_at)}: a purge of the events "
            "since then makes it useless"
        )
        return Fault(FaultKind.SNAPSHOT_EXPIRED, where, what, remedy)
    what = f"{begun} holds back purges until it ends, or expires at {format_time(claim.expires_at)}"
    return Fault(FaultKind.SNAPSHOT_OPEN, where, what, f"Nothing to do while it runs. {remedy}")
