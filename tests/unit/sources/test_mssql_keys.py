# SPDX-License-Identifier: Apache-2.0
"""Keys of tables as they travel between statements, and ranges of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.feed import Column
from airflow_changefeed.sources.base_capture import key_ranges, key_text, key_values
from airflow_changefeed.sources.mssql.capture.table import KeyColumn, bound, declarations, key_form


def _key(name: str, type_: str = "int", *, is_descending: bool = False) -> KeyColumn:
    column = Column(name, type_)
    form = key_form(column)
    assert form is not None
    return KeyColumn(column, form, "Latin1_General_CI_AS" if "char" in type_ else None, is_descending)


@pytest.mark.parametrize(
    ("type_", "selected", "declared", "compared"),
    [
        ("int", "convert(bigint, t.[k])", "@a0 int = ?", "@a0"),
        ("real", "convert(float, t.[k])", "@a0 real = ?", "@a0"),
        (
            "decimal(38,10)",
            "convert(varchar(60), t.[k])",
            "@a0 decimal(38, 10) = convert(decimal(38, 10), convert(varchar(60), ?))",
            "@a0",
        ),
        (
            "smallmoney",
            "convert(varchar(60), convert(decimal(19, 4), t.[k]))",
            "@a0 smallmoney = convert(smallmoney, convert(decimal(19, 4), convert(varchar(60), ?)))",
            "@a0",
        ),
        (
            "datetimeoffset(7)",
            "convert(varchar(60), t.[k], 121)",
            "@a0 datetimeoffset(7) = convert(datetimeoffset(7), convert(varchar(60), ?), 121)",
            "@a0",
        ),
        (
            "uniqueidentifier",
            "convert(varchar(36), t.[k])",
            "@a0 uniqueidentifier = convert(uniqueidentifier, convert(varchar(36), ?))",
            "@a0",
        ),
        ("nvarchar(50)", "t.[k]", "@a0 nvarchar(50) = convert(nvarchar(50), ?)", "@a0"),
        (
            "char(5)",
            "convert(nvarchar(5), t.[k])",
            "@a0 nvarchar(5) = convert(nvarchar(5), ?)",
            "convert(char(5), @a0 collate Latin1_General_CI_AS)",
        ),
        ("rowversion", "t.[k]", "@a0 binary(8) = convert(binary(8), ?)", "@a0"),
        (
            "hierarchyid",
            "cast(t.[k] as varbinary(892))",
            "@a0 hierarchyid = convert(hierarchyid, convert(varbinary(892), ?))",
            "@a0",
        ),
    ],
)
def test_each_type_travels_in_a_form_of_its_own(
    type_: str, selected: str, declared: str, compared: str
) -> None:
    """The variable has the column's type, or its characters, so that the comparison is the column's own."""
    key = _key("k", type_)
    assert key.selected == selected
    assert declarations([key], "a") == [declared]
    assert bound([key], ">", "a") == f"t.[k] > {compared}"


@pytest.mark.parametrize("type_", ["sql_variant", "xml", "varchar(max)", "geography", "text", "anything"])
def test_a_type_without_an_exact_form_has_none(type_: str) -> None:
    """Such a key is refused."""
    assert key_form(Column("k", type_)) is None


def test_several_columns_are_compared_so_that_the_server_seeks() -> None:
    """By the first one alone, and then in the index's own directions."""
    keys = [_key("a"), _key("b", is_descending=True), _key("c")]
    assert bound(keys, ">", "a") == (
        "t.[a] >= @a0 and (t.[a] > @a0 or (t.[a] = @a0 and (t.[b] < @a1 or (t.[b] = @a1 and t.[c] > @a2))))"
    )
    assert bound(keys[1:], "<=", "b") == ("t.[b] >= @b0 and (t.[b] > @b0 or (t.[b] = @b0 and t.[c] <= @b1))")


_ROWS = st.sets(st.tuples(*[st.integers(-2, 2)] * 3), max_size=20)


@given(_ROWS, _ROWS, st.tuples(*[st.booleans()] * 3), st.integers(1, 3), st.integers(1, 5))
def test_ranges_tile_a_table_whatever_it_is_cut_by(
    rows: set[tuple[int, ...]],
    others: set[tuple[int, ...]],
    descending: tuple[bool, ...],
    width: int,
    step: int,
) -> None:
    """Also when it has other rows by then; SQLite compares as the statement says."""
    keys = [
        _key(name, is_descending=is_descending)
        for name, is_descending in zip("abc"[:width], descending, strict=False)
    ]

    def place(row: Sequence[int]) -> list[int]:
        return [-one if key.is_descending else one for one, key in zip(row, keys, strict=True)]

    then = sorted({row[:width] for row in rows}, key=place)
    now = sorted({row[:width] for row in others}, key=place)
    bounds = [key_text(row) for row in then[step - 1 :: step]]
    with sqlite3.connect(":memory:") as database:
        database.execute(f"create table t ({', '.join('abc'[:width])})")
        database.executemany(f"insert into t values ({', '.join('?' * width)})", now)
        found = []
        for range_ in key_ranges(bounds):
            given = {"a": range_.after, "b": range_.upto}
            operators = {"a": ">", "b": "<="}
            conditions = [bound(keys, operators[one], one) for one, key in given.items() if key is not None]
            values = {
                f"{one}{number}": value
                for one, key in given.items()
                if key is not None
                for number, value in enumerate(key_values(key))
            }
            where = f" where {' and '.join(conditions)}" if conditions else ""
            part = database.execute(f"select * from t{where}", values).fetchall()
            found += sorted(part, key=place)
    assert found == now
