# SPDX-License-Identifier: Apache-2.0
"""A feed that is opened for one operation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import FeedNotFoundError
from airflow_changefeed.sources.base import OpenFeed
from tests.integration.contract.bench import PAST, Bench

#: Everything, as a range.
ALL = UlidRange(Ulid.MIN, Ulid.MAX)


def test_a_feed_that_is_open_answers_as_the_source_does(either: Bench) -> None:
    """Its methods take no name, and see what came after it was opened."""
    source, feed = either.source, either.feed
    either.write(3, hint=PAST)
    with source.open(feed) as found:
        assert (found.info, found.database) == (source.feed(feed), source.identity().id)
        assert found.opened_at <= source.now()
        assert found.schema() == source.schema(feed)
        either.write(2, shard=7)
        until = either.after_now()
        assert found.seal(until) == source.seal(feed, until)
        state = found.state("export")
        assert list(state.shards.values()) == source.shards(feed)
        assert (state.cursors, list(state.marks)) == ({}, source.stale_marks(feed))
        assert found.counts({0: [ALL], 7: [ALL]}) == {0: [3], 7: [2]}
        assert found.counts({}) == {}
        assert found.split(0, ALL, 2, rows=3) == found.split(0, ALL, 2)


def test_an_export_begins_and_draws_a_token_in_one_call(bench: Bench) -> None:
    """Once more it begins nothing, and draws a higher one."""
    bench.write(1)
    bench.write(1, shard=7)
    bench.seal(bench.after_now())
    starts = dict.fromkeys((0, 7), Ulid.MIN)
    with bench.source.open(bench.feed) as found:
        first = found.begin_export("export", starts, by="test", above=41)
        rows = bench.source.cursors(bench.feed, "export")
        assert first > 41
        assert [(row.shard, row.ulid, row.moved_by) for row in rows] == [
            (0, Ulid.MIN, "test"),
            (7, Ulid.MIN, "test"),
        ]
        assert found.begin_export("export", starts, by="another") > first
        assert found.begin_export("export", {}, by="another") > first + 1
        assert found.state("export").cursors == {row.shard: row for row in rows}
    assert bench.source.cursors(bench.feed, "export") == rows
    assert len(bench.source.history(bench.feed, "export")) == 2


def test_an_unknown_feed_cannot_be_opened(bench: Bench) -> None:
    """The error has the feeds that there are."""
    with (
        pytest.raises(FeedNotFoundError, match="not found") as raised,
        bench.source.open("myservice.Nothing"),
    ):
        pass
    assert raised.value.facts["known"] == [bench.feed]


@pytest.mark.parametrize(
    "call",
    [
        lambda found, bench: found.seal(bench.source.now()),
        lambda found, bench: found.state("export"),
        lambda found, bench: found.counts({0: [ALL]}),
        lambda found, bench: found.begin_export("export", {0: Ulid.MIN}, by="test"),
    ],
    ids=["seal", "state", "counts", "begin_export"],
)
def test_a_feed_that_was_dropped_meanwhile_is_missed(
    bench: Bench, call: Callable[[OpenFeed, Bench], object]
) -> None:
    """By the statement that relies on it; nothing is written for it."""
    bench.write(1)
    bench.seal(bench.after_now())
    with bench.source.open(bench.feed) as found:
        bench.source.drop_feed(bench.feed)
        with pytest.raises(FeedNotFoundError):
            call(found, bench)
    assert bench.source.feeds() == []


def test_a_feed_that_was_made_again_meanwhile_is_sealed_as_it_is(bench: Bench) -> None:
    """A seal of the feed before it does not count as its own."""
    bench.write(1)
    until = bench.after_now()
    bench.seal(until)
    with bench.source.open(bench.feed) as found:
        bench.source.drop_feed(bench.feed)
        bench.source.set_up_feed(bench.feed)
        found.seal(until)
    assert bench.source.feed(bench.feed).sealed_until == until
