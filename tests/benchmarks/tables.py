# SPDX-License-Identifier: Apache-2.0
"""
Exports that are tables of Delta Lake and Iceberg, against the same files as plain Parquet; and dlt, which
loads the same rows into a Delta table.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

from tests.benchmarks import orders
from tests.benchmarks.environments import python_of
from tests.benchmarks.export import measure
from tests.benchmarks.figures import Chapter, Target, figure_of
from tests.benchmarks.watch import Reading, watch

ROWS = 2_000_000
ROUNDS = 3
_WHAT = {
    "hourly": "Parquet: 720 hourly units",
    "delta": "Delta Lake: the same, in one commit",
    "iceberg": "Iceberg: the same, in one commit",
}
#: By what dlt reads; the first is what it takes if nothing is said.
_PEERS = {
    "sqlalchemy": "dlt, sql_database to Delta Lake, its defaults",
    "pyarrow": "dlt, the same by its backend pyarrow",
}


def run(folder: Path) -> Chapter:
    """Measure each format in processes of its own, in turn; the medians of figures and ratios count."""
    dlt = python_of("dlt")
    database = folder / "tables.db"
    orders.load(database, ROWS)
    readings: dict[str, list[Reading]] = {way: [] for way in _WHAT}
    for _ in range(ROUNDS):
        for way, own in readings.items():
            own.append(measure(way, database, ROWS))
    # Minutes, and far from where a round more would count.
    peers = {
        what: figure_of(what, ROWS, [_measure_dlt(dlt, database, backend)])
        for backend, what in _PEERS.items()
    }
    ours = figure_of(_WHAT["delta"], ROWS, readings["delta"])
    return Chapter(
        "Exports that are tables",
        [*(figure_of(what, ROWS, readings[way]) for way, what in _WHAT.items()), *peers.values()],
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
        ]
        + [
            Target(f"{what}, time of our Delta Lake's", peer.seconds / ours.seconds, 1, at_least=True)
            for what, peer in peers.items()
        ],
    )


def _measure_dlt(python: str, database: Path, backend: str) -> Reading:
    with tempfile.TemporaryDirectory(dir=database.parent) as output:
        arguments = [str(database), output, orders.FEED, backend]
        reading = watch("tests.benchmarks.dlt_child", arguments, python=python)["dlt"]
    if reading.result["rows"] != ROWS:
        raise RuntimeError(f"dlt wrote {reading.result['rows']} rows, not {ROWS}")
    return reading
