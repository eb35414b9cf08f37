# SPDX-License-Identifier: Apache-2.0
"""``airflow changefeed doctor``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_changefeed.cli.changefeed_command import (
    command,
    show,
    tell,
    use_stored_connections,
    with_conn_id,
)

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_changefeed.core.fault import Examination
    from airflow_changefeed.export.store import ExportStore

FAULTY = 1


@command
def doctor(args: Namespace) -> None:
    """Find out what is wrong; the faults go to standard output, all else to standard error."""
    found = _examine(args)
    rows = [fault.to_dict() for fault in found.faults]
    show([row | {"remedy": with_conn_id(row["remedy"], args)} for row in rows], args.output)
    tell(f"{args.conn_id}: {found.summary}")
    if not found.is_clean:
        raise SystemExit(FAULTY)


def _examine(args: Namespace) -> Examination:
    from airflow_changefeed.core.fault import Limits
    from airflow_changefeed.export.doctor import examine
    from airflow_changefeed.hooks.changefeed import ChangefeedHook

    use_stored_connections()
    limits = Limits(
        clock_ahead=timedelta(minutes=args.clock_ahead),
        outbox_age=timedelta(hours=args.outbox_age),
        open_transaction=timedelta(minutes=args.open_transaction),
        idle_consumer=timedelta(hours=args.idle_consumer),
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


def _store(args: Namespace, feed: str) -> ExportStore:
    from airflow_changefeed.export.store import ExportStore
    from airflow_changefeed.hooks.changefeed_output import storage_options

    return ExportStore(args.path, feed, storage_options(args.path, args.path_conn_id))
