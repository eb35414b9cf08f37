# SPDX-License-Identifier: Apache-2.0
"""Reading an export with pyarrow, pandas, Polars and DuckDB: by manifests, pruned, complete or refused."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_changefeed.core.completeness import MissingRange
from airflow_changefeed.core.export_plan import FileFacts, Manifest
from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    InvalidArgumentError,
    ManifestError,
    UnsupportedVersionError,
)
from airflow_changefeed.export.completed import completed_export
from airflow_changefeed.export.result import ExportResult
from airflow_changefeed.export.verify import verify_export
from airflow_changefeed.output.dataset import export_dataset
from airflow_changefeed.output.store import ExportStore
from tests.exports import unit_files, verify
from tests.unit.export.damage import corrupt_manifest
from tests.unit.export.flights import FEED, START, Flights, hours

HOUR = timedelta(hours=1)


@pytest.fixture
def flights(tmp_path: Path, whole: Path) -> Flights:
    """The feed of the export."""
    return Flights.copy(whole, tmp_path)


@pytest.fixture
def store(tmp_path: Path, flights: Flights) -> ExportStore:
    """Three hours of both shards; shard 1 has ten rows in each, shard 2 six in the second."""
    return ExportStore(str(tmp_path / "out"), FEED)


def read(store: ExportStore, *arguments: Any, **more: Any) -> Any:
    """The dataset of the store's export."""
    return export_dataset(store.path, FEED, *arguments, **more)


def file_of(store: ExportStore, shard: Shard, hour: int) -> Path:
    """The only file of a shard's hour."""
    (manifest,) = store.list(shard, START + hour * HOUR, START + (hour + 1) * HOUR)
    return Path(store.find_file(manifest, manifest.files[0]))


def forget(store: ExportStore, shard: Shard, hour: int) -> None:
    """Remove a shard's hour, as if it had never been exported."""
    (manifest,) = store.list(shard, START + hour * HOUR, START + (hour + 1) * HOUR)
    store.withdraw(manifest.unit, manifest.attempt)


def gaps(caught: pytest.ExceptionInfo[ManifestError]) -> list[str]:
    """What an error names as missing."""
    return [str(gap) for gap in caught.value.facts["missing"]]


def test_a_dataset_has_all_rows_their_columns_and_their_shard(store: ExportStore) -> None:
    """The columns as exported, and the shard; the types are those of the files."""
    table = read(store).to_table()
    assert table.num_rows == 36
    names = "changefeed_ulid changefeed_time id origin tail delay raw changefeed_shard"
    assert table.column_names == names.split()
    assert table.schema.field("changefeed_time").type == pa.timestamp("ms", tz="UTC")
    assert sorted(table["changefeed_shard"].to_pylist()) == [1] * 30 + [2] * 6
    assert sorted(table["id"].to_pylist()) == list(range(1, 37))


def test_pandas_polars_and_duckdb_read_the_same(store: ExportStore) -> None:
    """Each takes the dataset as it is, and its filters reach it."""
    flights = read(store, START, START + 2 * HOUR)
    frame = flights.to_table().to_pandas()
    assert (len(frame), set(frame["changefeed_shard"])) == (26, {1, 2})
    lazy = pl.scan_pyarrow_dataset(flights)
    assert lazy.filter(pl.col("changefeed_shard") == 2).collect().height == 6
    assert lazy.select(pl.col("id").sum()).collect().item() == frame["id"].sum()
    query = "select count(*), sum(id) from flights where changefeed_shard = 1"
    assert duckdb.sql(query).fetchall() == [(20, sum(range(1, 21)))]


def test_only_files_of_the_interval_and_the_shards_are_opened(store: ExportStore) -> None:
    """Everything else may be gone, even the manifests' content."""
    for shard, hour in ((1, 0), (1, 2), (2, 1)):
        file_of(store, shard, hour).unlink()
    for manifest in store.list():
        if manifest.unit != ExportUnit.of_window(1, hours(1, 2)[0]):
            corrupt_manifest(store, manifest)
    assert read(store, START + HOUR, START + 2 * HOUR, [1]).count_rows() == 10
    assert read(store, "2013-01-01T01:00:00Z", "2013-01-01T02:00:00Z", "1").count_rows() == 10
    with pytest.raises(ManifestError, match="invalid JSON"):
        read(store, START + HOUR, START + 2 * HOUR)


def test_files_that_a_filter_leaves_out_are_not_opened(store: ExportStore) -> None:
    """What a manifest says of a file's shard, ULIDs and times is enough to leave it alone."""
    flights = read(store)
    for shard, hour in ((1, 0), (1, 2)):
        file_of(store, shard, hour).unlink()
    second = START + HOUR, START + 2 * HOUR
    time = ds.field("changefeed_time")
    wanted = (time >= pa.scalar(second[0])) & (time < pa.scalar(second[1]))
    assert flights.to_table(filter=wanted).num_rows == 16
    assert flights.to_table(filter=ds.field("changefeed_shard") == 2).num_rows == 6
    with pytest.raises(ManifestError, match="a file is gone"):
        flights.to_table()


@pytest.fixture
def batches(tmp_path: Path, flights: Flights) -> ExportStore:
    """A batch of each shard; that of shard 1 has six files."""
    store = ExportStore(str(tmp_path / "batches"), FEED)
    flights.export(store, None, target_file_rows=5)
    return store


def test_borders_are_half_open_and_a_batch_ends_where_it_ends(batches: ExportStore) -> None:
    """
    An event at the start is read, one at the end is not; a unit that reaches beyond both is cut. What lies
    behind the last batch is not complete, and is named by its ULIDs.
    """
    everything = read(batches, START, shards=[1]).to_table()
    assert everything.num_rows == 30
    times = sorted(everything["changefeed_time"].to_pylist())
    start, end = times[3], times[9]
    found = read(batches, start, end, [1]).to_table()["changefeed_time"].to_pylist()
    assert sorted(found) == times[3:9]
    assert read(batches, start, start + timedelta(milliseconds=1), [1]).count_rows() == 1
    (unit,) = batches.units(1)
    with pytest.raises(ManifestError) as caught:
        read(batches, START, START + 3 * HOUR, [1])
    (gap,) = caught.value.facts["missing"]
    assert gap.range == UlidRange(unit.range.upto, hours(2, 3)[0].range.upto)
    assert str(unit.range.upto) in str(caught.value)


def test_a_file_outside_of_the_interval_is_left_alone_within_its_unit(batches: ExportStore) -> None:
    """A batch of many files gives only those whose ULIDs reach into the interval."""
    (manifest,) = batches.list(1)
    assert len(manifest.files) == 6
    for facts in (manifest.files[0], manifest.files[-1]):
        Path(batches.find_file(manifest, facts)).unlink()
    assert read(batches, START + HOUR, START + 2 * HOUR, [1]).count_rows() == 10


@pytest.mark.parametrize(
    ("lost", "first", "last", "missing"),
    [
        pytest.param([(1, 1)], None, None, [(1, 1, 2)], id="inside"),
        pytest.param([(2, 1), (1, 1)], 0, 3, [(1, 1, 2), (2, 1, 2)], id="two shards"),
        pytest.param([(1, 2)], 0, 3, [(1, 2, 3)], id="the last hour"),
        pytest.param([], 0, 5, [(1, 3, 5), (2, 3, 5)], id="beyond the end"),
        pytest.param([], -2, 1, [(1, -2, 0), (2, -2, 0)], id="before the start"),
    ],
)
def test_an_interval_that_is_not_complete_is_refused(
    store: ExportStore,
    lost: list[tuple[int, int]],
    first: int | None,
    last: int | None,
    missing: list[tuple[int, int, int]],
) -> None:
    """What is missing is named by shard and time; who asks for it reads what is there."""
    for shard, hour in lost:
        forget(store, shard, hour)
    start, end = (None if hour is None else START + hour * HOUR for hour in (first, last))
    with pytest.raises(ManifestError, match="not complete") as caught:
        read(store, start, end)
    named = [f"shard {shard} {Window(START + one * HOUR, START + two * HOUR)}" for shard, one, two in missing]
    assert gaps(caught) == named
    assert all(text in str(caught.value) for text in named)
    assert read(store, start, end, incomplete="read").count_rows() > 0


def test_a_shard_that_came_later_is_no_gap_unless_it_is_asked_for(store: ExportStore) -> None:
    """Before its first unit the other shards stand for it; named by itself, it must be there."""
    forget(store, 2, 0)
    assert read(store, START, START + 3 * HOUR).count_rows() == 36
    with pytest.raises(ManifestError) as caught:
        read(store, START, START + 3 * HOUR, [1, 2])
    assert gaps(caught) == ["shard 2 [2013-01-01T00:00:00Z, 2013-01-01T01:00:00Z)"]
    forget(store, 1, 0)
    with pytest.raises(ManifestError) as caught:
        read(store, START, START + 3 * HOUR)
    assert len(gaps(caught)) == 2


def test_a_shard_that_has_earlier_units_did_not_come_later(store: ExportStore) -> None:
    """Whatever other shards have: its first hour of the interval is missing."""
    forget(store, 2, 1)
    with pytest.raises(ManifestError) as caught:
        read(store, START + HOUR, START + 3 * HOUR)
    assert gaps(caught) == ["shard 2 [2013-01-01T01:00:00Z, 2013-01-01T02:00:00Z)"]


@pytest.mark.parametrize(
    "interval",
    [(START, START + HOUR), (), (START,), (None, START + HOUR)],
    ids=["closed", "open", "no end", "no start"],
)
def test_a_shard_that_nobody_exported_is_missing(
    store: ExportStore, interval: tuple[datetime | None, ...]
) -> None:
    """A mistyped shard does not look like an idle one, also where it has no unit to begin or end with."""
    with pytest.raises(ManifestError, match="shard 7") as caught:
        read(store, *interval, shards=[7])
    if len(interval) == 2 and interval[0]:
        assert list(caught.value.facts["missing"]) == [MissingRange(7, hours(0, 1)[0].range)]
    assert read(store, *interval, shards=[7], incomplete="read").count_rows() == 0


def test_units_that_overlap_are_refused(store: ExportStore) -> None:
    """Two attempts of different cut may have left both; their common rows are never read twice."""
    first, *others = store.list(1)
    whole = ExportUnit.of_window(1, Window(START, START + 3 * HOUR))
    forged = replace(first, unit=whole, attempt=first.attempt + 9)
    store.write(forged)
    (file,) = forged.files
    copied = Path(store.find_file(first, file)).read_bytes()
    store.files.write(f"{store.layout.placed(whole, forged.attempt)}/{file.name}", copied)
    for incomplete in ("fail", "read"):
        with pytest.raises(ManifestError, match="overlaps"):
            read(store, START + HOUR, START + 2 * HOUR, incomplete=incomplete)
    assert read(store, START, shards=[2]).count_rows() == 6
    overlaps = [each.unit for each in verify(store) if each.kind is FaultKind.UNITS_OVERLAP]
    assert overlaps == [whole, *(other.unit for other in others)]


def test_idle_hours_have_the_columns_of_busy_ones(store: ExportStore) -> None:
    """A range without rows has the same schema; hours after the last unit are empty if the end is open."""
    assert read(store, START, START + HOUR, [2]).count_rows() == 0
    assert read(store, START + 9 * HOUR).count_rows() == 0
    assert "changefeed_shard" in read(store, START + 9 * HOUR).schema.names


@pytest.mark.parametrize("reader", [export_dataset, verify_export])
def test_a_path_without_the_feeds_export_is_refused(store: ExportStore, tmp_path: Path, reader: Any) -> None:
    """A typing error does not read as an empty export, or one without faults; what is there is named."""
    with pytest.raises(ManifestError, match=r"no export of feed 'nyc\.Weather'.*nyc\.Flight"):
        reader(store.path, "nyc.Weather")
    with pytest.raises(ManifestError, match="feeds there: none"):
        reader(str(tmp_path / "elsewhere"), FEED)


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ({"start": datetime(2013, 1, 1)}, ["no time zone"]),
        ({"start": START, "end": START}, ["zero length"]),
        ({"start": START + HOUR, "end": START}, ["ends before it starts"]),
        ({"start": "2013-01-01"}, ["start: time 2013-01-01T00:00:00 has no time zone"]),
        ({"shards": 12}, ["shards: 12 is not a list of shards"]),
        ({"shards": []}, ["shards: no shard is named"]),
        ({"incomplete": "maybe"}, ["incomplete must be one of fail, read"]),
        (
            {"start": "yesterday", "end": 7, "shards": ["x"]},
            ["start: 'yesterday' is not a time", "end: 7 is not a time", "'x' is not a shard"],
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_arguments_are_refused(
    store: ExportStore, arguments: dict[str, Any], messages: list[str]
) -> None:
    """Before anything is read, by name, and all at once."""
    with pytest.raises(InvalidArgumentError) as caught:
        read(store, **arguments)
    assert [message for message in messages if message not in str(caught.value)] == []


def test_columns_that_changed_are_refused_or_unified(flights: Flights, store: ExportStore) -> None:
    """A new column is named with its units; unified, it is null where it was not."""
    flights.execute(f'alter table "{FEED}" add column gate integer default 4')
    flights.export(store, hours(2, 3))
    assert read(store, end=START + 2 * HOUR).count_rows() == 26
    with pytest.raises(ColumnTypeError, match=r"'gate' is int64 in shard 1.*02:00.*missing in shard"):
        read(store)
    table = read(store, unify_schemas=True).to_table()
    assert table.num_rows == 36
    assert sorted(table["gate"].drop_null().to_pylist()) == [4] * 10
    assert table.column_names[-2:] == ["gate", "changefeed_shard"]


def test_a_column_that_is_spelled_otherwise_keeps_its_name_in_the_output(
    flights: Flights, store: ExportStore
) -> None:
    """Most readers take both for one column, and the others would find it in some of the files only."""
    flights.execute(f'alter table "{FEED}" rename column delay to Delay')
    flights.export(store, hours(2, 3))
    dataset = read(store)
    assert dataset.to_table()["delay"].null_count == 0
    assert duckdb.sql("select count(DELAY) from dataset").fetchall() == [(36,)]
    files = f"'{store.layout.data}/**/*.parquet', hive_partitioning = true"
    assert duckdb.sql(f"select count(delay) from read_parquet({files})").fetchall() == [(36,)]
    assert verify(store, source=flights.source) == []
    other = ExportStore(f"{store.path}-other", FEED)
    flights.export(other, hours(0, 3))
    assert "Delay" in read(other).schema.names


def test_units_that_spell_a_column_in_two_ways_are_refused(flights: Flights, store: ExportStore) -> None:
    """As pyarrow would give null for it in some of them; exported again, they agree."""
    flights.execute(f'alter table "{FEED}" rename column delay to Delay')
    flights.run(store, replace(flights.plan(store, hours(2, 3)), names={}))
    with pytest.raises(
        ColumnTypeError, match=r"\(delay and Delay\), so pyarrow.* export the older units again"
    ):
        read(store, unify_schemas=True)
    assert "Delay" in read(store, START + 2 * HOUR, START + 3 * HOUR).schema.names
    flights.export(store, hours(0, 3))
    assert read(store).to_table()["Delay"].null_count == 0


def test_a_lost_file_or_a_newer_manifest_stops_the_reader(store: ExportStore) -> None:
    """Before a row is read; the file is named."""
    path = file_of(store, 1, 1)
    path.unlink()
    with pytest.raises(ManifestError, match=path.name):
        read(store)
    corrupt_manifest(store, store.list(1)[0], version=99)
    with pytest.raises(UnsupportedVersionError, match="schema version 99"):
        read(store)


def test_a_replaced_unit_is_read_once(flights: Flights, store: ExportStore) -> None:
    """Files that no counting manifest names are not read, wherever they lie."""
    placed = file_of(store, 1, 1)
    shutil.copy(placed, placed.with_name("copy.parquet"))
    assert read(store).count_rows() == 36
    manifest = store.list(1)[1]
    store.retire(manifest.unit, manifest.attempt)
    assert read(store).count_rows() == 36


def test_a_unit_that_is_replaced_behind_its_manifest_is_read_from_the_newer_one(
    flights: Flights, store: ExportStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are gone by then: a reader looks again, and finds what has replaced them."""
    find_file = store.find_file

    def late(manifest: Manifest, file: FileFacts) -> str:
        monkeypatch.undo()
        flights.export(store, hours(0, 3))
        return find_file(manifest, file)

    monkeypatch.setattr(store, "find_file", late)
    assert sum(file.facts.rows for file in unit_files(store)) == 36


def test_a_file_is_found_though_its_unit_is_placed_between_two_looks(
    store: ExportStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is where nobody has looked yet at each moment, and so is looked for twice."""
    manifest = store.list(1)[1]
    store.retire(manifest.unit, manifest.attempt)
    exists, unplaced = store.files.exists, store.layout.unplaced(manifest.unit, manifest.attempt)

    def late(path: str) -> bool:
        if path.startswith(unplaced):
            monkeypatch.undo()
            store.files.move(unplaced, store.layout.placed(manifest.unit, manifest.attempt))
        return exists(path)

    monkeypatch.setattr(store.files, "exists", late)
    assert exists(store.find_file(manifest, manifest.files[0]))


def test_a_dataset_that_is_held_while_a_unit_is_exported_again_says_so(
    flights: Flights, store: ExportStore
) -> None:
    """
    However it is read; opened again, it has the rows.

    Readers open the files of both shards side by side, so either may be the first that is missed.
    """
    for interval in ((), (START, START + 2 * HOUR)):
        held = read(store, *interval, incomplete="read")
        replaced = f"({file_of(store, 1, 1)}|{file_of(store, 2, 1)})"
        flights.export(store, hours(1, 2))
        said = f"a file is gone .* unit was exported again.*open and read the export again.*{replaced}"
        for act in (
            held.to_table,
            held.count_rows,
            lambda held=held: held.head(1000),
            lambda held=held: held.take([25]),
            lambda held=held: held.sort_by("id"),
            lambda held=held: held.join(held, "id", right_suffix="_too"),
            lambda held=held: list(held.to_batches(columns=["id"])),
            lambda held=held: pl.scan_pyarrow_dataset(held).collect(),
        ):
            with pytest.raises(ManifestError, match=said):
                act()
        with pytest.raises(Exception, match=f"{replaced}.*No such file"):
            duckdb.sql("select * from held").fetchall()
        hour = ds.field("changefeed_time") < pa.scalar(START + HOUR)
        assert held.to_table(filter=hour).num_rows == 10
    assert read(store).to_table().num_rows == 36


def test_an_object_store_is_read_through_fsspec(store: ExportStore) -> None:
    """
    A remote path works with its storage options, for manifests and files alike; where a file is gone, a
    dataset that is held says so.
    """
    root, memory = f"/{uuid.uuid4().hex}", MemoryFileSystem()
    memory.put(store.path, root, recursive=True)
    try:
        dataset = export_dataset(f"memory://{root}", FEED, START, START + 2 * HOUR, storage_options={})
        assert dataset.count_rows() == 26
        assert duckdb.sql("select count(*) from dataset where changefeed_shard = 2").fetchall() == [(6,)]
        file, *_ = unit_files(ExportStore(f"memory://{root}", FEED))
        memory.rm(file.path)
        with pytest.raises(ManifestError, match=f"open and read the export again.*{file.path}"):
            dataset.to_table()
    finally:
        memory.rm(root, recursive=True)


def test_batches_of_a_completed_export_that_is_replaced_meanwhile_say_so(
    flights: Flights, store: ExportStore
) -> None:
    """It is no damage, whose remedy is another export."""
    plan = flights.plan(store, hours(0, 2), [1])
    flights.run(store, plan)
    completed = completed_export(plan, store, ExportResult("done"))
    batches = completed.batches()
    assert next(batches).num_rows == 10
    flights.export(store, hours(1, 2))
    with pytest.raises(ManifestError, match=r"unit was exported again.*open and read the export again"):
        list(batches)


def test_uuid_shards_are_text(tmp_path: Path, store: ExportStore) -> None:
    """As in Spark, where UUIDs have no type either."""
    dataset = read(store, START, START + HOUR, [uuid.UUID(int=5)], incomplete="read")
    assert dataset.schema.field("changefeed_shard").type == pa.string()
