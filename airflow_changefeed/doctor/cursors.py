# SPDX-License-Identifier: Apache-2.0
"""Checks of marks, cursors, leases and failed events of consumers, from what any source returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_changefeed.core.completeness import Evidence, MissingRange, Verdict, Why, judge, of_row
from airflow_changefeed.core.consumer import (
    ConsumerInfo,
    DeadLetter,
    FeedOverview,
    Invocation,
    OnPoison,
    Outcome,
)
from airflow_changefeed.core.cursor import (
    RESTORED_PAGE,
    CursorRow,
    lost_remedy,
    lost_text,
    revoke_command,
    seal_command,
    set_command,
)
from airflow_changefeed.core.fault import Fault, FaultKind, Limits, park_command, shell
from airflow_changefeed.core.feed import FOREVER, Shard, ShardStatus, counted, max_hold_text, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import EPOCH, format_time, from_milliseconds, to_milliseconds
from airflow_changefeed.cursors.cursors import some
from airflow_changefeed.cursors.window_grid import EventsBefore, WindowGrid, output_grid
from airflow_changefeed.output.manifests import ManifestStore
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_consumers import LeaseInfo

_NEVER_BACK = (
    "Find the writer whose time_hint or clock is ahead, and correct that writer. A shard's high-water "
    "time never goes back: until the clock reaches it, all events of the shard get that time. Wait, or "
    "let the writers use another shard, or drop the feed and set it up again, which discards its order"
)
_ALTHOUGH = {
    Why.HOLE: "later windows are complete",
    Why.FILES_GONE: "the consumer's cursor has passed it: its manifest is gone, or the cursor was moved",
}


@dataclass(frozen=True)
class FeedState:
    """
    The state of a feed.

    :param shards: all shards that the feed has.
    :param rows: cursors of all checked consumers and exports.
    :param consumers: by name, also those without a row; exports are not among them.
    :param dead_letters: that are open.
    :param grids: of the exports that export windows, by name, as their moves show.
    :param outputs: of exports, by name, as far as they are looked at.
    :param left_out: events before the beginnings of exports.
    """

    feed: str
    now: datetime
    shards: Sequence[ShardStatus] = ()
    rows: Sequence[CursorRow] = ()
    consumers: Mapping[str, ConsumerInfo] = field(default_factory=dict)
    dead_letters: Sequence[DeadLetter] = ()
    max_hold: timedelta = FOREVER
    grids: Mapping[str, WindowGrid] = field(default_factory=dict)
    outputs: Mapping[str, ManifestStore] = field(default_factory=dict)
    left_out: Sequence[EventsBefore] = ()

    @property
    def purged(self) -> dict[Shard, Ulid]:
        """Up to where each shard is purged."""
        return {status.shard: status.purged_upto for status in self.shards}

    def grid(self, row: CursorRow, place: Ulid) -> WindowGrid | None:
        """Return where the windows of an export begin around a place; None of what exports no windows."""
        outputs = [self.outputs[row.consumer]] if row.consumer in self.outputs else []
        return output_grid(outputs, row.shard, place) or self.grids.get(row.consumer)


def cursor_faults(state: FeedState, limits: Limits) -> list[Fault]:
    """Check a feed's high-water times and cursors."""
    return [*_high_water(state, limits), *_positions(state), *_idle(state, limits)]


def hole_faults(state: FeedState) -> list[tuple[MissingRange, Fault]]:
    """Find the holes that hold cursors back; no output was looked at."""
    found = []
    # Others have nothing complete after a gap.
    for row in (one for one in state.rows if len(one.frontier.complete_ranges) > 1):
        for hole in judge(Evidence((of_row(row),))).missing:
            if hole.why is Why.HOLE:
                purged = state.purged.get(row.shard, Ulid.MIN)
                # The end of a hole is the begin of a window, that of a purge need not be one.
                to = "earliest" if purged > hole.range.upto else str(hole.range.upto)
                command = set_command(row.consumer, row.feed, row.shard, to)
                move_on = f"move the cursor past it: {command}"
                fault = missing_window(hole, subject(row), purged, accept=move_on)
                found.append((hole, fault))
    return found


def missing_window(
    missing: MissingRange,
    place: str,
    purged_upto: Ulid,
    *,
    accept: str = "do nothing: readers report it as missing",
) -> Fault:
    """
    Return the fault for a window that is not exported.

    :param accept: what to do if its events were purged, and nobody needs them.
    """
    if missing.range.after < purged_upto:
        return Fault(
            FaultKind.WINDOW_LOST,
            place,
            f"nothing is complete in {missing}, and events were purged up to "
            f"{format_time(purged_upto.time)}, so no run can export all of it any more",
            "If the feed captures a table, a new snapshot of the table gives all later states of it. "
            f"To accept the loss, {accept}",
        )
    return Fault(
        FaultKind.WINDOW_MISSING,
        place,
        f"nothing is complete in {missing}, although {_ALTHOUGH[missing.why]}",
        "Find the run of that window and clear its task, or backfill the window: the page in Airflow does it "
        "under Windows. A cursor that the window holds back then moves by itself",
    )


def _high_water(state: FeedState, limits: Limits) -> Iterator[Fault]:
    for status in state.shards:
        if status.high_water - state.now > limits.high_water_ahead:
            yield Fault(
                FaultKind.HIGH_WATER_AHEAD,
                _shard(state.feed, status.shard),
                f"its high-water time is {format_time(status.high_water)}, but the database's clock is at "
                f"{format_time(state.now)}",
                _NEVER_BACK,
            )


def _positions(state: FeedState) -> Iterator[Fault]:
    """Find cursors from which nothing can be read: beyond the high-water time, or purged."""
    known = {status.shard: status for status in state.shards}
    # A shard that never had an event is sealed like the others.
    sealed = max((status.sealed_until or EPOCH for status in state.shards), default=EPOCH)
    for row in state.rows:
        status = known.get(row.shard)
        high_water = status.high_water if status is not None else sealed
        if row.ulid.ms > to_milliseconds(high_water):
            until = from_milliseconds(row.ulid.ms + 1)
            yield Fault(
                FaultKind.CURSOR_BEYOND_FEED,
                subject(row),
                f"its cursor {row.ulid} ({format_time(row.ulid.time)}) is beyond the shard's high-water "
                f"time ({format_time(high_water)})",
                "The database was restored to an earlier state, or the cursor belongs to another "
                "database. If the database was restored, seal the feed first: "
                f"{seal_command(row.feed, until)}; then {RESTORED_PAGE}",
            )
        elif status is not None and row.is_lost(status.purged_upto):
            grid = state.grid(row, status.purged_upto)
            whole = None if grid is None else grid.first_whole(status.purged_upto)
            yield Fault(
                FaultKind.CONSUMER_LOST,
                subject(row),
                lost_text(row.ulid, status.purged_upto, state.max_hold),
                lost_remedy(row.consumer, row.feed, row.shard, whole),
            )
        elif (grid := state.grid(row, row.ulid)) and not grid.is_begin(row.ulid):
            yield _in_window(row, grid, status)
    begun = {(row.consumer, row.shard) for row in state.rows}
    for consumer, info in state.consumers.items():
        for status in state.shards:
            if (consumer, status.shard) not in begun and info.begin < status.purged_upto:
                yield Fault(
                    FaultKind.CONSUMER_LOST,
                    f"feed {state.feed}, shard {shard_text(status.shard)}, consumer {consumer}",
                    lost_text(info.begin, status.purged_upto, state.max_hold),
                    lost_remedy(consumer, state.feed, status.shard),
                )


def _in_window(row: CursorRow, grid: WindowGrid, status: ShardStatus | None) -> Fault:
    begin = grid.floor(row.ulid)
    if status is not None and begin < status.purged_upto:
        begin = grid.ceiling(row.ulid)
    to = format_time(begin.next().time) if grid.is_sure and row.ulid != Ulid.MIN else "earliest"
    command = set_command(row.consumer, row.feed, row.shard, to)
    return Fault(
        FaultKind.CURSOR_IN_WINDOW,
        subject(row),
        f"the consumer exports windows, but its cursor {row.ulid} ({format_time(row.ulid.time)}) is "
        "inside a window: the cursor moves on only if that window is exported again, and never if some "
        "of its events were purged",
        f"Move the cursor to the start of a window: {command}. Then run the windows from there on "
        "again, as a backfill: the windows after the cursor are not remembered as complete",
    )


def _idle(state: FeedState, limits: Limits) -> Iterator[Fault]:
    """Find consumers that hold back purges and have not moved for a long time."""
    for consumer in dict.fromkeys([*(row.consumer for row in state.rows), *state.consumers]):
        own = {row.shard: row for row in state.rows if row.consumer == consumer}
        of_events = state.consumers.get(consumer)
        # A consumer without a row has not begun in the shard, and needs all of it.
        begin = of_events.begin if of_events is not None else Ulid.MIN
        made = [of_events.created_at] if of_events is not None else []
        last = max([*made, *(row.moved_at for row in own.values())])
        held = []
        for status in state.shards:
            row = own.get(status.shard)
            ack, moved = (row.ack, row.moved_at) if row is not None else (begin, last)
            if row is not None and of_events is not None:
                # Events held back only by dead letters are reported there.
                ack = row.ulid
            if status.head is not None and status.head > ack and state.now - moved > limits.idle_consumer:
                held.append(
                    f"shard {shard_text(status.shard)} from {format_time(max(ack, status.purged_upto).time)}"
                )
        if held:
            most = max_hold_text(state.max_hold)
            until = "" if state.max_hold == FOREVER else f", for max_hold ({most}) at most"
            yield Fault(
                FaultKind.CONSUMER_IDLE,
                f"feed {state.feed}, consumer {consumer}",
                f"the consumer has not moved since {format_time(last)} and holds back purges: "
                f"{', '.join(held)}{until}",
                "Run the consumer again; or, if nobody needs it any more, drop it: "
                f"{shell('consumer drop', consumer, '--feed', state.feed)}",
            )


def _shard(feed: str, shard: Shard) -> str:
    return f"feed {feed}, shard {shard_text(shard)}"


def subject(row: CursorRow) -> str:
    """Return the feed, shard and consumer of a cursor."""
    return f"{_shard(row.feed, row.shard)}, consumer {row.consumer}"


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


#: Characters to show of the reason of a dead letter.
_REASON = 200
#: Newest log entries of a consumer that are looked at.
_ENTRIES = 100


def dead_letter_faults(state: FeedState) -> Iterator[Fault]:
    """Find open dead letters."""
    for consumer in dict.fromkeys(dead_letter.consumer for dead_letter in state.dead_letters):
        own = [dead_letter for dead_letter in state.dead_letters if dead_letter.consumer == consumer]
        first = min(own, key=lambda dead_letter: dead_letter.ulid)
        purged = {status.shard: status.purged_upto for status in state.shards}
        gone = sum(one.ulid <= purged.get(one.shard, Ulid.MIN) for one in own)
        lost = (
            f". The events of {gone} of them were purged, so these dead letters can only be dropped"
            if gone
            else ""
        )
        is_or_are, their = ("is", "Its event is") if len(own) == 1 else ("are", "Their events are")
        yield Fault(
            FaultKind.DEAD_LETTER,
            f"feed {state.feed}, consumer {consumer}",
            f"{counted(len(own), 'dead letter')} {is_or_are} open, the first of "
            f"{format_time(first.ulid.time)} in shard {shard_text(first.shard)} "
            f"({first.reason[:_REASON]}). {their} not consumed, and purges keep such events as long as "
            f"the feed's max_hold allows{lost}",
            "List the dead letters, then retry or drop each: "
            f"{shell('dead-letters list', '--consumer', consumer, '--feed', state.feed)}",
        )


def failing_faults(source: FeedSource, state: FeedState) -> list[Fault]:
    """
    Find consumers of events whose last attempt in a shard failed, at an event that they have not passed.

    The error itself is not shown: it may contain data of the event.
    """
    cursors = {(row.consumer, row.shard): row.ulid for row in state.rows}
    faults = []
    for consumer, info in state.consumers.items():
        newest: dict[Shard, Invocation] = {}
        for entry in source.invocations(state.feed, consumer, limit=_ENTRIES):
            newest.setdefault(entry.shard, entry)
        faults += [
            _failing(info, entry)
            for shard, entry in newest.items()
            if entry.attempt.outcome is Outcome.FAILED
            and entry.attempt.first > cursors.get((consumer, shard), info.begin)
        ]
    return faults


def _failing(info: ConsumerInfo, entry: Invocation) -> Fault:
    spec, attempt = info.spec, entry.attempt
    is_spent = spec.max_attempts is not None and attempt.number >= spec.max_attempts
    stops = is_spent and spec.on_poison is OnPoison.STOP
    end = ", and the consumer stops there (max_attempts, on_poison=stop)" if stops else ""
    log = shell("consumer log", spec.consumer, "--feed", spec.feed, "--failed")
    return Fault(
        FaultKind.CONSUMER_FAILING,
        f"feed {spec.feed}, shard {shard_text(entry.shard)}, consumer {spec.consumer}",
        f"its handler failed {counted(attempt.number, 'time')} at event {attempt.first} "
        f"({format_time(attempt.first.time)}), last at {format_time(entry.ended_at)}{end}",
        f"Read the reason: {log}; then fix the handler or the data, and run the consumer again. To set "
        f"only this event aside: {park_command(spec.consumer, spec.feed)}",
    )


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
                "Check whether that process still works. If it hangs, stop it; then wait, or revoke "
                f"its lease: {revoke_command(first)}",
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
            "The process was killed, or its handler hangs (--handler-timeout ends such a call). If the "
            "process still runs, end it, with SIGKILL if necessary. Otherwise do nothing: the next "
            "process takes the lease",
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
