# SPDX-License-Identifier: Apache-2.0
"""Consumers of events that people change: by who saw the settings, and without a holder's leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    ConsumerNotFoundError,
    LeaseLostError,
    ShardNotFoundError,
    StaleVersionError,
)
from tests.integration.contract.bench import Bench
from tests.integration.contract.consumers import FIRST, ME, SECOND, Stand, refused, set_up_stand


@pytest.fixture
def stand(bench: Bench) -> Stand:
    """Give a consumer of events."""
    return set_up_stand(bench)


def _highest(stand: Stand) -> int:
    """Return the highest version of the consumer's cursors."""
    return max(row.resource_version for row in stand.source.cursors(stand.feed, ME))


def test_settings_of_a_consumer_are_changed_by_who_saw_them(stand: Stand) -> None:
    """Seed 004's stories: the second of two changes, and a drop of what was changed since, are refused."""
    source = stand.source
    # A database that was used keeps the versions of consumers of this name that were dropped.
    seen = source.consumer(ME, stand.feed).resource_version
    changed = source.change_consumer(replace(stand.spec, max_attempts=3), resource_version=seen, by="user-2")
    assert (changed.spec.max_attempts, changed.resource_version) == (3, seen + 1)
    again = source.change_consumer(changed.spec, resource_version=seen + 1, by="user-2")
    assert again == changed == source.consumer(ME, stand.feed)
    calls = [
        lambda: source.change_consumer(stand.spec, resource_version=seen, by="user-1"),
        lambda: source.drop_consumer(ME, stand.feed, resource_version=seen),
    ]
    for call in calls:
        with pytest.raises(StaleVersionError, match="nothing was changed") as caught:
            call()
        facts = caught.value.facts
        assert (facts["expected_version"], facts["present_version"]) == (seen, seen + 1)
        assert changed.spec.to_json() in facts["present"]
    with pytest.raises(StaleVersionError, match="restored"):
        source.change_consumer(stand.spec, resource_version=seen + 7, by="user-1")
    assert source.consumer(ME, stand.feed) == changed
    assert len(source.cursors(stand.feed, ME)) == 2
    source.drop_consumer(ME, stand.feed, resource_version=seen + 1)
    with pytest.raises(ConsumerNotFoundError):
        source.change_consumer(stand.spec, resource_version=seen + 1, by="user-1")


def test_a_holder_whose_lease_was_taken_away_writes_nothing(stand: Stand) -> None:
    """Only the grant that was seen is taken away, and only once; another process gets it at once."""
    source = stand.source
    row = stand.request(FIRST, 0).rows[0]
    with pytest.raises(StaleVersionError) as caught:
        source.revoke_lease(ME, stand.feed, 0, fencing_token=row.fencing_token + 1)
    assert FIRST in caught.value.message
    assert stand.row() == row
    source.revoke_lease(ME, stand.feed, 0, fencing_token=row.fencing_token)
    assert (stand.row().lease_holder, stand.row().lease_expires) == (None, None)
    with stand.session() as session:
        with refused(session, LeaseLostError):
            stand.do(session, 1)
            session.consume(stand.step(row, 0))
        assert stand.done() == set()
        with pytest.raises(StaleVersionError):
            source.revoke_lease(ME, stand.feed, 0, fencing_token=row.fencing_token)
        renewed = source.acquire_leases(
            ME, stand.feed, (), tokens={0: row.fencing_token}, holder=FIRST, seconds=60
        )
        assert not renewed.rows
        new = stand.request(SECOND, 0).rows[0]
        assert new.fencing_token > row.fencing_token
        with pytest.raises(StaleVersionError, match=SECOND):
            source.revoke_lease(ME, stand.feed, 0, fencing_token=row.fencing_token)
        assert stand.take(session, stand.step(new, 0)).ulid == stand.ulid(0)
    with pytest.raises(ShardNotFoundError):
        source.revoke_lease(ME, stand.feed, 5, fencing_token=1)


def test_no_version_comes_again_with_another_consumer_of_the_name(stand: Stand) -> None:
    """Whoever saw the one that was dropped is refused by the new one, and so is who moves its cursors."""
    source, seen = stand.source, _highest(stand)
    first = source.consumer(ME, stand.feed).resource_version
    created = source.change_consumer(replace(stand.spec, max_attempts=3), resource_version=first, by="user-2")
    source.drop_consumer(ME, stand.feed)
    starts = dict.fromkeys((0, 1), Ulid.MIN)
    source.create_consumer(stand.spec, begin=Ulid.MIN, starts={0: starts[0]}, by="user-2")
    stand.request(FIRST, 0, 1)
    assert source.consumer(ME, stand.feed).resource_version > created.resource_version
    assert min(row.resource_version for row in source.cursors(stand.feed, ME)) > seen
    for version in (seen, created.resource_version):
        with pytest.raises(StaleVersionError):
            source.drop_consumer(ME, stand.feed, resource_version=version)
        with pytest.raises(StaleVersionError):
            source.change_consumer(created.spec, resource_version=version, by="user-1")
    present = source.consumer(ME, stand.feed).resource_version
    source.drop_consumer(ME, stand.feed, resource_version=present)
    source.begin_consumer(ME, stand.feed, starts, by="export")
    assert {row.resource_version for row in source.cursors(stand.feed, ME)} == {present + 1}
    assert [one.resource_version for one in source.history(stand.feed, ME)] == [present + 1] * 2


def test_a_consumer_that_was_made_is_in_the_history(stand: Stand) -> None:
    """By whom, and where it began."""
    changes = stand.source.history(stand.feed, ME)
    rows = {row.shard: row for row in stand.source.cursors(stand.feed, ME)}
    assert {one.shard: (one.before, one.after, one.by) for one in changes} == {
        shard: (None, row.ulid, row.moved_by) for shard, row in rows.items()
    }
