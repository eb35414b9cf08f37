# SPDX-License-Identifier: Apache-2.0
"""Reading an export with Spark: by manifests, pruned, complete or refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.export_plan import FileFacts, Manifest
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import ColumnTypeError, ManifestError, own_error
from airflow_changefeed.export.verify import read_facts
from airflow_changefeed.output.commit import commit_empty
from airflow_changefeed.output.dataset import export_dataset
from airflow_changefeed.output.schemas import schema_text
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.read import read_export
from tests.examples import examples, run_example
from tests.unit.export.damage import corrupt_manifest
from tests.unit.export.flights import FEED, START, Flights, hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HOUR = timedelta(hours=1)


@pytest.fixture
def store(tmp_path: Path, flights: Flights) -> ExportStore:
    """Three hours of two shards; shard 1 has ten rows in each, shard 2 six in the second."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    flights.add(30, 0, shard=1, length=3)
    flights.add(6, 1, shard=2)
    flights.export(store, hours(0, 3))
    return store


def file_of(store: ExportStore, shard: int, hour: int) -> Path:
    """The only file of a shard's hour."""
    (manifest,) = store.list(shard, START + hour * HOUR, START + (hour + 1) * HOUR)
    return Path(store.find_file(manifest, manifest.files[0]))


def test_spark_reads_what_pyarrow_reads(spark: SparkSession, store: ExportStore) -> None:
    """The same columns in the same order, and the same rows, in an interval that cuts units."""
    interval = START + HOUR / 2, START + 2.5 * HOUR
    frame = read_export(spark, store.path, FEED, *interval, incomplete="read")
    table = export_dataset(store.path, FEED, *interval, incomplete="read").to_table()
    assert frame.columns == table.column_names
    rows = sorted((row["changefeed_ulid"], row["changefeed_shard"], row["id"]) for row in frame.collect())
    ours = zip(
        *(table[name].to_pylist() for name in ("changefeed_ulid", "changefeed_shard", "id")), strict=True
    )
    assert rows == sorted(ours)
    assert 0 < len(rows) < 36


def test_only_files_of_the_interval_and_the_shards_are_opened(
    spark: SparkSession, store: ExportStore
) -> None:
    """Everything else may be gone, even the manifests' content."""
    for shard, hour in ((1, 0), (1, 2), (2, 1)):
        file_of(store, shard, hour).unlink()
    for manifest in store.list():
        if manifest.unit != ExportUnit.of_window(1, hours(1, 2)[0]):
            corrupt_manifest(store, manifest)
    assert read_export(spark, store.path, FEED, START + HOUR, START + 2 * HOUR, [1]).count() == 10


def test_a_frame_that_is_held_while_a_unit_is_exported_again_says_so(
    spark: SparkSession, flights: Flights, store: ExportStore
) -> None:
    """In Spark's words, which our own jobs translate; read again, it has the rows."""
    held = read_export(spark, store.path, FEED)
    flights.export(store, hours(1, 2))
    with pytest.raises(Exception, match="It is possible the underlying files have been updated") as caught:
        held.collect()
    error = own_error(caught.value)
    assert error.transient
    assert error.message.startswith("a file was replaced while Spark read it: its unit was exported again")
    assert read_export(spark, store.path, FEED).count() == 36


def test_an_interval_that_is_not_complete_is_refused(spark: SparkSession, store: ExportStore) -> None:
    """What is missing is named; who asks for it reads what is there."""
    (manifest,) = store.list(1, START + HOUR, START + 2 * HOUR)
    store.withdraw(manifest.unit, manifest.attempt)
    with pytest.raises(ManifestError, match=r"shard 1 \[2013-01-01T01:00:00Z, 2013-01-01T02:00:00Z\)"):
        read_export(spark, store.path, FEED, START, START + 3 * HOUR)
    assert read_export(spark, store.path, FEED, START, START + 3 * HOUR, incomplete="read").count() == 26


def test_an_idle_hour_reads_like_a_busy_one(spark: SparkSession, flights: Flights, tmp_path: Path) -> None:
    """Columns and types are the same, the shard is a bigint in both."""
    store = ExportStore(str(tmp_path / "idle"), FEED)
    flights.add(10, 0, shard=5)
    flights.export(store, hours(0, 1))
    commit_empty(store, flights.plan(store, hours(1, 2)), flights.source.schema(FEED))
    busy = read_export(spark, store.path, FEED, end=hours(1, 2)[0].start)
    idle = read_export(spark, store.path, FEED, hours(1, 2)[0].start)
    assert (busy.count(), idle.count()) == (10, 0)
    assert busy.dtypes == idle.dtypes
    assert dict(busy.dtypes)["changefeed_shard"] == "bigint"


def test_columns_that_changed_are_refused_or_unified(
    spark: SparkSession, flights: Flights, store: ExportStore
) -> None:
    """A new column is null where it was not."""
    flights.execute(f'alter table "{FEED}" add column gate integer default 4')
    flights.export(store, hours(2, 3))
    with pytest.raises(ColumnTypeError, match="'gate'"):
        read_export(spark, store.path, FEED)
    gates = [row["gate"] for row in read_export(spark, store.path, FEED, unify_schemas=True).collect()]
    assert (gates.count(4), gates.count(None)) == (10, 26)


def test_units_that_spell_a_column_in_two_ways_are_one_frame(
    spark: SparkSession, flights: Flights, store: ExportStore
) -> None:
    """Spark finds a column whatever its letter case: it has the values of all units, by the newest name."""
    flights.execute(f'alter table "{FEED}" rename column delay to Delay')
    flights.run(store, replace(flights.plan(store, hours(2, 3)), names={}))
    frame = read_export(spark, store.path, FEED, unify_schemas=True)
    assert [name for name in frame.columns if name.lower() == "delay"] == ["Delay"]
    assert frame.where("delay is not null").count() == 36


WIDENED = {
    "int64": (pa.array([-5], pa.int8()), pa.array([2**40], pa.int64()), [-5, 2**40]),
    "int32": (pa.array([200], pa.uint8()), pa.array([-70_000], pa.int32()), [200, -70_000]),
    "double": (pa.array([0.5], pa.float32()), pa.array([0.1], pa.float64()), [0.5, 0.1]),
    "decimal": (
        pa.array(["1.25"]).cast(pa.decimal128(9, 2)),
        pa.array(["123456789012.50"]).cast(pa.decimal128(20, 2)),
        ["1.25", "123456789012.50"],
    ),
    "string": (pa.array(["a"]), pa.array(["b"], pa.large_string()), ["a", "b"]),
}


def write_hour(store: ExportStore, hour: int, values: pa.Array) -> None:
    """Commit a unit of one row, whose only column is given."""
    unit = ExportUnit.of_window(1, hours(hour, hour + 1)[0])
    ulid = Ulid.floor(START + (hour + 0.5) * HOUR)
    table = pa.table(
        {
            "changefeed_ulid": pa.array([str(ulid)]),
            "changefeed_time": pa.array([ulid.ms], pa.timestamp("ms", tz="UTC")),
            "value": values,
        }
    )
    path = Path(store.layout.placed(unit, hour + 1)) / "part-00000-00000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(table, path)
    facts: FileFacts = read_facts(store, str(path), path.name)
    schema, sealed_until = schema_text(table.schema), START + (hour + 1) * HOUR
    store.write(Manifest(FEED, unit, hour + 1, "tests", "tests", START, (facts,), sealed_until, 0, schema))


@pytest.mark.parametrize("name", WIDENED)
def test_a_type_that_was_widened_is_read_exactly_by_both(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Every value of the narrow files and of the wide ones, with Spark and with pyarrow."""
    narrow, wide, values = WIDENED[name]
    store = ExportStore(str(tmp_path / "widened"), FEED)
    store.claim("")
    write_hour(store, 0, narrow)
    write_hour(store, 1, wide)
    with pytest.raises(ColumnTypeError, match="'value'"):
        read_export(spark, store.path, FEED)
    rows: list[Any] = (
        read_export(spark, store.path, FEED, unify_schemas=True).orderBy("changefeed_ulid").collect()
    )
    ours = export_dataset(store.path, FEED, unify_schemas=True).to_table().sort_by("changefeed_ulid")
    convert = str if name == "decimal" else type(values[0])
    assert [convert(row["value"]) for row in rows] == values
    assert [convert(value) for value in ours["value"].to_pylist()] == values


def test_the_examples_of_the_page_run(spark: SparkSession, store: ExportStore) -> None:
    """Those of docs/how-to/read-an-export.md that need Spark."""
    names: dict[str, Any] = {"spark": spark, "start": START, "end": START + 3 * HOUR}
    for code in examples("how-to/read-an-export.md", {"/data/export": store.path}):
        if "spark" in code:
            run_example(code, names)
    assert names["flights"].count() == 36
    assert names["day"].count() == 30
