# SPDX-License-Identifier: Apache-2.0
"""Two people at one thing, in Python and at the command line: the second is refused, and nothing is lost."""

from __future__ import annotations

import pytest

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, OnPoison
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
from tests.unit.airflow.commands import Commands, connection_json
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


@pytest.fixture
def commands(
    bench: Bench, places: list[Ulid], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Commands:
    """Give the commands on the feed, with a consumer of its events that stands at the beginning."""
    create_consumer(bench.source, ConsumerSpec(NAME, bench.feed), Beginning.EARLIEST, by="test")
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", connection_json(bench.source.describe()))
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    return Commands(capsys)


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


def test_of_two_commands_on_one_cursor_the_second_is_refused(
    bench: Bench, places: list[Ulid], commands: Commands
) -> None:
    """With the present version and place; the history has the first alone."""
    (seen,) = commands.rows("cursor show", NAME, "--feed", bench.feed)
    assert (seen["behind"], seen["variable"]) == (10, None)
    version = ("--resource-version", str(seen["resource_version"]))
    of = (NAME, "--feed", bench.feed)
    (row,) = commands.rows("cursor set", *of, "--to", str(places[2]), *version, "--note", "mine")
    assert (row["skipped"], row["resource_version"]) == (3, seen["resource_version"] + 1)
    message = commands.fails("cursor set", *of, "--to", "latest", *version)
    assert message.startswith("StaleVersionError: ")
    assert str(places[2]) in message
    assert "nothing was changed" in message
    assert [row.ulid for row in bench.source.cursors(bench.feed, NAME)] == [places[2]]
    assert [one["why"] for one in commands.rows("cursor history", *of)][:1] == ["set: mine"]


def test_a_command_does_not_drop_what_another_changed(bench: Bench, commands: Commands) -> None:
    """One alters a consumer, another, who saw it before, drops it: refused, until it is seen again."""
    (seen,) = commands.rows("consumer list")
    of, version = (NAME, "--feed", bench.feed), seen["resource_version"]
    commands.rows("consumer alter", *of, "--on-poison", "park", "--resource-version", str(version))
    message = commands.fails("consumer drop", *of, "--resource-version", str(version))
    assert message.startswith("StaleVersionError: ")
    assert "park" in message
    assert bench.source.consumer(NAME, bench.feed).spec.on_poison is OnPoison.PARK
    message = commands.fails("consumer drop", *of, "--resource-version", "900")
    assert "another database" in message
    commands.rows("consumer drop", *of, "--resource-version", str(version + 1))
    assert "ConsumerNotFoundError" in commands.fails("consumer drop", *of, "--resource-version", str(version))


def test_a_command_takes_a_lease_away(bench: Bench, places: list[Ulid], commands: Commands) -> None:
    """The one that was seen, and no later one; then the cursor can be moved."""
    moves = plan_moves(bench.source, NAME, bench.feed, places[0])
    row = bench.source.acquire_leases(NAME, bench.feed, [0], holder="worker", seconds=600).rows[0]
    with pytest.raises(LeaseHeldError, match="held by 'worker'") as refused:
        move_to(bench.source, Variables(), NAME, bench.feed, moves, by="anna", timeout=0.1)
    of = (NAME, "--feed", bench.feed, "--shard", "0", "--fencing-token")
    assert f"consumer revoke {' '.join(of)} {row.fencing_token}" in refused.value.message
    assert "StaleVersionError" in commands.fails("consumer revoke", *of, str(row.fencing_token + 1))
    (lease,) = commands.rows("consumer revoke", *of, str(row.fencing_token))
    assert lease["holder"] is None
    (row,) = move_to(bench.source, Variables(), NAME, bench.feed, moves, by="anna")
    assert row.ulid == places[0]
