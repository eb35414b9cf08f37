# SPDX-License-Identifier: Apache-2.0
"""Times in UTC and whole milliseconds."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core import values as times_module
from airflow_changefeed.core.values import (
    floor_to_millisecond,
    format_compact,
    format_time,
    from_milliseconds,
    parse_compact,
    parse_time,
    to_milliseconds,
)
from airflow_changefeed.exceptions import InvalidWindowError
from tests.unit.core.strategies import LAST_MS, milliseconds, times

_offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(milliseconds)
def test_milliseconds_and_times_undo_each_other(ms: int) -> None:
    """No millisecond is lost to rounding, in any year."""
    assert to_milliseconds(from_milliseconds(ms)) == ms


@given(st.datetimes(datetime(1971, 1, 1), datetime(9998, 1, 1)), _offsets)
def test_a_zone_does_not_change_the_instant(naive: datetime, zone: timezone) -> None:
    """Any zone gives the milliseconds of the same instant in UTC."""
    time = floor_to_millisecond(naive.replace(tzinfo=zone))
    assert to_milliseconds(time) == to_milliseconds(time.astimezone(timezone.utc))


@given(times)
def test_text_and_names_give_the_same_time_back(time: datetime) -> None:
    """ISO text and the compact form of file names are read back."""
    assert parse_time(format_time(time)) == time
    assert parse_compact(format_compact(time)) == time
    assert format_time(time).endswith("Z")
    assert not set(format_compact(time)) & set(":-/ ")


@given(times, times)
def test_names_of_whole_seconds_sort_as_their_times(one: datetime, other: datetime) -> None:
    """Folders of windows sort by time."""
    one, other = one.replace(microsecond=0), other.replace(microsecond=0)
    assert (format_compact(one) < format_compact(other)) == (one < other)


@given(st.datetimes(datetime(1970, 1, 2), timezones=st.just(timezone.utc)))
def test_flooring_cuts_to_the_millisecond_below(time: datetime) -> None:
    """A finer clock is cut, never rounded up into the future."""
    assert timedelta(0) <= time - floor_to_millisecond(time) < timedelta(milliseconds=1)


@given(st.integers(LAST_MS, 1 << 60))
def test_milliseconds_beyond_9999_stop_there(ms: int) -> None:
    """Python's times end in 9999."""
    assert from_milliseconds(ms) == from_milliseconds(LAST_MS)


@pytest.mark.parametrize(
    "time",
    [
        datetime(2013, 1, 1),
        datetime(2013, 1, 1, 0, 0, 0, 999, tzinfo=timezone.utc),
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=timezone.utc),
    ],
)
def test_times_without_zone_too_fine_or_before_1970_are_refused(time: datetime) -> None:
    """A time is exact or it is not a time of a feed."""
    with pytest.raises(InvalidWindowError):
        to_milliseconds(time)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2013-01-01T00:00:00Z", "2013-01-01T00:00:00Z"),
        (" 2013-01-01T00:00:00z ", "2013-01-01T00:00:00Z"),
        ("2013-01-01T02:00:00+02:00", "2013-01-01T00:00:00Z"),
        ("2013-01-01 00:00:00.250+00:00", "2013-01-01T00:00:00.250Z"),
        ("2013-01-01T00:00:00,25Z", "2013-01-01T00:00:00.250Z"),
        ("2013-01-01 00:00:00.2500000 +00:00", "2013-01-01T00:00:00.250Z"),
        ("2013-01-01T01:00+0100", "2013-01-01T00:00:00Z"),
        ("2013-01-01 00:00:00+00", "2013-01-01T00:00:00Z"),
    ],
)
def test_usual_spellings_are_read(text: str, expected: str) -> None:
    """Z in either case, offsets, a blank instead of T, a comma, SQL Server's seven digits; by any Python."""
    assert format_time(parse_time(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2013-01-01",
        "2013-01-01T00:00:00",
        "2013-13-01T00:00:00Z",
        "2013-01-01T00:00:00.123456Z",
        "2013-01-01T00:00:00.2500001Z",
        "20130101T000000Z",
        "2013-W01-1T00:00:00Z",
        "\uff12013-01-01T00:00:00Z",
        "2013-01-01T00:00:00ZZ",
        "Z",
    ],
)
def test_text_that_is_no_exact_time_is_refused(text: str) -> None:
    """Without zone, impossible, or too fine."""
    with pytest.raises(InvalidWindowError):
        parse_time(text)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59.999-23:00", "0001-01-01T00:00:00+23:00"])
def test_a_time_that_utc_cannot_write_is_refused(text: str) -> None:
    """Its offset takes it out of the calendar, which Python answers with an error of its own."""
    with pytest.raises(InvalidWindowError, match="outside the calendar in UTC"):
        parse_time(text)
    with pytest.raises(InvalidWindowError, match="outside the calendar in UTC"):
        to_milliseconds(datetime.fromisoformat(text))


@given(st.text(max_size=20))
def test_any_other_name_is_refused_with_our_error(text: str) -> None:
    """Reading a name never fails in another way."""
    with contextlib.suppress(InvalidWindowError):
        parse_compact(text)


def test_now_is_utc_in_whole_milliseconds() -> None:
    """A stamp can be written and read back unchanged."""
    stamp = times_module.now()
    assert parse_time(format_time(stamp)) == stamp


def test_both_hours_at_the_end_of_summer_time_are_told_apart() -> None:
    """What a clock on the wall shows twice are two instants: Python's and pendulum's ``fold`` is kept."""
    import pendulum

    first, second = (
        datetime(2013, 11, 3, 1, 30, fold=fold, tzinfo=ZoneInfo("America/New_York")) for fold in (0, 1)
    )
    assert to_milliseconds(first) == to_milliseconds(datetime(2013, 11, 3, 5, 30, tzinfo=timezone.utc))
    assert to_milliseconds(second) == to_milliseconds(datetime(2013, 11, 3, 6, 30, tzinfo=timezone.utc))
    assert (format_time(first), format_time(second)) == ("2013-11-03T05:30:00Z", "2013-11-03T06:30:00Z")
    for fold, plain in enumerate((first, second)):
        moment = pendulum.datetime(2013, 11, 3, 1, 30, tz="America/New_York", fold=fold)
        assert to_milliseconds(moment) == to_milliseconds(plain)


def test_a_time_of_pendulum_is_like_any_other() -> None:
    """Airflow's data intervals are pendulum's, whose arithmetic differs from the standard library's."""
    import pendulum

    moment = pendulum.datetime(2013, 1, 1, 5, 30, 0, 250_000, tz="America/New_York")
    assert to_milliseconds(moment) == to_milliseconds(datetime(2013, 1, 1, 10, 30, 0, 250_000, timezone.utc))
