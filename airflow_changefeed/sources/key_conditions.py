# SPDX-License-Identifier: Apache-2.0
"""
Conditions on the key of a table, for a snapshot of a part of it.

The database evaluates them when it reads rows, and Spark when it folds events. So only comparisons are taken
that have one meaning in both: of whole numbers, decimals and dates. Texts are compared by collations, which
Spark does not know; floats and times are not always stored as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING

from airflow_changefeed.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

_NAME = re.compile(r"[^\W\d]\w*")
_CONDITION = re.compile(
    rf"""\s*({_NAME.pattern}|"(?:[^"]|"")+"|\[(?:[^\]]|\]\])+\])"""
    r"""\s*([<>]=|[<>=])\s*([+-]?[0-9]+(?:\.[0-9]+)?|'[0-9]{4}-[0-9]{2}-[0-9]{2}')(?:\s+and\s+(?=\S)|\s*$)""",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class KeyCondition:
    """
    A comparison of a key column with a value.

    :param operator: ``=``, ``<``, ``<=``, ``>`` or ``>=``, which databases, Spark and Python write alike.
    """

    column: str
    operator: str
    value: int | Decimal | date


def normal_where(where: str) -> str:
    """
    Return conditions in one spelling, so that equal ones can be compared.

    :param where: ``column op value``, joined by ``and``; empty for all rows. A column may be in double quotes
        or brackets, a date is in single quotes.
    :raises InvalidArgumentError: it is something else.
    """
    parts = (f"{_quoted(column)} {operator} {value}" for column, operator, value in _parsed(where))
    return " and ".join(parts)


def key_conditions(
    where: str, keys: Sequence[str], kinds: Mapping[str, pa.DataType]
) -> tuple[KeyCondition, ...]:
    """
    Read conditions with the values of the columns' types.

    :param keys: names of the key columns.
    :param kinds: Arrow type of each column.
    :raises InvalidArgumentError: a column is not in the key or cannot be compared so, or a value is not of
        its type; names every reason.
    """
    found, problems = [], []
    for column, operator, text in _parsed(where):
        if column not in keys:
            problems.append(
                f"{column!r} is not a key column; the key columns are {', '.join(map(repr, keys))}"
            )
        elif not _is_comparable(kinds[column]):
            problems.append(
                f"column {column!r} of type {kinds[column]} cannot be used: the database and Spark compare "
                "only whole numbers, decimals and dates alike; choose another column of the key"
            )
        else:
            value = _value(text, kinds[column])
            if value is None:
                problems.append(f"{text} is not a value of column {column!r} of type {kinds[column]}")
            else:
                found.append(KeyCondition(column, operator, value))
    InvalidArgumentError.collect("where", problems)
    return tuple(found)


def _parsed(where: str) -> list[tuple[str, str, str]]:
    found, place = [], 0
    while place < len(where):
        match = _CONDITION.match(where, place)
        if match is None:
            raise InvalidArgumentError(
                f"where {where!r} cannot be read; expected comparisons (=, <, <=, >, >=) of key columns with "
                "numbers or dates, joined by and, for example: customer_id >= 100 and customer_id < 200"
            )
        column, operator, value = match.groups()
        if column[0] in '"[':
            end = column[-1]
            column = column[1:-1].replace(end * 2, end)
        found.append((column, operator, value))
        place = match.end()
    return found


def _quoted(column: str) -> str:
    return column if _NAME.fullmatch(column) else '"' + column.replace('"', '""') + '"'


def _is_comparable(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_date32(kind))


def _value(text: str, kind: pa.DataType) -> int | Decimal | date | None:
    """Return the value that a text is in a type; None if it is none exactly."""
    import pyarrow as pa

    value: int | Decimal | date
    try:
        if pa.types.is_date32(kind):
            # Only what is in quotes.
            value = date.fromisoformat(text.strip("'") if text[0] == "'" else "")
        elif pa.types.is_decimal(kind):
            value = Decimal(text)
        else:
            value = int(text)
        pa.scalar(value, kind)
    except (ValueError, ArithmeticError):
        return None
    return value
