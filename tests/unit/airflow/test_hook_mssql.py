# SPDX-License-Identifier: Apache-2.0
"""The hook on connections of type mssql: which fields and extras it takes, and what it refuses."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_changefeed.connections.connection import DESCRIBE
from airflow_changefeed.exceptions import ConnectionNotUsableError, InvalidArgumentError
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.sources import SOURCES, open_source
from airflow_changefeed.sources.mssql.connection.options import AUTHENTICATION, DRIVER_OPTIONS
from tests.examples import examples, section
from tests.minors import since

FIELDS: dict[str, Any] = {
    "conn_type": "mssql",
    "host": "db.example.com",
    "schema": "feeds",
    "login": "me",
    "password": "hunter2",
}
DESCRIPTION = {
    "type": "mssql",
    "host": "db.example.com",
    "port": 1433,
    "database": "feeds",
    "user": "me",
    "password": "hunter2",
    "schema": "changefeed",
    "encrypt": "yes",
    "trust_server_certificate": False,
    "read_only_replica": False,
    "driver_options": {},
    "lock_timeout": 60.0,
}


def _describe(monkeypatch: pytest.MonkeyPatch, connection: str | dict[str, Any]) -> dict[str, Any]:
    text = connection if isinstance(connection, str) else json.dumps(connection)
    monkeypatch.setenv("AIRFLOW_CONN_FEEDS", text)
    return ChangefeedHook("feeds").describe()


def test_every_source_has_a_way_from_a_connection() -> None:
    """The two tables name the same types."""
    assert set(DESCRIBE) == set(SOURCES)


def test_the_providers_fields_are_the_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encrypted and checked unless the extra says otherwise; the source opens from it."""
    found = _describe(monkeypatch, FIELDS)
    assert found == DESCRIPTION
    assert open_source(found).describe() == found


@pytest.mark.parametrize(
    ("extra", "changes"),
    [
        ({"encrypt": "no"}, {"encrypt": "no"}),
        ({"encrypt": "Strict"}, {"encrypt": "strict"}),
        ({"encrypt": False}, {"encrypt": "no"}),
        ({"encrypt": "true"}, {"encrypt": "yes"}),
        ({"trust_server_certificate": True}, {"trust_server_certificate": True}),
        ({"trust_server_certificate": "yes"}, {"trust_server_certificate": True}),
        ({"trust_server_certificate": "0"}, {"trust_server_certificate": False}),
        ({"changefeed_schema": "feeds of us"}, {"schema": "feeds of us"}),
        ({"lock_timeout": "7.5"}, {"lock_timeout": 7.5}),
        ({"read_only_replica": "yes"}, {"read_only_replica": True}),
        ({"read_only_replica": "", "packet_size": "", "encrypt": ""}, {}),
        (
            {"packet_size": "8000", "multi_subnet_failover": "yes", "application_name": "hourly"},
            {
                "driver_options": {
                    "packet_size": 8000,
                    "multi_subnet_failover": True,
                    "application_name": "hourly",
                }
            },
        ),
        (
            {"authentication": "ActiveDirectoryServicePrincipal", "login_timeout": 30},
            {"driver_options": {"authentication": "ActiveDirectoryServicePrincipal", "login_timeout": 30}},
        ),
        (
            {"encrypt": "strict", "server_certificate": "/etc/ssl/db.pem"},
            {"encrypt": "strict", "driver_options": {"server_certificate": "/etc/ssl/db.pem"}},
        ),
    ],
)
def test_the_extras_that_are_named_are_taken(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], changes: dict[str, Any]
) -> None:
    """In the spelling of JSON and in that of a URI."""
    assert _describe(monkeypatch, {**FIELDS, "extra": extra}) == {**DESCRIPTION, **changes}


def test_a_uri_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With a password of any characters. Unknown extras go nowhere: they belong to the provider's own driver,
    which would take any of them. A named instance has no port of its own, as the driver asks the server for
    it.
    """
    uri = "mssql://me:h%40%2F%3Bter@db.example.com:1444/feeds?encrypt=no&trust_server_certificate=yes"
    changes = {"password": "h@/;ter", "port": 1444, "encrypt": "no", "trust_server_certificate": True}
    assert _describe(monkeypatch, uri) == {**DESCRIPTION, **changes}
    extra = {"as_dict": True, "tds_version": "7.4", "PWD": "hunter2", "server": "elsewhere"}
    assert _describe(monkeypatch, {**FIELDS, "extra": extra}) == DESCRIPTION
    found = _describe(monkeypatch, {**FIELDS, "host": "db\\second"})
    assert (found["host"], found["port"]) == ("db\\second", None)
    assert _describe(monkeypatch, {**FIELDS, "host": "db\\second", "port": 1500})["port"] == 1500


def test_all_missing_fields_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without database would land in the login's default one."""
    with pytest.raises(
        ConnectionNotUsableError, match=r"'feeds'.*host, schema \(the database\), login"
    ) as caught:
        _describe(monkeypatch, {"conn_type": "mssql", "password": "hunter2"})
    assert "hunter2" not in f"{caught.value} {caught.value.facts}"


@pytest.mark.parametrize(
    "extra",
    [
        {"trusted_connection": "yes"},
        {"authentication": "ActiveDirectoryMSI"},
        {"authentication": "ActiveDirectoryDefault"},
    ],
)
def test_whoever_knows_himself_needs_no_login(monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any]) -> None:
    """Kerberos and managed identities; the description opens a source."""
    fields = {name: value for name, value in FIELDS.items() if name not in ("login", "password")}
    found = _describe(monkeypatch, {**fields, "extra": extra})
    assert (found["user"], found["password"]) == ("", "")
    assert open_source(found).describe() == found


def test_all_that_is_wrong_with_a_connection_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its id, the allowed words, and no secret."""
    extra = {
        "encrypt": "maybe",
        "read_only_replica": "always",
        "authentication": "ActiveDirectoryInteractive",
        "packet_size": "big",
        "lock_timeout": "-1",
    }
    with pytest.raises(InvalidArgumentError) as caught:
        _describe(monkeypatch, {**FIELDS, "extra": extra})
    text = str(caught.value)
    assert text.startswith("connection 'feeds': ")
    assert len(caught.value.facts["problems"]) == len(extra)
    for words in (
        "encrypt in its extra must be one of yes, no, strict",
        "read_only_replica in its extra must be true or false",
        "lock_timeout in its extra must be a number of seconds, 0 to 86400",
        *("ActiveDirectoryMSI", "no browser", "a whole number of bytes, 512 to 32767"),
    ):
        assert words in text
    assert "hunter2" not in text
    with pytest.raises(ConnectionNotUsableError, match=r"lacks schema \(the database\): .*packet_size"):
        _describe(monkeypatch, {**FIELDS, "schema": "", "extra": extra})


def test_a_password_that_the_authentication_needs_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service principal has a secret."""
    extra = {"authentication": "ActiveDirectoryServicePrincipal"}
    with pytest.raises(ConnectionNotUsableError, match=r"lacks password \(authentication ActiveDirectoryS"):
        _describe(monkeypatch, {**FIELDS, "password": "", "extra": extra})


PAGE = "reference/connections.md#connection-to-sql-server"


def test_the_references_extra_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option in it reaches the source."""
    (extra,) = examples(PAGE, {}, "json")
    given = json.loads(extra)
    found = _describe(monkeypatch, {**FIELDS, "extra": given})
    reached = {**found, **found["driver_options"]}
    assert {name for name in given if name not in reached} == set()
    assert open_source(found).describe() == found


class _Recording(dict[str, Any]):
    """An extra that notes which of its entries are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


@since("3.2", "a connection whose extra is read where a test can see it")
def test_the_references_table_has_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option that the hook asks the extra for is a row, and each row is asked for."""
    extra = _Recording()
    monkeypatch.setattr(Connection, "extra_dejson", extra)
    _describe(monkeypatch, FIELDS)
    table = section(PAGE).partition("| option | default")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(extra.asked)
    assert set(DRIVER_OPTIONS) < extra.asked


def test_the_reference_names_every_way_to_log_in() -> None:
    """As a word of the option ``authentication``."""
    text = section(PAGE)
    assert {word for word in AUTHENTICATION if f"`{word}`" not in text} == set()
