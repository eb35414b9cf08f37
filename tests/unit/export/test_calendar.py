# SPDX-License-Identifier: Apache-2.0
"""What a calendar says of each hour: told by names alone, before anybody opens a file."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.completeness import Evidence, ShardProgress
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.output.coverage import Cell, make_calendar, missing_ranges
from airflow_changefeed.output.store import ExportStore
from tests.unit.export.flights import FEED, START, Flights, hours

HOUR = timedelta(hours=1)


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """Give a feed with events in two shards, and none at two o'clock."""
    made = Flights.create(tmp_path / "flights.db")
    for hour in (0, 1, 3, 4, 5):
        for shard in (0, 1):
            made.add(4, hour, shard)
    return made


@pytest.fixture
def store(tmp_path: Path) -> ExportStore:
    """Give an empty output."""
    return ExportStore(str(tmp_path / "out"), FEED)


def states(store: ExportStore, first: int = 0, last: int = 6, **options: Any) -> list[str]:
    """Return the states of some hours."""
    return [cell.state.value for cell in cells(store, first, last, **options)]


def cells(
    store: ExportStore,
    first: int = 0,
    last: int = 6,
    *,
    length: timedelta = HOUR,
    begins: tuple[datetime | None, datetime | None] = (START, START),
    now: datetime = START + 100 * HOUR,
) -> list[Cell]:
    """Return the cells of some hours, of a consumer that began in two shards, or in one of them not yet."""
    starts = [Ulid.MAX if begin is None else Ulid.floor(begin).previous() for begin in begins]
    evidence = Evidence(tuple(ShardProgress(shard, start) for shard, start in enumerate(starts)))
    wanted = Window(START + first * HOUR, START + last * HOUR)
    return make_calendar(store, wanted, length, evidence, now=now)


def test_hours_are_complete_empty_or_missing(flights: Flights, store: ExportStore) -> None:
    """
    An hour without events is complete and empty; one that nobody exported is missing, as is all of an output
    that is not there. A cell may be longer than a unit, and is complete when all of its hours are.
    """
    assert set(states(store)) == {"missing"}
    flights.export(store, hours(0, 3))
    flights.export(store, hours(4, 5))
    assert states(store) == ["complete", "complete", "empty", "missing", "complete", "missing"]
    assert [(range_.start, range_.end) for range_ in missing_ranges(cells(store))] == [
        (START + 3 * HOUR, START + 4 * HOUR),
        (START + 5 * HOUR, START + 6 * HOUR),
    ]
    assert states(store, length=2 * HOUR) == ["complete", "missing", "missing"]


def test_an_hour_that_one_shard_lacks_is_missing(flights: Flights, store: ExportStore) -> None:
    """And says how many lack it."""
    flights.export(store, hours(0, 2))
    plan = flights.plan(store, hours(2, 4), shards=[0])
    flights.run(store, plan)
    found = cells(store, 0, 5)
    assert [cell.state.value for cell in found] == ["complete", "complete", "missing", "missing", "missing"]
    assert [cell.missing for cell in found] == [0, 0, 1, 1, 2]


def test_before_the_beginning_and_after_now_nothing_is_missing(flights: Flights, store: ExportStore) -> None:
    """What is exported is shown as such there, too."""
    flights.export(store, hours(1, 3))
    found = states(store, begins=(START + 1 * HOUR, START + 1 * HOUR), now=START + 4.5 * HOUR)
    assert found == ["before", "complete", "empty", "missing", "open", "open"]
    assert states(store, begins=(None, None))[:4] == ["before", "complete", "empty", "before"]


def test_a_shard_that_was_never_exported_is_missing_since_it_began(
    flights: Flights, store: ExportStore
) -> None:
    """Its consumer has a cursor for it, although no unit of it was ever written; before, it lacks nothing."""
    plan = flights.plan(store, hours(0, 4), shards=[0])
    flights.run(store, plan)
    found = cells(store, -1, 5, begins=(START, START + 2 * HOUR), now=START + 9 * HOUR)
    assert [(cell.state.value, cell.missing) for cell in found] == [
        ("before", 0),
        ("complete", 0),
        ("complete", 0),
        ("missing", 1),
        ("missing", 1),
        ("missing", 2),
    ]


def test_the_newest_units_are_found_in_one_folder(flights: Flights, store: ExportStore) -> None:
    """Of years of dates the last is listed alone."""
    flights.export(store, hours(0, 2))
    flights.export(store, hours(26, 28))
    listed: list[str] = []
    real = store.files.names

    def noted(folder: str) -> list[str]:
        listed.append(folder)
        return real(folder)

    store.files.names = noted  # type: ignore[method-assign] # counts
    units = store.newest(0)
    assert [unit.window and unit.window.start for unit in units] == [START + 26 * HOUR, START + 27 * HOUR]
    assert len(listed) == 2
    assert store.newest(7) == []


def test_a_batch_covers_what_it_reaches_over(flights: Flights, store: ExportStore) -> None:
    """Exports from a cursor have no windows, and their ranges cover time all the same."""
    flights.export(store, None)
    assert states(store)[:5] == ["complete"] * 5


def test_an_output_says_how_long_its_windows_are(flights: Flights, tmp_path: Path) -> None:
    """By the unit that it keeps; without one the newest window has its length; batches have none."""
    kept, free, batches = (ExportStore(str(tmp_path / name), FEED) for name in ("kept", "free", "batches"))
    assert free.window_length() is None
    flights.plan(kept, hours(0, 2), unit=HOUR)
    # Claimed, and nothing committed yet.
    assert kept.window_length() == HOUR
    flights.export(free, hours(0, 1))
    flights.export(free, [Window(START + HOUR, START + 3 * HOUR)])
    assert ExportStore(free.path, FEED).window_length() == 2 * HOUR
    flights.export(batches, None)
    assert batches.window_length() is None


def test_centuries_by_hours_are_refused(store: ExportStore) -> None:
    """With the way out."""
    with pytest.raises(InvalidArgumentError, match="choose a shorter time"):
        states(store, last=24 * 365 * 100)
