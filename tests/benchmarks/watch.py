# SPDX-License-Identifier: Apache-2.0
"""
Time, CPU and memory of work that is done in another process and its children, read from outside.

The child calls :func:`measured` around what counts; both ends wait until the parent has read the figures, so
that imports and starts do not count, and the reading does not either.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

PROJECT = Path(__file__).resolve().parents[2]
_MARK = "measured "
# Each measurement costs some 20 ms of a processor, which the child would miss.
_PAUSE = 0.25


@dataclass(frozen=True)
class Reading:
    """
    What a child's work took.

    :param cpu_seconds: of the child and all its children, also those that ended meanwhile.
    :param megabytes: highest sum; a page that several processes share is counted once.
    :param result: what the child said of it, JSON.
    """

    seconds: float
    cpu_seconds: float
    megabytes: float
    result: Any


@contextlib.contextmanager
def measured(name: str) -> Iterator[dict[str, Any]]:
    """In the child: what happens in here counts. What is put into the dict is the reading's result."""
    result: dict[str, Any] = {}
    _tell({"begin": name})
    started = time.perf_counter()
    yield result
    _tell({"end": name, "seconds": time.perf_counter() - started, "result": result})


def _tell(mark: Mapping[str, Any]) -> None:
    sys.stdout.write(f"{_MARK}{json.dumps(mark)}\n")
    sys.stdout.flush()
    sys.stdin.readline()


class _Tree:
    """A process and its children: the CPU they have used, and their memory."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[int, float] = {}
        self.highest = 0.0

    def cpu(self) -> float:
        """Return CPU seconds so far."""
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system
        return sum(self._cpu.values())

    def measure(self) -> None:
        """Take part in the highest memory, in MB."""
        total = sum(_proportional(process.pid) for process in self._processes())
        self.highest = max(self.highest, total / 1e6)
        self.cpu()

    def _processes(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return []


def _proportional(pid: int) -> int:
    """Return the bytes of a process, where shared pages count in parts (PSS)."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def watch(
    module: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> dict[str, Reading]:
    """
    Run ``python -m module arguments`` and read what it measures, by name.

    :param python: of another environment, for a peer.
    :raises RuntimeError: the child failed.
    """
    child = subprocess.Popen(
        [python, "-m", module, *arguments],
        cwd=PROJECT,
        env=_with_bytecode(environment if environment is not None else os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    tree = _Tree(child.pid)
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.extend(child.stderr or ()), daemon=True)
    reader.start()
    with child:
        readings = _follow(child, tree)
        reader.join()
    if child.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{''.join(errors[-40:])}")
    return readings


def _with_bytecode(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python keeps what it has compiled, as it does unless told otherwise."""
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _follow(child: subprocess.Popen[str], tree: _Tree) -> dict[str, Reading]:
    readings: dict[str, Reading] = {}
    stop, sampler, before = threading.Event(), threading.Thread(), 0.0
    assert child.stdout is not None
    assert child.stdin is not None
    for line in child.stdout:
        if not line.startswith(_MARK):
            continue
        mark = json.loads(line.removeprefix(_MARK))
        if "begin" in mark:
            before, tree.highest, stop = tree.cpu(), 0.0, threading.Event()
            sampler = threading.Thread(target=_sample, args=(tree, stop), daemon=True)
            sampler.start()
        else:
            stop.set()
            sampler.join()
            tree.measure()
            readings[mark["end"]] = Reading(
                mark["seconds"], tree.cpu() - before, tree.highest, mark["result"]
            )
        child.stdin.write("\n")
        child.stdin.flush()
    return readings


def _sample(tree: _Tree, stop: threading.Event) -> None:
    while not stop.wait(_PAUSE):
        tree.measure()
