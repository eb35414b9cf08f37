# SPDX-License-Identifier: Apache-2.0
"""
The commands of ``airflow-changefeed snapshot``, and ``reconcile``: names and options only.

Every ``airflow`` command imports this file; the module of a command is imported when that command runs.
"""

from __future__ import annotations

from airflow_changefeed.cli.options.shared import CONN_ID, SHOWN, YES, Group, Option, action, option, path
from airflow_changefeed.cli.options.values import count


def _capture() -> tuple[Option, Option]:
    return (
        option("--feed", help="Name of the capture, for example sales.Order_changes", required=True),
        option("--table", help="Table of the capture, as schema.table (default: its only one)"),
    )


def _reading() -> tuple[Option, ...]:
    return (
        option(
            "--range-rows", help="Rows of a range, one statement and one file (default: 250000)", type=count
        ),
        option(
            "--where",
            help="Part of the table: comparisons of key columns with numbers or dates, joined by and, for "
            "example 'customer_id >= 100 and customer_id < 200' (default: all rows)",
        ),
        option("--rows-per-second", help="Rows read per second at most (default: no limit)", type=count),
    )


_TAKE = action(
    "take",
    "snapshots.take",
    "Read all rows of a captured table into Parquet, as a base for folds",
    "Waits for nobody, and no writer waits for it. Run again after a failure, it continues; until then "
    "the events since its begin are not purged. Reads here, one range after the other: use "
    "ChangefeedSnapshotOperator to read with Spark.",
    *_capture(),
    CONN_ID,
    *path("Root of the states and snapshots"),
    *_reading(),
    *SHOWN,
)

RECONCILE = action(
    "reconcile",
    "snapshots.reconcile_table",
    "Compare a captured table with what its export gives, row by row",
    "Waits for nobody, and no writer waits for it. Reads the table once, and compares it with the export "
    "at that time: if the export does not reach until then yet, run it again after the next export. Runs "
    "Spark here, which needs Java. Exits with status 0 if they are equal or were repaired, 1 if they "
    "differ, 2 if they cannot be compared.",
    *_capture(),
    CONN_ID,
    *path(),
    option("--output-path", help="Root of the states, snapshots and reports", required=True),
    option(
        "--base",
        help="What the export's rows start from: newest, beginning, the time of a state, or the begin of "
        "a snapshot; current compares the table that merges keep in the output path (default: newest)",
        default="newest",
    ),
    option("--catalog-conn-id", help="Airflow connection of the catalog of a current table of Iceberg"),
    option(
        "--repair",
        help="If they differ, keep what was read as a snapshot, from which the next folds start",
        action="store_true",
    ),
    option("--master", help="Spark master (default: local[*])", default="local[*]"),
    *_reading(),
    *SHOWN,
)

_LIST = action(
    "list",
    "snapshots.list_snapshots",
    "Show the snapshots that have begun and not ended",
    "Until one expires, the events since its begin are not purged. Changes nothing.",
    CONN_ID,
    option("--feed", help="Name of the capture (default: all)"),
    *SHOWN,
)

_GIVE_UP = action(
    "give-up",
    "snapshots.give_up",
    "Give up a snapshot that has begun, so that it no longer holds back purges",
    "Shows it and asks for confirmation. What it has read is of no use any more; a task that is still "
    "reading fails. Exits with status 1 if you decline.",
    *_capture(),
    CONN_ID,
    YES,
    *SHOWN,
)

SNAPSHOT = Group(
    name="snapshot",
    help="Read captured tables while others write to them, as bases for folds",
    commands=(_TAKE, _LIST, _GIVE_UP),
)
