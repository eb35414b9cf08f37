# SPDX-License-Identifier: Apache-2.0
"""Faults of an outbox, common to all sources."""

from __future__ import annotations

from airflow_changefeed.core.fault import Fault, FaultKind, Limits
from airflow_changefeed.core.feed import counted

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def old_outbox(feed: str, shard: str, hint: str, age: float, limits: Limits) -> list[Fault]:
    """
    Return the fault of a shard whose first committed row has waited too long; empty otherwise.

    :param hint: its ``time_hint``, as text.
    :param age: seconds since then.
    """
    if age <= limits.outbox_age.total_seconds():
        return []
    return [
        Fault(
            FaultKind.OUTBOX_NOT_DRAINED,
            f"feed {feed}, shard {shard}",
            f"the first row in its outbox has the time_hint {hint}, {length_text(age)} ago",
            "Drain the feed: run an export, a reader (read_feed), or drain on a schedule. Harmless if a "
            "writer sets old time hints and the feed is drained",
        )
    ]


def length_text(seconds: float) -> str:
    """Format a duration for people."""
    for unit, name in ((_DAY, "days"), (_HOUR, "hours"), (_MINUTE, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return counted(round(seconds), "second")
