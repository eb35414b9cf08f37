# SPDX-License-Identifier: Apache-2.0
"""An export on a local disk, with a table of each format."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from airflow_changefeed.formats.publish import CURRENT_FORMATS, FORMATS
from airflow_changefeed.output import store as store_module
from tests.unit.export.flights import Flights
from tests.unit.formats.current import Current
from tests.unit.formats.exports import Export
from tests.unit.formats.lakes import Lake, two_shards


@pytest.fixture
def delta(tmp_path: Path) -> Export:
    """With a Delta table."""
    return Export("delta", tmp_path)


@pytest.fixture
def iceberg(tmp_path: Path) -> Export:
    """With a table of Iceberg."""
    return Export("iceberg", tmp_path)


@pytest.fixture(params=FORMATS)
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Export:
    """With a table of each format in turn."""
    return Export(request.param, tmp_path)


@pytest.fixture(params=CURRENT_FORMATS)
def current(request: pytest.FixtureRequest, tmp_path: Path) -> Current:
    """An empty export, and no table yet."""
    return Current(tmp_path, request.param)


@pytest.fixture(params=FORMATS)
def lakes(request: pytest.FixtureRequest, tmp_path: Path, flights: Flights) -> Callable[[], Lake]:
    """What makes new outputs of the flights."""
    numbers = count()
    return lambda: Lake(tmp_path / f"lake{next(numbers)}", request.param, flights)


@pytest.fixture
def lake(lakes: Callable[[], Lake]) -> Lake:
    """A new output."""
    return lakes()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is killed at a step has no other threads that are further."""
    monkeypatch.setattr(store_module, "_REMOTE_THREADS", 1)


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """Twelve events in the first hour, none in the second, three in the third."""
    return two_shards(tmp_path / "feeds.db")
