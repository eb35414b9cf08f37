# SPDX-License-Identifier: Apache-2.0
"""Reading pages: the result contract of mssql-changefeed's ``read_feed``."""

from __future__ import annotations

import uuid
from datetime import timedelta
from itertools import pairwise

import pytest

from airflow_changefeed.core.feed import FeedKind, Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import CursorBeyondFeedError, InvalidArgumentError, PurgedError
from airflow_changefeed.sources.base import MAX_PAGE_SIZE
from tests.integration.contract.bench import PAST, Bench, set_up
from tests.integration.contract.engines import Engine, Table


@pytest.mark.parametrize("page_size", [1, 2, 7, 1000])
def test_pages_in_a_row_give_each_event_once_in_ascending_order(either: Bench, page_size: int) -> None:
    """No page is larger than asked: all events, once, ascending, in the order of their transactions."""
    written = either.write(4, shard=7) + either.write(1, shard=7) + either.write(5, shard=7)
    page = either.source.read_feed(either.feed, 7, Ulid.MIN, page_size)
    assert 0 < len(page) <= page_size
    assert (page.shard, page.last) == (7, page.events[-1].ulid)
    events = either.events(7, page_size=page_size)
    assert [event.key for event in events] == written
    assert all(one.ulid < two.ulid for one, two in pairwise(events))


def test_reading_again_gives_the_same(either: Bench) -> None:
    """The first reader orders, the tenth reads the same order."""
    either.write(5)
    first = either.events(page_size=2)
    either.write(3)
    assert either.events()[:5] == first


def test_the_cursor_is_exclusive(either: Bench) -> None:
    """Reading after an event's ULID begins with the next event."""
    either.write(4)
    events = either.events()
    for number, event in enumerate(events):
        assert either.events(after=event.ulid) == events[number + 1 :]
    assert either.events(after=events[1].ulid.previous()) == events[1:]


def test_an_empty_page_means_the_head(either: Bench) -> None:
    """And later events are found from the same cursor."""
    either.write(2)
    last = either.events()[-1].ulid
    assert len(either.source.read_feed(either.feed, 0, last)) == 0
    assert either.source.read_feed(either.feed, 0, last).last is None
    later = either.write(2)
    assert either.keys(after=last) == later


def test_a_shard_without_events_gives_an_empty_page(either: Bench) -> None:
    """A reader may wait for a shard's first event."""
    assert len(either.source.read_feed(either.feed, 5, Ulid.MIN)) == 0
    keys = either.write(1, shard=5)
    assert either.keys(shard=5) == keys


def test_shards_are_independent(either: Bench) -> None:
    """Each shard gives its own events only."""
    with either.transaction() as writer:
        keys: dict[Shard, list[tuple[object, ...]]] = {0: [], 1: [], -3: []}
        for _ in range(3):
            for shard in keys:
                keys[shard] += either.insert(writer, shard=shard)
        writer.commit()
    assert {shard: either.keys(shard) for shard in keys} == keys
    assert {status.shard for status in either.source.shards(either.feed)} == set(keys)


def test_page_sizes_out_of_range_are_refused(either: Bench) -> None:
    """1 to 100,000 rows."""
    either.write(1)
    for page_size in (0, -1, MAX_PAGE_SIZE + 1):
        with pytest.raises(InvalidArgumentError, match="page_size"):
            either.source.read_feed(either.feed, 0, Ulid.MIN, page_size)
    assert len(either.source.read_feed(either.feed, 0, Ulid.MIN, MAX_PAGE_SIZE)) == 1


def test_a_cursor_beyond_the_clock_is_refused(either: Bench) -> None:
    """It belongs elsewhere, or the database was restored; reading on would skip events."""
    either.write(1)
    last = either.events()[-1].ulid
    beyond = Ulid.floor(either.source.now() + timedelta(days=1))
    for cursor in (beyond, Ulid.MAX):
        with pytest.raises(CursorBeyondFeedError) as caught:
            either.source.read_feed(either.feed, 0, cursor)
        assert not caught.value.transient
    assert either.events(after=last) == []


def test_a_cursor_at_the_end_of_a_sealed_window_is_good(either: Bench) -> None:
    """``floor(end) - 1``, whether or not an event stands there."""
    either.write(1)
    until = either.after_now()
    either.seal(until)
    cursor = Ulid.floor(until).previous()
    assert either.events(after=cursor) == []
    later = either.write(2)
    assert either.keys(after=cursor) == later


def test_a_cursor_below_what_was_purged_is_refused(bench: Bench) -> None:
    """Events would be missing without a word."""
    bench.write(2, hint=PAST)
    kept = bench.write(1)
    bench.events()
    bench.seal()
    (purged,) = bench.source.purge(bench.feed, PAST + timedelta(hours=1))
    with pytest.raises(PurgedError):
        bench.source.read_feed(bench.feed, 0, Ulid.MIN)
    with pytest.raises(PurgedError):
        bench.source.read_feed(bench.feed, 0, purged.upto.previous())
    assert bench.keys(after=purged.upto) == kept


@pytest.mark.parametrize("kind", ["tinyint", "smallint", "bigint"])
def test_shards_outside_of_their_type_are_refused(engine: Engine, kind: str) -> None:
    """A wrong shard is an error, not an empty page."""
    bench = set_up(engine, Table(), shard_key_type=kind)
    for shard in (1 << 70, uuid.uuid4()):
        with pytest.raises(InvalidArgumentError):
            bench.source.read_feed(bench.feed, shard, Ulid.MIN)
    keys = bench.write(1, shard=200)
    assert bench.keys(200) == keys


@pytest.mark.parametrize("kind", list(FeedKind), ids=lambda kind: kind.value)
def test_shards_may_be_uuids(engine: Engine, kind: FeedKind) -> None:
    """Everything that takes or gives a shard gives back a UUID."""
    bench = set_up(engine, Table(kind=kind, shard_type="uuid"), shard_key_type="uniqueidentifier")
    one, two = uuid.UUID("ABCDEF00-0000-4000-8000-00000000000A"), uuid.uuid4()
    keys = {shard: bench.write(2, shard=shard) for shard in (one, two)}
    assert set(bench.source.poll(bench.feed, "reader").new_events) == {one, two}
    assert {shard: bench.keys(shard) for shard in (one, two)} == keys
    assert set(bench.seal()) == {one, two}
    assert {status.shard for status in bench.source.shards(bench.feed)} == {one, two}
    assert len(bench.fed(one)) == 2
    bench.source.begin_consumer("export", bench.feed, {one: Ulid.MIN}, by="test")
    assert set(
        bench.source.acquire_leases(
            "export", bench.feed, [one], holder="me", seconds=60, all_or_none=True
        ).tokens
    ) == {one}
    assert {purged.shard for purged in bench.source.purge(bench.feed, PAST)} == {one, two}


def test_reading_what_is_in_the_feed_waits_for_nobody(either: Bench) -> None:
    """An open transaction does not hold up a reader of older events."""
    keys = either.write(3)
    either.events()
    source = either.impatient()
    with either.transaction() as writer:
        either.insert(writer)
        assert [event.key for event in source.read_feed(either.feed, 0, Ulid.MIN)] == keys
        writer.rollback()


def test_the_state_of_a_shard_is_told(either: Bench) -> None:
    """Head, clock and what waits."""
    either.write(2, hint=PAST)
    if not either.is_serialized:
        assert either.status().has_outbox
        assert either.status().head is None
    last = either.events()[-1].ulid
    status = either.status()
    assert not status.has_outbox
    assert (status.head, status.high_water) == (last, PAST)
    assert (status.sealed_until, status.purged_upto) == (None, Ulid.MIN)
