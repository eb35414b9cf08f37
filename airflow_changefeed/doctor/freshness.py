# SPDX-License-Identifier: Apache-2.0
"""How old the frontiers of consumers are, and why one is older than it may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from airflow_changefeed.core.consumer import FeedOverview, OutputCheck
from airflow_changefeed.core.fault import Fault, FaultKind, Limits, Severity, not_checked, shell, with_conn_id
from airflow_changefeed.core.values import format_time
from airflow_changefeed.cursors.window_grid import events_before, export_grids
from airflow_changefeed.doctor.airflow import (
    FindDag,
    VariableLister,
    beginning_fault,
    catching_up,
    dag_faults,
    judge_consumer,
    last_dag,
    whole_overview,
)
from airflow_changefeed.doctor.cursors import (
    ConsumerCounts,
    FeedCounts,
    FeedState,
    consumer_counts,
    feed_counts,
    held_leases,
)
from airflow_changefeed.doctor.doctor import VARIABLES, of_events, state_faults
from airflow_changefeed.doctor.output import checked_fault
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConsumerNotFoundError,
    FreshnessError,
    visible,
)
from airflow_changefeed.export.request import choose_feeds, parse_feeds
from airflow_changefeed.sources.base import FeedSource

#: Returns the faults that a source finds in a feed.
Inspect = Callable[[], Iterable[Fault]]
#: What may keep a consumer from moving, besides all errors: first what no run can mend, last what follows
#: from others.
_CAUSES = (
    FaultKind.CURSOR_IN_WINDOW,
    FaultKind.CONSUMER_FAILING,
    FaultKind.DAG_PAUSED,
    FaultKind.RUN_FAILED,
    FaultKind.WINDOW_MISSING,
    FaultKind.WINDOW_LOST,
    FaultKind.DEAD_LETTER,
    FaultKind.LEASE_STUCK,
    FaultKind.LEASE_HELD,
    FaultKind.OPEN_TRANSACTION,
    FaultKind.NOT_CHECKED,
    FaultKind.NO_RUN,
    FaultKind.LEASE_EXPIRED,
    FaultKind.OUTBOX_NOT_DRAINED,
)
#: Instead of what a handler said of an event, which may be data; freshness is sent to many people.
NO_REASON = "dead-letters list says why"


@dataclass(frozen=True)
class ConsumerFreshness:
    """
    How old the frontier of a consumer of a feed is.

    :param complete_until: the oldest frontier of its shards, as a time of the feed.
    :param age: since then, by the database's clock.
    :param reasons: faults that explain why it is not fresh; empty for one that is.
    :param warnings: what its age does not show: events before its beginning, and windows that were missing
        when somebody looked at the files.
    :param files: the newest look at the files of its output; None if nobody has looked, or it has no output.
        The frontier itself comes from cursors alone.
    """

    feed: str
    consumer: str
    complete_until: datetime
    age: timedelta
    is_fresh: bool
    reasons: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    files: OutputCheck | None = None
    has_output: bool = False
    counts: ConsumerCounts = field(default_factory=ConsumerCounts)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "feed": self.feed,
            "consumer": self.consumer,
            "complete_until": format_time(self.complete_until),
            "age_seconds": self.age.total_seconds(),
            "is_fresh": self.is_fresh,
            "reasons": [_named(fault) for fault in self.reasons],
            "warnings": [_named(fault) for fault in self.warnings],
            "files_checked_at": None if self.files is None else format_time(self.files.checked_at),
            "error": None,
        }

    def __str__(self) -> str:
        age = timedelta(seconds=round(self.age.total_seconds()))
        by = "by its cursor " if self.has_output else ""
        until = f"complete {by}until {format_time(self.complete_until)}, {age} ago"
        until = "\n  ".join([until, *map(str, (*self.reasons, *self.warnings))])
        return f"feed {self.feed}, consumer {self.consumer}: {until}"


def _named(fault: Fault) -> dict[str, str | None]:
    return {name: fault.to_dict()[name] for name in ("code", "place", "what", "remedy")}


@dataclass(frozen=True)
class Freshness:
    """
    How old the frontiers of consumers are.

    :param consumers: by feed and name.
    :param errors: of the feeds that could not be read.
    :param feeds: numbers of the others, for metrics.
    """

    max_age: timedelta
    consumers: tuple[ConsumerFreshness, ...]
    errors: Mapping[str, ChangefeedError] = field(default_factory=dict)
    feeds: Mapping[str, FeedCounts] = field(default_factory=dict)

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
        lines = [self.summary, *map(str, self.late), *self._error_lines(), *map(str, fresh)]
        return visible("\n".join(lines), are_lines=True)

    def _error_lines(self) -> list[str]:
        return [f"feed {feed}: {type(error).__name__}: {error}" for feed, error in self.errors.items()]

    def check(self) -> None:
        """
        Raise an error if a consumer is late, or a feed could not be read.

        :raises FreshnessError: a consumer is late, or several feeds could not be read; names all.
        :raises ChangefeedError: none is late, but a feed could not be read; that feed's own error.
        """
        errors = list(self.errors.values())
        if errors and not self.late and (len(errors) == 1 or all(error.transient for error in errors)):
            raise errors[0]
        if self.late or self.errors:
            lines = [self.summary, *map(str, self.late), *self._error_lines()]
            raise FreshnessError("\n".join(lines), rows=self.to_dicts())

    def with_conn_id(self, conn_id: str) -> Freshness:
        """Insert the connection into suggested commands."""

        def named(faults: Sequence[Fault]) -> tuple[Fault, ...]:
            return tuple(replace(each, remedy=with_conn_id(each.remedy, conn_id)) for each in faults)

        consumers = [
            replace(one, reasons=named(one.reasons), warnings=named(one.warnings)) for one in self.consumers
        ]
        return replace(self, consumers=tuple(consumers))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return JSON values, one for each consumer and for each feed that could not be read."""
        unread = dict.fromkeys(("consumer", "complete_until", "age_seconds"))
        return [one.to_dict() for one in self.consumers] + [
            {
                "feed": feed,
                **unread,
                "is_fresh": False,
                "reasons": [],
                "warnings": [],
                "files_checked_at": None,
                "error": f"{type(error).__name__}: {error}",
            }
            for feed, error in self.errors.items()
        ]


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
    :param max_age: positive.
    :param feed: a name or pattern, or several; None for all feeds that have consumers.
    :raises InvalidArgumentError: a pattern matches no feed.
    :raises ConsumerNotFoundError: no feed has a consumer, or the one asked for.
    :raises SourceUnavailableError: the database did not answer.
    """
    named = [] if feed is None else parse_feeds("feed", feed)
    known = [info.name for info in source.feeds()]
    errors: dict[str, ChangefeedError] = {}
    found: list[ConsumerFreshness] = []
    counts: dict[str, FeedCounts] = {}
    others: set[str] = set()
    for name in known if feed is None else choose_feeds(source, named):
        inspect = cache(lambda name=name: source.inspect(name, _limits(max_age)).faults)
        try:
            state = _read_state(source, name)
            names = _consumers(state)
            if name in named and not (names if consumer is None else consumer in names):
                raise _no_consumer(name, consumer, names)
            others |= set(names)
            chosen = state if consumer is None else only(state, consumer)
            overview = whole_overview(source, name)
            found += _freshness(source, variables, find_dag, chosen, overview, max_age, inspect)
            # Also of a feed that nobody reads: nobody drains it either.
            counts[name] = feed_counts(overview, state.now)
        except ChangefeedError as problem:
            errors[name] = problem
    if not found and not errors:
        raise _no_consumer(", ".join(known[:10]), consumer, sorted(others))
    return Freshness(max_age, tuple(found), errors, counts)


def _no_consumer(feed: str, consumer: str | None, known: Sequence[str]) -> ConsumerNotFoundError:
    which = "no consumer" if consumer is None else f"no consumer {consumer!r}"
    what = f"{which} in {feed}; it has {', '.join(known) or 'none'}" if feed else "the database has no feeds"
    return ConsumerNotFoundError(
        f"nothing to watch: {what}. An export becomes a consumer in its first run",
        feed=feed,
        consumer=consumer,
    )


def _read_state(source: FeedSource, feed: str) -> FeedState:
    info = source.feed(feed)
    # The cursors first: they are never beyond a high-water time that is read later.
    rows = source.cursors(feed)
    dead_letters = [replace(one, reason=NO_REASON) for one in source.dead_letters(feed)]
    shards = source.shards(feed)
    events = of_events(source, feed, None)
    return FeedState(feed, source.now(), shards, rows, events, dead_letters, info.max_hold)


def _consumers(state: FeedState) -> list[str]:
    return sorted({*(row.consumer for row in state.rows), *state.consumers})


def _freshness(
    source: FeedSource,
    variables: VariableLister | None,
    find_dag: FindDag,
    state: FeedState,
    overview: FeedOverview,
    max_age: timedelta,
    inspect: Inspect,
) -> Iterator[ConsumerFreshness]:
    for consumer in _consumers(state):
        own = only(state, consumer)
        verdict, until = judge_consumer(source, overview, consumer, own.rows, own.now)
        age = max(own.now - until, timedelta(0))
        is_fresh = age <= max_age
        reasons = (
            []
            if is_fresh
            else reasons_of(source, variables, find_dag, own, consumer, until, max_age, inspect)
        )
        left_out = events_before(overview, consumer)
        files = next((check for check in overview.checks if check.consumer == consumer), None)
        counts = consumer_counts(own, overview, verdict, left_out)
        unnoticed = beginning_fault(source, overview, consumer)
        warnings = [] if unnoticed is None else [unnoticed]
        if files is not None and files.missing:
            warnings.append(checked_fault(files))
        yield ConsumerFreshness(
            state.feed,
            consumer,
            until,
            age,
            is_fresh,
            tuple(reasons),
            tuple(warnings),
            files,
            has_output=consumer not in state.consumers,
            counts=counts,
        )


def only(state: FeedState, consumer: str) -> FeedState:
    """Return the state of one of a feed's consumers."""
    return replace(
        state,
        rows=[row for row in state.rows if row.consumer == consumer],
        consumers={name: info for name, info in state.consumers.items() if name == consumer},
        dead_letters=[one for one in state.dead_letters if one.consumer == consumer],
    )


def _limits(max_age: timedelta) -> Limits:
    usual = Limits()
    return Limits(
        outbox_age=max_age,
        open_transaction=min(max_age, usual.open_transaction),
        idle_consumer=max_age,
        # Whoever watches need not be able to seal.
        role="readers",
    )


def reasons_of(
    source: FeedSource,
    variables: VariableLister | None,
    find_dag: FindDag,
    state: FeedState,
    consumer: str,
    until: datetime,
    max_age: timedelta,
    inspect: Inspect,
    *,
    dag_id: str | None = None,
    words: Callable[[Exception], str] = lambda error: f"{type(error).__name__}: {error}",
) -> list[Fault]:
    """
    Return why a consumer is late, the cause before what follows from it.

    :param state: of this consumer alone.
    :param until: when it is complete.
    :param dag_id: its DAG, if no run of one is known.
    :param words: of an error, as the reader may see it.
    """
    of_dag: list[Fault] = []
    faults: list[Fault] = []
    unknown: list[Fault] = []
    limits = _limits(max_age)
    try:
        if consumer not in state.consumers:
            state = replace(state, grids=export_grids(source, state.feed, [consumer]))
        left_out = until if consumer in state.grids else None
        dag_id = last_dag(source, state.feed, consumer, state.rows) or dag_id
        of_dag += dag_faults(find_dag, dag_id, state.feed, consumer, state.rows, state.now, max_age, left_out)
        faults += state_faults(source, variables, state, consumer, limits)
        faults += held_leases(state, source.leases(state.feed), limits)
        faults += inspect()
    except ChangefeedError as problem:
        # That it is late is known, whatever the reason.
        unknown.append(not_checked(f"feed {state.feed}", words(problem), f"Run {shell('doctor')}"))
    # Once, if Airflow answers neither what became of the DAG nor what the Variable has.
    told = {fault.remedy for fault in of_dag}
    known = [
        fault
        for fault in faults
        if fault.kind is not FaultKind.NOT_CHECKED
        or (fault.place.startswith(VARIABLES) and fault.remedy not in told)
    ]
    errors = [fault for fault in known if fault.severity is Severity.ERROR]
    others = [*of_dag, *known, *unknown]
    found = [*errors, *(fault for kind in _CAUSES for fault in others if fault.kind is kind)]
    if all(fault.kind is FaultKind.NOT_CHECKED for fault in found) and state.rows:
        found.append(catching_up(state.feed, consumer, state.rows))
    return found
