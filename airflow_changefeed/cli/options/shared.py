# SPDX-License-Identifier: Apache-2.0
"""
Commands and their options as values: nothing of Airflow is imported, so that help costs no seconds.

Airflow's own command line and ours are both made from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_changefeed.cli.options.values import version

if TYPE_CHECKING:
    from collections.abc import Mapping

FEED_HELP = "Name of the feed, for example myservice.MyEvent"
TIME_HELP = "ISO 8601 with a zone, for example 2013-01-01T00:00:00Z"
#: Where the functions of commands are.
COMMANDS = "airflow_changefeed.cli.commands"
_CONN_ID = "changefeed_default"


@dataclass(frozen=True)
class Option:
    """
    An option, or an argument without a name.

    :param settings: arguments of Python's ``add_argument``.
    """

    flags: tuple[str, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Command:
    """
    A command.

    :param function: module and function, relative to ``COMMANDS``; imported when the command runs.
    """

    name: str
    function: str
    help: str
    description: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Group:
    """Commands that share the first word."""

    name: str
    help: str
    commands: tuple[Command | Group, ...]


def action(name: str, function: str, help_: str, more: str, *options: Option) -> Command:
    """
    Describe a command.

    :param more: added to ``help_`` in the command's own help.
    """
    return Command(name, function, help_, f"{help_}. {more}", options)


def option(*flags: str, **settings: Any) -> Option:
    """Describe an option."""
    return Option(flags, settings)


def path(of: str = "Root of the export", *, required: bool = True) -> tuple[Option, Option]:
    """
    Return the options that name an output.

    :param of: what is there, and what for.
    """
    types = "aws, wasb, adls, google_cloud_platform, generic"
    return (
        option("--path", help=f"{of}, a local path or an fsspec URL", required=required),
        option("--path-conn-id", help=f"Airflow connection with access to the path ({types})"),
    )


def storage(of: str) -> tuple[Option, Option]:
    """
    Return the options that say how SQL Server stores the tables that it creates.

    :param of: what is compressed, and the default.
    """
    what = "Filegroup of the tables that are created, on SQL Server (default: that of the database)"
    return (
        option("--filegroup", help=what),
        option("--compression", help=f"Compression {of}, on SQL Server", choices=("page", "row", "none")),
    )


CONN_ID = option(
    "--conn-id", help=f"Airflow connection of the feeds' database (default: {_CONN_ID})", default=_CONN_ID
)
YES = option("-y", "--yes", help="Do not ask for confirmation", action="store_true")
VERBOSE = option("-v", "--verbose", help="Also show Airflow's logs", action="store_true")
#: Of all commands that show rows.
SHOWN = (
    option(
        "-o",
        "--output",
        help="Format of the result (default: table)",
        choices=("table", "json", "yaml", "plain"),
        default="table",
    ),
    VERBOSE,
)
#: Of commands that change a resource only if it has not changed since it was shown.
SEEN = (
    option(
        "--resource-version",
        help="Expected version: fails if it has changed since, and skips the confirmation",
        type=version,
    ),
    YES,
)
