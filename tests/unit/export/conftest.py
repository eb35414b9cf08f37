# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the export's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.templates import content_of
from tests.unit.export.consumers import Variables, Warehouse, make_source
from tests.unit.export.flights import FEED, Flights, hours


@pytest.fixture
def source(tmp_path: Path) -> SqliteFeedSource:
    """A feed with an event in each of 48 hours and two shards, sealed to their end."""
    return make_source(tmp_path)


@pytest.fixture
def variables() -> Variables:
    """Airflow's Variables, none yet."""
    return Variables()


def load(path: Path) -> None:
    """Make a feed with thirty events of shard 1 in three hours, and six of shard 2 in the second."""
    flights = Flights.create(path)
    flights.add(30, 0, shard=1, length=3)
    flights.add(6, 1, shard=2)


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """A feed with events in two shards."""
    (tmp_path / "feeds.db").write_bytes(content_of(load))
    return Flights.open(tmp_path / "feeds.db")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same feed and, in ``out``, its export of three hours; made once, for copies."""
    folder = tmp_path_factory.mktemp("whole")
    load(folder / "feeds.db")
    Flights.open(folder / "feeds.db").export(ExportStore(str(folder / "out"), FEED), hours(0, 3))
    return folder


@pytest.fixture
def commits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are committed when their last task ends, however long the last commit took."""
    monkeypatch.setattr("airflow_changefeed.output.commit._PAUSE", 0)


@pytest.fixture
def warehouse(source: SqliteFeedSource, variables: Variables) -> Warehouse:
    """A consumer of it, not begun yet."""
    return Warehouse(source, variables)


@pytest.fixture
def exported(warehouse: Warehouse) -> list[CursorRow]:
    """Its cursors when it has exported six hours of both shards."""
    warehouse.begin()
    return warehouse.advance(*range(6))
