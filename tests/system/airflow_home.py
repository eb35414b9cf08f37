# SPDX-License-Identifier: Apache-2.0
"""
Run a real Airflow on loopback, in a home of its own, and stop all of it again.

Used by the system tests, ``make demo`` and ``make ui``::

    with AirflowHome(PROJECT / ".airflow" / "demo", dags=PROJECT / "dags") as home:
        home.wait_for_dags("changefeed_hourly")
        home.api.create_backfill(...)
"""

from __future__ import annotations

import atexit
import functools
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import psutil

from tests.minors import RETRIES_KILLED_TASKS
from tests.system.airflow_api import AirflowApi
from tests.system.airflow_settings import MARKER, AirflowSettings
from tests.system.fork_server import ForkedProcess, ForkServer
from tests.system.postgres import Postgres
from tests.system.processes import (
    FileLock,
    Handlers,
    HomeError,
    command_line,
    descendants,
    end_all,
    free_port,
    processes_of,
    restore_signals,
    signals_ignored,
    signals_raise,
    tail,
    wait_for,
)

T = TypeVar("T")

STOP_GRACE_SECONDS = 15
# Four services instead of `airflow standalone`, which leaves its children behind at SIGTERM; without log
# servers, which would listen on all addresses (task logs are read from the same disk).
SERVICES: Mapping[str, Sequence[str]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
HEALTHY = ("metadatabase", "scheduler", "dag_processor", "triggerer")


@dataclass(frozen=True)
class KilledTask:
    """
    What :meth:`AirflowHome.kill_task` killed.

    :ivar pid: the task's process, which got SIGKILL.
    :ivar try_number: of the try that was killed.
    :ivar children: the processes below it at that moment (Spark), which got no signal.
    """

    pid: int
    try_number: int
    children: tuple[psutil.Process, ...]


def spark_runs(commands: Sequence[str]) -> bool:
    """Whether a Spark driver is among these command lines of a task's descendants."""
    return any("org.apache.spark.deploy.SparkSubmit" in command for command in commands)


class AirflowHome:
    """
    An Airflow with LocalExecutor and PostgreSQL that listens on 127.0.0.1 only; a context manager.

    SIGTERM, SIGHUP, Ctrl-C and any exception stop it, as does the end of the interpreter. What a starter
    killed by SIGKILL left behind is ended when the same folder is started, or only stopped, again.

    :param folder: home; created. A short path lets the database's socket lie in it.
    :param dags: folder with the DAG files.
    :param connections: by id, each a dict of Airflow's connection JSON (``conn_type``, ``host``, ...). Passed
        in the environment: tasks and hooks can use them, the UI does not list them.
    :param env: further environment, also for tasks; wins over everything set here.
    :param fresh: start from nothing; otherwise an earlier home's runs, Variables and logs stay.
    :param port: of the UI and the REST API; a free one by default.
    :param parallelism: tasks at a time.
    :param heartbeat_timeout: seconds after which a task whose process died is noticed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dags: Path,
        connections: Mapping[str, Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
        fresh: bool = True,
        port: int | None = None,
        parallelism: int = 4,
        heartbeat_timeout: int = 30,
    ) -> None:
        self.folder = folder.resolve()
        self.logs = self.folder / "service-logs"
        self.fresh = fresh
        self.url = f"http://127.0.0.1:{port or free_port()}"
        self.api = AirflowApi(self.url)
        self.postgres = Postgres(self.folder / "pg", outlives_a_crash=not fresh)
        self._settings = functools.partial(
            AirflowSettings,
            home=self.folder,
            dags=dags.resolve(),
            url=self.url,
            secret=secrets.token_hex(32),
            parallelism=parallelism,
            heartbeat_timeout=heartbeat_timeout,
            connections=connections or {},
            extra=env or {},
        )
        self._server: ForkServer | None = None
        self._services: dict[str, ForkedProcess] = {}
        self._handlers: Handlers = {}
        self._lock = FileLock(self.folder.with_name(f"{self.folder.name}.lock"))

    # -- start and stop ------------------------------------------------------------------------------------

    def start(self, *, timeout: float = 120) -> None:
        """
        Start the database and Airflow, and wait until all four services say they are healthy.

        :param timeout: seconds for the services; migrating the empty database (about 10 s) comes before.
        :raises HomeError: a process died or the time is up, with the end of its log; or another process runs
            this home at this moment.
        """
        self._lock.acquire()
        atexit.register(self.stop)
        self._handlers = signals_raise()
        try:
            self._clear_away()
            self.postgres.start()
            self._server = ForkServer(self.environment(), self.logs / "fork-server.log")
            self._migrate()
            for name, arguments in SERVICES.items():
                self._services[name] = self._spawn(name, arguments)
            self.wait_for("a healthy Airflow", self._is_healthy, timeout=timeout)
            self.api.login()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """
        Stop everything that was started, Spark included; may be called again.

        :raises HomeError: a process is left even after SIGKILL.
        """
        with signals_ignored():
            # The API server comes last: tasks report their end to it, and try for long when it is gone.
            # They get their SIGTERM together with the scheduler, which otherwise waits for them.
            end_all(self._all_but_api_server, grace=STOP_GRACE_SECONDS)
            left = end_all(self.processes, grace=STOP_GRACE_SECONDS)
            if self._server is not None:
                self._server.close()
                self._server = None
            self._services.clear()
            self.postgres.stop()
            self.api.close()
            self._lock.release()
        restore_signals(self._handlers)
        self._handlers = {}
        atexit.unregister(self.stop)
        if left:
            raise HomeError(f"Still running after SIGKILL: {[command_line(process) for process in left]}")

    def __enter__(self) -> AirflowHome:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def processes(self) -> list[psutil.Process]:
        """Live processes of this home but the database's: services, tasks and whatever tasks started."""
        return processes_of(MARKER, str(self.folder))

    def environment(self) -> dict[str, str]:
        """Environment of the services; also for an ``airflow`` command or a script in this home."""
        return self._settings(sqlalchemy_url=self.postgres.sqlalchemy_url).environment()

    def check(self) -> None:
        """
        Notice a service, or the database, that died.

        :raises HomeError: with the end of its log.
        """
        self.postgres.check()
        for name, process in self._services.items():
            if process.poll() is not None:
                raise HomeError(f"{name} ended with code {process.returncode}; {self._log_end(name)}")

    # -- waiting and killing -------------------------------------------------------------------------------

    def wait_for(self, what: str, probe: Callable[[], T | None], *, timeout: float) -> T:
        """
        Poll until ``probe`` gives something true, and return it.

        :param timeout: seconds.
        :raises HomeError: the time is up, or a service died.
        """
        return wait_for(
            what, probe, timeout=timeout, check=self.check, explain=lambda: f"Logs are in {self.logs}."
        )

    def wait_for_dags(self, *dag_ids: str, timeout: float = 60) -> None:
        """
        Wait until the DAGs are parsed.

        :raises HomeError: not in time (seconds), or a file of the DAG folder cannot be imported.
        """

        def all_there() -> bool:
            if errors := self.api.import_errors():
                raise HomeError(
                    "".join(f"{name} cannot be imported:\n{text}\n" for name, text in errors.items())
                )
            return set(dag_ids) <= self.api.dags().keys()

        self.wait_for(f"the DAGs {', '.join(dag_ids)}", all_there, timeout=timeout)

    def task_process(self, dag_id: str, run_id: str, task_id: str) -> tuple[psutil.Process, int] | None:
        """
        Find the process in which a task runs at this moment, and the number of the try.

        Airflow's task runner names its process ``airflow worker -- <id of the try>``, and the REST API tells
        that id, so the two of them are exact whatever else runs. (Its parent, the LocalExecutor worker that
        supervises it, is named ``airflow worker -- LocalExecutor: ...``; ``spark-submit`` and Java are below
        it and carry ``AIRFLOW_CTX_DAG_RUN_ID`` in their environment.) Linux only: on macOS Airflow does not
        rename its processes.

        :return: None when the task does not run (yet, or any more).
        """
        task = self.api.task_instance(dag_id, run_id, task_id)
        if task.state != "running":
            return None
        title = f"airflow worker -- {task.id}"
        for process in self.processes():
            if command_line(process) == title:
                return process, task.try_number
        return None

    def kill_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        *,
        ready: Callable[[Sequence[str]], bool] = spark_runs,
        timeout: float = 120,
    ) -> KilledTask:
        """
        Wait until a task is in the middle of its work, then kill its process by SIGKILL.

        Airflow notices after ``heartbeat_timeout`` seconds. Only the task's own process is killed; before
        Airflow 3.1 its supervisor, too.

        :param ready: is given the command lines of the task's descendants; says whether to kill now.
        :param timeout: seconds to wait for that.
        :raises HomeError: the task ended or the time is up before it was ready.
        """

        def kill() -> KilledTask | None:
            task = self.api.task_instance(dag_id, run_id, task_id)
            if task.is_finished:
                raise HomeError(f"Task {task_id} of {run_id} was {task.state} before it could be killed.")
            found = self.task_process(dag_id, run_id, task_id)
            if found is None:
                return None
            process, try_number = found
            children = descendants(process)
            if not ready([command_line(child) for child in children]):
                return None
            victims = [process] if RETRIES_KILLED_TASKS else [process.parent() or process, process]
            try:
                for victim in victims:
                    victim.kill()
            except psutil.NoSuchProcess:
                return None
            return KilledTask(process.pid, try_number, tuple(children))

        return self.wait_for(f"task {task_id} of {run_id} to be ready for SIGKILL", kill, timeout=timeout)

    # -- the inside ----------------------------------------------------------------------------------------

    def _all_but_api_server(self) -> list[psutil.Process]:
        api_server = self._services.get("api-server")
        return [
            process for process in self.processes() if api_server is None or process.pid != api_server.pid
        ]

    def _clear_away(self) -> None:
        """End what an earlier starter left; nobody else uses the home now, because we hold its lock."""
        if self.fresh and self.folder.exists() and any(self.folder.iterdir()) and not self.logs.is_dir():
            raise HomeError(f"{self.folder} is not an Airflow home of this harness; it is left as it is.")
        if left := end_all(self.processes, grace=STOP_GRACE_SECONDS):
            raise HomeError(f"Processes of an earlier start of {self.folder} do not end: {left}")
        self.postgres.stop()
        if self.fresh and self.folder.exists():
            shutil.rmtree(self.folder)
        self.logs.mkdir(parents=True, exist_ok=True)

    def _migrate(self) -> None:
        if self._spawn("migrate", ("db", "migrate")).wait(timeout=180) != 0:
            raise HomeError(f"airflow db migrate failed; {self._log_end('migrate')}")

    def _spawn(self, name: str, arguments: Sequence[str]) -> ForkedProcess:
        assert self._server is not None
        return self._server.start(
            "airflow",
            *arguments,
            environment=self.environment(),
            folder=self.folder,
            log=self.logs / f"{name}.log",
        )

    def _log_end(self, name: str) -> str:
        path = self.logs / f"{name}.log"
        return f"end of {path}:\n{tail(path)}"

    def _is_healthy(self) -> bool:
        try:
            health = self.api.health()
        except httpx.HTTPError:
            return False
        return all(health.get(part) == "healthy" for part in HEALTHY)
