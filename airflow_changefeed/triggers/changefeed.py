# SPDX-License-Identifier: Apache-2.0
"""Wait for news of a feed in the triggerer, where a sensor that waits takes no worker."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_changefeed import exceptions
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
    InvalidArgumentError,
    TerminalError,
    TransientError,
)

# The triggerer imports this module in its loop, so what a look needs is imported in a thread.
if TYPE_CHECKING:
    from airflow_changefeed.export.news import Outlook
    from airflow_changefeed.sources.base import FeedSource

#: Looks that may fail in a row before the task is failed, for Airflow to retry it.
MOST_FAILURES = 10
#: Looks at a time in one triggerer.
MOST_LOOKS = 8
#: Doublings of a pause, beyond which no timeout of a sensor reaches.
_MOST_DOUBLINGS = 30

# Threads of our own: a database that hangs would keep those of asyncio's pool, in which Airflow writes the
# logs of all other triggers, too. Made when the first look needs them.
_threads = ThreadPoolExecutor(MOST_LOOKS, thread_name_prefix="changefeed-look")
_IMPORTS = (
    "airflow_changefeed.export.news",
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


class ChangefeedTrigger(BaseTrigger):
    """
    Fire when a feed has news for a consumer, or when a window has ended; the waiting of
    :class:`~airflow_changefeed.sensors.changefeed.ChangefeedSensor`.

    Looks as the sensor does, in a thread. What it remembers between two looks may be lost: started again
    anywhere, it finds the same. There is one event, for :func:`read_event`: the news, or the error that made
    looking pointless. An error that may pass is looked over, up to ``most_failures`` times in a row.

    :param feed: name of the feed, the table's.
    :param consumer: whose cursors count.
    :param changefeed_conn_id: Airflow connection of the feed's database.
    :param shards: shards to look at, as text; None for all.
    :param window_end: exclusive end of the window that is waited for, ISO 8601 with a zone; None waits for
        news alone.
    :param lock_timeout: seconds to wait for another writer; None takes the connection's.
    :param poke_interval: seconds between looks.
    :param exponential_backoff: double the seconds with each look.
    :param max_wait: seconds that they grow to, at most; None for no limit.
    :param most_failures: None never gives up on an error that may pass.
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
        self._source: FeedSource | None = None
        self._running: Future[Outlook] | None = None

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
        """Look until there is something, or until looking has become pointless."""
        yield TriggerEvent(await self._wait())  # type: ignore[no-untyped-call] # nor has this one

    def pause(self, looks: int) -> float:
        """
        Return the seconds until the next look.

        :param looks: pauses made before.
        """
        if not self.exponential_backoff:
            return self.poke_interval
        seconds = max(self.poke_interval, 1.0) * 2.0 ** min(looks, _MOST_DOUBLINGS)
        return seconds if self.max_wait is None else min(seconds, self.max_wait)

    async def _wait(self) -> dict[str, Any]:
        looks = failures = 0
        # Shielded, as others wait for it, too.
        await asyncio.shield(asyncio.wrap_future(_imported()))
        try:
            while True:
                try:
                    outlook = await self._look_aside()
                except Exception as error:
                    failures += 1
                    if self._is_final(error, failures):
                        return _failed(error)
                    self._tell(error, failures)
                else:
                    failures = 0
                    if outlook.is_ready:
                        return {
                            "status": "ready",
                            "news": outlook.to_dict(),
                            "has_ended": outlook.has_ended,
                        }
                await asyncio.sleep(self.pause(looks))
                looks += 1
        finally:
            # Not waited for: a cancelled trigger must end at once, also when its database hangs.
            if self._running is not None:
                self._running.add_done_callback(self._close_aside)

    async def _look_aside(self) -> Outlook:
        # With the context, by which Airflow knows whose log a line belongs to.
        self._running = _threads.submit(contextvars.copy_context().run, self._look)
        return await asyncio.wrap_future(self._running)

    def _look(self) -> Outlook:
        """
        Look once, in a thread; there, unlike in the loop, Airflow's connections can be had without harm.

        The source stays open from look to look, but after an error the connection is asked for again: it may
        have been changed since.
        """
        from airflow_changefeed.core.feed import parse_shard
        from airflow_changefeed.core.times import parse_time
        from airflow_changefeed.export.news import look
        from airflow_changefeed.hooks.changefeed import ChangefeedHook

        try:
            if self._source is None:
                hook = ChangefeedHook(self.changefeed_conn_id, lock_timeout=self.lock_timeout)
                self._source = hook.source()
            return look(
                self._source,
                self.feed,
                self.consumer,
                [parse_shard(shard) for shard in self.shards] if self.shards is not None else None,
                parse_time(self.window_end) if self.window_end is not None else None,
            )
        except Exception:
            self._close()
            raise

    def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _close_aside(self, _: Future[Outlook]) -> None:
        # An interpreter that is about to end takes no more work, and closes everything itself.
        with suppress(RuntimeError):
            _threads.submit(self._close)

    def _is_final(self, error: Exception, failures: int) -> bool:
        # A connection that was there for the task's own look, and is missing now, may be one that Airflow's
        # API did not give at that moment: in the triggerer, both look the same.
        is_lasting = isinstance(error, TerminalError) and not isinstance(error, ConnectionNotUsableError)
        return is_lasting or (self.most_failures is not None and failures >= self.most_failures)

    def _tell(self, error: Exception, failures: int) -> None:
        self.log.warning(
            "Look at feed %s failed, %s in a row (the limit is %s): %s: %s",
            *(self.feed, failures, self.most_failures or "none", type(error).__name__, error),
            exc_info=None if isinstance(error, ChangefeedError) else error,
        )


def read_event(event: object) -> tuple[dict[str, Any], bool]:
    """
    Read what :class:`ChangefeedTrigger` fired.

    :return: the news as JSON values, and whether the window has ended.
    :raises ChangefeedError: the error that made looking pointless; terminal or transient, as its class says.
    :raises InvalidArgumentError: no event of that trigger; terminal.
    """
    match event:
        case {"status": "ready", "news": dict(news), "has_ended": bool(has_ended)} if news or has_ended:
            return news, has_ended
        case {"status": "failed", "error": str(name), "message": str(message)}:
            raise _error(name, message)
    raise InvalidArgumentError(
        f"{event!r} is no event of ChangefeedTrigger: let triggerer and workers run the same version of "
        "airflow-changefeed, then clear the task",
        event=event,
    )


def _failed(error: Exception) -> dict[str, Any]:
    return {"status": "failed", "error": type(error).__name__, "message": str(error)}


def _error(name: str, message: str) -> ChangefeedError:
    kind = getattr(exceptions, name, None)
    if isinstance(kind, type) and issubclass(kind, ChangefeedError):
        return kind(message)
    # None of ours: a retry may help, as it may when a sensor's own look raises it.
    return TransientError(f"{name}: {message}")
