# SPDX-License-Identifier: Apache-2.0
"""Running ``airflow-changefeed`` in this process: a process of Airflow takes seconds to start."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from airflow.cli.cli_config import ActionCommand

from airflow_changefeed.cli.changefeed import get_cli_commands, main, parser


def described() -> Iterator[tuple[str, ActionCommand]]:
    """Return all commands with their names, those of groups with the group's name before."""
    (group,) = get_cli_commands()
    for command in group.subcommands:
        if isinstance(command, ActionCommand):
            yield command.name, command
        else:
            yield from ((f"{command.name} {part.name}", part) for part in command.subcommands)


def connection_json(description: Mapping[str, Any]) -> str:
    """Return a source's description as the Airflow connection that opens it."""
    if description["type"] == "sqlite":
        return json.dumps({"conn_type": "sqlite", "host": description["path"]})
    extra = {
        "encrypt": description["encrypt"],
        "trust_server_certificate": "yes" if description["trust_server_certificate"] else "no",
        "changefeed_schema": description["schema"],
        "lock_timeout": 20,
    }
    names = {"host": "host", "port": "port", "schema": "database", "login": "user", "password": "password"}
    values = {field: description[name] for field, name in names.items()}
    return json.dumps({"conn_type": "mssql", **values, "extra": extra})


def run(*arguments: str) -> int:
    """Run a command, and return its exit status; SystemExit where the parser refuses it."""
    parser().parse_args(arguments)
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@dataclass
class Commands:
    """
    Commands on one connection, and what they write.

    :param out: what the last one wrote to standard output.
    :param err: the same of standard error.
    """

    capsys: pytest.CaptureFixture[str]
    conn_id: str = "changefeed_default"
    out: str = ""
    err: str = ""

    def run(self, name: str, *arguments: str) -> int:
        """Run a command, named with its group's name before; return its exit status."""
        return self.run_bare(name, "--conn-id", self.conn_id, *arguments)

    def run_bare(self, name: str, *arguments: str) -> int:
        """Run a command that needs no connection of feeds; return its exit status."""
        self.capsys.readouterr()
        try:
            return run(*name.split(), *arguments)
        finally:
            self.out, self.err = self.capsys.readouterr()

    def rows(self, name: str, *arguments: str) -> list[dict[str, Any]]:
        """Run a command that succeeds; return its rows."""
        assert self.run(name, *arguments, "-o", "json") == 0, self.err
        found: list[dict[str, Any]] = json.loads(self.out)
        return found

    def fails(self, name: str, *arguments: str) -> str:
        """Run a command that cannot do what it was asked for; return what it says."""
        assert self.run(name, *arguments) == 2
        assert self.out == ""
        assert "Traceback" not in self.err
        return self.err

    def refuses(self, name: str, *arguments: str) -> str:
        """Give a command values that its parser refuses; return what it says."""
        with pytest.raises(SystemExit) as caught:
            self.run(name, *arguments)
        assert caught.value.code == 2
        return self.err
