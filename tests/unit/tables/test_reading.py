# SPDX-License-Identifier: Apache-2.0
"""What readers of a table get: the rows that were written, with the partitions that no file has."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from airflow_changefeed.output.schemas import file_schema
from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD
from airflow_changefeed.tables.base import TableFile
from tests.unit.tables.exports import COLUMNS, Export, Row, change, in_order, unit

ROW = pa.struct([("a", pa.int32()), ("small", pa.uint8()), ("text", pa.string())])
#: Every type that a source gives and both formats hold, and some more.
ALL = {
    "flag": (pa.bool_(), [True, False]),
    "tiny": (pa.uint8(), [0, 255]),
    "unsigned": (pa.uint16(), [0, 65_535]),
    "small": (pa.int16(), [-32_768, 32_767]),
    "whole": (pa.int32(), [-(2**31), 2**31 - 1]),
    "big": (pa.int64(), [-(2**63), 2**63 - 1]),
    "single": (pa.float32(), [0.5, -0.25]),
    "double": (pa.float64(), [1e308, -0.1]),
    "money": (pa.decimal128(19, 4), [Decimal("922337203685477.5807"), Decimal("-0.0001")]),
    "wide": (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(-(10**38) + 1)]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "local": (pa.timestamp("us"), [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]),
    "milliseconds": (pa.timestamp("ms"), [datetime(1753, 1, 1), datetime(2013, 1, 1, 0, 0, 0, 3_000)]),
    "instant": (
        pa.timestamp("us", "UTC"),
        [datetime(1, 1, 1, tzinfo=timezone.utc), datetime(9999, 12, 31, tzinfo=timezone.utc)],
    ),
    "text": (pa.large_string(), ["ä€😀", ""]),
    "bytes": (pa.large_binary(), [b"\x00\xff", b""]),
    "new": (ROW, [{"a": 1, "small": 255, "text": "x"}, None]),
    "Order Date": (pa.string(), ["a space", None]),
    "a.b": (pa.string(), ["a dot", None]),
}


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Polars plan scans of Iceberg by pyiceberg; it warns where its own package for that is missing."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


def written(
    export: Export, *, without: Collection[str] = (), **more: tuple[pa.DataType, list[Any]]
) -> list[TableFile]:
    """Commit two files with values of each type, one after the other; the second has nulls beside them."""
    every = {name: column for name, column in {**ALL, **more}.items() if name not in without}
    columns = pa.schema([ULID_FIELD, TIME_FIELD, *((name, kind) for name, (kind, _) in every.items())])
    rows = [{name: values[place] for name, (_, values) in every.items()} for place in (0, 1)]
    files = [
        export.write(unit(0), 1, rows, columns),
        export.write(unit(30, shard=-5), 2, [*rows, dict.fromkeys(every)], columns),
    ]
    for file in files:
        table = export.table()
        table.commit(table.look(), change([file], schema=file_schema(columns, export.format)))
    return files


def by_pyarrow(export: Export) -> list[Row]:
    """Read a Delta table through pyarrow."""
    from deltalake import DeltaTable

    return list(DeltaTable(export.store.layout.data).to_pyarrow_table().to_pylist())


def by_datafusion(export: Export) -> list[Row]:
    """Read a Delta table through DataFusion."""
    from deltalake import DeltaTable, QueryBuilder

    query = QueryBuilder().register("feed", DeltaTable(export.store.layout.data))
    return list(pa.table(query.execute("select * from feed").read_all()).to_pylist())


def by_polars(export: Export) -> list[Row]:
    """Read a table through Polars."""
    if export.format == "delta":
        return pl.scan_delta(export.store.layout.data).collect().to_dicts()
    return with_iceberg(export, lambda table: pl.scan_iceberg(table).collect().to_dicts())


def by_duckdb(export: Export) -> list[Row]:
    """Read a table's columns through DuckDB, from Arrow: its own extensions come from the network."""
    found = with_iceberg(export, lambda table: table.scan().to_arrow())
    with duckdb.connect() as connection:
        connection.register("feed", found)
        connection.execute("set timezone = 'UTC'")
        return list(connection.sql("select * from feed").to_arrow_table().to_pylist())


def by_pyiceberg(export: Export) -> list[Row]:
    """Read a table of Iceberg."""
    return with_iceberg(export, lambda table: table.scan().to_arrow().to_pylist())


def with_iceberg(export: Export, read: Callable[[Any], Any]) -> Any:
    """Open a table of Iceberg as strangers do: by the catalog alone."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(**export.catalog)
    try:
        return read(catalog.load_table("sales.flights"))
    finally:
        catalog.close()


@pytest.mark.parametrize("read", [by_pyarrow, by_datafusion, by_polars])
def test_readers_of_delta_lake_get_every_value(delta: Export, read: Callable[[Export], list[Row]]) -> None:
    """Bytes of one length, too."""
    files = written(delta, fixed=(pa.binary(4), [b"1234", b"\x00\x00\x00\x00"]))
    assert in_order(read(delta)) == delta.expected(files)


@pytest.mark.parametrize("read", [by_pyiceberg, by_polars, by_duckdb])
def test_readers_of_iceberg_get_every_value(iceberg: Export, read: Callable[[Export], list[Row]]) -> None:
    """Times of day, too."""
    more: dict[str, tuple[pa.DataType, list[Any]]] = {
        "clock": (pa.time64("us"), [time(0), time(23, 59, 59, 999_999)]),
        "fixed": (pa.binary(4), [b"1234", b"\x00\x00\x00\x00"]),
    }
    files = written(iceberg, **more)
    assert in_order(read(iceberg)) == iceberg.expected(files)


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_files_of_before_a_new_column_have_nulls_there(request: pytest.FixtureRequest, format: str) -> None:
    """Also in a field of a struct; readers give both files their partitions."""
    export: Export = request.getfixturevalue(format)
    old = pa.schema([*COLUMNS, ("row", pa.struct([("a", pa.int32())]))])
    new = pa.schema(
        [*COLUMNS, ("row", pa.struct([("a", pa.int32()), ("b", pa.uint8())])), ("c", pa.string())]
    )
    files = [
        export.write(unit(0), 1, [{"number": 1, "row": {"a": 1}}], old),
        export.write(unit(1), 2, [{"number": 2, "row": {"a": 2, "b": 255}, "c": "x"}], new),
    ]
    for file, columns in zip(files, (old, new), strict=True):
        table = export.table()
        table.commit(table.look(), change([file], schema=file_schema(columns, format)))
    first, second = export.expected(files)
    first = dict(sorted({**first, "row": {"a": 1, "b": None}, "c": None}.items()))
    readers = (by_pyarrow, by_datafusion, by_polars) if format == "delta" else (by_pyiceberg, by_polars)
    for read in readers:
        assert in_order(read(export)) == [first, second], read.__name__


def test_uuid_shards_are_text(export: Export) -> None:
    """Also in a table that was made by a change without files."""
    shard = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
    table = export.table()
    table.commit(table.look(), change(has_uuid_shards=True))
    file = export.write(unit(0, shard), 1)
    table.commit(table.look(), change([file], has_uuid_shards=True))
    assert list(export.table().look().files) == [(str(shard), unit(0).name, 1)]
    assert in_order(by_polars(export)) == export.expected([file])


def test_partitions_and_facts_leave_files_unread(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter on a date, or a time, finds its files by the table alone."""
    files = [export.write(unit(hour), hour + 1) for hour in (0, 30)]
    table = export.table()
    table.commit(table.look(), change(files))
    export.store.files.remove_file(f"{export.store.layout.data}/{files[0].path}")
    wanted = export.expected(files[1:])
    instant = datetime(2013, 1, 2, tzinfo=timezone.utc)
    if export.format == "delta":
        from deltalake import DeltaTable, QueryBuilder

        for condition in ("changefeed_date = '2013-01-02'", "changefeed_time >= '2013-01-02T00:00:00Z'"):
            query = QueryBuilder().register("feed", DeltaTable(export.store.layout.data))
            found = pa.table(query.execute(f"select * from feed where {condition}").read_all())
            assert in_order(found.to_pylist()) == wanted
        return
    for condition in (
        "changefeed_date == '2013-01-02'",
        f"changefeed_time >= '{instant.isoformat()}'",
        f"changefeed_ulid >= '{wanted[0]['changefeed_ulid']}'",
    ):
        rows = with_iceberg(
            export, lambda table, c=condition: table.scan(row_filter=c).to_arrow().to_pylist()
        )
        assert in_order(rows) == wanted
