# SPDX-License-Identifier: Apache-2.0
"""Columns that are structs: the leaves that Parquet stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def leaf_types(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the path and type of each leaf of a column: itself, if it is not a struct."""
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        yield name, kind
        return
    for field in kind:
        yield from leaf_types(f"{name}.{field.name}", field.type)


def leaves(name: str, column: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the path and values of each leaf of a column, in Parquet's order; null where a struct is."""
    import pyarrow as pa

    if not pa.types.is_struct(column.type):
        yield name, column
        return
    for number, inner in enumerate(column.flatten()):
        yield from leaves(f"{name}.{column.type.field(number).name}", inner)
