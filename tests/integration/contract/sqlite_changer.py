# SPDX-License-Identifier: Apache-2.0
"""A program that changes tables of SQLite by ``sqlite3``, and how changes can pass its triggers."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from airflow_changefeed.capture.session import transaction
from tests.integration.contract.engines import Unseen


class _Undone(Exception):
    """Leaves a transaction without committing it."""


class SqliteChanger:
    """A program's own connection; see the protocol."""

    def __init__(self, path: str, lock_timeout: float) -> None:
        self.connection = sqlite3.connect(path, timeout=lock_timeout, isolation_level=None)
        self.connection.execute("pragma foreign_keys = on")
        self._open = ExitStack()

    def begin(self, variables: Mapping[str, str] | None = None) -> None:
        """Begin by our helper, which numbers the transaction, and wait for other writers."""
        self._open.enter_context(transaction(self.connection, session_variables=variables))

    def execute(self, sql: str, *values: Any) -> None:
        """Run a statement."""
        self.connection.execute(sql, values)

    def is_conflict(self, error: Exception) -> bool:
        """Others wait for the whole transaction, so only a key can be taken."""
        return isinstance(error, sqlite3.IntegrityError)

    def savepoint(self) -> None:
        """Set the transaction's savepoint."""
        self.connection.execute("savepoint here")

    def rollback_to_savepoint(self) -> None:
        """Undo what was done since."""
        self.connection.execute("rollback to here")

    def commit(self) -> None:
        """Commit."""
        self._open.close()

    def rollback(self) -> None:
        """Roll back."""
        undone = _Undone()
        try:
            if not self._open.__exit__(_Undone, undone, None):
                raise undone
        except _Undone:
            pass

    def close(self) -> None:
        """Close."""
        self.rollback()
        self.connection.close()


def unseen_of_sqlite(rows: Callable[[str], list[tuple[Any, ...]]], table: str) -> list[Unseen]:
    """Drop a trigger, or have all of them gone meanwhile."""
    triggers = rows(f"select name, sql from sqlite_master where type = 'trigger' and tbl_name = '{table}'")
    off = [f'drop trigger "{name}"' for name, _ in triggers]
    on = [sql for _, sql in triggers]
    return [
        Unseen("a trigger was dropped", (off[0],)),
        Unseen("rows were removed meanwhile", (*off, f'delete from "{table}" where id = 2', *on)),
        Unseen(
            "rows were added meanwhile", (*off, f"insert into \"{table}\" (id, name) values (9, 'x')", *on)
        ),
        Unseen("a row was replaced", (f"insert or replace into \"{table}\" (id, name) values (2, 'new')",)),
    ]
