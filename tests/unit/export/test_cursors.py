# SPDX-License-Identifier: Apache-2.0
"""Cursors: rows arbitrate, the Variable follows, a person's edit stops everything."""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors import cursors
from airflow_changefeed.cursors import cursors as cursors_cursors
from airflow_changefeed.exceptions import (
    CursorBeyondFeedError,
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
    HOURS,
    KEY,
    Crash,
    Crashing,
    SharedVariables,
    Variables,
    advance,
    assert_published,
    begin,
    edit,
    end_of,
    hour,
    places,
    published,
    set_ulid,
)


def test_a_new_consumer_has_no_cursors_and_no_variable(
    source: SqliteFeedSource, variables: Variables
) -> None:
    """Looking does not write: a consumer that never began leaves no trace."""
    assert cursors.resolve(source, variables, CONSUMER, FEED) == []
    assert variables.values == {}


def test_a_current_variable_is_left_alone(source: SqliteFeedSource, variables: Variables) -> None:
    """Resolving twice writes nothing."""
    begin(source)
    advance(source, variables, 0)
    writes = variables.writes
    assert places(cursors.resolve(source, variables, CONSUMER, FEED)) == {0: end_of(0), 1: end_of(0)}
    assert variables.writes == writes


def test_a_missing_variable_is_published_again(source: SqliteFeedSource, variables: Variables) -> None:
    """Somebody deleted the Variable: the rows say what it was."""
    begin(source)
    advance(source, variables, 0)
    variables.values.clear()
    cursors.resolve(source, variables, CONSUMER, FEED)
    assert_published(source, variables)


def test_an_older_variable_is_published_again(source: SqliteFeedSource, variables: Variables) -> None:
    """An intact Variable of an earlier version is what a crash before publishing leaves."""
    begin(source)
    advance(source, variables, 0)
    old = variables.values[KEY]
    advance(source, variables, 1)
    variables.values[KEY] = old
    assert places(cursors.resolve(source, variables, CONSUMER, FEED))[0] == end_of(1)
    assert_published(source, variables)


def test_a_move_between_the_looks_at_variable_and_rows_is_no_edit(
    source: SqliteFeedSource, variables: Variables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Variable is read first: it may be older than the rows, and never ahead of them."""
    begin(source)
    advance(source, variables, 0)
    get = variables.get

    def late(key: str) -> str | None:
        monkeypatch.undo()
        advance(source, variables, 1)
        return get(key)

    monkeypatch.setattr(variables, "get", late)
    assert places(cursors.resolve(source, variables, CONSUMER, FEED)) == {0: end_of(1), 1: end_of(1)}


def test_a_variable_without_a_new_shard_is_published_again(
    source: SqliteFeedSource, variables: Variables
) -> None:
    """A shard that began after the Variable was written is no edit."""
    begin(source, (0,))
    advance(source, variables, 0, shards=(0,))
    begin(source)
    cursors.resolve(source, variables, CONSUMER, FEED)
    assert set(published(variables).shards) == {0, 1}


@pytest.mark.parametrize("name", EDITS)
def test_any_other_difference_stops_everything(
    source: SqliteFeedSource, variables: Variables, name: str
) -> None:
    """Resolve and advance refuse an edit and name the remedies; neither rows nor Variable change."""
    begin(source)
    advance(source, variables, 0)
    change, redigest = EDITS[name]
    edit(variables, change, redigest=redigest)
    text, rows = variables.values[KEY], places(source.cursors(FEED, CONSUMER))
    # What is of a later state of the database is not to be adopted.
    remedy = r"Do not adopt.*publish" if name == "version ahead of the row" else r"publish.*cursor adopt"
    with pytest.raises(CursorEditedError, match=remedy):
        cursors.resolve(source, variables, CONSUMER, FEED)
    with pytest.raises(CursorEditedError):
        advance(source, variables, 1)
    assert variables.values[KEY] == text
    assert places(source.cursors(FEED, CONSUMER)) == rows
    assert {row.lease_holder for row in source.cursors(FEED, CONSUMER)} == {None}


def test_an_edit_is_told_with_both_values(source: SqliteFeedSource, variables: Variables) -> None:
    """Whoever reads the error sees what the Variable says and what the database says."""
    begin(source)
    advance(source, variables, 0)
    edit(variables, set_ulid)
    with pytest.raises(CursorEditedError, match=f"{end_of(5)}.*the database has {end_of(0)}"):
        cursors.resolve(source, variables, CONSUMER, FEED)


@pytest.mark.parametrize("text", ["", "yesterday", "[]", "{}", '{"kind": "changefeed plan"}', "null"])
def test_a_variable_that_is_no_cursor_is_refused(
    source: SqliteFeedSource, variables: Variables, text: str
) -> None:
    """Nonsense is named, and not overwritten."""
    begin(source)
    variables.values[KEY] = text
    with pytest.raises(CursorFormatError, match=CONSUMER):
        cursors.resolve(source, variables, CONSUMER, FEED)
    assert variables.values[KEY] == text


def test_a_variable_of_a_newer_version_is_refused(source: SqliteFeedSource, variables: Variables) -> None:
    """What a newer installation wrote is not understood half, but refused whole."""
    begin(source)
    advance(source, variables, 0)
    edit(variables, lambda value: value.update(schema_version=3))
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        cursors.resolve(source, variables, CONSUMER, FEED)


def test_lost_rows_stop_everything_and_name_rebuild(source: SqliteFeedSource, variables: Variables) -> None:
    """A Variable without rows (the database was made anew) is no beginning from nothing."""
    begin(source)
    advance(source, variables, 0)
    source.drop_consumer(CONSUMER, FEED)
    with pytest.raises(CursorEditedError, match="rebuild"):
        cursors.resolve(source, variables, CONSUMER, FEED)


# ---- advance


def test_the_cursor_goes_to_the_end_of_the_unbroken_run(
    source: SqliteFeedSource, variables: Variables
) -> None:
    """Windows ahead of a gap wait for it, and the gap is named."""
    begin(source)
    rows = advance(source, variables, 0, 2, 3)
    assert places(rows) == {0: end_of(0), 1: end_of(0)}
    assert rows[0].frontier.missing() == (hour(1).range,)
    assert places(advance(source, variables, 1)) == {0: end_of(3), 1: end_of(3)}
    assert_published(source, variables)


def test_a_repeated_window_changes_nothing(source: SqliteFeedSource, variables: Variables) -> None:
    """A retry or a backfill of what is done keeps cursor and version, and never moves back."""
    begin(source)
    before = [(row.frontier, row.resource_version) for row in advance(source, variables, 0, 1)]
    assert [(row.frontier, row.resource_version) for row in advance(source, variables, 0)] == before


def test_what_is_consumed_is_acknowledged(source: SqliteFeedSource, variables: Variables) -> None:
    """The ack follows the cursor, so that a purge may follow it too."""
    begin(source)
    assert {row.ack for row in advance(source, variables, 0, 2)} == {end_of(0)}


def test_an_unknown_shard_is_refused(source: SqliteFeedSource, variables: Variables) -> None:
    """A shard without a row cannot move; the others do not either."""
    begin(source, (0,))
    with pytest.raises(ShardNotFoundError, match="begin"):
        advance(source, variables, 0)
    assert places(source.cursors(FEED, CONSUMER)) == {0: hour(0).range.after}


def test_a_held_lease_is_waited_for_and_then_refused(source: SqliteFeedSource, variables: Variables) -> None:
    """While another holds a shard's lease nothing moves; the wait is bounded, the error transient."""
    begin(source)
    tokens = source.acquire_leases(
        CONSUMER, FEED, [1], holder="somebody", seconds=600, all_or_none=True
    ).tokens
    with pytest.raises(LeaseHeldError, match="somebody"):
        cursors.advance(
            source, variables, CONSUMER, FEED, {0: [hour(0).range], 1: [hour(0).range]}, by="t", timeout=0.2
        )
    assert {row.ulid for row in source.cursors(FEED, CONSUMER)} == {hour(0).range.after}
    source.release_leases(CONSUMER, FEED, tokens, holder="somebody")
    assert places(advance(source, variables, 0))[1] == end_of(0)


def test_a_crash_before_the_variable_is_repaired(source: SqliteFeedSource, variables: Variables) -> None:
    """The rows moved, the Variable did not: the next look publishes it, and the lease is free."""
    begin(source)
    advance(source, variables, 0)

    def crash() -> None:
        raise Crash

    variables.before_set = crash
    with pytest.raises(Crash):
        advance(source, variables, 1)
    assert published(variables).shards[0].ulid == end_of(0)
    variables.before_set = lambda: None
    assert places(cursors.resolve(source, variables, CONSUMER, FEED)) == {0: end_of(1), 1: end_of(1)}
    assert_published(source, variables)


def test_a_crash_before_the_move_repeats_harmlessly(
    source: SqliteFeedSource, variables: Variables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead mover's lease runs out, and a retry comes to the same end."""
    monkeypatch.setattr(cursors_cursors, "LEASE_SECONDS", 0.3)
    begin(source)
    with pytest.raises(Crash):
        advance(Crashing(source.database.path), variables, 0)
    assert {row.ulid for row in source.cursors(FEED, CONSUMER)} == {hour(0).range.after}
    assert places(advance(source, variables, 0)) == {0: end_of(0), 1: end_of(0)}


def test_a_slower_publisher_writes_the_newer_rows_at_last(
    source: SqliteFeedSource, variables: Variables
) -> None:
    """Another mover gets in between our read of the rows and our write of the Variable."""
    begin(source)
    others = [1]

    def interrupt() -> None:
        if others:
            advance(source, variables, others.pop())

    variables.before_set = interrupt
    advance(source, variables, 0)
    assert places(source.cursors(FEED, CONSUMER)) == {0: end_of(1), 1: end_of(1)}
    assert_published(source, variables)


def test_threads_finish_windows_in_any_order(source: SqliteFeedSource, tmp_path: Path) -> None:
    """Windows that end in parallel leave the cursor at the end of all, and the Variable right."""
    begin(source)
    shared = SharedVariables(str(tmp_path / "airflow.db"))
    numbers = list(range(24))
    random.Random(5).shuffle(numbers)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: advance(source, shared, number), numbers))
    assert places(source.cursors(FEED, CONSUMER)) == {0: end_of(23), 1: end_of(23)}
    assert_published(source, shared)


def advance_in_process(path: str, variables: str, numbers: list[int]) -> None:
    """Say that hours are complete, in a process of its own."""
    for number in numbers:
        advance(SqliteFeedSource(path), SharedVariables(variables), number)


@pytest.mark.races
def test_processes_finish_windows_in_any_order(source: SqliteFeedSource, tmp_path: Path) -> None:
    """The same with processes that share nothing but the database and the Variable."""
    begin(source)
    shared = str(tmp_path / "airflow.db")
    numbers = list(range(24))
    random.Random(7).shuffle(numbers)
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        for future in [
            pool.submit(advance_in_process, source.database.path, shared, numbers[first::3])
            for first in range(3)
        ]:
            future.result()


def test_a_range_that_the_feed_has_not_reached_does_not_move(
    source: SqliteFeedSource, variables: Variables
) -> None:
    """The row is the arbiter of the clock as well."""
    begin(source)
    with pytest.raises(CursorBeyondFeedError):
        advance(source, variables, *range(HOURS + 5))
    assert {row.ulid for row in source.cursors(FEED, CONSUMER)} == {hour(0).range.after}


def test_moves_are_made_of_what_was_read_under_the_lease(
    source: SqliteFeedSource, variables: Variables
) -> None:
    """Somebody without a lease changed the row in between: the move is decided anew, and nothing is lost."""

    class Racing(SqliteFeedSource):
        raced = False

        def move_cursors(self, consumer: str, feed: str, moves: Any, **more: Any) -> list[CursorRow]:
            if not Racing.raced:
                Racing.raced = True
                earlier = UlidRange(Ulid.MIN, hour(0).range.after)
                source.begin_consumer(consumer, feed, {0: earlier.after}, by="racer")
            return super().move_cursors(consumer, feed, moves, **more)

    begin(source)
    rows = advance(Racing(source.database.path), variables, 0)
    assert {row.shard: row.frontier.ahead for row in rows} == {0: (hour(0).range,), 1: ()}
