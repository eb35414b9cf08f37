# SPDX-License-Identifier: Apache-2.0
"""Commands in messages can be pasted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import pytest

import airflow_changefeed
from airflow_changefeed.cli.changefeed import parser
from airflow_changefeed.core.fault import CONN_ID, shell, with_conn_id
from airflow_changefeed.exceptions import LeaseHeldError, StaleVersionError
from airflow_changefeed.tasks.context import reports_errors
from airflow_changefeed.version_compat import AirflowFailException
from tests.unit.airflow.commands import described

PACKAGE = Path(airflow_changefeed.__file__).parent
COMMANDS = {name for name, _ in described()}
#: Help texts name commands, and the parser itself has them.
SHOWN_BY_PARSER = ("cli/options/", "cli/changefeed.py", "core/fault.py")
#: What an option is given where its value is computed.
VALUES = {"--shard": "0", "--fencing-token": "1", "--change": "1", "--to": "2013-01-01T00:00:00Z"}
VALUES |= {"--before": "2013-01-01T00:00:00Z", "--until": "2013-01-01T00:00:00Z", "--max-age": "2h"}
NAMED = re.compile(r"airflow-changefeed ([a-z-]+(?: [a-z-]+)?)")


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Return the modules whose texts are messages."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(SHOWN_BY_PARSER):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def docstrings(tree: ast.Module) -> set[int]:
    """Return what no message is made of."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, kinds)]
    return {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}


def calls() -> Iterator[tuple[str, list[str]]]:
    """Return all commands that messages are made of, with values in place of what is computed."""
    for name, tree in modules():
        assigned: dict[str, list[tuple[int, ast.expr]]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                assigned.setdefault(node.targets[0].id, []).append((node.lineno, node.value))
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "shell"):
                continue
            # Of the other kind is a helper's, whose callers give the command.
            if isinstance(node.args[0], ast.Constant):
                yield f"{name}:{node.lineno}", list(words_of(node, assigned))


def words_of(call: ast.Call, assigned: dict[str, list[tuple[int, ast.expr]]]) -> Iterator[str]:
    """Return the words of a call, those of a variable by its last assignment before."""
    given: list[ast.expr] = []
    for node in call.args:
        if isinstance(node, ast.Starred):
            assert isinstance(node.value, ast.Name), ast.dump(node)
            before = [one for one in assigned[node.value.id] if one[0] <= call.lineno]
            value = max(before, key=itemgetter(0))[1]
            given += value.elts if isinstance(value, ast.Tuple) else [value]
        else:
            given.append(node)
    word = ""
    for node in given:
        word = str(node.value) if isinstance(node, ast.Constant) else VALUES.get(word, "1")
        yield word


@pytest.mark.parametrize(("place", "words"), [pytest.param(*one, id=one[0]) for one in calls()])
def test_a_command_of_a_message_is_understood(place: str, words: list[str]) -> None:
    """By the parser, with the connection and the person's note put in; further words come after these."""
    text = with_conn_id(shell(*words), "feeds").replace("--note ...", "--note seen")
    assert CONN_ID not in text
    given = parser().parse_args(text.split()[1:])
    assert getattr(given, "conn_id", "feeds") in ("feeds", None), place


def test_commands_of_messages_come_out_of_one_function() -> None:
    """No text names a command by itself: it would lack the connection."""
    for name, tree in modules():
        ours = docstrings(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in ours:
                for found in NAMED.findall(node.value):
                    assert not {found, found.split()[0]} & COMMANDS, f"{name}:{node.lineno}: {found}"


def test_commands_of_the_database_s_messages_name_the_connection() -> None:
    """Which the messages' readers then put in."""
    for path in sorted((PACKAGE / "sql").rglob("*.sql")):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert len(NAMED.findall(line)) == line.count(CONN_ID), f"{path.name}: {line.strip()[:200]}"


class _Task:
    changefeed_conn_id = "my feeds"

    @reports_errors
    def run(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (LeaseHeldError(f"held. {shell('leases')}"), LeaseHeldError),
        (StaleVersionError(f"stale. {shell('leases')}"), AirflowFailException),
        (AirflowFailException(f"failed. {shell('leases')}"), AirflowFailException),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_task_s_log_names_the_task_s_connection(error: Exception, raised: type[Exception]) -> None:
    """Instead of three dots that nobody can paste."""
    with pytest.raises(raised, match="airflow-changefeed leases --conn-id 'my feeds'") as caught:
        _Task().run(error)
    assert "..." not in str(caught.value)
