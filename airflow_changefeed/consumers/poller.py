# SPDX-License-Identifier: Apache-2.0
"""Wait for new events of feeds: all waiters in a process share one poll per database and interval."""

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

#: Seconds between two polls.
POLL_INTERVAL = 1.0

#: Waits until notified, or for the given seconds.
Pause = Callable[[threading.Condition, float | None], object]


class Poller:
    """
    Poll feeds for new events in a thread, while anyone is waiting.

    There is one poll per interval for all waiters, and an immediate one for each first wait. The thread ends
    when the last watch is closed.

    :param source: whose feeds are polled; :meth:`for_source` shares pollers between sources.
    :param interval: seconds between two polls, above 0.
    :param clock: seconds, like ``time.monotonic``.
    :param pause: for tests, which do not wait.
    :raises InvalidArgumentError: invalid interval.
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
            raise InvalidArgumentError(f"interval must be more than 0 seconds, not {interval!r}")
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
        """Return this process's poller for the source's database, login and options."""
        text = json.dumps([interval, source.describe()], sort_keys=True, default=str)
        # A digest, because a description may contain secrets.
        key = hashlib.sha256(text.encode()).hexdigest()
        with _LOCK:
            poller = _POLLERS.get(key)
            if poller is None:
                poller = _POLLERS[key] = cls(source, interval)
            return poller

    def watch(self, feed: str, consumer: str | None = None, shards: Sequence[Shard] | None = None) -> Watch:
        """
        Return a watch on a feed; close it, preferably with ``with``.

        :param consumer: whose shards are polled even while a writer holds them; its cursors in the
            database are ignored.
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
                raise InvalidArgumentError(f"the watch on feed {watch.feed!r} is closed; open another one")
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
            self._poll(waiters)

    def _next(self) -> list[_Waiter] | None:
        """Wait for the next poll and return its waiters; None if nobody is watching."""
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
        """Return the seconds until the next poll; None while nobody is waiting."""
        if not self._waiting:
            return None
        if any(one.watch.is_new for one in self._waiting):
            return 0
        return self._next_poll - self._clock()

    def _poll(self, waiters: list[_Waiter]) -> None:
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
    Wait for new events of a feed, from any thread or event loop; created by :meth:`Poller.watch`.

    :param is_new: whether it has not been polled yet.
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
        """Stop watching; pending waits return without new events."""
        self._poller._leave(self)

    def wait(self, after: Mapping[Shard, Ulid], timeout: float | None = None) -> dict[Shard, NewEvents]:
        """
        Wait until there are events beyond cursors, in the feed or waiting in the outbox.

        Polls at once the first time, then at the poller's next poll. An open transaction may hold back rows
        in the outbox, so there may be nothing to read yet.

        :param after: the caller's own cursors, exclusive; a shard left out is at ``Ulid.MIN``.
        :param timeout: seconds; None waits forever.
        :return: new events by shard; empty after the timeout, or when the watch was closed.
        :raises FeedNotFoundError: the feed does not exist.
        :raises TransientError: a poll failed; wait again.
        :raises InvalidArgumentError: the watch is closed, or the consumer's name is invalid.
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
        """Wait without blocking the event loop; see :meth:`wait`."""
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
        """Take a poll's result and return whether it ends the wait."""
        if isinstance(found, Exception):
            with suppress(InvalidStateError):
                self.future.set_exception(_own(found))
            return True
        new_events = self._new_events(found)
        if new_events:
            self.finish(new_events)
        return bool(new_events)

    def finish(self, new_events: dict[Shard, NewEvents]) -> None:
        """End the wait; the waiter may be gone."""
        with suppress(InvalidStateError):
            self.future.set_result(new_events)

    def _new_events(self, found: FeedStatus) -> dict[Shard, NewEvents]:
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
    """Copy an error for one of several waiters: each thread that raises it adds to its traceback."""
    if not isinstance(error, ChangefeedError):
        return error
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own


_POLLERS: WeakValueDictionary[str, Poller] = WeakValueDictionary()
_LOCK = threading.Lock()


def _forget() -> None:
    """Reset in a forked child: it has its parent's pollers but not their threads."""
    global _LOCK
    _LOCK = threading.Lock()
    _POLLERS.clear()


os.register_at_fork(after_in_child=_forget)
