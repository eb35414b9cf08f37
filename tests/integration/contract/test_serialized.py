# SPDX-License-Identifier: Apache-2.0
"""Serialized writers: the ULID is known before the write, and so before the commit."""

from __future__ import annotations

from itertools import pairwise

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import LockTimeoutError
from tests.integration.contract.bench import PAST, Bench


def test_the_ulid_known_before_commit_is_the_events_own(serialized: Bench) -> None:
    """The feed gives each event the ULID that its writer was given."""
    keys = serialized.write(3) + serialized.write(2)
    assert {event.key: event.ulid for event in serialized.events()} == serialized.given
    assert set(serialized.given) == set(keys)


def test_many_ulids_of_one_transaction_are_ascending_and_of_one_time(serialized: Bench) -> None:
    """As many as wanted, in the order in which they were asked for."""
    keys = serialized.write(2_000, hint=PAST)
    ulids = [serialized.given[key] for key in keys]
    assert all(one < two for one, two in pairwise(ulids))
    assert {ulid.time for ulid in ulids} == {PAST}


def test_each_transaction_is_above_the_one_before(serialized: Bench) -> None:
    """Also when the one before rolled back: its ULIDs may be given again, but to one event only."""
    first = serialized.write(2, hint=PAST)
    with serialized.transaction() as writer:
        serialized.insert(writer, 2, hint=PAST)
        writer.rollback()
    second = serialized.write(2, hint=PAST)
    ulids = [event.ulid for event in serialized.events()]
    assert [event.key for event in serialized.events()] == first + second
    assert all(one < two for one, two in pairwise(ulids))


def test_shards_of_one_transaction_have_ulids_of_their_own(serialized: Bench) -> None:
    """Locking a second shard does not touch the first one's numbers (R13)."""
    with serialized.transaction() as writer:
        ones = serialized.insert(writer, shard=1)
        twos = serialized.insert(writer, shard=2)
        ones += serialized.insert(writer, shard=1)
        writer.commit()
    assert (serialized.keys(1), serialized.keys(2)) == (ones, twos)
    assert {
        event.key: event.ulid for event in serialized.events(1) + serialized.events(2)
    } == serialized.given


def test_a_seal_waits_for_an_open_serialized_writer_or_times_out(serialized: Bench) -> None:
    """R8: the writer has its ULIDs already, so it can never land in a later window."""
    serialized.write(1, hint=PAST)
    with serialized.transaction() as writer:
        keys = serialized.insert(writer, 2, hint=PAST)
        until = serialized.source.now()
        with pytest.raises(LockTimeoutError) as caught:
            serialized.impatient().seal(serialized.feed, until)
        assert caught.value.transient
        writer.commit()
    serialized.seal(until)
    below = serialized.fed(upto=Ulid.floor(until).previous())
    assert {str(serialized.given[key]) for key in keys} <= set(below)


def test_a_second_writer_of_the_shard_waits_or_times_out(serialized: Bench) -> None:
    """Writers of one shard are one after the other."""
    with serialized.transaction() as writer:
        keys = serialized.insert(writer)
        with pytest.raises(Exception, match=r"(?i)lock|busy|timeout"), serialized.transaction(0.2) as second:
            serialized.insert(second)
        writer.commit()
    keys += serialized.write(1)
    assert serialized.keys()[0] == keys[0]
    assert serialized.keys()[-1] == keys[-1]


def test_shards_are_known_once_they_were_written(serialized: Bench) -> None:
    """A rolled back first use is none."""
    with serialized.transaction() as writer:
        serialized.insert(writer, shard=3)
        writer.rollback()
    assert serialized.source.shards(serialized.feed) == []
    serialized.write(1, shard=3)
    assert [status.shard for status in serialized.source.shards(serialized.feed)] == [3]
