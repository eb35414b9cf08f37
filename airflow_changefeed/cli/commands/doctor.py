# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed doctor``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow_changefeed.cli.command import (
    command,
    echo,
    show_faults,
    use_stored_connections,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_changefeed.core.fault import Examination
    from airflow_changefeed.output.store import ExportStore

FAULTY = 1


@command
def doctor(args: Namespace) -> None:
    """Find faults; they go to standard output, all else to standard error."""
    found = _with_spark(_examine(args))
    show_faults(found.faults, args.output)
    echo(f"{args.conn_id}: {found.summary}")
    echo(f"Checked: {'; '.join(found.checked)}")
    echo(f"Not checked: {'; '.join(found.left_out)}")
    if not found.is_clean:
        raise SystemExit(FAULTY)


def _examine(args: Namespace) -> Examination:
    from airflow_changefeed.core.fault import Limits
    from airflow_changefeed.doctor.doctor import examine
    from airflow_changefeed.hooks.changefeed import ChangefeedHook

    use_stored_connections()
    limits = Limits(
        high_water_ahead=args.high_water_ahead,
        outbox_age=args.outbox_age,
        open_transaction=args.open_transaction,
        idle_consumer=args.idle_consumer,
        role=args.role,
    )
    hook = ChangefeedHook(args.conn_id)
    source = hook.source()
    try:
        return examine(
            source,
            hook.variables(),
            feed=args.feed,
            consumer=args.consumer,
            open_store=None if args.path is None else lambda feed: _store(args, feed),
            limits=limits,
        )
    finally:
        source.close()


def _with_spark(found: Examination) -> Examination:
    """Add faults of Java and Spark on this machine; the tasks may run on others."""
    from airflow_changefeed.core.fault import Examination, Fault, FaultKind
    from airflow_changefeed.exceptions import SparkEnvironmentError
    from airflow_changefeed.hooks.changefeed_spark import check_java, check_pyspark

    faults, checked, left_out = list(found.faults), list(found.checked), list(found.left_out)
    here = "this machine"
    try:
        checked.append(f"Java {check_java(os.environ)} on {here}")
    except SparkEnvironmentError as problem:
        remedy = "Needed only where exports run on Spark; otherwise ignore this"
        faults.append(Fault(FaultKind.JAVA_MISSING, here, problem.message, remedy))
    try:
        version = check_pyspark(os.environ)
        if version is None:
            left_out.append(f"the version of Spark on {here} (Spark is missing, or was not installed by pip)")
        else:
            checked.append(f"pyspark and pyspark-client {version} on {here}")
    except SparkEnvironmentError as problem:
        what, _, remedy = problem.message.partition(" Run: ")
        faults.append(Fault(FaultKind.SPARK_VERSIONS_DIFFER, here, what.rstrip("."), f"Run: {remedy}"))
    return Examination.of(faults, found.facts, checked, left_out)


def _store(args: Namespace, feed: str) -> ExportStore:
    from airflow_changefeed.hooks.changefeed_output import storage_options
    from airflow_changefeed.output.store import ExportStore

    return ExportStore(args.path, feed, storage_options(args.path, args.path_conn_id))
