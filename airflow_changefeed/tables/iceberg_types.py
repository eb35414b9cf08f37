# SPDX-License-Identifier: Apache-2.0
"""Columns and files of an export as ``pyiceberg`` has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.sources.base import TIME_COLUMN, ULID_COLUMN
from airflow_changefeed.tables.base import ATTEMPT, DATE, SHARD, UNIT, PlainFile, TableFile

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = date(1970, 1, 1)
_EPOCH_TIME = datetime(1970, 1, 1, tzinfo=timezone.utc)


def iceberg_schema(
    columns: pa.Schema, partitions: Sequence[str] = (), *, has_uuid_shards: bool = False
) -> Any:
    """
    Return a schema: the columns, then the partitions; nothing is required.

    :param columns: of :func:`~airflow_changefeed.tables.types.table_schema`.
    :param partitions: none for columns that are added to a table's.
    """
    import pyarrow as pa
    from pyiceberg.schema import Schema

    kinds = {
        SHARD: pa.string() if has_uuid_shards else pa.int64(),
        DATE: pa.date32(),
        UNIT: pa.string(),
        ATTEMPT: pa.int64(),
    }
    return Schema(*_fields(pa.schema([*columns, *((name, kinds[name]) for name in partitions)]), count(1)))


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
    """
    Return a file as a snapshot has it, with what is known of its rows; the file is not read.

    :param metadata: of the table that it is added to.
    """
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
