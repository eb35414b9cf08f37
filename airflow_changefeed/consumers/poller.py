# SPDX-License-Identifier: Apache-2.0
"""
Wait for new events of feeds: all waiters in a process share one poll per database and interval.

Consumers wait here in their threads, and Airflow's triggers in their loop.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ChangefeedError, InvalidArgumentError
from airflow_changefeed.sources.base import Ask, FeedSource, FeedStatus, NewEvents

#: Seconds between two polls.
POLL_INTERVAL = 1.0

#: Waits until notified, or for the given seconds.
Pause = Callable[[threading.Condition, float | None], object]

Result = TypeVar("Result")

#: Makes a waiter's result of what a poll found, in the poller's thread; a false one waits for the next poll.
Accept = Callable[[FeedSource, FeedStatus], Result]


@dataclass(eq=False)
class Poller:
    """
    Poll feeds for new events in a thread of its own, while anyone is waiting.

    There is one poll per interval for all waiters, and an immediate one for each first wait. The thread ends
    when the last watch is closed. A database that hangs holds up this thread alone.

    :param opened: opens the source, in the thread: for the first poll, and again after a poll that failed.
        Left after the thread's last poll.
    :param interval: seconds between two polls.
    :param clock: seconds, like ``time.monotonic``.
    :param pause: for tests, which do not wait.
    """

    opened: Callable[[], AbstractContextManager[FeedSource]]
    interval: float = POLL_INTERVAL
    clock: Callable[[], float] = field(default=time.monotonic, kw_only=True)
    pause: Pause = field(default=threading.Condition.wait, kw_only=True)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: set[Watch] = set()
        self._waiting: dict[_Waiter, None] = {}
        self._next_poll = self.clock()
        self._thread: threading.Thread | None = None

    @classmethod
    def for_source(cls, source: FeedSource, interval: float = POLL_INTERVAL) -> Poller:
        """
        Return this process's poller for the source's database, login and options.

        :param interval: seconds between two polls, above 0.
        :raises InvalidArgumentError: invalid interval.
        """
        if not interval > 0:
            raise InvalidArgumentError(f"interval must be more than 0 seconds, not {interval!r}")
        text = json.dumps([interval, source.describe()], sort_keys=True, default=str)
        # A digest, because a description may contain secrets.
        return cls.shared(hashlib.sha256(text.encode()).hexdigest(), lambda: nullcontext(source), interval)

    @classmethod
    def shared(
        cls, key: Hashable, opened: Callable[[], AbstractContextManager[FeedSource]], interval: float
    ) -> Poller:
        """Return this process's poller of a key, which says where and how it polls."""
        with _LOCK:
            poller = _POLLERS.get(key)
            if poller is None:
                poller = _POLLERS[key] = cls(opened, interval)
            return poller

    def watch(
        self,
        feed: str,
        consumer: str | None = None,
        shards: Sequence[Shard] | None = None,
        *,
        at_once: bool = True,
    ) -> Watch:
        """
        Return a watch on a feed; close it, preferably with ``with``.

        :param consumer: whose shards are polled even while a writer holds them; its cursors in the
            database are ignored by :meth:`Watch.wait`.
        :param shards: None for all.
        :param at_once: poll immediately for its first wait.
        """
        watch = Watch(self, feed, consumer, shards, at_once)
        with self._changed:
            self._watches.add(watch)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="changefeed-poller", daemon=True)
                self._thread.start()
        return watch

    def _enter(self, waiter: _Waiter) -> None:
        watch = waiter.watch
        with self._changed:
            if watch not in self._watches:
                raise InvalidArgumentError(f"the watch on feed {watch.feed!r} is closed; open a new watch")
            self._waiting[waiter] = None
            self._changed.notify_all()

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
        source: FeedSource | None = None
        with ExitStack() as stack:
            while (waiters := self._next()) is not None:
                asks = list(dict.fromkeys((one.watch.feed, one.watch.consumer) for one in waiters))
                answers: dict[Ask, FeedStatus | Exception]
                try:
                    if source is None:
                        source = stack.enter_context(self.opened())
                    answers = dict(zip(asks, source.poll_many(asks), strict=True))
                except Exception as error:
                    answers = dict.fromkeys(asks, error)
                    source = None
                    # What the poll raised matters to the waiters, not what closing raises.
                    with suppress(Exception):
                        stack.close()
                for one in waiters:
                    if one.take(source, answers[one.watch.feed, one.watch.consumer]):
                        self._withdraw(one)
                # Also a database that answers slowly is left alone between two polls.
                self._next_poll = self.clock() + self.interval

    def _next(self) -> list[_Waiter] | None:
        """Wait for the next poll and return its waiters; None if nobody is watching."""
        with self._changed:
            while self._watches:
                seconds = self._seconds()
                if seconds is not None and seconds <= 0:
                    for one in self._waiting:
                        one.watch.is_new = False
                    self._next_poll = self.clock() + self.interval
                    if due := [one for one in self._waiting if one.is_due()]:
                        return due
                else:
                    self.pause(self._changed, seconds)
            self._thread = None
            return None

    def _seconds(self) -> float | None:
        """Return the seconds until the next poll; None while nobody is waiting."""
        if not self._waiting:
            return None
        if any(one.watch.is_new for one in self._waiting):
            return 0
        return self._next_poll - self.clock()


@dataclass(eq=False)
class Watch:
    """
    Wait for new events of a feed, from any thread or event loop; created by :meth:`Poller.watch`.

    :param is_new: whether its first wait shall be polled for at once.
    """

    _poller: Poller
    feed: str
    consumer: str | None
    shards: Sequence[Shard] | None
    is_new: bool

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
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
        waiter = _Waiter(self, partial(_new_events, self.shards, dict(after)))
        self._poller._enter(waiter)
        try:
            wait([waiter.future], timeout)
            return waiter.future.result() if waiter.future.done() else {}
        finally:
            self._poller._withdraw(waiter)

    async def poll(self, accept: Accept[Result], skips: int = 0) -> Result:
        """
        Return what the next poll found, without blocking the event loop.

        :param accept: makes the result, and may ask the source for more.
        :param skips: polls that are left out before.
        :raises Exception: what the poll or ``accept`` raised.
        """
        waiter = _Waiter(self, accept, skips)
        self._poller._enter(waiter)
        try:
            return await asyncio.wrap_future(waiter.future)
        finally:
            self._poller._withdraw(waiter)


@dataclass(eq=False)
class _Waiter:
    watch: Watch
    accept: Accept[Any]
    skips: int = 0
    future: Future[Any] = field(default_factory=Future)

    def is_due(self) -> bool:
        """Return whether the poll that comes now is for this wait, or count it as skipped."""
        self.skips -= 1
        return self.skips < 0

    def take(self, source: FeedSource | None, found: FeedStatus | Exception) -> bool:
        """
        Take a poll's result and return whether it ends the wait.

        :param source: that was polled; None if the poll failed.
        """
        result: Any = found
        if source is not None and not isinstance(found, Exception):
            try:
                result = self.accept(source, found)
            except Exception as error:
                result = error
        if result:
            self.finish(result)
        return bool(result)

    def finish(self, result: Any) -> None:
        """End the wait; the waiter may be gone."""
        with suppress(InvalidStateError):
            if isinstance(result, Exception):
                self.future.set_exception(_own(result))
            else:
                self.future.set_result(result)


def _new_events(
    shards: Sequence[Shard] | None, after: Mapping[Shard, Ulid], _: FeedSource, found: FeedStatus
) -> dict[Shard, NewEvents]:
    """Return what is beyond cursors of one's own, of some shards."""
    polled = []
    for shard in found.shards:
        if shards is None or shard in shards:
            has_outbox = shard in found.new_events and found.new_events[shard].has_outbox
            polled.append((shard, found.heads.get(shard), has_outbox, after.get(shard)))
    return FeedStatus.of(found.at, polled).new_events


def _own(error: Exception) -> Exception:
    """Copy an error for one of several waiters: each thread that raises it adds to its traceback."""
    if not isinstance(error, ChangefeedError):
        return error
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own


_POLLERS: WeakValueDictionary[Hashable, Poller] = WeakValueDictionary()
_LOCK = threading.Lock()


def _forget() -> None:
    """Reset in a forked child: it has its parent's pollers but not their threads."""
    global _LOCK
    _LOCK = threading.Lock()
    _POLLERS.clear()


os.register_at_fork(after_in_child=_forget)
