# SPDX-License-Identifier: Apache-2.0
"""
Folding a capture's export, against a plain Spark read and group of the same files; and from a state, against
a plain copy of it.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from statistics import median

from airflow_changefeed.core.capture import KeyChange
from airflow_changefeed.core.values import floor_to_millisecond, format_time
from tests.benchmarks import changes
from tests.benchmarks.figures import Chapter, Target, figure_of
from tests.benchmarks.watch import watch

EVENTS, KEYS = 1_000_000, 100_000
#: Rows of the state that a fold starts from, and events since then, in the export's last hour.
STATE_ROWS, CHANGES = 2_000_000, 20_000
ROUNDS = 5
_WHAT = {
    "plain": "plain: Spark's read, max_by of each key",
    "fold": "fold, key_change delete_insert",
    "lost": "fold, key_change new_only",
    "copy": f"plain: Spark's read and write of a state of {STATE_ROWS:,} rows",
    "base": f"fold from that state, {CHANGES:,} events since",
}


def run(folder: Path) -> Chapter:
    """Measure each way in turn, in one session; the median of the rounds counts, and of their ratios."""
    paths = {kind: folder / f"changes-{kind.value}" for kind in (KeyChange.DELETE_INSERT, KeyChange.NEW_ONLY)}
    (rows,) = {changes.write(path, EVENTS, KEYS, kind) for kind, path in paths.items()}
    events = STATE_ROWS * changes.HOURS // (changes.HOURS - 1)
    left = changes.write(folder / "long", events, STATE_ROWS, KeyChange.DELETE_INSERT)
    end = changes.START + timedelta(hours=changes.HOURS)
    base = end - timedelta(hours=1) * CHANGES / (events - STATE_ROWS)
    arguments = [
        ROUNDS,
        *paths.values(),
        folder / "long",
        format_time(floor_to_millisecond(base)),
        format_time(end),
    ]
    readings = watch("tests.benchmarks.fold_child", [str(each) for each in arguments])
    found = readings["rows"].result
    if (found["fold"], found["lost"]) != (rows, rows):
        raise RuntimeError(f"the table has {rows} rows, folded were {found}")
    if found["base"] != left:
        raise RuntimeError(f"the long table has {left} rows, folded were {found}")
    counts = dict.fromkeys(_WHAT, EVENTS) | {"copy": STATE_ROWS, "base": STATE_ROWS}
    figures = [
        figure_of(what, counts[way], [readings[f"{way} {number}"] for number in range(ROUNDS)], has_span=True)
        for way, what in _WHAT.items()
    ]
    return Chapter(
        "Folding a capture's export",
        figures,
        [
            Target(
                f"{_WHAT[way]}, time of the plain one's",
                median(
                    readings[f"{way} {number}"].seconds / readings[f"{peer} {number}"].seconds
                    for number in range(ROUNDS)
                ),
                1.5,
            )
            for way, peer in (("fold", "plain"), ("lost", "plain"), ("base", "copy"))
        ],
    )
