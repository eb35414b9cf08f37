# SPDX-License-Identifier: Apache-2.0
"""What ``setup_feed`` executes for a table: ``create_feed_objects`` once more, without a server."""

from __future__ import annotations

from airflow_changefeed.sql import fill
from airflow_changefeed.sql.mssql import Template, feed_templates, install_tokens
from tests.tools.tsql.tables import Case, quoted

_OWN = ("ulid", "shard_id")
FEED_ID, OBJECT_ID = 7, 1234567890


def filled_feed(case: Case, *, feed_id: int = FEED_ID, object_id: int = OBJECT_ID) -> dict[str, str]:
    """
    Return the statements in their order, each under the name of its template.

    :param feed_id: the number that the server gave to the feed.
    :param object_id: the number that the server gave to the table.
    """
    numbers = {"feed_id": str(feed_id), "object_id": str(object_id)}
    tokens = {**install_tokens(case.installed_in), **numbers, **_names(case), **_keys(case)}
    return {
        f"{template.object}.{template.type}": fill(template.body, tokens) for template in templates_of(case)
    }


def templates_of(case: Case) -> list[Template]:
    """Return the templates that a feed gets: the function ``feed_templates`` once more."""
    found = feed_templates()
    own = {(one.object, one.type) for one in found if one.kind == "capture" and case.is_capture}
    kind = "serialized" if case.serialized else "outbox"
    return [
        one
        for one in found
        if one.kind is None
        or (one.kind == "capture" and case.is_capture)
        or (one.kind == kind and (one.object, one.type) not in own)
    ]


def _names(case: Case) -> dict[str, str]:
    name = case.name
    inner = name.replace("]", "]]")
    zero = "'00000000-0000-0000-0000-000000000000'" if case.shard_type == "uniqueidentifier" else "0"
    is_number = case.shard_type != "uniqueidentifier"
    shard = f"t.{quoted(case.shard_column)}" if case.shard_column else f"convert({case.shard_type}, {zero})"
    ulid = (
        f"t.{quoted(case.ulid_column)}"
        if case.ulid_column
        else "convert(binary(16), convert(int, 'changefeed 77122: name the ULID column of the table with "
        "@ulid_column of setup_feed'))"
    )
    return {
        "name": inner,
        "name_text": _in_text(name),
        "name_in_text": _in_text(inner),
        "table": f"{quoted(case.schema)}.{quoted(case.table)}",
        "shard_type": case.shard_type,
        "shard_default": f"constraint [def:outbox.shard_id:{inner}] default 0" if is_number else "",
        "shard_parameter_default": "= 0" if is_number else "",
        "check_capture": (
            f"exec {quoted(case.installed_in)}.[check_capture:{inner}];" if case.is_capture else ""
        ),
        "knows_transactions": "1",
        "transaction": "o.changefeed_tid",
        "on_filegroup": f" on {quoted(case.filegroup)}" if case.filegroup else "",
        "compression": case.compression,
        # The compiler is older than the option.
        "sequential_key": "",
        "events": "o.changefeed_rows" if case.is_capture else "1",
        "sequence": f"{quoted(case.installed_in)}.[sequence]",
        "lock_principal": f"{install_tokens(case.installed_in)['schema_text']}.users",
        "shard_expression": shard,
        "ulid_expression": ulid,
    }


def _keys(case: Case) -> dict[str, str]:
    names = [name for name, _ in case.key]
    read = [name for name in names if not case.serialized or name.lower() not in _OWN]
    definitions = [
        f"{quoted(name)} {'binary(8)' if of == 'rowversion' else of} not null" for name, of in case.key
    ]

    def listed(alias: str) -> str:
        return ", ".join(f"{alias}{quoted(name)}" for name in names)

    def equal(alias: str) -> str:
        return " and ".join(f"{alias}.{quoted(name)} = h.{quoted(name)}" for name in names)

    def after_comma(alias: str, chosen: list[str]) -> str:
        return "".join(f", {alias}{quoted(name)}" for name in chosen)

    return {
        "key_definitions": ",\n    ".join(definitions),
        "keys": listed(""),
        "outbox_keys": listed("o."),
        "page_keys": listed("p."),
        "numbered_keys": listed("n."),
        "history_keys": listed("h."),
        "history_is_feed": equal("f"),
        "history_is_outbox": equal("o"),
        "history_is_table": equal("t"),
        "key_names_in_text": _in_text(", ".join(names)),
        "history_columns_in_text": _in_text(after_comma("h.", names)),
        "read_names_in_text": _in_text("".join(f", {name}" for name in read)),
        "read_columns_in_text": _in_text(after_comma("r.", read)),
        "keys_after_comma": after_comma("", read),
        "feed_keys_after_comma": after_comma("f.", read),
        "view_keys": "".join(f",\n    t.{quoted(name)}" for name in read),
    }


def _in_text(value: str) -> str:
    return value.replace("'", "''")
