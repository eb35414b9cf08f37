# SPDX-License-Identifier: Apache-2.0
"""
Helpers that describe commands.

Every ``airflow`` command imports this file, so Airflow's own command line is imported inside the functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, Arg

FEED_HELP = "Name of the feed, for example myservice.MyEvent"
TIME_HELP = "ISO 8601 with a zone, for example 2013-01-01T00:00:00Z"
PATH_CONN_ID_HELP = (
    "Airflow connection with access to the path (aws, wasb, adls, google_cloud_platform, generic)"
)


def action(name: str, function: str, help_: str, more: str, *args: Arg) -> ActionCommand:
    """
    Describe a command.

    :param function: module and function, relative to ``airflow_changefeed.cli.commands``.
    :param more: added to ``help_`` in the command's own help.
    """
    from airflow.cli.cli_config import ActionCommand, lazy_load_command

    return ActionCommand(
        name=name,
        help=help_,
        description=f"{help_}. {more}",
        func=lazy_load_command(f"airflow_changefeed.cli.commands.{function}"),
        args=args,
    )


def conn_id() -> tuple[Arg]:
    """Return the option that nearly all commands need."""
    default = "changefeed_default"
    help_ = f"Airflow connection of the feeds' database (default: {default})"
    return (option("--conn-id", help=help_, default=default),)


def seen() -> tuple[Arg, Arg]:
    """Return the options of commands that change a resource only if it has not changed since it was shown."""
    from airflow.cli.cli_config import ARG_YES

    from airflow_changefeed.cli.options.values import version

    help_ = "Expected version: fails if it has changed since, and skips the confirmation"
    return option("--resource-version", help=help_, type=version), ARG_YES


def shown() -> tuple[Arg, Arg]:
    """Return the options of all commands that show rows."""
    from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE

    return ARG_OUTPUT, ARG_VERBOSE


def path(of: str = "Root of the export", *, required: bool = True) -> tuple[Arg, Arg]:
    """
    Return the options that name an output.

    :param of: what is there, and what for.
    """
    return (
        option("--path", help=f"{of}, a local path or an fsspec URL", required=required),
        option("--path-conn-id", help=PATH_CONN_ID_HELP),
    )


def storage(of: str) -> tuple[Arg, Arg]:
    """
    Return the options that say how SQL Server stores the tables that it creates.

    :param of: what is compressed, and the default.
    """
    what = "Filegroup of the tables that are created, on SQL Server (default: that of the database)"
    return (
        option("--filegroup", help=what),
        option("--compression", help=f"Compression {of}, on SQL Server", choices=("page", "row", "none")),
    )


def option(*flags: str, **more: Any) -> Arg:
    """Describe an option; takes the arguments of Python's ``add_argument``."""
    from airflow.cli.cli_config import Arg

    return Arg(flags, **more)  # type: ignore[no-untyped-call] # Airflow's class has no types
