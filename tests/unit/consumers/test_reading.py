# SPDX-License-Identifier: Apache-2.0
"""How a consumer reads its pages: each to its end, and several batches at once where it is behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from airflow_changefeed.consumers.event import Batch
from airflow_changefeed.consumers.run import run_consumer
from airflow_changefeed.sources.base import Capabilities
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.consumers.feeds import NAME, PLAIN, Shop


class Careful(SqliteFeedSource):
    """A source whose streams must be read to their ends, as a server's connection is busy until then."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sizes: list[int] = []
        self.left = 0
        self.polls = 0
        self.pages = 0

    @property
    def capabilities(self) -> Capabilities:
        """As those of a server."""
        return replace(super().capabilities, parallel_writers=True)

    def poll(self, *args: Any) -> Any:
        """Count the polls."""
        self.polls += 1
        return super().poll(*args)

    def read_feed(self, *args: Any) -> Any:
        """Count the pages of keys."""
        self.pages += 1
        return super().read_feed(*args)

    def stream(self, *args: Any, **options: Any) -> Iterator[Any]:
        """Note how much was read, and whether somebody left before the end."""
        self.left += 1
        self.sizes.append(0)
        for batch in super().stream(*args, **options):
            self.sizes[-1] += batch.num_rows
            yield batch
        self.left -= 1


@pytest.fixture
def source(shop: Shop) -> Iterator[Careful]:
    """A hundred events that a new consumer has before it."""
    with shop.connection:
        for number in range(100):
            shop.connection.execute(f'insert into "{PLAIN}" values (?, ?, 1.0)', (number, str(number)))
            shop.connection.execute(f'insert into "changefeed.outbox:{PLAIN}" (id) values (?)', (number,))
    shop.source.drain(PLAIN)
    shop.create(feed=PLAIN)
    with closing(Careful(str(shop.path), lock_timeout=5)) as source:
        yield source


def consume(shop: Shop, source: Careful, page_size: int, events: int) -> int:
    """Let a handler go through all of it; return how many it had."""
    done = run_consumer(
        source,
        NAME,
        PLAIN,
        lambda events, connection: None,
        batch=Batch(events=events),
        at_head=True,
        register_timeout=0.0,
        pace=shop.pace(page_size),
    )
    return done.events


def test_a_page_is_read_to_its_end(shop: Shop, source: Careful) -> None:
    """Else each page would cost a new connection."""
    assert consume(shop, source, page_size=10, events=1) == 100
    assert (source.sizes, source.left) == ([10] * 10, 0)


def test_several_batches_are_read_at_once(shop: Shop, source: Careful) -> None:
    """Each page costs some questions."""
    assert consume(shop, source, page_size=4, events=8) == 100
    assert (max(source.sizes), source.left) == (80, 0)


def test_a_consumer_reads_up_to_the_head_that_a_poll_found(shop: Shop, source: Careful) -> None:
    """It polls to register, for the head, and behind it; no keys are read to know where a page ends."""
    assert consume(shop, source, page_size=10, events=1) == 100
    assert (source.polls, source.pages) == (3, 0)
