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
from collections.abc import Sequence
from importlib import import_module

from airflow_changefeed.cli.changefeed import CHANGEFEED
from airflow_changefeed.cli.options.shared import COMMANDS, Group


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Run a command as Airflow's own command line does.

    :param arguments: None for those of the process.
    """
    # Before Airflow, whose import takes longer than help should.
    parsed = parser().parse_args(arguments)
    # First: if Airflow's settings are imported before its configuration, the two import each other.
    from airflow import configuration

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
    module, _, name = parsed.function.rpartition(".")
    getattr(import_module(f"{COMMANDS}.{module}"), name)(parsed)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""

    def add(parent: argparse.ArgumentParser, group: Group) -> None:
        choices = parent.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
        for entry in group.commands:
            if isinstance(entry, Group):
                add(choices.add_parser(entry.name, help=entry.help, description=entry.help), entry)
                continue
            child = choices.add_parser(entry.name, help=entry.help, description=entry.description)
            for each in entry.options:
                child.add_argument(*each.flags, **each.settings)
            child.set_defaults(function=entry.function)

    whole = argparse.ArgumentParser(prog="airflow-changefeed", description=CHANGEFEED.help)
    add(whole, CHANGEFEED)
    return whole
