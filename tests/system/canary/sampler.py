# SPDX-License-Identifier: Apache-2.0
"""What other processes show while they run: command lines, environments, files, and the pages of Spark."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.system.canary.search import Search

PAUSE = 0.1
PAGES = ("/environment/", "/jobs/", "/stages/", "/storage/", "/executors/", "/SQL/", "/SQL/execution/?id=0")
PATHS = (
    "environment",
    "jobs",
    "stages?details=true",
    "allexecutors",
    "sql?details=true&planDescription=true",
)


class Sampler:
    """
    Looks again and again, in a thread, until it is told to end.

    :param search: for the canaries.
    :param temp: folder of temporary files, in which secrets lie in private files only.
    :param ui: port of Spark's pages; the first job that shows them is held until all were read.
    """

    def __init__(self, search: Search, temp: Path, ui: int) -> None:
        self._search = search
        self._temp = temp
        self._ui = f"http://127.0.0.1:{ui}"
        self._end = threading.Event()
        self._seen: set[int] = set()
        #: Command lines, one a line; those of the whole machine.
        self.commands: set[bytes] = set()
        #: Names of the variables in which environments held a canary.
        self.variables: set[str] = set()
        #: Private files that held a canary, by name, with their modes and those of their folders.
        self.files: dict[str, tuple[int, int]] = {}
        #: Spark's pages by address.
        self.pages: dict[str, bytes] = {}
        #: What went wrong in the thread.
        self.error: Exception | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Look while the block runs."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._end.wait(PAUSE):
                self._look_at_processes()
                self._look_at_files()
                if not self.pages and self._has_query():
                    self._read_pages()
        except Exception as error:
            self.error = error

    def _look_at_processes(self) -> None:
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                self.commands.add(Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" "))
            if int(entry.name) == os.getpid():
                continue
            with suppress(OSError):
                environment = Path(entry.path, "environ").read_bytes()
                if self._is_new(environment) and self._search.found(environment):
                    self.variables |= {
                        variable.partition(b"=")[0].decode()
                        for variable in environment.split(b"\0")
                        if self._search.found(variable)
                    }

    def _is_new(self, content: bytes) -> bool:
        """Whether this was not looked at before: most of it stays the same from look to look."""
        before = len(self._seen)
        self._seen.add(hash(content))
        return len(self._seen) > before

    def _look_at_files(self) -> None:
        for folder, _, names in os.walk(self._temp):
            for name in names:
                path = Path(folder, name)
                # It may vanish while we look.
                with suppress(OSError):
                    content = path.read_bytes()
                    if self._is_new(name.encode() + content) and self._search.found(content):
                        modes = path.stat().st_mode, path.parent.stat().st_mode
                        self.files[name] = (stat.S_IMODE(modes[0]), stat.S_IMODE(modes[1]))

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self._ui + path, timeout=20) as answer:  # noqa: S310 - http, and ours
            content: bytes = answer.read()
            return content

    def _has_query(self) -> bool:
        """Whether Spark shows a query, and so all pages that there are."""
        try:
            (application,) = json.loads(self._get("/api/v1/applications"))
            address = f"/api/v1/applications/{application['id']}"
            return all(json.loads(self._get(f"{address}/{path}")) for path in ("sql", "jobs", "stages"))
        except (OSError, ValueError, urllib.error.URLError):
            return False

    def _read_pages(self) -> None:
        """Read all pages, and hold the job's driver meanwhile: they would be gone with it."""
        (application,) = json.loads(self._get("/api/v1/applications"))
        drivers = _drivers(self._temp)
        for pid in drivers:
            os.kill(pid, signal.SIGSTOP)
        try:
            address = f"/api/v1/applications/{application['id']}"
            for path in (*PAGES, *(f"{address}/{path}" for path in PATHS)):
                self.pages[path] = self._get(path)
        finally:
            for pid in drivers:
                os.kill(pid, signal.SIGCONT)


def _drivers(temp: Path) -> list[int]:
    """Return the Python processes that run a Spark job with this folder of temporary files."""
    found, ours = [], f"TMPDIR={temp}".encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                is_job = len(words) > 1 and words[1].endswith(b"/spark/job.py")
                if is_job and ours in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found
