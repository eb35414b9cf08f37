# SPDX-License-Identifier: Apache-2.0
"""Getting and consuming events, with and without a transaction."""

from __future__ import annotations

import pytest

from airflow_changefeed.consumers.event import Batch
from airflow_changefeed.exceptions import (
    ConsumerUseError,
    InvalidArgumentError,
)
from airflow_changefeed.sources import open_source
from tests.unit.consumers.feeds import CAPTURE, NAME, PLAIN, Shop

SAY = "insert into audit values (?, ?)"


def _texts(events: list) -> list[str]:
    return [event.new["data"] for event in events]


def test_an_event_comes_again_until_it_is_consumed(shop: Shop) -> None:
    """With the same id: by the same consumer, and by the next one."""
    shop.create()
    shop.insert("a", "b")
    with shop.consumer() as consumer:
        first = consumer.get()
        assert consumer.poll() == first
    with shop.consumer() as consumer:
        assert consumer.get().id == first.id
        consumer.consume()
        assert consumer.get().new == {"id": 8, "data": "b"}
    with shop.consumer() as consumer:
        assert consumer.get().new == {"id": 8, "data": "b"}


def test_poll_gives_none_when_nothing_came_in_time(shop: Shop) -> None:
    """It waits as long as it was told, and looks at each interval."""
    shop.create()
    shop.insert("a")
    with shop.consumer(poll_interval=1.0) as consumer:
        consumer.get()
        consumer.consume()
        begun = shop.clock()
        assert consumer.poll(5.0) is None
        assert shop.clock() - begun == pytest.approx(5.0)


def test_get_waits_until_there_is_an_event(shop: Shop) -> None:
    """Of a shard that is new, too."""
    shop.create()
    shop.clock.meanwhile = lambda number: shop.insert("late", shard=3) if number == 4 else None
    with shop.consumer() as consumer:
        event = consumer.get()
    assert (event.shard, event.new["data"]) == (3, "late")


def test_work_and_consumption_are_one(shop: Shop) -> None:
    """What a transaction writes is there if and only if its event was consumed."""
    shop.create()
    shop.insert("a", "b")
    with shop.consumer() as consumer:
        with consumer.transaction() as connection:
            connection.execute(SAY, (str(consumer.get().id), "a"))
            consumer.consume()
        with pytest.raises(ZeroDivisionError), consumer.transaction() as connection:  # noqa: PT012 - all of it
            event = consumer.get()
            connection.execute(SAY, (str(event.id), "b"))
            consumer.consume()
            1 / 0  # noqa: B018 - fails
        assert shop.said() == ["a"]
        assert consumer.get() == event


def test_next_consumes_many_events_with_one_commit(shop: Shop) -> None:
    """And a roll-back brings all of them back, in order."""
    shop.create()
    shop.insert("a", "b", "c")
    with shop.consumer() as consumer:
        consumer.begin()
        for text in ("a", "b"):
            assert consumer.get().new["data"] == text
            consumer.next()
        consumer.roll_back()
        consumer.begin()
        for text in ("a", "b"):
            assert consumer.get().new["data"] == text
            consumer.next()
        consumer.commit()
        version = shop.source.cursors(CAPTURE, NAME)[0].resource_version
        assert consumer.get().new["data"] == "c"
    assert version == 2


def test_a_loop_consumes_an_event_when_it_asks_for_the_next(shop: Shop) -> None:
    """A loop that is left leaves its last event unconsumed; what it consumed by itself it does not again."""
    shop.create()
    shop.insert("a", "b", "c", "d")
    seen = []
    with shop.consumer() as consumer:
        for event in consumer:
            seen.append(event.new["data"])
            if event.new["data"] == "b":
                with consumer.transaction() as connection:
                    connection.execute(SAY, (str(event.id), "b"))
                    consumer.consume()
            if event.new["data"] == "c":
                break
    with shop.consumer() as consumer:
        assert consumer.get().new["data"] == "c"
    assert (seen, shop.said()) == (["a", "b", "c"], ["b"])


def test_shards_take_turns_and_keep_their_order(shop: Shop) -> None:
    """Each event of each shard comes once."""
    shop.create()
    for number in range(12):
        shop.insert(f"{number % 3}-{number:02}", shard=number % 3)
    seen: list[str] = []
    with shop.consumer(pace=shop.pace(page_size=2)) as consumer:
        while event := consumer.poll():
            seen.append(event.new["data"])
            consumer.consume()
    for shard in "012":
        own = [text for text in seen if text.startswith(shard)]
        assert own == sorted(own)
        assert len(own) == 4


def test_a_batch_is_consumed_at_once_and_in_parts(shop: Shop) -> None:
    """Consuming some of it leaves the others."""
    shop.create()
    shop.insert(*"abcde")
    with shop.consumer(pace=shop.pace(page_size=2)) as consumer:
        assert _texts(consumer.get_batch(Batch(events=3))) == list("abc")
        consumer.consume(2)
        assert _texts(consumer.get_batch(Batch(events=3))) == list("cde")
        consumer.consume()
        assert consumer.get_batch(Batch(events=3), 0) == []


def test_a_batch_waits_so_long_for_more(shop: Shop) -> None:
    """From its first event on."""
    shop.create()
    shop.insert("a")
    shop.clock.meanwhile = lambda number: shop.insert(f"late {number}") if number < 20 else None
    with shop.consumer(poll_interval=1.0) as consumer:
        assert len(consumer.get_batch(Batch(seconds=3.0))) == 4
        assert len(consumer.get_batch(Batch(events=6, seconds=60.0))) == 6


def test_a_transaction_is_never_cut(shop: Shop) -> None:
    """Also where it is longer than a page, and the outbox is ordered in pieces."""
    shop.create()
    shop.insert("a")
    shop.insert(*(f"b{number}" for number in range(25)))
    shop.insert("c")
    with shop.consumer(pace=shop.pace(page_size=4)) as consumer:
        sizes = []
        while events := consumer.get_batch(Batch(transaction=True), 0):
            sizes.append(len(events))
            consumer.consume()
    assert sizes == [1, 25, 1]


def test_an_event_without_known_transaction_is_one_by_itself(shop: Shop) -> None:
    """Nothing says that its neighbour belongs to it."""
    shop.create()
    shop.connection.execute("insert into \"shop.t\" values (4, 'a'), (8, 'b')")
    with shop.consumer() as consumer:
        assert len(consumer.get_batch(Batch(transaction=True), 0)) == 1


@pytest.mark.parametrize("what", ["consume", "next", "park"])
def test_nothing_is_consumed_before_it_was_got(shop: Shop, what: str) -> None:
    """Nor twice."""
    shop.create()
    shop.insert("a", "b")
    call = {"consume": (), "next": (), "park": ("why", 1)}[what]
    with shop.consumer() as consumer:
        for _ in range(2):
            if what == "next":
                consumer.begin()
            with pytest.raises(ConsumerUseError, match="get"):
                getattr(consumer, what)(*call)
            if what == "next":
                consumer.roll_back()
            consumer.get()
            consumer.consume()


def test_next_needs_a_transaction(shop: Shop) -> None:
    """As do a commit and the connection."""
    shop.create()
    shop.insert("a")
    with shop.consumer() as consumer:
        consumer.get()
        with pytest.raises(ConsumerUseError, match="next needs a transaction"):
            consumer.next()
        with pytest.raises(ConsumerUseError, match="transaction"):
            consumer.commit()
        with pytest.raises(ConsumerUseError, match="transaction"):
            _ = consumer.connection
        consumer.begin()
        with pytest.raises(ConsumerUseError, match="already open"):
            consumer.begin()


def test_a_consumer_is_used_in_its_block(shop: Shop) -> None:
    """Before and after it holds nothing."""
    shop.create()
    consumer = shop.consumer()
    with pytest.raises(ConsumerUseError, match="not registered"):
        consumer.get()
    with consumer:
        pass
    with pytest.raises(ConsumerUseError, match="not registered"):
        consumer.begin()


def test_get_in_a_transaction_says_that_no_event_can_come(shop: Shop) -> None:
    """A database with one writer at a time orders nothing while it is open; poll gives None."""
    shop.create()
    with shop.consumer() as consumer, consumer.transaction():
        assert consumer.poll(5.0) is None
        with pytest.raises(ConsumerUseError, match="single writer"):
            consumer.get()


def test_events_that_are_ordered_come_also_in_a_transaction(shop: Shop) -> None:
    """What waits in the outbox does not."""
    shop.create()
    shop.insert("a", "b", "c")
    with shop.consumer(pace=shop.pace(page_size=2)) as consumer:
        with consumer.transaction():
            consumer.get_batch(Batch(events=2))
            consumer.next()
        shop.source.drain(CAPTURE)
        with consumer.transaction():
            assert consumer.get().new["data"] == "c"
            consumer.next()
        assert consumer.poll() is None


def test_all_that_is_wrong_with_the_options_is_told_at_once(shop: Shop) -> None:
    """With the range of each."""
    shop.create()
    with pytest.raises(InvalidArgumentError) as caught:
        shop.consumer("a:b", register_timeout=-1.0, emit_timeout=0.0, poll_interval=0.0, at_most_shards=0)
    for name in ("register_timeout", "emit_timeout", "poll_interval", "at_most_shards", "a:b"):
        assert name in caught.value.message


def test_metadata_that_a_feed_does_not_have_is_refused_with_the_reason(shop: Shop) -> None:
    """When the consumer is made."""
    shop.create(feed=PLAIN)
    with pytest.raises(InvalidArgumentError, match="plain outbox") as caught:
        shop.consumer(feed=PLAIN, with_sequence=True, with_epoch=True, with_tid=True)
    assert caught.value.message.count("capture") >= 3
    consumer = shop.consumer(feed=PLAIN)
    with consumer, pytest.raises(InvalidArgumentError, match="batch by transaction"):
        consumer.get_batch(Batch(transaction=True), 0)


def test_a_source_that_reads_by_adbc_is_refused(shop: Shop) -> None:
    """The consumer's own connection would stand beside it."""
    shop.create()
    shop.source = open_source({**shop.source.describe(), "bulk_reader": "adbc"})
    with pytest.raises(InvalidArgumentError, match="bulk_reader"):
        shop.consumer()
