# SPDX-License-Identifier: Apache-2.0
"""Columns of units that are read together: the same, unified where that is safe, or refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest

from airflow_changefeed.core.export_plan import FileFacts, Manifest
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.output.schemas import common_schema, kept_names, schema_text, wider_type
from tests.unit.export.flights import FEED, START, hours


def manifest(attempt: int, **columns: pa.DataType) -> Manifest:
    """A unit with rows, by an attempt."""
    window = hours(attempt, attempt + 1)[0]
    ulid = Ulid.floor(window.start + timedelta(minutes=1))
    return Manifest(
        feed=FEED,
        unit=ExportUnit.of_window(0, window),
        attempt=attempt,
        consumer="tests",
        run="tests",
        made_at=START,
        files=(FileFacts("part-00000-00000.parquet", 1, 1, ulid, ulid, 0),),
        sealed_until=None,
        stale_seen=0,
        schema=schema_text(pa.schema(columns)),
    )


@pytest.mark.parametrize(
    ("one", "other", "wider"),
    [
        (pa.int16(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint8(), pa.int32(), pa.int32()),
        (pa.uint8(), pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64(), pa.int64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.large_string(), pa.string(), pa.large_string()),
        (pa.decimal128(10, 2), pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.decimal128(9, 2), pa.decimal128(10, 2), pa.decimal128(10, 2)),
        (pa.decimal128(10, 2), pa.decimal128(12, 3), None),
        (pa.int64(), pa.float64(), None),
        (pa.int32(), pa.float32(), None),
        (pa.int64(), pa.string(), None),
        (pa.timestamp("ms"), pa.timestamp("us"), None),
        (pa.timestamp("ms"), pa.timestamp("ms", "UTC"), None),
        (pa.binary(), pa.string(), None),
        (pa.time64("us"), pa.time64("us"), pa.time64("us")),
    ],
)
def test_a_wider_type_holds_every_value_of_both(
    one: pa.DataType, other: pa.DataType, wider: pa.DataType | None
) -> None:
    """Or there is none; the order of the two does not matter."""
    assert wider_type(one, other) == wider
    assert wider_type(other, one) == wider


def test_tokens_that_began_anew_hide_no_change() -> None:
    """A feed that was dropped and set up again, or a restored database, draws the same tokens again."""
    before, after = manifest(1, a=pa.int64(), b=pa.string()), manifest(2, a=pa.int64())
    with pytest.raises(ColumnTypeError, match="column 'b'"):
        common_schema([before, replace(after, attempt=1)])


@pytest.mark.parametrize(
    ("own", "known", "kept"),
    [
        (["id", "Name"], ["id", "name"], {"Name": "name"}),
        (["É"], ["é"], {"É": "é"}),
        (["strasse"], ["straße"], {}),
        (["a", "A"], ["a"], {}),
        (["a"], ["a", "A"], {}),
    ],
)
def test_an_output_keeps_the_letter_case_of_its_columns(
    own: list[str], known: list[str], kept: dict[str, str]
) -> None:
    """Where readers take both names for one; a name of other letters is another column."""
    assert kept_names(own, known) == kept


def test_the_order_of_columns_is_no_difference() -> None:
    """The newest unit's order counts."""
    units = [manifest(1, a=pa.int64(), b=pa.string()), manifest(2, b=pa.string(), a=pa.int64())]
    assert common_schema(units).names == ["b", "a"]


def test_each_column_that_changed_is_named_with_a_unit_of_each_kind() -> None:
    """The newest unit of each."""
    units = [
        manifest(1, a=pa.int64(), b=pa.string()),
        manifest(2, a=pa.int64()),
        manifest(3, a=pa.string(), c=pa.bool_()),
    ]
    with pytest.raises(ColumnTypeError) as caught:
        common_schema(units)
    assert caught.value.facts["columns"] == ["a", "c", "b"]
    text = str(caught.value)
    assert f"column 'a' is string in {units[2].unit}, int64 in {units[1].unit}" in text
    assert f"column 'b' is missing in {units[2].unit}, string in {units[0].unit}" in text
    assert "unify_schemas=True" in text


def test_unified_columns_are_as_wide_as_the_widest() -> None:
    """Those that only old units have come last."""
    units = [
        manifest(1, old=pa.int8(), a=pa.int16()),
        manifest(2, a=pa.int32()),
        manifest(3, a=pa.int16(), b=pa.float32()),
    ]
    wide = pa.schema({"a": pa.int32(), "b": pa.float32(), "old": pa.int8()})
    assert common_schema(units, unify=True) == wide


def test_types_without_a_common_one_are_refused_though_unified() -> None:
    """Only those columns are named, and the option is not offered again."""
    units = [manifest(1, a=pa.int64(), b=pa.string()), manifest(2, a=pa.string())]
    with pytest.raises(ColumnTypeError, match="no common type") as caught:
        common_schema(units, unify=True)
    assert caught.value.facts["columns"] == ["a"]
    assert "unify_schemas" not in str(caught.value)


def test_units_without_rows_do_not_count_beside_others() -> None:
    """An idle hour is no reason to refuse the rows of others."""
    idle = replace(manifest(3, a=pa.string()), files=())
    assert common_schema([manifest(1, a=pa.int64()), idle]) == pa.schema({"a": pa.int64()})
    assert common_schema([idle]) == pa.schema({"a": pa.string()})
    assert common_schema([]) == pa.schema([])
