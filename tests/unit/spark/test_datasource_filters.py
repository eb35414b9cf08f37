# SPDX-License-Identifier: Apache-2.0
"""Filters that Spark offers to the data source: they leave out what they can, and never an event too many."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.spark.datasource.filters import narrow
from airflow_changefeed.spark.datasource.ranges import ShardRange
from tests.unit.export.flights import FEED, START, Flights
from tests.unit.spark.feeds import load, planned, rows

ULID, TIME, SHARD = ("changefeed_ulid",), ("changefeed_time",), ("changefeed_shard",)
WHOLE = UlidRange(Ulid.MIN, Ulid.MAX)
COMPARISONS: dict[type[Any], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_milliseconds = st.integers(0, 5)
_events = st.builds(
    lambda ms, low: Ulid.of_int((ms << 80) + low), _milliseconds, st.sampled_from([1, 2, 2**80 - 1])
)
_values = st.one_of(
    _events.map(lambda ulid: (ULID, str(ulid))),
    st.integers(-1500, 6500).map(lambda us: (TIME, EPOCH + timedelta(microseconds=us))),
    st.integers(0, 3).map(lambda shard: (SHARD, shard)),
)


def shown(column: tuple[str, ...], shard: int, event: Ulid) -> Any:
    """What an event has in one of our columns."""
    return {ULID: str(event), TIME: event.time, SHARD: shard}[column]


def lets_through(filter_: Any, shard: int, event: Ulid) -> bool:
    """What Spark would decide."""
    own = shown(filter_.attribute, shard, event)
    if isinstance(filter_, In):
        return own in filter_.value
    return COMPARISONS[type(filter_)](own, filter_.value)


@st.composite
def _filters(draw: st.DrawFn) -> Filter:
    kind = draw(st.sampled_from([*COMPARISONS, In]))
    column, value = draw(_values)
    if kind is In:
        others = draw(
            st.lists(_values.filter(lambda pair: pair[0] == column).map(lambda pair: pair[1]), max_size=2)
        )
        return In(column, (value, *others))
    found: Filter = kind(column, value)
    return found


@given(st.lists(_filters(), max_size=3), st.tuples(_events, _events).map(sorted), _events, st.integers(0, 3))
def test_no_event_that_spark_wants_is_left_out(
    filters: list[Filter], ends: list[Ulid], event: Ulid, shard: int
) -> None:
    """What is left is within the range, holds all that passes, and for our columns holds nothing else."""
    range_ = UlidRange(*ends)
    left = narrow([ShardRange(shard, range_)], filters)
    found = any(event in each.range for each in left)
    wanted = event in range_ and all(lets_through(each, shard, event) for each in filters)
    assert found or not wanted
    if not any(isinstance(each, In) for each in filters):
        assert found == wanted


def test_what_is_not_understood_is_left_to_spark() -> None:
    """Filters of other kinds, columns or types leave the range as it is."""
    for filter_ in (
        IsNotNull(ULID),
        Not(EqualTo(SHARD, 1)),
        StringStartsWith(ULID, "7"),
        EqualTo(("id",), 5),
        EqualTo(ULID, "no ULID"),
        GreaterThan(ULID, str(Ulid.floor(START)).lower()),
        In(ULID, ("no ULID", str(Ulid.floor(START)))),
        EqualNullSafe(TIME, None),
        GreaterThan(TIME, datetime(2013, 1, 1)),
        EqualTo(SHARD, "1"),
        In(SHARD, ()),
    ):
        whole = (ShardRange(1, WHOLE),)
        assert narrow(whole, [filter_]) == whole


def test_uuids_are_compared_as_the_texts_that_they_are() -> None:
    """A filter on a shard that is a UUID chooses among shards."""
    shards = [uuid.UUID(int=number) for number in (1, 2, 3)]
    whole = [ShardRange(shard, WHOLE) for shard in shards]
    assert [one.shard for one in narrow(whole, [EqualTo(SHARD, str(shards[1]))])] == [shards[1]]
    assert [one.shard for one in narrow(whole, [GreaterThan(SHARD, str(shards[0]))])] == shards[1:]
    assert [one.shard for one in narrow(whole, [In(SHARD, (str(shards[2]), None))])] == [shards[2]]


def test_a_filtered_frame_counts_and_reads_only_what_is_left(tmp_path: Path) -> None:
    """Partitions are made of what the filters leave; a purge below them is no obstacle."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(40, 0, shard=1, length=4)
    flights.add(40, 0, shard=2, length=4)
    flights.source.seal(FEED, START + timedelta(hours=4))
    late = GreaterThanOrEqual(TIME, START + timedelta(hours=3))
    _, partitions = planned(load(flights, partitions=2), late, EqualTo(SHARD, 2))
    assert [(piece.shard, piece.rows) for each in partitions for piece in each.value] == [(2, 5), (2, 5)]
    flights.source.purge(FEED, START + timedelta(hours=3))
    found = rows(load(flights), late)
    assert len(found) == 20
    assert rows(load(flights), late, LessThan(TIME, START)) == []


def test_a_time_between_two_milliseconds_leaves_out_no_event_of_the_first() -> None:
    """A filter may be finer than the time of an event."""
    time = EPOCH + timedelta(microseconds=2500)
    (found,) = narrow([ShardRange(0, WHOLE)], [LessThan(TIME, time)])
    assert Ulid.of_int((2 << 80) + 1) in found.range
