# SPDX-License-Identifier: Apache-2.0
"""Which statements a connection keeps prepared, without a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_changefeed.sources.mssql.connection.session import Session

MANY = 40


@dataclass
class Cursor:
    """The outermost edge: a cursor of the driver, which prepares its statement once."""

    ran: list[str] = field(default_factory=list)
    is_closed: bool = False
    description: Any = None

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def execute(self, sql: str, *_: object) -> None:
        """Run a statement, or fail."""
        self.ran.append(sql)
        if "fails" in sql:
            raise ValueError(sql)

    def nextset(self) -> bool:
        """There is no result."""
        return False

    def close(self) -> None:
        """Release the statement."""
        self.is_closed = True


@dataclass
class Connection:
    """A connection, with every cursor that it had."""

    cursors: list[Cursor] = field(default_factory=list)

    def cursor(self) -> Cursor:
        """Return another cursor."""
        self.cursors.append(Cursor())
        return self.cursors[-1]

    @property
    def ran(self) -> list[tuple[list[str], bool]]:
        """What each cursor ran, and whether it is closed."""
        return [(one.ran, one.is_closed) for one in self.cursors]


@pytest.fixture
def driver() -> Connection:
    """Connect."""
    return Connection()


@pytest.fixture
def session(driver: Connection) -> Session:
    """Return a session over it."""
    return Session(driver)  # type: ignore[arg-type]


def test_a_kept_statement_is_prepared_once(session: Session, driver: Connection) -> None:
    """One without parameters has nothing to prepare, and one that is not kept is released at once."""
    for _ in range(2):
        session.execute("a ?", 1, is_kept=True)
        session.execute("b ?", 1)
        session.execute("c", is_kept=True)
    assert driver.ran == [
        (["a ?", "a ?"], False),
        (["b ?"], True),
        (["c"], True),
        (["b ?"], True),
        (["c"], True),
    ]


def test_a_statement_that_failed_is_prepared_again(session: Session, driver: Connection) -> None:
    """What the driver knows of it may be wrong; the connection is not given back either."""
    for _ in range(2):
        with pytest.raises(ValueError, match="fails"):
            session.execute("fails ?", 1, is_kept=True)
    assert driver.ran == [(["fails ?"], True), (["fails ?"], True)]
    assert session.is_broken


def test_a_connection_keeps_the_statements_that_it_used_last(session: Session, driver: Connection) -> None:
    """Each holds memory on the server; all are released at once."""
    for number in range(MANY):
        session.execute("used ?", 1, is_kept=True)
        session.execute(f"{number} ?", 1, is_kept=True)
    kept = [one.ran[-1] for one in driver.cursors if not one.is_closed]
    assert "used ?" in kept
    assert f"{MANY - 1} ?" in kept
    assert "0 ?" not in kept
    assert len(driver.cursors[0].ran) == MANY
    session.forget_prepared()
    assert all(one.is_closed for one in driver.cursors)
