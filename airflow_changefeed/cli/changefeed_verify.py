# SPDX-License-Identifier: Apache-2.0
"""``airflow changefeed verify``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from airflow.cli.simple_table import AirflowConsole
from airflow.utils.cli import suppress_logs_and_warning
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from rich.markup import escape

from airflow_changefeed.exceptions import ChangefeedError

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_changefeed.export.findings import Finding, Report

DAMAGED, NOT_VERIFIED = 1, 2


@suppress_logs_and_warning
@providers_configuration_loaded
def verify(args: Namespace) -> None:
    """Verify an export; the findings go to standard output, all else to standard error."""
    try:
        report = _report(args)
    except (ChangefeedError, OSError) as problem:
        # Status 1 would say that something is damaged, where this user may only not look.
        print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
        raise SystemExit(NOT_VERIFIED) from None
    if report.findings or args.output in ("json", "yaml"):
        mapper = _whole if args.output in ("json", "yaml") else _short
        rows = [mapper(finding) for finding in [*report.damage, *report.leftovers]]
        if args.output == "table":
            rows = [{key: escape(str(value)) for key, value in row.items()} for row in rows]
        AirflowConsole().print_as(data=rows, output=args.output)
    print(f"Feed {report.feed} in {report.path}: {report.summary}", file=sys.stderr)
    if report.damage:
        raise SystemExit(DAMAGED)


def _report(args: Namespace) -> Report:
    from airflow_changefeed.export.verify import verify_export
    from airflow_changefeed.hooks.changefeed import ChangefeedHook
    from airflow_changefeed.hooks.changefeed_output import storage_options

    if args.conn_id or args.changefeed_conn_id:
        # Else the task SDK, which looks connections up, finds none that are stored (as Airflow's own
        # commands do).
        os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
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
