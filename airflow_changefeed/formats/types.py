# SPDX-License-Identifier: Apache-2.0
"""
Which columns a table format holds exactly, and as which type; also as ``pyiceberg`` has them.

A type is an Arrow type in one spelling for each: what :func:`table_type` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.formats.base import (
    ATTEMPT,
    DATE,
    EXPORTED,
    SHARD,
    UNIT,
    PlainFile,
    TableFile,
    TableUse,
)
from airflow_changefeed.output.schemas import wider_type
from airflow_changefeed.sources.base import TIME_COLUMN, ULID_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa


_UTC = ("UTC", "Etc/UTC", "+00:00", "Z")
#: Of Parquet as exports write it; unsigned ones are stored as 32 bits, so readers of Delta Lake widen them.
_NAMES = {
    "bool": "bool",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "int16",
    "uint16": "int32",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date32",
}


@dataclass(frozen=True)
class TableTypes:
    """
    What a format holds.

    :param format: for messages.
    :param remedy: where a column goes that the format does not hold.
    :param smallest_integer: the narrowest whole number, in bits.
    :param has_time: whether it has a type for the time of day.
    :param has_unsigned: whether its readers take files with unsigned whole numbers.
    :param has_fixed: whether it has a type for bytes of one length.
    :param widens: whether a column can take a wider type while older files keep theirs.
    """

    format: str
    remedy: str
    smallest_integer: int
    has_time: bool
    has_unsigned: bool
    has_fixed: bool
    widens: bool


DELTA = TableTypes(
    "Delta Lake",
    "export to a table of Iceberg or to plain Parquet, or change the column in the database",
    smallest_integer=8,
    has_time=False,
    has_unsigned=True,
    has_fixed=False,
    widens=False,
)
ICEBERG = TableTypes(
    "Iceberg",
    "export to plain Parquet, or change the column in the database",
    smallest_integer=32,
    has_time=True,
    has_unsigned=False,
    has_fixed=True,
    widens=True,
)


def table_type(kind: pa.DataType, types: TableTypes) -> pa.DataType | None:
    """Return the type that a table's column has for one of a file; None if the format has no exact one."""
    import pyarrow as pa

    is_kind = pa.types
    if is_kind.is_unsigned_integer(kind) and not types.has_unsigned:
        return None
    name = _NAMES.get(str(kind))
    found: pa.DataType | None = None
    if name is not None:
        found = pa.type_for_alias(name)
        if is_kind.is_integer(found) and found.bit_width < types.smallest_integer:
            found = pa.int32()
    elif is_kind.is_timestamp(kind) and kind.unit in ("s", "ms", "us") and kind.tz in (None, *_UTC):
        found = pa.timestamp("us", None if kind.tz is None else "UTC")
    elif is_kind.is_decimal128(kind):
        found = kind if 0 <= kind.scale <= kind.precision else None
    elif is_kind.is_time64(kind):
        found = kind if kind.unit == "us" and types.has_time else None
    elif is_kind.is_fixed_size_binary(kind):
        found = kind if types.has_fixed else pa.binary()
    elif is_kind.is_struct(kind) and kind.num_fields:
        fields = [(each.name, table_type(each.type, types)) for each in kind]
        found = None if any(inner is None for _, inner in fields) else pa.struct(fields)
    return found


def coarse_times(columns: Iterable[pa.Field]) -> bool:
    """Whether files have times of less than microseconds, also in structs."""
    import pyarrow as pa

    return any(
        coarse_times(field.type)
        if pa.types.is_struct(field.type)
        else pa.types.is_timestamp(field.type) and field.type.unit in ("s", "ms")
        for field in columns
    )


def table_schema(schema: pa.Schema, types: TableTypes, use: TableUse = EXPORTED) -> pa.Schema:
    """
    Return the columns of a table for those of its files; all may be null.

    :raises ColumnTypeError: the format does not hold some of them exactly; names each, and the remedy.
    """
    import pyarrow as pa

    found = {field.name: table_type(field.type, types) for field in schema}
    lost = [
        (path, str(kind))
        for field in schema
        if found[field.name] is None
        for path, kind in _lost(field.name, field.type, types)
    ]
    if lost:
        raise _refusal(
            f"{types.format} has no type that holds all values of "
            + ", ".join(f"column {path!r} ({kind})" for path, kind in lost),
            [path for path, _ in lost],
            types,
        )
    _check_names(schema, types, use)
    return pa.schema(list(found.items()))


def _lost(path: str, kind: pa.DataType, types: TableTypes) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the path and type of what the format does not hold: the fields of a struct, not the struct."""
    import pyarrow as pa

    if table_type(kind, types) is not None:
        return
    if not pa.types.is_struct(kind) or not kind.num_fields:
        yield path, kind
        return
    for field in kind:
        yield from _lost(f"{path}.{field.name}", field.type, types)


def _check_names(schema: pa.Schema, types: TableTypes, use: TableUse) -> None:
    """Refuse columns that readers of tables, which ignore case, could not tell apart."""
    seen = {name.lower(): name for name in use.partitions}
    same = []
    for name in schema.names:
        other = seen.setdefault(name.lower(), name)
        if other != name or name in use.partitions:
            same.append((name, other))
    if same:
        raise _refusal(
            "readers of tables ignore the case of names, and cannot distinguish "
            + ", ".join(f"column {name!r} and column {other!r}" for name, other in same),
            [name for name, _ in same],
            types,
        )


def united(
    have: pa.Schema, files: pa.Schema, types: TableTypes, what: str, use: TableUse = EXPORTED
) -> pa.Schema:
    """
    Return the columns of a table after files with other columns were added: its own, then new ones.

    :param have: the table's, of :func:`table_schema`.
    :param files: the files', of :func:`table_schema`.
    :param what: the table, for messages.
    :raises ColumnTypeError: a column has a type now that the table's column cannot take; names each.
    """
    import pyarrow as pa

    join: Callable[[pa.DataType, pa.DataType], pa.DataType | None] = wider_type if types.widens else _joined
    own = {field.name: field.type for field in have}
    theirs = {field.name: field.type for field in files}
    both = {**theirs, **own}
    merged = {name: join(own.get(name, kind), theirs.get(name, kind)) for name, kind in both.items()}
    changed = [name for name, kind in merged.items() if kind is None]
    if changed:
        texts = (
            f"column {name!r} is {own[name]} in the table and {theirs[name]} in the files" for name in changed
        )
        raise ColumnTypeError(
            f"{what} cannot take the files: {', '.join(texts)}. {use.remedy}",
            column=changed[0],
            columns=changed,
        )
    ordered = pa.schema([(name, merged[name]) for name in {**own, **theirs}])
    _check_names(ordered, types, use)
    return ordered


def _joined(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return one type with the fields of two structs; None if anything else differs."""
    import pyarrow as pa

    if one == other:
        return one
    if not (pa.types.is_struct(one) and pa.types.is_struct(other)):
        return None
    own, theirs = ({field.name: field.type for field in each} for each in (one, other))
    fields = {name: _joined(own.get(name, kind), kind) for name, kind in {**own, **theirs}.items()}
    return None if None in fields.values() else pa.struct(list(fields.items()))


def _refusal(problem: str, columns: list[str], types: TableTypes) -> ColumnTypeError:
    return ColumnTypeError(f"{problem}; {types.remedy}", column=columns[0], columns=columns)


def with_partitions(columns: pa.Schema, partitions: Sequence[str], *, has_uuid_shards: bool) -> pa.Schema:
    """Return a new table's columns: those of the files, then those of its partitions."""
    import pyarrow as pa

    kinds = {
        SHARD: pa.string() if has_uuid_shards else pa.int64(),
        DATE: pa.date32(),
        UNIT: pa.string(),
        ATTEMPT: pa.int64(),
    }
    return pa.schema([*columns, *((name, kinds[name]) for name in partitions)])


_EPOCH = date(1970, 1, 1)
_EPOCH_TIME = datetime(1970, 1, 1, tzinfo=timezone.utc)


def iceberg_schema(
    columns: pa.Schema, partitions: Sequence[str] = (), *, has_uuid_shards: bool = False
) -> Any:
    """Return a schema of columns, then partitions (none for columns that are added); nothing is required."""
    from pyiceberg.schema import Schema

    return Schema(*_fields(with_partitions(columns, partitions, has_uuid_shards=has_uuid_shards), count(1)))


def _fields(columns: Any, numbers: Iterator[int]) -> list[Any]:
    from pyiceberg.types import NestedField

    columns = list(columns)
    # Those of a struct's fields follow those of the columns, as in Iceberg's own libraries.
    ids = [next(numbers) for _ in columns]
    return [
        NestedField(number, field.name, _kind(field.type, numbers), required=False)
        for number, field in zip(ids, columns, strict=True)
    ]


def _kind(kind: pa.DataType, numbers: Iterator[int]) -> Any:
    import pyarrow as pa
    from pyiceberg import types

    if pa.types.is_struct(kind):
        return types.StructType(*_fields(kind, numbers))
    if pa.types.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    if pa.types.is_fixed_size_binary(kind):
        return types.FixedType(kind.byte_width)
    if pa.types.is_timestamp(kind):
        return types.TimestampType() if kind.tz is None else types.TimestamptzType()
    plain = {
        pa.bool_(): types.BooleanType(),
        pa.int32(): types.IntegerType(),
        pa.int64(): types.LongType(),
        pa.float32(): types.FloatType(),
        pa.float64(): types.DoubleType(),
        pa.string(): types.StringType(),
        pa.binary(): types.BinaryType(),
        pa.date32(): types.DateType(),
        pa.time64("us"): types.TimeType(),
    }
    return plain[kind]


def partition_spec(schema: Any, partitions: Sequence[str]) -> Any:
    """Return the partitions of a new table: each column by its own value."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform

    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(name).field_id,
                field_id=PARTITION_FIELD_ID_START + place,
                transform=IdentityTransform(),
                name=name,
            )
            for place, name in enumerate(partitions)
        )
    )


def data_file(file: TableFile | PlainFile, location: str, metadata: Any) -> Any:
    """Return a file as a table's snapshot has it, with what is known of its rows; the file is not read."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    schema = metadata.schema()
    lower, upper = {}, {}
    bounds: dict[str, tuple[Any, Any]] = {}
    if file.bounds is not None:
        first, last = file.bounds
        bounds = {
            ULID_COLUMN: (str(first), str(last)),
            TIME_COLUMN: (_microseconds(first.time), _microseconds(last.time)),
        }
    for name, (lowest, highest) in bounds.items():
        if name in schema.column_names:
            field = schema.find_field(name)
            lower[field.field_id] = to_bytes(field.field_type, lowest)
            upper[field.field_id] = to_bytes(field.field_type, highest)
    values = file.values
    if values:
        shard = values[SHARD]
        values[SHARD] = shard if isinstance(shard, int) else shard_text(shard)
        values[DATE] = (date.fromisoformat(values[DATE]) - _EPOCH).days
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{location}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*(values[field.name] for field in metadata.spec().fields)),
        record_count=file.rows,
        file_size_in_bytes=file.size,
        value_counts=dict.fromkeys(lower, file.rows),
        null_value_counts=dict.fromkeys(lower, 0),
        lower_bounds=lower,
        upper_bounds=upper,
        spec_id=metadata.default_spec_id,
    )


def _microseconds(time: datetime) -> int:
    passed = time - _EPOCH_TIME
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
