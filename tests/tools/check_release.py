# SPDX-License-Identifier: Apache-2.0
"""
Install what was built as a stranger would, and use it: ``python -m tests.tools.check_release DIST_FOLDER``.

The wheel with extras and the source distribution each go into a fresh environment without constraints. All
public names are imported, Airflow lists the provider, packages fit each other, and the first tutorial is
walked. The bill of materials of the wheel's environment stays in ``build/release``. Exits with 1 and says
what failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.system.walked import walk
from tests.tools.check_wheel import PROJECT, declared_version

RELEASE = PROJECT / "build" / "release"
NAME = "airflow-changefeed"
#: Extras that people install; ``dev`` is for a clone.
EXTRAS = ("mssql", "spark", "s3", "azure", "gcs", "delta", "iceberg")
TUTORIAL = "tutorial/first-export.md"
_UV = Path(sys.executable).parent / "uv"
_TOOLS = PROJECT / ".venv-release" / "bin"

#: Runs in the fresh environment, away from the clone.
_PUBLIC = """
import importlib, importlib.metadata, json, pathlib, sys
import airflow_changefeed as package
assert pathlib.Path(package.__file__).is_relative_to(sys.prefix), package.__file__
for name in package.__all__:
    getattr(package, name)
for name in ("exceptions", "get_provider_info", "plugins.changefeed", "cli.changefeed"):
    importlib.import_module(f"airflow_changefeed.{name}")
names = ("airflow-changefeed", "pyspark", "pyspark-client")
versions = {name: importlib.metadata.version(name) for name in names}
print(json.dumps({**versions, "package": package.__version__}))
"""


class CheckError(Exception):
    """What was built is not fit for a release."""


def _environment() -> dict[str, str]:
    """Leave out what a stranger does not have: constraints, the clone, settings of Airflow."""
    mine = ("AIRFLOW_", "PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_", "SPARK_")
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(mine) and "CONSTRAINT" not in name
    }
    # Two environments of 1.3 GB each take no room and no time where the cache is on the same disk.
    return kept | {"UV_LINK_MODE": "hardlink"}


def _run(*command: str | Path, folder: Path, **more: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=_environment() | more,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        shown = " ".join(map(str, command))[:300]
        raise CheckError(f"{shown} ends with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def _install(environment: Path, *wanted: str) -> Path:
    """Make a fresh environment, and return the folder of its programs."""
    _run(_UV, "venv", "--quiet", "--clear", "--python", sys.executable, environment, folder=PROJECT)
    programs = environment / "bin"
    _run(_UV, "pip", "install", "--quiet", "--python", programs / "python", *wanted, folder=RELEASE)
    _run(_UV, "pip", "check", "--python", programs / "python", folder=RELEASE)
    return programs


def check_installed(programs: Path, folder: Path) -> None:
    """
    Check a package that is installed.

    :param programs: folder of the environment's programs.
    :param folder: an empty one, for Airflow.
    """
    version = declared_version()
    home = str(folder / "airflow")
    shown = _run(programs / "python", "-c", _PUBLIC, folder=folder, AIRFLOW_HOME=home)
    found = json.loads(shown.splitlines()[-1])
    if (found["package"], found[NAME]) != (version, version):
        raise CheckError(
            f"version {version} was built, and {found['package']} (metadata: {found[NAME]}) installed"
        )
    if found["pyspark"] != found["pyspark-client"]:
        raise CheckError(
            f"a plain install takes pyspark {found['pyspark']}, pyspark-client {found['pyspark-client']}, "
            "which share a folder: limit both in pyproject.toml"
        )
    tested = (PROJECT / "constraints.txt").read_text(encoding="utf-8")
    if f"\npyspark=={found['pyspark']}\n" not in tested:
        raise CheckError(
            f"a plain install takes pyspark {found['pyspark']}, which constraints.txt does not have"
        )
    listed = json.loads(
        _run(programs / "airflow", "providers", "list", "-o", "json", folder=folder, AIRFLOW_HOME=home)
    )
    if [each["version"] for each in listed if each["package_name"] == NAME] != [version]:
        raise CheckError(f"airflow providers list does not show {NAME} {version}")
    usage = _run(programs / NAME, "--help", folder=folder, AIRFLOW_HOME=home)
    if "doctor" not in usage:
        raise CheckError(f"{NAME} --help does not name its commands: {usage[:500]}")


def main(dist: Path) -> int:
    """Check the wheel and the source distribution of a folder; 0 if both are fit."""
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    RELEASE.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            print(f"{wheel.name}[{','.join(EXTRAS)}]", flush=True)
            programs = _install(RELEASE / "wheel", f"{wheel}[{','.join(EXTRAS)}]")
            check_installed(programs, folder)
            bill = (
                "environment",
                programs / "python",
                "--pyproject",
                PROJECT / "pyproject.toml",
                "--output-reproducible",
            )
            _run(
                _TOOLS / "cyclonedx-py", *bill, "--of", "JSON", "-o", RELEASE / "sbom.cdx.json", folder=folder
            )
            print(f"docs/{TUTORIAL}", flush=True)
            # The page installs it beside the package.
            _run(_UV, "pip", "install", "--quiet", "--python", programs / "python", "duckdb", folder=folder)
            shown = walk(TUTORIAL, folder, {}, programs)
            if shown.count("│ 01") != 4:
                raise CheckError(f"{TUTORIAL} does not end with four events: {shown[-2000:]}")
        with tempfile.TemporaryDirectory() as name:
            print(source.name, flush=True)
            check_installed(_install(RELEASE / "sdist", str(source)), Path(name))
    except (CheckError, AssertionError) as problem:
        print(f"FAILED: {problem}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
