# SPDX-License-Identifier: Apache-2.0
"""The T-SQL of the page on captures, in its order."""

from __future__ import annotations

import re

from tests.examples import examples
from tests.integration.mssql.server import Client, Database

PAGE = "how-to/capture-changes.md"
TABLES = (
    "create table dbo.flights (id int not null primary key, dest varchar(3), departed_at varchar(5))",
    "create table dbo.orders (id int not null primary key, status varchar(10), note varchar(100), total int)",
    "create table dbo.order_lines (id int not null primary key, order_id int, amount int)",
)


def unguarded(batch: str) -> str:
    """
    Leave the guard of the schema out, everywhere: not every server has triggers on DDL.

    Those are compiled. All policies but ``pause`` need the guard.
    """
    batch = re.sub("@on_ddl = '(evolve|refuse)'", "@on_ddl = 'pause'", batch)
    return re.sub(
        r"(exec changefeed.enable_capture(?:(?!guard_schema)[^;])*);", r"\1, @guard_schema = 0;", batch
    )


def recorded(client: Client, capture: str) -> list[tuple[object, ...]]:
    """Return what a capture has recorded: kind and key."""
    return client.rows(
        f"select changefeed_op, id from {capture} where changefeed_image = 1 or changefeed_op = 'd' "
        "order by changefeed_statement, changefeed_row"
    )


def test_the_page_runs(database: Database) -> None:
    """Its captures record, take columns in, are resolved and dropped, as it says."""
    with database.client() as client:
        for table in TABLES:
            client.results(table)
        batches = list(map(unguarded, examples(PAGE, {}, "sql")))
        flights, seen, audit, several, session, added, taken_out, evolving, allowed = batches[:9]
        replicated, resolved, dropped = batches[9:]
        client.results(flights)
        client.results("insert into dbo.flights values (1, 'OSL', null)")
        assert recorded(client, "dbo.flights_changes") == [("i", 1)]
        client.results("insert into dbo.flights values (2, 'BGO', null)")
        client.results("update dbo.flights set departed_at = '12:05' where id = 1")
        client.results("delete from dbo.flights where id = 2")
        found = client.rows(seen)
        assert [(row[2], *row[3:5], *row[6:]) for row in found] == [
            (1, "i", 1, 1, "OSL", None),
            (2, "i", 1, 2, "BGO", None),
            (3, "u", 0, 1, "OSL", None),
            (3, "u", 1, 1, "OSL", "12:05"),
            (4, "d", 0, 2, "BGO", None),
        ]
        client.results(audit)
        client.results(several)
        client.results("insert into dbo.orders values (1, 'new', null, 12)")
        assert recorded(client, "dbo.audit") == [("i", 1)]
        client.results(session)
        assert recorded(client, "dbo.audit") == [("i", 1), ("u", 1)]
        client.results("delete from dbo.orders")
        assert [op for op, _ in recorded(client, "dbo.order_changes")] == ["i", "u", "d"]
        assert recorded(client, "dbo.audit") == [("i", 1), ("u", 1)]
        client.results(added)
        client.results("update dbo.flights set seats = 180")
        refresh, _, drop = taken_out.partition("alter table")
        client.results(refresh)
        # Before the column goes: not every server keeps the triggers of a table that loses one.
        client.results("update dbo.flights set dest = 'BGO'")
        client.results(f"alter table{drop}")
        assert client.rows(
            "select dest, seats from dbo.flights_changes where changefeed_op = 'u' and changefeed_image = 1 "
            "order by changefeed_statement"
        ) == [("OSL", None), ("OSL", 180), ("BGO", None)]
        # Those that went with the column come back, as the page says: refresh, change it, refresh again.
        client.results("exec changefeed.refresh_capture @capture = N'dbo.flights_changes'")
        client.results("insert into dbo.orders values (1, 'new', null, 12)")
        enabled, alter, update, _ = evolving.split(";")
        for statement in (enabled, alter, update):
            client.results(statement)
        client.results(allowed)
        # The first column waited for the first refresh, as nothing evolves here.
        assert [op for op, _ in recorded(client, "dbo.orders_changes")] == ["c", "c"]
        client.fails(77140, replicated, "with other settings")
        client.results(resolved)
        client.results(dropped)
        assert client.value("select object_id(N'dbo.flights_changes')") is None
