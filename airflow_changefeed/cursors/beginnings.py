# SPDX-License-Identifier: Apache-2.0
"""Events before the beginning of an export that nobody has chosen: how many, since when, and what to do."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_changefeed.core.consumer import COUNTED, FeedOverview
from airflow_changefeed.core.fault import Fault, FaultKind, shell
from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.times import format_time, from_milliseconds
from airflow_changefeed.core.ulid import Ulid

_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class EventsBefore:
    """
    Events before a beginning that nobody has chosen: a consumer's first run has left them out.

    :param count: in all shards, at most ``COUNTED`` of each.
    :param since: begin of the window that has it, or a little earlier.
    :param until: where the consumer begins, in the last shard that has such events.
    """

    feed: str
    consumer: str
    count: int
    is_more: bool
    first: datetime
    since: datetime
    until: datetime

    @property
    def what(self) -> str:
        """What is known, as a sentence."""
        events = f"{self.count} events or more" if self.is_more else counted(self.count, "event")
        lie, them = ("lies", "it") if events == "1 event" else ("lie", "them")
        return (
            f"{events} from {format_time(self.first)} on {lie} before the beginning of consumer "
            f"{self.consumer}, which its first run has set to {format_time(self.until)}: "
            f"nothing exports {them}"
        )

    def remedy(self, dag_id: str | None) -> str:
        """Return the ways on, with the DAG that exports for the consumer if it is known."""
        accept = shell("cursor accept-beginning", self.consumer, "--feed", self.feed, "--note", "...")
        return (
            f"Export them: {backfill_command(dag_id, self.since, self.until)}. If nobody needs them, accept "
            f"the beginning: {accept}"
        )

    def fault(self, dag_id: str | None) -> Fault:
        """Return it as a fault."""
        where = f"feed {self.feed}, consumer {self.consumer}"
        return Fault(FaultKind.EVENTS_BEFORE_BEGINNING, where, self.what, self.remedy(dag_id))


def events_before(found: FeedOverview, consumer: str, length: timedelta | None = None) -> EventsBefore | None:
    """
    Return the events before a consumer's beginning, if its first run has set it and nobody accepted it.

    :param length: of its windows; None if it is not known.
    """
    left = [(one, one.before_from) for one in found.positions(consumer) if one.before_from is not None]
    if not left:
        return None
    first = min(event for _, event in left)
    return EventsBefore(
        found.info.name,
        consumer,
        sum(one.before for one, _ in left),
        any(one.before >= COUNTED for one, _ in left),
        first.time,
        min(_window_begin(one.row.frontier.start, event, length) for one, event in left),
        max(one.row.frontier.start for one, _ in left).next().time,
    )


def _window_begin(start: Ulid, event: Ulid, length: timedelta | None) -> datetime:
    """Return the begin of the window that has an event before the beginning, or a little earlier."""
    if length is None:
        # Windows are seldom longer than a day.
        return from_milliseconds(max(event.ms // _HOUR_MS * _HOUR_MS - 24 * _HOUR_MS, 0))
    begin, step = start.next().ms, length // timedelta(milliseconds=1)
    since = begin - -((event.ms - begin) // step) * step
    # Days of a zone begin an hour earlier or later in the other half of the year.
    return from_milliseconds(max(since - (_HOUR_MS if step >= 24 * _HOUR_MS else 0), 0))


def backfill_command(dag_id: str | None, since: datetime, until: datetime | None = None) -> str:
    """
    Return the command of a backfill.

    :param since: begin of the first window.
    :param until: end of the last window; None to let the reader choose.
    """
    # Airflow includes the run whose window begins at the end.
    last = "..." if until is None else format_time(until - timedelta(seconds=1))
    dag = "..." if dag_id is None else shlex.quote(dag_id)
    return f"airflow backfill create --dag-id {dag} --from-date {format_time(since)} --to-date {last}"
