# SPDX-License-Identifier: Apache-2.0
"""How old the frontiers of consumers are, and why one is older than it may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import Fault, FaultKind, Limits, Severity, not_checked
from airflow_changefeed.core.feed import ShardStatus, shard_text
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.doctor.cursors import FeedState
from airflow_changefeed.doctor.doctor import of_events, state_faults
from airflow_changefeed.doctor.variables import VariableLister
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConsumerNotFoundError,
    FreshnessError,
    InvalidArgumentError,
    PurgedError,
)
from airflow_changefeed.export.feeds import choose_feeds, parse_feeds
from airflow_changefeed.sources.base import FeedSource

#: Besides all errors, the faults that can keep a consumer from moving; the most telling first.
_STOPS = (
    FaultKind.DAG_PAUSED,
    FaultKind.RUN_FAILED,
    FaultKind.WINDOW_MISSING,
    FaultKind.DEAD_LETTER,
    FaultKind.LEASE_STUCK,
    FaultKind.LEASE_EXPIRED,
    FaultKind.OPEN_TRANSACTION,
    FaultKind.OUTBOX_NOT_DRAINED,
    FaultKind.NO_RUN,
)
#: Instead of what a handler said of an event, which may be data; freshness is sent to many people.
_NO_REASON = "airflow-changefeed dead-letters list says why"


@dataclass(frozen=True)
class DagState:
    """
    What Airflow knows of a DAG.

    :param is_there: whether Airflow has it.
    :param is_paused: None where Airflow does not say.
    :param last_run: its newest run, and the state of that; empty where it has none, or Airflow does not say.
    """

    dag_id: str
    is_there: bool = True
    is_paused: bool | None = None
    last_run: str = ""
    last_state: str = ""


#: Returns what Airflow knows of a DAG; None if it does not answer.
FindDag = Callable[[str], DagState | None]


@dataclass(frozen=True)
class ConsumerFreshness:
    """
    How old the frontier of a consumer of a feed is.

    :param complete_until: the oldest frontier of its shards, as a time of the feed.
    :param age: since then, by the database's clock.
    :param reasons: faults that explain why it is not fresh; empty for one that is.
    """

    feed: str
    consumer: str
    complete_until: datetime
    age: timedelta
    is_fresh: bool
    reasons: tuple[Fault, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        names = ("code", "where", "what", "remedy")
        return {
            "feed": self.feed,
            "consumer": self.consumer,
            "complete_until": format_time(self.complete_until),
            "age_seconds": self.age.total_seconds(),
            "is_fresh": self.is_fresh,
            "reasons": [{name: fault.to_dict()[name] for name in names} for fault in self.reasons],
            "error": None,
        }

    def __str__(self) -> str:
        age = timedelta(seconds=round(self.age.total_seconds()))
        until = f"complete until {format_time(self.complete_until)}, {age} ago"
        if not self.is_fresh:
            until = "\n  ".join([until, *map(str, self.reasons or ("doctor finds no fault",))])
        return f"feed {self.feed}, consumer {self.consumer}: {until}"


@dataclass(frozen=True)
class Freshness:
    """
    How old the frontiers of consumers are.

    :param consumers: by feed and name.
    :param errors: of the feeds that could not be read.
    """

    max_age: timedelta
    consumers: tuple[ConsumerFreshness, ...]
    errors: Mapping[str, ChangefeedError] = field(default_factory=dict)

    @property
    def late(self) -> list[ConsumerFreshness]:
        """The consumers that are older than ``max_age``."""
        return [one for one in self.consumers if not one.is_fresh]

    @property
    def summary(self) -> str:
        """One line for people."""
        unread = f", feeds that cannot be read: {len(self.errors)}" if self.errors else ""
        return f"consumers: {len(self.consumers)}, older than {self.max_age}: {len(self.late)}{unread}"

    @property
    def text(self) -> str:
        """All consumers for people, those that are late first, and the feeds that could not be read."""
        fresh = [one for one in self.consumers if one.is_fresh]
        return "\n".join([self.summary, *map(str, self.late), *self._error_lines(), *map(str, fresh)])

    def _error_lines(self) -> list[str]:
        return [f"feed {feed}: {type(error).__name__}: {error}" for feed, error in self.errors.items()]

    def check(self) -> None:
        """
        Raise an error if a consumer is late, or a feed could not be read.

        :raises FreshnessError: a consumer is late, or an error of a feed is terminal; names all; terminal.
        :raises TransientError: none is late, but a feed did not answer.
        """
        if not self.late and self.errors and all(error.transient for error in self.errors.values()):
            raise next(iter(self.errors.values()))
        if self.late or self.errors:
            lines = [self.summary, *map(str, self.late), *self._error_lines()]
            raise FreshnessError("\n".join(lines), rows=self.to_dicts())

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return JSON values, one for each consumer and for each feed that could not be read."""
        unread = dict.fromkeys(("consumer", "complete_until", "age_seconds"))
        return [one.to_dict() for one in self.consumers] + [
            {
                "feed": feed,
                **unread,
                "is_fresh": False,
                "reasons": [],
                "error": f"{type(error).__name__}: {error}",
            }
            for feed, error in self.errors.items()
        ]


def parse_max_age(max_age: object) -> timedelta:
    """
    Read how old a frontier may be: a ``timedelta``, or seconds.

    :raises InvalidArgumentError: neither, or not positive.
    """
    try:
        if isinstance(max_age, (int, float)) and not isinstance(max_age, bool):
            max_age = timedelta(seconds=max_age)
        if isinstance(max_age, timedelta) and max_age > timedelta(0):
            return max_age
    except (ValueError, OverflowError):
        pass  # not a number, or more seconds than a timedelta holds
    raise InvalidArgumentError(f"max_age must be a timedelta, or seconds, above 0, not {max_age!r}")


def check_freshness(
    source: FeedSource,
    variables: VariableLister | None,
    find_dag: FindDag,
    max_age: timedelta,
    *,
    feed: object = None,
    consumer: str | None = None,
) -> Freshness:
    """
    Compute how old the frontiers of consumers are, and why one is older than ``max_age``.

    A feed that cannot be read does not hide the others. Changes nothing.

    :param variables: Airflow's; None skips them.
    :param feed: a name or pattern, or several; None for all feeds that have consumers.
    :param consumer: None for all.
    :raises InvalidArgumentError: ``max_age`` is not positive, or a pattern matches no feed; terminal.
    :raises ConsumerNotFoundError: no feed has a consumer, or the one asked for; terminal.
    :raises SourceUnavailableError: the database did not answer; transient.
    """
    max_age = parse_max_age(max_age)
    named = [] if feed is None else parse_feeds("feed", feed)
    known = [info.name for info in source.feeds()]
    errors: dict[str, ChangefeedError] = {}
    found: list[ConsumerFreshness] = []
    others: set[str] = set()
    for name in known if feed is None else choose_feeds(source, named):
        try:
            state = _read_state(source, name)
            names = _consumers(state)
            if name in named and not (names if consumer is None else consumer in names):
                raise _no_consumer(name, consumer, names)
            others |= set(names)
            chosen = [each for each in names if consumer in (None, each)]
            found += [_freshness(source, variables, find_dag, state, each, max_age) for each in chosen]
        except ChangefeedError as problem:
            errors[name] = problem
    if not found and not errors:
        where = ", ".join(known[:10]) or "this database, which has no feeds"
        raise _no_consumer(where, consumer, sorted(others))
    return Freshness(max_age, tuple(found), errors)


def _no_consumer(feed: str, consumer: str | None, known: Sequence[str]) -> ConsumerNotFoundError:
    which = "no consumer" if consumer is None else f"no consumer {consumer!r}"
    there = f"; there is {', '.join(known)}" if known else ""
    return ConsumerNotFoundError(
        f"nothing to watch in {feed}: it has {which}{there}. An export is a consumer from its first run on",
        feed=feed,
        consumer=consumer,
    )


def _read_state(source: FeedSource, feed: str) -> FeedState:
    source.feed(feed)
    # The cursors first: they are never beyond a high-water time that is read later.
    rows = source.cursors(feed)
    dead_letters = [replace(one, reason=_NO_REASON) for one in source.dead_letters(feed)]
    shards = source.shards(feed)
    return FeedState(feed, source.now(), shards, rows, of_events(source, feed, None), dead_letters)


def _consumers(state: FeedState) -> list[str]:
    return sorted({*(row.consumer for row in state.rows), *state.consumers})


def _freshness(
    source: FeedSource,
    variables: VariableLister | None,
    find_dag: FindDag,
    whole: FeedState,
    consumer: str,
    max_age: timedelta,
) -> ConsumerFreshness:
    state = replace(
        whole,
        rows=[row for row in whole.rows if row.consumer == consumer],
        consumers={name: info for name, info in whole.consumers.items() if name == consumer},
        dead_letters=[one for one in whole.dead_letters if one.consumer == consumer],
    )
    until = min(_frontiers(source, state, max_age), default=state.now)
    age = max(state.now - until, timedelta(0))
    if age <= max_age:
        return ConsumerFreshness(state.feed, consumer, until, age, is_fresh=True)
    reasons = tuple(_reasons(source, variables, find_dag, state, consumer, max_age))
    return ConsumerFreshness(state.feed, consumer, until, age, is_fresh=False, reasons=reasons)


def _frontiers(source: FeedSource, state: FeedState, max_age: timedelta) -> Iterator[datetime]:
    """
    Yield until when each shard is complete for the state's one consumer.

    Windows are complete until their end, with and without events. A batch or a consumer of events that has
    read everything is complete until now; else until the first event that it has not read.
    """
    oldest = state.now - max_age
    rows = {row.shard: row for row in state.rows}
    statuses = {status.shard: status for status in state.shards}
    begins = [(status.shard, info.begin) for info in state.consumers.values() for status in state.shards]
    for shard, cursor in {**dict(begins), **{shard: row.ulid for shard, row in rows.items()}}.items():
        if not state.consumers and _is_end_of_window(cursor):
            yield cursor.next().time
        else:
            status = statuses.get(shard)
            # Of those that have moved lately, nobody needs to know it exactly.
            is_old = cursor.time < oldest
            yield state.now if status is None else _read_until(source, state, status, cursor, is_old, max_age)
    yield from (dead_letter.ulid.time for dead_letter in state.dead_letters)


def _is_end_of_window(cursor: Ulid) -> bool:
    return cursor not in (Ulid.MIN, Ulid.MAX) and cursor.next() == Ulid.floor(cursor.next().time)


def _read_until(
    source: FeedSource, state: FeedState, status: ShardStatus, cursor: Ulid, is_old: bool, max_age: timedelta
) -> datetime:
    if status.head is not None and status.head > cursor:
        return _first_after(source, state.feed, status, cursor) if is_old else cursor.time
    if status.has_outbox and is_old and _waits(source, state.feed, status, max_age):
        return cursor.time
    return state.now


def _first_after(source: FeedSource, feed: str, status: ShardStatus, cursor: Ulid) -> datetime:
    """Return the time of the first event after a cursor that is before the head."""
    try:
        # A page before the head orders nothing.
        page = source.read_feed(feed, status.shard, max(cursor, status.purged_upto), 1)
    except PurgedError:
        return cursor.time
    return page.events[0].ulid.time if page.events else cursor.time


def _waits(source: FeedSource, feed: str, status: ShardStatus, max_age: timedelta) -> bool:
    """Whether the first row in a shard's outbox has waited for longer than the age."""
    where = f"feed {feed}, shard {shard_text(status.shard)}"
    faults = source.inspect(feed, _limits(max_age)).faults
    return any(fault.kind is FaultKind.OUTBOX_NOT_DRAINED and fault.where == where for fault in faults)


def _limits(max_age: timedelta) -> Limits:
    usual = Limits()
    return Limits(
        outbox_age=max_age,
        open_transaction=min(max_age, usual.open_transaction),
        idle_consumer=max_age,
        # Whoever watches need not be able to seal.
        role="readers",
    )


def _reasons(
    source: FeedSource,
    variables: VariableLister | None,
    find_dag: FindDag,
    state: FeedState,
    consumer: str,
    max_age: timedelta,
) -> list[Fault]:
    limits = _limits(max_age)
    faults = _dag_faults(source, find_dag, state, consumer, max_age)
    hidden = []
    try:
        faults += state_faults(source, variables, state, consumer, limits)
        faults += source.inspect(state.feed, limits).faults
    except ChangefeedError as problem:
        # That it is late is known, whatever the reason.
        what = f"{type(problem).__name__}: {problem}"
        hidden.append(not_checked(f"feed {state.feed}", what, "Run airflow-changefeed doctor"))
    errors = [fault for fault in faults if fault.severity is Severity.ERROR]
    stops = sorted(
        (fault for fault in faults if fault.kind in _STOPS), key=lambda one: _STOPS.index(one.kind)
    )
    return [*errors, *stops, *hidden]


def _dag_faults(
    source: FeedSource, find_dag: FindDag, state: FeedState, consumer: str, max_age: timedelta
) -> list[Fault]:
    where = f"feed {state.feed}, consumer {consumer}"
    last = max(state.rows, key=lambda row: row.moved_at, default=None)
    dag_id = _last_dag(source, state, consumer, last)
    dag = find_dag(dag_id) if dag_id is not None else None
    if dag is not None and dag.is_paused:
        remedy = "Unpause it, and backfill what it left out if its schedule does not catch up"
        return [Fault(FaultKind.DAG_PAUSED, where, f"DAG {dag_id} is paused", remedy)]
    if dag is not None and dag.last_state == "failed":
        what = f"run {dag.last_run} of DAG {dag_id}, its last one, failed"
        return [Fault(FaultKind.RUN_FAILED, where, what, "Read the failed task's log, then clear the task")]
    if last is not None and state.now - last.moved_at <= max_age:
        return []
    what = "nothing has ever moved its cursor"
    if last is not None:
        by = f", by {last.moved_by}" if last.moved_by else ""
        what = f"nothing has moved its cursor since {format_time(last.moved_at)}{by}"
    if dag is not None and not dag.is_there:
        what, remedy = (
            f"{what}; Airflow has no DAG {dag_id} any more",
            "Restore the DAG, or drop the consumer",
        )
    elif dag is not None and dag.last_run:
        what = f"{what}; the last run of DAG {dag_id}, {dag.last_run}, is {dag.last_state}"
        remedy = "Look at that run, at the DAG's schedule, and whether a scheduler runs"
    else:
        remedy = "Run its DAG or process again, or drop the consumer if it is no longer needed"
    return [Fault(FaultKind.NO_RUN, where, what, remedy)]


def _last_dag(source: FeedSource, state: FeedState, consumer: str, last: CursorRow | None) -> str | None:
    """Return the DAG whose run moved a cursor last; people and processes have moved it since, perhaps."""
    names = [last.moved_by] if last is not None else []
    if not any(map(_dag_of, names)):
        names += [change.by for change in source.history(state.feed, consumer)]
    return next((dag_id for name in names if (dag_id := _dag_of(name))), None)


def _dag_of(name: str) -> str | None:
    """Return the DAG of a run's name, ``dag_id/run_id/task_id/try``; None for other names."""
    parts = name.split("/")
    return parts[0] if len(parts) == 4 and parts[3].isdigit() else None
