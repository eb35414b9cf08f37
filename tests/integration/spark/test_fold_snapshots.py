# SPDX-License-Identifier: Apache-2.0
"""Folding from a snapshot, whose rows were read while others changed them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_changefeed.core.capture import CaptureShape, KeyChange
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import FoldError, ManifestError, own_error
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.fold_plan import FoldTask
from airflow_changefeed.lake.snapshots import Snapshot, SnapshotFiles
from airflow_changefeed.lake.states import StateStore, new_attempt
from airflow_changefeed.spark.fold import fold, run_fold
from tests.identity import DATABASE
from tests.integration.spark.shoes import History, write_snapshot
from tests.unit.export.captures import (
    CAPTURE,
    HOUR,
    MINUTE,
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
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Row = dict[str, Any]
#: A capture that began when its table had rows.
SHAPE = reshaped(shape(), is_whole=False)


class Lake:
    """An export, and snapshots of its table."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.export = CapturedExport.create(folder / "out", shape=SHAPE)
        self.path = str(folder / "lake")
        self.files = SnapshotFiles(self.path, CAPTURE, TABLE, database=DATABASE)
        self.files.claim()

    def snapshot(
        self,
        rows: Sequence[Row],
        begin: datetime,
        exact_from: datetime,
        known: CaptureShape = SHAPE,
        shards: tuple[int, ...] = (0, 1, 2),
        where: str = "",
    ) -> Snapshot:
        """Write a snapshot as if these rows had been read, in two files."""
        return write_snapshot(self.files, rows, begin, exact_from, known, shards, where)

    def write(self, *events: Event, hour: int = 0) -> None:
        """Export an hour of all shards."""
        for number in range(3):
            own = [event for event in events if ((event.new or event.old or {"id": 0})["id"]) % 3 == number]
            self.export.write(own, hours(hour, hour + 1)[0], shard=number)

    def rows(self, at: datetime, base: datetime | str = "newest") -> list[Row]:
        """Fold at a time, and return the rows in order of the key."""
        path = self.export.store.path
        frame = fold(self.spark, path, CAPTURE, at=at, table=TABLE, states=self.path, base=base)
        return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["id"])


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """An empty one."""
    return Lake(spark, tmp_path)


@pytest.mark.ci
def test_rows_that_changed_while_they_were_read_are_right(lake: Lake) -> None:
    """Read before or after the change, twice or not at all: the events since its begin say how they are."""
    read = [
        shoe(1, "untouched"),
        shoe(2, "read before its update"),
        shoe(3, "read after its update"),
        shoe(4, "read before its delete"),
        shoe(6, "moved, and read in both places"),
        shoe(60, "moved, and read in both places"),
        shoe(8, "deleted and inserted, and read twice"),
        shoe(8, "deleted and inserted, and read twice"),
        shoe(10, "inserted and read"),
    ]
    lake.snapshot(read, minute(10), minute(30))
    moved = "moved, and read in neither place"
    lake.write(
        # Before its begin: it is in the rows, or is not, and nothing says so.
        Event(minute(5), "upd", shoe(1, "long ago"), shoe(1, "untouched")),
        Event(minute(10), "upd", shoe(2), shoe(2, "new")),
        Event(minute(11), "upd", shoe(3), shoe(3, "read after its update")),
        Event(minute(12), "del", shoe(4)),
        Event(minute(13), "upd", shoe(5), shoe(5, "of a row that was not seen")),
        Event(minute(14), "del", shoe(6), number=0),
        Event(minute(14), "add", None, shoe(60, "moved, and read in both places"), number=1),
        Event(minute(15), "del", shoe(7), number=0),
        Event(minute(15), "add", None, shoe(70, moved), number=1),
        Event(minute(16), "del", shoe(8)),
        Event(minute(17), "add", None, shoe(8, "inserted again")),
        Event(minute(18), "add", None, shoe(9, "inserted and not read")),
        Event(minute(19), "del", shoe(11)),
        Event(minute(20), "add", None, shoe(10, "inserted and read")),
        Event(minute(40), "upd", shoe(1, "untouched"), shoe(1, "changed later")),
        Event(minute(41), "del", shoe(70)),
        Event(minute(42), "upd", shoe(5), shoe(5, "known by then")),
    )
    at_exact = {
        1: "untouched",
        2: "new",
        3: "read after its update",
        5: "of a row that was not seen",
        8: "inserted again",
        9: "inserted and not read",
        10: "inserted and read",
        60: "moved, and read in both places",
        70: moved,
    }
    assert {row["id"]: row["name"] for row in lake.rows(minute(30))} == at_exact
    later = {**at_exact, 1: "changed later", 5: "known by then"}
    del later[70]
    assert {row["id"]: row["name"] for row in lake.rows(START + HOUR)} == later
    assert len(lake.rows(START + HOUR)) == len(later)


@pytest.mark.parametrize(
    ("seed", "where"),
    [
        (3, ""),
        pytest.param(4, "", marks=pytest.mark.nightly),
        pytest.param(5, "id >= 11 and id < 40", marks=pytest.mark.ci),
    ],
)
def test_any_moment_of_reading_gives_the_table(lake: Lake, seed: int, where: str) -> None:
    """
    A random history of which each row was read at a moment of its own between begin and exact.

    A part that was read is folded alone, though keys move into it and out of it.
    """
    history, keys = History(seed), range(11, 40) if where else range(60)
    for hour in range(4):
        history.run(hour, 150)
    begin, exact = START + 1.25 * HOUR, START + 2.5 * HOUR
    lake.snapshot(history.read_between(begin, exact, keys), begin, exact, where=where)
    for hour in range(4):
        history.export(lake.export, hour)
    for at in (exact, exact + 7 * MINUTE, START + 4 * HOUR):
        table = sorted(fold_in_python(history.events, at), key=lambda row: row["id"])
        assert lake.rows(at, begin) == [row for row in table if row["id"] in keys]


@pytest.mark.ci
def test_conditions_on_decimals_are_exact(lake: Lake) -> None:
    """In a key of several columns; what equals the value is not less than it."""
    known = reshaped(SHAPE, key_columns=("id", "price"))
    lake.export.shape = known
    lake.snapshot([shoe(1, price="9.49")], minute(1), minute(1), known, where="price < 9.50 and id = 1")
    lake.write(
        Event(minute(5), "add", None, shoe(1, price="9.50")),
        Event(minute(6), "add", None, shoe(1, price="-3.00")),
        Event(minute(7), "upd", shoe(2, price="1.00"), shoe(2, "of another part", price="1.00")),
    )
    found = lake.rows(START + HOUR, minute(1))
    assert {(row["id"], str(row["price"])) for row in found} == {(1, "9.49"), (1, "-3.00")}


def test_a_part_is_a_base_only_if_it_is_named(lake: Lake) -> None:
    """The newest base is one of the whole table; who names one that is not there sees which are parts."""
    lake.snapshot([shoe(1), shoe(2)], minute(1), minute(2))
    lake.snapshot([shoe(2)], minute(10), minute(11), where="id > 1")
    lake.write()
    at = START + HOUR
    assert [row["id"] for row in lake.rows(at)] == [1, 2]
    assert [row["id"] for row in lake.rows(at, minute(10))] == [2]
    with pytest.raises(
        FoldError, match=r"Choose another base \(\S+:01:00Z, \S+:10:00Z of the rows where id > 1\)"
    ):
        lake.rows(at, minute(5))


def test_no_state_of_a_part_is_kept(lake: Lake, spark: SparkSession) -> None:
    """Later folds, and readers, would take it for the whole table."""
    lake.snapshot([shoe(2)], minute(10), minute(11), where="id > 1")
    lake.write()
    more = {"table": TABLE, "attempt": new_attempt(), "run": "tests/run", "base": format_time(minute(10))}
    task = FoldTask(CAPTURE, lake.export.store.path, lake.path, START + HOUR, **more)
    with pytest.raises(
        FoldError, match="where id > 1 has only a part of the table, and a state needs the whole"
    ):
        run_fold(lambda: spark, task, JobConnection({}, None), lambda line: None)
    assert StateStore(lake.path, CAPTURE, TABLE).times() == []


@pytest.mark.ci
@pytest.mark.parametrize("rows", [[], [shoe(1, "old"), shoe(2, "old")]], ids=["its rows added", "a base"])
def test_a_key_that_a_merge_replaced_has_its_present_row(lake: Lake, rows: list[Row]) -> None:
    """Its deletion stands behind or before the insertion, and always before the present row once more."""
    lake.snapshot(rows, minute(1), minute(1))
    old, new = shoe(1, "old"), shoe(1, "new")
    lake.write(
        *(Event(minute(2), "add", None, shoe(key, "old")) for key in (1, 2) if not rows),
        Event(minute(5), "add", None, new, number=1),
        Event(minute(5), "del", old, number=2),
        Event(minute(5), "add", None, new, number=3, is_snapshot=True),
        Event(minute(5), "del", {**old, "id": 2}, number=4),
        Event(minute(5), "add", None, {**new, "id": 2}, number=5, is_snapshot=True),
        Event(minute(5), "add", None, {**new, "id": 2}, number=6),
    )
    assert lake.rows(minute(60)) == [new, {**new, "id": 2}]


@pytest.mark.ci
def test_an_event_of_a_row_that_nothing_made_is_expected_only_while_it_was_read(lake: Lake) -> None:
    """From the time on from which the snapshot is exact, it means that events are missing."""
    lake.snapshot([shoe(1)], minute(10), minute(30))
    lake.write(
        Event(minute(29), "upd", shoe(2), shoe(2, "expected")), Event(minute(30), "upd", shoe(3), shoe(3))
    )
    assert [row["id"] for row in lake.rows(minute(30))] == [1, 2]
    with pytest.raises(Exception, match="changes a row that no earlier event has inserted") as caught:
        lake.rows(START + HOUR)
    assert isinstance(own_error(caught.value), FoldError)


@pytest.mark.ci
def test_lost_keys_matter_from_its_begin_on(lake: Lake) -> None:
    """Before it they are nowhere in the rows."""
    lake.export.shape = replace(SHAPE, key_change=KeyChange.NEW_ONLY)
    lake.snapshot([shoe(1)], minute(10), minute(20), lake.export.shape)
    lake.write(Event(minute(9), "upd", None, shoe(1)), Event(minute(30), "upd", shoe(1), shoe(1, "clog")))
    assert lake.rows(START + HOUR) == [shoe(1, "clog")]
    lake.write(Event(minute(70), "upd", None, shoe(4)), hour=1)
    with pytest.raises(FoldError, match="changed a key without the old one"):
        lake.rows(START + 2 * HOUR)


def _changed(at: datetime, *fields: str) -> Event:
    facts = {"statement": None, "before": [], "after": [], "by": None, "unrecorded": fields}
    return Event(at, "ddl", ddl=json.dumps(facts))


@pytest.mark.ci
def test_values_that_no_event_has_end_it(lake: Lake) -> None:
    """Older times can still be folded, and later ones from a snapshot that began behind the change."""
    lake.write(Event(minute(5), "upd", shoe(3), shoe(3, "clog")))
    lake.snapshot([shoe(3)], minute(1), minute(10))
    changed = _changed(minute(70), "price", "name")
    lake.write(changed, Event(minute(75), "upd", shoe(3), shoe(3, "mule")), hour=1)
    assert lake.rows(minute(70)) == [shoe(3, "clog")]
    with pytest.raises(
        FoldError, match=f"changed at 2013-01-01T01:10:00Z .event {changed.ulid}.* 'price', 'name' .*snapshot"
    ) as refused:
        lake.rows(minute(80))
    assert refused.value.columns == ["price", "name"]
    assert str(minute(80).year) in str(refused.value.at)
    lake.snapshot([shoe(3, "clog", "1.00")], minute(71), minute(72))
    assert lake.rows(minute(80)) == [shoe(3, "mule")]


@pytest.mark.ci
def test_a_reset_behind_it_gives_the_values(lake: Lake) -> None:
    """In its shard; each shard has both events."""
    lake.snapshot([shoe(number) for number in range(3)], minute(1), minute(2))
    for number in range(3):
        again = [
            Event(minute(6), "reset"),
            Event(minute(6), "add", None, shoe(number, "mule"), number=1, is_snapshot=True),
            Event(minute(7), "ready"),
        ]
        events = [_changed(minute(5), "name"), *(again if number else [])]
        lake.export.write(events, hours(0, 1)[0], shard=number)
    with pytest.raises(FoldError, match="'name' in older rows"):
        lake.rows(minute(30))
    lake.export.write([Event(minute(65), "reset"), Event(minute(66), "ready")], hours(1, 2)[0], shard=0)
    for number in (1, 2):
        lake.export.write([], hours(1, 2)[0], shard=number)
    assert lake.rows(minute(70)) == [shoe(1, "mule"), shoe(2, "mule")]


def test_one_that_lost_a_file_is_an_error(lake: Lake) -> None:
    """Not a table with fewer rows; and a damaged document is none."""
    taken = lake.snapshot([shoe(1), shoe(2)], minute(10), minute(20))
    lake.write()
    folder = Path(lake.files.folder(taken.token))
    (folder / taken.files[0]).unlink()
    with pytest.raises(ManifestError, match=rf"has lost {taken.files[0]}; delete its folder, or fold with"):
        lake.rows(START + HOUR)
    (folder / "snapshot.json").write_text("{}")
    with pytest.raises(ManifestError, match=r"is not a changefeed snapshot.*; delete its folder"):
        lake.rows(START + HOUR)
