# SPDX-License-Identifier: Apache-2.0
"""
Find and end operating-system processes, and wait for things with a deadline.

A home's processes are told from others by their environment (``AIRFLOW_HOME``), because Airflow gives each
task a process group of its own and Spark starts Java below it: neither groups nor parents reach all of them
once something in between has died.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, TypeVar

import psutil

T = TypeVar("T")
Handlers = Mapping[signal.Signals, Any]

POLL_SECONDS = 0.25


class HomeError(RuntimeError):
    """Something around a test home (a process, a deadline, a request) went wrong; the message says what."""


def wait_for(
    what: str,
    probe: Callable[[], T | None],
    *,
    timeout: float,
    check: Callable[[], object] = lambda: None,
    explain: Callable[[], str] = lambda: "",
) -> T:
    """
    Poll until ``probe`` gives something true, and return that.

    :param what: what is waited for, for the error.
    :param timeout: seconds.
    :param check: called before each probe; raises when waiting has become pointless.
    :param explain: called once, when the time is up, for more words in the error.
    :raises HomeError: not true in time.
    """
    deadline = time.monotonic() + timeout
    while True:
        check()
        if value := probe():
            return value
        if time.monotonic() > deadline:
            raise HomeError(f"Gave up after {timeout:g} s waiting for {what}. {explain()}".rstrip())
        time.sleep(POLL_SECONDS)


def tail(path: Path, lines: int = 40) -> str:
    """Last lines of a log, or a word that there is none."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:]) or "(empty log)"


def processes_of(variable: str, value: str) -> list[psutil.Process]:
    """
    Live processes of this user whose environment, as they were started, has ``variable`` set to ``value``.

    Zombies are left out, and so is this very process. A process that renames itself must keep its
    environment readable: ``setproctitle`` does when ``SPT_NOENV`` is set.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(variable) == value:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """Children, grandchildren and so on; none when the process is gone."""
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def command_line(process: psutil.Process) -> str:
    """The command line in one string; empty when the process is gone or a zombie."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; zombies do not."""
    result = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                result.append(process)
        except psutil.Error:
            continue
    return result


def end_all(find: Callable[[], list[psutil.Process]], *, grace: float) -> list[psutil.Process]:
    """
    End all processes that ``find`` names: SIGTERM, then SIGKILL to those that stay.

    ``find`` is asked again and again, because a dying process may have started another one.

    :param grace: seconds between SIGTERM and SIGKILL.
    :return: what still runs after SIGKILL; empty when all is well.
    """
    deadline = time.monotonic() + grace
    asked: set[psutil.Process] = set()
    while (left := find()) and time.monotonic() < deadline:
        _send(signal.SIGTERM, [process for process in left if process not in asked])
        asked.update(left)
        psutil.wait_procs(left, timeout=POLL_SECONDS)
    deadline = time.monotonic() + 10
    while (left := find()) and time.monotonic() < deadline:
        _send(signal.SIGKILL, left)
        psutil.wait_procs(left, timeout=POLL_SECONDS)
    return left


def _send(sig: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.send_signal(sig)
        except psutil.Error:
            continue


class FileLock:
    """
    A lock between processes that ends with its holder, however that ends.

    :param path: the file; made when missing, with the holder's process id in it, and left there.
    :param note: what others are told of the holder besides.
    """

    def __init__(self, path: Path, note: str = "") -> None:
        self.path = path
        self.note = note
        self._file: TextIO | None = None

    def acquire(self) -> None:
        """
        Take the lock, or find that it is taken; does not wait.

        :raises HomeError: another process holds it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise HomeError(f"{self.path} is held by process {holder}: stop that one first.") from None
        file.truncate(0)
        file.write(f"{os.getpid()} {self.note}".strip())
        file.flush()
        self._file = file

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None


def free_port() -> int:
    """A TCP port that is free on 127.0.0.1 at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def signals_raise() -> Handlers:
    """
    Turn SIGTERM and SIGHUP into SystemExit, so that ``with`` blocks are left properly.

    :return: what to give to :func:`restore_signals`; empty outside the main thread, which alone may do this.
    """
    return _handle((signal.SIGTERM, signal.SIGHUP), _exit)


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """A block that no second Ctrl-C can break off."""
    before = _handle((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)
    try:
        yield
    finally:
        restore_signals(before)


def is_hung_up(terminal: int) -> bool:
    """
    Whether a terminal was closed.

    SIGHUP does not always say so: without a shell, only ``make`` gets it, which waits for us then.

    :param terminal: file descriptor.
    """
    poll = select.poll()
    poll.register(terminal, 0)  # hang-ups are told unasked
    return any(events & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """
    A block that Ctrl-C waits for; processes that are started in it never hear of Ctrl-C.

    They inherit the mask. It does not shield this process: a signal that a thread of a library takes is
    answered by the main thread, mask or not. So the answer waits, too.
    """
    held: list[int] = []
    handlers = _handle((signal.SIGINT,), lambda number, frame: held.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        restore_signals(handlers)
        if held:
            signal.raise_signal(signal.SIGINT)


def restore_signals(handlers: Handlers) -> None:
    """Put back the handlers that were there before."""
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _handle(numbers: Iterable[signal.Signals], handler: Any) -> Handlers:
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number in numbers}


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
