# SPDX-License-Identifier: Apache-2.0
"""Copies of DAG files with other values for the constants at their top."""

from __future__ import annotations

import re
from pathlib import Path

DAGS = Path(__file__).resolve().parents[2] / "dags"


def copy_dags(target: Path, source: Path = DAGS, **constants: object) -> Path:
    """
    Copy a folder's DAG files, and return the folder they are in now.

    :param target: created.
    :param constants: new values by name, in every file that assigns the name in a line of its own.
    :raises LookupError: no file assigns it.
    """
    target.mkdir(parents=True, exist_ok=True)
    files = {path.name: path.read_text(encoding="utf-8") for path in source.glob("*.py")}
    for name, value in constants.items():
        assigned = re.compile(rf"^{name} = .*$", flags=re.MULTILINE)
        if not any(map(assigned.search, files.values())):
            raise LookupError(f"no DAG in {source} assigns {name}")
        # DAG files import timedelta by its own name.
        line = f"{name} = {value!r}".replace("datetime.timedelta(", "timedelta(").replace("\\", r"\\")
        files = {file: assigned.sub(line, text) for file, text in files.items()}
    for file, text in files.items():
        (target / file).write_text(text, encoding="utf-8")
    return target
