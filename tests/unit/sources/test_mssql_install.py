# SPDX-License-Identifier: Apache-2.0
"""Installing through a connection, on a driver that keeps what it is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import mssql_python
import pytest

from airflow_changefeed import __version__
from airflow_changefeed.exceptions import (
    FeedSetupError,
    InvalidArgumentError,
    PermissionDeniedError,
    UnsupportedVersionError,
)
from airflow_changefeed.sources.base_control import Installed
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sql.mssql import install_script, script


@dataclass
class Server:
    """
    A driver and its server: it answers what an installation asks, and keeps the batches of the script.

    :param version: what is installed.
    :param may: whether the login may install.
    """

    version: str | None = None
    may: bool = True
    batches: list[str] = field(default_factory=list)
    description: list[tuple[str]] | None = None
    answer: list[tuple[Any, ...]] = field(default_factory=list)

    def connect(self, **_: Any) -> Server:
        """Connect, as the driver does; this is the connection, and its cursor, too."""
        return self

    cursor = connect

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> None:
        """Answer a question, or keep a batch."""
        self.description, self.answer = [("value",)], []
        if "select object_id(@name)" in sql:
            self.answer = [(None if self.version is None else 7,)]
        elif sql.startswith("select has_perms_by_name"):
            self.answer = [(int(self.may),)]
        elif sql.startswith("select [changefeed].[version]()"):
            self.answer = [(self.version,)]
        else:
            self.description = None
            if not re.search(r"set lock_timeout \d+$", sql):
                self.batches.append(sql)
                created = re.search(r"function \[changefeed\]\.\[version\].*return '(.*)'", sql, re.DOTALL)
                self.version = created[1] if created else self.version

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Give the answer."""
        return self.answer

    def nextset(self) -> bool:
        """There is one result."""
        return False

    def close(self) -> None:
        """Close."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """Give a server in the driver's place, with nothing installed."""
    server = Server()
    monkeypatch.setattr(mssql_python, "connect", server.connect)
    return server


@pytest.fixture
def source(server: Server, request: pytest.FixtureRequest) -> MssqlFeedSource:
    """Give a source over it; another password for each test, as connections are kept."""
    return MssqlFeedSource("db.example.com", database="feeds", user="me", password=request.node.name)


def test_what_is_executed_is_what_is_printed(server: Server, source: MssqlFeedSource) -> None:
    """The same batches in the same order: a DBA's installation is this one."""
    assert source.install(sequence_cache=50) == Installed(None, __version__)
    printed = re.split(r"^go$\n+", script(sequence_cache=50), flags=re.MULTILINE)
    head = printed[0].splitlines()[0]
    assert head.startswith(f"-- airflow_changefeed {__version__}: ")
    printed[0] = printed[0].removeprefix(f"{head}\n")
    assert printed.pop() == ""
    # Between what lets a tool execute again that went on after a refusal.
    assert {printed.pop(0), printed.pop()} == {"set noexec off;\n"}
    assert [batch.rstrip() for batch in server.batches] == [batch.rstrip() for batch in printed]
    assert server.batches == install_script(sequence_cache=50)


@pytest.mark.parametrize("before", ["0.0.1", "0.1.0.dev1", __version__], ids=["older", "dev", "same"])
def test_an_older_version_is_upgraded(server: Server, source: MssqlFeedSource, before: str) -> None:
    """Both versions are told; the same one is installed again."""
    server.version = before
    assert source.version() == before
    assert source.install() == Installed(before, __version__)
    assert server.batches == install_script()


@pytest.mark.parametrize(
    ("before", "words"),
    [("99.1.0", "newer than this package"), ("0.1.0.dev2026+abcd.", "cannot be compared")],
    ids=["newer", "no version"],
)
def test_going_back_has_to_be_forced(
    server: Server, source: MssqlFeedSource, before: str, words: str
) -> None:
    """Nothing is run before it is."""
    server.version = before
    with pytest.raises(UnsupportedVersionError, match=words) as caught:
        source.install()
    assert caught.value.facts == {"installed": before, "package": __version__}
    assert server.batches == []
    assert source.install(force=True) == Installed(before, __version__)


def test_a_login_that_may_not_is_told_what_to_do(server: Server, source: MssqlFeedSource) -> None:
    """Before anything is run: a DBA runs the script."""
    server.may = False
    with pytest.raises(PermissionDeniedError, match=r"db_owner.*airflow-changefeed sql"):
        source.install()
    with pytest.raises(FeedSetupError, match=r"not installed.*airflow-changefeed sql"):
        source.set_up_feed("myservice.MyEvent")
    assert server.batches == []


def test_a_cache_that_is_none_is_refused(server: Server, source: MssqlFeedSource) -> None:
    """Before anything is run."""
    with pytest.raises(InvalidArgumentError, match="sequence_cache must be at least 1"):
        source.install(sequence_cache=0)
    assert server.batches == []
