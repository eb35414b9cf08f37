# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the export's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.export.consumers import Variables, advance, begin, make_source
from tests.unit.export.flights import Flights


@pytest.fixture
def source(tmp_path: Path) -> SqliteFeedSource:
    """A feed with an event in each of 48 hours and two shards, sealed to their end."""
    return make_source(tmp_path)


@pytest.fixture
def variables() -> Variables:
    """Airflow's Variables, none yet."""
    return Variables()


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """A feed with events in two shards."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(30, 0, shard=1, length=3)
    flights.add(6, 1, shard=2)
    return flights


@pytest.fixture
def commits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are committed when their last task ends, however long the last commit took."""
    monkeypatch.setattr("airflow_changefeed.output.commit._PAUSE", 0)


@pytest.fixture
def exported(source: SqliteFeedSource, variables: Variables) -> list[CursorRow]:
    """A consumer that has exported six hours of both shards."""
    begin(source)
    return advance(source, variables, *range(6))
