# SPDX-License-Identifier: Apache-2.0
"""When a run of a consumer ends, and what it goes on with."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from airflow_changefeed.consumers.event import Batch
from airflow_changefeed.consumers.run import run_consumer
from airflow_changefeed.exceptions import InvalidArgumentError, SourceUnavailableError
from tests.unit.consumers.feeds import CAPTURE, NAME, Shop
from tests.unit.consumers.runs import Sayer, run


def test_every_n_events_or_t_seconds(shop: Shop) -> None:
    """A batch is handled when it is full, or its time is over."""
    shop.create()
    stop = threading.Event()

    def write(number: int) -> None:
        if number < 10:
            shop.insert(f"{number}")
        if number > 30:
            stop.set()

    shop.clock.meanwhile = write
    handler = Sayer()
    run(shop, handler, batch=Batch(events=4, seconds=2.0), at_head=False, stop=stop, poll_interval=0.5)
    assert sorted(text for call in handler.calls for text in call) == sorted(map(str, range(10)))
    assert all(len(call) <= 4 for call in handler.calls)
    assert max(map(len, handler.calls)) == 4


def test_it_ends_when_it_was_told_to(shop: Shop) -> None:
    """After so many events, at a time, at the head, or by a function."""
    shop.create()
    shop.insert(*"abcdef")
    assert run(shop, Sayer(), max_events=2).events == 2
    assert run(shop, Sayer(), max_events=1, batch=Batch()).events == 1
    assert run(shop, Sayer(), stop=lambda: True).events == 0
    begun = shop.clock()
    until = shop.source.now() + timedelta(seconds=30)
    assert run(shop, Sayer(), at_head=False, until=until).events == 3
    assert shop.clock() - begun == pytest.approx(30, abs=2)
    with pytest.raises(InvalidArgumentError, match="max_events"):
        run(shop, Sayer(), max_events=0)


def test_events_from_a_bound_on_are_left_alone(shop: Shop) -> None:
    """In all shards; what comes later goes on there."""
    shop.create()
    shop.insert("a", "b")
    shop.insert("c", shard=1)
    shop.source.drain(CAPTURE)
    heads = [status.head for status in shop.source.shards(CAPTURE)]
    below = max(heads).next()
    shop.after_now()
    shop.insert("d")
    shop.insert("e", shard=1)
    assert run(shop, Sayer(), below=min(heads)).events <= 2
    assert run(shop, Sayer(), below=below).failures == 0
    assert sorted(shop.said()) == ["a", "b", "c"]
    run(shop, Sayer())
    assert sorted(shop.said()) == ["a", "b", "c", "d", "e"]


class Away:
    """The outermost edge: a database that does not answer for a while."""

    def __init__(self, source: Any, *, calls: int) -> None:
        self.source, self.calls = source, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def poll(self, *arguments: Any) -> Any:
        """Fail for so many calls."""
        if self.calls:
            self.calls -= 1
            raise SourceUnavailableError("the database is away")
        return self.source.poll(*arguments)


def test_a_run_that_is_to_end_gives_up_at_last(shop: Shop) -> None:
    """Whoever started it tries again."""
    shop.create()
    shop.insert("a")
    away = Away(shop.source, calls=0)

    def first(event: Any, connection: Any) -> None:
        away.calls = 1000

    with pytest.raises(SourceUnavailableError):
        run_consumer(away, NAME, CAPTURE, first, at_head=True, register_timeout=0.0, pace=shop.pace())
