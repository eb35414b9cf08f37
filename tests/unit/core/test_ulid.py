# SPDX-License-Identifier: Apache-2.0
"""ULID arithmetic."""

from __future__ import annotations

import copy
import pickle
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.ulid import HighWater, Ulid, UlidRange, random_80_bits
from airflow_changefeed.core.values import to_milliseconds
from airflow_changefeed.exceptions import InvalidUlidError, InvalidWindowError
from tests.unit.core.strategies import milliseconds, numbers, ranges, times, ulids

_LOW = 1 << 80
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@given(ulids)
def test_text_bytes_number_and_pickle_give_the_same_ulid_back(ulid: Ulid) -> None:
    """A ULID survives each of its forms."""
    assert Ulid.parse_text(str(ulid)) == ulid
    assert Ulid.parse_text(str(ulid).lower()) == ulid
    assert Ulid.of_bytes(ulid.bytes) == ulid
    assert Ulid.of_int(int(ulid)) == ulid
    assert pickle.loads(pickle.dumps(ulid)) == ulid  # noqa: S301 - our own bytes
    assert copy.deepcopy(ulid) == ulid
    assert type(Ulid.parse_text(str(ulid))) is Ulid


@given(ulids, ulids)
def test_order_is_that_of_bytes_text_and_number(one: Ulid, other: Ulid) -> None:
    """ULIDs, their bytes, their text and their numbers sort alike, and equal ones have one hash."""
    assert (one < other) == (one.bytes < other.bytes) == (str(one) < str(other)) == (int(one) < int(other))
    assert (one == other) == (int(one) == int(other))
    assert one != other or hash(one) == hash(other)


@given(times)
def test_floor_is_the_lowest_ulid_of_its_time(time: datetime) -> None:
    """The floor carries the time, and the ULID before it an earlier one."""
    floor = Ulid.floor(time)
    assert floor.time == time
    assert int(floor) % _LOW == 0
    if floor != Ulid.MIN:
        assert floor.previous().ms == floor.ms - 1


@given(ulids, times)
def test_a_ulid_lies_at_or_above_the_floor_exactly_from_that_time_on(ulid: Ulid, time: datetime) -> None:
    """Comparing with a floor compares times: what windows and seals rest on."""
    assert (ulid >= Ulid.floor(time)) == (ulid.ms >= to_milliseconds(time))


@given(ulids)
def test_next_and_previous_are_neighbours(ulid: Ulid) -> None:
    """Next and previous undo each other, except at the ends."""
    if ulid == Ulid.MAX:
        with pytest.raises(InvalidUlidError):
            ulid.next()
    else:
        assert ulid < ulid.next()
        assert ulid.next().previous() == ulid
    assert ulid.previous() < ulid or ulid == Ulid.MIN


def test_the_first_ulid_is_its_own_predecessor() -> None:
    """Nothing lies before ``MIN``, so that the first window of 1970 has a range."""
    assert Ulid.MIN.previous() == Ulid.MIN
    assert Ulid.MIN < Ulid.MIN.next() <= Ulid.MAX


def test_a_ulid_beyond_the_year_9999_still_has_a_time() -> None:
    """Python's times end in 9999, ULIDs in 10889."""
    assert Ulid.MAX.time.year == 9999


@pytest.mark.parametrize("number", [-1, 1 << 128])
def test_a_number_outside_of_128_bits_is_refused(number: int) -> None:
    """There is no ULID for it."""
    with pytest.raises(InvalidUlidError):
        Ulid.of_int(number)


@given(st.binary(max_size=40).filter(lambda raw: len(raw) != 16))
def test_other_than_16_bytes_are_refused(raw: bytes) -> None:
    """A ULID has 16 bytes."""
    with pytest.raises(InvalidUlidError):
        Ulid.of_bytes(raw)


@given(st.text(max_size=30))
def test_text_is_read_unchanged_or_refused(text: str) -> None:
    """No text is bent into another ULID."""
    try:
        parsed = Ulid.parse_text(text)
    except InvalidUlidError:
        return
    assert str(parsed) == text.upper()


@given(st.text(_CROCKFORD, min_size=26, max_size=26))
def test_26_crockford_characters_are_a_ulid_up_to_7z(text: str) -> None:
    """Text beyond 128 bits is refused instead of cut."""
    if text[0] <= "7":
        assert str(Ulid.parse_text(text)) == text
    else:
        with pytest.raises(InvalidUlidError):
            Ulid.parse_text(text)


@pytest.mark.parametrize(
    "text", ["", "8" + "0" * 25, "I" * 26, "0" * 25 + "U", "0" * 25, "0" * 27, None, 5, b"0" * 26]
)
def test_what_is_no_ulid_text_is_refused(text: object) -> None:
    """Wrong length, wrong characters and wrong types get our own error."""
    with pytest.raises(InvalidUlidError):
        Ulid.parse_text(text)


def test_floor_refuses_times_that_have_no_exact_milliseconds() -> None:
    """No zone, a finer part, or before 1970."""
    for time in (
        datetime(2013, 1, 1),
        datetime(2013, 1, 1, microsecond=1, tzinfo=timezone.utc),
        datetime(1969, 12, 31, tzinfo=timezone.utc),
    ):
        with pytest.raises(InvalidWindowError):
            Ulid.floor(time)


@given(ranges, ulids)
def test_a_range_holds_what_lies_after_its_start_up_to_its_end(range_: UlidRange, ulid: Ulid) -> None:
    """``(after, upto]``: the start is outside, the end inside."""
    assert (ulid in range_) == (range_.after < ulid <= range_.upto)
    assert range_.after not in range_
    assert range_.is_empty == (range_.upto not in range_)


@given(ulids, ulids)
def test_a_reversed_range_is_refused(one: Ulid, other: Ulid) -> None:
    """A range never ends before its start."""
    if one == other:
        assert UlidRange(one, other).is_empty
    else:
        with pytest.raises(InvalidUlidError):
            UlidRange(max(one, other), min(one, other))


_small = st.integers(0, 12)


@given(_small, _small, _small, _small)
def test_overlapping_and_touching_agree_with_sets(a: int, b: int, c: int, d: int) -> None:
    """Overlap and touch mean what sets of numbers say."""
    first = UlidRange(Ulid.of_int(min(a, b)), Ulid.of_int(max(a, b)))
    second = UlidRange(Ulid.of_int(min(c, d)), Ulid.of_int(max(c, d)))
    one, two = set(range(min(a, b), max(a, b))), set(range(min(c, d), max(c, d)))
    assert first.overlaps(second) == bool(one & two) == second.overlaps(first)
    if one and two:
        union = one | two
        assert first.touches(second) == (len(union) == max(union) - min(union) + 1)


def test_random_low_bits_leave_room_for_successors() -> None:
    """The highest of the 80 bits is clear, so 2**79 events fit behind a millisecond's first one."""
    assert all(0 <= random_80_bits() < 1 << 79 for _ in range(200))


_clock_ms = st.integers(0, 1 << 45)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.integers(0, 3000), st.integers(1, 5)),
        st.tuples(st.just("raise"), st.integers(0, 3000), st.just(0)),
    ),
    max_size=30,
)


@given(_steps, st.integers(0, 2000), st.integers(0, 1000))
def test_a_clock_gives_ascending_ulids_at_the_running_maximum(
    steps: list[tuple[str, int, int]], now: int, tolerance: int
) -> None:
    """Each ULID is above the last, none below a seal, each at the running maximum of hints and seals."""
    clock, expected, last = HighWater(0, 0, now, tolerance), 0, 0
    for step, ms, count in steps:
        if step == "raise":
            clock.ms = max(clock.ms, ms)
            expected = max(expected, ms)
        else:
            first = clock.give(ms, count)
            expected = max(expected, ms if ms <= now + tolerance else now)
            assert first > last
            assert first >> 80 == expected
            last = first + count - 1
            assert clock.last == last
        assert clock.ms == expected


@given(_clock_ms, st.integers(1, 1 << 50))
def test_a_hint_beyond_the_tolerance_takes_the_present(now: int, beyond: int) -> None:
    """One wrong hint does not poison the clock; one within the tolerance is taken."""
    tolerance = 3_600_000
    clock = HighWater(0, 0, now, tolerance)
    assert clock.give(now + tolerance + beyond) >> 80 == now == clock.ms
    assert clock.give(now + tolerance) >> 80 == now + tolerance


def test_a_millisecond_that_runs_over_carries_into_the_time_and_the_clock_follows() -> None:
    """More than fit into a millisecond keep their order."""
    clock = HighWater(5, 0, 10, 0, randomness=lambda: _LOW - 1)
    first = clock.give(5, 3)
    assert first == 6 * _LOW - 1
    assert clock.ms == 6
    assert clock.give(0) == first + 3


@given(numbers, milliseconds)
def test_a_clock_goes_on_above_the_last_ulid_it_finds(last: int, ms: int) -> None:
    """A clock made from stored state never gives a ULID again, whatever its time says."""
    last >>= 2
    clock = HighWater(ms, last, ms, 0)
    assert clock.give(0) > last
    assert timedelta(milliseconds=clock.ms) >= timedelta(milliseconds=ms)
