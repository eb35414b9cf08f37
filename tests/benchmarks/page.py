# SPDX-License-Identifier: Apache-2.0
"""How soon the page opens: 300 feeds in all states, one of 10,000 shards, on the embedded source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.figures import Chapter, Figure, Target
from tests.benchmarks.watch import PROJECT
from tests.browser.feeds import environment

CONNECTIONS = ("few", "big")


def run(folder: Path) -> Chapter:
    """Measure in a process of its own, with an Airflow home of its own."""
    home = folder / "page"
    home.mkdir()
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        **environment(home),
        "AIRFLOW__CHANGEFEED__PAGE_CONNECTIONS": ",".join(CONNECTIONS),
        "PYTHONPATH": str(PROJECT),
        **{
            f"AIRFLOW_CONN_{name.upper()}": json.dumps(
                {"conn_type": "sqlite", "host": str(home / "feeds" / f"{name}.db")}
            )
            for name in CONNECTIONS
        },
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.page_child", str(home)],
        env=env,
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    figures = [
        Figure(
            "the page, its files and all of 300 feeds",
            0,
            found["open"],
            found["open_cpu"],
        ),
        Figure("the same, the first time after Airflow's start", 0, found["cold"]),
        Figure("all 300 feeds in one answer", 0, found["all"], found["all_cpu"]),
        Figure("the last 25 shards of a feed of 10,000", 0, found["big"]),
    ]
    targets = [
        Target("seconds until all of the page is answered", found["open"], 1.0),
        Target("seconds of all 300 feeds in one answer", found["all"], 1.0),
        Target(
            "statements for 500 of 10,000 shards, of those for 10 of 10",
            found["big_statements"] / found["few_statements"],
            1.0,
        ),
    ]
    return Chapter(
        "The page in Airflow",
        figures,
        targets,
        f"{found['statements']} statements of SQLite for 300 feeds, each with a DAG of its own and one of "
        f"six with a trouble; {found['few_statements']} for one feed of 10 shards. The "
        "server's part alone: a browser draws besides.",
    )
