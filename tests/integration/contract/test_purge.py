# SPDX-License-Identifier: Apache-2.0
"""Purging: what is gone, what is held back, and what readers are told."""

from __future__ import annotations

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import EPOCH
from airflow_changefeed.sources.base_consumers import CursorMove
from airflow_changefeed.sources.base_control import Purged
from tests.integration.contract.bench import HOUR, PAST, Bench, another


def _fill(bench: Bench, hours: int = 4, shard: int = 0) -> list[Ulid]:
    """Feed three events in each hour, and seal."""
    for hour in range(hours):
        bench.write(3, shard=shard, hint=PAST + HOUR * hour)
    ulids = [event.ulid for event in bench.events(shard)]
    bench.seal()
    return ulids


def _ack(bench: Bench, consumer: str, ack: Ulid) -> None:
    source = bench.source
    (row,) = source.cursors(bench.feed, consumer)
    (token,) = source.acquire_leases(
        consumer, bench.feed, [row.shard], holder="test", seconds=60, all_or_none=True
    ).tokens.values()
    frontier = row.frontier.complete(UlidRange(row.frontier.start, ack))
    move = CursorMove(row.shard, frontier, row.resource_version, token, ack)
    source.move_cursors(consumer, bench.feed, [move], by="test")
    source.release_leases(consumer, bench.feed, {row.shard: token}, holder="test")


def test_events_below_a_time_are_removed(bench: Bench) -> None:
    """Those and no others, and the event table keeps its rows."""
    ulids = _fill(bench)
    upto = Ulid.floor(PAST + HOUR * 2).previous()
    assert bench.source.purge(bench.feed, PAST + HOUR * 2) == [Purged(0, 6, upto)]
    assert bench.status().purged_upto == upto
    assert [event.ulid for event in bench.events(after=upto)] == ulids[6:]
    assert len(bench.engine.keys(bench.table)) == 12


def test_a_purge_until_the_start_of_all_feeds_removes_nothing(either: Bench) -> None:
    """No event is older than 1970."""
    _fill(either, hours=1)
    (purged,) = either.source.purge(either.feed, EPOCH)
    assert (purged.rows, purged.upto) == (0, Ulid.MIN)
    assert either.status().purged_upto == Ulid.MIN


def test_a_dry_run_says_the_same_and_removes_nothing(bench: Bench) -> None:
    """What it says is what the purge then does."""
    _fill(bench)
    with bench.engine.watch() as has_changed:
        said = bench.source.purge(bench.feed, PAST + HOUR * 2, dry_run=True)
        assert not has_changed()
    assert bench.source.purge(bench.feed, PAST + HOUR * 2) == said
    assert said[0].rows == 6


def test_small_batches_remove_as_much(bench: Bench) -> None:
    """In any size of batch, on a border or not."""
    for batch_rows in (1, 2, 3):
        ulids = _fill(bench, 1, shard=batch_rows)
        found = {
            purged.shard: purged.rows
            for purged in bench.source.purge(bench.feed, PAST + HOUR, batch_rows=batch_rows)
        }
        assert found[batch_rows] == sum(ulid < Ulid.floor(PAST + HOUR) for ulid in ulids)


def test_an_unsealed_window_is_never_purged(bench: Bench) -> None:
    """An event could still come into it."""
    bench.write(2, hint=PAST)
    bench.write(2, hint=PAST + HOUR)
    bench.events()
    assert [purged.rows for purged in bench.source.purge(bench.feed, PAST + HOUR * 5)] == [0]
    assert len(bench.events()) == 4
    bench.seal(PAST + HOUR)
    sealed = bench.status().sealed_until
    (purged,) = bench.source.purge(bench.feed, PAST + HOUR * 5)
    assert sealed is not None
    assert purged.upto < Ulid.floor(sealed)


def test_the_lowest_ack_holds_the_purge_back(bench: Bench) -> None:
    """Of all consumers; what it has acknowledged goes, what it needs stays."""
    ulids = _fill(bench)
    for consumer in ("fast", "slow"):
        bench.source.begin_consumer(consumer, bench.feed, {0: Ulid.MIN}, by="test")
    before = PAST + HOUR * 4
    assert bench.source.purge(bench.feed, before)[0].rows == 0
    _ack(bench, "fast", ulids[8])
    assert bench.source.purge(bench.feed, before)[0].rows == 0
    _ack(bench, "slow", ulids[3])
    assert bench.source.purge(bench.feed, before) == [Purged(0, 4, ulids[3])]
    assert [event.ulid for event in bench.events(after=ulids[3])] == ulids[4:]


def test_a_consumer_without_a_cursor_in_a_shard_still_needs_it(bench: Bench) -> None:
    """It has not seen the new shard yet."""
    _fill(bench, 2)
    bench.source.begin_consumer("export", bench.feed, {9: Ulid.MIN}, by="test")
    assert [purged.rows for purged in bench.source.purge(bench.feed, PAST + HOUR)] == [0]


def test_a_dropped_consumer_holds_nothing_back(bench: Bench) -> None:
    """Forgetting it frees what it held."""
    _fill(bench)
    bench.source.begin_consumer("gone", bench.feed, {0: Ulid.MIN}, by="test")
    assert bench.source.purge(bench.feed, PAST + HOUR)[0].rows == 0
    bench.source.drop_consumer("gone", bench.feed)
    assert bench.source.purge(bench.feed, PAST + HOUR)[0].rows == 3


def test_a_purge_never_goes_back(bench: Bench) -> None:
    """What is gone stays gone, also when an earlier time is asked for afterwards."""
    _fill(bench)
    (first,) = bench.source.purge(bench.feed, PAST + HOUR * 2)
    (second,) = bench.source.purge(bench.feed, PAST + HOUR)
    assert (second.rows, second.upto) == (0, first.upto)
    assert bench.status().purged_upto == first.upto


def test_a_purged_feed_goes_on(bench: Bench) -> None:
    """Also one of which everything is gone: new ULIDs are above all old ones."""
    ulids = _fill(bench, 1)
    bench.source.purge(bench.feed, bench.source.now())
    assert bench.status().head is None
    keys = bench.write(2, hint=PAST)
    events = bench.events(after=bench.status().purged_upto)
    assert [event.key for event in events] == keys
    assert events[0].ulid > ulids[-1]


def test_the_outbox_is_not_purged(bench: Bench) -> None:
    """What was never ordered was never read."""
    _fill(bench, 1)
    keys = bench.write(2, hint=PAST)
    (purged,) = bench.source.purge(bench.feed, bench.source.now())
    assert bench.keys(after=purged.upto) == keys


def test_acks_of_one_feed_do_not_hold_another(bench: Bench) -> None:
    """Feeds are purged for themselves."""
    other = another(bench, "a.Other")
    _fill(bench)
    _fill(other)
    other.source.begin_consumer("export", other.feed, {0: Ulid.MIN}, by="test")
    assert bench.source.purge(bench.feed, PAST + HOUR)[0].rows == 3
    assert other.source.purge(other.feed, PAST + HOUR)[0].rows == 0


def test_a_serialized_feeds_rows_are_its_users(serialized: Bench) -> None:
    """A purge says what is no longer promised, and touches no row."""
    serialized.write(2, hint=PAST)
    serialized.seal()
    serialized.source.purge(serialized.feed, PAST + HOUR)
    assert len(serialized.engine.keys(serialized.table)) == 2
    assert serialized.status().purged_upto == Ulid.floor(PAST + HOUR).previous()
