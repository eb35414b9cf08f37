# SPDX-License-Identifier: Apache-2.0
"""Consumers in an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from airflow_changefeed.consumers.aio import AsyncConsumer
from airflow_changefeed.consumers.event import Batch
from airflow_changefeed.consumers.settings import Pace
from airflow_changefeed.exceptions import ConsumerNotFoundError, ConsumerUseError, LeaseHeldError
from tests.unit.consumers.feeds import CAPTURE, NAME, Shop

SAY = "insert into audit values (?, ?)"


def _consumer(shop: Shop, **options: Any) -> AsyncConsumer:
    return AsyncConsumer(shop.source, NAME, CAPTURE, **{"pace": shop.pace(), **options})


def _say(connection: Any, text: str) -> None:
    connection.execute(SAY, (text, text))


def _run(work: Callable[[], Awaitable[object]]) -> None:
    async def run() -> None:
        await work()

    asyncio.run(run())


def test_a_loop_consumes_what_it_has_seen(shop: Shop) -> None:
    """Its last event comes again."""
    shop.create()
    shop.insert(*"abc")
    seen = []

    async def work() -> None:
        async with _consumer(shop) as consumer:
            async for event in consumer:
                seen.append(event.new["data"])
                if len(seen) == 2:
                    break
        async with _consumer(shop) as consumer:
            seen.append((await consumer.get()).new["data"])

    _run(work)
    assert seen == ["a", "b", "b"]


def test_work_and_consumption_are_one(shop: Shop) -> None:
    """What is written by the connection is there if and only if the event was consumed."""
    shop.create()
    shop.insert(*"abc")

    async def work() -> None:
        async with _consumer(shop) as consumer:
            await consumer.get()
            async with consumer.transaction() as do:
                await do(_say, "a")
                await consumer.consume()
            event = await consumer.get()
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what rolls back
                async with consumer.transaction() as do:
                    await do(_say, "b")
                    await consumer.next()
                    1 / 0  # noqa: B018 - fails
            assert await consumer.get() == event
            assert len(await consumer.get_batch(Batch(events=2))) == 2
            await consumer.consume()
            assert await consumer.poll() is None

    _run(work)
    assert shop.said() == ["a"]


def test_a_wait_that_is_cancelled_leaves_nothing_behind(shop: Shop) -> None:
    """The consumer can be used on, and its shards are given back at the end."""
    shop.create()
    shop.insert("a")

    async def work() -> None:
        async with _consumer(shop) as consumer:
            await consumer.get()
            await consumer.consume()
            waiting = asyncio.create_task(consumer.get())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            shop.insert("b")
            assert (await consumer.get()).new["data"] == "b"

    _run(work)
    assert all(one.holder is None for one in shop.source.leases(CAPTURE))


def test_registering_that_is_cancelled_waits_no_longer(shop: Shop) -> None:
    """Nor is it written down as waiting."""
    shop.create()
    shop.insert("a")

    async def work() -> None:
        pace = Pace(wait=lambda seconds: time.sleep(0.01))
        entering = asyncio.create_task(_consumer(shop, pace=pace).__aenter__())
        await asyncio.sleep(0.05)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering

    with shop.consumer():
        _run(work)
        assert [lease.waiters for lease in shop.source.leases(CAPTURE)] == [()]


def test_errors_are_those_of_the_consumer(shop: Shop) -> None:
    """Where it is entered, and where it is used."""

    async def work() -> None:
        with pytest.raises(ConsumerNotFoundError):
            await _consumer(shop).__aenter__()
        shop.create()
        shop.insert("a")
        with pytest.raises(ConsumerUseError, match="async with"):
            await _consumer(shop).get()
        with shop.consumer(), pytest.raises(LeaseHeldError):
            await _consumer(shop, register_timeout=0.0).__aenter__()
        async with _consumer(shop) as consumer:
            with pytest.raises(ConsumerUseError):
                await consumer.consume()
            with pytest.raises(ConsumerUseError):
                await consumer.next()
            await consumer.begin()
            await consumer.roll_back()
            await consumer.begin()
            await consumer.commit()
            await consumer.reregister()

    _run(work)
