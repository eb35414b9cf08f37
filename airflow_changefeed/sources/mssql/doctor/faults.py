# SPDX-License-Identifier: Apache-2.0
"""Faults found in SQL Server's catalog. Pure functions over its rows; none needs a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_changefeed import __version__
from airflow_changefeed.core.fault import Fault, FaultKind, not_checked, shell
from airflow_changefeed.sources.mssql.names import quote
from airflow_changefeed.sources.shared import length_text

Row = Mapping[str, Any]
#: Of ``lock_escalation`` in ``sys.tables``.
_DISABLE = 1
#: Tables that all feeds share, in which each locks rows of its own only.
_SHARED = ("consumers", "consumer_settings", "cursor_history", "dead_letters", "invocations", "lease_waiters")
#: Of ``delayed_durability`` in ``sys.databases``; 1 is allowed.
_FORCED = 2


def missing_objects(
    schema: str, expected: Mapping[str, str], there: Iterable[str], remedy: str
) -> list[Fault]:
    """
    Find objects missing from the catalog.

    :param there: names of the schema's objects; a database may ignore case.
    """
    known = {name.casefold() for name in there}
    faults = []
    for name, kind in expected.items():
        if name.casefold() in known:
            continue
        where = f"{kind} {schema}.{name}"
        if kind == "table":
            faults.append(
                Fault(
                    FaultKind.TABLE_MISSING,
                    where,
                    "this table was dropped, with its rows",
                    "Restore the table from a backup; the install script creates an empty table",
                )
            )
        else:
            faults.append(Fault(FaultKind.OBJECT_MISSING, where, "the object is missing", remedy))
    return faults


def missing_roles(expected: Iterable[str], there: Iterable[str], remedy: str) -> list[Fault]:
    """Find missing roles."""
    known = {name.casefold() for name in there}
    return [
        Fault(
            FaultKind.OBJECT_MISSING, f"role {name}", "the role does not exist, so it has no members", remedy
        )
        for name in expected
        if name.casefold() not in known
    ]


def module_faults(schema: str, objects: Iterable[Row]) -> Iterator[Fault]:
    """
    Find modules created with a wrong setting.

    :param objects: ``name``, ``uses_quoted_identifier``, ``uses_ansi_nulls`` (null if it is not a
        module).
    """
    for row in objects:
        off = [
            name
            for name, column in (
                ("quoted_identifier", "uses_quoted_identifier"),
                ("ansi_nulls", "uses_ansi_nulls"),
            )
            if row[column] is not None and not row[column]
        ]
        if off:
            yield Fault(
                FaultKind.MODULE_SETTINGS,
                f"{schema}.{row['name']}",
                f"the object was created with {' and '.join(off)} off",
                "Run the whole install script again, not only parts of it (the script sets both "
                "options on; sqlcmd needs -I)",
            )


def lock_faults(
    schema: str, feeds: Sequence[str], tables: Sequence[Row], indexes: Sequence[Row]
) -> Iterator[Fault]:
    """
    Find table options that let a statement lock rows it does not take (ADR 0005, R2).

    :param tables: ``name`` and ``lock_escalation`` (1 is disable).
    :param indexes: ``table_name``, ``name``, ``index_id`` (1 is the clustered one), ``allow_page_locks``,
        ``is_primary_key``.
    """
    of_feeds = {f"{kind}:{feed}": "other shards" for feed in feeds for kind in ("outbox", "feed", "state")}
    for name, others in {**of_feeds, **dict.fromkeys(_SHARED, "other feeds")}.items():
        for row in tables:
            if row["name"].casefold() == name.casefold() and row["lock_escalation"] != _DISABLE:
                yield Fault(
                    FaultKind.LOCK_ESCALATION,
                    f"table {schema}.{name}",
                    f"row locks may escalate to the whole table, and block {others} and polls for new events",
                    f"alter table {quote(schema)}.{quote(name)} set (lock_escalation = disable)",
                )
    for feed in feeds:
        yield from _index_faults(schema, f"outbox:{feed}", indexes)


def _index_faults(schema: str, outbox: str, indexes: Sequence[Row]) -> Iterator[Fault]:
    table = f"{quote(schema)}.{quote(outbox)}"
    for row in indexes:
        if row["table_name"].casefold() != outbox.casefold() or not row["index_id"]:
            continue
        if row["index_id"] == 1 and row["allow_page_locks"]:
            yield Fault(
                FaultKind.PAGE_LOCKS,
                f"table {schema}.{outbox}",
                "a drain may lock pages, which hides committed rows of other shards from another "
                "drain: events could get the wrong order",
                f"alter index {quote(row['name'])} on {table} set (allow_page_locks = off)",
            )
        if row["index_id"] > 1 and not row["is_primary_key"]:
            yield Fault(
                FaultKind.OUTBOX_INDEX,
                f"index {row['name']} on {schema}.{outbox}",
                "locks on a second index hide or block committed rows: events could get the wrong order",
                f"drop index {quote(row['name'])} on {table}",
            )


def sequence_faults(schema: str, sequences: Iterable[Row]) -> Iterator[Fault]:
    """
    Find sequences that cycle or are slow.

    :param sequences: ``name``, ``is_cycling``, ``is_cached``.
    """
    for row in sequences:
        name = f"{quote(schema)}.{quote(row['name'])}"
        where = f"sequence {schema}.{row['name']}"
        if row["is_cycling"]:
            yield Fault(
                FaultKind.SEQUENCE_CYCLES,
                where,
                "the sequence cycles, and reused numbers break the order of events",
                f"alter sequence {name} no cycle",
            )
        if not row["is_cached"]:
            yield Fault(
                FaultKind.SEQUENCE_NOT_CACHED,
                where,
                "the sequence is not cached, so each number is written to disk",
                f"alter sequence {name} cache 1000, on servers that cache per instance",
            )


def owner_faults(schema: str, owner: str | None) -> list[Fault]:
    """
    Find a schema that is not dbo's.

    :param owner: None where this login does not see it.
    """
    if owner in (None, "dbo"):
        return []
    return [
        Fault(
            FaultKind.SCHEMA_OWNER,
            f"schema {schema}",
            f"the schema's owner is {owner} and not dbo, so tables of dbo cannot be captured",
            f"Run: alter authorization on schema::{quote(schema)} to dbo; then run the install script "
            "again, because the first command removes rights that were granted on the schema",
        )
    ]


def durability_faults(database: str, delayed_durability: int) -> Iterator[Fault]:
    """
    Yield the fault that commits may be lost.

    :param delayed_durability: of ``sys.databases``: 0 disabled, 1 allowed, 2 forced.
    """
    if delayed_durability:
        how = "forces" if delayed_durability == _FORCED else "allows"
        yield Fault(
            FaultKind.DELAYED_DURABILITY,
            f"database {database}",
            f"the database {how} delayed durability: a crash may lose committed events. Events that a "
            "seal, drain or read has reported are flushed first, and are safe",
            "Nothing, or: alter database current set delayed_durability = disabled",
        )


def version_faults(
    installed: str, versions: Mapping[str, str], problems: Mapping[str, str] | None = None
) -> list[Fault]:
    """
    Yield version mismatches.

    :param installed: version in the database.
    :param versions: of each feed.
    :param problems: why feeds could not be upgraded; they are refused until then.
    """
    reasons = problems or {}
    faults = []
    if installed != __version__[:20]:
        faults.append(
            Fault(
                FaultKind.VERSION_DIFFERS,
                "the installation",
                f"version {installed} is installed, but this package is version {__version__}",
                "Run the install script of this package, or install the package of the database's version",
            )
        )
    for feed, version in versions.items():
        if feed in reasons or version != installed:
            what = f"the feed has version {version or 'none'}, but version {installed} is installed"
            why = f"its upgrade failed, and the feed is refused until it is upgraded: {reasons.get(feed)}"
            faults.append(
                Fault(
                    FaultKind.FEED_VERSION_DIFFERS,
                    f"feed {feed}",
                    why if feed in reasons else what,
                    f"{'Fix that' if feed in reasons else 'An upgrade was interrupted'}; run the install "
                    "script again, or upgrade_feeds",
                )
            )
    return faults


def open_transaction_faults(rows: Iterable[Row]) -> list[Fault]:
    """
    Yield transactions open for too long.

    :param rows: ``session_id``, ``login_name``, ``host_name``, ``program_name`` (null if no session has
        it) and ``age`` in seconds.
    """
    return [
        Fault(
            FaultKind.OPEN_TRANSACTION,
            "a transaction" if row["session_id"] is None else f"session {row['session_id']}",
            f"the transaction has written, and has been open for {length_text(row['age'])} (login "
            f"{row['login_name']}, host {row['host_name']}, program {row['program_name']}). Its events "
            "are delayed; serialized writers, seals of their shards and upgrades wait for it",
            "End the transaction in its program"
            if row["session_id"] is None
            else f"kill {row['session_id']}, or end the transaction in its program",
        )
        for row in rows
    ]


def kept_row_faults(schema: str, rows: Iterable[Row]) -> list[Fault]:
    """
    Yield outboxes whose deleted rows the server cannot remove.

    :param rows: ``name`` of the table, and ``kept``.
    """
    return [
        Fault(
            FaultKind.OUTBOX_KEEPS_DELETED,
            f"table {schema}.{row['name']}",
            f"the server still keeps about {row['kept']} rows that were drained from the table, for "
            "readers of row versions. Each poll and drain passes these rows, and gets slower",
            "End the readers of old row versions: long queries on readable secondaries "
            "(sys.dm_exec_requests there), or long transactions here "
            "(sys.dm_tran_active_snapshot_database_transactions). Remove a secondary whose data "
            "movement is suspended. The server then removes the rows by itself",
        )
        for row in rows
    ]


def not_installed(server: str, schema: str) -> Fault:
    """Return the fault of a missing installation."""
    return Fault(
        FaultKind.NOT_INSTALLED,
        server,
        f"changefeed is not installed in schema {schema!r}, or this login cannot see it",
        f"Run the install script ({shell('sql')}), or set changefeed_schema in the connection's extra",
    )


def no_feeds(schema: str, user: str, feed: str | None, problem: Exception) -> Fault:
    """
    Return the fault of a login that may not list the feeds.

    :param problem: the server's message.
    """
    text = " ".join(str(problem.__cause__ or problem).split())
    role = quote(f"{schema}.operators:{feed or 'T'}")
    where_t = "" if feed else ", where T is the event table's schema.table"
    return Fault(
        FaultKind.PERMISSION_MISSING,
        f"table {schema}.feeds",
        f"{user} may not list the feeds ({text}), so no feed was checked",
        f"alter role {role} add member {quote(user)}{where_t}",
    )


def closed_feed(user: str, feed: str) -> Fault:
    """Return the note that a login may not read a feed, although it reads others."""
    remedy = (
        "Name the feeds that this login reads with --feed. If it should read this feed, too, add it to "
        "the feed's role"
    )
    return not_checked(f"feed {feed}", f"{user} may not read the feed", remedy)


def no_right(
    user: str, feed: str, missing: Sequence[str], role: str, upgrade: str | None, *, is_reader: bool
) -> Fault:
    """
    Return the fault of missing rights.

    :param missing: permission and object of each.
    :param role: that includes them all.
    :param upgrade: statement that grants them to the role again; None if the user is not a member of it.
    :param is_reader: whether that role is the readers', which every login of a feed needs.
    """
    remedy = (
        f"alter role {quote(role)} add member {quote(user)}"
        if upgrade is None
        else f"{user} is a member of {role}, but a right of the role was revoked or denied. Remove the deny, "
        f"or: {upgrade}"
    )
    if upgrade is None and not is_reader:
        remedy += f"; or, if this login never exports: {shell('doctor', '--role', 'readers')}"
    what = f"{user} lacks: {', '.join(missing)}"
    return Fault(FaultKind.PERMISSION_MISSING, f"feed {feed}", what, remedy)


def no_select(user: str, feed: str, table: str) -> Fault:
    """
    Return the fault of a login that may not select from the event table.

    :param feed: not a capture, whose readers have this right.
    """
    return Fault(
        FaultKind.PERMISSION_MISSING,
        f"table {feed}",
        f"{user} may not select from the event table, or it was dropped: keys can be read, but nothing "
        "exported",
        f"grant select on {table} to {quote(user)}: no role has this right",
    )


def no_event_table(schema: str, feed: str) -> Fault:
    """Return the fault of a missing event table."""
    return Fault(
        FaultKind.EVENT_TABLE_MISSING,
        f"feed {feed}",
        "its event table was dropped or renamed",
        f"Restore the table under its name, or drop the feed (exec {quote(schema)}.[drop_feed])",
    )


def hanging(feed: str, shard: str, order_sequence: int, outbox: str) -> Fault:
    """Return the fault of a row that no drain takes."""
    return Fault(
        FaultKind.OUTBOX_HANGS,
        f"feed {feed}, shard {shard}",
        f"a writer set order_sequence {order_sequence} explicitly, at or above the sequence's current "
        "value. No drain takes the row, and sensors always see new events",
        f"Delete the row from {outbox} and insert it again without order_sequence. Change the writer to "
        "leave that column to its default",
    )
