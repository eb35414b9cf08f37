# SPDX-License-Identifier: Apache-2.0
"""Checks of shards' high-water times and consumers' cursors, from what any source returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_changefeed.core.completeness import Evidence, MissingRange, Why, judge, of_row
from airflow_changefeed.core.consumer import ConsumerInfo, DeadLetter
from airflow_changefeed.core.cursor import (
    RESTORED_PAGE,
    CursorRow,
    lost_remedy,
    lost_text,
    seal_command,
    set_command,
)
from airflow_changefeed.core.fault import Fault, FaultKind, Limits, shell
from airflow_changefeed.core.feed import FOREVER, Shard, ShardStatus, max_hold_text, shard_text
from airflow_changefeed.core.times import EPOCH, format_time, from_milliseconds, to_milliseconds
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.beginnings import EventsBefore
from airflow_changefeed.cursors.window_grid import WindowGrid, output_grid
from airflow_changefeed.output.manifests import ManifestStore

_NEVER_BACK = (
    "Find the writer whose time_hint or clock is ahead, and correct it. A shard's high-water time never goes "
    "back: until the clock reaches it, all events of the shard get that time. Wait, or let the writers use "
    "another shard, or drop the feed and set it up again, which discards its order"
)
_ALTHOUGH = {
    Why.HOLE: "later windows are complete",
    Why.FILES_GONE: "the cursor of its consumer has passed it: its manifest is gone, or the cursor was moved",
}


@dataclass(frozen=True)
class FeedState:
    """
    The state of a feed.

    :param shards: all shards that ever had an event.
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
    for row in state.rows:
        for hole in judge(Evidence((of_row(row),))).missing:
            if hole.why is Why.HOLE:
                purged = state.purged.get(row.shard, Ulid.MIN)
                # The end of a hole is the begin of a window, that of a purge need not be one.
                to = "earliest" if purged > hole.range.upto else str(hole.range.upto)
                command = set_command(row.consumer, row.feed, row.shard, to)
                move_on = f"let the cursor pass it: {command}"
                found.append((hole, missing_window(hole, subject(row), purged, accept=move_on)))
    return found


def missing_window(
    missing: MissingRange,
    where: str,
    purged_upto: Ulid,
    *,
    accept: str = "leave it: readers find that it is missing",
) -> Fault:
    """
    Return the fault for a window that is not exported.

    :param accept: what to do if its events were purged, and nobody needs them.
    """
    if missing.range.after < purged_upto:
        return Fault(
            FaultKind.WINDOW_LOST,
            where,
            f"nothing is complete in {missing}, and events were purged up to "
            f"{format_time(purged_upto.time)}, so that no run can export all of it any more",
            "If the feed captures a table, a new snapshot of the table gives all later states of it. "
            f"To accept the loss, {accept}",
        )
    return Fault(
        FaultKind.WINDOW_MISSING,
        where,
        f"nothing is complete in {missing}, although {_ALTHOUGH[missing.why]}",
        "Find the run of that window and clear its task, or backfill the window; a cursor that it holds then "
        "moves by itself",
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
                "The database was restored to an earlier state, or the cursor belongs to another database. "
                f"If it was restored, seal the feed first: {seal_command(row.feed, until)}; then "
                f"{RESTORED_PAGE}",
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
        f"it exports windows, but its cursor {row.ulid} ({format_time(row.ulid.time)}) is inside one: it "
        "moves on only if that window is exported again, and never if events of it were purged",
        f"Move it to the begin of a window: {command}. Then run the windows from there on again, as a "
        "backfill: those behind it are not remembered as complete",
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
                f"it has not moved since {format_time(last)} and holds back purges: {', '.join(held)}{until}",
                "Run it again; or drop it if it is no longer needed: "
                f"{shell('consumer drop', consumer, '--feed', state.feed)}",
            )


def _shard(feed: str, shard: Shard) -> str:
    return f"feed {feed}, shard {shard_text(shard)}"


def subject(row: CursorRow) -> str:
    """Return the feed, shard and consumer of a cursor."""
    return f"{_shard(row.feed, row.shard)}, consumer {row.consumer}"
