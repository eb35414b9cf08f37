# SPDX-License-Identifier: Apache-2.0
"""What reads a captured table compiles: its keys of every type, and what is asked of the catalog."""

from __future__ import annotations

import pytest

from airflow_changefeed.core.capture import CapturedTable, CaptureShape, KeyChange, Operation
from airflow_changefeed.core.feed import Column
from airflow_changefeed.sources.base_capture import KeyCondition, KeyRange, key_text
from airflow_changefeed.sources.mssql.capture.table import FACTS, KeyColumn, SourceTable, key_form
from airflow_changefeed.sources.mssql.capture.table_query import TableQuery, next_bound
from airflow_changefeed.sources.mssql.feed.catalog import columns_sql
from airflow_changefeed.sources.mssql.feed.mapping import Exported, exported_columns
from tests.tools.tsql.check import install_texts
from tests.tools.tsql.findings import Text
from tests.tsql.conftest import Check
from tests.tsql.test_types import COLUMNS, EVENT_TABLE, SCHEMAS
from tests.unit.sources.mssql_feeds import make_feed

INDEX = Text("index.sql", "create unique index [PK] on [s].[T] (k)")


def _keys(columns: tuple[Column, ...]) -> tuple[KeyColumn, ...]:
    forms = [(column, key_form(column)) for column in columns]
    return tuple(
        KeyColumn(column, form, "Latin1_General_CI_AS", bool(number % 2))
        for number, (column, form) in enumerate(forms)
        if form is not None
    )


def _table(keys: tuple[KeyColumn, ...], shard_key_type: str = "int") -> SourceTable:
    feed = make_feed(columns=COLUMNS, shard_key_type=shard_key_type)
    fields = {column.name: column.name for column in COLUMNS}
    captured = CapturedTable((), {Operation.INSERT: fields}, False)
    shape = CaptureShape("s.T", KeyChange.NEW_ONLY, False, {"s.T": captured})
    exported = tuple(
        Exported(one.column, one.part, f"t.[{one.column.name}]")
        for one in exported_columns(feed, list(COLUMNS))
    )
    return SourceTable(feed, "s.T", "[s].[T]", shape, "PK", keys, exported, "0")


def _compile(check: Check, sql: str) -> list[str]:
    batch = f"create procedure s.tested (@p nvarchar(100)) as begin\n{sql.replace('?', '@p')}\nend"
    return [str(one) for one in check(batch, *SCHEMAS, EVENT_TABLE, INDEX, rules=False)]


@pytest.mark.parametrize("shard_key_type", ["int", "uniqueidentifier"])
def test_ranges_of_every_type_can_be_read(check: Check, shard_key_type: str) -> None:
    """By one key of all types that a key may have, in both directions."""
    keys = _keys(COLUMNS)
    assert len(keys) > 20
    text = key_text([0] * len(keys))
    source = _table(keys, shard_key_type)
    comparable = [key for key in keys if key.column.type.startswith(("bigint", "decimal", "date"))]
    conditions = tuple(KeyCondition(key.column.name, operator, 1) for key in comparable for operator in "<=")
    assert len(conditions) > 4
    query = TableQuery(source.feed, source, KeyRange(text, text), conditions)
    number = next(number for number, column in enumerate(query.columns) if column.part.is_text)
    for sql in (
        query.sql,
        query.sizes_sql,
        query.surrogates_sql(number),
        next_bound(source, (0,), 9, conditions)[0],
    ):
        assert _compile(check, sql) == []


def test_what_is_asked_of_the_catalog(check: Check) -> None:
    """Beside the installation, whose views it reads."""
    sql = FACTS.format(schema="[changefeed]", columns=columns_sql("changefeed", "readable_capture_tables"))
    batch = f"create procedure dbo.tested (@p nvarchar(100)) as begin\n{sql.replace('?', '@p')}\nend"
    assert check(batch, *install_texts("changefeed"), rules=False) == []


def test_a_column_that_is_not_there_is_found(check: Check) -> None:
    """The check above can fail."""
    source = _table(_keys((Column("none", "int"),)))
    assert any("none" in one for one in _compile(check, TableQuery(source.feed, source, KeyRange()).sql))
