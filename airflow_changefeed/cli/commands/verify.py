# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_changefeed.cli.command import command, echo, show_faults, use_stored_connections

if TYPE_CHECKING:
    from argparse import Namespace

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
    from airflow_changefeed.hooks.changefeed_output import storage_options
    from airflow_changefeed.verify.verify import verify_export

    if args.conn_id or args.changefeed_conn_id:
        use_stored_connections()
    source = ChangefeedHook(args.changefeed_conn_id).source() if args.changefeed_conn_id else None
    options = storage_options(args.path, args.conn_id)
    return verify_export(args.path, args.feed, args.start, args.end, args.shard, options, source=source)
