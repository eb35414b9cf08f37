# SPDX-License-Identifier: Apache-2.0
"""Structs in manifests, checksums, statistics and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.export_plan import ExportOptions
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.export.checksum import checksum
from airflow_changefeed.export.parquet import PartFile, repeating_columns
from airflow_changefeed.export.verify import Extent, MisleadingFooterError, read_facts
from airflow_changefeed.output.schemas import leaf_types, leaves, parse_schema, schema_text, wider_type
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.local import LocalFiles
from tests.unit.export.test_checksum import ROW, VALUES

_flat = st.sampled_from([*VALUES, pa.time64("us"), pa.timestamp("us", "UTC"), pa.uint8()])
_kinds = st.recursive(
    _flat,
    lambda inner: st.lists(
        st.tuples(st.text(min_size=1, max_size=6), inner),
        min_size=1,
        max_size=3,
        unique_by=lambda one: one[0],
    ).map(pa.struct),
    max_leaves=6,
)


@given(st.dictionaries(st.text(min_size=1, max_size=6), _kinds, min_size=1, max_size=3))
def test_columns_are_read_back_from_their_text(kinds: dict[str, pa.DataType]) -> None:
    """Whatever the names of columns and fields; metadata is left out."""
    schema = pa.schema(kinds)
    found = parse_schema(schema_text(schema.with_metadata({"a": "b"})), named="manifest")
    assert found.equals(schema, check_metadata=True)


def test_leaves_have_paths() -> None:
    """Of structs within structs; a column that is no struct is its own leaf."""
    kind = pa.struct([("a, b", pa.int8()), ("c", pa.struct([("d", pa.timestamp("us", "UTC"))]))])
    assert list(leaf_types("s", kind)) == [("s.a, b", pa.int8()), ("s.c.d", pa.timestamp("us", "UTC"))]
    assert list(leaf_types("n", pa.int64())) == [("n", pa.int64())]


def test_structs_are_widened_by_the_names_of_fields() -> None:
    """Fields of both, each as wide as both need; one that has no common type has none for the struct."""
    one = pa.struct({"a": pa.int32(), "b": pa.struct({"c": pa.string()}), "old": pa.bool_()})
    both = pa.struct({"c": pa.string(), "d": pa.binary()})
    other = pa.struct({"b": both, "a": pa.int64(), "new": pa.date32()})
    wider = pa.struct({"a": pa.int64(), "b": both, "old": pa.bool_(), "new": pa.date32()})
    assert wider_type(one, other) == wider
    assert wider_type(one, pa.struct({"a": pa.string()})) is None
    assert wider_type(one, pa.string()) is None


@st.composite
def structs(draw: st.DrawFn) -> pa.Array:
    """Columns of structs with nulls at every level, part of larger ones."""
    values = draw(st.lists(st.none() | VALUES[ROW], min_size=1, max_size=12))
    return pa.array(values, ROW).slice(draw(st.integers(0, len(values) - 1)))


def _table(column: pa.Array) -> pa.Table:
    return pa.table({"s": column, "n": pa.array(range(len(column)))})


@given(structs())
def test_what_a_null_struct_holds_does_not_count(column: pa.Array) -> None:
    """Arrow and Parquet do not say what its fields hold; nor does the order of fields count."""
    garbage = {"b": "x", "inner": {"c": True}, "a": 5}
    rows = [garbage if value is None else value for value in column.to_pylist()]
    fields = [ROW.field(name) for name in garbage]
    filled = pa.StructArray.from_arrays(
        [pa.array([row[field.name] for row in rows], field.type) for field in fields],
        fields=fields,
        mask=pa.array([value is None for value in column.to_pylist()]),
    )
    assert checksum(_table(filled)) == checksum(_table(column))


def _one(value: Any, kind: pa.DataType = ROW, name: str = "s") -> int:
    return checksum(pa.table({name: pa.array([value], kind)}))


def test_different_structs_have_different_checksums() -> None:
    """Null, all null, and values in another field, struct or column are distinguished."""
    full = {"a": 1, "b": "x", "inner": {"c": True}}
    values = [
        None,
        {"a": None, "b": None, "inner": None},
        {"a": None, "b": None, "inner": {"c": None}},
        full,
        {**full, "a": None},
        {**full, "b": ""},
        {**full, "inner": {"c": False}},
        {**full, "inner": {"c": None}},
        {**full, "inner": None},
    ]
    found = [_one(value) for value in values]
    found += [_one(full, name="t"), _one(full, pa.struct([*ROW, pa.field("more", pa.int8())]))]
    two = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    found += [
        _one({"a": 1, "b": 2}, two),
        _one({"a": 2, "b": 1}, two),
        _one({"a": 1}, pa.struct([("a", pa.int64())])),
    ]
    flat = pa.table({"s": [1], "a": [1]})
    found += [checksum(flat), checksum(flat.rename_columns(["s", "s.a"])), _one(1, pa.int64(), "s.a")]
    assert len(set(found)) == len(found)


def test_the_checksum_of_structs_is_for_ever() -> None:
    """Manifests keep it; these numbers never change."""
    table = pa.table(
        {"n": [1, 2, 3], "s": pa.array([{"a": 1, "b": "x", "inner": {"c": True}}, None, {"a": None}], ROW)}
    )
    assert f"{checksum(table):032x}" == "86542460a8ba2dc454654f4563bc96ed"


def test_other_nested_types_have_no_checksum() -> None:
    """Also within a struct, and the error names the type."""
    kind = pa.struct([("l", pa.list_(pa.int64()))])
    with pytest.raises(ColumnTypeError, match="column 'l' has type list"):
        _one({"l": [1]}, kind)


def test_leaves_are_null_where_their_struct_is() -> None:
    """As Parquet counts them."""
    column = pa.array([{"a": 1, "inner": {"c": True}}, None, {"inner": None}], ROW)
    found = {path: values.to_pylist() for path, values in leaves("s", column)}
    assert found == {"s.a": [1, None, None], "s.b": [None] * 3, "s.inner.c": [True, None, None]}


def _written(folder: Path, table: pa.Table) -> pq.ParquetFile:
    (batch,) = table.combine_chunks().to_batches()
    repeating = repeating_columns(batch)
    file = PartFile(LocalFiles(str(folder)), f"{folder}/a.parquet", table.schema, ExportOptions(), repeating)
    file.write(batch)
    facts = file.finish()
    assert read_facts(ExportStore(str(folder), "f"), f"{folder}/a.parquet", "a.parquet") == facts
    return pq.ParquetFile(folder / "a.parquet")


def test_files_with_structs_are_verified(tmp_path: Path) -> None:
    """Values that repeat get a dictionary, by leaf; the footer of each leaf is compared with its values."""
    rows = [
        None if number % 3 == 0 else {"a": number, "b": "same", "inner": {"c": True}} for number in range(160)
    ]
    ulids = [f"{number:026d}" for number in range(160)]
    table = pa.table({"changefeed_ulid": ulids, "s": pa.array(rows, ROW), "s.a": list(range(160))})
    group = _written(tmp_path, table).metadata.row_group(0)
    found = {number: group.column(number) for number in range(group.num_columns)}
    assert {column.path_in_schema for column in found.values()} == {
        "changefeed_ulid",
        "s.a",
        "s.b",
        "s.inner.c",
    }
    dictionaries = [column.has_dictionary_page for column in found.values()]
    # Parquet has no dictionary of booleans.
    assert dictionaries == [False, False, True, False, False]


def test_a_footer_that_leaves_out_a_fields_values_is_found(tmp_path: Path) -> None:
    """By the leaf, also where a column has the name of the way to it."""
    ulids = [f"{number:026d}" for number in range(2)]
    table = pa.table({"changefeed_ulid": ulids, "s": pa.array([{"a": 1}, None], ROW), "s.a": [1, 9]})
    group = _written(tmp_path, table).metadata.row_group(0)
    (batch,) = table.to_batches()
    extent = Extent()
    extent.add(batch)
    extent.check(group)
    more = batch.set_column(1, "s", pa.array([{"a": 7}, None], ROW))
    extent = Extent()
    extent.add(more)
    with pytest.raises(MisleadingFooterError, match=r"do not cover all values of 's\.a'$"):
        extent.check(group)
    fewer = batch.set_column(1, "s", pa.array([{"a": 1}, {"a": 1}], ROW))
    extent = Extent()
    extent.add(fewer)
    with pytest.raises(MisleadingFooterError, match=r"'s\.a'"):
        extent.check(group)
