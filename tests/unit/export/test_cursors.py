# SPDX-License-Identifier: Apache-2.0
"""Cursors: rows arbitrate, the Variable follows, a person's edit stops everything."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors import cursors
from airflow_changefeed.cursors import cursors as cursors_cursors
from airflow_changefeed.exceptions import (
    CursorEditedError,
    CursorFormatError,
    LeaseHeldError,
    ShardNotFoundError,
    UnsupportedVersionError,
)
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.export.consumers import (
    CONSUMER,
    EDITS,
    FEED,
    KEY,
    Crash,
    Crashing,
    SharedVariables,
    Warehouse,
    advance,
    end_of,
    hour,
    places,
)


def test_looking_at_what_is_current_writes_nothing(warehouse: Warehouse) -> None:
    """A consumer that never began leaves no trace, and a Variable that fits is left alone."""
    assert warehouse.resolve() == []
    assert warehouse.variables.values == {}
    warehouse.begin()
    warehouse.advance(0)
    writes = warehouse.variables.writes
    assert places(warehouse.resolve()) == {0: end_of(0), 1: end_of(0)}
    assert warehouse.variables.writes == writes


def test_a_variable_that_is_behind_is_published_again(warehouse: Warehouse) -> None:
    """
    One without a shard that began later, one that somebody deleted, and an intact one of an earlier version,
    which is what a crash before publishing leaves: the rows say what it is.
    """
    warehouse.begin((0,))
    warehouse.advance(0, shards=(0,))
    warehouse.begin()
    warehouse.resolve()
    assert set(warehouse.published.shards) == {0, 1}
    old = warehouse.variables.values[KEY]
    warehouse.variables.values.clear()
    warehouse.resolve()
    assert warehouse.variables.values[KEY] == old
    warehouse.advance(0, 1)
    warehouse.variables.values[KEY] = old
    assert places(warehouse.resolve()) == {0: end_of(1), 1: end_of(1)}
    warehouse.check_published()


def test_a_move_between_the_looks_at_variable_and_rows_is_no_edit(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Variable is read first: it may be older than the rows, and never ahead of them."""
    warehouse.begin()
    warehouse.advance(0)
    get = warehouse.variables.get

    def late(key: str) -> str | None:
        monkeypatch.undo()
        warehouse.advance(1)
        return get(key)

    monkeypatch.setattr(warehouse.variables, "get", late)
    assert places(warehouse.resolve()) == {0: end_of(1), 1: end_of(1)}


@pytest.mark.parametrize("name", EDITS)
def test_any_other_difference_stops_everything(warehouse: Warehouse, name: str) -> None:
    """Resolve and advance refuse an edit and name the remedies; neither rows nor Variable change."""
    warehouse.begin()
    warehouse.advance(0)
    change, redigest = EDITS[name]
    warehouse.edit(change, redigest=redigest)
    text, rows = warehouse.variables.values[KEY], warehouse.places
    # What is of a later state of the database is not to be adopted.
    remedy = r"Do not adopt.*publish" if name == "version ahead of the row" else r"publish.*cursor adopt"
    with pytest.raises(CursorEditedError, match=remedy):
        warehouse.resolve()
    with pytest.raises(CursorEditedError):
        warehouse.advance(1)
    assert warehouse.variables.values[KEY] == text
    assert warehouse.places == rows
    assert {row.lease_holder for row in warehouse.rows} == {None}


def test_a_variable_that_is_no_cursor_is_refused(warehouse: Warehouse) -> None:
    """Nonsense is named, and not overwritten; what a newer version wrote is refused as a whole."""
    warehouse.begin()
    warehouse.advance(0)
    warehouse.edit(lambda value: value.update(schema_version=3))
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        warehouse.resolve()
    for text in ("", "yesterday", "[]", "{}", '{"kind": "changefeed plan"}', "null"):
        warehouse.variables.values[KEY] = text
        with pytest.raises(CursorFormatError, match=CONSUMER):
            warehouse.resolve()
        assert warehouse.variables.values[KEY] == text


def test_lost_rows_stop_everything_and_name_rebuild(warehouse: Warehouse) -> None:
    """A Variable without rows (the database was made anew) is no beginning from nothing."""
    warehouse.begin()
    warehouse.advance(0)
    warehouse.source.drop_consumer(CONSUMER, FEED)
    with pytest.raises(CursorEditedError, match="rebuild"):
        warehouse.resolve()


# ---- advance


def test_the_cursor_goes_to_the_end_of_the_unbroken_run(warehouse: Warehouse) -> None:
    """
    Windows ahead of a gap wait for it, and the gap is named; the ack follows the cursor, so that a purge may.
    A window that is repeated keeps cursor and version.
    """
    warehouse.begin()
    rows = warehouse.advance(0, 2, 3)
    assert places(rows) == {0: end_of(0), 1: end_of(0)}
    assert {row.ack for row in rows} == {end_of(0)}
    assert rows[0].frontier.missing() == (hour(1).range,)
    rows = warehouse.advance(1)
    assert places(rows) == {0: end_of(3), 1: end_of(3)}
    before = [(row.frontier, row.resource_version) for row in rows]
    assert [(row.frontier, row.resource_version) for row in warehouse.advance(0)] == before
    warehouse.check_published()


def test_an_unknown_shard_is_refused(warehouse: Warehouse) -> None:
    """A shard without a row cannot move; the others do not either."""
    warehouse.begin((0,))
    with pytest.raises(ShardNotFoundError, match="begin"):
        warehouse.advance(0)
    assert warehouse.places == {0: hour(0).range.after}


def test_a_held_lease_is_waited_for_and_then_refused(warehouse: Warehouse) -> None:
    """While another holds a shard's lease nothing moves; the wait is bounded, the error transient."""
    warehouse.begin()
    tokens = warehouse.source.acquire_leases(
        CONSUMER, FEED, [1], holder="somebody", seconds=600, all_or_none=True
    ).tokens
    with pytest.raises(LeaseHeldError, match="somebody"):
        cursors.advance(
            warehouse.source,
            warehouse.variables,
            CONSUMER,
            FEED,
            {0: [hour(0).range], 1: [hour(0).range]},
            by="t",
            timeout=0.2,
        )
    assert {row.ulid for row in warehouse.rows} == {hour(0).range.after}
    warehouse.source.release_leases(CONSUMER, FEED, tokens, holder="somebody")
    assert places(warehouse.advance(0))[1] == end_of(0)


def test_a_crash_before_the_variable_is_repaired(warehouse: Warehouse) -> None:
    """The rows moved, the Variable did not: the next look publishes it, and the lease is free."""
    warehouse.begin()
    warehouse.advance(0)

    def crash() -> None:
        raise Crash

    warehouse.variables.before_set = crash
    with pytest.raises(Crash):
        warehouse.advance(1)
    assert warehouse.published.shards[0].ulid == end_of(0)
    warehouse.variables.before_set = lambda: None
    assert places(warehouse.resolve()) == {0: end_of(1), 1: end_of(1)}
    warehouse.check_published()


def test_a_crash_before_the_move_repeats_harmlessly(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead mover's lease runs out, and a retry comes to the same end."""
    monkeypatch.setattr(cursors_cursors, "LEASE_SECONDS", 0.3)
    warehouse.begin()
    with pytest.raises(Crash):
        advance(Crashing(warehouse.source.database.path), warehouse.variables, 0)
    assert {row.ulid for row in warehouse.rows} == {hour(0).range.after}
    assert places(warehouse.advance(0)) == {0: end_of(0), 1: end_of(0)}


def test_a_slower_publisher_writes_the_newer_rows_at_last(warehouse: Warehouse) -> None:
    """Another mover gets in between our read of the rows and our write of the Variable."""
    warehouse.begin()
    others = [1]

    def interrupt() -> None:
        if others:
            warehouse.advance(others.pop())

    warehouse.variables.before_set = interrupt
    warehouse.advance(0)
    assert warehouse.places == {0: end_of(1), 1: end_of(1)}
    warehouse.check_published()


def test_threads_finish_windows_in_any_order(warehouse: Warehouse, tmp_path: Path) -> None:
    """Windows that end in parallel leave the cursor at the end of all, and the Variable right."""
    warehouse.begin()
    shared = Warehouse(warehouse.source, SharedVariables(str(tmp_path / "airflow.db")))
    numbers = list(range(24))
    random.Random(5).shuffle(numbers)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(shared.advance, numbers))
    assert warehouse.places == {0: end_of(23), 1: end_of(23)}
    shared.check_published()


def test_moves_are_made_of_what_was_read_under_the_lease(warehouse: Warehouse) -> None:
    """Somebody without a lease changed the row in between: the move is decided anew, and nothing is lost."""

    class Racing(SqliteFeedSource):
        raced = False

        def move_cursors(self, consumer: str, feed: str, moves: Any, **more: Any) -> list[CursorRow]:
            if not Racing.raced:
                Racing.raced = True
                earlier = UlidRange(Ulid.MIN, hour(0).range.after)
                warehouse.source.begin_consumer(consumer, feed, {0: earlier.after}, by="racer")
            return super().move_cursors(consumer, feed, moves, **more)

    warehouse.begin()
    rows = advance(Racing(warehouse.source.database.path), warehouse.variables, 0)
    assert {row.shard: row.frontier.ahead for row in rows} == {0: (hour(0).range,), 1: ()}
