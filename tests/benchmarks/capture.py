# SPDX-License-Identifier: Apache-2.0
"""
What a capture costs the writers of its table.

Each statement is a transaction: orders are inserted, updated and deleted, 1, 100 or 10,000 by a statement.
The same is done to another table by a program that writes the same columns into an outbox of its own, in the
same transaction: the new rows of an insert, the old ones of a delete, both of an update.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.ulid import Ulid, UlidRange
from tests.benchmarks import mssql_orders, orders
from tests.benchmarks.figures import Chapter, Figure, Target, tell
from tests.integration.contract.engines import Changer, Engine, expected_engines, open_engine

ROUNDS = 5
#: Rows of a statement, and statements of a round.
SIZES = {1: 300, 100: 100, 10_000: 5}
LIMIT = 1.6
CAPTURED, HANDMADE, OUTBOX, STAGING = "shop.captured", "shop.handmade", "shop.outbox", "shop.staging"
CAPTURE = f"{CAPTURED}_changes"
_NAMES = ", ".join(orders.COLUMNS)
_OTHERS = ", ".join(name for name in orders.COLUMNS if name != "id")


def run(folder: Path) -> Chapter:
    """Measure every engine; both ways in turn, medians count."""
    figures: list[Figure] = []
    targets: list[Target] = []
    for name in expected_engines():
        with open_engine(name, folder) as engine:
            _set_up(engine)
            for rows, count in SIZES.items():
                tell(f"capture on {name}, {rows:,} rows a statement")
                for operation, seconds in _measure(engine, rows, count).items():
                    captured, handmade = (median(seconds[way]) for way in (True, False))
                    what = f"{operation} on {name}, {rows:,} rows a statement"
                    figures += [
                        Figure(f"{what}: own outbox", rows * count, handmade, megabytes=_peak()),
                        Figure(f"{what}: capture", rows * count, captured, megabytes=_peak()),
                    ]
                    targets.append(Target(f"{what}, time of the own outbox's", captured / handmade, LIMIT))
    return Chapter("Writers of captured tables", figures, targets)


@dataclass
class Way:
    """
    A program that writes in one of the two ways.

    :param is_captured: whether the capture records, or else the program itself.
    """

    engine: Engine
    changer: Changer
    is_captured: bool
    next_id: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def table(self) -> str:
        """What is written to."""
        return CAPTURED if self.is_captured else HANDMADE

    def round(self, rows: int, count: int) -> None:
        """Insert, update and delete so many times so many rows, each in ascending keys."""
        first = self.next_id
        self.next_id += rows * count
        for operation, work in self._works(rows).items():
            started = time.perf_counter()
            for number in range(count):
                self._transaction(work, first + number * rows)
            self.seconds.setdefault(operation, []).append(time.perf_counter() - started)

    def _transaction(self, work: Callable[[int], None], first: int) -> None:
        # Whoever writes its own outbox knows nothing of our helper, which the embedded source asks for.
        if self.is_captured or self.engine.name == "mssql":
            self.changer.begin()
            work(first)
            self.changer.commit()
        else:
            self.changer.execute("begin immediate")
            work(first)
            self.changer.execute("commit")

    def _works(self, rows: int) -> dict[str, Callable[[int], None]]:
        return {
            "insert": lambda first: self._insert(first, rows),
            "update": lambda first: self._update(first, rows),
            "delete": lambda first: self._delete(first, rows),
        }

    def _insert(self, first: int, rows: int) -> None:
        source = f'from "{STAGING}" where id < {rows}'
        self.changer.execute(
            f'insert into "{self.table}" ({_NAMES}) select id + ?, {_OTHERS} {source}', first
        )
        if not self.is_captured:
            self.changer.execute(
                f"insert into \"{OUTBOX}\" (op, image, {_NAMES}) select 'i', 1, id + ?, {_OTHERS} {source}",
                first,
            )

    def _update(self, first: int, rows: int) -> None:
        self._record("u", 0, first, rows)
        self.changer.execute(
            f"update \"{self.table}\" set quantity = quantity + 1, status = 'paid' where id >= ? and id < ?",
            first,
            first + rows,
        )
        self._record("u", 1, first, rows)

    def _delete(self, first: int, rows: int) -> None:
        self._record("d", 0, first, rows)
        self.changer.execute(f'delete from "{self.table}" where id >= ? and id < ?', first, first + rows)

    def _record(self, op: str, image: int, first: int, rows: int) -> None:
        """Write what the rows are now into the program's own outbox."""
        if not self.is_captured:
            self.changer.execute(
                f"insert into \"{OUTBOX}\" (op, image, {_NAMES}) select '{op}', {image}, {_NAMES} "
                f'from "{self.table}" where id >= ? and id < ?',
                first,
                first + rows,
            )


def _measure(engine: Engine, rows: int, count: int) -> dict[str, dict[bool, list[float]]]:
    """Return the seconds of each round, by operation and way."""
    with closing(engine.changer()) as one, closing(engine.changer()) as two:
        # Keys of other sizes stay free of one another.
        ways = [Way(engine, one, True, rows * 10**9), Way(engine, two, False, rows * 10**9)]
        for way in ways:
            way.round(rows, 1)
            way.seconds.clear()
        for number in range(ROUNDS):
            for way in ways if number % 2 else reversed(ways):
                way.round(rows, count)
    found: dict[str, dict[bool, list[float]]] = {}
    for way in ways:
        for operation, seconds in way.seconds.items():
            found.setdefault(operation, {})[way.is_captured] = seconds
    _check(engine)
    return found


def _check(engine: Engine) -> None:
    """Check that both ways have recorded as much, so that they can be compared."""
    for table in (CAPTURED, HANDMADE):
        if engine.rows(f'select count(*) from "{table}"') != [(0,)]:
            raise RuntimeError(f"{table} has rows left")
    source: Any = engine.source()
    if source.check_capture(CAPTURE):
        raise RuntimeError("changes passed the capture unseen")
    ((written,),) = engine.rows(f"select count(*) from \"{OUTBOX}\" where op <> 'u' or image = 1")
    source.drain(CAPTURE)
    captured = source.count(CAPTURE, 0, [UlidRange(Ulid.MIN, Ulid.MAX)])
    if captured != [written]:
        raise RuntimeError(f"the program has written {written} events, the capture {captured}")


def _set_up(engine: Engine) -> None:
    kinds = mssql_orders.COLUMNS if engine.name == "mssql" else orders.COLUMNS
    columns = ", ".join(f"{name} {kind} not null" for name, kind in kinds.items())
    counted = "bigint identity(1,1) primary key" if engine.name == "mssql" else "integer primary key"
    with closing(engine.changer()) as changer:
        if engine.name == "mssql":
            changer.execute("exec('create schema shop')")
        else:
            changer.execute("pragma journal_mode = wal")
        for table in (CAPTURED, HANDMADE, STAGING):
            changer.execute(f'create table "{table}" ({columns}, primary key (id))')
        own = f"n {counted}, op char(1) not null, image smallint not null"
        changer.execute(f'create table "{OUTBOX}" ({own}, {columns})')
        _stage(engine, changer)
    source: Any = engine.source()
    source.enable_capture(CaptureSpec((TableCapture(CAPTURED),), guard_schema=engine.guards_schema))


def _stage(engine: Engine, changer: Changer) -> None:
    """Put the rows that are inserted into a table, as sending them would take most of the time."""
    rows = [(number, *kind) for number, kind in enumerate(orders.kinds()[: max(SIZES)])]
    if engine.name == "mssql":
        typed = ", ".join(
            f"{name} {kind} '$[{place}]'" for place, (name, kind) in enumerate(mssql_orders.COLUMNS.items())
        )
        changer.execute(f'insert into "{STAGING}" select * from openjson(?) with ({typed})', json.dumps(rows))
        return
    places = ", ".join(f"value ->> {place}" for place in range(len(orders.COLUMNS)))
    changer.execute(f'insert into "{STAGING}" select {places} from json_each(?)', json.dumps(rows))


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
