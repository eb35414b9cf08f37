# SPDX-License-Identifier: Apache-2.0
"""
Rules on calls of our own procedures, over all texts of a job. Only for the process in which .NET is loaded.

The model compiler finds a call by a parameter's name that does not exist, but neither one that leaves out a
parameter nor one that gives too many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.tools.tsql.findings import Finding, Text
from tests.tools.tsql.rules import PROCEDURES
from tests.tools.tsql.tree import kind, parts, walk


@dataclass(frozen=True)
class _Procedure:
    parameters: frozenset[str]
    required: frozenset[str]
    output: frozenset[str]


def call_findings(trees: Mapping[Text, Any]) -> list[Finding]:
    """Check every call of a procedure that one of the texts makes."""
    procedures: dict[tuple[str, ...], _Procedure] = {}
    for tree in trees.values():
        procedures.update(_procedures(tree))
    return [
        Finding(text.name, line, "call", message)
        for text, tree in trees.items()
        for line, message in _calls(tree, procedures)
    ]


def _key(name: Any) -> tuple[str, ...]:
    return tuple(part.lower() for part in parts(name))


def _procedures(tree: Any) -> Iterator[tuple[tuple[str, ...], _Procedure]]:
    for node in walk(tree):
        if kind(node) in PROCEDURES:
            all_of_them = list(node.Parameters)
            names = frozenset(parameter.VariableName.Value.lower() for parameter in all_of_them)
            required = frozenset(p.VariableName.Value.lower() for p in all_of_them if p.Value is None)
            output = frozenset(
                p.VariableName.Value.lower() for p in all_of_them if str(p.Modifier) == "Output"
            )
            yield _key(node.ProcedureReference.Name), _Procedure(names, required, output)


def _calls(tree: Any, procedures: Mapping[tuple[str, ...], _Procedure]) -> Iterator[tuple[int, str]]:
    for node in walk(tree):
        if kind(node) != "ExecutableProcedureReference" or node.ProcedureReference.ProcedureReference is None:
            continue
        name = node.ProcedureReference.ProcedureReference.Name
        called = procedures.get(_key(name))
        if called is not None:
            for problem in _problems(list(node.Parameters), called):
                yield node.StartLine, f"the call of {'.'.join(parts(name))} {problem}"


def _problems(given: list[Any], called: _Procedure) -> Iterator[str]:
    if any(parameter.Variable is None for parameter in given):
        yield "does not name every argument"
        return
    names = {parameter.Variable.Name.lower() for parameter in given}
    for name in sorted(called.required - names):
        yield f"leaves out {name}"
    for parameter in given:
        name = parameter.Variable.Name.lower()
        if parameter.IsOutput and name in called.parameters - called.output:
            yield f"takes {name} as output, which it is not"
