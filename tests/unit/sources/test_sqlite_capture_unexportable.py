# SPDX-License-Identifier: Apache-2.0
"""Recorded values that no export can carry: each is named, with the statement that corrects it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.sources.sqlite_captures import ALL, CaptureFile

NAME = "flight_changes"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CaptureFile]:
    """Return a file whose table is captured; a date in it is a number to SQLite where it looks like one."""
    file = CaptureFile(
        tmp_path / "feeds.db",
        "create table flight (id integer primary key, day date, seats int, price real, code text, raw blob)",
    )
    file.enable("flight", key_change="delete_insert")
    yield file
    file.connection.close()


def refusal(source: SqliteFeedSource) -> tuple[str, str]:
    """Return what a read is refused with: the words, and the statement behind them."""
    source.drain(NAME)
    with pytest.raises(ColumnTypeError) as caught:
        list(source.stream(NAME, 0, ALL))
    words, _, statement = caught.value.message.partition("Then correct the recorded row: ")
    return words, statement


@pytest.mark.parametrize("reader", ["sqlite3", "adbc"])
def test_the_refusal_names_the_value_and_ends_in_the_statement(file: CaptureFile, reader: str) -> None:
    """To correct the captured table alone would not help; the message does not show the value itself."""
    file.sql("insert into flight (id, day) values (1, '2024-01-01'), (2, '2024')")
    words, statement = refusal(file.source if reader == "sqlite3" else file.quick_source)
    assert "column 'day' of table 'flight', declared 'date', cannot be exported unchanged" in words
    assert "the new row of event 2 holds another class (integer)" in words
    assert statement == """update "flight_changes" set "new_day" = '...' where changefeed_event = 2"""
    assert "'2024'" not in words


@pytest.mark.parametrize(
    ("column", "value", "given", "after"),
    [
        ("day", "'2024'", "'2024-05-01'", "2024-05-01"),
        ("day", "2.5", "null", None),
        ("seats", "'many'", "-12", -12),
        ("seats", "x'31'", "null", None),
        ("price", "'free'", "0.5", 0.5),
        ("code", "x'6162'", "'ab'", "ab"),
        ("code", "cast(x'ff' as text)", "'ÿ'", "ÿ"),
        ("raw", "'ab'", "x'6162'", b"ab"),
        ("raw", "7", "x'00ff'", b"\x00\xff"),
    ],
)
@pytest.mark.parametrize("reader", ["sqlite3", "adbc"])
def test_a_corrected_value_is_exported(
    file: CaptureFile, column: str, value: str, given: str, after: object, reader: str
) -> None:
    """Of every class, by both readers, once the statement has the right value; the table is left alone."""
    file.sql(f"insert into flight (id, {column}) values (1, {value})")
    before = file.sql(f"select typeof({column}) from flight")
    _, statement = refusal(file.source)
    place = next(one for one in ("x'...'", "'...'", "...") if one in statement)
    file.sql(statement.replace(place, given))
    assert file.sql(f"select typeof({column}) from flight") == before
    (event,) = file.events(NAME, source=file.source if reader == "sqlite3" else file.quick_source)
    assert event["new"][column] == after


def test_each_row_that_recorded_a_value_is_named_in_turn(file: CaptureFile) -> None:
    """The correction of a row is recorded with its old value, which is refused as well."""
    file.sql("insert into flight (id, day) values (1, 2024)", "update flight set day = '2024-01-01'")
    for image in ("new", "old"):
        words, statement = refusal(file.source)
        assert f"the {image} row of event {1 if image == 'new' else 2}" in words
        file.sql(statement.replace("...", "2024-01-01"))
    assert [(one["old"] or {}).get("day") for one in file.events(NAME)] == [None, "2024-01-01"]
