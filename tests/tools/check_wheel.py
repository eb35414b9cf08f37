# SPDX-License-Identifier: Apache-2.0
"""
Look into the built wheel: it holds every file that the package needs, and imports away from the clone.

``python -m tests.tools.check_wheel DIST_FOLDER``; exits with 1 and says what is missing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = "airflow_changefeed"
IMPORT = f"""
import sys; sys.path.insert(0, sys.argv[1])
import {PACKAGE}
from {PACKAGE}.get_provider_info import get_provider_info
if not {PACKAGE}.__file__.startswith(sys.argv[1]): sys.exit("imported from elsewhere: " + {PACKAGE}.__file__)
if get_provider_info()["package-name"] != "airflow-changefeed": sys.exit("wrong provider info")
"""


def missing_files(wheel: Path) -> list[str]:
    """List the package's files (Python, SQL, those of the page, ``py.typed``) that the wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    wanted = [
        path.relative_to(PROJECT).as_posix()
        for path in sorted((PROJECT / PACKAGE).rglob("*"))
        if path.suffix in (".py", ".sql", ".typed", ".html", ".css", ".js", ".svg")
    ]
    if not any(name.endswith(".sql") for name in wanted):
        return [f"{PACKAGE}/sql/**/*.sql (there is no .sql file at all)"]
    return [name for name in wanted if name not in packed]


def import_error(wheel: Path) -> str:
    """Import the package from the unpacked wheel, in a process of its own; empty if it works."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        done = subprocess.run(
            [sys.executable, "-c", IMPORT, folder],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    return "" if done.returncode == 0 else done.stderr.strip() or "the import failed without a word"


def main(dist: Path) -> int:
    """Check the only wheel of a folder; 0 if it is whole."""
    wheels = sorted(dist.glob("*.whl"))
    if len(wheels) != 1:
        print(f"FAILED: {dist} holds {len(wheels)} wheels, one was expected")
        return 1
    missing = missing_files(wheels[0])
    for name in missing:
        print(f"FAILED: the wheel lacks {name}")
    error = import_error(wheels[0])
    if error:
        print(f"FAILED: the wheel does not import: {error}")
    return 1 if missing or error else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
