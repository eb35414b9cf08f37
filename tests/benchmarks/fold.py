# SPDX-License-Identifier: Apache-2.0
"""Folding a capture's export, against a plain Spark read and group of the same files."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from airflow_changefeed.core.capture import KeyChange
from tests.benchmarks import changes
from tests.benchmarks.figures import Chapter, Target, figure_of
from tests.benchmarks.fold_child import WAYS
from tests.benchmarks.watch import watch

EVENTS, KEYS = 1_000_000, 100_000
ROUNDS = 5
_WHAT = {
    "plain": "plain: Spark's read, max_by of each key",
    "fold": "fold, key_change delete_insert",
    "lost": "fold, key_change new_only",
}


def run(folder: Path) -> Chapter:
    """Measure each way in turn, in one session; the median of the rounds counts, and of their ratios."""
    paths = {kind: folder / f"changes-{kind.value}" for kind in (KeyChange.DELETE_INSERT, KeyChange.NEW_ONLY)}
    (rows,) = {changes.write(path, EVENTS, KEYS, kind) for kind, path in paths.items()}
    readings = watch("tests.benchmarks.fold_child", [str(ROUNDS), *map(str, paths.values())])
    found = readings["rows"].result
    if (found["fold"], found["lost"]) != (rows, rows):
        raise RuntimeError(f"the table has {rows} rows, folded were {found}")
    figures = {
        way: figure_of(
            _WHAT[way], EVENTS, [readings[f"{way} {number}"] for number in range(ROUNDS)], has_span=True
        )
        for way in WAYS
    }
    return Chapter(
        "Folding a capture's export",
        list(figures.values()),
        [
            Target(
                f"{_WHAT[way]}, time of the plain one's",
                median(
                    readings[f"{way} {number}"].seconds / readings[f"plain {number}"].seconds
                    for number in range(ROUNDS)
                ),
                1.5,
            )
            for way in ("fold", "lost")
        ],
    )
