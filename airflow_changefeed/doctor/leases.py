# SPDX-License-Identifier: Apache-2.0
"""Checks of leases: who holds one, for how long, and whether the cursor moves meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from airflow_changefeed.core.cursor import CursorRow, revoke_command
from airflow_changefeed.core.fault import Fault, FaultKind, Limits
from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.cursors import some
from airflow_changefeed.doctor.cursors import FeedState, subject
from airflow_changefeed.sources.base_leases import LeaseInfo

#: Our exports never take a lease for longer than this.
LONG_LEASE = timedelta(hours=1)
#: The same for consumers, which can choose their emit timeout.
LONGEST_EMIT_TIMEOUT = timedelta(days=1)


def lease_faults(state: FeedState, limits: Limits) -> list[Fault]:
    """Find leases that have expired, and those whose holder seems to do nothing."""
    return [fault for row in state.rows if (fault := _fault(state, row, limits)) is not None]


def held_leases(state: FeedState, leases: Sequence[LeaseInfo], limits: Limits) -> list[Fault]:
    """Return who holds leases of a consumer that is late, except those that :func:`lease_faults` reports."""
    since = {(lease.consumer, lease.shard): lease.since for lease in leases}
    held: dict[str, list[CursorRow]] = {}
    for row in state.rows:
        if row.lease_holder is not None and row.is_held(state.now) and _fault(state, row, limits) is None:
            held.setdefault(row.lease_holder, []).append(row)
    faults = []
    for holder, rows in held.items():
        first = rows[0]
        begun = min((time for row in rows if (time := since.get((row.consumer, row.shard)))), default=None)
        shards = some(shard_text(row.shard) for row in rows)
        faults.append(
            Fault(
                FaultKind.LEASE_HELD,
                f"feed {state.feed}, consumer {first.consumer}",
                f"{holder} holds the lease of shard {shards}"
                + (f" since {format_time(begun)}" if begun is not None else "")
                + f", and last moved the cursor at {format_time(max(row.moved_at for row in rows))}",
                "Look whether that process is at work. If it hangs, stop it; then wait, or revoke its lease: "
                f"{revoke_command(first)}",
            )
        )
    return faults


def _fault(state: FeedState, row: CursorRow, limits: Limits) -> Fault | None:
    if row.lease_holder is None or row.lease_expires is None:
        return None
    now, longest = state.now, LONG_LEASE
    is_still = now - row.moved_at > limits.idle_consumer
    if row.consumer in state.consumers:
        # A waiting consumer keeps its lease, and moves only when there are events.
        heads = {status.shard: status.head for status in state.shards}
        is_still = is_still and (heads.get(row.shard) or Ulid.MIN) > row.ulid
        longest = LONGEST_EMIT_TIMEOUT
    if row.lease_expires <= now:
        return Fault(
            FaultKind.LEASE_EXPIRED,
            subject(row),
            f"{row.lease_holder} did not release its lease, which expired at "
            f"{format_time(row.lease_expires)}",
            "The process was killed, or its handler hangs (--handler-timeout would end that). If it is still "
            "there, end it, by SIGKILL if need be; else do nothing: the next one takes the lease",
        )
    if row.lease_expires - now > longest or is_still:
        return Fault(
            FaultKind.LEASE_STUCK,
            subject(row),
            f"{row.lease_holder} holds the lease until {format_time(row.lease_expires)}, but has not moved "
            f"the cursor since {format_time(row.moved_at)}",
            f"Stop that process; then wait, or revoke its lease: {revoke_command(row)}",
        )
    return None
