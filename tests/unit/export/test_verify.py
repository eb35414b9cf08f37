# SPDX-License-Identifier: Apache-2.0
"""Verifying an export: whatever was done to it is named."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.exceptions import ManifestError, TransientError
from airflow_changefeed.export.verify import verify_export
from airflow_changefeed.output.attempts import begin
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.remote import RemoteFiles
from tests.exports import unit_files, verify
from tests.unit.export.damage import DAMAGES, change_cell, copy, corrupt_manifest, data_file, first_manifest
from tests.unit.export.flights import FEED, Flights, hours


@pytest.fixture
def flights(tmp_path: Path, whole: Path) -> Flights:
    """The feed of the export."""
    return Flights.copy(whole, tmp_path)


@pytest.fixture
def store(tmp_path: Path, flights: Flights) -> ExportStore:
    """An export of three hours of both shards: six units, four with files."""
    return ExportStore(str(tmp_path / "out"), FEED)


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(store: ExportStore, name: str) -> None:
    """One fault of the right kind, which names the file or unit, and nothing else."""
    damage, kind, where = DAMAGES[name]
    path = str(where(store)) if kind is not FaultKind.UNIT_NOT_PLACED else None
    damage(store)
    (fault,) = verify(store)
    assert fault.kind is kind
    assert str(fault.path) == (path or str(where(store)))
    assert (fault.path or str(fault.unit)) in fault.place
    assert fault.remedy


def test_all_damage_is_named_one_by_one(store: ExportStore) -> None:
    """Several at once, each in its own unit."""
    files = [Path(file.path) for file in unit_files(store)]
    files[0].unlink()
    change_cell(files[1])
    corrupt_manifest(store, store.list(1)[2])
    copy(files[1], files[1].with_name("copy.parquet"))
    report = verify_export(store.path, FEED)
    assert [(fault.kind, fault.unit) for fault in report.faults] == [
        (FaultKind.FILE_MISSING, ExportUnit.of_window(1, hours(0, 1)[0])),
        (FaultKind.FILE_CHANGED, ExportUnit.of_window(1, hours(1, 2)[0])),
        (FaultKind.FILE_UNREFERENCED, ExportUnit.of_window(1, hours(1, 2)[0])),
        (FaultKind.MANIFEST_TRUNCATED, ExportUnit.of_window(1, hours(2, 3)[0])),
    ]
    assert (len(report.damage), len(report.leftovers)) == (3, 1)
    with pytest.raises(ManifestError) as caught:
        report.check(most=2)
    assert str(caught.value).count("\n") == 3
    assert "and 1 more" in str(caught.value)
    assert str(files[0]) in str(caught.value)


def test_a_report_says_what_was_read(store: ExportStore) -> None:
    """Units, files, rows and bytes, as JSON; faults with damage first, no more than asked for."""
    report = verify_export(store.path, FEED)
    report.check()
    size = sum(Path(file.path).stat().st_size for file in unit_files(store))
    assert json.loads(json.dumps(report.to_dict())) == {
        **{"feed": FEED, "path": store.path, "units": 6, "files": 4, "rows": 36, "bytes": size},
        **{"missing_files": 0, "damage": 0, "leftovers": 0, "faults": []},
    }
    (data_file(store).with_name("copy.parquet")).write_bytes(b"")
    Path(unit_files(store)[1].path).unlink()
    told = verify_export(store.path, FEED).to_dict(most=1)
    assert (told["damage"], told["leftovers"], len(told["faults"])) == (1, 1, 1)
    assert told["faults"][0]["code"] == "file-missing"
    assert told["faults"][0]["unit"] == hours(1, 2)[0].name


def test_a_file_that_is_missing_is_not_counted_as_read(store: ExportStore) -> None:
    """Neither are its rows and bytes; the fault says what to do. The same holds for one that is cut."""
    files = unit_files(store)
    Path(files[0].path).unlink()
    os.truncate(files[1].path, 20)
    report = verify_export(store.path, FEED)
    rest = files[2:]
    assert (report.units, report.files, report.missing_files) == (6, 2, 1)
    assert report.rows == sum(file.facts.rows for file in rest)
    assert report.size == sum(Path(file.path).stat().st_size for file in rest)
    assert report.summary.startswith(
        f"6 units with {report.rows} rows in 2 files read, 1 missing; damaged: 2"
    )
    assert report.to_dict()["missing_files"] == 1
    for fault in report.damage:
        assert fault.remedy.startswith("Restore it, or export the unit again: clear its window's task")


def test_only_a_part_can_be_verified(store: ExportStore) -> None:
    """
    What a range lacks is named, also before the first and behind the last unit; damage beyond it or in
    another shard is not looked at.
    """
    start, end = hours(0, 3)[0].start, hours(0, 5)[-1].end
    missing = [str(fault.unit) for fault in verify(store, start, end)]
    assert missing == [f"shard {shard} [2013-01-01T03:00:00Z, 2013-01-01T05:00:00Z)" for shard in (1, 2)]
    (fault,) = verify(store, start, hours(0, 1)[0].end, [3])
    assert (fault.kind, str(fault.unit)) == (
        FaultKind.WINDOW_MISSING,
        "shard 3 [2013-01-01T00:00:00Z, 2013-01-01T01:00:00Z)",
    )
    data_file(store).unlink()
    manifest = store.list(1)[1]
    store.remove_manifest(manifest.unit, manifest.attempt)
    window = hours(1, 2)[0]
    (fault,) = verify(store, window.start, window.end)
    assert (fault.kind, fault.unit) == (FaultKind.MANIFEST_MISSING, manifest.unit)
    assert verify(store, hours(2, 3)[0].start) == verify(store, shards=[2]) == []
    assert [fault.kind for fault in verify(store, end=window.start)] == [FaultKind.FILE_MISSING]
    store.files.remove(store.layout.control)
    kinds = [fault.kind for fault in verify(store)]
    assert kinds == [FaultKind.CLAIM_MISSING, *[FaultKind.MANIFEST_MISSING] * 3]


def test_a_missing_manifest_of_a_unit_that_begins_a_day_earlier_is_named(
    flights: Flights, store: ExportStore
) -> None:
    """Its data lies below the day at which it begins."""
    flights.add(3, 24, shard=1)
    hour = hours(24, 25)[0]
    manifest, *_ = flights.export(store, [Window(hour.start - hour.length, hour.end)])
    store.remove_manifest(manifest.unit, manifest.attempt)
    found = [(fault.kind, fault.unit) for fault in verify(store, hour.start, hour.end)]
    assert (FaultKind.MANIFEST_MISSING, manifest.unit) in found


def test_a_file_with_the_same_rows_that_somebody_wrote_again_is_named(store: ExportStore) -> None:
    """By its bytes: tables and readers go by the size that the manifest says."""
    path = data_file(store)
    pq.write_table(pq.read_table(path), path, compression="gzip")
    (fault,) = verify(store)
    assert (fault.kind, "bytes" in fault.what) == (FaultKind.FILE_CHANGED, True)


def test_a_unit_between_place_and_manifest_is_a_leftover(flights: Flights, store: ExportStore) -> None:
    """An attempt that runs, or died there, has damaged nothing."""
    flights.add(5, 3, shard=1)
    plan = flights.plan(store, hours(3, 4), shards=[1])
    begin(store, plan)
    [written] = flights.write(store, plan)
    store.place(plan.units[0].unit, plan.attempt, written.files)
    report = verify_export(store.path, FEED)
    assert report.damage == []
    assert any(f"changefeed_attempt={plan.attempt}" in str(fault.path) for fault in report.leftovers)


def test_an_object_store_that_does_not_answer_is_no_damage(store: ExportStore) -> None:
    """It is transient: the file may be whole."""
    memory = _Unreliable()
    memory.put(store.path, "/out", recursive=True)
    files = RemoteFiles(memory, "/out")
    remote = ExportStore("memory:///out", FEED, files=files)
    assert verify(remote) == []
    memory.fails = True
    with pytest.raises(TransientError, match="did not answer"):
        verify(remote)


class _Unreliable(MemoryFileSystem):
    """An object store that loses its connections while Parquet is read."""

    cachable = False
    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """Open a file, which fails when it is read."""
        file = super().open(path, mode, **options)
        return _Broken(file.read()) if self.fails and path.endswith(".parquet") else file


class _Broken(io.BytesIO):
    def read(self, *size: Any) -> bytes:
        raise ConnectionResetError("reset by peer")


def test_history_inserted_later_makes_a_window_stale(flights: Flights, store: ExportStore) -> None:
    """The window that history went into is named, until it is exported again."""
    flights.execute(f"insert into \"{FEED}\" values (1000, 'EWR', null, 0, null)")
    flights.source.insert_history(FEED, 1, [(hours(1, 2)[0].start, (1000,))], reason="late")
    (fault,) = verify(store, source=flights.source)
    assert fault.kind is FaultKind.WINDOW_STALE
    assert fault.unit.window == hours(1, 2)[0]
    flights.export(store, hours(1, 2))
    assert verify(store, source=flights.source) == []
    assert sum(manifest.rows for manifest in store.list()) == 37


def test_manifests_are_listed_by_time_and_shard(store: ExportStore) -> None:
    """The list holds the units that touch the interval, in order."""
    window = hours(1, 2)[0]
    found = [(each.unit.shard, each.rows) for each in store.list(start=window.start, end=window.end)]
    assert found == [(1, 10), (2, 6)]
    assert [manifest.rows for manifest in store.list(shard=2)] == [0, 6, 0]
    assert store.list(start=hours(5, 6)[0].start) == []


def test_a_manifest_half_written_is_named_and_removed(flights: Flights, store: ExportStore) -> None:
    """A kill within the write of a manifest leaves a temporary file: until the unit is exported again."""
    manifest = first_manifest(store)
    killed = manifest.with_name(f".{manifest.name}.0123abcd")
    other = manifest.with_name(".20130101T050000Z_20130101T060000Z.000000000001.json.0123abcd")
    killed.write_text("{")
    other.write_text("{")
    assert [(fault.kind, fault.path) for fault in verify(store)] == [
        (FaultKind.LEFTOVER, str(path)) for path in sorted((killed, other))
    ]
    flights.export(store, hours(0, 1))
    assert [fault.path for fault in verify(store)] == [str(other)]


def test_plain_readers_read_a_whole_feed_with_pruning(store: ExportStore) -> None:
    """DuckDB and Polars take shard and date from the folders and read only those that a filter leaves."""
    table = f"read_parquet('{store.layout.data}/**/*.parquet', hive_partitioning = true)"
    assert duckdb.sql(f"select count(*) from {table}").fetchall() == [(36,)]
    query = f"from {table} where changefeed_shard = 2 and changefeed_date = '2013-01-01'"
    assert duckdb.sql(f"select count(*) {query}").fetchall() == [(6,)]
    explained = str(duckdb.sql(f"explain analyze select * {query}").fetchall())
    assert "1/4" in explained.replace(" ", "")
    frame = pl.scan_parquet(f"{store.layout.data}/**/*.parquet", hive_partitioning=True)
    assert frame.select(pl.len()).collect().item() == 36
    one = frame.filter(pl.col("changefeed_shard") == 1, pl.col("changefeed_unit") == hours(0, 1)[0].name)
    assert one.collect()["changefeed_ulid"].len() == 10
