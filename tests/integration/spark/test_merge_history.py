# SPDX-License-Identifier: Apache-2.0
"""Current tables with history: one row for each version of a row, compared with a recomputation in Python."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ColumnTypeError, FoldError
from airflow_changefeed.formats.publish import CURRENT_FORMATS
from airflow_changefeed.lake.snapshots import SnapshotFiles
from airflow_changefeed.spark import merge as spark_merge
from airflow_changefeed.spark.fold import fold
from tests.identity import DATABASE
from tests.integration.spark.merging import Merging
from tests.integration.spark.shoes import History, write_snapshot
from tests.unit.export.captures import (
    CAPTURE,
    HOUR,
    IMAGE,
    TABLE,
    Event,
    fold_in_python,
    minute,
    reshaped,
    shape,
    shoe,
)
from tests.unit.export.flights import START
from tests.unit.formats.current import kill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Row = dict[str, Any]
#: A row, and the minutes in which it was so; None for unknown, or still.
Version = tuple[Row, float | None, float | None]


class Versioned(Merging):
    """A table with history."""

    def merge(self, at: datetime, *given: Any, **more: Any) -> Any:
        """Merge until a time."""
        return super().merge(at, *given, **{"history": True, **more})

    def snapshot(
        self,
        rows: Sequence[Row],
        begin: datetime,
        exact_from: datetime,
        shards: tuple[int, ...] = (0, 1, 2),
    ) -> None:
        """Write a snapshot as if these rows had been read."""
        files = SnapshotFiles(f"{self.lake}-states", CAPTURE, TABLE, database=DATABASE)
        files.claim()
        write_snapshot(files, rows, begin, exact_from, self.export.shape, shards)

    def found(self) -> list[Row]:
        """Return the rows of the table in order."""
        return in_order(self.rows())


@pytest.fixture(params=CURRENT_FORMATS)
def merging(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Versioned:
    """An empty export, and no table yet."""
    return Versioned(spark, tmp_path, request.param)


@pytest.fixture
def delta(spark: SparkSession, tmp_path: Path) -> Versioned:
    """Likewise, for what does not depend on the format."""
    return Versioned(spark, tmp_path, "delta")


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Return rows in one order, with times in UTC."""
    found = []
    for row in rows:
        times = {name: row[name] for name in ("_valid_from", "_valid_to")}
        found.append({**row, **{name: at and at.astimezone(timezone.utc) for name, at in times.items()}})
    return sorted(found, key=lambda row: (row["id"], str(row["_valid_from"]), repr(row)))


def versions(*known: Version) -> list[Row]:
    """Return the rows of versions."""
    return in_order(
        {
            **row,
            "_valid_from": None if begun is None else minute(begun),
            "_valid_to": None if ended is None else minute(ended),
        }
        for row, begun, ended in known
    )


def recomputed(history: History, at: datetime, begin: datetime | None = None) -> list[Row]:
    """
    Return all versions at a time, one event after the other.

    :param begin: of the base, with the rows that were there then; None for the beginning.
    """
    rows = [] if begin is None else fold_in_python(history.events, begin)
    found = [{**row, "_valid_from": None, "_valid_to": None} for row in rows]
    there = {row["id"]: row for row in found}
    for _, event in sorted(history.events, key=lambda each: each[1].ulid):
        if event.ulid >= Ulid.floor(at) or (begin is not None and event.ulid < Ulid.floor(begin)):
            continue
        if event.old is not None:
            there.pop(event.old["id"])["_valid_to"] = event.ulid.time
        if event.new is not None:
            there[event.new["id"]] = {**event.new, "_valid_from": event.ulid.time, "_valid_to": None}
            found.append(there[event.new["id"]])
    return in_order(found)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("merging", "ends", "base"),
    [
        ("delta", (45, 60.5, 120), "approximate"),
        *(
            pytest.param(format, (45, 50, 55, 60, 60.5, 61, 90, 120), base, marks=pytest.mark.nightly)
            for format in CURRENT_FORMATS
            for base in ("beginning", "exact", "approximate")
        ),
    ],
    indirect=["merging"],
)
def test_the_table_has_all_versions_at_every_window(
    merging: Versioned, base: str, ends: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a random history in three shards; files without changed rows stay. Each merge was killed before."""
    # As if the table were long: many files, of which a merge changes a few.
    monkeypatch.setattr(spark_merge, "parts", lambda files: 3)
    history, draw, begin = History(11), random.Random(11), None
    if base != "beginning":
        merging.export.shape = reshaped(shape(), is_whole=False)
    for hour in range(2):
        history.run(hour, 150)
        history.export(merging.export, hour)
    if base != "beginning":
        begin, exact = minute(20), minute(20 if base == "exact" else 45)
        merging.snapshot(history.read_between(begin, exact), begin, exact)
    kept = []
    for number in ends:
        before, at = set(merging.files()), minute(number)
        kill(merging, draw, at, states=f"{merging.lake}-states")
        found = merging.merge(at, states=f"{merging.lake}-states")
        kept.append(bool(before & set(merging.files())))
        rows = merging.found()
        assert rows == recomputed(history, at, begin)
        assert (found.rows, found.at) == (len(rows), at)
        there = [row for row in rows if row["_valid_to"] is None]
        current = [{name: row[name] for name in IMAGE.names} for row in there]
        assert current == sorted(fold_in_python(history.events, at), key=lambda row: row["id"])
    assert any(kept)
    frame = fold(
        merging.spark, merging.export.store.path, CAPTURE, at=at, table=TABLE, states=f"{merging.lake}-states"
    )
    assert sorted((row.asDict() for row in frame.collect()), key=lambda row: row["id"]) == current
    assert {row["changefeed_shard"] == row["id"] % 3 for row in merging.rows(shards=True)} == {True}


@pytest.mark.parametrize("merging", ["iceberg"], indirect=True)
def test_each_change_of_a_key_is_a_version(merging: Versioned) -> None:
    """Several in a window, in the same millisecond, a delete, and a new row behind it."""
    names = [shoe(1, name) for name in ("one", "two", "three", "four")]
    end = merging.window(
        0,
        Event(minute(1), "add", None, names[0]),
        Event(minute(2), "upd", names[0], names[1]),
        Event(minute(2), "upd", names[1], names[2], number=1),
        Event(minute(2), "upd", names[2], names[3], number=2),
        Event(minute(3), "add", None, shoe(2)),
    )
    merging.merge(end)
    first = [(names[0], 1, 2), (names[1], 2, 2), (names[2], 2, 2)]
    assert merging.found() == versions(*first, (names[3], 2, None), (shoe(2), 3, None))
    end = merging.window(
        1,
        Event(minute(61), "del", names[3]),
        Event(minute(62), "add", None, names[0]),
        Event(minute(63), "del", names[0]),
        Event(minute(64), "del", shoe(2)),
        Event(minute(64), "add", None, shoe(3), number=1),
    )
    merging.merge(end)
    second = [*first, (names[3], 2, 61), (names[0], 62, 63), (shoe(2), 3, 64)]
    assert merging.found() == versions(*second, (shoe(3), 64, None))
    merging.merge(merging.window(2, Event(minute(121), "add", None, shoe(2, "clog"))))
    assert merging.found() == versions(*second, (shoe(3), 64, None), (shoe(2, "clog"), 121, None))


@pytest.mark.ci
def test_versions_that_have_ended_are_not_written_again(delta: Versioned) -> None:
    """A file that has no open row of a changed key stays, also if it has older versions of the key."""
    delta.merge(delta.window(0, Event(minute(1), "add", None, shoe(1)), Event(minute(2), "del", shoe(1))))
    (ended,) = delta.files()
    delta.merge(delta.window(1, Event(minute(61), "add", None, shoe(1, "clog"))))
    found = delta.merge(delta.window(2, Event(minute(121), "upd", shoe(1, "clog"), shoe(1, "mule"))))
    assert (found.removed, found.added, found.written, found.rows) == (1, 1, 2, 3)
    assert ended in delta.files()
    assert delta.found() == versions(
        (shoe(1), 1, 2), (shoe(1, "clog"), 61, 121), (shoe(1, "mule"), 121, None)
    )


@pytest.mark.ci
def test_a_key_in_other_letters_ends_the_row_of_the_old_ones(delta: Versioned) -> None:
    """The database takes both for the same, and so records an update."""
    delta.export.shape = reshaped(shape(), key_columns=("name",))
    old, new = shoe(1, "boot"), shoe(1, "Boot")
    delta.merge(delta.window(0, Event(minute(1), "add", None, old)))
    delta.merge(
        delta.window(1, Event(minute(61), "upd", old, new), Event(minute(62), "upd", new, {**new, "id": 2}))
    )
    assert delta.found() == versions((old, 1, 61), (new, 61, 62), ({**new, "id": 2}, 62, None))


@pytest.mark.ci
def test_a_row_that_is_recorded_again_has_not_changed(delta: Versioned) -> None:
    """Those that were there have no begin; behind a merge of the database only the new row is a version."""
    delta.export.shape = reshaped(shape(), is_whole=False)
    end = delta.window(
        0,
        Event(minute(1), "upd", shoe(9), shoe(9, "clog")),
        Event(minute(2), "reset"),
        Event(minute(3), "upd", shoe(1), shoe(1, "clog")),
        Event(minute(4), "del", shoe(2)),
        Event(minute(5), "add", None, shoe(1, "clog"), is_snapshot=True),
        Event(minute(5), "add", None, shoe(3), number=1, is_snapshot=True),
        Event(minute(6), "ready"),
        Event(minute(7), "upd", shoe(3), shoe(3, "clog")),
        Event(minute(8), "del", shoe(3, "clog")),
        Event(minute(8), "add", None, shoe(3, "mule"), number=1, is_snapshot=True),
    )
    delta.merge(end)
    assert delta.found() == versions(
        (shoe(1), None, 3),
        (shoe(1, "clog"), 3, None),
        (shoe(2), None, 4),
        (shoe(3), None, 7),
        (shoe(3, "clog"), 7, 8),
        (shoe(3, "mule"), 8, None),
    )
    end = delta.window(
        1,
        Event(minute(61), "reset"),
        Event(minute(61), "add", None, shoe(1, "clog"), number=1, is_snapshot=True),
        Event(minute(62), "ready"),
    )
    with pytest.raises(FoldError, match=r"its rows were recorded again, .*base="):
        delta.merge(end)
    delta.merge(end, base="beginning")
    assert delta.found() == versions((shoe(1, "clog"), None, None))


@pytest.mark.ci
def test_deletes_without_all_columns_are_refused_where_they_matter(delta: Versioned) -> None:
    """Only of a row that nothing but its delete has."""
    same = {name: name for name in IMAGE.names}
    columns = {**dict.fromkeys(Operation, same), Operation.DELETE: {"id": "id"}}
    delta.export.shape = reshaped(shape(), columns=columns, is_whole=False)
    gone = {"id": 1, "name": None, "price": None}
    delta.snapshot([shoe(1), shoe(2), shoe(3)], minute(1), minute(30), (0,))
    end = delta.window(
        0,
        Event(minute(2), "upd", shoe(2), shoe(2, "clog")),
        Event(minute(3), "del", {**gone, "id": 2}),
        Event(minute(40), "upd", shoe(3), shoe(3, "clog")),
    )
    states = f"{delta.lake}-states"
    delta.merge(end, states=states)
    first = [(shoe(1), None, None), (shoe(2), None, 2), (shoe(2, "clog"), 2, 3), (shoe(3), None, 40)]
    assert delta.found() == versions(*first, (shoe(3, "clog"), 40, None))
    delta.merge(delta.window(1, Event(minute(61), "del", gone)))
    assert delta.found() == versions((shoe(1), None, 61), *first[1:], (shoe(3, "clog"), 40, None))
    with pytest.raises(FoldError, match=r"deletes do not record all columns\. .*begin from a snapshot"):
        delta.merge(START + 2 * HOUR, states=states, base=minute(1))


@pytest.mark.ci
def test_a_column_with_the_name_of_ours_is_refused(delta: Versioned) -> None:
    """Before anything is written."""
    delta.export.image = IMAGE.append(pa.field("_Valid_From", pa.int32()))
    same = {name: name for name in delta.export.image.names}
    delta.export.shape = reshaped(shape(), columns=dict.fromkeys(Operation, same))
    end = delta.window(0, Event(minute(1), "add", None, {**shoe(1), "_Valid_From": 1}))
    with pytest.raises(ColumnTypeError, match=r"has a column '_valid_from'.*rename the table's column"):
        delta.merge(end)
    assert delta.merge(end, history=False).changed
