# SPDX-License-Identifier: Apache-2.0
"""What a stream selects of each type compiles, for both kinds of feeds."""

from __future__ import annotations

import pytest

from airflow_changefeed.core.feed import Column, FeedKind
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources.mssql.feed.query import RangeQuery
from tests.mssql_types import CASES, ROWVERSION
from tests.tools.tsql.findings import Text
from tests.tsql.conftest import Check
from tests.unit.sources.mssql_feeds import make_feed

#: Newer than the compiler.
NEWER = ("json",)
COLUMNS = (
    Column("k", "int"),
    *(
        Column(f"c{number}", case.type)
        for number, case in enumerate([*CASES, ROWVERSION])
        if case.type not in NEWER
    ),
)
FEED_TABLE = Text(
    "feed.table.sql",
    "create table [changefeed].[feed:s.T] (shard_id int not null, ulid binary(16) not null, k int not null)",
)
EVENT_TABLE = Text(
    "types.table.sql",
    "create table [s].[T] (shard int not null, ULID binary(16) not null, "
    + ", ".join(f"{column.name} {column.type} {'not ' * (column.name == 'k')}null" for column in COLUMNS)
    + ")",
)
SCHEMAS = [Text(f"{name}.schema.sql", f"create schema [{name}]") for name in ("s", "changefeed")]


def _query(kind: FeedKind, only: tuple[str, ...] | None) -> RangeQuery:
    names = {"ulid_column": "ULID", "shard_column": "shard"} if kind is FeedKind.SERIALIZED else {}
    feed = make_feed(kind, columns=COLUMNS, **names)
    return RangeQuery(feed, 0, UlidRange(Ulid.MIN, Ulid.MAX), "fail", only)


@pytest.mark.parametrize("only", [None, ("k",)], ids=["all", "key"])
@pytest.mark.parametrize("kind", list(FeedKind))
def test_all_types_can_be_selected(check: Check, kind: FeedKind, only: tuple[str, ...] | None) -> None:
    """By the stream, by the question for lengths, and by that for texts; or nulls of all these types."""
    query = _query(kind, only)
    text = next(number for number, column in enumerate(query.columns) if column.part.is_text)
    differing, _ = query.differing_sql(text, {Ulid.MIN: "a", Ulid.MAX: "b"})
    for sql in (query.sql, query.sizes_sql, query.end_sql(10)[0], differing):
        batch = f"create procedure s.tested (@p varbinary(100)) as begin\n{sql.replace('?', '@p')}\nend"
        assert check(batch, *SCHEMAS, FEED_TABLE, EVENT_TABLE, rules=False) == []


def test_a_column_that_is_not_there_is_found(check: Check) -> None:
    """The check above can fail."""
    query = RangeQuery(
        make_feed(columns=(Column("k", "int"), Column("none", "int"))),
        0,
        UlidRange(Ulid.MIN, Ulid.MAX),
        "fail",
    )
    batch = f"create procedure s.tested (@p0 int) as begin\n{query.sql.replace('?', '@p0')}\nend"
    found = check(batch, *SCHEMAS, FEED_TABLE, EVENT_TABLE, rules=False)
    assert any("none" in str(one) for one in found)
