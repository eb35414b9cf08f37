# SPDX-License-Identifier: Apache-2.0
"""Spark without a JVM: the job's own code runs in this process, only Spark itself is replaced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import pyarrow as pa
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_changefeed.connections.spark import ChangefeedSparkSubmitHook
from airflow_changefeed.core.codec import encode
from airflow_changefeed.exceptions import error_text
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.export.result import TaskResult
from airflow_changefeed.spark import export_job
from airflow_changefeed.spark.executors import BULK
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
from airflow_changefeed.version_compat import AirflowException

_WORKER = Lock()


class LocalFrame:
    """As much of a Spark data frame as the job uses."""

    def __init__(self, numbers: range) -> None:
        self.numbers = numbers
        self.rows: list[dict[str, Any]] = []

    def mapInArrow(
        self, write: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str
    ) -> LocalFrame:
        """
        Run the function for each number, as one worker would for all threads of the job.

        Others in this process have the file open, so the tasks may not read it by ADBC (ADR 0003).
        """
        with _WORKER, patch.dict(BULK, clear=True):
            for number in self.numbers:
                batch = pa.RecordBatch.from_pydict({"id": [number]})
                for facts in write(iter([batch])):
                    self.rows += facts.to_pylist()
        return self

    def collect(self) -> list[dict[str, Any]]:
        """Return what the function gave."""
        return self.rows


class LocalSpark:
    """As much of a Spark session as the job uses."""

    def addTag(self, tag: str) -> None:
        """Name what this thread runs."""

    def getTags(self) -> set[str]:
        """Say how this thread's own are named."""
        return set()

    def interruptTag(self, tag: str) -> None:
        """Stop what was named so."""

    def range(self, start: int, end: int, step: int, parts: int) -> LocalFrame:
        """Return the numbers of the tasks."""
        return LocalFrame(range(start, end, step))


class InProcessHook(ChangefeedSparkSubmitHook):
    """Runs the job instead of spark-submit, and fails as that one does."""

    commands: list[list[str]] = []  # noqa: RUF012 - shared on purpose

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run the job."""
        command = self._build_spark_submit_command(application)
        self.commands.append(command)
        first = command.index("--spec")
        given = dict(zip(command[first::2], command[first + 1 :: 2], strict=False))
        with open(given["--connection"], encoding="utf-8") as file:
            connection = JobConnection.from_json(file.read(), named="connection")
        try:
            export_job.run_spec(LocalSpark, given["--spec"], connection, lambda line: None)
        except Exception as error:
            raise AirflowException("Cannot execute: spark-submit. Error code is: 1.") from error
        return None


class InProcessOperator(ChangefeedToParquetOperator):
    """The operator, with the job in its own process."""

    def _get_hook(self) -> InProcessHook:
        return InProcessHook.of(super()._get_hook())


class DiedError(Exception):
    """A job was killed: it leaves no receipt."""


class JobHook(ChangefeedSparkSubmitHook):
    """
    Runs a job in this process instead of spark-submit, and fails as that one does.

    :cvar document: what the job is handed.
    :cvar tasks: those that were handed over so far.
    :cvar says: what the job gives; an exception is raised by it.
    """

    document: ClassVar[Any]
    tasks: ClassVar[list[Any]] = []
    says: ClassVar[Any] = None

    def run(self, task: Any, connection: JobConnection) -> Any:
        """Do what the job does."""
        return self.says

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run the job."""
        assert Path(application).exists()
        command = self._build_spark_submit_command(application)
        given, connection = (Path(command[command.index(name) + 1]) for name in ("--task", "--connection"))
        assert connection.stat().st_mode & 0o777 == 0o600
        task = self.document.from_json(given.read_text(), named="task")
        assert self.document.from_json(task.to_json(), named="task") == task
        self.tasks.append(task)
        receipt = given.with_name("result.json")
        try:
            if isinstance(self.says, Exception):
                raise self.says
            done = self.run(task, JobConnection.from_json(connection.read_text(), named="connection"))
        except DiedError:
            raise AirflowException("Cannot execute: spark-submit. Error code is: 137.") from None
        except Exception as error:
            receipt.write_text(TaskResult(error=error_text(error)).to_json())
            raise AirflowException("Cannot execute: spark-submit. Error code is: 1.") from error
        receipt.write_text((TaskResult() if done is None else TaskResult(encode(done))).to_json())
        return None


def in_process(kind: type[Any], hook: type[JobHook]) -> type[Any]:
    """Return an operator whose job is run by a hook in this process."""

    class InProcess(kind):  # type: ignore[misc]
        def _get_hook(self) -> JobHook:
            return hook.of(super()._get_hook())

    return InProcess


class OutletEvents(OutletEventAccessors):
    """
    The events of a task, which asks no API server which assets DAGs name.

    :param named: their URIs.
    """

    def __init__(self, named: Collection[str]) -> None:
        super().__init__()
        self.named = named
        self._asset_ref_cache = {}

    def _get_asset_from_db(self, name: str | None = None, uri: str | None = None) -> Asset:
        if uri in self.named:
            return Asset(name=f"named {uri}", uri=uri)
        from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
        from airflow.sdk.execution_time.comms import ErrorResponse

        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.ASSET_NOT_FOUND, detail={"uri": uri}))


def context(
    start: datetime | None = None,
    end: datetime | None = None,
    *,
    attempt: int = 1,
    named: Collection[str] = (),
    **more: Any,
) -> Any:
    """
    Return what Airflow would hand to a task; without a data interval there are no such keys.

    :param named: URIs of the assets that DAGs name.
    """
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="export", try_number=attempt, map_index=-1)
    interval = {"data_interval_start": start, "data_interval_end": end} if start is not None else {}
    return {"ti": ti, "outlet_events": OutletEvents(named), **interval, **more}
