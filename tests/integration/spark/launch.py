# SPDX-License-Identifier: Apache-2.0
"""A task that exports, in a process of its own: by spark-submit, Spark Connect, or a group with a shell."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

from airflow_changefeed.export import job_spec as spec_module
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
from airflow_changefeed.transfers.group import ExportJob, changefeed_export_group
from airflow_changefeed.version_compat import DownstreamTasksSkipped
from tests.unit.airflow.fakes import context

SECONDS = 200


class Launched:
    """
    A try of a task.

    :param way: how its job is started: ``spark-submit``, ``connect`` or ``group``.
    :param attempt: number of the try, from 1.
    :param loses_receipt: whether what the job leaves is gone when the task looks for it.
    :param export: arguments of the export.
    """

    def __init__(
        self,
        way: str,
        window: tuple[datetime, datetime],
        attempt: int,
        *,
        loses_receipt: bool = False,
        **export: Any,
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._answers = spawn.Queue()
        target = _by_group if way == "group" else _by_operator
        arguments = (target, window, attempt, loses_receipt, export, self._answers)
        self.process: BaseProcess = spawn.Process(target=_run, args=arguments)
        self.process.start()

    def result(self) -> tuple[Any, str]:
        """Wait for the end; return the task's result, and its error's class and text."""
        answer: tuple[Any, str] = self._answers.get(timeout=SECONDS)
        self.process.join()
        return answer

    @property
    def has_ended(self) -> bool:
        """Whether it has answered."""
        with suppress(queue.Empty):
            self._answers.put(self._answers.get(timeout=0.01))
            return True
        return not self.process.is_alive()

    def signal(self, number: int, *, all_processes: bool) -> None:
        """
        Send a signal.

        :param all_processes: also to the processes that it has started, or else to the task alone.
        """
        task = psutil.Process(self.process.pid)
        for process in [task, *(task.children(recursive=True) if all_processes else ())]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.join()


def _run(
    run: Callable[..., Any],
    window: tuple[datetime, datetime],
    attempt: int,
    loses_receipt: bool,
    export: dict[str, Any],
    answers: Any,
) -> None:
    if loses_receipt:
        read = spec_module.read_receipt

        def lost(store: ExportStore, spec: int) -> Any:
            for name in store.files.names(folder := store.layout.spec_folder(spec)):
                if name.startswith("result."):
                    store.files.remove_file(f"{folder}/{name}")
            return read(store, spec)

        spec_module.read_receipt = lost
    try:
        answers.put((run(window, attempt, export), ""))
    except Exception as error:
        answers.put((None, f"{type(error).__name__}: {error}"))


def _by_operator(window: tuple[datetime, datetime], attempt: int, export: dict[str, Any]) -> Any:
    return ChangefeedToParquetOperator(task_id="export", **export).execute(context(*window, attempt=attempt))


def _by_group(window: tuple[datetime, datetime], attempt: int, export: dict[str, Any]) -> Any:
    """Run the three tasks one after the other; what starts the job is retried with them."""
    made: dict[str, Any] = {}
    file = Path(export["path"]).with_name(f"connection-{attempt}.json")
    JobConnection(ChangefeedHook().source().describe()).save(str(file))

    def submit(job: ExportJob) -> None:
        BashOperator(task_id="submit", bash_command="set by the test")

    with DAG("dag"):
        group = changefeed_export_group(submit=submit, program_path=f"{file.parent}/program", **export)
    tasks: dict[str, Any] = {task.task_id.partition(".")[2]: task for task in group}
    own = context(*window, attempt=attempt)
    own["ti"].xcom_push = lambda *, key, value: made.update({key: value})
    own["ti"].xcom_pull = lambda task_ids, key, map_indexes: made[key]
    own["ti"].get_task_states = lambda **_: {"run": {"plan": "success"}}
    with suppress(DownstreamTasksSkipped):
        tasks["plan"].execute(own)
        # As in dags/changefeed_any_operator.py.
        tasks["submit"].bash_command = (
            f"spark-submit --master 'local[2]' --conf spark.ui.enabled=false "
            f"--py-files '{made['archive_uri']}' '{made['job_uri']}' --spec '{made['spec_uri']}' 2>/dev/null"
        )
        tasks["submit"].env = {**os.environ, "CHANGEFEED_CONNECTION_FILE": str(file)}
        with suppress(Exception):  # finish runs however it ended
            tasks["submit"].execute(own)
    return tasks["finish"].execute(own)
