# SPDX-License-Identifier: Apache-2.0
"""
Columns that are structs: how manifests write their types, and the leaves that Parquet stores.

Arrow's own text of a struct does not say where a field's name ends; ours has names as JSON, so that a name
may hold anything: ``struct<"id": int64, "a, b": string>``. Other types are written as Arrow does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from airflow_changefeed.exceptions import ColumnTypeError

if TYPE_CHECKING:
    import pyarrow as pa

_OPEN, _CLOSE = "struct<", ">"
_FLAT = re.compile(r'[^"<>]*?[^"<> ](?=, "|>)')


def type_text(kind: pa.DataType) -> str:
    """Write an Arrow type as manifests do."""
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        return str(kind)
    fields = (kind.field(number) for number in range(kind.num_fields))
    return struct_text({field.name: type_text(field.type) for field in fields})


def schema_texts(schema: pa.Schema) -> dict[str, str]:
    """Return column name to Arrow type, as manifests hold them."""
    return {column.name: type_text(column.type) for column in schema}


def struct_text(fields: Mapping[str, str]) -> str:
    """Write the type of a struct."""
    inner = ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {kind}" for name, kind in fields.items())
    return f"{_OPEN}{inner}{_CLOSE}"


@lru_cache(maxsize=1024)
def struct_fields(kind: str) -> Mapping[str, str] | None:
    """
    Read the type of a struct.

    :return: field name to type; None for another type.
    :raises ColumnTypeError: it begins as a struct's and is none.
    """
    if not kind.startswith(_OPEN):
        return None
    try:
        fields, end = _read(kind, len(_OPEN))
    except (ValueError, IndexError):
        end = -1
    if end != len(kind):
        raise ColumnTypeError(
            f"{kind!r} is not a struct type: the manifest was changed, or another version wrote it",
            type=kind,
        )
    return fields


def _read(kind: str, at: int) -> tuple[dict[str, str], int]:
    """Read fields from a place on; returns them and the place behind the struct."""
    fields: dict[str, str] = {}
    while not kind.startswith(_CLOSE, at):
        if fields:
            at = _skip(kind, at, ", ")
        name, at = json.JSONDecoder().raw_decode(kind, at)
        at = _skip(kind, at, ": ")
        begin = at
        if kind.startswith(_OPEN, at):
            _, at = _read(kind, at + len(_OPEN))
        elif found := _FLAT.match(kind, at):
            at = found.end()
        else:
            raise ValueError(kind)
        fields[name] = kind[begin:at]
    return fields, at + len(_CLOSE)


def _skip(kind: str, at: int, expected: str) -> int:
    if not kind.startswith(expected, at):
        raise ValueError(kind)
    return at + len(expected)


def ordered_text(kind: str) -> str:
    """Return a type in which the order of a struct's fields does not count."""
    fields = struct_fields(kind)
    if fields is None:
        return kind
    return struct_text({name: ordered_text(fields[name]) for name in sorted(fields)})


def leaf_types(name: str, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the path and type of each leaf of a column: itself, if it is not a struct."""
    fields = struct_fields(kind)
    if fields is None:
        yield name, kind
        return
    for field, inner in fields.items():
        yield from leaf_types(f"{name}.{field}", inner)


def leaves(name: str, column: pa.Array) -> Iterator[tuple[str, Any]]:
    """Yield the path and values of each leaf of a column, in Parquet's order; null where a struct is."""
    import pyarrow as pa

    if not pa.types.is_struct(column.type):
        yield name, column
        return
    for number, inner in enumerate(column.flatten()):
        yield from leaves(f"{name}.{column.type.field(number).name}", inner)
