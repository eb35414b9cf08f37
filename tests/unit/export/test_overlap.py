# SPDX-License-Identifier: Apache-2.0
"""Attempts whose units overlap under different names, planned before either was committed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import OutputError
from tests.exports import verify
from tests.unit.export.faults import SteppedFiles, local_files, manifest_rows, plain_rows, remote_files
from tests.unit.export.flights import FEED, Flights, hours
from tests.unit.export.test_commit import ROWS, TWO, World

ONE = [Window(TWO[0].start, TWO[1].end)]
CUTS = pytest.mark.parametrize("windows", [(TWO, ONE), (ONE, TWO)])
_MOST_CHANGES = 60


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """Twelve events over two hours."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(ROWS, 0, length=2)
    return flights


@pytest.fixture
def world(tmp_path: Path, flights: Flights) -> World:
    """A local output."""
    return World(local_files(tmp_path / "out"), flights)


def rows(world: World) -> int:
    """The rows that readers of manifests and plain readers find."""
    found = manifest_rows(world.store)
    assert found == len(plain_rows(world.files, FEED))
    return found


@CUTS
def test_of_two_cuts_the_first_one_committed_counts(
    tmp_path: Path, flights: Flights, windows: tuple[list[Window], list[Window]]
) -> None:
    """Hours and a window of both hours are planned; whichever comes later is told, whatever its token."""
    for first in (0, 1):
        world = World(local_files(tmp_path / f"out{first}"), flights)
        attempts = [world.attempt(each) for each in windows]
        assert world.commit(attempts[first])
        assert not world.commit(attempts[1 - first])
        assert (verify(world.store), rows(world)) == ([], ROWS)
        with pytest.raises(OutputError, match="with other boundaries"):
            world.attempt(windows[1 - first])


@CUTS
def test_two_cuts_interleaved_anywhere_are_never_both_committed(
    tmp_path: Path, flights: Flights, windows: tuple[list[Window], list[Window]]
) -> None:
    """One attempt stops before any of its changes, the other one commits, the first goes on: no row twice."""
    for stopped in (0, 1):
        for number in range(_MOST_CHANGES):
            world = World(local_files(tmp_path / f"out{stopped}-{number}"), flights)
            attempts = [world.attempt(each) for each in windows]
            told: list[bool] = []

            def before(change: int) -> None:
                if change == number:  # noqa: B023 - over in its turn
                    told.append(world.commit(attempts[1 - stopped]))  # noqa: B023 - over in its turn

            done = world.commit(attempts[stopped], SteppedFiles(world.files, before))
            if not told:
                assert done
                break
            assert not (done and told[0])
            kept = {manifest.unit for manifest in world.store.list()}
            for attempt, counts in ((attempts[stopped], done), (attempts[1 - stopped], told[0])):
                assert not counts or {planned.unit for planned in attempt.plan.units} <= kept
            assert {fault.kind for fault in verify(world.store)} <= {FaultKind.WINDOW_MISSING}
            assert rows(world) <= ROWS
        else:
            raise AssertionError("more changes than expected")
        assert number >= 6


def test_a_batch_that_outlived_its_task_is_not_added_to_a_longer_one(world: World) -> None:
    """A zombie's batch from the same cursor begins the longer one that was committed: it is told."""
    zombie = world.attempt(None)
    world.flights.add(3, 5)
    newer = world.attempt(None)
    assert zombie.plan.units[0].unit.range.upto < newer.plan.units[0].unit.range.upto
    assert world.commit(newer)
    assert not world.commit(zombie)
    assert (verify(world.store), rows(world)) == ([], ROWS + 3)


def test_a_far_batch_is_seen(world: World) -> None:
    """
    A batch is filed under its last day: one of months is found from a window of its first hour. Both found
    the output unclaimed, and the claim is lost.
    """
    world.flights.add(1, 24 * 90)
    batch = world.attempt(None)
    world.files.remove_file(world.store.layout.claim)
    window = world.attempt(hours(0, 1))
    world.files.remove_file(world.store.layout.claim)
    assert world.commit(batch)
    assert not world.commit(window)
    (fault,) = verify(world.store)
    assert fault.kind is FaultKind.CLAIM_MISSING


def test_batches_one_after_another_do_not_disturb_each_other(world: World) -> None:
    """The next batch begins where the last one ends, and a batch that is repeated replaces its own."""
    assert world.commit(world.attempt(None))
    world.flights.add(3, 5)
    again = world.attempt(None)
    assert len(again.plan.units) == 2
    assert world.commit(again)
    world.flights.move({0: again.plan.units[-1].unit.range.upto})
    world.flights.add(2, 30)
    assert world.commit(world.attempt(None))
    assert rows(world) == ROWS + 5


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_two_cuts_at_once_are_never_both_committed(tmp_path: Path, flights: Flights, kind: str) -> None:
    """Two threads commit at the same time, again and again: never both, and a retry brings the rest."""
    for turn in range(10):
        files = local_files(tmp_path / f"out{turn}") if kind == "local" else remote_files()
        world = World(files, flights)
        attempts = [world.attempt(TWO), world.attempt(ONE)]
        barrier, results = threading.Barrier(2), [False, False]

        def run(number: int) -> None:
            barrier.wait()  # noqa: B023 - over in its turn
            results[number] = world.commit(attempts[number])  # noqa: B023 - over in its turn

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not all(results)
        if not any(results):
            units = [unit for shard in world.store.shards() for unit in world.store.units(shard)]
            assert world.commit(world.attempt(TWO if units else ONE))
        assert verify(world.store) == []
        assert manifest_rows(world.store) == ROWS
