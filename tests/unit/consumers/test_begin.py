# SPDX-License-Identifier: Apache-2.0
"""Where consumers begin."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, OnPoison
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    ConsumerSetupError,
    CursorBeyondFeedError,
    FutureTimeError,
    InvalidArgumentError,
    PurgedError,
)
from tests.unit.consumers.feeds import CAPTURE, NAME, Shop

SPEC = ConsumerSpec(NAME, CAPTURE)


def _seen(shop: Shop, name: str = NAME) -> list[str]:
    seen = []
    with shop.consumer(name) as consumer:
        while event := consumer.poll():
            seen.append(event.new["data"])
            consumer.consume()
    return seen


def test_earliest_sees_all_that_is_left(shop: Shop) -> None:
    """From behind what was purged."""
    shop.insert("a")
    time = shop.after_now()
    shop.insert("b")
    shop.source.seal(CAPTURE, shop.source.now())
    shop.source.purge(CAPTURE, time)
    shop.create()
    assert _seen(shop) == ["b"]


def test_latest_sees_what_comes_later(shop: Shop) -> None:
    """Not what waited in the outbox; of shards that come later, all."""
    shop.insert("a")
    shop.create(start="latest")
    shop.insert("b")
    shop.insert("c", shard=1)
    assert sorted(_seen(shop)) == ["b", "c"]


def test_a_time_and_a_ulid_begin_there(shop: Shop) -> None:
    """A time with its events, a ULID behind it; shards whose clock has not come so far begin at their end."""
    shop.insert("a")
    shop.insert("old", shard=1)
    shop.source.drain(CAPTURE)
    time = shop.after_now()
    shop.insert("b", "c")
    shop.source.drain(CAPTURE)
    head = next(status.head for status in shop.source.shards(CAPTURE) if status.shard == 0)
    shop.create("time", start=time.isoformat())
    shop.create("ulid", start=str(head.previous()))
    create_consumer(shop.source, ConsumerSpec("typed", CAPTURE), time, by="test")
    shop.insert("new", shard=1)
    assert sorted(_seen(shop, "time")) == ["b", "c", "new"]
    assert sorted(_seen(shop, "typed")) == ["b", "c", "new"]
    assert sorted(_seen(shop, "ulid")) == ["c", "new"]


def test_a_start_that_is_purged_is_refused(shop: Shop) -> None:
    """It names what is left."""
    shop.insert("a")
    shop.source.drain(CAPTURE)
    begun = shop.source.now()
    time = shop.after_now()
    shop.source.seal(CAPTURE, time)
    shop.source.purge(CAPTURE, time)
    with pytest.raises(PurgedError, match="earliest"):
        shop.create(start=(begun - timedelta(seconds=1)).isoformat())
    assert shop.source.consumers() == []


def test_a_start_in_the_future_or_beyond_the_feed_is_refused(shop: Shop) -> None:
    """By the database's clock, and by those of its shards."""
    shop.insert("a")
    shop.source.drain(CAPTURE)
    shop.later(minutes=5)
    with pytest.raises(FutureTimeError):
        shop.create(start=(shop.source.now() + timedelta(seconds=1)).isoformat())
    with pytest.raises(FutureTimeError):
        shop.create(start=str(Ulid.MAX))
    with pytest.raises(CursorBeyondFeedError):
        shop.create(start=str(Ulid.floor(shop.source.now())))
    with pytest.raises(InvalidArgumentError, match="earliest or latest"):
        shop.create(start="yesterday")
    with pytest.raises(InvalidArgumentError, match="time zone"):
        shop.create(start="2026-03-01T00:00:00")


def test_making_it_again_leaves_it_where_it_stands(shop: Shop) -> None:
    """Wherever it is told to begin; other settings are refused."""
    shop.insert("a")
    shop.create()
    assert _seen(shop) == ["a"]
    shop.insert("b")
    create_consumer(shop.source, SPEC, Beginning.LATEST, by="again")
    assert _seen(shop) == ["b"]
    with pytest.raises(ConsumerSetupError, match="other settings"):
        shop.create(on_poison=OnPoison.PARK)


def test_a_feed_without_events_is_begun(shop: Shop) -> None:
    """With all that comes."""
    for start in ("earliest", "latest", shop.source.now().isoformat(), str(Ulid.MIN)):
        shop.create(f"c{len(start)}", start=start)
    shop.later(seconds=1)
    shop.insert("a")
    for info in shop.source.consumers(CAPTURE):
        assert _seen(shop, info.spec.consumer) == ["a"]
