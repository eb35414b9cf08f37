# SPDX-License-Identifier: Apache-2.0
"""Running a race: starting its processes, killing some in the middle, and collecting what happened."""

from __future__ import annotations

import os
import pickle
import random
import selectors
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources.base import ULID_COLUMN
from tests.integration.contract.bench import Bench
from tests.integration.contract.oracles import History, Reading, SealRecord, Transaction
from tests.integration.contract.worker_process import WorkerProcess
from tests.integration.contract.workers import Job, read_log


@dataclass(frozen=True)
class Plan:
    """
    How large a race is; its length is its work, never a time.

    :param transactions: that each writer commits.
    :param kills: processes killed by SIGKILL, at random moments between the writers' commits.
    :param limit: seconds after which it is given up as hanging.
    """

    seed: int
    writers: int = 4
    readers: int = 3
    sealers: int = 2
    transactions: int = 24
    kills: int = 6
    shards: tuple[int, ...] = (0, 1, 2)
    limit: float = 600.0


#: Transactions that a writer may begin before the first seal, and after each seal: however the lock is shared
#: out on a busy machine, seals stand between writes.
HEAD_START, PER_SEAL = 6, 4


@dataclass
class Race:
    """
    The processes of a race that runs.

    :param module: that each of them runs.
    """

    plan: Plan
    bench: Bench
    folder: Path
    jobs: dict[WorkerProcess, Job] = field(default_factory=dict)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    failures: list[str] = field(default_factory=list)
    waiting: set[WorkerProcess] = field(default_factory=set)
    has_begun: bool = False
    commits: int = 0
    module: str = "tests.integration.contract.workers"

    def job(self, role: str, number: int, life: int) -> Job:
        """Return what a process does."""
        return Job(
            role,
            number,
            life,
            self.plan.seed,
            self.bench.engine,
            self.bench.table,
            self.folder / f"{role}-{number}.log",
            self.plan.transactions,
            self.plan.shards,
        )

    def start(self, role: str, number: int, life: int = 0) -> None:
        """Start a process, or start it again."""
        job = self.job(role, number, life)
        process = WorkerProcess(self.module, self.folder / f"{role}-{number}.err")
        self.jobs[process] = job
        self.waiting.add(process)
        raw = pickle.dumps(job)
        process.stdin.write(len(raw).to_bytes(8, "big") + raw)
        process.stdin.flush()
        self.selector.register(process.stdout, selectors.EVENT_READ, process)

    def run(self) -> None:
        """Let the processes work to their end, and kill some of them on the way."""
        dice = random.Random(self.plan.seed)
        total = self.plan.writers * self.plan.transactions
        kills = sorted(dice.sample(range(1, total), self.plan.kills))
        deadline = time.monotonic() + self.plan.limit
        roles = {"writer": self.plan.writers, "reader": self.plan.readers, "sealer": self.plan.sealers}
        for role, count in roles.items():
            for number in range(count):
                self.start(role, number)
        while self.jobs:
            for key, _ in self.selector.select(timeout=1):
                self._hear(key.data)
            if time.monotonic() > deadline:
                self.failures.append(f"not done after {self.plan.limit} s: {list(self.jobs.values())}")
            if self.failures:
                return
            while kills and self.commits >= kills[0]:
                del kills[0]
                self._kill(dice)

    def _hear(self, process: WorkerProcess) -> None:
        """Count the steps of a process, or see that it ended."""
        steps = os.read(process.stdout.fileno(), 65536)
        job = self.jobs[process]
        if steps and process in self.waiting:
            self._begin(process)
            return
        if steps:
            self.commits += len(steps) if job.role == "writer" else 0
            if job.role == "sealer":
                self._allow([other for other in self.jobs if self.jobs[other].role == "writer"], PER_SEAL)
            return
        self._forget(process)
        if code := process.wait():
            errors = (self.folder / f"{job.role}-{job.number}.err").read_text()
            self.failures.append(f"{job.name} ended with {code}: {errors[-2000:]}")
        if self.is_ending:
            self._tell_end()

    def _begin(self, process: WorkerProcess) -> None:
        """Let a ready process begin: the first ones all at once, one that was killed as soon as it can."""
        self.waiting.discard(process)
        ready = [process] if self.has_begun else list(self.jobs) if not self.waiting else []
        self.has_begun |= bool(ready)
        self._allow(ready, 1)
        self._allow([one for one in ready if self.jobs[one].role == "writer"], HEAD_START)
        if self.is_ending:
            self._tell_end()

    def _allow(self, processes: list[WorkerProcess], steps: int) -> None:
        for process in processes:
            if process not in self.waiting:
                # One that has just ended needs no more; that it did is heard next.
                with suppress(BrokenPipeError):
                    process.stdin.write(b"!" * steps)
                    process.stdin.flush()

    def _tell_end(self) -> None:
        for process in self.jobs.keys() - self.waiting:
            process.stdin.close()

    @property
    def is_ending(self) -> bool:
        """Whether the writers are done."""
        return not any(job.role == "writer" for job in self.jobs.values())

    def _kill(self, dice: random.Random) -> None:
        """Kill a process in the middle of whatever it does, and start it again."""
        role = dice.choice(("writer", "writer", "reader", "sealer"))
        running = sorted(
            (job.number, process.pid, process) for process, job in self.jobs.items() if job.role == role
        )
        if running:
            process = dice.choice(running)[2]
            if process.poll() is not None:
                return  # it has just ended by itself, which is heard next
            job = self.jobs[process]
            process.kill()
            process.wait()
            self._forget(process)
            self.start(job.role, job.number, job.life + 1)

    def _forget(self, process: WorkerProcess) -> None:
        del self.jobs[process]
        self.waiting.discard(process)
        self.selector.unregister(process.stdout)
        process.close()

    def stop(self) -> None:
        """Kill whatever still runs."""
        for process in list(self.jobs):
            process.kill()
            process.wait()
            self._forget(process)
        self.selector.close()


def run_race(bench: Bench, plan: Plan, folder: Path) -> History:
    """Run a race over a feed and return what happened."""
    race = Race(plan, bench, folder)
    try:
        race.run()
    finally:
        race.stop()
    history = _history(bench, plan, folder)
    return replace(history, failures=tuple(race.failures))


def _history(bench: Bench, plan: Plan, folder: Path) -> History:
    bench.source.drain(bench.feed)
    feed = {
        shard: tuple((str(event.ulid), event.key) for event in bench.events(shard, page_size=10_000))
        for shard in plan.shards
    }
    for shard, content in feed.items():
        # The two ways to read are one feed.
        batches = bench.source.stream(bench.feed, shard, UlidRange(Ulid.MIN, Ulid.MAX))
        streamed = [ulid for batch in batches for ulid in batch.column(ULID_COLUMN).to_pylist()]
        if streamed != [ulid for ulid, _ in content]:
            raise AssertionError(f"shard {shard}: stream and read_feed differ")
    return History(
        transactions=tuple(
            transaction
            for number in range(plan.writers)
            for transaction in _transactions(folder / f"writer-{number}.log")
        ),
        rows=frozenset(bench.engine.keys(bench.table)),
        feed=feed,
        readings=tuple(
            reading
            for number in range(plan.readers)
            for reading in _readings(f"reader {number}", folder / f"reader-{number}.log", plan.shards)
        ),
        seals=tuple(
            SealRecord(int(shard), line["below"], *found)
            for number in range(plan.sealers)
            for line in read_log(folder / f"sealer-{number}.log")
            for shard, found in line["shards"].items()
        ),
    )


def _transactions(log: Path) -> list[Transaction]:
    found: dict[str, Transaction] = {}
    for line in read_log(log):
        if "acknowledged" in line:
            name = line["acknowledged"]
            found[name] = replace(found[name], acknowledged=line["at"])
        else:
            events = tuple((shard, tuple(key)) for shard, key, _ in line["events"])
            given = {tuple(key): ulid for _, key, ulid in line["events"] if ulid is not None}
            name = line["transaction"]
            found[name] = Transaction(name, line["begun"], None, events, line["is_rolled_back"], given)
    return list(found.values())


def _readings(reader: str, log: Path, shards: tuple[int, ...]) -> list[Reading]:
    content: dict[int, list[tuple[str, tuple[object, ...]]]] = {shard: [] for shard in shards}
    for line in read_log(log):
        content[line["shard"]] += [(ulid, tuple(key)) for ulid, key in line["events"]]
    return [Reading(reader, shard, tuple(found)) for shard, found in content.items()]
