# SPDX-License-Identifier: Apache-2.0
"""
Where the fixtures of released versions are kept, and where they are used.

``tests/fixtures/released/<version>`` has what a version wrote: ``lake`` (outputs of each format),
``feeds.sql`` and ``catalog.sql`` (databases as text), ``changefeed.sql`` (its T-SQL), ``surface.txt``, and
``left.json`` (everything else). Tables of Iceberg name their files by whole paths, so a version's files were
written at :func:`home`, and are copied there to be used.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RELEASED = Path(__file__).resolve().parents[2] / "fixtures" / "released"


def home(version: str) -> Path:
    """Where a version's files were written; also the paths in its documents begin so."""
    return Path("/tmp") / f"changefeed-released-{version}"


def versions() -> list[str]:
    """List the versions that have fixtures, oldest first."""
    return sorted(
        (path.name for path in RELEASED.iterdir()), key=lambda name: [int(x) for x in name.split(".")]
    )


@dataclass(frozen=True)
class Place:
    """
    A folder with a database, outputs and a catalog.

    :param root: of all of them.
    """

    root: Path

    @property
    def database(self) -> Path:
        """The database of the feeds."""
        return self.root / "feeds.db"

    @property
    def catalog(self) -> dict[str, str]:
        """The catalog of Iceberg, as pyiceberg takes it."""
        return {"name": "lake", "type": "sql", "uri": f"sqlite:///{self.root}/catalog.db"}

    def lake(self, name: str) -> str:
        """An output."""
        return str(self.root / "lake" / name)

    def connections(self) -> dict[str, str]:
        """Airflow's connections, as variables of the environment."""
        found = {
            "changefeed_default": {"conn_type": "sqlite", "host": str(self.database)},
            "spark_default": {"conn_type": "spark", "host": "local[2]"},
            "lake": {"conn_type": "generic", "extra": {k: v for k, v in self.catalog.items() if k != "name"}},
        }
        return {f"AIRFLOW_CONN_{name.upper()}": json.dumps(each) for name, each in found.items()}

    def dump(self, name: str) -> str:
        """Return a database as the text that makes it."""
        with closing(sqlite3.connect(self.root / f"{name}.db")) as connection:
            return "\n".join(connection.iterdump()) + "\n"


@dataclass(frozen=True)
class Left(Place):
    """
    What a version left, at the place where it was written.

    :param version: which one.
    """

    version: str

    @property
    def documents(self) -> dict[str, Any]:
        """Variables, XComs, extras of asset events and expected rows."""
        found: dict[str, Any] = json.loads(
            (RELEASED / self.version / "left.json").read_text(encoding="utf-8")
        )
        return found


@contextmanager
def left_by(version: str) -> Iterator[Left]:
    """Put back what a version left; other processes wait until it is gone again."""
    root = home(version)
    with open(f"{root}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(root, ignore_errors=True)
        try:
            shutil.copytree(RELEASED / version / "lake", root / "lake")
            for name in ("feeds", "catalog"):
                with closing(sqlite3.connect(root / f"{name}.db")) as connection:
                    # A dump does not say so.
                    connection.execute("pragma journal_mode = wal")
                    connection.executescript((RELEASED / version / f"{name}.sql").read_text(encoding="utf-8"))
            yield Left(root, version)
        finally:
            shutil.rmtree(root, ignore_errors=True)


@contextmanager
def airflow_home(*, has_database: bool = True) -> Iterator[None]:
    """Give this process an Airflow of its own, as its commands have."""
    if "airflow.configuration" in sys.modules:
        raise RuntimeError("Airflow was imported before it was given a home: it would use the person's own")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "AIRFLOW_HOME": folder,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "_AIRFLOW_PROCESS_CONTEXT": "server",
        }
        if has_database:
            from airflow.utils.db import initdb

            initdb()
        yield
