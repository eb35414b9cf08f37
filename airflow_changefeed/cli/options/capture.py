# SPDX-License-Identifier: Apache-2.0
"""
What ``airflow changefeed capture`` offers: names and options only.

Every call of ``airflow`` imports this file, whatever the command; the commands' own file is imported when one
of them runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_changefeed.cli.options.shared import action, conn_id, option, seen, shown

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

_COLUMNS = "columns of the table, with commas between, or all (default), or none to record no {}"


def capture_commands() -> GroupCommand:
    """Return the commands on captures."""
    from airflow.cli.cli_config import GroupCommand

    return GroupCommand(
        name="capture",
        help="Record the changes of any table, in its writers' transactions",
        subcommands=(
            *(
                _enable(),
                _disable(),
                _list(),
                _refresh(),
                _check(),
                _resolve(),
                _gaps(),
                _repair(),
                _repairs(),
            ),
        ),
    )


def _enable() -> ActionCommand:
    return action(
        "enable",
        "capture.enable",
        "Record the inserts, updates and deletes of tables from now on",
        "Makes triggers on the tables, a table of events, and a feed over it. Harmless to repeat; a capture "
        "that is disabled is enabled again, after asking. On SQL Server it needs a member of db_owner, and "
        "warns of statements with an output clause, which tables with triggers refuse.",
        *conn_id(),
        option("--table", help="Table, schema.table; may be given more than once", action="append"),
        option("--insert", help=f"What an insert records: {_COLUMNS.format('inserts')}", metavar="COLUMNS"),
        option("--update", help=f"What an update records: {_COLUMNS.format('updates')}", metavar="COLUMNS"),
        option("--delete", help=f"What a delete records: {_COLUMNS.format('deletes')}", metavar="COLUMNS"),
        option("--shard", help="A whole number, or SQL over the key columns that gives one (default: 0)"),
        option(
            "--name",
            help="Of the capture, its feed and its table of events (default: TABLE_changes, of one table)",
        ),
        option(
            "--shard-key-type",
            help="int (default), bigint, smallint, tinyint or uniqueidentifier",
            choices=("int", "bigint", "smallint", "tinyint", "uniqueidentifier"),
        ),
        option(
            "--key-change",
            help="What an update to a new key records: the new row alone (new_only, the default), or the old "
            "row as deleted and the new one as inserted (delete_insert, for those who fold)",
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
            "Whoever sets it has to clear it: it outlives the transaction",
            action="append",
        ),
        option("--trace-key", help="Session variable with the trace context (default: traceparent), or none"),
        option(
            "--with-sequence", help="Number each shard's events from 1, without a gap", action="store_true"
        ),
        *_without_guards(),
        option(
            "--snapshot",
            help="Also record the rows that are there, as inserts, in the same transaction",
            action="store_true",
        ),
        option("--spec", help="File with all of this as JSON, as --dry-run prints it; - for standard input"),
        option("-n", "--dry-run", help="Only print the capture as JSON", action="store_true"),
        *seen(),
        *shown(),
    )


def _without_guards() -> tuple[Arg, Arg]:
    return (
        option(
            "--no-guard-table",
            help="Let truncate and partition switch pass, which then leave a gap",
            action="store_true",
        ),
        option(
            "--no-guard-schema",
            help="Let changes of captured columns pass that may make the tables' writers fail",
            action="store_true",
        ),
    )


def _disable() -> ActionCommand:
    return action(
        "disable",
        "capture.disable",
        "Stop recording; what was recorded stays",
        "Asks first. The feed can be exported to its end. What changes while the capture is disabled is a "
        "gap once it is enabled again. Ends with status 1 when the answer was no.",
        _name(),
        *conn_id(),
        *seen(),
        *shown(),
    )


def _list() -> ActionCommand:
    return action(
        "list",
        "capture.list_captures",
        "Show all captures, how their tables differ by now, and their open gaps",
        "Changes nothing.",
        *conn_id(),
        *shown(),
    )


def _refresh() -> ActionCommand:
    return action(
        "refresh",
        "capture.refresh",
        "Capture the tables' present columns",
        "Asks first. Of an operation whose columns were chosen, only those that are gone are left out. "
        "Events that are recorded already keep theirs. Ends with status 1 when the answer was no.",
        _name(),
        *conn_id(),
        option(
            "--without",
            help="Column to capture no longer, so that it may be dropped or given another type; may be given "
            "more than once",
            action="append",
        ),
        *seen(),
        *shown(),
    )


def _check() -> ActionCommand:
    return action(
        "check",
        "capture.check",
        "Look whether changes passed unseen, as each seal does, and show the open gaps",
        "Ends with status 1 when there is an open gap: its feed is not sealed until a person resolves it.",
        _name(nargs="?", of="one capture; all without it"),
        *conn_id(),
        *shown(),
    )


def _resolve() -> ActionCommand:
    return action(
        "resolve",
        "capture.resolve",
        "Close the open gaps of a capture, so that its feed is sealed again",
        "Shows them and asks first. Ends with status 1 when the answer was no.",
        _name(),
        *conn_id(),
        option("--note", help="What was done about them; stays with the gaps", required=True),
        option(
            "--resync",
            help="Record a reset and all rows of each affected table, of all where no gap is open, so that "
            "folds are right from there on",
            action="store_true",
        ),
        *seen(),
        *shown(),
    )


def _gaps() -> ActionCommand:
    return action(
        "gaps",
        "capture.gaps",
        "Show all gaps there ever were, and how they were resolved",
        "Changes nothing, and looks for no new ones: check does.",
        _name(nargs="?", of="one capture; all without it"),
        *conn_id(),
        *shown(),
    )


def _repair() -> ActionCommand:
    return action(
        "repair",
        "repair.repair",
        "Show the recorded values that no export can carry, and replace them",
        "Without --value, --null, --cast or --present it only shows them, and ends with status 1 when there "
        "are any. With one it shows what would take their place, and asks. Only values that keep their "
        "events from being exported can be replaced, so nothing that was exported changes. Ends with status "
        "1 when the answer was no.",
        _name(),
        *conn_id(),
        option("--event", help="Only this event, by its number in the table of events", type=int),
        option("--column", help="Only this column of the captured tables"),
        option("--value", help="Replace by this value: text, digits of a number, or bytes in hexadecimal"),
        option("--null", help="Replace by null", action="store_true"),
        option(
            "--cast",
            help="Replace by the same value as the column's type, for example 2024 by '2024'; refused where "
            "something would be lost",
            action="store_true",
        ),
        option(
            "--present",
            help="Replace by what the captured table's row of that key holds now",
            action="store_true",
        ),
        option("--note", help="Why these values are right; stays with the repairs"),
        *seen(),
        *shown(),
    )


def _repairs() -> ActionCommand:
    return action(
        "repairs",
        "repair.list_repairs",
        "Show all recorded values that were ever replaced, by whom and why",
        "Changes nothing.",
        _name(nargs="?", of="one capture; all without it"),
        *conn_id(),
        *shown(),
    )


def _name(of: str = "the capture, for example shop.Order_changes", **more: str) -> Arg:
    return option("name", help=f"Name of {of}", **more)
