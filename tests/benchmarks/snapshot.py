# SPDX-License-Identifier: Apache-2.0
"""
Taking a snapshot of a table, against a plain read of it by ADBC into Parquet, and what its writers notice.

Both read alone, in one process each, as a task of Spark does. Then a writer changes rows one by one: while
nobody reads, while snapshots are taken, and while all rows are recorded as events.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from statistics import median, quantiles

from tests.benchmarks.figures import Chapter, Target, figure_of
from tests.benchmarks.watch import watch

ROWS, ROUNDS = 5_000_000, 5
TABLE = "shop.stock"
CREATE = f'create table "{TABLE}" (id integer primary key, name text, size integer, price real, note text)'
WRITES = 3_000
#: What is beside a writer, by the words of the child.
BESIDE = {
    "nothing": "alone",
    "snapshot": "beside snapshots",
    "recording": "while rows are recorded as events",
}
_WHAT = {"plain": "plain: ADBC to one Parquet file", "snapshot": "snapshot: cut, read, settle, commit"}


def fill(path: Path, rows: int) -> None:
    """Fill a table of shoes."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute(CREATE)
        values = (
            (
                number,
                f"shoe {number % 5000}",
                number % 30 + 20,
                number % 997 / 4,
                f"note {number:>12} of many",
            )
            for number in range(rows)
        )
        connection.executemany(f'insert into "{TABLE}" values (?, ?, ?, ?, ?)', values)
        connection.commit()


def run(folder: Path) -> Chapter:
    """Measure each way in turn; the median of the rounds counts, and of their ratios."""
    database = folder / "shop.db"
    fill(database, ROWS)
    arguments = [str(ROUNDS), str(database), str(folder / "lake")]
    readings = watch("tests.benchmarks.snapshot_child", arguments)
    for name, reading in readings.items():
        if reading.result["rows"] != ROWS:
            raise RuntimeError(f"{name} has read {reading.result['rows']} of {ROWS} rows")
    figures = [
        figure_of(what, ROWS, [readings[f"{way} {number}"] for number in range(ROUNDS)], has_span=True)
        for way, what in _WHAT.items()
    ]
    pairs = [(readings[f"snapshot {number}"], readings[f"plain {number}"]) for number in range(ROUNDS)]
    return Chapter(
        "Snapshot of a table",
        figures,
        [
            Target(
                "snapshot, rows/s of the plain read's",
                median(plain.seconds / own.seconds for own, plain in pairs),
                0.9,
                at_least=True,
            ),
            Target(
                "snapshot, CPU of the plain read's",
                median(own.cpu_seconds / plain.cpu_seconds for own, plain in pairs),
                1.3,
            ),
        ],
        note=_of_writers(folder),
    )


def _of_writers(folder: Path) -> str:
    """Say how long single updates take, alone and beside what reads the table."""
    texts = []
    for beside, what in BESIDE.items():
        middle, high, highest = (1000 * seconds for seconds in _latencies(folder / beside, beside))
        texts.append(f"{what}: median {middle:.2f} ms, 99 % {high:.2f}, 99.9 % {highest:.2f}")
    return f"Single updates by one writer, a transaction each. {'; '.join(texts)}."


def _latencies(folder: Path, beside: str) -> tuple[float, float, float]:
    folder.mkdir()
    database = folder / "shop.db"
    fill(database, ROWS // 5)
    command = [sys.executable, "-m", "tests.benchmarks.snapshot_child", "write", str(database), str(WRITES)]
    found = subprocess.run([*command, beside], check=True, capture_output=True, text=True)
    seconds = [float(line) for line in found.stdout.split()]
    cuts = quantiles(seconds, n=1000)
    return median(seconds), cuts[989], cuts[998]
