# SPDX-License-Identifier: Apache-2.0
"""A database that was restored to an earlier state is noticed before anything is sealed, written or moved."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import SealLostError
from airflow_changefeed.output.store import ExportStore
from tests.unit.export.faults import tree
from tests.unit.export.flights import FEED, Flights, hours


@pytest.fixture
def restore(flights: Flights, tmp_path: Path) -> Callable[[], None]:
    """Keep the database as it is now, and give what brings it back to that."""
    copy = sqlite3.connect(":memory:")

    def bring_back() -> None:
        with closing(sqlite3.connect(tmp_path / "feeds.db")) as live:
            copy.backup(live)

    with closing(sqlite3.connect(tmp_path / "feeds.db")) as live:
        live.backup(copy)
    return bring_back


@pytest.fixture
def store(tmp_path: Path) -> ExportStore:
    """Where the export goes."""
    return ExportStore(str(tmp_path / "out"), FEED)


@pytest.mark.parametrize("windows", [hours(0, 2), None], ids=["windows", "batch"])
def test_an_output_beyond_the_seal_stops_the_next_export(
    flights: Flights, store: ExportStore, restore: Callable[[], None], windows: list[Window] | None
) -> None:
    """Nothing is sealed, written or moved; the unit and the remedy are named."""
    flights.export(store, windows)
    restore()
    before = (tree(store.files), flights.source.shards(FEED))
    with pytest.raises(SealLostError, match=r"sealed nowhere.*restored.*backfill") as caught:
        flights.plan(store, windows and hours(2, 3))
    assert not caught.value.transient
    assert (tree(store.files), flights.source.shards(FEED)) == before


def test_a_seal_until_the_exported_end_lets_exports_go_on(
    flights: Flights, store: ExportStore, restore: Callable[[], None]
) -> None:
    """It is a person's decision that the windows between are what they are; the error names that end."""
    flights.export(store, hours(0, 2))
    restore()
    with pytest.raises(
        SealLostError, match=r"sealed for it until 2013-01-01T02:00:00Z\. Now the feed is sealed nowhere"
    ):
        flights.plan(store, hours(0, 2))
    flights.source.seal(FEED, hours(0, 1)[0].end)
    with pytest.raises(SealLostError, match="until 2013-01-01T01:00:00Z only"):
        flights.plan(store, hours(0, 2))
    flights.source.seal(FEED, hours(0, 2)[-1].end)
    assert flights.plan(store, hours(0, 3)).rows > 0


def test_a_feed_that_was_set_up_again_is_sealed_before_its_first_event(
    flights: Flights, store: ExportStore
) -> None:
    """The seal is the feed's, so it is seen without any shard."""
    flights.export(store, hours(0, 2))
    flights.source.drop_feed(FEED)
    flights.source.set_up_feed(FEED)
    with pytest.raises(SealLostError, match="sealed nowhere"):
        flights.plan(store, hours(2, 3))
    flights.source.seal(FEED, hours(0, 2)[-1].end)
    assert flights.plan(store, hours(2, 3)).rows == 0


def test_windows_that_were_exported_out_of_order_are_no_sign_of_it(
    flights: Flights, store: ExportStore
) -> None:
    """A backfill of earlier windows, and the same window again, go on as ever."""
    for windows in (hours(2, 3), hours(0, 1), hours(2, 3)):
        flights.export(store, windows)


class NeighbourStore(ExportStore):
    """A store beside which somebody else exports, right before its first listing."""

    def __init__(self, path: str, neighbour: Callable[[], object]) -> None:
        super().__init__(path, FEED)
        self._neighbours = [neighbour]

    def shards(self) -> list[Shard]:
        """Let the neighbour export, then list."""
        while self._neighbours:
            self._neighbours.pop()()
        return super().shards()


@pytest.mark.parametrize("windows", [hours(0, 2), None], ids=["windows", "batch"])
def test_a_neighbour_that_seals_and_commits_meanwhile_is_no_restored_database(
    flights: Flights, store: ExportStore, windows: list[Window] | None
) -> None:
    """It does so between the look at the seal and the listing of manifests; the plan is made all the same."""
    neighbour = NeighbourStore(store.path, lambda: flights.export(store, windows))
    assert flights.plan(neighbour, windows).rows > 0
    assert store.list() != []


def test_a_restored_database_is_found_although_a_neighbour_commits(
    flights: Flights, store: ExportStore, restore: Callable[[], None]
) -> None:
    """Only what the database is sealed until counts, not that somebody committed just now."""

    def commit_and_restore() -> None:
        flights.export(store, hours(0, 2))
        restore()

    with pytest.raises(SealLostError, match=r"until 2013-01-01T02:00:00Z\. Now the feed is sealed nowhere"):
        flights.plan(NeighbourStore(store.path, commit_and_restore), hours(2, 3))
