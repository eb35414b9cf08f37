# SPDX-License-Identifier: Apache-2.0
"""Where a consumer's next event comes from: its shards in turn, and dead letters to retry."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_changefeed.consumers.event import (
    UNREADABLE,
    FeedEvent,
    UnreadableEvent,
    events_of,
    pages,
    unreadable_event,
)
from airflow_changefeed.consumers.holding import Holding, Wanted, holders
from airflow_changefeed.consumers.reading import LARGEST_PAGE, ShardReader
from airflow_changefeed.consumers.settings import Pace, purged_error
from airflow_changefeed.core.consumer import DeadLetter, DeadLetterState
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import ChangefeedError, PurgedError

if TYPE_CHECKING:
    from airflow_changefeed.consumers.page import EventColumns
    from airflow_changefeed.sources.base import FeedSource

log = logging.getLogger(__name__)

#: Maximum seconds per wait for a lease.
_SLICE = 1.0
#: The shortest wait for a lease that is about to expire.
_SOON = 0.01
#: Between two looks whether a purge has passed a shard, which is a statement of its own.
_LOOK_SECONDS = 60.0
#: For so long a consumer that is behind reads on to the heads it knows, before it polls again.
_POLL_SECONDS = 0.5
#: Batches read ahead when a consumer is behind, over all its shards.
_BATCHES_AHEAD = 10


class Intake:
    """
    The events of all shards a consumer holds.

    :param readers: of the held shards.
    :param below: exclusive upper bound; set before the first event is requested.
    """

    def __init__(self, source: FeedSource, wanted: Wanted, columns: EventColumns, pace: Pace) -> None:
        self._source = source
        self._wanted = wanted
        self._columns = columns
        self._pace = pace
        self.holding = Holding(source, wanted, pace.clock)
        self.dead_letters: deque[FeedEvent] = deque()
        self.below: Ulid | None = None
        self.readers: dict[Shard, ShardReader] = {}
        self._known: tuple[Shard, ...] = ()
        self._turn: Shard | None = None
        self._was_waiting = False
        #: Whether a purge may have passed a reader since the last look.
        self._may_be_lost, self._looked = False, -math.inf
        #: Seconds from the last request on, until a lease of others expires.
        self._free_in = math.inf
        self._polled = -math.inf

    def register(self, timeout: float | None, should_stop: Callable[[], bool]) -> None:
        """Wait until a shard is held; returns at once if the feed has no shards yet."""
        begun, is_told = self._pace.clock(), False
        while True:
            self._update_shards()
            if self.ask() or not self.holding.missing(self._known):
                return
            left = _SLICE if timeout is None else timeout - (self._pace.clock() - begun)
            if should_stop():
                self.holding.leave()
                return
            if left <= 0:
                self.holding.leave()
                raise self.holding.held_elsewhere(timeout or 0.0)
            if not is_told:
                is_told = True
                held = holders(self._source, self._wanted.consumer, self._wanted.feed)
                log.info(
                    "Consumer %s of feed %s waits for other processes: %s",
                    self._wanted.consumer,
                    self._wanted.feed,
                    "; ".join(held),
                )
            # Not so long that our own request expires.
            self._pause(min(left, _SLICE, self._wanted.seconds / 3, max(self._free_in, _SOON)), should_stop)

    def _pause(self, seconds: float, should_stop: Callable[[], bool]) -> None:
        """Wait, also if the pace's wait returns early for new events, which do not free a lease."""
        end = self._pace.clock() + seconds
        while (left := end - self._pace.clock()) > 0 and not should_stop():
            self._pace.wait(left)

    def read_upto(self) -> dict[Shard, Ulid]:
        """Return each shard's read position; others', and those that rest, count as read; new ones do not."""
        own = {shard: reader.after for shard, reader in self._awake().items()}
        return {**dict.fromkeys(self._known, Ulid.MAX), **own}

    def _update_shards(self) -> None:
        if self._wanted.shards is None:
            self._known = self._source.poll(self._wanted.feed, self._wanted.consumer).shards
        else:
            self._known = self._wanted.shards

    def ask(self) -> bool:
        """Request the missing shards; returns whether any is held now."""
        missing = self.holding.missing(self._known)
        if missing:
            grant = self.holding.request(missing)
            granted, self._free_in = grant.rows, grant.free_in
            for shard in granted:
                self._begin(shard)
            if granted:
                self._may_be_lost = True
                self._load_dead_letters()
        return bool(self.holding.rows)

    def _begin(self, shard: Shard) -> ShardReader:
        reader = self.readers[shard] = ShardReader(
            self._source,
            self._wanted.consumer,
            self._wanted.feed,
            shard,
            self._columns,
            self.holding.rows[shard].ulid,
            self._pace.page_size,
            self.below,
        )
        return reader

    def rest(self, shard: Shard, seconds: float, stopped_by: ChangefeedError | None = None) -> None:
        """Leave a shard alone whose next event cannot be read, then read it again from its cursor."""
        reader = self._begin(shard)
        reader.rests_until, reader.stopped_by = self._pace.clock() + seconds, stopped_by

    def check_stopped(self) -> None:
        """Raise why a shard was stopped; its next event is tried again afterwards."""
        for reader in self.readers.values():
            error, reader.stopped_by = reader.stopped_by, None
            if error is not None:
                reader.rests_until = -math.inf
                raise error

    @property
    def rest_seconds(self) -> float:
        """Seconds until the first shard that rests is tried again; infinity if none rests."""
        now = self._pace.clock()
        left = [reader.rests_until - now for reader in self.readers.values()]
        return min((seconds for seconds in left if seconds > 0), default=math.inf)

    def _awake(self) -> dict[Shard, ShardReader]:
        """Return the readers of shards that do not rest."""
        now = self._pace.clock()
        return {shard: reader for shard, reader in self.readers.items() if reader.rests_until <= now}

    def tend(self, busy: Collection[Shard]) -> None:
        """
        Renew the leases when due, share shards with waiting consumers, take free ones.

        :param busy: shards to keep because one of their events is being handled.
        """
        if not self.holding.rows or not self.holding.is_due:
            return
        renewal, lost = self.holding.renew()
        self.forget(lost)
        if self._pace.clock() - self._looked >= _LOOK_SECONDS:
            self._may_be_lost = True
        if renewal.has_retries:
            self._load_dead_letters()
        if share := self.holding.to_share(renewal, busy):
            self.holding.give_back(share)
            self.forget(share)
        elif self.holding.may_ask_again() and (not renewal.waiting or self._was_waiting):
            # Waiting consumers take free shards first; those still waiting want other shards.
            self.ask()
        self._was_waiting = bool(renewal.waiting)

    def forget(self, shards: Iterable[Shard]) -> None:
        """Discard what was read of shards that are lost or being released."""
        gone = set(shards)
        self.holding.forget(gone)
        for shard in gone:
            self.readers.pop(shard, None)
        self.dead_letters = deque(letter for letter in self.dead_letters if letter.shard not in gone)

    def _check_purged(self) -> None:
        """Notice a purge that passed a reader: with no event left behind it, no poll would tell."""
        for status in self._source.shards(self._wanted.feed):
            if status.shard in self.readers:
                self.readers[status.shard].check(status.purged_upto)
        self._may_be_lost, self._looked = False, self._pace.clock()

    def _load_dead_letters(self) -> None:
        wanted = self._wanted
        known = {dead_letter.dead_letter for dead_letter in self.dead_letters}
        for dead_letter in self._source.dead_letters(wanted.feed, wanted.consumer):
            is_ours = dead_letter.shard in self.holding.rows and dead_letter.number not in known
            if dead_letter.state is DeadLetterState.RETRY and is_ours:
                self.dead_letters.extend(self._events_of(dead_letter))

    def _events_of(self, letter: DeadLetter) -> list[FeedEvent]:
        range_, columns = UlidRange(letter.ulid.previous(), letter.ulid), self._columns
        try:
            found = pages(self._source, letter.feed, letter.shard, range_, columns, 1, letter.number)
            return [event for page in found for event in events_of(page)]
        except PurgedError:
            raise purged_error(letter) from None
        except UNREADABLE as error:
            place = (letter.feed, letter.shard, columns, letter.ulid)
            return [unreadable_event(self._source, *place, error, letter.number)]

    def put_back(self, dead_letters: Sequence[FeedEvent]) -> None:
        """Put back unconsumed dead letters of held shards, unless they were read again."""
        known = {dead_letter.dead_letter for dead_letter in self.dead_letters}
        held = [
            one for one in dead_letters if one.shard in self.holding.rows and one.dead_letter not in known
        ]
        self.dead_letters.extendleft(reversed(held))

    def skipped(self) -> dict[Shard, Ulid]:
        """Return the shards whose last events are none that the consumer takes, and the last of these."""
        return {
            shard: reader.after
            for shard, reader in self.readers.items()
            if reader.is_done and reader.after > self.holding.rows[shard].ulid
        }

    def first(self, *, may_drain: bool = True, events: int = 1) -> FeedEvent | None:
        """
        Return the next event without taking it; None if all shards are at their heads.

        Shards take turns, a page each.

        :param events: consumed at a time; a multiple of that is read ahead, divided among the shards.
        """
        return self._read_ahead() or (self._poll(may_drain, events) and self._read_ahead()) or None

    def _read_ahead(self) -> FeedEvent | None:
        if self.dead_letters:
            return self.dead_letters[0]
        unreadable: FeedEvent | None = None
        for shard in self._in_turn():
            event = self.readers[shard].first()
            if isinstance(event, UnreadableEvent):
                # Its turn comes after the events that were read of other shards.
                unreadable = unreadable or event
            elif event is not None:
                self._turn = shard
                return event
        return unreadable

    def _in_turn(self) -> list[Shard]:
        """Return the shards that do not rest, starting with the one whose turn it is."""
        shards = list(self._awake())
        begin = shards.index(self._turn) if self._turn in shards else 0
        return shards[begin:] + shards[:begin]

    def _poll(self, may_drain: bool, events: int) -> bool:
        """
        Read new events up to the known heads, or poll for them in one statement and read them.

        :return: whether there were any.
        """
        if not self.holding.rows and may_drain:
            self._update_shards()
            self.ask()
        if self._may_be_lost:
            self._check_purged()
        known = [reader for reader in self._awake().values() if reader.is_behind]
        if self._pace.clock() - self._polled < _POLL_SECONDS and self._fill(known, may_drain, events):
            return True
        self._polled = self._pace.clock()
        found = self._source.poll(self._wanted.feed, self._wanted.consumer)
        if self._wanted.shards is None and set(found.shards) - set(self._known) and may_drain:
            self._known = found.shards
            self.ask()
        behind = []
        for shard, reader in self._awake().items():
            new_events = found.new_events.get(shard)
            reader.head = None if new_events is None else new_events.head
            if reader.is_behind or (new_events is not None and new_events.has_outbox):
                behind.append(reader)
        return self._fill(behind, may_drain, events)

    def _fill(self, readers: Sequence[ShardReader], may_drain: bool, events: int) -> bool:
        """Read a page of each shard; returns whether there was any event."""
        # Each page costs several queries, and a consumer that is behind needs many pages.
        ahead = min(_BATCHES_AHEAD * events, LARGEST_PAGE) // max(len(self.readers), 1)
        # Each of them is read.
        filled = [reader.fill(may_drain=may_drain, events=ahead) for reader in readers]
        return any(filled)

    def leave(self) -> None:
        """Release all shards; if the database is unreachable, the leases expire by themselves."""
        with suppress(ChangefeedError):
            self.holding.leave()
        self.forget(list(self.readers))
