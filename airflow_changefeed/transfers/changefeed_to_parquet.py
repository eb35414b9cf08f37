# SPDX-License-Identifier: Apache-2.0
"""Export a feed to Parquet through Spark, or here if it is small: seal, plan, write, manifest, cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from airflow_changefeed.assets.changefeed import emit, export_alias
from airflow_changefeed.exceptions import (
    ChangefeedError,
    InvalidArgumentError,
    InvalidWindowError,
    TransientError,
)
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.hooks.changefeed_arguments import (
    BATCH,
    check_arguments,
    check_consumer_name,
    check_lock_timeout,
    check_mode,
    check_name,
    check_rows,
    check_window,
    parse_options,
    parse_shards,
    parse_unit,
    parse_wait_timeout,
    with_shape,
)
from airflow_changefeed.hooks.changefeed_context import (
    airflow_errors,
    check_no_window_asked,
    run_name,
    run_window,
)
from airflow_changefeed.hooks.changefeed_output import storage_options
from airflow_changefeed.hooks.changefeed_submit import (
    TEMPLATED,
    ChangefeedSparkOperator,
    job_folder,
    take_own,
)
from airflow_changefeed.hooks.changefeed_wait import WAIT_TIMEOUT, WaitsForWindow

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from airflow.sdk import Context

    from airflow_changefeed.core.feed import Shard
    from airflow_changefeed.core.plan import ExportOptions, Plan
    from airflow_changefeed.core.ulid import UlidRange
    from airflow_changefeed.core.window import Window
    from airflow_changefeed.export.job_connection import JobConnection
    from airflow_changefeed.export.result import ExportResult
    from airflow_changefeed.output.store import ExportStore
    from airflow_changefeed.sources.base import FeedSource

#: Name of the Spark job, unless the task or ``default_args`` sets one.
JOB_NAME = "changefeed-export"


class ChangefeedToParquetOperator(WaitsForWindow, ChangefeedSparkOperator):
    """
    Export the events of a feed to Parquet files, in complete windows.

    The run's window is sealed, cut into units, read and written by one Spark job, committed unit by unit, and
    only then the consumer's cursors move: killed and retried at any point, the result is the same. A window
    without events is committed without Spark. The window is the task's own, else that of the run's ``params``
    (``window_start``, ``window_end``) where the DAG has such, else its data interval, else its partition by
    the DAG's ``CronPartitionTimetable``; a run without any is refused.
    A window that has not ended by the database's clock is waited for.

    With ``mode="batch"`` a run exports everything after the consumer's cursor instead, whatever its interval.

    The result (XCom) is ``{"feed", "attempt", "units", "rows", "bytes", "windows", "manifests", "cursors"}``;
    ``windows`` is empty for a batch. What was committed is reported in an event of the asset
    ``changefeed_asset(feed, path)``, see :class:`~airflow_changefeed.export.completed.CompletedExport`.

    :param feed: name of the feed, the table's. (templated)
    :param path: root of the output, a local path or an fsspec URL that worker and executors reach.
        (templated)
    :param consumer: whose cursors move; exports that belong together share the name. (templated)
    :param changefeed_conn_id: Airflow connection of the feed's database.
    :param path_conn_id: Airflow connection whose extra holds the fsspec storage options of ``path``.
    :param shards: shards to export; None for all that ever had an event. (templated)
    :param mode: ``window`` or ``batch``. Windows and batches each have an output and a consumer of their own.
    :param unit: length of an export unit, which the window must be a multiple of; None makes the window one
        unit. All runs into one output use the same. A template gives ISO 8601 (``PT1H``), ``01:00:00``, or
        seconds. (templated)
    :param window_start: inclusive, ISO 8601 with a zone. (templated)
    :param window_end: exclusive, likewise. (templated)
    :param wait_timeout: how long to wait for the window's end, a ``timedelta`` or seconds: up to a minute in
        the task, longer deferred. A window that ends later is refused at once. 0 never defers.
    :param options: how files are written: an ``ExportOptions``, or a dict of its arguments, for example
        ``{"compression": "gzip"}``. (templated)
    :param lock_timeout: seconds to wait for another writer; None takes the connection's.
    :param local_below: rows; a plan with fewer is written by this task itself, which then needs neither Java
        nor a Spark connection. 0 for never.
    :param shape: of a capture's events: ``typed``, ``envelope``, ``hasura`` or ``debezium``. Becomes one of
        ``options``. (templated)
    :param kwargs: those of ``SparkSubmitOperator``. ``conn_id`` is the Spark connection: of type ``spark``,
        deploy mode client, or of type ``spark_connect``, where of these arguments only ``conf`` counts.
    """

    template_fields: Sequence[str] = (
        "feed",
        "path",
        "consumer",
        "window_start",
        "window_end",
        "shards",
        "unit",
        "options",
        *TEMPLATED,
    )

    def __init__(
        self,
        *,
        feed: str,
        path: str,
        consumer: str,
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        path_conn_id: str | None = None,
        mode: str = "window",
        shards: Sequence[Shard | str] | None = None,
        unit: timedelta | str | None = None,
        window_start: datetime | str | None = None,
        window_end: datetime | str | None = None,
        wait_timeout: timedelta | float = WAIT_TIMEOUT,
        options: ExportOptions | Mapping[str, Any] | None = None,
        shape: str | None = None,
        lock_timeout: float | None = None,
        local_below: int = 0,
        **kwargs: Any,
    ) -> None:
        wrong = [
            f"{name} cannot be given: an export runs a job of its own" for name in take_own(kwargs, JOB_NAME)
        ]
        super().__init__(**kwargs)
        self.outlets = [*self.outlets, export_alias()]
        self.feed = feed
        self.path = path
        self.consumer = consumer
        self.changefeed_conn_id = changefeed_conn_id
        self.path_conn_id = path_conn_id
        self.mode = mode
        self.shards = shards
        self.unit = unit
        self.window_start = window_start
        self.window_end = window_end
        self.wait_timeout = wait_timeout
        self.lock_timeout = lock_timeout
        self.local_below = local_below
        try:
            self.options = with_shape(options, shape)
        except InvalidArgumentError as problem:
            self.options = options
            wrong.append(problem.message)
        self._check(wrong)

    def _check(self, wrong: Sequence[str] = ()) -> None:
        of_windows = ("unit", "window_start", "window_end")
        check_arguments(
            self,
            (check_name, "feed", self.feed),
            (check_name, "path", self.path),
            (check_consumer_name, self.consumer),
            (check_name, "changefeed_conn_id", self.changefeed_conn_id),
            (parse_shards, self.shards),
            (parse_unit, self.unit),
            (check_window, self.window_start, self.window_end),
            (parse_wait_timeout, self.wait_timeout),
            (check_mode, self.mode, [name for name in of_windows if getattr(self, name) is not None]),
            (parse_options, self.options),
            (check_lock_timeout, self.lock_timeout),
            (check_rows, "local_below", self.local_below),
            problems=wrong,
        )

    @airflow_errors()
    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override] # Spark's operator returns none
        """Export the run's window."""
        from airflow_changefeed.cursors import cursors
        from airflow_changefeed.export.batch import batch_leases, batches_of_earlier_tries
        from airflow_changefeed.export.completed import completed_export
        from airflow_changefeed.export.job_connection import JobConnection
        from airflow_changefeed.export.planner import ExportRequest, make_plan
        from airflow_changefeed.export.result import attempts_of, summary, waiting
        from airflow_changefeed.output.attempts import forget
        from airflow_changefeed.output.store import ExportStore

        self._check()
        # Everything that can be wrong outside comes first: a refused run has changed nothing.
        hook = ChangefeedHook(self.changefeed_conn_id, lock_timeout=self.lock_timeout)
        source, variables = hook.source(), hook.variables()
        connection = JobConnection(source.describe(), storage_options(self.path, self.path_conn_id))
        if not self.local_below:
            self._check_spark()
        windows = self._windows(context, source)
        cursors.resolve(source, variables, self.consumer, self.feed)
        store = ExportStore(self.path, self.feed, connection.storage_options)
        request = ExportRequest(
            feed=self.feed,
            path=self.path,
            consumer=self.consumer,
            run=run_name(context),
            windows=windows,
            shards=parse_shards(self.shards),
            options=parse_options(self.options),
        )
        with ExitStack() as stack:
            leases, earlier = None, []
            if windows is None:
                request, leases = stack.enter_context(batch_leases(source, request, store))
                # A try that died after moving its cursor is retried from there, and has reported nothing.
                earlier = batches_of_earlier_tries(store, source.cursors(self.feed, self.consumer), request)
            plan = make_plan(source, store, request)
            result = self._run(context, source, plan, store, connection).after(store, earlier)
            done: dict[Shard, list[UlidRange]] = {}
            for planned in plan.units:
                done.setdefault(planned.unit.shard, []).append(planned.unit.range)
            rows = cursors.advance(
                source, variables, self.consumer, self.feed, done, by=plan.run, leases=leases
            )
            forget(store, attempts_of(result))
        for line in waiting(rows):
            self.log.warning(line)
        emit(context, self.outlets, completed_export(plan, store, result, earlier))
        shards = {manifest.unit.shard for manifest in earlier}.union(done)
        return summary(plan, store, result, windows, {row.shard: row for row in rows if row.shard in shards})

    def _windows(self, context: Context, source: FeedSource) -> list[Window] | None:
        if self.mode == BATCH:
            check_no_window_asked(context, self.task_id)
            return None
        window = run_window(context, self.window_start, self.window_end)
        if window is None:
            raise InvalidWindowError(
                f"task {self.task_id!r} exports windows, but this run has no window: trigger it with params "
                "window_start and window_end (window_params), or with a logical date where the schedule is "
                "a CronDataIntervalTimetable. To export everything after the cursor, give the task "
                "mode='batch', with a path and a consumer of its own"
            )
        # Before cutting into units: centuries of hours would not fit into memory.
        self._wait_until_ended(window, source)
        return window.cut(parse_unit(self.unit))

    def _run(
        self,
        context: Context,
        source: FeedSource,
        plan: Plan,
        store: ExportStore,
        connection: JobConnection,
    ) -> ExportResult:
        """Write and commit a plan here or on Spark, and return the attempt's result."""
        from airflow_changefeed.export.planner import check_shape
        from airflow_changefeed.export.result import ExportResult
        from airflow_changefeed.export.run import run_here
        from airflow_changefeed.export.spec import read_receipt, remove_spec, write_spec
        from airflow_changefeed.output.commit import commit_empty
        from airflow_changefeed.spark.job import run_spec
        from airflow_changefeed.version_compat import AirflowException

        done = sum(1 for planned in plan.units if planned.committed_by)
        self.log.info(
            "Feed %s: %s rows in %s units to export, attempt %s%s",
            plan.feed,
            plan.rows,
            len(plan.units) - done,
            plan.attempt,
            f"; earlier tries have committed {done} units" if done else "",
        )
        if plan.is_empty:
            # An empty unit also has the feed's columns.
            schema = check_shape(source, plan.feed, plan.options.shape)
            return ExportResult.of_commit(store, plan, commit_empty(store, plan, schema))
        if plan.rows < self.local_below:
            self.log.info(
                "%s rows are fewer than local_below=%s: written here, without Spark",
                plan.rows,
                self.local_below,
            )
            return run_here(source, store, plan, self.log.info)
        if self.local_below:
            self._check_spark()
        failure: Exception | None = None
        spec = write_spec(store, plan)
        try:
            with self._connect() as session, job_folder() as folder:
                if session is not None:
                    run_spec(lambda: session, spec, connection, self.log.info)
                else:
                    file = folder / "connection.json"
                    connection.save(str(file))
                    self._prepare("job", {"spec": spec, "connection": str(file)})
                    super().execute(context)
        except (AirflowException, ChangefeedError) as error:
            failure = error
        # From the receipt: spark-submit only knows that it failed.
        result = read_receipt(store, plan.attempt)
        remove_spec(store, plan.attempt)
        if result is None:
            raise failure or TransientError(
                f"the Spark job of plan {plan.attempt} at feed {plan.feed!r} ended without a receipt; retry"
            )
        try:
            result.raise_error()
        except Exception as error:
            raise error from failure
        return result
