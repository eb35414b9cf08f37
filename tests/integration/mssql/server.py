# SPDX-License-Identifier: Apache-2.0
"""Databases and connections on the server that ``CHANGEFEED_TEST_MSSQL`` names, without our source."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mssql_python
import pytest
from airflow.sdk import Connection

from airflow_changefeed.connections.connection import describe_mssql
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.errors import thrown
from airflow_changefeed.sql import fill
from airflow_changefeed.sql.mssql import install_script
from tests.integration.babelfish import is_babelfish
from tests.integration.contract.engines import MSSQL_VARIABLE

HERE = Path(__file__).parent
_NUMBERS = itertools.count(1)

Rows = list[tuple[Any, ...]]


class Client:
    """
    A connection in autocommit, as a program that knows nothing of us would have.

    :ivar printed: messages of the last batch that was run to its end.
    """

    printed: Sequence[str] = ()

    def __init__(self, description: dict[str, Any]) -> None:
        mssql_python.pooling(enabled=False)
        keywords = MssqlFeedSource(**description).database.server.keywords()
        self._connection = mssql_python.connect(autocommit=True, **keywords)

    def results(self, sql: str, *values: Any) -> list[Rows]:
        """Run a batch to its end; return the rows of each result that has columns."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql, values) if values else cursor.execute(sql)
            found: list[Rows] = []
            printed: list[str] = []
            while True:
                printed += [text for _, text in cursor.messages]
                if cursor.description:
                    found.append([tuple(row) for row in cursor.fetchall()])
                if not cursor.nextset():
                    self.printed = printed
                    return found

    def rows(self, sql: str, *values: Any) -> Rows:
        """Run a batch and return the rows of its last result; none without any."""
        return (self.results(sql, *values) or [[]])[-1]

    def value(self, sql: str, *values: Any) -> Any:
        """Return the only value of a batch."""
        ((value,),) = self.rows(sql, *values)
        return value

    @property
    def is_babelfish(self) -> bool:
        """Say whether the server is Babelfish, for what is its fault alone."""
        return is_babelfish(os.environ[MSSQL_VARIABLE])

    def script(self, text: str) -> None:
        """Run batches with ``go`` between them."""
        for batch in text.split("\ngo\n"):
            if batch.strip():
                self.results(batch)

    def fails(self, number: int, sql: str, *words: str) -> str:
        """Run a batch that throws an error of ours; return its text, which has these words."""
        with pytest.raises(mssql_python.Error) as caught:
            self.results(sql)
        self.results("if @@trancount > 0 rollback transaction")
        found = thrown(caught.value)
        assert found is not None, str(caught.value)
        assert found[0] == number, found
        # Not every server tells names in the case that they were declared in.
        assert all(word.lower() in found[1].lower() for word in words), found
        return found[1]

    def refuses(self, sql: str, word: str) -> None:
        """Run a batch that fails with a text of the server's own, or of a function."""
        with pytest.raises(mssql_python.Error, match=word):
            self.results(sql)

    def close(self) -> None:
        """Close, which rolls back what is open."""
        self._connection.close()


@dataclass(frozen=True)
class Database:
    """
    A database of one module.

    :param description: of a source over it.
    :param sequence_cache: what the order numbers are installed with.
    """

    description: dict[str, Any]
    sequence_cache: int

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Connect."""
        client = Client(self.description)
        try:
            yield client
        finally:
            client.close()

    @contextmanager
    def unchanged(self, look: Callable[[Client], list[Rows]]) -> Iterator[Client]:
        """Connect, and see in the end that what ``look`` finds was not changed meanwhile."""
        with self.client() as client:
            before = look(client)
            yield client
            assert look(client) == before

    @contextmanager
    def source(self, schema: str = "changefeed") -> Iterator[MssqlFeedSource]:
        """Open our source."""
        source = MssqlFeedSource(**self.description | {"schema": schema, "lock_timeout": 20})
        try:
            yield source
        finally:
            source.close()

    @contextmanager
    def login(self, *statements: str) -> Iterator[Database]:
        """
        Make a login with a user, and give the database as it sees it.

        :param statements: what gives it rights; ``{user}`` is its name.
        """
        user, password = f"login_{os.getpid()}_{next(_NUMBERS)}", f"Aa1!{secrets.token_hex(12)}"
        with self.client() as client:
            client.results(f"create login {user} with password = '{password}'")
            try:
                for statement in (f"create user {user} for login {user}", *statements):
                    client.results(statement.format(user=user))
                yield Database(self.description | {"user": user, "password": password}, 1)
            finally:
                # Not every server drops a user that has rights, and one may still be closing its connections.
                granted = [one.format(user=user) for one in statements if one.startswith("grant")]
                revoked = [one.replace("grant", "revoke", 1).replace(" to ", " from ") for one in granted]
                for statement in (*revoked, f"drop user {user}", f"drop login {user}"):
                    with suppress(mssql_python.Error):
                        client.results(statement)

    @property
    def user(self) -> str:
        """The login's name."""
        return str(self.description["user"])

    def install(self, schema: str = "changefeed") -> None:
        """Install changefeed, or upgrade what is there."""
        with self.client() as client:
            for batch in install_script(schema, sequence_cache=self.sequence_cache):
                client.results(batch)


def _described() -> tuple[dict[str, Any], int]:
    connection = Connection.from_uri(os.environ[MSSQL_VARIABLE], conn_id="mssql_under_test")
    # The driver tries a port that nobody listens at until its time is over.
    socket.create_connection((connection.host, connection.port or 1433), timeout=10).close()
    return describe_mssql(connection), int(connection.extra_dejson.get("sequence_cache", 1000))


@contextmanager
def new_database(options: str = "") -> Iterator[Database]:
    """
    Make a database with the schema ``myservice``, which is dropped afterwards.

    :param options: of ``create database``.
    """
    description, cache = _described()
    name = f"tsql_{os.getpid()}_{next(_NUMBERS)}"
    master = description | {"database": "master"}
    with closing(Client(master)) as client:
        client.results(f"create database {name} {options}")
    database = Database(description | {"database": name}, cache)
    try:
        with database.client() as client:
            client.results("create schema myservice")
        yield database
    finally:
        # Another connection: the server may have been killed meanwhile.
        with closing(Client(master)) as client:
            drop_database(client, name)


def drop_database(master: Client, name: str) -> None:
    """Drop a database as soon as the server has noticed that its connections are closed."""
    deadline = time.monotonic() + 30
    while True:
        try:
            master.results(f"drop database {name}")
            return
        except mssql_python.Error:
            if time.monotonic() > deadline:
                raise


def filled(file: str, **tokens: str) -> str:
    """Read a script of this folder and fill its ``<<tokens>>``."""
    return fill((HERE / file).read_text(encoding="utf-8"), tokens)
