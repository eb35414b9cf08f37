# SPDX-License-Identifier: Apache-2.0
"""How old frontiers are, and whose are looked at; the reasons are in test_freshness_reasons.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_changefeed.consumers.run import run_consumer
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors import cursors
from airflow_changefeed.doctor.freshness import Freshness
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConsumerNotFoundError,
    FeedNotFoundError,
    FeedSetupError,
    FreshnessError,
    InvalidArgumentError,
)
from tests.unit.airflow.freshness import EXPORT, FEED, HOUR, MINUTE, OTHER, RUN, Shop, late

# ---- how old


def test_an_export_is_complete_until_the_end_of_its_last_window(shop: Shop) -> None:
    """Whether there were events in it or not; age is by the database's clock."""
    shop.write(1, 9 * HOUR)
    shop.export(9, 0)
    found = shop.only()
    assert (found.feed, found.consumer, found.complete_until) == (FEED, EXPORT, shop.hour + HOUR)
    assert found.is_fresh
    assert found.reasons == ()
    assert timedelta(0) <= found.age < 2 * HOUR


def test_an_export_that_stopped_is_late_also_in_a_feed_without_events(shop: Shop) -> None:
    """There is nothing to export, and yet nobody knows that."""
    found = late(shop).only()
    assert not found.is_fresh
    assert found.complete_until == shop.hour - 3 * HOUR
    assert 4 * HOUR <= found.age < 6 * HOUR


def test_the_oldest_shard_counts(shop: Shop) -> None:
    """A consumer is complete until where all its shards are."""
    shop.export(9, 0)
    shop.source.begin_consumer(EXPORT, FEED, {1: Ulid.floor(shop.hour - 9 * HOUR).previous()}, by=RUN)
    assert shop.only().complete_until == shop.hour - 9 * HOUR


def test_a_consumer_that_has_read_everything_is_complete_until_now(shop: Shop) -> None:
    """However long there has been nothing to read."""
    shop.consumer()
    assert shop.only().age == timedelta(0)
    shop.write(1, 9 * HOUR)
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, at_head=True)
    found = shop.only()
    assert (found.is_fresh, found.age) == (True, timedelta(0))


def test_a_consumer_is_as_old_as_the_first_event_that_it_has_not_read(shop: Shop) -> None:
    """Not as its cursor, and not as the head."""
    shop.consumer()
    shop.write(1, 9 * HOUR)
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, at_head=True)
    shop.write(2, HOUR)
    shop.write(3, MINUTE)
    assert HOUR <= shop.only().age < HOUR + MINUTE
    assert shop.only(30 * MINUTE).is_fresh is False


def test_a_lost_consumer_is_as_old_as_its_cursor(shop: Shop) -> None:
    """Also if nothing is left of what it has not read: nobody knows how much that was."""
    shop.consumer()
    shop.write(1, 9 * HOUR)
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, at_head=True)
    shop.write(2, 3 * HOUR)
    shop.source.set_up_feed(FEED, max_hold=HOUR)
    shop.source.seal(FEED, shop.source.now())
    shop.source.purge(FEED, shop.source.now())
    found = shop.only(30 * MINUTE)
    assert (found.is_fresh, found.age >= 9 * HOUR) == (False, True)
    (lost,) = [fault for fault in found.reasons if fault.kind.code == "consumer-lost"]
    assert lost.what.endswith("; max_hold of the feed is 1h")


def test_a_consumer_without_a_cursor_has_read_nothing(shop: Shop) -> None:
    """Its shards begin where it does."""
    shop.consumer()
    shop.write(1, 3 * HOUR)
    found = shop.only()
    assert 3 * HOUR <= found.age < 3 * HOUR + MINUTE
    assert "its cursor has not moved yet" in str(found)


def test_rows_that_wait_in_the_outbox_for_long_make_a_consumer_late(shop: Shop) -> None:
    """They get a time at or after the hint of the first one; rows that have just come do not make it late."""
    shop.consumer()
    shop.write(1, 9 * HOUR)
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, at_head=True)
    shop.write(2, MINUTE, drain=False)
    assert shop.only().is_fresh
    shop.sql(f'update "changefeed.outbox:{FEED}" set time_hint = time_hint - 10800000')
    found = shop.only()
    assert 3 * HOUR <= found.age < 9 * HOUR
    assert [fault.kind.code for fault in found.reasons] == ["outbox-not-drained"]


def test_a_batch_export_is_at_the_head_or_behind(shop: Shop) -> None:
    """As a consumer of events: it has no windows that must be complete."""
    shop.write(1, 9 * HOUR)
    (status,) = shop.source.shards(FEED)
    assert status.head is not None
    shop.source.begin_consumer(EXPORT, FEED, {0: Ulid.MIN}, by=RUN)
    done = {0: [UlidRange(Ulid.MIN, status.head)]}
    cursors.advance(shop.source, shop.variables, EXPORT, FEED, done, by=RUN)
    assert shop.only().age == timedelta(0)
    shop.write(2, 3 * HOUR)
    assert 3 * HOUR <= shop.only().age < 3 * HOUR + MINUTE


# ---- which


def test_all_feeds_with_consumers_are_looked_at(shop: Shop) -> None:
    """Patterns and names choose, and so does a consumer's name."""
    shop.export(9, 0)
    shop.export(9, 4, OTHER)
    shop.consumer()
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, at_head=True)
    found = shop.check()
    assert [(one.feed, one.consumer, one.is_fresh) for one in found.consumers] == [
        (FEED, "billing", True),
        (FEED, EXPORT, True),
        (OTHER, EXPORT, False),
    ]
    assert found.summary == "consumers: 3, older than 2:00:00: 1"
    assert len(shop.check(feed="shop.O*").consumers) == 2
    assert len(shop.check(feed=[OTHER, "shop.*"], consumer=EXPORT).consumers) == 2
    assert shop.only(consumer="billing").consumer == "billing"
    shop.check(feed=FEED).check()


def test_a_feed_that_cannot_be_read_does_not_hide_the_others(shop: Shop) -> None:
    """The error names it, and the consumers that are late."""
    shop.export(9, 4)
    shop.export(9, 0, OTHER)
    shop.sql(f'drop table "{OTHER}"')
    found = shop.check()
    assert [one.feed for one in found.consumers] == [FEED]
    with pytest.raises(FreshnessError) as caught:
        found.check()
    assert f"feed {FEED}, consumer {EXPORT}: complete by its cursor until" in str(caught.value)
    assert f"feed {OTHER}: FeedSetupError: " in str(caught.value)
    assert [(row["feed"], row["error"] is None) for row in caught.value.facts["rows"]] == [
        (FEED, True),
        (OTHER, False),
    ]


def test_what_is_not_there_is_no_good_news(shop: Shop) -> None:
    """A watch of nothing would be quiet for ever."""
    with pytest.raises(ConsumerNotFoundError, match=rf"no consumer in {FEED}, {OTHER}; it has none"):
        shop.check()
    shop.export(9, 0)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"feed": "shop.Cart"}, FeedNotFoundError, r"shop\.Cart"),
        ({"feed": "cart.*"}, InvalidArgumentError, "matches no feed"),
        ({"feed": OTHER}, ConsumerNotFoundError, "no consumer in shop.Parcel; it has none"),
        ({"consumer": "lake"}, ConsumerNotFoundError, f"no consumer 'lake' in .*; it has {EXPORT}"),
        ({"feed": FEED, "consumer": "lake"}, ConsumerNotFoundError, f"'lake' in {FEED}; it has {EXPORT}"),
    ]
    for options, error, message in cases:
        with pytest.raises(error, match=message):
            shop.check(**options).check()
    for feed in (FEED, OTHER):
        shop.source.drop_feed(feed)
    with pytest.raises(ConsumerNotFoundError, match="the database has no feeds"):
        shop.check()


def test_several_feeds_that_cannot_be_read_are_an_error_though_none_is_late() -> None:
    """Nobody knows how old they are."""
    errors: dict[str, ChangefeedError] = {name: FeedSetupError(f"{name} is gone") for name in ("a", "b")}
    with pytest.raises(FreshnessError, match=r"a is gone[\s\S]*b is gone"):
        Freshness(MINUTE, (), errors).check()
