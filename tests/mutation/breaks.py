# SPDX-License-Identifier: Apache-2.0
"""A break: a promise, a small change of a symbol of the package, and the tests that must fail with it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = "airflow_changefeed"


class StaleBreakError(Exception):
    """A break does not apply any more; the text says which symbol, and what is not in it once."""


@dataclass(frozen=True)
class Break:
    """
    A small change that breaks a promise.

    :param name: what it does, in snake case.
    :param promise: as docs/explanation/promises.md names it in bold.
    :param file: relative to the package's folder.
    :param symbol: in a module a function, class or constant, dotted where it is inside another one; empty in
        files of T-SQL, which hold one object each.
    :param changes: texts of the symbol, each of which stands in it once, and what replaces them.
    :param tests: node ids below the project; with the break at least one of them fails.
    :param says: expression that is found in what the failing tests print.
    :param needs_server: whether the tests need the server that ``CHANGEFEED_TEST_MSSQL`` names.
    """

    name: str
    promise: str
    file: str
    symbol: str
    changes: Mapping[str, str]
    tests: tuple[str, ...]
    says: str = ""
    needs_server: bool = False

    def apply(self, project: Path) -> None:
        """
        Break the package in a copy of the project.

        :raises StaleBreakError: the symbol or a text is not there once.
        """
        path = project / PACKAGE / self.file
        path.write_text(self.broken(path.read_text(encoding="utf-8")), encoding="utf-8")

    def broken(self, text: str) -> str:
        """
        Return the text of the file with the break.

        :raises StaleBreakError: the symbol or a text is not there once.
        """
        begin, end = self._extent(text)
        own = text[begin:end]
        for before, after in self.changes.items():
            if own.count(before) != 1:
                raise self._stale(before, own.count(before))
            own = own.replace(before, after)
        return text[:begin] + own + text[end:]

    def _extent(self, text: str) -> tuple[int, int]:
        """Return where the symbol begins and ends."""
        if not self.symbol:
            return 0, len(text)
        inside: list[ast.stmt] = ast.parse(text).body
        for name in self.symbol.split("."):
            named = [one for one in inside if name in _names(one)]
            if len(named) != 1:
                raise self._stale(self.symbol, len(named))
            inside = getattr(named[0], "body", [])
        lines = text.splitlines(keepends=True)
        last = named[0].end_lineno or named[0].lineno
        return len("".join(lines[: named[0].lineno - 1])), len("".join(lines[:last]))

    def _stale(self, text: str, count: int) -> StaleBreakError:
        return StaleBreakError(
            f"break {self.name}: {text!r} stands {count} times in {self.symbol or 'all'} of {self.file}; "
            "expected once. Write the break anew for what the code does now"
        )


def _names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement gives a value."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    targets = (
        statement.targets
        if isinstance(statement, ast.Assign)
        else [statement.target]
        if isinstance(statement, ast.AnnAssign)
        else []
    )
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
