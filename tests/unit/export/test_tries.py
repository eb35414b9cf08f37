# SPDX-License-Identifier: Apache-2.0
"""Tries of one task: what an earlier one has committed is not done again, until the task has finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_changefeed.core.export_plan import ExportOptions, Plan
from airflow_changefeed.exceptions import (
    ConnectionNotUsableError,
    InvalidArgumentError,
    MissingEventError,
    OutputNotWritableError,
    SpecNotFoundError,
    SupersededError,
    SymbolicLinkError,
    TerminalError,
)
from airflow_changefeed.export.job_spec import (
    Draws,
    read_job,
    read_receipt,
    read_spec,
    remove_spec,
    start_plan,
    write_job,
    write_receipt,
    write_spec,
)
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.result import ExportResult, attempts_of
from airflow_changefeed.output.attempts import begin, end, forget, read_start
from airflow_changefeed.output.commit import Commit
from airflow_changefeed.output.store import ExportStore
from tests.exports import verify
from tests.unit.export.faults import (
    Killed,
    SteppedFiles,
    kill_at,
    local_files,
    manifest_rows,
    plain_rows,
    remote_files,
)
from tests.unit.export.flights import FEED, Flights, hours

pytestmark = pytest.mark.usefixtures("commits_at_once")

ROWS, UNITS = 36, 6
OTHER = "91bc0d22-0000-4000-8000-c0ffee000002"
_MOST_CHANGES = 200


def quiet(line: str) -> None:
    """Hear nothing."""


def plan(flights: Flights, store: ExportStore, attempt: int = 1, task: str = "task", **more: object) -> Plan:
    """Plan three hours of two shards as a try of one task."""
    return flights.plan(store, hours(0, 3), run=f"{task}/{attempt}", **more)  # type: ignore[arg-type]


def left(made: Plan) -> int:
    """How many units are still to be written."""
    return sum(1 for planned in made.units if not planned.committed_by)


@pytest.fixture
def store(tmp_path: Path) -> ExportStore:
    """An output."""
    return ExportStore(str(tmp_path / "out"), FEED)


@pytest.fixture
def failed(flights: Flights, store: ExportStore) -> Plan:
    """A first try that failed at the last hour of a shard, where the row of an event was missing."""
    first = plan(flights, store)
    flights.execute(f'delete from "{FEED}" where id = 30')
    with pytest.raises(MissingEventError):
        run_here(flights.source, store, first, quiet)
    return first


def test_a_retry_does_what_is_left(flights: Flights, store: ExportStore, failed: Plan) -> None:
    """And says what both have done; nothing of the tries is left when the task has finished."""
    flights.execute(f'insert into "{FEED}" (id, origin) values (30, ?)', "JFK")
    done = len(store.list())
    assert 0 < done < UNITS
    retry = plan(flights, store, 2)
    assert (left(retry), len(retry.units)) == (UNITS - done, UNITS)
    assert sum(planned.rows for planned in retry.units) == ROWS
    before = {manifest.unit: manifest for manifest in store.list()}
    result = run_here(flights.source, store, retry, quiet)
    assert (result.units, result.rows, len(result.manifests)) == (UNITS, ROWS, UNITS)
    assert result.size == sum(manifest.size for manifest in store.list())
    assert {unit: store.read(unit) for unit in before} == before
    forget(store, attempts_of(result))
    assert verify(store) == []
    assert store.files.names(store.layout.attempts) == []
    assert manifest_rows(store) == len(plain_rows(store.files, FEED)) == ROWS


@pytest.mark.parametrize("cause", ["refused", "link"])
def test_a_start_that_may_not_be_read_is_not_that_of_an_attempt_that_has_ended(
    flights: Flights, store: ExportStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """It may still write: what would clean up after it stops with the error instead."""
    running = plan(flights, store)
    begin(store, running)
    start = Path(store.layout.start(running.attempt))
    if cause == "link":
        start.rename(tmp_path / "elsewhere.json")
        start.symlink_to(tmp_path / "elsewhere.json")
    else:
        refused = OutputNotWritableError(f"{start} cannot be used: 403", path=str(start))
        monkeypatch.setattr(type(store.files), "read", lambda *_: (_ for _ in ()).throw(refused))
    with pytest.raises((OutputNotWritableError, SymbolicLinkError)):
        read_start(store, running.attempt)


def test_a_task_that_has_finished_and_is_cleared_exports_again(flights: Flights, store: ExportStore) -> None:
    """Killed before it could say that it finished, its retry has nothing to do; cleared later, everything."""
    first = run_here(flights.source, store, plan(flights, store), quiet)
    assert left(plan(flights, store, 2)) == 0
    forget(store, attempts_of(first))
    assert left(plan(flights, store, 3)) == UNITS


def _other_options(flights: Flights, store: ExportStore) -> Plan:
    return plan(flights, store, 2, options=ExportOptions(compression="gzip"))


def _other_task(flights: Flights, store: ExportStore) -> Plan:
    return plan(flights, store, 2, task="other")


def _damaged(flights: Flights, store: ExportStore) -> Plan:
    for name in store.files.sizes(store.layout.data):
        store.files.write(f"{store.layout.data}/{name}", b"")
    return plan(flights, store, 2)


def _history(flights: Flights, store: ExportStore) -> Plan:
    flights.execute(f'insert into "{FEED}" (id, origin) values (100, ?)', "JFK")
    flights.source.insert_history(FEED, 1, [(hours(2, 3)[0].start, (100,))], reason="late")
    return plan(flights, store, 2)


def _other_database(flights: Flights, store: ExportStore) -> Plan:
    for manifest in store.list():
        store.write(replace(manifest, database="of a copy"))
    return plan(flights, store, 2)


@pytest.mark.parametrize(
    ("otherwise", "units"),
    [(_other_options, UNITS), (_other_task, UNITS), (_other_database, UNITS), (_damaged, 4), (_history, 3)],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_may_differ_is_written_again(
    flights: Flights, store: ExportStore, otherwise: Callable[[Flights, ExportStore], Plan], units: int
) -> None:
    """By another task or database, with other options, of files that are not whole, or before history."""
    run_here(flights.source, store, plan(flights, store), quiet)
    retry = otherwise(flights, store)
    assert left(retry) == units
    result = run_here(flights.source, store, retry, quiet)
    forget(store, attempts_of(result))
    assert verify(store) == []
    assert manifest_rows(store) == len(plain_rows(store.files, FEED)) == flights.rows()


def test_history_behind_other_history_is_written_again(flights: Flights, store: ExportStore) -> None:
    """Of several marks the last one counts."""
    plan(flights, store)  # history comes before a seal
    run_here(flights.source, store, _history(flights, store), quiet)
    assert left(plan(flights, store, 3)) == 0
    flights.execute(f'insert into "{FEED}" (id, origin) values (101, ?)', "JFK")
    flights.source.insert_history(FEED, 1, [(hours(2, 3)[0].start, (101,))], reason="later")
    assert left(plan(flights, store, 4)) == 3


def test_a_spec_is_run_where_it_lies_whatever_path_it_says(flights: Flights, store: ExportStore) -> None:
    """Who can write there must not have our files elsewhere."""
    uri = write_spec(store, replace(plan(flights, store), path="/elsewhere"))
    assert read_spec(uri)[1].path == store.files.root


def test_a_job_that_names_a_spec_of_elsewhere_is_refused(store: ExportStore, tmp_path: Path) -> None:
    """Who can write it there must not have ours run what lies at another place."""
    other = ExportStore(str(tmp_path / "other"), FEED)
    uri = write_job(store, [other.files.url(other.layout.spec(1))])
    with pytest.raises(TerminalError, match="is not below"):
        read_job(uri)


def test_a_token_that_a_spec_has_is_not_drawn_again(flights: Flights, store: ExportStore) -> None:
    """As behind a restore of the database: what was left by that plan's job would count for this one."""
    store.files.write(store.layout.spec(70), b"{}")
    assert plan(flights, store).attempt == 71


@pytest.mark.parametrize("is_local", [True, False])
def test_killed_anywhere_again_and_again_each_unit_is_written_about_once(
    flights: Flights, tmp_path: Path, is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each second try is killed a change further than the last one: together they write hardly more than once,
    and what they leave is what no kill leaves.
    """
    monkeypatch.setattr("airflow_changefeed.output.store._REMOTE_THREADS", 1)
    files = local_files(tmp_path / "out") if is_local else remote_files()
    store = ExportStore(files.root, FEED, files=files)
    written = 0
    for attempt in range(1, _MOST_CHANGES):
        made = plan(flights, store, attempt)
        committed = {manifest.unit for manifest in store.list()}
        try:
            stepped = ExportStore(
                files.root, FEED, files=SteppedFiles(files, kill_at((8 if is_local else 5) + attempt // 2))
            )
            result = run_here(flights.source, stepped, made, quiet)
        except Killed:
            seen = plain_rows(files, FEED)
            assert len(seen) == len(set(seen))
        else:
            break
        finally:
            written += len({manifest.unit for manifest in store.list()} - committed)
    assert attempt > 2, "it was killed more than once"
    assert written == UNITS
    forget(store, attempts_of(result))
    assert verify(store) == []
    assert store.files.names(store.layout.attempts) == []
    assert manifest_rows(store) == len(plain_rows(files, FEED)) == ROWS


def test_a_second_start_leaves_out_what_the_first_has_committed(flights: Flights, store: ExportStore) -> None:
    """The first goes on meanwhile, and is refused where the second was faster; either may succeed."""
    made = plan(flights, store)
    write_spec(store, made)
    first = start_plan(Draws(flights.source), store, made)
    begin(store, first)
    commit, written = Commit(store, first), list(flights.write(store, first))
    for some in written[:2]:
        commit.add(some)
    second = start_plan(Draws(flights.source), store, made)
    assert (first.spec, second.spec) == (made.attempt, made.attempt)
    assert made.attempt < first.attempt < second.attempt
    result = run_here(flights.source, store, second, quiet)
    assert (result.units, result.rows) == (UNITS, ROWS)
    assert attempts_of(result) == {first.attempt, second.attempt}
    for some in written[2:]:
        commit.add(some)
    with pytest.raises(SupersededError, match="newer attempts count"):
        commit.finish()
    end(store, first, committed=False)
    assert verify(store) == []
    assert manifest_rows(store) == len(plain_rows(store.files, FEED)) == ROWS


def test_of_several_receipts_one_that_succeeded_counts(flights: Flights, store: ExportStore) -> None:
    """Else the last one; none is None."""
    made = plan(flights, store)
    write_spec(store, made)
    spec = made.attempt
    assert read_receipt(store, spec) is None
    failures = [ExportResult.of_error(MissingEventError(str(token)), token, spec) for token in (8, 9)]
    write_receipt(store, spec, 9, failures[1])
    write_receipt(store, spec, 8, failures[0])
    assert read_receipt(store, spec) == failures[1]
    done = ExportResult("done", attempt=7, spec=spec)
    write_receipt(store, spec, 7, done)
    assert read_receipt(store, spec) == done
    remove_spec(store, spec)
    assert store.files.names(store.layout.attempts) == []


def test_bad_specs_and_receipts_are_named(flights: Flights, store: ExportStore) -> None:
    """Gone, moved, of another attempt, of another database, or no spec at all: with what to do."""
    made = plan(flights, store)
    uri = write_spec(store, made)
    assert read_spec(uri)[1] == made
    with pytest.raises(InvalidArgumentError, match=r"is not the URI of a spec; expected <path>/_changefeed"):
        read_spec("/tmp/plan.json")
    with pytest.raises(SpecNotFoundError, match="Run the task that makes the plan again"):
        read_spec(uri.replace(store.layout.spec(made.attempt), store.layout.spec(77)))
    store.files.write(store.layout.spec(78), made.to_json().encode())
    with pytest.raises(TerminalError, match=f"holds plan {made.attempt} .* moved here from another place"):
        read_spec(store.files.url(store.layout.spec(78)))
    with pytest.raises(ConnectionNotUsableError, match=f"planned for database {OTHER}"):
        start_plan(Draws(flights.source), store, replace(made, database=OTHER))
    stranger = ExportResult("done", attempt=3, spec=made.attempt)
    store.files.write(store.layout.receipt(made.attempt, 5), stranger.to_json().encode())
    with pytest.raises(
        TerminalError, match=f"receipt of attempt 3 at plan {made.attempt}: the document was moved"
    ):
        read_receipt(store, made.attempt)
    assert store.list() == []
