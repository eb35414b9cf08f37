# SPDX-License-Identifier: Apache-2.0
"""
Microsoft's model compiler: do the references of a whole database resolve? Only where .NET is loaded.

Its public ``Validate()`` leaves out where in the text a message belongs, so the method beneath it is called;
the assemblies are pinned by their hash, so it stays there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.tools.tsql.calls import call_findings
from tests.tools.tsql.findings import Finding, Job, Result, Text
from tests.tools.tsql.rules import static_findings
from tests.tools.tsql.temporary import Statement, in_words, ready
from tests.tools.tsql.tree import parse
from tests.tools.tsql.units import WRAPPER_SCHEMA, cut, without_stubs

CATALOG = Path(__file__).with_name("catalog.sql")
# What the model may report as unresolved: sp_executesql takes the parameters of the statement it is given.
MAY_BE_UNRESOLVED = ("[dbo].[sp_executesql].[@", "[sys].[sp_executesql].[@")


def compile_job(job: Job) -> Result:
    """Parse, apply the rules, and resolve all references; what cannot be parsed is reported alone."""
    wrong = [
        Finding(text.name, line, "syntax", error) for text in job.texts for line, error in parse(text.sql)[1]
    ]
    if wrong:
        return Result(tuple(wrong), 0)
    trees = {text: parse(text.sql)[0] for text in job.texts}
    if job.rules:
        wrong += [finding for text, tree in trees.items() for finding in _static(text, tree)]
        wrong += call_findings(trees)
    units = without_stubs([unit for text, tree in trees.items() for unit in cut(text.name, tree)])
    schema = Statement("the check itself", f"create schema [{WRAPPER_SCHEMA}]")
    model = _Model(job.server, [schema, *_catalog(), *ready(units, job.temporary)])
    wrong += model.findings()
    return Result(tuple(sorted(set(wrong))), len(units))


def _static(text: Text, tree: Any) -> list[Finding]:
    # Many jobs hold the same installation.
    if text not in _STATIC:
        _STATIC[text] = static_findings(text, tree)
    return _STATIC[text]


_STATIC: dict[Text, list[Finding]] = {}


@cache
def _catalog() -> list[Statement]:
    """Return stand-ins for the catalog views and system procedures, which the model does not know."""
    tree, _ = parse(CATALOG.read_text(encoding="utf-8"))
    return list(ready(list(cut(CATALOG.name, tree)), {}))


class _Model:
    """One database in the memory of the compiler."""

    def __init__(self, server: str, statements: Iterable[Statement]) -> None:
        from Microsoft.SqlServer.Dac.Model import (
            SqlServerVersion,
            TSqlModel,
            TSqlModelOptions,
            TSqlObjectOptions,
        )

        self._names: dict[str, str] = {}
        self._model = TSqlModel(getattr(SqlServerVersion, server), TSqlModelOptions())
        self._service = self._model.GetType().GetField("_service", _flags()).GetValue(self._model)
        self._call("SetThrowOnModelErrors", False)
        for number, statement in enumerate(statements):
            document = f"unit{number}"
            self._names[document] = statement.name
            self._model.AddOrUpdateObjects(statement.sql, document, TSqlObjectOptions())

    def findings(self) -> Iterator[Finding]:
        """Go over everything that the model cannot make sense of."""
        from System import Array, String

        for error in self._model.GetModelErrors():
            yield self._finding(error.SourceName, error.Line, error.Message)
        for error in self._call("GetModelValidationErrors", Array[String]([])):
            if not any(f"object {name}" in error.Message for name in MAY_BE_UNRESOLVED):
                yield self._finding(error.Document, error.Line, error.Message)

    def _finding(self, document: str | None, line: int, message: str) -> Finding:
        name = self._names.get((document or "").removeprefix("MSSQL::"), "the model")
        return Finding(name, line, "reference", in_words(message))

    def _call(self, method: str, argument: Any) -> Any:
        from System import Array, Object

        found = self._service.GetType().GetMethod(method, _flags())
        return found.Invoke(self._service, Array[Object]([argument]))


def _flags() -> Any:
    from System.Reflection import BindingFlags

    return BindingFlags.Instance | BindingFlags.NonPublic | BindingFlags.Public
