# SPDX-License-Identifier: Apache-2.0
"""
The T-SQL of changefeeds, as one script: ``python -m airflow_changefeed.sql.mssql > changefeed.sql``.

``install/`` has what a database gets once, ``feed/`` the templates of what each feed gets. The templates go
into the database as a function that returns them, and ``setup_feed`` fills and executes them there, so that
nobody needs Python to set up or upgrade a feed (ADR 0005).
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_changefeed import __version__
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sql import fill, load_sql

DEFAULT_SCHEMA = "changefeed"
#: Numbers that SQL Server keeps ready of a sequence, for the whole instance.
SEQUENCE_CACHE = 1000
#: Leaves room for the longest role name, ``<schema>.operators:T``, of a table's 102 characters.
_MAX_SCHEMA_LENGTH = 15
_EXECUTE = "set noexec off;"

#: Files of ``install/`` in the order in which they need each other; ``templates`` is made of ``feed/``.
INSTALL = (
    "check_server.batch",
    "schema.batch",
    "database_identity.batch",
    "users.batch",
    "sequence.batch",
    "fencing_token.batch",
    "feeds.batch",
    "consumers.batch",
    "consumer_settings.batch",
    "acknowledged.batch",
    "output_checks.batch",
    "cursor_history.batch",
    "stale_marks.batch",
    "snapshots.batch",
    "writer_locks.batch",
    "captures.batch",
    "capture_triggers.view",
    "now.function",
    "floor_ulid.function",
    "below_ulid.function",
    "ulid_text.function",
    "previous_ulid.function",
    "later.function",
    "table_columns.view",
    "readable_feeds.view",
    "readable_captures.view",
    "readable_capture_tables.view",
    "readable_capture_columns.view",
    "readable_capture_gaps.view",
    "shard_text.function",
    "owns_consumer.function",
    "version.function",
    "ulid.function",
    "flush_log.procedure",
    "renew_identity.procedure",
    "find_feed.procedure",
    "check_owner.procedure",
    "check_consumer.procedure",
    "check_settings.procedure",
    "lock_consumers.procedure",
    "note_change.procedure",
    "lock_dead_letter.procedure",
    "list_cursors.procedure",
    "list_cursor_history.procedure",
    "list_consumers.procedure",
    "list_invocations.procedure",
    "list_dead_letters.procedure",
    "list_stale_marks.procedure",
    "list_snapshots.procedure",
    "list_snapshot_marks.procedure",
    "begin_snapshot.procedure",
    "mark_snapshot.procedure",
    "end_snapshot.procedure",
    "next_attempt.procedure",
    "change_consumer.procedure",
    "drop_consumer.procedure",
    "record_check.procedure",
    "log_attempt.procedure",
    "purge_invocations.procedure",
    "resolve_dead_letter.procedure",
    "park_again.procedure",
    "acquire_leases.procedure",
    "release_leases.procedure",
    "revoke_lease.procedure",
    "list_leases.procedure",
    "maintain_feeds.procedure",
    "key_columns.function",
    "captured_columns.function",
    "columns_print.function",
    "templates",
    "feed_templates.function",
    "capture_templates",
    "fill_template.procedure",
    "sequential_key.function",
    "check_storage.procedure",
    "check_table.procedure",
    "check_feed.procedure",
    "find_columns.procedure",
    "lock_setup.procedure",
    "pause_setup.procedure",
    "create_feed_objects.procedure",
    "note_schemas.procedure",
    "check_version.procedure",
    "bump_version.procedure",
    "set_up.procedure",
    "setup_feed.procedure",
    "upgrade_feed.procedure",
    "upgrade_feeds.procedure",
    "check_captured.procedure",
    "set_capture_columns.procedure",
    "fill_chunks.procedure",
    "create_capture_objects.procedure",
    "claim_recording.procedure",
    "change_capture_columns.procedure",
    "note_capture_gaps.procedure",
    "evolve_captures.procedure",
    "check_captured_tables.procedure",
    "grant_guard.procedure",
    "guard_schema.procedure",
    "enable_capture.procedure",
    "refresh_capture.procedure",
    "upgrade_captures.procedure",
    "disable_capture.procedure",
    "drop_feed.procedure",
    "grants.batch",
    "upgrade.batch",
)

#: Files of ``feed/`` in the order in which they need each other; two folders are of one kind, the third has
#: what the feed of a capture gets beside or instead of what an outbox has.
FEED = (
    "state.table",
    "state_options.batch",
    "outbox/feed.table",
    "capture/feed.table",
    "outbox/feed_options.batch",
    "outbox/outbox.table",
    "capture/outbox.table",
    "capture/balance.table",
    "capture/events.batch",
    "outbox/outbox_options.batch",
    "outbox/read.type",
    "serialized/feed.view",
    "feed_write_lock.procedure",
    "lock_shard.procedure",
    "update_state.procedure",
    "check_purged.procedure",
    "check_beyond.procedure",
    "check_cursor.procedure",
    "outbox/waiting_shards.function",
    "serialized/waiting_shards.function",
    "outbox/waiting_rows.function",
    "capture/waiting_rows.function",
    "serialized/waiting_rows.function",
    "outbox/inspect_outbox.procedure",
    "serialized/inspect_outbox.procedure",
    "outbox/plan_drain.procedure",
    "outbox/order_page.procedure",
    "capture/order_page.procedure",
    "capture/capture_unordered.procedure",
    "capture/capture_settings.procedure",
    "capture/compare_table.procedure",
    "capture/compare_capture.procedure",
    "capture/check_capture.procedure",
    "capture/resolve_capture.procedure",
    "capture/record_rows.procedure",
    "outbox/drain_shard.procedure",
    "serialized/drain_shard.procedure",
    "outbox/seal_shard.procedure",
    "serialized/seal_shard.procedure",
    "outbox/purge_shard.procedure",
    "capture/purge_shard.procedure",
    "serialized/purge_shard.procedure",
    "read_feed.procedure",
    "drain_feed.procedure",
    "seal_feed.procedure",
    "poll_feed.procedure",
    "shards.procedure",
    "shard_bounds.procedure",
    "count_feed.procedure",
    "split_feed.procedure",
    "purge_feed.procedure",
    "outbox/insert_history.procedure",
    "capture/insert_history.procedure",
    "serialized/insert_history.procedure",
    "begin_consumer.procedure",
    "move_cursor.procedure",
    "create_consumer.procedure",
    "begin_shards.procedure",
    "consume_events.procedure",
    "overview.procedure",
    "serialized/lock.procedure",
    "serialized/lock_feed.procedure",
    "serialized/ulid.function",
    "serialized/shard_ulid.function",
    "roles.batch",
    "grants.batch",
    "outbox/writer_grants.batch",
    "capture/writer_grants.batch",
    "capture/capture_grants.batch",
    "serialized/writer_grants.batch",
)

#: Files of ``capture/``, of which each table of a capture gets what it needs.
CAPTURE = (
    "capture_rows.procedure",
    "capture_snapshot.procedure",
    "capture_ddl.procedure",
    "capture_table.procedure",
    "insert_rows.fragment",
    "capture_insert.trigger",
    "merged_rows.fragment",
    "update_pairs.fragment",
    "capture_update.trigger",
    "delete_rows.fragment",
    "capture_delete.trigger",
    "guard.table",
)


@dataclass(frozen=True)
class Template:
    """
    A template of what each feed gets.

    :param object: name of the object, before the colon.
    :param type: ``table``, ``type``, ``view``, ``procedure``, ``function`` or ``batch``.
    :param kind: of the feeds that get it; None for all.
    """

    object: str
    type: str
    kind: str | None
    body: str


def feed_templates() -> list[Template]:
    """Return the templates in the order in which they are executed."""
    found = []
    for name in FEED:
        kind, _, file = name.rpartition("/")
        thing, _, type_ = file.partition(".")
        found.append(Template(thing, type_, kind or None, load_sql(f"mssql/feed/{name}.sql")))
    return found


def capture_templates() -> list[Template]:
    """Return the templates of what each captured table gets, in the order in which they are executed."""
    found = []
    for name in CAPTURE:
        thing, _, type_ = name.partition(".")
        found.append(Template(thing, type_, None, load_sql(f"mssql/capture/{name}.sql")))
    return found


def install_script(schema: str = DEFAULT_SCHEMA, *, sequence_cache: int = SEQUENCE_CACHE) -> list[str]:
    """
    Return the batches that install changefeeds, or bring them to this version; harmless to repeat.

    :param schema: where the objects live, at most 15 characters.
    :param sequence_cache: numbers that the server keeps ready of each sequence, at least 1. Only where they
        are kept for the whole server is the order of the numbers the order of the transactions.
    :raises InvalidArgumentError: a value is out of range.
    """
    problems = []
    if not 1 <= len(schema) <= _MAX_SCHEMA_LENGTH or not schema.isprintable():
        problems.append(f"schema must be 1 to {_MAX_SCHEMA_LENGTH} printable characters, not {schema!r}")
    if sequence_cache < 1:
        problems.append(f"sequence_cache must be at least 1, not {sequence_cache}")
    InvalidArgumentError.collect("install script", problems)
    tokens = install_tokens(schema)
    tokens["cache"] = f"cache {sequence_cache}"
    # sqlcmd's defaults are off, and modules keep what they were made with.
    batches = ["set quoted_identifier on;\nset ansi_nulls on;\n"]
    for name in INSTALL:
        batches.append(
            _templates_function(name, _TEMPLATES[name](), tokens)
            if name in _TEMPLATES
            else fill(load_sql(f"mssql/install/{name}.sql"), tokens)
        )
    return batches


def install_tokens(schema: str) -> dict[str, str]:
    """
    Return what the tokens of ``install/`` stand for, except ``cache``.

    ``X_in_text`` is ``X`` inside a T-SQL text; a token ``X_text`` is the bare name there.
    """
    prefix = "" if schema == DEFAULT_SCHEMA else f"{schema}."
    tokens = {
        "schema": f"[{schema.replace(']', ']]')}]",
        "schema_name": schema.replace("]", "]]"),
        "schema_text": _in_text(schema),
        "role_prefix": prefix.replace("]", "]]"),
        "role_prefix_text": _in_text(prefix),
        "version": __version__[:20],
    }
    # Twice, for texts within texts.
    for _ in range(2):
        tokens |= {f"{name}_in_text": _in_text(value) for name, value in tokens.items()}
    return tokens


def script(schema: str = DEFAULT_SCHEMA, *, sequence_cache: int = SEQUENCE_CACHE) -> str:
    """
    Return :func:`install_script` as one text for sqlcmd, SSMS, Flyway or DbUp.

    :raises InvalidArgumentError: as there, or the schema has a ``$``, with which their variables begin.
    """
    if "$" in schema:
        raise InvalidArgumentError(
            f"schema {schema!r} contains $, which sqlcmd, Flyway and DbUp treat as the start of a variable; "
            "choose another one"
        )
    head = f"-- airflow_changefeed {__version__}: installs or upgrades schema {schema}; run as db_owner.\n"
    # Where the check of the server refuses, it ends execution, also for who goes on after an error.
    batches = [_EXECUTE, *install_script(schema, sequence_cache=sequence_cache), _EXECUTE]
    return head + "".join(f"{batch.rstrip()}\ngo\n\n" for batch in batches)


def _templates_function(name: str, templates: list[Template], tokens: dict[str, str]) -> str:
    rows = [
        f"    ({place}, '{template.object}', '{template.type}', "
        f"{'null' if template.kind is None else repr(template.kind)}, N'{_in_text(template.body)}')"
        for place, template in enumerate(templates, 1)
    ]
    return (
        "-- What a set-up fills and executes, in this order.\n"
        "-- result: place, object, type, kind (of the feeds that get it; null for all), body.\n"
        f"create or alter function {tokens['schema']}.[{name}]() returns table\n"
        "as\n"
        "return\n"
        "select t.place, t.object, t.type, t.kind, t.body\n"
        "from (values\n" + ",\n".join(rows) + "\n) as t (place, object, type, kind, body);\n"
    )


#: What is made of the templates: a function that returns them.
_TEMPLATES = {"templates": feed_templates, "capture_templates": capture_templates}


def _in_text(value: str) -> str:
    return value.replace("'", "''")
