# SPDX-License-Identifier: Apache-2.0
"""``ConsumerStore``: consumers of events, and who may consume what."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_changefeed.core.consumer import ConsumerSpec, OnPoison, Outcome, Parked
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    ConsumerNotFoundError,
    ConsumerSetupError,
    CursorBeyondFeedError,
    FeedNotFoundError,
    InvalidArgumentError,
    ShardNotFoundError,
)
from tests.integration.contract.bench import Bench
from tests.integration.contract.consumers import FIRST, ME, SECOND, Stand, expire, set_up_stand


@pytest.fixture
def stand(bench: Bench) -> Stand:
    """Give a consumer of events."""
    return set_up_stand(bench)


def test_a_consumer_is_made_once(stand: Stand) -> None:
    """Again with the same settings leaves it as it stands, wherever it should begin; others are refused."""
    source = stand.source
    info = source.consumer(ME, stand.feed)
    assert (info.spec, info.begin, info.created_by) == (stand.spec, Ulid.MIN, "test")
    assert info.created_at <= source.now()
    before = source.cursors(stand.feed)
    assert [(row.consumer, row.shard, row.ulid, row.ack) for row in before] == [
        (ME, shard, Ulid.MIN, Ulid.MIN) for shard in (0, 1)
    ]
    again = source.create_consumer(stand.spec, begin=stand.ulid(2), starts={0: stand.ulid(2)}, by="again")
    assert again == info
    for changes in ({"max_attempts": 3}, {"on_poison": OnPoison.PARK}, {"keep_log": timedelta(days=1)}):
        with pytest.raises(ConsumerSetupError, match=r"exists with .*settings.*10"):
            source.create_consumer(replace(stand.spec, **changes), begin=Ulid.MIN, starts={}, by="test")
    assert source.cursors(stand.feed) == before
    assert source.consumers() == source.consumers(stand.feed) == [info]


def test_consumers_of_events_and_of_exports_do_not_mix(stand: Stand) -> None:
    """An export's has cursors and no settings: the name of one is refused for the other, both ways."""
    source = stand.source
    source.begin_consumer("export", stand.feed, {0: Ulid.MIN}, by="test")
    with pytest.raises(ConsumerSetupError, match="export"):
        source.create_consumer(ConsumerSpec("export", stand.feed), begin=Ulid.MIN, starts={}, by="test")
    assert [info.spec.consumer for info in source.consumers(stand.feed)] == [ME]
    with pytest.raises(ConsumerNotFoundError, match=ME):
        source.acquire_leases("export", stand.feed, [0], holder=FIRST, seconds=60)
    before = source.cursors(stand.feed)
    with pytest.raises(ConsumerSetupError, match="is not an export"):
        source.begin_consumer(ME, stand.feed, {0: Ulid.MIN}, by="test")
    assert source.cursors(stand.feed) == before


_NAMED: dict[str, Callable[[Any, str, str], object]] = {
    "consumer": lambda source, consumer, feed: source.consumer(consumer, feed),
    "request": lambda source, consumer, feed: source.acquire_leases(
        consumer, feed, [0], holder=FIRST, seconds=60
    ),
    "renew": lambda source, consumer, feed: source.acquire_leases(
        consumer, feed, (), tokens={0: 1}, holder=FIRST, seconds=60
    ),
    "session": lambda source, consumer, feed: source.open_session(consumer, feed),
}


def test_unknown_names_are_told(stand: Stand) -> None:
    """An unknown consumer with those that there are, and an unknown feed."""
    for call in _NAMED.values():
        with pytest.raises(ConsumerNotFoundError, match=f"nobody.*{ME}"):
            call(stand.source, "nobody", stand.feed)
        with pytest.raises(FeedNotFoundError):
            call(stand.source, ME, "no.feed")


def test_bad_arguments_make_nothing(stand: Stand) -> None:
    """A start that the shard's high-water time has not reached; a lease that lasts no time."""
    beyond = Ulid.floor(stand.source.now() + timedelta(days=1))
    with pytest.raises(CursorBeyondFeedError):
        stand.source.create_consumer(
            ConsumerSpec("late", stand.feed), begin=Ulid.MIN, starts={0: Ulid.MIN, 1: beyond}, by="test"
        )
    assert [info.spec.consumer for info in stand.source.consumers()] == [ME]
    assert stand.source.cursors(stand.feed, "late") == []
    for seconds in (0, -1, 1e9):
        with pytest.raises(InvalidArgumentError):
            stand.request(seconds=seconds)
    with pytest.raises(InvalidArgumentError, match="at_most"):
        stand.source.acquire_leases(
            ME, stand.feed, [0, 1], holder=FIRST, seconds=60, at_most=1, all_or_none=True
        )


def test_a_lease_is_exclusive(stand: Stand) -> None:
    """Who comes second waits, is told until when, and gets what is given back, with a higher token."""
    first = stand.request(FIRST)
    assert set(first.rows) == {0, 1}
    assert first.free_at is None
    assert dict(first.rows) == {shard: stand.row(shard) for shard in (0, 1)}
    assert {row.lease_holder for row in first.rows.values()} == {FIRST}
    second = stand.request(SECOND)
    assert not second.rows
    assert second.free_at == min(row.lease_expires for row in first.rows.values() if row.lease_expires)
    (zero, one) = stand.source.leases(stand.feed)
    assert (zero.consumer, zero.feed, zero.shard, one.shard) == (ME, stand.feed, 0, 1)
    assert (zero.holder, zero.token, zero.expires) == (
        FIRST,
        first.rows[0].fencing_token,
        first.rows[0].lease_expires,
    )
    assert zero.since is not None
    assert zero.since <= stand.source.now()
    assert [waiter.name for waiter in zero.waiters] == [SECOND]
    tokens = {shard: row.fencing_token for shard, row in first.rows.items()}
    renewal = stand.source.acquire_leases(ME, stand.feed, (), tokens=tokens, holder=FIRST, seconds=60)
    assert (renewal.rows.keys(), renewal.waiting) == ({0, 1}, 1)
    stand.source.release_leases(ME, stand.feed, {1: tokens[1]}, holder=FIRST)
    given = stand.request(SECOND)
    assert set(given.rows) == {1}
    assert given.rows[1].fencing_token > tokens[1]
    renewal = stand.source.acquire_leases(ME, stand.feed, (), tokens=tokens, holder=FIRST, seconds=60)
    assert (renewal.rows.keys(), renewal.waiting) == ({0}, 0)
    assert {lease.holder: lease.waiters for lease in stand.source.leases()} == {FIRST: (), SECOND: ()}


def test_leases_are_taken_as_many_as_asked_for(stand: Stand) -> None:
    """A holder that wants one leaves the rest to others, and may take its own again."""
    assert len(stand.request(FIRST, at_most=1).rows) == 1
    assert len(stand.request(SECOND).rows) == 1
    (mine,) = stand.request(FIRST).rows.values()
    assert mine.lease_holder == FIRST
    assert stand.request(SECOND, mine.shard).free_at == stand.row(mine.shard).lease_expires


def test_a_request_that_is_repeated_gets_what_it_got(stand: Stand) -> None:
    """Its first answer may have been lost, and then nobody would know of a second lease."""
    source = stand.source
    first = source.acquire_leases(ME, stand.feed, [1], holder=FIRST, seconds=60, at_most=1)
    again = source.acquire_leases(ME, stand.feed, [0, 1], holder=FIRST, seconds=60, at_most=1)
    assert first.rows.keys() == again.rows.keys() == {1}
    assert stand.row(0).lease_holder is None


def test_who_leaves_waits_no_longer_and_frees_what_is_his(stand: Stand) -> None:
    """An old token frees nothing, nor does somebody else's."""
    tokens = {shard: row.fencing_token for shard, row in stand.request(FIRST).rows.items()}
    stand.request(SECOND)
    stand.source.release_leases(ME, stand.feed, {0: tokens[0] - 1}, holder=FIRST)
    stand.source.release_leases(ME, stand.feed, tokens, holder=SECOND)
    assert {lease.holder for lease in stand.source.leases()} == {FIRST}
    assert {lease.waiters for lease in stand.source.leases()} == {()}
    for _ in range(2):
        stand.source.release_leases(ME, stand.feed, tokens, holder=FIRST)
    assert {(lease.holder, lease.since, lease.expires) for lease in stand.source.leases()} == {
        (None, None, None)
    }
    assert [lease.token for lease in stand.source.leases()] == [tokens[0], tokens[1]]


def test_a_lease_runs_out_when_somebody_asks(stand: Stand) -> None:
    """Until then its holder may prolong it, late as he is; afterwards he has lost it."""
    tokens = {0: stand.request(FIRST, 0, seconds=0.05).rows[0].fencing_token}
    expire(stand)
    assert stand.source.leases()[0].holder == FIRST
    renewal = stand.source.acquire_leases(ME, stand.feed, (), tokens=tokens, holder=FIRST, seconds=0.05)
    assert renewal.rows.keys() == {0}
    expire(stand)
    assert stand.request(SECOND, 0).rows[0].fencing_token > tokens[0]
    renewal = stand.source.acquire_leases(ME, stand.feed, (), tokens=tokens, holder=FIRST, seconds=60)
    assert not renewal.rows
    assert stand.row().lease_holder == SECOND


def test_who_waits_is_forgotten_when_he_asks_no_more(stand: Stand) -> None:
    """He may be dead; as long as he asks, he has waited since he first did."""
    tokens = {0: stand.request(FIRST, 0).rows[0].fencing_token}
    stand.request(SECOND, 0)
    (waiter,) = stand.source.leases()[0].waiters
    stand.request(SECOND, 0)
    stand.request("third", 0, seconds=0.05)
    assert stand.source.leases()[0].waiters[0] == waiter
    stand.request("fourth", 1, seconds=0.1)
    expire(stand, 1)
    assert stand.source.leases()[0].waiters == (waiter,)
    renewal = stand.source.acquire_leases(ME, stand.feed, (), tokens=tokens, holder=FIRST, seconds=60)
    assert renewal.waiting == 1


def test_tokens_only_grow(stand: Stand) -> None:
    """Also when the consumer was dropped and made again."""
    drawn = []
    for holder in (FIRST, SECOND, FIRST):
        drawn.append(stand.request(holder, 0).rows[0].fencing_token)
        stand.source.release_leases(ME, stand.feed, {0: drawn[-1]}, holder=holder)
    stand.source.drop_consumer(ME, stand.feed)
    stand.source.create_consumer(stand.spec, begin=Ulid.MIN, starts={0: Ulid.MIN}, by="again")
    drawn.append(stand.request(FIRST, 0).rows[0].fencing_token)
    assert drawn == sorted(set(drawn))


def test_a_shard_that_comes_later_begins_where_the_consumer_does(stand: Stand) -> None:
    """At its ``begin``, exclusive; who asks for it makes its row."""
    begin = stand.ulid(1)
    spec = ConsumerSpec("later", stand.feed)
    stand.source.create_consumer(spec, begin=begin, starts={0: Ulid.MIN}, by="test")
    stand.bench.write(1, shard=7)
    stand.bench.events(7)
    grant = stand.source.acquire_leases("later", stand.feed, [7, 0], holder=FIRST, seconds=60)
    assert {shard: row.ulid for shard, row in grant.rows.items()} == {0: Ulid.MIN, 7: begin}
    assert {row.shard: row.ack for row in stand.source.cursors(stand.feed, "later")} == {
        0: Ulid.MIN,
        7: begin,
    }


def test_a_shard_whose_clock_is_behind_begins_at_its_end(stand: Stand) -> None:
    """It is read from there on; a cursor beyond its clock would be refused."""
    begin = stand.ulid(2)
    spec = ConsumerSpec("later", stand.feed)
    stand.source.create_consumer(spec, begin=begin, starts={0: Ulid.MIN}, by="test")
    stand.bench.write(1, shard=7, hint=begin.time - timedelta(hours=5))
    (old,) = stand.bench.events(7)
    grant = stand.source.acquire_leases("later", stand.feed, [7, 8], holder=FIRST, seconds=60)
    assert grant.rows[7].ulid == old.ulid
    # One that never had an event, in a feed that was never sealed.
    assert grant.rows[8].ulid == Ulid.MIN
    stand.bench.write(1, shard=7)
    assert len(stand.bench.events(7, after=grant.rows[7].ulid)) == 1


def test_each_shard_is_granted_to_one_of_many(bench: Bench) -> None:
    """However many ask at once, for shards that nobody has begun."""
    bench.write(1)
    bench.events()
    spec = ConsumerSpec(ME, bench.feed)
    bench.source.create_consumer(spec, begin=Ulid.MIN, starts={}, by="test")
    askers, shards = 4, range(6)
    start = threading.Barrier(askers)

    def ask(number: int) -> dict[Any, int]:
        mine = bench.engine.source()
        start.wait(timeout=60)
        grant = mine.acquire_leases(ME, bench.feed, shards, holder=f"asker {number}", seconds=60, at_most=2)
        return {shard: row.fencing_token for shard, row in grant.rows.items()}

    with ThreadPoolExecutor(askers) as pool:
        granted = [item for found in pool.map(ask, range(askers)) for item in found.items()]
    assert len(granted) == len(dict(granted))
    assert dict(granted) == {
        row.shard: row.fencing_token
        for row in bench.source.cursors(bench.feed, ME)
        if row.lease_holder is not None
    }
    assert len(granted) in (len(shards) - 1, len(shards))


def test_an_exports_lease_is_listed_too(stand: Stand) -> None:
    """Since when it is held is not known."""
    stand.source.begin_consumer("export", stand.feed, {0: Ulid.MIN}, by="test")
    token = stand.source.acquire_leases(
        "export", stand.feed, [0], holder="a task", seconds=60, all_or_none=True
    ).tokens[0]
    found = {lease.consumer: lease for lease in stand.source.leases(stand.feed)}["export"]
    assert (found.token, found.holder, found.since) == (token, "a task", None)
    with pytest.raises(FeedNotFoundError):
        stand.source.leases("no.feed")


def test_extending_keeps_a_token_and_takes_nothing(stand: Stand) -> None:
    """A lease that was revoked is not taken again; who acquires it, even its own, gets a new token."""
    source, export = stand.source, ("export", stand.feed)
    source.begin_consumer(*export, {0: Ulid.MIN, 1: Ulid.MIN}, by="test")
    mine = {"holder": "a task", "seconds": 60, "all_or_none": True}
    first = source.acquire_leases(*export, [0, 1], **mine)
    extended = source.acquire_leases(*export, (), tokens=first.tokens, **mine)
    assert extended.tokens == first.tokens
    assert extended.rows[1].lease_expires >= first.rows[1].lease_expires
    source.revoke_lease(*export, 0, fencing_token=first.tokens[0])
    assert set(source.acquire_leases(*export, (), tokens=first.tokens, **mine).rows) == {1}
    assert source.cursors(stand.feed, "export")[0].lease_holder is None
    again = source.acquire_leases(*export, [0, 1], **mine)
    assert all(again.tokens[shard] > first.tokens[shard] for shard in (0, 1))
    assert not source.acquire_leases(*export, (), tokens=first.tokens, **mine).rows


def test_purging_leaves_what_a_consumer_needs(bench: Bench) -> None:
    """From its begin in shards that it has no row for; dropping it frees that, and all that it left."""
    for shard in (0, 1):
        bench.write(3, shard=shard)
    stand = Stand(bench, {shard: bench.events(shard) for shard in (0, 1)})
    bench.seal(bench.after_now())
    begin = stand.ulid(0)
    bench.source.create_consumer(stand.spec, begin=begin, starts={1: stand.ulid(1, 1)}, by="test")
    now = bench.source.now()
    assert {purged.shard: purged.upto for purged in bench.source.purge(bench.feed, now)} == {
        0: begin,
        1: stand.ulid(1, 1),
    }
    row = stand.request(FIRST, 1).rows[1]
    stand.request(SECOND, 1)
    with stand.session() as session:
        failed = stand.attempt(2, 1, outcome=Outcome.FAILED, error="no")
        parked = Parked(stand.ulid(2, 1), 1, "no")
        stand.take(session, stand.step(row, 2, attempt=failed, parked=parked))
    bench.source.drop_consumer(ME, bench.feed)
    for _ in range(2):
        assert bench.source.consumers() == []
        assert bench.source.cursors(bench.feed) == []
        assert bench.source.leases() == []
        assert bench.source.dead_letters(is_open=False) == []
        assert bench.source.invocations(bench.feed, ME) == []
        bench.source.drop_consumer(ME, bench.feed)
    assert {purged.rows for purged in bench.source.purge(bench.feed, now)} == {2, 1}
    with pytest.raises((ConsumerNotFoundError, ShardNotFoundError)):
        bench.source.acquire_leases(
            ME, bench.feed, (), tokens={1: row.fencing_token}, holder=FIRST, seconds=60
        )
