# SPDX-License-Identifier: Apache-2.0
"""Cursors that people move: back, with a history, and never over a change unseen."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_changefeed.core.cursor import KEPT_CHANGES, CursorRow
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    PurgedError,
    StaleVersionError,
)
from airflow_changefeed.sources.base_consumers import CursorMove
from tests.integration.contract.bench import HOUR, KEPT, ODD, PAST, Bench

ME = "export"


@pytest.fixture
def ready(bench: Bench) -> Bench:
    """Give a feed with four hours of events in shards 0 and 1, sealed, and a consumer at its beginning."""
    for shard in (0, 1):
        for hour in range(4):
            bench.write(1, shard=shard, hint=PAST + HOUR * hour)
        bench.events(shard)
    bench.seal()
    bench.source.begin_consumer(ME, bench.feed, dict.fromkeys((0, 1), _hour(0)), by="begin", why="new")
    return bench


def _hour(number: int) -> Ulid:
    return Ulid.floor(PAST + HOUR * number).previous()


def _row(bench: Bench, shard: Shard = 0, consumer: str = ME) -> CursorRow:
    return {row.shard: row for row in bench.source.cursors(bench.feed, consumer)}[shard]


def _move(bench: Bench, upto: Ulid, *, shard: Shard = 0, version: int | None = None, **more: Any) -> None:
    """Move a cursor as a person does: take the lease, move, give it back."""
    source, row = bench.source, _row(bench, shard)
    words = {name: more.pop(name) for name in ("by", "why") if name in more}
    tokens = source.acquire_leases(
        ME, bench.feed, [shard], holder="person", seconds=60, all_or_none=True
    ).tokens
    options = {"ack": upto, "is_rewind": True, **more}
    expected = row.resource_version if version is None else version
    move = CursorMove(shard, row.frontier.moved_to(upto), expected, tokens[shard], **options)
    try:
        source.move_cursors(ME, bench.feed, [move], **{"by": "person", **words})
    finally:
        source.release_leases(ME, bench.feed, tokens, holder="person")


def _purged(bench: Bench) -> Ulid:
    bench.source.purge(bench.feed, PAST + HOUR * 4)
    return bench.status().purged_upto


def test_after_a_rewind_a_purge_keeps_the_events(ready: Bench) -> None:
    """The ack goes back with the cursor; a program's move leaves it."""
    _move(ready, _hour(3), shard=1)
    _move(ready, _hour(3))
    _move(ready, _hour(1), is_rewind=False)
    assert (_row(ready).ulid, _row(ready).ack) == (_hour(1), _hour(3))
    _move(ready, _hour(1))
    assert (_row(ready).ulid, _row(ready).ack) == (_hour(1), _hour(1))
    assert _purged(ready) == _hour(1)
    assert len(ready.events(after=_hour(1))) == 3


def test_a_rewind_without_an_ack_takes_the_ack_back_to_the_cursor(ready: Bench) -> None:
    """Never forward, and no purge removes what will be read again."""
    _move(ready, _hour(3), ack=_hour(2))
    _move(ready, _hour(3), ack=None)
    assert _row(ready).ack == _hour(2)
    _move(ready, _hour(1), ack=None)
    assert (_row(ready).ulid, _row(ready).ack) == (_hour(1), _hour(1))


def test_a_rewind_below_what_was_purged_is_refused(ready: Bench) -> None:
    """By its cursor or by its ack, and nothing is changed; to the bound itself it is good."""
    _move(ready, _hour(2))
    assert _purged(ready) == _hour(2)
    before = _row(ready)
    for upto, ack in ((1, 1), (2, 1), (1, 3)):
        with pytest.raises(PurgedError) as caught:
            _move(ready, _hour(upto), ack=_hour(ack))
        assert not caught.value.transient
    present = _row(ready)
    assert (present.frontier, present.ack, present.resource_version) == (
        before.frontier,
        before.ack,
        before.resource_version,
    )
    _move(ready, _hour(3))
    _move(ready, _hour(2))
    assert _row(ready).ulid == _hour(2)
    assert len(ready.source.history(ready.feed, ME, shard=0)) == 4


def test_of_two_people_who_saw_one_cursor_the_second_is_refused(ready: Bench) -> None:
    """He is told the present version and place, and the first one's move stays; so with any wrong version."""
    seen = _row(ready).resource_version
    _move(ready, _hour(2), version=seen, by="user-2")
    for version in (seen, seen + 5, 0):
        with pytest.raises(StaleVersionError) as caught:
            _move(ready, _hour(1), version=version, by="user-1")
        facts, message = caught.value.facts, caught.value.message
        assert (facts["expected_version"], facts["present_version"]) == (version, seen + 1)
        assert facts["row"].ulid == _hour(2)
        assert str(_hour(2)) in facts["present"]
        assert "user-2" in message
        assert "nothing was changed" in message
        assert ("restored" in message) is (version > seen + 1)
    assert (_row(ready).ulid, _row(ready).moved_by) == (_hour(2), "user-2")


def test_the_history_tells_who_moved_what_from_where_to_where_and_why(ready: Bench) -> None:
    """Newest first, of one shard or of all, so that one can go back."""
    # Above those of earlier consumers of its name, where the database had any.
    first = _row(ready).resource_version
    _move(ready, _hour(2), by="run 1")
    _move(ready, _hour(1), by="alice", why="set: the files of hour 1 were lost")
    _move(ready, _hour(3), shard=1, by="run 2")
    changes = ready.source.history(ready.feed, ME)
    assert [
        (one.shard, one.before, one.after, one.resource_version, one.by, one.why) for one in changes[:3]
    ] == [
        (1, _hour(0), _hour(3), first + 1, "run 2", None),
        (0, _hour(2), _hour(1), first + 2, "alice", "set: the files of hour 1 were lost"),
        (0, _hour(0), _hour(2), first + 1, "run 1", None),
    ]
    assert {(one.shard, one.before, one.after, one.by, one.why) for one in changes[3:]} == {
        (shard, None, _hour(0), "begin", "new") for shard in (0, 1)
    }
    assert {(one.consumer, one.feed) for one in changes} == {(ME, ready.feed)}
    numbers = [one.number for one in changes]
    assert numbers == sorted(set(numbers), reverse=True)
    assert all(one.at <= ready.source.now() for one in changes)
    assert changes[1].at == _row(ready).moved_at
    assert ready.source.history(ready.feed, ME, shard=1) == [changes[0], *_of(changes[3:], 1)]
    assert ready.source.history(ready.feed, ME, limit=2) == changes[:2]
    assert ready.source.history(ready.feed, "nobody") == []


def _of(changes: list[Any], shard: Shard) -> list[Any]:
    return [one for one in changes if one.shard == shard]


def test_an_earlier_beginning_is_a_change_and_the_same_one_is_none(ready: Bench) -> None:
    """Nor is a later one."""
    before = ready.source.history(ready.feed, ME)
    ready.source.begin_consumer(ME, ready.feed, {0: _hour(1)}, by="again")
    assert ready.source.history(ready.feed, ME) == before
    ready.source.begin_consumer(ME, ready.feed, {0: Ulid.MIN}, by="earlier")
    (newest, *rest) = ready.source.history(ready.feed, ME)
    assert rest == before
    assert (newest.before, newest.after, newest.by) == (_hour(0), Ulid.MIN, "earlier")


def test_of_each_shard_the_newest_changes_are_kept(ready: Bench) -> None:
    """And long words are cut."""
    source = ready.source
    (token,) = source.acquire_leases(
        ME, ready.feed, [0], holder="me", seconds=600, all_or_none=True
    ).tokens.values()
    row = _row(ready)
    for number in range(KEPT_CHANGES + 3):
        move = CursorMove(0, row.frontier.moved_to(_hour(1 + number % 2)), row.resource_version, token)
        row = source.move_cursors(ME, ready.feed, [move], by=f"move {number}", why="x" * 3_000)[0]
    changes = source.history(ready.feed, ME, limit=1_000)
    assert len(_of(changes, 1)) == 1
    assert [one.by for one in _of(changes, 0)] == [
        f"move {number}" for number in range(KEPT_CHANGES + 2, 2, -1)
    ]
    assert changes[0].why == "x" * 2_000


def test_who_moved_it_and_why_are_kept_whatever_they_are_called(ready: Bench) -> None:
    """What no database takes is written as an escape."""
    _move(ready, _hour(1), by=ODD, why=ODD)
    (newest, *_) = ready.source.history(ready.feed, ME)
    assert (newest.by, newest.why, _row(ready).moved_by) == (KEPT, KEPT, KEPT)
    ready.source.begin_consumer("other", ready.feed, {0: _hour(1)}, by=ODD, why=ODD)
    ready.source.begin_consumer("other", ready.feed, {0: _hour(0)}, by=ODD, why=ODD)
    changes = ready.source.history(ready.feed, "other")
    assert [(one.by, one.why) for one in changes] == [(KEPT, KEPT)] * 2


def test_a_dropped_consumer_leaves_no_history(ready: Bench) -> None:
    """Another consumer's stays."""
    ready.source.begin_consumer("other", ready.feed, {0: _hour(0)}, by="test")
    ready.source.drop_consumer(ME, ready.feed)
    assert ready.source.history(ready.feed, ME) == []
    assert len(ready.source.history(ready.feed, "other")) == 1


def test_a_consumer_that_was_moved_since_is_not_dropped(ready: Bench) -> None:
    """Seed 004: neither after a move of any of its rows nor after a drop."""
    source = ready.source
    seen = sum(row.resource_version for row in source.cursors(ready.feed, ME))
    _move(ready, _hour(2), shard=1)
    before = source.cursors(ready.feed, ME)
    for version in (seen, seen + 9):
        with pytest.raises(StaleVersionError) as caught:
            source.drop_consumer(ME, ready.feed, resource_version=version)
        assert caught.value.facts["present_version"] == seen + 1
        assert str(_hour(2)) in caught.value.facts["present"]
    assert source.cursors(ready.feed, ME) == before
    source.drop_consumer(ME, ready.feed, resource_version=seen + 1)
    with pytest.raises(StaleVersionError) as caught:
        source.drop_consumer(ME, ready.feed, resource_version=seen + 1)
    assert caught.value.facts["present_version"] == 0
    source.drop_consumer(ME, ready.feed)
