# SPDX-License-Identifier: Apache-2.0
"""Take a snapshot of a captured table while others write to it, as a base for folds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.values import LOCK_TIMEOUT, optional
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.hooks.changefeed_arguments import (
    LOCAL_BELOW,
    check_arguments,
    check_name,
)
from airflow_changefeed.hooks.changefeed_context import reports_errors, run_name
from airflow_changefeed.hooks.changefeed_output import storage_options
from airflow_changefeed.hooks.changefeed_submit import TEMPLATED, ChangefeedSparkOperator, take_own
from airflow_changefeed.observability.lineage import (
    Lineage,
    ReportsLineage,
    columns_of,
    connection_dataset,
    output_dataset,
    table_dataset,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_changefeed.export.job_connection import JobConnection
    from airflow_changefeed.folding.snapshots import Snapshot, SnapshotFiles
    from airflow_changefeed.snapshots.ranges import RangesToRead
    from airflow_changefeed.snapshots.take import SnapshotRequest
    from airflow_changefeed.sources.base import FeedSource

#: Name of the Spark job, unless the task or ``default_args`` sets one.
JOB_NAME = "changefeed-snapshot"


class ChangefeedSnapshotOperator(ReportsLineage, ChangefeedSparkOperator):
    """
    Read all rows of a captured table into Parquet while others write to it, as a base for folds.

    The feed is sealed at a time ``begin``, the table is read in ranges of its primary key, the feed is sealed
    again at ``exact_from``: folding the events since ``begin`` over the rows gives the table at every sealed
    time from ``exact_from`` on. No writer waits for it longer than for any reader.
    :class:`~airflow_changefeed.operators.changefeed_fold.ChangefeedFoldOperator` finds it where it has the
    same ``output_path``.

    Each range counts as soon as it is read. A try that is killed, and later a new run, go on where it was;
    meanwhile the events since ``begin`` are not purged, for four days after the last progress. ``airflow
    changefeed snapshot`` lists those that have begun, and gives one up.

    The result (XCom) is ``{"feed", "table", "token", "begin", "exact_from", "path", "rows", "bytes",
    "where"}``.

    :param feed: the capture's name. (templated)
    :param output_path: root of where states and snapshots go; other tables' and exports may share it.
        (templated)
    :param table: of the capture, as its spec names it; None where it has only one. (templated)
    :param changefeed_conn_id: Airflow connection of the feed's database. Its login may read the table.
    :param path_conn_id: Airflow connection whose extra holds the fsspec storage options of ``output_path``.
    :param range_rows: rows of a range, which is one statement and one file; None for 250,000, or fewer where
        ``rows_per_second`` is given.
    :param parallel: ranges that Spark reads at the same time.
    :param rows_per_second: that are read at most, by all tasks together, so that the database can breathe;
        None for no limit.
    :param local_below: rows; a table with fewer ranges is read by this task itself, one range after the
        other, which then needs neither Java nor a Spark connection. 0 for never.
    :param only_if_missing: whether nothing is read if a snapshot is there that later folds can start from; a
        DAG with it takes another one by itself after a gap.
    :param max_age: likewise, if one is there that began no longer ago, a ``timedelta``, seconds, or a text
        such as ``30d``: so that a DAG that runs each night takes one each month. None for any age.
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
        wrong = take_own(kwargs, JOB_NAME, "a snapshot")
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
        from airflow_changefeed.snapshots.take import SnapshotRequest

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
        from airflow_changefeed.export.job_connection import JobConnection
        from airflow_changefeed.snapshots.take import take_snapshot

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
            "Table %s: %s rows in %s; folds from it are exact from %s on",
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
        """Read ranges here or on Spark."""
        from airflow_changefeed.snapshots.ranges import read_here

        # All but the last range had so many rows when they were cut.
        rows = (len(wanted.numbers) - 1) * self._request("", self.where).rows
        if rows < self.local_below:
            read_here(source, files, wanted)
            return
        if self.local_below:
            self._check_spark()
        self._run_task(context, wanted, connection, None)
