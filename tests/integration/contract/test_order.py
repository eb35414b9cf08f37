# SPDX-License-Identifier: Apache-2.0
"""Promise 1, order, without races (``test_races.py`` has those)."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from itertools import pairwise

import pytest

from airflow_changefeed.exceptions import LockTimeoutError
from tests.integration.contract.bench import IMPATIENT, PAST, Bench


def test_committed_before_begun_comes_first_whatever_the_hints_say(either: Bench) -> None:
    """If A is known committed before B starts, A's events come first, also with a later hint."""
    keys = [key for hour in (5, 3, 9, 0, 9, 1) for key in either.write(2, hint=PAST + timedelta(hours=hour))]
    assert either.keys() == keys


def test_reading_between_transactions_changes_no_order(either: Bench) -> None:
    """However often the feed was read in between."""
    keys = []
    for hour in (4, 2, 6, 0):
        keys += either.write(3, hint=PAST + timedelta(hours=hour))
        assert either.keys() == keys


def test_one_transactions_events_keep_their_order(either: Bench) -> None:
    """Within the shard, in the order of their inserts, with any hints."""
    with either.transaction() as writer:
        keys = []
        for hour in (4, 2, 6, 0):
            keys += either.insert(writer, 2, hint=PAST + timedelta(hours=hour))
        writer.commit()
    assert either.keys() == keys


def test_a_rolled_back_transaction_leaves_nothing(either: Bench) -> None:
    """Neither an event nor a hole that a reader would wait for."""
    before = either.write(1)
    with either.transaction() as writer:
        either.insert(writer, 3)
        writer.rollback()
    after = either.write(1)
    assert either.keys() == before + after
    assert either.engine.keys(either.table) == {*before, *after}


def test_an_uncommitted_event_is_never_read(either: Bench) -> None:
    """A reader in between sees what is committed, and the rest once it is."""
    first = either.write(2)
    either.events()
    with either.transaction() as writer:
        second = either.insert(writer, 2)
        source = either.impatient()
        page = source.read_feed(either.feed, 0, either.events()[0].ulid.previous())
        assert [event.key for event in page] == first
        writer.commit()
    assert either.keys() == first + second


def test_parallel_transactions_are_both_read_whole(bench: Bench) -> None:
    """Two open at once: both arrive, each in its order; with one writer at a time the second must wait."""
    with bench.transaction() as one:
        first = bench.insert(one, 2)
        with closing(bench.engine.writer(bench.table, IMPATIENT)) as two:
            if not bench.source.capabilities.parallel_writers:
                with pytest.raises(Exception, match=r"lock|busy|timeout"):
                    two.begin()
                one.commit()
                two.begin()
                second = bench.insert(two, 2)
            else:
                two.begin()
                second = bench.insert(two, 2)
                first += bench.insert(one, 1)
                one.commit()
            two.commit()
    keys = bench.keys()
    assert [key for key in keys if key in first] == first
    assert [key for key in keys if key in second] == second
    assert len(keys) == len(first) + len(second)


def test_no_other_transactions_events_come_between_those_of_one(bench: Bench) -> None:
    """Whatever order they were written in, whoever drains meanwhile, and however small the pages."""
    if not bench.source.capabilities.parallel_writers:
        return  # Nothing can be written between them; the test before this one shows it.
    with bench.transaction() as one, bench.transaction() as two, bench.transaction() as late:
        first, second, third = (bench.insert(writer) for writer in (one, two, late))
        for _ in range(2):
            first += bench.insert(one)
            second += bench.insert(two)
        bench.source.drain(bench.feed)
        two.commit()
        first += bench.insert(one)
        one.commit()
        between = bench.write(1)
        keys = bench.keys(page_size=1)
        # The last number that each drew decides.
        assert keys == second + first + between
        late.commit()
    assert bench.keys() == keys + third


def test_a_transaction_that_commits_late_is_not_skipped(bench: Bench) -> None:
    """A reader that went on past its neighbours still gets it, above its cursor."""
    seen = bench.write(1)
    last = bench.events()[-1].ulid
    with bench.transaction() as late:
        keys = bench.insert(late, 2, hint=PAST)
        try:
            assert len(bench.impatient().read_feed(bench.feed, 0, last)) == 0
        except LockTimeoutError:
            assert not bench.source.capabilities.parallel_writers
        late.commit()
    assert bench.keys(after=last) == keys
    assert bench.keys() == seen + keys


def test_ulids_of_a_shard_never_repeat(either: Bench) -> None:
    """Strictly ascending over many transactions of one instant."""
    for _ in range(20):
        either.write(5, hint=PAST)
    ulids = [event.ulid for event in either.events(page_size=13)]
    assert len(ulids) == 100
    assert all(one < two for one, two in pairwise(ulids))
