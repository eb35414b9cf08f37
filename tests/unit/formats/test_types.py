# SPDX-License-Identifier: Apache-2.0
"""Types that a table format does not hold: refused before anything is written, by the column's name."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.formats.types import DELTA, ICEBERG, TableTypes, coarse_times, table_schema, united
from airflow_changefeed.output.schemas import file_schema
from tests.unit.formats.exports import COLUMNS, Export


def columns(**kinds: pa.DataType) -> pa.Schema:
    """Return columns beside ULID and time."""
    return pa.schema([*list(COLUMNS)[:2], *kinds.items()])


#: Types that every format refuses.
REFUSED = (
    pa.uint32(),
    pa.uint64(),
    pa.float16(),
    pa.timestamp("ns"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.time64("ns"),
    pa.decimal128(5, -2),
    pa.decimal256(50, 0),
    pa.list_(pa.int32()),
    pa.null(),
)


@pytest.mark.parametrize("kind", [*REFUSED, pa.time64("us"), pa.uint8(), pa.uint16(), pa.binary(4)], ids=str)
def test_a_type_that_a_format_does_not_hold_is_refused(export: Export, kind: pa.DataType) -> None:
    """All such columns are named at once, fields of structs by their path."""
    schema = columns(good=pa.string(), bad=kind, row=pa.struct([("good", pa.int32()), ("bad", kind)]))
    if kind not in (*REFUSED, *export.library.refuses):
        export.table().check(schema)
        return
    title = export.library.types.format
    with pytest.raises(ColumnTypeError, match=f"^{title} has no type .* plain Parquet") as caught:
        export.table().check(schema)
    assert caught.value.facts["columns"] == ["bad", "row.bad"]


@pytest.mark.parametrize("name", ["NAME", "Changefeed_Shard", "changefeed_unit"])
def test_names_that_differ_in_case_only_are_refused(export: Export, name: str) -> None:
    """Readers of tables ignore case; the partitions count as well."""
    with pytest.raises(ColumnTypeError, match="ignore the case of names") as caught:
        export.table().check(columns(name=pa.string(), **{name: pa.string()}))
    assert caught.value.facts["columns"] == [name]


@pytest.mark.parametrize(
    ("types", "own", "theirs", "joined"),
    [
        (ICEBERG, pa.int32(), pa.int64(), pa.int64()),
        (ICEBERG, pa.int64(), pa.int16(), pa.int64()),
        (ICEBERG, pa.float32(), pa.float64(), pa.float64()),
        (ICEBERG, pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (ICEBERG, pa.decimal128(5, 2), pa.decimal128(9, 3), None),
        (ICEBERG, pa.int32(), pa.string(), None),
        (DELTA, pa.int32(), pa.int64(), None),
        (DELTA, pa.int64(), pa.int32(), None),
        (DELTA, pa.uint8(), pa.int16(), pa.int16()),
        (DELTA, pa.string(), pa.large_string(), pa.string()),
    ],
)
def test_a_column_becomes_wider_where_the_format_says_how(
    types: TableTypes, own: pa.DataType, theirs: pa.DataType, joined: pa.DataType | None
) -> None:
    """Iceberg promotes types, Delta Lake does not; alone and in a struct."""
    for wrap in (lambda kind: kind, lambda kind: pa.struct([("a", kind)])):
        have, files = (table_schema(columns(x=wrap(kind)), types) for kind in (own, theirs))
        if joined is None:
            with pytest.raises(ColumnTypeError, match="column 'x' is "):
                united(have, files, types, "the table")
        else:
            assert united(have, files, types, "the table").field("x").type == wrap(joined)


def test_files_of_tables_have_what_readers_take() -> None:
    """Microseconds; and of Iceberg's reader in Spark no unsigned numbers; also in structs."""
    inner = [("small", pa.uint8()), ("at", pa.timestamp("ms", "UTC"))]
    schema = columns(tiny=pa.uint8(), word=pa.uint16(), when=pa.timestamp("s"), row=pa.struct(inner))
    assert file_schema(schema, "parquet") == schema
    delta = file_schema(schema, "delta")
    assert [delta.field(name).type for name in ("tiny", "word", "when")] == [
        pa.uint8(),
        pa.uint16(),
        pa.timestamp("us"),
    ]
    assert delta.field("row").type == pa.struct([("small", pa.uint8()), ("at", pa.timestamp("us", "UTC"))])
    found = file_schema(schema, "iceberg")
    assert found.field("changefeed_time").type == pa.timestamp("us", "UTC")
    assert [found.field(name).type for name in ("tiny", "word", "when")] == [
        pa.int16(),
        pa.int32(),
        pa.timestamp("us"),
    ]
    assert found.field("row").type == pa.struct([("small", pa.int16()), ("at", pa.timestamp("us", "UTC"))])
    assert coarse_times(schema)
    assert not coarse_times(found)


def test_a_new_column_in_another_case_is_refused() -> None:
    """The table has it, in another spelling."""
    with pytest.raises(ColumnTypeError, match="ignore the case"):
        united(columns(name=pa.string()), columns(Name=pa.string()), DELTA, "the table")
