# SPDX-License-Identifier: Apache-2.0
"""The state of a connection's feeds: their consumers, and their troubles, each with its mend."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, cached_property, partial

from airflow_changefeed.connections.connection import without_secrets
from airflow_changefeed.core.capture import CaptureInfo
from airflow_changefeed.core.completeness import MissingRange, WindowState
from airflow_changefeed.core.consumer import COUNTED, ConsumerPosition, FeedOverview
from airflow_changefeed.core.fault import Fault, FaultKind, Limits, Severity, gap_remedy, not_checked, shell
from airflow_changefeed.core.feed import max_hold_text
from airflow_changefeed.core.ulid import UlidRange, merge
from airflow_changefeed.core.values import format_known, format_time, parse_time
from airflow_changefeed.core.window import count_windows
from airflow_changefeed.cursors.window_grid import events_before
from airflow_changefeed.doctor.airflow import (
    DagState,
    FindDag,
    dag_faults,
    dag_of,
    judge_consumer,
)
from airflow_changefeed.doctor.cursors import (
    FeedState,
    cursor_faults,
    dead_letter_faults,
    hole_faults,
    lease_faults,
)
from airflow_changefeed.doctor.freshness import NO_REASON, only, reasons_of
from airflow_changefeed.doctor.output import checked_fault
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.plugins.rows import MayChange, Row, position
from airflow_changefeed.plugins.runs import MOST_TRIGGERS, dag_states, is_triggered
from airflow_changefeed.plugins.strips import Exports, strip_of
from airflow_changefeed.plugins.uses import Use
from airflow_changefeed.sources.base import FeedSource

log = logging.getLogger(__name__)

_HOUR = timedelta(hours=1)
#: A backfill of the page covers at most a year, since it may start many runs.
_YEAR = timedelta(days=365)
#: Instead of what names servers and logins.
_HIDDEN = (
    "a check of the database found this fault; users who may see the connection in Airflow see its details",
    "Ask one of these users, or a database administrator",
)
_NO_WINDOWS = (
    "the consumer's windows are unknown: its DAG was just deleted, or the DAG's timetable fails",
    "Read the reason in the log of the API server; then fix or restore the DAG",
)
_LIMITS = Limits(role="readers")
#: What is said of the feed already, and what doctor alone says: who is called must not drop an idle consumer.
_SAID = (
    FaultKind.CAPTURE_GAP,
    FaultKind.CAPTURE_DRIFT,
    FaultKind.HIGH_WATER_AHEAD,
    FaultKind.CONSUMER_IDLE,
)


@dataclass(frozen=True)
class Trouble:
    """
    Faults of one kind, of a feed or of one of its consumers.

    :param first: the others differ in their shards.
    :param count: how many things it is about: gaps, dead letters, ranges of windows, or faults.
    :param windows: how many windows the ranges have, if that is known.
    """

    consumer: str | None
    first: Fault
    count: int = 1
    windows: int | None = None

    def to_dict(self, say: Callable[[str], str]) -> Row:
        """Return JSON values."""
        return {
            "consumer": self.consumer,
            "code": self.first.kind.code,
            "severity": self.first.severity.value,
            "count": self.count,
            "windows": self.windows,
            "what": say(self.first.what),
            "remedy": say(self.first.remedy),
        }


@dataclass(frozen=True)
class Overview:
    """
    The feeds of a connection, as a user sees them.

    :param may_change: takes consumer and feed; whether the user may move its cursors.
    :param words: of an error, as the user may read it.
    :param say: takes a sentence, and returns it as the user may read it.
    :param sees_errors: whether the user may see servers and logins.
    :param explains: whether the database is searched for the reasons why consumers are late, as freshness
        does it; that takes too long for many feeds.
    """

    source: FeedSource
    exports: Exports
    may_change: MayChange
    words: Callable[[Exception], str]
    say: Callable[[str], str]
    sees_errors: bool = False
    explains: bool = False

    @cached_property
    def now(self) -> datetime:
        """The database's clock."""
        return self.source.now()

    @cached_property
    def _captures(self) -> dict[str, CaptureInfo]:
        return {one.name: one for one in self.source.captures()}

    @cached_property
    def _inspect(self) -> Callable[[str], list[Fault]]:
        """Return what the source finds in a feed; of servers and logins in general words for most."""

        def inspect(feed: str) -> list[Fault]:
            faults = self.source.inspect(feed, _LIMITS).faults
            what, remedy = _HIDDEN
            return [one if self.sees_errors else replace(one, what=what, remedy=remedy) for one in faults]

        return cache(inspect)

    def rows(self, found: Sequence[FeedOverview]) -> list[Row]:
        """Return feeds with troubles first, then those of which a consumer is late, then the others."""
        movers = {dag_of(one.row.moved_by) for each in found for one in _positions(each)}
        movers |= {use.dag_id for each in found for use in self.exports.by_feed.get(each.info.name, ())}
        dags = dag_states({one for one in movers if one is not None and self.exports.run_names.sees(one)})
        rows = [self._row(one, dags) for one in found]
        return sorted(rows, key=lambda row: (_GROUPS.index(row["group"]), row["feed"]))

    def absent(self, feeds: Collection[str]) -> list[Row]:
        """Return the feeds that tasks name and that the database does not have."""
        return [_absent(feed, uses) for feed, uses in self.exports.by_feed.items() if feed not in feeds]

    def _row(self, found: FeedOverview, dags: Mapping[str, DagState]) -> Row:
        names = _names(found)
        consumers = [self._consumer(name, found) for name in names]
        to_come = self._to_come(found, names)
        troubles = [*self._troubles(found, consumers, dags), *self._paused(found.info.name, to_come, dags)]
        states = {one["state"] for one in consumers}
        shards = found.shards
        heads = [one.status.head for one in shards if one.status.head is not None]
        waiting = sum(one.waiting for one in shards)
        # A consumer whose windows are unknown must not look like one without troubles.
        is_late = bool({WindowState.MISSING.value, None} & states or (to_come and (heads or waiting)))
        group = "late" if is_late else "rest"
        if found.problem is not None or any(one.first.severity is not Severity.NOTE for one in troubles):
            group = "trouble"
        return {
            "feed": found.info.name,
            "kind": found.info.kind.value,
            "group": group,
            "resource_version": found.info.resource_version,
            "time_tolerance_seconds": found.info.time_tolerance.total_seconds(),
            "max_hold": max_hold_text(found.info.max_hold),
            "shard_count": found.shard_count,
            "shards_counted": len(shards),
            "head": position(max(heads, default=None)),
            "sealed_until": format_known(found.info.sealed_until),
            "waiting": waiting,
            "waiting_or_more": any(one.waiting >= COUNTED for one in shards),
            "problem": None if found.problem is None else self.words(found.problem),
            "troubles": [one.to_dict(self.say) for one in troubles],
            "consumers": consumers,
            # Those that no run has begun yet.
            "to_come": to_come,
        }

    def _to_come(self, found: FeedOverview, names: Collection[str]) -> list[str]:
        """Return the consumers of tasks that have no cursors, also not beyond the shards of the overview."""
        feed = found.info.name
        known = {str(use.consumer) for use in self.exports.by_feed.get(feed, ())} - set(names)
        if found.problem is not None:
            return []
        is_whole = len(found.shards) == found.shard_count
        return sorted(one for one in known if is_whole or not self.source.cursors(feed, one))

    def _paused(self, feed: str, to_come: Sequence[str], dags: Mapping[str, DagState]) -> Iterator[Trouble]:
        """Yield the exports that have not run yet because all of their DAGs are paused."""
        for name in to_come:
            ids = sorted({use.dag_id for use in self.exports.by_feed[feed] if use.consumer == name})
            if all(one in dags and dags[one].is_paused for one in ids):
                found = [dag_faults(dags.__getitem__, one, feed, name, (), self.now, _HOUR) for one in ids]
                paused = (one for each in found for one in each if one.kind is FaultKind.DAG_PAUSED)
                yield from _merged(name, paused)

    def _consumer(self, name: str, found: FeedOverview) -> Row:
        """Return a consumer with the totals of its cursors in the shards of the overview."""
        settings = next((info for info in found.consumers if info.spec.consumer == name), None)
        own = found.positions(name)
        return {
            "consumer": name,
            "is_of_events": settings is not None,
            "resource_version": settings.resource_version
            if settings
            else sum(position.row.resource_version for position in own),
            "cursors": len(own),
            "behind": sum(position.behind for position in own),
            "behind_or_more": any(position.behind >= COUNTED for position in own),
            "held": sum(position.row.is_held(self.now) for position in own),
            "may_change": self.may_change(name, found.info.name),
            **strip_of(found, name, self.exports, self.now),
        }

    def _troubles(
        self, found: FeedOverview, consumers: Sequence[Row], dags: Mapping[str, DagState]
    ) -> Iterator[Trouble]:
        if found.problem is not None:
            return
        feed = found.info.name
        if found.gaps:
            yield Trouble(None, _gap_fault(found), len(found.gaps))
        capture = self._captures.get(feed) if found.gaps is not None else None
        if capture is not None and capture.drift:
            yield Trouble(None, _drift_fault(feed, capture.drift), len(capture.drift))
        state = self._state(found)
        yield from _merged(None, cursor_faults(replace(state, rows=(), consumers={}), _LIMITS))
        of_feed: dict[Fault, None] = {}
        missing = FaultKind.WINDOW_MISSING
        for consumer in consumers:
            name = consumer["consumer"]
            own = only(state, name)
            holes = hole_faults(own)
            faults = [one for one in self._faults(found, own, consumer, dags, holes) if one.kind not in _SAID]
            of_feed |= dict.fromkeys(one for one in faults if not one.place.endswith(f", consumer {name}"))
            ranges = {(fault.kind, hole.range) for hole, fault in holes}
            counts = Counter(kind for kind, _ in ranges)
            counts[FaultKind.DEAD_LETTER] = len(own.dead_letters)
            windows = self._windows(consumer, feed, [one for kind, one in ranges if kind is missing])
            troubles = {
                one.first.kind: replace(
                    one,
                    count=counts[one.first.kind] or one.count,
                    windows=windows if one.first.kind is missing else None,
                )
                for one in _merged(name, [one for one in faults if one not in of_feed])
            }
            check = next((one for one in found.checks if one.consumer == name), None)
            if check is not None and check.missing:
                # The same hole may hold the cursor back.
                checked = Trouble(name, checked_fault(check), check.missing)
                known = troubles.get(checked.first.kind, checked)
                troubles[checked.first.kind] = max(known, checked, key=lambda one: one.count)
            yield from troubles.values()
            if consumer["strip"] is None:
                yield Trouble(name, not_checked(f"feed {feed}, consumer {name}", *_NO_WINDOWS))
        yield from _merged(None, of_feed)

    def _windows(self, consumer: Row, feed: str, ranges: Iterable[UlidRange]) -> int | None:
        """Return how many windows ranges have; None if that is not known."""
        if not consumer["strip"] or not self.exports.of(feed, consumer["consumer"]):
            return None
        length = timedelta(seconds=consumer["strip"]["unit_seconds"])
        return sum(count_windows(one, length) for one in merge(ranges)) or None

    def _faults(
        self,
        found: FeedOverview,
        own: FeedState,
        consumer: Row,
        dags: Mapping[str, DagState],
        holes: Sequence[tuple[MissingRange, Fault]],
    ) -> list[Fault]:
        """Return what the database says of a consumer, and if it is late, what Airflow and freshness say."""
        feed, name = found.info.name, consumer["consumer"]
        uses = self.exports.of(feed, name)
        before = events_before(found, name)
        faults = [] if before is None else [before.fault(uses[0].dag_id if uses else None)]
        strip = consumer["strip"]
        if strip and consumer["state"] == WindowState.MISSING.value and not strip["is_gap_alone"]:
            # A run takes the time of a window at most, or it could not keep up.
            most = max(timedelta(seconds=2 * strip["unit_seconds"]), _HOUR)
            find = partial(self._find_dag, dags)
            if self.explains:
                return [*faults, *self._reasons(found, own, consumer, find, most)]
            last = max(own.rows, key=lambda row: row.moved_at, default=None)
            until = parse_time(consumer["complete_until"]) if consumer["complete_until"] and uses else None
            # A person may have moved it last.
            mover = None if last is None else dag_of(last.moved_by)
            mover = mover or (uses[0].dag_id if uses else None)
            faults += dag_faults(find, mover, feed, name, own.rows, own.now, most, until)
        faults += [
            *cursor_faults(own, _LIMITS),
            *dead_letter_faults(own),
            *lease_faults(own, _LIMITS),
            *(fault for _, fault in holes),
        ]
        return [one for one in faults if one.severity is not Severity.NOTE]

    def _find_dag(self, dags: Mapping[str, DagState], dag_id: str) -> DagState:
        if dag_id in dags:
            return dags[dag_id]
        # Of others the user may not even know whether they are there.
        return dag_states([dag_id])[dag_id] if self.exports.run_names.sees(dag_id) else DagState(dag_id)

    def _reasons(
        self, found: FeedOverview, own: FeedState, consumer: Row, find: FindDag, most: timedelta
    ) -> list[Fault]:
        feed, name = found.info.name, consumer["consumer"]
        _, until = judge_consumer(self.source, found, name, own.rows, own.now)
        # An edited Variable is shown to those who may edit it.
        variables = ChangefeedHook(self.exports.conn_id).variables() if consumer["may_change"] else None
        uses = self.exports.of(feed, name)
        return reasons_of(
            self.source,
            variables,
            find,
            own,
            name,
            until,
            most,
            partial(self._inspect, feed),
            dag_id=uses[0].dag_id if uses else None,
            words=self.words,
        )

    def _state(self, found: FeedOverview) -> FeedState:
        positions = _positions(found)
        feed = found.info.name
        # An open dead letter holds back what its consumer has acknowledged.
        has_letters = any(one.row.ack < one.row.ulid for one in positions)
        letters = self.source.dead_letters(feed) if has_letters and found.consumers else []
        return FeedState(
            feed,
            self.now,
            [one.status for one in found.shards],
            [one.row for one in positions],
            {info.spec.consumer: info for info in found.consumers},
            [replace(one, reason=NO_REASON) for one in letters],
            found.info.max_hold,
        )


_GROUPS = ("trouble", "late", "rest")


def _absent(feed: str, uses: Sequence[Use]) -> Row:
    dags = sorted({use.dag_id for use in uses})
    export = "exports" if len(dags) == 1 else "export"
    what = f"the database has no such feed; {' and '.join(dags)} {export} it"
    remedy = (
        "Create it with set_up_feed, or with enable_capture to record a table's changes; or correct its name "
        "in the DAG"
    )
    trouble = {"consumer": None, "code": "not-set-up", "severity": Severity.ERROR.value, "count": 1}
    empty: Row = {"problem": None, "consumers": [], "to_come": [], "shard_count": 0, "shards_counted": 0}
    return {
        "feed": feed,
        "kind": None,
        "group": "trouble",
        **empty,
        "troubles": [{**trouble, "what": what, "remedy": remedy}],
    }


def _names(found: FeedOverview) -> list[str]:
    if found.problem is not None:
        return []
    named = {info.spec.consumer for info in found.consumers}
    return sorted(named | {one.row.consumer for one in _positions(found)})


def _positions(found: FeedOverview) -> list[ConsumerPosition]:
    return [one for shard in found.shards for one in shard.consumers]


def _merged(consumer: str | None, faults: Iterable[Fault]) -> list[Trouble]:
    by_kind: dict[FaultKind, Trouble] = {}
    for fault in faults:
        known = by_kind.get(fault.kind)
        by_kind[fault.kind] = replace(known, count=known.count + 1) if known else Trouble(consumer, fault)
    return list(by_kind.values())


def _gap_fault(found: FeedOverview) -> Fault:
    gaps = found.gaps or ()
    first = min(gaps, key=lambda gap: gap.begin)
    what = (
        f"the capture has missed changes of table {first.table}, or may have: {first.reason}. Nothing after "
        f"{format_time(first.begin)} counts as complete until somebody resolves the gap"
    )
    return Fault(FaultKind.CAPTURE_GAP, f"feed {found.info.name}", what, gap_remedy(found.info.name))


def _drift_fault(feed: str, drift: Sequence[str]) -> Fault:
    what = f"the tables differ from the captured columns: {'; '.join(drift)}"
    remedy = f"To capture the current columns: {shell('capture refresh', feed)}"
    return Fault(FaultKind.CAPTURE_DRIFT, f"feed {feed}", what, remedy)


def waiting_of(source: FeedSource, uses: Sequence[Use], exports: Exports, found: FeedOverview) -> Row:
    """
    Return how many events wait for an export that has not run yet, since when, and a first backfill.

    :param uses: tasks of the export.
    :param found: at most as many shards as are asked one after the other.
    """
    count = sum(one.waiting for one in found.shards)
    is_more = len(found.shards) < found.shard_count or any(one.waiting >= COUNTED for one in found.shards)
    hints = [one.waiting_since for one in found.shards if one.waiting_since is not None]
    times: list[datetime] = []
    for one in found.shards:
        after = one.status.purged_upto
        if one.status.head is not None and one.status.head > after:
            # A page before the head orders nothing; of the first event the time is wanted in any case.
            page = source.read_feed(found.info.name, one.shard, after, max(COUNTED - count, 0) + 1)
            times += [event.ulid.time for event in page.events[:1]]
            count += len(page.events)
    since = min(times or hints, default=None)
    start = end = None
    if since is not None and uses:
        try:
            start, end = _first_backfill(exports, uses, since, source.now())
        except Exception as error:
            # Timetables are users' code, and a DAG may just have been deleted.
            text = without_secrets(f"{type(error).__name__}: {error}")
            log.warning("The page offers no backfill of feed %r: %s", found.info.name, text)
    return {
        "count": min(count, COUNTED),
        "is_more": is_more or count > COUNTED,
        "since": format_known(since),
        "start": format_known(start),
        "end": format_known(end),
    }


def _first_backfill(
    exports: Exports, uses: Sequence[Use], since: datetime, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """Return borders of windows, with all that waits between them: a year, or 100 runs to trigger at most."""
    # Borders of the longest windows are mostly those of the others, too.
    longest = max(uses, key=exports.unit)
    start = exports.window_at(longest, since).start
    most = [MOST_TRIGGERS * exports.unit(use) for use in uses if is_triggered(use.dag_id)]
    end = exports.window_at(longest, min(now, start + min([_YEAR, *most]))).start
    return (start, end) if start < end else (None, None)
