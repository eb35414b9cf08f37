# SPDX-License-Identifier: Apache-2.0
"""Wait for new events of a feed in the triggerer, so that a waiting sensor occupies no worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
    InvalidArgumentError,
    TerminalError,
    error_text,
    own_error,
)

# The triggerer imports this module in its loop, so what a poll needs is imported in a thread.
if TYPE_CHECKING:
    from airflow_changefeed.consumers.poller import Watch
    from airflow_changefeed.cursors.new_events import PollResult
    from airflow_changefeed.sources.base import FeedSource, FeedStatus

#: Polls that may fail in a row before the task is failed, for Airflow to retry it.
MOST_FAILURES = 10
#: Maximum doublings of a pause; no sensor's timeout is longer.
_MOST_DOUBLINGS = 30
_IMPORTS = (
    "airflow_changefeed.consumers.poller",
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
    return ThreadPoolExecutor(1, thread_name_prefix="changefeed-import").submit(_import)


def _import() -> None:
    # What fails here fails again in a poll, which reports it.
    with suppress(Exception):
        for name in _IMPORTS:
            import_module(name)


class ChangefeedTrigger(BaseEventTrigger):
    """
    Fire when a feed has new events for a consumer, or when a window has ended; the waiting of
    :class:`~airflow_changefeed.sensors.changefeed.ChangefeedSensor`.

    Polls as the sensor does, in a thread. In a triggerer, all triggers with the same connection,
    ``lock_timeout`` and ``poke_interval`` share their polls: one query an interval. A trigger keeps no state
    that matters: restarted anywhere, it finds the same events. It fires one event, for :func:`read_event`:
    the new events, or the error that made polling pointless. A transient error is ignored, up to
    ``most_failures`` times in a row.

    :param shards: shards to poll, as text; None for all.
    :param window_end: exclusive end of the window to wait for, ISO 8601 with a zone; None waits for new
        events only.
    :param poke_interval: seconds between polls.
    :param exponential_backoff: double the seconds with each poll; it skips shared polls meanwhile.
    :param max_wait: maximum of these seconds; None for no limit.
    :param most_failures: None never gives up on a transient error.
    """

    def __init__(
        self,
        *,
        feed: str,
        consumer: str,
        changefeed_conn_id: str,
        shards: Sequence[str] | None = None,
        window_end: str | None = None,
        lock_timeout: float | None = None,
        poke_interval: float = 60.0,
        exponential_backoff: bool = False,
        max_wait: float | None = None,
        most_failures: int | None = MOST_FAILURES,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # Airflow's class has no types
        self.feed = feed
        self.consumer = consumer
        self.shards = shards
        self.changefeed_conn_id = changefeed_conn_id
        self.window_end = window_end
        self.lock_timeout = lock_timeout
        self.poke_interval = poke_interval
        self.exponential_backoff = exponential_backoff
        self.max_wait = max_wait
        self.most_failures = most_failures

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class and its arguments, JSON values without secrets."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "feed": self.feed,
                "consumer": self.consumer,
                "shards": list(self.shards) if self.shards is not None else None,
                "changefeed_conn_id": self.changefeed_conn_id,
                "window_end": self.window_end,
                "lock_timeout": self.lock_timeout,
                "poke_interval": self.poke_interval,
                "exponential_backoff": self.exponential_backoff,
                "max_wait": self.max_wait,
                "most_failures": self.most_failures,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll, together with others, until there is something or polling is pointless."""
        # Shielded, because others wait for it too.
        await asyncio.shield(asyncio.wrap_future(_imported()))
        with self._watch() as watch:
            payload = await self._wait(watch)
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call] # Airflow's class has no types

    def pause(self, polls: int) -> float:
        """Return the seconds until the next poll; ``polls`` is the number of pauses before."""
        if not self.exponential_backoff:
            return self.poke_interval
        seconds = max(self.poke_interval, 1.0) * 2.0 ** min(polls, _MOST_DOUBLINGS)
        return seconds if self.max_wait is None else min(seconds, self.max_wait)

    def _watch(self) -> Watch:
        from airflow_changefeed.consumers.poller import Poller

        # By the connection's name, never its content. The sensor has just polled: no need to do so at once.
        key = ("airflow_changefeed", self.changefeed_conn_id, self.lock_timeout, self.pause(0))
        poller = Poller.shared(key, self._source, self.pause(0))
        return poller.watch(self.feed, self.consumer, at_once=False)

    def _source(self) -> AbstractContextManager[FeedSource]:
        """Ask for the connection, in a thread: there, unlike in the loop, it can be read safely."""
        from airflow_changefeed.hooks.changefeed import ChangefeedHook

        return closing(ChangefeedHook(self.changefeed_conn_id, lock_timeout=self.lock_timeout).source())

    def _poll_result(self, source: FeedSource, found: FeedStatus) -> PollResult:
        from airflow_changefeed.core.feed import parse_shard
        from airflow_changefeed.core.values import parse_time
        from airflow_changefeed.cursors.new_events import poll_result

        shards = [parse_shard(shard) for shard in self.shards] if self.shards is not None else None
        window_end = parse_time(self.window_end) if self.window_end is not None else None
        return poll_result(source, found, self.feed, shards, window_end)

    async def _wait(self, watch: Watch) -> dict[str, Any]:
        failures = number = skips = 0
        while True:
            try:
                found = await watch.poll(self._poll_result, skips)
            except Exception as error:
                failures += 1
                if self._is_final(error, failures):
                    return {"status": "failed", "error": error_text(error)}
                self.log.warning(
                    "Poll of feed %s failed, %s in a row (the limit is %s): %s: %s",
                    self.feed,
                    failures,
                    self.most_failures or "none",
                    type(error).__name__,
                    error,
                    exc_info=None if isinstance(error, ChangefeedError) else error,
                )
            else:
                if found.is_ready:
                    return {
                        "status": "ready",
                        "new_events": found.to_dict(),
                        "has_ended": found.has_ended,
                    }
                failures = 0
            # Shared polls in a pause before the one that ends it.
            interval, pause = self.pause(0), self.pause(number)
            skips = max(int(pause / interval) - 1, 0) if interval else 0
            number += 1

    def _is_final(self, error: Exception, failures: int) -> bool:
        # A connection that existed for the task's own poll, and is missing now, may be one that Airflow's API
        # did not return at that moment: in the triggerer, both look the same.
        is_lasting = isinstance(error, TerminalError) and not isinstance(error, ConnectionNotUsableError)
        return is_lasting or (self.most_failures is not None and failures >= self.most_failures)


def read_event(event: object) -> tuple[dict[str, Any], bool]:
    """
    Read what :class:`ChangefeedTrigger` fired.

    :return: the new events as JSON values, and whether the window has ended.
    :raises ChangefeedError: the error that made polling pointless; terminal or transient, as its class says.
    :raises InvalidArgumentError: not an event of that trigger.
    """
    match event:
        case {"status": "ready", "new_events": dict(new_events), "has_ended": bool(has_ended)} if (
            new_events or has_ended
        ):
            return new_events, has_ended
        case {"status": "failed", "error": str(text)}:
            raise own_error(text)
    raise InvalidArgumentError(
        f"{event!r} is not an event of ChangefeedTrigger: install the same version of "
        "airflow-changefeed on triggerer and workers, then clear the task",
        event=event,
    )
