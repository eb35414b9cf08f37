# SPDX-License-Identifier: Apache-2.0
"""The races of ADR 0001 on the model: each shows when its remedy is taken out, and never otherwise."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings

from tests.integration.model import programs
from tests.integration.model.drains import drain
from tests.integration.model.oracle import judge
from tests.integration.model.programs import EVENT, Program, maker, writer
from tests.integration.model.remedies import ALL, V2, Remedies
from tests.integration.model.scheduler import Exploration, explore, run_by
from tests.integration.model.strategies import OUTBOX_PROGRAMS, SCHEDULES, SERIALIZED_PROGRAMS
from tests.integration.model.writers import Release

pytestmark = pytest.mark.ci

ORDER = "commits_are_in_order"
OWN_ORDER = "transactions_keep_their_order"
END = "drains_end"
SEALED = "sealed_windows_stay"
DRAINED = "seals_drain_what_is_committed"
SKIPPED = "readers_skip_nothing"
WHOLE = "ranges_are_whole"
TOGETHER = "transactions_stay_together"
ROWS = "rows_keep_their_order"

#: Race, program, remedies taken out, promises that break.
RACES = (
    ("R1", programs.TWO_WRITERS, ("bound",), {ORDER}),
    ("R1", programs.TWO_WRITERS, ("transactions", "bound", "repeat"), {ORDER}),
    ("R1", programs.TWO_WRITERS, ("transactions", "bound"), {END}),
    ("R2", programs.NEIGHBOURS, ("row_locks",), {ORDER}),
    ("R6", programs.TWO_ROWS, ("whole",), {OWN_ORDER}),
    ("R6", programs.TWO_ROWS, ("transactions", "repeat"), {OWN_ORDER}),
    ("R6", programs.BETWEEN, ("transactions",), {TOGETHER}),
    ("R6", programs.WAITS_FOR_A_ROW, ("highest",), {ROWS}),
    ("R6", programs.DYING_NEIGHBOUR, ("plan_locked",), {ORDER}),
    ("R7", programs.NEW_SHARD, ("floor",), {SEALED}),
    ("R7", programs.NEW_SHARD, ("floor_first",), {SEALED}),
    ("R7", programs.NEW_SHARD, ("floor_held",), {SEALED}),
    # Each covers for the other: a new shard's floor is held since before its rows are deleted.
    ("R7", programs.NEW_SHARD, ("state_before_delete",), set()),
    ("R7", programs.NEW_SHARD, ("state_before_delete", "floor_held"), {DRAINED, SEALED}),
    ("R7", programs.NEW_SHARD_SERIALIZED, ("floor",), {SEALED}),
    ("R7", programs.NEW_SHARD_SERIALIZED, ("floor_first",), {SEALED}),
    ("R7", programs.NEW_SHARD_SERIALIZED, ("floor_held",), {SEALED}),
    ("R8", programs.OLD_SHARD_SERIALIZED, ("seal_waits",), {SEALED}),
    ("R9", programs.SERIALIZED_READER, ("head_bound",), {SKIPPED}),
    ("R9", programs.DRAIN_READER, ("head_bound",), {SKIPPED}),
    ("R12", programs.PURGED_RANGE, ("purge_stored_first",), {WHOLE}),
    ("R12", programs.PURGED_RANGE, ("check_after",), {WHOLE}),
    ("R12", programs.PURGED_READER, ("purge_stored_first",), {SKIPPED}),
    ("R12", programs.PURGED_READER, ("check_after",), {SKIPPED}),
)
#: Each of their programs once.
RACING = {
    name: program for name, program in vars(programs).items() if any(program is race[1] for race in RACES)
}


@cache
def _explore(program: Program, remedies: Remedies = ALL) -> Exploration:
    return explore(lambda: program.start(remedies), judge)


@pytest.mark.parametrize(
    ("program", "without", "promises"),
    [race[1:] for race in RACES],
    ids=[
        f"{race}-{next(name for name in RACING if RACING[name] is program)}-without-{'-'.join(without)}"
        for race, program, without, _ in RACES
    ],
)
def test_a_race_shows_without_its_remedy(
    program: Program, without: tuple[str, ...], promises: set[str]
) -> None:
    """Taking a remedy out breaks the promises that it is there for, and no others."""
    assert _explore(program, ALL.without(*without)).failures.keys() == promises


@pytest.mark.parametrize("program", [pytest.param(program, id=name) for name, program in RACING.items()])
def test_no_race_shows_with_all_remedies(program: Program) -> None:
    """In no order of its steps does a program break a promise, all remedies taken."""
    explored = _explore(program)
    assert explored.states > 30
    assert explored.failures == {}


@pytest.mark.parametrize("program", [pytest.param(program, id=name) for name, program in RACING.items()])
def test_without_transactions_only_others_come_between(program: Program) -> None:
    """With the outbox of mssql-changefeed v2, too, all promises hold but that transactions stay together."""
    assert _explore(program, V2).failures.keys() <= {TOGETHER}


def test_each_remedy_has_its_race() -> None:
    """There is no remedy without a program that shows what it is there for."""
    assert {name for _, _, without, _ in RACES for name in without} == vars(ALL).keys()


@pytest.mark.parametrize("program", [pytest.param(each, id=name) for name, each in programs.TOGETHER.items()])
def test_several_at_once_break_nothing(program: Program) -> None:
    """Rolled back drains and writers, several drains, readers and seals keep all promises in every order."""
    assert _explore(program).failures == {}
    assert _explore(program, V2).failures.keys() <= {TOGETHER}


@pytest.mark.parametrize(
    ("without", "single_rows", "two_rows"),
    [
        ((), set(), set()),
        (("whole",), set(), {OWN_ORDER}),
        (("bound",), {ORDER}, set()),
        (("bound", "whole"), {ORDER}, {OWN_ORDER}),
        (("transactions",), set(), set()),
        (("transactions", "repeat"), set(), {OWN_ORDER}),
        (("transactions", "bound"), {END}, {END}),
        (("transactions", "bound", "repeat"), {ORDER}, {OWN_ORDER}),
    ],
    ids="-".join,
)
def test_what_the_bound_and_the_look_at_transactions_are_for(
    without: tuple[str, ...], single_rows: set[str], two_rows: set[str]
) -> None:
    """The bound keeps the order of commits, one's own order needs to see transactions whole, or to repeat."""
    remedies = ALL.without(*without)
    assert _explore(programs.TWO_WRITERS, remedies).failures.keys() - {TOGETHER} == single_rows
    assert _explore(programs.TWO_ROWS, remedies).failures.keys() == two_rows


@pytest.mark.parametrize(
    ("without", "ends"),
    [((), True), (("transactions",), True), (("transactions", "bound"), False)],
    ids=["bound", "bound-and-repetition", "repetition"],
)
def test_a_drain_ends_under_a_stream_of_writers(without: tuple[str, ...], ends: bool) -> None:
    """A drain that repeats its scan without a bound does not end while others write."""
    stream = Program({"stream": writer(*[EVENT] * 200), "drain": maker(drain, shard=1)})
    run = run_by(lambda: stream.start(ALL.without(*without)), (), most=400)
    assert ("drain" not in run.waiting()) == ends


@pytest.mark.parametrize("release", list(programs.SINGLE_RELEASES))
def test_locks_released_one_by_one_break_nothing(release: Release) -> None:
    """A commit may give its row locks back one by one, in any order: what is seen in part is left out."""
    assert _explore(programs.SINGLE_RELEASES[release]).failures == {}


def test_without_transactions_locks_released_newest_first_would_tear_one() -> None:
    """
    Scans that agree are not enough if locks go newest first while they run.

    The ADR names it as an assumption for feeds of mssql-changefeed v2: the server alone decides in which
    order a commit gives locks back.
    """
    assert _explore(programs.SINGLE_RELEASES[Release.OLDEST_FIRST], V2).failures == {}
    assert _explore(programs.SINGLE_RELEASES[Release.NEWEST_FIRST], V2).failures.keys() == {OWN_ORDER}


def test_a_drain_killed_in_a_new_shard_may_leave_an_event_to_a_later_window() -> None:
    """A seal overlooks a new shard whose first drain deletes its rows and is rolled back: late, not lost."""
    assert _explore(programs.KILLED_IN_NEW_SHARD).failures.keys() == {DRAINED}


@settings(max_examples=500)
@given(OUTBOX_PROGRAMS, SCHEDULES)
def test_any_outbox_program_keeps_all_promises(program: Program, schedule: list[int]) -> None:
    """Writers, drains, seals, purges and readers keep all promises, whoever runs and in whatever order."""
    assert judge(run_by(lambda: program.start(ALL), schedule)) == {}
    assert judge(run_by(lambda: program.start(V2), schedule)).keys() <= {TOGETHER}


@settings(max_examples=500)
@given(SERIALIZED_PROGRAMS, SCHEDULES)
def test_any_serialized_program_keeps_all_promises(program: Program, schedule: list[int]) -> None:
    """So do serialized writers, seals and readers."""
    assert judge(run_by(lambda: program.start(ALL), schedule)) == {}
