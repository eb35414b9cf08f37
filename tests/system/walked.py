# SPDX-License-Identifier: Apache-2.0
"""Walks a tutorial as its reader does: saves its files, and gives all its commands to one shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.examples import DOCS

_BLOCK = re.compile(
    r"(?:`(?P<file>[\w./]+\.py)`[^`\n]*:\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL
)


def script(page: str, replaced: Mapping[str, str]) -> str:
    """
    Return a page as a shell's script; Python that belongs to a file is written there, ``text`` is left out.

    Blocks of ``console`` install things, which the tests have.
    """
    text = (DOCS / page).read_text(encoding="utf-8")
    for there, here in replaced.items():
        if there not in text:
            raise AssertionError(f"{page} does not say {there!r}")
        text = text.replace(there, here)
    lines = ["set -euo pipefail"]
    for match in _BLOCK.finditer(text):
        if match["language"] == "python":
            if not match["file"]:
                raise AssertionError(f"{page} does not say where this is saved: {match['text'][:100]}")
            lines.append(f"cat > {match['file']} <<'END OF FILE'\n{match['text']}END OF FILE")
        elif match["language"] == "bash":
            lines.append(match["text"])
    return "\n".join(lines)


def walk(page: str, folder: Path, replaced: Mapping[str, str]) -> str:
    """Run a page in an empty folder; return what its last command prints."""
    # No setting of ours or of the tests' may help.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": ""}
    done = subprocess.run(
        ["bash", "-c", script(page, replaced)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    if done.returncode:
        raise AssertionError(
            f"{page} ends with {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout
