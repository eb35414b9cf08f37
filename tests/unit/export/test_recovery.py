# SPDX-License-Identifier: Apache-2.0
"""What a person decides: publish, adopt or rebuild."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_changefeed.core.cursor import Began, Frontier
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.plan import Manifest
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.cursors import cursors, recovery
from airflow_changefeed.exceptions import (
    CursorBeyondFeedError,
    CursorError,
    CursorFormatError,
    PurgedError,
    StaleVersionError,
)
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.export.consumers import (
    CONSUMER,
    EDITS,
    FEED,
    HOURS,
    START,
    Crash,
    Crashing,
    Variables,
    add_shard,
    advance,
    assert_published,
    begin,
    edit,
    end_of,
    hour,
    other_consumer,
    places,
)

# ---- adopt and publish


@pytest.mark.parametrize("name", EDITS)
def test_publish_overwrites_any_edit(source: SqliteFeedSource, variables: Variables, name: str) -> None:
    """The database wins when a person says so."""
    begin(source)
    advance(source, variables, 0)
    change, redigest = EDITS[name]
    edit(variables, change, redigest=redigest)
    recovery.publish(source, variables, CONSUMER, FEED)
    assert_published(source, variables)
    cursors.resolve(source, variables, CONSUMER, FEED)


def test_publish_without_rows_is_refused(source: SqliteFeedSource, variables: Variables) -> None:
    """There is nothing to publish, and the remedies are named."""
    with pytest.raises(CursorError, match="rebuild"):
        recovery.publish(source, variables, CONSUMER, FEED)


@pytest.mark.parametrize("number", [0, 3])
def test_adopt_takes_over_a_place_in_both_directions(
    source: SqliteFeedSource, variables: Variables, number: int
) -> None:
    """Backwards the cursor forgets what was done beyond; forwards it absorbs it."""
    begin(source)
    advance(source, variables, 0, 1, 3, 4)
    edit(variables, lambda value: value["shards"]["1"].update(ulid=str(end_of(number))))
    rows = recovery.adopt(source, variables, CONSUMER, FEED, by="me")
    assert places(rows) == {0: end_of(1), 1: end_of(0) if number == 0 else end_of(4)}
    assert {row.moved_by for row in rows} == {"test", "me"}
    assert_published(source, variables)
    cursors.resolve(source, variables, CONSUMER, FEED)


def test_adopt_makes_lost_rows_from_the_variable(source: SqliteFeedSource, variables: Variables) -> None:
    """The rows are gone and the Variable is right: the consumer goes on from there."""
    begin(source)
    advance(source, variables, 0)
    source.drop_consumer(CONSUMER, FEED)
    rows = recovery.adopt(source, variables, CONSUMER, FEED, by="me")
    assert places(rows) == {0: end_of(0), 1: end_of(0)}
    assert {row.began for row in rows} == {Began.CHOSEN}
    assert places(advance(source, variables, 1)) == {0: end_of(1), 1: end_of(1)}


def test_adopt_chooses_a_beginning_that_is_earlier(source: SqliteFeedSource, variables: Variables) -> None:
    """The person has named the place; where the cursor stays above its beginning, nothing was chosen."""
    source.begin_consumer(CONSUMER, FEED, dict.fromkeys((0, 1), end_of(2)), by="test")
    advance(source, variables, 3, 4)
    edit(
        variables,
        lambda value: [
            value["shards"][shard].update(ulid=str(end_of(number))) for shard, number in (("0", 0), ("1", 3))
        ],
    )
    rows = recovery.adopt(source, variables, CONSUMER, FEED, by="me")
    assert {row.shard: row.began for row in rows} == {0: Began.CHOSEN, 1: Began.IMPLIED}


def test_adopt_refuses_what_lies_beyond_the_clock(source: SqliteFeedSource, variables: Variables) -> None:
    """A place that the feed has not reached would skip what comes: nothing changes, in no shard."""
    begin(source)
    advance(source, variables, 0)
    far = Ulid.floor(datetime(2099, 1, 1, tzinfo=timezone.utc))

    def change(value: dict[str, Any]) -> None:
        value["shards"]["0"]["ulid"] = str(end_of(5))
        value["shards"]["1"]["ulid"] = str(far)

    edit(variables, change)
    with pytest.raises(CursorBeyondFeedError, match="shard 1"):
        recovery.adopt(source, variables, CONSUMER, FEED, by="me")
    assert places(source.cursors(FEED, CONSUMER)) == {0: end_of(0), 1: end_of(0)}


def test_adopt_refuses_what_was_purged(source: SqliteFeedSource, variables: Variables) -> None:
    """A place below which events are gone would miss them silently."""
    begin(source)
    advance(source, variables, *range(4))
    source.purge(FEED, START + timedelta(hours=3))
    edit(variables, lambda value: value["shards"]["1"].update(ulid=str(end_of(0))))
    with pytest.raises(PurgedError, match="purged"):
        recovery.adopt(source, variables, CONSUMER, FEED, by="me")
    assert places(source.cursors(FEED, CONSUMER)) == {0: end_of(3), 1: end_of(3)}


def test_adopt_takes_the_place_up_to_which_all_was_purged(
    source: SqliteFeedSource, variables: Variables
) -> None:
    """Every event after it is there."""
    begin(source)
    advance(source, variables, *range(4))
    source.purge(FEED, START + timedelta(hours=1))
    edit(variables, lambda value: value["shards"]["1"].update(ulid=str(end_of(0))))
    assert places(recovery.adopt(source, variables, CONSUMER, FEED, by="me")) == {0: end_of(3), 1: end_of(0)}


def test_adopt_moves_nothing_that_has_changed_since_it_was_seen(
    source: SqliteFeedSource, variables: Variables
) -> None:
    """The person has decided about another place."""
    begin(source)
    advance(source, variables, 0)
    seen = {row.shard: row.resource_version for row in source.cursors(FEED, CONSUMER)}
    advance(source, variables, 1)
    edit(variables, lambda value: value["shards"]["1"].update(ulid=str(end_of(0))))
    with pytest.raises(StaleVersionError):
        recovery.adopt(source, variables, CONSUMER, FEED, by="me", versions=seen)
    assert places(source.cursors(FEED, CONSUMER)) == {0: end_of(1), 1: end_of(1)}


def test_adopt_refuses_a_shard_that_the_feed_does_not_have(
    source: SqliteFeedSource, variables: Variables
) -> None:
    """A shard written into the Variable by mistake does not become a row."""
    begin(source)
    advance(source, variables, 0)
    edit(variables, add_shard)
    with pytest.raises(CursorBeyondFeedError, match="no such shard"):
        recovery.adopt(source, variables, CONSUMER, FEED, by="me")
    assert set(places(source.cursors(FEED, CONSUMER))) == {0, 1}


def test_adopt_needs_a_variable_of_this_consumer(source: SqliteFeedSource, variables: Variables) -> None:
    """Neither a missing Variable nor another consumer's can be adopted."""
    begin(source)
    with pytest.raises(CursorFormatError, match="does not exist"):
        recovery.adopt(source, variables, CONSUMER, FEED, by="me")
    advance(source, variables, 0)
    edit(variables, other_consumer)
    with pytest.raises(CursorFormatError, match="lake"):
        recovery.adopt(source, variables, CONSUMER, FEED, by="me")


# ---- rebuild


class Manifests(list[Manifest]):
    """A list of manifests, as a store gives it."""

    def list(self) -> Manifests:
        return self


def manifest(shard: Shard, number: int, consumer: str = CONSUMER) -> Manifest:
    """Return the manifest of an empty hour."""
    unit = ExportUnit.of_window(shard, hour(number))
    return Manifest(FEED, unit, 1, consumer, "run", START, (), hour(number).end, 0, "")


def test_rebuild_makes_rows_and_variable_from_the_manifests(
    source: SqliteFeedSource, variables: Variables
) -> None:
    """All is lost but the output: the consumer stands where its unbroken run of units ends."""
    store = Manifests(
        manifest(shard, number) for shard in (0, 1) for number in (4, 0, 1, 2) if (shard, number) != (1, 1)
    )
    store.append(manifest(1, 1, "lake"))
    rows = recovery.rebuild(source, variables, CONSUMER, FEED, store, by="me")
    assert places(rows) == {0: end_of(2), 1: end_of(0)}
    assert rows[0].frontier == Frontier(hour(0).range.after, end_of(2), (hour(4).range,))
    assert {row.began for row in rows} == {Began.IMPLIED}
    assert_published(source, variables)


def test_rebuild_keeps_rows_that_are_there(source: SqliteFeedSource, variables: Variables) -> None:
    """Only lost rows are made again; a cursor that a person moved back stays."""
    begin(source, (0,))
    advance(source, variables, 0, shards=(0,))
    rows = recovery.rebuild(
        source,
        variables,
        CONSUMER,
        FEED,
        Manifests(manifest(shard, number) for shard in (0, 1) for number in (0, 1)),
        by="me",
    )
    assert places(rows) == {0: end_of(0), 1: end_of(1)}


def test_rebuild_goes_on_after_a_crash(source: SqliteFeedSource, variables: Variables) -> None:
    """Rows that were begun, but not moved, count as lost."""
    store = Manifests([manifest(0, 0), manifest(0, 1)])
    with pytest.raises(Crash):
        recovery.rebuild(Crashing(source.database.path), variables, CONSUMER, FEED, store, by="me", timeout=1)
    for row in source.cursors(FEED, CONSUMER):
        source.revoke_lease(CONSUMER, FEED, row.shard, fencing_token=row.fencing_token)
    assert places(recovery.rebuild(source, variables, CONSUMER, FEED, store, by="me")) == {0: end_of(1)}


def test_rebuild_without_units_is_refused(source: SqliteFeedSource, variables: Variables) -> None:
    """An empty or foreign output does not become a beginning."""
    with pytest.raises(CursorError, match="no unit"):
        recovery.rebuild(source, variables, CONSUMER, FEED, Manifests([manifest(0, 0, "lake")]), by="me")
    assert source.cursors(FEED, CONSUMER) == []


def test_rebuild_refuses_another_databases_export(source: SqliteFeedSource, variables: Variables) -> None:
    """Units beyond the shard's high-water time cannot be of this feed."""
    store = Manifests([manifest(0, HOURS + 5)])
    with pytest.raises(CursorBeyondFeedError):
        recovery.rebuild(source, variables, CONSUMER, FEED, store, by="me")
