# SPDX-License-Identifier: Apache-2.0
"""The environment that a test home's Airflow runs in, and why each setting is there."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
MARKER = "AIRFLOW_HOME"  # by this variable, a home's processes are found


@dataclass(frozen=True)
class AirflowSettings:
    """
    What differs between homes.

    :param home: Airflow's home folder.
    :param dags: folder with the DAG files.
    :param url: of the API server, on 127.0.0.1.
    :param sqlalchemy_url: of the metadata database.
    :param secret: signs tokens; the same for all services.
    :param parallelism: tasks at a time; LocalExecutor forks that many processes at once.
    :param heartbeat_timeout: seconds after which a task whose process died is noticed.
    :param connections: by id, each a dict of Airflow's connection JSON.
    :param extra: further environment; wins over everything else.
    """

    home: Path
    dags: Path
    url: str
    sqlalchemy_url: str
    secret: str = field(repr=False)
    parallelism: int = 4
    heartbeat_timeout: int = 30
    connections: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)

    def environment(self) -> dict[str, str]:
        """The caller's environment without the caller's own Airflow settings, then this home's."""
        foreign = ("AIRFLOW_", "_AIRFLOW")
        env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        for name in ("NO_PROXY", "no_proxy"):
            env[name] = ",".join(filter(None, [env.get(name), "127.0.0.1", "localhost"]))
        # spark-submit lies beside this Python; Spark's workers would otherwise take the system's Python.
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROJECT), env.get("PYTHONPATH")]))
        env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = sys.executable
        env["SPARK_LOCAL_IP"] = "127.0.0.1"
        env["SPT_NOENV"] = "1"  # renamed processes keep their environment readable
        env["PYTHONUNBUFFERED"] = "1"
        env[MARKER] = str(self.home)
        env |= {f"AIRFLOW__{option}": value for option, value in self._options().items()}
        for conn_id, connection in self.connections.items():
            env[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(connection)
        return env | dict(self.extra)

    def _options(self) -> dict[str, str]:
        return {
            "CORE__DAGS_FOLDER": str(self.dags),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": str(self.parallelism),
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",  # a paused DAG's backfill stays queued
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "DATABASE__SQL_ALCHEMY_CONN": self.sqlalchemy_url,
            "LOGGING__BASE_LOG_FOLDER": str(self.home / "logs"),
            "API__HOST": "127.0.0.1",
            "API__PORT": self.url.rpartition(":")[2],
            "API__BASE_URL": self.url,
            "API__WORKERS": "1",
            "API__SECRET_KEY": self.secret,
            "API_AUTH__JWT_SECRET": self.secret,
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": str(max(1, self.heartbeat_timeout // 6)),
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(self.heartbeat_timeout),
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",  # new files are seen this soon
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
            "USAGE_DATA_COLLECTION__ENABLED": "False",
        }
