# SPDX-License-Identifier: Apache-2.0
"""The source for SQL Server, as far as it needs no server: its options, its description and its secrets."""

from __future__ import annotations

import subprocess
import sys
import traceback
from typing import Any

import mssql_python
import pytest

from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
    InvalidArgumentError,
    SourceUnavailableError,
)
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.mssql.connection.pool import RetryPolicy

SECRET = "hunter2;{}=\\"
DESCRIPTION = {
    "type": "mssql",
    "host": "db.example.com",
    "port": 1433,
    "database": "feeds",
    "user": "me",
    "password": SECRET,
    "schema": "changefeed",
    "encrypt": "strict",
    "trust_server_certificate": False,
    "lock_timeout": 5.0,
    "read_only_replica": False,
    "driver_options": {},
}


def test_a_description_opens_the_same_source_again() -> None:
    """Elsewhere, for a Spark task; nothing is connected to for it."""
    source = open_source(DESCRIPTION)
    assert source.describe() == DESCRIPTION
    assert open_source(source.describe(), lock_timeout=1).describe() == {**DESCRIPTION, "lock_timeout": 1}
    assert source.capabilities.parallel_writers


def test_the_password_is_in_the_description_only() -> None:
    """Neither in the source's text nor in that of what it is made of."""
    source: Any = open_source(DESCRIPTION)
    texts = [repr(source), str(source), repr(source.database), str(source.database.server)]
    texts.append(repr(source.database.server))
    assert all("hunter2" not in text for text in texts)
    assert all("db.example.com" in text for text in texts)


def test_all_wrong_options_are_named_at_once() -> None:
    """And no password with them."""
    wrong = {"host": "", "port": 70_000, "database": "", "encrypt": "maybe", "lock_timeout": -1}
    with pytest.raises(InvalidArgumentError) as caught:
        open_source({**DESCRIPTION, **wrong})
    assert len(caught.value.facts["problems"]) == 5
    assert "hunter2" not in str(caught.value)


def test_an_unknown_option_is_refused() -> None:
    """A driver's option would go nowhere without a word."""
    with pytest.raises(InvalidArgumentError, match="app_name") as caught:
        open_source({**DESCRIPTION, "app_name": "x"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("port", [1433, None])
def test_every_value_reaches_the_driver_as_it_is(port: int | None) -> None:
    """None is pasted into a string, where a sign in a password could begin another option."""
    source: Any = open_source({**DESCRIPTION, "port": port})
    assert source.database.server.keywords() == {
        "Server": "db.example.com,1433" if port else "db.example.com",
        "Database": "feeds",
        "UID": "me",
        "PWD": SECRET,
        "Encrypt": "strict",
        "TrustServerCertificate": "no",
    }


def test_a_driver_without_its_libraries_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only words are that it failed to load."""

    def fail(**_: Any) -> None:
        raise RuntimeError("Failed to load the driver. Please read the documentation (https://example.com)")

    monkeypatch.setattr(mssql_python, "connect", fail)
    with pytest.raises(ConnectionNotUsableError, match=r"libltdl7 libkrb5-3 libgssapi-krb5-2"):
        open_source(DESCRIPTION).now()


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an optional dependency."""
    monkeypatch.setitem(sys.modules, "mssql_python", None)
    with pytest.raises(ConnectionNotUsableError, match=r"pip install 'airflow-changefeed\[mssql\]'"):
        open_source(DESCRIPTION).now()


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (
            "Failed to acquire an Entra ID access token for authentication type 'msi': Azure AD "
            "authentication failed for ManagedIdentityCredential: ManagedIdentityCredential authentication "
            "unavailable..",
            "check authentication, login",
        ),
        (
            "Failed to acquire an Entra ID access token for authentication type 'default': Azure "
            "authentication libraries are not installed. Please install with: pip install azure-identity "
            "azure-core",
            "pip install azure-identity",
        ),
    ],
)
def test_an_identity_that_gets_no_token_is_terminal(
    monkeypatch: pytest.MonkeyPatch, said: str, remedy: str
) -> None:
    """What the driver says is told, but for the password."""

    def fail(**_: Any) -> None:
        raise mssql_python.InterfaceError(said, f"{said} {SECRET}")

    monkeypatch.setattr(mssql_python, "connect", fail)
    with pytest.raises(ConnectionNotUsableError, match=remedy) as caught:
        open_source(DESCRIPTION).now()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (mssql_python.DatabaseError("Something new", f"of the server: {SECRET}"), SourceUnavailableError),
        (ValueError(f"of the driver: {SECRET}"), ConnectionNotUsableError),
    ],
)
def test_what_has_no_name_here_tells_no_password_either(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, error: type[ChangefeedError]
) -> None:
    """Of the server it may pass, of the driver's own checks it does not."""

    def fail(**_: Any) -> None:
        raise raised

    monkeypatch.setattr(mssql_python, "connect", fail)
    source: Any = open_source(DESCRIPTION)
    source.database.retry = RetryPolicy(attempts=2, first_pause=0.0, longest_pause=0.0)
    with pytest.raises(error, match="check the connection") as caught:
        source.now()
    assert type(caught.value) is error
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_opening_a_source_loads_no_driver() -> None:
    """Only a call does; a DAG file that makes a hook stays quick."""
    code = (
        "import sys; from airflow_changefeed.sources import open_source; "
        f"open_source({DESCRIPTION!r}); "
        "print(sorted({'mssql_python', 'pyarrow', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
