# SPDX-License-Identifier: Apache-2.0
"""
The merge of a peer, mssql-cdc-pyspark, into a current table: 20,000 changes into two million rows.

Its ``apply_changes`` reads changes from a Delta table of its own form, which is filled here by hand. The part
that reads SQL Server's change tables needs a server that has CDC, and is not measured.
"""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.environments import python_of
from tests.benchmarks.figures import Chapter, figure_of
from tests.benchmarks.watch import watch

ROWS, CHANGES, ROUNDS = 2_000_000, 20_000, 5


def run(folder: Path) -> Chapter:
    """Measure in one session; the median of the rounds counts."""
    arguments = [str(each) for each in (folder / "mssql_cdc", ROWS, CHANGES, ROUNDS)]
    readings = watch("tests.benchmarks.mssql_cdc_child", arguments, python=python_of("mssql_cdc"))
    if (found := readings["rows"].result) != {"rows": ROWS, "changed": CHANGES}:
        raise RuntimeError(f"{CHANGES} of {ROWS} rows were changed last, and merged were {found}")
    rounds = [readings[f"merge {number}"] for number in range(ROUNDS)]
    what = f"mssql-cdc-pyspark: merge {CHANGES:,} changes into {ROWS:,} rows"
    return Chapter("A peer's merge", [figure_of(what, CHANGES, rounds, has_span=True)])
