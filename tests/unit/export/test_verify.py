# SPDX-License-Identifier: Apache-2.0
"""Verifying an export: whatever was done to it is named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.exceptions import ColumnTypeError, ManifestError
from airflow_changefeed.export.commit import commit_empty
from airflow_changefeed.export.files import LocalFiles
from airflow_changefeed.export.read import common_schema, unit_files
from airflow_changefeed.export.store import ExportStore
from airflow_changefeed.export.verify import FindingKind, verify
from tests.unit.export.flights import FEED, Flights, hours


@pytest.fixture
def store(tmp_path: Path, flights: Flights) -> ExportStore:
    """An export of three hours of both shards: six units, four with files."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    flights.export(store, hours(0, 3))
    return store


def _file(store: ExportStore) -> Path:
    return Path(unit_files(store)[0].path)


def _manifest(store: ExportStore) -> Path:
    first = store.list()[0]
    return Path(store.layout.manifest(first.unit, first.attempt))


def _flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def _change_cell(path: Path) -> None:
    table = pq.read_table(path)
    values = table["delay"].to_pylist()
    pq.write_table(table.set_column(5, "delay", [[values[0] + 1, *values[1:]]]), path)


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(path.read_bytes())


DAMAGES: dict[str, tuple[Callable[[ExportStore], object], FindingKind]] = {
    "a file is missing": (lambda store: _file(store).unlink(), FindingKind.MISSING_FILE),
    "a file is cut short": (
        lambda store: _file(store).write_bytes(_file(store).read_bytes()[:-100]),
        FindingKind.UNREADABLE_FILE,
    ),
    "a file is empty": (lambda store: _file(store).write_bytes(b""), FindingKind.UNREADABLE_FILE),
    "a cell is changed": (lambda store: _change_cell(_file(store)), FindingKind.CHANGED_FILE),
    "a row is lost": (
        lambda store: pq.write_table(pq.read_table(_file(store)).slice(1), _file(store)),
        FindingKind.CHANGED_FILE,
    ),
    "a manifest is edited": (lambda store: _flip(_manifest(store), 200), FindingKind.DAMAGED_MANIFEST),
    "a file is copied beside": (
        lambda store: _copy(_file(store), _file(store).with_name("copy.parquet")),
        FindingKind.UNREFERENCED_FILE,
    ),
    "a file lies in a folder of no unit": (
        lambda store: _copy(
            _file(store), Path(store.layout.data) / "changefeed_shard=9" / "a" / "b" / "x.parquet"
        ),
        FindingKind.FOREIGN_FILE,
    ),
    "a note lies among the manifests": (
        lambda store: (_manifest(store).parent / "note.txt").write_text("hello"),
        FindingKind.FOREIGN_FILE,
    ),
    "an attempt died": (
        lambda store: store.files.write(f"{store.layout.writing(99)}/0-1/x.parquet", b""),
        FindingKind.LEFTOVER,
    ),
    "a unit is hidden": (
        lambda store: store.retire(store.list()[0].unit, store.list()[0].attempt),
        FindingKind.NOT_PLACED,
    ),
    "a window is gone": (
        lambda store: (
            store.files.remove(store.layout.unit(store.list(1)[1].unit)),
            store.remove_manifest(store.list(1)[1].unit, store.list(1)[1].attempt),
        ),
        FindingKind.MISSING_WINDOW,
    ),
}


def test_an_export_is_what_its_manifests_say(flights: Flights, store: ExportStore) -> None:
    """Nothing is found in an export that nobody touched."""
    assert verify(store, source=flights.source) == []


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(store: ExportStore, name: str) -> None:
    """One finding of the right kind, whose message names the file or unit."""
    damage, kind = DAMAGES[name]
    damage(store)
    findings = verify(store)
    assert [finding.kind for finding in findings] == [kind]
    assert (findings[0].path or str(findings[0].unit)) in findings[0].message


def test_history_inserted_later_makes_a_window_stale(flights: Flights, store: ExportStore) -> None:
    """The window that history went into is named, until it is exported again."""
    flights.execute(f"insert into \"{FEED}\" values (1000, 'EWR', null, 0, null)")
    flights.source.insert_history(FEED, 1, [(hours(1, 2)[0].start, (1000,))], reason="late")
    (finding,) = verify(store, source=flights.source)
    assert finding.kind is FindingKind.STALE_WINDOW
    assert finding.unit is not None
    assert finding.unit.window == hours(1, 2)[0]
    flights.export(store, hours(1, 2))
    assert verify(store, source=flights.source) == []
    assert sum(manifest.rows for manifest in store.list()) == 37


def test_only_a_part_can_be_verified(store: ExportStore) -> None:
    """Damage beyond the interval or in another shard is not looked at."""
    _file(store).unlink()
    assert verify(store, start=hours(1, 2)[0].start) == []
    assert verify(store, shards=[2]) == []
    assert len(verify(store, end=hours(0, 1)[0].end)) == 1


def test_a_lost_file_stops_the_reader(store: ExportStore) -> None:
    """Reading by manifests names the file that is gone instead of leaving its rows out."""
    path = _file(store)
    path.unlink()
    with pytest.raises(ManifestError, match=path.name):
        unit_files(store)


def test_a_column_that_changed_its_type_stops_the_reader(flights: Flights, store: ExportStore) -> None:
    """Two units that disagree on a column's type are both named; a new column is fine."""
    flights.execute(f'alter table "{FEED}" add column gate integer')
    flights.export(store, hours(2, 3))
    assert list(common_schema(unit_files(store)))[-1] == "gate"
    flights.execute(f'alter table "{FEED}" drop column gate')
    flights.execute(f'alter table "{FEED}" add column gate text')
    flights.export(store, hours(1, 2))
    with pytest.raises(ColumnTypeError, match="'gate'"):
        common_schema(unit_files(store))


def test_an_idle_hour_has_the_feeds_columns(flights: Flights, store: ExportStore) -> None:
    """Units without rows keep the schema, and it counts only where no unit has rows."""
    written = common_schema(unit_files(store))
    idle = flights.plan(store, hours(10, 12), shards=[2])
    columns = {column.name: str(column.type) for column in flights.source.schema(FEED)}
    assert commit_empty(store, idle, columns)[0].files == ()
    start = hours(10, 11)[0].start
    assert common_schema(store.list(2, start)) == written == columns
    assert common_schema(store.list(2, end=hours(1, 1 + 1)[0].start)) == written
    assert common_schema([*store.list(), *store.list(2, start)]) == written
    flights.execute(f'alter table "{FEED}" add column gate integer')
    later = flights.plan(store, hours(12, 13), shards=[2])
    commit_empty(store, later, {**columns, "delay": "int64", "gate": "int64"})
    assert common_schema(store.list()) == written
    assert list(common_schema(store.list(2, start)))[-1] == "gate"
    assert unit_files(store, start) == []


def test_a_plan_without_a_schema_is_committed_as_before(flights: Flights, store: ExportStore) -> None:
    """Whoever does not know the columns leaves them out."""
    (manifest,) = commit_empty(store, flights.plan(store, hours(10, 11), shards=[2]))
    assert manifest.schema == {}
    assert common_schema([manifest]) == {}


def test_a_manifest_half_written_is_named_and_removed(flights: Flights, store: ExportStore) -> None:
    """A kill within the write of a manifest leaves a temporary file: until the unit is exported again."""
    manifest = _manifest(store)
    killed = manifest.with_name(f".{manifest.name}.0123abcd")
    other = manifest.with_name(".20130101T050000Z_20130101T060000Z.000000000001.json.0123abcd")
    killed.write_text("{")
    other.write_text("{")
    assert [(finding.kind, finding.path) for finding in verify(store)] == [
        (FindingKind.LEFTOVER, str(path)) for path in sorted((killed, other))
    ]
    flights.export(store, hours(0, 1))
    assert [finding.path for finding in verify(store)] == [str(other)]


def test_a_write_whose_temporary_file_is_removed_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zombie whose half-written manifest was cleaned up writes it whole, and then finds the newer one."""
    replace, calls = os.replace, []

    def removed_once(source: str, target: str) -> None:
        calls.append(source)
        if len(calls) == 1:
            os.unlink(source)
        replace(source, target)

    monkeypatch.setattr(os, "replace", removed_once)
    LocalFiles(str(tmp_path)).write(f"{tmp_path}/a.json", b"whole")
    assert (tmp_path / "a.json").read_bytes() == b"whole"
    assert len(calls) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_manifests_are_listed_by_time_and_shard(store: ExportStore) -> None:
    """The list holds the units that touch the interval, in order."""
    start, end = hours(1, 2)[0].start, hours(1, 2)[0].end
    assert [(manifest.unit.shard, manifest.rows) for manifest in store.list(start=start, end=end)] == [
        (1, 10),
        (2, 6),
    ]
    assert [manifest.rows for manifest in store.list(shard=2)] == [0, 6, 0]
    assert store.list(start=hours(5, 6)[0].start) == []


def test_duckdb_reads_a_whole_feed_with_pruning(store: ExportStore) -> None:
    """DuckDB takes shard and date from the folders and reads only those that a filter leaves."""
    table = f"read_parquet('{store.layout.data}/**/*.parquet', hive_partitioning = true)"
    assert duckdb.sql(f"select count(*) from {table}").fetchall() == [(36,)]
    query = f"from {table} where changefeed_shard = 2 and changefeed_date = '2013-01-01'"
    assert duckdb.sql(f"select count(*) {query}").fetchall() == [(6,)]
    explained = str(duckdb.sql(f"explain analyze select * {query}").fetchall())
    assert "1/4" in explained.replace(" ", "")


def test_polars_reads_a_whole_feed_with_pruning(store: ExportStore) -> None:
    """Polars does the same."""
    frame = pl.scan_parquet(f"{store.layout.data}/**/*.parquet", hive_partitioning=True)
    assert frame.select(pl.len()).collect().item() == 36
    one = frame.filter(pl.col("changefeed_shard") == 1, pl.col("changefeed_unit") == hours(0, 1)[0].name)
    assert one.collect()["changefeed_ulid"].len() == 10
