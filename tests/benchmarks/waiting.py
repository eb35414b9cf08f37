# SPDX-License-Identifier: Apache-2.0
"""
Captures with much to order: a drain of up to a million statements, and an hour beside an open transaction.

Each statement is a transaction that inserted one row. On SQL Server they are put where triggers put them, as
a million transactions would take longer than all other benchmarks; SQLite records them by its triggers.

The hour has its 36,000 statements, ten a second, and a seal for each of its 60 minutes, one after the other
without the waiting between: beside a transaction that changed a row at the beginning and ends with the hour,
and beside none. The embedded source has one writer at a time, so nobody writes beside an open transaction.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from tests.benchmarks import drain
from tests.benchmarks.figures import Chapter, Figure, Target, tell
from tests.integration.contract.engines import Changer, Engine, expected_engines, open_engine

SIZES = (40_000, 160_000, 1_000_000)
MINUTES, STATEMENTS = 60, 600
TABLE = "waiting.row"
CAPTURE = f"{TABLE}_changes"
_INSERT = f'insert into "{TABLE}" (id, name) values (?, ?)'


def run(folder: Path) -> Chapter:
    """Measure every engine; what is asked is that no figure grows with what waits."""
    figures: list[Figure] = []
    targets: list[Target] = []
    for name in expected_engines():
        with open_engine(name, folder) as engine:
            _set_up(engine)
            # First, as what is put where triggers put it has no rows in the table, which seals would notice.
            if engine.source().capabilities.parallel_writers:
                tell(f"an hour of a capture on {name}")
                alone, beside = (_hour(engine, is_open=is_open) for is_open in (False, True))
                figures += [alone, beside]
                what = f"an hour on {name} beside an open transaction, of one beside none"
                targets.append(Target(what, beside.seconds / alone.seconds, 1.2))
            fill = _fill_mssql(engine) if name == "mssql" else _fill_sqlite(engine)
            drains = []
            for size in SIZES:
                tell(f"drain of a capture on {name}, {size:,} statements")
                drains.append(_drain(engine, fill, size))
            figures += drains
            growth = drains[0].rows_per_second / drains[-1].rows_per_second
            what = f"time of a statement on {name}, of {SIZES[-1]:,} by that of {SIZES[0]:,}"
            targets.append(Target(what, growth, 1.5))
    return Chapter("Captures with much to order", figures, targets)


def _set_up(engine: Engine) -> None:
    with closing(engine.changer()) as changer:
        if engine.name == "mssql":
            changer.execute("exec('create schema waiting')")
        changer.execute(f'create table "{TABLE}" (id bigint not null primary key, name varchar(20) not null)')
    source: Any = engine.source()
    source.enable_capture(CaptureSpec((TableCapture(TABLE),), guard_schema=engine.guards_schema))


def _drain(engine: Engine, fill: Callable[[int], None], size: int) -> Figure:
    fill(size)
    source = engine.source()
    started = time.perf_counter()
    drained = source.drain(CAPTURE)
    seconds = time.perf_counter() - started
    if drained != {0: size}:
        raise RuntimeError(f"drained {drained}, not {size} events")
    return Figure(f"drain on {engine.name}, {size:,} statements", size, seconds, megabytes=_peak())


def _fill_mssql(engine: Engine) -> Callable[[int], None]:
    execute = drain.mssql(engine)
    numbers = " cross join ".join(
        f"(values (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)) as t{n} (d)" for n in range(6)
    )
    number = "row_number() over (order by (select null))"
    events, outbox = "[waiting].[row_changes]", f"[changefeed].[outbox:{CAPTURE}]"

    def fill(size: int) -> None:
        # Below all that the sequence gives, and apart from those of other sizes.
        execute(
            f"insert into {outbox} (shard_id, order_sequence, time_hint, changefeed_tid, changefeed_first, "
            "changefeed_rows, changefeed_table, changefeed_balance) "
            f"select top ({size}) 0, {size * 10**8} + {number}, sysutcdatetime(), {number}, 1, 1, 0, 1 "
            f"from {numbers}"
        )
        execute(
            f"insert into {events} (changefeed_statement, changefeed_row, changefeed_image, "
            "changefeed_shard, changefeed_table, changefeed_op, changefeed_tid, changefeed_at, id, name) "
            "select o.order_sequence, 1, 1, 0, 0, 'i', o.changefeed_tid, o.time_hint, o.order_sequence, 'x' "
            f"from {outbox} as o"
        )

    return fill


def _fill_sqlite(engine: Engine) -> Callable[[int], None]:
    def fill(size: int) -> None:
        first = int(engine.rows(f'select coalesce(max(id), 0) from "{TABLE}"')[0][0]) + 1
        with closing(engine.changer()) as changer:
            changer.execute("pragma synchronous = off")
            for number in range(first, first + size):
                _insert(changer, number)

    return fill


def _insert(changer: Changer, number: int) -> None:
    changer.begin()
    changer.execute(_INSERT, number, "x")
    changer.commit()


def _hour(engine: Engine, *, is_open: bool) -> Figure:
    source = engine.source()
    first = int(engine.rows(f'select coalesce(max(id), 0) from "{TABLE}"')[0][0]) + 2
    with (
        closing(engine.changer()) as changer,
        closing(engine.changer()) if is_open else nullcontext() as other,
    ):
        if other is not None:
            other.begin()
            other.execute(_INSERT, first - 1, "open")
        started = time.perf_counter()
        for minute in range(MINUTES):
            for number in range(STATEMENTS):
                _insert(changer, first + minute * STATEMENTS + number)
            source.seal(CAPTURE, source.now())
        seconds = time.perf_counter() - started
        if other is not None:
            other.commit()
    what = "beside an open transaction" if is_open else "beside none"
    rows = MINUTES * STATEMENTS
    return Figure(f"an hour on {engine.name}, {what}", rows, seconds, megabytes=_peak())


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
