# SPDX-License-Identifier: Apache-2.0
"""``maintain_feeds``: what SQL Server Agent calls for all feeds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.mssql.server import Client

FEEDS = ("myservice.MaintainedA", "myservice.MaintainedB")
MAINTAIN = "exec changefeed.maintain_feeds"


@pytest.fixture
def feeds(client: Client) -> Iterator[Client]:
    """Give two feeds with one old event each, waiting."""
    for feed in FEEDS:
        client.results(f"create table {feed} (id int not null primary key)")
        client.results(f"exec changefeed.setup_feed N'{feed}', @outbox = 1")
        _write(client, feed, 1, "2020-01-01")
    yield client
    for feed in FEEDS:
        client.results(f"exec changefeed.drop_feed N'{feed}'")
        client.results(f"drop table {feed}")


def _write(client: Client, feed: str, number: int, hint: str) -> None:
    client.results(
        f"insert into [changefeed].[outbox:{feed}] (time_hint, id) values ('{hint}', {number}); "
        f"insert into {feed} (id) values ({number})"
    )


def _count(client: Client, what: str, feed: str) -> int:
    return int(client.value(f"select count(*) from [changefeed].[{what}:{feed}]"))


def test_it_drains_all_feeds(feeds: Client) -> None:
    """Nothing is sealed or purged."""
    feeds.results(MAINTAIN)
    said = "\n".join(feeds.printed)
    assert [said.count(f"feed {feed}") for feed in FEEDS] == [1, 1]
    for feed in FEEDS:
        assert (_count(feeds, "outbox", feed), _count(feeds, "feed", feed)) == (0, 1)
        assert feeds.value("select year(floor_time) from changefeed.feeds where name = ?", feed) == 1970


def test_it_seals_and_purges_all_feeds(feeds: Client) -> None:
    """Up to the time, also feeds that nobody else seals; it may be repeated."""
    for feed in FEEDS:
        _write(feeds, feed, 2, "2021-01-01")
    for _ in range(2):
        feeds.results(f"{MAINTAIN} @purge_before = '2020-06-01'")
        for feed in FEEDS:
            assert (_count(feeds, "outbox", feed), _count(feeds, "feed", feed)) == (0, 1)
            assert feeds.value("select month(floor_time) from changefeed.feeds where name = ?", feed) == 6


def test_a_feed_that_fails_does_not_keep_the_others(feeds: Client) -> None:
    """It is named with its reason in the end."""
    feeds.results(MAINTAIN)
    # Sealed until then, so that only the other one is to be sealed in the future.
    feeds.results(f"update changefeed.feeds set floor_time = '2999-01-01' where name = N'{FEEDS[1]}'")
    call = f"{MAINTAIN} @purge_before = '2998-01-01'"
    feeds.fails(
        77159, call, "feeds were not purged", f'"{FEEDS[0]}": changefeed 77103', "The others are done"
    )
    assert [_count(feeds, "feed", feed) for feed in FEEDS] == [1, 0]


def test_a_time_to_come_is_refused_by_each_feed(feeds: Client) -> None:
    """As a seal refuses it, and nothing goes."""
    feeds.results(MAINTAIN)
    feeds.fails(
        77159, f"{MAINTAIN} @purge_before = '2999-01-01'", "feeds were not purged", "cannot be sealed"
    )
    assert [_count(feeds, "feed", feed) for feed in FEEDS] == [1, 1]


@pytest.mark.parametrize("before", ["1970-01-01", "1926-01-01"])
def test_a_time_before_all_feeds_purges_nothing(feeds: Client, before: str) -> None:
    """Who keeps events for a century must not lose them."""
    for feed in FEEDS:
        feeds.results(f"exec changefeed.[seal_feed:{feed}] @until = '2021-01-01'")
    feeds.results(f"{MAINTAIN} @purge_before = '{before}'")
    assert [_count(feeds, "feed", feed) for feed in FEEDS] == [1, 1]
    assert feeds.value(f"select purged_upto from changefeed.[state:{FEEDS[0]}]") == bytes(16)


def test_it_wants_no_transaction(feeds: Client) -> None:
    """It would hold all locks to its end."""
    feeds.fails(77100, f"begin transaction; {MAINTAIN}", "outside of any transaction")
