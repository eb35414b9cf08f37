# SPDX-License-Identifier: Apache-2.0
"""
Every type of SQL Server at its limits: what is stored, what the driver gives for it, and what must arrive.

One list for three tests: below the driver (``tests/unit/sources``), on a T-SQL server
(``tests/integration/mssql``), and against the table of the docs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

UTC = timezone.utc
EPOCH = datetime(1970, 1, 1)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Case:
    """
    A declared type and values of it.

    :param type: as declared.
    :param values: T-SQL, then what must arrive in each exported column; null and a row without the value are
        tried for all types.
    :param given: Arrow types of what the driver gives, for each exported column.
    :param raw: what the driver gives where that differs from what must arrive.
    :param is_everywhere: whether Babelfish has the type, and keeps these values.
    :param suffixes: of the exported columns behind the first.
    """

    type: str
    values: tuple[tuple[str, tuple[Any, ...]], ...]
    given: tuple[pa.DataType, ...]
    raw: tuple[tuple[Any, ...], ...] = ()
    is_everywhere: bool = True
    suffixes: tuple[str, ...] = ()

    @property
    def driver_values(self) -> tuple[tuple[Any, ...], ...]:
        """What the driver gives for each value."""
        return self.raw or tuple(expected for _, expected in self.values)


def _one(kind: str, given: pa.DataType, *values: tuple[str, Any], **more: Any) -> Case:
    return Case(kind, tuple((sql, (value,)) for sql, value in values), (given,), **more)


def _text(kind: str, *values: tuple[str, Any], **more: Any) -> Case:
    return _one(kind, pa.large_string(), *values, **more)


def _bytes(kind: str, *values: tuple[str, Any], **more: Any) -> Case:
    return _one(kind, pa.large_binary(), *values, **more)


_US, _NS = pa.timestamp("us"), pa.time64("ns")
_INSTANT = pa.timestamp("us", "+00:00")
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999999)
_DIGITS = "9" * 38
_TEXT = "Zürich 東京 🛫"
_GUID = "6F9619FF-8B86-D011-B42D-00C04FC964FF"
_POINT = bytes.fromhex("e6100000010c000000000000f03f0000000000000040")


def _offset(local: str, instant: datetime, minutes: int, *ticks: int) -> tuple[str, tuple[Any, ...]]:
    return f"'{local}'", (instant.replace(tzinfo=UTC), minutes, *ticks)


CASES = (
    _one("bit", pa.bool_(), ("0", False), ("1", True)),
    _one("tinyint", pa.uint8(), ("0", 0), ("255", 255)),
    _one("smallint", pa.int16(), ("-32768", -(2**15)), ("32767", 2**15 - 1)),
    _one("int", pa.int32(), ("-2147483648", -(2**31)), ("2147483647", 2**31 - 1)),
    _one("bigint", pa.int64(), ("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)),
    _one(
        "decimal(38,0)",
        pa.decimal128(38, 0),
        (f"'{_DIGITS}'", Decimal(_DIGITS)),
        (f"'-{_DIGITS}'", Decimal(f"-{_DIGITS}")),
    ),
    _one(
        "decimal(38,38)",
        pa.decimal128(38, 38),
        (f"'0.{_DIGITS}'", Decimal(f"0.{_DIGITS}")),
        ("'-0'", Decimal(0)),
    ),
    _one(
        "numeric(9,2)",
        pa.decimal128(9, 2),
        ("-0.01", Decimal("-0.01")),
        ("1234567.89", Decimal("1234567.89")),
    ),
    _one(
        "money",
        pa.decimal128(19, 4),
        ("'-922337203685477.5808'", Decimal("-922337203685477.5808")),
        ("'922337203685477.5807'", Decimal("922337203685477.5807")),
    ),
    _one(
        "smallmoney",
        pa.decimal128(10, 4),
        ("'-214748.3648'", Decimal("-214748.3648")),
        ("'214748.3647'", Decimal("214748.3647")),
    ),
    _one(
        "float",
        pa.float64(),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("0.1", 0.1),
        ("-2.3e-308", -2.3e-308),
    ),
    _one("real", pa.float32(), ("3.4028235e38", 3.4028234663852886e38), ("0.1", 0.10000000149011612)),
    _text("char(5)", ("''", "     "), ("'ab'", "ab   ")),
    _text("varchar(10)", ("''", ""), ("' a '", " a ")),
    _text("varchar(8000)", ("''", ""), ("replicate('x', 8000)", "x" * 8000)),
    _text("varchar(max)", ("''", ""), ("replicate(convert(varchar(max), 'x'), 100000)", "x" * 100_000)),
    _text("nchar(5)", ("N''", "     "), ("N'東'", "東    ")),
    _text("nvarchar(20)", ("N''", ""), (f"N'{_TEXT}'", _TEXT), ("nchar(65533)", "\ufffd")),
    _text("nvarchar(4000)", ("N''", ""), ("replicate(N'東', 4000)", "東" * 4000)),
    _text("nvarchar(max)", ("N''", ""), ("replicate(convert(nvarchar(max), N'東'), 50000)", "東" * 50_000)),
    _bytes("binary(3)", ("0x", b"\0\0\0"), ("0x0102ff", b"\1\2\xff")),
    _bytes("varbinary(8000)", ("0x", b""), ("0x00ff", b"\0\xff")),
    _bytes(
        "varbinary(max)",
        ("0x", b""),
        ("convert(varbinary(max), replicate(convert(varchar(max), 'x'), 100000))", b"x" * 100_000),
    ),
    _one("date", pa.date32(), ("'0001-01-01'", date(1, 1, 1)), ("'9999-12-31'", date(9999, 12, 31))),
    _one("time(0)", _NS, ("'00:00:00'", time(0)), ("'23:59:59'", time(23, 59, 59))),
    _one("time(6)", _NS, ("'23:59:59.999999'", time(23, 59, 59, 999999))),
    Case(
        "time(7)",
        (("'23:59:59.9999999'", (time(23, 59, 59, 999999), 9)), ("'00:00:00.0000001'", (time(0), 1))),
        (_NS, pa.uint8()),
        raw=((86_399_999_999_900, 9), (100, 1)),
        is_everywhere=False,
        suffixes=("_100ns",),
    ),
    _one(
        "datetime",
        _US,
        ("'1753-01-01'", datetime(1753, 1, 1)),
        ("'9999-12-31 23:59:59.997'", _LAST.replace(microsecond=997000)),
        ("'2000-01-01 00:00:00.003'", datetime(2000, 1, 1, 0, 0, 0, 3000)),
    ),
    _one(
        "smalldatetime",
        _US,
        ("'1900-01-01'", datetime(1900, 1, 1)),
        ("'2079-06-06 23:59'", datetime(2079, 6, 6, 23, 59)),
    ),
    _one(
        "datetime2(0)",
        _US,
        ("'0001-01-01'", datetime(1, 1, 1)),
        ("'9999-12-31 23:59:59'", _LAST.replace(microsecond=0)),
    ),
    _one("datetime2(6)", _US, ("'0001-01-01'", datetime(1, 1, 1)), ("'9999-12-31 23:59:59.999999'", _LAST)),
    Case(
        "datetime2(7)",
        (
            ("'0001-01-01 00:00:00.0000001'", (datetime(1, 1, 1), 1)),
            ("'9999-12-31 23:59:59.9999999'", (_LAST, 9)),
        ),
        (_US, pa.uint8()),
        is_everywhere=False,
        suffixes=("_100ns",),
    ),
    Case(
        "datetimeoffset(0)",
        (
            _offset("0001-01-01 00:00:00 +00:00", datetime(1, 1, 1), 0),
            _offset("9999-12-31 23:59:59 +14:00", datetime(9999, 12, 31, 9, 59, 59), 840),
            _offset("2000-01-01 12:00:00 -05:30", datetime(2000, 1, 1, 17, 30), -330),
        ),
        (_INSTANT, pa.int16()),
        suffixes=("_offset_minutes",),
    ),
    Case(
        "datetimeoffset(7)",
        (
            _offset("9999-12-31 23:59:59.9999999 +00:00", _LAST, 0, 9),
            _offset("0001-01-02 00:00:00.1234567 +14:00", datetime(1, 1, 1, 10, 0, 0, 123456), 840, 7),
        ),
        (_INSTANT, pa.int16(), pa.uint8()),
        is_everywhere=False,
        suffixes=("_offset_minutes", "_100ns"),
    ),
    _text("uniqueidentifier", (f"'{_GUID}'", _GUID.lower()), raw=((_GUID,),)),
    _text("xml", ("N''", ""), (f"N'<a>{_TEXT}</a>'", f"<a>{_TEXT}</a>")),
    Case(
        "sql_variant",
        (
            ("convert(int, -5)", ("-5", "int")),
            ("convert(decimal(10,2), 1.5)", ("1.50", "decimal(10,2)")),
            (
                "convert(datetime2(7), '9999-12-31 23:59:59.9999999')",
                ("9999-12-31 23:59:59.9999999", "datetime2(7)"),
            ),
            ("convert(varbinary(8), 0x00ff)", ("0x00FF", "varbinary(8)")),
            ("convert(float, 0.1)", ("1.0000000000000001e-001", "float")),
            (f"convert(uniqueidentifier, '{_GUID}')", (_GUID.lower(), "uniqueidentifier")),
            (f"N'{_TEXT}'", (_TEXT, "nvarchar(12)")),
        ),
        (pa.large_string(), pa.large_string()),
        # It has the type, but formats and properties of its own.
        is_everywhere=False,
        suffixes=("_type",),
    ),
    _bytes("hierarchyid", ("'/1/2/'", b"\x5b\x40"), ("'/'", b""), is_everywhere=False),
    _bytes("geography", ("'POINT(2 1)'", _POINT), is_everywhere=False),
    _bytes("geometry", ("'POINT(1 2)'", b"\0\0\0\0" + _POINT[4:]), is_everywhere=False),
    _text("json", ("'{\"a\": 1}'", '{"a":1}'), is_everywhere=False),
    _text("text", ("''", ""), ("replicate(convert(varchar(max), 'x'), 9000)", "x" * 9_000)),
    _text("ntext", ("N''", ""), (f"N'{_TEXT}'", _TEXT)),
    _bytes("image", ("0x", b""), ("0x00ff", b"\0\xff")),
)
#: A row version cannot be written; the database gives each row another one.
ROWVERSION = _bytes("rowversion", ("0x00000000000007D1", b"\0\0\0\0\0\0\x07\xd1"))
