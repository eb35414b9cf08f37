# SPDX-License-Identifier: Apache-2.0
"""Faults of snapshots that have begun and not ended."""

from __future__ import annotations

from airflow_changefeed.core.fault import Fault, FaultKind
from airflow_changefeed.core.times import format_time
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_snapshots import SnapshotClaim


def snapshot_faults(source: FeedSource, feed: str | None) -> list[Fault]:
    """Return the snapshots of one feed or all: those that hold back purges, and those that do so no more."""
    now = source.now()
    return [
        _fault(claim, is_expired=claim.expires_at <= now)
        for claim in source.snapshots()
        if feed in (None, claim.feed)
    ]


def _fault(claim: SnapshotClaim, *, is_expired: bool) -> Fault:
    where = f"feed {claim.feed}, table {claim.table}"
    begun, remedy = f"the {claim}", f"{claim.go_on}, or give it up: {claim.give_up}"
    if is_expired:
        what = (
            f"{begun} made no progress and expired at {format_time(claim.expires_at)}: a purge of the events "
            "since then makes it useless"
        )
        return Fault(FaultKind.SNAPSHOT_EXPIRED, where, what, remedy)
    what = f"{begun} holds back purges until it ends, or expires at {format_time(claim.expires_at)}"
    return Fault(FaultKind.SNAPSHOT_OPEN, where, what, f"Nothing to do while it runs. {remedy}")
