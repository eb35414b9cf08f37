# SPDX-License-Identifier: Apache-2.0
"""A year of hours by one job: as fast as a month, and in as little memory."""

from __future__ import annotations

import os
from pathlib import Path

from tests.benchmarks import orders
from tests.benchmarks.export import measure
from tests.benchmarks.figures import Chapter, Figure, Target, figure_of

#: Rows of the year, where a machine has no 20 GB of disk: memory then shows less than it could.
ROWS_VARIABLE = "CHANGEFEED_BENCH_ROWS"
HOURS, MONTH_ROWS = 8760, 2_000_000


def run(folder: Path) -> Chapter:
    """Export 100 million rows in 8,760 hours, and two million in a month of hours."""
    rows = int(os.environ.get(ROWS_VARIABLE, "100000000"))
    figures = []
    for name, count, hours in (("a month", MONTH_ROWS, orders.HOURS), ("a year", rows, HOURS)):
        database = folder / f"{name}.db"
        figures.append(Figure(f"load: {name}", count, orders.load(database, count, hours)))
        reading = measure("hourly", database, count, hours)
        figures.append(figure_of(f"export, {hours:,} hourly units", count, [reading]))
        database.unlink()
    month, year = figures[1], figures[3]
    return Chapter(
        "A year by one job",
        figures,
        [
            Target(
                "a year of hours, rows/s of a month's",
                year.rows_per_second / month.rows_per_second,
                0.8,
                at_least=True,
            ),
            Target("a year of hours, memory of a month's", year.memory / month.memory, 1.2),
        ],
    )
