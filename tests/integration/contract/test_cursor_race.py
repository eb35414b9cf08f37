# SPDX-License-Identifier: Apache-2.0
"""Many people move one cursor at once: each reads it, changes it, and writes it only if it is as it was."""

from __future__ import annotations

import pickle
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_changefeed.core.cursor import CursorDocument, variable_key
from airflow_changefeed.core.ulid import Ulid
from tests.integration.contract.bench import Bench
from tests.integration.contract.cursor_workers import CONSUMER, MoverJob
from tests.integration.contract.worker_process import WorkerProcess
from tests.unit.export.consumers import SharedVariables

#: Of the short form; enough to see that moves are lost.
MOVERS = 10
#: Seconds after which a race is given up as hanging.
LIMIT = 1200.0


def start(job: MoverJob, folder: Path) -> WorkerProcess:
    """Start a mover, which waits for a byte to begin."""
    process = WorkerProcess("tests.integration.contract.cursor_workers", folder / f"mover-{job.number}.err")
    raw = pickle.dumps(job)
    tell(process, len(raw).to_bytes(8, "big") + raw)
    return process


def tell(process: WorkerProcess, message: bytes) -> None:
    """Write to a mover's input."""
    with suppress(BrokenPipeError):
        process.stdin.write(message)
        process.stdin.flush()


def race(jobs: list[MoverJob], folder: Path) -> list[str]:
    """Let all move at once; return what those that failed said."""
    movers = [start(job, folder) for job in jobs]
    try:
        for mover in movers:
            mover.stdout.read(1)
        for mover in movers:
            tell(mover, b"!")
        codes = [mover.wait(LIMIT) for mover in movers]
    finally:
        for mover in movers:
            mover.kill()
            mover.close()
    return [
        (folder / f"mover-{job.number}.err").read_text()[-2000:]
        for job, code in zip(jobs, codes, strict=True)
        if code
    ]


@pytest.mark.races
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("movers", [MOVERS, pytest.param(50, marks=pytest.mark.nightly)])
def test_no_move_of_many_at_once_is_lost(bench: Bench, tmp_path: Path, movers: int) -> None:
    """Each process moves it by an event: it ends that many events on, with each move in its history."""
    bench.write(movers)
    bench.source.drain(bench.feed)
    bench.source.begin_consumer(CONSUMER, bench.feed, {0: Ulid.MIN}, by="test")
    places = (str(Ulid.MIN), *bench.fed())
    shared = str(tmp_path / "airflow.db")
    jobs = [MoverJob(number, bench.source.describe(), bench.feed, shared, places) for number in range(movers)]
    assert race(jobs, tmp_path) == []
    rows = bench.source.cursors(bench.feed, CONSUMER)
    assert [str(row.ulid) for row in rows] == [places[-1]], "moves were lost"
    begun, *moves = reversed(bench.source.history(bench.feed, CONSUMER, limit=1000))
    assert (begun.before, begun.by) == (None, "test")
    assert len(moves) == movers, "moves were lost"
    assert sorted(one.by for one in moves) == sorted(f"mover {number}" for number in range(movers))
    assert [(str(one.before), str(one.after)) for one in moves] == list(pairwise(places))
    assert [one.resource_version for one in moves] == [
        begun.resource_version + n for n in range(1, movers + 1)
    ]
    identity = bench.source.identity()
    key = variable_key(identity.id, CONSUMER, bench.feed)
    text = SharedVariables(shared).get(key)
    assert text == CursorDocument.of_rows(identity, CONSUMER, bench.feed, rows).to_json()
