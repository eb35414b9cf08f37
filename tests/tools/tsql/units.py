# SPDX-License-Identifier: Apache-2.0
"""
Cut batches into what the model compiler takes. Only for the process in which .NET is loaded.

The model holds ``create`` statements, one at a time. So ``alter procedure`` becomes ``create procedure``,
what stands in ``if`` or in an executed literal is taken out of it, and statements that make no object are
wrapped in a procedure of their own so that their references are checked. Lines stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.tools.tsql.tree import executed_literal, kind, parse, parts, source, tokens, walk

WRAPPER_SCHEMA = "tsql_check"
_MODULES = ("Procedure", "Function", "View", "Trigger")
_CREATES = {f"Create{what}Statement" for what in (*_MODULES, "Table", "Index", "Schema", "Sequence", "Role")}
_CREATES |= {"CreateTypeTableStatement", "CreateTypeUddtStatement", "GrantStatement"}
_AGAIN = {f"{verb}{what}Statement" for verb in ("Alter", "CreateOrAlter") for what in _MODULES}
_NUMBERS = count()  # two wrappers of one name would be one object


@dataclass(frozen=True)
class Unit:
    """
    One statement for the model.

    :param name: of the text it comes from.
    :param tree: the statement, or the batch.
    :param lines_before: how many lines of that text stand before it.
    :param replace: other words for the tokens at these places.
    :param wrapper: what stands before and after the statement.
    """

    name: str
    tree: Any
    lines_before: int
    replace: Mapping[int, str] = field(default_factory=dict)
    wrapper: tuple[str, str] = ("", "")

    def module(self) -> tuple[str, ...]:
        """Return the name of a procedure, function, view or trigger; empty for anything else."""
        what = next((what for what in _MODULES if kind(self.tree).endswith(f"{what}Statement")), None)
        if what is None:
            return ()
        if what == "Procedure":
            name = self.tree.ProcedureReference.Name
        else:
            name = self.tree.SchemaObjectName if what == "View" else self.tree.Name
        return tuple(part.lower() for part in parts(name))

    def sql(self, replace: Mapping[int, str]) -> str:
        """Return the statement, with other words for some tokens."""
        return self.wrapper[0] + source(self.tree, {**self.replace, **replace}) + self.wrapper[1]


def without_stubs(units: list[Unit]) -> list[Unit]:
    """Leave out the empty modules that an installation makes where they are missing, to alter them then."""
    altered = {unit.module() for unit in units if kind(unit.tree) in _AGAIN}
    return [unit for unit in units if kind(unit.tree) in _AGAIN or unit.module() not in altered]


def cut(name: str, tree: Any, lines_before: int = 0) -> Iterator[Unit]:
    """Go over what the model needs of a parsed text."""
    for batch in tree.Batches:
        statements = list(batch.Statements)
        for statement in statements:
            yield from _objects(name, statement, lines_before)
        if any(kind(statement) not in _CREATES | _AGAIN for statement in statements):
            wrapper = f"create procedure [{WRAPPER_SCHEMA}].[batch {next(_NUMBERS)}] as begin ", "\nend"
            yield Unit(name, batch, lines_before + batch.StartLine - 1, wrapper=wrapper)


def _objects(name: str, statement: Any, lines_before: int) -> Iterator[Unit]:
    if kind(statement) in _CREATES | _AGAIN:
        if not is_temporary(statement):
            replace = dict(_as_create(statement)) if kind(statement) in _AGAIN else {}
            yield Unit(name, statement, lines_before + statement.StartLine - 1, replace)
        return
    for node in walk(statement):
        if node.Equals(statement):
            continue
        if kind(node) in _CREATES and not is_temporary(node):
            yield Unit(name, node, lines_before + node.StartLine - 1)
        literal = executed_literal(node)
        # One with parameters is parsed by a rule, but its variables are declared elsewhere.
        if literal is not None and (kind(node) == "ExecutableStringList" or node.Parameters.Count == 1):
            inner, errors = parse(literal.Value)
            if not errors:
                yield from cut(name, inner, lines_before + literal.StartLine - 1)


def _as_create(statement: Any) -> Iterator[tuple[int, str]]:
    """Replace `alter` and `create or alter`, the first words, by `create`."""
    for place, token in tokens(statement):
        if str(token.TokenType) in ("Procedure", "Proc", "Function", "View", "Trigger"):
            return
        if str(token.TokenType) in ("Create", "Or", "Alter"):
            yield place, "create" if str(token.TokenType) == "Alter" else ""


def is_temporary(statement: Any) -> bool:
    """Say whether a statement makes a temporary table."""
    if kind(statement) != "CreateTableStatement":
        return False
    return bool(statement.SchemaObjectName.BaseIdentifier.Value.startswith("#"))
