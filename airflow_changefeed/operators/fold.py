# SPDX-License-Identifier: Apache-2.0
"""Fold a capture's export into the table it comes from: as Parquet, or in Delta Lake or Iceberg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_changefeed.connections.output import lake_table, storage_options
from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.export_plan import KEEP_FOR
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import ConnectionNotUsableError
from airflow_changefeed.lake.states import NEWEST, base_text, parse_base
from airflow_changefeed.observability.lineage import (
    Dataset,
    Lineage,
    ReportsLineage,
    columns_of,
    output_dataset,
)
from airflow_changefeed.tasks.arguments import check_arguments, check_name, parse_at
from airflow_changefeed.tasks.context import reports_errors, run_name, window_end
from airflow_changefeed.tasks.submit import TEMPLATED, ChangefeedSparkOperator, take_own

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_changefeed.formats.base import LakeTable
    from airflow_changefeed.lake.current import CurrentOutput
    from airflow_changefeed.lake.merge_task import MergeRequest, MergeResult
    from airflow_changefeed.lake.states import State


#: Name of the Spark job, unless the task or ``default_args`` sets one.
FOLD_JOB_NAME = "changefeed-fold"


class ChangefeedFoldOperator(ReportsLineage, ChangefeedSparkOperator):
    """
    Write the state that a captured table had at a time, folded from the export of its capture.

    The time is the task's own; else the end of the run's window, which is given by the run's ``params``
    (``window_start``, ``window_end``) if the DAG has them, else by its data interval, else by its partition.
    Each shard must be exported until then without a gap, so the task runs after the export. If another run
    still exports an earlier window, a retry helps. The task fails at once if the events do not determine the
    state.

    The fold starts from the newest state of the output before that time, or a later snapshot
    (:class:`~airflow_changefeed.operators.snapshot.ChangefeedSnapshotOperator`), and reads only
    the events since then. Without either, or after a gap of the capture, it reads all events since the
    capture began.

    The state of each time has a folder of its own, ``<output_path>/<table>/changefeed_at=<time>``; a retry
    replaces it as a whole, and two attempts never mix. The result (XCom) is ``{"feed", "table", "at",
    "attempt", "path", "files", "rows", "bytes"}``: ``path`` is the folder with exactly the state's files.

    :param feed: the capture's name. (templated)
    :param path: root of its export in shape ``typed``, a local path or an fsspec URL. (templated)
    :param output_path: root of the states; other tables' states and exports may share it. (templated)
    :param table: table of the capture, as its spec names it; None if it has only one. (templated)
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
        wrong = take_own(kwargs, FOLD_JOB_NAME, "a fold")
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
        from airflow_changefeed.export.job_spec import JobConnection
        from airflow_changefeed.lake.fold_plan import FoldTask
        from airflow_changefeed.lake.states import State, new_attempt

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


#: Name of the Spark job, unless the task or ``default_args`` sets one.
MERGE_JOB_NAME = "changefeed-merge"


class ChangefeedMergeOperator(ReportsLineage, ChangefeedSparkOperator):
    """
    Keep a table of Delta Lake or Iceberg equal to the captured table, as of the end of the run's window.

    The table is ``<output_path>/<table>``. Its first commit begins from a snapshot or a state, or from the
    beginning of the capture. Each later commit folds the events since the last commit, on Spark, into the
    files that these events change, and replaces those files at once. The commit also moves the table's
    frontier, the time until which the table has all events. So a retry, or a second run of the same window,
    finds the events in the table and changes nothing; and of two concurrent runs only one commits.

    All events between the frontier and the time must be exported: the task runs after the export, and if
    another run still exports an earlier window, a retry helps. The task fails at once if the events do not
    determine the table, for example after a gap of the capture: take a snapshot, and pass ``base``.

    The result (XCom) is ``{"feed", "table", "at", "attempt", "path", "table_format", "catalog_table", "rows",
    "written", "written_bytes", "added", "removed", "changed"}``: ``at`` is the frontier, ``written`` and
    ``written_bytes`` are rows and size of the added files, and ``changed`` is false if the table already had
    the events.

    :param feed: the capture's name. (templated)
    :param path: root of its export in shape ``typed``, a local path or an fsspec URL. (templated)
    :param output_path: root of the table; other tables and exports may share it. (templated)
    :param table: table of the capture, as its spec names it; None if it has only one. (templated)
    :param table_format: ``delta`` or ``iceberg``. For plain Parquet use
        :class:`~airflow_changefeed.operators.fold.ChangefeedFoldOperator`.
    :param catalog_table: name of the Iceberg table in its catalog, ``namespace.table``.
    :param catalog_conn_id: Airflow connection of the Iceberg catalog, as for an export.
    :param at: feed time, exclusive, ISO 8601 with a zone; None for the end of the run's window. (templated)
    :param base: what the first commit begins from: the ``newest`` state or snapshot, if one exists; the time
        of a state, or the begin of a snapshot, ISO 8601 with a zone; or ``beginning``. With a base other than
        ``newest``, an existing table is replaced as a whole, in one commit. (templated)
    :param states_path: root of states and snapshots; None for ``output_path``. (templated)
    :param deleted: ``remove`` deleted rows; or ``keep`` them, with the time in the column ``_deleted_at``,
        which is null in other rows.
    :param history: whether the table has all versions of its rows, with the times of the events that began
        and ended each version in the columns ``_valid_from`` (null if unknown) and ``_valid_to`` (null if
        current). Not with ``deleted="keep"``.
    :param keep_for: how long replaced versions can be read; the next merge then removes files that no later
        version needs.
    :param path_conn_id: Airflow connection whose extra holds the fsspec storage options of all paths.
    :param kwargs: those of ``SparkSubmitOperator``; ``conn_id`` is the Spark connection, deploy mode client.
    """

    template_fields: Sequence[str] = (
        "feed",
        "path",
        "output_path",
        "table",
        "at",
        "base",
        "states_path",
        *TEMPLATED,
    )

    def __init__(
        self,
        *,
        feed: str,
        path: str,
        output_path: str,
        table: str | None = None,
        table_format: str = "delta",
        catalog_table: str | None = None,
        catalog_conn_id: str | None = None,
        at: datetime | str | None = None,
        base: datetime | str = NEWEST,
        states_path: str | None = None,
        deleted: str = "remove",
        history: bool = False,
        keep_for: timedelta | float | str = KEEP_FOR,
        path_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        wrong = take_own(kwargs, MERGE_JOB_NAME, "a merge")
        super().__init__(**kwargs)
        self.feed = feed
        self.path = path
        self.output_path = output_path
        self.table = table
        self.table_format = table_format
        self.catalog_table = catalog_table
        self.catalog_conn_id = catalog_conn_id
        self.at = at
        self.base = base
        self.states_path = states_path
        self.deleted = deleted
        self.history = history
        self.keep_for = keep_for
        self.path_conn_id = path_conn_id
        self._check(wrong)

    def _check(self, wrong: Sequence[str] = ()) -> None:
        from airflow_changefeed.lake.merge_task import KEPT, check_deleted, check_format

        names = ["feed", "path", "output_path"]
        names += [name for name in ("table", "states_path") if getattr(self, name) is not None]
        check_arguments(
            self,
            *((check_name, name, getattr(self, name)) for name in names),
            (check_format, self.table_format, self.catalog_table),
            (parse_at, self.at),
            (parse_base, self.base),
            (check_deleted, self.deleted, self.history),
            values={"keep_for": KEPT},
            problems=wrong,
        )

    @reports_errors
    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override] # Spark's operator returns none
        """Merge until the run's time."""
        from airflow_changefeed.export.job_spec import JobConnection
        from airflow_changefeed.lake.merge import merge
        from airflow_changefeed.lake.merge_task import MergedFiles

        self._check()
        request = self._request(context)
        options = storage_options(self.output_path, self.path_conn_id)
        self._check_spark()

        # A merge reads no database.
        run = partial(self._run_task, context, connection=JobConnection({}, options), facts=MergedFiles)
        done = merge(request, options, partial(self._lake, options), run, self.log.info)
        self.log.info("Table %s at %s: %s rows in %s", done.table, done.at.isoformat(), done.rows, done.path)
        self.keep_lineage(lambda: self._lineage_of(done))
        result: dict[str, Any] = encode(done)
        # For lineage, and long.
        del result["columns"]
        return result

    def planned_lineage(self) -> Lineage:
        """Return the export and the current table."""
        return Lineage(
            (output_dataset(self.path, self.feed),),
            (self._table_dataset(self.table, {}),) if self.table else (),
            window={"feed": self.feed},
        )

    def _lineage_of(self, done: MergeResult) -> Lineage:
        window = {"feed": self.feed, "at": format_time(done.at)}
        export = output_dataset(self.path, self.feed)
        # What the merge has written; the table has more rows.
        return Lineage(
            (export,),
            (self._table_dataset(done.table, done.columns),),
            rows=done.written,
            size=done.written_bytes,
            files=done.added,
            window=window,
        )

    def _table_dataset(self, table: str, columns: Mapping[str, str]) -> Dataset:
        return output_dataset(self.output_path, table, columns, self.catalog_table or "")

    def _request(self, context: Context) -> MergeRequest:
        from airflow_changefeed.lake.merge_task import KEPT, MergeRequest

        at = parse_at(self.at)
        return MergeRequest(
            self.feed,
            self.path,
            self.output_path,
            at or window_end(context, f"task {self.task_id!r} merges until the end of"),
            run_name(context),
            self.table,
            self.table_format,
            self.catalog_table or "",
            self.base,
            self.states_path,
            self.deleted,
            is_window=at is None,
            keep_for=KEPT(self.keep_for),
            history=self.history,
        )

    def _lake(self, options: dict[str, Any], output: CurrentOutput) -> LakeTable:
        from airflow_changefeed.formats.base import CURRENT

        table = lake_table(output, output.claimed(), options, self.catalog_conn_id, CURRENT)
        if table is None:  # pragma: no cover - _check has refused it
            raise ConnectionNotUsableError(f"{self.table_format} is not a table format")
        return table
