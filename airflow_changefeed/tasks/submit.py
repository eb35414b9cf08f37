# SPDX-License-Identifier: Apache-2.0
"""
What the operators that run a Spark job of ours share: its arguments, the private folder of its files, and the
processes whose end must end it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_changefeed.connections import spark
from airflow_changefeed.connections.connection import private_files
from airflow_changefeed.connections.output import publish_program
from airflow_changefeed.connections.spark import (
    ChangefeedSparkSubmitHook,
    kubernetes_named,
    local_environment,
    spark_connection,
)
from airflow_changefeed.core.codec import decode
from airflow_changefeed.exceptions import TransientError
from airflow_changefeed.tasks.arguments import NamesConnections, need_program_path
from airflow_changefeed.version_compat import AirflowException

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pyspark.sql import SparkSession

    from airflow_changefeed.core.codec import Document
    from airflow_changefeed.export.job_spec import JobConnection


_FOLDER = re.compile(r"changefeed-(\d{1,9})-\w+")
#: Arguments of the provider's operator that a job of ours sets itself.
OWN = ("application", "application_args", "java_class")
#: Templated fields of the provider's operator that are left to the author of the DAG.
TEMPLATED = tuple(name for name in SparkSubmitOperator.template_fields if name not in OWN)


def take_own(kwargs: dict[str, Any], job_name: str, what: str) -> list[str]:
    """
    Take out of an operator's arguments what it sets itself, and name its job.

    :param job_name: where neither the task nor ``default_args`` gives one.
    :param what: for messages, for example ``a fold``.
    :return: what is wrong: arguments that were given and cannot be.
    """
    if "name" not in (kwargs.get("default_args") or {}):
        kwargs.setdefault("name", job_name)
    given = [name for name in OWN if kwargs.pop(name, None) is not None]
    return [f"{name} cannot be given: {what} always runs its own job" for name in given]


class ChangefeedSparkOperator(NamesConnections, SparkSubmitOperator):
    """Runs a job of ours: with its package, its processes watched, its files private."""

    _interrupt: Callable[[], object] | None = None
    path_conn_id: str | None = None
    program_path: str | None = None
    program_conn_id: str | None = None

    def _prepare(self, arguments: Mapping[str, str], elsewhere: tuple[str, str] | None = None) -> None:
        """
        Set what the provider's operator runs.

        :param arguments: of the job; only paths, since everybody can read them.
        :param elsewhere: where a driver on another machine finds the job's file and the package's archive;
            None for a driver on this one, which ends with this task.
        """
        from airflow_changefeed.spark.archive import package_archive

        application = str(Path(__file__).parents[1] / "spark" / "job.py")
        self.application, archive = elsewhere or (application, package_archive())
        self.application_args = [text for name, value in arguments.items() for text in (f"--{name}", value)]
        for pid in () if elsewhere else pids_to_watch():
            self.application_args += ["--watch-pid", str(pid)]
        self.conf = {**(self.conf or {})}
        # The task's log is for the job's progress, not for a hundred lines of Spark's about itself.
        self.conf.setdefault("spark.log.level", "WARN")
        self.conf.setdefault("spark.ui.showConsoleProgress", "false")
        if self._get_hook().is_local:
            self.env_vars = local_environment(self.env_vars)
            # A web page that nobody needs, on a port of all addresses.
            self.conf.setdefault("spark.ui.enabled", "false")
        # Also for a local job: spark-submit's Python may have another path than this one.
        self.py_files = ",".join(filter(None, [self.py_files, archive]))
        # DAG-wide defaults for other Spark tasks may name a class; ours is a Python job.
        self._java_class = None
        # The provider creates it after it has added its own, for example OpenLineage's properties.
        self._hook = None

    def _run_spec(self, context: Context, spec: str, connection: JobConnection) -> None:
        """Run the job of a spec by the Spark connection, and return when it is over: its receipt says how."""
        from airflow_changefeed.spark.export_job import run_spec

        # A retry takes nothing that may be broken.
        is_first = context["ti"].try_number == 1
        with self._connect(is_shared=is_first) as session, job_folder() as folder:
            if session is not None:
                run_spec(session, spec, connection, self.log.info)
                return
            if self._get_hook().is_cluster:
                # The connection comes from a secret of the cluster.
                program = publish_program(str(self.program_path), self.program_conn_id or self.path_conn_id)
                self._prepare({"spec": spec}, program)
            else:
                connection.save(file := str(folder / "connection.json"))
                self._prepare({"spec": spec, "connection": file})
            super().execute(context)

    def _run_task(
        self, context: Context, task: Document, connection: JobConnection, facts: type[Any] | None
    ) -> Any:
        """Do a task by the Spark connection and return its facts; its receipt decides, not spark-submit."""
        from airflow_changefeed.export.result import RESULT, TaskResult
        from airflow_changefeed.spark.job import run_task

        with self._connect() as session, job_folder() as folder:
            if session is not None:
                return run_task(session, task, connection, self.log.info)
            files = {name: str(folder / f"{name}.json") for name in ("task", "connection")}
            Path(files["task"]).write_text(task.to_json(), encoding="utf-8")
            connection.save(files["connection"])
            self._prepare(files)
            failure: Exception | None = None
            try:
                super().execute(context)
            except AirflowException as error:
                failure = error
            receipt = folder / RESULT
            if not receipt.exists():
                what = f"the Spark job of task {self.task_id!r} ended without a result"
                raise failure or TransientError(what)
            result = TaskResult.from_json(receipt.read_text(encoding="utf-8"), named="the job's result")
        result.raise_error(failure)
        return None if facts is None else decode(facts, result.facts, named="the job's result")

    def _check_launch(self) -> None:
        """Check what runs an export, and that a driver elsewhere finds its program."""
        hook = self._check_spark(driver_elsewhere=True)
        if hook is not None and hook.is_cluster:
            need_program_path(self.program_path)

    def _check_spark(self, *, driver_elsewhere: bool = False) -> ChangefeedSparkSubmitHook | None:
        """Check what runs the job, and return the hook of ``spark-submit`` where that does."""
        connection = spark_connection(self._conn_id)
        if connection.conn_type == spark.CONN_TYPE:
            spark.server_url(connection)
            return None
        hook = self._get_hook()
        hook.check(driver_elsewhere=driver_elsewhere)
        return hook

    @contextmanager
    def _connect(self, *, is_shared: bool = False) -> Iterator[Callable[[], SparkSession] | None]:
        """Give each thread a session at the Spark Connect server; None where jobs go by spark-submit."""
        connection = spark_connection(self._conn_id)
        if connection.conn_type != spark.CONN_TYPE:
            yield None
            return
        with spark.connect_session(connection, self.conf, is_shared=is_shared) as session:
            tag = f"changefeed-{uuid.uuid4().hex}"

            def tagged() -> SparkSession:
                session.addTag(tag)
                return session

            # Others may use the session, too.
            self._interrupt = partial(session.interruptTag, tag)
            try:
                yield tagged
            finally:
                self._interrupt = None

    def _get_hook(self) -> ChangefeedSparkSubmitHook:
        with private_files(), kubernetes_named():
            return ChangefeedSparkSubmitHook.of(super()._get_hook())

    def on_kill(self) -> None:
        """Stop the Spark job, if one runs."""
        if self._interrupt is not None:
            self._interrupt()
        if self._hook is not None:
            self._hook.on_kill()


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
    """Remove the folders of this user's dead tasks."""
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
