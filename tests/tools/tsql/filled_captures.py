# SPDX-License-Identifier: Apache-2.0
"""What ``enable_capture`` executes for its tables: ``create_capture_objects`` once more, without a server."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from airflow_changefeed.sql import fill
from airflow_changefeed.sql.mssql import capture_templates, install_tokens
from tests.tools.tsql.captures import CaptureCase, Captured, Column
from tests.tools.tsql.filled import OBJECT_ID
from tests.tools.tsql.tables import quoted

COLLATION = "Latin1_General_100_CI_AS"

Columns = Sequence[tuple[int, Column]]


def filled_capture(case: CaptureCase, *, collation: str = COLLATION) -> dict[str, str]:
    """Return the statements in their order, each under its object's name without the capture's."""
    found = {}
    for number, table in enumerate(case.tables):
        for name, sql in _filled(case, number, table, collation).items():
            found[name if name == "capture_table" else f"{name}.{number}"] = sql
    return found


def _filled(case: CaptureCase, number: int, table: Captured, collation: str) -> dict[str, str]:
    tokens = {
        **install_tokens(case.installed_in),
        **_names(case, number, table),
        **_session(case),
        **_keys(case, table, collation),
        **_columns(case, table),
        **_chunks(case, table, collation),
    }
    wanted = {
        "capture_insert": table.inserts is not None,
        "insert_rows": table.inserts is not None,
        "capture_update": table.updates is not None,
        "update_pairs": table.updates is not None,
        "capture_delete": table.deletes is not None,
        "delete_rows": table.deletes is not None,
        "guard": bool(table.key),
    }
    found = {}
    for template in capture_templates():
        if wanted.get(template.object, True):
            is_empty = template.object == "merged_rows" and (table.inserts is None or not table.key)
            found[template.object] = "" if is_empty else fill(template.body, tokens)
            if template.type == "fragment":
                tokens[template.object] = found.pop(template.object)
    return found


def _names(case: CaptureCase, number: int, table: Captured) -> dict[str, str]:
    inner = case.name.replace("]", "]]")
    own = quoted(case.installed_in)
    is_number = re.fullmatch(r"\s*[+-]?\d+\s*", table.shard) is not None
    return {
        "name": inner,
        "name_shown": case.name.replace("\n", " ").replace("\r", " "),
        "table_no": str(number),
        "object_id": str(OBJECT_ID + number),
        "table": f"{quoted(table.schema)}.{quoted(table.table)}",
        "trigger_schema": quoted(table.schema),
        "events": f"{quoted(case.schema)}.{quoted(case.table)}",
        "outbox": f"{own}.[outbox:{inner}]",
        "sequence": f"{own}.[sequence]",
        "shard_type": case.shard_type,
        "shard": table.shard,
        "is_one_shard": "1" if is_number else "0",
        "constant_shard": table.shard if is_number else "null",
        "keep_unchanged": "1" if case.keep_unchanged else "0",
        "not_for_replication": " not for replication" if case.not_for_replication else "",
        "is_paired": "1" if case.key_change == "new_only" else "0",
        "pair_join": "left" if case.key_change == "new_only" else "full",
        "calls": "\n".join(_calls(own, inner, place) for place in range(len(case.tables))),
    }


def _calls(own: str, inner: str, place: int) -> str:
    return (
        f"    if @table_no = {place} and @what in ('reset', 'chunk', 'ready')\n"
        f"        exec {own}.[capture_snapshot.{place}:{inner}] @what = @what, @rows = @chunk output, "
        "@statement = @statement output, @row = @row output, @is_last = @is_last output;\n"
        f"    else if @table_no = {place}\n"
        f"        exec {own}.[capture_rows.{place}:{inner}] @how = @what, @rows = @rows output, "
        "@gained = @gained output;"
    )


def _session(case: CaptureCase) -> dict[str, str]:
    lines = ""
    for key in case.session_keys:
        text = key.replace("'", "''")
        shown = json.dumps(key, ensure_ascii=False)[1:-1].replace("'", "''")
        lines += (
            f"    if session_context(N'{text}') is not null\n"
            "        set @session = concat(@session, case when @session is null then N'{' else N',' end, "
            f"N'\"{shown}\":\"', string_escape(convert(nvarchar(4000), session_context(N'{text}')), 'json'), "
            "N'\"');\n"
        )
    if lines:
        lines = f"\n{lines}    if @session is not null set @session = concat(@session, N'}}');\n"
    if case.trace_key:
        text = case.trace_key.replace("'", "''")
        lines += f"    set @trace = left(convert(nvarchar(4000), session_context(N'{text}')), 512);"
    return {"session": lines}


def _keys(case: CaptureCase, table: Captured, collation: str) -> dict[str, str]:
    keys = [quoted(one.name) for one in table.key]
    first = keys[0] if keys else "changefeed_shard"
    ordered = "".join(f", i.{key}" for key in keys)
    either = "".join(f", isnull(i.{key}, d.{key})" for key in keys)
    is_paired = case.key_change == "new_only"
    return {
        "first_key": first,
        "pair_op": "'u'"
        if is_paired
        else f"case when d.{first} is null then 'i' when i.{first} is null then 'd' else 'u' end",
        "row_order": f"a.changefeed_shard{ordered}",
        "pair_order": f"a.changefeed_shard{ordered}"
        if is_paired
        else f"isnull(a.changefeed_shard, b.changefeed_shard){either}",
        "same_key": " and ".join(f"d.{key} = i.{key}" for key in keys) or "1 = 0",
        "new_keys": ", ".join(f"i.{key}" for key in keys) or "1 as changefeed_nothing",
        "old_keys": ", ".join(f"d.{key}" for key in keys) or "1 as changefeed_nothing",
        "keys": ", ".join(keys),
        "key_definitions": ", ".join(
            f"{quoted(one.name)} {one.stored(collation)} not null" for one in table.key
        ),
    }


def _columns(case: CaptureCase, table: Captured) -> dict[str, str]:
    inserts, updates, deletes = (
        table.chosen(names) for names in (table.inserts, table.updates, table.deletes)
    )
    added = inserts if table.inserts is not None else updates
    snapshot = inserts or updates or deletes
    deleted = deletes if table.deletes is not None else updates
    is_folded = case.key_change == "delete_insert"
    first = quoted(table.key[0].name) if table.key else "changefeed_shard"
    paired = sorted({*updates, *added, *deleted}, key=lambda one: one[0]) if is_folded else updates
    return {
        "insert_stored": "".join(f", {quoted(one.name)}" for _, one in inserts),
        "insert_values": "".join(f", i.{quoted(one.name)}" for _, one in inserts),
        "snapshot_stored": "".join(f", {quoted(one.name)}" for _, one in snapshot),
        "snapshot_values": "".join(f", i.{quoted(one.name)}" for _, one in snapshot),
        "delete_stored": "".join(f", {quoted(one.name)}" for _, one in deletes),
        "delete_values": "".join(f", i.{quoted(one.name)}" for _, one in deletes),
        "update_stored": "".join(f", {quoted(one.name)}" for _, one in paired),
        "image_values": "".join(_image(one, is_folded, updates, added, deleted, first) for one in paired),
        "new_bytes": ", ".join(one.bytes("i") for _, one in updates) or "1",
        "old_bytes": ", ".join(one.bytes("d") for _, one in updates) or "1",
    }


def _chunks(case: CaptureCase, table: Captured, collation: str) -> dict[str, str]:
    """Return ``fill_chunks`` once more."""
    full = f"{quoted(table.schema)}.{quoted(table.table)}"
    first = next(names for names in (table.inserts, table.updates, table.deletes) if names is not None)
    recorded = {one.name for _, one in table.chosen(first)}
    if not table.key or not {one.name for one in table.key} <= recorded:
        return {
            "chunk_keys": "",
            "chunk_rows": f"{full} as i with (tablock, holdlock)",
            "chunk_end": "    set @is_last = 1;",
        }
    keys = [quoted(one.name) for one in table.key]
    names, own = ", ".join(keys), ", ".join(f"i.{key}" for key in keys)
    read = f"{full} as i with (holdlock)"
    events = f"{quoted(case.schema)}.{quoted(case.table)}"
    definitions = ", ".join(f"{quoted(one.name)} {one.stored(collation)} not null" for one in table.key)
    steps = ""
    for last in reversed(range(len(keys))):
        where = " and ".join(
            f"i.{key} {'>' if key == keys[last] else '='} p.{key}" for key in keys[: last + 1]
        )
        steps += (
            "\n    if @left > 0 and @statement is not null\n    begin\n"
            f"        insert into @keys ({names})\n"
            f"        select top (@left) {own} from @behind as p inner loop join {read} on {where} "
            f"order by {own};\n        set @left = @left - @@rowcount;\n    end;"
        )
    return {
        "chunk_keys": (
            f"    declare @keys table ({definitions}, primary key nonclustered ({names}));\n"
            f"    declare @behind table ({definitions});\n    if @statement is null\n    begin\n"
            f"        insert into @keys ({names})\n"
            f"        select top (@left) {own} from {read} order by {own};\n"
            "        set @left = @left - @@rowcount;\n    end\n    else\n    begin\n"
            f"        insert into @behind ({names})\n"
            f"        select {', '.join(f'e.{key}' for key in keys)} from {events} as e\n"
            "        where e.changefeed_statement = @statement and e.changefeed_row = @row and "
            "e.changefeed_image = 1;\n"
            "        -- That event was purged: nobody knows where to go on.\n        if @@rowcount = 0\n"
            "        begin\n            set @rows = null;\n            return;\n        end;\n    end;"
            + steps
        ),
        "chunk_rows": f"@keys as k inner loop join {read} on "
        + " and ".join(f"i.{key} = k.{key}" for key in keys),
        "chunk_end": (
            "    set @is_last = case when @left > 0 then 1 else 0 end;\n"
            "    select top (1) @row = e.changefeed_row\n"
            f"    from {events} as e\n"
            "    where e.changefeed_statement = @statement and e.changefeed_image = 1\n"
            f"    order by {', '.join(f'e.{key} desc' for key in keys)};"
        ),
    }


def _image(
    column: tuple[int, Column],
    is_folded: bool,
    updates: Columns,
    added: Columns,
    deleted: Columns,
    first: str,
) -> str:
    """Return a column of an image; null where the operation does not record it."""
    text, name = ", case", quoted(column[1].name)
    on_update = column in updates
    for image, alias, other, recorded in ((1, "i", "d", added), (0, "d", "i", deleted)):
        if on_update or column in recorded:
            text += f" when v.changefeed_image = {image}"
            if is_folded and on_update != (column in recorded):
                text += f" and {other}.{first} is {'not null' if on_update else 'null'}"
            text += f" then {alias}.{name}"
    return f"{text} end"
