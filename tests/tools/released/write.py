# SPDX-License-Identifier: Apache-2.0
"""
Write the fixtures of the present version: ``make fixtures``, before each release.

A version that is released is not written again: its fixtures are what it has left with people.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, redirect_stdout, suppress
from io import StringIO
from typing import Any

from tests.tools.changelog import PROJECT, UNRELEASED, sections
from tests.tools.check_wheel import declared_version
from tests.tools.released.place import RELEASED, Place, airflow_home, home

#: Commands whose rows programs read, and what else they are given.
COMMANDS: dict[str, tuple[str, ...]] = {
    "status": (),
    "cursor show": ("warehouse_parquet", "--feed", "shop.orders"),
    "capture list": (),
    "consumer list": (),
    "dead-letters list": (),
    "doctor": (),
}


def _rows(place: Place, table: str) -> list[list[Any]]:
    with closing(sqlite3.connect(place.database)) as connection:
        return [list(row) for row in connection.execute(f'select * from "{table}" order by id')]


def commit_of(version: str) -> str:
    """Return where a version's code is in git: at its tag; before its release, what wrote the fixtures."""
    tag = ["git", "rev-parse", "--verify", "--quiet", f"v{version}^{{commit}}"]
    found = subprocess.run(tag, cwd=PROJECT, capture_output=True, text=True, check=False).stdout.strip()
    left = json.loads((RELEASED / version / "left.json").read_text(encoding="utf-8"))
    return found or str(left["commit"])


def command_keys() -> dict[str, list[str]]:
    """Return the keys of what commands print as JSON, over what was left."""
    from airflow_changefeed.cli.changefeed import main

    found = {}
    for name, more in COMMANDS.items():
        with redirect_stdout(StringIO()) as out, suppress(SystemExit):
            main([*name.split(), "--conn-id", "changefeed_default", *more, "-o", "json"])
        rows = json.loads(out.getvalue())
        assert rows, name
        found[name] = sorted({key for row in rows for key in row})
    return found


def main(only: Sequence[str]) -> int:
    """
    Write them; 1 if the version is released.

    :param only: ``surface`` for the surface alone.
    """
    version = declared_version()
    released = [
        each.name for each in sections((PROJECT / "CHANGELOG.md").read_text()) if each.name != UNRELEASED
    ]
    target = RELEASED / version
    if version in released and target.exists():
        print(f"{version} is released: raise the version in pyproject.toml and __init__.py first")
        return 1
    if only == ["surface"]:
        with airflow_home(has_database=False):
            from tests.tools.released.surface import surface

            (target / "surface.txt").write_text(surface(), encoding="utf-8")
        return 0
    place = Place(home(version))
    shutil.rmtree(place.root, ignore_errors=True)
    place.root.mkdir()
    os.environ |= place.connections() | {"SPARK_LOCAL_IP": "127.0.0.1"}
    with airflow_home():
        from airflow.models import Variable
        from airflow.utils.session import create_session

        from airflow_changefeed.sql.mssql import install_script
        from tests.tools.released.scenario import FEED, TABLE, use_all
        from tests.tools.released.surface import surface

        left = use_all(place)
        left["commands"] = command_keys()
        with create_session() as session:
            left["variables"] = {each.key: each.get_val() for each in session.query(Variable)}
    left["rows"] = {name: _rows(place, name) for name in (FEED, TABLE)}
    commit = ["git", "rev-parse", "HEAD"]
    left["commit"] = subprocess.run(
        commit, cwd=PROJECT, capture_output=True, text=True, check=True
    ).stdout.strip()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    # Not the programs of the jobs: they are this version's own code, a megabyte for each output.
    shutil.copytree(place.root / "lake", target / "lake", ignore=shutil.ignore_patterns("_programs"))
    for name in ("feeds", "catalog"):
        (target / f"{name}.sql").write_text(place.dump(name), encoding="utf-8")
    (target / "left.json").write_text(json.dumps(left, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (target / "changefeed.sql").write_text("\ngo\n".join(install_script()) + "\n", encoding="utf-8")
    (target / "surface.txt").write_text(surface(), encoding="utf-8")
    shutil.rmtree(place.root)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
