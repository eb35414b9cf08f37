# SPDX-License-Identifier: Apache-2.0
"""
Draining an outbox in pages of 10,000 rows.

The floor moves the same rows in the same pages by one ``insert ... select`` and one ``delete`` each, without
order, locks, clock or ULIDs.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_changefeed.sources.mssql.names import quote
from tests.benchmarks.figures import Chapter, Figure, Target
from tests.integration.contract.bench import Bench, set_up
from tests.integration.contract.engines import Engine, Table, expected_engines, open_engine

ROWS, PAGE, ROUNDS = 200_000, 10_000, 3


def run(folder: Path) -> Chapter:
    """Measure every engine; the best of three rounds counts, each on a full outbox."""
    figures, targets = [], []
    for name in expected_engines():
        floor, ours = _measure(name, folder)
        figures += [floor, ours]
        targets.append(Target(f"drain on {name}, rows/s", ours.rows_per_second, 50_000, at_least=True))
    return Chapter("Draining an outbox", figures, targets)


def _measure(name: str, folder: Path) -> tuple[Figure, Figure]:
    with open_engine(name, folder) as engine:
        bench = set_up(engine, Table(columns=()))
        execute = mssql(engine) if name == "mssql" else _sqlite(engine)
        outbox, feed = (_object(name, kind, bench.feed) for kind in ("outbox", "feed"))

        def fill() -> None:
            _fill(name, execute, outbox, feed)

        floor = _best(fill, lambda: _floor(name, execute, outbox, feed))
        ours = _best(fill, lambda: _drain(bench))
    return (
        Figure(f"floor on {name}: insert and delete", ROWS, floor, megabytes=_peak()),
        Figure(f"drain on {name}, pages of 10,000", ROWS, ours, megabytes=_peak()),
    )


def _best(prepare: Callable[[], None], work: Callable[[], None]) -> float:
    taken = []
    for _ in range(ROUNDS):
        prepare()
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


def _drain(bench: Bench) -> None:
    drained = bench.source.drain(bench.feed)
    if drained != {0: ROWS}:
        raise RuntimeError(f"drained {drained}, not {ROWS} rows")


def _floor(name: str, execute: Callable[[str], Any], outbox: str, feed: str) -> None:
    # A ULID of the same size, so that both write the same bytes.
    ulid = (
        "convert(binary(16), o.order_sequence)"
        if name == "mssql"
        else "cast(printf('%016d', o.order_sequence) as blob)"
    )
    (lowest,) = execute(f"select min(order_sequence) from {outbox}")[0]
    for page in range(int(lowest), int(lowest) + ROWS, PAGE):
        where = f"where o.shard_id = 0 and o.order_sequence >= {page} and o.order_sequence < {page + PAGE}"
        execute("begin transaction")
        execute(
            f"insert into {feed} (shard_id, ulid, EventID) "
            f"select o.shard_id, {ulid}, o.EventID from {outbox} as o {where}"
        )
        execute(f"delete from {outbox} {where.replace('o.', '')}")
        execute("commit")


def _fill(name: str, execute: Callable[[str], Any], outbox: str, feed: str) -> None:
    execute(f"delete from {feed}")
    execute(f"delete from {outbox}")
    if name == "mssql":
        numbers = " cross join ".join(
            f"(values (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)) as t{n} (d)" for n in range(6)
        )
        number = "row_number() over (order by (select null))"
        rows = f"select top ({ROWS}) 0, sysutcdatetime(), {number} from {numbers}"
    else:
        rows = (
            f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {ROWS}) "
            "select 0, 1356998400000 + i, i from n"
        )
    columns = "(shard_id, time_hint, EventID)"
    insert = f"insert into {outbox} {columns} {rows}"
    if name != "mssql":
        with_, _, select = rows.partition(" select 0")
        insert = f"{with_} insert into {outbox} {columns} select 0{select}"
    execute(insert)


def _object(name: str, kind: str, feed: str) -> str:
    return f"[changefeed].{quote(f'{kind}:{feed}')}" if name == "mssql" else f'"changefeed.{kind}:{feed}"'


def mssql(engine: Engine) -> Callable[[str], Any]:
    """Return what runs a statement on the server, in autocommit."""
    source: Any = engine.source()

    def execute(sql: str) -> Any:
        with source.database.connect() as session:
            return session.rows(sql)

    return execute


def _sqlite(engine: Engine) -> Callable[[str], Any]:
    import sqlite3

    path: str = engine.source().describe()["path"]
    connection = sqlite3.connect(path, isolation_level=None)

    def execute(sql: str) -> Any:
        return connection.execute(sql).fetchall()

    return execute


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
