# SPDX-License-Identifier: Apache-2.0
"""
The processes of a race of captures: writers that change tables, an exporter, a sealer, and one that takes
snapshots, into files and into the feed.

As in ``workers.py``: :func:`main` reads its job, says that it is ready, and waits for a byte. A writer gets a
byte for each transaction it may try, a digit that says how many columns were added to the tables; it ends
when there are no more. An exporter and who takes snapshots go on to the input's end.
"""

from __future__ import annotations

import os
import pickle
import random
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from airflow_changefeed.core.window import Window
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.lake.snapshot_ranges import read_here
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base_capture import INTO_FEED
from airflow_changefeed.sources.sqlite.capture import record as recording
from tests.integration.contract.engines import Changer, Engine, Table
from tests.integration.contract.workers import (
    PAUSE,
    Log,
    is_over,
    patiently,
    read_log,
    receive,
    rest,
    seal,
    step,
)

CAPTURE = "shop.changes"
TABLES = ("shop.item", "shop.part")
JOURNAL, NUMBERS = "shop.journal", "shop.number"
#: Keys that writers insert; others are those moved by so much.
KEYS = 120
#: Stamps that one life of one writer may use.
STAMPS_OF_A_LIFE = 1_000_000


@dataclass(frozen=True)
class CaptureJob:
    """
    What a process does.

    :param table: its name is the capture's.
    :param path: of the export.
    :param since: where the export's first window begins.
    """

    role: str
    number: int
    life: int
    seed: int
    engine: Engine
    table: Table
    log: Path
    shards: tuple[int, ...]
    path: str
    since: datetime

    @property
    def name(self) -> str:
        """For logs and complaints."""
        return f"{self.role} {self.number}"


class Program:
    """What a writer does in its transactions, each statement with a stamp of its own."""

    def __init__(self, changer: Changer, dice: random.Random, stamp: int) -> None:
        self.changer = changer
        self.dice = dice
        self.stamp = stamp
        self.extras = 0
        self.transaction = ""
        self.statements = 0

    def act(self) -> None:
        """Do one thing to some rows of one table."""
        table = self.dice.choice(TABLES)
        first = self.dice.randrange(KEYS)
        keys = f"between {first} and {first + self.dice.choice((0, 0, 1, 4, 15))}"
        act = self.dice.choice((self.insert, self.insert, self.update, self.update, self.delete, self.move))
        act(table, keys)

    def insert(self, table: str, keys: str) -> None:
        """Insert those of the keys that are not there."""
        self._run(
            f'insert into "{table}" (id, stamp, note, ratio) '
            f"select n.id, {self._next()}, ?, {self.stamp} / 8e0 "
            f'from "{NUMBERS}" n where n.id {keys} and n.id not in (select id from "{table}")',
            self._note(),
        )
        self._journal(table, self.stamp)

    def update(self, table: str, keys: str) -> int:
        """Update those of the keys that are there."""
        extra = f"extra{self.dice.randint(1, self.extras)} = ?" if self.extras else "note = ?"
        self._run(f'update "{table}" set stamp = {self._next()}, {extra} where id {keys}', self._note())
        self._journal(table, self.stamp)
        return self.stamp

    def delete(self, table: str, keys: str) -> None:
        """Delete rows; the stamp before it locks them, and names them to the journal."""
        stamp = self.update(table, keys)
        self._journal(table, stamp, is_gone=True)
        self._run(f'delete from "{table}" where stamp = {stamp}')

    def move(self, table: str, keys: str) -> None:
        """Give rows other keys, where those are free."""
        by = KEYS * 2
        stamp, there = self.update(table, keys), self.dice.random() < 0.5
        if not there:
            # Those that were moved before, back.
            self._run(f'update "{table}" set stamp = {self._next()} where id - {by} {keys}')
            stamp, by = self.stamp, -by
            self._journal(table, stamp)
        self._run(
            f'update "{table}" set id = id + {by}, stamp = {self._next()} '
            f'where stamp = {stamp} and id + {by} not in (select id from "{table}")'
        )
        self._journal(table, self.stamp, is_gone=True, moved_by=by)
        self._journal(table, self.stamp)

    def _next(self) -> int:
        self.stamp += 1
        return self.stamp

    def _note(self) -> str:
        return self.dice.choice("αβγ ") * self.dice.randint(0, 12)

    def _run(self, sql: str, *values: Any) -> None:
        self.statements += 1
        self.changer.execute(sql, *values)

    def _journal(self, table: str, stamp: int, *, is_gone: bool = False, moved_by: int = 0) -> None:
        """Write down what a statement has left, while its rows are locked by it."""
        self.changer.execute(
            f'insert into "{JOURNAL}" (tab, id, stamp, tx) select ?, id - {moved_by}, '
            f'{"null" if is_gone else "stamp"}, ? from "{table}" where stamp = {stamp}',
            table,
            self.transaction,
        )


def write(job: CaptureJob) -> None:
    """Try transactions; hold some open, roll some back, and lose some to conflicts."""
    log, dice = Log(job.log), random.Random(f"{job.seed} {job.name} {job.life}")
    stamp = (job.number * 1000 + job.life + 1) * STAMPS_OF_A_LIFE
    with closing(job.engine.changer(lock_timeout=120)) as changer:
        program = Program(changer, dice, stamp)
        while digit := os.read(0, 1):
            program.extras = int(digit)
            program.transaction = f"{job.name}, life {job.life}, stamp {program.stamp}"
            program.statements = 0
            begun = time.monotonic_ns()
            try:
                changer.begin({"x-writer": str(job.number)})
                for _ in range(dice.randint(1, 4)):
                    program.act()
                    if dice.random() < 0.1:
                        rest(dice.random() * PAUSE / 2)
                log.write(transaction=program.transaction, begun=begun, statements=program.statements)
                if dice.random() < 0.1:
                    changer.rollback()
                else:
                    changer.commit()
                    log.write(acknowledged=program.transaction, at=time.monotonic_ns())
            except Exception as error:
                if not changer.is_conflict(error):
                    raise
                with suppress(Exception):
                    changer.rollback()
                log.write(conflict=str(error)[:200])
            step()
            rest(dice.random() * PAUSE / 3)


def export(job: CaptureJob) -> None:
    """Export window after window, each from the end of the one before it to the present."""
    log, dice = Log(job.log), random.Random(f"{job.seed} {job.name} {job.life}")
    source = job.engine.source(lock_timeout=120)
    start, pending = job.since, None
    for line in read_log(job.log):
        # One that was begun is the one that is done again: a window is never cut in two ways.
        pending = Window(datetime.fromisoformat(line["start"]), datetime.fromisoformat(line["end"]))
        if line["is_done"]:
            start, pending = pending.end, None
    is_last = False
    while True:
        if pending is None and (end := source.now()) > start:
            pending = Window(start, end)
            log.write(start=start.isoformat(), end=end.isoformat(), is_done=False)
        if pending is not None:
            patiently(export_windows, source, job.path, [pending], f"{job.name}/{job.life}")
            log.write(start=start.isoformat(), end=pending.end.isoformat(), is_done=True)
            start, pending = pending.end, None
            step()
        if is_last:
            return
        is_last = is_over(dice.random() * PAUSE * 4)


def snapshot(job: CaptureJob) -> None:
    """Take snapshots of one table after the other, in ranges of a few rows."""
    dice = random.Random(f"{job.seed} {job.name} {job.life}")
    source = job.engine.source(lock_timeout=120)
    # What is there is recorded in chunks of a few rows, too.
    recording._FIRST_ROWS = recording._MOST_ROWS = 9
    if any(claim.path == INTO_FEED for claim in source.snapshots(CAPTURE)):
        record(source, job)
    is_last = False
    while True:
        for table in TABLES:
            take_here(source, job.path, table, f"{job.name}/{job.life}")
            step()
        if job.engine.locks_reads:
            record(source, job)
        if is_last:
            return
        is_last = is_over(dice.random() * PAUSE * 2)


def record(source: Any, job: CaptureJob) -> None:
    """Have all rows recorded as events, or go on with that."""
    patiently(partial(source.resolve_capture, CAPTURE, note="again", by=job.name, resync=True))
    step()


def take_here(source: Any, path: str, table: str, run: str) -> Any:
    """Take a snapshot of a table, or go on with one, as the operator does below ``local_below``."""
    request = SnapshotRequest(CAPTURE, table, path, run, range_rows=9)
    read = partial(read_here, source, report=lambda found: rest(PAUSE / 40))
    return patiently(take_snapshot, source, request, None, read, lambda line: None)


def export_windows(source: Any, path: str, windows: list[Window], run: str) -> None:
    """Export windows of all shards in this process, as the operator does below ``local_below``."""
    store = ExportStore(path, CAPTURE)
    plan = make_plan(source, store, ExportRequest(CAPTURE, path, "race", run, windows))
    run_here(source, store, plan, lambda _: None)


def main() -> None:
    """Do the job."""
    job: CaptureJob = pickle.loads(receive(int.from_bytes(receive(8), "big")))  # noqa: S301 - from the race itself
    # Loads what a stream needs, so that all begin at once.
    job.engine.source().schema(CAPTURE)
    step()
    receive(1)
    {"writer": write, "exporter": export, "sealer": seal, "snapshotter": snapshot}[job.role](job)
