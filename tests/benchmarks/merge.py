# SPDX-License-Identifier: Apache-2.0
"""Merging events into a current table, against a plain copy of the files that they change."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from statistics import median

from airflow_changefeed.core.capture import KeyChange
from airflow_changefeed.core.values import floor_to_millisecond, format_time
from tests.benchmarks import changes
from tests.benchmarks.figures import Chapter, Target, figure_of
from tests.benchmarks.watch import watch

#: Rows of the table, about, and events since its frontier, which change rows of all its files.
ROWS, CHANGES = 2_000_000, 20_000
ROUNDS = 5
_WHAT = {
    "copy": "plain: Spark's read and write of the changed files",
    "merge": f"merge of {CHANGES:,} events into a Delta table of them",
}


def run(folder: Path) -> Chapter:
    """Measure both in turn, in one session; the median of the rounds counts, and of their ratios."""
    events = ROWS * changes.HOURS // (changes.HOURS - 1)
    left = changes.write(folder / "merge", events, ROWS, KeyChange.DELETE_INSERT)
    end = changes.START + timedelta(hours=changes.HOURS)
    begin = end - timedelta(hours=1) * CHANGES / (events - ROWS)
    arguments = [ROUNDS, folder / "merge", format_time(floor_to_millisecond(begin)), format_time(end)]
    readings = watch("tests.benchmarks.merge_child", [str(each) for each in arguments])
    found = readings["rows"].result
    if found["merge"] != left or found["kept"]:
        raise RuntimeError(f"the table has {left} rows and all its files change, merged were {found}")
    figures = [
        figure_of(what, ROWS, [readings[f"{way} {number}"] for number in range(ROUNDS)], has_span=True)
        for way, what in _WHAT.items()
    ]
    ratio = median(
        readings[f"merge {number}"].seconds / readings[f"copy {number}"].seconds for number in range(ROUNDS)
    )
    return Chapter(
        "Merging into a current table",
        figures,
        [Target(f"{_WHAT['merge']}, time of the plain one's", ratio, 3.0)],
    )
