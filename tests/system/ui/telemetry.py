# SPDX-License-Identifier: Apache-2.0
"""What the UI's Airflow reports to others: lineage into a file, metrics to a socket that fills another."""

from __future__ import annotations

import json
import socket
import threading
from importlib.util import find_spec
from pathlib import Path

#: Of our metrics among Airflow's own.
PREFIX = "airflow.changefeed."


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


class Telemetry:
    """
    Receives metrics until it is closed; lineage needs nobody.

    Either is left out where the client that sends it is not installed.

    :param folder: of ``lineage.jsonl`` and ``metrics.txt``, which grow.
    """

    def __init__(self, folder: Path) -> None:
        self.lineage, self.metrics = folder / "lineage.jsonl", folder / "metrics.txt"
        self.env: dict[str, str] = {}
        self._socket: socket.socket | None = None
        if _is_there("airflow.providers.openlineage"):
            transport = {"type": "file", "log_file_path": str(self.lineage), "append": True}
            self.env |= {
                "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
                "AIRFLOW__OPENLINEAGE__NAMESPACE": "make-ui",
            }
        if _is_there("statsd"):
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.bind(("127.0.0.1", 0))
            self.env |= {
                "AIRFLOW__METRICS__STATSD_ON": "True",
                "AIRFLOW__METRICS__STATSD_PORT": str(self._socket.getsockname()[1]),
                "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
            }

    def start(self) -> None:
        """Begin to write down the metrics that arrive."""
        if self._socket is not None:
            self.metrics.parent.mkdir(parents=True, exist_ok=True)
            threading.Thread(target=self._receive, args=(self._socket,), daemon=True).start()

    def close(self) -> None:
        """Receive nothing any more."""
        if self._socket is not None:
            self._socket.close()

    def _receive(self, listener: socket.socket) -> None:
        with self.metrics.open("a", encoding="utf-8", buffering=1) as file:
            while True:
                try:
                    lines = listener.recv(65_536).decode(errors="replace").splitlines()
                except OSError:
                    return
                file.writelines(f"{line}\n" for line in lines if line.startswith(PREFIX))
