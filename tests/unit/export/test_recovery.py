# SPDX-License-Identifier: Apache-2.0
"""What a person decides: publish, adopt or rebuild."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_changefeed.core.cursor import Began, Frontier
from airflow_changefeed.core.export_plan import Manifest
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.cursors import recovery
from airflow_changefeed.exceptions import (
    CursorBeyondFeedError,
    CursorError,
    CursorFormatError,
    PurgedError,
    StaleVersionError,
)
from tests.unit.export.consumers import (
    CONSUMER,
    FEED,
    HOURS,
    START,
    Crash,
    Crashing,
    Warehouse,
    add_shard,
    end_of,
    hour,
    other_consumer,
    places,
)

# ---- adopt and publish


def test_publish_overwrites_an_edit(warehouse: Warehouse) -> None:
    """The database wins when a person says so; where it has no rows, the remedies are named."""
    with pytest.raises(CursorError, match="rebuild"):
        warehouse.publish()
    warehouse.begin()
    warehouse.advance(0)
    warehouse.edit(add_shard, redigest=True)
    warehouse.publish()
    warehouse.check_published()
    warehouse.resolve()


@pytest.mark.parametrize("number", [0, 3])
def test_adopt_takes_over_a_place_in_both_directions(warehouse: Warehouse, number: int) -> None:
    """Backwards the cursor forgets what was done beyond; forwards it absorbs it."""
    warehouse.begin()
    warehouse.advance(0, 1, 3, 4)
    warehouse.edit(lambda value: value["shards"]["1"].update(ulid=str(end_of(number))))
    rows = warehouse.adopt()
    assert places(rows) == {0: end_of(1), 1: end_of(0) if number == 0 else end_of(4)}
    assert {row.moved_by for row in rows} == {"test", "me"}
    warehouse.check_published()
    warehouse.resolve()


def test_adopt_makes_lost_rows_from_the_variable(warehouse: Warehouse) -> None:
    """The rows are gone and the Variable is right: the consumer goes on from there."""
    warehouse.begin()
    warehouse.advance(0)
    warehouse.source.drop_consumer(CONSUMER, FEED)
    rows = warehouse.adopt()
    assert places(rows) == {0: end_of(0), 1: end_of(0)}
    assert {row.began for row in rows} == {Began.CHOSEN}
    assert places(warehouse.advance(1)) == {0: end_of(1), 1: end_of(1)}


def test_adopt_chooses_a_beginning_that_is_earlier(warehouse: Warehouse) -> None:
    """The person has named the place; where the cursor stays above its beginning, nothing was chosen."""
    warehouse.source.begin_consumer(CONSUMER, FEED, dict.fromkeys((0, 1), end_of(2)), by="test")
    warehouse.advance(3, 4)
    warehouse.edit(
        lambda value: [
            value["shards"][shard].update(ulid=str(end_of(number))) for shard, number in (("0", 0), ("1", 3))
        ],
    )
    rows = warehouse.adopt()
    assert {row.shard: row.began for row in rows} == {0: Began.CHOSEN, 1: Began.IMPLIED}


def test_adopt_refuses_what_was_purged(warehouse: Warehouse) -> None:
    """A place below which events are gone would miss them silently."""
    warehouse.begin()
    warehouse.advance(*range(4))
    warehouse.source.purge(FEED, START + timedelta(hours=3))
    warehouse.edit(lambda value: value["shards"]["1"].update(ulid=str(end_of(0))))
    with pytest.raises(PurgedError, match="purged"):
        warehouse.adopt()
    assert warehouse.places == {0: end_of(3), 1: end_of(3)}


def test_adopt_takes_the_place_up_to_which_all_was_purged(warehouse: Warehouse) -> None:
    """Every event after it is there."""
    warehouse.begin()
    warehouse.advance(*range(4))
    warehouse.source.purge(FEED, START + timedelta(hours=1))
    warehouse.edit(lambda value: value["shards"]["1"].update(ulid=str(end_of(0))))
    assert places(warehouse.adopt()) == {0: end_of(3), 1: end_of(0)}


def test_adopt_moves_nothing_that_has_changed_since_it_was_seen(warehouse: Warehouse) -> None:
    """The person has decided about another place."""
    warehouse.begin()
    warehouse.advance(0)
    seen = {row.shard: row.resource_version for row in warehouse.rows}
    warehouse.advance(1)
    warehouse.edit(lambda value: value["shards"]["1"].update(ulid=str(end_of(0))))
    with pytest.raises(StaleVersionError):
        warehouse.adopt(versions=seen)
    assert warehouse.places == {0: end_of(1), 1: end_of(1)}


def test_adopt_refuses_a_shard_that_the_feed_does_not_have(warehouse: Warehouse) -> None:
    """A shard written into the Variable by mistake does not become a row."""
    warehouse.begin()
    warehouse.advance(0)
    warehouse.edit(add_shard)
    with pytest.raises(CursorBeyondFeedError, match="no such shard"):
        warehouse.adopt()
    assert set(warehouse.places) == {0, 1}


def test_adopt_needs_a_variable_of_this_consumer(warehouse: Warehouse) -> None:
    """Neither a missing Variable nor another consumer's can be adopted."""
    warehouse.begin()
    with pytest.raises(CursorFormatError, match="does not exist"):
        warehouse.adopt()
    warehouse.advance(0)
    warehouse.edit(other_consumer)
    with pytest.raises(CursorFormatError, match="lake"):
        warehouse.adopt()


# ---- rebuild


class Manifests(list[Manifest]):
    """A list of manifests, as a store gives it."""

    def list(self) -> Manifests:
        return self


def manifest(shard: Shard, number: int, consumer: str = CONSUMER) -> Manifest:
    """Return the manifest of an empty hour."""
    unit = ExportUnit.of_window(shard, hour(number))
    return Manifest(FEED, unit, 1, consumer, "run", START, (), hour(number).end, 0, "")


def test_rebuild_makes_rows_and_variable_from_the_manifests(warehouse: Warehouse) -> None:
    """All is lost but the output: the consumer stands where its unbroken run of units ends."""
    store = Manifests(
        manifest(shard, number) for shard in (0, 1) for number in (4, 0, 1, 2) if (shard, number) != (1, 1)
    )
    store.append(manifest(1, 1, "lake"))
    rows = warehouse.rebuild(store)
    assert places(rows) == {0: end_of(2), 1: end_of(0)}
    assert rows[0].frontier == Frontier(hour(0).range.after, end_of(2), (hour(4).range,))
    assert {row.began for row in rows} == {Began.IMPLIED}
    warehouse.check_published()


def test_rebuild_keeps_rows_that_are_there(warehouse: Warehouse) -> None:
    """Only lost rows are made again; a cursor that a person moved back stays."""
    warehouse.begin((0,))
    warehouse.advance(0, shards=(0,))
    rows = warehouse.rebuild(Manifests(manifest(shard, number) for shard in (0, 1) for number in (0, 1)))
    assert places(rows) == {0: end_of(0), 1: end_of(1)}


def test_rebuild_goes_on_after_a_crash(warehouse: Warehouse) -> None:
    """Rows that were begun, but not moved, count as lost."""
    store = Manifests([manifest(0, 0), manifest(0, 1)])
    with pytest.raises(Crash):
        recovery.rebuild(
            Crashing(warehouse.source.database.path),
            warehouse.variables,
            CONSUMER,
            FEED,
            store,
            by="me",
            timeout=1,
        )
    for row in warehouse.rows:
        warehouse.source.revoke_lease(CONSUMER, FEED, row.shard, fencing_token=row.fencing_token)
    assert places(warehouse.rebuild(store)) == {0: end_of(1)}


def test_rebuild_without_units_is_refused(warehouse: Warehouse) -> None:
    """An empty or foreign output is no beginning; units beyond the high-water time cannot be of this feed."""
    for error, units in (
        (CursorError, [manifest(0, 0, "lake")]),
        (CursorBeyondFeedError, [manifest(0, HOURS + 5)]),
    ):
        with pytest.raises(error, match=r"no unit|high-water"):
            warehouse.rebuild(Manifests(units))
