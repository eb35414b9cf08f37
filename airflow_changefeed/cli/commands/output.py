# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed verify``, ``output`` and ``job-connection``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from airflow.utils.platform import getuser

from airflow_changefeed.cli.command import (
    command,
    echo,
    open_feeds,
    show_faults,
    use_stored_connections,
)
from airflow_changefeed.exceptions import visible

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from airflow_changefeed.output.store import ExportStore
    from airflow_changefeed.verify.report import Report

#: Exit status if there is damage. An export that cannot be verified exits like every failed command: it
#: need not be damaged.
DAMAGED = 1


@command
def verify(args: Namespace) -> None:
    """Verify an export; the faults go to standard output, all else to standard error."""
    report = _report(args)
    show_faults([*report.damage, *report.leftovers], args.output)
    echo(f"Feed {report.feed} in {report.path}: {report.summary}")
    if report.damage:
        raise SystemExit(DAMAGED)


def _report(args: Namespace) -> Report:
    from airflow_changefeed.hooks.changefeed import ChangefeedHook
    from airflow_changefeed.hooks.changefeed_lake import table_to_verify
    from airflow_changefeed.hooks.changefeed_output import storage_options
    from airflow_changefeed.verify.verify import verify_export

    if args.conn_id or args.path_conn_id or args.catalog_conn_id:
        use_stored_connections()
    source = ChangefeedHook(args.conn_id).source() if args.conn_id else None
    options = storage_options(args.path, args.path_conn_id)
    table = table_to_verify(args.path, args.feed, options, args.catalog_conn_id)
    return verify_export(
        args.path, args.feed, args.start, args.end, args.shard, options, source=source, table=table
    )


@command
def publish(args: Namespace) -> None:
    """Make a table hold what an export has committed."""
    from airflow_changefeed.core.plan import ExportOptions
    from airflow_changefeed.hooks.changefeed_lake import table_of_export
    from airflow_changefeed.tables.publish import publish

    store, options = _output(args)
    if args.table_format:
        wanted = ExportOptions(table_format=args.table_format, catalog_table=args.catalog_table or "")
        # Before the claim says so: a table that cannot be reached changes nothing.
        table_of_export(store, options, args.catalog_conn_id, wanted).look()
        store.become_table(wanted)
    table = table_of_export(store, options, args.catalog_conn_id)
    is_changed = publish(store, table, None, getuser())
    echo(f"{table.what} {'now holds' if is_changed else 'already held'} all that is committed")


@command
def clean(args: Namespace) -> None:
    """Remove files that a table no longer needs."""
    from airflow_changefeed.hooks.changefeed_lake import table_of_export
    from airflow_changefeed.tables.clean import clean

    store, options = _output(args)
    table = table_of_export(store, options, args.catalog_conn_id)
    removed = clean(store, table, args.keep_for)
    for path in removed:
        print(visible(path))
    echo(f"Files removed: {len(removed)}")


def _output(args: Namespace) -> tuple[ExportStore, Mapping[str, Any]]:
    """Open an export that is there."""
    from airflow_changefeed.hooks.changefeed_output import storage_options
    from airflow_changefeed.output.read import export_there
    from airflow_changefeed.output.store import ExportStore

    if args.path_conn_id or args.catalog_conn_id:
        use_stored_connections()
    options = storage_options(args.path, args.path_conn_id)
    store = ExportStore(args.path, args.feed, options)
    export_there(store)
    return store, options


@command
def job_connection(args: Namespace) -> None:
    """Print how a job reaches the feed and the output, with its secrets."""
    from airflow_changefeed.export.job_connection import JobConnection
    from airflow_changefeed.hooks.changefeed_output import storage_options

    with open_feeds(args.conn_id) as source:
        connection = JobConnection(source.describe(), storage_options(args.path, args.path_conn_id))
    sys.stdout.write(f"{connection.to_json()}\n")
