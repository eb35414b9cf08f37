# SPDX-License-Identifier: Apache-2.0
"""
The commands of ``airflow-changefeed cursor``: names and options only.

Every ``airflow`` command imports this file; the module of a command is imported when that command runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_changefeed.cli.options.shared import action, conn_id, option, path, shown
from airflow_changefeed.cli.options.values import count, note, position, row_version, shard

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

_VERSION_HELP = (
    "Expected resource version of the cursor: VERSION, or SHARD=VERSION once for each cursor that changes. "
    "Fails if it has changed since, and skips the confirmation"
)


def cursor_commands() -> GroupCommand:
    """Return the commands on cursors."""
    from airflow.cli.cli_config import GroupCommand

    return GroupCommand(
        name="cursor",
        help="Show and move the cursors of consumers, and repair Variables",
        subcommands=(
            _show(),
            _set(),
            _reset(),
            _accept_beginning(),
            _history(),
            _adopt(),
            _publish(),
            _rebuild(),
        ),
    )


def _show() -> ActionCommand:
    return action(
        "show",
        "cursors.show_cursors",
        "Show a consumer's cursors, its gaps and leases, and whether its Variable agrees",
        "Changes nothing. If the Variable was edited, shows both values and the commands that resolve it.",
        *_consumer(),
        _shards("Shard to show"),
        *shown(),
    )


def _set() -> ActionCommand:
    return action(
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
        *shown(),
    )


def _reset() -> ActionCommand:
    return action(
        "reset",
        "cursors.reset_cursors",
        "Move cursors back to where the consumer began, or undo a change from the history",
        "Asks for confirmation and refuses as set does.",
        *_consumer(),
        option("--change", help="Number of the change to go back before, as shown by history", type=count),
        _shards("Shard whose cursor moves"),
        *_decision(),
        *shown(),
    )


def _accept_beginning() -> ActionCommand:
    return action(
        "accept-beginning",
        "cursors.accept_beginning",
        "Accept that an export does not have the events before its beginning",
        "Shows how many there are and asks for confirmation. Status and doctor no longer warn of them, and "
        "purges no longer keep them for this export; a backfill can still export them until they are purged. "
        "Exits with status 1 if you decline.",
        *_consumer(),
        option("--note", help="Why they are not needed; kept in the history", type=note, required=True),
        *_versions(),
        *shown(),
    )


def _history() -> ActionCommand:
    return action(
        "history",
        "cursors.history",
        "Show who changed a consumer's cursors, when, from where to where, and why; newest first",
        "Changes nothing. To undo a change use reset --change.",
        *_consumer(),
        option("--shard", help="Shard to show (default: all)", type=shard),
        option("--limit", help="Number of changes to show (default: 100)", type=count, default=100),
        *shown(),
    )


def _adopt() -> ActionCommand:
    return action(
        "adopt",
        "cursors.adopt",
        "Set the cursors to the ULIDs that a person wrote into the Variable",
        "Shows the moves and asks for confirmation. Refuses a ULID that the feed has not reached, or that "
        "is purged.",
        *_consumer(),
        *_windows(),
        *_versions(),
        *shown(),
    )


def _publish() -> ActionCommand:
    return action(
        "publish",
        "cursors.publish",
        "Overwrite the Variable with the cursors in the database",
        "Edits that a person made to the Variable are lost.",
        *_consumer(),
        *shown(),
    )


def _rebuild() -> ActionCommand:
    return action(
        "rebuild",
        "cursors.rebuild",
        "Restore lost cursors from the manifests of the consumer's export, and publish them",
        "Cursors that exist and have moved are kept.",
        *_consumer(),
        *path(),
        *shown(),
    )


def _consumer() -> tuple[Arg, ...]:
    return (
        option("name", help="Name of the consumer or export"),
        *conn_id(),
        option("--feed", help="Name of the feed, for example myservice.MyEvent", required=True),
    )


def _shards(what: str) -> Arg:
    help_ = f"{what}; may be given more than once (default: all shards of the consumer)"
    return option("--shard", help=help_, type=shard, action="append")


def _windows() -> tuple[Arg, Arg]:
    return path(
        "Root of the export, which says where windows begin (default: its moves so far)", required=False
    )


def _decision() -> tuple[Arg, ...]:
    return (option("--why", help="Reason, kept in the history"), *_versions())


def _versions() -> tuple[Arg, ...]:
    from airflow.cli.cli_config import ARG_YES

    return (
        option(
            "--resource-version", help=_VERSION_HELP, type=row_version, action="append", metavar="VERSION"
        ),
        ARG_YES,
    )
