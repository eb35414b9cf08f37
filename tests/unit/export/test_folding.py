# SPDX-License-Identifier: Apache-2.0
"""What a fold would read, and what it refuses by manifests and schemas alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.exceptions import FoldError, InvalidWindowError, ManifestError, NotExportedError
from airflow_changefeed.lake.fold_plan import find_fold
from airflow_changefeed.output.store import ExportStore
from tests.unit.export.captures import CAPTURE, IMAGE, TABLE, CapturedExport, Event, reshaped, shape
from tests.unit.export.flights import START, Flights, hours

HOUR = timedelta(hours=1)


@pytest.fixture
def export(tmp_path: Path) -> CapturedExport:
    """An empty output."""
    return CapturedExport.create(tmp_path / "out")


def added(number: int, hour: float = 0.5, table: str = TABLE) -> Event:
    """A row that appears."""
    return Event(START + hour * HOUR, "add", None, {"id": number}, table, number)


def fill(export: CapturedExport, first: int = 0, last: int = 1, *, shard: int = 0) -> None:
    """Export hours with one event each."""
    for hour in range(first, last):
        export.write([added(hour, hour + 0.5)], hours(hour, hour + 1)[0], shard=shard)


def test_the_end_of_the_unbroken_run_is_the_time(export: CapturedExport) -> None:
    """Of the shard whose run ends first; a shard that came later does not shorten it."""
    fill(export, 0, 4)
    fill(export, 5, 6)
    assert find_fold(export.store).at == START + 4 * HOUR
    fill(export, 0, 3, shard=1)
    fill(export, 2, 4, shard=2)
    source = find_fold(export.store)
    assert source.at == START + 3 * HOUR
    assert sorted({file.manifest.unit.shard for group in source.groups for file in group.files}) == [0, 1, 2]


def test_columns_keep_the_order_of_the_table(export: CapturedExport) -> None:
    """However the fields of the rows stand, which belong to several tables; others' columns are left out."""
    ordered = {"price": "price", "name": "name", "id": "id"}
    export.shape = reshaped(shape(), columns=dict.fromkeys(Operation, ordered), key_columns=("price",))
    export.image = pa.schema([*IMAGE, ("size", pa.int32())])
    fill(export)
    source = find_fold(export.store)
    assert list(source.kinds.items()) == [
        ("price", pa.decimal128(9, 2)),
        ("name", pa.string()),
        ("id", pa.int64()),
    ]
    assert source.keys == ("price",)


def test_the_newest_file_says_which_columns_there_are(export: CapturedExport) -> None:
    """And a type grows to hold what all files hold."""
    fill(export, 0, 1)
    wider = {operation: {name: name for name in ("id", "name", "size")} for operation in Operation}
    export.image = pa.schema([("id", pa.int32()), ("name", pa.string()), ("size", pa.int16())])
    export.shape = reshaped(shape(), columns=wider)
    fill(export, 1, 2)
    assert dict(find_fold(export.store).kinds) == {
        "id": pa.int64(),
        "name": pa.string(),
        "size": pa.int16(),
    }
    assert list(find_fold(export.store, START + HOUR).kinds) == ["id", "name", "price"]


def test_a_time_before_the_first_event_has_no_rows_but_columns(export: CapturedExport) -> None:
    """The next file tells them."""
    export.write([], hours(0, 1)[0])
    fill(export, 1, 2)
    source = find_fold(export.store, START + HOUR)
    assert (source.groups, list(source.kinds), source.unknown) == ((), ["id", "name", "price"], "")


@pytest.mark.parametrize(
    ("at", "kind", "message"),
    [
        (START, FoldError, "begins at 2013-01-01T00:00:00Z"),
        (START - HOUR, FoldError, "begins at 2013-01-01T00:00:00Z"),
        (
            START + 5 * HOUR,
            NotExportedError,
            r"nothing is complete in shard 0 \[2013-01-01T04:00:00Z, 2013-01-01T05:00:00Z\)",
        ),
        (
            START + 4.5 * HOUR,
            NotExportedError,
            r"nothing is complete in shard 0 \[2013-01-01T04:00:00Z, 2013-01-01T04:30:00Z\)",
        ),
        (datetime(2013, 1, 1, 2), ValueError, "time zone"),
        ("2013-01-01T02:00:00", ValueError, "time zone"),
        (START + timedelta(microseconds=1), InvalidWindowError, "more precise than a millisecond"),
    ],
    ids=["the beginning", "before", "behind the end", "partly behind", "no zone", "text", "too fine"],
)
def test_a_time_outside_of_what_was_exported_is_refused(
    export: CapturedExport, at: Any, kind: type[Exception], message: str
) -> None:
    """
    Before the first unit for good; behind the last one until that is exported; and what is
    no exact time.
    """
    fill(export, 0, 4)
    with pytest.raises(kind, match=message):
        find_fold(export.store, at)


def test_a_missing_unit_is_named(export: CapturedExport) -> None:
    """Of any shard; a time before it can be folded, and events behind it are not looked at."""
    fill(export, 0, 4)
    fill(export, 0, 4, shard=1)
    lost = export.store.list(1)[2]
    export.store.withdraw(lost.unit, lost.attempt)
    with pytest.raises(
        NotExportedError, match=r"shard 1 \[2013-01-01T02:00:00Z, 2013-01-01T03:00:00Z\)"
    ) as refused:
        find_fold(export.store, START + 4 * HOUR)
    assert [gap.unit for gap in refused.value.missing] == [lost.unit]
    assert find_fold(export.store).at == START + 2 * HOUR


def test_one_of_several_tables_must_be_named(export: CapturedExport) -> None:
    """The tables are named; so they are for one that is not there."""
    export.shape = shape(TABLE, "shop.Box")
    fill(export)
    with pytest.raises(
        FoldError, match=r"choose one with table=: 'shop\.Shoe', 'shop\.Box'|'shop\.Box', 'shop\.Shoe'"
    ):
        find_fold(export.store)
    with pytest.raises(FoldError, match=r"does not have table 'shop\.Hat'"):
        find_fold(export.store, table="shop.Hat")
    assert find_fold(export.store, table="shop.Box").table == "shop.Box"


ALL = {name: name for name in IMAGE.names}
UNFOLDABLE = {
    "an operation is left out": (
        {Operation.INSERT: ALL, Operation.UPDATE: ALL},
        ("id",),
        "does not capture deletes",
    ),
    "no key": (dict.fromkeys(Operation, ALL), (), "no primary key"),
    "key is not captured": (
        {**dict.fromkeys(Operation, ALL), Operation.DELETE: {"name": "name"}},
        ("id",),
        "its deletes do not record the key columns 'id'",
    ),
    "updates hold less": (
        {**dict.fromkeys(Operation, ALL), Operation.UPDATE: {"id": "id", "name": "name"}},
        ("id",),
        "its updates do not record 'price'",
    ),
    "inserts hold less": (
        {**dict.fromkeys(Operation, ALL), Operation.INSERT: {"id": "id"}},
        ("id",),
        "its inserts do not record 'name', 'price'",
    ),
}


@pytest.mark.parametrize(("columns", "keys", "message"), UNFOLDABLE.values(), ids=UNFOLDABLE)
def test_a_capture_that_leaves_something_out_is_refused(
    export: CapturedExport, columns: Any, keys: tuple[str, ...], message: str
) -> None:
    """However many events there are, they do not tell the table."""
    export.shape = reshaped(shape(), columns=columns, key_columns=keys)
    fill(export)
    with pytest.raises(FoldError, match=message):
        find_fold(export.store)


def test_all_that_a_capture_leaves_out_is_named_at_once(export: CapturedExport) -> None:
    """
    Also changes by replication. Deletes need no more than the key: the row that is gone is
    not in the state.
    """
    export.shape = reshaped(shape(), columns={Operation.UPDATE: {"name": "name"}})
    fill(export)
    with pytest.raises(FoldError) as refused:
        find_fold(export.store)
    assert len(refused.value.problems) == 3
    export.shape = replace(shape(), not_for_replication=True)
    fill(export)
    with pytest.raises(FoldError, match=r"does not capture changes by replication \(not_for_replication\)"):
        find_fold(export.store)
    export.shape = reshaped(
        shape(), columns={**dict.fromkeys(Operation, ALL), Operation.DELETE: {"id": "id"}}
    )
    fill(export)
    assert list(find_fold(export.store).kinds) == IMAGE.names


def test_a_type_that_became_another_is_refused(export: CapturedExport) -> None:
    """Where no type holds the values of both; a time before the change can be folded."""
    fill(export, 0, 1)
    export.image = pa.schema([("id", pa.int64()), ("name", pa.int32()), IMAGE.field("price")])
    fill(export, 1, 2)
    with pytest.raises(FoldError, match=r"column 'name' .*string.*int32"):
        find_fold(export.store)
    assert find_fold(export.store, START + HOUR).kinds["name"] == pa.string()


def test_a_capture_of_a_table_with_rows_needs_a_reset(export: CapturedExport) -> None:
    """Whether there is one, only the events say."""
    export.shape = reshaped(shape(), is_whole=False)
    fill(export)
    assert "resolve_capture" in find_fold(export.store).unknown


def test_a_gap_makes_unsure_what_was_not_sealed_when_it_was_found(export: CapturedExport) -> None:
    """Also a time inside the gap; until a reset that is later than its discovery."""
    export.shape = reshaped(shape(), gaps=((START + HOUR, START + 1.5 * HOUR),))
    fill(export, 0, 2)
    assert find_fold(export.store, START + HOUR).unknown == ""
    for at in (START + 1.25 * HOUR, None):
        found = find_fold(export.store, at)
        assert "the capture missed changes" in found.unknown
        assert found.known_from == START + 1.5 * HOUR


def test_events_of_another_key_are_refused_until_a_reset(export: CapturedExport) -> None:
    """Also where its columns were recorded before: grouped by it they would not give the table."""
    fill(export, 0, 5)
    export.shape = reshaped(shape(), key_columns=("name",))
    fill(export, 5, 9)
    source = find_fold(export.store)
    assert source.unknown.startswith(
        "events until 2013-01-01T04:30:00Z were recorded with another key than its current key (name)"
    )
    assert source.known_from == START + 4.5 * HOUR
    assert find_fold(export.store, START + 5 * HOUR).unknown == ""


def test_events_without_the_present_key_need_a_reset(export: CapturedExport) -> None:
    """Else all rows of before would be one; a table that joined the capture later had no events before."""
    fill(export, 0, 2)
    export.image = pa.schema([*IMAGE, ("number", pa.int64())])
    columns = {operation: {"number": "number", "name": "name"} for operation in Operation}
    export.shape = reshaped(shape(), columns=columns, key_columns=("number",))
    fill(export, 2, 3)
    found = find_fold(export.store)
    assert (
        "events until 2013-01-01T01:30:00Z were recorded with another key than its current key (number)"
        in found.unknown
    )
    assert found.known_from == START + 1.5 * HOUR
    assert find_fold(export.store, START + 2 * HOUR).unknown == ""
    export.shape = reshaped(shape(TABLE, "shop.Box"), "shop.Box", columns=columns, key_columns=("number",))
    fill(export, 3, 4)
    assert find_fold(export.store, table="shop.Box").unknown == ""


def test_an_export_that_began_after_its_capture_is_not_whole(export: CapturedExport) -> None:
    """What happened before its first unit is not there; with a unit around the beginning it is."""
    export.shape = replace(shape(), begun_at=START + 1.5 * HOUR)
    fill(export, 2, 4)
    unknown = find_fold(export.store).unknown
    assert "enabled at 2013-01-01T01:30:00Z" in unknown
    assert "shard 0 [2013-01-01T01:30:00Z, 2013-01-01T02:00:00Z)" in unknown
    fill(export, 1, 2)
    assert find_fold(export.store).unknown == ""
    for until in (1.2, 1.5):
        assert "the capture was only enabled at" in find_fold(export.store, START + until * HOUR).unknown


def test_what_is_no_export_of_a_capture_is_refused(export: CapturedExport, tmp_path: Path) -> None:
    """
    A mistyped path or feed, an output without a unit or an event, and one of what writers
    wanted to tell.
    """
    with pytest.raises(ManifestError, match=f"no export of feed '{CAPTURE}'"):
        find_fold(ExportStore(str(tmp_path / "elsewhere"), CAPTURE))
    with pytest.raises(NotExportedError, match="no complete units yet"):
        find_fold(export.store)
    export.write([], hours(0, 1)[0])
    with pytest.raises(FoldError, match="no events yet"):
        find_fold(export.store)
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(3, 0)
    store = ExportStore(str(tmp_path / "flights"), "nyc.Flight")
    flights.export(store, hours(0, 1))
    with pytest.raises(FoldError, match=r"is not from a capture .*'typed'"):
        find_fold(store)


def test_files_of_another_shape_and_damaged_and_missing_ones_are_named(export: CapturedExport) -> None:
    """JSON is for others to read; the others by their paths."""
    fill(export)
    (manifest,) = export.store.list()
    path = Path(export.store.find_file(manifest, manifest.files[0]))
    table = pq.read_table(path).drop_columns(["old", "new"])
    pq.write_table(table.append_column("new", pa.array(["{}"])), path)
    with pytest.raises(FoldError, match=r"no typed columns old, new, .*shape='typed'"):
        find_fold(export.store)
    path.write_bytes(b"PAR1")
    with pytest.raises(ManifestError, match=r"part-00000-00000\.parquet is damaged"):
        find_fold(export.store)
    path.unlink()
    with pytest.raises(ManifestError, match=r"part-00000-00000\.parquet"):
        find_fold(export.store)
