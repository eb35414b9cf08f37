# SPDX-License-Identifier: Apache-2.0
"""What surrounds a Spark job on this machine: the private folder of its files, and whose end must end it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = re.compile(r"changefeed-(\d{1,9})-\w+")


@contextmanager
def job_folder() -> Iterator[Path]:
    """
    Give a folder that only its owner can read, for a job's plan and connection; gone afterwards.

    A task that was killed cannot remove its own: the next one of the same user does, since a connection holds
    secrets.
    """
    sweep_folders()
    folder = Path(tempfile.mkdtemp(prefix=f"changefeed-{os.getpid()}-"))
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks; the process id is then all there is
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep_folders() -> None:
    """Remove the folders of this user's tasks that are dead."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            match = _FOLDER.fullmatch(entry.name)
            if match is None:
                continue
            with suppress(OSError):  # somebody else may sweep at the same time
                is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_ours and entry.is_dir(follow_symlinks=False) and _is_left(entry.path, int(match[1])):
                    shutil.rmtree(entry.path, ignore_errors=True)


def _is_left(folder: str, pid: int) -> bool:
    """Whether nobody uses a folder: containers may share it without seeing each other's processes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        pass
    except OSError:
        return False
    else:
        return False
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        os.close(lock)
    return True


def pids_to_watch() -> list[int]:
    """
    Return the processes whose end must end the Spark job: this task's, and its supervisor's.

    When only the supervisor dies, Airflow begins a retry while this process goes on.
    Where the task runs in the caller's own process, as in ``dag.test``, the parent is nobody's supervisor.
    """
    comms = getattr(sys.modules.get("airflow.sdk.execution_time.task_runner"), "SUPERVISOR_COMMS", None)
    is_supervised = comms is not None and not type(comms).__name__.startswith("InProcess")
    return [os.getpid(), os.getppid()] if is_supervised else [os.getpid()]
