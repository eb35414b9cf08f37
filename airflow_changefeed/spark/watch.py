# SPDX-License-Identifier: Apache-2.0
"""Ends the job when the process that started it has ended: such a job is harmless, but costs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

_SECONDS = 1.0
#: A shell's exit status for a process that SIGTERM ended.
EXIT_STATUS = 143


def is_alive(pid: int) -> bool:
    """Whether a process of this machine exists; a zombie process does not count."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        # Without /proc the signal's answer decides.
        return True


def watch(
    pids: Sequence[int], say: Callable[[str], None], end: Callable[[int], object] = os._exit
) -> threading.Thread:
    """
    End this process at once when its parent, or one of some other processes of this machine, is gone.

    Under ``spark-submit`` the parent is Spark's own process, which ends with us; the tasks end with it.

    :param pids: others to watch, for example the Airflow task that submitted us.
    :param say: takes one line.
    """
    parent = os.getppid()

    def run() -> None:
        pause = threading.Event()
        while not pause.wait(_SECONDS):
            gone = [pid for pid in pids if not is_alive(pid)]
            if os.getppid() != parent or gone:
                say(f"changefeed job ends: process {gone[0] if gone else parent} that started it is gone")
                end(EXIT_STATUS)
                return

    thread = threading.Thread(target=run, name="changefeed watch", daemon=True)
    thread.start()
    return thread
