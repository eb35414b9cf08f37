# SPDX-License-Identifier: Apache-2.0
"""The events of a shard on their way: read ahead, taken, and put back when their transaction rolled back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from airflow_changefeed.consumers.events.event import FeedEvent, events_of
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange

if TYPE_CHECKING:
    from airflow_changefeed.consumers.events.page import EventColumns, EventPage
    from airflow_changefeed.sources.base import FeedSource


#: Events that are read at once at most, however many are wanted.
LARGEST_PAGE = 10_000


class ShardReader:
    """
    Reads a shard from a cursor on, page by page.

    :param after: exclusive; where the consumer stands.
    :param page_size: events that are read at once.
    """

    def __init__(
        self,
        source: FeedSource,
        feed: str,
        shard: Shard,
        columns: EventColumns,
        after: Ulid,
        page_size: int,
    ) -> None:
        self._source = source
        self._feed = feed
        self.shard = shard
        self._columns = columns
        self._after = after
        self._page_size = page_size
        #: Last event that is known to be there, where reading may stop before it at no cost.
        self.head: Ulid | None = None
        #: Exclusive; where reading ends. None reads whatever comes.
        self.below: Ulid | None = None
        self._ahead: deque[FeedEvent] = deque()
        self._taken: list[FeedEvent] = []

    def __len__(self) -> int:
        return len(self._ahead)

    @property
    def after(self) -> Ulid:
        """The last event that was read, or where the consumer stood."""
        return self._after

    def fill(self, *, may_drain: bool = True, events: int = 0) -> bool:
        """
        Read a page more, ordering new events where the feed has run out.

        :param may_drain: False where the drain would wait for a transaction of our own.
        :param events: that are wanted; a page is larger for many.
        :return: False when there was none: the shard is at its head.
        :raises PurgedError: the consumer's cursor lies below what was purged; terminal.
        :raises CursorBeyondFeedError: it lies beyond the shard's high-water time; terminal.
        """
        size = max(self._page_size, min(events, LARGEST_PAGE))
        upto = self.head
        if upto is None or upto <= self._after:
            upto = self._look(size) if may_drain else self._fed()
        if upto is not None and self.below is not None:
            upto = min(upto, self.below.previous())
        if upto is None or upto <= self._after:
            return False
        return self._read(UlidRange(self._after, upto), size)

    def _look(self, size: int) -> Ulid | None:
        """Return the last event of a page; there may be news that nobody has ordered yet."""
        return self._source.read_feed(self._feed, self.shard, self._after, size).last

    def _fed(self) -> Ulid | None:
        """Return the last event that is ordered."""
        heads = {status.shard: status.head for status in self._source.shards(self._feed)}
        return heads.get(self.shard)

    def _read(self, range_: UlidRange, size: int) -> bool:
        """Read a page at most of a range."""
        before, limit = len(self._ahead), len(self._ahead) + size
        for page in pages(self._source, self._feed, self.shard, range_, self._columns, size):
            self._ahead.extend(events_of(page))
            self._after = page.last
            # A stream that is read to its end leaves its connection to the next one.
            if len(self._ahead) >= limit and self._after < range_.upto:
                break
        return len(self._ahead) > before

    def first(self) -> FeedEvent | None:
        """Return the next event, which stays the next one."""
        return self._ahead[0] if self._ahead else None

    def some(self, events: int) -> list[FeedEvent]:
        """Return so many of the next events, or what has been read of them; they stay the next ones."""
        return list(islice(self._ahead, events))

    def transaction(self, *, may_drain: bool = True) -> list[FeedEvent]:
        """Return all next events that one transaction made, reading on until another's, or the head."""
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
                    return self.some(found)
                found += 1
            if not self.fill(may_drain=may_drain):
                return self.some(found)

    def take(self, events: int) -> None:
        """Go on behind the next events, for as long as their transaction holds."""
        for _ in range(events):
            self._taken.append(self._ahead.popleft())

    def resolve(self) -> None:
        """What was taken was consumed."""
        self._taken.clear()

    def put_back(self) -> None:
        """What was taken was not consumed: it is next again, with the same ids."""
        self._ahead.extendleft(reversed(self._taken))
        self._taken.clear()


def pages(
    source: FeedSource,
    feed: str,
    shard: Shard,
    range_: UlidRange,
    columns: EventColumns,
    page_size: int,
    dead_letter: int | None = None,
) -> Iterator[EventPage]:
    """
    Read the events of a range.

    :param letter: number of the dead letter that the range is.
    """
    from airflow_changefeed.consumers.events.page import EventPage

    for batch in source.stream(feed, shard, range_, batch_rows=page_size):
        if batch.num_rows:
            yield EventPage(feed, shard, columns, batch, dead_letter=dead_letter)
