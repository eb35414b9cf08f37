# SPDX-License-Identifier: Apache-2.0
"""Plans that are run in one process, without Spark: the same files, manifests, errors and clean-up."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_changefeed.core.export_plan import ExportOptions
from airflow_changefeed.exceptions import MissingEventError
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.output.attempts import forget
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
    steps,
)
from tests.unit.export.flights import FEED, Flights, hours

ROWS = 36


def test_killed_anywhere_nothing_half_counts_and_a_retry_cleans_up(flights: Flights, tmp_path: Path) -> None:
    """Killed before any change of the file system, readers see whole units only; a retry leaves no rest."""

    hour, rows = hours(1, 2), 16

    def run(number: int) -> bool:
        files, killed = local_files(tmp_path / f"out{number}"), False
        store = ExportStore(files.root, FEED)
        stepped = ExportStore(files.root, FEED, files=SteppedFiles(files, kill_at(number)))
        try:
            run_here(flights.source, stepped, flights.plan(store, hour), quiet)
        except Killed:
            killed = True
        seen = plain_rows(files, FEED)
        assert len(seen) == len(set(seen))
        assert manifest_rows(store) == sum(manifest.rows for manifest in store.list())
        plan = flights.plan(store, hour)
        run_here(flights.source, store, plan, quiet)
        forget(store, [plan.attempt])
        assert verify(store) == []
        assert len(plain_rows(files, FEED)) == manifest_rows(store) == rows
        assert not killed or store.files.names(store.layout.attempts) == []
        return killed

    assert steps(run) > 10, "the kills have reached the whole way"


def quiet(line: str) -> None:
    """Hear nothing."""


def test_units_and_shards_are_written_and_committed(flights: Flights, tmp_path: Path) -> None:
    """Three hours of two shards: as by Spark, and nothing of the attempt is left once its result is taken."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    plan = flights.plan(store, hours(0, 3))
    lines: list[str] = []
    result = run_here(flights.source, store, plan, lines.append)
    assert (result.status, result.rows, result.units) == ("done", ROWS, 6)
    forget(store, [plan.attempt])
    assert verify(store) == []
    assert len(plain_rows(store.files, FEED)) == ROWS
    assert store.files.names(store.layout.attempts) == []
    assert lines[-1].startswith("changefeed progress: shard 1: 30 of 30 rows")


def test_it_gives_what_sparks_tasks_give(flights: Flights, tmp_path: Path) -> None:
    """The same units have the same rows, files and checksums, whoever writes them."""
    there, here = (ExportStore(str(tmp_path / name), FEED) for name in ("there", "here"))
    options = ExportOptions(target_file_rows=4, partitions=2)
    flights.export(there, hours(0, 3), target_file_rows=4, partitions=2)
    run_here(flights.source, here, flights.plan(here, hours(0, 3), options=options), quiet)
    assert [manifest.files for manifest in here.list()] == [manifest.files for manifest in there.list()]
    assert [manifest.schema for manifest in here.list()] == [manifest.schema for manifest in there.list()]
    assert [manifest.columns for manifest in here.list()] == [manifest.columns for manifest in there.list()]


def test_an_object_store_is_written_as_well(flights: Flights) -> None:
    """The task's own file system is used, whatever it is."""
    files = remote_files()
    store = ExportStore(files.root, FEED, files=files)
    run_here(flights.source, store, flights.plan(store, hours(0, 3)), quiet)
    assert manifest_rows(store) == ROWS


def test_an_error_of_a_part_is_told_as_what_it_is(flights: Flights, tmp_path: Path) -> None:
    """It stands in the result as by Spark, and leaves nothing else."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    plan = flights.plan(store, hours(0, 3))
    flights.execute(f'delete from "{FEED}" where id = 3')
    with pytest.raises(MissingEventError, match="was deleted"):
        run_here(flights.source, store, plan, quiet)
    assert store.files.sizes(store.layout.data) == {}
    assert store.files.names(store.layout.attempts) == []
