# SPDX-License-Identifier: Apache-2.0
"""The cursor of an export of windows never stops inside one."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, Position
from airflow_changefeed.core.export_plan import Manifest
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import ExportUnit, Window, is_border
from airflow_changefeed.cursors.moves import move_to, plan_moves
from airflow_changefeed.cursors.window_grid import WindowGrid, end_of_window, grid_of
from airflow_changefeed.exceptions import InvalidArgumentError, PurgedError, TransientError
from airflow_changefeed.output.store import ExportStore
from tests.identity import DATABASE
from tests.unit.export.captures import CapturedExport
from tests.unit.export.consumers import (
    CONSUMER,
    FEED,
    START,
    Warehouse,
    end_of,
    hour,
    places,
)

MINUTES = timedelta(minutes=1)
INSIDE = START + timedelta(hours=2, minutes=10)


@pytest.fixture
def hourly(warehouse: Warehouse) -> Warehouse:
    """A consumer that has exported six hours, each by a run of its own."""
    warehouse.begin()
    for number in range(6):
        warehouse.advance(number)
    return warehouse


def test_the_window_of_a_time_ends_where_the_outputs_windows_do(tmp_path: Path) -> None:
    """By its unit, or by the window that is there; a time of which nothing is known stands for itself."""
    export = CapturedExport.create(tmp_path / "plain")
    export.write([], Window(START, START + 2 * timedelta(hours=1)))
    hourly = ExportStore(str(tmp_path / "hourly"), "shop.Shoe_changes")
    hourly.claim(DATABASE, unit=timedelta(hours=1))
    CapturedExport(hourly).write([], Window(START, START + timedelta(hours=1)))
    hours = timedelta(hours=1)
    for at, by_window, by_unit in ((0.2, 2, 1), (1, 2, 1), (2, 2, 2), (5.5, 5.5, 6)):
        assert end_of_window(export.store, START + at * hours) == START + by_window * hours
        assert end_of_window(hourly, START + at * hours) == START + by_unit * hours


@given(some.integers(0, 2**47), some.integers(1, 10**9), some.integers(0, (1 << 127) - 2))
def test_a_window_is_found_for_each_place(origin: int, length: int, number: int) -> None:
    """The begin is the last one that is not after the place, and the next one is a length later."""
    grid, after = WindowGrid(origin, length, is_sure=True), Ulid.of_int(number)
    begin_, next_ = grid.floor(after), grid.ceiling(after)
    assert begin_ <= after <= next_
    assert begin_ == Ulid.MIN or (begin_.next().ms - origin) % length == 0
    if begin_ != Ulid.MIN:
        assert is_border(begin_)
        assert grid.is_begin(begin_)
        assert next_ in (begin_, Ulid.floor_milliseconds(begin_.next().ms + length).previous())


def test_the_length_of_the_windows_is_seen_from_the_moves(warehouse: Warehouse) -> None:
    """Of two or more that were moved alone; several that end at once are known to be a multiple."""

    def seen() -> WindowGrid | None:
        return grid_of(warehouse.source.history(FEED, CONSUMER))

    def ms(number: int) -> int:
        return hour(number).range.upto.next().ms

    assert seen() is None
    warehouse.begin()
    assert seen() == WindowGrid(ms(-1))
    warehouse.advance(0, 1)
    assert seen() == WindowGrid(ms(1), 7_200_000)
    warehouse.advance(2)
    assert seen() == WindowGrid(ms(2), 3_600_000)
    warehouse.advance(3)
    assert seen() == WindowGrid(ms(3), 3_600_000, is_sure=True)
    # Of a person, who may have been wrong.
    warehouse.move(warehouse.plan(START + 200 * MINUTES), why="set")
    assert seen() == WindowGrid(ms(3), 3_600_000, is_sure=True)


@pytest.mark.parametrize(
    ("purged", "to", "place"),
    [
        (None, Beginning.EARLIEST, end_of(-1)),
        (INSIDE + 30 * MINUTES, Beginning.EARLIEST, end_of(2)),
        (START + timedelta(hours=2), Beginning.EARLIEST, end_of(1)),
        (None, INSIDE, end_of(1)),
        (None, Ulid.floor(INSIDE), end_of(1)),
        (None, end_of(3), end_of(3)),
    ],
    ids=["earliest", "purged inside", "purged between", "time", "ULID", "begin"],
)
def test_a_place_inside_a_window_becomes_its_begin(
    hourly: Warehouse, purged: datetime | None, to: Position, place: Ulid
) -> None:
    """With what was asked for; the export goes on from there, and its cursor moves."""
    if purged is not None:
        hourly.source.purge(FEED, purged)
    (first, second) = hourly.plan(to)
    assert {first.target, second.target} == {place}
    # Of a place where a window begins there is nothing to say.
    assert (first.asked is None) == (purged == START + timedelta(hours=2) or to == place)
    hourly.move([first, second])
    number = int((place.next().time - START) / timedelta(hours=1))
    rows = hourly.advance(number)
    assert places(rows) == {0: end_of(number), 1: end_of(number)}


def test_a_window_of_which_events_were_purged_is_no_beginning(hourly: Warehouse) -> None:
    """It can no longer be exported, and the cursor would wait for it forever."""
    hourly.source.purge(FEED, INSIDE)
    with pytest.raises(PurgedError, match="Use earliest"):
        hourly.plan(INSIDE + MINUTES)


def test_latest_is_the_window_that_has_not_ended(hourly: Warehouse) -> None:
    """It will be exported as a whole."""
    hourly.source.seal(FEED, START + timedelta(hours=50, minutes=20))
    assert {one.target for one in hourly.plan(Beginning.LATEST)} == {end_of(49)}


def test_the_unit_of_an_output_says_where_windows_begin(warehouse: Warehouse, tmp_path: Path) -> None:
    """Also where the moves so far show no length, and where there are none yet."""
    output = ExportStore(str(tmp_path / "out"), FEED)
    output.claim(DATABASE, unit=timedelta(hours=2))
    warehouse.begin()
    assert {one.target for one in warehouse.plan(INSIDE, output=output)} == {end_of(1)}
    warehouse.advance(0, 1, 2)
    warehouse.source.purge(FEED, INSIDE)
    assert {one.target for one in warehouse.plan(Beginning.EARLIEST, output=output)} == {end_of(3)}
    assert {one.target for one in warehouse.plan(INSIDE + 180 * MINUTES, output=output)} == {end_of(3)}


def test_without_a_unit_the_windows_of_an_output_are_what_they_are(hourly: Warehouse, tmp_path: Path) -> None:
    """Days that are an hour longer or shorter; beyond what was exported, the moves show what they can."""
    output = ExportStore(str(tmp_path / "out"), FEED)
    output.claim(DATABASE)
    for first, last in ((0, 3), (3, 5)):
        window = Window(hour(first).start, hour(last - 1).end)
        for shard in (0, 1):
            output.write(manifest_of(ExportUnit.of_window(shard, window)))
    for at, place in ((1, -1), (2, -1), (3, 2), (4, 2), (5, 4), (7, 6)):
        moves = hourly.plan(hour(at).start + MINUTES, output=output)
        assert {one.target for one in moves} == {end_of(place)}


def test_an_output_that_does_not_answer_says_nothing(
    hourly: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person can move the cursor all the same, as the moves so far show."""
    output = ExportStore(str(tmp_path / "out"), FEED)

    def fail(path: str) -> None:
        raise TransientError("the store is busy")

    monkeypatch.setattr(output.files, "read", fail)
    assert {one.target for one in hourly.plan(INSIDE, output=output)} == {end_of(1)}


def manifest_of(unit: ExportUnit) -> Manifest:
    """Return the manifest of a unit without rows."""
    return Manifest(
        FEED,
        unit,
        1,
        consumer=CONSUMER,
        run="r",
        made_at=START,
        files=(),
        sealed_until=None,
        stale_seen=0,
        schema="",
    )


def test_a_begin_that_nobody_knows_is_asked_for(warehouse: Warehouse) -> None:
    """Where the moves show no length: a time is taken as the begin of a window, which the person knows."""
    warehouse.begin()
    warehouse.advance(0, 1, 2)
    warehouse.source.purge(FEED, INSIDE)
    for to in (Beginning.EARLIEST, Ulid.floor(INSIDE + MINUTES)):
        with pytest.raises(InvalidArgumentError, match="Give the start of a window as a time"):
            warehouse.plan(to)
    assert {one.target for one in warehouse.plan(START + timedelta(hours=4))} == {end_of(3)}


def test_consumers_and_batches_stop_anywhere(warehouse: Warehouse) -> None:
    """At an event, as they do by themselves."""
    create_consumer(warehouse.source, ConsumerSpec("mailer", FEED), "latest", by="test")
    warehouse.source.begin_consumer("lake", FEED, {0: Ulid.MIN}, by="a run")
    place = Ulid.floor(INSIDE)
    for name in ("mailer", "lake"):
        moves = plan_moves(warehouse.source, name, FEED, place, [0])
        assert [(one.target, one.asked) for one in moves] == [(place, None)]
        move_to(warehouse.source, warehouse.variables, name, FEED, moves, by="anna")
    assert {one.target for one in plan_moves(warehouse.source, "lake", FEED, Beginning.EARLIEST)} == {
        Ulid.MIN
    }
