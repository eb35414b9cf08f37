# SPDX-License-Identifier: Apache-2.0
"""Plans moves of cursors: shows their effect before anything changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from airflow_changefeed.core.consumer import Beginning, Position, parse_position, place_before
from airflow_changefeed.core.cursor import KEPT_CHANGES, CursorRow, Frontier
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, ShardStatus, check_shards, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import format_time
from airflow_changefeed.cursors.cursors import rebuild_command, some
from airflow_changefeed.cursors.window_grid import export_grids, output_grid
from airflow_changefeed.exceptions import (
    ConsumerNotFoundError,
    CursorBeyondFeedError,
    InvalidArgumentError,
    PurgedError,
    ShardNotFoundError,
)
from airflow_changefeed.output.manifests import ManifestStore
from airflow_changefeed.sources.base import FeedSource


@dataclass(frozen=True)
class PlannedMove:
    """
    A planned move of one cursor.

    :param target: new position of the cursor, inclusive.
    :param again: completed events that the consumer would get again.
    :param skipped: incomplete events that the consumer would never get, those that were purged not counted.
    :param skips_purged: whether events that were purged may be among what it would never get.
    :param asked: the place that was asked for, if a window of the export begins elsewhere.
    """

    row: CursorRow
    target: Ulid
    again: int
    skipped: int
    skips_purged: bool = False
    asked: Ulid | None = None

    @property
    def shard(self) -> Shard:
        """The shard."""
        return self.row.shard

    @property
    def frontier(self) -> Frontier:
        """The row's frontier after the move."""
        return self.row.frontier.moved_to(self.target)

    @property
    def forgotten(self) -> tuple[UlidRange, ...]:
        """Complete ranges beyond a gap, and before the start, that would no longer count as complete."""
        frontier = self.row.frontier
        before = frontier.before if self.target < frontier.start else ()
        return before + (frontier.ahead if self.target < frontier.upto else ())

    @property
    def absorbed(self) -> tuple[UlidRange, ...]:
        """Complete ranges after a gap that the cursor would reach."""
        left = self.frontier.ahead
        return tuple(piece for piece in self.row.frontier.ahead if piece not in left + self.forgotten)


def plan_moves(
    source: FeedSource,
    consumer: str,
    feed: str,
    to: Position,
    shards: Sequence[Shard] | None = None,
    outputs: Sequence[ManifestStore] = (),
) -> list[PlannedMove]:
    """
    Plan moves of a consumer's cursors; changes nothing.

    The cursor of an export of windows goes where a window begins: with ``earliest`` the first one that is
    whole, else the window that contains the place, which is exported as a whole.

    :param to: a ULID: the consumer continues after it. A time: it continues with the events of that time, or
        with the next event of a shard that has not reached it. ``earliest``: with the first event that is
        not purged. ``latest``: with the next event to be ordered.
    :param shards: None for all in which the consumer has a cursor.
    :param outputs: of the export, which say where windows begin; where none does, the moves so far do.
    :return: a move for each cursor that is not there already.
    :raises ConsumerNotFoundError: the feed has no such consumer.
    :raises ShardNotFoundError: the consumer has no cursor for a shard.
    :raises CursorBeyondFeedError: a ULID beyond a shard's high-water time.
    :raises FutureTimeError: a time in the future of the database's clock.
    :raises PurgedError: events after the position are purged.
    :raises InvalidArgumentError: all cursors are there already, or it is not known where a window begins.
    """
    states = _shard_states(source, consumer, feed, shards)
    of_events = any(info.spec.consumer == consumer for info in source.consumers(feed))
    by_moves = None if of_events else export_grids(source, feed, [consumer]).get(consumer)
    to = parse_position(to)
    position = place_before(to, feed, source.now()) if isinstance(to, datetime) else to

    def asked(row: CursorRow, status: ShardStatus | None) -> Ulid:
        if position is Beginning.EARLIEST:
            return _purged(status)
        if isinstance(position, Ulid):
            # A shard that has not reached the time continues with its next event; a ULID is taken literally.
            return position if position is to else min(position, _highest(status))
        return _highest(status)

    def target(row: CursorRow, status: ShardStatus | None) -> Ulid:
        place = asked(row, status)
        is_earliest = position is Beginning.EARLIEST
        if of_events or not _purged(status) <= place <= _highest(status):
            return place
        # Before the first event there is no window to wait for.
        first = _first(source, feed, row.shard, status) if is_earliest and place == Ulid.MIN else None
        near = place if first is None else first.previous()
        grid = output_grid(outputs, row.shard, near) or by_moves
        if grid is None:
            return place
        if is_earliest and place == Ulid.MIN and grid.length is not None:
            return place if first is None else grid.floor(near)
        # A person's time is the begin of a window; that of a purge need not be one.
        is_begin = grid.is_begin(place) and (grid.is_sure or not is_earliest or grid.floor(place) == place)
        if is_begin or (position is Beginning.LATEST and not grid.is_sure):
            return place
        if not grid.is_sure:
            raise _no_begin(consumer, feed, row.shard, place)
        return grid.ceiling(place) if is_earliest else grid.floor(place)

    moves = _plan(source, consumer, feed, states, target)
    known = {row.shard: asked(row, status) for row, status in states}
    return [
        move if known[move.shard] == move.target else replace(move, asked=known[move.shard]) for move in moves
    ]


def _first(source: FeedSource, feed: str, shard: Shard, status: ShardStatus | None) -> Ulid | None:
    """Return the first event of a shard of which nothing was purged."""
    if status is None or status.head is None:
        return None
    return next((event.ulid for event in source.read_feed(feed, shard, Ulid.MIN, 1)), None)


def _no_begin(consumer: str, feed: str, shard: Shard, place: Ulid) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"consumer {consumer!r} of feed {feed!r}, shard {shard_text(shard)} exports windows, and its "
        "moves do not show where windows begin. The cursor may not be inside a window, as it would be "
        f"after {place}. Nothing was changed. Give the start of a window as a time, or pass --path so "
        "that cursor set finds it. If events were purged, run the export's task: its error names the "
        "first window that is whole",
        consumer=consumer,
        feed=feed,
        shard=shard,
    )


def plan_reset(
    source: FeedSource, consumer: str, feed: str, shards: Sequence[Shard] | None = None
) -> list[PlannedMove]:
    """Plan moves of cursors back to where the consumer began; changes nothing."""
    states = _shard_states(source, consumer, feed, shards)
    return _plan(source, consumer, feed, states, lambda row, _: row.frontier.start)


def plan_adoption(
    source: FeedSource, consumer: str, feed: str, wanted: Mapping[Shard, Ulid]
) -> list[PlannedMove]:
    """
    Plan the adoption of a Variable; changes nothing.

    :param wanted: positions in the Variable; shards without a row in the database are ignored.
    """
    rows = source.cursors(feed, consumer)
    states = {status.shard: status for status in source.shards(feed)}
    return [
        _planned(source, feed, row, wanted[row.shard], _purged(states.get(row.shard)))
        for row in rows
        if row.shard in wanted and wanted[row.shard] != row.ulid
    ]


def go_back(source: FeedSource, consumer: str, feed: str, number: int) -> list[PlannedMove]:
    """
    Plan a move of a cursor back to its position before a change; changes nothing.

    :param number: number of the change in the history.
    :raises InvalidArgumentError: the history has no such change, or it created the cursor.
    :raises ChangefeedError: as :func:`plan_moves`.
    """
    states = _shard_states(source, consumer, feed, None)
    kept = source.history(feed, consumer, limit=KEPT_CHANGES * len(states))
    change = next((one for one in kept if one.number == number), None)
    if change is None:
        raise InvalidArgumentError(
            f"consumer {consumer!r} of feed {feed!r} has no change {number} in its history, which keeps "
            f"the newest {KEPT_CHANGES} of each shard: "
            f"{shell('cursor history', consumer, '--feed', feed)}",
            number=number,
        )
    before = change.before
    if before is None:
        raise InvalidArgumentError(
            f"change {change.number} created the cursor of shard {shard_text(change.shard)} and cannot be "
            "undone. To go back to where the consumer began, reset without a change",
            number=change.number,
        )
    chosen = [one for one in states if one[0].shard == change.shard]
    return _plan(source, consumer, feed, chosen, lambda *_: before)


def known_rows(source: FeedSource, consumer: str, feed: str) -> list[CursorRow]:
    """
    Return a consumer's cursors, at least one.

    :raises ConsumerNotFoundError: the feed has no such consumer; lists those that it has.
    :raises ShardNotFoundError: the consumer has no cursors yet.
    """
    rows = source.cursors(feed, consumer)
    if rows:
        return rows
    known = {row.consumer for row in source.cursors(feed)}
    of_events = {info.spec.consumer for info in source.consumers(feed)}
    if consumer in of_events:
        raise ShardNotFoundError(
            f"consumer {consumer!r} has no cursors of feed {feed!r} yet: the feed had no events when "
            "the consumer was created, and the consumer has not run since",
            consumer=consumer,
            feed=feed,
        )
    raise ConsumerNotFoundError(
        f"consumer {consumer!r} of feed {feed!r} not found; the feed has: "
        f"{some(sorted(known | of_events)) or 'none'}. If an export's cursors are lost, restore them from "
        f"its manifests: {rebuild_command(consumer, feed)}; or from the "
        f"Variable: {shell('cursor adopt', consumer, '--feed', feed)}",
        consumer=consumer,
        feed=feed,
    )


_ShardState = tuple[CursorRow, ShardStatus | None]
_Wanted = tuple[CursorRow, ShardStatus | None, Ulid]


def _shard_states(
    source: FeedSource, consumer: str, feed: str, shards: Sequence[Shard] | None
) -> list[_ShardState]:
    info = source.feed(feed)
    check_shards(info, shards)
    # The rows first: they are never beyond a high-water time that is read later.
    rows = {row.shard: row for row in known_rows(source, consumer, feed)}
    unknown = [shard_text(shard) for shard in shards or () if shard not in rows]
    if unknown:
        raise ShardNotFoundError(
            f"consumer {consumer!r} has no cursor for shard {', '.join(unknown)} of feed {feed!r}; it has "
            f"{some(map(shard_text, rows))}",
            consumer=consumer,
            feed=feed,
            shards=unknown,
        )
    statuses = {status.shard: status for status in source.shards(feed)}
    return [(row, statuses.get(row.shard)) for row in rows.values() if not shards or row.shard in shards]


def _plan(
    source: FeedSource,
    consumer: str,
    feed: str,
    states: Sequence[_ShardState],
    target: Callable[[CursorRow, ShardStatus | None], Ulid],
) -> list[PlannedMove]:
    wanted = [(row, status, target(row, status)) for row, status in states]
    _check_beyond(consumer, feed, wanted)
    _check_purged(consumer, feed, wanted)
    moves = [
        _planned(source, feed, row, position, _purged(status))
        for row, status, position in wanted
        if position != row.ulid
    ]
    if not moves:
        raise InvalidArgumentError(
            f"consumer {consumer!r} of feed {feed!r} is already there: shard "
            f"{some(f'{shard_text(row.shard)} at {row.ulid}' for row, *_ in wanted)}. Nothing was changed",
            consumer=consumer,
            feed=feed,
        )
    return moves


def _planned(source: FeedSource, feed: str, row: CursorRow, target: Ulid, purged: Ulid) -> PlannedMove:
    is_back = target < row.ulid
    ranges = [UlidRange(target, row.ulid), *row.frontier.ahead] if is_back else _passed(row, target)
    # Purged events cannot be counted, only that there may have been some.
    skips_purged = not is_back and any(one.after < purged for one in ranges)
    left = [UlidRange(max(one.after, purged), one.upto) for one in ranges if one.upto > purged]
    events = sum(source.count(feed, row.shard, left)) if left else 0
    return PlannedMove(row, target, events if is_back else 0, 0 if is_back else events, skips_purged)


def _passed(row: CursorRow, target: Ulid) -> list[UlidRange]:
    """Return the incomplete ranges that a forward move skips."""
    at, passed = row.ulid, []
    for piece in row.frontier.ahead:
        if piece.after >= target:
            break
        passed.append(UlidRange(at, piece.after))
        at = piece.upto
    return [*passed, UlidRange(at, target)] if at < target else passed


def _check_beyond(consumer: str, feed: str, wanted: Sequence[_Wanted]) -> None:
    beyond = [
        (row.shard, position, _highest(status))
        for row, status, position in wanted
        if position > _highest(status)
    ]
    if beyond:
        positions = some(f"{shard_text(shard)} ({top}, {format_time(top.time)})" for shard, _, top in beyond)
        raise CursorBeyondFeedError(
            f"feed {feed!r}: cursor {beyond[0][1]} for consumer {consumer!r} is beyond the highest "
            f"position of shard {positions}. The cursor belongs to another shard or feed, or the "
            "database was restored to an earlier state. Nothing was changed. Choose a position that "
            "the feed has reached, or latest",
            consumer=consumer,
            feed=feed,
            shards=[shard_text(shard) for shard, *_ in beyond],
            cursor=beyond[0][1],
        )


def _check_purged(consumer: str, feed: str, wanted: Sequence[_Wanted]) -> None:
    purged = [
        (row.shard, position, _purged(status))
        for row, status, position in wanted
        if position < _purged(status)
    ]
    if purged:
        raise PurgedError(
            f"feed {feed!r}: consumer {consumer!r} cannot continue after {purged[0][1]}, because events "
            "are purged up to "
            f"{some(f'{upto} in shard {shard_text(shard)}' for shard, _, upto in purged)}. Nothing was "
            "changed. Use earliest, which is the first event that is not purged, and read older events "
            "from an export",
            consumer=consumer,
            feed=feed,
            shards=[shard_text(shard) for shard, *_ in purged],
            purged_upto=purged[0][2],
        )


def _highest(status: ShardStatus | None) -> Ulid:
    # None: a shard that never had an event.
    return Ulid.MIN if status is None else status.highest_cursor


def _purged(status: ShardStatus | None) -> Ulid:
    return Ulid.MIN if status is None else status.purged_upto
