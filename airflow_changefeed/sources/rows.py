# SPDX-License-Identifier: Apache-2.0
"""
Rows of the databases as values: the columns of all engines have the same names.

A time is a naive ``datetime2``, which is UTC, or milliseconds since 1970.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timezone
from enum import EnumMeta
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from airflow_changefeed.core.consumer import (
    Attempt,
    ConsumerInfo,
    ConsumerSpec,
    DeadLetter,
    Invocation,
    OutputCheck,
)
from airflow_changefeed.core.cursor import CursorChange, CursorRow, Frontier
from airflow_changefeed.core.feed import Shard, ShardStatus, StaleMark, parse_shard
from airflow_changefeed.core.times import floor_to_millisecond, from_milliseconds
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources.base_leases import LeaseInfo, Waiter

Row = Mapping[str, Any]
#: The columns of fields that have another name, of dataclasses within others.
FRONTIER = {"start": "start_ulid", "upto": "ulid"}
RANGE = {"after": "after_ulid", "upto": "upto_ulid"}
ATTEMPT = {"first": "first_ulid", "last": "last_ulid", "number": "attempt"}
_Value = TypeVar("_Value")


def as_time(value: datetime | int) -> datetime:
    """Return the time of a column."""
    if isinstance(value, int):
        return from_milliseconds(value)
    return floor_to_millisecond(value.replace(tzinfo=timezone.utc))


def as_time_or_none(value: datetime | int | None) -> datetime | None:
    """Return the time of a column that may be null."""
    return None if value is None else as_time(value)


def as_ulid(value: bytes | None) -> Ulid | None:
    """Return a ULID of a column; None for a null."""
    return None if value is None else Ulid.of_bytes(value)


def as_value(
    kind: type[_Value], row: Row, columns: Mapping[str, str] | None = None, **known: object
) -> _Value:
    """
    Return the dataclass that a row holds; the type of each field says how its column is read.

    :param columns: of the fields that have another name.
    :param known: fields that are not read.
    """
    hashable: Any = kind
    readers, columns = _readers(hashable), columns or {}
    read = {name: readers[name](row[columns.get(name, name)]) for name in readers if name not in known}
    return kind(**read, **known)


def as_row(value: Any, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a dataclass by their columns: what :func:`as_value` reads."""
    return {columns.get(one.name, one.name): getattr(value, one.name) for one in fields(value)}


#: How the columns of a type are read; all others hold the value itself.
_READ: dict[Any, Callable[[Any], Any]] = {Ulid: Ulid.of_bytes, datetime: as_time, int: int}


@cache
def _readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind)
    return {one.name: _reader(hints[one.name]) for one in fields(kind)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    kinds = [one for one in get_args(hint) or [hint] if one is not NoneType]
    if kinds == [int, uuid.UUID]:
        return parse_shard
    read = kinds[0] if isinstance(kinds[0], EnumMeta) else _READ.get(kinds[0])
    return lambda value: value if value is None or read is None else read(value)


def shard_status(shard: Shard, row: Row) -> ShardStatus:
    """Return the state of a shard."""
    head, clock = as_ulid(row["head"]), as_time(row["time"])
    # The high-water time of a shard that a writer has locked is not visible.
    high_water = clock if head is None else max(clock, head.time)
    return as_value(ShardStatus, row, shard=shard, high_water=high_water, has_outbox=bool(row["has_outbox"]))


def row_of_cursor(feed: str, row: Row, ranges: Callable[[str], tuple[UlidRange, ...]]) -> CursorRow:
    """
    Return a cursor row.

    :param ranges: reads the ranges of a frontier.
    """
    pieces = {name: ranges(row[name]) for name in ("ahead", "before")}
    return as_value(CursorRow, row, feed=feed, frontier=as_value(Frontier, row, FRONTIER, **pieces))


def cursor_change(feed: str, row: Row) -> CursorChange:
    """Return a change of a cursor."""
    columns = {"before": "before_ulid", "after": "after_ulid", "at": "moved_at", "by": "moved_by"}
    return as_value(CursorChange, row, columns, feed=feed)


def output_check(feed: str, row: Row) -> OutputCheck:
    """Return what a look at an export's output found."""
    return as_value(OutputCheck, row, {"first": "first_missing"}, feed=feed)


def consumer_info(row: Row) -> ConsumerInfo:
    """Return a consumer."""
    spec = ConsumerSpec.from_json(row["consumer"], row["feed"], row["settings"])
    return as_value(ConsumerInfo, row, {"begin": "begin_ulid"}, spec=spec)


def dead_letter(row: Row) -> DeadLetter:
    """Return a dead letter."""
    return as_value(DeadLetter, row)


def invocation(feed: str, row: Row) -> Invocation:
    """Return an invocation of a handler."""
    return as_value(Invocation, row, feed=feed, attempt=as_value(Attempt, row, ATTEMPT))


def lease_info(row: Row, waiters: Sequence[Waiter]) -> LeaseInfo:
    """Return who holds a shard for a consumer, and who waits."""
    columns = {"token": "fencing_token", "holder": "lease_holder", "expires": "lease_expires"}
    since = None if row["lease_holder"] is None else as_time_or_none(row["lease_since"])
    return as_value(LeaseInfo, row, columns, since=since, waiters=tuple(waiters))


def stale_mark(row: Row) -> StaleMark:
    """Return the mark of inserted history."""
    return as_value(StaleMark, row, range=as_value(UlidRange, row, RANGE))
