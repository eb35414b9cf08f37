# SPDX-License-Identifier: Apache-2.0
"""A standalone Spark cluster on loopback, whose executors have a Python of their own without this package."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.system.processes import alive, descendants, end_all, free_port, tail, wait_for

#: What an executor needs of others; the package itself and python-ulid come with the job.
NEEDED = ("pyarrow", "numpy", "fsspec", "adbc_driver_manager", "adbc_driver_sqlite")


@dataclass(frozen=True)
class Cluster:
    """
    A running cluster.

    :ivar master: as a Spark connection names it.
    :ivar work: folder in which executors work and log.
    """

    master: str
    work: Path

    def logs(self) -> str:
        """Return what all executors have said."""
        return "\n".join(
            path.read_text(errors="replace") for path in sorted(self.work.glob("app-*/*/stderr"))
        )


@contextmanager
def spark_cluster(folder: Path) -> Iterator[Cluster]:
    """
    Start a master and one worker with two cores, and end them with all that they started.

    Their environment has no Python and nothing of ours, as that of another machine.
    """
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    work, port = folder / "work", free_port()
    work.mkdir()
    master = f"spark://127.0.0.1:{port}"
    environment = {
        "PATH": os.defpath,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
    }
    services = {
        "master.Master": ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port())),
        "worker.Worker": (
            *("--host", "127.0.0.1", "--webui-port", str(free_port()), "--cores", "2", "--memory", "1g"),
            *("--work-dir", str(work), master),
        ),
    }
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name, arguments in services.items():
            started.append(_start(home, name, arguments, environment, folder / f"{name}.log"))
            _await(
                folder / f"{name}.log", "I have been elected leader" if "Master" in name else "Successfully"
            )
        yield Cluster(master, work)
    finally:
        left = end_all(lambda: _alive(started), grace=10)
        for process in started:
            process.wait(timeout=10)
        assert left == []


def _start(
    home: Path, name: str, arguments: Sequence[str], environment: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments],
            env=environment,
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def _alive(started: Sequence[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    found = []
    for each in started:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(each.pid)
            found += [process, *descendants(process)]
    return alive(found)


def _await(log: Path, words: str) -> None:
    wait_for(f"{words!r} in {log}", lambda: words in log.read_text(), timeout=60, explain=lambda: tail(log))


def other_python(folder: Path) -> Path:
    """
    Make a Python environment that has what an executor needs, and nothing else; return its Python.

    Its packages are links to those of this environment.
    """
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None, name
        found = Path(spec.origin).parent
        # Some wheels bring their shared libraries in a folder beside the package.
        for each in (found, found.with_name(f"{name}.libs")):
            if each.exists():
                (packages / each.name).symlink_to(each)
    python = folder / "bin" / "python"
    for name in ("airflow", "airflow_changefeed", "pandas", "ulid"):
        # Elsewhere than here: a command's modules are looked for in the working folder, too.
        done = subprocess.run(
            [str(python), "-c", f"import {name}"], cwd=folder, capture_output=True, text=True, check=False
        )
        assert "ModuleNotFoundError" in done.stderr, f"{name} is there, which an executor must not need"
    return python
