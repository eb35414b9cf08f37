# SPDX-License-Identifier: Apache-2.0
"""Connections to a real server that lead nowhere: what is said of them, and what to do."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
    PermissionDeniedError,
    SourceUnavailableError,
)
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.pool import RetryPolicy
from tests.integration.mssql.line import Line
from tests.integration.mssql.server import Client, Database

FEED = "myservice.Guarded"
PASSWORD = "hunter2}{;PWD=x"
UNTIL = datetime(2020, 1, 1, tzinfo=timezone.utc)


def _unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port: int = closed.getsockname()[1]
        return port


WRONG: dict[str, tuple[dict[str, Any], type[ChangefeedError], str]] = {
    "host": ({"host": "no-such-host.invalid"}, SourceUnavailableError, "check the host of the connection"),
    "port": (
        {"host": "127.0.0.1", "port": _unused_port()},
        SourceUnavailableError,
        "Nothing is listening on",
    ),
    "database": (
        {"database": "no_such_feeds"},
        ConnectionNotUsableError,
        "check login, password and database",
    ),
    "login": ({"user": "nobody_at_all"}, ConnectionNotUsableError, "check login, password and database"),
    "password": ({"password": PASSWORD}, ConnectionNotUsableError, "check login, password and database"),
    "certificate": (
        {
            "encrypt": "yes",
            "trust_server_certificate": False,
            "driver_options": {"hostname_in_certificate": "not-the-name.invalid"},
        },
        ConnectionNotUsableError,
        "certificate",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_field_is_named_with_its_remedy(database: Database, name: str) -> None:
    """A person must act on a refusal; a server that is away may come back."""
    change, error, remedy = WRONG[name]
    options = {"login_timeout": 2, **change.get("driver_options", {})}
    description = database.description | change | {"driver_options": options}
    with pytest.raises(error, match=remedy) as caught:
        MssqlFeedSource(**description).now()
    assert type(caught.value) is error
    for secret in (PASSWORD, database.description["password"]):
        assert secret not in f"{caught.value!r} {caught.value.facts}"


def test_a_lost_connection_is_replaced_while_a_question_is_put(
    database: Database, line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer comes, and the log says what happened."""
    description = database.description | {"host": "127.0.0.1", "port": line.port}
    with closing(MssqlFeedSource(**description)) as source:
        source.database.retry = RetryPolicy(first_pause=0.0, longest_pause=0.0)
        line.cut_after(3)
        assert source.now()
        assert line.was_cut()
    assert "SourceUnavailableError" in caplog.text


def test_a_server_that_stays_away_is_given_up(database: Database) -> None:
    """Transient, after all attempts; nothing hangs."""
    line = Line((database.description["host"], database.description["port"] or 1433))
    options = {"host": "127.0.0.1", "port": line.port, "driver_options": {"login_timeout": 2}}
    with closing(MssqlFeedSource(**database.description | options)) as source:
        assert source.now()
        line.close()
        with pytest.raises(SourceUnavailableError, match=r"Nothing is listening on 127\.0\.0\.1"):
            source.now()


def test_the_name_of_the_application_is_seen_by_whoever_watches(database: Database) -> None:
    """In the session's context, as the driver tells the server its own name."""
    options = {"driver_options": {"application_name": "hourly export"}}
    source = MssqlFeedSource(**database.description | options)
    with closing(source), source.database.connect() as session:
        ((name,),) = session.rows("select cast(context_info() as varchar(13))")
    assert name == "hourly export"


@pytest.fixture(scope="module")
def stranger(database: Database) -> Iterator[MssqlFeedSource]:
    """Set up a feed, and a login that may see the database and nothing else."""
    user, password = f"stranger_{os.getpid()}", f"Aa1!{secrets.token_hex(12)}"
    with database.client() as client:
        client.results(f"create table {FEED} (EventID int not null primary key)")
        client.results(f"exec changefeed.setup_feed N'{FEED}', @outbox = 1")
        client.results(f"create login {user} with password = '{password}'")
        client.results(f"create user {user} for login {user}")
        # Else a reader may not see the event table's key.
        client.results(f"grant select on {FEED} to {user}")
        login = {"user": user, "password": password}
        try:
            with closing(MssqlFeedSource(**database.description | login)) as source:
                yield source
        finally:
            client.results(f"revoke select on {FEED} from {user}")
            client.results(f"drop user {user}")
            client.results(f"drop login {user}")


def test_a_missing_permission_names_the_object_and_the_role(
    stranger: MssqlFeedSource, client: Client
) -> None:
    """Of the first object that is in the way."""
    user = stranger.database.server.user
    with pytest.raises(PermissionDeniedError, match=r"feeds.*changefeed\.readers:"):
        stranger.seal(FEED, UNTIL)
    client.results(f"alter role [changefeed.readers:{FEED}] add member {user}")
    with pytest.raises(
        PermissionDeniedError, match=r"(?i)seal_feed.*alter role \[changefeed\.operators:myservice\.guarded\]"
    ):
        stranger.seal(FEED, UNTIL)
