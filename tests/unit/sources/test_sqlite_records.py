# SPDX-License-Identifier: Apache-2.0
"""How rows of the embedded bookkeeping are read and changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest

from airflow_changefeed.core.consumer import ConsumerSpec, Consumption
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.shared import Row
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.sources.sqlite.records import Records

TIME = datetime(2026, 3, 1, tzinfo=timezone.utc)
THINGS: Records[Row] = Records("thing", dict, "key")


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    """Give a database with a table of the bookkeeping."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            'create table "changefeed.thing" '
            "(key text, fencing_token integer, made_at_ms integer, resource_version integer)"
        )
        for key in ("a", "b"):
            values = {"key": key, "fencing_token": 7, "made_at": TIME, "resource_version": 1}
            THINGS.add(connection, values)
        yield connection


def found(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    """Return the rows as they are stored."""
    return connection.execute('select * from "changefeed.thing" order by key').fetchall()


STORED = [("a", 7, 1_772_323_200_000, 1), ("b", 7, 1_772_323_200_000, 1)]


def test_a_change_gives_the_next_version_and_returns_the_row(connection: sqlite3.Connection) -> None:
    """Of the row of the key alone."""
    (row,) = THINGS.change(
        connection, {"key": "a"}, {"fencing_token": 8}, expected_version=1, fencing_token=7
    )
    assert row == {"key": "a", "fencing_token": 8, "made_at": 1_772_323_200_000, "resource_version": 2}
    assert found(connection) == [("a", 8, 1_772_323_200_000, 2), STORED[1]]


@pytest.mark.parametrize(
    ("expected_version", "fencing_token", "made"),
    [(2, 7, "<="), (1, 6, "<="), (1, 7, ">"), (0, None, "<="), (1, 2**64, "<="), (-(2**63) - 1, 7, "<=")],
)
def test_a_change_that_expects_something_else_changes_nothing(
    connection: sqlite3.Connection, expected_version: int, fencing_token: int | None, made: str
) -> None:
    """Whichever of version, token and other conditions does not hold."""
    changed = THINGS.change(
        connection,
        {"key": "a", f"made_at {made}": TIME},
        {"fencing_token": 8},
        expected_version=expected_version,
        fencing_token=fencing_token,
    )
    assert changed == []
    assert found(connection) == STORED


def test_no_value_is_no_condition_where_rows_are_read_alone(connection: sqlite3.Connection) -> None:
    """Whoever forgets a key must neither change nor delete all rows."""
    assert [row["key"] for row in THINGS.find(connection, {"key": None})] == ["a", "b"]
    assert THINGS.change(connection, {"key": None}, {"fencing_token": 8}) == []
    assert THINGS.remove(connection, {"key": None}) == 0
    with pytest.raises(sqlite3.OperationalError, match=r"incomplete input|syntax error"):
        THINGS.remove(connection, {})
    assert found(connection) == STORED


def test_a_lease_of_a_fraction_of_a_second_is_stored_to_the_millisecond(tmp_path: Path) -> None:
    """A time that is more precise cannot be stored."""
    path = tmp_path / "feeds.db"
    with closing(sqlite3.connect(path)) as user:
        user.execute("create table t (id integer primary key)")
    source = SqliteFeedSource(str(path))
    source.set_up_feed("t")
    source.create_consumer(ConsumerSpec("reader", "t"), begin=Ulid.MIN, starts={0: Ulid.MIN}, by="me")
    row = source.acquire_leases("reader", "t", [0], holder="me", seconds=30.0004567).rows[0]
    session = source.open_session("reader", "t")
    with session.transaction():
        step = Consumption(0, row.ulid, row.resource_version, row.fencing_token, 20.1234567)
        assert session.consume(step).lease_holder == "me"
    session.close()
    assert source.acquire_leases("reader", "t", [0], holder="other", seconds=0.0125).rows == {}
