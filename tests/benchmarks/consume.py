# SPDX-License-Identifier: Apache-2.0
"""
Consuming a feed in batches, each batch's work and consumption in one transaction.

The handler writes a row of the feed's database for each event. The floor reads the same events in the same
pages and writes the same rows in as many transactions, without lease, fence, cursor or log: what is left when
two processes may do the work twice. Both are also measured from the second batch on: Babelfish parses the
statements and procedures of a new connection, which SQL Server has in a cache of all connections.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from airflow_changefeed.consumers.event import Batch
from airflow_changefeed.consumers.run import run_consumer
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.ulid import Ulid, UlidRange
from tests.benchmarks.figures import Chapter, Figure, Target
from tests.integration.contract.bench import Bench, set_up
from tests.integration.contract.engines import Engine, Table, expected_engines, open_engine
from tests.integration.contract.mssql_changer import in_parts

ROWS, BATCH, ROUNDS = 100_000, 1_000, 3
#: Events/s that one consumer is asked to handle in batches.
ASKED = {"sqlite": 50_000, "mssql": 5_000}
WORK = Table("shop.work", keys=(("number", "integer"),), columns=())
#: One statement for a batch: a driver that sends a row at a time would be all that is measured.
_NUMBERS = {
    "sqlite": "select value from json_each(?)",
    "mssql": "select convert(bigint, value) from openjson(convert(nvarchar(max), ?))",
}
_INSERT = {
    name: in_parts(f'insert into "shop.work" (number) {numbers}')
    if name == "mssql"
    else f'insert into "shop.work" (number) {numbers}'
    for name, numbers in _NUMBERS.items()
}


def run(folder: Path) -> Chapter:
    """Measure every engine; the best of three rounds counts, each by a consumer that begins at the start."""
    figures, targets = [], []
    for name in expected_engines():
        with open_engine(name, folder) as engine:
            bench = set_up(engine, Table(columns=()))
            engine.create_table(WORK)
            _fill(bench)
            floor, later_floor = _best(engine, partial(_floor, bench))
            ours, later_ours = _best(engine, partial(_consume, bench))
        figures += [
            Figure(f"floor on {name}: read and write", ROWS, floor, megabytes=_peak()),
            Figure(f"consumer on {name}, batches of {BATCH:,}", ROWS, ours, megabytes=_peak()),
            Figure(f"floor on {name}, from its second batch", ROWS - BATCH, later_floor, megabytes=_peak()),
            Figure(f"consumer on {name}, from its second batch", ROWS - BATCH, later_ours, megabytes=_peak()),
        ]
        targets += [
            Target(f"consumer on {name}, events/s", ROWS / ours, ASKED[name], at_least=True),
        ]
    return Chapter("Consuming in batches", figures, targets)


def _fill(bench: Bench) -> None:
    """Write the events, and order them."""
    name = bench.engine.name
    outbox = f"[changefeed].[outbox:{bench.feed}]" if name == "mssql" else f'"changefeed.outbox:{bench.feed}"'
    with closing(bench.engine.changer()) as changer:
        for begin in range(0, ROWS, 10 * BATCH):
            numbers = json.dumps(list(range(begin, begin + 10 * BATCH)))
            changer.begin()
            for table in (f'"{bench.feed}"', outbox):
                changer.execute(f"insert into {table} (EventID) {_NUMBERS[name]}", numbers)
            changer.commit()
    bench.source.drain(bench.feed)


def _best(engine: Engine, work: Callable[[int], list[float]]) -> tuple[float, float]:
    """
    Return the best seconds of the whole, and of all but the first batch.

    :param work: returns when each batch was read.
    """
    taken, later = [], []
    for number in range(ROUNDS):
        with closing(engine.changer()) as changer:
            changer.execute('delete from "shop.work"')
        started = time.perf_counter()
        batches = work(number)
        ended = time.perf_counter()
        taken.append(ended - started)
        later.append(ended - batches[1])
        ((rows,),) = engine.rows('select count(*) from "shop.work"')
        if rows != ROWS:
            raise RuntimeError(f"{rows} rows of work, not {ROWS}")
    return min(taken), min(later)


def _write(name: str, connection: Any, numbers: list[int]) -> None:
    cursor = connection.cursor()
    cursor.execute(_INSERT[name], (json.dumps(numbers),))
    cursor.close()


def _consume(bench: Bench, number: int) -> list[float]:
    name, batches = f"bench{number}", []
    create_consumer(bench.source, ConsumerSpec(name, bench.feed), by="benchmark")

    def handle(events: Any, connection: Any) -> None:
        batches.append(time.perf_counter())
        _write(bench.engine.name, connection, [event.row["EventID"] for event in events])

    done = run_consumer(bench.source, name, bench.feed, handle, batch=Batch(events=BATCH), at_head=True)
    bench.source.drop_consumer(name, bench.feed)
    if done.events != ROWS:
        raise RuntimeError(f"consumed {done.events}, not {ROWS}")
    return batches


def _floor(bench: Bench, number: int) -> list[float]:
    batches = []
    with closing(bench.engine.changer()) as changer:
        statement = _INSERT[bench.engine.name]
        for batch in bench.source.stream(bench.feed, 0, UlidRange(Ulid.MIN, Ulid.MAX), batch_rows=BATCH):
            batches.append(time.perf_counter())
            changer.begin()
            changer.execute(statement, json.dumps(batch.column("EventID").to_pylist()))
            changer.commit()
    return batches


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
