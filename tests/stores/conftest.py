# SPDX-License-Identifier: Apache-2.0
"""One server of each kind for each test process, on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores import servers
from tests.stores.servers import Outputs, Server
from tests.unit.export.flights import Flights

KINDS = ["s3", "azure", "google"]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    """S3."""
    with servers.s3() as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Azure."""
    with servers.azure(tmp_path_factory.mktemp("azure")) as server:
        yield server


@pytest.fixture(scope="session")
def google_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Google."""
    with servers.google(tmp_path_factory.mktemp("google")) as server:
        yield server


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Server:
    """Each store in turn."""
    found = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(found, Server)
    return found


@pytest.fixture
def outputs(server: Server) -> Outputs:
    """What makes new outputs in the store."""
    return server.new


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """Twelve events in the first hour, none in the second."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(12, 0)
    return flights
