# SPDX-License-Identifier: Apache-2.0
"""
The commands of ``airflow-changefeed capture``: names and options only.

Every ``airflow`` command imports this file; the module of a command is imported when that command runs.
"""

from __future__ import annotations

from airflow_changefeed.cli.options.shared import CONN_ID, SEEN, SHOWN, Group, Option, action, option, storage
from airflow_changefeed.cli.options.values import note

_COLUMNS = "a comma-separated list of columns, all (default), or none to record no {}"


def _guards() -> tuple[Option, Option, Option]:
    return (
        option(
            "--no-guard-table",
            help="Allow truncate and partition switch, which then leave a gap",
            action="store_true",
        ),
        option(
            "--no-guard-schema",
            help="Allow changes to captured columns that may make writers of the tables fail",
            action="store_true",
        ),
        _on_ddl("What a change of a table's columns does: pause (default), evolve"),
    )


def _on_ddl(help_: str) -> Option:
    more = "(record an added column without values at once) or refuse; other than pause needs SQL Server"
    return option("--on-ddl", help=f"{help_} {more}", choices=("pause", "evolve", "refuse"))


def _name(of: str = "the capture, for example shop.Order_changes", **more: str) -> Option:
    return option("name", help=f"Name of {of}", **more)


_ENABLE = action(
    "enable",
    "capture.enable",
    "Record the inserts, updates and deletes of tables from now on",
    "Creates triggers on the tables, an event table, and a feed on it. Safe to run again; asks for "
    "confirmation before it enables a disabled capture. On SQL Server it requires membership in "
    "db_owner, and warns about statements with an output clause, which fail on tables with triggers.",
    CONN_ID,
    option("--table", help="Table, as schema.table; may be given more than once", action="append"),
    option("--insert", help=f"Columns recorded on insert: {_COLUMNS.format('inserts')}", metavar="COLUMNS"),
    option("--update", help=f"Columns recorded on update: {_COLUMNS.format('updates')}", metavar="COLUMNS"),
    option("--delete", help=f"Columns recorded on delete: {_COLUMNS.format('deletes')}", metavar="COLUMNS"),
    option(
        "--shard",
        help="An integer, or an SQL expression on the key columns that returns one (default: 0)",
    ),
    option(
        "--name",
        help="Name of the capture, its feed and its event table (default for a single table: TABLE_changes)",
    ),
    option(
        "--shard-key-type",
        help="int (default), bigint, smallint, tinyint or uniqueidentifier",
        choices=("int", "bigint", "smallint", "tinyint", "uniqueidentifier"),
    ),
    option(
        "--key-change",
        help="What an update of the key records: only the new row (new_only, the default), or a delete "
        "of the old row and an insert of the new one (delete_insert, needed for folding)",
        choices=("new_only", "delete_insert"),
    ),
    option(
        "--keep-unchanged",
        help="Also record updates that change none of the chosen columns",
        action="store_true",
    ),
    option(
        "--session-key",
        help="Session variable whose value is recorded with each event; may be given more than once. "
        "Clear it after use: it outlives the transaction",
        action="append",
    ),
    option("--trace-key", help="Session variable with the trace context (default: traceparent), or none"),
    option(
        "--with-sequence",
        help="Number the events of each shard from 1, without gaps",
        action="store_true",
    ),
    *_guards(),
    option(
        "--not-for-replication",
        help="Leave out changes by replication agents of SQL Server; such a capture cannot be folded",
        action="store_true",
    ),
    option(
        "--snapshot",
        help="Also record the existing rows, as inserts, in short transactions",
        action="store_true",
    ),
    *storage("of the event table, which writers wait for (default: none)"),
    option("--spec", help="JSON file with these options, as printed by --dry-run; - for standard input"),
    option("-n", "--dry-run", help="Only print the capture as JSON", action="store_true"),
    *SEEN,
    *SHOWN,
)

_DISABLE = action(
    "disable",
    "capture.disable",
    "Stop recording; recorded events are kept",
    "Asks for confirmation. The feed can still be exported to its end. Changes made while the capture "
    "is disabled become a gap when it is enabled again. Exits with status 1 if you decline.",
    _name(),
    CONN_ID,
    *SEEN,
    *SHOWN,
)

_LIST = action(
    "list",
    "capture.list_captures",
    "Show all captures, how their tables have changed since, and their open gaps",
    "Changes nothing.",
    CONN_ID,
    *SHOWN,
)

_REFRESH = action(
    "refresh",
    "capture.refresh",
    "Capture the current columns of the tables",
    "Asks for confirmation. If an operation has a list of columns, only dropped columns are removed "
    "from it. Events that are already recorded do not change. Exits with status 1 if you decline.",
    _name(),
    CONN_ID,
    option(
        "--without",
        help="Column to stop capturing, so that it can be dropped or its type changed; may be given "
        "more than once",
        action="append",
    ),
    _on_ddl("Another policy for changes of columns (default: the present one): pause, evolve"),
    *SEEN,
    *SHOWN,
)

_CHECK = action(
    "check",
    "capture.check",
    "Check for changes that were not recorded, as each seal does, and show the open gaps",
    "Exits with status 1 if there is an open gap: the feed cannot be sealed until somebody resolves it.",
    _name(nargs="?", of="one capture (default: all)"),
    CONN_ID,
    *SHOWN,
)

_RESOLVE = action(
    "resolve",
    "capture.resolve",
    "Close the open gaps of a capture, so that its feed can be sealed again",
    "Shows the gaps and asks for confirmation. Exits with status 1 if you decline.",
    _name(),
    CONN_ID,
    option("--note", help="What was done about the gaps; kept with them", type=note, required=True),
    option(
        "--resync",
        help="Record a reset and all rows of each affected table (of every table if no gap is open), so "
        "that folds are correct from then on",
        action="store_true",
    ),
    *SEEN,
    *SHOWN,
)

_GAPS = action(
    "gaps",
    "capture.gaps",
    "Show all gaps, open and resolved, and how they were resolved",
    "Changes nothing. To search for new gaps use check.",
    _name(nargs="?", of="one capture (default: all)"),
    CONN_ID,
    *SHOWN,
)

CAPTURE = Group(
    name="capture",
    help="Record the changes of any table, in its writers' transactions",
    commands=(
        _ENABLE,
        _DISABLE,
        _LIST,
        _REFRESH,
        _CHECK,
        _RESOLVE,
        _GAPS,
    ),
)
