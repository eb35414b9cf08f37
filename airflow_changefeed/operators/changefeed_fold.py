# SPDX-License-Identifier: Apache-2.0
"""Fold a capture's export into the table it was captured from, and write that as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.times import format_time
from airflow_changefeed.folding.choice import NEWEST, base_text, parse_base
from airflow_changefeed.hooks.changefeed_arguments import check_arguments, check_name, parse_at
from airflow_changefeed.hooks.changefeed_context import reports_errors, run_name, window_end
from airflow_changefeed.hooks.changefeed_output import storage_options
from airflow_changefeed.hooks.changefeed_submit import (
    TEMPLATED,
    ChangefeedSparkOperator,
    take_own,
)
from airflow_changefeed.observability.lineage import Lineage, ReportsLineage, columns_of, output_dataset

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_changefeed.folding.states import State

#: Name of the Spark job, unless the task or ``default_args`` sets one.
JOB_NAME = "changefeed-fold"


class ChangefeedFoldOperator(ReportsLineage, ChangefeedSparkOperator):
    """
    Write the state that a captured table had at a time, folded from the export of its capture.

    The time is the task's own, else the end of the run's window: of its ``params`` (``window_start``,
    ``window_end``) where the DAG has such, else of its data interval, else of its partition. Each shard must
    be exported until then without a gap, so it runs behind the export; where another run still exports a
    window before, a retry helps. Fails at once if the events do not determine the state.

    It starts from the newest state of the output before that time, or a later snapshot
    (:class:`~airflow_changefeed.operators.changefeed_snapshot.ChangefeedSnapshotOperator`), and reads only
    the events since then. Without either, or after a gap of the capture, it reads all events since the
    capture began.

    The state of each time has a folder of its own, ``<output_path>/<table>/changefeed_at=<time>``; a retry
    replaces it as a whole, and two attempts never mix. The result (XCom) is ``{"feed", "table", "at",
    "attempt", "path", "files", "rows", "bytes"}``: ``path`` is the folder with exactly the state's files.

    :param feed: the capture's name. (templated)
    :param path: root of its export in shape ``typed``, a local path or an fsspec URL. (templated)
    :param output_path: root of where states go; other tables' and exports may share it. (templated)
    :param table: of the capture, as its spec names it; None where it has only one. (templated)
    :param at: feed time, exclusive, ISO 8601 with a zone; None for the end of the run's window. (templated)
    :param base: what to start from: the ``newest`` state or snapshot, if one exists; the time of a state, or
        the begin of a snapshot, ISO 8601 with a zone; or ``beginning`` to read all events. (templated)
    :param path_conn_id: Airflow connection whose extra holds the fsspec storage options of ``path`` and
        ``output_path``.
    :param kwargs: those of ``SparkSubmitOperator``; ``conn_id`` is the Spark connection, deploy mode client.
    """

    template_fields: Sequence[str] = ("feed", "path", "output_path", "table", "at", "base", *TEMPLATED)

    def __init__(
        self,
        *,
        feed: str,
        path: str,
        output_path: str,
        table: str | None = None,
        at: datetime | str | None = None,
        base: datetime | str = NEWEST,
        path_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        wrong = take_own(kwargs, JOB_NAME, "a fold")
        super().__init__(**kwargs)
        self.feed = feed
        self.path = path
        self.output_path = output_path
        self.table = table
        self.at = at
        self.base = base
        self.path_conn_id = path_conn_id
        self._check(wrong)

    def _check(self, wrong: Sequence[str] = ()) -> None:
        checks = [(check_name, name, getattr(self, name)) for name in ("feed", "path", "output_path")]
        if self.table is not None:
            checks.append((check_name, "table", self.table))
        check_arguments(self, *checks, (parse_at, self.at), (parse_base, self.base), problems=wrong)

    @reports_errors
    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override] # Spark's operator returns none
        """Fold at the run's time."""
        from airflow_changefeed.export.job_connection import JobConnection
        from airflow_changefeed.folding.states import State, new_attempt
        from airflow_changefeed.folding.task import FoldTask

        self._check()
        at = parse_at(self.at) or window_end(context, f"task {self.task_id!r} folds at the end of")
        # A fold reads no database.
        connection = JobConnection({}, storage_options(self.path, self.path_conn_id))
        self._check_spark()
        base = base_text(parse_base(self.base))
        task = FoldTask(
            self.feed, self.path, self.output_path, at, self.table, new_attempt(), run_name(context), base
        )
        state: State = self._run_task(context, task, connection, State)
        self.log.info(
            "Table %s at %s: %s rows in %s", state.table, state.at.isoformat(), state.rows, state.path
        )
        self.keep_lineage(lambda: self._lineage_of(state))
        result: dict[str, Any] = encode(state)
        # For later folds, and long.
        del result["base"]
        return result

    def planned_lineage(self) -> Lineage:
        """Return the export, and where states of the table go."""
        outputs = (output_dataset(self.output_path, self.table),) if self.table else ()
        return Lineage((output_dataset(self.path, self.feed),), outputs, window={"feed": self.feed})

    def _lineage_of(self, state: State) -> Lineage:
        columns = columns_of(state.base.schema if state.base else "")
        return Lineage(
            (output_dataset(self.path, self.feed),),
            (output_dataset(self.output_path, state.table, columns),),
            rows=state.rows,
            size=state.bytes,
            files=len(state.files),
            window={"feed": self.feed, "at": format_time(state.at)},
        )
