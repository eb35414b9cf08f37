# SPDX-License-Identifier: Apache-2.0
"""The time in an event's ULID: the running maximum of the hints (ADR 0001, R3), and the guard."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from airflow_changefeed.core.feed import FeedKind
from tests.integration.contract.bench import HOUR, PAST, Bench, set_up
from tests.integration.contract.engines import Engine, Table


def _times(bench: Bench, shard: int = 0) -> list[datetime]:
    return [event.ulid.time for event in bench.events(shard)]


def test_ulid_times_are_the_running_maximum_of_the_hints(either: Bench) -> None:
    """A late hint takes the shard's high-water time, a later one raises it, to the millisecond."""
    steps = [0, 3, 1, 3, 7, 2]
    for step in steps:
        either.write(1, hint=PAST + timedelta(minutes=step, milliseconds=step))
    expected = [max(steps[: place + 1]) for place in range(len(steps))]
    assert _times(either) == [PAST + timedelta(minutes=step, milliseconds=step) for step in expected]


def test_drained_together_or_one_by_one_gives_the_same_times(bench: Bench) -> None:
    """The clock carries the maximum from drain to drain."""
    steps = [5, 1, 9, 4]
    for step in steps:
        bench.write(1, shard=0, hint=PAST + timedelta(minutes=step))
    for step in steps:
        bench.write(1, shard=1, hint=PAST + timedelta(minutes=step))
        bench.events(1)
    assert _times(bench, 0) == _times(bench, 1)


def test_shards_have_clocks_of_their_own(either: Bench) -> None:
    """A late hint in one shard does not move another."""
    either.write(1, shard=1, hint=PAST + HOUR)
    either.write(1, shard=2, hint=PAST)
    assert _times(either, 2) == [PAST]


def test_without_a_hint_an_event_has_the_present_time(either: Bench) -> None:
    """By the database's clock."""
    before = either.source.now()
    either.write(1)
    (time,) = _times(either)
    # A default computed by the database may round to the millisecond before.
    assert before - timedelta(milliseconds=2) <= time <= either.source.now()


def test_a_hint_beyond_the_tolerance_takes_the_present_and_poisons_nothing(either: Bench) -> None:
    """The event keeps its place, and its neighbours have times of today, not of 2099."""
    present = either.source.now()
    keys = either.write(1, hint=PAST) + either.write(1, hint=present + timedelta(days=30_000))
    keys += either.write(1, hint=present + HOUR * 2) + either.write(1, hint=PAST)
    events = either.events()
    times = [event.ulid.time for event in events]
    assert [event.key for event in events] == keys
    assert times[0] == PAST
    assert all(present <= time <= either.source.now() for time in times[1:])
    assert either.status().high_water <= either.source.now()


def test_a_hint_within_the_tolerance_is_taken(either: Bench) -> None:
    """Clocks of writers may run ahead a little."""
    hint = either.source.now() + HOUR / 2
    either.write(1, hint=hint)
    either.write(1)
    assert _times(either) == [hint, hint]


@pytest.mark.parametrize("kind", list(FeedKind), ids=lambda kind: kind.value)
def test_the_tolerance_is_the_feeds_own(engine: Engine, kind: FeedKind) -> None:
    """Set at setup, and set anew by setting up again."""
    bench = set_up(engine, Table(kind=kind), time_tolerance=timedelta(0))
    present = bench.source.now()
    bench.write(1, hint=present + HOUR)
    (time,) = _times(bench)
    assert present <= time <= bench.source.now()
    bench.source.set_up_feed(bench.feed, kind=kind, time_tolerance=HOUR * 24)
    hint = present + HOUR * 20
    bench.write(1, hint=hint)
    assert _times(bench)[-1] == hint


def test_the_clock_is_utc_in_whole_milliseconds_and_runs(either: Bench) -> None:
    """What seals and windows are compared with."""
    one, two = either.source.now(), either.source.now()
    assert one <= two
    assert one.utcoffset() == timedelta(0)
    assert one.microsecond % 1000 == 0
