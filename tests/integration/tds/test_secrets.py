# SPDX-License-Identifier: Apache-2.0
"""A password is told to nobody, on whatever way a connection fails."""

from __future__ import annotations

import logging
import pickle
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mssql_python
import pytest
from mssql_python.logging import logger as driver_log

from airflow_changefeed.exceptions import ChangefeedError
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.pool import RetryPolicy
from tests.integration.tds.endpoint import CUT, ENCRYPTS_NOTHING, SILENCE, Refusal, endpoint
from tests.integration.tds.sources import DEADLOCK, source_at

ONCE_MORE = RetryPolicy(attempts=2, first_pause=0.0, longest_pause=0.0)
PASSWORDS = ("hunter2", "hun;ter2", "h}u{n}}ter2", "hunter2;UID=sa;PWD=x", "hunter 2'\"\\=", "jäger£2 {🙂}")


@contextmanager
def _at(password: str, script: dict[str, Any], **options: Any) -> Iterator[MssqlFeedSource]:
    """Give a source at an endpoint whose refusals repeat the password, as no server should."""
    said = Refusal(18456, f"Login failed for user 'me' with password {password} (PWD={password!r}).")
    filled = {
        name: tuple(said if one == "echo" else one for one in value) if isinstance(value, tuple) else value
        for name, value in script.items()
    }
    with endpoint(**filled) as server:
        options.setdefault("driver_options", {})["login_timeout"] = 1
        yield source_at(server.port, ONCE_MORE, password=password, **options)


@contextmanager
def _closed(password: str) -> Iterator[MssqlFeedSource]:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    yield source_at(port, ONCE_MORE, password=password, driver_options={"login_timeout": 1})


REFUSED: dict[str, Callable[[str], Any]] = {
    "refused": lambda password: _at(password, {"logins": ("echo",)}),
}
#: Where nobody repeats the password, one that could be taken apart is enough.
WAYS: dict[str, Callable[[str], Any]] = {
    "cut": lambda password: _at(password, {"logins": (CUT,)}),
    "silent": lambda password: _at(password, {"logins": (SILENCE,)}),
    "not encrypted": lambda password: _at(password, {"encryption": ENCRYPTS_NOTHING}, encrypt="yes"),
    "first batch refused": lambda password: _at(password, {"batches": (DEADLOCK,)}),
    "closed": _closed,
    "service principal": lambda password: _at(
        password,
        {"logins": ("echo",)},
        driver_options={"authentication": "ActiveDirectoryServicePrincipal"},
    ),
}


def _told(error: BaseException) -> str:
    """Return all that a log, a task's page or another process would get to see of an error."""
    facts = getattr(error, "facts", {})
    chain = "".join(traceback.format_exception(error))
    return f"{error} {error!r} {facts} {chain} {pickle.dumps(error)!r} {error.__cause__!r}"


@pytest.mark.parametrize(
    ("way", "password"),
    [*(("refused", password) for password in PASSWORDS), *((way, PASSWORDS[2]) for way in WAYS)],
)
def test_no_failure_tells_the_password(
    way: str, password: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither in the error, nor in what it came from, nor in a log at debug level, nor beside it."""
    with caplog.at_level(logging.DEBUG), (REFUSED | WAYS)[way](password) as source:
        with pytest.raises(ChangefeedError) as caught:
            source.database.ask(lambda session: session.execute("select 1"), feed="s.T")
        printed = capfd.readouterr()
        told = [_told(caught.value), repr(source), repr(source.database), repr(source.database.server)]
        told += [caplog.text, printed.out, printed.err]
    for text in told:
        for written in (password, repr(password)[1:-1], password.replace("}", "}}")):
            assert written not in text


def test_the_drivers_own_log_stays_off(caplog: pytest.LogCaptureFixture) -> None:
    """It writes connection strings to a file or to standard output, once somebody turns it on."""
    with caplog.at_level(logging.DEBUG), _at("hunter2", {}) as source, source.database.connect():
        pass
    assert not driver_log.is_debug_enabled
    assert driver_log.log_file is None
    assert logging.getLogger(mssql_python.__name__).level == logging.CRITICAL
    assert "mssql_python" not in {record.name for record in caplog.records}
