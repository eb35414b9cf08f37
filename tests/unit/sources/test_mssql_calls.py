# SPDX-License-Identifier: Apache-2.0
"""Calls of procedures from Python against the files that create them, without a server."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from airflow_changefeed.sources import mssql
from airflow_changefeed.sources.mssql.feed.feed import call, parameter_types
from airflow_changefeed.sql import load_sql
from airflow_changefeed.sql.mssql import FEED

MODULES = [ast.parse(file.read_text("utf-8")) for file in Path(mssql.__file__).parent.rglob("*.py")]
FUNCTIONS = [node for module in MODULES for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
#: What calls a procedure, and how far behind its name the arguments are.
CALLERS = {
    "call": 1,
    "call_feed": 1,
    "call_for_all": 1,
    "_ask": 1,
    "_ask_capture": 1,
    "_ask_feeds": 1,
    "_change": 1,
    "_change_capture": 1,
    "_resolve": 2,
}


def _calls() -> Iterator[tuple[str, set[str]]]:
    """Go over all calls: the procedure, and the names of its arguments."""
    nested = {inner for outer in FUNCTIONS for inner in ast.walk(outer) if inner is not outer}
    for function in FUNCTIONS:
        for node in ast.walk(function) if function not in nested else ():
            behind = CALLERS.get(_name(node.func)) if isinstance(node, ast.Call) else None
            for place, given in enumerate(node.args if behind else ()):
                text = given.values[0] if isinstance(given, ast.JoinedStr) else given
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    arguments = node.args[place + behind : place + behind + 1] or [ast.Dict([], [])]
                    yield text.value.rstrip(":"), _keys(arguments[0], function)


def _keys(node: ast.AST, within: ast.AST) -> set[str]:
    """Return the keys of a dictionary, wherever its function has them from; fails where it cannot."""
    parts: list[ast.AST] = []
    match node:
        case ast.Constant():
            return {node.value}
        case ast.Dict():
            parts = [key or value for key, value in zip(node.keys, node.values, strict=True)]
        case ast.IfExp():
            parts = [node.body, node.orelse]
        case ast.BinOp(op=ast.BitOr()):
            parts = [node.left, node.right]
        case ast.Lambda():
            parts = [node.body]
        case ast.FunctionDef():
            parts, within = [each.value for each in node.body if isinstance(each, ast.Return)], node
        case ast.Call():
            parts = [each for each in FUNCTIONS if each.name == _name(node.func)]
            (home,) = (module for module in MODULES if within in ast.walk(module))
            parts = [each for each in parts if each in ast.walk(home)] or parts
        case _:
            name = _name(node)
            for each in ast.walk(within):
                match each:
                    case ast.FunctionDef() if each.name == name:
                        parts.append(each)
                    case ast.Assign(targets=[target]) if _name(target) == name:
                        parts.append(each.value)
                    case ast.Assign(targets=[ast.Subscript(value=target, slice=key)]) if (
                        _name(target) == name
                    ):
                        parts.append(key)
    assert parts or isinstance(node, ast.Dict), f"no keys found for {ast.unparse(node)}"
    return set().union(*(_keys(part, within) for part in parts))


def _name(node: ast.AST) -> str:
    return ast.unparse(node).rpartition(".")[2]


def test_every_procedure_that_is_called_has_a_file_with_every_argument_that_is_given() -> None:
    """Whoever calls it finds that out first."""
    calls = list(_calls())
    assert len(calls) >= 35
    for procedure, given in calls:
        assert given <= parameter_types(procedure).keys(), procedure


def test_a_text_of_a_person_or_a_handler_is_one_that_a_server_takes() -> None:
    """Escaped where it is half a character or NUL, and cut between characters."""
    given = {"number": 1, "state": "done", "by": "anna\0" + "\U0001f600" * 200, "note": "caf\udce9.txt"}
    _, *values = call("changefeed", "resolve_dead_letter", given)
    assert values == [1, "done", r"anna\x00" + "\U0001f600" * 124, r"caf\udce9.txt"]


def test_a_procedure_of_several_kinds_has_the_same_parameters_in_each() -> None:
    """Who calls it does not ask for the kind."""
    declared: dict[str, set[str]] = {}
    for file in FEED:
        if file.endswith(".procedure"):
            created = load_sql(f"mssql/feed/{file}.sql").partition("\ncreate or alter procedure ")[2]
            declared.setdefault(file.rpartition("/")[2], set()).add(created.partition("\nas\n")[0])
    assert {file for file, texts in declared.items() if len(texts) > 1} == set()


def test_a_header_names_every_error_that_its_file_throws() -> None:
    """So whoever calls it from T-SQL need not read on."""
    for file in Path(str(files("airflow_changefeed.sql.mssql"))).rglob("*.procedure.sql"):
        text = file.read_text("utf-8")
        head = text.partition("\ncreate or alter procedure ")[0]
        thrown = set(re.findall(r"\bthrow (\d+)", text))
        assert thrown <= set(re.findall(r"\b\d{5}\b", head)), file.name
