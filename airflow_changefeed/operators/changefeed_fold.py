# SPDX-License-Identifier: Apache-2.0
"""Fold a capture's export into the table it was captured from, and write that as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_changefeed.exceptions import InvalidArgumentError, InvalidWindowError, TransientError
from airflow_changefeed.hooks.changefeed_context import (
    airflow_errors,
    check_arguments,
    is_template,
    name_problems,
    parse_moment,
    run_name,
    run_window,
)
from airflow_changefeed.hooks.changefeed_job import job_folder
from airflow_changefeed.hooks.changefeed_output import storage_options
from airflow_changefeed.hooks.changefeed_submit import TEMPLATED, ChangefeedSparkOperator, take_own

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_changefeed.folding.states import State

#: Name of the Spark job, where neither the task nor ``default_args`` gives one.
JOB_NAME = "changefeed-fold"


class ChangefeedFoldOperator(ChangefeedSparkOperator):
    """
    Write the state that a captured table had at a time, folded from the export of its capture.

    The time is the task's own, else the end of the run's window: of its ``params`` (``window_start``,
    ``window_end``) where the DAG has such, else of its data interval, else of its partition. Each shard must
    be exported until then without a gap, so it runs behind the export; where another run still exports a
    window before, a retry helps. Fails at once where the events do not tell the state: the error says why.

    The state of each time has a folder of its own, ``<output_path>/<table>/changefeed_at=<time>``; a retry
    replaces it as a whole, and two attempts never mix. The result (XCom) is ``{"feed", "table", "at",
    "attempt", "path", "files", "rows", "bytes"}``: ``path`` is the folder with exactly the state's files.

    :param feed: the capture's name. (templated)
    :param path: root of its export in shape ``typed``, a local path or an fsspec URL. (templated)
    :param output_path: root of where states go; other tables' and exports may share it. (templated)
    :param table: of the capture, as its spec names it; None where it has only one. (templated)
    :param at: feed time, exclusive, ISO 8601 with a zone; None for the end of the run's window. (templated)
    :param path_conn_id: Airflow connection whose extra holds the fsspec storage options of ``path`` and
        ``output_path``.
    :param kwargs: those of ``SparkSubmitOperator``; ``conn_id`` is the Spark connection, deploy mode client.
    """

    template_fields: Sequence[str] = ("feed", "path", "output_path", "table", "at", *TEMPLATED)

    def __init__(
        self,
        *,
        feed: str,
        path: str,
        output_path: str,
        table: str | None = None,
        at: datetime | str | None = None,
        path_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        taken = take_own(kwargs, JOB_NAME)
        super().__init__(**kwargs)
        self.feed = feed
        self.path = path
        self.output_path = output_path
        self.table = table
        self.at = at
        self.path_conn_id = path_conn_id
        check_arguments(
            self,
            [*self._problems(), *(f"{name} cannot be given: a fold runs a job of its own" for name in taken)],
        )

    def _problems(self) -> list[str]:
        """List what is wrong with the arguments, but those that are not rendered yet."""
        problems = [
            *name_problems("feed", self.feed),
            *name_problems("path", self.path),
            *name_problems("output_path", self.output_path),
        ]
        if self.table is not None:
            problems += name_problems("table", self.table)
        if not is_template(self.at):
            try:
                parse_moment(self.at)
            except InvalidArgumentError as problem:
                problems.append(f"at: {problem.message}")
        return problems

    # The provider's own returns nothing.
    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override] # Spark's operator returns none
        """Fold at the run's time."""
        with airflow_errors():
            return self._fold(context).to_dict()

    def _fold(self, context: Context) -> State:
        from airflow_changefeed.export.job_connection import JobConnection
        from airflow_changefeed.folding.states import new_attempt
        from airflow_changefeed.folding.task import FoldTask

        check_arguments(self, self._problems())
        at, run = self._time(context), run_name(context)
        # A fold reads no database.
        connection = JobConnection({}, storage_options(self.path, self.path_conn_id))
        self._check_spark()
        task = FoldTask(self.feed, self.path, self.output_path, at, self.table, new_attempt(), run)
        with job_folder() as folder:
            files = {name: folder / f"{name}.json" for name in ("fold", "connection", "result")}
            files["fold"].write_text(task.to_json(), encoding="utf-8")
            connection.save(str(files["connection"]))
            self._prepare("fold_job", files)
            return self._run(context, files["result"])

    def _time(self, context: Context) -> datetime:
        at = parse_moment(self.at)
        if at is not None:
            return at
        window = run_window(context, None, None)
        if window is None:
            raise InvalidWindowError(
                f"task {self.task_id!r} folds at the end of its run's window, and this run has none: give it "
                "at=, or trigger it with a logical date, or with params window_start and window_end"
            )
        return window.end

    def _run(self, context: Context, result: Path) -> State:
        """Run the job, and return what it says of itself: spark-submit only knows that it failed."""
        from airflow.sdk.exceptions import AirflowException

        from airflow_changefeed.folding.task import FoldResult

        failure: Exception | None = None
        try:
            super().execute(context)
        except AirflowException as error:
            failure = error
        if not result.exists():
            raise failure or TransientError(f"the Spark job of task {self.task_id!r} ended without a result")
        told = FoldResult.from_json(result.read_text(encoding="utf-8"), where=str(result))
        if told.error is not None:
            raise told.error.to_error() from failure
        if failure is not None or told.state is None:
            raise failure or TransientError(f"the Spark job of task {self.task_id!r} says nothing; retry")
        self.log.info("Table %s at %s: %s rows in %s", *_words(told.state))
        return told.state


def _words(state: State) -> tuple[str, str, int, str]:
    return state.table, state.at.isoformat(), state.rows, state.path
