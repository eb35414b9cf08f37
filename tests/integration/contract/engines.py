# SPDX-License-Identifier: Apache-2.0
"""What the contract suite needs of a database besides the source: an empty one, and writers of their own."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from airflow_changefeed.core.feed import FeedKind, Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.base import FeedSource

#: A key, and the value of each column that is no key.
Key = tuple[Any, ...]
#: Column types that every engine maps to its own. Texts of ``nocase`` are equal where only case differs,
#: those of ``padded`` where only trailing spaces do; ``identity`` is an integer key that the database gives.
TYPES = ("integer", "text", "double", "bytes", "time", "nocase", "padded", "identity")


@dataclass(frozen=True)
class Table:
    """
    An event table.

    :param keys: name and type of each column of the primary key; none makes a table without one.
    :param columns: name and type of the other columns.
    :param kind: a table for serialized writers gets columns ``Shard`` and ``ULID`` first.
    :param shard_type: of the column ``Shard``: ``integer``, or ``uuid``.
    """

    name: str = "myservice.MyEvent"
    keys: tuple[tuple[str, str], ...] = (("EventID", "integer"),)
    columns: tuple[tuple[str, str], ...] = (
        ("Payload", "text"),
        ("Quantity", "integer"),
        ("Ratio", "double"),
        ("Blob", "bytes"),
    )
    kind: FeedKind = FeedKind.OUTBOX
    shard_type: str = "integer"

    def key(self, number: int) -> Key:
        """Return the number-th key: all columns but the last count in tens."""
        digits = [number // 10 ** (len(self.keys) - 1 - place) for place in range(len(self.keys))]
        digits[1:] = [digit % 10 for digit in digits[1:]]
        return tuple(
            digit if kind == "integer" else f"k{digit:09}"
            for digit, (_, kind) in zip(digits, self.keys, strict=True)
        )

    def as_kind(self, kind: FeedKind) -> Table:
        """Return the same table for the other kind of writers."""
        return replace(self, kind=kind)


class Writer(Protocol):
    """A writer's own connection and transactions."""

    def begin(self) -> None:
        """Begin a transaction; an engine with one writer at a time waits here for the others."""

    def insert(self, shard: Shard, time_hint: datetime | None, key: Key, row: dict[str, Any]) -> Ulid | None:
        """
        Write an event and announce it to the feed.

        :param time_hint: None leaves it to the database's default.
        :param row: values of the columns that are no key; the rest is null.
        :return: the event's ULID where the writers are serialized, else None.
        """

    def insert_row(self, key: Key, row: dict[str, Any]) -> None:
        """Write a row of an outbox feed's table without announcing it, as for history."""

    def commit(self) -> None:
        """Commit; known to be committed when it returns."""

    def rollback(self) -> None:
        """Roll back."""

    def close(self) -> None:
        """Close the connection, which rolls back what is open."""


class Changer(Protocol):
    """
    A connection that changes tables by SQL, as a program does that knows nothing of captures.

    Statements are such that every engine takes them. A table stands in them as ``"schema.table"``.
    """

    def begin(self, variables: Mapping[str, str] | None = None) -> None:
        """Begin a transaction with session variables that are gone when it ends."""

    def execute(self, sql: str, *values: Any) -> None:
        """Run a statement; outside a transaction it is one of its own, of which no ``tid`` need be known."""

    def is_conflict(self, error: Exception) -> bool:
        """Say whether a statement failed because of what others did to the same rows."""

    def savepoint(self) -> None:
        """Set the transaction's savepoint."""

    def rollback_to_savepoint(self) -> None:
        """Undo what was done since."""

    def commit(self) -> None:
        """Commit; known to be committed when it returns."""

    def rollback(self) -> None:
        """Roll back."""

    def close(self) -> None:
        """Close the connection, which rolls back what is open."""


@dataclass(frozen=True)
class Unseen:
    """
    A way for changes to pass a capture.

    :param statements: that do it, to a table with rows 1 to 3.
    """

    what: str
    statements: tuple[str, ...]


class Engine(Protocol):
    """
    A database for one test; can be pickled to other processes.

    :param name: as in the tests' ids.
    :param unstorable: characters that its text columns cannot hold.
    :param unescapable: characters that its JSON functions change.
    :param measures_work: whether :meth:`work` gives a number.
    :param guards_schema: whether changes of captured columns can be guarded.
    :param keeps_triggers: whether a table keeps its triggers when one of its columns is dropped.
    :param locks_reads: whether rows that were read under locks stay unchanged until the transaction ends.
    :param catches_lost_tables: whether ``try`` catches that a table of a called procedure is gone.
    :param keeps_names: whether it keeps names of more than 63 bytes.
    :param savepoint: statements that set a transaction's savepoint, and go back to it.
    :param rename: statement that gives a column another name; with places for table, old and new.
    """

    name: str
    unstorable: str
    unescapable: str
    measures_work: bool
    guards_schema: bool
    keeps_triggers: bool
    locks_reads: bool
    catches_lost_tables: bool
    keeps_names: bool
    savepoint: tuple[str, str]
    rename: str

    def source(self, lock_timeout: float = 20.0) -> FeedSource:
        """Return a source over the database."""

    def create_table(self, table: Table) -> None:
        """Create an event table."""

    def writer(self, table: Table, lock_timeout: float = 20.0) -> Writer:
        """Connect a writer to a table."""

    def changer(self, lock_timeout: float = 20.0) -> Changer:
        """Connect a program that changes tables."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, written as for a :class:`Changer`."""

    def run(self, connection: Any, sql: str, *values: Any) -> None:
        """Run a statement on a driver's own connection, as a consumer's work does; written as above."""

    def ruin(self, connection: Any, sql: str, *values: Any) -> None:
        """Run an insert of a key that is taken, so that its error ends the transaction."""

    def unseen(self, table: str) -> list[Unseen]:
        """Return the ways for changes to pass a capture that the database can tell of."""

    def keys(self, table: Table) -> set[Key]:
        """Return the keys of the committed rows."""

    def delete_row(self, table: Table, key: Key) -> None:
        """Delete a row of the event table, as a careless person would."""

    def put_misfit(self, table: Table, key: Key) -> str | None:
        """Put a value into a row that cannot be exported unchanged; return its column, None without any."""

    def watch(self) -> AbstractContextManager[Callable[[], bool]]:
        """Watch the database; the function given says whether anybody committed a change since."""

    def asked(self, call: Callable[[FeedSource], object]) -> int:
        """Return how often the database is asked for a call that was made before, beside connecting."""

    def work(self, call: Callable[[FeedSource], object]) -> int:
        """Return how much the database does for a call, in any unit that grows with the rows touched."""


#: Environment variable that names a SQL Server for the suite: an Airflow connection URI.
MSSQL_VARIABLE = "CHANGEFEED_TEST_MSSQL"
_FACTORIES = {
    "sqlite": "tests.integration.contract.sqlite_engine.make_engine",
    "mssql": "tests.integration.contract.mssql_engine.make_engine",
}


def expected_engines() -> list[str]:
    """Return the engines that must pass: the embedded one, and any that the environment names."""
    return ["sqlite", *(["mssql"] if os.environ.get(MSSQL_VARIABLE) else [])]


@contextmanager
def open_engine(name: str, folder: Path) -> Iterator[Engine]:
    """
    Open an engine on an empty database, which is gone afterwards.

    Fails, never skips, when the engine is not available: whoever named it wants it tested.
    """
    module, _, function = _FACTORIES[name].rpartition(".")
    with getattr(importlib.import_module(module), function)(folder) as engine:
        yield engine
