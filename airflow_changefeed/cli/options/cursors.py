# SPDX-License-Identifier: Apache-2.0
"""
What ``airflow changefeed cursor`` offers: names and options only.

Every call of ``airflow`` imports this file, whatever the command; a command's own file is imported when it
runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_changefeed.cli.options.shared import action, conn_id, option, shown
from airflow_changefeed.cli.options.values import count, destination, row_version, shard

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

_VERSION_HELP = (
    "Resource version of the cursor as it was seen, or SHARD=VERSION, once for each cursor that moves: "
    "refused if it was changed since, and nothing is asked"
)


def cursor_commands() -> GroupCommand:
    """Return the commands on cursors."""
    from airflow.cli.cli_config import GroupCommand

    return GroupCommand(
        name="cursor",
        help="See and move the cursors of consumers, and resolve what differs",
        subcommands=(_show(), _set(), _reset(), _history(), _adopt(), _publish(), _rebuild()),
    )


def _show() -> ActionCommand:
    return action(
        "show",
        "cursors.show_cursors",
        "Show where a consumer stands, what holds it, and whether its Variable says the same",
        "Changes nothing. Where the Variable was edited it shows both values and the commands for it.",
        *_consumer(),
        _shards("Shard to show"),
        *shown(),
    )


def _set() -> ActionCommand:
    return action(
        "set",
        "cursors.set_cursors",
        "Move cursors to a ULID, a time, the first or the last event",
        "Shows what would come again or be skipped and asks first. Refused if a cursor was changed since it "
        "was shown. Ends with status 1 when the answer was no.",
        *_consumer(),
        option(
            "--to",
            help="A ULID (done up to it, inclusive), a time with its zone (goes on with its events), "
            "earliest (the first event that is not purged) or latest",
            type=destination,
            required=True,
        ),
        _shards("Shard whose cursor moves"),
        *_decision(),
        *shown(),
    )


def _reset() -> ActionCommand:
    return action(
        "reset",
        "cursors.reset_cursors",
        "Move cursors back to where the consumer began, or to before a change of the history",
        "Asks and refuses as set does.",
        *_consumer(),
        option("--change", help="Number of a change, as history shows it: to before it", type=count),
        _shards("Shard whose cursor moves"),
        *_decision(),
        *shown(),
    )


def _history() -> ActionCommand:
    return action(
        "history",
        "cursors.history",
        "Show who changed a consumer's cursors, when, from where to where, and why; newest first",
        "Changes nothing. reset --change goes back.",
        *_consumer(),
        option("--shard", help="Shard to show (default: all)", type=shard),
        option("--limit", help="Changes to show (default: 100)", type=count, default=100),
        *shown(),
    )


def _adopt() -> ActionCommand:
    return action(
        "adopt",
        "cursors.adopt",
        "Take over what a person wrote into the Variable: its ULIDs become the cursors",
        "Shows what that means and asks first. Refuses what the feed has not reached, and what is purged.",
        *_consumer(),
        *_versions(),
        *shown(),
    )


def _publish() -> ActionCommand:
    return action(
        "publish",
        "cursors.publish",
        "Overwrite the Variable with what the database says",
        "Whatever a person wrote into it is gone.",
        *_consumer(),
        *shown(),
    )


def _rebuild() -> ActionCommand:
    return action(
        "rebuild",
        "cursors.rebuild",
        "Make lost cursors again from the manifests of the consumer's export, and publish them",
        "Cursors that are there, and have moved, stay.",
        *_consumer(),
        option("--path", help="Root of the export, a local path or an fsspec URL", required=True),
        option(
            "--path-conn-id",
            help="Airflow connection that of the path (aws, wasb, adls, google_cloud_platform, generic)",
        ),
        *shown(),
    )


def _consumer() -> tuple[Arg, ...]:
    return (
        option("name", help="The consumer, of an export or of events"),
        *conn_id(),
        option("--feed", help="Name of the feed, for example myservice.MyEvent", required=True),
    )


def _shards(what: str) -> Arg:
    help_ = f"{what}; may be given more than once (default: all that the consumer has)"
    return option("--shard", help=help_, type=shard, action="append")


def _decision() -> tuple[Arg, ...]:
    return (option("--why", help="Why; stays in the history"), *_versions())


def _versions() -> tuple[Arg, ...]:
    from airflow.cli.cli_config import ARG_YES

    return (
        option(
            "--resource-version", help=_VERSION_HELP, type=row_version, action="append", metavar="VERSION"
        ),
        ARG_YES,
    )
