# SPDX-License-Identifier: Apache-2.0
"""
The commands of ``airflow-changefeed`` for consumers: names and options only.

Every ``airflow`` command imports this file; the module of a command is imported when that command runs.
"""

from __future__ import annotations

from argparse import BooleanOptionalAction

from airflow_changefeed.cli.options.shared import (
    CONN_ID,
    FEED_HELP,
    SEEN,
    SHOWN,
    VERBOSE,
    YES,
    Group,
    Option,
    action,
    option,
)
from airflow_changefeed.cli.options.values import (
    attempts,
    count,
    duration,
    duration_or_none,
    note,
    position,
    shard,
    version,
)

_HANDLER_HELP = (
    "Handler to run for each event, in the transaction that consumes it: package.module:function, or "
    "procedure:schema.name on SQL Server (default: print the events)"
)
_JSON_HELP = (
    'Options of the default consumer, for example \'{"with_tid": true, "poll_timeout": 2000}\'; times are in '
    "milliseconds"
)


def _settings(
    attempts_: str = "", poison: str = "", log: str = "", ddl: str = ""
) -> tuple[Option, Option, Option, Option]:
    """Return the options of a consumer's settings, with the default of each."""
    return (
        option(
            "--max-attempts",
            help=f"Failures of one event before --on-poison applies{attempts_}; none for no limit",
            type=attempts,
        ),
        option(
            "--on-poison",
            help=f"stop{poison}, or park the event as a dead letter and continue",
            choices=("stop", "park"),
        ),
        option("--keep-log", help=f"How long to keep the log of attempts{log}", type=duration_or_none),
        option(
            "--ddl",
            help=f"Also consume events of changed columns (captures only){ddl}",
            action=BooleanOptionalAction,
        ),
    )


def _name() -> Option:
    return option("name", help="Name of the consumer, 1 to 128 characters without ':'")


def _numbers() -> Option:
    return option("number", help="Numbers of dead letters, as shown by list", nargs="+", type=count)


def _feed(*, required: bool = False) -> Option:
    return option("--feed", help=FEED_HELP if required else f"{FEED_HELP} (default: all)", required=required)


LEASES = action(
    "leases",
    "consumers.leases",
    "Show which process holds each shard of a consumer, since when, and who waits for it",
    "Changes nothing. The holder keeps an expired lease until somebody else asks for it.",
    CONN_ID,
    _feed(),
    option("--consumer", help="Name of one consumer (default: all)"),
    *SHOWN,
)

CONSUME = action(
    "consume",
    "consume.consume",
    "Consume events: print them, or run a handler for each, until stopped",
    "Waits while another process consumes. A printed event counts as consumed when the next one is "
    "requested, so the last one is repeated after a crash. Stops cleanly on SIGINT and SIGTERM.",
    option("name", help="Name of the consumer"),
    CONN_ID,
    _feed(),
    option("--json", help=_JSON_HELP, dest="options"),
    option("--format", help="json (one line each, the default) or table", choices=("json", "table")),
    option("--handler", help=_HANDLER_HELP),
    option("--handler-timeout", help="How long a handler may take (default: no limit)", type=duration),
    option(
        "--on-poison",
        help="What this run does with an event that fails too often (default: the consumer's setting)",
        choices=("stop", "park"),
    ),
    option("--max-events", help="Stop after this many events", type=count),
    option("--at-head", help="Stop when all events have been consumed", action="store_true"),
    VERBOSE,
)

_CREATE = action(
    "create",
    "consumers.create",
    "Create a consumer of a feed",
    "Safe to run again with the same settings: its cursors do not move. Purges keep all events that it "
    "has not acknowledged, so drop it when it is no longer needed.",
    _name(),
    CONN_ID,
    _feed(required=True),
    option(
        "--start",
        help="Where to begin: latest (default), earliest, a time with its zone, or after a ULID",
        type=position,
    ),
    *_settings(" (default: 10)", " (default)", " (default: 7d)", "; --no-ddl is the default"),
    *SHOWN,
)

_ALTER = action(
    "alter",
    "consumers.alter",
    "Change the settings of a consumer",
    "Shows the old and new settings and asks for confirmation; settings that are not given stay. A "
    "running process keeps its settings until it is restarted. Exits with status 1 if you decline.",
    _name(),
    CONN_ID,
    _feed(required=True),
    *_settings(),
    *SEEN,
    *SHOWN,
)

_REVOKE = action(
    "revoke",
    "consumers.revoke",
    "Revoke the lease on a shard of a consumer or export",
    "Shows the holder and asks for confirmation. The holder can no longer commit under its lease. Exits "
    "with status 1 if you decline.",
    _name(),
    CONN_ID,
    _feed(required=True),
    option("--shard", help="Shard, an integer or a UUID", type=shard, required=True),
    option(
        "--fencing-token",
        help="Expected fencing token: fails if it has changed since, and skips the confirmation",
        type=version,
    ),
    YES,
    *SHOWN,
)

_LIST = action(
    "list",
    "consumers.list_consumers",
    "Show consumers and their settings",
    "Changes nothing. Use status for their cursors and leases for their running processes.",
    CONN_ID,
    _feed(),
    *SHOWN,
)

_DROP = action(
    "drop",
    "consumers.drop",
    "Drop a consumer with its cursors, dead letters and log, or an export's cursors and Variable",
    "Shows its cursors and asks for confirmation. It no longer holds back purges, and a process that "
    "runs it can no longer commit. An export's output stays. Exits with status 1 if you decline.",
    _name(),
    CONN_ID,
    _feed(required=True),
    *SEEN,
    *SHOWN,
)

_LOG = action(
    "log",
    "consumers.log",
    "Show a consumer's attempts, newest first: events, process, outcome",
    "Changes nothing.",
    _name(),
    CONN_ID,
    _feed(required=True),
    option("--failed", help="Only failed attempts", action="store_true"),
    option("--limit", help="Number of attempts to show (default: 100)", type=count, default=100),
    *SHOWN,
)

_LIST_DEAD_LETTERS = action(
    "list",
    "dead_letters.list_dead_letters",
    "Show the events that consumers parked, and why",
    "Changes nothing.",
    CONN_ID,
    _feed(),
    option("--consumer", help="Name of one consumer (default: all)"),
    option("--all", help="Include resolved dead letters", action="store_true"),
    *SHOWN,
)

_RETRY = action(
    "retry",
    "dead_letters.retry",
    "Retry parked events",
    "The consumer retries them on its next run, before new events. Exits with status 2 if one is no "
    "longer open.",
    _numbers(),
    CONN_ID,
    *SHOWN,
)

_DROP_DEAD_LETTER = action(
    "drop",
    "dead_letters.drop",
    "Discard parked events: their windows become complete, and they no longer hold back purges",
    "Shows the events and asks for confirmation. Exits with status 1 if you decline.",
    _numbers(),
    CONN_ID,
    option("--note", help="Why they are not needed; kept with them", type=note, required=True),
    YES,
    *SHOWN,
)

CONSUMER = Group(
    name="consumer",
    help="Create, change, list and drop consumers, and show their attempts",
    commands=(_CREATE, _ALTER, _LIST, _DROP, _REVOKE, _LOG),
)

DEAD_LETTERS = Group(
    name="dead-letters",
    help="Show, retry or drop events that failed too often",
    commands=(_LIST_DEAD_LETTERS, _RETRY, _DROP_DEAD_LETTER),
)
