# SPDX-License-Identifier: Apache-2.0
"""
The commands of ``airflow-changefeed cursor``: names and options only.

Every ``airflow`` command imports this file; the module of a command is imported when that command runs.
"""

from __future__ import annotations

from airflow_changefeed.cli.options.shared import CONN_ID, SHOWN, YES, Group, Option, action, option, path
from airflow_changefeed.cli.options.values import count, note, position, row_version, shard

_VERSION_HELP = (
    "Expected resource version of the cursor: VERSION, or SHARD=VERSION once for each cursor that changes. "
    "Fails if it has changed since, and skips the confirmation"
)


def _consumer() -> tuple[Option, ...]:
    return (
        option("name", help="Name of the consumer or export"),
        CONN_ID,
        option("--feed", help="Name of the feed, for example myservice.MyEvent", required=True),
    )


def _shards(what: str) -> Option:
    help_ = f"{what}; may be given more than once (default: all shards of the consumer)"
    return option("--shard", help=help_, type=shard, action="append")


def _windows() -> tuple[Option, Option]:
    return path(
        "Root of the export, which says where windows begin (default: its moves so far)", required=False
    )


def _decision() -> tuple[Option, ...]:
    return (option("--why", help="Reason, kept in the history"), *_versions())


def _versions() -> tuple[Option, ...]:
    return (
        option(
            "--resource-version", help=_VERSION_HELP, type=row_version, action="append", metavar="VERSION"
        ),
        YES,
    )


_SHOW = action(
    "show",
    "cursors.show_cursors",
    "Show a consumer's cursors, its gaps and leases, and whether its Variable agrees",
    "Changes nothing. If the Variable was edited, shows both values and the commands that resolve it.",
    *_consumer(),
    _shards("Shard to show"),
    *SHOWN,
)

_SET = action(
    "set",
    "cursors.set_cursors",
    "Move cursors to a ULID, a time, the first or the last event",
    "Shows how many events would be repeated or skipped and asks for confirmation. Refused if a cursor "
    "has changed since it was shown. Exits with status 1 if you decline.",
    *_consumer(),
    option(
        "--to",
        help="A ULID (continue after it), a time with its zone (continue with the events of that time), "
        "earliest (the first event that is not purged) or latest",
        type=position,
        required=True,
    ),
    _shards("Shard whose cursor moves"),
    *_windows(),
    *_decision(),
    *SHOWN,
)

_RESET = action(
    "reset",
    "cursors.reset_cursors",
    "Move cursors back to where the consumer began, or undo a change from the history",
    "Asks for confirmation and refuses as set does.",
    *_consumer(),
    option("--change", help="Number of the change to go back before, as shown by history", type=count),
    _shards("Shard whose cursor moves"),
    *_decision(),
    *SHOWN,
)

_ACCEPT_BEGINNING = action(
    "accept-beginning",
    "cursors.accept_beginning",
    "Accept that an export does not have the events before its beginning",
    "Shows how many there are and asks for confirmation. Status and doctor no longer warn of them, and "
    "purges no longer keep them for this export; a backfill can still export them until they are purged. "
    "Exits with status 1 if you decline.",
    *_consumer(),
    option("--note", help="Why they are not needed; kept in the history", type=note, required=True),
    *_versions(),
    *SHOWN,
)

_HISTORY = action(
    "history",
    "cursors.history",
    "Show who changed a consumer's cursors, when, from where to where, and why; newest first",
    "Changes nothing. To undo a change use reset --change.",
    *_consumer(),
    option("--shard", help="Shard to show (default: all)", type=shard),
    option("--limit", help="Number of changes to show (default: 100)", type=count, default=100),
    *SHOWN,
)

_ADOPT = action(
    "adopt",
    "cursors.adopt",
    "Set the cursors to the ULIDs that a person wrote into the Variable",
    "Shows the moves and asks for confirmation. Refuses a ULID that the feed has not reached, or that "
    "is purged.",
    *_consumer(),
    *_windows(),
    *_versions(),
    *SHOWN,
)

_PUBLISH = action(
    "publish",
    "cursors.publish",
    "Overwrite the Variable with the cursors in the database",
    "Edits that a person made to the Variable are lost.",
    *_consumer(),
    *SHOWN,
)

_REBUILD = action(
    "rebuild",
    "cursors.rebuild",
    "Restore lost cursors from the manifests of the consumer's export, and publish them",
    "Cursors that exist and have moved are kept.",
    *_consumer(),
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
