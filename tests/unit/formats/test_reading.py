# SPDX-License-Identifier: Apache-2.0
"""What readers of a table get: the rows that were written, with the partitions that no file has."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import date, datetime, time, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from airflow_changefeed.formats.base import TableFile
from airflow_changefeed.output.schemas import file_schema
from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD
from tests.unit.formats.exports import COLUMNS, Export, Row, change, in_order, unit

ROW = pa.struct([("a", pa.int32()), ("small", pa.uint8()), ("text", pa.string())])
#: Every type that a source gives, and some more.
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
    "clock": (pa.time64("us"), [time(0), time(23, 59, 59, 999_999)]),
    "fixed": (pa.binary(4), [b"1234", b"\x00\x00\x00\x00"]),
}


def written(export: Export, *, without: Collection[str] = ()) -> list[TableFile]:
    """Commit two files with values of each type that the format holds; the second has nulls beside them."""
    kinds = file_schema(pa.schema([(name, kind) for name, (kind, _) in ALL.items()]), export.format)
    lost = {*without, *(each.name for each in kinds if each.type in export.library.refuses)}
    every = {name: column for name, column in ALL.items() if name not in lost}
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


def check_rows(export: Export, expected: list[Row]) -> None:
    """Each reader of the format finds these rows."""
    assert in_order(export.library.read().to_pylist()) == expected
    for name, read in export.library.readers().items():
        assert in_order(read()) == expected, name


def test_readers_get_every_value(export: Export) -> None:
    """Of every type that the format holds, and of the partitions, which no file has."""
    files = written(export)
    check_rows(export, export.expected(files))


def test_files_of_before_a_new_column_have_nulls_there(export: Export) -> None:
    """Also in a field of a struct; readers give both files their partitions."""
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
        table.commit(table.look(), change([file], schema=file_schema(columns, export.format)))
    first, second = export.expected(files)
    first = dict(sorted({**first, "row": {"a": 1, "b": None}, "c": None}.items()))
    check_rows(export, [first, second])


def test_uuid_shards_are_text(export: Export) -> None:
    """Also in a table that was made by a change without files."""
    shard = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
    table = export.table()
    table.commit(table.look(), change(has_uuid_shards=True))
    file = export.write(unit(0, shard), 1)
    table.commit(table.look(), change([file], has_uuid_shards=True))
    assert list(export.table().look().files) == [(str(shard), unit(0).name, 1)]
    check_rows(export, export.expected([file]))


def test_partitions_and_facts_leave_files_unread(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter on a date, or a time, finds its files by the table alone."""
    files = [export.write(unit(hour), hour + 1) for hour in (0, 30)]
    table = export.table()
    table.commit(table.look(), change(files))
    export.store.files.remove_file(f"{export.store.layout.data}/{files[0].path}")
    wanted = export.expected(files[1:])
    for condition in (
        "changefeed_date = '2013-01-02'",
        "changefeed_time >= '2013-01-02T00:00:00+00:00'",
        f"changefeed_ulid >= '{wanted[0]['changefeed_ulid']}'",
    ):
        assert in_order(export.library.rows(condition)) == wanted
