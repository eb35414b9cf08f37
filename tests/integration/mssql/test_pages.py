# SPDX-License-Identifier: Apache-2.0
"""The pages by which a DBA begins and ends: their T-SQL and commands, and the output that they show."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.examples import examples
from tests.integration.babelfish import is_babelfish
from tests.integration.contract.engines import MSSQL_VARIABLE
from tests.integration.mssql.server import Client, Database, new_database
from tests.unit.airflow.commands import Commands, connection_json

WRITE, REMOVE = "how-to/write-to-a-feed.md", "how-to/install-on-sql-server.md#remove"
TUTORIAL = "tutorial/first-export.md"
#: All columns that the page's statements take from ``#input``.
INPUT = (
    "drop table if exists #input; create table #input ("
    "AggregateID bigint, Version int, UserID bigint, ChosenShoeSize tinyint, Time datetime2(3)); "
    "insert into #input values "
    "(1002, {version}, 7, 41, '2023-01-02'), (1002, {version} + 1, 8, 42, '2023-01-01')"
)


def _shown(text: str) -> list[str]:
    """Return a table's lines as it is read: of a ULID the time only."""
    lines = re.sub(r"\b(01\w{8})\w{16}\b", r"\1", text).splitlines()
    return [stripped for line in lines if (stripped := " ".join(line.split()))]


@contextmanager
def _connected(database: Database, capsys: pytest.CaptureFixture[str], **fields: str) -> Iterator[Commands]:
    """Give the commands on a database, and leave no connection that would keep it from being dropped."""
    with pytest.MonkeyPatch.context() as patch:
        described = {"type": "mssql", **database.description, **fields}
        patch.setenv("AIRFLOW_CONN_FEEDS", connection_json(described))
        patch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
        yield Commands(capsys, "feeds")


def _remove(client: Client) -> None:
    """Remove changefeed as the page says."""
    for (name,) in client.rows("select name from changefeed.feeds"):
        client.results(f"exec changefeed.drop_feed @table_name = N'{name}'")
    client.results("create role added_by_hand; alter role [changefeed.users] add member added_by_hand")
    client.results(examples(REMOVE, {}, "sql")[-1])


def test_the_page_on_writing_runs(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Both kinds of writers; what the first event's reader sees is what the page shows."""
    blocks = iter(examples(WRITE, {}, "sql"))
    with database.client() as client, _connected(database, capsys) as commands:
        client.results("create role shoe_service")
        client.results(next(blocks))
        client.results(next(blocks))
        (row,) = client.rows(next(blocks))
        seen, read = examples(WRITE, {}, "text")
        assert _shown(seen)[1].split() == [row[0][:10], *map(str, row[1:])]
        assert commands.run("read", "--feed", "myservice.MyEvent", "--shard", "0") == 0
        assert _shown(commands.out) == _shown(read)
        client.results(INPUT.format(version=1))
        client.results(next(blocks))
        client.results(next(blocks))
        client.results("insert into myservice.MyEvent values (999, 1, 40)")
        assert commands.run("seal", "--feed", "myservice.MyEvent") == 0
        client.results(next(blocks))
        table, many, one, by_index, two, bounds = blocks
        for statement in (table, one, by_index, two, bounds):
            client.results(INPUT.format(version=3))
            client.results(statement)
        # Not every server takes the order of the numbers.
        assert " over (order by i.Time)" in many
        client.results(many.replace(" over (order by i.Time)", ""))
        assert client.value("select count(*) from myservice.UserEvent") == 7


def test_the_tutorial_runs_on_sql_server(capsys: pytest.CaptureFixture[str]) -> None:
    """Airflow's login, which has only what the page grants, sees the event as the page shows it."""
    user, password = f"pages_{os.getpid()}", f"Aa1!{secrets.token_hex(12)}"
    table, write = (sql.replace("changefeed_airflow", user) for sql in examples(TUTORIAL, {}, "sql"))
    with new_database() as database, database.client() as client:
        database.install()
        client.results(f"create login {user} with password = '{password}'")
        try:
            for batch in table.split("\ngo\n"):
                client.results(batch)
            client.results(write)
            # Babelfish has no ownership chaining, and so no role suffices there.
            login = {} if is_babelfish(os.environ[MSSQL_VARIABLE]) else {"user": user, "password": password}
            with _connected(database, capsys, **login) as commands:
                assert commands.run("status") == 0
                assert commands.run("read", "--feed", "shop.ShoeEvent", "--shard", "0", "--drain") == 0
                assert _shown(commands.out) == _shown(examples(TUTORIAL, {}, "text")[-1])
            # Not every server drops a user that has rights.
            client.results(f"revoke select on shop.ShoeEvent from {user}")
            client.results(f"alter role [changefeed.operators:shop.ShoeEvent] drop member {user}")
            client.results(f"drop user {user}")
        finally:
            client.results(f"drop login {user}")


def test_all_is_removed_as_the_page_says() -> None:
    """Of changefeed no object, role, user and trigger stays; the event table and its rows do."""
    with new_database() as database, database.client() as client:
        before = client.rows("select name from sys.database_principals order by name")
        database.install()
        client.results("create table myservice.MyEvent (EventID int not null primary key)")
        client.results("create table myservice.Line (EventID int not null primary key)")
        client.results("exec changefeed.setup_feed N'myservice.MyEvent', @outbox = 1")
        client.results(
            "exec changefeed.enable_capture @table = N'myservice.Line', @capture = N'myservice.Lines', "
            "@guard_schema = 0"
        )
        client.results("insert into myservice.MyEvent values (1)")
        _remove(client)
        client.results("drop role added_by_hand")
        assert client.value("select schema_id(N'changefeed')") is None
        assert client.value("select object_id(N'myservice.Lines')") is None
        assert client.rows("select name from sys.database_principals order by name") == before
        assert client.rows("select name from sys.triggers") == []
        assert client.value("select EventID from myservice.MyEvent") == 1
