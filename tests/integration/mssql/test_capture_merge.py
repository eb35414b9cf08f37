# SPDX-License-Identifier: Apache-2.0
"""
What a merge leaves recorded, whichever of its triggers the server fires first.

Babelfish has no merge. So the rows are changed without triggers, and the triggers' own text then runs in each
order as procedures, over the rows that a server would give them, when all rows have changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from tests.integration.mssql.server import Client, Rows

COLUMNS = "region varchar(5) not null, id int not null, name varchar(9) null, primary key (region, id)"
#: Rows by id before a merge, and after it deleted one, moved a row to its key, and inserted where that was.
BEFORE, AFTER = {1: "one", 2: "two", 3: "three"}, {1: "moved", 2: "new", 3: "three"}
#: What each action of the merge gives its trigger as deleted and as inserted.
ACTIONS: dict[str, tuple[dict[int, str], dict[int, str]]] = {
    "insert": ({}, {2: "new"}),
    "update": ({2: "two"}, {1: "moved"}),
    "delete": ({1: "one"}, {}),
}
MERGE = """
merge into myservice.{table} as t
using (values (1, 'gone', 0), (2, 'moved', 1), (9, 'new', 2)) as s (id, name, target)
on t.region = 'eu' and t.id = s.id
when matched and s.id = 1 then delete
when matched then update set id = s.target, name = s.name
when not matched then insert (region, id, name) values ('eu', s.target, s.name);
"""


def _capture(client: Client, table: str, settings: str) -> str:
    """Make a table and capture it; return the table of its events."""
    client.results(f"create table myservice.{table} ({COLUMNS})")
    client.results(
        f"exec changefeed.enable_capture N'myservice.{table}', @guard_schema = 0, @guard_table = 0, "
        f"@key_change = 'delete_insert', {settings}"
    )
    return f"myservice.{table}_changes"


def _insert(client: Client, into: str, rows: dict[int, str]) -> None:
    for id_, name in rows.items():
        client.results(f"insert into {into} values ('eu', {id_}, '{name}')")


def _merge(client: Client, table: str, order: Sequence[str], affected: int = 3) -> None:
    """Do what a server does that fires the triggers of the merge in this order."""
    name = f"myservice.{table}"
    for action in order:
        client.results(f"disable trigger [myservice].[capture_{action}.0:{name}_changes] on {name}")
    client.results(f"begin transaction; delete from {name} where id in (1, 2)")
    _insert(client, name, {1: AFTER[1], 2: AFTER[2]})
    for action in order:
        for pseudo, rows in zip(("#deleted", "#inserted"), ACTIONS[action], strict=True):
            client.results(f"drop table if exists {pseudo}; create table {pseudo} ({COLUMNS})")
            _insert(client, pseudo, rows)
        client.results(_as_procedure(client, table, action, affected))
        client.results(
            f"exec myservice.[{action} of {table}]; drop procedure myservice.[{action} of {table}]"
        )
    client.results("commit")
    for action in order:
        client.results(f"enable trigger [myservice].[capture_{action}.0:{name}_changes] on {name}")


def _as_procedure(client: Client, table: str, action: str, affected: int) -> str:
    """Return a trigger's text as a procedure that reads the rows of temporary tables."""
    trigger = f"[myservice].[capture_{action}.0:myservice.{table}_changes]"
    text = client.value(f"select definition from sys.sql_modules where object_id = object_id(N'{trigger}')")
    body = text[text.index("\nas\n") :].replace("rowcount_big()", str(affected))
    for pseudo in ("deleted", "inserted"):
        body = body.replace(f"from {pseudo}", f"from #{pseudo}").replace(f" {pseudo} as", f" #{pseudo} as")
    return f"create procedure myservice.[{action} of {table}]{body}"


def _since(client: Client, events: str, statement: int) -> Rows:
    """Return the kind, id and name of the events behind a statement, in order."""
    return client.rows(
        f"select changefeed_op, id, name from {events} where changefeed_statement > {statement} "
        "and (changefeed_image = 1 or changefeed_op = 'd') order by changefeed_statement, changefeed_row"
    )


def _left(rows: dict[int, str], events: Rows) -> dict[int, str]:
    """Return the rows that the last event of each key leaves."""
    last = rows | {id_: "" if kind == "d" else name for kind, id_, name in events}
    return {id_: name for id_, name in last.items() if name}


def _begin(client: Client, table: str, events: str) -> int:
    """Restore the rows; return the last statement that was recorded."""
    client.results(f"delete from myservice.{table}")
    _insert(client, f"myservice.{table}", BEFORE)
    return int(client.value(f"select max(changefeed_statement) from {events}"))


@pytest.mark.parametrize("shard", ["0", "id % 2"])
def test_the_last_event_of_each_key_is_its_present_row(client: Client, shard: str) -> None:
    """A key that one action deletes and another inserts, or moves a row to, in any order of the triggers."""
    table = f"merged_{len(shard)}"
    events = _capture(client, table, f"@shard = N'{shard}'")
    for order in permutations(ACTIONS):
        begun = _begin(client, table, events)
        if client.is_babelfish:
            _merge(client, table, order)
        else:
            client.results(MERGE.format(table=table))
        found = _since(client, events, begun)
        assert _left(BEFORE, found) == AFTER, order
        changes = [("d", 1, "one"), ("d", 2, "two"), ("i", 1, "moved"), ("i", 2, "new")]
        assert sorted(found) == [*changes, ("r", 1, "moved"), ("r", 2, "new")], order
    recorded = client.value(
        f"select count(*) from {events} where changefeed_image = 1 or changefeed_op = 'd'"
    )
    drained = client.rows(f"exec [changefeed].[drain_feed:{events}]")
    assert sum(count for _, count in drained) == recorded
    # The rows once more are no new ones.
    assert client.rows(f"exec [changefeed].[compare_capture:{events}]") == [("myservice", table, 3, 3)]


def test_only_a_statement_with_several_actions_looks_for_rows(client: Client) -> None:
    """Where a trigger's own rows are all rows of the statement, nothing is recorded behind them."""
    events = _capture(client, "plain", "@shard = N'0'")
    begun = _begin(client, "plain", events)
    if client.is_babelfish:
        _merge(client, "plain", tuple(ACTIONS), affected=1)
    client.results("update myservice.plain set id = id + 10; delete from myservice.plain")
    assert "r" not in {kind for kind, *_ in _since(client, events, begun)}
