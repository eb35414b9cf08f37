# SPDX-License-Identifier: Apache-2.0
"""An export that is a table: killed at every change of files and table, retried, outlived and raced."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import (
    ManifestError,
    OutputError,
    SupersededError,
    TableConflictError,
    TableError,
)
from airflow_changefeed.output import store as store_module
from airflow_changefeed.output.attempts import end
from airflow_changefeed.output.schemas import schema_text
from airflow_changefeed.tables.base import UNKNOWN, LakeTable, TableChange, TableState
from airflow_changefeed.tables.clean import clean
from airflow_changefeed.tables.open import FORMATS
from airflow_changefeed.tables.publish import differences, publish
from airflow_changefeed.verify.verify import verify, verify_export
from tests.clocks import after_now
from tests.unit.export.faults import Killed, kill_at, manifest_rows
from tests.unit.export.flights import FEED, Flights, hours
from tests.unit.tables.formats import OPTIONS
from tests.unit.tables.lakes import Lake, SteppedTable

ROWS = 12
_MOST_CHANGES = 80


@pytest.fixture(params=FORMATS)
def lakes(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Flights], Lake]:
    """What makes new outputs."""
    numbers = count()
    return lambda flights: Lake(tmp_path / f"lake{next(numbers)}", request.param, flights)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is killed at a step has no other threads that are further."""
    monkeypatch.setattr(store_module, "_REMOTE_THREADS", 1)


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """Two shards: twelve events in the first hour, none in the second, three in the third."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(ROWS - 5, 0, shard=0)
    flights.add(5, 0, shard=1)
    flights.add(3, 2, shard=1)
    return flights


def _steps(run: Callable[[int], bool]) -> int:
    """Run with growing numbers of a step until one is beyond the last; return how many there were."""
    for number in range(_MOST_CHANGES):
        if not run(number):
            return number
    raise AssertionError("more changes than expected")


def _check_whole(lake: Lake, rows: int) -> None:
    """Table and manifests have the same rows, each once, and nothing is wrong."""
    found = lake.rows()
    assert len(found) == len(set(found)) == manifest_rows(lake.store) == rows
    assert differences(lake.store, lake.table()) == []
    assert [fault for fault in verify(lake.store) if fault.severity.name != "NOTE"] == []


#: Kills while files and manifests are written are in ``tests/unit/export/test_commit.py``, without a table.
LONG = pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.soak)])


@LONG
@pytest.mark.parametrize("is_replacement", [False, True])
def test_killed_anywhere_and_retried_the_table_has_each_window_once(
    lakes: Callable[[Flights], Lake], flights: Flights, is_replacement: bool, is_long: bool
) -> None:
    """
    Killed before any change of files, before or behind the commit: readers of the table see no window or all
    of it, also while it is replaced.
    """

    def run(number: int) -> bool:
        lake, killed = lakes(flights), False
        if is_replacement:
            lake.attempt(hours(0, 2)).run()
            assert lake.commits() == 1
        try:
            lake.attempt(hours(0, 2), run="task/1").run(kill_at(number), is_long=is_long)
        except Killed:
            killed = True
        assert len(lake.rows()) in ({ROWS} if is_replacement else {0, ROWS})
        lake.attempt(hours(0, 2), run="task/2").run()
        _check_whole(lake, ROWS)
        assert lake.commits() <= (3 if is_replacement else 2)
        return killed

    assert _steps(run) >= (6 if is_long else 3)


def test_a_commit_holds_whole_windows_of_all_shards(
    lakes: Callable[[Flights], Lake], flights: Flights
) -> None:
    """At each change of files the table has none or all of a run's rows."""
    lake = lakes(flights)
    lake.attempt(hours(0, 1)).run()
    seen: set[int] = set()
    lake.attempt(hours(1, 3)).run(lambda number: seen.add(len(lake.rows())))
    assert seen == {ROWS, ROWS + 3}
    assert {row[0] for row in lake.rows(["changefeed_shard"])} == {0, 1}


def test_retries_of_a_window_are_one_commit(lakes: Callable[[Flights], Lake], flights: Flights) -> None:
    """A try that comes after the table has the window finds no difference."""
    lake = lakes(flights)
    first = lake.attempt(hours(0, 1))
    first.run()
    for _ in range(10):
        assert not first.publish()
    assert lake.commits() == 1
    _check_whole(lake, ROWS)


@LONG
def test_a_zombie_does_no_harm_at_any_step(
    lakes: Callable[[Flights], Lake], flights: Flights, is_long: bool
) -> None:
    """An older attempt stops before any of its changes, a newer one does all of it, the older one goes on."""

    def run(number: int) -> bool:
        lake, interleaved = lakes(flights), False
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
            _check_whole(lake, ROWS)
            assert {attempt for _, _, attempt in lake.table().look().files} == {newer.plan.attempt}
        return interleaved

    assert _steps(run) >= (6 if is_long else 3)


def test_many_at_once_leave_every_window_once(lakes: Callable[[Flights], Lake], flights: Flights) -> None:
    """Exporters of different windows and of the same ones commit to one table at once."""
    for hour in range(3, 9):
        flights.add(2, hour, shard=hour % 2)
    lake = lakes(flights)
    # A catalog in SQLite makes its own tables when it is first asked.
    assert lake.rows() == []
    attempts = [lake.attempt(hours(hour, hour + 1)) for hour in (*range(9), 0, 2, 5)]
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
    _check_whole(lake, ROWS + 3 + 12)


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
def test_a_commit_whose_answer_was_lost_is_noticed(
    lakes: Callable[[Flights], Lake], flights: Flights, lands: bool
) -> None:
    """The table says whether it landed."""
    lake = lakes(flights)
    attempt = lake.attempt(hours(0, 1))
    attempt.write()
    attempt.publish(_Losing(lake.table(), lands=lands, times=1))
    _check_whole(lake, ROWS)
    assert lake.commits() == 1


def test_who_always_loses_gives_up_and_is_retried(
    lakes: Callable[[Flights], Lake], flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is transient, and nothing is half done."""
    monkeypatch.setattr("airflow_changefeed.tables.publish._MOST_WAIT", 0.001)
    lake = lakes(flights)
    attempt = lake.attempt(hours(0, 1), run="task/1")
    attempt.write()
    with pytest.raises(TableConflictError, match="no answer") as raised:
        attempt.publish(_Losing(lake.table(), lands=False, times=1000))
    assert raised.value.transient
    assert lake.rows() == []
    retry = lake.attempt(hours(0, 1), run="task/2")
    assert [planned.committed_by for planned in retry.plan.units] == [attempt.plan.attempt] * 2
    retry.run()
    _check_whole(lake, ROWS)


def test_a_window_that_became_empty_leaves_the_table(
    lakes: Callable[[Flights], Lake], flights: Flights
) -> None:
    """A replacement without rows removes the files, and adds none."""
    lake = lakes(flights)
    lake.attempt(hours(0, 3)).run()
    units = [manifest.unit for manifest in lake.store.list() if manifest.unit.shard == 1 and manifest.files]
    assert units
    for unit in units:
        for token in lake.store.attempts_of(unit):
            lake.store.withdraw(unit, token)
    publish(lake.store, lake.table(), None, "tests")
    assert len(lake.rows()) == ROWS - 5


def test_a_table_begins_with_the_first_columns_that_are_known(
    lakes: Callable[[Flights], Lake], flights: Flights
) -> None:
    """Of an idle hour's job they are not always; where they are, a reader finds no rows, not no table."""
    lake = lakes(flights)
    attempt = lake.attempt(hours(1, 2))
    attempt.write()
    assert not attempt.publish()
    assert lake.table().look().version is None
    columns = schema_text(pa.schema([("changefeed_ulid", pa.string())]))
    for manifest in lake.store.list():
        lake.store.write(replace(manifest, attempt=manifest.attempt + 1, schema=columns))
    assert publish(lake.store, lake.table(), None, "tests")
    assert lake.rows() == []
    assert lake.table().look().schema == pa.schema([("changefeed_ulid", pa.string())])


def test_batches_are_published_as_windows_are(lakes: Callable[[Flights], Lake], flights: Flights) -> None:
    """One after the other, from the cursor."""
    lake = lakes(flights)
    after_now(flights.source)
    lake.attempt(None).run()
    _check_whole(lake, ROWS + 3)


def test_another_cut_is_refused_by_the_table_too(lakes: Callable[[Flights], Lake], flights: Flights) -> None:
    """Where the manifests of the first cut are gone, but the table still has its files."""
    lake = lakes(flights)
    lake.attempt(hours(0, 1)).run()
    for manifest in lake.store.list():
        lake.store.remove_manifest(manifest.unit, manifest.attempt)
    wider = lake.attempt([Window(hours(0, 2)[0].start, hours(0, 2)[1].end)])
    wider.write()
    with pytest.raises(TableError, match="which overlaps units that are to be committed"):
        wider.publish()


def test_units_that_overlap_are_not_published(lakes: Callable[[Flights], Lake], flights: Flights) -> None:
    """An output of before the check, or restored; verify names them, as it does without a table."""
    lake = lakes(flights)
    lake.attempt(hours(0, 1)).run()
    kept = lake.store.list()
    for manifest in kept:
        lake.store.remove_manifest(manifest.unit, manifest.attempt)
    lake.attempt([Window(hours(0, 2)[0].start, hours(0, 2)[1].end)]).write()
    for manifest in kept:
        lake.store.write(manifest)
    with pytest.raises(TableError, match=r"overlaps .* would get their common rows twice"):
        publish(lake.store, lake.table(), None, "tests")
    report = verify_export(lake.store.path, FEED, table=lake.table())
    assert FaultKind.UNITS_OVERLAP in {fault.kind for fault in report.faults}


def test_rows_that_somebody_deleted_are_noticed_and_come_back(
    lakes: Callable[[Flights], Lake], flights: Flights
) -> None:
    """As the files that have lost some are others."""
    lake = lakes(flights)
    lake.attempt(hours(0, 3)).run()
    lake.library.delete(f"changefeed_ulid = '{lake.rows()[0][0]}'")
    assert len(lake.rows()) == ROWS + 2
    found = differences(lake.store, lake.table())
    assert len(found) == 2
    assert re.match(r"it lacks [57] rows of shard", found[0])
    assert found[1].endswith("which is of no committed unit")
    assert publish(lake.store, lake.table(), None, "tests")
    _check_whole(lake, ROWS + 3)


class _Forgetful:
    """A table that does not say how many rows a unit has, as some commits of others do not."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self.what = table.what
        self.commit = table.commit

    def look(self) -> TableState:
        """Return the same files, without their rows."""
        seen = self._table.look()
        return replace(seen, rows=dict.fromkeys(seen.files, UNKNOWN))


def test_rows_that_are_gone_from_our_own_files_are_named(
    lakes: Callable[[Flights], Lake], flights: Flights
) -> None:
    """The files are there; only a new attempt at the unit brings the rows back."""
    lake = lakes(flights)
    attempt = lake.attempt(hours(0, 1))
    attempt.run()
    table = _Forgetful(lake.table())
    assert [each.partition(" of ")[0] for each in differences(lake.store, table)] == ["it has other rows"] * 2
    with pytest.raises(TableError, match=r"somebody deleted some\. Export the unit again"):
        attempt.publish(table)


def test_manifests_that_are_older_than_the_table_are_refused(
    lakes: Callable[[Flights], Lake], flights: Flights
) -> None:
    """They were restored, or a newer attempt is being committed."""
    lake = lakes(flights)
    first = lake.attempt(hours(0, 1))
    first.run()
    kept = {manifest.unit: manifest for manifest in lake.store.list()}
    second = lake.attempt(hours(0, 1))
    second.run()
    for unit, manifest in kept.items():
        lake.store.remove_manifest(unit, second.plan.attempt)
        lake.store.write(manifest)
    with pytest.raises(SupersededError, match=f"has attempt {second.plan.attempt} at .* restored"):
        first.publish()


def test_a_unit_that_is_not_committed_is_not_published(
    lakes: Callable[[Flights], Lake], flights: Flights
) -> None:
    """It is named, and the table stays as it is."""
    lake = lakes(flights)
    attempt = lake.attempt(hours(0, 1))
    with pytest.raises(ManifestError, match=r"2 of 2 units .* are not committed, the first shard 0"):
        attempt.publish()
    assert lake.table().look().version is None


def test_an_output_keeps_its_format(lakes: Callable[[Flights], Lake], flights: Flights) -> None:
    """Both ways; until somebody publishes what is there as a table."""
    lake = lakes(flights)
    lake.attempt(hours(0, 1)).run()
    with pytest.raises(OutputError, match=f"as {lake.kind}.* asked for as parquet: an output keeps"):
        flights.plan(lake.store, hours(1, 2))
    plain = lakes(flights)
    flights.export(plain.store, hours(0, 1))
    with pytest.raises(OutputError, match=f"as parquet, and it was asked for as {lake.kind}"):
        plain.attempt(hours(1, 2))
    plain.store.become_table(OPTIONS[plain.kind])
    assert publish(plain.store, plain.table(), None, "tests")
    plain.attempt(hours(1, 3)).run()
    _check_whole(plain, ROWS + 3)


def test_what_was_replaced_is_read_until_it_is_cleaned(
    lakes: Callable[[Flights], Lake], flights: Flights
) -> None:
    """A reader of the older version finds its files; cleaning removes those, and of failed attempts."""
    lake = lakes(flights)
    first = lake.attempt(hours(0, 1))
    first.run()
    # A job that is killed once its files are placed.
    killed = lake.attempt(hours(0, 1))
    with pytest.raises(Killed):
        killed.run(kill_at(4))
    second = lake.attempt(hours(0, 1))
    second.run()
    files = set(lake.store.files.sizes(lake.store.layout.data))
    old = {name for name in files if f"changefeed_attempt={first.plan.attempt}/" in name}
    assert len(old) == 2
    assert not old & set(clean(lake.store, lake.table(), 1))
    removed = set(clean(lake.store, lake.table(), 0))
    assert old <= removed
    assert not any(f"changefeed_attempt={second.plan.attempt}/" in name for name in removed)
    assert not removed & set(lake.store.files.sizes(lake.store.layout.data))
    _check_whole(lake, ROWS)
    assert verify(lake.store) == []


def test_cleaning_leaves_what_a_running_attempt_has_placed(
    lakes: Callable[[Flights], Lake], flights: Flights
) -> None:
    """Also between its manifests and the table's commit."""
    lake = lakes(flights)
    lake.attempt(hours(0, 1)).run()
    running = lake.attempt(hours(0, 2))
    for changes in (3, 5, 7):
        with pytest.raises(Killed):
            running.run(kill_at(changes))
        assert all("attempt=" in name for name in clean(lake.store, lake.table(), 0))
    running.write()
    clean(lake.store, lake.table(), 0)
    running.publish()
    _check_whole(lake, ROWS)


def test_a_table_that_was_lost_is_made_again(lakes: Callable[[Flights], Lake], flights: Flights) -> None:
    """From the manifests alone."""
    lake = lakes(flights)
    lake.attempt(hours(0, 3)).run()
    lake.library.lose()
    assert len(differences(lake.store, lake.table())) == 3
    assert publish(lake.store, lake.table(), None, "tests")
    _check_whole(lake, ROWS + 3)


def test_an_unused_step_of_the_table_is_not_hidden(
    lakes: Callable[[Flights], Lake], flights: Flights
) -> None:
    """The test's own table counts its commits: one, with a step before it and one behind."""
    lake, steps = lakes(flights), []
    attempt = lake.attempt(hours(0, 1))
    attempt.write()
    attempt.publish(SteppedTable(lake.table(), lambda: steps.append(len(lake.rows()))))
    assert steps == [0, ROWS]
    assert lake.store.feed == FEED
