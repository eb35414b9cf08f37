# SPDX-License-Identifier: Apache-2.0
"""A program that changes tables of SQL Server by ``mssql-python``, and how changes can pass its triggers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import mssql_python

from airflow_changefeed.capture.session import session_variables
from tests.integration.contract.engines import Unseen

_CONFLICT = re.compile("duplicate key|deadlock", re.IGNORECASE)
_DOTTED = re.compile(r'"([^".]+)\.([^"]+)"')


def in_parts(sql: str) -> str:
    """Write the tables of a statement as SQL Server does: ``"shop.order"`` as ``[shop].[order]``."""
    return _DOTTED.sub(r"[\1].[\2]", sql)


class MssqlChanger:
    """A program's own connection; see the protocol."""

    def __init__(self, connection: mssql_python.Connection, lock_timeout: float) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self._variables = ExitStack()
        self.cursor.execute(f"set nocount on; set xact_abort on; set lock_timeout {int(lock_timeout * 1000)}")

    def begin(self, variables: Mapping[str, str] | None = None) -> None:
        """Set the variables first: they belong to the session, not to the transaction."""
        if variables:
            self._variables.enter_context(session_variables(self.connection, variables))
        self.cursor.execute("begin transaction")

    def execute(self, sql: str, *values: Any) -> None:
        """Run a statement to its end."""
        self.cursor.execute(in_parts(sql), values) if values else self.cursor.execute(in_parts(sql))
        while self.cursor.nextset():
            pass

    def is_conflict(self, error: Exception) -> bool:
        """A key is taken, or the server chose us to give way."""
        return bool(_CONFLICT.search(str(error)))

    def savepoint(self) -> None:
        """Set the transaction's savepoint."""
        self.cursor.execute("save transaction here")

    def rollback_to_savepoint(self) -> None:
        """Undo what was done since."""
        self.cursor.execute("rollback transaction here")

    def commit(self) -> None:
        """Commit."""
        self.cursor.execute("commit transaction")
        self._variables.close()

    def rollback(self) -> None:
        """Roll back."""
        self.cursor.execute("if @@trancount > 0 rollback transaction")
        self._variables.close()

    def close(self) -> None:
        """Roll back what is open and close: a server notices a closed connection a little later."""
        with suppress(mssql_python.Error):
            self.rollback()
        self.connection.close()


def unseen_of_mssql(rows: Callable[[str], list[tuple[Any, ...]]], table: str) -> list[Unseen]:
    """Disable or drop the triggers, or have them disabled meanwhile."""
    name = in_parts(f'"{table}"')
    triggers = [
        trigger
        for (trigger,) in rows(f"select name from sys.triggers where parent_id = object_id(N'{name}')")
    ]
    schema = name.partition(".")[0]
    off = [f"alter table {name} disable trigger [{trigger}]" for trigger in triggers]
    on = [f"alter table {name} enable trigger [{trigger}]" for trigger in triggers]
    return [
        Unseen("a trigger was dropped", (f"drop trigger {schema}.[{triggers[0]}]",)),
        Unseen("a trigger was disabled", (off[0],)),
        Unseen("rows were removed meanwhile", (*off, f"delete from {name} where id = 2", *on)),
        Unseen("the table was emptied by truncate", (f"truncate table {name}",)),
        Unseen("rows were added meanwhile", (*off, f"insert into {name} (id, name) values (9, 'x')", *on)),
    ]
