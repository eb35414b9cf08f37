# SPDX-License-Identifier: Apache-2.0
"""Session variables of a server: set for a block, by each driver that is here, and gone after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import mssql_python
import pymssql
import pytest

from airflow_changefeed.capture.session import session_variables
from airflow_changefeed.sources.mssql import MssqlFeedSource
from tests.integration.mssql.server import Database

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LOOK = """
    select cast(session_context(N'tenant') as nvarchar(4000)),
           cast(session_context(N'traceparent') as nvarchar(4000))"""


def _by_mssql_python(description: dict[str, Any]) -> Any:
    mssql_python.pooling(enabled=False)
    return mssql_python.connect(**MssqlFeedSource(**description).database.server.keywords())


def _by_pymssql(description: dict[str, Any]) -> Any:
    return pymssql.connect(
        server=description["host"],
        port=str(description["port"] or 1433),
        user=description["user"],
        password=description["password"],
        database=description["database"],
    )


def _said(connection: Any) -> tuple[Any, ...]:
    with closing(connection.cursor()) as cursor:
        cursor.execute(LOOK)
        (row,) = cursor.fetchall()
    return tuple(row)


@pytest.mark.parametrize("connect", [_by_mssql_python, _by_pymssql])
def test_variables_hold_for_the_block_alone(
    empty_database: Database, connect: Callable[[dict[str, Any]], Any]
) -> None:
    """Also where its statement fails, and a transaction with it; the longest text goes through."""
    with closing(connect(empty_database.description)) as connection:
        for value in ("a'b; é %s ?", "", "x" * 4000):
            with session_variables(connection, {"tenant": value}, traceparent=TRACE):
                assert _said(connection) == (value, TRACE)
            assert _said(connection) == (None, None)
        with (
            pytest.raises(Exception, match=r"(?i)division by zero"),
            session_variables(connection, {"tenant": "a"}),
            closing(connection.cursor()) as cursor,
        ):
            cursor.execute("select 1 / 0")
        connection.rollback()
        assert _said(connection) == (None, None)
