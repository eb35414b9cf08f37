# SPDX-License-Identifier: Apache-2.0
"""What a column of SQL Server holds, by its declared type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from airflow_changefeed.core.feed import Column

_WITH_LENGTH = ("binary", "varbinary", "char", "varchar")
_WITH_WIDE_LENGTH = ("nchar", "nvarchar")
_WITH_SCALE = ("datetime2", "time", "datetimeoffset")
_WITH_PRECISION = ("decimal", "numeric")
_DECLARED = re.compile(r"(\w+)(?:\((\w+)(?:, ?(\d+))?\))?")
#: Types that are other words for one that the catalog lists.
_SYNONYMS = {"timestamp": "rowversion"}


class Declared(NamedTuple):
    """
    A declared type, taken apart.

    :param length: characters, bytes, precision, or fraction digits of seconds; None for ``max`` and for types
        that have none.
    """

    name: str
    length: int | None
    scale: int
    is_max: bool


def declared(column: Mapping[str, Any]) -> str:
    """
    Write a column's type as one declares it, for example ``nvarchar(100)``.

    :param column: ``type``, ``max_length`` in bytes or -1, ``precision`` and ``scale``, as ``sys.columns``
        has them.
    """
    name = str(column["type"]).lower()
    length = column["max_length"]
    if name == "sysname":
        # Another name of nvarchar(128), which some catalogs resolve and some do not.
        return "nvarchar(128)"
    if name in (*_WITH_LENGTH, *_WITH_WIDE_LENGTH):
        wide = 2 if name in _WITH_WIDE_LENGTH else 1
        return f"{name}({'max' if length == -1 else length // wide})"
    if name in _WITH_PRECISION:
        return f"{name}({column['precision']},{column['scale']})"
    if name in _WITH_SCALE:
        return f"{name}({column['scale']})"
    return _SYNONYMS.get(name, name)


def parse(column: Column) -> Declared:
    """Take a declared type apart."""
    found = _DECLARED.fullmatch(column.type)
    if found is None:
        return Declared(column.type, None, 0, False)
    name, length, scale = found.groups()
    is_max = length == "max"
    return Declared(name, None if is_max or length is None else int(length), int(scale or 0), is_max)


def stored_type(column: Column) -> str:
    """Return the type in which a key column's values are kept beside their ULIDs."""
    return "binary(8)" if column.type == "rowversion" else column.type
