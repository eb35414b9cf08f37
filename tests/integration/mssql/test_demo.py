# SPDX-License-Identifier: Apache-2.0
"""The database of ``make demo-mssql``: made by it alone, and loaded in order."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.mssql.server import Database, new_database
from tests.system.demo.engine import DemoError
from tests.system.demo.mssql import MssqlEngine
from tests.system.demo.mssql_database import MARK, own_database


def _engine(database: Database) -> MssqlEngine:
    return MssqlEngine.from_environment(os.environ, database.description["database"])


@pytest.fixture(scope="module")
def own() -> Iterator[Database]:
    """Give a database that the demo has made where another demo had made one before."""
    with new_database() as database:
        with database.client() as client:
            client.results(f"exec sys.sp_addextendedproperty N'{MARK}', N'by an earlier demo'")
        with _engine(database).made():
            yield database


def test_a_database_that_the_demo_did_not_make_is_left_alone() -> None:
    """It is named, with what to do."""
    with new_database() as foreign:
        with foreign.client() as client:
            client.results("create table myservice.Precious (id int)")
        engine = _engine(foreign)
        with pytest.raises(DemoError, match=r"that the demo did not make.*drop database \["), engine.made():
            raise AssertionError("made")
        with foreign.client() as client:
            assert client.value("select count(*) from myservice.Precious") == 0


def test_the_demo_makes_its_database_anew_and_nobody_else_does_meanwhile(own: Database) -> None:
    """What an earlier demo left is gone; a demo that runs keeps its own."""
    with own.client() as client:
        assert client.rows("select name from sys.schemas where name = 'myservice'") == []
        engine = _engine(own)
        second = own_database(engine._source, engine.description["database"], engine.place, patience=0)
        with pytest.raises(DemoError, match="Another make demo-mssql may be running"), second:
            raise AssertionError("made")
        assert client.value("select count(*) from nyc.Flight") == 0
