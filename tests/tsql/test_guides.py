# SPDX-License-Identifier: Apache-2.0
"""The statements that the pages for DBAs give, where no test server executes them."""

from __future__ import annotations

import re

import pytest

from tests.examples import examples
from tests.tsql.conftest import Check

PAGE = "how-to/maintain-feeds.md#choose-how-a-feed-is-stored"


def test_the_statements_that_store_a_feed_in_another_way_compile(check: Check) -> None:
    """But for the name of an option that is younger than the compiler."""
    statements = examples(PAGE, {}, "sql")
    younger = [sql for sql in statements if "optimize_for_sequential_key" in sql]
    assert (len(statements), len(younger)) == (6, 1)
    for sql in statements:
        plain = sql.replace("optimize_for_sequential_key", "allow_row_locks")
        # The compiler knows the tables only by the statements that make them.
        found = check(f"create procedure dbo.tested as begin\nset nocount on;\n{plain}\nend", rules=False)
        unresolved = [one for one in found if one.rule != "reference"]
        assert unresolved == [], sql


@pytest.mark.parametrize(
    ("page", "number"),
    [
        ("how-to/install-on-sql-server.md#remove", -1),
        ("how-to/write-to-a-feed.md", 2),
        ("tutorial/first-export.md", -1),
        ("how-to/capture-changes.md", 1),
        *(("how-to/maintain-feeds.md#limit-what-a-feed-keeps", number) for number in range(2)),
        *(
            ("how-to/maintain-feeds.md#drain-and-purge-by-sql-server-agent", number)
            for number in (0, 2, 3, 4, 5)
        ),
    ],
)
def test_what_a_dba_begins_and_ends_with_compiles(check: Check, page: str, number: int) -> None:
    """Removing all, reading and writing events, looking at a capture, limits, purges, the agent's jobs."""
    sql = examples(page, {}, "sql")[number]
    found = check(f"create procedure dbo.tested as begin\nset nocount on;\n{sql}\nend", rules=False)
    assert [one for one in found if one.rule != "reference"] == [], sql


def test_an_error_of_msdb_leaves_no_half_of_a_job() -> None:
    """Its procedures use raiserror, which ends neither batch nor transaction outside of a try block."""
    script = examples("how-to/maintain-feeds.md#drain-and-purge-by-sql-server-agent", {}, "sql")[1]
    (tried,) = re.findall(
        r"begin try\s+begin transaction;(.*?)commit;\s+end try\s+begin catch", script, re.DOTALL
    )
    calls = re.findall(r"exec msdb\.dbo\.\w+", script)
    assert re.findall(r"exec msdb\.dbo\.\w+", tried) == calls != []
    assert re.search(r"begin catch\s+if @@trancount > 0 rollback;\s+throw;", script)


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("how-to/maintain-feeds.md#limit-what-a-feed-keeps", 2),
        ("how-to/maintain-feeds.md#drain-and-purge-by-sql-server-agent", 6),
    ],
)
def test_all_statements_of_a_page_are_compiled(page: str, count: int) -> None:
    """Above by their number, and the jobs of SQL Server Agent with the installation."""
    assert len(examples(page, {}, "sql")) == count
