# SPDX-License-Identifier: Apache-2.0
"""The commands that the documentation prints: Airflow's parser, and ours, take each of them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.cli.cli_parser import get_parser

from airflow_changefeed.cli.changefeed import parser
from tests.examples import DOCS
from tests.unit.airflow.commands import described

PAGES = sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"])
_NAME = "airflow-changefeed"
#: Ends a command: what follows is another one's, or the shell's.
_OPERATORS = re.compile(r"[;<>|&()]+")


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
    """With its options; names that the message has from a variable are any."""
    found = []
    for file in sorted((DOCS.parent / "airflow_changefeed/sql").rglob("*.sql")):
        # A name that the message has from a variable is any.
        text = re.sub(r"', @\w+, N'|<<\w+>>", "name", file.read_text(encoding="utf-8"))
        commands = re.findall(r"airflow-changefeed ([^\n]*?) --conn-id \.\.\.", text)
        found += [(file.name, command.replace("...", "words")) for command in commands]
    assert len(found) > 4
    for name, text in found:
        words = shlex.split(text)
        try:
            parser().parse_args(words)
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
