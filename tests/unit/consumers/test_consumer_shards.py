# SPDX-License-Identifier: Apache-2.0
"""Who works on which shards: leases that are waited for, lost and shared."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_changefeed.consumers.settings import Pace
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import LeaseHeldError, LeaseLostError
from airflow_changefeed.sources.base_consumers import Grant
from tests.unit.consumers.feeds import CAPTURE, NAME, Shop

SAY = "insert into audit values (?, ?)"


def test_a_second_consumer_waits_its_time_and_names_the_holder(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Once when the wait begins, and at its end; then the first one's end gives it the shards."""
    shop.create()
    shop.insert("a")
    caplog.set_level("INFO", "airflow_changefeed.consumers.intake")
    with shop.consumer() as first, pytest.raises(LeaseHeldError, match=first.holder):
        shop.consumer(register_timeout=3.0).register()
    (said,) = [text for text in caplog.messages if "waits for other processes" in text]
    assert f"shard 0 by {first.holder} until " in said
    with shop.consumer() as second:
        assert second.shards == [0]


def test_a_wait_for_a_lease_that_returns_early_asks_no_more_often(shop: Shop) -> None:
    """For example because there are new events, which free no lease."""
    shop.create()
    shop.insert("a")
    asked = []
    pace = Pace(wait=lambda seconds: shop.clock.advance(0.01), clock=shop.clock)
    with shop.consumer(emit_timeout=3600.0):
        other = shop.consumer(register_timeout=5.0, pace=pace, emit_timeout=3600.0)
        request = shop.source.acquire_leases

        def count(*arguments: Any, **options: Any) -> Grant:
            asked.append(shop.clock())
            return request(*arguments, **options)

        setattr(shop.source, "acquire_leases", count)  # noqa: B010 - it is counted, and done
        with pytest.raises(LeaseHeldError):
            other.register()
    assert 3 <= len(asked) <= 7


def test_one_who_sleeps_too_long_loses_to_one_who_waits(shop: Shop) -> None:
    """What it does then writes nothing, and it can go on when it gets a shard again."""
    shop.create()
    shop.insert("a", "b")
    with shop.consumer(emit_timeout=10.0) as first:
        event = first.get()
        shop.clock.advance(11.0)
        with shop.consumer() as second:
            assert second.get() == event
            second.consume()
            with pytest.raises(LeaseLostError), first.transaction() as connection:  # noqa: PT012 - at its end
                connection.execute(SAY, ("1", "by the first"))
                first.consume()
            assert shop.said() == []
            with pytest.raises(LeaseHeldError):
                first.reregister()
        first.reregister()
        assert first.get().new["data"] == "b"


def test_one_who_sleeps_keeps_its_shards_while_nobody_waits(shop: Shop) -> None:
    """A lease that ran out is still its holder's."""
    shop.create()
    shop.insert("a")
    with shop.consumer(emit_timeout=1.0) as consumer:
        consumer.get()
        shop.clock.advance(60.0)
        consumer.consume()
    assert shop.source.cursors(CAPTURE, NAME)[0].ulid > Ulid.MIN


def test_a_clock_that_goes_back_takes_nothing_away(shop: Shop) -> None:
    """Leases last longer then, and whoever holds one consumes on."""
    shop.create()
    shop.insert("a")
    with shop.consumer() as first:
        first.get()
        shop.clock.advance(-3600.0)
        with pytest.raises(LeaseHeldError):
            shop.consumer().register()
        first.consume()
        assert first.poll() is None


def test_whoever_waits_for_events_keeps_its_leases(shop: Shop) -> None:
    """They are prolonged at a third of their time."""
    shop.create()
    shop.insert("a")
    with shop.consumer(emit_timeout=3.0) as consumer:
        consumer.get()
        consumer.consume()
        token = consumer.token(0)
        consumer.poll(60.0)
        (lease,) = [one for one in shop.source.leases(CAPTURE) if one.shard == 0]
        assert (lease.token, lease.holder) == (token, consumer.holder)
        assert lease.expires > shop.source.now()


def test_instances_share_the_shards(shop: Shop) -> None:
    """One that holds all gives half to one that waits; no event is seen twice, none is lost."""
    shop.create()
    for shard in range(4):
        shop.insert(*(f"{shard}-{number}" for number in range(3)), shard=shard)
    with shop.consumer(emit_timeout=3.0) as first:
        assert len(first.shards) == 4
        with pytest.raises(LeaseHeldError):
            shop.consumer(emit_timeout=3.0).register()
        shop.source.acquire_leases(NAME, CAPTURE, range(4), holder="waits", seconds=60.0)
        first.pause(1.5)
        assert len(first.shards) == 2
        with shop.consumer(emit_timeout=3.0) as second:
            assert not set(first.shards) & set(second.shards)
            seen = []
            for consumer in (first, second):
                while event := consumer.poll():
                    seen.append(event.new["data"])
                    consumer.consume()
    assert sorted(seen) == [f"{shard}-{number}" for shard in range(4) for number in range(3)]


def test_shards_that_nobody_took_are_worked_on_again(shop: Shop) -> None:
    """Whoever waited wants others, or is gone."""
    shop.create()
    for shard in range(4):
        shop.insert("a", shard=shard)
    with shop.consumer(emit_timeout=3.0) as consumer:
        shop.source.acquire_leases(NAME, CAPTURE, range(4), holder="waits", seconds=60.0)
        consumer.pause(1.5)
        assert len(consumer.shards) == 2
        consumer.pause(30.0)
        assert len(consumer.shards) == 4


def test_a_consumer_holds_as_many_shards_as_it_may(shop: Shop) -> None:
    """Those that it was told, or so many."""
    shop.create()
    for shard in range(4):
        shop.insert("a", shard=shard)
    with shop.consumer(at_most_shards=1) as one, shop.consumer(shards=[2, 3]) as two:
        assert len(one.shards) == 1
        assert two.shards == [2, 3]


def test_the_shards_of_one_that_ended_are_taken_on(shop: Shop) -> None:
    """Without anybody waiting."""
    shop.create()
    for shard in range(2):
        shop.insert("a", shard=shard)
    with shop.consumer(emit_timeout=3.0, shards=[0]) as first, shop.consumer(emit_timeout=3.0) as second:
        assert second.shards == [1]
        first.leave()
        second.pause(5.0)
        assert sorted(second.shards) == [0, 1]
