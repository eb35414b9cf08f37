# SPDX-License-Identifier: Apache-2.0
"""
Look into what was built: the wheel holds every file that the package needs and imports away from the clone,
and the source distribution holds nothing that is not of the clone.

``python -m tests.tools.check_wheel DIST_FOLDER``; exits with 1 and says what is missing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
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


def declared_version() -> str:
    """Read the version of pyproject.toml."""
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    (version,) = re.findall(r'^version = "([^"]+)"$', text, re.MULTILINE)
    return str(version)


def foreign_files(source: Path) -> list[str]:
    """List what a source distribution holds besides its metadata and files that git knows."""
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True)
    with tarfile.open(source) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    return sorted(packed - {"PKG-INFO", *listed.stdout.splitlines()})


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
            archive.extractall(folder)  # noqa: S202 - built a moment ago
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
    """Check the only wheel and the only source distribution of a folder; 0 if they are whole."""
    version = declared_version()
    wheels, sources = sorted(dist.glob("*.whl")), sorted(dist.glob("*.tar.gz"))
    names = [path.name for path in (*wheels, *sources)]
    if names != [f"{PACKAGE}-{version}-py3-none-any.whl", f"{PACKAGE}-{version}.tar.gz"]:
        print(f"FAILED: {dist} holds {names}; a wheel and a source distribution of {version} were expected")
        return 1
    problems = [f"the wheel lacks {name}" for name in missing_files(wheels[0])]
    problems += [
        f"{sources[0].name} holds {name}, which git does not have: add or remove it"
        for name in foreign_files(sources[0])
    ]
    error = import_error(wheels[0])
    if error:
        problems.append(f"the wheel does not import: {error}")
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
