# SPDX-License-Identifier: Apache-2.0
"""Recorded values that no export can carry: they are named, and can be repaired; nothing else can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_changefeed.core.capture import RepairWay
from airflow_changefeed.exceptions import ColumnTypeError, InvalidArgumentError, StaleVersionError
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


def insert(file: CaptureFile, number: int, column: str, value: str) -> None:
    """Insert a row with one value, given as SQL."""
    file.sql(f"insert into flight (id, {column}) values ({number}, {value})")


def repair(source: SqliteFeedSource, way: RepairWay, value: str | None = None, **more: object) -> list[str]:
    """Repair; return what took the values' places."""
    given: dict[str, object] = {"note": "seen", "by": "anna", **more}
    done = source.repair_capture(NAME, way, value, **given)  # type: ignore[arg-type]
    return [one.after for one in done]


@pytest.mark.parametrize("reader", ["sqlite3", "adbc"])
def test_the_refusal_names_the_row_that_records_the_value_and_the_command(
    file: CaptureFile, reader: str
) -> None:
    """To correct the captured table alone would not help; the value itself is not told."""
    file.sql("insert into flight (id, day) values (1, '2024-01-01')")
    insert(file, 2, "day", "'2024'")
    source = file.source if reader == "sqlite3" else file.quick_source
    source.drain(NAME)
    with pytest.raises(ColumnTypeError) as caught:
        list(source.stream(NAME, 0, ALL))
    message = caught.value.message
    assert "column 'day' of table 'flight', declared 'date', cannot be exported unchanged" in message
    assert "recorded in 'flight_changes', in the row where changefeed_event = 2." in message
    assert f"airflow-changefeed capture repair {NAME} --conn-id" in message
    assert "'2024'" not in message


@pytest.mark.parametrize(
    ("column", "value", "way", "given", "after"),
    [
        ("day", "'2024'", RepairWay.CAST, None, "2024"),
        ("day", "'2024'", RepairWay.VALUE, "2024-05-01", "2024-05-01"),
        ("day", "2.5", RepairWay.NULL, None, None),
        ("seats", "'many'", RepairWay.VALUE, "-12", -12),
        ("seats", "x'31'", RepairWay.NULL, None, None),
        ("price", "'free'", RepairWay.VALUE, "0.5", 0.5),
        ("code", "x'6162'", RepairWay.CAST, None, "ab"),
        ("code", "cast(x'ff' as text)", RepairWay.VALUE, "ÿ", "ÿ"),
        ("raw", "'ab'", RepairWay.CAST, None, b"ab"),
        ("raw", "7", RepairWay.VALUE, "00ff", b"\x00\xff"),
    ],
)
@pytest.mark.parametrize("reader", ["sqlite3", "adbc"])
def test_a_repaired_value_is_exported(
    file: CaptureFile, column: str, value: str, way: RepairWay, given: str | None, after: object, reader: str
) -> None:
    """Of every class, in every way, by both readers; the captured table is left alone."""
    insert(file, 1, column, value)
    before = file.sql(f"select typeof({column}) from flight")
    source = file.source
    (found,) = source.unexportable_values(NAME)
    assert (found.event, found.image, found.column, found.ulid) == (1, "new", column, None)
    assert len(repair(source, way, given)) == 1
    assert source.unexportable_values(NAME) == []
    assert file.sql(f"select typeof({column}) from flight") == before
    reading = source if reader == "sqlite3" else file.quick_source
    (event,) = file.events(NAME, source=reading)
    assert event["new"][column] == after


def test_what_the_row_holds_now_takes_the_place_of_what_was_recorded(file: CaptureFile) -> None:
    """The correction of a row is recorded with its old value, which is repaired as well."""
    insert(file, 1, "day", "2024")
    file.sql("update flight set day = '2024-01-01' where id = 1")
    source = file.source
    assert [(one.event, one.image) for one in source.unexportable_values(NAME)] == [(1, "new"), (2, "old")]
    assert repair(source, RepairWay.PRESENT) == ["'2024-01-01'"] * 2
    assert [(one["old"] or {}).get("day") for one in file.events(NAME)] == [None, "2024-01-01"]


def test_a_repair_is_remembered_and_bumps_the_version(file: CaptureFile) -> None:
    """Who, when, why, and both values; whoever saw an earlier version is refused."""
    insert(file, 1, "day", "2024")
    insert(file, 2, "day", "2025")
    source = file.source
    version = source.capture(NAME).resource_version
    words = {"note": "from caf\udce9.txt", "by": "anna\0"}
    assert repair(source, RepairWay.CAST, event=1, resource_version=version, **words) == ["'2024'"]
    with pytest.raises(StaleVersionError):
        repair(source, RepairWay.CAST, resource_version=version)
    (done,) = source.capture_repairs(NAME)
    assert (done.event, done.table, done.image, done.column) == (1, "flight", "new", "day")
    assert (done.before, done.after) == ("2024", "'2024'")
    assert (done.repaired_by, done.note) == (r"anna\x00", r"from caf\udce9.txt")
    assert [one.event for one in source.unexportable_values(NAME)] == [2]
    source.drop_feed(NAME)
    file.enable("flight")
    assert source.capture_repairs(NAME) == []


def test_only_values_that_no_export_can_carry_are_replaced(file: CaptureFile) -> None:
    """An event that can be exported may have been; it stays as it is."""
    insert(file, 1, "day", "'2024-01-01'")
    before = file.events(NAME)
    for event in (None, 1):
        assert repair(file.source, RepairWay.NULL, event=event) == []
    assert file.events(NAME) == before


def test_trying_changes_nothing(file: CaptureFile) -> None:
    """And says what would be done."""
    insert(file, 1, "day", "2024")
    assert repair(file.source, RepairWay.CAST, dry_run=True) == ["'2024'"]
    assert len(file.source.unexportable_values(NAME)) == 1
    assert file.source.capture_repairs(NAME) == []


@pytest.mark.parametrize(
    ("column", "value", "way", "given", "message"),
    [
        ("seats", "2.5", RepairWay.CAST, None, "the real cannot be cast to integer without loss"),
        ("price", "'free'", RepairWay.CAST, None, "the text cannot be cast to real without loss"),
        ("raw", "7", RepairWay.CAST, None, "the integer cannot be cast to blob without loss"),
        ("seats", "'many'", RepairWay.VALUE, "few", "'few' is not a 64-bit integer"),
        ("seats", "'many'", RepairWay.VALUE, str(2**63), "is not a 64-bit integer"),
        ("price", "'free'", RepairWay.VALUE, "nan", "'nan' is not a finite number"),
        ("raw", "'ab'", RepairWay.VALUE, "0g", "'0g' is not bytes in hexadecimal digits"),
        ("day", "2024", RepairWay.VALUE, "\udce9", "is not a text: it has half a character"),
        ("day", "2024", RepairWay.PRESENT, None, "the table's row holds integer, which"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_place(
    file: CaptureFile, column: str, value: str, way: RepairWay, given: str | None, message: str
) -> None:
    """And nothing is repaired, not even what could be."""
    insert(file, 1, column, value)
    insert(file, 2, "code", "x'61'")
    with pytest.raises(InvalidArgumentError) as caught:
        repair(file.source, way, given)
    assert f"event 1, new row, column '{column}' of 'flight': " in caught.value.message
    assert message in caught.value.message
    assert len(file.source.unexportable_values(NAME)) == 2


def test_the_present_value_of_a_row_that_is_gone_is_refused(file: CaptureFile) -> None:
    """A person has to give one."""
    insert(file, 1, "day", "2024")
    file.sql("delete from flight")
    with pytest.raises(InvalidArgumentError, match="no longer has a row with that key; pass a value"):
        repair(file.source, RepairWay.PRESENT)
