# SPDX-License-Identifier: Apache-2.0
"""
What ``airflow changefeed`` offers: names and options only.

Every call of ``airflow`` imports this file, whatever the command; a command's own file is imported when it
runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_changefeed.cli.options.capture import capture_commands
from airflow_changefeed.cli.options.consumers import (
    consume_command,
    consumer_commands,
    dead_letter_commands,
    leases_command,
)
from airflow_changefeed.cli.options.cursors import cursor_commands
from airflow_changefeed.cli.options.shared import action, conn_id, option, seen, shown
from airflow_changefeed.cli.options.values import count, length, position, seconds, shard, time

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand

_CACHE_HELP = (
    "Numbers that the server keeps ready of each sequence that is made (default: 1000); 1 for servers that "
    "keep them for each session"
)
_FEED_HELP = "Name of the feed, for example myservice.MyEvent"
_KIND_HELP = "How the table is written (default: outbox)"
_TIME_HELP = "ISO 8601 with a zone, for example 2013-01-01T00:00:00Z"


def get_cli_commands() -> list[CLICommand]:
    """Return the commands, for Airflow's parser; the provider info names this function."""
    from airflow.cli.cli_config import GroupCommand

    return [
        GroupCommand(
            name="changefeed",
            help="Work with change feeds and their exports",
            subcommands=(
                _sql(),
                _install(),
                _renew_identity(),
                _setup_feed(),
                _status(),
                _seal(),
                _read(),
                _purge(),
                _verify(),
                _doctor(),
                _output(),
                cursor_commands(),
                capture_commands(),
                consumer_commands(),
                consume_command(),
                leases_command(),
                dead_letter_commands(),
            ),
        )
    ]


def _sql() -> ActionCommand:
    from airflow.cli.cli_config import ARG_VERBOSE

    return action(
        "sql",
        "install.sql",
        "Print the script that installs or upgrades changefeed in a database of SQL Server",
        "For sqlcmd, SSMS, Flyway and DbUp; harmless to repeat. Needs neither a connection nor Airflow's "
        "metadata.",
        option("--schema", help="Where the objects live (default: changefeed)", default="changefeed"),
        option("--sequence-cache", help=_CACHE_HELP, type=count, default=1000),
        option("--output-file", help="File to write to instead of standard output"),
        ARG_VERBOSE,
    )


def _install() -> ActionCommand:
    return action(
        "install",
        "install.install",
        "Install changefeed in a database, or upgrade it and all its feeds",
        "Runs what the command sql prints. Needs a member of db_owner; the embedded source needs nothing.",
        *conn_id(),
        option("--sequence-cache", help=_CACHE_HELP, type=count),
        option("--force", help="Also go back to an older version", action="store_true"),
        *shown(),
    )


def _renew_identity() -> ActionCommand:
    from airflow.cli.cli_config import ARG_YES

    return action(
        "renew-identity",
        "install.renew_identity",
        "Give a copy of a database an identity of its own",
        "Nothing of it is taken for the original's then. Shows the present identity and asks first. Needs a "
        "member of db_owner. Never run it on the original: its Variables and outputs have the old one.",
        *conn_id(),
        ARG_YES,
        *shown(),
    )


def _setup_feed() -> ActionCommand:
    return action(
        "setup-feed",
        "install.setup_feed",
        "Make a feed over a table, or bring it to this version",
        "Installs changefeed first where it is missing and the login may. Harmless to repeat; asks first "
        "where settings of a feed that is there would change.",
        option("table", help="The event table, for example myservice.MyEvent"),
        *conn_id(),
        option("--kind", help=_KIND_HELP, choices=("outbox", "serialized"), default="outbox"),
        option(
            "--shard-key-type",
            help="int (default), bigint, smallint, tinyint or uniqueidentifier",
            choices=("int", "bigint", "smallint", "tinyint", "uniqueidentifier"),
            default="int",
        ),
        option(
            "--time-tolerance",
            help="Seconds (default: 3600, of a feed that is there as it is): a time hint further in the "
            "future takes the present time",
            type=seconds,
        ),
        *seen(),
        *shown(),
    )


def _status() -> ActionCommand:
    return action(
        "status",
        "status.status",
        "Show the shards of feeds, and where their consumers stand",
        "Changes nothing. json and yaml have more than the table: ULIDs, versions, who moved a cursor.",
        *conn_id(),
        option("--feed", help="Name of one feed; all without it"),
        *shown(),
    )


def _seal() -> ActionCommand:
    return action(
        "seal",
        "status.seal",
        "Order what waits, and promise that nothing comes before a time any more",
        "Waits for locks as long as lock_timeout of the connection says.",
        *conn_id(),
        option("--feed", help=_FEED_HELP, required=True),
        option("--until", help=f"{_TIME_HELP}, exclusive (default: the database's present time)", type=time),
        *shown(),
    )


def _read() -> ActionCommand:
    return action(
        "read",
        "read.read",
        "Show events of a shard, with ULID, time and key",
        "Shows what is ordered and changes nothing, unless --drain orders what waits in the outbox.",
        *conn_id(),
        option("--feed", help=_FEED_HELP, required=True),
        option("--shard", help="Shard, a whole number or a UUID", type=shard, required=True),
        option(
            "--after",
            help="ULID to go on from, exclusive, or time to begin with (default: the start of the feed)",
            type=position,
        ),
        option("--limit", help="Events to show (default: 100)", type=count, default=100),
        option("--drain", help="Order what waits in the outbox when the feed runs out", action="store_true"),
        *shown(),
    )


def _purge() -> ActionCommand:
    from airflow.cli.cli_config import ARG_YES

    return action(
        "purge",
        "purge.purge",
        "Remove old events from a feed; its table is not touched",
        "Asks first. Never goes beyond the seal nor what every consumer has acknowledged, and says what "
        "holds it back. Ends with status 1 when the answer was no.",
        *conn_id(),
        option("--feed", help=_FEED_HELP, required=True),
        option("--before", help=f"{_TIME_HELP}, exclusive", type=time, required=True),
        option("-n", "--dry-run", help="Only say what would be removed", action="store_true"),
        ARG_YES,
        *shown(),
    )


def _verify() -> ActionCommand:
    from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE, ActionCommand, lazy_load_command

    return ActionCommand(
        name="verify",
        help="Read an export again and name everything that its manifests do not say",
        description=(
            "Read an export again, or a part of it, and compare it with its manifests. Ends with status 0 "
            "when nothing is damaged (leftovers may be), 1 when something is, 2 when it cannot be verified."
        ),
        func=lazy_load_command("airflow_changefeed.cli.commands.verify.verify"),
        args=(
            option("--path", help="Root of the export, a local path or an fsspec URL", required=True),
            option("--feed", help="Name of the feed, for example myservice.MyEvent", required=True),
            option(
                "--start",
                help="Begin, inclusive: ISO 8601 with a zone, for example 2013-01-01T00:00:00Z",
                type=time,
            ),
            option("--end", help="End, exclusive: ISO 8601 with a zone", type=time),
            option("--shard", help="Shard; may be given more than once", type=shard, action="append"),
            option(
                "--conn-id",
                "--path-conn-id",
                help="Airflow connection that of the path (aws, wasb, adls, google_cloud_platform, generic)",
            ),
            option(
                "--changefeed-conn-id",
                help="Airflow connection of the feed's database: also name units that have become stale",
            ),
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
    )


def _output() -> GroupCommand:
    from airflow.cli.cli_config import ARG_YES, GroupCommand

    remove = action(
        "remove-batches",
        "output.remove_batches",
        "Take batches out of an output of windows, so that the windows around them can be exported",
        "Shows each and asks first. Their consumers' cursors go back to before them, so windows bring every "
        "event again; refused where the feed no longer has one. Ends with status 1 when the answer was no.",
        *conn_id(),
        option("--feed", help=_FEED_HELP, required=True),
        option("--path", help="Root of the export, a local path or an fsspec URL", required=True),
        option(
            "--path-conn-id",
            help="Airflow connection that of the path (aws, wasb, adls, google_cloud_platform, generic)",
        ),
        ARG_YES,
        *shown(),
    )
    return GroupCommand(name="output", help="Mend the output of exports", subcommands=(remove,))


def _doctor() -> ActionCommand:
    return action(
        "doctor",
        "doctor.doctor",
        "Find out what is wrong with feeds, their consumers and exports, and what to do",
        "Looks for faults of the installation, the feeds, their consumers, Variables and exports, and names "
        "the remedy of each; changes nothing. Ends with status 0 when there are none but notes, 1 when there "
        "are errors or warnings, 2 when it cannot look.",
        option(
            "--conn-id",
            "--changefeed-conn-id",
            help="Airflow connection of the feeds' database (default: changefeed_default)",
            default="changefeed_default",
        ),
        option("--feed", help="Name of the feed, for example myservice.MyEvent (default: all)"),
        option("--consumer", help="Name of the consumer (default: all)"),
        option("--path", help="Root of the export, to look for missing and stale windows"),
        option(
            "--path-conn-id",
            help="Airflow connection that of the path (aws, wasb, adls, google_cloud_platform, generic)",
        ),
        option(
            "--role",
            help="Whose rights the connection should have (default: operators, as exports seal)",
            choices=("readers", "operators"),
            default="operators",
        ),
        _limit(
            "--high-water-ahead", 10, "minutes that a shard's high-water time may be ahead of the database's"
        ),
        _limit("--outbox-age", 6, "hours that a row may wait in the outbox"),
        _limit("--open-transaction", 60, "minutes that a transaction may be open"),
        _limit("--idle-consumer", 168, "hours that a consumer may hold back retention without moving"),
        *shown(),
    )


def _limit(flag: str, default: float, what: str) -> Arg:
    text = f"{what[0].upper()}{what[1:]} (default: {default:g})"
    return option(flag, help=text, type=length, default=default)
