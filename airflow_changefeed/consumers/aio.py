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
from airflow_changefeed.consumers.events.batch import ONE, Batch
from airflow_changefeed.consumers.events.event import FeedEvent
from airflow_changefeed.exceptions import ConsumerUseError
from airflow_changefeed.sources.base import FeedSource

if TYPE_CHECKING:
    from typing_extensions import Self

Answer = TypeVar("Answer")

#: Seconds that one wait in the thread lasts, at whose end a cancelled one ends.
_SLICE = 0.25


class AsyncConsumer:
    """
    A :class:`~airflow_changefeed.consumers.consumer.Consumer` for ``async with`` and ``async for``.

    All of it happens in one thread of its own. A call that is cancelled is brought to its end first, which
    takes a second at most where it waits: so nothing is left half done, and an event that was not consumed
    comes again.

    :param options: as of ``Consumer``.
    :raises ChangefeedError: as of ``Consumer``, when it is entered.
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
        """Call a function in the thread, to its end even where the caller is cancelled."""
        call = partial(function, *arguments, **options)
        future = asyncio.get_running_loop().run_in_executor(self._thread, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._is_over.set()
            await asyncio.wait([future])
            if not future.cancelled():
                # Seen, so that nobody is told that nobody saw it.
                future.exception()
            raise

    @property
    def consumer(self) -> Consumer:
        """The consumer that works in the thread, for what it holds; its calls belong to that thread."""
        if self._consumer is None:
            raise ConsumerUseError("the consumer is not registered: use it in an `async with` block")
        return self._consumer

    async def register(self) -> None:
        """
        Wait until it holds a shard; entering the context does it.

        :raises LeaseHeldError: others held all of them for ``register_timeout``; transient.
        """
        self._is_over.clear()
        await self._call(self.consumer.register, should_stop=self._is_over.is_set)

    async def get(self) -> FeedEvent:
        """Return the next event, waiting until there is one; see ``Consumer.get``."""
        return (await self.get_batch(ONE))[0]

    async def poll(self, timeout: float = 0.0) -> FeedEvent | None:
        """Return the next event; None when none came in so many seconds."""
        got = await self.get_batch(ONE, timeout)
        return got[0] if got else None

    async def get_batch(self, batch: Batch, timeout: float | None = None) -> list[FeedEvent]:
        """
        Return the next events that are to be consumed together; see ``Consumer.get_batch``.

        :param timeout: seconds to wait for the first of them; None waits for ever.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while True:
            left = _SLICE if timeout is None else timeout - (loop.time() - begun)
            got = await self._call(self.consumer.get_batch, batch, max(0.0, min(_SLICE, left)))
            if got or (timeout is not None and left <= _SLICE):
                return got

    async def consume(self, events: int | None = None) -> None:
        """Consume what was got last; see ``Consumer.consume``."""
        await self._call(self.consumer.consume, events)

    async def next(self, events: int | None = None) -> None:
        """Remember what was got last, to be consumed at the commit; see ``Consumer.next``."""
        await self._call(self.consumer.next, events)

    async def begin(self) -> None:
        """Begin a transaction; see ``Consumer.begin``."""
        await self._call(self.consumer.begin)

    async def commit(self) -> None:
        """Consume what :meth:`next` remembered, and commit, both or neither."""
        await self._call(self.consumer.commit)

    async def roll_back(self) -> None:
        """Roll back; what was got comes again."""
        await self._call(self.consumer.roll_back)

    async def work(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """
        Call a function with the connection, and what else is given, in the transaction that is open.

        It is called in the consumer's thread, to which the connection belongs.
        """
        return await self._call(lambda: function(self.consumer.connection, *arguments))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """
        Run a block as one transaction; it gets :meth:`work`, for what is to be written by the connection.

        Commits at the end, with what :meth:`next` or :meth:`consume` was called for in it; rolls back when
        the block raises or is cancelled.
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
        """Forget all that was read, and register again; see ``Consumer.reregister``."""
        await self._call(self.consumer.leave)
        await self.register()

    async def __aiter__(self) -> AsyncIterator[FeedEvent]:
        while True:
            event = await self.get()
            yield event
            await self._call(self.consumer.acknowledge, event)
