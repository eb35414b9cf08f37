# SPDX-License-Identifier: Apache-2.0
"""
Run all tests of SQL Server on a server, and say which questions of ADR 0005 the run has answered.

``python -m tests.tools.mssql`` takes the server that ``CHANGEFEED_TEST_MSSQL`` names. Without that it starts
Microsoft's container by docker or podman, of the version that ``MSSQL_VERSION`` names (2017, 2019, 2022 or
2025; 2022 unless said otherwise) and with the collation of ``MSSQL_COLLATION``, and removes it afterwards.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

from tests.tools.check_report import Outcome, read_report
from tests.tools.settled import table

if TYPE_CHECKING:
    from tests.integration.mssql.server import Client

VARIABLE = "CHANGEFEED_TEST_MSSQL"
#: Names a server that tests may kill and start again: ``docker`` or ``podman``, and its container.
CONTAINER = "CHANGEFEED_TEST_MSSQL_CONTAINER"
#: Set if the probes run at their full sizes, which takes hours.
FULL = "CHANGEFEED_TEST_MSSQL_FULL"
VERSIONS = ("2017", "2019", "2022", "2025")
IMAGE = "mcr.microsoft.com/mssql/server:{}-latest"
PROJECT = Path(__file__).resolve().parents[2]
REPORT = PROJECT / "build" / "mssql-report.xml"
TARGETS = ("tests/integration/contract", "tests/integration/mssql")
#: The page on feeds of the server, where there is a browser.
PAGE, BROWSERS = "tests/browser/test_page.py", ("chromium", "chromium-browser", "google-chrome")
#: Seconds for a container to answer: its first start makes the system databases.
PATIENCE = 300


class NoServerError(Exception):
    """No server to test on; the text says what is missing."""


def main(arguments: Sequence[str]) -> int:
    """Run the tests, print the table and the counts, and return the exit status."""
    try:
        with server() as uri:
            return _run(uri, arguments)
    except NoServerError as problem:
        print(f"make test-mssql: {problem}", file=sys.stderr)
        return 1


@contextmanager
def server() -> Iterator[str]:
    """
    Give the URI of a server that answers.

    :raises NoServerError: no server is named and none can be started, or it does not answer.
    """
    if uri := os.environ.get(VARIABLE):
        await_answer(uri, 10)
        yield uri
        return
    version = os.environ.get("MSSQL_VERSION", "2022")
    if version not in VERSIONS:
        raise NoServerError(f"MSSQL_VERSION is {version!r}; expected {', '.join(VERSIONS)}")
    engine = find_engine()
    with container(engine, IMAGE.format(version)) as (uri, name):
        await_answer(uri, PATIENCE)
        os.environ[CONTAINER] = f"{engine} {name}"
        try:
            yield uri
        finally:
            del os.environ[CONTAINER]


def find_engine() -> str:
    """
    Return docker or podman, whichever answers.

    :raises NoServerError: neither does.
    """
    for engine in ("docker", "podman"):
        if (
            shutil.which(engine)
            and not subprocess.run([engine, "info"], capture_output=True, check=False).returncode
        ):
            return engine
    raise NoServerError(
        f"neither docker nor podman answers; start one, or name a server by {VARIABLE} "
        "(docs/how-to/install-on-sql-server.md)"
    )


@contextmanager
def container(engine: str, image: str) -> Iterator[tuple[str, str]]:
    """
    Run a container with a password of its own, on a free port of 127.0.0.1, and remove it afterwards.

    :return: the URI and the container's name; it keeps its port if it is killed and started again.
    :raises NoServerError: it cannot be started; with the engine's words.
    """
    password = f"Aa1-{secrets.token_urlsafe(16)}"
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    settings = ["ACCEPT_EULA=Y", "MSSQL_SA_PASSWORD", "MSSQL_MEMORY_LIMIT_MB=8192"]
    settings += ["MSSQL_COLLATION"] if "MSSQL_COLLATION" in os.environ else []
    named = [word for setting in settings for word in ("--env", setting)]
    started = subprocess.run(
        [engine, "run", "--detach", *named, "--publish", f"127.0.0.1:{port}:1433", image],
        env={**os.environ, "MSSQL_SA_PASSWORD": password},
        capture_output=True,
        text=True,
        check=False,
    )
    if started.returncode:
        raise NoServerError(f"{engine} cannot run {image}: {started.stderr.strip()}")
    name = started.stdout.split()[-1]
    try:
        yield (
            f"mssql://sa:{quote(password, safe='')}@127.0.0.1:{port}/master?trust_server_certificate=yes",
            name,
        )
    finally:
        subprocess.run([engine, "rm", "--force", "--volumes", name], capture_output=True, check=False)


def kill_server() -> bool:
    """Kill the server that is ours, without a checkpoint, and start it again; False if none is."""
    engine, _, name = os.environ.get(CONTAINER, "").partition(" ")
    for order in ("kill", "start") if name else ():
        subprocess.run([engine, order, name], capture_output=True, check=True)
    return bool(name)


def await_answer(uri: str, seconds: float) -> None:
    """
    Wait until a server answers.

    :raises NoServerError: it did not in time; with the driver's words.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            _ask(uri, "select 1")
        except Exception as error:
            if time.monotonic() > deadline:
                raise NoServerError(f"the server does not answer: {error}") from None
            time.sleep(1)
        else:
            return


def _client(uri: str) -> Client:
    from airflow.sdk import Connection

    from airflow_changefeed.connections.connection import describe_mssql
    from tests.integration.mssql.server import Client

    return Client(
        describe_mssql(Connection.from_uri(uri, conn_id="mssql_under_test")) | {"database": "master"}
    )


def _ask(uri: str, sql: str) -> object:
    with closing(_client(uri)) as client:
        return client.value(sql)


@contextmanager
def database(uri: str) -> Iterator[str]:
    """
    Make a database for the contract suite, which empties the one that it is given, and drop it afterwards.

    :return: the URI with this database in it.
    """
    from tests.integration.mssql.server import drop_database

    name = f"cf_{os.getpid()}"
    _ask(uri, f"create database {name}; select 1")
    try:
        yield urlunsplit(urlsplit(uri)._replace(path=f"/{name}"))
    finally:
        # Another connection: the server may have been killed meanwhile.
        with closing(_client(uri)) as master:
            drop_database(master, name)


def has_browser() -> bool:
    """Whether a browser and its driver are installed."""
    return bool(shutil.which("chromedriver")) and any(map(shutil.which, BROWSERS))


def pytest_command(targets: Sequence[str] = TARGETS) -> list[str]:
    """Return the command that runs all tests of SQL Server but those of ``make soak``."""
    return [sys.executable, "-m", "pytest", "-k", "mssql", "-m", "not nightly", *targets]


def _run(uri: str, arguments: Sequence[str]) -> int:
    version = str(_ask(uri, "select @@version")).split("\n", 1)[0].strip()
    is_babelfish = _ask(uri, "select cast(serverproperty('Babelfish') as int)") == 1
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.unlink(missing_ok=True)
    if not has_browser():
        print("The page in Airflow is not tested: install Debian's packages chromium and chromium-driver")
    targets = (*TARGETS, PAGE) if has_browser() else TARGETS
    command = [*pytest_command(targets), f"--junitxml={REPORT}", *arguments]
    commands = [command]
    if not arguments:
        # Nobody has chosen some tests: then also that they notice breaks of the T-SQL.
        commands.append([sys.executable, "-m", "tests.mutation", "--server"])
    with database(uri) as own:
        environment = {**os.environ, VARIABLE: own}
        statuses = [
            subprocess.run(each, cwd=PROJECT, env=environment, check=False).returncode for each in commands
        ]
    try:
        outcomes = read_report(REPORT)
    except (OSError, SyntaxError) as error:
        print(f"pytest left no report: {error}")
        return 1
    print(f"\n{version}\nWhat ADR 0005 leaves open, and what this run says of it:\n")
    print(table(outcomes, has_locks=not is_babelfish))
    print(f"\n{_counts(outcomes)}")
    return int(any(statuses))


def _counts(outcomes: Sequence[Outcome]) -> str:
    passed, failed, skipped = (
        sum(one.result == result for one in outcomes) for result in ("passed", "failed", "skipped")
    )
    return f"{passed} passed, {failed} failed, {skipped} skipped"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
