# SPDX-License-Identifier: Apache-2.0
"""Looks at one database for all triggers that wait for it, in threads, where they hold up no loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

# The triggerer imports this module in its loop, so what a look needs is imported in a thread.
if TYPE_CHECKING:
    from airflow_changefeed.cursors.new_events import PollResult, Watch
    from airflow_changefeed.sources.base import FeedSource

#: Looks at a time in one triggerer, each at another database.
MOST_POLLS = 8

# Threads of our own: a database that hangs would keep those of asyncio's pool, in which Airflow writes the
# logs of all other triggers, too. Made when the first look needs them.
_threads = ThreadPoolExecutor(MOST_POLLS, thread_name_prefix="changefeed-look")
_IMPORTS = (
    "airflow_changefeed.cursors.new_events",
    "airflow_changefeed.hooks.changefeed",
    "airflow_changefeed.sources.mssql",
    "airflow_changefeed.sources.sqlite",
)


@cache
def _imported() -> Future[None]:
    """
    Import what looks need, in one thread before there are others.

    Whoever starts a thread waits until it runs: beside threads that import, for longer than the loop may.
    """
    return _threads.submit(_import)


def _import() -> None:
    # What fails here fails again in a look, which tells.
    with suppress(Exception):
        for name in _IMPORTS:
            import_module(name)


@dataclass(eq=False)
class Watcher:
    """
    A trigger that waits.

    :param shards: as text; None for all.
    :param window_end: exclusive, ISO 8601 with a zone; None waits for news alone.
    :param skips: regular looks that it still lets pass.
    :param is_new: whether it was not looked for yet.
    """

    feed: str
    consumer: str
    shards: Sequence[str] | None
    window_end: str | None
    skips: int = 0
    is_new: bool = True


#: What a look found for each watcher that it was for, or the error it met.
Found = dict[Watcher, "PollResult | Exception"]


class Watchers:
    """Who waits; they come and go between looks."""

    def __init__(self) -> None:
        self._all: dict[Watcher, None] = {}

    def __bool__(self) -> bool:
        return bool(self._all)

    def join(self, watcher: Watcher) -> None:
        """Wait from the next look on."""
        self._all[watcher] = None

    def leave(self, watcher: Watcher) -> None:
        """Wait no more."""
        self._all.pop(watcher, None)

    def due(self, *, is_regular: bool) -> list[Watcher]:
        """
        Return those whom the next look is for.

        :param is_regular: False for the look between two regular ones, which is for newcomers alone.
        """
        due = [one for one in self._all if one.is_new or (is_regular and not one.skips)]
        if is_regular:
            for one in self._all:
                one.skips = max(one.skips - 1, 0)
        for one in due:
            one.is_new = False
        return due


#: Who shares looks, by what they share.
_SHARING: dict[Hashable, Watchers] = {}


class Sharing:
    """Those who share looks by a key, found anew at each call: the last to leave takes their place away."""

    def __init__(self, key: Hashable) -> None:
        self._key = key

    def join(self, watcher: Watcher) -> None:
        """See :class:`Watchers`."""
        _SHARING.setdefault(self._key, Watchers()).join(watcher)

    def leave(self, watcher: Watcher) -> None:
        """See :class:`Watchers`."""
        watchers = _SHARING.get(self._key)
        if watchers is not None:
            watchers.leave(watcher)
            if not watchers:
                del _SHARING[self._key]

    def due(self, *, is_regular: bool) -> list[Watcher]:
        """See :class:`Watchers`."""
        watchers = _SHARING.get(self._key)
        return watchers.due(is_regular=is_regular) if watchers is not None else []


async def polls(
    watchers: Watchers | Sharing, conn_id: str, lock_timeout: float | None, interval: float
) -> AsyncGenerator[Found, None]:
    """
    Look for all who wait, by one question an interval, and by one more for those who came since.

    Never ends by itself, and an error of a look is what it found.

    :param conn_id: Airflow connection of the database.
    :param lock_timeout: seconds to wait for another writer; None takes the connection's.
    :param interval: seconds between regular looks.
    """
    poller = _Poller(conn_id, lock_timeout)
    # Shielded, as others wait for it, too.
    await asyncio.shield(asyncio.wrap_future(_imported()))
    is_regular = True
    try:
        while True:
            if due := watchers.due(is_regular=is_regular):
                yield await poller.poll(due)
            await asyncio.sleep(interval / 2)
            is_regular = not is_regular
    finally:
        poller.close()


class _Poller:
    """The source beneath the looks at a database, of which one runs at a time."""

    def __init__(self, conn_id: str, lock_timeout: float | None) -> None:
        self._conn_id = conn_id
        self._lock_timeout = lock_timeout
        self._source: FeedSource | None = None
        self._running: Future[Found] | None = None

    async def poll(self, watchers: list[Watcher]) -> Found:
        # With the context, by which Airflow knows whose log a line belongs to.
        context: Callable[..., Found] = contextvars.copy_context().run
        self._running = _threads.submit(context, self._look, watchers)
        return await asyncio.wrap_future(self._running)

    def close(self) -> None:
        """Close the source after the look that runs; not waited for, as its database may hang."""
        if self._running is not None:
            self._running.add_done_callback(self._close_aside)

    def _look(self, watchers: list[Watcher]) -> Found:
        """
        Look once, in a thread; there, unlike in the loop, Airflow's connections can be had without harm.

        The source stays open from look to look, but after an error the connection is asked for again: it may
        have been changed since.
        """
        from airflow_changefeed.cursors.new_events import poll_many
        from airflow_changefeed.hooks.changefeed import ChangefeedHook

        try:
            watches, found = _read(watchers)
            if self._source is None:
                self._source = ChangefeedHook(self._conn_id, lock_timeout=self._lock_timeout).source()
            answers = poll_many(self._source, list(watches.values()))
            return {**found, **dict(zip(watches, answers, strict=True))}
        except Exception as error:
            self._close()
            return dict.fromkeys(watchers, error)

    def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _close_aside(self, _: Future[Any]) -> None:
        # An interpreter that is about to end takes no more work, and closes everything itself.
        with suppress(RuntimeError):
            _threads.submit(self._close)


def _read(watchers: list[Watcher]) -> tuple[dict[Watcher, Watch], Found]:
    """Return what the watchers wait for, and errors of those of whom that cannot be read."""
    from airflow_changefeed.core.feed import parse_shard
    from airflow_changefeed.core.times import parse_time
    from airflow_changefeed.cursors.new_events import Watch

    watches: dict[Watcher, Watch] = {}
    errors: Found = {}
    for one in watchers:
        try:
            shards = [parse_shard(shard) for shard in one.shards] if one.shards is not None else None
            window_end = parse_time(one.window_end) if one.window_end is not None else None
            watches[one] = Watch(one.feed, one.consumer, shards, window_end)
        except Exception as error:
            errors[one] = error
    return watches, errors
