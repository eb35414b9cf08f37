# SPDX-License-Identifier: Apache-2.0
"""Counting ranges, and splitting them for tasks."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidArgumentError, PurgedError
from tests.integration.contract.bench import HOUR, PAST, Bench

ALL = UlidRange(Ulid.MIN, Ulid.MAX)


def _fill(bench: Bench, hours: int, each: int = 7) -> list[Ulid]:
    for hour in range(hours):
        bench.write(each, hint=PAST + HOUR * hour)
    bench.write(1, shard=1, hint=PAST)
    return [event.ulid for event in bench.events()]


def test_windows_are_counted_one_by_one(either: Bench) -> None:
    """Every event belongs to exactly one of neighbouring windows; an empty one counts 0."""
    _fill(either, 3)
    either.write(2, hint=PAST + HOUR * 5)
    either.events()
    windows = Window(PAST - HOUR, PAST + HOUR * 7).cut(HOUR)
    ranges = [window.range for window in windows]
    assert either.source.count(either.feed, 0, ranges) == [0, 7, 7, 7, 0, 0, 2, 0]
    assert either.source.count(either.feed, 0, [ALL]) == [23]
    assert either.source.count(either.feed, 0, []) == []


def test_a_count_takes_its_ranges_at_their_word(either: Bench) -> None:
    """The start is exclusive, the end inclusive, an empty range counts nothing."""
    ulids = _fill(either, 1)
    ranges = [UlidRange(ulids[0], ulids[2]), UlidRange(ulids[2], ulids[2]), UlidRange(ulids[2], ulids[3])]
    assert either.source.count(either.feed, 0, ranges) == [2, 0, 1]


def test_parts_make_up_the_range_with_about_as_many_events_each(either: Bench) -> None:
    """Consecutive, none empty, at most as many as asked, and their counts are right."""
    ulids = _fill(either, 3)
    ranges = (ALL, UlidRange(ulids[2], ulids[17]), UlidRange(ulids[0].previous(), ulids[-1]))
    for range_, parts in product(ranges, (1, 2, 3, 5, 20, 21, 22, 10_000)):
        found = either.split(range_, parts)
        rows = [part.rows for part in found]
        assert found[0].range.after == range_.after
        assert found[-1].range.upto == range_.upto
        assert all(one.range.upto == two.range.after for one, two in pairwise(found))
        assert rows == either.source.count(either.feed, 0, [part.range for part in found])
        assert sum(rows) == sum(ulid in range_ for ulid in ulids)
        assert 1 <= len(found) <= parts
        assert min(rows) >= 1
        assert max(rows) <= 2 * -(-sum(rows) // parts)


def test_a_range_without_events_has_no_parts(either: Bench) -> None:
    """Nothing to read is no task."""
    ulids = _fill(either, 1)
    assert either.split(UlidRange(Ulid.MIN, ulids[0].previous()), 4) == []
    assert either.split(UlidRange(ulids[1], ulids[1]), 4) == []
    assert either.split(ALL, 4, shard=2) == []


def test_numbers_of_parts_out_of_range_are_refused(either: Bench) -> None:
    """1 to 10,000."""
    for parts in (0, -1, 10_001):
        with pytest.raises(InvalidArgumentError, match="parts"):
            either.split(ALL, parts)


def test_ranges_below_what_was_purged_are_refused(bench: Bench) -> None:
    """A count or split would be too low without a word; above, both work."""
    _fill(bench, 3)
    bench.seal()
    purged = bench.source.purge(bench.feed, PAST + HOUR)[0].upto
    with pytest.raises(PurgedError):
        bench.source.count(bench.feed, 0, [ALL])
    with pytest.raises(PurgedError):
        bench.source.count(bench.feed, 0, [UlidRange(purged.previous(), purged), UlidRange(purged, Ulid.MAX)])
    with pytest.raises(PurgedError):
        bench.split(ALL, 2)
    assert bench.source.count(bench.feed, 0, [UlidRange(purged, Ulid.MAX)]) == [14]
    assert sum(part.rows for part in bench.split(UlidRange(purged, Ulid.MAX), 2)) == 14


def test_rows_that_were_counted_need_not_be_again(either: Bench) -> None:
    """With their number the parts are the same; with one that is no longer true they still make the range."""
    _fill(either, 3)
    assert either.split(ALL, 4, rows=21) == either.split(ALL, 4)
    for rows in (20, 22, 100):
        found = [part.range for part in either.split(ALL, 4, rows=rows)]
        assert (found[0].after, found[-1].upto) == (ALL.after, ALL.upto)
        assert all(one.upto == two.after for one, two in pairwise(found))
        assert sum(either.source.count(either.feed, 0, found)) == 21
