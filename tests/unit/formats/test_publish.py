# SPDX-License-Identifier: Apache-2.0
"""An export that is a table: killed at every change of files and table, retried, outlived and raced."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from airflow_changefeed.exceptions import (
    SupersededError,
    TableConflictError,
)
from airflow_changefeed.formats.base import LakeTable, TableChange, TableState
from airflow_changefeed.formats.publish import publish
from airflow_changefeed.output.attempts import end
from tests.clocks import after_now
from tests.unit.export.faults import Killed, kill_at, steps
from tests.unit.export.flights import Flights, hours
from tests.unit.formats.lakes import ROWS, Lake, check_whole

#: Kills while files and manifests are written are in ``tests/unit/export/test_commit.py``, without a table.
LONG = pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.nightly)])


@LONG
@pytest.mark.parametrize("is_replacement", [False, True])
def test_killed_anywhere_and_retried_the_table_has_each_window_once(
    lakes: Callable[[], Lake], is_replacement: bool, is_long: bool
) -> None:
    """
    Killed before any change of files, before or behind the commit: readers of the table see no window or all
    of it, also while it is replaced.
    """

    def run(number: int) -> bool:
        lake, killed = lakes(), False
        if is_replacement:
            lake.attempt(hours(0, 2)).run()
            assert lake.commits() == 1
        try:
            lake.attempt(hours(0, 2), run="task/1").run(kill_at(number), is_long=is_long)
        except Killed:
            killed = True
        assert len(lake.rows()) in ({ROWS} if is_replacement else {0, ROWS})
        lake.attempt(hours(0, 2), run="task/2").run()
        check_whole(lake, ROWS)
        assert lake.commits() <= (3 if is_replacement else 2)
        return killed

    assert steps(run) >= (6 if is_long else 3)


def test_a_commit_holds_whole_windows_of_all_shards(lakes: Callable[[], Lake], flights: Flights) -> None:
    """At each change of files the table has none or all of a run's rows; batches are published as well."""
    lake = lakes()
    lake.attempt(hours(0, 1)).run()
    seen: set[int] = set()
    lake.attempt(hours(1, 3)).run(lambda number: seen.add(len(lake.rows())))
    assert seen == {ROWS, ROWS + 3}
    assert {row[0] for row in lake.rows(["changefeed_shard"])} == {0, 1}
    batches = lakes()
    after_now(flights.source)
    batches.attempt(None).run()
    check_whole(batches, ROWS + 3)


def test_retries_of_a_window_are_one_commit(lake: Lake) -> None:
    """A try that comes after the table has the window finds no difference."""
    first = lake.attempt(hours(0, 1))
    first.run()
    for _ in range(5):
        assert not first.publish()
    assert lake.commits() == 1
    check_whole(lake, ROWS)


@LONG
def test_a_zombie_does_no_harm_at_any_step(lakes: Callable[[], Lake], is_long: bool) -> None:
    """An older attempt stops before any of its changes, a newer one does all of it, the older one goes on."""

    def run(number: int) -> bool:
        lake, interleaved = lakes(), False
        older, newer = lake.attempt(hours(0, 2)), lake.attempt(hours(0, 2))

        def before(change: int) -> None:
            nonlocal interleaved
            if change == number:
                newer.run()
                interleaved = True
            if interleaved:
                assert len(lake.rows()) == ROWS

        try:
            older.run(before, is_long=is_long)
        except SupersededError:
            end(lake.store, older.plan, committed=False)
            assert interleaved
        if interleaved:
            check_whole(lake, ROWS)
            assert {attempt for _, _, attempt in lake.table().look().files} == {newer.plan.attempt}
        return interleaved

    assert steps(run) >= (6 if is_long else 3)


def test_many_at_once_leave_every_window_once(lake: Lake) -> None:
    """Exporters of different windows, and of every third one two, commit to one table at once."""
    windows = 9
    for hour in range(3, windows):
        lake.flights.add(2, hour, shard=hour % 2)
    # A catalog in SQLite makes its own tables when it is first asked.
    assert lake.rows() == []
    attempts = [lake.attempt(hours(hour, hour + 1)) for hour in (*range(windows), *range(0, windows, 3))]
    problems: list[Exception] = []
    gate = threading.Barrier(len(attempts))

    def export(number: int) -> None:
        gate.wait()
        try:
            attempts[number].run()
        except SupersededError:
            pass
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=export, args=(number,)) for number in range(len(attempts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    publish(lake.store, lake.table(), None, "tests")
    check_whole(lake, ROWS + 3 + 2 * (windows - 3))


class _Losing:
    """A table whose first commits land, or do not, and whose answer is lost."""

    def __init__(self, table: LakeTable, *, lands: bool, times: int) -> None:
        self._table = table
        self._lands = lands
        self._times = times
        self.what = table.what
        self.look = table.look

    def commit(self, seen: TableState, change: TableChange) -> None:
        """Lose the answer."""
        if self._lands or not self._times:
            self._table.commit(seen, change)
        if self._times:
            self._times -= 1
            raise TableConflictError("no answer")


@pytest.mark.parametrize("lands", [False, True])
def test_a_commit_whose_answer_was_lost_is_noticed(lake: Lake, lands: bool) -> None:
    """The table says whether it landed."""
    attempt = lake.attempt(hours(0, 1))
    attempt.write()
    attempt.publish(_Losing(lake.table(), lands=lands, times=1))
    check_whole(lake, ROWS)
    assert lake.commits() == 1


def test_who_always_loses_gives_up_and_is_retried(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is transient, and nothing is half done."""
    monkeypatch.setattr("airflow_changefeed.formats.publish._MOST_WAIT", 0.001)
    attempt = lake.attempt(hours(0, 1), run="task/1")
    attempt.write()
    with pytest.raises(TableConflictError, match="no answer") as raised:
        attempt.publish(_Losing(lake.table(), lands=False, times=1000))
    assert raised.value.transient
    assert lake.rows() == []
    retry = lake.attempt(hours(0, 1), run="task/2")
    assert [planned.committed_by for planned in retry.plan.units] == [attempt.plan.attempt] * 2
    retry.run()
    check_whole(lake, ROWS)
