# SPDX-License-Identifier: Apache-2.0
"""How soon the page opens: a hundred feeds of ten shards, and one of ten thousand, on the embedded source."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.figures import Chapter, Figure, Target
from tests.benchmarks.watch import PROJECT

CONNECTIONS = ("many", "few", "big")


def run(folder: Path) -> Chapter:
    """Measure in a process of its own, with an Airflow home of its own."""
    home = folder / "page"
    home.mkdir()
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CHANGEFEED__PAGE_CONNECTIONS": ",".join(CONNECTIONS),
        "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
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
            "the page, its files and the first 25 of 100 feeds of 10 shards",
            0,
            found["open"],
            found["open_cpu"],
        ),
        Figure("the same, the first time after Airflow's start", 0, found["cold"]),
        Figure("all 100 feeds in one answer", 0, found["all"]),
        Figure("the last 25 shards of a feed of 10,000", 0, found["big"]),
    ]
    targets = [
        Target("seconds until all of the page is answered", found["open"], 1.0),
        Target("seconds of all 100 feeds in one answer", found["all"], 1.0),
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
        f"{found['statements']} statements of SQLite for 100 feeds, {found['few_statements']} for one. The "
        "server's part alone: a browser draws besides.",
    )
