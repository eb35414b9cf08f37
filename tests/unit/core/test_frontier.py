# SPDX-License-Identifier: Apache-2.0
"""The frontier against a model: the set of numbers that are complete."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.cursor import Frontier
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import CursorFormatError
from tests.unit.core.strategies import SMALL, frontiers, pieces, small_ranges

starts = st.integers(0, SMALL)


def _numbers(range_: UlidRange) -> set[int]:
    return set(range(int(range_.after) + 1, int(range_.upto) + 1))


def _complete(start: int, done: list[UlidRange]) -> Frontier:
    frontier = Frontier.beginning(Ulid.of_int(start))
    for piece in done:
        frontier = frontier.complete(piece)
    return frontier


def _run(frontier: Frontier) -> UlidRange:
    return UlidRange(frontier.start, frontier.upto)


def _set_of(frontier: Frontier) -> set[int]:
    return _numbers(_run(frontier)).union(*map(_numbers, frontier.ahead + frontier.before))


@given(starts, pieces)
def test_the_run_has_the_beginning_and_all_that_is_complete_around_it(
    start: int, done: list[UlidRange]
) -> None:
    """What is complete is the union of the ranges; the cursor, and the start, stop at the first gap."""
    frontier = _complete(start, done)
    union: set[int] = set().union(*map(_numbers, done))
    first = last = start
    while last + 1 in union:
        last += 1
    while first in union:
        first -= 1
    assert _set_of(frontier) == union
    assert (int(frontier.start), int(frontier.upto)) == (first, last)
    assert all(piece.upto < frontier.start for piece in frontier.before)


@given(frontiers(), pieces)
def test_any_number_of_ranges_may_be_added_at_once(frontier: Frontier, done: list[UlidRange]) -> None:
    """Which is the same as one after the other, from any frontier."""
    one_by_one = frontier
    for piece in done:
        one_by_one = one_by_one.complete(piece)
    assert frontier.complete(*done) == one_by_one
    assert one_by_one.complete(*done, *frontier.before, *frontier.ahead) == one_by_one


def test_a_backfill_extends_the_beginning_when_it_reaches_it() -> None:
    """In any order, also where nothing else is complete yet; the cursor stays."""
    ranges = [UlidRange(Ulid.of_int(hour), Ulid.of_int(hour + 1)) for hour in range(10)]
    begun = _complete(5, [])
    waiting = begun.complete(ranges[3])
    assert (waiting.start, waiting.upto, waiting.before) == (begun.start, begun.upto, (ranges[3],))
    assert waiting.has_moved
    assert waiting.missing() == ()
    assert begun.complete(ranges[4]) == Frontier(Ulid.of_int(4), Ulid.of_int(5))
    assert waiting.complete(ranges[4]) == Frontier(Ulid.of_int(3), Ulid.of_int(5))
    assert waiting.complete(ranges[5], ranges[4]) == Frontier(Ulid.of_int(3), Ulid.of_int(6))
    assert waiting.complete(ranges[0]).before == (ranges[0], ranges[3])


@given(starts, pieces, st.randoms(use_true_random=False))
def test_the_order_of_completions_does_not_matter(start: int, done: list[UlidRange], random: object) -> None:
    """Windows may finish in any order, repeatedly, in parallel."""
    shuffled = done + done[: len(done) // 2]
    random.shuffle(shuffled)
    assert _complete(start, shuffled) == _complete(start, done)


@given(frontiers(), small_ranges)
def test_completing_never_moves_the_cursor_back(frontier: Frontier, done: UlidRange) -> None:
    """A repeated or older range leaves the cursor where it is, and the start never rises."""
    after = frontier.complete(done)
    assert after.upto >= frontier.upto
    assert after.start <= frontier.start
    assert after.complete(done) == after


@given(frontiers())
def test_missing_names_exactly_the_gaps(frontier: Frontier) -> None:
    """Gaps and complete ranges alternate up to the end; filling the gaps joins everything."""
    filled = frontier
    for gap in frontier.missing():
        assert not gap.is_empty
        assert not _numbers(gap) & _set_of(frontier)
        filled = filled.complete(gap)
    assert filled.ahead == ()
    assert filled.before == frontier.before
    assert filled.upto == (frontier.ahead[-1].upto if frontier.ahead else frontier.upto)
    assert bool(frontier.missing()) == bool(frontier.ahead)


@given(frontiers())
def test_ranges_before_and_ahead_are_ascending_and_apart(frontier: Frontier) -> None:
    """The form is canonical, so equal sets are equal values."""
    ends = [*frontier.before, _run(frontier), *frontier.ahead]
    assert all(one.upto < two.after for one, two in pairwise(ends))
    assert pickle.loads(pickle.dumps(frontier)) == frontier  # noqa: S301 - our own bytes


@given(frontiers(), starts)
def test_a_consumer_begins_earlier_only_until_something_was_completed(frontier: Frontier, after: int) -> None:
    """The earliest window planned first is the beginning; later on the beginning stays."""
    begun = frontier.begin_at(Ulid.of_int(after))
    if _set_of(frontier) or after >= int(frontier.start):
        assert begun == frontier
    else:
        assert begun == Frontier.beginning(Ulid.of_int(after))


def test_a_window_that_is_complete_beyond_a_gap_is_never_forgotten() -> None:
    """Also where nothing else is complete yet, and an earlier window is planned after it."""
    ahead = UlidRange(Ulid.of_int(7), Ulid.of_int(9))
    frontier = _complete(5, [ahead])
    assert frontier.upto == frontier.start
    assert frontier.begin_at(Ulid.of_int(2)) == frontier
    assert frontier.ahead == (ahead,)
    before = UlidRange(Ulid.of_int(1), Ulid.of_int(3))
    assert _complete(5, [before]).begin_at(Ulid.of_int(0)).before == (before,)


@given(frontiers(), starts)
def test_a_person_moves_the_cursor_to_or_beyond_the_place_named(frontier: Frontier, place: int) -> None:
    """Backwards forgets what was beyond, forwards absorbs what lies ahead; the start stays below."""
    target = Ulid.of_int(place)
    moved = frontier.moved_to(target)
    assert moved.before == (frontier.before if target >= frontier.start else ())
    if target <= frontier.upto:
        assert moved.upto == target
        assert moved.ahead == ()
    else:
        assert moved.upto >= target
        assert _set_of(moved) >= _set_of(frontier)
    assert moved.start <= moved.upto


def test_a_cursor_that_goes_back_to_its_beginning_keeps_what_was_backfilled_before_it() -> None:
    """Only below the beginning it is forgotten."""
    one, two, three, four = (Ulid.of_int(number) for number in (1, 2, 3, 4))
    frontier = Frontier(three, four, before=(UlidRange(one, two),))
    assert frontier.moved_to(three) == Frontier(three, three, before=frontier.before)


def test_frontiers_that_contradict_themselves_are_refused() -> None:
    """A row or Variable that was damaged is noticed."""
    one, two, three, four = (Ulid.of_int(number) for number in (1, 2, 3, 4))
    for start, upto, ahead in (
        (two, one, ()),
        (one, two, (UlidRange(two, three),)),
        (one, one, (UlidRange(two, two),)),
        (one, one, (UlidRange(three, four), UlidRange(two, three))),
        (one, one, (UlidRange(two, three), UlidRange(three, four))),
    ):
        with pytest.raises(CursorFormatError):
            Frontier(start, upto, ahead)
    for before in (
        (UlidRange(two, three),),
        (UlidRange(one, one),),
        (UlidRange(one, two), UlidRange(Ulid.MIN, one)),
        (UlidRange(two, four),),
    ):
        with pytest.raises(CursorFormatError):
            Frontier(three, four, before=before)
