# SPDX-License-Identifier: Apache-2.0
"""Promise 2, the seal."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    FutureTimeError,
    InvalidWindowError,
    LockTimeoutError,
    NotYetError,
)
from tests.integration.contract.bench import HOUR, PAST, Bench


def test_a_seal_orders_what_is_committed_and_says_where_it_ends(either: Bench) -> None:
    """Each shard's seal names the last event below its end."""
    either.write(2, shard=1, hint=PAST)
    either.write(1, shard=2, hint=PAST + HOUR * 5)
    seals = either.seal(PAST + HOUR)
    assert set(seals) == {1, 2}
    assert seals[1].shard == 1
    assert all(seal.until >= PAST + HOUR for seal in seals.values())
    assert seals[1].head == either.events(1)[-1].ulid
    assert seals[2].head is None or seals[2].until > PAST + HOUR
    assert len(either.fed(1)) == 2


def test_a_late_hint_lands_above_the_seal(either: Bench) -> None:
    """No event gets a ULID below it any more, whatever its hint says."""
    either.write(2, hint=PAST)
    until = either.source.now()
    either.seal(until)
    below = either.fed(upto=Ulid.floor(until).previous())
    either.write(3, hint=PAST)
    either.write(1, hint=until - timedelta(milliseconds=1))
    assert [event.ulid >= Ulid.floor(until) for event in either.events()] == [False] * 2 + [True] * 4
    assert either.fed(upto=Ulid.floor(until).previous()) == below


def test_an_idle_shard_is_sealed_and_its_seal_is_its_heartbeat(either: Bench) -> None:
    """Without new events the high-water time still rises, so that an idle hour is known to be complete."""
    either.write(1, hint=PAST)
    either.events()
    for _ in range(2):
        until = either.source.now()
        seals = either.seal(until)
        assert seals[0].until >= until
        status = either.status()
        assert status.sealed_until is not None
        assert status.sealed_until >= until
        assert status.high_water >= until


def test_a_shard_first_used_after_a_seal_starts_above_it(either: Bench) -> None:
    """R7: the seal of a feed holds for shards that do not exist yet, even before the feed's first event."""
    until = either.source.now()
    assert either.seal(until) == {}
    either.write(1, shard=4, hint=PAST)
    assert either.events(4)[0].ulid >= Ulid.floor(until)
    later = either.source.now()
    either.seal(later)
    either.write(1, shard=9, hint=PAST)
    assert either.events(9)[0].ulid >= Ulid.floor(later)


def test_sealing_twice_and_sealing_the_past_are_harmless(either: Bench) -> None:
    """A seal never goes back, and says at least what was asked for."""
    either.write(1, hint=PAST)
    until = either.source.now()
    first = either.seal(until)
    assert either.seal(until) == first
    earlier = either.seal(PAST)
    assert earlier[0].until >= PAST
    either.write(1, hint=PAST)
    assert either.events()[-1].ulid >= Ulid.floor(until)


def test_a_seal_drains_even_when_its_time_was_sealed_before(bench: Bench) -> None:
    """Rows that came since are ordered, above the seal."""
    until = bench.source.now()
    bench.seal(until)
    keys = bench.write(2)
    bench.seal(until)
    assert not bench.status().has_outbox
    assert len(bench.fed()) == len(keys)


@pytest.mark.parametrize(
    ("ahead", "error"),
    [
        (timedelta(seconds=40), NotYetError),
        (timedelta(seconds=70), FutureTimeError),
        (timedelta(days=400), FutureTimeError),
    ],
)
def test_the_future_is_not_sealed(either: Bench, ahead: timedelta, error: type[Exception]) -> None:
    """Near is transient, far is terminal, and nothing changes."""
    either.write(1, hint=PAST)
    either.events()
    before = either.status()
    with pytest.raises(error):
        either.seal(either.source.now() + ahead)
    assert either.status() == before
    either.write(1, hint=PAST)
    assert either.events()[-1].ulid.time == PAST


@pytest.mark.parametrize("until", [datetime(2013, 1, 1), PAST + timedelta(microseconds=1)])
def test_a_seals_end_is_an_exact_time(either: Bench, until: datetime) -> None:
    """With a zone and in whole milliseconds."""
    with pytest.raises(InvalidWindowError):
        either.seal(until)


def test_an_outbox_transaction_that_is_open_lands_in_a_later_window(bench: Bench) -> None:
    """Where writers are parallel the seal does not wait for it; else it times out until it has ended."""
    bench.write(1, hint=PAST)
    until = bench.source.now()
    source = bench.impatient()
    with bench.transaction() as writer:
        late = bench.insert(writer, 2, hint=PAST)
        if source.capabilities.parallel_writers:
            assert source.seal(bench.feed, until)[0].until >= until
        else:
            with pytest.raises(LockTimeoutError) as caught:
                source.seal(bench.feed, until)
            assert caught.value.transient
        writer.commit()
    if source.capabilities.parallel_writers:
        assert bench.keys(after=Ulid.floor(until).previous()) == late
    bench.seal(until)
    below = bench.fed(upto=Ulid.floor(until).previous())
    bench.write(1, hint=PAST)
    bench.events()
    assert bench.fed(upto=Ulid.floor(until).previous()) == below


def test_a_writer_that_rolled_back_holds_nothing_up(either: Bench) -> None:
    """The seal works at once, and nothing of it appears."""
    keys = either.write(1)
    with either.transaction() as writer:
        either.insert(writer, 2)
        writer.rollback()
        assert either.impatient().seal(either.feed, either.after_now())[0].head is not None
    assert either.keys() == keys


def test_a_hint_ahead_of_the_seal_stays_out_of_the_window(either: Bench) -> None:
    """An event of the tolerated future is in the window of its time, not in the sealed one."""
    hint = either.source.now() + HOUR / 2
    either.write(1, hint=hint)
    until = either.source.now()
    seals = either.seal(until)
    assert seals[0].head is None or seals[0].until > hint
    assert either.fed(upto=Ulid.floor(until).previous()) == []
    assert either.events()[0].ulid.time == hint
