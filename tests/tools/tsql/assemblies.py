# SPDX-License-Identifier: Apache-2.0
"""
Microsoft's T-SQL compiler as .NET assemblies, taken out of a wheel that carries them.

Only the few that are needed, in a folder of their own: beside the wheel's other files Mono would pick up the
core library of another .NET.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
FOLDER = PROJECT / "build" / "tsql" / "assemblies"
WHEEL = "mssql-cli==1.0.0"
WHEEL_SHA256 = "edb3850ab8ffa077c64270f27263f6377fdb5bd5bb5c5b4990c5fb08f49627b6"
WHEEL_FOLDER = "mssqlcli/mssqltoolsservice/bin"
# The wheel's binaries are for this platform; the assemblies are the same everywhere.
WHEEL_PLATFORM = "manylinux1_x86_64"
NAMES = (
    "Microsoft.Data.Tools.Schema.Sql",
    "Microsoft.Data.Tools.Sql.BatchParser",
    "Microsoft.Data.Tools.Utilities",
    "Microsoft.SqlServer.Dac",
    "Microsoft.SqlServer.Dac.Extensions",
    "Microsoft.SqlServer.TransactSql.ScriptDom",
    "Microsoft.SqlServer.Types",
    "System.ComponentModel.Composition",
    "System.Configuration",
    "System.Data.SqlClient",
    "System.Drawing.Common",
    "System.Security.Permissions",
)


class AssembliesMissingError(Exception):
    """The compiler's assemblies are not there; the check did not run."""


def missing(folder: Path) -> list[str]:
    """List the assemblies that a folder lacks."""
    return [f"{name}.dll" for name in NAMES if not (folder / f"{name}.dll").is_file()]


def require(folder: Path) -> Path:
    """
    Return the folder if it holds every assembly.

    :raises AssembliesMissingError: it lacks some.
    """
    lacking = missing(folder)
    if lacking:
        raise AssembliesMissingError(
            f"{folder} lacks {', '.join(lacking)}. Fetch them: python -m tests.tools.tsql"
        )
    return folder


def fetch(folder: Path = FOLDER) -> Path:
    """
    Return a folder with the assemblies; the first time, download the wheel with pip's own settings.

    :raises AssembliesMissingError: the download failed or is not the wheel that was looked at.
    """
    if not missing(folder):
        return folder
    with tempfile.TemporaryDirectory() as download:
        unpack(_download(Path(download)), folder)
    return require(folder)


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--platform", WHEEL_PLATFORM, "--dest", str(folder), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise AssembliesMissingError(f"{WHEEL} could not be downloaded: {done.stderr.strip()}")
    return wheels[0]


def unpack(wheel: Path, folder: Path, sha256: str = WHEEL_SHA256) -> None:
    """
    Take the assemblies out of the wheel.

    :param sha256: what the file must hash to, in lower-case hex.
    :raises AssembliesMissingError: another file than expected; nothing is unpacked.
    """
    content = wheel.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise AssembliesMissingError(f"{wheel.name} has the SHA-256 {found} and not {sha256}")
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in NAMES:
            part = folder / f".{name}.{os.getpid()}"
            part.write_bytes(archive.read(f"{WHEEL_FOLDER}/{name}.dll"))
            part.replace(folder / f"{name}.dll")  # whole or not at all, also when two processes unpack
