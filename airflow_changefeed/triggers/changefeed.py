# SPDX-License-Identifier: Apache-2.0
"""Wait for new events of a feed in the triggerer, so that a waiting sensor occupies no worker."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Sequence
from contextlib import aclosing
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from structlog.contextvars import clear_contextvars

from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
    InvalidArgumentError,
    TerminalError,
    TransientError,
    error_text,
    own_error,
)
from airflow_changefeed.triggers.changefeed_polls import WAITING, Found, Watcher, polls

#: Polls that may fail in a row before the task is failed, for Airflow to retry it.
MOST_FAILURES = 10
#: Maximum doublings of a pause; no sensor's timeout is longer.
_MOST_DOUBLINGS = 30


class ChangefeedTrigger(BaseEventTrigger):
    """
    Fire when a feed has new events for a consumer, or when a window has ended; the waiting of
    :class:`~airflow_changefeed.sensors.changefeed.ChangefeedSensor`.

    Polls as the sensor does, in a thread. In a triggerer, all triggers with the same connection,
    ``lock_timeout`` and ``poke_interval`` share their polls: one query an interval. It keeps no state that
    matters: restarted anywhere, it finds the same. It fires one event, for :func:`read_event`: the new
    events, or the error that made polling pointless. A transient error is ignored, up to
    ``most_failures`` times in a row.

    :param feed: name of the feed, the table's.
    :param consumer: whose cursors count.
    :param changefeed_conn_id: Airflow connection of the feed's database.
    :param shards: shards to poll, as text; None for all.
    :param window_end: exclusive end of the window to wait for, ISO 8601 with a zone; None waits for new
        events only.
    :param lock_timeout: seconds to wait for another writer; None takes the connection's.
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
        """Poll alone, as ``dags test`` does, until there is something or polling is pointless."""
        key = object()
        async with aclosing(self._polls(key)) as stream:
            yield await self._event(key, stream)

    def shared_stream_key(self) -> Hashable:
        """Return the key of triggers that share polls: the connection's name, never its content."""
        return ("airflow_changefeed", self.changefeed_conn_id, self.lock_timeout, self.pause(0))

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Found]:
        """Poll for all triggers of a key; ``kwargs`` are those of any one of them."""
        # The log lines of these polls are the triggerer's: the log of the first trigger, which opened the
        # stream, ends with it.
        clear_contextvars()
        one = cls(**kwargs)
        async with aclosing(one._polls(one.shared_stream_key())) as stream:
            async for found in stream:
                yield found

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Found]) -> AsyncIterator[TriggerEvent]:
        """Wait for this trigger's event among those of the shared stream."""
        yield await self._event(self.shared_stream_key(), shared_stream)

    def pause(self, polls: int) -> float:
        """
        Return the seconds until the next poll.

        :param polls: pauses made before.
        """
        if not self.exponential_backoff:
            return self.poke_interval
        seconds = max(self.poke_interval, 1.0) * 2.0 ** min(polls, _MOST_DOUBLINGS)
        return seconds if self.max_wait is None else min(seconds, self.max_wait)

    def _polls(self, key: Hashable) -> AsyncGenerator[Found, None]:
        return polls(key, self.changefeed_conn_id, self.lock_timeout, self.pause(0))

    async def _event(self, key: Hashable, stream: AsyncIterator[Found]) -> TriggerEvent:
        watcher = Watcher(self.feed, self.consumer, self.shards, self.window_end)
        WAITING[watcher] = key
        try:
            payload = await self._wait(watcher, stream)
        finally:
            del WAITING[watcher]
        return TriggerEvent(payload)  # type: ignore[no-untyped-call] # Airflow's class has no types

    async def _wait(self, watcher: Watcher, stream: AsyncIterator[Found]) -> dict[str, Any]:
        number = failures = 0
        async for found in stream:
            if watcher not in found:
                continue
            poll_result = found[watcher]
            if isinstance(poll_result, Exception):
                failures += 1
                if self._is_final(poll_result, failures):
                    return _failed(poll_result)
                self._log_failure(poll_result, failures)
            elif poll_result.is_ready:
                return {
                    "status": "ready",
                    "new_events": poll_result.to_dict(),
                    "has_ended": poll_result.has_ended,
                }
            else:
                failures = 0
            watcher.skips = self._skips(number)
            number += 1
        # Airflow ends a stream whose polls raised an error; ours never raise.
        raise TransientError(f"polls of feed {self.feed!r} have ended: retry", feed=self.feed)

    def _skips(self, polls: int) -> int:
        """Return how many polls are skipped in a pause before the one that ends it."""
        interval, pause = self.pause(0), self.pause(polls)
        return max(int(pause / interval) - 1, 0) if interval else 0

    def _is_final(self, error: Exception, failures: int) -> bool:
        # A connection that existed for the task's own poll, and is missing now, may be one that Airflow's API
        # did not return at that moment: in the triggerer, both look the same.
        is_lasting = isinstance(error, TerminalError) and not isinstance(error, ConnectionNotUsableError)
        return is_lasting or (self.most_failures is not None and failures >= self.most_failures)

    def _log_failure(self, error: Exception, failures: int) -> None:
        self.log.warning(
            "Poll of feed %s failed, %s in a row (the limit is %s): %s: %s",
            self.feed,
            failures,
            self.most_failures or "none",
            type(error).__name__,
            error,
            exc_info=None if isinstance(error, ChangefeedError) else error,
        )


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
        f"{event!r} is not an event of ChangefeedTrigger: install the same version of airflow-changefeed on "
        "triggerer and workers, then clear the task",
        event=event,
    )


def _failed(error: Exception) -> dict[str, Any]:
    return {"status": "failed", "error": error_text(error)}
