# SPDX-License-Identifier: Apache-2.0
"""What the server makes of the templates is what the compile check compiles, statement by statement."""

from __future__ import annotations

import re

import pytest

from airflow_changefeed.sql.mssql import feed_templates
from tests.integration.mssql.server import Client
from tests.tools.tsql.filled import FEED_ID, OBJECT_ID, filled_feed
from tests.tools.tsql.tables import Case, quoted

# Closing brackets are the compile check's: stand-ins do not take them.
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
    feed_id, object_id = client.rows(
        f"select feed_id, object_id from changefeed.feeds where object_id = object_id(N'{name}')"
    )[0]
    expected = filled_feed(case)
    compared = 0
    for template in feed_templates():
        text = expected.get(f"{template.object}.{template.type}")
        if text is None or template.type not in ("procedure", "function"):
            continue
        text = text.replace(str(OBJECT_ID), str(object_id)).replace(
            f"feed_id = {FEED_ID}", f"feed_id = {feed_id}"
        )
        text = text.replace(f"shard/{FEED_ID}/", f"shard/{feed_id}/")
        for word in ("(", "            ", "            "):
            text = text.replace(f"{word}{FEED_ID},", f"{word}{feed_id},")
        full = f"[changefeed].{quoted(f'{template.object}:{case.name}')}".replace("'", "''")
        found = client.value(
            f"select m.definition from sys.sql_modules as m where m.object_id = object_id(N'{full}')"
        )
        assert found is not None, full
        assert _plain(found) == _plain(text)
        compared += 1
    assert compared > 25


def _plain(sql: str) -> str:
    """Return a text without what servers change in the text that they keep: spaces at its ends, and case."""
    return re.sub(r"\s+", " ", sql.partition("create ")[2]).strip().lower()
