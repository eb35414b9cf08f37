# SPDX-License-Identifier: Apache-2.0
"""Captures of a SQLite file whose tables are altered."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_changefeed.core.capture import Operation, TableCapture
from airflow_changefeed.exceptions import FeedSetupError
from tests.unit.sources.sqlite_captures import CaptureFile

NAME = "flight_changes"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CaptureFile]:
    """Return a file with a table that is not captured yet."""
    file = CaptureFile(
        tmp_path / "feeds.db", "create table flight (id integer primary key, status text, gate int)"
    )
    yield file
    file.connection.close()


def test_a_captured_column_is_not_dropped_behind_the_capture_s_back(file: CaptureFile) -> None:
    """SQLite refuses it, and writers go on; left out of the capture first, it goes."""
    file.enable("flight")
    with pytest.raises(sqlite3.OperationalError, match=r"error in trigger .*no such column: new\.gate"):
        file.sql("alter table flight drop column gate")
    file.sql("insert into flight values (1, 'a', 5)")
    info = file.source.refresh_capture(NAME, without=["gate"])
    assert info.shape.tables["flight"].columns[Operation.UPDATE] == {"id": "id", "status": "status"}
    assert info.drift == ("column 'gate' of 'flight' is not captured by insert, update, delete",)
    file.sql("alter table flight drop column gate", "insert into flight values (2, 'b')")
    assert file.source.capture(NAME).drift == ()
    assert file.changes(NAME) == [
        ("add", None, {"id": 1, "status": "a", "gate": 5}),
        ("ddl", None, None),
        ("add", None, {"id": 2, "status": "b", "gate": None}),
    ]
    file.sql("alter table flight add column gate text")
    with pytest.raises(
        FeedSetupError,
        match="'gate' of 'flight' is declared 'TEXT', which is incompatible with values recorded",
    ):
        file.source.refresh_capture(NAME)
    file.sql("insert into flight values (3, 'c', 'B2')")
    file.source.seal(NAME, file.source.now())


def test_a_key_that_the_shard_names_keeps_its_name(file: CaptureFile) -> None:
    """The expression is not ours to change; recording goes on meanwhile."""
    file.enable(TableCapture("flight", shard="id % 2"))
    file.sql("alter table flight rename column id to number", "insert into flight values (1, 'a', 5)")
    with pytest.raises(FeedSetupError, match="If a key column was renamed, rename it back"):
        file.source.refresh_capture(NAME)
    file.sql("alter table flight rename column number to id")
    assert file.source.refresh_capture(NAME).drift == ()
    assert len(file.changes(NAME, shards=(1,))) == 1


def test_a_column_that_is_added_is_captured_from_the_refresh_on(file: CaptureFile) -> None:
    """By operations that take all; those with chosen columns keep them."""
    file.enable(TableCapture("flight", delete=("id",)))
    file.sql("alter table flight add column seats int", "insert into flight values (1, 'a', 5, 180)")
    assert file.source.capture(NAME).drift == (
        "column 'seats' of 'flight' is not captured by insert, update",
    )
    info = file.source.refresh_capture(NAME)
    assert info.drift == ()
    assert info.shape.tables["flight"].columns[Operation.DELETE] == {"id": "id"}
    file.sql("update flight set seats = 200")
    row = {"id": 1, "status": "a", "gate": 5}
    assert file.changes(NAME) == [
        ("add", None, {**row, "seats": None}),
        ("ddl", None, None),
        ("upd", {**row, "seats": 180}, {**row, "seats": 200}),
    ]
    with pytest.raises(FeedSetupError, match="no column 'nope' to leave out"):
        file.source.refresh_capture(NAME, without=["nope"])
    with pytest.raises(FeedSetupError, match="table 'flight', delete: no column is left to record"):
        file.source.refresh_capture(NAME, without=["id"])
