# SPDX-License-Identifier: Apache-2.0
"""
How each SQL Server type arrives in Parquet: what is selected, what the driver returns, and what is written.
ADR 0006 has the reasons, docs/reference/types.md the table for users.

What Arrow or Spark cannot represent is split: the seventh digit of seconds, the offset of a
``datetimeoffset`` and the base type of a ``sql_variant`` get a second column, after the first and named after
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from airflow_changefeed.core.capture import BASE_TYPE, OFFSET, TICKS
from airflow_changefeed.core.feed import Column
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.sources.mssql.feed.feed import Declared, MssqlFeed, parse

#: Decimal digits of seconds in Arrow's microseconds, which cover years 1 to 9999.
_MICRO_DIGITS = 6
_MAX_WIDE_CHARACTERS = 4_000


def _same(column: pa.Array) -> pa.Array:
    return column


def _lower_hex(column: pa.Array) -> pa.Array:
    """Write UUIDs in lower case, as in RFC 9562 and Python."""
    validity, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[: column.offset + len(column) + 1]
    # Sets the lower-case bit; digits and hyphens already have it.
    text = np.frombuffer(data, dtype=np.uint8)[: offsets[-1]] | np.uint8(0x20)
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(column), buffers, offset=column.offset)


def _cast_to(type_: pa.DataType, *, safe: bool = True) -> Callable[[pa.Array], pa.Array]:
    def cast(column: pa.Array) -> pa.Array:
        return column.cast(type_, safe=safe)

    return cast


@dataclass(frozen=True)
class Part:
    """
    One exported column, derived from a column of the table.

    :param given: the type that the driver must return: another one means a different driver version, or a
        table changed meanwhile.
    :param written: the type in Parquet.
    :param select: T-SQL, with ``{c}`` for the column.
    :param suffix: appended to the column's name; empty for the column itself.
    """

    given: pa.DataType
    written: pa.DataType
    select: str = "{c}"
    convert: Callable[[pa.Array], pa.Array] = _same
    suffix: str = ""

    @property
    def is_text(self) -> bool:
        """Whether the driver turns UTF-16 into UTF-8 for it."""
        return bool(self.given == pa.large_string())


def _of(given: pa.DataType, written: pa.DataType | None = None, select: str = "{c}") -> Part:
    if written is None or written == given:
        return Part(given, given, select)
    return Part(given, written, select, _cast_to(written))


def _text(select: str = "{c}", suffix: str = "") -> Part:
    return replace(_of(pa.large_string(), pa.string(), select), suffix=suffix)


def _bytes(select: str = "{c}") -> Part:
    return _of(pa.large_binary(), pa.binary(), select)


# The driver truncates below a microsecond and does not round (measured, and read in its source).
_TIMESTAMP = _of(pa.timestamp("us"))
_INSTANT = _of(pa.timestamp("us", "+00:00"), pa.timestamp("us", "UTC"))
_TIME = Part(pa.time64("ns"), pa.time64("us"), convert=_cast_to(pa.time64("us"), safe=False))
_TICKS = replace(
    _of(pa.uint8(), None, "convert(tinyint, datepart(nanosecond, {c}) / 100 % 10)"), suffix=TICKS
)
_OFFSET = replace(_of(pa.int16(), None, "convert(smallint, datepart(tzoffset, {c}))"), suffix=OFFSET)

_BASE = "convert(nvarchar(128), sql_variant_property({c}, 'BaseType'))"
#: Each base type in a lossless form: 17 digits for floats, 4 for money, hexadecimal bytes.
_VARIANT = (
    f"case when {_BASE} in ('float', 'real') "
    "then ltrim(convert(nvarchar(max), convert(float, {c}), 3)) "
    f"when {_BASE} in ('money', 'smallmoney') "
    "then ltrim(convert(nvarchar(max), convert(money, {c}), 2)) "
    f"when {_BASE} in ('binary', 'varbinary') "
    "then convert(nvarchar(max), convert(varbinary(8000), {c}), 1) "
    f"when {_BASE} = 'datetime' "
    "then convert(nvarchar(max), convert(datetime2(3), convert(datetime, {c})), 121) "
    f"when {_BASE} in ('datetime2', 'smalldatetime') "
    "then convert(nvarchar(max), convert(datetime2(7), {c}), 121) "
    f"when {_BASE} = 'datetimeoffset' then convert(nvarchar(max), convert(datetimeoffset(7), {{c}}), 121) "
    f"when {_BASE} = 'time' then convert(nvarchar(max), convert(time(7), {{c}}), 121) "
    f"when {_BASE} = 'date' then convert(nvarchar(max), convert(date, {{c}}), 121) "
    f"when {_BASE} = 'uniqueidentifier' then lower(convert(nvarchar(max), convert(uniqueidentifier, {{c}}))) "
    "else convert(nvarchar(max), {c}) end"
)
_VARIANT_TYPE = (
    f"case when {_BASE} in ('decimal', 'numeric') then concat({_BASE}, '(', "
    "convert(int, sql_variant_property({c}, 'Precision')), ',', "
    "convert(int, sql_variant_property({c}, 'Scale')), ')') "
    f"when {_BASE} in ('datetime2', 'datetimeoffset', 'time') then concat({_BASE}, '(', "
    "convert(int, sql_variant_property({c}, 'Scale')), ')') "
    f"when {_BASE} in ('nchar', 'nvarchar') then concat({_BASE}, '(', "
    "convert(int, sql_variant_property({c}, 'MaxLength')) / 2, ')') "
    f"when {_BASE} in ('char', 'varchar', 'binary', 'varbinary') then concat({_BASE}, '(', "
    f"convert(int, sql_variant_property({{c}}, 'MaxLength')), ')') else {_BASE} end"
)

_PLAIN: dict[str, tuple[Part, ...]] = {
    "bit": (_of(pa.bool_()),),
    "tinyint": (_of(pa.uint8()),),
    "smallint": (_of(pa.int16()),),
    "int": (_of(pa.int32()),),
    "bigint": (_of(pa.int64()),),
    "real": (_of(pa.float32()),),
    "float": (_of(pa.float64()),),
    "money": (_of(pa.decimal128(19, 4)),),
    "smallmoney": (_of(pa.decimal128(10, 4)),),
    "rowversion": (_bytes(),),
    "uniqueidentifier": (Part(pa.large_string(), pa.string(), convert=_lower_hex),),
    "date": (_of(pa.date32()),),
    # Its 1/300 s as shown by SQL Server: each maps to a distinct millisecond.
    "datetime": (_of(pa.timestamp("us"), None, "cast({c} as datetime2(3))"),),
    "smalldatetime": (_TIMESTAMP,),
    "text": (_text("cast(cast({c} as varchar(max)) as nvarchar(max))"),),
    "ntext": (_text("cast({c} as nvarchar(max))"),),
    "image": (_bytes("cast({c} as varbinary(max))"),),
    "xml": (_text("cast({c} as nvarchar(max))"),),
    "json": (_text("cast({c} as nvarchar(max))"),),
    "sql_variant": (_text(_VARIANT), _text(_VARIANT_TYPE, BASE_TYPE)),
    # As stored by the server; read back with convert(hierarchyid, ...) and convert(geography, ...).
    "hierarchyid": (_bytes("cast({c} as varbinary(892))"),),
    "geography": (_bytes("cast({c} as varbinary(max))"),),
    "geometry": (_bytes("cast({c} as varbinary(max))"),),
}
_TIMES = {"datetime2": (_TIMESTAMP,), "time": (_TIME,), "datetimeoffset": (_INSTANT, _OFFSET)}
#: Types without a length that can hold 2 GB.
_LARGE_OBJECTS = ("text", "ntext", "image", "xml", "json", "geography", "geometry")


def parts(found: Declared) -> tuple[Part, ...]:
    """Return the exported columns of a declared type; empty if they would not be exact."""
    if found.name in _PLAIN and found.length is None and not found.is_max:
        return _PLAIN[found.name]
    if found.name in _BY_LENGTH:
        return (_BY_LENGTH[found.name](found),)
    if found.name in ("decimal", "numeric") and found.length:
        return (_of(pa.decimal128(found.length, found.scale)),)
    if found.name in _TIMES and found.length is not None:
        own = _TIMES[found.name]
        return own if found.length <= _MICRO_DIGITS else (*own, _TICKS)
    return ()


def _widened(found: Declared) -> Part:
    """Let the server decode its code pages."""
    if found.length is None or found.length > _MAX_WIDE_CHARACTERS:
        return _text("cast({c} as nvarchar(max))")
    # Never to nchar: in a multi-byte code page a char has fewer characters than bytes, and nchar would add
    # blanks that are not stored.
    return _text(f"cast({{c}} as nvarchar({found.length}))")


_BY_LENGTH: dict[str, Callable[[Declared], Part]] = {
    "char": _widened,
    "varchar": _widened,
    "nchar": lambda _: _text(),
    "nvarchar": lambda _: _text(),
    "binary": lambda _: _bytes(),
    "varbinary": lambda _: _bytes(),
}


def is_large_object(found: Declared) -> bool:
    """Whether values may be too long for a batch to fit into memory."""
    return found.is_max or found.name in _LARGE_OBJECTS


def most_bytes(found: Declared) -> int:
    """Return the maximum bytes of a value in Arrow, as declared; not for large objects."""
    if found.name in ("char", "varchar", "nchar", "nvarchar"):
        return 3 * (found.length or 0)
    if found.name in ("binary", "varbinary"):
        return found.length or 0
    return {"sql_variant": 17_000, "hierarchyid": 892, "uniqueidentifier": 36}.get(found.name, 24)


@dataclass(frozen=True)
class Exported:
    """
    One column of a stream: its source column, and how it is derived.

    :param source: the column in a statement.
    :param image: ``old`` or ``new``, where an event has two rows of the table.
    """

    column: Column
    part: Part
    source: str = ""
    image: str = ""

    @property
    def field(self) -> pa.Field:
        """Its name and type in Parquet."""
        return pa.field(self.column.name + self.part.suffix, self.part.written)

    @property
    def selected(self) -> str:
        """What is selected for it, in a statement."""
        return self.part.select.replace("{c}", self.source)

    def __str__(self) -> str:
        of_row = f" of the {self.image} row" if self.image else ""
        return f"column {self.column.name!r}{of_row} of type {self.column.type}"


def exported_columns(feed: MssqlFeed, columns: Sequence[Column]) -> list[Exported]:
    """
    Return how the columns of a feed's table are exported, in order.

    :raises ColumnTypeError: columns cannot be exported unchanged, or a second column's name is taken;
        names all of them.
    """
    found, refused, problems = [], [], []
    # Spark compares names case-insensitively.
    names = {column.name.casefold() for column in columns}
    for column in columns:
        reason = feed.refusals.get(column.name)
        own = () if reason else parts(parse(column))
        if not own:
            refused.append(column.name)
            problems.append(f"column {column.name!r} of type {column.type} {reason or _UNKNOWN}")
        for part in own:
            if part.suffix and (column.name + part.suffix).casefold() in names:
                refused.append(column.name)
                problems.append(
                    f"column {column.name!r} of type {column.type} is exported with a second column "
                    f"{column.name + part.suffix!r}, which the table also has; rename that column"
                )
        found += [Exported(column, part) for part in own]
    if problems:
        raise ColumnTypeError(
            f"feed {feed.name!r} cannot be exported unchanged: {'; '.join(problems)}",
            feed=feed.name,
            columns=list(dict.fromkeys(refused)),
        )
    return found


_UNKNOWN = (
    "has no exact form in Parquet; add a computed column of an exportable type, for example nvarchar(max) "
    "or varbinary(max)"
)
