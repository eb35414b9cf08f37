# SPDX-License-Identifier: Apache-2.0
"""Exports that are tables of Delta Lake and Iceberg, against the same files as plain Parquet."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from tests.benchmarks import orders
from tests.benchmarks.export import measure
from tests.benchmarks.figures import Chapter, Target, figure_of
from tests.benchmarks.watch import Reading

ROWS = 2_000_000
ROUNDS = 3
_WHAT = {
    "hourly": "Parquet: 720 hourly units",
    "delta": "Delta Lake: the same, in one commit",
    "iceberg": "Iceberg: the same, in one commit",
}


def run(folder: Path) -> Chapter:
    """Measure each format in processes of its own, in turn; the medians of figures and ratios count."""
    database = folder / "tables.db"
    orders.load(database, ROWS)
    readings: dict[str, list[Reading]] = {way: [] for way in _WHAT}
    for _ in range(ROUNDS):
        for way, own in readings.items():
            own.append(measure(way, database, ROWS))
    return Chapter(
        "Exports that are tables",
        [figure_of(what, ROWS, readings[way]) for way, what in _WHAT.items()],
        [
            Target(
                f"{_WHAT[way].partition(':')[0]}, time of Parquet's",
                median(
                    ours.seconds / plain.seconds
                    for ours, plain in zip(readings[way], readings["hourly"], strict=True)
                ),
                1.15,
            )
            for way in ("delta", "iceberg")
        ],
    )
