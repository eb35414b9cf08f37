# SPDX-License-Identifier: Apache-2.0
"""The commit protocol: killed, retried, outlived and raced at every single change of the file system."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_changefeed.core.plan import Plan
from airflow_changefeed.exceptions import IncompleteReadError, SupersededError
from airflow_changefeed.export.commit import StagedFile, begin, commit, end
from airflow_changefeed.export.files import Files
from airflow_changefeed.export.store import ExportStore
from airflow_changefeed.export.verify import verify
from tests.unit.export.faults import (
    Killed,
    SteppedFiles,
    SteppedMemory,
    kill_at,
    local_files,
    manifest_rows,
    plain_rows,
    remote_files,
    tree,
)
from tests.unit.export.flights import FEED, Flights, hours

ROWS = 12
_MOST_CHANGES = 60


@dataclass
class Attempt:
    """One attempt at all units: planned and written, not committed."""

    plan: Plan
    written: list[StagedFile]
    schema: dict[str, str]

    def commit(self, files: Files) -> None:
        """Commit it, as a driver does."""
        store = ExportStore(files.root, FEED, files=files)
        commit(store, self.plan, self.written, self.schema)
        end(store, self.plan, committed=True)


class World:
    """An output with room for attempts at two hours, one of them empty."""

    def __init__(self, files: Files, flights: Flights) -> None:
        self.files = files
        self.store = ExportStore(files.root, FEED, files=files)
        self.flights = flights

    def attempt(self) -> Attempt:
        """Plan, and write what Spark's tasks would write."""
        plan = self.flights.plan(self.store, hours(0, 2))
        begin(self.store, plan)
        return Attempt(plan, *_write(self.flights, self.store, plan))


def _write(flights: Flights, store: ExportStore, plan: Plan) -> tuple[list[StagedFile], dict[str, str]]:
    # Tasks open the file system by its path; what they wrote locally is carried over to the one under test.
    written, schema = flights.write(ExportStore(str(flights.path.parent / "tasks"), FEED), plan)
    local = ExportStore(str(flights.path.parent / "tasks"), FEED)
    for file in written:
        content = local.files.read(f"{local.layout.attempt(plan.attempt)}/{file.path}")
        assert content is not None
        store.files.write(f"{store.layout.attempt(plan.attempt)}/{file.path}", content)
    return written, schema


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """Twelve events in the first hour, none in the second."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(ROWS, 0)
    return flights


@pytest.fixture
def local(tmp_path: Path, flights: Flights) -> World:
    """A local output."""
    return World(local_files(tmp_path / "out"), flights)


def _check_complete(world: World, attempt: int) -> None:
    assert verify(world.store) == []
    assert [manifest.attempt for manifest in world.store.list()] == [attempt, attempt]
    assert manifest_rows(world.store) == ROWS
    assert world.store.files.names(world.store.layout.attempts) == []


def _steps(run: Callable[[int], bool]) -> int:
    """Run with growing numbers of a step until one is beyond the last; return how many there were."""
    for number in range(_MOST_CHANGES):
        if not run(number):
            return number
    raise AssertionError("more changes than expected")


@pytest.mark.parametrize("is_replacement", [False, True])
def test_killed_anywhere_and_retried_gives_the_same(
    tmp_path: Path, flights: Flights, is_replacement: bool
) -> None:
    """Killed before any change, readers see a unit whole or not; a retry gives what no crash gives."""
    trees = set()

    def run(number: int) -> bool:
        world = World(local_files(tmp_path / f"out{number}"), flights)
        if is_replacement:
            world.attempt().commit(world.files)
        attempt, killed = world.attempt(), False
        try:
            attempt.commit(SteppedFiles(world.files, kill_at(number)))
        except Killed:
            killed = True
        assert len(plain_rows(world.files, FEED)) in (0, ROWS)
        if is_replacement or not killed:
            assert manifest_rows(world.store) == ROWS
        retried = world.attempt()
        retried.commit(world.files)
        _check_complete(world, retried.plan.attempt)
        trees.add(
            tuple(re.sub(r"(?<=attempt=)\d+|\d{12}(?=\.json)", "N", path) for path in tree(world.files))
        )
        return killed

    assert _steps(run) >= 8
    assert len(trees) == 1


def test_killed_anywhere_a_commit_can_go_on(tmp_path: Path, flights: Flights) -> None:
    """The same attempt's commit, called again after a crash at any change, completes it."""

    def run(number: int) -> bool:
        world = World(local_files(tmp_path / f"out{number}"), flights)
        world.attempt().commit(world.files)
        attempt, killed = world.attempt(), False
        try:
            attempt.commit(SteppedFiles(world.files, kill_at(number)))
        except Killed:
            killed = True
        attempt.commit(world.files)
        _check_complete(world, attempt.plan.attempt)
        return killed

    assert _steps(run) >= 8


def test_killed_anywhere_on_an_object_store(flights: Flights) -> None:
    """
    Where a move is copies and deletes, manifest readers see the unit whole after each of them, and a retry
    repairs.
    """

    def run(number: int) -> bool:
        files, system = remote_files()
        world = World(files, flights)
        world.attempt().commit(files)
        attempt, killed = world.attempt(), False
        system.changes, system.before = 0, kill_at(number)
        try:
            _one_by_one(world, attempt)
        except Killed:
            killed = True
        system.before = lambda number: None
        assert manifest_rows(world.store) == ROWS
        retried = world.attempt()
        retried.commit(files)
        _check_complete(world, retried.plan.attempt)
        return killed

    assert _steps(run) >= 8


def _one_by_one(world: World, attempt: Attempt) -> None:
    """Commit without the threads that a remote store gets: a kill has to come through."""
    from airflow_changefeed.export import commit as module

    files = {file.unit: [file] for file in attempt.written}
    for number, planned in enumerate(attempt.plan.units):
        staged, others = files.get(number, []), module._Others(world.store, attempt.plan)
        module._commit_unit(world.store, attempt.plan, planned, staged, attempt.schema, others)
    end(world.store, attempt.plan, committed=True)


def test_a_zombie_does_no_harm_at_any_step(tmp_path: Path, flights: Flights) -> None:
    """
    An older attempt stops before any of its changes, a newer one commits everything, the older one goes on.

    The newer one counts, plain readers never see rows twice, and manifest readers never see none.
    """

    def run(number: int) -> bool:
        world = World(local_files(tmp_path / f"out{number}"), flights)
        older, newer, interleaved = world.attempt(), world.attempt(), False

        def before(change: int) -> None:
            nonlocal interleaved
            if change == number:
                newer.commit(world.files)
                interleaved = True
            if interleaved:
                assert len(plain_rows(world.files, FEED)) == ROWS
                assert manifest_rows(world.store) == ROWS

        try:
            older.commit(SteppedFiles(world.files, before))
        except SupersededError:
            end(world.store, older.plan, committed=False)
            assert interleaved
        if not interleaved:
            return False
        _check_complete(world, newer.plan.attempt)
        return True

    assert _steps(run) >= 8


def test_a_newer_attempt_that_stops_anywhere_is_not_harmed(tmp_path: Path, flights: Flights) -> None:
    """
    A newer attempt stops before any of its changes, an older one commits or is told; the newer one counts at
    last.
    """

    def run(number: int) -> bool:
        world = World(local_files(tmp_path / f"out{number}"), flights)
        first = world.attempt()
        first.commit(world.files)
        older, newer, interleaved = world.attempt(), world.attempt(), False

        def before(change: int) -> None:
            nonlocal interleaved
            if change == number:
                interleaved = True
                try:
                    older.commit(world.files)
                except SupersededError:
                    end(world.store, older.plan, committed=False)
            assert len(plain_rows(world.files, FEED)) in (0, ROWS)
            assert manifest_rows(world.store) == ROWS

        newer.commit(SteppedFiles(world.files, before))
        _check_complete(world, newer.plan.attempt)
        return interleaved

    assert _steps(run) >= 8


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_two_attempts_at_once_leave_the_newer_one(tmp_path: Path, flights: Flights, kind: str) -> None:
    """
    Two threads commit the same units at the same time, again and again: the newer attempt always counts
    alone.
    """
    for turn in range(10):
        files = local_files(tmp_path / f"out{turn}") if kind == "local" else remote_files()[0]
        world = World(files, flights)
        attempts = [world.attempt(), world.attempt()]
        barrier, errors = threading.Barrier(2), []

        def run(attempt: Attempt) -> None:
            barrier.wait()  # noqa: B023 - joined in its turn
            try:
                attempt.commit(files)  # noqa: B023 - joined in its turn
            except SupersededError:
                end(world.store, attempt.plan, committed=False)  # noqa: B023 - joined in its turn
            except BaseException as error:
                errors.append(error)  # noqa: B023 - joined in its turn

        threads = [threading.Thread(target=run, args=(attempt,)) for attempt in attempts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        _check_complete(world, attempts[1].plan.attempt)


def test_a_reader_of_manifests_never_misses_a_unit_that_is_replaced(local: World) -> None:
    """
    While a unit is replaced again and again, a read finds all its rows once, or a file that moves as it is
    opened.
    """
    local.attempt().commit(local.files)
    stop, seen, errors = threading.Event(), [], []

    def read() -> None:
        while not stop.is_set():
            try:
                seen.append(manifest_rows(local.store))
            except FileNotFoundError:
                continue
            except BaseException as error:
                errors.append(error)

    thread = threading.Thread(target=read)
    attempts = [local.attempt() for _ in range(20)]
    thread.start()
    for attempt in attempts:
        attempt.commit(local.files)
    stop.set()
    thread.join()
    assert errors == []
    assert set(seen) == {ROWS}


def test_an_empty_unit_is_complete(local: World) -> None:
    """A window without events has a manifest without files, and no folder."""
    local.attempt().commit(local.files)
    first, second = local.store.list()
    assert (first.rows, second.rows) == (ROWS, 0)
    assert second.files == ()
    assert not local.files.exists(local.store.layout.unit(second.unit))


def test_another_number_of_rows_commits_nothing(local: World) -> None:
    """Tasks that read fewer rows than were counted fail the commit of all units."""
    attempt = local.attempt()
    plan = replace(attempt.plan, units=(replace(attempt.plan.units[0], rows=ROWS + 1), attempt.plan.units[1]))
    with pytest.raises(IncompleteReadError, match="13 rows were planned, 12 read"):
        commit(local.store, plan, attempt.written, attempt.schema)
    assert local.store.list() == []


def test_a_dead_attempt_is_removed_by_the_next(local: World) -> None:
    """A job that was killed while it wrote leaves files that the next attempt's clean-up removes."""
    dead, other = local.attempt(), local.attempt()
    assert dead.written
    other.commit(local.files)
    _check_complete(local, other.plan.attempt)


def test_the_object_store_of_these_tests_counts_changes() -> None:
    """The double is worth something: it sees each copy, delete and write."""
    files, system = remote_files()
    assert isinstance(system, SteppedMemory)
    files.write(f"{files.root}/a", b"1")
    files.move(f"{files.root}/a", f"{files.root}/b")
    files.remove(f"{files.root}/b")
    assert system.changes == 4
