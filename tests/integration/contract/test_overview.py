# SPDX-License-Identifier: Apache-2.0
"""``overview``: feeds at one glance, with what waits in each shard and how far its consumers are behind."""

from __future__ import annotations

import uuid
from contextlib import closing, suppress
from datetime import timedelta

import pytest

from airflow_changefeed.core import consumer as core
from airflow_changefeed.core.consumer import ConsumerSpec, FeedOverview, ShardOverview
from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import CaptureGapError, FeedNotFoundError, InvalidArgumentError
from airflow_changefeed.sources.base import FeedSource
from tests.integration.contract.bench import IMPATIENT, Bench, another, set_up
from tests.integration.contract.captures import AUTHOR, CAPTURE, set_up_author
from tests.integration.contract.engines import Engine, Table

#: The table of a feed's shards, in each engine.
STATE = {"sqlite": '"changefeed.state:{}"', "mssql": "[changefeed].[state:{}]"}


def _of(bench: Bench) -> FeedOverview:
    (found,) = bench.source.overview([bench.feed])
    return found


def _behind(shard: ShardOverview) -> dict[str, int]:
    return {position.row.consumer: position.behind for position in shard.consumers}


def test_an_overview_says_what_the_reads_say(either: Bench) -> None:
    """Feed, shards, consumers and cursors: the same values as one gets of each alone."""
    for shard in (2, 0, 10):
        either.write(2, shard=shard)
        either.events(shard)
    either.seal()
    either.write(3, shard=2)
    source = either.source
    source.begin_consumer("export", either.feed, {0: Ulid.MIN, 2: either.events(2)[0].ulid}, by="test")
    source.create_consumer(
        ConsumerSpec("events", either.feed), begin=Ulid.MIN, starts={10: Ulid.MIN}, by="test"
    )
    found = _of(either)
    assert found.info == source.feed(either.feed)
    assert [shard.status for shard in found.shards] == source.shards(either.feed)
    assert [shard.shard for shard in found.shards] == [0, 2, 10]
    assert found.shard_count == 3
    assert list(found.consumers) == source.consumers(either.feed)
    rows = [position.row for shard in found.shards for position in shard.consumers]
    assert sorted(rows, key=repr) == sorted(source.cursors(either.feed), key=repr)


def test_it_counts_what_waits_and_how_far_each_consumer_is_behind(bench: Bench) -> None:
    """Rows in the outbox, and events in the feed beyond the cursor; what waits is not yet behind."""
    bench.write(5, shard=0)
    bench.write(2, shard=1)
    events = bench.events(0)
    source = bench.source
    begun = source.now()
    for seconds in (2, 1):
        bench.write(1, shard=0, hint=begun + timedelta(seconds=seconds))
    bench.write(1, shard=0)
    source.begin_consumer("early", bench.feed, {0: Ulid.MIN}, by="test")
    source.begin_consumer("late", bench.feed, {0: events[3].ulid, 1: Ulid.MIN}, by="test")
    source.begin_consumer("at its head", bench.feed, {0: events[-1].ulid}, by="test")
    first, second = _of(bench).shards
    assert (first.shard, first.waiting, first.status.has_outbox) == (0, 3, True)
    assert first.waiting_since == begun + timedelta(seconds=2)
    assert second.waiting_since is not None
    assert (first.first_event, first.status.head) == (events[0].ulid, events[-1].ulid)
    assert _behind(first) == {"early": 5, "late": 1, "at its head": 0}
    assert (second.shard, second.waiting, second.status.head, second.first_event) == (1, 2, None, None)
    assert _behind(second) == {"late": 0}


def test_it_counts_no_further_than_it_says(bench: Bench) -> None:
    """However much there is."""
    count = core.COUNTED + 5
    bench.write(count)
    bench.source.begin_consumer("export", bench.feed, {0: Ulid.MIN}, by="test")
    (shard,) = _of(bench).shards
    assert (shard.waiting, _behind(shard)) == (core.COUNTED, {"export": 0})
    bench.source.drain(bench.feed)
    (shard,) = _of(bench).shards
    assert (shard.waiting, shard.waiting_since, _behind(shard)) == (0, None, {"export": core.COUNTED})


def test_shards_come_in_pages(either: Bench) -> None:
    """In their order, each once; a page beyond the last is empty and still says how many there are."""
    for shard in range(7):
        either.write(1, shard=shard)
        either.events(shard)
    pages = [either.source.overview(first_shard=first, shards=3)[0] for first in (0, 3, 6, 9)]
    assert [[shard.shard for shard in page.shards] for page in pages] == [[0, 1, 2], [3, 4, 5], [6], []]
    assert {page.shard_count for page in pages} == {7}
    assert either.source.overview(shards=0)[0].shards == ()


def test_uuids_are_shards_too(engine: Engine) -> None:
    """By text."""
    bench = set_up(engine, Table(), shard_key_type="uniqueidentifier")
    shards = [uuid.UUID(int=number << 96) for number in (3, 1, 2)]
    for shard in shards:
        bench.write(2, shard=shard)
        bench.source.begin_consumer("export", bench.feed, {shard: Ulid.MIN}, by="test")
    found = _of(bench)
    assert [shard.shard for shard in found.shards] == sorted(shards, key=str)
    assert [shard.waiting for shard in found.shards] == [2, 2, 2]
    bench.source.drain(bench.feed)
    assert [_behind(shard) for shard in _of(bench).shards] == [{"export": 2}] * 3


def test_feeds_come_by_name_or_as_they_are_asked_for(bench: Bench) -> None:
    """All, some or none; one that is not there is an error."""
    other = another(bench, "myservice.Another")
    serialized = set_up(bench.engine, Table(name="myservice.Page", kind=FeedKind.SERIALIZED))
    source = bench.source
    names = [other.feed, bench.feed, serialized.feed]
    assert [found.info.name for found in source.overview()] == names
    assert [found.info.name for found in source.overview([bench.feed, other.feed])] == names[1::-1]
    assert source.overview([]) == []
    assert source.overview()[0].shards == ()
    with pytest.raises(FeedNotFoundError):
        source.overview([bench.feed, "nobody"])


def test_a_capture_is_a_feed_like_any_other(engine: Engine) -> None:
    """With what waits in its outbox."""
    author = set_up_author(engine)
    author.run("insert into \"shop.author\" (id, name) values (1, 'one'), (2, 'two')")
    (found,) = author.source.overview()
    assert found.info.resource_version == author.source.capture(CAPTURE).resource_version
    assert [(shard.shard, shard.waiting) for shard in found.shards] == [(0, 2)]
    assert found.shards[0].waiting_since is not None
    author.source.drain(CAPTURE)
    author.source.begin_consumer("export", CAPTURE, {0: Ulid.MIN}, by="test")
    (shard,) = author.source.overview()[0].shards
    assert (shard.waiting, _behind(shard)) == (0, {"export": 2})


def test_it_has_the_open_gaps_of_captures(engine: Engine) -> None:
    """None for other feeds; without another question to the database."""
    author = set_up_author(engine, guard_table=False)
    plain = set_up(engine, Table())
    source = author.source

    def gaps() -> dict[str, object]:
        (alone,) = source.overview([CAPTURE])
        found = {one.info.name: one.gaps for one in source.overview()}
        assert found[CAPTURE] == alone.gaps
        return found

    assert gaps() == {CAPTURE: (), plain.feed: None}
    before = engine.asked(lambda one: one.overview())
    with author.changer() as changer:
        for statement in engine.unseen(AUTHOR.name)[0].statements:
            changer.execute(statement)
    with suppress(CaptureGapError):
        source.seal(CAPTURE, source.now())
    (gap,) = source.capture_gaps(CAPTURE)
    # The feed was never sealed.
    assert (gap.after, gap.begin) == (None, gap.found_at)
    assert gaps() == {CAPTURE: (gap,), plain.feed: None}
    assert engine.asked(lambda one: one.overview()) == before
    # SQL Server resolves no gap while its cause persists.
    author.enable(AUTHOR.name, guard_table=False)
    source.resolve_capture(CAPTURE, note="loaded by hand", by="test")
    assert gaps() == {CAPTURE: (), plain.feed: None}


@pytest.mark.parametrize("kind", list(FeedKind))
def test_a_feed_that_has_lost_a_table_fails_alone(engine: Engine, kind: FeedKind) -> None:
    """The others are whole, and its problem names the table; who reads that feed alone gets the error."""
    broken = set_up(engine, Table(name="myservice.Broken", kind=kind))
    whole = set_up(engine, Table(name="myservice.Whole", kind=kind))
    for bench in (broken, whole):
        bench.write(2)
    with closing(engine.changer()) as changer:
        changer.execute(f"drop table {STATE[engine.name].format(broken.feed)}")
    names = [broken.feed, whole.feed]
    if not engine.catches_lost_tables:
        with pytest.raises(FeedNotFoundError, match="state:"):
            whole.source.overview()
        assert whole.source.overview([whole.feed])[0].problem is None
        return
    for found in (whole.source.overview(), whole.source.overview(names)):
        first, second = found
        assert (first.info.name, first.shards) == (broken.feed, ())
        assert f"state:{broken.feed}" in str(first.problem)
        assert (second.problem, second.shard_count) == (None, 1)
    with pytest.raises(type(first.problem), match="state:"):
        whole.source.overview([broken.feed])[0].check()


def test_it_waits_for_no_writer(bench: Bench) -> None:
    """One that is in its transaction is passed over."""
    bench.write(1)
    with bench.transaction() as writer:
        bench.insert(writer, 2)
        (shard,) = bench.engine.source(lock_timeout=IMPATIENT).overview()[0].shards
    assert shard.waiting == 1


def test_it_asks_no_more_for_more_shards(bench: Bench) -> None:
    """Nor for more consumers."""

    def call(source: FeedSource) -> object:
        return source.overview()

    bench.write(1, shard=0)
    bench.source.begin_consumer("export", bench.feed, {0: Ulid.MIN}, by="test")
    before = bench.engine.asked(call)
    for shard in range(1, 20):
        bench.write(1, shard=shard)
        bench.source.begin_consumer(f"export {shard % 3}", bench.feed, {shard: Ulid.MIN}, by="test")
    assert bench.engine.asked(call) == before
    bench.source.drain(bench.feed)
    assert bench.engine.asked(call) == before


@pytest.mark.parametrize("options", [{"first_shard": -1}, {"shards": -1}, {"shards": 100_001}])
def test_a_page_that_cannot_be_is_refused(bench: Bench, options: dict[str, int]) -> None:
    """By its name."""
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        bench.source.overview(**options)
