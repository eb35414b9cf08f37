# SPDX-License-Identifier: Apache-2.0
"""Exports of a capture in every shape: planned, written, verified and read back; and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.capture.shapes import shaped_schema
from airflow_changefeed.core.export_plan import SHAPES, ExportOptions, Plan, Shape
from airflow_changefeed.exceptions import ColumnTypeError, InvalidArgumentError
from airflow_changefeed.export.batch import batch_leases
from airflow_changefeed.export.parquet import ROW_GROUP_BYTES
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.planner import check_shape, make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.export.result import ExportResult
from airflow_changefeed.output.attempts import forget
from airflow_changefeed.output.dataset import export_dataset
from airflow_changefeed.output.schemas import common_schema, parse_schema, schema_text
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.arrow import shape_of
from tests.exports import unit_files, verify
from tests.unit.capture.source import COLUMNS, ROW, CaptureSource, event, row
from tests.unit.export.flights import CONSUMER, FEED, Flights, hours


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """A feed without events."""
    return Flights.create(tmp_path / "capture.db")


@pytest.fixture
def source(flights: Flights) -> CaptureSource:
    """A capture with events in each of three hours."""
    for hour in range(3):
        flights.add(60, hour)
    return CaptureSource(flights.source)


def plan(source: Any, store: ExportStore, first: int, last: int, **options: Any) -> Plan:
    """Plan an export of hours."""
    return make_plan(
        source,
        store,
        ExportRequest(
            FEED, store.path, CONSUMER, "tests", hours(first, last), options=ExportOptions(**options)
        ),
    )


def export(source: Any, store: ExportStore, first: int, last: int, **options: Any) -> ExportResult:
    """Export hours, through the plan's JSON, as the Spark job does."""
    made = Plan.from_json(plan(source, store, first, last, **options).to_json(), named="plan")
    return ran(source, store, made)


def ran(source: Any, store: ExportStore, made: Plan) -> ExportResult:
    """Run a plan, and forget it as the operator does."""
    result = run_here(source, store, made, lambda line: None)
    forget(store, [made.attempt])
    return result


def store_in(folder: Path) -> ExportStore:
    """Return an output of the capture."""
    return ExportStore(str(folder / "out"), FEED)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_written_verified_and_read_back(
    source: CaptureSource, tmp_path: Path, shape: str
) -> None:
    """The manifest has the shape's columns, its files the capture, and nothing differs from what it says."""
    store = store_in(tmp_path)
    result = export(source, store, 0, 3, shape=shape, target_file_rows=25)
    assert (result.units, result.rows) == (3, 180)
    assert verify(store, source=source) == []
    expected = shaped_schema(source.schema(FEED), shape)
    dataset = export_dataset(store.path, FEED)
    assert dataset.schema.names == [*expected.names, "changefeed_shard"]
    assert [field.type for field in dataset.schema][:-1] == expected.types
    table = dataset.to_table()
    assert len(table) == 180
    files = unit_files(store)
    assert {file.manifest.schema for file in files} == {schema_text(expected)}
    written = pq.read_schema(files[0].path)
    assert shape_of(written) == source.shape
    assert (written.metadata.get(b"changefeed.shape") or b"typed").decode() == shape


def test_typed_rows_come_back_as_they_were(source: CaptureSource, tmp_path: Path) -> None:
    """Structs in structs' place, null where there is no row."""
    store = store_in(tmp_path)
    export(source, store, 0, 1)
    found = export_dataset(store.path, FEED).to_table().sort_by("changefeed_ulid").to_pylist()
    for number, got in enumerate(found, 1):
        made = event(number)
        names = [field.name for field in ROW]
        for side in ("old", "new"):
            there = getattr(made, side)
            assert got[side] == (None if there is None else {name: there[name] for name in names})


def test_json_rows_come_back_as_they_were(source: CaptureSource, tmp_path: Path) -> None:
    """The columns of the table, with the second one folded in."""
    store = store_in(tmp_path)
    export(source, store, 0, 1, shape="envelope")
    found = export_dataset(store.path, FEED).to_table().sort_by("changefeed_ulid").to_pylist()
    for number, got in enumerate(found, 1):
        made = event(number)
        assert got["type"] == {"i": "add", "u": "upd", "d": "del"}[made.kind]
        for side, numbered in (("old", number), ("new", number + 1)):
            if getattr(made, side) is None:
                assert got[side] is None
                continue
            values = json.loads(got[side], parse_float=Decimal)
            assert tuple(values) == COLUMNS
            assert values["amount"] == row(numbered)["amount"]
            assert values["at"] == f"{row(numbered)['at'].isoformat(timespec='microseconds')}{numbered % 10}"


def test_exporting_a_window_again_gives_the_same(source: CaptureSource, tmp_path: Path) -> None:
    """Of each shape: the rows' checksums do not depend on when, or in how many batches, they were read."""
    for shape in SHAPES:
        store = ExportStore(str(tmp_path / shape), FEED)
        export(source, store, 0, 1, shape=shape)
        (once,) = {file.manifest.checksum for file in unit_files(store)}
        export(source, store, 0, 1, shape=shape, batch_rows=7, target_file_rows=11)
        (again,) = {file.manifest.checksum for file in unit_files(store)}
        assert once == again


def test_an_idle_hour_has_the_columns_of_the_shape(source: CaptureSource, tmp_path: Path) -> None:
    """What is committed without a task says the same of the feed as tasks do."""
    store = store_in(tmp_path)
    export(source, store, 0, 1, shape="debezium")
    (busy,) = {file.manifest.schema for file in unit_files(store)}
    assert schema_text(check_shape(source, FEED, Shape.DEBEZIUM)) == busy


def test_a_batch_from_the_cursor_has_a_shape(source: CaptureSource, tmp_path: Path) -> None:
    """Windows and batches alike."""
    store = store_in(tmp_path)
    request = ExportRequest(FEED, store.path, CONSUMER, "tests", options=ExportOptions(shape="hasura"))
    with batch_leases(source, request, store) as (leased, _):
        ran(source, store, make_plan(source, store, leased))
    table = export_dataset(store.path, FEED).to_table()
    assert table.num_rows == 180
    assert "payload" in table.column_names
    assert verify(store) == []


def test_a_shape_of_a_plain_feed_is_refused_when_planned(flights: Flights, tmp_path: Path) -> None:
    """Before the feed is sealed and the path is claimed; the error names feed, shape and remedy."""
    flights.add(3, 0)
    for shape in set(SHAPES) - {"typed"}:
        with pytest.raises(InvalidArgumentError, match=rf"{FEED}.*omit shape='{shape}'.*enable_capture"):
            plan(flights.source, store_in(tmp_path), 0, 1, shape=shape)
    assert not (tmp_path / "out").exists()
    assert flights.source.feed(FEED).sealed_until is None


def test_a_column_without_json_is_refused_when_planned(flights: Flights, tmp_path: Path) -> None:
    """Unless the shape is typed."""
    fields = [*ROW, pa.field("late", pa.duration("us"))]
    flights.add(3, 0)
    source = CaptureSource(flights.source, fields, [*COLUMNS, "late"])
    with pytest.raises(ColumnTypeError, match="'late'"):
        plan(source, store_in(tmp_path), 0, 1, shape="envelope")
    plan(source, store_in(tmp_path), 0, 1)


def test_large_batches_are_shaped_in_pieces(
    flights: Flights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON takes more room than what it is made of; files and checksums are the same."""
    flights.add(60, 0)
    source = CaptureSource(flights.source)
    export(source, store_in(tmp_path), 0, 1, shape="hasura")
    (whole,) = unit_files(store_in(tmp_path))
    assert ROW_GROUP_BYTES > 1000
    monkeypatch.setattr("airflow_changefeed.export.parquet.ROW_GROUP_BYTES", 1000)
    export(source, store_in(tmp_path), 0, 1, shape="hasura")
    (pieces,) = unit_files(store_in(tmp_path))
    assert pieces.manifest.checksum == whole.manifest.checksum
    assert pq.ParquetFile(pieces.path).num_row_groups > 1


def refreshed(source: CaptureSource) -> CaptureSource:
    """The same capture after its table was changed: a column more in the middle, and a wider one."""
    wider = [field if field.name != "at_100ns" else pa.field("at_100ns", pa.int16()) for field in ROW]
    return CaptureSource(
        source.source, [wider[0], pa.field("late", pa.int64()), *wider[1:]], [*COLUMNS, "late"]
    )


def test_units_of_before_and_after_a_refresh_are_read_together(source: CaptureSource, tmp_path: Path) -> None:
    """Within the structs, too: by name, null where a unit lacks the column, in the wider type."""
    store = store_in(tmp_path)
    export(source, store, 0, 1)
    export(refreshed(source), store, 1, 2)
    assert verify(store) == []
    with pytest.raises(ColumnTypeError) as caught:
        export_dataset(store.path, FEED)
    assert "column 'old.late' is int64 in" in str(caught.value)
    assert "missing in" in str(caught.value)
    assert "column 'new.at_100ns' is int16" in str(caught.value)
    assert "unify_schemas=True" in str(caught.value)
    assert "column 'old' is" not in str(caught.value)
    dataset = export_dataset(store.path, FEED, unify_schemas=True)
    assert [field.name for field in dataset.schema.field("new").type] == [
        "id",
        "late",
        "text",
        "amount",
        "at",
        "at_100ns",
        "raw",
    ]
    found = dataset.to_table().sort_by("changefeed_ulid").to_pylist()
    assert len(found) == 120
    for number, got in enumerate(found, 1):
        wanted = event(number).new
        assert (got["new"] is None) == (wanted is None)
        if wanted is not None:
            late = wanted["late"] if number > 60 else None
            assert got["new"] == {**wanted, "late": late}


def test_another_order_of_fields_is_no_other_schema(source: CaptureSource, tmp_path: Path) -> None:
    """As with columns: the newest unit's order is shown, and every value stands under its name."""
    store = store_in(tmp_path)
    export(source, store, 0, 1)
    export(CaptureSource(source.source, ROW[::-1]), store, 1, 2)
    dataset = export_dataset(store.path, FEED)
    assert [field.name for field in dataset.schema.field("old").type] == [field.name for field in ROW[::-1]]
    found = dataset.to_table().sort_by("changefeed_ulid").to_pylist()
    ids = [got["new"] and got["new"]["id"] for got in found]
    assert ids == [(event(number).new or {}).get("id") for number in range(1, 121)]


def test_an_output_of_two_shapes_is_not_read_as_one(source: CaptureSource, tmp_path: Path) -> None:
    """The columns differ, with or without unifying; each hour by itself reads."""
    store = store_in(tmp_path)
    export(source, store, 0, 1)
    export(source, store, 1, 2, shape="envelope")
    for unify in (False, True):
        with pytest.raises(ColumnTypeError, match="column 'old' is string in"):
            export_dataset(store.path, FEED, unify_schemas=unify)
    assert export_dataset(store.path, FEED, hours(1, 2)[0].start).count_rows() == 60


def test_a_filter_on_a_field_reads_what_it_says(source: CaptureSource, tmp_path: Path) -> None:
    """Also where a unit lacks the field."""
    import pyarrow.dataset as ds

    store = store_in(tmp_path)
    export(source, store, 0, 1)
    export(refreshed(source), store, 1, 2)
    dataset = export_dataset(store.path, FEED, unify_schemas=True)
    found = dataset.to_table(filter=ds.field("new", "late") >= 1000).column("new").to_pylist()
    assert sorted(each["late"] for each in found) == [
        each["late"] for each in (event(n).new for n in range(61, 121)) if each and each["late"] >= 1000
    ]


def test_a_manifests_schema_is_the_files(source: CaptureSource, tmp_path: Path) -> None:
    """But for metadata; people read the types beside it."""
    store = store_in(tmp_path)
    export(source, store, 0, 1)
    (file,) = unit_files(store)
    written = pq.read_schema(file.path)
    found = parse_schema(file.manifest.schema, named="manifest")
    assert found.equals(written)
    assert (found.metadata, bool(written.metadata)) == (None, True)
    assert file.manifest.columns == {column.name: str(column.type) for column in written}


def test_a_schema_that_pyarrow_cannot_read_is_named(source: CaptureSource, tmp_path: Path) -> None:
    """Nothing is guessed of it."""
    store = store_in(tmp_path)
    export(source, store, 0, 1)
    (file,) = unit_files(store)
    for damaged in (file.manifest.schema[:40], "bm90IGEgc2NoZW1h", "not base64!"):
        broken = replace(file.manifest, attempt=99, schema=damaged)
        with pytest.raises(ColumnTypeError, match="cannot read the schema") as caught:
            common_schema([file.manifest, broken], unify=True)
        assert str(file.manifest.unit) in str(caught.value)
