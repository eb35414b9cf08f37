# SPDX-License-Identifier: Apache-2.0
"""
The commands of ``airflow-changefeed`` on consumers and cursors: names and options only.

Every ``airflow`` command imports this file; the module of a command is imported when that command runs.
"""

from __future__ import annotations

from argparse import BooleanOptionalAction

from airflow_changefeed.cli.options import (
    CONN_ID,
    FEED_HELP,
    SEEN,
    SHOWN,
    VERBOSE,
    YES,
    Group,
    Option,
    action,
    attempts,
    count,
    duration,
    duration_or_none,
    note,
    option,
    path,
    position,
    row_version,
    shard,
    version,
)

_HANDLER_HELP = (
    "Handler to run for each event, in the transaction that consumes it: package.module:function, or "
    "procedure:schema.name on SQL Server (default: print the events)"
)
_OPTIONS_HELP = (
    'Options of the default consumer, for example \'{"with_tid": true, "poll_timeout": 2000}\'; times are in '
    "milliseconds"
)


def _settings(
    attempts_: str = "", poison: str = "", log: str = "", ddl: str = ""
) -> tuple[Option, Option, Option, Option]:
    return (
        option(
            "--max-attempts",
            help=f"Failed attempts at one event before --on-poison applies{attempts_}; none for no limit",
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


_NAME = option("name", help="Name of the consumer, 1 to 128 characters without ':'")

_NUMBERS = option("number", help="Numbers of dead letters, as shown by list", nargs="+", type=count)


def _feed(*, required: bool = False) -> Option:
    return option("--feed", help=FEED_HELP if required else f"{FEED_HELP} (default: all)", required=required)


LEASES = action(
    "leases",
    "consumers.leases",
    "Show which process holds each shard of a consumer, since when, and who waits for it",
    "Changes nothing. The holder keeps an expired lease until another process asks for the shard.",
    CONN_ID,
    _feed(),
    option("--consumer", help="Name of one consumer (default: all)"),
    *SHOWN,
)

CONSUME = action(
    "consume",
    "consume.consume",
    "Consume events: print them, or run a handler for each, until stopped",
    "Waits while another process consumes. A printed event counts as consumed when the next event is "
    "requested, so the last event is printed again after a crash. Stops cleanly on SIGINT and SIGTERM.",
    option("name", help="Name of the consumer"),
    CONN_ID,
    _feed(),
    option("--options", help=_OPTIONS_HELP),
    option("-o", "--output", help="json (one line each, the default) or table", choices=("json", "table")),
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
    "Safe to run again with the same settings: its cursors do not move. Purges keep all events that "
    "the consumer has not acknowledged, so drop a consumer that is no longer needed.",
    _NAME,
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
    _NAME,
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
    _NAME,
    CONN_ID,
    _feed(required=True),
    option("--shard", help="Shard, an integer or a UUID", type=shard, required=True),
    option(
        "--fencing-token",
        help="Expected fencing token: the command fails if the token has changed, and asks for no "
        "confirmation",
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
    "Shows the consumer's cursors and asks for confirmation. A dropped consumer no longer holds back "
    "purges, and a process that still runs it can no longer commit. The output of an export stays. "
    "Exits with status 1 if you decline.",
    _NAME,
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
    _NAME,
    CONN_ID,
    _feed(required=True),
    option("--failed", help="Only failed attempts", action="store_true"),
    option("--limit", help="Number of attempts to show (default: 100)", type=count, default=100),
    *SHOWN,
)

_LIST_DEAD_LETTERS = action(
    "list",
    "consume.list_dead_letters",
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
    "consume.retry",
    "Retry parked events",
    "The consumer's next run retries these events before new events. Exits with status 2 if a dead "
    "letter is no longer open.",
    _NUMBERS,
    CONN_ID,
    *SHOWN,
)

_DROP_DEAD_LETTER = action(
    "drop",
    "consume.drop",
    "Discard parked events: their windows become complete, and the events no longer hold back purges",
    "Shows the events and asks for confirmation. Exits with status 1 if you decline.",
    _NUMBERS,
    CONN_ID,
    option(
        "--note", help="Why the events are not needed; stored with the dead letters", type=note, required=True
    ),
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


_VERSION_HELP = (
    "Expected resource version of the cursor: VERSION, or SHARD=VERSION once for each cursor that "
    "changes. The command fails if the version has changed, and asks for no confirmation"
)

_CONSUMER = (
    option("name", help="Name of the consumer or export"),
    CONN_ID,
    option("--feed", help="Name of the feed, for example myservice.MyEvent", required=True),
)


def _shards(what: str) -> Option:
    help_ = f"{what}; may be given more than once (default: all shards of the consumer)"
    return option("--shard", help=help_, type=shard, action="append")


_WINDOWS = path(
    "Root of the export, whose units show where windows begin (default: the cursor's moves so far)",
    required=False,
)

_VERSIONS = (
    option("--resource-version", help=_VERSION_HELP, type=row_version, action="append", metavar="VERSION"),
    YES,
)

_DECISION = (option("--note", help="Why the cursor moves; stored in the history"), *_VERSIONS)

_SHOW = action(
    "show",
    "cursors.show_cursors",
    "Show a consumer's cursors, gaps and leases, and whether its Variable agrees",
    "Changes nothing. If the Variable was edited, shows both values and the commands that resolve it.",
    *_CONSUMER,
    _shards("Shard to show"),
    *SHOWN,
)

_SET = action(
    "set",
    "cursors.set_cursors",
    "Move cursors to a ULID, a time, the first or the last event",
    "Shows how many events would be repeated or skipped, and asks for confirmation. The move is "
    "refused if a cursor has changed since it was shown. Exits with status 1 if you decline.",
    *_CONSUMER,
    option(
        "--to",
        help="A ULID (continue after that event), a time with its zone (continue with the events of "
        "that time), earliest (the first event that is not purged) or latest",
        type=position,
        required=True,
    ),
    _shards("Shard whose cursor moves"),
    *_WINDOWS,
    *_DECISION,
    *SHOWN,
)

_RESET = action(
    "reset",
    "cursors.reset_cursors",
    "Move cursors back to where the consumer began, or undo a change from the history",
    "Asks for confirmation. The move is refused if a cursor has changed since it was shown.",
    *_CONSUMER,
    option(
        "--change",
        help="Number of the change to undo, with all later changes, as shown by history",
        type=count,
    ),
    _shards("Shard whose cursor moves"),
    *_DECISION,
    *SHOWN,
)

_ACCEPT_BEGINNING = action(
    "accept-beginning",
    "cursors.accept_beginning",
    "Accept that an export lacks the events before its beginning",
    "Shows how many events the export lacks, and asks for confirmation. Afterwards status and doctor "
    "no longer warn of these events, and purges no longer keep them for this export. A backfill can "
    "export the events until they are purged. Exits with status 1 if you decline.",
    *_CONSUMER,
    option("--note", help="Why the events are not needed; stored in the history", type=note, required=True),
    *_VERSIONS,
    *SHOWN,
)

_HISTORY = action(
    "history",
    "cursors.history",
    "Show who changed a consumer's cursors, when, from where to where, and why; newest first",
    "Changes nothing. To undo a change, use reset --change.",
    *_CONSUMER,
    option("--shard", help="Shard to show (default: all)", type=shard),
    option("--limit", help="Number of changes to show (default: 100)", type=count, default=100),
    *SHOWN,
)

_ADOPT = action(
    "adopt",
    "cursors.adopt",
    "Set the cursors to the ULIDs that somebody wrote into the Variable",
    "Shows the moves and asks for confirmation. A ULID is refused if the feed has not reached it, or "
    "if it is purged.",
    *_CONSUMER,
    *_WINDOWS,
    *_VERSIONS,
    *SHOWN,
)

_PUBLISH = action(
    "publish",
    "cursors.publish",
    "Overwrite the Variable with the cursors in the database",
    "Edits of the Variable are lost.",
    *_CONSUMER,
    *SHOWN,
)

_REBUILD = action(
    "rebuild",
    "cursors.rebuild",
    "Restore lost cursors from the manifests of the consumer's export, and publish them",
    "Existing cursors that have moved are kept.",
    *_CONSUMER,
    *path(),
    *SHOWN,
)

CURSOR = Group(
    name="cursor",
    help="Show and move the cursors of consumers, and repair Variables",
    commands=(
        _SHOW,
        _SET,
        _RESET,
        _ACCEPT_BEGINNING,
        _HISTORY,
        _ADOPT,
        _PUBLISH,
        _REBUILD,
    ),
)
