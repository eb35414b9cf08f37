# SPDX-License-Identifier: Apache-2.0
"""Polls of one database for all triggers that wait for it, in threads, so that they never block the loop."""

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

# The triggerer imports this module in its loop, so what a poll needs is imported in a thread.
if TYPE_CHECKING:
    from airflow_changefeed.cursors.new_events import PollResult, Watch
    from airflow_changefeed.sources.base import FeedSource

#: Concurrent polls in one triggerer, each of another database.
MOST_POLLS = 8

# Threads of our own: a database that hangs would keep those of asyncio's pool, in which Airflow writes the
# logs of all other triggers, too. Made when the first poll needs them.
_threads = ThreadPoolExecutor(MOST_POLLS, thread_name_prefix="changefeed-poll")
_IMPORTS = (
    "airflow_changefeed.cursors.new_events",
    "airflow_changefeed.hooks.changefeed",
    "airflow_changefeed.sources.mssql",
    "airflow_changefeed.sources.sqlite",
)


@cache
def _imported() -> Future[None]:
    """
    Import what polls need, in one thread before there are others.

    The starter of a thread waits until it runs: beside threads that import, for longer than the loop may.
    """
    return _threads.submit(_import)


def _import() -> None:
    # What fails here fails again in a poll, which reports it.
    with suppress(Exception):
        for name in _IMPORTS:
            import_module(name)


@dataclass(eq=False)
class Watcher:
    """
    A trigger that waits.

    :param shards: as text; None for all.
    :param window_end: exclusive, ISO 8601 with a zone; None waits for new events only.
    :param skips: polls that it still skips.
    """

    feed: str
    consumer: str
    shards: Sequence[str] | None
    window_end: str | None
    skips: int = 0


#: What a poll found for each of its watchers, or the error it met.
Found = dict[Watcher, "PollResult | Exception"]


#: All watchers in this process, with the key of the polls that they share; they come and go between polls.
WAITING: dict[Watcher, Hashable] = {}


async def polls(
    key: Hashable, conn_id: str, lock_timeout: float | None, interval: float
) -> AsyncGenerator[Found, None]:
    """
    Poll for all watchers of a key, with one query an interval.

    Never ends by itself, and an error of a poll is its result.

    :param conn_id: Airflow connection of the database.
    :param lock_timeout: seconds to wait for another writer; None takes the connection's.
    :param interval: seconds between polls.
    """
    poller = _Poller(conn_id, lock_timeout)
    # Shielded, because others wait for it too.
    await asyncio.shield(asyncio.wrap_future(_imported()))
    try:
        while True:
            waiting = [one for one, shared in list(WAITING.items()) if shared == key]
            due = [one for one in waiting if not one.skips]
            for one in waiting:
                one.skips = max(one.skips - 1, 0)
            if due:
                yield await poller.poll(due)
            await asyncio.sleep(interval)
    finally:
        poller.close()


class _Poller:
    """The source that polls a database, one poll at a time."""

    def __init__(self, conn_id: str, lock_timeout: float | None) -> None:
        self._conn_id = conn_id
        self._lock_timeout = lock_timeout
        self._source: FeedSource | None = None
        self._running: Future[Found] | None = None

    async def poll(self, watchers: list[Watcher]) -> Found:
        # With the context, from which Airflow knows whose log a line belongs to.
        context: Callable[..., Found] = contextvars.copy_context().run
        self._running = _threads.submit(context, self._poll, watchers)
        return await asyncio.wrap_future(self._running)

    def close(self) -> None:
        """Close the source after the running poll; not waited for, as its database may hang."""
        if self._running is not None:
            self._running.add_done_callback(self._close_aside)

    def _poll(self, watchers: list[Watcher]) -> Found:
        """
        Poll once, in a thread; there, unlike in the loop, Airflow's connections can be read safely.

        The source stays open from poll to poll, but after an error the connection is asked for again: it may
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
        # An interpreter that is ending accepts no more work, and closes everything itself.
        with suppress(RuntimeError):
            _threads.submit(self._close)


def _read(watchers: list[Watcher]) -> tuple[dict[Watcher, Watch], Found]:
    """Return what the watchers wait for, and the errors of those where it cannot be read."""
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
