# SPDX-License-Identifier: Apache-2.0
"""``CursorStore``: one row for each consumer and shard, changed by compare-and-set under a lease."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from airflow_changefeed.core.cursor import Began, CursorRow, Frontier
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import (
    CursorBeyondFeedError,
    InvalidArgumentError,
    LeaseHeldError,
    LeaseLostError,
    StaleVersionError,
)
from airflow_changefeed.sources.base_consumers import CursorMove
from tests.integration.contract.bench import HOUR, PAST, Bench

ME = "export"


@pytest.fixture
def ready(either: Bench) -> Bench:
    """Give a feed with three hours of events in shards 0 and 1, sealed, and a consumer at its beginning."""
    for shard in (0, 1):
        for hour in range(3):
            either.write(1, shard=shard, hint=PAST + HOUR * hour)
        either.events(shard)
    either.seal()
    either.source.begin_consumer(ME, either.feed, dict.fromkeys((0, 1), _hour(0)), by="test")
    return either


def _hour(number: int) -> Ulid:
    return Ulid.floor(PAST + HOUR * number).previous()


def _rows(bench: Bench, consumer: str = ME) -> dict[Shard, CursorRow]:
    return {row.shard: row for row in bench.source.cursors(bench.feed, consumer)}


def _lease(bench: Bench, *shards: Shard, holder: str = "me", seconds: float = 60) -> dict[Shard, int]:
    return bench.source.acquire_leases(
        ME, bench.feed, shards or (0,), holder=holder, seconds=seconds, all_or_none=True
    ).tokens


def _move(row: CursorRow, upto: Ulid, token: int, ack: Ulid | None = None) -> CursorMove:
    return CursorMove(
        row.shard,
        row.frontier.complete(UlidRange(row.frontier.start, upto)),
        row.resource_version,
        token,
        ack,
    )


def _wait_until(bench: Bench, row: CursorRow) -> None:
    """Wait for the database's clock to pass a lease's end."""
    deadline = time.monotonic() + 30
    while row.lease_expires is not None and bench.source.now() <= row.lease_expires:
        assert time.monotonic() < deadline, "the database's clock stands still"


def test_a_consumer_begins_where_it_says(ready: Bench) -> None:
    """One row for each shard, at its start, with nothing complete and no lease."""
    rows = _rows(ready)
    assert set(rows) == {0, 1}
    row = rows[0]
    assert (row.consumer, row.feed, row.ulid, row.frontier) == (
        ME,
        ready.feed,
        _hour(0),
        Frontier.beginning(_hour(0)),
    )
    assert (row.moved_by, row.lease_holder, row.lease_expires) == ("test", None, None)
    assert row.moved_at <= ready.source.now()


def test_beginning_again_keeps_the_place(ready: Bench) -> None:
    """A later start is ignored, an earlier one taken as long as nothing was completed."""
    source = ready.source
    before = _rows(ready)
    source.begin_consumer(ME, ready.feed, {0: _hour(2)}, by="again")
    assert _rows(ready) == before
    rows = source.begin_consumer(ME, ready.feed, {0: Ulid.MIN}, by="earlier")
    assert {row.shard: row.frontier for row in rows} == {
        0: Frontier.beginning(Ulid.MIN),
        1: Frontier.beginning(_hour(0)),
    }
    assert _rows(ready)[0].resource_version > before[0].resource_version
    tokens = _lease(ready)
    source.move_cursors(ME, ready.feed, [_move(_rows(ready)[0], _hour(1), tokens[0])], by="test")
    source.begin_consumer(ME, ready.feed, {0: Ulid.MIN}, by="too late")
    assert _rows(ready)[0].ulid == _hour(1)


def test_a_consumer_that_begins_earlier_keeps_a_purge_from_what_it_begins_with(ready: Bench) -> None:
    """Its ack goes back with its beginning."""
    for after in (_hour(2), _hour(1)):
        ready.source.begin_consumer("later", ready.feed, {0: after}, by="test", began=Began.CHOSEN)
        assert _rows(ready, "later")[0].ack == after
    ready.source.drop_consumer(ME, ready.feed)
    purged = {one.shard: one.upto for one in ready.source.purge(ready.feed, PAST + HOUR * 3)}
    assert purged[0] == _hour(1)


def test_a_consumer_does_not_begin_beyond_the_clock(ready: Bench) -> None:
    """It would pass over all that comes until then; no row is made or changed."""
    before = _rows(ready)
    beyond = Ulid.floor(ready.source.now() + timedelta(days=1))
    for consumer in (ME, "new"):
        with pytest.raises(CursorBeyondFeedError):
            ready.source.begin_consumer(consumer, ready.feed, {0: beyond}, by="test")
    assert (_rows(ready), _rows(ready, "new")) == (before, {})


def test_consumers_know_nothing_of_each_other(ready: Bench) -> None:
    """Neither of cursors nor of leases."""
    ready.source.begin_consumer("other", ready.feed, {0: Ulid.MIN}, by="test")
    _lease(ready)
    ready.source.acquire_leases("other", ready.feed, [0], holder="them", seconds=60, all_or_none=True)
    assert len(ready.source.cursors(ready.feed)) == 3
    assert len(ready.source.cursors(ready.feed, "other")) == 1
    ready.source.drop_consumer("other", ready.feed)
    assert {row.consumer for row in ready.source.cursors(ready.feed)} == {ME}


@pytest.mark.parametrize("name", ["", "a:b", "x" * 129])
def test_a_consumers_name_is_checked(either: Bench, name: str) -> None:
    """It goes into the names of Variables."""
    with pytest.raises(InvalidArgumentError):
        either.source.begin_consumer(name, either.feed, {0: Ulid.MIN}, by="test")


def test_a_lease_is_exclusive(ready: Bench) -> None:
    """Another holder gets none until it is given back; the error says who holds it, and a retry may help."""
    tokens = _lease(ready)
    with pytest.raises(LeaseHeldError, match="me") as caught:
        _lease(ready, holder="them")
    assert caught.value.transient
    row = _rows(ready)[0]
    assert (row.lease_holder, row.fencing_token) == ("me", tokens[0])
    assert row.lease_expires is not None
    assert row.lease_expires > ready.source.now()
    ready.source.release_leases(ME, ready.feed, tokens, holder="me")
    assert _lease(ready, holder="them")[0] > tokens[0]


def test_leases_of_several_shards_are_taken_together_or_not_at_all(ready: Bench) -> None:
    """One shard that is held keeps the others free."""
    _lease(ready, 1)
    with pytest.raises(LeaseHeldError):
        _lease(ready, 0, 1, holder="them")
    row = _rows(ready)[0]
    assert (row.lease_holder, row.fencing_token) == (None, 0)
    assert set(_lease(ready, 0, holder="them")) == {0}


def test_a_lease_runs_out_by_the_databases_clock(ready: Bench) -> None:
    """Then somebody else gets it, and the old holder moves nothing."""
    old = _lease(ready, seconds=0.05)
    row = _rows(ready)[0]
    _wait_until(ready, row)
    with pytest.raises(LeaseLostError) as caught:
        ready.source.move_cursors(ME, ready.feed, [_move(row, _hour(1), old[0])], by="late")
    assert caught.value.transient
    new = _lease(ready, holder="them")
    assert new[0] > old[0]
    with pytest.raises(LeaseLostError):
        ready.source.move_cursors(ME, ready.feed, [_move(row, _hour(1), old[0])], by="late")
    assert _rows(ready)[0].ulid == _hour(0)


def test_a_token_from_before_the_consumer_was_dropped_is_worth_nothing(ready: Bench) -> None:
    """A zombie must not move the cursor of the consumer's second life."""
    old = _lease(ready)
    zombie = _move(_rows(ready)[0], _hour(2), old[0])
    ready.source.drop_consumer(ME, ready.feed)
    ready.source.begin_consumer(ME, ready.feed, {0: _hour(0)}, by="again")
    assert _lease(ready, holder="new")[0] > old[0]
    with pytest.raises((LeaseLostError, StaleVersionError)):
        ready.source.move_cursors(ME, ready.feed, [zombie], by="zombie")


def test_a_move_bumps_the_version_and_says_who(ready: Bench) -> None:
    """And keeps what is complete ahead of a gap."""
    row, tokens = _rows(ready)[0], _lease(ready)
    frontier = row.frontier.complete(UlidRange(_hour(0), _hour(1))).complete(UlidRange(_hour(2), _hour(3)))
    moved = ready.source.move_cursors(
        ME, ready.feed, [CursorMove(0, frontier, row.resource_version, tokens[0])], by="run 7"
    )
    found = {row.shard: row for row in moved}
    assert found == _rows(ready)
    assert found[0].frontier == frontier
    assert found[0].ulid == _hour(1)
    assert found[0].resource_version == row.resource_version + 1
    assert found[0].moved_by == "run 7"
    assert found[1].resource_version == row.resource_version


def test_a_move_without_a_lease_is_refused(ready: Bench) -> None:
    """Nobody's, a made-up one, and one that was given back."""
    row = _rows(ready)[0]
    for token in (0, 1, 99):
        with pytest.raises(LeaseLostError):
            ready.source.move_cursors(ME, ready.feed, [_move(row, _hour(1), token)], by="thief")
    tokens = _lease(ready)
    ready.source.release_leases(ME, ready.feed, tokens, holder="me")
    with pytest.raises(LeaseLostError):
        ready.source.move_cursors(ME, ready.feed, [_move(row, _hour(1), tokens[0])], by="late")
    assert _rows(ready)[0] == row or _rows(ready)[0].ulid == row.ulid


@pytest.mark.parametrize("flaw", ["version", "lease", "beyond"])
def test_several_shards_move_together_or_not_at_all(ready: Bench, flaw: str) -> None:
    """One wrong move keeps all where they are."""
    tokens, rows = _lease(ready, 0, 1), _rows(ready)
    good, other = (_move(rows[shard], _hour(1), tokens[shard]) for shard in (0, 1))
    beyond = Ulid.floor(ready.source.now() + timedelta(days=1))
    bad = {
        "version": CursorMove(1, other.frontier, 77, tokens[1]),
        "lease": CursorMove(1, other.frontier, other.expected_version, tokens[1] + 1),
        "beyond": _move(rows[1], beyond, tokens[1]),
    }[flaw]
    for moves in ([good, bad], [bad, good]):
        with pytest.raises((StaleVersionError, LeaseLostError, CursorBeyondFeedError)):
            ready.source.move_cursors(ME, ready.feed, moves, by="test")
        assert _rows(ready) == rows
    moved = ready.source.move_cursors(ME, ready.feed, [good, other], by="test")
    assert {row.shard: row.ulid for row in moved} == {0: _hour(1), 1: _hour(1)}


def test_a_cursor_beyond_the_clock_is_refused(ready: Bench) -> None:
    """At its end, in what is complete ahead, and in its ack; the end of the sealed time is good."""
    row, tokens = _rows(ready)[0], _lease(ready)
    beyond = Ulid.floor(ready.source.now() + timedelta(days=1))
    ahead = row.frontier.complete(UlidRange(beyond.previous(), beyond))
    for frontier in (row.frontier.complete(UlidRange(row.frontier.start, beyond)), ahead):
        move = CursorMove(0, frontier, row.resource_version, tokens[0])
        with pytest.raises(CursorBeyondFeedError) as caught:
            ready.source.move_cursors(ME, ready.feed, [move], by="test")
        assert not caught.value.transient
    with pytest.raises(CursorBeyondFeedError):
        ready.source.move_cursors(ME, ready.feed, [_move(row, _hour(1), tokens[0], beyond)], by="test")
    assert _rows(ready)[0].ack == row.ack
    sealed = ready.status().sealed_until
    assert sealed is not None
    (first, _) = ready.source.move_cursors(
        ME, ready.feed, [_move(row, Ulid.floor(sealed).previous(), tokens[0])], by="test"
    )
    assert first.ulid == Ulid.floor(sealed).previous()


def test_an_ack_never_goes_back(ready: Bench) -> None:
    """A lower one is ignored, and none leaves it."""
    tokens = _lease(ready)
    for given, expected in ((2, 2), (1, 2), (None, 2), (3, 3)):
        ack = None if given is None else _hour(given)
        row = _rows(ready)[0]
        ready.source.move_cursors(ME, ready.feed, [_move(row, _hour(3), tokens[0], ack)], by="test")
        assert _rows(ready)[0].ack == _hour(expected)


def test_attempt_tokens_drawn_in_parallel_differ(either: Bench) -> None:
    """Two attempts at a unit never have one token."""
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: either.engine.source().next_attempt(either.feed), range(40)))
    assert len(set(drawn)) == 40


def test_versions_of_a_consumer_outlive_their_feed(bench: Bench) -> None:
    """A consumer of another feed of the name begins above those of the one that was dropped."""
    found = []
    for _ in range(3):
        (row,) = bench.source.begin_consumer(ME, bench.feed, {0: Ulid.MIN}, by="test")
        found.append(row.resource_version)
        bench.source.drop_feed(bench.feed)
        bench.source.set_up_feed(bench.feed, kind=bench.table.kind)
    assert found == [found[0], found[0] + 1, found[0] + 2]


def test_a_dropped_consumer_is_forgotten(ready: Bench) -> None:
    """It may begin again anywhere; dropping it twice is harmless."""
    ready.source.drop_consumer(ME, ready.feed)
    ready.source.drop_consumer(ME, ready.feed)
    assert _rows(ready) == {}
    ready.source.begin_consumer(ME, ready.feed, {0: _hour(2)}, by="again")
    assert _rows(ready)[0].ulid == _hour(2)
