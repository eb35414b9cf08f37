# SPDX-License-Identifier: Apache-2.0
"""Windows and how they are cut."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import from_milliseconds, parse_time, to_milliseconds
from airflow_changefeed.core.window import Window, count_windows
from airflow_changefeed.exceptions import InvalidWindowError
from tests.unit.core.strategies import LAST_MS, milliseconds, times, ulids, windows

HOUR = timedelta(hours=1)


@given(windows, ulids)
def test_a_windows_range_is_its_floors_half_open(window: Window, ulid: Ulid) -> None:
    """``floor(start) <= u < floor(end)``, the same as ``(after, upto]`` of its range."""
    assume(ulid != Ulid.MIN)  # no event ever gets it
    assert (ulid in window.range) == (Ulid.floor(window.start) <= ulid < Ulid.floor(window.end))


@given(windows)
def test_name_and_pickle_give_the_same_window_back(window: Window) -> None:
    """A window survives as a folder's name."""
    assert Window.parse_name(window.name) == window
    assert pickle.loads(pickle.dumps(window)) == window  # noqa: S301 - our own bytes


@given(st.integers(0, 10**10), st.integers(1, 10**8), st.integers(1, 40))
def test_cutting_gives_neighbours_that_make_up_the_window(first: int, unit_ms: int, count: int) -> None:
    """Units have one length, touch, and together are the window; their ranges are one range."""
    assume((first + count) * unit_ms <= LAST_MS)
    window = Window(from_milliseconds(first * unit_ms), from_milliseconds((first + count) * unit_ms))
    units = window.cut(timedelta(milliseconds=unit_ms))
    assert len(units) == count
    assert units[0].start == window.start
    assert units[-1].end == window.end
    assert all(unit.length == timedelta(milliseconds=unit_ms) for unit in units)
    assert all(one.end == two.start for one, two in pairwise(units))
    assert all(one.range.upto == two.range.after for one, two in pairwise(units))


@given(windows)
def test_no_unit_leaves_the_window_whole(window: Window) -> None:
    """Without a unit a window is one unit, aligned or not."""
    assert window.cut(None) == [window]


@given(times, st.integers(1, 10**9))
def test_a_time_lies_in_exactly_the_aligned_window_around_it(time: datetime, length_ms: int) -> None:
    """Aligned to 1970, of the length, with the time inside."""
    start = to_milliseconds(time) // length_ms * length_ms
    assume(start + length_ms <= LAST_MS)
    window = Window.containing(time, timedelta(milliseconds=length_ms))
    assert window.start <= time < window.end
    assert to_milliseconds(window.start) % length_ms == 0
    assert window.length == timedelta(milliseconds=length_ms)


@given(milliseconds, st.integers(1, 10**6), st.integers(2, 10**6))
def test_a_window_across_a_units_border_is_refused(start: int, length: int, unit: int) -> None:
    """Two runs must not cut the same hour in two ways."""
    assume(start + length <= LAST_MS and (start % unit or (start + length) % unit))
    with pytest.raises(InvalidWindowError, match="multiple of the unit"):
        Window(from_milliseconds(start), from_milliseconds(start + length)).cut(timedelta(milliseconds=unit))


@pytest.mark.parametrize(
    ("start", "end", "unit"),
    [
        ("2025-03-30T00:00:00+01:00", "2025-03-31T00:00:00+02:00", timedelta(days=1)),
        ("2025-10-26T00:00:00+02:00", "2025-10-27T00:00:00+01:00", timedelta(days=1)),
        ("2025-03-31T00:00:00Z", "2025-04-07T00:00:00Z", timedelta(weeks=1)),
    ],
    ids=["a day of 23 hours", "a day of 25 hours", "a week from Monday"],
)
def test_a_window_that_no_unit_of_its_length_fits_is_one_unit_without(
    start: str, end: str, unit: timedelta
) -> None:
    """The error says to leave out the unit, and that works."""
    window = Window(parse_time(start), parse_time(end))
    with pytest.raises(InvalidWindowError, match=r"omit unit.* summer time, and weeks from Monday"):
        window.cut(unit)
    assert window.cut(None) == [window]


def test_a_zero_length_window_names_the_timetable_to_use() -> None:
    """Airflow 3's cron strings give points as intervals; the error says what to do instead."""
    time = datetime(2013, 1, 1, tzinfo=timezone.utc)
    with pytest.raises(InvalidWindowError, match=r"CronDataIntervalTimetable.* with params window_start"):
        Window(time, time)


@given(times, times)
def test_a_reversed_window_is_refused(one: datetime, other: datetime) -> None:
    """A window ends after it starts."""
    assume(one != other)
    with pytest.raises(InvalidWindowError, match="before it starts"):
        Window(max(one, other), min(one, other))


def test_a_window_is_stored_in_utc() -> None:
    """The same window in another zone is the same window, with the same name."""
    zone = timezone(timedelta(hours=2))
    local = Window(datetime(2013, 1, 1, 2, tzinfo=zone), datetime(2013, 1, 1, 3, tzinfo=zone))
    start = datetime(2013, 1, 1, tzinfo=timezone.utc)
    assert local == Window(start, start + HOUR)
    assert local.name == "20130101T000000Z_20130101T010000Z"
    assert str(local) == "[2013-01-01T00:00:00Z, 2013-01-01T01:00:00Z)"


@pytest.mark.parametrize("unit", [timedelta(0), -HOUR, timedelta(microseconds=1)])
def test_a_unit_is_a_positive_number_of_milliseconds(unit: timedelta) -> None:
    """Zero, negative and finer units are refused."""
    start = datetime(2013, 1, 1, tzinfo=timezone.utc)
    with pytest.raises(InvalidWindowError):
        Window(start, start + HOUR).cut(unit)
    with pytest.raises(InvalidWindowError):
        Window.containing(start, unit)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (datetime(2013, 1, 1), datetime(2013, 1, 2)),
        (datetime(2013, 1, 1, tzinfo=timezone.utc), datetime(2013, 1, 1, 0, 0, 0, 1, tzinfo=timezone.utc)),
    ],
)
def test_windows_need_a_zone_and_whole_milliseconds(start: datetime, end: datetime) -> None:
    """What has no exact ULID has no window."""
    with pytest.raises(InvalidWindowError):
        Window(start, end)


@pytest.mark.parametrize(
    "name", ["", "x", "20130101T000000Z", "20130101T000000Z_x", "20130101T000000Z_20130101T000000Z"]
)
def test_what_is_no_name_of_a_window_is_refused(name: str) -> None:
    """Foreign folders are not taken for windows."""
    with pytest.raises(InvalidWindowError):
        Window.parse_name(name)


def test_a_point_with_microseconds_names_the_timetable() -> None:
    """The point that a bare cron string gives a manual run has a clock's microseconds."""
    moment = datetime(2026, 1, 1, 3, 4, 5, 123_456, tzinfo=timezone.utc)
    with pytest.raises(InvalidWindowError, match="CronDataIntervalTimetable"):
        Window(moment, moment)


def test_a_window_of_too_many_units_is_refused() -> None:
    """Centuries by hours, or an hour by milliseconds, would not fit into memory."""
    start = datetime(2013, 1, 1, tzinfo=timezone.utc)
    with pytest.raises(InvalidWindowError, match=r"3600000 units .* at most 100000"):
        Window(start, start + timedelta(hours=1)).cut(timedelta(milliseconds=1))


@pytest.mark.parametrize(
    ("hours", "length", "count"),
    [
        (3, 1, 3),
        (2.5, 1, 3),
        (0.5, 1, 1),
        (24, 24, 1),
        (25, 24, 1),
        (23, 24, 1),
        (0.5, 24, 1),
        (49, 24, 2),
        (47, 24, 2),
        (241, 24, 10),
        (27, 24, 2),
        (169, 168, 1),
    ],
)
def test_a_day_on_which_clocks_change_is_one_window(hours: float, length: int, count: int) -> None:
    """A window of which only a part is missing counts, too."""
    start = datetime(2026, 10, 24, 22, tzinfo=timezone.utc)
    missing = Window(start, start + hours * HOUR).range
    assert count_windows(missing, length * HOUR) == count
