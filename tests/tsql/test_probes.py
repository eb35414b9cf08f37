# SPDX-License-Identifier: Apache-2.0
"""The statements of the probes that no stand-in executes."""

from __future__ import annotations

import pytest

from airflow_changefeed.sql import fill
from tests.integration.mssql.probes import COARSE, CONTAINED, IS_ORPHAN, LOCK_MEMORY, MEMORY, ORPHAN
from tests.tsql.conftest import Check

TOKENS = {"database": "cf_1", "login": "orphan_1", "password": "x"}


@pytest.mark.parametrize("sql", [ORPHAN, IS_ORPHAN, LOCK_MEMORY, MEMORY, CONTAINED, COARSE])
def test_what_a_probe_asks_compiles(check: Check, sql: str) -> None:
    """But for views and procedures of the server, which the compiler does not know."""
    found = check(
        f"create procedure dbo.tested as begin\nset nocount on;\n{fill(sql, TOKENS)};\nend", rules=False
    )
    assert [one for one in found if one.rule != "reference"] == []
