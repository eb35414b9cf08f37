# SPDX-License-Identifier: Apache-2.0
"""Running a fail-over race: in each round whoever holds a shard is killed, cut off or put to sleep."""

from __future__ import annotations

import pickle
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec
from airflow_changefeed.core.feed import Shard
from tests.integration.contract.bench import Bench
from tests.integration.contract.consumer_workers import HANDLED, NAME, ConsumerJob
from tests.integration.contract.engines import Table
from tests.integration.contract.worker_process import WorkerProcess
from tests.integration.mssql.line import Line

SHARDS = (0, 1)
FAULTS = ("kill", "sleep", "cut")
HANDLED_TABLE = Table(
    HANDLED,
    keys=(("place", "identity"),),
    columns=(("ulid", "text"), ("shard", "integer"), ("token", "integer"), ("holder", "text")),
)


@dataclass(frozen=True)
class FailOverPlan:
    """
    How large a race is; its length is its work, never a time.

    :param rounds: faults.
    :param events: of each round.
    :param lease: seconds.
    :param limit: seconds after which a round is given up as hanging.
    """

    seed: int
    rounds: int
    lease: float
    workers: int = 3
    events: int = 24
    limit: float = 300.0


@dataclass(frozen=True)
class FailOver:
    """
    What happened.

    :param events: of each shard, as the feed has them.
    :param handled: ULID, shard, fencing token and holder of each piece of work, as committed.
    :param cursors: where the consumer stands in each shard.
    :param waits: of each fault, its kind and the seconds until another worked on a shard of the holder's.
    """

    failures: tuple[str, ...]
    events: dict[Shard, tuple[str, ...]]
    handled: tuple[tuple[str, int, int, str], ...]
    cursors: dict[Shard, str]
    waits: tuple[tuple[str, float], ...]


def judge_fail_over(found: FailOver) -> list[str]:
    """Return what is wrong: lost, consumed twice, made up, written under an old token."""
    complaints = list(found.failures)
    for shard, events in found.events.items():
        rows = [row for row in found.handled if row[1] == shard]
        times = Counter(ulid for ulid, *_ in rows)
        complaints += [f"shard {shard}: {ulid} was lost" for ulid in events if not times[ulid]]
        complaints += [f"shard {shard}: {ulid} was consumed {n} times" for ulid, n in times.items() if n > 1]
        complaints += [f"shard {shard}: {ulid} is not an event" for ulid in times.keys() - set(events)]
        highest = 0
        for ulid, _, token, holder in sorted(rows):
            if token < highest:
                complaints.append(
                    f"shard {shard}: {holder} wrote {ulid} under token {token} after {highest} was granted"
                )
            highest = max(highest, token)
        if events and found.cursors.get(shard) != events[-1]:
            complaints.append(f"shard {shard}: the cursor is {found.cursors.get(shard)}, not {events[-1]}")
    return complaints


@dataclass
class _Worker:
    process: WorkerProcess
    line: Line | None


@dataclass
class FailOverRace:
    """The processes of a race that runs."""

    bench: Bench
    plan: FailOverPlan
    folder: Path
    workers: dict[int, _Worker] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    waits: list[tuple[str, float]] = field(default_factory=list)

    def start(self, number: int) -> None:
        """Start a consumer, and let it begin as soon as it can."""
        description = self.bench.source.describe()
        line = None
        if description["type"] == "mssql":
            line = Line((description["host"], description["port"] or 1433))
            description |= {"host": "127.0.0.1", "port": line.port}
        may_sleep_inside = self.bench.source.capabilities.parallel_writers
        job = ConsumerJob(number, description, self.bench.feed, self.plan.lease, may_sleep_inside)
        process = WorkerProcess(
            "tests.integration.contract.consumer_workers", self.folder / f"consumer-{number}.err"
        )
        raw = pickle.dumps(job)
        self._tell(process, len(raw).to_bytes(8, "big") + raw + b"!")
        self.workers[number] = _Worker(process, line)

    def _tell(self, process: WorkerProcess, message: bytes) -> None:
        with suppress(BrokenPipeError):
            process.stdin.write(message)
            process.stdin.flush()

    def run(self) -> None:
        """Write in rounds, and harm in each whoever holds a shard that has events left."""
        dice = random.Random(self.plan.seed)
        for number in range(self.plan.workers):
            self.start(number)
        written = len(SHARDS)  # run_fail_over wrote one each
        for _ in range(self.plan.rounds):
            for _ in range(self.plan.events // 2):
                self.bench.write(2, shard=dice.choice(SHARDS))
                written += 2
            after = written - dice.randint(4, self.plan.events - 4)
            if not self._until(lambda after=after: self._handled() >= after):
                return
            harmed = self._harm(dice)
            if not self._until(lambda total=written: self._handled() >= total):
                return
            self.waits += harmed()
        self._end()

    def _until(self, is_reached: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + self.plan.limit
        while not is_reached():
            time.sleep(0.02)
            for number, worker in self.workers.items():
                if worker.process.poll() is not None:
                    errors = (self.folder / f"consumer-{number}.err").read_text()
                    self.failures.append(f"consumer {number} ended: {errors[-3000:]}")
                    return False
            if time.monotonic() > deadline:
                self.failures.append(
                    f"{self._handled()} handled after {self.plan.limit} s: {self.bench.source.leases()}"
                )
                return False
        return True

    def _handled(self) -> int:
        ((count,),) = self.bench.engine.rows(f'select count(*) from "{HANDLED}"')
        return int(count)

    def _harm(self, dice: random.Random) -> Callable[[], list[tuple[str, float]]]:
        """Harm a holder; the function given says, afterwards, how long its shards waited for another."""
        held = {
            lease.shard: lease.holder
            for lease in self.bench.source.leases(self.bench.feed)
            if lease.consumer == NAME and lease.holder is not None
        }
        if not held:
            return list
        shard = dice.choice(sorted(held, key=str))
        holder = held[shard]
        pid = int(holder.split(":")[1])
        number = next((n for n, worker in self.workers.items() if worker.process.pid == pid), None)
        if number is None:
            return list
        worker = self.workers[number]
        kinds = FAULTS if worker.line is not None else FAULTS[:2]
        kind = dice.choice(kinds)
        begun, done = time.monotonic(), len(self._of(shard))
        if kind == "kill":
            worker.process.kill()
            worker.process.wait()
            self._forget(number)
            self.start(number)
        elif kind == "cut" and worker.line is not None:
            worker.line.cut()
        else:
            self._tell(worker.process, b"z")
        self._until(lambda: self._is_over_by_other(shard, holder, done))
        waited = time.monotonic() - begun
        return lambda: [(kind, waited)]

    def _of(self, shard: Shard) -> list[str]:
        rows = self.bench.engine.rows(
            f'select ulid, shard, token, holder from "{HANDLED}" where shard = {shard}'
        )
        return [row[3] for row in sorted(rows)]

    def _is_over_by_other(self, shard: Shard, holder: str, done: int) -> bool:
        """Whether somebody else went on, or nothing was left to go on with."""
        rows = self._of(shard)
        return any(other != holder for other in rows[done:]) or len(rows) == len(self.bench.fed(shard))

    def _forget(self, number: int) -> None:
        worker = self.workers.pop(number)
        worker.process.close()
        if worker.line is not None:
            worker.line.close()

    def _end(self) -> None:
        """Let all end by themselves."""
        for worker in self.workers.values():
            worker.process.stdin.close()
        for number, worker in self.workers.items():
            try:
                code = worker.process.wait(self.plan.limit)
            except subprocess.TimeoutExpired:
                code = -1
            if code:
                errors = (self.folder / f"consumer-{number}.err").read_text()
                self.failures.append(f"consumer {number} ended with {code}: {errors[-3000:]}")

    def stop(self) -> None:
        """End whatever still runs; gently first, as some servers do not stand clients that are gone."""
        for worker in self.workers.values():
            worker.process.stdin.close()
        for number in list(self.workers):
            process = self.workers[number].process
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
            self._forget(number)


def run_fail_over(bench: Bench, plan: FailOverPlan, folder: Path) -> FailOver:
    """Run a race over a feed and return what happened."""
    bench.engine.create_table(HANDLED_TABLE)
    for shard in SHARDS:
        bench.write(shard=shard)
    create_consumer(bench.source, ConsumerSpec(NAME, bench.feed), Beginning.EARLIEST, by="race")
    race = FailOverRace(bench, plan, folder)
    try:
        race.run()
    finally:
        race.stop()
    rows = bench.engine.rows(f'select ulid, shard, token, holder from "{HANDLED}"')
    return FailOver(
        failures=tuple(race.failures),
        events={shard: tuple(bench.fed(shard)) for shard in SHARDS},
        handled=tuple((ulid, int(shard), int(token), holder) for ulid, shard, token, holder in rows),
        cursors={row.shard: str(row.ulid) for row in bench.source.cursors(bench.feed, NAME)},
        waits=tuple(race.waits),
    )
