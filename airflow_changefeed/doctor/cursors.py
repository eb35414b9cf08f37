# SPDX-License-Identifier: Apache-2.0
"""What is wrong with shards' high-water times and consumers' rows; told by what any source says of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_changefeed.core.consumer import ConsumerInfo, DeadLetter
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import Fault, FaultKind, Limits
from airflow_changefeed.core.feed import Shard, ShardStatus, shard_text
from airflow_changefeed.core.times import EPOCH, format_time, to_milliseconds
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.cursors import shell
from airflow_changefeed.output.coverage import Gap

#: A lease that lasts longer than this from now on belongs to no export of ours.
LONG_LEASE = timedelta(hours=1)
#: The same of a consumer of events, which may choose its emit timeout.
LONGEST_EMIT_TIMEOUT = timedelta(days=1)
#: Characters of a letter's reason that are told.
_REASON = 200
_NEVER_BACK = (
    "Find the writer whose time_hint, or whose clock, is ahead, and correct it. A shard's high-water time "
    "never goes back, so its events get that time until it has come: wait, let the writers use another "
    "shard, or drop the feed and set it up again, which forgets its order"
)


@dataclass(frozen=True)
class FeedState:
    """
    What a source says of a feed.

    :param now: the database's clock.
    :param shards: those that ever had an event.
    :param rows: of all consumers looked at.
    :param consumers: those of events, by name, also without a row.
    :param letters: that are open.
    """

    feed: str
    now: datetime
    shards: Sequence[ShardStatus] = ()
    rows: Sequence[CursorRow] = ()
    consumers: Mapping[str, ConsumerInfo] = field(default_factory=dict)
    dead_letters: Sequence[DeadLetter] = ()


def cursor_faults(state: FeedState, limits: Limits) -> list[Fault]:
    """Find what is wrong with a feed's clocks, cursors and leases."""
    return [
        *_clocks(state, limits),
        *_places(state),
        *_idle(state, limits),
        *_letters(state),
        *(fault for row in state.rows for fault in _lease(state, row, limits)),
    ]


def hole_faults(rows: Iterable[CursorRow]) -> list[tuple[Gap, Fault]]:
    """Find the gaps that hold a consumer's cursors back."""
    return [
        (Gap(row.shard, hole), missing_window(Gap(row.shard, hole), _subject(row)))
        for row in rows
        for hole in row.frontier.missing()
    ]


def missing_window(gap: Gap, where: str) -> Fault:
    """Tell a window that nobody exported."""
    return Fault(
        FaultKind.WINDOW_MISSING,
        where,
        f"nothing complete in {gap}, though later windows are complete",
        "Look for that window's run and clear its task, or backfill the window; the cursor goes on by itself",
    )


def _clocks(state: FeedState, limits: Limits) -> Iterator[Fault]:
    for status in state.shards:
        if status.high_water - state.now > limits.high_water_ahead:
            yield Fault(
                FaultKind.HIGH_WATER_AHEAD,
                _shard(state.feed, status.shard),
                f"its high-water time is {format_time(status.high_water)}, "
                f"the database's clock {format_time(state.now)}",
                _NEVER_BACK,
            )


def _places(state: FeedState) -> Iterator[Fault]:
    """Find cursors that lie where no cursor can go on."""
    known = {status.shard: status for status in state.shards}
    # A shard that never had an event is sealed as the others are.
    sealed = max((status.sealed_until or EPOCH for status in state.shards), default=EPOCH)
    for row in state.rows:
        status = known.get(row.shard)
        high_water = status.high_water if status is not None else sealed
        if row.ulid.ms > to_milliseconds(high_water):
            yield Fault(
                FaultKind.CURSOR_BEYOND_FEED,
                _subject(row),
                f"its cursor {row.ulid} ({format_time(row.ulid.time)}) is beyond the shard's high-water "
                f"time ({format_time(high_water)})",
                "The database was restored to an earlier state, or the cursor belongs to another one: see "
                "'The database was restored to an earlier state' in docs/how-to/recover.md",
            )
        elif status is not None and row.ulid < status.purged_upto:
            yield Fault(
                FaultKind.CURSOR_PURGED,
                _subject(row),
                f"its cursor {row.ulid} lies below {status.purged_upto}, up to which events are purged",
                "Move the cursor to earliest, and read the export of the time between, as what was purged is "
                f"lost to this consumer: {_command('cursor set', row)} --to earliest",
            )


def _idle(state: FeedState, limits: Limits) -> Iterator[Fault]:
    """Find consumers that keep events from being purged, and have not moved for long."""
    for consumer in dict.fromkeys([*(row.consumer for row in state.rows), *state.consumers]):
        own = {row.shard: row for row in state.rows if row.consumer == consumer}
        of_events = state.consumers.get(consumer)
        # Without a row the consumer has not yet seen the shard, and needs all of it.
        begin = of_events.begin if of_events is not None else Ulid.MIN
        made = [of_events.created_at] if of_events is not None else []
        last = max([*made, *(row.moved_at for row in own.values())])
        held = []
        for status in state.shards:
            row = own.get(status.shard)
            ack, moved = (row.ack, row.moved_at) if row is not None else (begin, last)
            if row is not None and of_events is not None:
                # What only its dead letters hold back is told with them.
                ack = row.ulid
            if status.head is not None and status.head > ack and state.now - moved > limits.idle_consumer:
                held.append(f"shard {shard_text(status.shard)} from {format_time(ack.time)} on")
        if held:
            yield Fault(
                FaultKind.CONSUMER_IDLE,
                f"feed {state.feed}, consumer {consumer}",
                f"it has not moved since {format_time(last)} and keeps events from being purged: "
                f"{', '.join(held)}",
                "Run it again; or, if nobody needs it any more, drop it (drop_consumer), which frees what it "
                "holds",
            )


def _letters(state: FeedState) -> Iterator[Fault]:
    """Find events that consumers parked, and that nobody has resolved."""
    for consumer in dict.fromkeys(dead_letter.consumer for dead_letter in state.dead_letters):
        own = [dead_letter for dead_letter in state.dead_letters if dead_letter.consumer == consumer]
        first = min(own, key=lambda dead_letter: dead_letter.ulid)
        yield Fault(
            FaultKind.DEAD_LETTER,
            f"feed {state.feed}, consumer {consumer}",
            f"{len(own)} dead letters are open, the first of {format_time(first.ulid.time)} in shard "
            f"{shard_text(first.shard)} ({first.reason[:_REASON]}): their events are not consumed, and in "
            "their shards all from there on is kept from being purged",
            "See airflow changefeed dead-letters list; then retry or drop each",
        )


def _lease(state: FeedState, row: CursorRow, limits: Limits) -> Iterator[Fault]:
    if row.lease_holder is None or row.lease_expires is None:
        return
    now, longest = state.now, LONG_LEASE
    is_still = now - row.moved_at > limits.idle_consumer
    if row.consumer in state.consumers:
        # One that waits for events keeps its lease, and moves when there is something to consume.
        heads = {status.shard: status.head for status in state.shards}
        is_still = is_still and (heads.get(row.shard) or Ulid.MIN) > row.ulid
        longest = LONGEST_EMIT_TIMEOUT
    if row.lease_expires <= now:
        yield Fault(
            FaultKind.LEASE_EXPIRED,
            _subject(row),
            f"{row.lease_holder} held the lease and has not given it back; it ran out at "
            f"{format_time(row.lease_expires)}",
            "Nothing: the process was killed, and the next one takes the lease",
        )
    elif row.lease_expires - now > longest or is_still:
        yield Fault(
            FaultKind.LEASE_STUCK,
            _subject(row),
            f"{row.lease_holder} holds the lease until {format_time(row.lease_expires)}; the cursor, which "
            f"nobody else may move, was moved at {format_time(row.moved_at)} last",
            "End that process; then wait, or take its lease away: "
            f"{_command('consumer revoke', row, '--fencing-token', str(row.fencing_token))}",
        )


def _command(name: str, row: CursorRow, *words: str) -> str:
    return shell(name, row.consumer, row.feed, "--shard", shard_text(row.shard), *words)


def _shard(feed: str, shard: Shard) -> str:
    return f"feed {feed}, shard {shard_text(shard)}"


def _subject(row: CursorRow) -> str:
    return f"{_shard(row.feed, row.shard)}, consumer {row.consumer}"
