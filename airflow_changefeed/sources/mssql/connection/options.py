# SPDX-License-Identifier: Apache-2.0
"""Driver options besides server, database, login and password: parsing and checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from airflow_changefeed.core.values import (
    LOCK_TIMEOUT,
    Fields,
    Reader,
    flag,
    one_of,
    printable,
    read_each,
    read_fields,
    whole,
)

#: Seconds that opening a connection may take.
LOGIN_TIMEOUT = 15
#: Bytes that a session's ``context_info`` holds.
MAX_APPLICATION_NAME = 128
ENCRYPT = ("yes", "no", "strict")
#: Authentication methods besides a SQL Server login: all of the driver's that need no user interaction.
AUTHENTICATION = (
    "SqlPassword",
    "ActiveDirectoryPassword",
    "ActiveDirectoryServicePrincipal",
    "ActiveDirectoryMSI",
    "ActiveDirectoryDefault",
    "ActiveDirectoryIntegrated",
)
_NEEDS_PERSON = ("activedirectoryinteractive", "activedirectorydevicecode")
#: Methods without a login, and methods with an optional login (a client id).
_WITHOUT_LOGIN = ("ActiveDirectoryDefault", "ActiveDirectoryIntegrated")
_WITH_LOGIN_IF_GIVEN = ("ActiveDirectoryMSI",)
_NEEDS_PASSWORD = ("ActiveDirectoryPassword", "ActiveDirectoryServicePrincipal")
IP_ADDRESS_PREFERENCE = ("IPv4First", "IPv6First", "UsePlatformDefault")


def _encrypt(value: Any) -> str:
    try:
        return ("no", "yes")[flag(value)]
    except ValueError:
        return one_of(ENCRYPT)(value)


def _authentication(value: Any) -> str:
    try:
        return one_of(AUTHENTICATION)(value)
    except ValueError as problem:
        needs_person = str(value).strip().lower() in _NEEDS_PERSON
        why = " (a task has no browser for interactive sign-in)" if needs_person else ""
        raise ValueError(f"{problem}{why}") from None


def _application_name(value: Any) -> str:
    name = printable(value)
    if len(name.encode()) > MAX_APPLICATION_NAME:
        raise ValueError(f"at most {MAX_APPLICATION_NAME} bytes of UTF-8")
    return name


def _option(reader: Reader, keyword: str | None = None, default: Any = None) -> Any:
    """
    Return a field of :class:`DriverOptions`.

    :param keyword: of the driver; None for what we use ourselves.
    """
    return field(default=default, metadata={"reader": reader, "keyword": keyword})


@dataclass(frozen=True)
class DriverOptions:
    """
    Options of a connection; None leaves one to the driver. None of them is a secret.

    :param authentication: one of :data:`AUTHENTICATION`; None is a login of SQL Server.
    :param trusted_connection: Kerberos, with the ticket of the operating system user.
    :param hostname_in_certificate: the name in the server's certificate, if it differs from the host.
    :param server_certificate: path of a file with the server's exact certificate.
    :param server_spn: the server's service principal name, for Kerberos.
    :param multi_subnet_failover: whether all addresses of a listener are tried at once.
    :param ip_address_preference: one of :data:`IP_ADDRESS_PREFERENCE`.
    :param packet_size: bytes, 512 to 32,767.
    :param keep_alive: seconds of silence after which a connection is probed, 1 to 32,767.
    :param keep_alive_interval: seconds between probes without an answer, 1 to 32,767.
    :param connect_retry_count: how often the driver restores a broken idle connection, 0 to 255.
    :param connect_retry_interval: seconds between those, 1 to 60.
    :param login_timeout: seconds that opening a connection may take, 1 to 600.
    :param application_name: for ``context_info`` of the session, at most 128 bytes of UTF-8.
    """

    authentication: str | None = _option(_authentication, "Authentication")
    trusted_connection: bool = _option(flag, "Trusted_Connection", default=False)
    hostname_in_certificate: str | None = _option(printable, "HostnameInCertificate")
    server_certificate: str | None = _option(printable, "ServerCertificate")
    server_spn: str | None = _option(printable, "ServerSPN")
    multi_subnet_failover: bool = _option(flag, "MultiSubnetFailover", default=False)
    ip_address_preference: str | None = _option(one_of(IP_ADDRESS_PREFERENCE), "IpAddressPreference")
    packet_size: int | None = _option(whole(512, 32_767, "bytes"), "PacketSize")
    keep_alive: int | None = _option(whole(1, 32_767, "seconds"), "KeepAlive")
    keep_alive_interval: int | None = _option(whole(1, 32_767, "seconds"), "KeepAliveInterval")
    connect_retry_count: int | None = _option(whole(0, 255), "ConnectRetryCount")
    connect_retry_interval: int | None = _option(whole(1, 60, "seconds"), "ConnectRetryInterval")
    login_timeout: int = _option(whole(1, 600, "seconds"), default=LOGIN_TIMEOUT)
    application_name: str = _option(_application_name, default="airflow_changefeed")

    @property
    def takes_login(self) -> bool:
        """Whether a given login is passed to the driver."""
        return not self.trusted_connection and self.authentication not in _WITHOUT_LOGIN

    @property
    def needs_login(self) -> bool:
        """Whether a login is required."""
        return self.takes_login and self.authentication not in _WITH_LOGIN_IF_GIVEN

    @property
    def needs_password(self) -> bool:
        """Whether a password is required; a SQL Server login may have an empty one."""
        return self.authentication in _NEEDS_PASSWORD

    def given(self) -> dict[str, Any]:
        """Return the options that differ from the defaults; :func:`read_options` reads them."""
        return {name: value for name, value in asdict(self).items() if value != getattr(DEFAULTS, name)}

    def keywords(self) -> dict[str, str]:
        """Return the driver's keywords for the options that are given."""
        given = self.given()
        keywords = {one.name: one.metadata["keyword"] for one in fields(self)}
        return {
            keywords[name]: "yes" if value is True else str(value)
            for name, value in given.items()
            if keywords[name] is not None
        }


#: No options.
DEFAULTS = DriverOptions()
_READ: Fields = MappingProxyType({one.name: one.metadata["reader"] for one in fields(DriverOptions)})
#: Names of all options, as the extra of an Airflow connection has them.
DRIVER_OPTIONS = tuple(_READ)
#: The fields of a connection, besides the password and the options of the driver.
CONNECTION: Mapping[str, Reader] = MappingProxyType(
    {
        "host": printable,
        "database": printable,
        "user": printable,
        "port": whole(1, 65_535),
        "schema": printable,
        "encrypt": _encrypt,
        "trust_server_certificate": flag,
        "read_only_replica": flag,
        "lock_timeout": LOCK_TIMEOUT,
    }
)
DEFAULT_PORT = 1433
_DEFAULTS = {
    "host": "",
    "database": "",
    "user": "",
    "schema": "changefeed",
    "encrypt": "yes",
    "trust_server_certificate": False,
    "read_only_replica": False,
    "lock_timeout": 60.0,
}


def read_options(given: Mapping[str, Any], *, among: str = "") -> tuple[DriverOptions, list[str]]:
    """
    Read options and return every problem.

    :param given: by name; None and the empty text count as not given.
    :param among: where they are, for the problems: ``" in its extra"``.
    :return: the options that could be read, and a sentence for each problem.
    """
    values, problems = read_fields(
        {name: value for name, value in given.items() if name in _READ}, _READ, among
    )
    for name in given:
        if name not in _READ:
            # Its value is not shown: it may be a misplaced secret.
            near = get_close_matches(name, DRIVER_OPTIONS, 1)
            hint = f"did you mean {near[0]}" if near else f"options are {', '.join(DRIVER_OPTIONS)}"
            problems.append(f"{name!r}{among} is not an option; {hint}")
    options = DriverOptions(**values)
    if options.trusted_connection and options.authentication is not None:
        problems.append(
            f"authentication and trusted_connection{among} both select a login; omit one of them "
            "(trusted_connection is Kerberos)"
        )
    return options, problems


def read_connection(
    given: Mapping[str, Any], among: str = "", called: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, Any], list[str], list[str]]:
    """
    Read a connection from Airflow, from Spark or from the arguments of the source.

    :param given: fields by the names of :class:`~airflow_changefeed.sources.mssql.MssqlFeedSource`; None and
        the empty text count as not given, but None as the port leaves it to the driver.
    :param among: where they are, for the problems: ``" in its extra"``.
    :param called: fields that are called otherwise there.
    :return: what that class takes, with the password; the fields that are missing; and a sentence for each
        problem, without the password.
    """
    options, problems = read_options(given.get("driver_options") or {}, among=among)
    labels = {name: called.get(name, f"{name}{among}") for name in (*CONNECTION, "password")}
    present = {name: given[name] for name in CONNECTION if given.get(name) not in (None, "")}
    found, wrong = read_each(present, CONNECTION, labels)
    read = {**_DEFAULTS, **found, "password": given.get("password") or "", "driver_options": options.given()}
    # A named instance is found by the driver, and a host may have its port.
    is_found = given.get("port", DEFAULT_PORT) is None or set(read["host"]) & set("\\,")
    read.setdefault("port", None if is_found else DEFAULT_PORT)
    if not isinstance(read["password"], str):
        wrong.append(f"{labels['password']} must be a text")
    how = f" (authentication {options.authentication} needs it)" if options.authentication else ""
    needed = {"host": "", "database": "", **({"user": how} if options.needs_login else {})}
    needed |= {"password": how} if options.needs_password else {}
    missing = [f"{labels[name]}{how}" for name, how in needed.items() if not given.get(name)]
    return read, missing, problems + (wrong or _encryption_problems(read, options))


def _encryption_problems(read: Mapping[str, Any], options: DriverOptions) -> list[str]:
    """Return a message for each option that the driver would silently ignore."""
    problems = []
    if read["encrypt"] != "strict" and options.server_certificate is not None:
        problems.append(
            "server_certificate is used only with encrypt: strict; set encrypt: strict, or omit "
            "server_certificate"
        )
    if read["encrypt"] == "strict" and read["trust_server_certificate"]:
        problems.append("encrypt: strict always checks the certificate; omit trust_server_certificate")
    return problems
