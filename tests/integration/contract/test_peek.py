# SPDX-License-Identifier: Apache-2.0
"""Looking for news without writing, at a cost that does not grow."""

from __future__ import annotations

import pytest

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from tests.integration.contract.bench import Bench


def test_shards_with_events_beyond_their_cursor_are_news(either: Bench) -> None:
    """A shard at its head is none; one left out stands at the beginning."""
    either.write(2, shard=1)
    either.write(2, shard=2)
    heads: dict[Shard, Ulid] = {shard: either.events(shard)[-1].ulid for shard in (1, 2)}
    assert set(either.source.peek(either.feed, {})) == {1, 2}
    assert either.source.peek(either.feed, heads) == {}
    news = either.source.peek(either.feed, {1: heads[1].previous(), 2: heads[2]})
    assert set(news) == {1}
    assert (news[1].shard, news[1].head, news[1].has_outbox) == (1, heads[1], False)


def test_rows_in_the_outbox_are_news(bench: Bench) -> None:
    """Beside fed events, and in a shard that was never ordered."""
    bench.write(1, shard=1)
    head = bench.events(1)[-1].ulid
    bench.write(1, shard=1)
    bench.write(1, shard=3)
    news = bench.source.peek(bench.feed, {1: head})
    assert set(news) == {1, 3}
    assert (news[1].head, news[1].has_outbox) == (None, True)
    assert (news[3].head, news[3].has_outbox) == (None, True)
    assert bench.source.peek(bench.feed, {})[1].head == head


def test_nothing_is_no_news(either: Bench) -> None:
    """A new feed, a cursor at the end of a sealed window, and an open transaction."""
    assert either.source.peek(either.feed, {0: Ulid.MIN}) == {}
    either.write(1)
    either.events()
    until = either.after_now()
    either.seal(until)
    cursor = Ulid.floor(until).previous()
    with either.transaction() as writer:
        either.insert(writer)
        assert either.impatient().peek(either.feed, {0: cursor}) == {}
        writer.commit()
    assert set(either.source.peek(either.feed, {0: cursor})) == {0}


def test_looking_writes_nothing(either: Bench) -> None:
    """A sensor of many feeds must not order events, nor take a lock."""
    either.write(3)
    with either.engine.watch() as has_changed:
        either.source.peek(either.feed, {})
        either.source.shards(either.feed)
        either.source.feeds()
        either.source.stale_marks(either.feed)
        either.source.cursors(either.feed)
        either.source.now()
        assert not has_changed()
    with either.engine.watch() as has_changed:
        either.write(1)
        assert has_changed()


@pytest.mark.parametrize("is_waiting", [False, True], ids=["fed", "waiting"])
def test_looking_costs_the_same_however_large_the_feed(bench: Bench, is_waiting: bool) -> None:
    """A hundred times the events, in the feed or in the outbox, the same work."""
    if not bench.engine.measures_work:
        pytest.skip("this engine does not count its work")

    def work() -> int:
        if not is_waiting:
            bench.source.drain(bench.feed)
        return bench.engine.work(lambda source: source.peek(bench.feed, {}))

    bench.write(50)
    bench.write(50, shard=1)
    small = work()
    bench.write(5_000)
    bench.write(5_000, shard=1)
    assert work() <= 1.5 * small
