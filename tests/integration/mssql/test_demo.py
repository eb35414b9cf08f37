# SPDX-License-Identifier: Apache-2.0
"""The database of ``make demo-mssql``: made by it alone, and loaded in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone

import pyarrow as pa
import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import Window
from airflow_changefeed.sources import open_source
from tests.examples import examples
from tests.integration.mssql.server import Database, new_database
from tests.system.demo.engine import DemoError
from tests.system.demo.flights import FEED, SHARDS, events_of
from tests.system.demo.mssql import DATABASE, MssqlEngine
from tests.system.demo.mssql_database import MARK, own_database
from tests.system.demo.report import are_equal, flights_in

PAGE = "how-to/install-on-sql-server.md#try-it-on-your-server"
DAY = Window(datetime(2013, 1, 1, tzinfo=timezone.utc), datetime(2013, 1, 2, tzinfo=timezone.utc))


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


def test_the_writers_rows_come_in_their_order_and_as_the_data_set_has_them(own: Database) -> None:
    """Each shard keeps the order within and between its transactions; every value arrives in its type."""
    engine = _engine(own)
    with closing(open_source(engine.description)) as source:
        tables = []
        for origin, shard in SHARDS.items():
            day = [event for event in events_of(origin) if event[1][1].startswith("2013-01-01")]
            with engine.writer(shard) as write:
                write(day[:200])
                write(day[200:])
            page = source.read_feed(FEED, shard, Ulid.MIN, 1000)
            assert [event.key for event in page] == [row[:1] for _, row in day]
            # The data set's hours are those of the windows.
            assert [event.ulid.time for event in page] == [
                datetime.fromisoformat(row[1].replace("Z", "+00:00")) for _, row in day
            ]
            tables += source.stream(FEED, shard, UlidRange(Ulid.MIN, page.last))
        assert are_equal(flights_in(DAY, engine.schema), [pa.Table.from_batches(tables)])
        look, drop = examples(PAGE, {DATABASE: engine.description["database"]}, "sql")
        with own.client() as client:
            _, first = events_of("EWR")[0]
            assert client.rows(look)[0][2:5] == (first[0], datetime(2013, 1, 1, 10), "UA")
        assert drop.strip().removesuffix(";") in engine.removal.replace("[", "").replace("]", "")
