# SPDX-License-Identifier: Apache-2.0
"""What becomes of a connection whose cursors fail, without a server."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from airflow_changefeed.sources.mssql.connection import session as module
from airflow_changefeed.sources.mssql.connection.session import Session
from tests.unit.sources.test_mssql_session import Connection, Cursor


@dataclass
class Lost(Connection):
    """A connection that was lost: it gives no cursors any more."""

    def cursor(self) -> Cursor:
        """Refuse."""
        raise ValueError("connection is closed")


@dataclass
class Stuck(Cursor):
    """A cursor whose statement cannot be released."""

    is_stuck: bool = field(default=True)

    def close(self) -> None:
        """Fail, as the driver may where a request to the server is needed."""
        raise ValueError("cannot release")


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_connection_without_cursors_is_broken(*, is_kept: bool) -> None:
    """Else it goes back into the pool, for the next call to fail, too."""
    session = Session(Lost())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="closed"):
        session.execute("a ?", 1, is_kept=is_kept)
    assert session.is_broken


def test_a_statement_has_not_failed_where_another_cannot_be_released() -> None:
    """It has run, and a change may not be safe to repeat; the connection is one to throw away."""
    driver = Connection()
    session = Session(driver)  # type: ignore[arg-type]
    most = module._KEEP_PREPARED
    for number in range(most):
        session.execute(f"{number} ?", 1, is_kept=True)
    driver.cursors[0].__class__ = Stuck
    session.execute("the last ?", 1, is_kept=True)
    assert session.is_broken
    assert len(session._prepared) <= most
