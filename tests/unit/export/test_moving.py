# SPDX-License-Identifier: Apache-2.0
"""Moving cursors as people do: planned, shown, and made only if nothing changed since."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import (
    Attempt,
    Beginning,
    ConsumerSpec,
    Consumption,
    DeadLetterState,
    Outcome,
    Parked,
)
from airflow_changefeed.core.cursor import Began, CursorRow
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors import cursors
from airflow_changefeed.cursors.cursors import leased
from airflow_changefeed.cursors.moves import accept_beginning, go_back, move_to, plan_moves, plan_reset
from airflow_changefeed.cursors.recovery import VariableKind
from airflow_changefeed.exceptions import (
    ConsumerNotFoundError,
    CursorEditedError,
    CursorFormatError,
    InvalidArgumentError,
    LeaseHeldError,
    LeaseLostError,
    PurgedError,
    ShardNotFoundError,
    SourceUnavailableError,
    StaleVersionError,
)
from tests.unit.export.consumers import (
    CONSUMER,
    FEED,
    KEY,
    START,
    Warehouse,
    end_of,
    hour,
    places,
    set_ulid,
)


def test_a_move_back_is_published_and_remembered(warehouse: Warehouse, exported: list[CursorRow]) -> None:
    """The Variable follows, the history says who and why, the lease is free, and the export goes on there."""
    rows = warehouse.move(warehouse.plan(end_of(1), 0), why="set: hour 2 was wrong")
    assert places(rows) == {0: end_of(1), 1: end_of(5)}
    warehouse.check_published()
    (change,) = warehouse.source.history(FEED, CONSUMER, limit=1)
    assert (change.shard, change.before, change.after) == (0, end_of(5), end_of(1))
    assert (change.by, change.why) == ("anna", "set: hour 2 was wrong")
    assert change.resource_version == rows[0].resource_version == exported[0].resource_version + 1
    assert {row.lease_holder for row in rows} == {None}
    assert places(warehouse.advance(2))[0] == end_of(2)


def test_a_move_says_what_was_seen(warehouse: Warehouse, exported: list[CursorRow]) -> None:
    """
    The version of each cursor that moves, and no other; whoever names one that never was has not seen what is
    there. Nothing to move is a mistake, and a history is no diary.
    """
    both = warehouse.plan(end_of(1))
    for versions, words in (
        ({0: 2}, "shard 1: the version is missing"),
        ({0: 2, 1: 2, 7: 2}, "shard 7: .* does not change"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            warehouse.move(both, versions=versions)
    with pytest.raises(InvalidArgumentError, match="no cursor"):
        warehouse.move([])
    with pytest.raises(InvalidArgumentError, match="2001 characters"):
        warehouse.move(both, why="x" * 2001)
    seen = {row.shard: row.resource_version for row in exported}
    with pytest.raises(StaleVersionError):
        warehouse.move(both, versions={**seen, 1: seen[1] + 1})
    assert warehouse.places == {0: end_of(5), 1: end_of(5)}
    warehouse.move(both, versions=seen)


def test_whoever_comes_second_is_refused(warehouse: Warehouse, exported: list[CursorRow]) -> None:
    """Both saw the same; the second is told what is there now, and nothing of the first is lost."""
    mine, yours = warehouse.plan(end_of(1)), warehouse.plan(end_of(3))
    warehouse.move(mine)
    text = warehouse.variables.values[KEY]
    with pytest.raises(StaleVersionError, match=str(end_of(1))) as refused:
        warehouse.move(yours)
    assert refused.value.expected_version == exported[0].resource_version
    assert refused.value.present_version == exported[0].resource_version + 1
    assert warehouse.places == {0: end_of(1), 1: end_of(1)}
    assert warehouse.variables.values[KEY] == text
    assert {row.lease_holder for row in warehouse.rows} == {None}
    assert places(warehouse.move(warehouse.plan(end_of(3))))[0] == end_of(3)


def test_an_edited_variable_stops_a_move(warehouse: Warehouse, exported: list[CursorRow]) -> None:
    """As it stops everything, with both values and the commands that resolve it."""
    moves = warehouse.plan(end_of(1))
    warehouse.edit(set_ulid)
    warehouse.edit(lambda value: value["shards"]["1"].update(ulid=str(end_of(7))))
    text = warehouse.variables.values[KEY]
    with pytest.raises(CursorEditedError) as refused:
        warehouse.move(moves)
    for words in (
        f"the Variable has {end_of(7)} (2013-01-01T07:59:59.999Z, resource version 2), the database has",
        "airflow-changefeed cursor adopt warehouse --feed nyc.Flight",
        "airflow-changefeed cursor publish warehouse --feed nyc.Flight",
    ):
        assert words in refused.value.message
    assert warehouse.variables.values[KEY] == text
    assert warehouse.places == {0: end_of(5), 1: end_of(5)}


def test_a_move_that_airflow_does_not_hear_of_says_that_it_was_made(
    warehouse: Warehouse, exported: list[CursorRow]
) -> None:
    """The cursors stand where they were moved to, and the next run publishes them."""

    def fail() -> None:
        raise SourceUnavailableError("could not write Airflow Variable 'x'")

    warehouse.variables.before_set = fail
    with pytest.raises(SourceUnavailableError, match=r"were changed, but .*could not write .*cursor publish"):
        warehouse.move(warehouse.plan(end_of(1)))
    rows = warehouse.rows
    assert {row.ulid for row in rows} == {end_of(1)}
    assert warehouse.state().kind is VariableKind.OLDER
    warehouse.variables.before_set = lambda: None
    assert warehouse.resolve() == rows
    assert warehouse.state().kind is VariableKind.EQUAL


def test_a_variable_that_is_nonsense_is_told_with_both_values(
    warehouse: Warehouse, exported: list[CursorRow]
) -> None:
    """And with the command that overwrites it; adopting nonsense is no choice."""
    warehouse.variables.values[KEY] = "yesterday"
    with pytest.raises(CursorFormatError) as refused:
        warehouse.move(warehouse.plan(end_of(1)))
    assert "The Variable has 'yesterday', the database has shard 0" in refused.value.message
    assert "airflow-changefeed cursor publish warehouse --feed nyc.Flight" in refused.value.message
    assert "adopt" not in refused.value.message


def test_names_in_commands_are_quoted() -> None:
    """So that they can be pasted."""
    adopt, _ = cursors.recovery_commands("my lake", "nyc.Flight $1")
    assert adopt == "airflow-changefeed cursor adopt 'my lake' --feed 'nyc.Flight $1' --conn-id ..."


def test_whoever_runs_is_named_and_can_be_stopped(warehouse: Warehouse, exported: list[CursorRow]) -> None:
    """Its lease is taken away; what it does under it afterwards is refused, and the move is not."""
    moves = warehouse.plan(end_of(1), 0)
    with leased(warehouse.source, CONSUMER, FEED, [0], "a batch") as leases:
        with pytest.raises(LeaseHeldError, match=r"held by 'a batch#.*Nothing was moved") as refused:
            warehouse.move(moves)
        tokens = leases.tokens
        command = f"consumer revoke warehouse --feed nyc.Flight --shard 0 --fencing-token {tokens[0]}"
        assert command in refused.value.message
        warehouse.source.revoke_lease(CONSUMER, FEED, 0, fencing_token=tokens[0])
        warehouse.move(moves)
        with pytest.raises(LeaseLostError):
            cursors.move(
                warehouse.source,
                CONSUMER,
                FEED,
                warehouse.rows,
                tokens,
                lambda row: row.frontier.complete(hour(2).range),
                "a batch",
            )
    assert warehouse.places == {0: end_of(1), 1: end_of(5)}


# ---- going back


def test_a_change_is_undone(warehouse: Warehouse, exported: list[CursorRow]) -> None:
    """
    To where the cursor stood before it, of its shard alone; a consumer goes back to where it began in all its
    shards, or some.
    """
    warehouse.move(warehouse.plan(end_of(1)), why="set")
    undone = next(one for one in warehouse.source.history(FEED, CONSUMER) if one.shard == 1)
    rows = warehouse.move(go_back(warehouse.source, CONSUMER, FEED, undone.number), why="reset")
    assert places(rows) == {0: end_of(1), 1: end_of(5)}
    warehouse.check_published()
    rows = warehouse.move(plan_reset(warehouse.source, CONSUMER, FEED, [1]))
    assert places(rows) == {0: end_of(1), 1: hour(0).range.after}
    assert [one.shard for one in plan_reset(warehouse.source, CONSUMER, FEED)] == [0]


def test_what_cannot_be_undone_is_refused(warehouse: Warehouse, exported: list[CursorRow]) -> None:
    """A change that is not there, the one that made the cursor, and one whose events are purged since."""
    changes = warehouse.source.history(FEED, CONSUMER)
    with pytest.raises(InvalidArgumentError, match="no change 99"):
        go_back(warehouse.source, CONSUMER, FEED, 99)
    with pytest.raises(InvalidArgumentError, match="cannot be undone"):
        go_back(warehouse.source, CONSUMER, FEED, changes[-1].number)
    warehouse.source.purge(FEED, START + timedelta(hours=2))
    with pytest.raises(PurgedError, match="earliest"):
        go_back(warehouse.source, CONSUMER, FEED, changes[0].number)


# ---- consumers of events


def park(warehouse: Warehouse, shard: int, count: int) -> list[Ulid]:
    """Let a consumer park the first event of a shard and consume the next ones; return them all."""
    create_consumer(warehouse.source, ConsumerSpec("billing", FEED), Beginning.EARLIEST, by="test")
    events = [event.ulid for event in warehouse.source.read_feed(FEED, shard, Ulid.MIN, count)]
    row = warehouse.source.acquire_leases("billing", FEED, [shard], holder="worker", seconds=60).rows[shard]
    with closing(warehouse.source.open_session("billing", FEED)) as session:
        for place, ulid in enumerate(events):
            attempt = (
                Attempt(ulid, ulid, 1, 1, warehouse.source.now(), Outcome.FAILED, "no") if not place else None
            )
            parked = Parked(ulid, 1, "no") if not place else None
            with session.transaction():
                step = Consumption(shard, ulid, row.resource_version, row.fencing_token, 60, attempt, parked)
                row = session.consume(step)
    warehouse.source.release_leases("billing", FEED, {shard: row.fencing_token}, holder="worker")
    return events


def test_a_consumer_of_events_is_moved_without_a_variable(warehouse: Warehouse) -> None:
    """It has none, and gets none; what it parked keeps its ack."""
    events = park(warehouse, 0, 5)
    moves = plan_moves(warehouse.source, "billing", FEED, events[2], [0])
    assert [(one.again, one.skipped) for one in moves] == [(2, 0)]
    rows = move_to(warehouse.source, warehouse.variables, "billing", FEED, moves, by="anna", why="set")
    row = next(one for one in rows if one.shard == 0)
    assert (row.ulid, row.ack) == (events[2], events[0].previous())
    assert warehouse.variables.values == {}
    assert [(one.by, one.why) for one in warehouse.source.history(FEED, "billing", shard=0)][:1] == [
        ("anna", "set")
    ]
    (dead_letter,) = warehouse.source.dead_letters()
    warehouse.source.resolve_dead_letter(dead_letter.number, DeadLetterState.DROPPED, by="anna")
    rows = move_to(
        warehouse.source,
        warehouse.variables,
        "billing",
        FEED,
        plan_moves(warehouse.source, "billing", FEED, events[1], [0]),
        by="anna",
    )
    assert next(one for one in rows if one.shard == 0).ack == events[1]


def test_a_consumer_that_runs_is_not_moved_beneath_itself(warehouse: Warehouse) -> None:
    """Whoever holds it is named; a step of it makes what was seen stale."""
    events = park(warehouse, 0, 3)
    moves = plan_moves(warehouse.source, "billing", FEED, Beginning.EARLIEST, [0])
    row = warehouse.source.acquire_leases("billing", FEED, [0], holder="worker", seconds=60).rows[0]
    with pytest.raises(LeaseHeldError, match="held by 'worker'"):
        move_to(warehouse.source, warehouse.variables, "billing", FEED, moves, by="anna", timeout=0.1)
    (event,) = warehouse.source.read_feed(FEED, 0, events[-1], 1)
    with closing(warehouse.source.open_session("billing", FEED)) as session, session.transaction():
        row = session.consume(Consumption(0, event.ulid, row.resource_version, row.fencing_token, 60))
    warehouse.source.release_leases("billing", FEED, {0: row.fencing_token}, holder="worker")
    with pytest.raises(StaleVersionError, match=str(event.ulid)):
        move_to(warehouse.source, warehouse.variables, "billing", FEED, moves, by="anna")


def test_a_consumer_without_cursors_is_told_from_an_unknown_one(warehouse: Warehouse) -> None:
    """It was created before any shard had an event."""
    with closing(sqlite3.connect(warehouse.source.database.path)) as connection:
        connection.execute("create table empty (id integer primary key)")
    warehouse.source.set_up_feed("empty")
    create_consumer(warehouse.source, ConsumerSpec("billing", "empty"), Beginning.EARLIEST, by="test")
    with pytest.raises(ShardNotFoundError, match="no cursors of feed 'empty' yet"):
        plan_moves(warehouse.source, "billing", "empty", Beginning.LATEST)
    with pytest.raises(ConsumerNotFoundError, match="the feed has: billing"):
        plan_moves(warehouse.source, "lake", "empty", Beginning.LATEST)


# ---- the beginning


def _accept(warehouse: Warehouse, consumer: str = CONSUMER, **more: Any) -> Any:
    return accept_beginning(
        warehouse.source,
        warehouse.variables,
        consumer,
        FEED,
        by="anna",
        why="not needed",
        **{"timeout": 0.1, **more},
    )


def test_a_beginning_is_accepted_published_and_remembered(
    warehouse: Warehouse, exported: list[CursorRow]
) -> None:
    """In all shards; the cursors stay, the history says who and why, and the lease is free."""
    rows = _accept(warehouse)
    assert {row.began for row in rows} == {Began.ACCEPTED}
    assert [row.frontier for row in rows] == [row.frontier for row in exported]
    assert [row.resource_version for row in rows] == [row.resource_version + 1 for row in exported]
    warehouse.check_published()
    (change, _) = warehouse.source.history(FEED, CONSUMER, limit=2)
    assert (change.before, change.after, change.by) == (end_of(5), end_of(5), "anna")
    assert change.why == "accept-beginning: not needed"
    assert {row.lease_holder for row in rows} == {None}
    assert places(warehouse.advance(6))[0] == end_of(6)
    assert {row.began for row in warehouse.rows} == {Began.ACCEPTED}


def test_only_what_was_seen_is_accepted(warehouse: Warehouse, exported: list[CursorRow]) -> None:
    """Of each shard the version; who names another has not seen what is there."""
    seen = {row.shard: row.resource_version for row in exported}
    warehouse.advance(6)
    with pytest.raises(StaleVersionError):
        _accept(warehouse, versions=seen)
    with pytest.raises(InvalidArgumentError, match="shard 1: the version is missing"):
        _accept(warehouse, versions={0: warehouse.rows[0].resource_version})
    assert {row.began for row in warehouse.rows} == {Began.IMPLIED}


def test_what_cannot_be_accepted_is_refused(warehouse: Warehouse, exported: list[CursorRow]) -> None:
    """An unknown consumer, one of events, a beginning that was accepted, and an edited Variable."""
    with pytest.raises(ConsumerNotFoundError, match="'nobody'"):
        _accept(warehouse, "nobody")
    create_consumer(warehouse.source, ConsumerSpec("mailer", FEED), Beginning.LATEST, by="test")
    with pytest.raises(InvalidArgumentError, match="is not an export"):
        _accept(warehouse, "mailer")
    text = warehouse.variables.values[KEY]
    warehouse.edit(lambda value: value["shards"]["0"].update(ulid=str(end_of(1))))
    with pytest.raises(CursorEditedError):
        _accept(warehouse)
    assert {row.began for row in warehouse.rows} == {Began.IMPLIED}
    warehouse.variables.values[KEY] = text
    _accept(warehouse)
    with pytest.raises(InvalidArgumentError, match="no implied beginning to accept: shard 0 acc"):
        _accept(warehouse)


def test_a_person_who_moves_a_cursor_below_the_beginning_chooses_it(
    warehouse: Warehouse, exported: list[CursorRow]
) -> None:
    """There only; a move forwards, and one back to the beginning, choose nothing."""
    warehouse.move(warehouse.plan(end_of(3)))
    warehouse.move(plan_reset(warehouse.source, CONSUMER, FEED))
    rows = warehouse.rows
    assert {row.began for row in rows} == {Began.IMPLIED}
    warehouse.move(warehouse.plan(end_of(-2), 0))
    began = {row.shard: row.began for row in warehouse.rows}
    assert began == {0: Began.CHOSEN, 1: Began.IMPLIED}
    assert warehouse.rows[0].frontier.before == ()


def test_a_reset_goes_to_the_beginning_that_a_backfill_has_extended(warehouse: Warehouse) -> None:
    """And what is complete before a gap there is kept."""
    warehouse.source.begin_consumer(CONSUMER, FEED, {0: end_of(2)}, by="test")
    for number in (3, 2, 0):
        warehouse.advance(number, shards=(0,))
    (row,) = warehouse.rows
    assert (row.frontier.start, row.frontier.upto, row.frontier.before) == (
        end_of(1),
        end_of(3),
        (hour(0).range,),
    )
    (planned,) = plan_reset(warehouse.source, CONSUMER, FEED)
    assert (planned.target, planned.forgotten) == (end_of(1), ())
    (row,) = warehouse.move([planned])
    assert (row.ulid, row.frontier.before) == (end_of(1), (hour(0).range,))
    (planned,) = warehouse.plan(end_of(0))
    assert planned.forgotten == (hour(0).range,)
