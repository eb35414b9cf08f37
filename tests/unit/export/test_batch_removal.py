# SPDX-License-Identifier: Apache-2.0
"""A batch among windows is taken out whole, and windows bring every event of it again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors import cursors
from airflow_changefeed.exceptions import LeaseHeldError, OutputError, PurgedError
from airflow_changefeed.export.batch import batch_leases
from airflow_changefeed.export.batch_removal import committed_batches, remove_batches
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.verify.verify import verify
from tests.unit.export.consumers import Variables
from tests.unit.export.faults import Killed, SteppedFiles, kill_at, local_files, manifest_rows, plain_rows
from tests.unit.export.flights import CONSUMER, FEED, Flights, found_faults, hours

ROWS = 36


def export(
    flights: Flights, variables: Variables, store: ExportStore, *, first: int = 0, last: int | None
) -> None:
    """Export windows, or a batch where there is no last one, and move the cursor as the operator does."""
    done = {}
    for manifest in flights.export(store, None if last is None else hours(first, last)):
        done.setdefault(manifest.unit.shard, []).append(manifest.unit.range)
    cursors.advance(flights.source, variables, CONSUMER, FEED, done, by="a run")


@pytest.mark.parametrize("windows", [0, 1], ids=["the first run", "after a window"])
def test_windows_go_on_as_if_the_batch_had_never_been(
    flights: Flights, variables: Variables, tmp_path: Path, windows: int
) -> None:
    """Refused and named before; then every event is there once, and the cursor stands at the windows' end."""
    files = local_files(tmp_path / "out")
    store = ExportStore(files.root, FEED, files=files)
    if windows:
        export(flights, variables, store, last=windows)
    export(flights, variables, store, last=None)
    with pytest.raises(OutputError, match=r"airflow-changefeed output remove-batches --feed nyc\.Flight"):
        flights.plan(store, hours(0, 3))
    faults = {fault.kind.code for fault in found_faults(store, flights.source.identity().id)}
    assert ("batch-among-windows" in faults) == bool(windows)
    batches = committed_batches(store)
    assert {batch.consumer for batch in batches} == {CONSUMER}
    remove_batches(flights.source, variables, store, batches, by="a person")
    assert committed_batches(store) == []
    assert verify(store) == []
    export(flights, variables, store, last=3)
    assert (manifest_rows(store), len(plain_rows(files, FEED))) == (ROWS, ROWS)
    assert verify(store) == []
    rows = flights.source.cursors(FEED, CONSUMER)
    assert {row.ulid for row in rows} == {hours(2, 3)[0].range.upto}
    assert not any(row.frontier.missing() for row in rows)
    assert cursors.compare(flights.source, variables, CONSUMER, FEED)[1]


def test_a_removal_that_is_killed_anywhere_is_finished_by_the_next_one(
    flights: Flights, variables: Variables, tmp_path: Path
) -> None:
    """At each of its steps: nothing is lost, and no reader finds an event twice."""
    for number in range(40):
        files = local_files(tmp_path / f"out{number}")
        store = ExportStore(files.root, FEED, files=files)
        export(flights, variables, store, last=None)
        stepped = ExportStore(files.root, FEED, files=SteppedFiles(files, kill_at(number)))
        batches = committed_batches(store)
        try:
            remove_batches(flights.source, variables, stepped, batches, by="a person")
        except Killed:
            pass
        else:
            break
        left = committed_batches(store)
        assert all(manifest in batches for manifest in left)
        assert manifest_rows(store) == sum(batch.rows for batch in left)
        remove_batches(flights.source, variables, store, left, by="a person")
        assert manifest_rows(store) == len(plain_rows(files, FEED)) == 0
        # Gone back, though a batch that is gone is not named again.
        ends = {batch.unit.range.upto for batch in batches}
        assert ends.isdisjoint(row.ulid for row in flights.source.cursors(FEED, CONSUMER))
    assert number >= 4
    export(flights, variables, store, last=3)
    assert manifest_rows(store) == ROWS


def test_a_batch_that_runs_is_left_alone(flights: Flights, variables: Variables, tmp_path: Path) -> None:
    """It holds the leases; nothing was moved or removed."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    export(flights, variables, store, last=None)
    batches, rows = committed_batches(store), flights.source.cursors(FEED, CONSUMER)
    request = ExportRequest(FEED, store.path, CONSUMER, "a batch that runs")
    with (
        batch_leases(flights.source, request, store),
        pytest.raises(LeaseHeldError, match="a batch that runs"),
    ):
        remove_batches(flights.source, variables, store, batches, by="a person", timeout=0.1)
    assert committed_batches(store) == batches
    now = flights.source.cursors(FEED, CONSUMER)
    assert [row.frontier for row in now] == [row.frontier for row in rows]


def test_the_only_copy_of_events_is_kept(flights: Flights, variables: Variables, tmp_path: Path) -> None:
    """Where the feed was purged, windows could not bring them again."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    export(flights, variables, store, last=None)
    batches = committed_batches(store)
    assert flights.source.purge(FEED, hours(1, 2)[0].start)
    with pytest.raises(PurgedError, match=r"the only copy.*Nothing was removed"):
        remove_batches(flights.source, variables, store, batches, by="a person")
    assert committed_batches(store) == batches


def test_only_what_was_completed_by_the_batch_is_forgotten(
    flights: Flights, variables: Variables, tmp_path: Path
) -> None:
    """The cursor goes back to right before the batch's first event, not to the start of the feed."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    export(flights, variables, store, last=None)
    batches = committed_batches(store)
    remove_batches(flights.source, variables, store, batches, by="a person")
    firsts = {batch.unit.shard: batch.files[0].first.previous() for batch in batches}
    rows = flights.source.cursors(FEED, CONSUMER)
    assert {row.shard: row.ulid for row in rows} == firsts
    assert all(row.ack <= row.ulid for row in rows)
    assert min(firsts.values()) > Ulid.MIN
    assert replace(rows[0].frontier, start=rows[0].ulid).ahead == ()
