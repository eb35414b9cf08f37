# SPDX-License-Identifier: Apache-2.0
"""The poller: many who wait, one poll an interval."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from airflow_changefeed.consumers.poller import Poller
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import FeedNotFoundError, InvalidArgumentError, SourceUnavailableError
from airflow_changefeed.sources.base import Ask, FeedSource, FeedStatus, NewEvents
from airflow_changefeed.sources.sqlite import SqliteFeedSource

FEEDS = ("a.First", "a.Second")


class Clock:
    """A clock that stands still until a test moves it on, and tells when the poller pauses."""

    def __init__(self) -> None:
        self.now = 0.0
        self._condition: threading.Condition | None = None
        self._is_paused = False

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def pause(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait until somebody tells something; never for the time alone."""
        self._condition, self._is_paused = condition, True
        assert condition.wait(60), "nobody went on"
        self._is_paused = False

    def paused(self) -> None:
        """Wait until the poller pauses."""
        until(lambda: self._is_paused)

    def advance(self, seconds: float) -> None:
        """Move on while the poller pauses: it counts its next pause from a time that it has seen."""
        until(lambda: self._is_moved(seconds))

    def _is_moved(self, seconds: float) -> bool:
        if self._condition is None:
            return False
        with self._condition:
            if is_moved := self._is_paused:
                self.now += seconds
                self._is_paused = False
                self._condition.notify_all()
            return is_moved


class WatchedSource(SqliteFeedSource):
    """A SQLite file that keeps what it is asked, and fails as a test says."""

    asked: list[list[Ask]]
    error: Exception | None = None
    clock: Callable[[], float]
    times: list[float]

    def poll_many(self, asks: Sequence[Ask]) -> list[FeedStatus | Exception]:
        """Keep the question."""
        self.asked.append(list(asks))
        self.times.append(self.clock())
        if self.error is not None:
            raise self.error
        return super().poll_many(asks)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Give a file with two feeds without events."""
    path = str(tmp_path / "feeds.db")
    with closing(sqlite3.connect(path)) as connection:
        for feed in FEEDS:
            connection.execute(f'create table "{feed}" (id integer primary key)')
    for feed in FEEDS:
        SqliteFeedSource(path).set_up_feed(feed)
    return path


@pytest.fixture
def clock() -> Clock:
    """Give a clock that stands still."""
    return Clock()


@pytest.fixture
def source(path: str, clock: Clock) -> WatchedSource:
    """Give a source that keeps what it is asked."""
    source = WatchedSource(path)
    source.asked, source.times, source.clock = [], [], clock
    return source


@pytest.fixture
def poller(source: WatchedSource, clock: Clock) -> Poller:
    """Give a poller that polls every ten seconds of the clock."""
    return Poller(partial(nullcontext, source), 10, clock=clock, pause=clock.pause)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Give threads to wait in."""
    with ThreadPoolExecutor(50) as threads:
        yield threads


def announce(path: str, feed: str = FEEDS[0], shard: int = 0) -> None:
    """Put a row into a feed's outbox."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'insert into "{feed}" default values')
        connection.execute(
            f'insert into "changefeed.outbox:{feed}" (shard_id, id) select ?, max(id) from "{feed}"', (shard,)
        )
        connection.commit()


def until(condition: Callable[[], bool]) -> None:
    """Let other threads go on until something is so."""
    limit = threading.Event()
    for _ in range(6000):
        if condition():
            return
        limit.wait(0.01)
    raise AssertionError("it never came")


def test_the_first_look_is_at_once(poller: Poller, source: WatchedSource, path: str) -> None:
    """What is there is found without the clock moving, in the feed and in the outbox."""
    announce(path)
    announce(path, shard=1)
    source.drain(FEEDS[0])
    announce(path, shard=1)
    with poller.watch(FEEDS[0], "reader") as watch:
        new_events = watch.wait({})
    heads = SqliteFeedSource(path).poll(FEEDS[0], "reader").heads
    assert {shard: (one.head, one.has_outbox) for shard, one in new_events.items()} == {
        0: (heads[0], False),
        1: (heads[1], True),
    }
    assert source.times == [0]


def test_cursors_are_those_of_who_waits(poller: Poller, source: WatchedSource, path: str) -> None:
    """Not those in the database, before or behind; each watch has its own, and its own shards."""
    announce(path, shard=0)
    announce(path, shard=1)
    source.drain(FEEDS[0])
    heads = SqliteFeedSource(path).poll(FEEDS[0], "reader").heads
    source.begin_consumer("reader", FEEDS[0], heads, by="test")
    with poller.watch(FEEDS[0], "reader") as watch, poller.watch(FEEDS[0], "reader", [1]) as narrow:
        assert set(watch.wait({})) == {0, 1}
        assert set(narrow.wait({})) == {1}
    with poller.watch(FEEDS[0], "reader") as watch:
        assert set(watch.wait({0: heads[0], 1: heads[1].previous()})) == {1}


def test_an_event_is_seen_at_the_next_poll(
    poller: Poller, source: WatchedSource, clock: Clock, path: str, threads: ThreadPoolExecutor
) -> None:
    """An interval after the last one, not before; who waits again waits for the next."""
    with poller.watch(FEEDS[0], "reader") as watch:
        waiting = threads.submit(watch.wait, {})
        until(lambda: source.times == [0])
        clock.paused()
        announce(path)
        for seconds in (4, 5):
            clock.advance(seconds)
            clock.paused()
        assert (waiting.done(), source.times) == (False, [0])
        clock.advance(1)
        assert set(waiting.result(60)) == {0}
        again = threads.submit(watch.wait, {})
        until(lambda: bool(poller._waiting))
        assert source.times == [0, 10]
        clock.advance(10)
        assert set(again.result(60)) == {0}
    assert source.times == [0, 10, 20]


def test_many_who_wait_cost_one_look_an_interval(
    poller: Poller, source: WatchedSource, clock: Clock, path: str, threads: ThreadPoolExecutor
) -> None:
    """Of several feeds and consumers; each is asked for once, and each gets its own new events."""
    watches = [poller.watch(FEEDS[number % 2], f"reader {number % 5}") for number in range(40)]
    waits = [threads.submit(watch.wait, {}) for watch in watches]
    until(lambda: len(poller._waiting) == 40 and not any(watch.is_new for watch in watches))
    clock.paused()
    source.asked.clear()
    for feed in FEEDS:
        announce(path, feed)
        clock.advance(10)
        clock.paused()
    for wait in waits:
        assert set(wait.result(60)) == {0}
    assert [len(asks) for asks in source.asked] == [10, 5]
    assert {feed for feed, _ in source.asked[1]} == {FEEDS[1]}
    for watch in watches:
        watch.close()


def test_nobody_is_looked_for_who_does_not_wait(
    poller: Poller, source: WatchedSource, clock: Clock, path: str
) -> None:
    """A watch alone costs nothing, and the thread ends when the last one is closed."""
    announce(path)
    before = set(threading.enumerate())
    with poller.watch(FEEDS[0], "reader") as watch:
        (thread,) = set(threading.enumerate()) - before
        assert thread.daemon
        clock.advance(100)
        clock.paused()
        assert source.asked == []
        watch.wait({})
    thread.join(60)
    assert not thread.is_alive()
    assert len(source.asked) == 1
    with poller.watch(FEEDS[0], "reader") as watch:
        assert set(watch.wait({})) == {0}


def test_a_wait_ends_with_its_time(poller: Poller, source: WatchedSource) -> None:
    """Without new events, and is not polled any more."""
    with poller.watch(FEEDS[0], "reader") as watch:
        assert watch.wait({}, 0) == {}
        assert watch.wait({}, 0.001) == {}
        assert not poller._waiting


def test_a_watch_that_is_closed_ends_its_waits(poller: Poller, threads: ThreadPoolExecutor) -> None:
    """Without new events; to wait with it is refused."""
    watch, other = poller.watch(FEEDS[0], "reader"), poller.watch(FEEDS[1], "reader")
    waits = [threads.submit(one.wait, {}) for one in (watch, watch, other)]
    until(lambda: len(poller._waiting) == 3)
    watch.close()
    assert [wait.result(60) for wait in waits[:2]] == [{}, {}]
    assert not waits[2].done()
    other.close()
    assert waits[2].result(60) == {}
    with pytest.raises(InvalidArgumentError, match=r"a\.First.*closed"):
        watch.wait({})


def test_a_missing_feed_ends_its_own_waits_alone(
    poller: Poller, threads: ThreadPoolExecutor, clock: Clock
) -> None:
    """Each who waits gets an error of their own; so does a name that no consumer can have."""
    with (
        poller.watch(FEEDS[0], "reader") as watch,
        poller.watch("a.Gone", "reader") as gone,
        poller.watch(FEEDS[1], "a:b") as bad,
    ):
        with pytest.raises(FeedNotFoundError):
            gone.wait({})
        waiting = threads.submit(watch.wait, {})
        # Its first poll is for all who wait then.
        until(lambda: not watch.is_new)
        lost = [threads.submit(gone.wait, {}) for _ in range(2)]
        until(lambda: len(poller._waiting) == 3 and not watch.is_new)
        clock.advance(10)
        errors = [wait.exception(60) for wait in lost]
        assert [type(error) for error in errors] == [FeedNotFoundError] * 2
        assert "a.Gone" in str(errors[0])
        assert errors[0] is not errors[1]
        with pytest.raises(InvalidArgumentError, match="is not a valid name"):
            bad.wait({})
        assert not waiting.done()


def test_a_look_that_fails_is_told_to_all_who_wait(
    poller: Poller, source: WatchedSource, clock: Clock, path: str
) -> None:
    """Who waits again is polled for again, at the next poll."""
    source.error = SourceUnavailableError("the connection broke")
    with poller.watch(FEEDS[0], "reader") as watch:
        with pytest.raises(SourceUnavailableError, match="the connection broke"):
            watch.wait({})
        source.error = None
        announce(path)
        clock.advance(10)
        assert set(watch.wait({})) == {0}


def test_a_poll_that_takes_long_is_followed_by_an_interval(
    poller: Poller, source: WatchedSource, clock: Clock, threads: ThreadPoolExecutor
) -> None:
    """A database that is slow, or down, is not asked without a pause."""

    def takes_long(asks: Sequence[Ask]) -> list[FeedStatus | Exception]:
        clock.now += 25
        return WatchedSource.poll_many(source, asks)

    with pytest.MonkeyPatch.context() as patch, poller.watch(FEEDS[0], "reader") as watch:
        patch.setattr(source, "poll_many", takes_long)
        threads.submit(watch.wait, {})
        until(lambda: poller._next_poll == 35)


def test_a_source_that_cannot_be_left_ends_no_poller(source: WatchedSource, clock: Clock, path: str) -> None:
    """Its waiters hear what the poll said, and the next poll opens another one."""

    @contextmanager
    def opened() -> Iterator[WatchedSource]:
        yield source
        if source.error is not None:
            raise OSError("the handle is gone")

    poller = Poller(opened, 10, clock=clock, pause=clock.pause)
    source.error = SourceUnavailableError("the connection broke")
    with poller.watch(FEEDS[0], "reader") as watch:
        with pytest.raises(SourceUnavailableError, match="the connection broke"):
            watch.wait({})
        source.error = None
        announce(path)
        clock.advance(10)
        assert set(watch.wait({})) == {0}


def test_a_loop_waits_without_being_held_up(poller: Poller, source: WatchedSource, path: str) -> None:
    """For new events, for its time, for an error, and until it is cancelled; others wait beside it."""

    def new_events(_: FeedSource, found: FeedStatus) -> dict[Shard, NewEvents]:
        return found.new_events

    async def wait() -> None:
        with poller.watch(FEEDS[0], "reader") as watch, poller.watch("a.Gone", None) as gone:
            waits = [asyncio.create_task(watch.poll(new_events)) for _ in range(3)]
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(watch.poll(new_events), 0.001)
            with pytest.raises(FeedNotFoundError, match=r"a\.Gone"):
                await gone.poll(new_events)
            waits[0].cancel()
            await asyncio.wait(waits[:1])
            assert waits[0].cancelled()
            announce(path)
            with poller.watch(FEEDS[0], "newcomer") as newcomer:
                assert set(await newcomer.poll(new_events)) == {0}
            assert [set(found) for found in await asyncio.gather(*waits[1:])] == [{0}, {0}]

    asyncio.run(wait())
    gc.collect()


def test_sources_of_one_database_share_a_poller(path: str, tmp_path: Path) -> None:
    """As long as it is the same database, login, options and interval; kept for no longer than it is used."""
    poller = Poller.for_source(SqliteFeedSource(path))
    assert Poller.for_source(SqliteFeedSource(path)) is poller
    assert Poller.for_source(SqliteFeedSource(path), 5) is not poller
    assert Poller.for_source(SqliteFeedSource(path, lock_timeout=1)) is not poller
    assert Poller.for_source(SqliteFeedSource(str(tmp_path / "other.db"))) is not poller


def test_an_interval_that_is_none_is_refused(path: str) -> None:
    """It would ask without a pause."""
    for interval in (0, -1, float("nan")):
        with pytest.raises(InvalidArgumentError, match="interval"):
            Poller.for_source(SqliteFeedSource(path), interval)


def _wait_in_child(path: str) -> None:
    with Poller.for_source(SqliteFeedSource(path)).watch(FEEDS[0]) as watch:
        os._exit(0 if set(watch.wait({}, 60)) == {0} else 1)


def test_a_forked_child_polls_for_itself(path: str) -> None:
    """Its parent's thread is not there."""
    announce(path)
    with Poller.for_source(SqliteFeedSource(path)).watch(FEEDS[0]) as watch:
        watch.wait({0: Ulid.MIN})
        child = multiprocessing.get_context("fork").Process(target=_wait_in_child, args=(path,))
        child.start()
        child.join(60)
    assert child.exitcode == 0
