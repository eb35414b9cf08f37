# SPDX-License-Identifier: Apache-2.0
"""Wait for news of feeds: all who wait in one process for one database share one look an interval."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from weakref import WeakValueDictionary

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ChangefeedError, InvalidArgumentError
from airflow_changefeed.sources.base import FeedSource, FeedStatus, NewEvents

#: Seconds between two looks.
POLL_INTERVAL = 1.0

#: Waits until others tell something, or for so many seconds.
Pause = Callable[[threading.Condition, float | None], object]


class Poller:
    """
    Look for news of feeds in a thread, while somebody waits for them.

    There is one look an interval for all who wait, and one at once for who waits for the first time. The
    thread ends when the last watch is closed.

    :param source: whose feeds are looked at; :meth:`for_source` shares pollers between sources.
    :param interval: seconds between two looks, above 0.
    :param clock: seconds, as ``time.monotonic``.
    :param pause: for tests, which do not wait.
    :raises InvalidArgumentError: no such interval; terminal.
    """

    def __init__(
        self,
        source: FeedSource,
        interval: float = POLL_INTERVAL,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Pause = threading.Condition.wait,
    ) -> None:
        if not interval > 0:
            raise InvalidArgumentError(f"interval must be seconds above 0, not {interval!r}")
        self._source = source
        self._interval = interval
        self._clock = clock
        self._pause = pause
        self._changed = threading.Condition()
        self._watches: set[Watch] = set()
        self._waiting: dict[_Waiter, None] = {}
        self._next_poll = clock()
        self._thread: threading.Thread | None = None

    @classmethod
    def for_source(cls, source: FeedSource, interval: float = POLL_INTERVAL) -> Poller:
        """Return the poller that this process has for the source's database, login and options."""
        text = json.dumps([interval, source.describe()], sort_keys=True, default=str)
        # A digest, as a description may hold secrets.
        key = hashlib.sha256(text.encode()).hexdigest()
        with _LOCK:
            poller = _POLLERS.get(key)
            if poller is None:
                poller = _POLLERS[key] = cls(source, interval)
            return poller

    def watch(self, feed: str, consumer: str | None = None, shards: Sequence[Shard] | None = None) -> Watch:
        """
        Return a watch on a feed, to be closed, best by ``with``.

        :param consumer: whose shards are looked at even while a writer holds them; its cursors in the
            database do not count.
        :param shards: None for all.
        """
        watch = Watch(self, feed, consumer, shards)
        with self._changed:
            self._watches.add(watch)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="changefeed-poller", daemon=True)
                self._thread.start()
        return watch

    def _enter(self, watch: Watch, after: Mapping[Shard, Ulid]) -> _Waiter:
        waiter = _Waiter(watch, dict(after))
        with self._changed:
            if watch not in self._watches:
                raise InvalidArgumentError(f"the watch on feed {watch.feed!r} is closed: open another one")
            self._waiting[waiter] = None
            self._changed.notify_all()
        return waiter

    def _withdraw(self, waiter: _Waiter) -> None:
        with self._changed:
            self._waiting.pop(waiter, None)

    def _leave(self, watch: Watch) -> None:
        with self._changed:
            self._watches.discard(watch)
            for waiter in [one for one in self._waiting if one.watch is watch]:
                del self._waiting[waiter]
                waiter.finish({})
            self._changed.notify_all()

    def _run(self) -> None:
        while (waiters := self._next()) is not None:
            self._look(waiters)

    def _next(self) -> list[_Waiter] | None:
        """Wait for the next look, and return whom it is for; None when nobody watches."""
        with self._changed:
            while self._watches:
                seconds = self._seconds()
                if seconds is not None and seconds <= 0:
                    for one in self._waiting:
                        one.watch.is_new = False
                    self._next_poll = self._clock() + self._interval
                    return list(self._waiting)
                self._pause(self._changed, seconds)
            self._thread = None
            return None

    def _seconds(self) -> float | None:
        """Return the seconds until the next look; None while nobody waits."""
        if not self._waiting:
            return None
        if any(one.watch.is_new for one in self._waiting):
            return 0
        return self._next_poll - self._clock()

    def _look(self, waiters: list[_Waiter]) -> None:
        asks = list(dict.fromkeys((one.watch.feed, one.watch.consumer) for one in waiters))
        answers: dict[tuple[str, str | None], FeedStatus | Exception]
        try:
            answers = dict(zip(asks, self._source.poll_many(asks), strict=True))
        except Exception as error:
            answers = dict.fromkeys(asks, error)
        for one in waiters:
            if one.take(answers[one.watch.feed, one.watch.consumer]):
                self._withdraw(one)


class Watch:
    """
    Wait for news of a feed, from any thread or loop; made by :meth:`Poller.watch`.

    :param is_new: whether it was not looked for yet.
    """

    def __init__(
        self, poller: Poller, feed: str, consumer: str | None, shards: Sequence[Shard] | None
    ) -> None:
        self._poller = poller
        self.feed = feed
        self.consumer = consumer
        self.shards = shards
        self.is_new = True

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Watch no more; who waits still gets no news."""
        self._poller._leave(self)

    def wait(self, after: Mapping[Shard, Ulid], timeout: float | None = None) -> dict[Shard, NewEvents]:
        """
        Wait until there are events beyond cursors, in the feed or waiting in the outbox.

        Looks at once the first time, then at the poller's next look. What waits in the outbox may be held
        back by an open transaction, so there may be nothing to read yet.

        :param after: the caller's own cursors, exclusive; a shard left out stands at ``Ulid.MIN``.
        :param timeout: seconds; None waits for ever.
        :return: news by shard; none when the time is over, or the watch was closed.
        :raises FeedNotFoundError: the database has no such feed; terminal.
        :raises TransientError: a look failed; wait again.
        :raises InvalidArgumentError: the watch is closed, or no consumer can have that name; terminal.
        """
        waiter = self._poller._enter(self, after)
        try:
            wait([waiter.future], timeout)
            return waiter.future.result() if waiter.future.done() else {}
        finally:
            self._poller._withdraw(waiter)

    async def wait_async(
        self, after: Mapping[Shard, Ulid], timeout: float | None = None
    ) -> dict[Shard, NewEvents]:
        """Wait without holding up the loop; see :meth:`wait`."""
        waiter = self._poller._enter(self, after)
        shown = asyncio.wrap_future(waiter.future)
        try:
            await asyncio.wait([shown], timeout=timeout)
            if shown.done():
                return shown.result()
            return waiter.future.result() if waiter.future.done() else {}
        finally:
            shown.cancel()
            self._poller._withdraw(waiter)


@dataclass(eq=False)
class _Waiter:
    """One wait of a watch."""

    watch: Watch
    after: Mapping[Shard, Ulid]
    future: Future[dict[Shard, NewEvents]] = field(default_factory=Future)

    def take(self, found: FeedStatus | Exception) -> bool:
        """Take what a look found, and say whether that ends the wait."""
        if isinstance(found, Exception):
            with suppress(InvalidStateError):
                self.future.set_exception(_own(found))
            return True
        new_events = self._news(found)
        if new_events:
            self.finish(new_events)
        return bool(new_events)

    def finish(self, new_events: dict[Shard, NewEvents]) -> None:
        """End the wait; whoever waited may have gone."""
        with suppress(InvalidStateError):
            self.future.set_result(new_events)

    def _news(self, found: FeedStatus) -> dict[Shard, NewEvents]:
        new_events = {}
        for shard in found.shards:
            if self.watch.shards is not None and shard not in self.watch.shards:
                continue
            head = found.heads.get(shard)
            is_beyond = head is not None and head > self.after.get(shard, Ulid.MIN)
            has_outbox = shard in found.new_events and found.new_events[shard].has_outbox
            if is_beyond or has_outbox:
                new_events[shard] = NewEvents(shard, head if is_beyond else None, has_outbox)
        return new_events


def _own(error: Exception) -> Exception:
    """Return an error for one of many who get it: each thread that raises it writes its way into it."""
    if not isinstance(error, ChangefeedError):
        return error
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own


_POLLERS: WeakValueDictionary[str, Poller] = WeakValueDictionary()
_LOCK = threading.Lock()


def _forget() -> None:
    """Begin anew in a forked child: it has its parent's pollers, but not their threads."""
    global _LOCK
    _LOCK = threading.Lock()
    _POLLERS.clear()


os.register_at_fork(after_in_child=_forget)
