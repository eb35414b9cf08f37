# SPDX-License-Identifier: Apache-2.0
"""What the server makes of the templates is what the compile check compiles, statement by statement."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tests.integration.mssql.server import Client
from tests.tools.tsql.captures import CaptureCase, Captured, Column
from tests.tools.tsql.filled import OBJECT_ID, filled_feed, templates_of
from tests.tools.tsql.filled_captures import filled_capture
from tests.tools.tsql.tables import Case, quoted

# Closing brackets are the compile check's: Babelfish does not take them.
CASES = {
    "outbox": Case("myservice", "Plain", (("EventID", "bigint"),)),
    "awkward": Case(
        "my sch'ema",
        "a.b 'c' \"d\" <e> <<name>> ñ",
        (("grö'ße", "bigint"), ('with "space', "int"), ("<<table>>", "int")),
        "uniqueidentifier",
    ),
    "serialized": Case("myservice", "Locked", (("x", "int"),), "smallint", True, "Ulid", "Shard"),
    "one shard": Case("myservice", "Alone", (("ulid", "binary(16)"),), "int", True, "ulid"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_server_fills_templates_as_the_compile_check_does(client: Client, case: Case) -> None:
    """Names that look like tokens or end a quotation included: one pass, nothing looked at twice."""
    schema = quoted(case.schema).replace("'", "''")
    statements = [s for s in case.event_table() if not s.startswith("create schema")]
    text = case.schema.replace("'", "''")
    client.results(f"if schema_id(N'{text}') is null exec(N'create schema {schema}')")
    for statement in statements:
        client.results(statement)
    name = f"{quoted(case.schema)}.{quoted(case.table)}".replace("'", "''")
    kind = "@blocking = 1" if case.serialized else "@outbox = 1"
    client.results(f"exec changefeed.setup_feed N'{name}', {kind}, @shard_key_type = N'{case.shard_type}'")
    assert _compare_feed(client, case) > 25


CAPTURES = {
    "several": CaptureCase(
        "my sch'ema",
        "changes 'of' <<name>> ñ",
        (
            Captured(
                "my sch'ema",
                "c.d 'e' <<table>>",
                (Column("grö'ße", "int"), Column("name", "nvarchar(20)")),
                (
                    Column("<<shard>>", "float"),
                    Column("~", "varchar(max)"),
                    Column("when", "datetimeoffset(6)"),
                ),
            ),
            Captured("myservice", "keyless", (), (Column("x", "int"), Column("y", "xml")), updates=None),
            Captured(
                "myservice", "chosen", (Column("id", "int"),), (Column("x", "int"),), ("x",), ("id",), None
            ),
        ),
        session_keys=("user", 'tenant\'s "id"'),
    ),
    "by key": CaptureCase(
        "myservice",
        "by_key",
        (
            Captured(
                "myservice", "sharded", (Column("id", "int"),), (Column("b", "binary(8)"),), shard="id % 8"
            ),
        ),
        "smallint",
        "delete_insert",
        keep_unchanged=True,
        trace_key="",
        not_for_replication=True,
        filegroup="PRIMARY",
    ),
}


@pytest.mark.parametrize("case", CAPTURES.values(), ids=CAPTURES)
def test_the_server_fills_captures_as_the_compile_check_does(client: Client, case: CaptureCase) -> None:
    """Procedures and triggers of each table, and the feed beneath them."""
    if client.is_babelfish:
        # Its openjson leaves the escapes of JSON in.
        case = replace(case, session_keys=tuple(key.replace('"', "") for key in case.session_keys))
    for schema in {case.schema, *(table.schema for table in case.tables)}:
        text = schema.replace("'", "''")
        client.results(f"if schema_id(N'{text}') is null exec(N'create schema {quoted(text)}')")
    compared = 0
    # The database's, by the name that its columns have.
    collation = client.value(
        "select c.collation_name from sys.columns as c "
        "where c.object_id = object_id(N'changefeed.captures') and c.name = N'name'"
    )
    for table in case.tables:
        client.results(table.make())
        _enable(client, case, table)
    for name, wanted in filled_capture(case, collation=collation).items():
        kind, _, number = name.partition(".")
        if kind == "guard":
            continue
        table = case.tables[int(number or 0)]
        schema = quoted(table.schema) if kind in TRIGGERS else "[changefeed]"
        object_id = client.value(f"select object_id(N'{_full(table.schema, table.table)}')")
        text = wanted.replace(str(OBJECT_ID + int(number or 0)), str(object_id))
        found = _definition(client, f"{schema}.{quoted(f'{name}:{case.name}')}")
        if kind in TRIGGERS and "'" in schema and client.is_babelfish:
            assert found == ""  # It keeps no text of a trigger in a schema that has a quotation mark.
            continue
        if client.is_babelfish:
            text = text.replace(" not for replication", " /* not for replication */")
        assert _plain(found) == _plain(text)
        compared += 1
    assert compared > 5
    assert _compare_feed(client, case.feed) > 25


TRIGGERS = ("capture_insert", "capture_update", "capture_delete")


def _full(schema: str, table: str) -> str:
    return f"{quoted(schema)}.{quoted(table)}".replace("'", "''")


def _enable(client: Client, case: CaptureCase, table: Captured) -> None:
    columns = {"insert": table.inserts, "update": table.updates, "delete": table.deletes}
    lists = {
        f"{operation}_columns": "none" if names is None else json.dumps(names)
        for operation, names in columns.items()
        if names != ()
    }
    arguments = {
        "table": f"{quoted(table.schema)}.{quoted(table.table)}",
        "capture": case.name,
        "shard": table.shard,
        "shard_key_type": case.shard_type,
        "key_change": case.key_change,
        "keep_unchanged": str(int(case.keep_unchanged)),
        "session_keys": json.dumps(case.session_keys, ensure_ascii=False),
        "trace_key": case.trace_key,
        "not_for_replication": str(int(case.not_for_replication)),
        **({"filegroup": case.filegroup} if case.filegroup else {}),
        "guard_schema": "0",
        **lists,
    }
    given = ", ".join(
        f"@{name} = N'{value}'" for name, value in ((n, v.replace("'", "''")) for n, v in arguments.items())
    )
    client.results(f"exec changefeed.enable_capture {given}")


def _compare_feed(client: Client, case: Case) -> int:
    name = _full(case.schema, case.table)
    feed_id, object_id = client.rows(
        f"select feed_id, object_id from changefeed.feeds where object_id = object_id(N'{name}')"
    )[0]
    expected = filled_feed(case, feed_id=feed_id, object_id=object_id)
    compared = 0
    for template in templates_of(case):
        if template.type not in ("procedure", "function"):
            continue
        text = expected[f"{template.object}.{template.type}"]
        found = _definition(client, f"[changefeed].{quoted(f'{template.object}:{case.name}')}")
        assert _plain(found) == _plain(text)
        compared += 1
    return compared


def _definition(client: Client, name: str) -> str:
    full = name.replace("'", "''")
    found = client.value(
        f"select m.definition from sys.sql_modules as m where m.object_id = object_id(N'{full}')"
    )
    assert found is not None, name
    return str(found)


def _plain(sql: str) -> str:
    """Return a text without what servers change in the text that they keep: begin, end, spaces and case."""
    module = re.split(r"^\s*create\s+(?:or\s+alter\s+)?", sql, maxsplit=1, flags=re.MULTILINE | re.IGNORECASE)
    return re.sub(r"\s+", " ", re.sub(r"/\*.*\*/\s*$", "", module[-1], flags=re.DOTALL)).strip().lower()
