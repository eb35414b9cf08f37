# SPDX-License-Identifier: Apache-2.0
"""
The commands of ``airflow-changefeed``, names and options only, and its entry on every Airflow.

Every ``airflow`` command imports this file; the module of a command is imported when that command runs.

From 3.2 on, Airflow has them as ``airflow changefeed``, too.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from airflow_changefeed.cli.capture_options import (
    CAPTURE,
    JOB_CONNECTION,
    OUTPUT,
    RECONCILE,
    SNAPSHOT,
    VERIFY,
)
from airflow_changefeed.cli.consumer_options import CONSUME, CONSUMER, CURSOR, DEAD_LETTERS, LEASES
from airflow_changefeed.cli.options import (
    COMMANDS,
    CONN_ID,
    FEED_HELP,
    SEEN,
    SHOWN,
    TIME_HELP,
    VERBOSE,
    YES,
    Command,
    Group,
    Option,
    action,
    after,
    count,
    duration,
    duration_or_none,
    max_hold,
    option,
    path,
    shard,
    storage,
    time,
)

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand


_CACHE_HELP = (
    "Cache size of each new sequence (default: 1000). Use 1 on servers that keep a cache for each session"
)
_KIND_HELP = "How writers fill the table (default: outbox)"


def _limit(flag: str, default: str, what: str) -> Option:
    return option(flag, help=f"How long {what} (default: {default})", type=duration, default=default)


_SQL = action(
    "sql",
    "setup.sql",
    "Print the script that installs or upgrades changefeed in a SQL Server database",
    "Run the script with sqlcmd, SSMS, Flyway or DbUp. The script is safe to run again. This command "
    "needs no connection and no Airflow metadata database.",
    option("--schema", help="Schema of all objects (default: changefeed)", default="changefeed"),
    option("--sequence-cache", help=_CACHE_HELP, type=count, default=1000),
    option("--output-file", help="Write to this file instead of standard output"),
    VERBOSE,
)

_INSTALL = action(
    "install",
    "setup.install",
    "Install changefeed in a database, or upgrade it and all its feeds",
    "Runs the script that the sql command prints. Requires membership in db_owner. The embedded source "
    "needs no installation.",
    CONN_ID,
    option("--sequence-cache", help=_CACHE_HELP, type=count),
    option("--force", help="Allow a downgrade", action="store_true"),
    *SHOWN,
)

_RENEW_IDENTITY = action(
    "renew-identity",
    "setup.renew_identity",
    "Give a copy of a database its own identity",
    "Afterwards the copy cannot be mistaken for the original. Shows the current identity and asks for "
    "confirmation. Requires membership in db_owner. Never run this command on the original: the "
    "original's Variables and outputs carry the old identity.",
    CONN_ID,
    YES,
    *SHOWN,
)

_SETUP_FEED = action(
    "setup-feed",
    "setup.setup_feed",
    "Create a feed on a table, or upgrade an existing one",
    "Installs changefeed first if it is missing and the login has permission. Safe to run again; asks "
    "for confirmation before it changes the settings of an existing feed, which may be a capture's.",
    option("table", help="Event table, for example myservice.MyEvent, or name of a capture"),
    CONN_ID,
    option("--kind", help=_KIND_HELP, choices=("outbox", "serialized"), default="outbox"),
    option(
        "--shard-key-type",
        help="int (default), bigint, smallint, tinyint or uniqueidentifier",
        choices=("int", "bigint", "smallint", "tinyint", "uniqueidentifier"),
    ),
    option(
        "--time-tolerance",
        help="A time hint further in the future than this is replaced by the current time (default: 1h; an "
        "existing feed keeps its setting)",
        type=duration_or_none,
    ),
    option(
        "--max-hold",
        help="How long a purge keeps events for consumers and snapshots: 12h, 30d, or forever (default: "
        "forever; an existing feed keeps its setting)",
        type=max_hold,
    ),
    *storage("of the feed's log (default: page)"),
    *SEEN,
    *SHOWN,
)

_STATUS = action(
    "status",
    "status.status",
    "Show the shards of feeds and the cursors of their consumers",
    "Changes nothing. json and yaml show more than the table: ULIDs, versions, who moved a cursor. "
    "With --max-age the command shows how old each consumer's frontier is and why. It then exits with "
    "status 1 if a frontier is older, 2 if a frontier's age is unknown.",
    CONN_ID,
    option("--feed", help="Name of one feed; with --max-age also a pattern (default: all)"),
    option("--max-age", help="How old a consumer's frontier may be: 90s, 15m, 2h, 1d", type=duration),
    option("--consumer", help="With --max-age: name of the consumer (default: all)"),
    *SHOWN,
)

_SEAL = action(
    "seal",
    "status.seal",
    "Order the waiting events and seal the feed: no event can be added before a given time any more",
    "Waits for locks up to the connection's lock_timeout.",
    CONN_ID,
    option("--feed", help=FEED_HELP, required=True),
    option("--until", help=f"{TIME_HELP}, exclusive (default: the database's current time)", type=time),
    *SHOWN,
)

_READ = action(
    "read",
    "output.read",
    "Show the events of a shard, with ULID, time and key",
    "Shows ordered events and changes nothing, unless --drain is given.",
    CONN_ID,
    option("--feed", help=FEED_HELP, required=True),
    option("--shard", help="Shard, an integer or a UUID", type=shard, required=True),
    option(
        "--start",
        help="Where to begin: after a ULID, or at a time (default: the start of the feed)",
        type=after,
    ),
    option("--limit", help="Number of events to show (default: 100)", type=count, default=100),
    option(
        "--drain",
        help="Order the events waiting in the outbox once all ordered events are shown",
        action="store_true",
    ),
    *SHOWN,
)

_PURGE = action(
    "purge",
    "output.purge",
    "Remove old events from a feed; the event table is not changed",
    "Asks for confirmation. Never removes events beyond the seal. Removes an event that a consumer has "
    "not acknowledged only if the event is older than the feed's max_hold. Reports what holds the "
    "purge back, and which consumers lose events. Exits with status 1 if you decline.",
    CONN_ID,
    option("--feed", help=FEED_HELP, required=True),
    option("--before", help=f"{TIME_HELP}, exclusive", type=time, required=True),
    option("-n", "--dry-run", help="Only show what would be removed", action="store_true"),
    YES,
    *SHOWN,
)

_DOCTOR = action(
    "doctor",
    "status.doctor",
    "Check feeds, their consumers and exports, and show how to fix each problem",
    "Checks the installation, the feeds, their consumers, Variables and exports, and shows the remedy "
    "for each fault. Changes nothing. Exits with status 0 if nothing or only notes were found, 1 if "
    "errors or warnings were found, 2 if the checks cannot run.",
    CONN_ID,
    option("--feed", help=f"{FEED_HELP} (default: all)"),
    option("--consumer", help="Name of the consumer (default: all)"),
    *path("Root of the export, to report missing and stale windows too", required=False),
    option(
        "--role",
        help="Role that the connection's login should have (default: operators, because exports seal)",
        choices=("readers", "operators"),
        default="operators",
    ),
    _limit("--high-water-ahead", "10m", "a shard's high-water time may be ahead of the database's clock"),
    _limit("--outbox-age", "6h", "a row may wait in the outbox"),
    _limit("--open-transaction", "1h", "a transaction may stay open"),
    _limit("--idle-consumer", "7d", "a consumer may hold back a purge without moving"),
    *SHOWN,
)

CHANGEFEED = Group(
    name="changefeed",
    help="Work with change feeds and their exports",
    commands=(
        _SQL,
        _INSTALL,
        _RENEW_IDENTITY,
        _SETUP_FEED,
        _STATUS,
        _SEAL,
        _READ,
        _PURGE,
        VERIFY,
        _DOCTOR,
        OUTPUT,
        JOB_CONNECTION,
        CURSOR,
        CAPTURE,
        SNAPSHOT,
        RECONCILE,
        CONSUMER,
        CONSUME,
        LEASES,
        DEAD_LETTERS,
    ),
)


def get_cli_commands() -> list[CLICommand]:
    """Return the commands, for Airflow's parser; the provider info names this function."""
    return [_as_airflows(CHANGEFEED)]


def _as_airflows(entry: Command | Group) -> CLICommand:
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand, lazy_load_command

    if isinstance(entry, Group):
        return GroupCommand(entry.name, entry.help, tuple(map(_as_airflows, entry.commands)))
    return ActionCommand(
        entry.name,
        entry.help,
        lazy_load_command(f"{COMMANDS}.{entry.function}"),
        [Arg(each.flags, **each.settings) for each in entry.options],  # type: ignore[no-untyped-call]
        entry.description,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command as Airflow's own command line does; None takes the arguments of the process."""
    # Before Airflow, whose import takes longer than help should.
    parsed = parser().parse_args(arguments)
    # First: if Airflow's settings are imported before its configuration, the two import each other.
    from airflow import configuration

    if configuration.conf.get("core", "security", fallback="") == "kerberos":
        os.environ["KRB5CCNAME"] = configuration.conf.get("kerberos", "ccache")
        os.environ["KRB5_KTNAME"] = configuration.conf.get("kerberos", "keytab")
    # Results go to standard output, and so do Airflow's logs.
    root = logging.getLogger()
    for handler in root.handlers[:]:
        # That of Airflow 3.0 cannot be given another stream.
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            other = logging.StreamHandler(sys.stderr)
            other.setFormatter(handler.formatter)
            root.removeHandler(handler)
            root.addHandler(other)
    configuration.write_default_airflow_configuration_if_needed()
    module, _, name = parsed.function.rpartition(".")
    getattr(import_module(f"{COMMANDS}.{module}"), name)(parsed)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""

    def add(parent: argparse.ArgumentParser, group: Group) -> None:
        choices = parent.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
        for entry in group.commands:
            if isinstance(entry, Group):
                add(choices.add_parser(entry.name, help=entry.help, description=entry.help), entry)
                continue
            child = choices.add_parser(entry.name, help=entry.help, description=entry.description)
            for each in entry.options:
                child.add_argument(*each.flags, **each.settings)
            child.set_defaults(function=entry.function)

    whole = argparse.ArgumentParser(prog="airflow-changefeed", description=CHANGEFEED.help)
    add(whole, CHANGEFEED)
    return whole
