# SPDX-License-Identifier: Apache-2.0
"""Compare a captured table with what its export gives, and mend the latter."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.values import one_of
from airflow_changefeed.exceptions import NotExportedError
from airflow_changefeed.folding.choice import NEWEST
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.hooks.changefeed_arguments import (
    check_arguments,
    check_name,
)
from airflow_changefeed.hooks.changefeed_context import reports_errors, run_name
from airflow_changefeed.hooks.changefeed_lake import current_version
from airflow_changefeed.hooks.changefeed_output import storage_options
from airflow_changefeed.hooks.changefeed_wait import WAIT_LENGTH, WAIT_TIMEOUT
from airflow_changefeed.observability.lineage import (
    Lineage,
    connection_dataset,
    output_dataset,
    table_dataset,
)
from airflow_changefeed.operators.changefeed_snapshot import ChangefeedSnapshotOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_changefeed.folding.current import CurrentOutput, CurrentVersion
    from airflow_changefeed.snapshots.reconcile import ReconcileRequest
    from airflow_changefeed.snapshots.reconciliation import Reconciliation
    from airflow_changefeed.sources.base import FeedSource

#: Name of the Spark jobs, unless the task or ``default_args`` sets one.
JOB_NAME = "changefeed-reconcile"
#: What a task does with differences that it has not repaired.
ON_DIFFERENCE = ("fail", "report")
#: How long a deferred task leaves the export alone.
_PAUSE = timedelta(minutes=1)


class ChangefeedReconcileOperator(ChangefeedSnapshotOperator):
    """
    Compare a captured table with what its export gives, row by row and value by value, while others write.

    The table is read once, as for a snapshot, and compared with the fold of the export at the time at which
    the reading ended. Changes that are not folded yet, or not exported, are no differences: the task waits
    until the export reaches that time.

    The report, ``<output_path>/_changefeed/<table>/reconciles/<time>.<token>.json``, counts the rows that are
    missing, extra or different in the export, and names the first 1,000 by their keys, with the columns that
    differ. The result (XCom) is ``{"feed", "table", "at", "base", "rows", "missing", "extra", "different",
    "equal", "repaired", "report"}``, also of a task that fails because of them.

    :param feed: the capture's name. (templated)
    :param path: root of its export in shape ``typed``, a local path or an fsspec URL. (templated)
    :param output_path: root of its states and snapshots; the report goes there, too. (templated)
    :param table: of the capture, as its spec names it; None where it has only one. (templated)
    :param base: what the export's rows start from: the ``newest`` state or snapshot; the time of a state, or
        the begin of a snapshot, ISO 8601 with a zone; or ``beginning``. ``current`` compares the table of
        :class:`~airflow_changefeed.operators.changefeed_merge.ChangefeedMergeOperator` in ``output_path``.
        (templated)
    :param catalog_conn_id: Airflow connection of the catalog of a current table of Iceberg.
    :param repair: whether what was read becomes a snapshot where anything differs, so that the next folds
        start from it. A task that has repaired does not fail.
    :param on_difference: ``fail``, or ``report``: succeed, so that a DAG can branch on the result.
    :param wait_timeout: how long to wait, deferred, until the export reaches the time to compare, a
        ``timedelta``, seconds, or a text such as ``2h``; then the task fails, and a retry within a day
        compares what was read. 0 never defers.
    :param changefeed_conn_id: Airflow connection of the feed's database. Its login may read the table.
    :param path_conn_id: Airflow connection whose extra holds the fsspec storage options of ``path`` and
        ``output_path``.
    :param parallel: ranges that Spark reads at the same time.
    :param rows_per_second: that are read at most, by all tasks together; None for no limit.
    :param local_below: rows; a table with fewer ranges is read by this task itself. It is compared on Spark.
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
            kwargs.setdefault("name", JOB_NAME)
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
        from airflow_changefeed.snapshots.reconcile import ReconcileRequest

        return ReconcileRequest(self._request(run, self.where), self.path, base, self.repair)

    @reports_errors
    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override] # Spark's operator returns none
        """Read the table, wait for the export, and compare."""
        from airflow_changefeed.export.job_connection import JobConnection
        from airflow_changefeed.snapshots.reconcile import reconcile
        from airflow_changefeed.snapshots.reconciliation import Comparison

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
