# SPDX-License-Identifier: Apache-2.0
"""
What a batch of T-SQL does about locks, in the order of its text. Only where .NET is loaded.

Each step is a line: a table that is read or written and its hints, an application lock, a call of a
procedure or table function of ours, the begin and the end of a transaction, a setting, an option of a table
that decides what is locked, or hints in a literal. Temporary tables, table variables and the catalog are left
out: nobody waits for them. A table is named without its schema and without the feed that follows the colon.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.tools.tsql.tree import kind, parse, parts, source, walk

_WRITES = {"InsertSpecification", "UpdateSpecification", "DeleteSpecification", "MergeSpecification"}
_CATALOG = {"sys", "information_schema", "tempdb", "msdb"}
_HINTS = re.compile(
    r"with\s*\((?:[\s,]*\b(?:updlock|x?lock|holdlock|serializable|repeatableread|readcommitted(?:lock)?|readpast"
    r"|readuncommitted|nolock|rowlock|paglock|tablockx?|snapshot|nowait|forceseek|forcescan)\b)+\s*\)",
    re.IGNORECASE,
)
# As they stand in the text: what they say is all there is.
_AS_WRITTEN = {
    *("PredicateSetStatement", "SetCommandStatement", "SetTransactionIsolationLevelStatement"),
    *("BeginTransactionStatement", "SaveTransactionStatement"),
    *("CommitTransactionStatement", "RollbackTransactionStatement"),
    "IndexStateOption",
}


def lock_steps(sql: str) -> list[str]:
    """
    Return the steps of a batch.

    :raises ValueError: it does not parse.
    """
    tree, errors = parse(sql)
    if errors:
        raise ValueError(f"line {errors[0][0]}: {errors[0][1]}")
    nodes = list(walk(tree))
    steps = [*_tables(nodes), *((node, step) for node in nodes for step in _others(node, nodes))]
    return [step for _, step in sorted(steps, key=lambda each: int(each[0].FirstTokenIndex))]


def _tables(nodes: list[Any]) -> Iterator[tuple[Any, str]]:
    """Go over the references to tables that others use too."""
    verbs, joins = {}, {}
    for node in nodes:
        if kind(node) in _WRITES:
            target = _written(node)
            verbs[target.FirstTokenIndex] = kind(node).removesuffix("Specification").lower()
        if kind(node) == "QualifiedJoin" and str(node.JoinHint) != "None":
            joins[node.SecondTableReference.FirstTokenIndex] = f" by {str(node.JoinHint).lower()} join"
    for node in nodes:
        if kind(node) != "NamedTableReference" or not _is_shared(parts(node.SchemaObject)):
            continue
        verb = verbs.get(node.FirstTokenIndex, "select")
        hints = sorted(str(hint.HintKind).lower() for hint in node.TableHints)
        listed = f" with ({', '.join(hints)})" if hints else ""
        yield node, f"{verb} {_short(node.SchemaObject)}{listed}{joins.get(node.FirstTokenIndex, '')}"


def _written(statement: Any) -> Any:
    """Return the reference to the table that is written: where the target is an alias, that of its `from`."""
    target, sources = statement.Target, getattr(statement, "FromClause", None)
    if kind(target) != "NamedTableReference" or sources is None:
        return target
    named = [
        node
        for node in walk(sources)
        if kind(node) == "NamedTableReference"
        and node.Alias is not None
        and (node.Alias.Value,) == parts(target.SchemaObject)
    ]
    return named[0] if named else target


def _is_shared(name: tuple[str, ...]) -> bool:
    return len(name) > 1 and not _CATALOG.intersection(part.lower() for part in name[:-1])


def _short(name: Any) -> str:
    return " ".join(parts(name)[-1].partition(":")[0].split())


def _others(node: Any, nodes: list[Any]) -> Iterator[str]:
    """Give the step that a node is, if it is one."""
    of = kind(node)
    if of in _AS_WRITTEN:
        yield " ".join(source(node).lower().rstrip("; \n").split())
    elif of == "NextValueForExpression":
        yield f"next value for {_short(node.SequenceName)}"
    elif of == "AlterTableSetStatement":
        for option in node.Options:
            yield f"alter {_short(node.SchemaObjectName)} (lock_escalation = {str(option.Value).lower()})"
    elif of == "ExecutableProcedureReference" and node.ProcedureReference.ProcedureReference is not None:
        name = node.ProcedureReference.ProcedureReference.Name
        if parts(name)[-1].lower() in _APPLOCKS:
            yield _APPLOCKS[parts(name)[-1].lower()](node, nodes)
        elif _is_shared(parts(name)):
            yield f"exec {_short(name)}"
    elif of == "SchemaObjectFunctionTableReference" and _is_shared(parts(node.SchemaObject)):
        yield f"exec {_short(node.SchemaObject)}"
    elif of == "StringLiteral":
        # What is executed later, or becomes part of a template.
        yield from (f"text {' '.join(found.lower().split())}" for found in _HINTS.findall(node.Value))


def _application_lock(node: Any, nodes: list[Any]) -> str:
    """Tell of an application lock: the resource, the mode, the owner and the role that may take it."""
    given = {each.Variable.Name.lower(): each.ParameterValue for each in node.Parameters if each.Variable}
    asked = [given.get(name) for name in ("@resource", "@lockmode", "@lockowner", "@dbprincipal")]
    resource, mode, owner, role = ("-" if each is None else _value(each, nodes) for each in asked)
    return f"lock {resource}: {mode.lower()}, of the {owner.lower()}, for {role}"


def _value(expression: Any, nodes: list[Any]) -> str:
    """Return a literal's value, or what a variable is declared as."""
    if kind(expression) == "VariableReference":
        for node in nodes:
            if kind(node) == "DeclareVariableElement" and node.VariableName.Value == expression.Name:
                return source(node.Value) if node.Value is not None else str(expression.Name)
    return str(expression.Value) if kind(expression).endswith("Literal") else source(expression)


_APPLOCKS: dict[str, Callable[[Any, list[Any]], str]] = {
    "sp_getapplock": _application_lock,
    "sp_releaseapplock": lambda node, nodes: "un" + _application_lock(node, nodes),
}
