# SPDX-License-Identifier: Apache-2.0
"""Filters that Spark offers, as ranges of ULIDs and choices of shards; Spark applies all of them again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import EPOCH
from airflow_changefeed.exceptions import InvalidUlidError
from airflow_changefeed.sources.base import SHARD_COLUMN, TIME_COLUMN, ULID_COLUMN
from airflow_changefeed.spark.datasource.ranges import ShardRange

_RANDOM_BITS = 80
_LAST = int(Ulid.MAX)
_MICROSECOND = timedelta(microseconds=1)


def narrow(ranges: Sequence[ShardRange], filters: Sequence[Filter]) -> tuple[ShardRange, ...]:
    """Narrow ranges to what filters let through; may keep more, where that is simpler."""
    low, high = 0, _LAST
    for one in filters:
        first, last = _interval(one)
        low, high = max(low, first), min(high, last)
    found = []
    for each in ranges:
        # The ULID 0 is never given, so that nothing is lost where the range begins before all.
        after = max(each.range.after, Ulid.of_int(min(max(low - 1, 0), _LAST)))
        upto = min(each.range.upto, Ulid.of_int(max(high, 0)))
        if after < upto and all(_admits(one, each.shard) for one in filters):
            found.append(ShardRange(each.shard, UlidRange(after, upto)))
    return tuple(found)


def _interval(filter_: Filter) -> tuple[int, int]:
    """Return the first and the last ULID that a filter may let through, as numbers."""
    ends = [_ends(filter_, value) for value in _values(filter_)]
    known = [each for each in ends if each is not None]
    if not known or len(known) < len(ends):
        return 0, _LAST
    first, beyond = min(each[0] for each in known), max(each[1] for each in known)
    if isinstance(filter_, GreaterThan):
        return beyond, _LAST
    if isinstance(filter_, GreaterThanOrEqual):
        return first, _LAST
    if isinstance(filter_, LessThan):
        return 0, first - 1
    if isinstance(filter_, LessThanOrEqual):
        return 0, beyond - 1
    return first, beyond - 1


def _values(filter_: Filter) -> list[Any]:
    """Return what a column is compared with; empty for a filter of another kind."""
    if isinstance(filter_, In):
        return [value for value in filter_.value if value is not None]
    comparisons = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    return [filter_.value] if isinstance(filter_, comparisons) and filter_.value is not None else []


def _ends(filter_: Any, value: Any) -> tuple[int, int] | None:
    """Return the first ULID that is not below a value, and the first beyond it; None if it has no bound."""
    if filter_.attribute == (ULID_COLUMN,) and isinstance(value, str):
        try:
            number = int(Ulid.parse_text(value))
        except InvalidUlidError:
            return None
        # A text in small letters is not a ULID to Spark, which compares texts.
        return (number, number + 1) if value == value.upper() else None
    if filter_.attribute == (TIME_COLUMN,) and isinstance(value, datetime) and value.tzinfo is not None:
        microseconds = (value - EPOCH) // _MICROSECOND
        return -(-microseconds // 1000) << _RANDOM_BITS, (microseconds // 1000 + 1) << _RANDOM_BITS
    return None


def _admits(filter_: Any, shard: Shard) -> bool:
    """Whether events of a shard may pass a filter; those on other columns say nothing of it."""
    values = _values(filter_)
    own = shard if isinstance(shard, int) else shard_text(shard)
    if not values or filter_.attribute != (SHARD_COLUMN,) or {type(value) for value in values} != {type(own)}:
        return True
    other: Any = values[0]
    if isinstance(filter_, GreaterThan):
        return bool(own > other)
    if isinstance(filter_, GreaterThanOrEqual):
        return bool(own >= other)
    if isinstance(filter_, LessThan):
        return bool(own < other)
    if isinstance(filter_, LessThanOrEqual):
        return bool(own <= other)
    return own in values
