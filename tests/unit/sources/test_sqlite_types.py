# SPDX-License-Identifier: Apache-2.0
"""SQLite types values, not columns: what is stored is exported unchanged, or the export stops."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.sources.sqlite import SqliteFeedSource

FEED = "shop.Order"
ALL = UlidRange(Ulid.MIN, Ulid.MAX)
DECLARED = (
    "integer",
    "bigint",
    "boolean",
    "bit",
    "real",
    "double precision",
    "numeric",
    "decimal(10, 2)",
    "text",
    "varchar(20)",
    "date",
    "datetime",
    "json",
    "uuid",
    "blob",
    "varbinary(8)",
    "",
)
VALUES = (7, -(2**63), 2**53 + 1, 2.5, 1e300, 2.0**63, float("inf"), "x", "", "7", "2.5", b"x", b"", b"7")
#: Rows around the value, of a batch of two: it is the first of all, or comes behind nulls alone.
PLACES = ((), (None,), (None, None, None))


def build(path: Path, declared: str) -> None:
    """Make a feed with a shard for each value and place."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'create table "{FEED}" (id integer primary key, c {declared})')
    SqliteFeedSource(str(path)).set_up_feed(FEED)
    number = 0
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma synchronous = off")
        for shard, (before, value) in enumerate((before, value) for before in PLACES for value in VALUES):
            for each in (*before, value, None):
                number += 1
                connection.execute(f'insert into "{FEED}" values (?, ?)', (number, each))
                connection.execute(
                    f'insert into "changefeed.outbox:{FEED}" (shard_id, id) values (?, ?)', (shard, number)
                )
        connection.commit()
    SqliteFeedSource(str(path)).drain(FEED)


def stored(path: Path) -> dict[int, list[Any]]:
    """Return what SQLite says it holds, by shard."""
    query = f"""
        select f.shard_id, e.c from "changefeed.feed:{FEED}" f join "{FEED}" e on e.id = f.id
        order by f.shard_id, f.ulid"""
    found: dict[int, list[Any]] = {}
    with closing(sqlite3.connect(path)) as connection:
        for shard, value in connection.execute(query):
            found.setdefault(shard, []).append(value)
    return found


def is_same(one: object, other: object) -> bool:
    """Whether a value is the stored one; a whole number may have become a float that is as large."""
    numbers = (int, float)
    return one == other and (type(one) is type(other) or (type(one) in numbers and type(other) in numbers))


@pytest.mark.parametrize("declared", DECLARED)
def test_every_value_is_exported_as_it_is_stored_or_refused(tmp_path: Path, declared: str) -> None:
    """Whatever a column is declared as and wherever the value stands, and by both readers alike."""
    path = tmp_path / "feeds.db"
    build(path, declared)
    refused: dict[str, dict[int, str]] = {"sqlite3": {}, "adbc": {}}
    for reader, shards in refused.items():
        source = SqliteFeedSource(str(path), bulk_reader=reader)
        for shard, values in stored(path).items():
            try:
                found = [
                    value
                    for batch in source.stream(FEED, shard, ALL, batch_rows=2)
                    for value in batch.column("c").to_pylist()
                ]
            except ColumnTypeError as error:
                shards[shard] = error.message
                continue
            assert len(found) == len(values)
            assert all(map(is_same, found, values)), f"{found} is not {values}"
    assert refused["sqlite3"].keys() == refused["adbc"].keys()
    for shards in refused.values():
        for shard, message in shards.items():
            assert message.startswith(f"feed '{FEED}' shard {shard}: column 'c', declared ")
    assert 0 < len(refused["adbc"]) < len(PLACES) * len(VALUES)
