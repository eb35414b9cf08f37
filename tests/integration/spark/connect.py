# SPDX-License-Identifier: Apache-2.0
"""A Spark Connect server on loopback: PySpark's own, which outlives the sessions of its clients."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PATIENCE = 120
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@contextmanager
def connect_server(folder: Path) -> Iterator[int]:
    """
    Run a server on two cores, whose Python has what we need and not our package.

    :param folder: where it runs, and writes its log.
    :return: its port.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    settings = {**_SETTINGS, "spark.connect.grpc.binding.port": str(port)}
    conf = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with open(folder / "server.log", "wb") as log:
        server = subprocess.Popen(
            [
                str(Path(sys.executable).parent / "spark-submit"),
                *("--master", "local[2]", *conf),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
            ],
            cwd=folder,
            env={**environment, "PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _await(port, server, folder / "server.log")
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _await(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as asking:
            if asking.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"the Spark Connect server did not start:\n{log.read_text()[-3000:]}")
