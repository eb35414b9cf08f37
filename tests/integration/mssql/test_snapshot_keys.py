# SPDX-License-Identifier: Apache-2.0
"""Captured tables cut into ranges of their key, of every type: every row in one range, whatever changes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from operator import eq, ge, gt, le, lt

import pytest

from airflow_changefeed.sources.base_capture import key_ranges
from tests.integration.mssql.captured import Captured, HandMade
from tests.integration.mssql.lab import Lab

_UUIDS = [f"'{byte:02x}000000-0000-0000-0000-{256 - byte:02x}00000000{byte:02x}'" for byte in range(1, 8)]


@dataclass(frozen=True)
class Keyed:
    """
    A table with a key.

    :param rows: as T-SQL, in another order than that of the key.
    :param key: its columns, as an index declares them.
    """

    columns: dict[str, str]
    rows: list[str]
    key: tuple[str, ...] = ("k",)

    @property
    def names(self) -> list[str]:
        """The columns of the key."""
        return [one.partition(" ")[0] for one in self.key]


def _single(type_: str, *rows: str, key: str = "k") -> Keyed:
    return Keyed({"k": type_}, list(rows), (key,))


KEYS = {
    "bit": _single("bit", "1", "0"),
    "tinyint": _single("tinyint", "255", "0", "7"),
    "bigint": _single("bigint", "9223372036854775807", "-9223372036854775808", "0", "-1", "9007199254740993"),
    "decimal": _single(
        "decimal(38,10)",
        "-1234567890123456789012345678.0123456789",
        "-1234567890123456789012345678.0123456788",
        "0",
        "-0.0000000001",
        "99.5",
    ),
    "money": _single("money", "'-922337203685477.5808'", "'922337203685477.5807'", "'-0.0001'", "'1.2345'"),
    "float": _single(
        "float", "1.7976931348623157e308", "-2.3e-308", "0.1", "0.30000000000000004", "0.3", "-7"
    ),
    "real": _single("real", "3.4028235e38", "0.1", "-0.1", "16777216"),
    "date": _single("date", "'9999-12-31'", "'0001-01-01'", "'2000-02-29'"),
    "time": _single("time(6)", "'23:59:59.999999'", "'00:00:00'", "'12:00:00.000001'"),
    "datetime": _single(
        "datetime", "'2000-01-01 00:00:00.007'", "'2000-01-01 00:00:00.003'", "'1753-01-01'", "'2000-01-01'"
    ),
    "smalldatetime": _single("smalldatetime", "'2079-06-06 23:59'", "'1900-01-01'"),
    "datetime2": _single(
        "datetime2(7)", "'0001-01-01'", "'9999-12-31 23:59:59.999999'", "'2000-01-01 00:00:00.000001'"
    ),
    "datetimeoffset": _single(
        "datetimeoffset(7)",
        "'2000-01-01 12:00 -05:30'",
        "'2000-01-01 12:00:00.000001 +14:00'",
        "'2000-01-01 12:00 +00:00'",
    ),
    "uniqueidentifier": _single("uniqueidentifier", *_UUIDS),
    "nvarchar": _single(
        "nvarchar(60)",
        "N'b'",
        "N'A'",
        "N'a b'",
        "N'a-b'",
        "N'ab'",
        "N''",
        "N'東京'",
        "N'🛫'",
        "N'it''s'",
        "N'z '",
    ),
    "no case": _single(
        "nvarchar(60) collate Latin1_General_CI_AS",
        *("N'b'", "N'A'", "N'B2 '", "N'a1'", "N'A0'", "N'_'", "N'ß'", "N'Sz'"),
    ),
    "nchar": _single("nchar(5)", "N'b'", "N'A'", "N''", "N'ab'"),
    "varchar": _single("varchar(60)", "'b'", "'A'", "'ü'", "' a '", "''", "'a-b'"),
    "char": _single("char(5) collate Latin1_General_CI_AS", "'b'", "'A'", "''", "'ab'"),
    "varbinary": _single("varbinary(20)", "0x", "0x0001", "0xff00", "0x6100", "0xfe"),
    "binary": _single("binary(3)", "0x000000", "0x0000ff", "0xff0000"),
    "descending": _single("int", "3", "1", "2", "-5", "0", key="k desc"),
    "compound": Keyed(
        {"a": "nvarchar(20)", "b": "int", "c": "date"},
        [f"N'{a}', {b}, '2000-01-0{c}'" for a in ("x", "Y", "z") for b in (2, -1) for c in (1, 2)],
        ("a", "b desc", "c"),
    ),
    "in another order": Keyed(
        {"v": "int", "b": "int", "a": "char(1)"},
        [f"0, {b}, '{a}'" for a in "qpr" for b in (5, 4, 9)],
        ("a desc", "b"),
    ),
}
KEYED = "myservice.keys_changes"


@pytest.fixture(scope="module")
def keyed(lab: Lab) -> dict[str, str]:
    """Register all these tables as one capture, which costs less than to enable it; their names."""
    names, tables = {}, []
    for number, (name, one) in enumerate(KEYS.items()):
        names[name] = f"keys_{number}"
        columns = ", ".join(f"{column} {type_} not null" for column, type_ in one.columns.items())
        lab.client.results(
            f"create table myservice.keys_{number} ({columns}, primary key ({', '.join(one.key)}))"
        )
        lab.insert(f"keys_{number}", *one.rows)
        stored = {column: (f"{column}_{number}", type_) for column, type_ in one.columns.items()}
        tables.append(Captured(f"myservice.keys_{number}", stored, one.names))
    HandMade(lab.client, KEYED, tables).make()
    return names


@pytest.mark.parametrize("name", KEYS)
def test_ranges_are_the_table_wherever_it_is_cut(lab: Lab, keyed: dict[str, str], name: str) -> None:
    """Cut at each row, or at each second one: every row is in one range, and ranges follow each other."""
    table, rows = keyed[name], len(KEYS[name].rows)
    whole = lab.read(KEYED, table)
    assert len(whole) == rows
    for step in (1, 2, rows, rows + 1):
        bounds = lab.source.cut_table(KEYED, f"myservice.{table}", step)
        assert len(bounds) == rows // step
        found = [lab.read(KEYED, table, range_) for range_ in key_ranges(bounds)]
        assert [len(part) for part in found[:-1]] == [step] * len(bounds)
        assert sorted(map(repr, (row for part in found for row in part))) == sorted(map(repr, whole))


@pytest.mark.parametrize("name", ["tinyint", "bigint", "decimal", "money", "date", "descending"])
def test_a_part_is_what_its_conditions_say(lab: Lab, keyed: dict[str, str], name: str) -> None:
    """By values of every type that can be compared, of which the database and Python think alike."""
    table = keyed[name]
    values = [row["k"] for row in lab.read(KEYED, table)]
    assert len(values) > 2
    for value in values:
        text = (
            f"'{value}'" if isinstance(value, date) else f"{value:f}" if isinstance(value, Decimal) else value
        )
        for symbol, compare in {"<": lt, "<=": le, "=": eq, ">=": ge, ">": gt}.items():
            expected = sorted(one for one in values if compare(one, value))
            where = f"k {symbol} {text}"
            found = lab.read(KEYED, table, where=where)
            assert sorted(row["k"] for row in found) == expected
            bounds = lab.source.cut_table(KEYED, f"myservice.{table}", 1, where=where)
            assert len(bounds) == len(expected)
