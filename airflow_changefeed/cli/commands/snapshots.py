# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed snapshot`` and ``reconcile``."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from airflow.utils.platform import getuser

from airflow_changefeed.cli.command import Row, ask, command, echo, feeds_command, open_feeds, show
from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.times import format_time
from airflow_changefeed.exceptions import SnapshotError

if TYPE_CHECKING:
    from argparse import Namespace

    from pyspark.sql import SparkSession

    from airflow_changefeed.folding.current import CurrentOutput, CurrentVersion
    from airflow_changefeed.folding.snapshots import ReadRange
    from airflow_changefeed.snapshots.reconciliation import Comparison
    from airflow_changefeed.snapshots.take import SnapshotRequest
    from airflow_changefeed.sources.base import FeedSource
    from airflow_changefeed.sources.base_snapshots import SnapshotClaim

#: Exit status if the table and its export differ, and that was not repaired.
DIFFERENT = 1


@command
def take(args: Namespace) -> None:
    """Take a snapshot here, or continue with it."""
    from airflow_changefeed.hooks.changefeed_output import storage_options
    from airflow_changefeed.snapshots.ranges import read_here
    from airflow_changefeed.snapshots.take import take_snapshot

    with open_feeds(args.conn_id) as source:
        request = _reading(args, args.path)
        read = partial(read_here, source, report=_report)
        done = take_snapshot(source, request, storage_options(args.path, args.path_conn_id), read, echo)
    show([done.summary], args.output)
    echo(f"Folds of {done.table} can start from it at every time from {format_time(done.exact_from)} on")


@command
def reconcile_table(args: Namespace) -> None:
    """Compare a table with its export here."""
    from airflow_changefeed.export.job_connection import JobConnection
    from airflow_changefeed.hooks.changefeed_lake import current_version
    from airflow_changefeed.hooks.changefeed_output import storage_options
    from airflow_changefeed.snapshots.ranges import read_here
    from airflow_changefeed.snapshots.reconcile import ReconcileRequest, ReconcileTask, reconcile
    from airflow_changefeed.spark.reconcile.reconcile_job import run_comparison

    request = ReconcileRequest(_reading(args, args.output_path), args.path, args.base, args.repair)
    options = storage_options(args.path, args.path_conn_id)

    def compare(task: ReconcileTask) -> Comparison:
        return run_comparison(partial(_spark, args.master), task, JobConnection({}, options or {}), echo)

    def look(output: CurrentOutput) -> CurrentVersion:
        return current_version(output, options, args.catalog_conn_id)

    with open_feeds(args.conn_id) as source:
        read = partial(read_here, source, report=_report)
        done = reconcile(source, request, options, read, compare, echo, look)
    show([done.summary], args.output)
    echo(f"Compared {done.text}")
    if not done.equal and not done.repaired:
        raise SystemExit(DIFFERENT)


def _reading(args: Namespace, path: str) -> SnapshotRequest:
    from airflow_changefeed.snapshots.take import SnapshotRequest

    return SnapshotRequest(
        args.feed,
        args.table,
        path,
        getuser(),
        range_rows=args.range_rows,
        rows_per_second=args.rows_per_second,
        where=args.where or "",
    )


def _report(found: ReadRange) -> None:
    echo(f"Range {found.number}: {counted(found.rows, 'row')}")


def _spark(master: str) -> SparkSession:
    """Start Spark in this process."""
    from pyspark.sql import SparkSession

    from airflow_changefeed.hooks.changefeed_spark import check_java

    check_java(os.environ)
    builder = SparkSession.builder.master(master).appName("changefeed reconcile")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    return builder.getOrCreate()


@feeds_command
def list_snapshots(source: FeedSource, args: Namespace) -> None:
    """Show the snapshots that have begun."""
    found = source.snapshots(args.feed)
    show([_row(claim) for claim in found], args.output)
    echo(f"Snapshots that have begun: {len(found)}")


@feeds_command
def give_up(source: FeedSource, args: Namespace) -> None:
    """Give up a snapshot, after confirmation."""
    found = [one for one in source.snapshots(args.feed) if args.table in (None, one.table)]
    if len(found) != 1:
        tables = ", ".join(one.table for one in found)
        raise SnapshotError(
            f"feed {args.feed!r} has snapshots of {tables}: choose one with --table"
            if found
            else f"no snapshot of {args.table or 'a table'} of feed {args.feed!r} has begun; nothing to "
            "give up",
            feed=args.feed,
        )
    (claim,) = found
    if not args.yes:
        show([_row(claim)], "table", on_error=True)
        ask(f"Give up the snapshot of {claim.table}?", "Nothing was given up")
    source.end_snapshot(claim.feed, claim.table, token=claim.token)
    show([_row(claim)], args.output)
    echo(f"Gave up the snapshot of {claim.table}; it no longer holds back purges")


def _row(claim: SnapshotClaim) -> Row:
    times = {"begin": format_time(claim.begin), "expires_at": format_time(claim.expires_at)}
    return {**asdict(claim), **times}
