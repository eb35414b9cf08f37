# SPDX-License-Identifier: Apache-2.0
"""A database that a released version installed becomes this version's, and goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.doctor.doctor import examine
from tests.integration.babelfish import rewrite_script
from tests.integration.mssql.server import Client, Database, new_database
from tests.tools.released.place import RELEASED, versions

FEED, CAPTURED = "myservice.MyEvent", "myservice.Stock"


@pytest.fixture(params=versions())
def left(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Give a database with that version's objects, a feed with events, and a captured table."""
    batches = (RELEASED / request.param / "changefeed.sql").read_text(encoding="utf-8").split("\ngo\n")
    with new_database() as database, database.client() as client:
        for batch in rewrite_script(batches) if client.is_babelfish else batches:
            client.results(batch.replace("cache 1000", f"cache {database.sequence_cache}"))
        for table in (FEED, CAPTURED):
            client.results(f"create table {table} (id int not null primary key, amount int)")
        client.results(f"exec changefeed.setup_feed @table_name = N'{FEED}', @outbox = 1")
        write(client, 1, 2)
        client.results(f"exec [changefeed].[drain_feed:{FEED}]")
        write(client, 3)
        client.results(
            f"exec changefeed.enable_capture @table = N'{CAPTURED}', @guard_schema = 0, @guard_table = 0"
        )
        client.results(f"insert into {CAPTURED} values (1, 10)")
        yield database


def write(client: Client, *numbers: int) -> None:
    """Write events, a transaction each."""
    for number in numbers:
        client.results(
            f"begin transaction; insert into {FEED} values ({number}, {number}); "
            f"insert into [changefeed].[outbox:{FEED}] (id) values ({number}); commit"
        )


def test_the_script_of_this_version_upgrades_it(left: Database) -> None:
    """What was ordered stays as it is, what waited follows, and the doctor finds nothing."""
    with left.client() as client:
        before = client.rows(f"select ulid, id from [changefeed].[feed:{FEED}] order by ulid")
        identity = client.value("select id from changefeed.database_identity")
        left.install()
        assert client.value("select id from changefeed.database_identity") == identity
        write(client, 4)
        client.results(f"update {CAPTURED} set amount = 11")
        with left.source() as source:
            for feed in (FEED, f"{CAPTURED}_changes"):
                source.drain(feed)
            events = source.read_feed(FEED, 0, Ulid.MIN).events
            assert [event.key for event in events] == [(1,), (2,), (3,), (4,)]
            assert [(bytes(event.ulid), event.key[0]) for event in events[:2]] == [
                (bytes(u), i) for u, i in before
            ]
            assert len(source.read_feed(f"{CAPTURED}_changes", 0, Ulid.MIN).events) == 2
            # A server that is compatible with SQL Server does not report everything.
            assert {fault.kind for fault in examine(source).faults} <= {FaultKind.NOT_CHECKED}
