# SPDX-License-Identifier: Apache-2.0
"""The commands that the documentation and messages print: Airflow's parser, and ours, take each of them."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

import pytest
from airflow.cli.cli_parser import get_parser

import airflow_changefeed
from airflow_changefeed.cli.changefeed import parser
from airflow_changefeed.core.fault import CONN_ID, shell, with_conn_id
from airflow_changefeed.exceptions import LeaseHeldError, StaleVersionError
from airflow_changefeed.tasks.context import reports_errors
from airflow_changefeed.version_compat import AirflowFailException
from tests.examples import DOCS
from tests.unit.airflow.commands import described

PAGES = sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"])
_NAME = "airflow-changefeed"
#: Ends a command: what follows is another one's, or the shell's.
_OPERATORS = re.compile(r"[;<>|&()]+")


PACKAGE = Path(airflow_changefeed.__file__).parent
COMMANDS = {name for name, _ in described()}
#: Help texts name commands, and the parser itself has them.
SHOWN_BY_PARSER = ("cli/options/", "cli/changefeed.py", "core/fault.py")
#: What an option is given where its value is computed.
VALUES = {"--shard": "0", "--fencing-token": "1", "--change": "1", "--to": "2013-01-01T00:00:00Z"}
VALUES |= {"--before": "2013-01-01T00:00:00Z", "--until": "2013-01-01T00:00:00Z", "--max-age": "2h"}
NAMED = re.compile(r"airflow-changefeed ([a-z-]+(?: [a-z-]+)?)")


def _logical_lines(block: str, *, has_prompt: bool) -> Iterator[str]:
    """Join what a line continues, by a backslash or an open quote; of a session only what is typed."""
    typed = ""
    for line in block.splitlines():
        if not typed and has_prompt and not line.startswith("$ "):
            continue
        typed += line.removeprefix("$ ") if has_prompt and not typed else line
        try:
            shlex.split(typed, comments=True)
        except ValueError as unfinished:
            # Within quotes the shell keeps a backslash: it does not continue the line.
            typed = typed[:-1] if "escaped" in str(unfinished) else f"{typed}\n"
            continue
        yield typed
        typed = ""
    assert not typed, f"a quote is not closed: {typed}"


def _commands(line: str) -> Iterator[list[str]]:
    """Return each command of a line, also one that a variable keeps for later."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    command: list[str] = []
    for word in [*words, ";"]:
        if not _OPERATORS.fullmatch(word):
            command.append(word)
            continue
        while command and (setting := re.fullmatch(r"\w+=(.*)", command[0], re.DOTALL)):
            command = shlex.split(setting[1]) if setting[1].startswith(_NAME) else command[1:]
        if command:
            yield command
        command = []


def _printed(page: Path) -> list[str]:
    """Return all lines of the shell that a page prints."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^ *```(bash|console)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [
        line for language, block in found for line in _logical_lines(block, has_prompt=language == "console")
    ]


def printed(page: Path) -> list[list[str]]:
    """Return all commands of a page that are ours or Airflow's."""
    commands = (command for line in _printed(page) for command in _commands(line))
    return [command for command in commands if command[0] in (_NAME, "airflow")]


def _mentioned(page: Path) -> list[list[str]]:
    """Return the commands that stand within sentences, of which many are shortened."""
    spans = re.findall(r"(?<!`)`(airflow-changefeed [^`]+)`(?!`)", page.read_text(encoding="utf-8"))
    return [shlex.split(span.replace("\n", " ").partition(" > ")[0])[1:] for span in spans]


def test_each_printed_command_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """With its options and values, as it stands; a variable of the shell is a time."""
    parsers = {_NAME: parser(), "airflow": get_parser()}
    found = [(page, command) for page in PAGES for command in printed(page)]
    assert len(found) > 100
    refused = []
    for page, (program, *words) in found:
        try:
            parsers[program].parse_args([re.sub(r"\$[a-z]+", "2026-01-01T00:00:00Z", word) for word in words])
        except SystemExit as end:
            if end.code:
                refused.append((str(page), program, words, capsys.readouterr().err))
    assert refused == []


def test_each_command_in_a_message_of_t_sql_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """With its options, and with the connection, which who reads the message puts in."""
    found = []
    for file in sorted((PACKAGE / "sql").rglob("*.sql")):
        for line in file.read_text(encoding="utf-8").splitlines():
            assert len(NAMED.findall(line)) == line.count(CONN_ID), f"{file.name}: {line.strip()[:200]}"
        # A name that the message has from a variable is any.
        text = re.sub(r"', @\w+, N'|<<\w+>>", "name", file.read_text(encoding="utf-8"))
        commands = re.findall(r"airflow-changefeed ([^\n]*?) --conn-id \.\.\.", text)
        found += [(file.name, command.replace("...", "words")) for command in commands]
    assert len(found) > 4
    ours = parser()
    for name, text in found:
        words = shlex.split(text)
        try:
            ours.parse_args(words)
        except SystemExit:
            pytest.fail(f"{name}: {text}: {capsys.readouterr().err}")


def test_each_object_that_a_command_is_given_is_json() -> None:
    """As an argument, or as the value of a variable such as a connection."""
    found = 0
    for page in PAGES:
        for line in _printed(page):
            for word in shlex.split(line, comments=True):
                if given := re.fullmatch(r"(?:\w+=)?(\{.*\})", word, re.DOTALL):
                    json.loads(given[1])
                    found += 1
    assert found > 10


def test_each_mentioned_command_exists() -> None:
    """With the options that the sentence gives."""
    flags = {name: {flag for one in command.args for flag in one.flags} for name, command in described()}
    groups = {name.split()[0] for name in flags} - set(flags)
    for page in PAGES:
        for words in _mentioned(page):
            if words in (["--help"], ["..."]):
                continue
            name = " ".join(words[:2]) if words[0] in groups and len(words) > 1 else words[0]
            assert name in flags or name in groups, (str(page), words)
            given = {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)}
            assert given <= flags.get(name, set()), (str(page), words)


def modules(word: str) -> Iterator[tuple[str, ast.Module]]:
    """Return the modules whose texts are messages, and that have a word somewhere."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name, text = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
        if word in text and not name.startswith(SHOWN_BY_PARSER):
            yield name, ast.parse(text)


def docstrings(tree: ast.Module) -> set[int]:
    """Return what no message is made of."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, kinds)]
    return {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}


def calls() -> Iterator[tuple[str, list[str]]]:
    """Return all commands that messages are made of, with values in place of what is computed."""
    for name, tree in modules("shell("):
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


def test_a_command_of_a_message_is_understood() -> None:
    """By the parser, with the connection and the person's note put in; further words come after these."""
    found, ours = list(calls()), parser()
    assert len(found) > 20
    for place, words in found:
        text = with_conn_id(shell(*words), "feeds").replace("--note ...", "--note seen")
        assert CONN_ID not in text, place
        given = ours.parse_args(text.split()[1:])
        assert getattr(given, "conn_id", "feeds") in ("feeds", None), place


def test_commands_of_messages_come_out_of_one_function() -> None:
    """No text names a command by itself: it would lack the connection."""
    for name, tree in modules("airflow-changefeed "):
        ours = docstrings(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in ours:
                for found in NAMED.findall(node.value):
                    assert not {found, found.split()[0]} & COMMANDS, f"{name}:{node.lineno}: {found}"


class _Task:
    changefeed_conn_id = "my feeds"

    @reports_errors
    def run(self, error: Exception) -> None:
        raise error


def test_a_task_s_log_names_the_task_s_connection() -> None:
    """Instead of three dots that nobody can paste."""
    errors: list[tuple[Exception, type[Exception]]] = [
        (LeaseHeldError(f"held. {shell('leases')}"), LeaseHeldError),
        (StaleVersionError(f"stale. {shell('leases')}"), AirflowFailException),
        (AirflowFailException(f"failed. {shell('leases')}"), AirflowFailException),
    ]
    for error, raised in errors:
        with pytest.raises(raised, match="airflow-changefeed leases --conn-id 'my feeds'") as caught:
            _Task().run(error)
        assert "..." not in str(caught.value)
