# SPDX-License-Identifier: Apache-2.0
"""
The processes of a race: writers, readers and sealers, each a process of its own, each killed at any moment.

:func:`main` reads a pickled :class:`Job` from its input, answers with a byte when it is ready and waits for a
byte to begin; one more byte of output for each step. Readers and sealers go on to the input's end, which says
that the writers are done; a writer gets a byte for each transaction it may begin. What a process has done
stands in its log, one JSON line each, from which it goes on after it was killed.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import TransientError
from airflow_changefeed.sources.base import ULID_COLUMN, FeedSource
from tests.integration.contract.engines import Engine, Table, Writer
from tests.integration.contract.oracles import digest

#: Numbers of keys that one life of one writer may use.
KEYS_OF_A_LIFE = 1_000_000
#: Seconds that a process rests between two steps, at most.
PAUSE = 0.03
#: Events of a shard that a sealer reads anew at each seal; beyond, most read on only.
READ_ANEW = 5_000


@dataclass(frozen=True)
class Job:
    """
    What a process does.

    :param number: of the process within its role.
    :param life: how often it was started before.
    :param transactions: that a writer commits, in all its lives.
    :param shards: that writers use; the last ones only later on, so that some are new after a seal.
    """

    role: str
    number: int
    life: int
    seed: int
    engine: Engine
    table: Table
    log: Path
    transactions: int
    shards: tuple[int, ...]

    @property
    def name(self) -> str:
        """For logs and complaints."""
        return f"{self.role} {self.number}"


class Log:
    """A file of JSON lines that survives SIGKILL; a line that was cut off by it was never written."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        whole = path.read_bytes().rpartition(b"\n")
        os.ftruncate(self._file, len(whole[0] + whole[1]))

    def write(self, **line: Any) -> None:
        """Append a line."""
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Read the whole lines of a log; a process that never ran has none."""
    if path.exists():
        for line in path.read_bytes().rpartition(b"\n")[0].splitlines():
            yield json.loads(line)


def rest(seconds: float) -> None:
    """Keep what is open, or the lock to others, for a while."""
    select.select([], [], [], seconds)


def step() -> None:
    """Tell the race that a step was made."""
    os.write(1, b".")


def receive(count: int) -> bytes:
    """Read exactly so many bytes of the input, and none that follow."""
    found = b""
    while len(found) < count:
        more = os.read(0, count - len(found))
        if not more:
            raise EOFError("the race is gone")
        found += more
    return found


def is_over(seconds: float) -> bool:
    """Wait for the input's end, at most so long; say whether it came."""
    return bool(select.select([0], [], [], seconds)[0])


def write(job: Job) -> None:
    """Commit transactions of several events, hold some open, roll some back."""
    log, dice = Log(job.log), random.Random(f"{job.seed} {job.name} {job.life}")
    done = sum(1 for line in read_log(job.log) if "acknowledged" in line)
    number = (job.number * 1000 + job.life) * KEYS_OF_A_LIFE
    with closing(job.engine.writer(job.table, lock_timeout=120)) as writer:
        now = job.engine.source().now
        while done < job.transactions:
            receive(1)
            name, begun = f"{job.name}, life {job.life}, key {number}", time.monotonic_ns()
            writer.begin()
            events: list[tuple[int, Any, str | None]] = []
            used = job.shards[: 1 + len(job.shards) * (done + 1) // (job.transactions + 1)]
            for shard in _shards(job, dice, used):
                number += 1
                events.append(_insert(job, writer, dice, shard, number, now))
                if dice.random() < 0.1:
                    rest(dice.random() * PAUSE / 2)
            is_kept = dice.random() >= 0.15
            log.write(transaction=name, begun=begun, events=events, is_rolled_back=not is_kept)
            if is_kept:
                writer.commit()
                log.write(acknowledged=name, at=time.monotonic_ns())
                done += 1
                step()
            else:
                writer.rollback()
            # Writers that never rest would leave one another, and nobody else, the lock.
            rest(dice.random() * PAUSE)


def _shards(job: Job, dice: random.Random, used: Sequence[int]) -> list[int]:
    """Choose the shards of a transaction's events; serialized writers lock them, all in one order."""
    chosen = [dice.choice(used) for _ in range(dice.randint(1, 6))]
    return sorted(chosen) if job.table.kind is FeedKind.SERIALIZED else chosen


def _insert(
    job: Job, writer: Writer, dice: random.Random, shard: int, number: int, now: Callable[[], Any]
) -> tuple[int, Any, str | None]:
    late, soon, never = -timedelta(hours=2), timedelta(milliseconds=30), timedelta(days=3650)
    ahead = dice.choice((None, None, timedelta(0), late, late, soon, never))
    key = job.table.key(number)
    ulid = writer.insert(shard, None if ahead is None else now() + ahead, key, {"Quantity": number})
    return shard, key, None if ulid is None else str(ulid)


def read(job: Job) -> None:
    """Read all shards page by page from the log's cursors, until the writers are done and nothing is left."""
    log, dice = Log(job.log), random.Random(f"{job.seed} {job.name} {job.life}")
    source = job.engine.source(lock_timeout=120)
    cursors = dict.fromkeys(job.shards, Ulid.MIN)
    for line in read_log(job.log):
        cursors[line["shard"]] = Ulid.parse_text(line["events"][-1][0])
    is_last = False
    while True:
        found = 0
        for shard in dice.sample(job.shards, len(job.shards)):
            page = patiently(source.read_feed, job.table.name, shard, cursors[shard], dice.randint(1, 40))
            if page:
                log.write(shard=shard, events=[(str(event.ulid), event.key) for event in page])
                cursors[shard] = page.events[-1].ulid
            found += len(page)
        step()
        if is_last and not found:
            return
        # One more round after the end: what was committed meanwhile is there.
        is_last = is_over(0 if found else dice.random() * PAUSE)


def seal(job: Job) -> None:
    """Seal the present again and again, and log what lies below each seal right after it."""
    log, dice = Log(job.log), random.Random(f"{job.seed} {job.name} {job.life}")
    source = job.engine.source(lock_timeout=120)
    known: dict[int, list[str]] = {shard: [] for shard in job.shards}
    while True:
        until = source.now()
        patiently(source.seal, job.table.name, until)
        below = Ulid.floor(until)
        shards = {}
        for shard, ulids in known.items():
            if len(ulids) < READ_ANEW or dice.random() < 0.05:
                ulids.clear()
            _read_on(source, job.table.name, shard, below, ulids)
            shards[shard] = len(ulids), digest(ulids)
        log.write(below=str(below), shards=shards)
        step()
        if is_over(dice.random() * PAUSE):
            return


def _read_on(source: FeedSource, feed: str, shard: int, below: Ulid, ulids: list[str]) -> None:
    """Add the ULIDs below a seal that follow those read before it."""
    after = Ulid.parse_text(ulids[-1]) if ulids else Ulid.MIN
    batches = source.stream(feed, shard, UlidRange(after, below.previous()))
    ulids += [ulid for batch in batches for ulid in batch.column(ULID_COLUMN).to_pylist()]


def patiently(call: Callable[..., Any], *arguments: Any) -> Any:
    """Repeat what is transient, as a task's retries would."""
    for _ in range(100):
        try:
            return call(*arguments)
        except TransientError:
            continue
    return call(*arguments)


def main() -> None:
    """Do the job."""
    job: Job = pickle.loads(receive(int.from_bytes(receive(8), "big")))  # noqa: S301 - from the race itself
    # Loads what a stream needs, so that all begin at once.
    job.engine.source().schema(job.table.name)
    step()
    receive(1)
    {"writer": write, "reader": read, "sealer": seal}[job.role](job)
