# SPDX-License-Identifier: Apache-2.0
"""One process with Microsoft's compiler for all tests; without Mono or the assemblies they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.tools.tsql.assemblies import fetch
from tests.tools.tsql.checker import Checker
from tests.tools.tsql.findings import Finding, Job, Text

SETTINGS = "set xact_abort, nocount on; set transaction isolation level read committed;"
TABLE = Text(
    "event.table.sql", "create table dbo.event (id int not null primary key, data nvarchar(10) null)"
)

Check = Callable[..., list[Finding]]


@pytest.fixture(scope="session")
def checker() -> Iterator[Checker]:
    """Start the compiler."""
    with Checker(fetch()) as running:
        yield running


@pytest.fixture
def check(checker: Checker) -> Check:
    """Compile a batch beside a table, and return what is found."""

    def run(sql: str, *more: Text, rules: bool = True, **temporary: str) -> list[Finding]:
        tables = {f"#{name}": columns for name, columns in temporary.items()}
        return list(checker.check(Job((TABLE, Text("tested.sql", sql), *more), tables, rules)).findings)

    return run


@pytest.fixture
def in_procedure(check: Check) -> Check:
    """Compile statements as a procedure's body, the first on line 3."""

    def run(statements: str, *more: Text, **temporary: str) -> list[Finding]:
        return check(
            f"create procedure dbo.tested (@n int) as begin\n{SETTINGS}\n{statements}\nend",
            *more,
            **temporary,
        )

    return run
