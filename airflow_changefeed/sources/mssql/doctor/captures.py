# SPDX-License-Identifier: Apache-2.0
"""Checks the captures of a SQL Server database, as far as this login may."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from airflow_changefeed.core.fault import Fault, not_checked
from airflow_changefeed.sources.mssql.capture.drift import load_drift
from airflow_changefeed.sources.mssql.capture.registry import Registry, Row, load_registry, table_name
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.doctor import capture_faults
from airflow_changefeed.sources.mssql.doctor import queries as asked
from airflow_changefeed.sources.mssql.names import quote


@dataclass(frozen=True)
class CaptureCheck:
    """
    A check of captures.

    :param is_sql_server: whether the server is SQL Server itself: only it reports the order of triggers.
    :param sees_all: whether this login sees all objects of the database.
    """

    session: Session
    schema: str
    user: str
    is_sql_server: bool
    sees_all: bool

    def faults(self, feed_id: int | None) -> list[Fault]:
        """
        Find what is wrong.

        :param feed_id: only this capture; None for all.
        """
        registry = load_registry(self.session, self.schema, feed_id)
        if registry is None:
            return []
        drift = load_drift(self.session, self.schema, registry)
        unseen = {one.table for one in drift if not one.is_seen}
        return [
            *capture_faults.gap_faults([gap for row in registry.captures for gap in registry.gaps_in(row)]),
            *capture_faults.drift_faults(drift),
            *self._of_enabled(registry, unseen),
        ]

    def _of_enabled(self, registry: Registry, unseen: Set[str]) -> Iterator[Fault]:
        """
        Find what prevents enabled captures from recording.

        :param unseen: tables whose columns this login cannot see.
        """
        captures = [row for row in registry.captures if row["is_enabled"]]
        if not captures:
            return
        options = self.session.records(asked.NESTED_TRIGGERS)
        yield from capture_faults.nested_trigger_faults(next((row["is_on"] for row in options), None))
        if not self.is_sql_server:
            yield not_reported("the order of triggers, and the guard of captured columns")
        elif self.sees_all:
            triggers = self.session.records(asked.DATABASE_TRIGGERS)
            yield from capture_faults.schema_guard_faults(self.schema, captures, triggers)
        pairs = [(capture, table) for capture in captures for table in registry.tables_of(capture)]
        schema = quote(self.schema)
        triggers = self.session.records(asked.CAPTURE_TRIGGERS.format(schema=schema))
        rows = self.session.rows(asked.CAPTURE_GUARDS.format(schema=schema))
        guarded = [(capture_id, table_no) for capture_id, table_no in rows]
        for (capture, table), is_seen in zip(pairs, self._sees([table for _, table in pairs]), strict=True):
            if is_seen:
                number = (table["capture_id"], table["table_no"])
                own = [row for row in triggers if (row["capture_id"], row["table_no"]) == number]
                yield from capture_faults.trigger_faults(capture, table, own, tells_order=self.is_sql_server)
                yield from capture_faults.guard_faults(self.schema, capture, table, guarded)
            else:
                name = table_name(table)
                yield not_checked(
                    f"the {'columns and ' if name in unseen else ''}triggers of {name}",
                    f"{self.user} lacks the permission to see them",
                    f"grant view definition on {_quoted(table)} to {quote(self.user)}, or ask a DBA to run "
                    "this command",
                )

    def _sees(self, tables: Sequence[Row]) -> list[bool]:
        """Return for each table whether this login sees its triggers."""
        questions = [value for table in tables for value in (_quoted(table), "VIEW DEFINITION")]
        (answers,) = self.session.rows(asked.rights(len(tables)), *questions)
        return [self.sees_all or bool(answer) for answer in answers]


def _quoted(table: Row) -> str:
    return f"{quote(table['table_schema'])}.{quote(table['table_name'])}"


def not_reported(what: str) -> Fault:
    """Return the fault for what this server does not report."""
    remedy = "Nothing if this is not SQL Server; otherwise ask a DBA"
    return not_checked(what, "this server does not report it", remedy)
