# SPDX-License-Identifier: Apache-2.0
"""Export a feed to Parquet through Spark, or here if it is small: seal, plan, write, manifest, cursor."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_changefeed.connections.output import lake_table, storage_options
from airflow_changefeed.exceptions import ChangefeedError, InvalidArgumentError, TransientError
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.observability import metrics
from airflow_changefeed.observability.lineage import (
    Lineage,
    connection_dataset,
    output_dataset,
)
from airflow_changefeed.tasks.arguments import LOCAL_BELOW, check_program_path
from airflow_changefeed.tasks.context import reports_errors
from airflow_changefeed.tasks.submit import (
    TEMPLATED,
    ChangefeedSparkOperator,
    take_own,
)
from airflow_changefeed.tasks.waiting import WAIT_TIMEOUT
from airflow_changefeed.transfers.export import (
    ConcludesExports,
    ExportOperator,
    add_alias,
    conclude,
)
from airflow_changefeed.version_compat import AirflowSkipException

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from airflow.sdk import Context

    from airflow_changefeed.core.export_plan import ExportOptions, Plan
    from airflow_changefeed.core.feed import Shard
    from airflow_changefeed.core.values import Reader
    from airflow_changefeed.export.result import ExportResult
    from airflow_changefeed.output.store import ExportStore
    from airflow_changefeed.transfers.export import ExportRun

#: Name of the Spark job, unless the task or ``default_args`` sets one.
JOB_NAME = "changefeed-export"


class ChangefeedToParquetOperator(ConcludesExports, ExportOperator, ChangefeedSparkOperator):
    """
    Export the events of a feed to Parquet files, in complete windows.

    The run's window is sealed, cut into units, read and written by one Spark job, committed unit by unit, and
    only then the consumer's cursors move. A task that is killed and retried at any point gives the same
    result. A window without events is committed without Spark. The window is the task's own; else that of the
    run's ``params`` (``window_start``, ``window_end``), if the DAG has them; else the run's data interval;
    else its partition by the DAG's ``CronPartitionTimetable``. A run without a window is refused. The task
    waits for the end of the window by the database's clock.

    With ``mode="batch"`` a run exports everything after the consumer's cursor instead, whatever its interval.

    The result (XCom) is ``{"feed", "attempt", "units", "rows", "bytes", "windows", "manifests", "cursors"}``;
    ``windows`` is empty for a batch. The task reports what it has committed in an event of the asset
    ``changefeed_asset(feed, path)``; see :class:`~airflow_changefeed.export.completed.CompletedExport`.

    :param feed: name of the feed, the table's. (templated)
    :param path: root of the output, a local path or an fsspec URL that worker and executors reach.
        (templated)
    :param consumer: name of the consumer, whose cursors move; exports that belong together share the name.
        (templated)
    :param changefeed_conn_id: Airflow connection of the feed's database.
    :param path_conn_id: Airflow connection whose extra holds the fsspec storage options of ``path``.
    :param shards: shards to export; None for all that the feed has. (templated)
    :param mode: ``window`` or ``batch``. Windows and batches need different outputs and consumers.
    :param unit: length of an export unit, at whose multiples (counted from 1970 UTC) the window must begin
        and end; None makes the window one unit. Omit it for days of a time zone with summer time and for
        weeks from Monday, which never begin there. All runs into one output use the same unit. A template
        gives ISO 8601 (``PT1H``), ``01:00:00``, or seconds. (templated)
    :param window_start: inclusive, ISO 8601 with a zone. (templated)
    :param window_end: exclusive, likewise. (templated)
    :param wait_timeout: how long to wait for the window's end, a ``timedelta``, seconds, or ``2h``: up to a
        minute in the task, and longer deferred. A window that ends later is refused at once. 0 never defers.
    :param options: how files are written: an ``ExportOptions``, or a dict of its arguments, for example
        ``{"compression": "gzip"}``. (templated)
    :param lock_timeout: seconds to wait for another writer; None takes the connection's.
    :param local_below: rows; this task itself writes a plan with fewer rows, and then needs neither Java nor
        a Spark connection. 0 for never.
    :param shape: of a capture's events: ``typed``, ``envelope``, ``hasura`` or ``debezium``. Becomes one of
        ``options``. (templated)
    :param table_format: ``parquet``; or ``delta`` or ``iceberg``: the files then belong to a table, too. The
        run's windows enter the table, or are replaced there, in one commit. Becomes one of ``options``.
        (templated)
    :param catalog_table: name of the Iceberg table, ``namespace.table``. Becomes one of ``options``.
        (templated)
    :param catalog_conn_id: Airflow connection of the Iceberg catalog: of type ``iceberg``, or any other with
        pyiceberg's properties as its extra; None for what pyiceberg's configuration calls ``default``.
    :param program_path: folder or fsspec URL where the driver finds the job's program; needed in deploy mode
        cluster. Everybody who can write there can run code with the job's secrets, so writers of the output
        should not; pass ``path`` itself to accept that they can. (templated)
    :param program_conn_id: Airflow connection of ``program_path``; None takes ``path_conn_id``.
    :param kwargs: those of ``SparkSubmitOperator``. ``conn_id`` is the Spark connection: of type ``spark``,
        or of type ``spark_connect``, which uses only ``conf`` of these arguments. In deploy mode cluster
        the job reads its connection from a secret of the cluster (``airflow-changefeed job-connection``).
    """

    template_fields: Sequence[str] = (*ExportOperator.template_fields, "program_path", *TEMPLATED)

    def __init__(
        self,
        *,
        feed: str,
        path: str,
        consumer: str,
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        path_conn_id: str | None = None,
        shards: Sequence[Shard | str] | None = None,
        mode: str = "window",
        unit: timedelta | str | None = None,
        window_start: datetime | str | None = None,
        window_end: datetime | str | None = None,
        wait_timeout: timedelta | float | str = WAIT_TIMEOUT,
        options: ExportOptions | Mapping[str, Any] | None = None,
        lock_timeout: float | None = None,
        local_below: int = 0,
        shape: str | None = None,
        table_format: str | None = None,
        catalog_table: str | None = None,
        catalog_conn_id: str | None = None,
        program_path: str | None = None,
        program_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        wrong = take_own(kwargs, JOB_NAME, "an export")
        super().__init__(
            feed=feed,
            path=path,
            consumer=consumer,
            changefeed_conn_id=changefeed_conn_id,
            path_conn_id=path_conn_id,
            shards=shards,
            unit=unit,
            window_start=window_start,
            window_end=window_end,
            wait_timeout=wait_timeout,
            options=options,
            lock_timeout=lock_timeout,
            shape=shape,
            table_format=table_format,
            catalog_table=catalog_table,
            catalog_conn_id=catalog_conn_id,
            **kwargs,
        )
        add_alias(self)
        self.mode = mode
        self.local_below = local_below
        self.program_path = program_path
        self.program_conn_id = program_conn_id
        self._wrong += wrong
        self._check()

    def _check(self, *more: tuple[Any, ...], **values: Reader) -> None:
        program = (check_program_path, self.program_path, self.path)
        super()._check(program, *more, local_below=LOCAL_BELOW, **values)

    @reports_errors
    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override] # Spark's operator returns none
        """Export the run's window."""
        from airflow_changefeed.export.batch import batch_leases, batches_of_earlier_tries
        from airflow_changefeed.export.planner import make_plan

        self._check()
        run = self._open(context)
        store, request = self._request(context, run, self.feed)
        leases, earlier = None, []
        with metrics.counting_superseded(self.feed, self.consumer), ExitStack() as stack:
            if request.windows is None:
                request, leases = stack.enter_context(batch_leases(run.source, request, store))
                # A try that died after moving its cursor is retried from there, and has reported nothing.
                rows = run.source.cursors(self.feed, self.consumer)
                earlier = batches_of_earlier_tries(store, rows, request)
            plan = make_plan(run.source, store, request, partial(metrics.sealed, self.feed, self.consumer))
            result = self._run(context, run, store, plan)
            table = lake_table(store, plan.options, run.connection.storage_options, self.catalog_conn_id)
            return conclude(
                self, context, run, store, plan, result, table=table, earlier=earlier, leases=leases
            )

    def planned_lineage(self) -> Lineage:
        """Return the feed and the output."""
        feed = connection_dataset(self.changefeed_conn_id, self.feed)
        window = {"feed": self.feed, "consumer": self.consumer}
        return Lineage((feed,), (output_dataset(self.path, self.feed),), window=window)

    def _check_launcher(self) -> None:
        if not self.local_below:
            self._check_launch()

    def _run(self, context: Context, run: ExportRun, store: ExportStore, plan: Plan) -> ExportResult:
        from airflow_changefeed.export.job_spec import read_receipt, remove_spec, write_spec
        from airflow_changefeed.export.parts import run_here
        from airflow_changefeed.version_compat import AirflowException

        self._log_plan(plan)
        if not plan.is_empty and plan.rows < self.local_below:
            self.log.info(
                "%s rows are fewer than local_below=%s: written here, without Spark",
                plan.rows,
                self.local_below,
            )
        if plan.is_empty or plan.rows < self.local_below:
            return run_here(run.source, store, plan, self.log.info)
        if self.local_below:
            self._check_launch()
        failure: Exception | None = None
        spec = write_spec(store, plan)
        try:
            self._run_spec(context, spec, run.connection)
        except (AirflowException, ChangefeedError) as error:
            failure = error
        # From the receipt: spark-submit only knows that it failed.
        result = read_receipt(store, plan.attempt)
        remove_spec(store, plan.attempt)
        if result is None:
            raise failure or TransientError(
                f"the Spark job of plan {plan.attempt} at feed {plan.feed!r} ended without a receipt; retry"
            )
        result.raise_error(failure)
        return result


class ChangefeedSubmitOperator(ChangefeedSparkOperator):
    """
    Run the job of a plan by a Spark connection, ``spark`` or ``spark_connect``; part of
    :func:`changefeed_export_group`.

    :param spec_uri: what the job exports, as in an :class:`ExportJob`. (templated)
    :param tasks: tasks of Spark, as in an :class:`ExportJob`; with 0 the job is skipped. (templated)
    :param program_path: as for a ``ChangefeedToParquetOperator``. (templated)
    :param program_conn_id: Airflow connection of ``program_path``; None takes ``path_conn_id``.
    :param changefeed_conn_id: Airflow connection of the feeds' database.
    :param path_conn_id: Airflow connection of the output.
    :param kwargs: those of ``SparkSubmitOperator``.
    """

    template_fields: Sequence[str] = ("spec_uri", "tasks", "program_path", *TEMPLATED)

    def __init__(
        self,
        *,
        spec_uri: str,
        tasks: Any,
        program_path: str | None = None,
        program_conn_id: str | None = None,
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        path_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        wrong = take_own(kwargs, JOB_NAME, "an export")
        super().__init__(**kwargs)
        self.spec_uri = spec_uri
        self.tasks = tasks
        self.program_path = program_path
        self.program_conn_id = program_conn_id
        self.changefeed_conn_id = changefeed_conn_id
        self.path_conn_id = path_conn_id
        InvalidArgumentError.collect(f"{type(self).__name__} {self.task_id!r}", wrong)

    @reports_errors
    def execute(self, context: Context) -> None:
        """Run the job."""
        if not self.tasks:
            raise AirflowSkipException("no events are to be written")
        from airflow_changefeed.export.job_spec import JobConnection
        from airflow_changefeed.output.layout import parse_job, parse_spec

        source = ChangefeedHook(self.changefeed_conn_id).source()
        options = storage_options(self.spec_uri, self.path_conn_id)
        self._check_launch()
        check_program_path(self.program_path, (parse_job(self.spec_uri) or parse_spec(self.spec_uri))[0])
        connection = JobConnection(source.describe(), options)
        self._run_spec(context, self.spec_uri, connection)
