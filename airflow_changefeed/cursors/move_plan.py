# SPDX-License-Identifier: Apache-2.0
"""What it would mean to move cursors: told before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_changefeed.core.consumer import Beginning, Position
from airflow_changefeed.core.cursor import KEPT_CHANGES, CursorChange, CursorRow
from airflow_changefeed.core.feed import Shard, ShardStatus, check_shards, shard_text
from airflow_changefeed.core.frontier import Frontier
from airflow_changefeed.core.times import floor_to_millisecond, format_time
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors.cursors import some
from airflow_changefeed.exceptions import (
    ConsumerNotFoundError,
    CursorBeyondFeedError,
    FutureTimeError,
    InvalidArgumentError,
    PurgedError,
    ShardNotFoundError,
)
from airflow_changefeed.sources.base import FeedSource


@dataclass(frozen=True)
class PlannedMove:
    """
    What a move of one cursor would mean.

    :param row: as it was seen.
    :param target: inclusive; where the cursor is to stand.
    :param again: events that the consumer was done with, and would get again.
    :param skipped: events that it was not done with, and would never get.
    """

    row: CursorRow
    target: Ulid
    again: int
    skipped: int

    @property
    def shard(self) -> Shard:
        """The shard."""
        return self.row.shard

    @property
    def frontier(self) -> Frontier:
        """What the row's frontier becomes."""
        return self.row.frontier.moved_to(self.target)

    @property
    def forgotten(self) -> tuple[UlidRange, ...]:
        """Complete ranges ahead of a gap that would count as complete no longer."""
        return self.row.frontier.ahead if self.target < self.row.ulid else ()

    @property
    def absorbed(self) -> tuple[UlidRange, ...]:
        """Complete ranges ahead of a gap that the cursor would reach."""
        left = self.frontier.ahead
        return tuple(piece for piece in self.row.frontier.ahead if piece not in left + self.forgotten)


def plan_moves(
    source: FeedSource, consumer: str, feed: str, to: Position, shards: Sequence[Shard] | None = None
) -> list[PlannedMove]:
    """
    Say what it would mean to move a consumer's cursors; changes nothing.

    :param to: a ULID, up to which the consumer would be done, inclusive; a time, with whose events it would
        go on (a shard that has not come so far: with its next one); ``earliest``: with the first event that
        is not purged; ``latest``: with what is not ordered yet.
    :param shards: None for all that the consumer has a cursor for.
    :return: a move for each cursor that does not stand there already.
    :raises ConsumerNotFoundError: the feed has no such consumer; terminal.
    :raises ShardNotFoundError: the consumer has no cursor for a shard; terminal.
    :raises CursorBeyondFeedError: a ULID beyond a shard's high-water time; terminal.
    :raises FutureTimeError: a time in the future of the database's clock; terminal.
    :raises PurgedError: events behind the place are purged; terminal.
    :raises InvalidArgumentError: all cursors stand there already; terminal.
    """
    seen = _see(source, consumer, feed, shards)
    position = to
    if isinstance(to, datetime):
        if to.tzinfo is not None and to > (now := source.now()):
            raise FutureTimeError(
                f"feed {feed!r}: a cursor cannot go to {to.isoformat()}, as for the database it is "
                f"{format_time(now)}. Give latest, which is now",
                feed=feed,
            )
        position = Ulid.floor(floor_to_millisecond(to)).previous()

    def target(row: CursorRow, status: ShardStatus | None) -> Ulid:
        if position is Beginning.EARLIEST:
            return _purged(status)
        if isinstance(position, Ulid):
            # All that a slower clock will give comes after that time; a ULID is meant as it is.
            return position if position is to else min(position, highest(status))
        return highest(status)

    return _plan(source, consumer, feed, seen, target)


def plan_reset(
    source: FeedSource, consumer: str, feed: str, shards: Sequence[Shard] | None = None
) -> list[PlannedMove]:
    """
    Say what it would mean to move cursors back to where the consumer began; changes nothing.

    :raises ChangefeedError: as :func:`plan_moves`.
    """
    seen = _see(source, consumer, feed, shards)
    return _plan(source, consumer, feed, seen, lambda row, _: row.frontier.start)


def plan_adoption(
    source: FeedSource, consumer: str, feed: str, wanted: Mapping[Shard, Ulid]
) -> list[PlannedMove]:
    """
    Say what it would mean to let a Variable be right; changes nothing.

    :param wanted: where it says that the cursors stand, of which those that the database has count.
    :return: a move for each cursor that does not stand there already; none where all do.
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
    Say what it would mean to move a cursor to where it stood before a change; changes nothing.

    :param number: of the change, as the history has it.
    :raises InvalidArgumentError: no such change is kept, or it is the one that made the cursor; terminal.
    :raises ChangefeedError: as :func:`plan_moves`.
    """
    seen = _see(source, consumer, feed, None)
    kept = source.history(feed, consumer, limit=KEPT_CHANGES * len(seen))
    change = next((one for one in kept if one.number == number), None)
    if change is None:
        raise InvalidArgumentError(
            f"consumer {consumer!r} of feed {feed!r} has no change {number} in its history, which keeps the "
            f"newest {KEPT_CHANGES} of each shard; see airflow changefeed cursor history",
            number=number,
        )
    before = _before(change)
    chosen = [one for one in seen if one[0].shard == change.shard]
    return _plan(source, consumer, feed, chosen, lambda *_: before)


def _before(change: CursorChange) -> Ulid:
    if change.before is None:
        raise InvalidArgumentError(
            f"change {change.number} made the cursor of shard {shard_text(change.shard)}: nothing was before "
            "it. A reset without a change goes to where the consumer began",
            number=change.number,
        )
    return change.before


def highest(status: ShardStatus | None) -> Ulid:
    """
    Return the highest place at which a consumer of a shard may stand: no event to come is at or below it.

    :param status: None for a shard that the feed never had an event in.
    """
    if status is None:
        return Ulid.MIN
    return max(status.head or Ulid.MIN, Ulid.floor(status.high_water).previous(), status.purged_upto)


def known_rows(source: FeedSource, consumer: str, feed: str) -> list[CursorRow]:
    """
    Return a consumer's cursors, at least one.

    :raises ConsumerNotFoundError: the feed has no such consumer; names those that it has; terminal.
    :raises ShardNotFoundError: it is there, and has no cursor yet; terminal.
    """
    rows = source.cursors(feed, consumer)
    if rows:
        return rows
    known = {row.consumer for row in source.cursors(feed)}
    of_events = {info.spec.consumer for info in source.consumers(feed)}
    if consumer in of_events:
        raise ShardNotFoundError(
            f"consumer {consumer!r} has no cursor of feed {feed!r} yet: no shard had an event when it was "
            "created, and it has not run since",
            consumer=consumer,
            feed=feed,
        )
    raise ConsumerNotFoundError(
        f"feed {feed!r} has no consumer {consumer!r}; it has: {some(sorted(known | of_events)) or 'none'}. "
        "If an export's cursors are lost, make them again: airflow changefeed cursor rebuild, or adopt",
        consumer=consumer,
        feed=feed,
    )


_Seen = tuple[CursorRow, ShardStatus | None]


def _see(source: FeedSource, consumer: str, feed: str, shards: Sequence[Shard] | None) -> list[_Seen]:
    info = source.feed(feed)
    check_shards(info, shards)
    # The rows first: they never lie beyond a clock that is read later.
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
    states = {status.shard: status for status in source.shards(feed)}
    return [(row, states.get(row.shard)) for row in rows.values() if not shards or row.shard in shards]


def _plan(
    source: FeedSource,
    consumer: str,
    feed: str,
    seen: Sequence[_Seen],
    target: Callable[[CursorRow, ShardStatus | None], Ulid],
) -> list[PlannedMove]:
    wanted = [(row, status, target(row, status)) for row, status in seen]
    _check_beyond(consumer, feed, wanted)
    _check_purged(consumer, feed, wanted)
    moves = [
        _planned(source, feed, row, position, _purged(status))
        for row, status, position in wanted
        if position != row.ulid
    ]
    if not moves:
        raise InvalidArgumentError(
            f"consumer {consumer!r} of feed {feed!r} stands there already: shard "
            f"{some(f'{shard_text(row.shard)} at {row.ulid}' for row, *_ in wanted)}. Nothing was changed",
            consumer=consumer,
            feed=feed,
        )
    return moves


def _planned(source: FeedSource, feed: str, row: CursorRow, target: Ulid, purged: Ulid) -> PlannedMove:
    is_back = target < row.ulid
    ranges = [UlidRange(target, row.ulid), *row.frontier.ahead] if is_back else _passed(row, target)
    # What is purged is gone in either case, and nobody can count it.
    left = [UlidRange(max(one.after, purged), one.upto) for one in ranges if one.upto > purged]
    events = sum(source.count(feed, row.shard, left)) if left else 0
    return PlannedMove(row, target, events if is_back else 0, 0 if is_back else events)


def _passed(row: CursorRow, target: Ulid) -> list[UlidRange]:
    """Return what a cursor passes over on its way forwards without being done with it."""
    at, passed = row.ulid, []
    for piece in row.frontier.ahead:
        if piece.after >= target:
            break
        passed.append(UlidRange(at, piece.after))
        at = piece.upto
    return [*passed, UlidRange(at, target)] if at < target else passed


def _check_beyond(
    consumer: str, feed: str, wanted: Sequence[tuple[CursorRow, ShardStatus | None, Ulid]]
) -> None:
    beyond = [
        (row.shard, position, highest(status))
        for row, status, position in wanted
        if position > highest(status)
    ]
    if beyond:
        positions = some(f"{shard_text(shard)} ({top}, {format_time(top.time)})" for shard, _, top in beyond)
        raise CursorBeyondFeedError(
            f"feed {feed!r}: cursor {beyond[0][1]} for consumer {consumer!r} is beyond the highest "
            f"position of shard {positions}. It belongs to another shard or feed, or the database was "
            "restored to an earlier state. Nothing was changed; choose a position that the feed has reached, "
            "or latest",
            consumer=consumer,
            feed=feed,
            shards=[shard_text(shard) for shard, *_ in beyond],
            cursor=beyond[0][1],
        )


def _check_purged(
    consumer: str, feed: str, wanted: Sequence[tuple[CursorRow, ShardStatus | None, Ulid]]
) -> None:
    purged = [
        (row.shard, position, _purged(status))
        for row, status, position in wanted
        if position < _purged(status)
    ]
    if purged:
        raise PurgedError(
            f"feed {feed!r}: consumer {consumer!r} cannot go on behind {purged[0][1]}, as events are purged "
            f"up to {some(f'{upto} in shard {shard_text(shard)}' for shard, _, upto in purged)}. Nothing was "
            "changed: choose earliest, which is the first event that is left, and read the export of the "
            "time before",
            consumer=consumer,
            feed=feed,
            shards=[shard_text(shard) for shard, *_ in purged],
            purged_upto=purged[0][2],
        )


def _purged(status: ShardStatus | None) -> Ulid:
    return Ulid.MIN if status is None else status.purged_upto
