# SPDX-License-Identifier: Apache-2.0
"""What operators that export a feed share: their arguments, a run's window, what follows the commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_changefeed.assets.changefeed import emit, emit_windows, export_alias
from airflow_changefeed.connections.connection import without_secrets
from airflow_changefeed.connections.output import lake_table, storage_options
from airflow_changefeed.core.export_plan import BATCH
from airflow_changefeed.core.feed import counted, parse_shards
from airflow_changefeed.core.values import LOCK_TIMEOUT, Reader, optional, read_value
from airflow_changefeed.exceptions import InvalidArgumentError, InvalidWindowError, visible
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.links.changefeed import WINDOW_LINKS
from airflow_changefeed.observability import metrics
from airflow_changefeed.observability.lineage import (
    Lineage,
    ReportsLineage,
    output_dataset,
    table_dataset,
)
from airflow_changefeed.tasks.arguments import (
    check_arguments,
    check_consumer_name,
    check_mode,
    check_name,
    check_window,
    parse_options,
    parse_unit,
    with_options,
)
from airflow_changefeed.tasks.context import check_no_window_asked, run_name, run_window
from airflow_changefeed.tasks.waiting import WAIT_LENGTH, WAIT_TIMEOUT, WaitsForWindow

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from airflow.sdk import Context

    from airflow_changefeed.core.cursor import CursorRow
    from airflow_changefeed.core.export_plan import ExportOptions, Manifest, Plan
    from airflow_changefeed.core.fault import Fault
    from airflow_changefeed.core.feed import Shard
    from airflow_changefeed.core.ulid import UlidRange
    from airflow_changefeed.core.window import Window
    from airflow_changefeed.cursors.cursors import HeldLeases, VariableStore
    from airflow_changefeed.export.job_spec import JobConnection
    from airflow_changefeed.export.request import ExportRequest
    from airflow_changefeed.export.result import ExportResult
    from airflow_changefeed.formats.base import LakeTable
    from airflow_changefeed.output.store import ExportStore
    from airflow_changefeed.sources.base import FeedSource


@dataclass(frozen=True)
class ExportRun:
    """What a task opens for a run; all was checked, nothing changed. A batch has no windows."""

    source: FeedSource
    variables: VariableStore
    connection: JobConnection
    windows: list[Window] | None = None


class ConcludesExports(ReportsLineage):
    """A task that ends an export."""

    changefeed_conn_id: str


class ExportOperator(WaitsForWindow, BaseOperator):
    """
    Base of the operators that plan an export; the arguments are described with them.

    A subclass calls :meth:`_check` when it has its own arguments.
    """

    #: The templated arguments.
    template_fields: Sequence[str] = (
        "feed",
        "path",
        "consumer",
        "window_start",
        "window_end",
        "shards",
        "unit",
        "options",
    )
    mode = "window"
    operator_extra_links = WINDOW_LINKS
    calendar_task_id: str | None = None
    window_begin: datetime | None = None

    def __init__(
        self,
        *,
        path: str,
        consumer: str,
        feed: str = "",
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        path_conn_id: str | None = None,
        shards: Sequence[Shard | str] | None = None,
        unit: timedelta | str | None = None,
        window_start: datetime | str | None = None,
        window_end: datetime | str | None = None,
        wait_timeout: timedelta | float | str = WAIT_TIMEOUT,
        options: ExportOptions | Mapping[str, Any] | None = None,
        shape: str | None = None,
        table_format: str | None = None,
        catalog_table: str | None = None,
        catalog_conn_id: str | None = None,
        lock_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.feed = feed
        self.path = path
        self.consumer = consumer
        self.changefeed_conn_id = changefeed_conn_id
        self.path_conn_id = path_conn_id
        self.catalog_conn_id = catalog_conn_id
        self.shards = shards
        self.unit = unit
        self.window_start = window_start
        self.window_end = window_end
        self.wait_timeout = wait_timeout
        self.lock_timeout = lock_timeout
        self._wrong: list[str] = []
        try:
            self.options = with_options(
                options, shape=shape, table_format=table_format, catalog_table=catalog_table
            )
        except InvalidArgumentError as problem:
            self.options = options
            self._wrong.append(problem.message)

    def _check(self, *more: tuple[Any, ...], **values: Reader) -> None:
        """Check all arguments, with those of a subclass, as :func:`check_arguments`."""
        of_windows = ("unit", "window_start", "window_end")
        wrong, self._wrong = self._wrong, []
        check_arguments(
            self,
            *self._feed_checks(),
            (check_name, "path", self.path),
            (check_consumer_name, self.consumer),
            (check_name, "changefeed_conn_id", self.changefeed_conn_id),
            (read_value, "shards", self.shards, parse_shards),
            (parse_unit, self.unit),
            (check_window, self.window_start, self.window_end),
            (check_mode, self.mode, [name for name in of_windows if getattr(self, name) is not None]),
            (parse_options, self.options),
            *more,
            values={"wait_timeout": WAIT_LENGTH, "lock_timeout": optional(LOCK_TIMEOUT), **values},
            problems=wrong,
        )

    def _feed_checks(self) -> list[tuple[Any, ...]]:
        return [(check_name, "feed", self.feed)]

    def _open(self, context: Context) -> ExportRun:
        """Open what a run needs, and wait for the end of its window."""
        from airflow_changefeed.export.job_spec import JobConnection

        # Everything that can be wrong outside comes first: a refused run has changed nothing.
        hook = ChangefeedHook(self.changefeed_conn_id, lock_timeout=self.lock_timeout)
        source, variables = hook.source(), hook.variables()
        connection = JobConnection(source.describe(), storage_options(self.path, self.path_conn_id))
        self._check_launcher()
        return ExportRun(source, variables, connection, self._windows(context, source))

    def _request(self, context: Context, run: ExportRun, feed: str) -> tuple[ExportStore, ExportRequest]:
        """Check a feed's cursors, open its output, and return what is asked for."""
        from airflow_changefeed.cursors import cursors
        from airflow_changefeed.export.request import ExportRequest
        from airflow_changefeed.output.store import ExportStore

        with run.source.connected():
            cursors.resolve(run.source, run.variables, self.consumer, feed)
        request = ExportRequest(
            feed=feed,
            path=self.path,
            consumer=self.consumer,
            run=run_name(context),
            windows=run.windows,
            unit=parse_unit(self.unit),
            shards=parse_shards(self.shards),
            options=parse_options(self.options),
        )
        store = ExportStore(self.path, feed, run.connection.storage_options)
        self._check_table(run, store, request)
        return store, request

    def _check_table(self, run: ExportRun, store: ExportStore, request: ExportRequest) -> None:
        """Refuse columns that the export's table could not hold, before anything is sealed."""
        from airflow_changefeed.export.planner import check_shape
        from airflow_changefeed.output.schemas import file_schema, kept_names, respelled

        options = request.options
        table = lake_table(store, options, run.connection.storage_options, self.catalog_conn_id)
        if table is not None:
            columns = check_shape(run.source, request.feed, options.shape)
            columns = respelled(columns, kept_names(columns.names, store.column_names()))
            table.check(file_schema(columns, options.table_format), table.columns())

    def _check_launcher(self) -> None:
        """Check what starts the job, where this task does."""

    def _windows(self, context: Context, source: FeedSource) -> list[Window] | None:
        if self.mode == BATCH:
            check_no_window_asked(context, self.task_id)
            return None
        window = run_window(context, self.window_start, self.window_end)
        if window is None:
            raise InvalidWindowError(
                f"task {self.task_id!r} exports windows, but this run has no window: trigger the DAG "
                "with params window_start and window_end (window_params), or, if its schedule is a "
                "CronDataIntervalTimetable, with a logical date. To export everything after the "
                "cursor, use a ChangefeedToParquetOperator with mode='batch' and its own path and "
                "consumer"
            )
        if self.feed:
            self.window_begin = window.start
        # Before cutting into units: centuries of hours would not fit into memory.
        self._wait_until_ended(window, source)
        return window.cut(parse_unit(self.unit))

    def _log_plan(self, plan: Plan) -> None:
        done = sum(1 for planned in plan.units if planned.committed_by)
        self.log.info(
            "Feed %s: %s in %s to export%s",
            visible(plan.feed),
            counted(plan.rows, "row"),
            counted(len(plan.units) - done, "unit"),
            f"; earlier tries have committed {counted(done, 'unit')}" if done else "",
        )


def conclude(
    task: ConcludesExports,
    context: Context,
    run: ExportRun,
    store: ExportStore,
    plan: Plan,
    result: ExportResult,
    *,
    table: LakeTable | None,
    earlier: Sequence[Manifest] = (),
    leases: HeldLeases | None = None,
) -> dict[str, Any]:
    """
    Do what follows the commit: commit to the table, move the cursors, publish the Variable, forget the
    attempts, emit the event.

    :param table: that has the files of the export, besides the manifests.
    :param earlier: batches that earlier tries have committed and moved their cursors behind.
    :param leases: of a batch.
    :return: the task's result.
    """
    from airflow_changefeed.core.fault import with_conn_id
    from airflow_changefeed.cursors import cursors
    from airflow_changefeed.export.completed import completed_export
    from airflow_changefeed.export.result import attempts_of, summary, waiting
    from airflow_changefeed.formats.publish import publish
    from airflow_changefeed.output.attempts import forget

    source, variables = run.source, run.variables
    if table is not None:
        units = [*(manifest.unit for manifest in earlier), *(planned.unit for planned in plan.units)]
        if units and publish(store, table, units, plan.run):
            task.log.info("%s has the files of %s units", table.what, len(units))
    result = result.after(store, earlier)
    done: dict[Shard, list[UlidRange]] = {}
    for planned in plan.units:
        done.setdefault(planned.unit.shard, []).append(planned.unit.range)
    with source.connected():
        rows = cursors.advance(source, variables, plan.consumer, plan.feed, done, by=plan.run, leases=leases)
        forget(store, {plan.attempt, *attempts_of(result)})
        until, faults = _complete_until(source, store, plan, rows)
    for line in waiting(rows):
        task.log.warning(line)
    for fault in faults:
        task.log.warning(with_conn_id(str(fault), task.changefeed_conn_id))
    completed = completed_export(plan, store, result, earlier)
    emit(context, task.outlets, completed)
    emit_windows(context, task, plan, completed)
    metrics.exported(plan.feed, plan.consumer, result.rows, result.size, until)
    task.keep_lineage(lambda: _lineage(source, store, plan, result, until))
    shards = {manifest.unit.shard for manifest in earlier}.union(done)
    return summary(plan, store, result, {row.shard: row for row in rows if row.shard in shards})


def _complete_until(
    source: FeedSource, store: ExportStore, plan: Plan, rows: Sequence[CursorRow]
) -> tuple[datetime | None, list[Fault]]:
    """
    Return until when the feed is complete for the consumer, and what is missing: events before its
    beginning, and windows that the last look at the files missed.

    :return: no time if the feed has no shards, or could not be read.
    """
    from airflow_changefeed.core.completeness import judge, of_overview
    from airflow_changefeed.core.fault import not_checked
    from airflow_changefeed.cursors.window_grid import events_before
    from airflow_changefeed.doctor.airflow import whole_overview
    from airflow_changefeed.doctor.output import check_files, checked_fault
    from airflow_changefeed.exceptions import ChangefeedError

    if not plan.seals:
        return None, []
    until, faults = None, []
    try:
        overview = whole_overview(source, plan.feed)
        until = judge(of_overview(overview, plan.consumer, min(plan.seals.values()), rows)).complete_until
        if not plan.windows:
            return until, []
        left_out = events_before(overview, plan.consumer, plan.windows[0].length)
        if left_out is not None:
            faults.append(left_out.fault(plan.run.partition("/")[0]))
        check = next((one for one in overview.checks if one.consumer == plan.consumer), None)
        if check is not None and check.missing:
            # This run may have exported what was missing.
            check = check_files(source, store, plan.consumer, without_secrets(store.path), by=plan.run)
            faults += [checked_fault(check)] if check.missing else []
    except ChangefeedError as problem:
        # The export is complete, whatever could not be found out.
        faults.append(not_checked(f"feed {plan.feed}", str(problem), "Run doctor"))
    return until, faults


def _lineage(
    source: FeedSource, store: ExportStore, plan: Plan, result: ExportResult, frontier: datetime | None
) -> Lineage:
    """Return what an export has read and written; reads one manifest, for the columns."""
    from airflow_changefeed.core.values import format_time

    manifest = store.read(plan.units[0].unit) if plan.units else None
    planned = export_lineage(source, plan, {} if manifest is None else manifest.columns)
    return replace(
        planned,
        rows=result.rows,
        size=result.size,
        window={**planned.window, "frontier": format_time(frontier) if frontier else None},
    )


def export_lineage(source: FeedSource, plan: Plan, columns: Mapping[str, str] | None = None) -> Lineage:
    """Return what a plan reads and writes; ``columns`` of the output are None if they are not known."""
    from airflow_changefeed.core.values import format_time
    from airflow_changefeed.exceptions import CaptureNotFoundError

    feed = table_dataset(source.describe(), plan.feed)
    try:
        tables = source.capture(plan.feed).shape.tables
    except CaptureNotFoundError:
        tables = {}
    captured = [table_dataset(source.describe(), table) for table in tables]
    windows = plan.windows
    return Lineage(
        tuple({(each.namespace, each.name): each for each in (feed, *captured)}.values()),
        (output_dataset(plan.path, plan.feed, columns, plan.options.catalog_table),),
        # An event of a capture has the row in a column.
        copied_from=None if tables else feed,
        window={
            "feed": plan.feed,
            "consumer": plan.consumer,
            "windowStart": format_time(windows[0].start) if windows else None,
            "windowEnd": format_time(windows[-1].end) if windows else None,
            "sealedUntil": format_time(min(plan.seals.values())) if plan.seals else None,
        },
    )


def add_alias(task: BaseOperator) -> None:
    """Let a task emit what it has exported."""
    task.outlets = [*task.outlets, export_alias()]
