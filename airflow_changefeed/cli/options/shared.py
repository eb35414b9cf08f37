# SPDX-License-Identifier: Apache-2.0
"""
What the descriptions of commands share.

Imported by every call of ``airflow``, so Airflow's own command line is imported when a description is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, Arg


def action(name: str, function: str, help_: str, more: str, *args: Arg) -> ActionCommand:
    """
    Describe a command.

    :param function: below ``airflow_changefeed.cli.commands``.
    :param more: what its own help says besides ``help_``.
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
    """Give the option that nearly all commands need."""
    return (
        option(
            "--conn-id",
            "--changefeed-conn-id",
            help="Airflow connection of the feeds' database",
            required=True,
        ),
    )


def seen() -> tuple[Arg, Arg]:
    """Give the options of commands that change only what was seen."""
    from airflow.cli.cli_config import ARG_YES

    from airflow_changefeed.cli.options.values import version

    help_ = "As it was seen: refused if it was changed since, and nothing is asked"
    return option("--resource-version", help=help_, type=version), ARG_YES


def shown() -> tuple[Arg, Arg]:
    """Give the options of all commands that show rows."""
    from airflow.cli.cli_config import ARG_OUTPUT, ARG_VERBOSE

    return ARG_OUTPUT, ARG_VERBOSE


def option(*flags: str, **more: Any) -> Arg:
    """Describe an option, with the arguments of Python's ``add_argument``."""
    from airflow.cli.cli_config import Arg

    return Arg(flags, **more)  # type: ignore[no-untyped-call] # Airflow's class has no types
