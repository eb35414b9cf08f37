# SPDX-License-Identifier: Apache-2.0
"""The read-ahead buffer of a shard: events are read, taken, and put back on rollback."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from airflow_changefeed.consumers.event import (
    UNREADABLE,
    FeedEvent,
    UnreadableEvent,
    events_of,
    pages,
    unreadable_event,
)
from airflow_changefeed.core.cursor import lost_error
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import ChangefeedError, PurgedError

if TYPE_CHECKING:
    from airflow_changefeed.consumers.page import EventColumns
    from airflow_changefeed.sources.base import FeedSource


#: Maximum events read at a time, however many are wanted.
LARGEST_PAGE = 10_000


@dataclass(eq=False)
class ShardReader:
    """
    Reads a shard from a cursor on, page by page.

    :param after: exclusive; the consumer's position, then the last event read.
    :param page_size: events read at a time.
    :param below: exclusive; where reading ends. None for no limit.
    """

    _source: FeedSource
    _consumer: str
    _feed: str
    shard: Shard
    _columns: EventColumns
    after: Ulid
    _page_size: int
    _below: Ulid | None
    #: Last event known to exist, up to which reading is cheap.
    head: Ulid | None = None
    #: By the pace's clock; until then its events are left alone, as the first cannot be read.
    rests_until: float = -math.inf
    #: Why the consumer stops at the first event, once no other shard has events.
    stopped_by: ChangefeedError | None = None
    _ahead: deque[FeedEvent] = field(default_factory=deque)
    _taken: list[FeedEvent] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._ahead)

    @property
    def is_behind(self) -> bool:
        """Whether the feed is known to have events that were not read yet."""
        return self.head is not None and self.head > self.after

    @property
    def is_done(self) -> bool:
        """Whether no event that was read is still to be consumed."""
        return not self._ahead and not self._taken

    def fill(self, *, may_drain: bool = True, events: int = 0) -> bool:
        """
        Read another page, ordering new events if the feed has run out.

        :param may_drain: False if a drain would wait for our own transaction.
        :param events: number wanted; pages grow with it.
        :return: False if there was none: the shard is at its head.
        :raises PurgedError: events after the consumer's cursor were purged.
        :raises CursorBeyondFeedError: it is beyond the shard's high-water time.
        """
        after, known = self.after, len(self._ahead)
        try:
            return self._fill(may_drain, events)
        except PurgedError as error:
            # The purge may have left rows out of what was read meanwhile.
            self.after, self._ahead = after, deque(islice(self._ahead, known))
            purged = {status.shard: status.purged_upto for status in self._source.shards(self._feed)}
            self.check(purged.get(self.shard, Ulid.MIN))
            raise error from None

    def check(self, purged_upto: Ulid) -> None:
        """Refuse to go on behind events that were purged before they were read."""
        if self.after < purged_upto:
            raise lost_error(self._consumer, self._feed, self.shard, self.after, purged_upto)

    def _fill(self, may_drain: bool, events: int) -> bool:
        size, known = max(self._page_size, min(events, LARGEST_PAGE)), len(self._ahead)
        # Events that the consumer does not take may have been all there were.
        while self._fill_once(may_drain, size):
            if len(self._ahead) > known:
                return True
        return False

    def _fill_once(self, may_drain: bool, size: int) -> bool:
        """Read a page; return whether it had events."""
        upto = self.head
        if upto is None or upto <= self.after:
            if may_drain:
                # There may be new events not ordered yet.
                upto = self._source.read_feed(self._feed, self.shard, self.after, size).last
            else:
                heads = {status.shard: status.head for status in self._source.shards(self._feed)}
                upto = heads.get(self.shard)
        if upto is not None and self._below is not None:
            upto = min(upto, self._below.previous())
        if upto is None or upto <= self.after:
            return False
        before = self.after
        try:
            self._read_pages(UlidRange(before, upto), size)
        except UNREADABLE:
            self._read_to_unreadable(upto, size)
        return self.after > before

    def _read_pages(self, range_: UlidRange, size: int) -> None:
        """Read the first events of a range."""
        for page in pages(self._source, self._feed, self.shard, range_, self._columns, size, limit=size):
            self._ahead.extend(events_of(page))
            self.after = page.last

    def _read_to_unreadable(self, upto: Ulid, size: int) -> None:
        """Read on by halves up to the event that cannot be read, and put it in its place."""
        page = self._source.read_feed(self._feed, self.shard, self.after, size)
        ulids = [event.ulid for event in page if event.ulid <= upto]
        while ulids:
            half = ulids[: max(1, len(ulids) // 2)]
            try:
                self._read_pages(UlidRange(self.after, half[-1]), size)
            except UNREADABLE as error:
                if len(half) == 1:
                    self._ahead.append(
                        unreadable_event(self._source, self._feed, self.shard, self._columns, half[0], error)
                    )
                    self.after = half[0]
                    return
                ulids = half
            else:
                if self.after < half[0]:
                    return
            ulids = [ulid for ulid in ulids if ulid > self.after]

    def first(self) -> FeedEvent | None:
        """Return the next event without taking it."""
        return self._ahead[0] if self._ahead else None

    def some(self, events: int) -> list[FeedEvent]:
        """
        Return up to this many of the events already read, without taking them.

        An event that cannot be read is returned alone.
        """
        found = list(islice(self._ahead, events))
        places = [place for place, event in enumerate(found) if isinstance(event, UnreadableEvent)]
        return found[: max(1, places[0])] if places else found

    def transaction(self, *, may_drain: bool = True) -> list[FeedEvent]:
        """Return the next events of one transaction, reading on until another transaction or the head."""
        first = self.first()
        if first is None:
            return []
        tid = first.transaction
        if tid is None:
            return [first]
        found = 1
        while True:
            for event in islice(self._ahead, found, None):
                if event.transaction != tid:
                    return list(islice(self._ahead, found))
                found += 1
            if not self.fill(may_drain=may_drain):
                return list(islice(self._ahead, found))

    def take(self, events: int) -> None:
        """Take the next events, until their transaction commits or rolls back."""
        for _ in range(events):
            self._taken.append(self._ahead.popleft())

    def resolve(self) -> None:
        """Confirm that the taken events were consumed."""
        self._taken.clear()

    def put_back(self) -> None:
        """Put the taken events back: they come next again, with the same ids."""
        self._ahead.extendleft(reversed(self._taken))
        self._taken.clear()
