# SPDX-License-Identifier: Apache-2.0
"""
What a SQLite column holds, by its declared type.

SQLite types values, not columns: a column's affinity (https://www.sqlite.org/datatype3.html) says what it
should hold, and a value of another class is refused at export rather than turned into something else.
"""

from __future__ import annotations

from enum import Enum

from airflow_changefeed.core.feed import INTEGER_SHARD_BITS, Column


class Storage(str, Enum):
    """What a column is exported as."""

    INTEGER = "int64"
    REAL = "float64"
    TEXT = "string"
    BLOB = "binary"


#: Declared types that SQLite gives text affinity.
_TEXT_WORDS = ("char", "clob", "text")
#: Declared types that SQLite gives numeric affinity, and people fill with text.
_TIME_WORDS = ("date", "time")


def storage_of(column: Column) -> Storage:
    """
    Return what a column is exported as, by the rules of affinity.

    Numeric columns become 64-bit floats, those of dates and times text, booleans integers. A column without a
    type holds blobs.
    """
    declared = column.type.lower()
    if "int" in declared or "bool" in declared or declared == "bit":
        return Storage.INTEGER
    if any(word in declared for word in (*_TEXT_WORDS, "uuid", "uniqueidentifier", "json")):
        return Storage.TEXT
    if not declared or "blob" in declared or "binary" in declared:
        return Storage.BLOB
    if any(word in declared for word in _TIME_WORDS):
        return Storage.TEXT
    return Storage.REAL


def has_text_affinity(column: Column) -> bool:
    """Return whether SQLite writes all numbers of the column as texts."""
    declared = column.type.lower()
    return "int" not in declared and any(word in declared for word in _TEXT_WORDS)


def misfit_condition(column: Column, expression: str, *, cuts_fractions: bool) -> str | None:
    """
    Return SQL that is true for a value which the reader would change without a word, None where it refuses
    it.

    Between them the readers take text for blobs and blobs for text, cut fractions in columns of integers, and
    round large integers to floats; in a column of numbers they refuse what is not a number.

    :param expression: a column, which keeps its affinity.
    :param cuts_fractions: whether the reader turns 2.5 to 2 in a column of integers.
    """
    storage = storage_of(column)
    if storage is Storage.INTEGER:
        return f"typeof({expression}) = 'real'" if cuts_fractions else None
    # Classes sort as numbers, text, blobs. A comparison costs a fraction of typeof() and its list of words.
    if storage is Storage.TEXT:
        is_blob = f"{expression} >= x''"
        # A column of text affinity turns numbers into texts when they are written.
        return is_blob if has_text_affinity(column) else f"{expression} < '' or {is_blob}"
    if storage is Storage.BLOB:
        return f"{expression} < x''"
    if not any(word in column.type.lower() for word in ("real", "floa", "doub")):
        # Numeric affinity keeps whole numbers as integers; beyond 2**53 a float would round them.
        return (
            f"typeof({expression}) = 'integer' "
            f"and {expression} not between -9007199254740992 and 9007199254740992"
        )
    return None


def unexportable_condition(column: Column, expression: str, is_utf8: str) -> str:
    """
    Return SQL that is true for a value that no reader exports unchanged.

    :param is_utf8: name of a function that says whether bytes are UTF-8.
    """
    storage = storage_of(column)
    if storage is Storage.INTEGER:
        return f"typeof({expression}) not in ('integer', 'null')"
    if storage is Storage.BLOB:
        return f"typeof({expression}) not in ('blob', 'null')"
    if storage is Storage.TEXT:
        is_text = f"typeof({expression}) = 'text' and not {is_utf8}(cast({expression} as blob))"
        return f"(typeof({expression}) not in ('text', 'null') or {is_text})"
    rounded = misfit_condition(column, expression, cuts_fractions=False)
    return f"(typeof({expression}) in ('text', 'blob'){f' or {rounded}' if rounded else ''})"


def shard_check(shard_key_type: str, value: str) -> str:
    """Return SQL that is true for a shard of a type, and never null."""
    if shard_key_type == "uniqueidentifier":
        # Nothing but a UUID as Python writes it: another text would stop every drain of the feed.
        digits = "[0-9a-f]"
        groups = "-".join(digits * length for length in (8, 4, 4, 4, 12))
        return f"typeof({value}) = 'text' and {value} glob '{groups}'"
    if shard_key_type == "tinyint":
        return f"typeof({value}) = 'integer' and {value} between 0 and 255"
    limit = 1 << (INTEGER_SHARD_BITS[shard_key_type] - 1)
    return f"typeof({value}) = 'integer' and {value} between -{limit - 1} - 1 and {limit - 1}"
