# SPDX-License-Identifier: Apache-2.0
"""Resource versions of feeds and captures, which grow with the columns of their tables, too."""

from __future__ import annotations

from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.names import literal, quote


def note_schemas(schema: str, feed: str) -> str:
    """
    Return the statement with which a reader records schema changes of a feed's table, or of all.

    It passes over what it cannot write, as on a replica, and over a database without changefeed.

    :param feed: SQL of its name; of a null, all.
    """
    procedure = f"{quote(schema)}.[note_schemas]"
    return (
        f"begin try if object_id({literal(procedure)}) is not null "
        f"exec {procedure} @name = {feed} end try begin catch end catch;"
    )


def registered(schema: str, columns: str, condition: str = "") -> str:
    """
    Return the question for feeds of the registry, with their resource versions.

    :param columns: of the table of feeds, besides.
    """
    return f"select {columns}, resource_version from {quote(schema)}.[feeds] {condition}"


def load_versions(session: Session, schema: str) -> dict[int, int]:
    """Record schema changes of feeds' tables, and return the resource versions of all, by their numbers."""
    rows = session.records(f"{note_schemas(schema, 'null')} {registered(schema, 'feed_id')}")
    return {row["feed_id"]: int(row["resource_version"]) for row in rows}
