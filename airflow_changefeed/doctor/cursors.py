# SPDX-License-Identifier: Apache-2.0
"""Checks of shards' high-water times and consumers' cursors and leases, from what any source returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_changefeed.core.consumer import ConsumerInfo, DeadLetter
from airflow_changefeed.core.cursor import CursorRow, lost_remedy, lost_text
from airflow_changefeed.core.fault import Fault, FaultKind, Limits, shell
from airflow_changefeed.core.feed import FOREVER, Shard, ShardStatus, max_hold_text, shard_text
from airflow_changefeed.core.times import EPOCH, format_time, to_milliseconds
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.window_grid import WindowGrid
from airflow_changefeed.output.coverage import Gap

#: Our exports never take a lease for longer than this.
LONG_LEASE = timedelta(hours=1)
#: The same for consumers, which can choose their emit timeout.
LONGEST_EMIT_TIMEOUT = timedelta(days=1)
#: Characters to show of the reason of a dead letter.
_REASON = 200
_NEVER_BACK = (
    "Find the writer whose time_hint or clock is ahead, and correct it. A shard's high-water time never goes "
    "back: until the clock reaches it, all events of the shard get that time. Wait, or let the writers use "
    "another shard, or drop the feed and set it up again, which discards its order"
)


@dataclass(frozen=True)
class FeedState:
    """
    The state of a feed.

    :param now: time of the database.
    :param shards: all shards that ever had an event.
    :param rows: cursors of all checked consumers and exports.
    :param consumers: by name, also those without a row; exports are not among them.
    :param dead_letters: that are open.
    :param max_hold: of the feed.
    :param grids: of the exports that export windows, by name.
    """

    feed: str
    now: datetime
    shards: Sequence[ShardStatus] = ()
    rows: Sequence[CursorRow] = ()
    consumers: Mapping[str, ConsumerInfo] = field(default_factory=dict)
    dead_letters: Sequence[DeadLetter] = ()
    max_hold: timedelta = FOREVER
    grids: Mapping[str, WindowGrid] = field(default_factory=dict)


def cursor_faults(state: FeedState, limits: Limits) -> list[Fault]:
    """Check a feed's high-water times, cursors, dead letters and leases."""
    return [
        *_high_water(state, limits),
        *_positions(state),
        *_idle(state, limits),
        *_dead_letters(state),
        *(fault for row in state.rows for fault in _lease(state, row, limits)),
    ]


def hole_faults(rows: Iterable[CursorRow]) -> list[tuple[Gap, Fault]]:
    """Find the gaps that hold cursors back."""
    return [
        (Gap(row.shard, hole), missing_window(Gap(row.shard, hole), _subject(row)))
        for row in rows
        for hole in row.frontier.missing()
    ]


def missing_window(gap: Gap, where: str) -> Fault:
    """Return the fault for a window that is not exported."""
    return Fault(
        FaultKind.WINDOW_MISSING,
        where,
        f"nothing is complete in {gap}, but later windows are complete",
        "Find the run of that window and clear its task, or backfill the window; the cursor then moves by "
        "itself",
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
        status, grid = known.get(row.shard), state.grids.get(row.consumer)
        high_water = status.high_water if status is not None else sealed
        if row.ulid.ms > to_milliseconds(high_water):
            yield Fault(
                FaultKind.CURSOR_BEYOND_FEED,
                _subject(row),
                f"its cursor {row.ulid} ({format_time(row.ulid.time)}) is beyond the shard's high-water "
                f"time ({format_time(high_water)})",
                "The database was restored to an earlier state, or the cursor belongs to another database; "
                "see 'The database was restored to an earlier state' in docs/how-to/recover.md",
            )
        elif status is not None and row.is_lost(status.purged_upto):
            whole = None if grid is None else grid.first_whole(status.purged_upto)
            yield Fault(
                FaultKind.CONSUMER_LOST,
                _subject(row),
                lost_text(row.ulid, status.purged_upto),
                lost_remedy(row.consumer, row.feed, row.shard, whole),
            )
        elif grid is not None and not grid.is_begin(row.ulid):
            yield _in_window(row, grid, status)
    begun = {(row.consumer, row.shard) for row in state.rows}
    for consumer, info in state.consumers.items():
        for status in state.shards:
            if (consumer, status.shard) not in begun and info.begin < status.purged_upto:
                yield Fault(
                    FaultKind.CONSUMER_LOST,
                    f"feed {state.feed}, shard {shard_text(status.shard)}, consumer {consumer}",
                    lost_text(info.begin, status.purged_upto),
                    lost_remedy(consumer, state.feed, status.shard),
                )


def _in_window(row: CursorRow, grid: WindowGrid, status: ShardStatus | None) -> Fault:
    begin = grid.floor(row.ulid)
    if status is not None and begin < status.purged_upto:
        begin = grid.ceiling(row.ulid)
    to = format_time(begin.next().time) if grid.is_sure and row.ulid != Ulid.MIN else "earliest"
    return Fault(
        FaultKind.CURSOR_IN_WINDOW,
        _subject(row),
        f"it exports windows, but its cursor {row.ulid} ({format_time(row.ulid.time)}) is inside one: it "
        "moves on only if that window is exported again, and never if events of it were purged",
        f"Move it to the begin of a window: {_command('cursor set', row, '--to', to)}",
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
            until = (
                ""
                if state.max_hold == FOREVER
                else f", for max_hold ({max_hold_text(state.max_hold)}) at most"
            )
            yield Fault(
                FaultKind.CONSUMER_IDLE,
                f"feed {state.feed}, consumer {consumer}",
                f"it has not moved since {format_time(last)} and holds back purges: {', '.join(held)}{until}",
                "Run it again; or drop it if it is no longer needed: "
                f"{shell('consumer drop', consumer, '--feed', state.feed)}",
            )


def _dead_letters(state: FeedState) -> Iterator[Fault]:
    """Find open dead letters."""
    for consumer in dict.fromkeys(dead_letter.consumer for dead_letter in state.dead_letters):
        own = [dead_letter for dead_letter in state.dead_letters if dead_letter.consumer == consumer]
        first = min(own, key=lambda dead_letter: dead_letter.ulid)
        purged = {status.shard: status.purged_upto for status in state.shards}
        gone = sum(one.ulid <= purged.get(one.shard, Ulid.MIN) for one in own)
        lost = f" The events of {gone} of them were purged, so those can only be dropped." if gone else ""
        yield Fault(
            FaultKind.DEAD_LETTER,
            f"feed {state.feed}, consumer {consumer}",
            f"{len(own)} dead letters are open, the first of {format_time(first.ulid.time)} in shard "
            f"{shard_text(first.shard)} ({first.reason[:_REASON]}). Their events are not consumed, and hold "
            f"back purges of their shards for as long as the feed's max_hold lets them.{lost}",
            "List them, then retry or drop each: "
            f"{shell('dead-letters list', '--consumer', consumer, '--feed', state.feed)}",
        )


def _lease(state: FeedState, row: CursorRow, limits: Limits) -> Iterator[Fault]:
    if row.lease_holder is None or row.lease_expires is None:
        return
    now, longest = state.now, LONG_LEASE
    is_still = now - row.moved_at > limits.idle_consumer
    if row.consumer in state.consumers:
        # A waiting consumer keeps its lease, and moves only when there are events.
        heads = {status.shard: status.head for status in state.shards}
        is_still = is_still and (heads.get(row.shard) or Ulid.MIN) > row.ulid
        longest = LONGEST_EMIT_TIMEOUT
    if row.lease_expires <= now:
        yield Fault(
            FaultKind.LEASE_EXPIRED,
            _subject(row),
            f"{row.lease_holder} did not release its lease, which expired at "
            f"{format_time(row.lease_expires)}",
            "Nothing to do: the process was killed, and the next one takes the lease",
        )
    elif row.lease_expires - now > longest or is_still:
        yield Fault(
            FaultKind.LEASE_STUCK,
            _subject(row),
            f"{row.lease_holder} holds the lease until {format_time(row.lease_expires)}, but has not moved "
            f"the cursor since {format_time(row.moved_at)}",
            "Stop that process; then wait, or revoke its lease: "
            f"{_command('consumer revoke', row, '--fencing-token', str(row.fencing_token))}",
        )


def _command(name: str, row: CursorRow, *words: str) -> str:
    return shell(name, row.consumer, "--feed", row.feed, "--shard", shard_text(row.shard), *words)


def _shard(feed: str, shard: Shard) -> str:
    return f"feed {feed}, shard {shard_text(shard)}"


def _subject(row: CursorRow) -> str:
    return f"{_shard(row.feed, row.shard)}, consumer {row.consumer}"
