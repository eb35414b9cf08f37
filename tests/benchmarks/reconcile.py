# SPDX-License-Identifier: Apache-2.0
"""Comparing a table with what its export gives: five million equal rows of the embedded source."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from tests.benchmarks.figures import Chapter, Figure, Target, figure_of
from tests.benchmarks.snapshot import ROWS, fill
from tests.benchmarks.watch import watch

ROUNDS = 5
#: Rows that were changed since the base, and exported.
CHANGES = 20_000
_WHAT = {
    "read": "read the table: cut, read, settle",
    "compare": "compare it on Spark with the base and the events since",
}


def run(folder: Path) -> Chapter:
    """Measure both halves of a reconcile, one after the other; the median of the rounds counts."""
    database = folder / "reconcile.db"
    fill(database, ROWS)
    arguments = [ROUNDS, database, folder / "reconciled", CHANGES]
    readings = watch("tests.benchmarks.reconcile_child", [str(each) for each in arguments])
    found = [readings[f"compare {number}"].result for number in range(ROUNDS)]
    if any(one != {"rows": ROWS, "equal": True} for one in found):
        raise RuntimeError(f"{ROWS} equal rows were compared, and found was {found}")
    rounds = {way: [readings[f"{way} {number}"] for number in range(ROUNDS)] for way in _WHAT}
    seconds = [sum(one.seconds for one in both) for both in zip(*rounds.values(), strict=True)]
    both = Figure(
        "both",
        ROWS,
        median(seconds),
        median(sum(one.cpu_seconds for one in both) for both in zip(*rounds.values(), strict=True)),
        max(median(one.megabytes for one in own) for own in rounds.values()),
        (min(seconds), max(seconds)),
    )
    return Chapter(
        "Comparing a table with its export",
        [*(figure_of(what, ROWS, rounds[way], has_span=True) for way, what in _WHAT.items()), both],
        [Target("reconcile, rows/s", both.rows_per_second, 500_000, at_least=True)],
    )
