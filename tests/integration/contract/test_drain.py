# SPDX-License-Identifier: Apache-2.0
"""Draining: ordering what is committed, by whoever comes first."""

from __future__ import annotations

import pytest

from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import LockTimeoutError
from tests.integration.contract.bench import Bench


def test_a_drain_says_how_many_events_it_ordered(bench: Bench) -> None:
    """For each shard that had any; a second one has nothing left."""
    bench.write(3, shard=1)
    bench.write(2, shard=2)
    assert bench.source.drain(bench.feed) == {1: 3, 2: 2}
    assert bench.source.drain(bench.feed) == {}
    bench.write(1, shard=2)
    assert bench.source.drain(bench.feed) == {2: 1}


def test_drained_events_are_in_the_feed(bench: Bench) -> None:
    """They can be counted and streamed, which never looks at the outbox."""
    bench.write(5)
    everything = UlidRange(Ulid.MIN, Ulid.MAX)
    assert bench.source.count(bench.feed, 0, [everything]) == [0]
    bench.source.drain(bench.feed)
    assert bench.source.count(bench.feed, 0, [everything]) == [5]
    assert len(bench.fed()) == 5
    assert not bench.status().has_outbox


def test_more_rows_than_one_round_takes_are_all_ordered(bench: Bench) -> None:
    """A large transaction is drained whole and in order."""
    keys = bench.write(25_000)
    assert bench.source.drain(bench.feed) == {0: 25_000}
    assert bench.keys(page_size=100_000) == keys


def test_a_feed_of_serialized_writers_has_nothing_to_drain(serialized: Bench) -> None:
    """Its events are in the feed when they are committed."""
    keys = serialized.write(2)
    assert serialized.source.drain(serialized.feed) == {}
    assert serialized.table.kind is FeedKind.SERIALIZED
    assert len(serialized.fed()) == len(keys)


def test_an_open_writer_does_not_stall_a_drain_where_writers_are_parallel(bench: Bench) -> None:
    """Else it waits, and times out as transient; either way nothing is lost."""
    committed = bench.write(2)
    source = bench.impatient()
    with bench.transaction() as writer:
        open_ = bench.insert(writer)
        if source.capabilities.parallel_writers:
            assert source.drain(bench.feed) == {0: 2}
        else:
            with pytest.raises(LockTimeoutError) as caught:
                source.drain(bench.feed)
            assert caught.value.transient
        writer.commit()
    assert bench.keys() == committed + open_


def test_a_failed_drain_leaves_everything_to_the_next(bench: Bench) -> None:
    """An interrupted page read or drain loses and doubles nothing."""
    keys = bench.write(3)
    with bench.transaction() as writer:
        bench.insert(writer)
        if not bench.source.capabilities.parallel_writers:
            with pytest.raises(LockTimeoutError):
                bench.impatient().read_feed(bench.feed, 0, Ulid.MIN)
        writer.rollback()
    assert bench.keys() == keys
