# SPDX-License-Identifier: Apache-2.0
"""Two people at one thing, the second is refused, and nothing is lost."""

from __future__ import annotations

import pytest

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec
from airflow_changefeed.core.cursor import CursorDocument, variable_key
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.moves import go_back, move_to, plan_moves
from airflow_changefeed.exceptions import (
    CursorBeyondFeedError,
    LeaseHeldError,
    PurgedError,
    StaleVersionError,
)
from tests.integration.contract.bench import HOUR, PAST, Bench
from tests.unit.export.consumers import Variables

EXPORT, NAME = "warehouse", "billing"


@pytest.fixture
def places(bench: Bench) -> list[Ulid]:
    """The places of ten events of shard 0, an hour apart, of which an export has had five."""
    for number in range(10):
        bench.write(hint=PAST + number * HOUR)
    bench.seal(PAST + 10 * HOUR)
    found = [Ulid.parse_text(ulid) for ulid in bench.fed()]
    bench.source.begin_consumer(EXPORT, bench.feed, {0: Ulid.MIN}, by="a run")
    move_to(
        bench.source,
        Variables(),
        EXPORT,
        bench.feed,
        plan_moves(bench.source, EXPORT, bench.feed, found[4]),
        by="a run",
    )
    return found


def test_of_two_moves_of_one_cursor_the_second_is_refused(bench: Bench, places: list[Ulid]) -> None:
    """Both saw the same; the second is told where it is now, and the Variable stays that of the first."""
    variables = Variables()
    first = plan_moves(bench.source, EXPORT, bench.feed, places[1])
    second = plan_moves(bench.source, EXPORT, bench.feed, places[7])
    assert [(one.again, one.skipped) for one in first + second] == [(3, 0), (0, 3)]
    move_to(bench.source, variables, EXPORT, bench.feed, first, by="anna", why="set: again")
    with pytest.raises(StaleVersionError, match=str(places[1])) as refused:
        move_to(bench.source, variables, EXPORT, bench.feed, second, by="ben")
    (row,) = bench.source.cursors(bench.feed, EXPORT)
    assert (row.ulid, row.ack, row.moved_by, row.lease_holder) == (places[1], places[1], "anna", None)
    assert (refused.value.expected_version, refused.value.present_version) == (
        row.resource_version - 1,
        row.resource_version,
    )
    published = CursorDocument.of_rows(bench.source.identity(), EXPORT, bench.feed, [row]).to_json()
    assert variables.values == {variable_key(bench.source.identity().id, EXPORT, bench.feed): published}
    (change, *_) = bench.source.history(bench.feed, EXPORT)
    assert (change.before, change.after, change.why) == (places[4], places[1], "set: again")
    moves = go_back(bench.source, EXPORT, bench.feed, change.number)
    (row,) = move_to(bench.source, variables, EXPORT, bench.feed, moves, by="anna")
    assert row.ulid == places[4]


def test_places_that_a_cursor_cannot_go_to_are_refused(bench: Bench, places: list[Ulid]) -> None:
    """Beyond the feed, below what is purged; earliest and latest are the ends of what is left."""
    bench.source.purge(bench.feed, PAST + 3 * HOUR)
    with pytest.raises(CursorBeyondFeedError, match="restored"):
        plan_moves(bench.source, EXPORT, bench.feed, Ulid.MAX)
    with pytest.raises(PurgedError, match="earliest"):
        plan_moves(bench.source, EXPORT, bench.feed, places[0])
    (move,) = plan_moves(bench.source, EXPORT, bench.feed, Beginning.EARLIEST)
    assert (move.again, move.target) == (2, bench.status().purged_upto)
    (move,) = plan_moves(bench.source, EXPORT, bench.feed, Beginning.LATEST)
    assert (move.skipped, move.target) == (5, Ulid.floor(PAST + 10 * HOUR).previous())
    (move,) = plan_moves(bench.source, EXPORT, bench.feed, PAST + 3 * HOUR)
    assert move.again == 2


def test_a_lease_is_taken_away_from_who_has_it(bench: Bench, places: list[Ulid]) -> None:
    """By the command that the refusal names; then the cursor can be moved."""
    source = bench.source
    create_consumer(source, ConsumerSpec(NAME, bench.feed), Beginning.EARLIEST, by="test")
    moves = plan_moves(source, NAME, bench.feed, places[0])
    row = source.acquire_leases(NAME, bench.feed, [0], holder="worker", seconds=600).rows[0]
    with pytest.raises(LeaseHeldError, match="held by 'worker'") as refused:
        move_to(source, Variables(), NAME, bench.feed, moves, by="anna", timeout=0.1)
    command = f"consumer revoke {NAME} --feed {bench.feed} --shard 0 --fencing-token {row.fencing_token}"
    assert command in refused.value.message
    source.revoke_lease(NAME, bench.feed, 0, fencing_token=row.fencing_token)
    (row,) = move_to(source, Variables(), NAME, bench.feed, moves, by="anna")
    assert row.ulid == places[0]
