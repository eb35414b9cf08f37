# SPDX-License-Identifier: Apache-2.0
"""A consumer for programs with an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_changefeed.consumers.consumer import Consumer
from airflow_changefeed.consumers.event import ONE, Batch, FeedEvent
from airflow_changefeed.exceptions import ConsumerUseError
from airflow_changefeed.sources.base import FeedSource

if TYPE_CHECKING:
    from typing_extensions import Self

Answer = TypeVar("Answer")

#: Seconds per wait in the thread; a cancelled wait ends when its slice does.
_SLICE = 0.25


class AsyncConsumer:
    """
    A :class:`~airflow_changefeed.consumers.consumer.Consumer` for ``async with`` and ``async for``.

    All calls run in one dedicated thread. A cancelled call still runs to completion, within a second if it is
    waiting, so nothing is left half done. An event that was not consumed is delivered again.

    :param options: as for ``Consumer``.
    :raises ChangefeedError: on entering, as for ``Consumer``.
    """

    def __init__(self, source: FeedSource, name: str, feed: str, **options: Any) -> None:
        self._make = partial(Consumer, source, name, feed, **options)
        self._is_over = threading.Event()
        self._consumer: Consumer | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="changefeed-consumer")

    async def __aenter__(self) -> Self:
        try:
            self._consumer = await self._call(self._make)
            await self.register()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        try:
            if self._consumer is not None:
                await self._call(self._consumer.leave)
        finally:
            self._consumer = None
            self._thread.shutdown(wait=False)

    async def _call(self, function: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
        """Run a function in the thread, to completion even if the caller is cancelled."""
        call = partial(function, *arguments, **options)
        future = asyncio.get_running_loop().run_in_executor(self._thread, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._is_over.set()
            await asyncio.wait([future])
            if not future.cancelled():
                # Retrieved, so that asyncio does not log "exception was never retrieved".
                future.exception()
            raise

    @property
    def consumer(self) -> Consumer:
        """The underlying consumer, to read its state; call its methods in its thread only."""
        if self._consumer is None:
            raise ConsumerUseError(
                "the consumer is not registered; use the consumer in an `async with` block"
            )
        return self._consumer

    async def register(self) -> None:
        """
        Wait until the consumer holds a shard; entering the context calls this.

        :raises LeaseHeldError: other consumers held all shards for ``register_timeout``.
        """
        self._is_over.clear()
        await self._call(self.consumer.register, should_stop=self._is_over.is_set)

    async def get(self) -> FeedEvent:
        """Return the next event, waiting for it; see ``Consumer.get``."""
        return (await self.get_batch(ONE))[0]

    async def poll(self, timeout: float = 0.0) -> FeedEvent | None:
        """Return the next event, or None after ``timeout`` seconds without one."""
        got = await self.get_batch(ONE, timeout)
        return got[0] if got else None

    async def get_batch(self, batch: Batch, timeout: float | None = None) -> list[FeedEvent]:
        """
        Return the next batch of events; see ``Consumer.get_batch``.

        :param timeout: seconds to wait for the first event; None waits forever.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            left = _SLICE if timeout is None else timeout - (loop.time() - begun)
            got = await self._call(self.consumer.get_batch, batch, max(0.0, min(_SLICE, left)))
            if got or (timeout is not None and left <= _SLICE):
                return got

    async def consume(self, events: int | None = None) -> None:
        """Consume the last event or batch returned; see ``Consumer.consume``."""
        await self._call(self.consumer.consume, events)

    async def next(self, events: int | None = None) -> None:
        """Mark the last event or batch returned, to be consumed at commit; see ``Consumer.next``."""
        await self._call(self.consumer.next, events)

    async def begin(self) -> None:
        """Begin a transaction; see ``Consumer.begin``."""
        await self._call(self.consumer.begin)

    async def commit(self) -> None:
        """Consume what :meth:`next` marked and commit, atomically."""
        await self._call(self.consumer.commit)

    async def roll_back(self) -> None:
        """Roll back; the events are delivered again."""
        await self._call(self.consumer.roll_back)

    async def work(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """
        Call a function with the connection and the given arguments, in the open transaction.

        It runs in the consumer's thread, which owns the connection.
        """
        return await self._call(lambda: function(self.consumer.connection, *arguments))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """
        Run a block as one transaction; it gets :meth:`work`, to write through the connection.

        Commits at the end, together with the events that :meth:`next` or :meth:`consume` was called for;
        rolls back if the block raises or is cancelled.
        """
        try:
            await self.begin()
        except asyncio.CancelledError:
            await self._call(self.consumer.roll_back)
            raise
        try:
            yield self.work
        except BaseException as error:
            await self._call(self.consumer.roll_back, error)
            raise
        await self.commit()

    async def reregister(self) -> None:
        """Discard what was read ahead and register again; see ``Consumer.reregister``."""
        await self._call(self.consumer.leave)
        await self.register()

    async def __aiter__(self) -> AsyncIterator[FeedEvent]:
        while True:
            event = await self.get()
            yield event
            await self._call(self.consumer.acknowledge, event)
