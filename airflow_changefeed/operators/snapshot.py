# SPDX-License-Identifier: Apache-2.0
"""Take a snapshot of a captured table as a base for folds; compare the table with its export."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_changefeed.connections.output import current_version, storage_options
from airflow_changefeed.core.values import LOCK_TIMEOUT, format_time, one_of, optional
from airflow_changefeed.exceptions import NotExportedError
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.lake.states import NEWEST
from airflow_changefeed.observability.lineage import (
    Lineage,
    ReportsLineage,
    columns_of,
    connection_dataset,
    output_dataset,
    table_dataset,
)
from airflow_changefeed.tasks.arguments import LOCAL_BELOW, check_arguments, check_name
from airflow_changefeed.tasks.context import reports_errors, run_name
from airflow_changefeed.tasks.submit import TEMPLATED, ChangefeedSparkOperator, take_own
from airflow_changefeed.tasks.waiting import WAIT_LENGTH, WAIT_TIMEOUT

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_changefeed.export.job_spec import JobConnection
    from airflow_changefeed.lake.current import CurrentOutput, CurrentVersion
    from airflow_changefeed.lake.reconcile import ReconcileRequest
    from airflow_changefeed.lake.reconciliation import Reconciliation
    from airflow_changefeed.lake.snapshot_ranges import RangesToRead
    from airflow_changefeed.lake.snapshots import Snapshot, SnapshotFiles
    from airflow_changefeed.lake.take_snapshot import SnapshotRequest
    from airflow_changefeed.sources.base import FeedSource


#: Name of the Spark job, unless the task or ``default_args`` sets one.
SNAPSHOT_JOB_NAME = "changefeed-snapshot"


class ChangefeedSnapshotOperator(ReportsLineage, ChangefeedSparkOperator):
    """
    Read all rows of a captured table into Parquet while others write to it, as a base for folds.

    The feed is sealed at a time ``begin``, the table is read in ranges of its primary key, and the feed is
    sealed again at ``exact_from``. Folding the events since ``begin`` over the rows gives the table at every
    sealed time from ``exact_from`` on. No writer waits for the snapshot longer than for any reader.
    :class:`~airflow_changefeed.operators.fold.ChangefeedFoldOperator` finds the snapshot if it has the same
    ``output_path``.

    Each range counts as soon as it is read. After a killed try, a retry or a new run continues where that try
    stopped. Until then the events since ``begin`` are not purged, for four days after the last progress.
    ``airflow changefeed snapshot`` lists snapshots in progress, and can give up a snapshot.

    The result (XCom) is ``{"feed", "table", "token", "begin", "exact_from", "path", "rows", "bytes",
    "where"}``.

    :param feed: the capture's name. (templated)
    :param output_path: root of states and snapshots; other tables' snapshots and exports may share it.
        (templated)
    :param table: table of the capture, as its spec names it; None if it has only one. (templated)
    :param changefeed_conn_id: Airflow connection of the feed's database. Its login must be able to read the
        table.
    :param path_conn_id: Airflow connection whose extra holds the fsspec storage options of ``output_path``.
    :param range_rows: rows of a range, which is one statement and one file; None for 250,000, or fewer if
        ``rows_per_second`` is given.
    :param parallel: ranges that Spark reads at the same time.
    :param rows_per_second: most rows that all tasks together read in a second, to limit the load of the
        database; None for no limit.
    :param local_below: rows; this task itself reads a smaller table, one range after the other, and then
        needs neither Java nor a Spark connection. 0 for never.
    :param only_if_missing: read nothing if a snapshot exists that later folds can start from. With this
        option a DAG takes another snapshot by itself after a gap.
    :param max_age: read nothing if such a snapshot began no longer ago than this, a ``timedelta``, seconds,
        or a text such as ``30d``: a DAG that runs each night then takes a snapshot each month. None for any
        age.
    :param where: a part of the table: comparisons (``=``, ``<``, ``<=``, ``>``, ``>=``) of key columns with
        whole numbers, decimals or dates (``'2024-12-31'``), joined by ``and``; only these rows are read. Only
        a fold whose ``base`` is the snapshot's begin uses it. None for all rows. (templated)
    :param lock_timeout: seconds to wait for another writer; None takes the connection's.
    :param kwargs: those of ``SparkSubmitOperator``; ``conn_id`` is the Spark connection, deploy mode client.
    """

    template_fields: Sequence[str] = ("feed", "output_path", "table", "where", *TEMPLATED)

    def __init__(
        self,
        *,
        feed: str,
        output_path: str,
        table: str | None = None,
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        path_conn_id: str | None = None,
        range_rows: int | None = None,
        parallel: int = 4,
        rows_per_second: int | None = None,
        local_below: int = 0,
        only_if_missing: bool = False,
        max_age: timedelta | float | str | None = None,
        where: str | None = None,
        lock_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        wrong = take_own(kwargs, SNAPSHOT_JOB_NAME, "a snapshot")
        super().__init__(**kwargs)
        self.feed = feed
        self.output_path = output_path
        self.table = table
        self.changefeed_conn_id = changefeed_conn_id
        self.path_conn_id = path_conn_id
        self.range_rows = range_rows
        self.parallel = parallel
        self.rows_per_second = rows_per_second
        self.local_below = local_below
        self.only_if_missing = only_if_missing
        self.max_age = max_age
        self.where = where
        self.lock_timeout = lock_timeout
        self._check(wrong)

    def _check(self, wrong: Sequence[str] = ()) -> None:
        names = ["feed", "output_path", "changefeed_conn_id", *(["table"] if self.table is not None else [])]
        check_arguments(
            self,
            *((check_name, name, getattr(self, name)) for name in names),
            (self._request, "", self.where),
            values={
                "local_below": LOCAL_BELOW,
                "lock_timeout": optional(LOCK_TIMEOUT),
            },
            problems=wrong,
        )

    def _request(self, run: str, where: str | None) -> SnapshotRequest:
        from airflow_changefeed.lake.take_snapshot import SnapshotRequest

        return SnapshotRequest(
            self.feed,
            self.table,
            self.output_path,
            run,
            self.range_rows,
            self.parallel,
            self.rows_per_second,
            self.only_if_missing,
            where or "",
            max_age=self.max_age,  # type: ignore[arg-type] # it is read there
        )

    @reports_errors
    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override] # Spark's operator returns none
        """Take the snapshot, or go on with it."""
        from airflow_changefeed.export.job_spec import JobConnection
        from airflow_changefeed.lake.take_snapshot import take_snapshot

        self._check()
        source = ChangefeedHook(self.changefeed_conn_id, lock_timeout=self.lock_timeout).source()
        options = storage_options(self.output_path, self.path_conn_id)
        connection = JobConnection(source.describe(), options)
        if not self.local_below:
            self._check_spark()

        request = self._request(run_name(context), self.where)
        read = partial(self._read, context, source, connection)
        done = take_snapshot(source, request, options, read, self.log.info)
        self.log.info(
            "Table %s: %s rows in %s; folds from this snapshot are exact from %s on",
            done.table,
            done.rows,
            done.path,
            format_time(done.exact_from),
        )
        self.keep_lineage(lambda: self._snapshot_lineage(source, done))
        return done.summary

    def planned_lineage(self) -> Lineage:
        """Return the table, or the capture where the table is not known yet, and where snapshots go."""
        table = connection_dataset(self.changefeed_conn_id, self.table or self.feed)
        outputs = (output_dataset(self.output_path, self.table),) if self.table else ()
        return Lineage((table,), outputs, window={"feed": self.feed})

    def _snapshot_lineage(self, source: FeedSource, done: Snapshot) -> Lineage:
        table = table_dataset(source.describe(), done.table)
        return Lineage(
            (table,),
            (output_dataset(self.output_path, done.table, columns_of(done.base.schema)),),
            copied_from=table,
            rows=done.rows,
            size=done.bytes,
            files=len(done.files),
            window={"feed": self.feed, "at": format_time(done.exact_from)},
        )

    def _read(
        self,
        context: Context,
        source: FeedSource,
        connection: JobConnection,
        files: SnapshotFiles,
        wanted: RangesToRead,
    ) -> None:
        from airflow_changefeed.lake.snapshot_ranges import read_here

        # All but the last range had so many rows when they were cut.
        rows = (len(wanted.numbers) - 1) * self._request("", self.where).rows
        if rows < self.local_below:
            read_here(source, files, wanted)
            return
        if self.local_below:
            self._check_spark()
        self._run_task(context, wanted, connection, None)


#: Name of the Spark jobs, unless the task or ``default_args`` sets one.
RECONCILE_JOB_NAME = "changefeed-reconcile"
#: What a task does with differences that it has not repaired.
ON_DIFFERENCE = ("fail", "report")
#: How long a deferred task leaves the export alone.
_PAUSE = timedelta(minutes=1)


class ChangefeedReconcileOperator(ChangefeedSnapshotOperator):
    """
    Compare a captured table with what its export gives, row by row and value by value, while others write.

    The table is read once, as for a snapshot, and compared with the fold of the export at the time at which
    the reading ended. Changes that are not folded or exported yet do not count as differences: the task waits
    until the export reaches that time.

    The report, ``<output_path>/_changefeed/<table>/reconciles/<time>.<token>.json``, counts the rows that are
    missing, extra or different in the export, and names the first 1,000 by their keys, with the columns that
    differ. The result (XCom) is ``{"feed", "table", "at", "base", "rows", "missing", "extra", "different",
    "equal", "repaired", "report"}``, also of a task that fails because of them.

    :param feed: the capture's name. (templated)
    :param path: root of its export in shape ``typed``, a local path or an fsspec URL. (templated)
    :param output_path: root of its states and snapshots; the report goes there, too. (templated)
    :param table: table of the capture, as its spec names it; None if it has only one. (templated)
    :param base: what the export's rows start from: the ``newest`` state or snapshot; the time of a state, or
        the begin of a snapshot, ISO 8601 with a zone; or ``beginning``. ``current`` compares the table of
        :class:`~airflow_changefeed.operators.fold.ChangefeedMergeOperator` in ``output_path``.
        (templated)
    :param catalog_conn_id: Airflow connection of the catalog of a current table of Iceberg.
    :param repair: if anything differs, keep the rows that were read as a snapshot, from which the next folds
        start. A task that has repaired does not fail.
    :param on_difference: ``fail``, or ``report``: succeed, so that a DAG can branch on the result.
    :param wait_timeout: how long to wait, deferred, until the export reaches the time to compare, a
        ``timedelta``, seconds, or a text such as ``2h``; then the task fails, and a retry within a day
        compares the rows that were read. 0 never defers.
    :param changefeed_conn_id: Airflow connection of the feed's database. Its login must be able to read the
        table.
    :param path_conn_id: Airflow connection whose extra holds the fsspec storage options of ``path`` and
        ``output_path``.
    :param parallel: ranges that Spark reads at the same time.
    :param rows_per_second: most rows that all tasks together read in a second; None for no limit.
    :param local_below: rows; this task itself reads a smaller table. The comparison runs on Spark.
    :param where: the part of the table to compare, as for a snapshot; None for all rows. (templated)
    :param lock_timeout: seconds to wait for another writer; None takes the connection's.
    :param kwargs: ``range_rows`` of a snapshot, and those of ``SparkSubmitOperator``; ``conn_id`` is its
        connection, deploy mode client.
    """

    template_fields: Sequence[str] = ("path", "base", *ChangefeedSnapshotOperator.template_fields)

    def __init__(
        self,
        *,
        feed: str,
        path: str,
        output_path: str,
        table: str | None = None,
        base: datetime | str = NEWEST,
        catalog_conn_id: str | None = None,
        repair: bool = False,
        on_difference: str = "fail",
        wait_timeout: timedelta | float | str = WAIT_TIMEOUT,
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        path_conn_id: str | None = None,
        parallel: int = 4,
        rows_per_second: int | None = None,
        local_below: int = 0,
        where: str | None = None,
        lock_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.path = path
        self.base = base
        self.catalog_conn_id = catalog_conn_id
        self.repair = repair
        self.on_difference = on_difference
        self.wait_timeout = wait_timeout
        if "name" not in (kwargs.get("default_args") or {}):
            kwargs.setdefault("name", RECONCILE_JOB_NAME)
        super().__init__(
            feed=feed,
            output_path=output_path,
            table=table,
            changefeed_conn_id=changefeed_conn_id,
            path_conn_id=path_conn_id,
            parallel=parallel,
            rows_per_second=rows_per_second,
            local_below=local_below,
            where=where,
            lock_timeout=lock_timeout,
            **kwargs,
        )

    def _check(self, wrong: Sequence[str] = ()) -> None:
        super()._check(wrong)
        check_arguments(
            self,
            (check_name, "path", self.path),
            (self._reconcile_request, "", self.base),
            values={"wait_timeout": WAIT_LENGTH, "on_difference": one_of(ON_DIFFERENCE)},
        )

    def _reconcile_request(self, run: str, base: datetime | str) -> ReconcileRequest:
        from airflow_changefeed.lake.reconcile import ReconcileRequest

        return ReconcileRequest(self._request(run, self.where), self.path, base, self.repair)

    @reports_errors
    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override] # Spark's operator returns none
        """Read the table, wait for the export, and compare."""
        from airflow_changefeed.export.job_spec import JobConnection
        from airflow_changefeed.lake.reconcile import reconcile
        from airflow_changefeed.lake.reconciliation import Comparison

        self._check()
        source = ChangefeedHook(self.changefeed_conn_id, lock_timeout=self.lock_timeout).source()
        options = storage_options(self.output_path, self.path_conn_id)
        connection = JobConnection(source.describe(), options)
        self._check_spark()

        read = partial(self._read, context, source, connection)

        def look(output: CurrentOutput) -> CurrentVersion:
            return current_version(output, options, self.catalog_conn_id)

        # A comparison reads no database.
        compare = partial(self._run_task, context, connection=JobConnection({}, options), facts=Comparison)
        request = self._reconcile_request(run_name(context), self.base)
        try:
            done = reconcile(source, request, options, read, compare, self.log.info, look)
        except NotExportedError as error:
            self._wait(error, source)
            raise
        self.log.info("Reconciled %s", done.text)
        self.keep_lineage(lambda: self._lineage_of(source, done))
        if not done.equal:
            # Airflow keeps no result of a task that fails.
            context["ti"].xcom_push(key="return_value", value=done.summary)
        if self.on_difference == "fail":
            done.check()
        return done.summary

    def planned_lineage(self) -> Lineage:
        """Return what is compared: the table, or the capture where it is not known yet, and the export."""
        table = connection_dataset(self.changefeed_conn_id, self.table or self.feed)
        return Lineage((table, output_dataset(self.path, self.feed)), window={"feed": self.feed})

    def _lineage_of(self, source: FeedSource, done: Reconciliation) -> Lineage:
        return Lineage(
            (table_dataset(source.describe(), done.table), output_dataset(self.path, self.feed)),
            window={"feed": self.feed, "at": format_time(done.at)},
        )

    def execute_complete(self, context: Context, event: object = None) -> dict[str, Any]:
        """Look again: what was read is found by its documents."""
        return self.execute(context)

    def _wait(self, error: NotExportedError, source: FeedSource) -> None:
        """Defer, if the time to compare is not too long ago."""
        at = error.facts.get("at")
        if at is None or source.now() - at + _PAUSE > WAIT_LENGTH(self.wait_timeout):
            return
        from airflow.providers.standard.triggers.temporal import DateTimeTrigger

        self.log.info("Deferring: %s", error.message)
        source.close()
        moment = datetime.fromtimestamp(time.time(), timezone.utc) + _PAUSE
        self.defer(trigger=DateTimeTrigger(moment), method_name=self.execute_complete.__name__)
