# SPDX-License-Identifier: Apache-2.0
"""Polling for new events without writing: one statement, at a cost that does not grow."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.new_events import poll
from airflow_changefeed.exceptions import (
    FeedNotFoundError,
    InvalidArgumentError,
    LockTimeoutError,
    ShardNotFoundError,
)
from airflow_changefeed.sources.base import Ask, FeedStatus
from tests.integration.contract.bench import PAST, Bench, another, set_up
from tests.integration.contract.engines import Engine, Table


def begin_and_poll(bench: Bench, consumer: str, cursors: Mapping[Shard, Ulid]) -> FeedStatus:
    """Begin a consumer, and poll for its new events."""
    bench.source.begin_consumer(consumer, bench.feed, cursors, by="test")
    return bench.source.poll(bench.feed, consumer)


def test_shards_with_events_beyond_their_cursor_are_news(either: Bench) -> None:
    """A shard at its head is none; one left out stands at the beginning."""
    either.write(2, shard=1)
    either.write(2, shard=2)
    heads: dict[Shard, Ulid] = {shard: either.events(shard)[-1].ulid for shard in (1, 2)}
    assert set(either.source.poll(either.feed, "nobody").new_events) == {1, 2}
    assert begin_and_poll(either, "first", heads).new_events == {}
    cursors = {1: heads[1].previous(), 2: heads[2]}
    found = begin_and_poll(either, "second", cursors)
    assert (found.shards, found.after, set(found.new_events)) == ((1, 2), cursors, {1})
    assert (found.new_events[1].shard, found.new_events[1].head, found.new_events[1].has_outbox) == (
        1,
        heads[1],
        False,
    )
    assert set(begin_and_poll(either, "third", {1: heads[1]}).new_events) == {2}


def test_rows_in_the_outbox_are_news(bench: Bench) -> None:
    """Beside fed events, and in a shard that was never ordered."""
    bench.write(1, shard=1)
    head = bench.events(1)[-1].ulid
    bench.write(1, shard=1)
    bench.write(1, shard=3)
    found = begin_and_poll(bench, "reader", {1: head})
    assert (found.shards, found.after, set(found.new_events)) == ((1, 3), {1: head}, {1, 3})
    assert (found.new_events[1].head, found.new_events[1].has_outbox) == (None, True)
    assert (found.new_events[3].head, found.new_events[3].has_outbox) == (None, True)
    assert bench.source.poll(bench.feed, "nobody").new_events[1].head == head


def test_nothing_is_no_news(either: Bench) -> None:
    """A new feed, a cursor at the end of a sealed window, and an open transaction."""
    found = begin_and_poll(either, "early", {0: Ulid.MIN})
    assert (found.shards, found.new_events) == ((), {})
    either.write(1)
    either.events()
    until = either.after_now()
    either.seal(until)
    either.source.begin_consumer("late", either.feed, {0: Ulid.floor(until).previous()}, by="test")
    with either.transaction() as writer:
        either.insert(writer)
        assert either.impatient().poll(either.feed, "late").new_events == {}
        writer.commit()
    assert set(either.source.poll(either.feed, "late").new_events) == {0}


def test_news_of_a_shard_that_a_writer_holds_are_seen(either: Bench) -> None:
    """Writers that follow each other without a gap cannot hide what is committed from who has begun."""
    either.write(1)
    cursor = either.events()[0].ulid.previous()
    either.source.begin_consumer("reader", either.feed, {0: cursor}, by="test")
    with either.transaction() as writer:
        either.insert(writer)
        assert set(either.impatient().poll(either.feed, "reader").new_events) == {0}


def test_each_consumer_and_feed_has_its_own_cursors(either: Bench) -> None:
    """Those of another consumer, and of another feed, do not count."""
    other = another(either, "a.Other")
    either.write(1)
    other.write(1)
    head = either.events()[-1].ulid
    assert begin_and_poll(either, "reader", {0: head}).new_events == {}
    assert set(either.source.poll(either.feed, "nobody").new_events) == {0}
    assert either.source.poll(either.feed, "nobody").after == {}
    assert set(other.source.poll(other.feed, "reader").new_events) == {0}


def test_names_of_consumers_are_told_apart_whatever_they_hold(bench: Bench) -> None:
    """Quotes and wide characters are letters; what cannot be a name is refused."""
    bench.write(1)
    head = bench.events()[-1].ulid
    for consumer in ("it's", "]'; throw 1--", "Ünï", "q?{x}"):
        assert begin_and_poll(bench, consumer, {0: head}).after == {0: head}
    for consumer in ("", "a\0b", "a:b", "a" * 129):
        with pytest.raises(InvalidArgumentError, match="is not a valid name"):
            bench.source.poll(bench.feed, consumer)


def test_a_look_tells_the_clock(either: Bench) -> None:
    """The database's present time, as it was before the look."""
    before = either.source.now()
    at = either.source.poll(either.feed, "reader").at
    assert before <= at <= either.source.now()


def test_a_feed_that_was_made_anew_is_looked_at_as_it_is(either: Bench) -> None:
    """What an earlier look has learned of the feed that had the name is not believed."""
    either.write(1)
    either.events()
    assert set(either.source.poll(either.feed, "reader").new_events) == {0}
    either.source.drop_feed(either.feed)
    with pytest.raises(FeedNotFoundError, match=either.feed):
        either.source.poll(either.feed, "reader")
    either.source.set_up_feed(either.feed, kind=either.table.kind)
    assert either.source.poll(either.feed, "reader").shards == ()
    either.write(1, shard=5)
    assert set(either.source.poll(either.feed, "reader").new_events) == {5}


def test_a_name_in_other_letters_is_no_feed(either: Bench) -> None:
    """Also where the database compares names without regard to case; the error says which one is meant."""
    with pytest.raises(FeedNotFoundError, match=rf"{either.feed.upper()}.*Did you mean '{either.feed}'\?"):
        either.source.poll(either.feed.upper(), "reader")


@pytest.mark.parametrize("name", ["", "a" * 200, "no.Such'; select 1", "no.Su]ch", 'no.Su"ch'])
def test_a_name_that_no_feed_can_have_is_refused(bench: Bench, name: str) -> None:
    """It is not found, as any other name that is not there."""
    with pytest.raises(FeedNotFoundError):
        bench.source.poll(name, "reader")


def test_a_look_is_one_statement(either: Bench) -> None:
    """Clock, feed, shards and cursors are asked for together: a sensor's poke costs one question."""
    either.write(2, shard=1)
    either.events(1)
    either.write(2, shard=2)
    end = either.source.now() - timedelta(hours=1)
    either.source.begin_consumer("reader", either.feed, {1: Ulid.MIN}, by="test")

    def asked(shards: list[Shard] | None, window_end: datetime | None) -> int:
        return either.engine.asked(lambda source: poll(source, either.feed, "reader", shards, window_end))

    assert asked(None, None) == 1
    assert asked([1], end) == 1
    assert asked([9], end + timedelta(days=1)) == 1


def test_many_looks_find_what_each_alone_finds(either: Bench) -> None:
    """In the order of asking: of other feeds, of several consumers of one, of nobody, and asked twice."""
    other = another(either, "a.Other")
    for bench in (either, other):
        bench.write(2, shard=1)
        bench.events(1)
        bench.write(1, shard=2)
    head = either.events(1)[-1].ulid
    either.source.begin_consumer("at head", either.feed, {1: head}, by="test")
    either.source.begin_consumer("behind", either.feed, {1: head.previous(), 2: Ulid.MIN}, by="test")
    other.source.begin_consumer("behind", other.feed, {2: Ulid.MIN}, by="test")
    asks: list[Ask] = [
        (other.feed, "behind"),
        (either.feed, "behind"),
        (either.feed, "at head"),
        (either.feed, "nobody"),
        (either.feed, "behind"),
    ]
    alone = [either.source.poll(feed, consumer or "") for feed, consumer in asks]
    together = [peek_of(found) for found in either.source.poll_many(asks)]
    assert [replace(found, at=PAST) for found in together] == [replace(found, at=PAST) for found in alone]
    assert [set(found.new_events) for found in together] == [{1, 2}, {1, 2}, {2}, {1, 2}, {1, 2}]
    (nobody,) = either.source.poll_many([(either.feed, None)])
    assert (peek_of(nobody).after, peek_of(nobody).new_events) == ({}, together[3].new_events)
    assert either.source.poll_many([]) == []


def test_a_look_tells_the_heads_whatever_the_cursors_are(bench: Bench) -> None:
    """For who keeps cursors of their own; a shard whose events all wait in the outbox has none."""
    bench.write(2, shard=1)
    head = bench.events(1)[-1].ulid
    bench.write(1, shard=2)
    found = begin_and_poll(bench, "reader", {1: head})
    assert (found.heads, set(found.new_events)) == ({1: head}, {2})


def test_one_bad_ask_ends_no_other(either: Bench) -> None:
    """A feed that is not there or was dropped, a name that is none: each is the answer to who asked so."""
    other = another(either, "a.Other")
    either.write(1)
    either.source.drop_feed(other.feed)
    found = either.source.poll_many(
        [
            (other.feed, "reader"),
            ("no.Su]ch'", "a"),
            (either.feed, "a:b"),
            (either.feed, "reader"),
            ("", None),
        ]
    )
    assert [type(one) for one in found] == [
        FeedNotFoundError,
        FeedNotFoundError,
        InvalidArgumentError,
        FeedStatus,
        FeedNotFoundError,
    ]
    assert other.feed in str(found[0])
    assert either.feed in str(found[0])
    assert set(peek_of(found[3]).new_events) == {0}


def test_many_looks_are_one_question(engine: Engine) -> None:
    """A thousand who ask about ten feeds cost as many questions as ten, and no more than one each."""
    benches = [set_up(engine, Table(name=f"many.Feed{number}")) for number in range(10)]
    for bench in benches:
        bench.write(1)
    asks: list[Ask] = [(bench.feed, f"reader {number}") for number in range(100) for bench in benches]
    source = benches[0].source
    source.begin_consumer("reader 7", benches[3].feed, {0: Ulid.MIN}, by="test")
    asked = {
        len(some): engine.asked(lambda source, some=some: source.poll_many(some))
        for some in (asks[:10], asks)
    }
    # A server is asked once; the embedded source runs a statement for each feed, on one connection.
    expected = 1 if source.capabilities.needs_install else len(benches)
    assert asked == {10: expected, 1000: expected}
    assert all(set(peek_of(found).new_events) == {0} for found in source.poll_many(asks))


def peek_of(found: FeedStatus | Exception) -> FeedStatus:
    """Return what was found, where it is no error."""
    assert isinstance(found, FeedStatus), found
    return found


def test_only_who_asks_for_a_shard_that_never_was_is_refused(either: Bench) -> None:
    """When the window has ended; until then it may come."""
    either.write(1, shard=1)
    either.events(1)
    end = either.source.now()
    assert not poll(either.source, either.feed, "reader", [2], end + timedelta(hours=1)).is_ready
    with pytest.raises(ShardNotFoundError, match=r"shard 2; it has 1"):
        poll(either.source, either.feed, "reader", [2], end)
    assert poll(either.source, either.feed, "reader", [1], end).has_ended


def test_a_shard_that_a_writer_holds_is_not_taken_for_one_that_never_was(either: Bench) -> None:
    """Before it is refused it is asked for again, and that waits for the writer."""
    either.write(1, shard=1)
    either.events(1)
    end = either.source.now()
    with either.transaction() as writer:
        either.insert(writer, shard=1)
        with suppress(LockTimeoutError):
            assert set(poll(either.impatient(), either.feed, "nobody", [1], end).new_events) == {1}
    assert set(poll(either.source, either.feed, "nobody", [1], end).new_events) == {1}


def test_looking_writes_nothing(either: Bench) -> None:
    """A sensor of many feeds must not order events, nor take a lock."""
    either.write(3)
    with either.engine.watch() as has_changed:
        either.source.poll(either.feed, "reader")
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
        return bench.engine.work(lambda source: source.poll(bench.feed, "reader"))

    bench.write(50)
    bench.write(50, shard=1)
    small = work()
    bench.write(5_000)
    bench.write(5_000, shard=1)
    assert work() <= 1.5 * small
