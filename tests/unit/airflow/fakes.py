# SPDX-License-Identifier: Apache-2.0
"""Spark without a JVM: the job's own code runs in this process, only Spark itself is replaced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from threading import Lock
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from airflow.sdk import Asset
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_changefeed.connections.spark import ChangefeedSparkSubmitHook
from airflow_changefeed.export.request import JobConnection
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
