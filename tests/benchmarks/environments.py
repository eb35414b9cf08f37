# SPDX-License-Identifier: Apache-2.0
"""Environments of their own for peers whose packages do not go together with ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.benchmarks.watch import PROJECT


def python_of(peer: str) -> str:
    """
    Return the Python of an environment below ``build`` with the versions of ``PEER.txt``; make it if needed.

    :raises RuntimeError: it cannot be made, for example without a registry.
    """
    versions = Path(__file__).with_name(f"{peer}.txt")
    folder = PROJECT / "build" / f"benchmark-{peer}"
    python, installed = folder / "bin" / "python", folder / versions.name
    if not installed.exists() or installed.read_text() != versions.read_text():
        uv = str(Path(sys.executable).with_name("uv"))
        _run(peer, [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
        _run(peer, [uv, "pip", "install", "--quiet", "--python", str(python), "-r", str(versions)])
        installed.write_text(versions.read_text())
    return str(python)


def _run(peer: str, command: list[str]) -> None:
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"the environment of {peer} cannot be made:\n{done.stderr}")
