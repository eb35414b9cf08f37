# SPDX-License-Identifier: Apache-2.0
"""
Stand-ins for temporary tables and table variables. Only for the process in which .NET is loaded.

The model compiler takes any column of a temporary table or a table variable. So each becomes a permanent
table of the model, and what refers to it refers to that. Where no definition is known the name stays, and is
reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.tools.tsql.tree import kind, parts, source, tokens, walk
from tests.tools.tsql.units import WRAPPER_SCHEMA, Unit, is_temporary

CALLER = "what the caller makes"
# A permanent table's name cannot begin with # or @.
_IN_MESSAGE = re.compile(rf"\[{WRAPPER_SCHEMA}\]\.\[temporary ([#@]\w+) \d+\]")
_WRAPPER = re.compile(rf"\[{WRAPPER_SCHEMA}\]\.\[batch \d+\]")


@dataclass(frozen=True)
class Statement:
    """
    One statement, ready for the model.

    :param name: of the text it comes from.
    :param sql: may begin with empty lines, so that lines count as in the text.
    """

    name: str
    sql: str


def ready(units: list[Unit], given: Mapping[str, str]) -> Iterator[Statement]:
    """
    Go over the statements of a job, with stand-ins for what is temporary.

    :param given: tables that a caller makes, ``#name`` to the columns in parentheses.
    """
    names = _Names()
    shared = {}
    for table, columns in given.items():
        shared[table.lower()] = names.new(table)
        yield Statement(CALLER, f"create table {shared[table.lower()]} {columns}")
    own: list[dict[str, str]] = []
    for unit in units:
        own.append({})
        for table, definition in _definitions(unit.tree):
            if table not in own[-1]:
                own[-1][table] = names.new(table)
                lines = unit.lines_before + definition.StartLine - unit.tree.StartLine
                sql = f"create table {own[-1][table]} ({source(definition)})"
                yield Statement(unit.name, "\n" * lines + sql)
    for made in own:
        # What one procedure makes, the procedures that it calls may use.
        shared = {table: stand_in for table, stand_in in made.items() if table.startswith("#")} | shared
    for unit, made in zip(units, own, strict=True):
        replace = dict(_replacements(unit.tree, shared | made))
        yield Statement(unit.name, "\n" * unit.lines_before + unit.sql(replace))


def in_words(message: str) -> str:
    """Put the temporary tables' own names back into a message, and leave out the wrappers'."""
    return _WRAPPER.sub("the batch", _IN_MESSAGE.sub(r"[\1]", message))


class _Names:
    """Names that no other stand-in has."""

    def __init__(self) -> None:
        self._count = 0

    def new(self, table: str) -> str:
        self._count += 1
        return f"[{WRAPPER_SCHEMA}].[temporary {table} {self._count}]"


def _definitions(tree: Any) -> Iterator[tuple[str, Any]]:
    """Go over the temporary tables and table variables that a statement makes."""
    for node in walk(tree):
        if kind(node) == "DeclareTableVariableBody":
            yield node.VariableName.Value.lower(), node.Definition
        elif is_temporary(node) and node.Definition is not None:
            yield node.SchemaObjectName.BaseIdentifier.Value.lower(), node.Definition


def _replacements(tree: Any, stand_ins: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    kept: set[int] = set()
    for node in walk(tree):
        if kind(node) == "SchemaObjectName" and len(parts(node)) > 1 and parts(node)[0].lower() == "tempdb":
            # The model has one database.
            yield from ((place, "") for place, _ in list(tokens(node))[: 3 if parts(node)[1] == "" else 2])
        if is_temporary(node):
            kept.update(place for place, _ in tokens(node.SchemaObjectName))
        elif kind(node) == "VariableTableReference":
            name = node.Variable.Name.lower()
            if name in stand_ins:
                yield node.Variable.FirstTokenIndex, stand_ins[name]
    for place, token in tokens(tree):
        if place not in kept and str(token.TokenType) in ("Identifier", "QuotedIdentifier"):
            name = token.Text.removeprefix("[").removesuffix("]").lower()
            if name.startswith("#") and name in stand_ins:
                yield place, stand_ins[name]
