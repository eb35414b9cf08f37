# SPDX-License-Identifier: Apache-2.0
"""
The commands of ``airflow-changefeed`` on captures, snapshots and outputs: names and options only.

Every ``airflow`` command imports this file; the module of a command is imported when that command runs.
"""

from __future__ import annotations

from airflow_changefeed.cli.options import (
    CONN_ID,
    FEED_HELP,
    OUTPUT_PATH,
    PATH_CONN_ID,
    SEEN,
    SHOWN,
    TIME_HELP,
    VERBOSE,
    YES,
    Group,
    Option,
    action,
    count,
    duration_or_none,
    note,
    option,
    path,
    shard,
    storage,
    time,
)

_COLUMNS = "a comma-separated list of columns, all (default), or none to record no {}"


def _on_ddl(help_: str) -> Option:
    more = "(record an added column without values at once) or refuse; other than pause needs SQL Server"
    return option("--on-ddl", help=f"{help_} {more}", choices=("pause", "evolve", "refuse"))


_GUARDS = (
    option(
        "--no-guard-table",
        help="Allow truncate and partition switch; each of them leaves a gap",
        action="store_true",
    ),
    option(
        "--no-guard-schema",
        help="Allow changes to captured columns, although they can make the tables' writers fail",
        action="store_true",
    ),
    _on_ddl("What happens when a table's columns change: pause (default), evolve"),
)


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
        "Clear the variable after use: its value outlives the transaction",
        action="append",
    ),
    option("--trace-key", help="Session variable with the trace context (default: traceparent), or none"),
    option(
        "--with-sequence",
        help="Number the events of each shard from 1, without gaps",
        action="store_true",
    ),
    *_GUARDS,
    option(
        "--not-for-replication",
        help="Leave out changes by replication agents of SQL Server; such a capture cannot be folded",
        action="store_true",
    ),
    option(
        "--record-rows",
        help="Also record the existing rows, as inserts, in short transactions",
        action="store_true",
    ),
    *storage("of the event table; writers wait while the server compresses (default: none)"),
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
    "Show all captures, the changes of their tables since, and their open gaps",
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
    _on_ddl("New policy for changes of columns (default: the present policy): pause, evolve"),
    *SEEN,
    *SHOWN,
)

_CHECK = action(
    "check",
    "capture.check",
    "Check for changes that were not recorded, as each seal does, and show the open gaps",
    "Exits with status 1 if there is an open gap: the feed cannot be sealed until somebody resolves the gap.",
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
    option("--note", help="What was done about the gaps; stored with the gaps", type=note, required=True),
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
    "Changes nothing. To search for new gaps, use check.",
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

_CAPTURE = (
    option("--feed", help="Name of the capture, for example sales.Order_changes", required=True),
    option("--table", help="Table of the capture, as schema.table (default: the only table)"),
)

_READING = (
    option(
        "--range-rows",
        help="Rows in a range, which is one statement and one file (default: 250000)",
        type=count,
    ),
    option(
        "--where",
        help="Part of the table: comparisons of key columns with numbers or dates, joined by and, for "
        "example 'customer_id >= 100 and customer_id < 200' (default: all rows)",
    ),
    option("--rows-per-second", help="Most rows to read in a second (default: no limit)", type=count),
)

_TAKE = action(
    "take",
    "capture.take",
    "Read all rows of a captured table into Parquet, as a base for folds",
    "Waits for no writer; a writer waits for it as for any reader. After a failure, run the same command "
    "again: it continues where it stopped. Until the snapshot ends, events since its begin are not purged. "
    "Reads one range after the other in this process; to read with Spark, use ChangefeedSnapshotOperator.",
    *_CAPTURE,
    CONN_ID,
    OUTPUT_PATH,
    PATH_CONN_ID,
    *_READING,
    *SHOWN,
)

RECONCILE = action(
    "reconcile",
    "capture.reconcile_table",
    "Compare a captured table with its export, row by row",
    "Waits for no writer; a writer waits for it as for any reader. Reads the table once, and compares the "
    "rows with the export at that time. If the export does not reach that time yet, run the command again "
    "after the next export. Runs Spark on this machine, which needs Java. Exits with status 0 if table and "
    "export are equal or were repaired, 1 if they differ, 2 if they cannot be compared.",
    *_CAPTURE,
    CONN_ID,
    *path(),
    OUTPUT_PATH,
    option(
        "--base",
        help="What the export is folded from: newest, beginning, the time of a state, or the begin of a "
        "snapshot; current compares the current table in the output path (default: newest)",
        default="newest",
    ),
    option("--catalog-conn-id", help="Airflow connection of the catalog of a current table of Iceberg"),
    option(
        "--repair",
        help="If they differ, keep the rows that were read as a snapshot; the next folds start from the "
        "snapshot",
        action="store_true",
    ),
    option("--master", help="Spark master (default: local[*])", default="local[*]"),
    *_READING,
    *SHOWN,
)

_LIST_SNAPSHOTS = action(
    "list",
    "capture.list_snapshots",
    "Show the snapshots in progress",
    "Events since the begin of a snapshot are not purged until the snapshot ends or expires. Changes "
    "nothing.",
    CONN_ID,
    option("--feed", help="Name of the capture (default: all)"),
    *SHOWN,
)

_GIVE_UP = action(
    "give-up",
    "capture.give_up",
    "Give up a snapshot in progress, so that it no longer holds back purges",
    "Shows the snapshot and asks for confirmation. The ranges that were read are discarded; a task "
    "that is still reading fails. Exits with status 1 if you decline.",
    *_CAPTURE,
    CONN_ID,
    YES,
    *SHOWN,
)

SNAPSHOT = Group(
    name="snapshot",
    help="Read captured tables while others write to them, as bases for folds",
    commands=(_TAKE, _LIST_SNAPSHOTS, _GIVE_UP),
)


_CATALOG_HELP = "Airflow connection of the catalog of an Iceberg table (iceberg, or generic)"

_OF_TABLE = (
    option("--feed", help=FEED_HELP, required=True),
    *path(),
    option("--catalog-conn-id", help=_CATALOG_HELP),
)

JOB_CONNECTION = action(
    "job-connection",
    "output.job_connection",
    "Print the connection of a job, to be stored as a secret of the cluster that runs the job",
    "For jobs that changefeed_export_group starts with another provider's operator. The output "
    "contains passwords: write it to the cluster's secret store, not to a recorded terminal.",
    CONN_ID,
    *path(),
    VERBOSE,
)

VERIFY = action(
    "verify",
    "output.verify",
    "Compare an export with its manifests and report every difference",
    "Reads an export, or a part of an export. Exits with status 0 if nothing is damaged (there may be "
    "leftovers), 1 if something is damaged, 2 if the export cannot be verified.",
    *path(),
    option("--feed", help=FEED_HELP, required=True),
    option("--start", help=f"Start, inclusive: {TIME_HELP}", type=time),
    option("--end", help="End, exclusive: ISO 8601 with a zone", type=time),
    option("--shard", help="Shard; may be given more than once", type=shard, action="append"),
    option("--catalog-conn-id", help=_CATALOG_HELP),
    option("--conn-id", help="Airflow connection of the feeds' database, to report stale units too"),
    *SHOWN,
)

_PUBLISH = action(
    "publish",
    "output.publish",
    "Make a Delta Lake or Iceberg table hold the committed units of an export",
    "Use it to restore a lost table, or to make a table of an export that began as Parquet. In the "
    "second case, first change the DAGs, wait until no export runs, and name the format. Afterwards "
    "the table holds all committed units, and nothing else.",
    *_OF_TABLE,
    option("--table-format", help="delta or iceberg, if the export has no table yet"),
    option("--catalog-table", help="Name of a new Iceberg table: namespace.table"),
    VERBOSE,
)

_CLEAN = action(
    "clean",
    "output.clean",
    "Remove files that a table of an export no longer needs",
    "Removes the files of replaced and failed attempts. Versions of the table older than --keep-for "
    "can no longer be read, except the newest version.",
    *_OF_TABLE,
    option(
        "--keep-for",
        help="How long replaced versions can be read; choose longer than the slowest reader takes "
        "(default: 7d)",
        type=duration_or_none,
        default="7d",
    ),
    VERBOSE,
)

OUTPUT = Group(name="output", help="Repair the output of exports", commands=(_PUBLISH, _CLEAN))
