# SPDX-License-Identifier: Apache-2.0
"""Running a race of captures: rounds of writing, after each of which the tables are looked at."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from airflow_changefeed.core.capture import CaptureSpec, KeyChange, TableCapture
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import Window
from airflow_changefeed.lake.snapshots import SnapshotFiles
from airflow_changefeed.output.store import ExportStore
from tests.integration.contract.bench import Bench
from tests.integration.contract.capture_oracles import (
    Base,
    CaptureHistory,
    Entry,
    Exported,
    Snapshot,
    Span,
)
from tests.integration.contract.capture_workers import (
    CAPTURE,
    JOURNAL,
    KEYS,
    NUMBERS,
    TABLES,
    CaptureJob,
    export_windows,
)
from tests.integration.contract.captures import CaptureBench, change_of
from tests.integration.contract.engines import Engine, Table
from tests.integration.contract.oracles import Change, SealRecord
from tests.integration.contract.race import Race
from tests.integration.contract.worker_process import WorkerProcess
from tests.integration.contract.workers import patiently, read_log

COLUMNS = ("id", "stamp", "note", "ratio")
SHARDS = (0, 1, 2)
ITEMS = [
    Table(
        name, keys=(("id", "integer"),), columns=(("stamp", "integer"), ("note", "text"), ("ratio", "double"))
    )
    for name in TABLES
]


@dataclass(frozen=True)
class CapturePlan:
    """
    How large a race is; its length is its work, never a time.

    :param rounds: after each, the tables are sealed and compared; after some, they get another column.
    :param transactions: that each writer tries in a round.
    :param kills: processes killed by SIGKILL, at random moments between the writers' commits.
    :param alters: how many of the rounds end with another column, at most 9.
    """

    seed: int
    rounds: int = 4
    writers: int = 3
    transactions: int = 80
    kills: int = 5
    alters: int = 2
    limit: float = 600.0


class GaveUp(Exception):
    """A process failed, or the race takes too long; the race's failures say which."""


@dataclass
class CaptureRace(Race):
    """
    The processes of a race that runs.

    :param owed: transactions that each writer still has to try in this round.
    :param extras: columns that were added so far.
    """

    module: str = "tests.integration.contract.capture_workers"
    since: datetime = datetime.min
    owed: dict[int, int] = field(default_factory=dict)
    extras: int = 0
    snapshots: list[Snapshot] = field(default_factory=list)
    kills: list[int] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    deadline: float = 0.0

    @property
    def path(self) -> str:
        """Where the exporter writes."""
        return str(self.folder / "out")

    def job(self, role: str, number: int, life: int) -> Any:
        """Return what a process does."""
        log = self.folder / f"{role}-{number}.log"
        shards, engine, table = SHARDS, self.bench.engine, self.bench.table
        return CaptureJob(
            role, number, life, self.plan.seed, engine, table, log, shards, self.path, self.since
        )

    def run(self) -> None:
        """Let the writers work in rounds, while an exporter and a sealer go on, and kill some on the way."""
        plan, dice = self.plan, random.Random(self.plan.seed)
        self.deadline = time.monotonic() + plan.limit
        total = plan.rounds * plan.writers * plan.transactions
        self.kills = sorted(dice.sample(range(1, total), plan.kills))
        alters = dice.sample(range(plan.rounds - 1), plan.alters)
        self.owed = dict.fromkeys(range(plan.writers), 0)
        for role, count in {"writer": plan.writers, "exporter": 1, "sealer": 1, "snapshotter": 1}.items():
            for number in range(count):
                self.start(role, number)
        try:
            for number in range(plan.rounds):
                self._until(lambda: not self.waiting, dice)
                for process, job in list(self.jobs.items()):
                    if job.role == "writer":
                        self._owe(process, plan.transactions)
                self._until(lambda: not any(self.owed.values()), dice)
                self._check()
                if number in alters:
                    self._alter()
            self._until(lambda: not self.waiting, dice)
            self._tell_end()
            self._until(lambda: not self.jobs, dice)
        except GaveUp:
            return

    def _until(self, is_reached: Callable[[], bool], dice: random.Random) -> None:
        while not is_reached():
            for key, _ in self.selector.select(timeout=1):
                self._hear(key.data)
            if time.monotonic() > self.deadline:
                self.failures.append(
                    f"not done after {self.plan.limit} s: {[*self.jobs.values()]}, {self.owed}"
                )
            if self.failures:
                raise GaveUp
            while self.kills and self.commits >= self.kills[0]:
                del self.kills[0]
                self._kill(dice)

    def _hear(self, process: WorkerProcess) -> None:
        """Count the steps of a process, let a ready one begin, or see that it ended."""
        if process not in self.jobs:
            return  # killed since it was heard
        steps = os.read(process.stdout.fileno(), 65536)
        job = self.jobs[process]
        if steps and process in self.waiting:
            self.waiting.discard(process)
            self._allow([process], 1)
            if job.role == "writer":
                self._owe(process, 0)
        elif steps:
            self._count(job, len(steps))
        else:
            self._forget(process)
            if code := process.wait():
                errors = (self.folder / f"{job.role}-{job.number}.err").read_text()
                self.failures.append(f"{job.name} ended with {code}: {errors[-3000:]}")

    def _count(self, job: Any, steps: int) -> None:
        if job.role == "writer":
            self.owed[job.number] -= steps
            self.commits += steps

    def _owe(self, process: WorkerProcess, more: int) -> None:
        """Let a writer try more transactions, or one that was killed those that it still owes."""
        number = self.jobs[process].number
        given = more or self.owed[number]
        self.owed[number] += more
        if given:
            process.stdin.write(str(self.extras).encode() * given)
            process.stdin.flush()

    def _kill(self, dice: random.Random) -> None:
        """Kill a process in the middle of whatever it does, and start it again."""
        role = dice.choice(("writer", "exporter", "snapshotter") * 2 + ("sealer",))
        running = [
            process for process, job in self.jobs.items() if job.role == role and process not in self.waiting
        ]
        if not running:
            return
        process = dice.choice(running)
        job = self.jobs[process]
        process.kill()
        process.wait()
        self.killed[role] += 1
        self._count(job, len(process.stdout.read()))
        self._forget(process)
        self.start(job.role, job.number, job.life + 1)

    def _check(self) -> None:
        """Seal while nobody writes, and read the tables."""
        until = self.bench.after_now()
        patiently(self.bench.source.seal, CAPTURE, until)
        names = (*COLUMNS, *(f"extra{number + 1}" for number in range(self.extras)))
        rows = {
            (table, (row[0],)): dict(zip(names, row, strict=True))
            for table in TABLES
            for row in self.bench.engine.rows(f'select {", ".join(names)} from "{table}"')
        }
        self.snapshots.append(Snapshot(str(Ulid.floor(until)), rows))

    def _alter(self) -> None:
        """Give each table another column, and capture it."""
        self.extras += 1
        changer = self.bench.engine.changer(120)
        for table in TABLES:
            changer.execute(f'alter table "{table}" add extra{self.extras} nvarchar(100)')
        changer.close()
        patiently(self.bench.source.refresh_capture, CAPTURE)


def run_capture_race(engine: Engine, plan: CapturePlan, folder: Path) -> CaptureHistory:
    """Run a race over captured tables and return what happened."""
    bench = _set_up(engine)
    race = CaptureRace(plan, bench, folder, since=bench.source.now())
    _enable(bench)
    try:
        race.run()
    finally:
        race.stop()
    return _history(race)


def _set_up(engine: Engine) -> Bench:
    for table in ITEMS:
        engine.create_table(table)
    engine.create_table(
        Table(
            JOURNAL,
            keys=(("n", "identity"),),
            columns=(("tab", "text"), ("id", "integer"), ("stamp", "integer"), ("tx", "text")),
        )
    )
    engine.create_table(Table(NUMBERS, keys=(("id", "integer"),), columns=()))
    rows = ", ".join(f"({number})" for number in range(KEYS))
    CaptureBench(engine, None).run(f'insert into "{NUMBERS}" (id) values {rows}')
    return Bench(engine, engine.source(lock_timeout=120), Table(CAPTURE))


def _enable(bench: Bench) -> None:
    tables = tuple(TableCapture(table, shard=f"id % {len(SHARDS)}") for table in TABLES)
    source: Any = bench.source
    source.enable_capture(
        CaptureSpec(
            tables,
            name=CAPTURE,
            key_change=KeyChange.DELETE_INSERT,
            session_keys=("x-writer",),
            guard_schema=bench.engine.guards_schema,
        )
    )


def _history(race: CaptureRace) -> CaptureHistory:
    bench, folder = race.bench, race.folder
    windows = [
        Window(datetime.fromisoformat(line["start"]), datetime.fromisoformat(line["end"]))
        for line in read_log(folder / "exporter-0.log")
        if line["is_done"]
    ]
    again = str(folder / "again")
    if windows and not race.failures:
        export_windows(bench.source, again, windows, "again")
    journal = bench.engine.rows(f'select tab, id, stamp, tx from "{JOURNAL}" order by n')
    return CaptureHistory(
        keys=dict.fromkeys(TABLES, ("id",)),
        windows=_exported(race.path, windows),
        again=_exported(again, windows),
        snapshots=race.snapshots,
        journal=[Entry(table, (id,), stamp, name) for table, id, stamp, name in journal],
        spans=_spans(race),
        feed={shard: CaptureBench(bench.engine, bench.source, CAPTURE).fed(shard) for shard in SHARDS},
        seals=[
            SealRecord(int(shard), line["below"], *found)
            for line in read_log(folder / "sealer-0.log")
            for shard, found in line["shards"].items()
        ],
        bases=_bases(race.path, bench.engine),
        killed=race.killed,
        failures=tuple(race.failures),
        statements=sum(line.get("statements", 0) for line in _written(race)),
    )


def _bases(path: str, engine: Engine) -> list[Base]:
    """Read the snapshots back by their documents, the newest first of each table."""
    database = engine.source().identity().id
    found = []
    for table in TABLES:
        files = SnapshotFiles(path, CAPTURE, table, database=database)
        for one in files.all():
            rows = [
                row
                for name in one.files
                for row in pq.read_table(f"{files.folder(one.token)}/{name}").to_pylist()
            ]
            shards = [row.pop("changefeed_shard") for row in rows]
            assert shards == [row["id"] % len(SHARDS) for row in rows]
            assert len(rows) == one.rows
            begin, exact = str(Ulid.floor(one.begin)), str(Ulid.floor(one.exact_from))
            found.append(Base(table, begin, exact, rows))
    return found


def _exported(path: str, windows: Sequence[Window]) -> list[Exported]:
    """Read an export back by its manifests, with nothing of Spark or of the package's own readers."""
    store = ExportStore(path, CAPTURE)
    found: dict[str, dict[int, list[Change]]] = {}
    for manifest in store.list():
        events = found.setdefault(manifest.unit.name, {}).setdefault(manifest.unit.shard, [])
        for file in manifest.files:
            whole = pq.read_table(store.find_file(manifest, file))
            events += [change_of(event, manifest.unit.shard) for event in whole.to_pylist()]
    return [Exported(str(Ulid.floor(window.end)), found.get(window.name, {})) for window in windows]


def _written(race: CaptureRace) -> Iterator[dict[str, Any]]:
    """Return what the writers wrote down, each writer's lines in their order."""
    for number in range(race.plan.writers):
        yield from read_log(race.folder / f"writer-{number}.log")


def _spans(race: CaptureRace) -> dict[str, Span]:
    spans: dict[str, Span] = {}
    for line in _written(race):
        if "transaction" in line:
            spans[line["transaction"]] = Span(line["begun"], None)
        elif "acknowledged" in line:
            name = line["acknowledged"]
            spans[name] = Span(spans[name].begun, line["at"])
    return spans
