# SPDX-License-Identifier: Apache-2.0
"""The schema guard, a trigger that its procedure creates from a text, compiles as the server gets it."""

from __future__ import annotations

import re

import pytest

from airflow_changefeed.sql import fill, load_sql
from airflow_changefeed.sql.mssql import install_tokens
from tests.tools.tsql.checker import Checker
from tests.tools.tsql.findings import AZURE, OLDEST, Job, Text

PROCEDURE = """
create procedure [changefeed].[check_captured_tables] (
    @event nvarchar(128) = null, @table_schema nvarchar(128) = null, @table_name nvarchar(128) = null,
    @added nvarchar(max) = null, @statement nvarchar(max) = null
)
as
begin
    return;
end
"""


@pytest.mark.parametrize("server", [OLDEST, AZURE])
def test_the_schema_guard_compiles(checker: Checker, server: str) -> None:
    """With what it reads of the statement that fired it."""
    text = fill(load_sql("mssql/install/guard_schema.procedure.sql"), install_tokens("changefeed"))
    found = re.search(r"= N'(-- Refuses.*?\nend)';", text, re.DOTALL)
    assert found is not None
    # The compiler's model takes no user without login.
    trigger = found[1].replace("''", "'").replace(" with execute as 'changefeed.guard'", "")
    assert "eventdata()" in trigger
    texts = (
        Text("schema.sql", "create schema [changefeed]"),
        Text("procedure.sql", PROCEDURE),
        Text("guard.sql", trigger.replace("create or alter trigger", "create trigger")),
    )
    assert list(checker.check(Job(texts, rules=False, server=server)).findings) == []
