# SPDX-License-Identifier: Apache-2.0
"""
``airflow-changefeed`` and ``python -m airflow_changefeed``: the commands, on every Airflow.

From 3.2 on, Airflow has them as ``airflow changefeed``, too.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.cli.cli_config import CLICommand


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Run a command as Airflow's own command line does.

    :param arguments: None for those of the process.
    """
    # First: if Airflow's settings are imported before its configuration, the two import each other.
    from airflow import configuration

    parsed = parser().parse_args(arguments)
    if configuration.conf.get("core", "security", fallback="") == "kerberos":
        os.environ["KRB5CCNAME"] = configuration.conf.get("kerberos", "ccache")
        os.environ["KRB5_KTNAME"] = configuration.conf.get("kerberos", "keytab")
    # Results go to standard output, and so do Airflow's logs.
    root = logging.getLogger()
    for handler in root.handlers[:]:
        # That of Airflow 3.0 cannot be given another stream.
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            other = logging.StreamHandler(sys.stderr)
            other.setFormatter(handler.formatter)
            root.removeHandler(handler)
            root.addHandler(other)
    configuration.write_default_airflow_configuration_if_needed()
    parsed.func(parsed)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    from airflow.cli.cli_config import GroupCommand

    from airflow_changefeed.cli.changefeed import get_cli_commands

    def add(parent: argparse.ArgumentParser, commands: Iterable[CLICommand]) -> None:
        choices = parent.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
        for command in commands:
            child = choices.add_parser(
                command.name, help=command.help, description=command.description or command.help
            )
            if isinstance(command, GroupCommand):
                add(child, command.subcommands)
            else:
                for argument in command.args:
                    argument.add_to_parser(child)
                child.set_defaults(func=command.func)

    (group,) = get_cli_commands()
    whole = argparse.ArgumentParser(prog="airflow-changefeed", description=group.help)
    add(whole, group.subcommands)  # type: ignore[union-attr] # the only one is a group
    return whole
