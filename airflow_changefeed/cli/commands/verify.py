# SPDX-License-Identifier: Apache-2.0
"""``airflow changefeed verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.cli.simple_table import AirflowConsole
from rich.markup import escape

from airflow_changefeed.cli.command import command, echo, use_stored_connections

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_changefeed.verify.findings import Finding, Report

#: Exit status if there is damage. An export that cannot be verified exits like every failed command: it
#: need not be damaged.
DAMAGED = 1


@command
def verify(args: Namespace) -> None:
    """Verify an export; the findings go to standard output, all else to standard error."""
    report = _report(args)
    if report.findings or args.output in ("json", "yaml"):
        mapper = _whole if args.output in ("json", "yaml") else _short
        rows = [mapper(finding) for finding in [*report.damage, *report.leftovers]]
        if args.output == "table":
            rows = [{key: escape(str(value)) for key, value in row.items()} for row in rows]
        AirflowConsole().print_as(data=rows, output=args.output)
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


def _whole(finding: Finding) -> dict[str, Any]:
    return finding.to_dict()


def _short(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "damage": "yes" if finding.is_damage else "no",
        "message": finding.message,
    }
