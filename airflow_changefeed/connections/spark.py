# SPDX-License-Identifier: Apache-2.0
"""Spark as an export needs it: by spark-submit, or in a session at a Spark Connect server."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_changefeed.connections.connection import find_connection, hide_secrets
from airflow_changefeed.core.values import IN_EXTRA, Fields, flag, read_fields, whole
from airflow_changefeed.exceptions import SparkEnvironmentError, TransientError
from airflow_changefeed.spark.archive import package_archive

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from pyspark.sql import SparkSession


LEAST_JAVA = 17
_CONN_TYPES = ("spark", "spark_connect")
# Flags and numbers in the extra of either.
_EXTRA: Fields = {"rest-port": whole(1, 65_535), "use_ssl": flag}
_PR_SET_PDEATHSIG = 1
_JAVA_SECONDS = 60
_PYSPARKS = ("pyspark", "pyspark-client")
_DRIVER_PYTHON = "spark.pyspark.driver.python"
# The driver of a local job does little in Java, for seconds: its second compiler would use more processor
# time than the rest of the job (measured: 14 instead of 24 s for the least job there is). Goes before what
# anybody else says, so theirs wins; other makes of Java pass over what they do not know.
_JAVA_OPTIONS = "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1"
_INSTALL_JAVA = (
    f"install Java {LEAST_JAVA} or later (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) where the "
    "task runs, and export JAVA_HOME if it is not on PATH"
)


# What Java and Spark write whenever they start, and what nobody can act on.
_STARTS = re.compile(
    r"WARNING: Using incubator modules"
    r"|Using Spark's default log4j profile"
    r"|Setting Spark log level to"
    r"|INFO SparkContext: (Running Spark version|OS info|Java version)"
    r"|WARN Utils: (Your hostname|Set SPARK_LOCAL_IP)"
    r"|WARN NativeCodeLoader: Unable to load native-hadoop library"
)


class ChangefeedSparkSubmitHook(SparkSubmitHook):
    """The provider's hook; its ``spark-submit`` is killed by the system when this process dies."""

    @classmethod
    def of(cls, hook: SparkSubmitHook) -> ChangefeedSparkSubmitHook:
        """Return a hook with another one's state, which only the provider's operator knows."""
        ours = cls.__new__(cls)
        ours.__dict__.update(hook.__dict__)
        return ours

    @property
    def master(self) -> str:
        """Spark's master, as ``spark-submit`` gets it."""
        return str(self._connection["master"])

    @property
    def is_local(self) -> bool:
        """Whether driver and executors run on this machine."""
        return self.master.startswith("local")

    @property
    def is_cluster(self) -> bool:
        """Whether the driver runs elsewhere, in deploy mode cluster."""
        return bool(self._connection["deploy_mode"] == "cluster")

    def check(self, *, driver_elsewhere: bool = False) -> None:
        """
        Check what would otherwise fail late, or silently do something else.

        :param driver_elsewhere: whether the job finds all it needs without this machine.
        :raises SparkEnvironmentError: names what is missing, and the remedy.
        """
        if self.master == "spark://":
            raise SparkEnvironmentError(
                f"Spark connection {self._conn_id!r} has no master: enter the master in the field host, "
                "for example local[*] or spark://host:7077"
            )
        if self.is_cluster and not driver_elsewhere:
            raise SparkEnvironmentError(
                f"Spark connection {self._conn_id!r} has deploy mode cluster, but this job reads files "
                "of the worker: use deploy mode client"
            )
        if self.is_cluster and not self.master.startswith(("yarn", "k8s://")):
            raise SparkEnvironmentError(
                f"Spark connection {self._conn_id!r} has deploy mode cluster. Spark supports it for "
                f"Python jobs only on YARN and Kubernetes, not on {self.master}: use deploy mode client"
            )
        env = {**os.environ, **(self._env_vars or {})}
        binary = str(self._connection["spark_binary"])
        if shutil.which(binary, path=search_path(env)) is None:
            raise SparkEnvironmentError(
                f"{binary} is not on PATH or beside {sys.executable}: install pyspark where the task "
                "runs, or put Spark's bin folder on PATH"
            )
        # spark-submit itself runs here, and in client mode the driver.
        check_java(env)
        check_pyspark(env, binary)

    def _build_spark_submit_command(self, application: str) -> list[str]:
        """Build the provider's command, and set the environment of ``spark-submit``: the one checked."""
        environment = driver_environment(self._env_vars)
        driver = {**os.environ, **environment}.get("PYSPARK_DRIVER_PYTHON")
        if driver and not self.is_local:
            # Else the driver would take spark.pyspark.python, which names a Python of the executors, and
            # goes before all variables.
            self._conf = {_DRIVER_PYTHON: driver, **self._conf}
        command: list[str] = super()._build_spark_submit_command(application)
        # Not by env_vars: on YARN and Kubernetes those become properties for other machines.
        self._env = environment
        return command

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        """Log what ``spark-submit`` prints as the provider does; of its start only at level DEBUG."""
        super()._process_spark_submit_log(line for line in itr if not self._is_start(str(line)))

    def _is_start(self, line: str) -> bool:
        if _STARTS.search(line) is None:
            return False
        self.log.debug(line.strip())
        return True

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run ``spark-submit`` as the provider does; on Linux it dies with this process."""
        try:
            return super().submit(application, **{"preexec_fn": _die_with(os.getpid()), **kwargs})
        finally:
            if self._submit_sp is not None and self._submit_sp.stdout is not None:
                self._submit_sp.stdout.close()  # the provider leaves it to the garbage collector


def spark_connection(conn_id: str) -> Connection:
    """
    Return a Spark connection; where there is none the provider's hook would silently go to YARN.

    :raises SparkEnvironmentError: there is none, it is not one of Spark, or its extra has a value that means
        nothing.
    """
    connection = find_connection(
        conn_id,
        "create the connection (without it Spark's provider would silently use YARN), as JSON because "
        'a URI cannot contain local[*]: {"conn_type": "spark", "host": "local[*]"}',
        SparkEnvironmentError,
    )
    if connection.conn_type not in _CONN_TYPES:
        raise SparkEnvironmentError(
            f"connection {conn_id!r} has type {connection.conn_type!r}; expected "
            f"{' or '.join(_CONN_TYPES)}: spark starts spark-submit, spark_connect uses a Spark Connect "
            "server",
            conn_id=conn_id,
        )
    _, problems = read_fields(connection.extra_dejson, _EXTRA, IN_EXTRA)
    if problems:
        raise SparkEnvironmentError(f"connection {conn_id!r}: {'; '.join(problems)}", conn_id=conn_id)
    return connection


@contextmanager
def kubernetes_named() -> Iterator[None]:
    """
    Name the package that Spark's provider needs for Kubernetes; it only knows that a name is not defined.

    :raises SparkEnvironmentError: it is missing.
    """
    try:
        yield
    except NameError as error:
        if error.name != "kube_client":
            raise
        raise SparkEnvironmentError(
            "Spark on Kubernetes needs Airflow's Kubernetes provider, which is not installed. Run: "
            "pip install apache-airflow-providers-cncf-kubernetes"
        ) from None


def local_environment(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a local job's environment: this Python, and a Java that starts fast; what is given wins."""
    env = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **(given or {})}
    others = env.get("SPARK_SUBMIT_OPTS", os.environ.get("SPARK_SUBMIT_OPTS", ""))
    return {**env, "SPARK_SUBMIT_OPTS": f"{_JAVA_OPTIONS} {others}".strip()}


def driver_environment(given: Mapping[str, Any] | None) -> dict[str, str]:
    """
    Return what ``spark-submit`` gets beside this process's environment: this Python's folder on PATH, and
    this Python for the driver where nothing names one.

    :param given: what the task says.
    """
    env = {name: str(value) for name, value in (given or {}).items()}
    whole = {**os.environ, **env}
    if not (whole.get("PYSPARK_DRIVER_PYTHON") or whole.get("PYSPARK_PYTHON")):
        env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return {**env, "PATH": search_path(whole)}


def search_path(env: Mapping[str, Any]) -> str:
    """Return PATH with this Python's folder at its end, where pip puts ``spark-submit``."""
    return os.pathsep.join(filter(None, [str(env.get("PATH", os.defpath)), str(Path(sys.executable).parent)]))


def check_java(env: Mapping[str, Any]) -> int:
    """Return the major version of Spark's Java; raise SparkEnvironmentError if it is missing, or too old."""
    java = str(Path(env["JAVA_HOME"]) / "bin" / "java") if env.get("JAVA_HOME") else "java"
    found = shutil.which(java, path=env.get("PATH"))
    if found is None:
        raise SparkEnvironmentError(
            f"Spark needs Java, which was not found ({java}): {_INSTALL_JAVA}", java=java
        )
    try:
        done = subprocess.run(
            [found, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkEnvironmentError(f"{found} does not run ({error}): {_INSTALL_JAVA}", java=found) from error
    number = java_version(done.stderr + done.stdout)
    if number < LEAST_JAVA:
        said = f"is version {number}" if number else "does not report its version"
        raise SparkEnvironmentError(
            f"Spark needs Java {LEAST_JAVA} or later, and {found} {said}: {_INSTALL_JAVA}",
            java=found,
            version=number,
        )
    return number


def check_pyspark(env: Mapping[str, Any], binary: str = "spark-submit") -> str | None:
    """
    Check that the distributions that share the folder ``pyspark/`` have one version.

    :param binary: ``spark-submit``; that of another Spark brings its own Python code.
    :return: the version; None where another Spark is used, or pip installed none.
    :raises SparkEnvironmentError: they differ; names both, and the command that mends it.
    """
    found = shutil.which(binary, path=search_path(env))
    if env.get("SPARK_HOME") or (found and Path(found).parent != Path(sys.executable).parent):
        return None
    versions = {name: each for name in _PYSPARKS if (each := _version(name))}
    if len(set(versions.values())) > 1:
        said = " and ".join(f"{name} {each}" for name, each in versions.items())
        # Each version of the client is out as pyspark, too.
        wanted = [f"'{name}=={versions['pyspark-client']}'" for name in _PYSPARKS]
        raise SparkEnvironmentError(
            f"{said} are installed into the same folder, so Spark's Python code does not match its "
            f"jars. Run: {sys.executable} -m pip install --force-reinstall --no-deps {' '.join(wanted)}",
            versions=versions,
        )
    return next(iter(versions.values()), None)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def java_version(text: str) -> int:
    """Read the major version from ``java -version``, 8 for "1.8.0"; 0 if it is missing."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not match:
        return 0
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


@cache
def _prctl() -> Callable[..., int] | None:
    """Find Linux's prctl; loaded before the fork, after which as little as possible may happen."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return None
    return prctl


def _die_with(parent: int) -> Callable[[], None] | None:
    prctl = _prctl()
    if prctl is None:
        return None

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            # The parent died between the fork and the line above; nobody will send the signal any more.
            os._exit(1)

    return before_exec


CONN_TYPE = SparkConnectHook.conn_type
#: Seconds that a server may take to accept the connection. Spark's client alone would try for ten minutes.
ANSWER_SECONDS = 30.0
#: Times that a lost server is asked again, in about a minute; its restart would have lost the session anyway.
#: Spark's client alone would take ten minutes, for each request that is left.
ASKS, MOST_WAIT_MS = 9, 10_000
#: In the errors of a server that would say the same again.
_REFUSALS = ("UNAUTHENTICATED", "PERMISSION_DENIED", "CANNOT_MODIFY", "UNIMPLEMENTED")


def server_url(connection: Connection) -> str:
    """
    Return the URL of a Spark Connect server, which is not asked; may hold a token.

    :raises SparkEnvironmentError: the connection names no host, or has a field that means nothing.
    """
    conn_id = connection.conn_id
    if not connection.host:
        raise SparkEnvironmentError(
            f"Spark Connect connection {conn_id!r} has no host: enter the server's host in the field "
            "host, for example spark.example.com, and its port in the field port",
            conn_id=conn_id,
        )
    try:
        url = SparkConnectHook(conn_id).get_connection_url()
    except ValueError:
        raise SparkEnvironmentError(
            f"the host of Spark Connect connection {conn_id!r} contains a path, or is not a host name: "
            "enter only the server's name, for example spark.example.com",
            conn_id=conn_id,
        ) from None
    if connection.password:
        # The provider's hook leaves "/" as it is, and Spark's client then takes the rest for something else.
        url = url.replace(quote(connection.password), quote(connection.password, safe=""))
    given = connection.extra_dejson.get("use_ssl")
    if given is not None:
        # Spark's client takes every word but "true" for no.
        url = url.replace(
            f"use_ssl={quote(str(given))}", f"use_ssl={str(bool(given) and flag(given)).lower()}"
        )
    return url


@contextmanager
def connect_session(
    connection: Connection, conf: Mapping[str, Any] | None = None, *, is_shared: bool = False
) -> Iterator[SparkSession]:
    """
    Open a session at a Spark Connect server, with this package in it.

    :param connection: of the type ``spark_connect``.
    :param conf: settings of the session.
    :param is_shared: whether tasks of the same connection and settings may have it at the same time, and
        later ones of this hour find it warm: Spark starts a new Python for each session, which takes longer
        than a small export. The server closes it when it has been idle. Otherwise it is the caller's own, and
        released afterwards.
    :raises TransientError: the server does not answer.
    :raises SparkEnvironmentError: it refuses us, or is older than our client.
    """
    from pyspark.errors import PySparkException

    conn_id = connection.conn_id
    hide_secrets({"token": connection.password})
    url = server_url(connection)
    _await_server(url, conn_id)
    try:
        session = _open_shared(url, connection, conf or {}) if is_shared else None
        if session is None:
            session = _open(url, conn_id, conf or {})
    except PySparkException as error:
        text = f"the Spark Connect server of connection {conn_id!r} did not open a session: {error}"
        if not any(word in str(error) for word in _REFUSALS):
            raise TransientError(text) from error
        raise SparkEnvironmentError(
            f"{text}. Check the connection's token and user, and the task's conf", conn_id=conn_id
        ) from error
    try:
        yield session
    finally:
        session.stop()


def _open(url: str, conn_id: str, conf: Mapping[str, Any], *, is_shared: bool = False) -> SparkSession:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session: Any = SparkSession.builder.remote(url).create()
    session.release_session_on_close = not is_shared
    session.client.set_retry_policies([DefaultPolicy(max_retries=ASKS, max_backoff=MOST_WAIT_MS)])
    # The client puts the archive before what is installed here.
    path = sys.path.copy()
    try:
        check_versions(session.version, conn_id)
        for name, value in conf.items():
            session.conf.set(name, str(value))
        session.addArtifact(package_archive(), pyfile=True)
    except BaseException:
        session.stop()
        raise
    finally:
        sys.path[:] = path
    return cast("SparkSession", session)


def _open_shared(url: str, connection: Connection, conf: Mapping[str, Any]) -> SparkSession | None:
    """Return the session of this hour; None if it fails: a server takes no number of a closed one again."""
    from pyspark.errors import PySparkException

    hour = datetime.now(timezone.utc).strftime("%Y%m%dT%H")
    server = (connection.host, connection.port, connection.login)
    # The archive's name holds its digest; where it lies is each worker's own.
    of = json.dumps([server, sorted(conf.items()), Path(package_archive()).name, hour], default=str)
    number = uuid.uuid5(uuid.NAMESPACE_OID, of)
    with suppress(PySparkException):
        return _open(f"{url};session_id={number}", connection.conn_id, conf, is_shared=True)
    return None


def _await_server(url: str, conn_id: str) -> None:
    """Wait until the server accepts a connection, and not for longer."""
    import grpc  # type: ignore[import-untyped] # it has no types
    from pyspark.sql.connect.client import DefaultChannelBuilder

    channel = DefaultChannelBuilder(url).toChannel()
    try:
        grpc.channel_ready_future(channel).result(ANSWER_SECONDS)
    except grpc.FutureTimeoutError:
        raise TransientError(
            f"the Spark Connect server of connection {conn_id!r} does not answer within "
            f"{ANSWER_SECONDS:.0f} s; check that the server runs, and that host, port and use_ssl are "
            "correct"
        ) from None
    finally:
        channel.close()


def check_versions(server: str, conn_id: str) -> None:
    """
    Check that a server knows what our client asks: Spark promises it to older clients, not to newer ones.

    :param server: its version.
    :raises SparkEnvironmentError: its minor version is older than ours, or its major version another one.
    """
    from pyspark import __version__ as client

    ours, theirs = (tuple(map(int, version.split(".")[:2])) for version in (client, server))
    if theirs < ours or theirs[0] != ours[0]:
        raise SparkEnvironmentError(
            f"the Spark Connect server of connection {conn_id!r} is Spark {server}, and PySpark here is "
            f"{client}: a client must not be newer than its server. Install pyspark and pyspark-client "
            f"{'.'.join(server.split('.')[:2])} here, or upgrade the server",
            conn_id=conn_id,
            server=server,
            client=client,
        )
