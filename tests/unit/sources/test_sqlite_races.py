# SPDX-License-Identifier: Apache-2.0
"""Races of the embedded source, told step by step instead of left to chance."""

from __future__ import annotations

import multiprocessing
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.feed import FeedKind, Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import to_milliseconds
from airflow_changefeed.exceptions import (
    ConnectionNotUsableError,
    InvalidArgumentError,
    LockTimeoutError,
    PurgedError,
)
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.sources.sqlite.feed import adbc, control, names
from airflow_changefeed.sources.sqlite.feed.adbc import stream_adbc
from airflow_changefeed.sources.sqlite.feed.control import DRAIN_ROWS
from airflow_changefeed.sources.sqlite.feed.names import FeedTables
from airflow_changefeed.sources.sqlite.feed.writer import lock
from tests.clocks import after_now

PURGE = """
import sys
from airflow_changefeed.sources.sqlite import SqliteFeedSource
source = SqliteFeedSource(sys.argv[1])
assert source.purge("t", source.now())[0].rows == 3
"""
OUTBOX = '"changefeed.outbox:t"'


class Interrupted(SqliteFeedSource):
    """The real source, with room for somebody else before each of its drains."""

    def __init__(self, path: str) -> None:
        super().__init__(path, lock_timeout=5)
        self.before: Any = lambda: None

    def drain_some(self, tables: FeedTables, shard: Shard, rows: int) -> int:
        """Let somebody else act first."""
        self.before()
        return super().drain_some(tables, shard, rows)

    def drain_page(self, connection: sqlite3.Connection, feed: str, waiting: deque[Shard]) -> Counter[Shard]:
        """Let somebody else act first."""
        self.before()
        return super().drain_page(connection, feed, waiting)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Return a user's connection to a new file."""
    connection = sqlite3.connect(tmp_path / "feeds.db", isolation_level=None)
    connection.execute("create table t (id integer primary key)")
    yield connection
    connection.close()


def _write(user: sqlite3.Connection, keys: range) -> None:
    user.execute("begin immediate")
    user.executemany("insert into t values (?)", [(key,) for key in keys])
    user.executemany(f"insert into {OUTBOX} (id) values (?)", [(key,) for key in keys])
    user.execute("commit")


def test_a_page_is_not_empty_because_another_reader_was_quicker(
    user: sqlite3.Connection, tmp_path: Path
) -> None:
    """An empty page says that the shard is at its head, also when the outbox was emptied by somebody else."""
    source = Interrupted(str(tmp_path / "feeds.db"))
    source.set_up_feed("t")
    _write(user, range(3))
    other = SqliteFeedSource(str(tmp_path / "feeds.db"))
    source.before = lambda: other.drain("t")
    assert [event.key for event in source.read_feed("t", 0, Ulid.MIN)] == [(0,), (1,), (2,)]


def test_a_shard_first_used_while_its_feed_is_sealed_starts_above_the_seal(
    user: sqlite3.Connection, tmp_path: Path
) -> None:
    """R7: the floor that counts is the one under the lock, not one that the reader saw before it waited."""
    source = Interrupted(str(tmp_path / "feeds.db"))
    source.set_up_feed("t")
    other = SqliteFeedSource(str(tmp_path / "feeds.db"))
    until = other.now()

    def seal_then_write() -> None:
        source.before = lambda: None
        other.seal("t", until)
        user.execute(f"insert into {OUTBOX} (shard_id, time_hint, id) values (4, 0, 1)")

    source.before = seal_then_write
    (event,) = source.read_feed("t", 4, Ulid.MIN)
    assert event.ulid >= Ulid.floor(until)


def test_a_purge_is_recorded_before_the_first_row_goes(user: sqlite3.Connection, tmp_path: Path) -> None:
    """R12: no reader takes what is left of a range for all of it, whatever happens to the purge."""
    other = SqliteFeedSource(str(tmp_path / "feeds.db"))

    class Slow(SqliteFeedSource):
        """Lets a reader come before the rows go."""

        def _delete_upto(self, *arguments: Any) -> int:
            with pytest.raises(PurgedError):
                other.read_feed("t", 0, Ulid.MIN)
            return super()._delete_upto(*arguments)

    source = Slow(str(tmp_path / "feeds.db"))
    source.set_up_feed("t")
    _write(user, range(3))
    until = after_now(source)
    source.seal("t", until)
    (purged,) = source.purge("t", until)
    assert purged.rows == 3


class Turns:
    """
    Lets programs run one at a time, in an order that a seed draws anew at each of their steps.

    A program gets what it calls at each step.
    """

    def __init__(self, seed: int, *programs: Callable[[Callable[[], None]], None]) -> None:
        self._draw = random.Random(seed)
        self._back = threading.Semaphore(0)
        self._go = [threading.Semaphore(0) for _ in programs]
        self._ended: set[int] = set()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number, program), daemon=True)
            for number, program in enumerate(programs)
        ]

    def run(self) -> None:
        """Run all of them to their ends."""
        for thread in self._threads:
            thread.start()
        while waiting := [number for number in range(len(self._go)) if number not in self._ended]:
            self._go[self._draw.choice(waiting)].release()
            self._back.acquire()
        if self._errors:
            raise self._errors[0]

    def _run(self, number: int, program: Callable[[Callable[[], None]], None]) -> None:
        def step() -> None:
            self._back.release()
            self._go[number].acquire()

        self._go[number].acquire()
        try:
            program(step)
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._ended.add(number)
            self._back.release()


class Stepping(SqliteFeedSource):
    """The real source, with a step before each lock, and in the middle of each seal."""

    def __init__(self, path: str, step: Callable[[], None]) -> None:
        super().__init__(path, lock_timeout=0)
        self.step = step

    def _seal(self, connection: sqlite3.Connection, feed: str, until_ms: int) -> None:
        """Let others act between the look and the lock."""
        self.step()
        super()._seal(connection, feed, until_ms)

    def drain_page(self, connection: sqlite3.Connection, feed: str, waiting: deque[Shard]) -> Counter[Shard]:
        """Let others act before each page."""
        self.step()
        return super().drain_page(connection, feed, waiting)

    def raise_high_water(self, tables: FeedTables, until_ms: int) -> None:
        """Let others find the lock taken, at both ends of the promise."""
        self.step()
        super().raise_high_water(tables, until_ms)
        self.step()

    def patiently(self, call: Callable[[], object]) -> None:
        """Call until the lock is free."""
        while True:
            try:
                call()
                return
            except (LockTimeoutError, sqlite3.OperationalError) as error:
                if "locked" not in str(error):
                    raise
                self.step()


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(12, 300))]
)
def test_two_sealers_step_by_step_keep_what_each_has_promised(
    seed: int, user: sqlite3.Connection, tmp_path: Path
) -> None:
    """Whoever is overtaken takes nothing back: no event comes below either seal, in old and new shards."""
    path = str(tmp_path / "feeds.db")
    source = SqliteFeedSource(path)
    source.set_up_feed("t")
    now = source.now()
    late = to_milliseconds(now - timedelta(days=1))
    promised: dict[Ulid, set[Ulid]] = {}

    def below(bound: Ulid) -> set[Ulid]:
        with closing(sqlite3.connect(path)) as connection:
            found = connection.execute(
                'select ulid from "changefeed.feed:t" where ulid < ?', (bound.bytes,)
            ).fetchall()
        return {Ulid.of_bytes(ulid) for (ulid,) in found}

    def sealer(*ages: int) -> Callable[[Callable[[], None]], None]:
        def run(step: Callable[[], None]) -> None:
            own = Stepping(path, step)
            for age in ages:
                until = now - timedelta(minutes=age)
                own.patiently(partial(own.seal, "t", until))
                promised[Ulid.floor(until)] = below(Ulid.floor(until))
                step()

        return run

    def writer(step: Callable[[], None]) -> None:
        own = Stepping(path, step)
        insert = f"insert into {OUTBOX} (shard_id, time_hint, id) values (?, ?, ?)"

        def write(key: int) -> None:
            with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
                connection.execute(insert, (key // 2, late, key))

        for key in range(8):
            own.patiently(partial(write, key))
            step()
            own.patiently(partial(own.drain, "t"))

    Turns(seed, sealer(50, 20), sealer(40, 30, 10), writer).run()
    user.execute(f"insert into {OUTBOX} (shard_id, time_hint, id) values (0, {late}, 8), (9, {late}, 9)")
    source.drain("t")
    assert len(promised) == 5
    assert {bound: below(bound) for bound in promised} == promised


@pytest.mark.parametrize("moment", ["before it reads", "while it reads"])
def test_a_bulk_read_that_a_purge_came_upon_fails(
    moment: str, user: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R12: ADBC looks and reads by two connections; rows that went in between are not silently left out."""
    path = str(tmp_path / "feeds.db")
    writer = SqliteFeedSource(path)
    writer.set_up_feed("t")
    _write(user, range(3))
    writer.drain("t")
    writer.seal("t", after_now(writer))
    user.close()  # ADBC has a second SQLite, whose locks this one would drop
    purge = [sys.executable, "-c", PURGE, path]

    def read_late(*arguments: Any) -> Iterator[Any]:
        if moment == "before it reads":
            subprocess.run(purge, check=True)
        yield from stream_adbc(*arguments)
        if moment == "while it reads":
            subprocess.run(purge, check=True)

    monkeypatch.setattr(adbc, "stream_adbc", read_late)
    source = SqliteFeedSource(path, bulk_reader="adbc")
    with pytest.raises(PurgedError):
        list(source.stream("t", 0, UlidRange(Ulid.MIN, Ulid.MAX)))


def test_a_drain_ends_while_writers_go_on(user: sqlite3.Connection, tmp_path: Path) -> None:
    """It owes what was committed when it began, and does not run after a writer that never rests."""
    source = Interrupted(str(tmp_path / "feeds.db"))
    source.set_up_feed("t")
    _write(user, range(DRAIN_ROWS + 1))
    rounds = iter(range(DRAIN_ROWS + 1, DRAIN_ROWS + 50))

    def write_one() -> None:
        key = next(rounds)
        _write(user, range(key, key + 1))

    source.before = write_one
    # What came before the first page, and what came before the second one.
    assert source.drain("t") == {0: DRAIN_ROWS + 3}


def test_a_drain_of_many_shards_lets_writers_between_them(
    user: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits every so many rows and shards: not for each shard, and not at last."""
    monkeypatch.setattr(control, "DRAIN_SHARDS", 10)
    source = Interrupted(str(tmp_path / "feeds.db"))
    source.set_up_feed("t")
    shards = 21
    user.executemany("insert into t values (?)", [(key,) for key in range(shards)])
    user.executemany(
        f"insert into {OUTBOX} (shard_id, id) values (?, ?)", [(key, key) for key in range(shards)]
    )
    pages: list[int] = []
    source.before = lambda: pages.append(user.execute(f"select count(*) from {OUTBOX}").fetchone()[0])
    assert source.drain("t") == dict.fromkeys(range(shards), 1)
    assert pages == [21, 11, 1]


def test_a_block_does_not_outlive_a_seal(tmp_path: Path) -> None:
    """ULIDs kept beyond their transaction would put events into a sealed window."""
    path = str(tmp_path / "feeds.db")
    user = sqlite3.connect(path, isolation_level=None)
    user.execute("create table s (id integer primary key, ulid blob)")
    source = SqliteFeedSource(path, lock_timeout=5)
    source.set_up_feed("s", kind=FeedKind.SERIALIZED)
    user.execute("begin immediate")
    block = lock(user, "s", time_hint=source.now() - timedelta(hours=1))
    user.execute("commit")
    source.seal("s", source.now())
    user.execute("begin")
    with pytest.raises(InvalidArgumentError, match="has ended"):
        block.ulid(0)
    user.close()


def test_a_table_without_shards_has_one(tmp_path: Path) -> None:
    """Two clocks over the same rows would give their events in no order."""
    user = sqlite3.connect(tmp_path / "feeds.db", isolation_level=None)
    user.execute("create table s (id integer primary key, ulid blob)")
    source = SqliteFeedSource(str(tmp_path / "feeds.db"))
    source.set_up_feed("s", kind=FeedKind.SERIALIZED)
    user.execute("begin immediate")
    with pytest.raises(InvalidArgumentError, match="use shard 0"):
        lock(user, "s", 1)
    user.close()


def test_dropping_a_feed_takes_its_index_off_the_table(tmp_path: Path) -> None:
    """The event table stays as its owner made it."""
    user = sqlite3.connect(tmp_path / "feeds.db", isolation_level=None)
    user.execute("create table s (id integer primary key, ulid blob)")
    source = SqliteFeedSource(str(tmp_path / "feeds.db"))
    source.set_up_feed("s", kind=FeedKind.SERIALIZED)
    source.drop_feed("s")
    assert (
        user.execute("select name from sqlite_master where tbl_name = 's' and type = 'index'").fetchall()
        == []
    )
    user.close()


def test_fencing_tokens_grow_over_the_life_of_a_feed(user: sqlite3.Connection, tmp_path: Path) -> None:
    """A process that slept while its feed was dropped and made anew holds a token that is worth nothing."""
    source = SqliteFeedSource(str(tmp_path / "feeds.db"))
    tokens: list[int] = []
    for _ in range(2):
        source.set_up_feed("t")
        source.begin_consumer("c", "t", {0: Ulid.MIN}, by="test")
        tokens += source.acquire_leases(
            "c", "t", [0], holder="h", seconds=60, all_or_none=True
        ).tokens.values()
        tokens += source.acquire_leases(
            "c", "t", [0], holder="h", seconds=60, all_or_none=True
        ).tokens.values()
        source.drop_feed("t")
    assert tokens == sorted(set(tokens))


def _set_up(path: str, barrier: Any) -> None:
    barrier.wait()
    SqliteFeedSource(path).set_up_feed("t")


def test_a_feed_that_is_set_up_while_it_is_looked_for_is_found(
    user: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file had none of our tables when it was asked for the feed, and has all of them a moment later."""
    source, is_installed = SqliteFeedSource(str(tmp_path / "feeds.db")), names.is_installed

    def late(connection: sqlite3.Connection) -> bool:
        monkeypatch.undo()
        source.set_up_feed("t")
        return is_installed(connection)

    monkeypatch.setattr(names, "is_installed", late)
    assert source.feed("t").name == "t"


@pytest.mark.ci
def test_many_may_set_up_the_same_feed_at_once(user: sqlite3.Connection, tmp_path: Path) -> None:
    """Setup may be a step of every worker's start, on a file that is not in WAL mode yet."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4)
    path = str(tmp_path / "feeds.db")
    workers = [context.Process(target=_set_up, args=(path, barrier)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4


def _write_as_nobody(path: str) -> None:
    if os.geteuid() == 0:
        os.setuid(65_534)
    source = SqliteFeedSource(path)
    try:
        source.next_attempt("t")
    except ConnectionNotUsableError:
        os._exit(7)


def test_a_file_that_may_not_be_written_is_named() -> None:
    """Whoever lacks the right learns it from our error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "feeds.db"
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("create table t (id integer primary key)")
        SqliteFeedSource(str(path)).set_up_feed("t")
        Path(folder).chmod(0o755)
        for file in Path(folder).iterdir():
            file.chmod(0o444)
        worker = multiprocessing.get_context("fork").Process(target=_write_as_nobody, args=(str(path),))
        worker.start()
        worker.join(60)
        connection.close()
        assert worker.exitcode == 7
