# SPDX-License-Identifier: Apache-2.0
"""What an export tells of its windows: there and back, and the rows by the manifests that are named."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.export_plan import Plan
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidArgumentError, ManifestError
from airflow_changefeed.export.completed import CompletedExport, completed_export
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.result import ExportResult
from airflow_changefeed.output.store import ExportStore
from tests.unit.export.flights import FEED, START, Flights, hours


@pytest.fixture
def store(tmp_path: Path) -> ExportStore:
    """An output that nobody uses yet."""
    return ExportStore(str(tmp_path / "out"), FEED)


def told_of(flights: Flights, store: ExportStore, plan: Plan) -> CompletedExport:
    """Run a plan, and return what it tells, as others get it."""
    told = completed_export(plan, store, run_here(flights.source, store, plan, lambda line: None))
    assert told is not None
    read = CompletedExport.from_extra(json.loads(json.dumps(encode(told))))
    assert read == told
    return read


def ids(told: CompletedExport) -> list[int]:
    """Read the ids of what was told."""
    return [number for batch in told.batches(columns=["id"]) for number in batch.column("id").to_pylist()]


def test_each_window_is_told_with_its_rows_and_manifests(flights: Flights, store: ExportStore) -> None:
    """Two shards of an hour are one window, in order of time; empty hours are windows as well."""
    whole = told_of(flights, store, flights.plan(store, hours(0, 4)))
    assert whole.window == Window(START, START + timedelta(hours=4))
    assert (whole.rows, len(whole.manifests), len(ids(whole))) == (36, 8, 36)
    told = whole.each()
    assert [one.window for one in told] == hours(0, 4)
    assert [one.rows for one in told] == [10, 16, 10, 0]
    assert [len(one.manifests) for one in told] == [2, 2, 2, 2]
    assert all(Path(manifest).exists() for one in told for manifest in one.manifests)
    assert [len(ids(one)) for one in told] == [10, 16, 10, 0]
    assert ids(told[1]) == [*range(11, 21), *range(31, 37)]
    assert [file.facts.rows for file in told[1].files()] == [10, 6]


def test_only_the_shards_that_were_exported_are_read(flights: Flights, store: ExportStore) -> None:
    """Of a window that two tasks export by shards, each tells its own."""
    first = told_of(flights, store, flights.plan(store, hours(1, 2), shards=[1]))
    told_of(flights, store, flights.plan(store, hours(1, 2), shards=[2]))
    assert (first.rows, len(ids(first))) == (10, 10)
    assert first.each() == [first]


def test_a_batch_is_told_with_its_ranges(flights: Flights, store: ExportStore) -> None:
    """It has no window; its shards' ranges say what it is."""
    plan = flights.plan(store, None)
    told = told_of(flights, store, plan)
    assert told.window is None
    assert told.each() == [told]
    assert told.batch == {planned.unit.shard: planned.unit.range for planned in plan.units}
    assert (told.rows, len(ids(told))) == (36, 36)


def test_nothing_is_told_of_nothing(flights: Flights, store: ExportStore) -> None:
    """A batch without new events has no units."""
    plan = replace(flights.plan(store, None), units=())
    assert completed_export(plan, store, ExportResult.of_commit(store, plan, [])) is None


def test_units_beyond_a_hundred_are_told_by_their_folder(flights: Flights, store: ExportStore) -> None:
    """Windows are still read one by one, and of the shards that were exported only."""
    windows = Window(START, START + timedelta(hours=3)).cut(timedelta(minutes=2))
    first = told_of(flights, store, flights.plan(store, windows[:60], shards=[1, 2]))
    told_of(flights, store, flights.plan(store, windows[60:], shards=[1]))
    assert first.manifests == (store.layout.manifests,)
    assert [one.window for one in first.each()] == windows[:60]
    assert [len(ids(one)) for one in first.each()] == [one.rows for one in first.each()]
    assert sum(one.rows for one in first.each()) == 26


def test_windows_beyond_a_hundred_are_told_together(flights: Flights, store: ExportStore) -> None:
    """What goes through Airflow's database stays small; a shard that was not exported is left out."""
    window = Window(START, START + timedelta(minutes=101))
    minutes = window.cut(timedelta(minutes=1))
    told_of(flights, store, flights.plan(store, minutes, shards=[2]))
    told = told_of(flights, store, flights.plan(store, minutes, shards=[1]))
    assert told.each() == [told]
    assert (told.window, told.shards, told.manifests) == (window, (1,), (store.layout.manifests,))
    assert told.rows == len(ids(told)) == 17


def test_a_window_that_was_exported_again_is_read_as_it_is_now(flights: Flights, store: ExportStore) -> None:
    """The manifest that was named is gone, its unit is not."""
    first = told_of(flights, store, flights.plan(store, hours(1, 2)))
    told_of(flights, store, flights.plan(store, hours(1, 2)))
    assert not any(Path(manifest).exists() for manifest in first.manifests)
    assert len(ids(first)) == 16


def test_a_unit_that_is_gone_is_named(flights: Flights, store: ExportStore) -> None:
    """Its reader hears which, and what to do."""
    told = told_of(flights, store, flights.plan(store, hours(1, 2)))
    for manifest in told.manifests:
        Path(manifest).unlink()
    with pytest.raises(ManifestError, match=r"shard 1 of .* from 2013-01-01T01:00:00Z.*export it again"):
        told.files()


#: An event without windows that were exported one by one.
_EXTRA = {
    **{"feed": FEED, "path": "/out", "rows": 1, "manifests": [], "shards": ["0"], "windows": [], "batch": {}},
    **{"window_start": "2013-01-01T00:00:00Z", "window_end": "2013-01-01T01:00:00Z", "database": ""},
}


def test_an_event_needs_all_its_facts() -> None:
    """One that lacks some was not made by an export."""
    assert CompletedExport.from_extra(_EXTRA).window == Window(START, START + timedelta(hours=1))
    for name in _EXTRA:
        with pytest.raises(InvalidArgumentError, match=f"{name}.* is missing"):
            CompletedExport.from_extra({other: value for other, value in _EXTRA.items() if other != name})


@pytest.mark.parametrize(
    "extra",
    [
        None,
        {},
        {"from_rest_api": True},
        {"feed": FEED, "path": "/out", "window_start": "yesterday", "window_end": "today", "rows": 1},
        {**_EXTRA, "window_end": None},
        {**_EXTRA, "window_start": None},
        {**_EXTRA, "window_end": _EXTRA["window_start"]},
        {**_EXTRA, "window_end": "2012-01-01T00:00:00Z"},
        {
            **_EXTRA,
            "windows": [
                {"window_start": "2013-01-01T01:00:00Z", "window_end": "2013-01-01T00:00:00Z", "rows": 1}
            ],
        },
    ],
    ids=str,
)
def test_the_event_of_somebody_else_is_refused(extra: object) -> None:
    """A person may make an event by hand; whoever reads it is told so."""
    with pytest.raises(InvalidArgumentError, match="another task or a person created the event"):
        CompletedExport.from_extra(extra)
