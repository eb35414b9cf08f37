# SPDX-License-Identifier: Apache-2.0
"""
What ``airflow changefeed`` offers: names and options only.

Every call of ``airflow`` imports this file, whatever the command; a command's own file is imported when it
runs.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_changefeed.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, Arg, CLICommand

    from airflow_changefeed.core.feed import Shard


def get_cli_commands() -> list[CLICommand]:
    """Return the commands, for Airflow's parser; the provider info names this function."""
    from airflow.cli.cli_config import GroupCommand

    return [
        GroupCommand(
            name="changefeed",
            help="Work with change feeds and their exports",
            subcommands=(_verify(),),
        )
    ]


def _verify() -> ActionCommand:
    from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE, ActionCommand, lazy_load_command

    return ActionCommand(
        name="verify",
        help="Read an export again and name everything that its manifests do not say",
        description=(
            "Read an export again, or a part of it, and compare it with its manifests. Ends with status 0 "
            "when nothing is damaged (leftovers may be), 1 when something is, 2 when it cannot be verified."
        ),
        func=lazy_load_command("airflow_changefeed.cli.changefeed_verify.verify"),
        args=(
            _option("--path", help="Root of the export, a local path or an fsspec URL", required=True),
            _option("--feed", help="Name of the feed, for example myservice.MyEvent", required=True),
            _option(
                "--start",
                help="Begin, inclusive: ISO 8601 with a zone, for example 2013-01-01T00:00:00Z",
                type=time,
            ),
            _option("--end", help="End, exclusive: ISO 8601 with a zone", type=time),
            _option("--shard", help="Shard; may be given more than once", type=shard, action="append"),
            _option(
                "--conn-id",
                "--path-conn-id",
                help="Airflow connection whose extra holds the fsspec storage options of the path",
            ),
            _option(
                "--changefeed-conn-id",
                help="Airflow connection of the feed's database: also name units that have become stale",
            ),
            ARG_OUTPUT,
            ARG_VERBOSE,
        ),
    )


def _option(*flags: str, **more: Any) -> Arg:
    from airflow.cli.cli_config import Arg

    return Arg(flags, **more)  # type: ignore[no-untyped-call] # Airflow's class has no types


def time(text: str) -> datetime:
    """Read a time from the command line."""
    from airflow_changefeed.core.times import parse_time

    try:
        return parse_time(text)
    except InvalidArgumentError as problem:
        raise ArgumentTypeError(problem.message) from None


def shard(text: str) -> Shard:
    """Read a shard from the command line."""
    from airflow_changefeed.core.feed import parse_shard

    try:
        return parse_shard(text)
    except InvalidArgumentError as problem:
        raise ArgumentTypeError(problem.message) from None
