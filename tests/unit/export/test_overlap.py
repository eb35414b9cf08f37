# SPDX-License-Identifier: Apache-2.0
"""Attempts whose units overlap under different names, planned before either was committed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.plan import Plan
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import OutputError, SupersededError
from airflow_changefeed.output.attempts import begin, end, forget
from airflow_changefeed.output.commit import Commit
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.files import Files
from tests.exports import verify
from tests.unit.export.faults import SteppedFiles, local_files, manifest_rows, plain_rows, remote_files
from tests.unit.export.flights import FEED, Flights, hours

ROWS = 12
TWO_HOURS = [Window(hours(0, 1)[0].start, hours(1, 2)[0].end)]
_MOST_CHANGES = 60


class Attempt:
    """One attempt: planned and written, not committed."""

    def __init__(self, flights: Flights, files: Files, windows: list[Window] | None) -> None:
        store = ExportStore(files.root, FEED, files=files)
        self.files = files
        self.plan: Plan = flights.plan(store, windows)
        begin(store, self.plan)
        tasks = ExportStore(str(flights.path.parent / "tasks"), FEED)
        self.written = list(flights.write(tasks, self.plan))
        for file in (file for written in self.written for file in written.files):
            content = tasks.files.read(f"{tasks.layout.attempt(self.plan.attempt)}/{file.path}")
            store.files.write(f"{store.layout.attempt(self.plan.attempt)}/{file.path}", content)

    def commit(self, files: Files | None = None) -> bool:
        """Commit it as a driver does; False when it does not count."""
        store = ExportStore(self.files.root, FEED, files=files or self.files)
        try:
            commit = Commit(store, self.plan)
            for written in self.written:
                commit.add(written)
            commit.finish()
        except SupersededError:
            end(ExportStore(self.files.root, FEED, files=self.files), self.plan, committed=False)
            return False
        end(store, self.plan, committed=True)
        forget(store, [self.plan.attempt])
        return True


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """Twelve events over two hours."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(ROWS, 0, length=2)
    return flights


def _check(files: Files, *, committed: bool) -> None:
    store = ExportStore(files.root, FEED, files=files)
    assert verify(store) == []
    assert manifest_rows(store) == (ROWS if committed else 0)


@pytest.mark.parametrize("windows", [(hours(0, 2), TWO_HOURS), (TWO_HOURS, hours(0, 2))])
def test_of_two_cuts_the_first_one_committed_counts(
    tmp_path: Path, flights: Flights, windows: tuple[list[Window], list[Window]]
) -> None:
    """Hours and a window of both hours are planned; whichever comes later is told, whatever its token."""
    for first in (0, 1):
        files = local_files(tmp_path / f"out{first}")
        attempts = [Attempt(flights, files, each) for each in windows]
        assert attempts[first].commit()
        assert not attempts[1 - first].commit()
        _check(files, committed=True)
        assert len(plain_rows(files, FEED)) == ROWS
        with pytest.raises(OutputError, match="with other boundaries"):
            Attempt(flights, files, windows[1 - first])


@pytest.mark.parametrize("windows", [(hours(0, 2), TWO_HOURS), (TWO_HOURS, hours(0, 2))])
def test_two_cuts_interleaved_anywhere_are_never_both_committed(
    tmp_path: Path, flights: Flights, windows: tuple[list[Window], list[Window]]
) -> None:
    """One attempt stops before any of its changes, the other one commits, the first goes on: no row twice."""
    for stopped in (0, 1):
        for number in range(_MOST_CHANGES):
            files = local_files(tmp_path / f"out{stopped}-{number}")
            attempts = [Attempt(flights, files, each) for each in windows]
            told: list[bool] = []

            def before(change: int) -> None:
                if change == number:  # noqa: B023 - over in its turn
                    told.append(attempts[1 - stopped].commit())  # noqa: B023 - over in its turn

            done = attempts[stopped].commit(SteppedFiles(files, before))
            if not told:
                assert done
                break
            assert not (done and told[0])
            store = ExportStore(files.root, FEED, files=files)
            kept = {manifest.unit for manifest in store.list()}
            for attempt, counts in ((attempts[stopped], done), (attempts[1 - stopped], told[0])):
                assert not counts or {planned.unit for planned in attempt.plan.units} <= kept
            assert {fault.kind for fault in verify(store)} <= {FaultKind.WINDOW_MISSING}
            assert manifest_rows(store) == len(plain_rows(files, FEED)) <= ROWS
        else:
            raise AssertionError("more changes than expected")
        assert number >= 6


def test_a_batch_that_outlived_its_task_is_not_added_to_a_longer_one(
    tmp_path: Path, flights: Flights
) -> None:
    """A zombie's batch from the same cursor begins the longer one that was committed: it is told."""
    files = local_files(tmp_path / "out")
    zombie = Attempt(flights, files, None)
    flights.add(3, 5)
    newer = Attempt(flights, files, None)
    assert zombie.plan.units[0].unit.range.upto < newer.plan.units[0].unit.range.upto
    assert newer.commit()
    assert not zombie.commit()
    store = ExportStore(files.root, FEED, files=files)
    assert manifest_rows(store) == len(plain_rows(files, FEED)) == ROWS + 3
    assert verify(store) == []


def test_a_far_batch_is_seen(tmp_path: Path, flights: Flights) -> None:
    """
    A batch is filed under its last day: one of months is found from a window of its first hour. Both found
    the output unclaimed, and the claim is lost.
    """
    flights.add(1, 24 * 90)
    files = local_files(tmp_path / "out")
    batch = Attempt(flights, files, None)
    claim = ExportStore(files.root, FEED, files=files).layout.claim
    files.remove_file(claim)
    window = Attempt(flights, files, hours(0, 1))
    files.remove_file(claim)
    assert batch.commit()
    assert not window.commit()
    (fault,) = verify(ExportStore(files.root, FEED, files=files))
    assert fault.kind is FaultKind.CLAIM_MISSING


def test_batches_one_after_another_do_not_disturb_each_other(tmp_path: Path, flights: Flights) -> None:
    """The next batch begins where the last one ends, and a batch that is repeated replaces its own."""
    files = local_files(tmp_path / "out")
    first = Attempt(flights, files, None)
    assert first.commit()
    flights.add(3, 5)
    again = Attempt(flights, files, None)
    assert len(again.plan.units) == 2
    assert again.commit()
    flights.move({0: again.plan.units[-1].unit.range.upto})
    flights.add(2, 30)
    assert Attempt(flights, files, None).commit()
    assert manifest_rows(ExportStore(files.root, FEED, files=files)) == ROWS + 5


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_two_cuts_at_once_are_never_both_committed(tmp_path: Path, flights: Flights, kind: str) -> None:
    """Two threads commit at the same time, again and again: never both, and a retry brings the rest."""
    for turn in range(10):
        files = local_files(tmp_path / f"out{turn}") if kind == "local" else remote_files()
        attempts = [Attempt(flights, files, hours(0, 2)), Attempt(flights, files, TWO_HOURS)]
        barrier, results = threading.Barrier(2), [False, False]

        def run(number: int) -> None:
            barrier.wait()  # noqa: B023 - over in its turn
            results[number] = attempts[number].commit()  # noqa: B023 - over in its turn

        threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not all(results)
        store = ExportStore(files.root, FEED, files=files)
        if not any(results):
            units = [unit for shard in store.shards() for unit in store.units(shard)]
            assert Attempt(flights, files, hours(0, 2) if units else TWO_HOURS).commit()
        _check(files, committed=True)
