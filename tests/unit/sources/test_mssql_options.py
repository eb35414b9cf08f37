# SPDX-License-Identifier: Apache-2.0
"""The options of a connection to SQL Server: what they may be, and what the driver is told."""

from __future__ import annotations

from typing import Any

import pytest
from mssql_python.connection_string_parser import _ConnectionStringParser as DriverNames

from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.mssql.connection.options import (
    AUTHENTICATION,
    DRIVER_OPTIONS,
    DriverOptions,
    read_options,
)

BASE: dict[str, Any] = {
    "type": "mssql",
    "host": "db",
    "database": "feeds",
    "user": "me",
    "password": "hunter2",
}
#: Each option, a value that a URI or JSON may give, and what the driver is told; None: nothing.
GIVEN: dict[str, tuple[Any, tuple[str, str] | None]] = {
    "authentication": ("activedirectorymsi", ("Authentication", "ActiveDirectoryMSI")),
    "trusted_connection": ("yes", ("Trusted_Connection", "yes")),
    "hostname_in_certificate": ("db.example.com", ("HostnameInCertificate", "db.example.com")),
    "server_certificate": ("/etc/ssl/db.pem", ("ServerCertificate", "/etc/ssl/db.pem")),
    "server_spn": ("MSSQLSvc/db:1433", ("ServerSPN", "MSSQLSvc/db:1433")),
    "multi_subnet_failover": (True, ("MultiSubnetFailover", "yes")),
    "ip_address_preference": ("ipv6first", ("IpAddressPreference", "IPv6First")),
    "packet_size": ("8000", ("PacketSize", "8000")),
    "keep_alive": (60, ("KeepAlive", "60")),
    "keep_alive_interval": ("5", ("KeepAliveInterval", "5")),
    "connect_retry_count": (0, ("ConnectRetryCount", "0")),
    "connect_retry_interval": ("60", ("ConnectRetryInterval", "60")),
    "login_timeout": ("30", None),
    "application_name": ("hourly export", None),
}


def _keywords(options: dict[str, Any], **others: Any) -> dict[str, str]:
    source: Any = open_source({**BASE, **others, "driver_options": options})
    keywords: dict[str, str] = source.database.server.keywords()
    return keywords


def test_all_options_are_tried_here() -> None:
    """None is added without a value for it."""
    assert set(GIVEN) == set(DRIVER_OPTIONS)


@pytest.mark.parametrize("name", GIVEN)
def test_an_option_reaches_the_driver_under_its_name(name: str) -> None:
    """And comes back from the description of the source, which is JSON's."""
    value, keyword = GIVEN[name]
    others = {"encrypt": "strict"} if name == "server_certificate" else {}
    source: Any = open_source({**BASE, **others, "driver_options": {name: value}})
    described = source.describe()
    assert list(described["driver_options"]) == [name]
    again: Any = open_source(described)
    assert again.database.server == source.database.server
    assert again.describe() == described
    told = source.database.server.keywords()
    assert keyword is None or told[keyword[0]] == keyword[1]
    # What the driver does not know, it passes over with a warning.
    assert all(DriverNames.normalize_key(keyword) for keyword in told)


def test_nothing_is_told_by_default() -> None:
    """The driver's defaults are Microsoft's to choose."""
    assert DriverOptions().keywords() == {}
    assert DriverOptions().given() == {}
    assert read_options({"packet_size": "", "server_spn": None}) == (DriverOptions(), [])


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("authentication", "Password", "SqlPassword, ActiveDirectoryPassword"),
        ("authentication", "ActiveDirectoryInteractive", "no browser"),
        ("authentication", "ActiveDirectoryDeviceCode", "no browser"),
        ("trusted_connection", "SSPI", "true or false"),
        ("multi_subnet_failover", 2, "true or false"),
        ("ip_address_preference", "IPv4", "IPv4First, IPv6First, UsePlatformDefault"),
        ("packet_size", 511, "whole number of bytes, 512 to 32767"),
        ("packet_size", "32768", "whole number of bytes, 512 to 32767"),
        ("packet_size", True, "whole number of bytes, 512 to 32767"),
        ("packet_size", "4k", "whole number of bytes, 512 to 32767"),
        ("keep_alive", 0, "whole number of seconds, 1 to 32767"),
        ("keep_alive_interval", -1, "whole number of seconds, 1 to 32767"),
        ("connect_retry_count", 256, "whole number, 0 to 255"),
        ("connect_retry_interval", 0, "whole number of seconds, 1 to 60"),
        ("login_timeout", 0, "whole number of seconds, 1 to 600"),
        ("login_timeout", 1.5, "whole number of seconds, 1 to 600"),
        ("server_spn", "a\0b", "printable"),
        ("server_certificate", 7, "printable"),
        ("application_name", "ü" * 65, "128 bytes"),
    ],
)
def test_a_value_that_means_nothing_is_named_with_what_it_may_be(name: str, value: Any, allowed: str) -> None:
    """The driver would fail with a number, or pass over it."""
    options, (problem,) = read_options({name: value}, among=" in its extra")
    assert problem.startswith(f"{name} in its extra must be ")
    assert allowed in problem
    assert options == DriverOptions()


def test_all_that_is_wrong_is_named_at_once() -> None:
    """Unknown names too, without their values, which may be secrets."""
    wrong = {"authentication": "maybe", "packet_size": 1, "pwd": "hunter2", "server_snp": "x"}
    with pytest.raises(InvalidArgumentError) as caught:
        open_source({**BASE, "encrypt": "no!", "driver_options": wrong})
    assert len(caught.value.facts["problems"]) == 5
    assert "did you mean server_spn" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "others", "problem"),
    [
        (
            {"authentication": "ActiveDirectoryMSI", "trusted_connection": "yes"},
            {},
            "authentication and trusted_connection",
        ),
        ({"server_certificate": "/x.pem"}, {"encrypt": "yes"}, "only with encrypt: strict"),
        ({}, {"encrypt": "strict", "trust_server_certificate": True}, "omit trust_server_certificate"),
    ],
)
def test_what_contradicts_itself_is_refused(
    options: dict[str, Any], others: dict[str, Any], problem: str
) -> None:
    """The driver would take one of them, and say nothing of the other."""
    with pytest.raises(InvalidArgumentError, match=problem):
        open_source({**BASE, **others, "driver_options": options})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, {"UID": "me", "PWD": "hunter2"}),
        ({"authentication": "SqlPassword"}, {"UID": "me", "PWD": "hunter2"}),
        ({"authentication": "ActiveDirectoryPassword"}, {"UID": "me", "PWD": "hunter2"}),
        ({"authentication": "ActiveDirectoryServicePrincipal"}, {"UID": "me", "PWD": "hunter2"}),
        ({"authentication": "ActiveDirectoryMSI"}, {"UID": "me"}),
        ({"authentication": "ActiveDirectoryDefault"}, {}),
        ({"authentication": "ActiveDirectoryIntegrated"}, {}),
        ({"trusted_connection": True}, {}),
    ],
)
def test_a_password_goes_only_where_it_is_needed(options: dict[str, Any], told: dict[str, str]) -> None:
    """A managed identity is named by its client id; Kerberos and the default credential know themselves."""
    keywords = _keywords(options)
    assert {name: keywords[name] for name in ("UID", "PWD") if name in keywords} == told


@pytest.mark.parametrize("authentication", [None, *AUTHENTICATION])
def test_a_login_is_missed_only_where_it_is_needed(authentication: str | None) -> None:
    """The others open without."""
    without = {**BASE, "user": "", "password": "", "driver_options": {"authentication": authentication}}
    if authentication in ("ActiveDirectoryMSI", "ActiveDirectoryDefault", "ActiveDirectoryIntegrated"):
        assert "UID" not in _keywords({"authentication": authentication}, user="", password="")
        return
    with pytest.raises(InvalidArgumentError) as caught:
        open_source(without)
    is_password_needed = authentication in ("ActiveDirectoryPassword", "ActiveDirectoryServicePrincipal")
    assert len(caught.value.facts["problems"]) == 1 + is_password_needed
    assert ": user " in str(caught.value)


def test_a_replica_is_asked_for_by_bulk_reads_only() -> None:
    """And described."""
    source: Any = open_source({**BASE, "read_only_replica": True})
    assert source.describe()["read_only_replica"] is True
    assert "ApplicationIntent" not in source.database.server.keywords()
    assert source.database.for_bulk_reads().server.keywords()["ApplicationIntent"] == "ReadOnly"
    assert open_source(source.describe()).describe() == source.describe()
