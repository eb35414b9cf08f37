# SPDX-License-Identifier: Apache-2.0
"""Walks a tutorial as its reader does: saves its files, and gives all its commands to one shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.examples import section

_BLOCK = re.compile(
    r"(?:`(?P<file>[\w./-]+\.py)`[^`\n]*:\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL
)
#: What follows needs a server.
_ON_A_SERVER = re.compile(r"\n## On SQL Server\n")
#: Commands of a page that install things, which the environment has.
_INSTALLS = ("pip install", "-m venv")


def script(page: str, replaced: Mapping[str, str]) -> str:
    """
    Return a page as a shell's script.

    Python that belongs to a file is written there. Python that belongs to none is typed into one session, up
    to the next commands of the shell. Of blocks of ``console`` the lines with a prompt are commands; ``text``
    is left out, and so is the section for SQL Server.
    """
    text = _ON_A_SERVER.split(section(page))[0]
    for there, here in replaced.items():
        if there not in text:
            raise AssertionError(f"{page} does not say {there!r}")
        text = text.replace(there, here)
    lines = ["set -euo pipefail"]
    session = ""
    for match in [*_BLOCK.finditer(text), None]:
        if match and match["language"] == "python" and not match["file"]:
            session += match["text"]
            continue
        if session:
            lines.append(f"python - <<'END OF SESSION'\n{session}END OF SESSION")
            session = ""
        if match is None:
            break
        if match["language"] == "python":
            lines.append(f"cat > {match['file']} <<'END OF FILE'\n{match['text']}END OF FILE")
        elif match["language"] == "bash":
            lines.append(match["text"])
        elif match["language"] == "console":
            commands = re.findall(r"^\$ (.+)$", match["text"], re.MULTILINE)
            lines += [each for each in commands if not any(name in each for name in _INSTALLS)]
    return "\n".join(lines)


def walk(
    page: str, folder: Path, replaced: Mapping[str, str], programs: Path = Path(sys.executable).parent
) -> str:
    """
    Run a page in an empty folder, which is also the reader's home; return all that its commands print.

    :param programs: folder of the environment's programs, ``python`` and ``airflow`` among them.
    """
    # No setting of ours or of the tests' may help.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    environment |= {"HOME": str(folder), "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": ""}
    done = subprocess.run(
        ["bash", "-c", script(page, replaced)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    if done.returncode:
        raise AssertionError(
            f"{page} ends with {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout
