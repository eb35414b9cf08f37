# SPDX-License-Identifier: Apache-2.0
"""
Fixtures for what only SQL Server has: plain T-SQL, as its users write it.

Nothing is collected unless ``CHANGEFEED_TEST_MSSQL`` names a server; a server that is named must answer. Each
module gets a database of its own on it, made before and dropped afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.contract.engines import MSSQL_VARIABLE
from tests.integration.mssql.server import Client, Database, new_database

collect_ignore_glob = [] if os.environ.get(MSSQL_VARIABLE) else ["test_*.py"]


@pytest.fixture(scope="module")
def empty_database() -> Iterator[Database]:
    """Give a database without changefeed, with the schema ``myservice``."""
    with new_database() as database:
        yield database


@pytest.fixture(scope="module")
def database(empty_database: Database) -> Database:
    """Give a database with changefeed."""
    empty_database.install()
    return empty_database


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    """Give a connection of its own."""
    with database.client() as client:
        yield client
