# SPDX-License-Identifier: Apache-2.0
"""
Fixtures for what only SQL Server has: plain T-SQL, as its users write it.

Nothing is collected unless ``CHANGEFEED_TEST_MSSQL`` names a server; a server that is named must answer. Each
module gets a database of its own on it, made before and dropped afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from airflow_changefeed.sources.mssql import MssqlFeedSource
from tests.integration.babelfish import rewriting
from tests.integration.contract.engines import MSSQL_VARIABLE
from tests.integration.mssql.lab import Lab
from tests.integration.mssql.line import Line, line_to
from tests.integration.mssql.server import Client, Database, new_database

collect_ignore_glob = [] if os.environ.get(MSSQL_VARIABLE) else ["test_*.py"]


@pytest.fixture(scope="module", autouse=True)
def rewritten() -> Iterator[None]:
    """Install what the server executes."""
    with rewriting():
        yield


@pytest.fixture(scope="module")
def empty_database() -> Iterator[Database]:
    """Give a database without changefeed, with the schema ``myservice``."""
    with new_database() as database:
        yield database


@pytest.fixture(scope="module")
def database(empty_database: Database) -> Iterator[Database]:
    """Give a database with changefeed; nothing is kept for a next call, so that it can be dropped."""
    empty_database.install()
    yield empty_database
    MssqlFeedSource(**empty_database.description).close()


@pytest.fixture
def line(database: Database) -> Iterator[Line]:
    """Lay a line to the server."""
    with line_to((database.description["host"], database.description["port"] or 1433)) as line:
        yield line


@pytest.fixture
def distant(database: Database, line: Line) -> Iterator[MssqlFeedSource]:
    """Give a source at the other end of the line."""
    description = database.description | {"host": "127.0.0.1", "port": line.port}
    with closing(MssqlFeedSource(**description | {"lock_timeout": 20})) as source:
        yield source


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    """Give a connection of its own."""
    with database.client() as client:
        yield client


@pytest.fixture(scope="module")
def lab(database: Database) -> Iterator[Lab]:
    """Give the module's database with a connection and a source."""
    with database.client() as client, database.source() as source:
        yield Lab(client, source)
