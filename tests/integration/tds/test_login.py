# SPDX-License-Identifier: Apache-2.0
"""What a login tells the server, and what becomes of one that is refused."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConnectionNotUsableError,
    SourceUnavailableError,
)
from tests.integration.tds.certificates import new_certificate
from tests.integration.tds.endpoint import ENCRYPTS, SILENCE, STRICT, Refusal, endpoint
from tests.integration.tds.sources import PASSWORD, logins, source_at

MINE, OTHER = "db.example.com", "other.example.com"


def _fails(port: int, **options: Any) -> ChangefeedError:
    source = source_at(port, **options)
    with pytest.raises(ChangefeedError) as caught:
        source.now()
    return caught.value


def _sockets() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        path = Path("/proc/self/fd") / name
        if path.is_symlink() and os.readlink(path).startswith("socket:"):
            found.add(int(name))
    return found


def test_only_bulk_reads_of_a_replica_say_that_they_only_read() -> None:
    """And no kept connection of one kind is ever lent for the other."""
    with endpoint() as server:
        database = source_at(server.port, read_only_replica=True).database
        replica = database.for_bulk_reads()
        for _ in range(3):
            with database.connect(), replica.connect(), database.connect():
                pass
        assert [login["is_read_only"] for login in logins(server.seen())] == [False, True, False]
        assert replica.for_bulk_reads() is replica
        assert "read_only" not in str(replica.server)
        database.close()
        with replica.connect(), database.connect():
            pass
        assert [login["is_read_only"] for login in logins(server.seen())] == [True, False]


def test_without_a_replica_bulk_reads_go_to_the_primary() -> None:
    """With the same connections."""
    with endpoint() as server:
        database = source_at(server.port).database
        assert database.for_bulk_reads() is database
        with database.connect():
            pass
        assert [login["is_read_only"] for login in logins(server.seen())] == [False]


def test_options_reach_the_driver() -> None:
    """Those that can be seen from the line and its sockets; the driver takes the others without complaint."""
    options = {
        "packet_size": 8000,
        "keep_alive": 45,
        "keep_alive_interval": 7,
        "application_name": "hourly export",
        "hostname_in_certificate": MINE,
        "server_spn": "MSSQLSvc/db.example.com:1433",
        "multi_subnet_failover": True,
        "ip_address_preference": "IPv4First",
        "connect_retry_count": 3,
        "connect_retry_interval": 5,
    }
    with endpoint() as server:
        before = _sockets()
        database = source_at(server.port, driver_options=options).database
        with database.connect(), ExitStack() as stack:
            (line,) = (
                stack.enter_context(socket.socket(fileno=os.dup(number))) for number in _sockets() - before
            )
            assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 45
            assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 7
        login, batch = server.seen()
        assert login["packet_size"] == 8000
        # The driver's own name, whatever one asks for; ours is where it can be.
        assert login["application"] == "MSSQL-Python"
        assert f"set context_info 0x{b'hourly export'.hex()};" in batch["batch"]
        database.close()


REFUSED = {
    18456: ("Login failed for user 'me'.", "check login, password and database"),
    4060: (
        'Cannot open database "feeds" requested by the login. The login failed.',
        "check login, password and database",
    ),
    18487: (
        "Login failed for user 'me'.  Reason: The password of the account has expired.",
        "The password of the account has expired",
    ),
    40615: (
        "Cannot open server 's' requested by the login. Client with IP address '10.0.0.1' is not allowed to "
        "access the server.",
        "firewall rule",
    ),
}


@pytest.mark.parametrize("number", REFUSED)
def test_a_refused_login_is_terminal_and_tried_once(number: int) -> None:
    """A second attempt might lock the login out."""
    text, remedy = REFUSED[number]
    with endpoint(logins=(Refusal(number, text),)) as server:
        error = _fails(server.port)
        assert type(error) is ConnectionNotUsableError
        assert remedy in str(error)
        assert f"127.0.0.1,{server.port}/feeds" in str(error)
        assert len(logins(server.seen())) == 1


def test_a_server_without_encryption_is_not_talked_to_in_the_open() -> None:
    """Unless the connection says so."""
    with endpoint() as server:
        error = _fails(server.port, encrypt="yes")
        assert type(error) is ConnectionNotUsableError
        assert "Encryption not supported on SQL Server" in str(error)
        assert "encrypt: no" in str(error)
        assert server.seen() == []


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Make a certificate for each name."""
    folder = tmp_path_factory.mktemp("certificates")
    return {name: new_certificate(folder, name) for name in (MINE, OTHER)}


def _reaches(certificates: dict[str, tuple[Path, Path]], **asked: Any) -> ConnectionNotUsableError | None:
    """Log in at an endpoint that shows the certificate of MINE; return the error if that fails."""
    encryption = STRICT if asked["encrypt"] == "strict" else ENCRYPTS
    with endpoint(encryption=encryption, certificate=str(certificates[MINE][1])) as server:
        try:
            with source_at(server.port, **asked).database.connect() as session:
                session.execute("select 1")
        except ConnectionNotUsableError as error:
            assert server.seen() == [], "nothing was told to a server that is not trusted"
            return error
        assert logins(server.seen())[0]["user"] == "me"
        return None


@pytest.mark.parametrize("encrypt", ["yes", "strict"])
def test_a_certificate_that_nobody_vouches_for_is_not_trusted(
    certificates: dict[str, tuple[Path, Path]], encrypt: str
) -> None:
    """The remedies are named."""
    error = _reaches(certificates, encrypt=encrypt)
    assert "SSL_CERT_FILE" in str(error)
    assert "server_certificate" in str(error)


def test_a_certificate_is_trusted_blindly_if_told_so(certificates: dict[str, tuple[Path, Path]]) -> None:
    """For tests."""
    assert _reaches(certificates, encrypt="yes", trust_server_certificate=True) is None


@pytest.mark.parametrize(("name", "is_trusted"), [(MINE, True), (OTHER, False), ("", False)])
def test_strict_takes_the_very_certificate(
    certificates: dict[str, tuple[Path, Path]], name: str, is_trusted: bool
) -> None:
    """Another one, or a file that is not there, is refused."""
    file = str(certificates[name][0]) if name else "/nowhere/server.pem"
    error = _reaches(certificates, encrypt="strict", driver_options={"server_certificate": file})
    assert (error is None) == is_trusted
    assert is_trusted or "check server_certificate of the connection" in str(error)


@pytest.mark.parametrize("encrypt", ["yes", "strict"])
@pytest.mark.parametrize("name", [MINE, OTHER, None])
def test_a_certificate_must_have_the_name_that_is_looked_for(
    certificates: dict[str, tuple[Path, Path]],
    monkeypatch: pytest.MonkeyPatch,
    encrypt: str,
    name: str | None,
) -> None:
    """The host's, unless the connection names another one."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates[MINE][0]))
    options = {} if name is None else {"hostname_in_certificate": name}
    error = _reaches(certificates, encrypt=encrypt, driver_options=options)
    assert (error is None) == (name == MINE)
    assert error is None or "set it as hostname_in_certificate" in str(error)


def test_strict_is_refused_by_a_server_that_does_not_know_it(
    certificates: dict[str, tuple[Path, Path]],
) -> None:
    """It waits for what comes before encryption."""
    with endpoint(encryption=ENCRYPTS, certificate=str(certificates[MINE][1])) as server:
        error = _fails(server.port, encrypt="strict")
    assert type(error) is ConnectionNotUsableError
    assert "strict needs SQL Server 2022" in str(error)


def test_a_port_that_nobody_listens_at_is_named() -> None:
    """The driver gives a number only; it has tried for the whole time, so nobody tries again."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    error = _fails(port)
    assert type(error) is SourceUnavailableError
    assert f"Nothing is listening on 127.0.0.1 port {port}" in str(error)
    assert error.facts["login_timeout"] == 2
    assert "attempts" not in error.facts


def test_a_host_that_is_not_known_is_named() -> None:
    """Transient: a container's name is unknown while it restarts."""
    error = _fails(1433, host="no-such-host.invalid")
    assert type(error) is SourceUnavailableError
    assert "The name 'no-such-host.invalid' cannot be resolved here" in str(error)


def test_a_server_that_says_nothing_is_given_up() -> None:
    """After the login timeout, and it is said that something listens there."""
    with endpoint(logins=(SILENCE,)) as server:
        error = _fails(server.port)
    assert type(error) is SourceUnavailableError
    assert "Something is listening on 127.0.0.1" in str(error)
    assert error.facts["login_timeout"] == 2


def test_kerberos_without_a_ticket_names_kinit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And needs no login in the connection."""
    monkeypatch.setenv("KRB5CCNAME", str(tmp_path / "none"))
    with endpoint() as server:
        options = {"trusted_connection": True}
        error = _fails(server.port, user="", password="", driver_options=options)
        assert type(error) is ConnectionNotUsableError
        assert "kinit" in str(error)
        assert server.seen() == []


def test_the_password_goes_to_the_driver_as_it_is() -> None:
    """No sign in it begins another option: the login is the one that was asked for."""
    with endpoint() as server:
        with source_at(server.port, password=PASSWORD + ";UID=sa").database.connect():
            pass
        assert logins(server.seen())[0]["user"] == "me"
