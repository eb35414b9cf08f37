# SPDX-License-Identifier: Apache-2.0
"""
What ``airflow changefeed`` offers for consumers of events: names and options only.

Every call of ``airflow`` imports this file, whatever the command; a command's own file is imported when it
runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_changefeed.cli.options.shared import action, conn_id, option, seen, shown
from airflow_changefeed.cli.options.values import (
    attempts,
    beginning,
    count,
    length,
    seconds,
    shard,
    version,
)

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

_FEED_HELP = "Name of the feed, for example myservice.MyEvent"
_HANDLER_HELP = (
    "What runs for each event, in the transaction that consumes it: package.module:function, or "
    "procedure:schema.name on SQL Server; without it events are printed"
)
_JSON_HELP = (
    'Options of the default consumer, for example \'{"with_tid": true, "poll_timeout": 2000}\'; times are '
    "milliseconds"
)


def consumer_commands() -> GroupCommand:
    """Return the commands on consumers of events."""
    from airflow.cli.cli_config import GroupCommand

    return GroupCommand(
        name="consumer",
        help="Create, change, list and drop consumers of events, and see what they tried",
        subcommands=(_create(), _alter(), _list(), _drop(), _revoke(), _log()),
    )


def dead_letter_commands() -> GroupCommand:
    """Return the commands on events that consumers parked."""
    from airflow.cli.cli_config import GroupCommand

    return GroupCommand(
        name="dead-letters",
        help="Resolve events that consumers failed at too often",
        subcommands=(_list_dead_letters(), _retry(), _drop_dead_letter()),
    )


def leases_command() -> ActionCommand:
    """Return the command that shows who consumes what."""
    return action(
        "leases",
        "consumers.leases",
        "Show who holds the shards of consumers, since when, and who waits",
        "Changes nothing. A lease that ran out is still its holder's until somebody else asks for it.",
        *conn_id(),
        _feed(),
        option("--consumer", help="Name of one consumer; all without it"),
        *shown(),
    )


def consume_command() -> ActionCommand:
    """Return the command that consumes."""
    from airflow.cli.cli_config import ARG_VERBOSE

    return action(
        "consume",
        "consume.consume",
        "Consume events: print them, or run a handler for each, until stopped",
        "Waits until no other process consumes. An event that was printed is consumed when the next one is "
        "asked for, so the last one comes again after a crash. Ends cleanly on SIGINT and SIGTERM.",
        option("name", help="The consumer"),
        *conn_id(),
        _feed(),
        option("--json", help=_JSON_HELP, dest="options"),
        option("--format", help="json (one line each, the default) or table", choices=("json", "table")),
        option("--handler", help=_HANDLER_HELP),
        option("--handler-timeout", help="Seconds that a handler may take (default: no limit)", type=length),
        option(
            "--on-poison",
            help="What to do with an event that fails too often, in this run (default: as created)",
            choices=("stop", "park"),
        ),
        option("--max-events", help="End after so many events", type=count),
        option("--at-head", help="End when all events there are have been consumed", action="store_true"),
        ARG_VERBOSE,
    )


def _create() -> ActionCommand:
    return action(
        "create",
        "consumers.create",
        "Make a consumer of a feed's events",
        "Harmless to repeat with the same settings, which leaves it where it stands. From then on no purge "
        "passes it: drop it when nobody needs it any more.",
        _name(),
        *conn_id(),
        _feed(required=True),
        option(
            "--start",
            help="Where it begins: latest (default), earliest, a time with its zone, or a ULID (exclusive)",
            type=beginning,
        ),
        *_settings(" (default: 10)", " (default)", " (default: 604800)"),
        *shown(),
    )


def _settings(attempts_: str = "", poison: str = "", log: str = "") -> tuple[Arg, Arg, Arg]:
    """Give the options of a consumer's settings, with what each is without it."""
    return (
        option(
            "--max-attempts",
            help=f"Failures of one event before --on-poison{attempts_}; none tries for ever",
            type=attempts,
        ),
        option(
            "--on-poison",
            help=f"stop{poison}, or park the event as a dead letter and go on",
            choices=("stop", "park"),
        ),
        option("--keep-log", help=f"Seconds that its attempts are kept{log}", type=seconds),
    )


def _alter() -> ActionCommand:
    return action(
        "alter",
        "consumers.alter",
        "Give a consumer other settings",
        "Shows both and asks first; settings that are not named stay. A process that runs goes on with what "
        "it began with until it is started again. Ends with status 1 when the answer was no.",
        _name(),
        *conn_id(),
        _feed(required=True),
        *_settings(),
        *seen(),
        *shown(),
    )


def _revoke() -> ActionCommand:
    from airflow.cli.cli_config import ARG_YES

    return action(
        "revoke",
        "consumers.revoke",
        "Take a shard away from the process that holds it, for a consumer of events or an export's",
        "Shows the holder and asks first. Nothing that it does under its lease is written any more. Ends "
        "with status 1 when the answer was no.",
        _name(),
        *conn_id(),
        _feed(required=True),
        option("--shard", help="Shard, a whole number or a UUID", type=shard, required=True),
        option(
            "--fencing-token",
            help="Of the lease as it was seen: refused if it is another by now, and nothing is asked",
            type=version,
        ),
        ARG_YES,
        *shown(),
    )


def _list() -> ActionCommand:
    return action(
        "list",
        "consumers.list_consumers",
        "Show the consumers of events and their settings",
        "Changes nothing. Where they stand is shown by the command status, who runs them by leases.",
        *conn_id(),
        _feed(),
        *shown(),
    )


def _drop() -> ActionCommand:
    return action(
        "drop",
        "consumers.drop",
        "Forget a consumer, with its cursors, dead letters and log",
        "Shows where it stands and asks first; frees what it held back from purging. Whoever consumes for it "
        "can write nothing any more. Ends with status 1 when the answer was no.",
        _name(),
        *conn_id(),
        _feed(required=True),
        *seen(),
        *shown(),
    )


def _log() -> ActionCommand:
    return action(
        "log",
        "consumers.log",
        "Show what a consumer tried, newest first: which events, by whom, how it ended",
        "Changes nothing.",
        _name(),
        *conn_id(),
        _feed(required=True),
        option("--failed", help="Only what failed", action="store_true"),
        option("--limit", help="Attempts to show (default: 100)", type=count, default=100),
        *shown(),
    )


def _list_dead_letters() -> ActionCommand:
    return action(
        "list",
        "dead_letters.list_dead_letters",
        "Show the events that consumers parked, and why",
        "Changes nothing.",
        *conn_id(),
        _feed(),
        option("--consumer", help="Name of one consumer; all without it"),
        option("--all", help="Also those that are resolved", action="store_true"),
        *shown(),
    )


def _retry() -> ActionCommand:
    return action(
        "retry",
        "dead_letters.retry",
        "Let the consumer try parked events again",
        "Its next turn does, before new events. Ends with status 2 where one is not open any more.",
        _numbers(),
        *conn_id(),
        *shown(),
    )


def _drop_dead_letter() -> ActionCommand:
    from airflow.cli.cli_config import ARG_YES

    return action(
        "drop",
        "dead_letters.drop",
        "Do without parked events: their windows are complete then, and purges may pass them",
        "Shows them and asks first. Ends with status 1 when the answer was no.",
        _numbers(),
        *conn_id(),
        option("--note", help="Why they are not needed; stays with them", required=True),
        ARG_YES,
        *shown(),
    )


def _name() -> Arg:
    return option("name", help="The consumer, 1 to 128 characters without ':'")


def _numbers() -> Arg:
    return option("number", help="Numbers of dead letters, as list shows them", nargs="+", type=count)


def _feed(*, required: bool = False) -> Arg:
    return option(
        "--feed", help=_FEED_HELP if required else f"{_FEED_HELP}; all without it", required=required
    )
