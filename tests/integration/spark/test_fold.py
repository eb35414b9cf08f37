# SPDX-License-Identifier: Apache-2.0
"""Folding a capture's export with Spark: the state at every sealed time, or why it is not known."""

from __future__ import annotations

from datetime import date, datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.capture import KeyChange, Operation
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import FoldError, own_error
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.fold_plan import FoldTask
from airflow_changefeed.lake.states import new_attempt
from airflow_changefeed.spark.fold import fold, run_fold
from tests.examples import examples, run_example
from tests.integration.spark.shoes import History
from tests.unit.export.captures import (
    CAPTURE,
    HOUR,
    IMAGE,
    TABLE,
    CapturedExport,
    Event,
    fold_in_python,
    minute,
    reshaped,
    shape,
    shoe,
)
from tests.unit.export.flights import START, hours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

WHOLE_DAY = Window(START, START + 24 * HOUR)


@pytest.fixture
def export(tmp_path: Path) -> CapturedExport:
    """An empty output of a capture that began with its table."""
    return CapturedExport.create(tmp_path / "out")


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of a state, by key."""
    return sorted(
        (row.asDict(recursive=True) for row in frame.collect()), key=lambda row: next(iter(row.values()))
    )


def state(spark: SparkSession, export: CapturedExport, **options: Any) -> list[dict[str, Any]]:
    """Fold, and return the rows by key."""
    return rows(fold(spark, export.store.path, CAPTURE, **options))


def test_every_sealed_time_gives_the_table_of_then(spark: SparkSession, export: CapturedExport) -> None:
    """A random history in three shards, one of which begins later, files of several parts and idle hours."""
    history, tables = History(7), []
    for hour in range(6):
        history.run(hour, 0 if hour == 3 else 150)
        tables.append([history.table[key] for key in sorted(history.table)])
        history.export(export, hour, files=1 + hour % 3)
    for hour, expected in enumerate(tables):
        end = START + (hour + 1) * HOUR
        assert fold_in_python(history.events, end) == expected
        assert state(spark, export, at=end) == expected
    assert state(spark, export) == tables[-1]
    within = START + 2.5 * HOUR
    assert state(spark, export, at=within) == fold_in_python(history.events, within)


@pytest.mark.ci
def test_rows_that_are_being_recorded_are_no_state_yet(spark: SparkSession, export: CapturedExport) -> None:
    """Changes come before and behind their row meanwhile; before it and once it has ended all is known."""
    export.write(
        [
            Event(minute(1), "add", None, shoe(0)),
            Event(minute(10), "reset"),
            Event(minute(11), "upd", shoe(0), shoe(0, "clog")),
            Event(minute(12), "del", shoe(3)),
            Event(minute(13), "add", None, shoe(0, "clog"), number=1, is_snapshot=True),
            Event(minute(14), "add", None, shoe(6)),
            Event(minute(15), "add", None, shoe(6), is_snapshot=True),
            Event(minute(16), "del", shoe(6)),
            Event(minute(20), "ready"),
            Event(minute(21), "add", None, shoe(9)),
        ]
    )
    # Its first events came while the rows were recorded: nothing to discard.
    export.write(
        [
            Event(minute(11), "upd", shoe(1), shoe(1, "clog")),
            Event(minute(17), "add", None, shoe(1, "clog"), is_snapshot=True),
            Event(minute(17), "add", None, shoe(4), number=1, is_snapshot=True),
            Event(minute(20), "ready"),
        ],
        shard=1,
    )
    assert state(spark, export, at=minute(10)) == [shoe(0)]
    for within in (11, 15, 20):
        with pytest.raises(FoldError, match=r"have been recorded since .*10:00.* fold a later time, or take"):
            fold(spark, export.store.path, CAPTURE, at=minute(within))
    assert state(spark, export, at=minute(21)) == [shoe(0, "clog"), shoe(1, "clog"), shoe(4)]
    assert state(spark, export) == [shoe(0, "clog"), shoe(1, "clog"), shoe(4), shoe(9)]
    export.write([Event(minute(65), "upd", shoe(12), shoe(12, "clog"))], hours(1, 2)[0])
    export.write([], hours(1, 2)[0], shard=1)
    with pytest.raises(Exception, match="no earlier event has inserted"):
        state(spark, export)


#: Facts of changed columns without values that older rows do not have; the table has no weight any more.
NO_COLUMNS = '{"unrecorded":[]}'
WEIGHT = '{"unrecorded":["weight"]}'


@pytest.mark.ci
def test_changed_columns_are_no_changes_of_rows(spark: SparkSession, export: CapturedExport) -> None:
    """The event of them leaves every row as it was: at its time, later, and before a first row of a shard."""
    export.write(
        [
            Event(minute(1), "add", None, shoe(3)),
            Event(minute(2), "ddl", ddl=NO_COLUMNS),
            Event(minute(3), "upd", shoe(3), shoe(3, "clog")),
            Event(minute(4), "ddl", ddl=WEIGHT),
        ]
    )
    export.write([Event(minute(2), "ddl", ddl=NO_COLUMNS), Event(minute(5), "add", None, shoe(4))], shard=1)
    assert state(spark, export, at=minute(3)) == [shoe(3)]
    assert state(spark, export) == [shoe(3, "clog"), shoe(4)]


@pytest.mark.ci
def test_values_that_no_event_has_are_refused(spark: SparkSession, export: CapturedExport) -> None:
    """By the column's present name; a renamed column keeps its field."""
    export.shape = reshaped(
        shape(), columns={one: {"id": "id", "label": "name", "price": "price"} for one in Operation}
    )
    changed = Event(minute(2), "ddl", ddl='{"unrecorded":["name"]}')
    export.write([Event(minute(1), "add", None, shoe(3)), changed])
    with pytest.raises(FoldError, match=rf"event {changed.ulid}.*'label' in older rows.*resolve_capture"):
        fold(spark, export.store.path, CAPTURE)
    assert len(state(spark, export, at=minute(2))) == 1


@pytest.mark.ci
def test_a_table_that_is_empty_now_keeps_its_columns(spark: SparkSession, export: CapturedExport) -> None:
    """All rows deleted; nothing behind a reset; and no event yet."""
    export.write([], hours(0, 1)[0])
    export.write([Event(minute(70), "add", None, shoe(1)), Event(minute(80), "del", shoe(1))], hours(1, 2)[0])
    export.write([Event(minute(130), "reset"), Event(minute(131), "ready")], hours(2, 3)[0])
    for hour in range(1, 4):
        frame = fold(spark, export.store.path, CAPTURE, at=START + hour * HOUR)
        assert frame.collect() == []
        assert frame.dtypes == [("id", "bigint"), ("name", "string"), ("price", "decimal(9,2)")]


@pytest.mark.ci
def test_a_capture_without_a_snapshot_is_refused_until_a_reset(
    spark: SparkSession, export: CapturedExport
) -> None:
    """In each shard that there was; one that began later needs none."""
    export.shape = reshaped(shape(), is_whole=False)
    for shard in (0, 1):
        export.write([Event(minute(10), "add", None, shoe(shard))], shard=shard)
    with pytest.raises(FoldError, match=r"rows that existed.*resolve_capture"):
        fold(spark, export.store.path, CAPTURE)
    hour = hours(1, 2)[0]
    snapshot = Event(minute(70), "add", None, shoe(3), number=1, is_snapshot=True)
    export.write([Event(minute(70), "reset"), snapshot, Event(minute(71), "ready")], hour)
    export.write([], hour, shard=1)
    export.write([Event(minute(75), "add", None, shoe(5))], hour, shard=2)
    with pytest.raises(FoldError, match="rows that existed") as refused:
        fold(spark, export.store.path, CAPTURE)
    assert refused.value.shards == ["1"]
    late = [Event(minute(130), "reset", captured_at=minute(70)), Event(minute(131), "ready")]
    export.write(late, hours(2, 3)[0], shard=1)
    for shard in (0, 2):
        export.write([], hours(2, 3)[0], shard=shard)
    assert state(spark, export) == [shoe(3), shoe(5)]
    with pytest.raises(FoldError, match="rows that existed"):
        fold(spark, export.store.path, CAPTURE, at=minute(60))


@pytest.mark.ci
def test_what_a_gap_made_unsure_is_refused_until_a_later_reset(
    spark: SparkSession, export: CapturedExport
) -> None:
    """What was sealed before the gap was found is told as ever; a reset of an earlier gap does not help."""
    export.write([Event(minute(10), "add", None, shoe(1))])
    export.write(
        [
            Event(minute(70), "reset"),
            Event(minute(70), "add", None, shoe(2), number=1),
            Event(minute(71), "ready"),
        ],
        hours(1, 2)[0],
    )
    gap = (minute(60), minute(80))
    export.shape = reshaped(shape(), gaps=((minute(0), minute(65)), gap))
    export.write([Event(minute(130), "add", None, shoe(3))], hours(2, 3)[0])
    for at in (minute(120), minute(180)):
        with pytest.raises(FoldError, match=r"the capture missed changes.*resolve_capture"):
            fold(spark, export.store.path, CAPTURE, at=at)
    rows = [
        Event(minute(190), "reset"),
        Event(minute(190), "add", None, shoe(4), number=1),
        Event(minute(191), "ready"),
    ]
    export.write(rows, hours(3, 4)[0])
    assert state(spark, export) == [shoe(4)]
    export.shape = reshaped(shape(), gaps=(gap,))
    export.write([], hours(4, 5)[0])
    export.write([Event(minute(310), "add", None, shoe(5))], hours(5, 6)[0])
    (row,) = fold(spark, export.store.path, CAPTURE, at=minute(60)).collect()
    assert row["id"] == shoe(1)["id"]


def test_an_export_that_begins_too_late_is_refused_without_events_too(
    spark: SparkSession, export: CapturedExport
) -> None:
    """An idle export is no proof of an empty table."""
    export.shape = shape(begun_at=START - HOUR)
    export.write([], hours(0, 1)[0])
    export.write([Event(minute(70), "add", None, shoe(1))], hours(1, 2)[0])
    for hour in (1, 2):
        with pytest.raises(FoldError, match=r"enabled at 2012-12-31T23:00:00Z"):
            fold(spark, export.store.path, CAPTURE, at=START + hour * HOUR)


def test_a_change_of_a_row_that_was_never_added_fails_the_computation(
    spark: SparkSession, export: CapturedExport
) -> None:
    """Events are missing, though no unit is; the error is one of ours within Spark's."""
    orphan = Event(minute(5), "upd", shoe(7), shoe(7, "clog"))
    export.write([Event(minute(4), "add", None, shoe(1)), orphan])
    frame = fold(spark, export.store.path, CAPTURE)
    with pytest.raises(Exception, match="FoldError") as failed:
        frame.collect()
    error = own_error(failed.value)
    assert isinstance(error, FoldError)
    assert f"event {orphan.ulid} changes a row" in error.message


@pytest.mark.ci
def test_a_key_that_changes_for_people_only_moves_its_row(
    spark: SparkSession, export: CapturedExport
) -> None:
    """A database that takes two texts for one key says update; the old bytes are gone all the same."""
    export.shape = reshaped(shape(key_change=KeyChange.DELETE_INSERT), key_columns=("id", "name"))
    first, second, third = shoe(1, "Boot"), shoe(1, "boot"), shoe(1, "BOOT ", "12.00")
    export.write(
        [
            Event(minute(1), "add", None, first),
            Event(minute(2), "upd", first, second),
            Event(minute(3), "upd", second, third),
            Event(minute(4), "add", None, shoe(2, "clog")),
        ]
    )
    assert state(spark, export) == [third, shoe(2, "clog")]
    assert state(spark, export, at=minute(3)) == [second]


@pytest.mark.ci
@pytest.mark.parametrize("rule", list(KeyChange))
def test_a_null_key_is_refused_and_never_folded_into_one_row(
    spark: SparkSession, export: CapturedExport, rule: KeyChange
) -> None:
    """Also where its row is gone again, or a part of the key is there; behind a reset it does not count."""
    export.shape = reshaped(shape(key_change=rule), key_columns=("id", "name"))
    first = Event(minute(2), "add", None, shoe(1, None))
    export.write(
        [
            Event(minute(1), "add", None, shoe(1)),
            first,
            Event(minute(3), "add", None, shoe(1, None, "12.00")),
            Event(minute(4), "del", shoe(1, None)),
        ]
    )
    for at in (minute(2.5), START + HOUR):
        with pytest.raises(Exception, match="FoldError") as failed:
            fold(spark, export.store.path, CAPTURE, at=at).collect()
        error = own_error(failed.value)
        assert isinstance(error, FoldError)
        assert f"event {first.ulid} has null in a key column" in error.message
    assert state(spark, export, at=minute(2)) == [shoe(1)]
    again = Event(minute(71), "add", None, shoe(1, "boot"), is_snapshot=True)
    export.write([Event(minute(70), "reset"), again, Event(minute(72), "ready")], hours(1, 2)[0])
    assert state(spark, export) == [shoe(1, "boot")]


@pytest.mark.ci
def test_what_a_second_column_holds_is_part_of_the_row_and_of_its_key(
    spark: SparkSession, export: CapturedExport
) -> None:
    """Two keys 100 ns apart are two rows; an instant is one key whatever its offset."""
    export.image = pa.schema(
        [
            ("at", pa.timestamp("us")),
            ("at_100ns", pa.uint8()),
            ("due", pa.timestamp("us", "UTC")),
            ("due_offset_minutes", pa.int16()),
            ("any", pa.string()),
            ("any_type", pa.string()),
        ]
    )
    names = ("at", "due", "any")
    same = {name: name for name in names}
    columns = dict.fromkeys(Operation, same)
    export.shape = reshaped(shape(), columns=columns, key_columns=names)
    moment, due = datetime(2020, 1, 1), datetime(2020, 1, 2, tzinfo=timezone.utc)

    def row(ticks: int, offset: int, kind: str) -> dict[str, Any]:
        return dict(zip(export.image.names, (moment, ticks, due, offset, "1", kind), strict=True))

    export.write(
        [
            Event(minute(1), "add", None, row(1, 60, "int")),
            Event(minute(2), "add", None, row(2, 60, "int")),
            Event(minute(3), "add", None, row(2, 60, "varchar(1)")),
            Event(minute(4), "upd", row(1, 60, "int"), row(1, 120, "int")),
            Event(minute(5), "del", row(2, -60, "int")),
        ]
    )
    frame = fold(spark, export.store.path, CAPTURE)
    assert frame.columns == export.image.names
    found = sorted((row.at_100ns, row.due_offset_minutes, row.any_type) for row in frame.collect())
    assert found == [(1, 120, "int"), (2, 60, "varchar(1)")]


@pytest.mark.ci
def test_tables_of_one_capture_are_folded_by_themselves(spark: SparkSession, export: CapturedExport) -> None:
    """Where two tables disagree about a column, the rows' field has another name than the column."""
    box = {"id": "id", "name": "name_2"}
    export.shape = reshaped(shape(TABLE, "shop.Box"), "shop.Box", columns=dict.fromkeys(Operation, box))
    export.image = pa.schema([*IMAGE, ("name_2", pa.int32())])
    export.write(
        [
            Event(minute(1), "add", None, shoe(1)),
            Event(minute(2), "add", None, {"id": 1, "name_2": 5}, "shop.Box"),
            Event(minute(3), "add", None, {"id": 2, "name_2": None}, "shop.Box"),
            Event(minute(4), "del", shoe(1)),
            Event(minute(5), "reset", table="shop.Hat"),
        ]
    )
    assert state(spark, export, table=TABLE) == []
    assert state(spark, export, table="shop.Box") == [{"id": 1, "name": 5}, {"id": 2, "name": None}]


@pytest.mark.ci
def test_awkward_names_and_keys_are_folded(spark: SparkSession, export: CapturedExport) -> None:
    """Names that mean something to Spark, and a key of several columns and types."""
    names = ("changefeed_ulid", "a.b", "type", "key0", "with `ticks`, commas: <and> more")
    kinds = (pa.binary(), pa.date32(), pa.timestamp("us"), pa.float64(), pa.string())
    export.image = pa.schema(list(zip(names, kinds, strict=True)))
    same = {name: name for name in names}
    columns = dict.fromkeys(Operation, same)
    export.shape = reshaped(shape(), columns=columns, key_columns=names[:3])
    moment = datetime(2020, 2, 29, 12, 0, 0, 1)

    def row(number: int, text: str) -> dict[str, Any]:
        values = (bytes([0, number]), date(2020, 2, number + 1), moment, number / 4, text)
        return dict(zip(names, values, strict=True))

    export.write(
        [
            Event(minute(1), "add", None, row(1, "a")),
            Event(minute(2), "add", None, row(2, "b")),
            Event(minute(3), "upd", row(1, "a"), row(1, "c")),
            Event(minute(4), "del", row(2, "b")),
        ]
    )
    assert state(spark, export) == [row(1, "c")]


@pytest.mark.ci
def test_the_examples_of_the_page_run(spark: SparkSession, export: CapturedExport, tmp_path: Path) -> None:
    """The notebook's state now and at noon, and the states that the runs of its DAG write."""
    export.write([Event(minute(number * 60), "add", None, shoe(number)) for number in range(24)], WHOLE_DAY)
    output = tmp_path / "states"
    for hour in (3, 5):
        at = START + hour * HOUR
        task = FoldTask(CAPTURE, export.store.path, str(output), at, None, new_attempt(), "tests/run")
        run_fold(lambda: spark, task, JobConnection({}), lambda line: None)
    names: dict[str, Any] = {"spark": spark}
    places = {"/data/export": export.store.path, "/data/states": output}
    for code in examples("how-to/keep-a-current-table.md#fold-a-capture", places):
        if "DAG(" not in code:
            run_example(code, names)
    assert (names["shoes"].count(), names["then"].count()) == (24, 12)
    assert names["states"].count() == 8
    assert {row["id"] for row in names["newest"].collect()} == set(range(5))
