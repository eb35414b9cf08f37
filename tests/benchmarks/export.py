# SPDX-License-Identifier: Apache-2.0
"""Loading a feed, and exporting windows of it: against a floor, and against the loop that people write."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.benchmarks import orders
from tests.benchmarks.figures import Chapter, Figure, Target, figure_of
from tests.benchmarks.watch import Reading, watch

SIZES = (200_000, 2_000_000)
ROUNDS = 3
_WHAT = {
    "floor": "floor: ADBC to pyarrow, one process",
    "pandas": "loop: pages of 1,000 to pandas",
    "export": "export, one unit",
    "hourly": "export, 720 hourly units",
}


def run(folder: Path) -> Chapter:
    """Measure each way in processes of its own, in turn; the median of three rounds counts."""
    loads, figures = [], {}
    for rows in SIZES:
        database = folder / f"{rows}.db"
        loads.append(Figure("load: event and outbox, by 10,000", rows, orders.load(database, rows)))
        # The loop takes minutes, and is far from where a round more would count.
        rounds = [(way, measure(way, database, rows)) for _ in range(ROUNDS) for way in ("floor", "export")]
        rounds.append(("pandas", measure("pandas", database, rows)))
        for way in ("floor", "pandas", "export"):
            own = [reading for name, reading in rounds if name == way]
            figures[way, rows] = figure_of(_WHAT[way], rows, own)
    small, large = SIZES
    database = folder / f"{large}.db"
    hourly = [measure("hourly", database, large) for _ in range(ROUNDS)]
    figures["hourly", large] = figure_of(_WHAT["hourly"], large, hourly)
    return Chapter(
        "Windows of the embedded source", [*loads, *figures.values()], _targets(loads, figures, small, large)
    )


def measure(way: str, database: Path, rows: int, hours: int = orders.HOURS) -> Reading:
    """
    Export the rows of a database in a process of its own.

    :param hours: of the window.
    """
    with tempfile.TemporaryDirectory(dir=database.parent) as output:
        arguments = [way, str(database), output, str(hours)]
        reading = watch("tests.benchmarks.export_child", arguments)[way]
    if reading.result["rows"] != rows:
        raise RuntimeError(f"{way} wrote {reading.result['rows']} rows, not {rows}")
    return reading


def _targets(
    loads: list[Figure], figures: dict[tuple[str, int], Figure], small: int, large: int
) -> list[Target]:
    floor, ours, loop = (figures[way, large] for way in ("floor", "export", "pandas"))
    return [
        Target("export, rows/s of the floor's", floor.seconds / ours.seconds, 0.9, at_least=True),
        Target("export, CPU of the floor's", ours.cpu / floor.cpu, 1.25),
        Target("export, rows/s of the pandas loop's", loop.seconds / ours.seconds, 5, at_least=True),
        Target(
            "export, memory of that at a tenth of the rows",
            ours.memory / figures["export", small].memory,
            1.2,
        ),
        Target("720 hourly units, time of one unit's", figures["hourly", large].seconds / ours.seconds, 3),
        Target("loading, rows/s", min(load.rows_per_second for load in loads), 50_000, at_least=True),
    ]
