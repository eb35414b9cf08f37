# SPDX-License-Identifier: Apache-2.0
"""The commit protocol: killed, retried, outlived and raced at every single change of the file system."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest

from airflow_changefeed.core.export_plan import Plan
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import IncompleteReadError, SupersededError, TransientError
from airflow_changefeed.export.job_spec import read_receipt, remove_spec, write_receipt
from airflow_changefeed.export.parts import gather, plan_parts, task_name, write_parts
from airflow_changefeed.export.result import ExportResult
from airflow_changefeed.output import store as store_module
from airflow_changefeed.output.attempts import begin, end, forget
from airflow_changefeed.output.commit import Commit
from airflow_changefeed.output.store import ExportStore, WrittenParts
from airflow_changefeed.storage.files import Files
from tests.clocks import after_now
from tests.exports import verify
from tests.unit.export.faults import (
    Killed,
    kill_at,
    local_files,
    manifest_rows,
    plain_rows,
    remote_files,
    stepped,
    steps,
    tree,
    uploading_files,
)
from tests.unit.export.flights import FEED, Flights, hours

ROWS, TWO = 12, hours(0, 2)


@dataclass
class Attempt:
    """One attempt at all units: planned and written, not committed."""

    plan: Plan
    written: WrittenParts

    def write_manifests(self, files: Files) -> None:
        """Commit all units, as a driver does."""
        commit = Commit(ExportStore(files.root, FEED, files=files), self.plan)
        commit.add(self.written)
        commit.finish()

    def commit(self, files: Files) -> None:
        """Commit it, as a task does that finishes."""
        self.write_manifests(files)
        store = ExportStore(files.root, FEED, files=files)
        end(store, self.plan, committed=True)
        forget(store, [self.plan.attempt])


class World:
    """An output with room for attempts at two hours, one of them empty."""

    def __init__(self, files: Files, flights: Flights) -> None:
        self.files = files
        self.store = ExportStore(files.root, FEED, files=files)
        self.flights = flights

    def attempt(self, windows: list[Window] | None = TWO) -> Attempt:
        """Plan, and write what tasks would write: of windows, or of a batch."""
        plan = self.flights.plan(self.store, windows)
        begin(self.store, plan)
        return self.write(plan)

    def write(self, plan: Plan, task_attempt: int = 0) -> Attempt:
        """Write what tasks would write, each started as often as it is numbered."""
        parts = plan_parts(plan)
        facts = write_parts(
            self.flights.source,
            self.files,
            feed=FEED,
            attempt=plan.attempt,
            options=plan.options,
            task=task_name(0, task_attempt),
            parts=[part.content for part in parts],
        )
        return Attempt(plan, gather(facts, parts))

    def commit(self, attempt: Attempt, files: Files | None = None) -> bool:
        """Commit an attempt; False when it was told that it does not count, and has ended."""
        try:
            attempt.commit(files or self.files)
        except SupersededError:
            end(self.store, attempt.plan, committed=False)
            return False
        return True

    def check_complete(self, attempt: int) -> None:
        """Check that an attempt counts alone, and nothing is left of others."""
        assert verify(self.store) == []
        assert [manifest.attempt for manifest in self.store.list()] == [attempt, attempt]
        assert manifest_rows(self.store) == ROWS
        assert len(plain_rows(self.files, FEED)) == ROWS
        assert self.store.files.names(self.store.layout.attempts) == []
        assert list(self.store.uploads()) == []


@pytest.fixture(params=["local", "memory", "uploads"])
def outputs(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Files]:
    """What makes new outputs; real object stores in tests/stores."""
    if request.param != "local":
        return remote_files if request.param == "memory" else uploading_files
    numbers = count()
    return lambda: local_files(tmp_path / f"out{next(numbers)}")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is killed at a step has no other threads that are further."""
    monkeypatch.setattr(store_module, "_REMOTE_THREADS", 1)


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


def told(store: ExportStore, plan: Plan, error: Exception) -> None:
    """Leave the receipt of a job that has failed, and read it as its task does."""
    write_receipt(store, plan.attempt, plan.attempt, ExportResult.of_error(error, plan.attempt, plan.attempt))
    assert read_receipt(store, plan.attempt) is not None
    remove_spec(store, plan.attempt)


@pytest.mark.parametrize("is_replacement", [False, True])
def test_killed_anywhere_and_retried_gives_the_same(
    outputs: Callable[[], Files], flights: Flights, is_replacement: bool
) -> None:
    """Killed before any change, readers see a unit whole or not; a retry gives what no crash gives."""
    trees = set()

    def run(number: int) -> bool:
        world = World(outputs(), flights)
        if is_replacement:
            world.attempt().commit(world.files)
        attempt, killed = world.attempt(), False
        try:
            attempt.commit(stepped(world.files, kill_at(number)))
        except Killed:
            killed = True
        assert len(plain_rows(world.files, FEED)) in (0, ROWS)
        if is_replacement or not killed:
            assert manifest_rows(world.store) == ROWS
        retried = world.attempt()
        retried.commit(world.files)
        world.check_complete(retried.plan.attempt)
        trees.add(
            tuple(re.sub(r"(?<=attempt=)\d+|\d{12}(?=\.json)", "N", path) for path in tree(world.files))
        )
        return killed

    assert steps(run) >= 4
    assert len(trees) == 1


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_batch_that_stops_anywhere_is_not_read_beside_the_longer_one_of_its_retry(
    outputs: Callable[[], Files], flights: Flights, is_killed: bool
) -> None:
    """
    A batch fails or is killed before any change, events come, and the retry's batch has another name: plain
    readers read each row once, and nothing is left of the first one.
    """
    added = count(5)

    def run(number: int) -> bool:
        world = World(outputs(), flights)
        first, stopped = world.attempt(None), False

        def fail(change: int) -> None:
            if change == number:
                raise TransientError("the store does not answer")

        try:
            first.commit(stepped(world.files, kill_at(number) if is_killed else fail))
        except Killed:
            stopped = True
        except TransientError as error:
            stopped = True
            end(world.store, first.plan, committed=False)
            told(world.store, first.plan, error)
            assert len(plain_rows(world.files, FEED)) == manifest_rows(world.store)
        flights.add(3, next(added))
        after_now(flights.source)
        retried = world.attempt(None)
        retried.commit(world.files)
        assert len(plain_rows(world.files, FEED)) == manifest_rows(world.store) == flights.rows()
        assert verify(world.store) == []
        assert world.files.names(world.store.layout.attempts) == []
        assert list(world.store.uploads()) == []
        return stopped

    assert steps(run) >= 3


def test_a_job_that_could_not_take_back_what_it_placed_is_helped_by_who_takes_its_result(
    outputs: Callable[[], Files], flights: Flights
) -> None:
    """A store fails at the manifest and goes on failing at the end: the files go with the result."""
    world = World(outputs(), flights)
    attempt = world.attempt(None)
    wrote: list[str] = []

    def fail(change: int) -> None:
        if wrote or world.files.sizes(world.store.layout.data):
            wrote.append("appeared")
            raise TransientError("the store does not answer")

    broken = ExportStore(world.files.root, FEED, files=stepped(world.files, fail))
    with pytest.raises(TransientError):
        attempt.write_manifests(broken.files)
    with pytest.raises(TransientError):
        end(broken, attempt.plan, committed=False)
    assert wrote
    assert plain_rows(world.files, FEED)
    told(world.store, attempt.plan, TransientError("no answer"))
    assert plain_rows(world.files, FEED) == []
    assert verify(world.store) == []


def test_killed_anywhere_a_commit_can_go_on(outputs: Callable[[], Files], flights: Flights) -> None:
    """The same attempt's commit, called again after a crash at any change, completes it."""

    def run(number: int) -> bool:
        world = World(outputs(), flights)
        world.attempt().commit(world.files)
        attempt, killed = world.attempt(), False
        try:
            attempt.commit(stepped(world.files, kill_at(number)))
        except Killed:
            killed = True
        attempt.commit(world.files)
        world.check_complete(attempt.plan.attempt)
        return killed

    assert steps(run) >= 8


def test_a_zombie_does_no_harm_at_any_step(outputs: Callable[[], Files], flights: Flights) -> None:
    """
    An older attempt stops before any of its changes, a newer one commits everything, the older one goes on.

    The newer one counts, and manifest readers never see none. Plain readers never see rows twice, on an
    object store but for the moment until the older one has looked again.
    """

    def run(number: int) -> bool:
        world = World(outputs(), flights)
        older, newer, interleaved = world.attempt(), world.attempt(), False
        most = {ROWS} if world.files.moves_folders else {ROWS, 2 * ROWS}

        def before(change: int) -> None:
            nonlocal interleaved
            if change == number:
                newer.commit(world.files)
                interleaved = True
            if change in (number, number + 1) or (interleaved and world.files.moves_folders):
                assert len(plain_rows(world.files, FEED)) in most
                assert manifest_rows(world.store) == ROWS

        assert world.commit(older, stepped(world.files, before)) or interleaved
        if not interleaved:
            return False
        world.check_complete(newer.plan.attempt)
        return True

    assert steps(run) >= 4


def test_a_newer_attempt_that_stops_anywhere_is_not_harmed(
    outputs: Callable[[], Files], flights: Flights
) -> None:
    """
    A newer attempt stops before any of its changes, an older one commits or is told; the newer one counts at
    last.
    """

    def run(number: int) -> bool:
        world = World(outputs(), flights)
        first = world.attempt()
        first.commit(world.files)
        older, newer, interleaved = world.attempt(), world.attempt(), False
        most = {0, ROWS} if world.files.moves_folders else {0, ROWS, 2 * ROWS}

        def before(change: int) -> None:
            nonlocal interleaved
            if change == number:
                interleaved = True
                world.commit(older)
            if change in (number, number + 1) or world.files.moves_folders:
                assert len(plain_rows(world.files, FEED)) in most
                assert manifest_rows(world.store) == ROWS

        newer.commit(stepped(world.files, before))
        world.check_complete(newer.plan.attempt)
        return interleaved

    assert steps(run) >= 8


def test_what_is_uploaded_while_a_newer_attempt_cleans_up_does_not_stay(flights: Flights) -> None:
    """An older attempt completes its uploads before any change of a newer one's commit, and dies."""

    def run(number: int) -> bool:
        world, has_died = World(uploading_files(), flights), False
        older, newer = world.attempt(), world.attempt()

        def before(change: int) -> None:
            nonlocal has_died
            if change == number:
                has_died = True
                with suppress(SupersededError):
                    world.store.place(older.plan.units[0].unit, older.plan.attempt, older.written.files)

        newer.commit(stepped(world.files, before))
        world.check_complete(newer.plan.attempt)
        return has_died

    assert steps(run) >= 4


def test_two_attempts_at_once_leave_the_newer_one(
    outputs: Callable[[], Files], flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Two threads replace the same units at the same time, again and again: the newer attempt always counts
    alone, and the older one is told so.
    """
    monkeypatch.setattr(store_module, "_REMOTE_THREADS", 4)
    for _ in range(3):
        world = World(outputs(), flights)
        world.attempt().commit(world.files)
        attempts = [world.attempt(), world.attempt()]
        barrier, errors = threading.Barrier(2), []

        def run(attempt: Attempt) -> None:
            barrier.wait()  # noqa: B023 - joined in its turn
            try:
                world.commit(attempt)  # noqa: B023 - joined in its turn
            except BaseException as error:
                errors.append(error)  # noqa: B023 - joined in its turn

        threads = [threading.Thread(target=run, args=(attempt,)) for attempt in attempts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert [manifest.attempt for manifest in world.store.list()] == [attempts[1].plan.attempt] * 2
        assert len(plain_rows(world.files, FEED)) == manifest_rows(world.store) == ROWS
        # What the older one had hidden while the newer one cleaned up goes with the next attempt.
        last = world.attempt()
        last.commit(world.files)
        world.check_complete(last.plan.attempt)


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
    attempts = [local.attempt() for _ in range(10)]
    thread.start()
    for attempt in attempts:
        attempt.commit(local.files)
    stop.set()
    thread.join()
    assert errors == []
    assert set(seen) == {ROWS}


def test_another_number_of_rows_commits_nothing(local: World) -> None:
    """Tasks that read fewer rows than were counted fail the commit of all units."""
    attempt = local.attempt()
    plan = replace(attempt.plan, units=(replace(attempt.plan.units[0], rows=ROWS + 1), attempt.plan.units[1]))
    with pytest.raises(IncompleteReadError, match="13 rows planned, 12 read"):
        replace(attempt, plan=plan).write_manifests(local.files)
    assert local.store.list() == []


def test_a_file_that_was_cut_since_its_task_wrote_it_is_not_committed(local: World) -> None:
    """Its size counts, not only that it is there."""
    attempt = local.attempt()
    (staged,) = attempt.written.files
    path = f"{local.store.layout.attempt(attempt.plan.attempt)}/{staged.path}"
    local.files.write(path, (local.files.read(path) or b"")[:-1])
    with pytest.raises(SupersededError, match="removed its file"):
        attempt.commit(local.files)
    assert [manifest.rows for manifest in local.store.list()] == [0]
