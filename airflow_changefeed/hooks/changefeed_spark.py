# SPDX-License-Identifier: Apache-2.0
"""
Spark as an export needs it: a connection that means what it says, Java that is new enough, a job that dies
with us.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_changefeed.core.values import IN_EXTRA, Fields, flag, read_fields, whole
from airflow_changefeed.exceptions import SparkEnvironmentError
from airflow_changefeed.hooks.changefeed_connection import find_connection

if TYPE_CHECKING:
    from airflow.sdk import Connection

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
                f"Spark connection {self._conn_id!r} has no master: put one into the field host, for "
                "example local[*] or spark://host:7077"
            )
        if self.is_cluster and not driver_elsewhere:
            raise SparkEnvironmentError(
                f"Spark connection {self._conn_id!r} has deploy mode cluster, but what this job reads lies "
                "on the worker: use deploy mode client"
            )
        if self.is_cluster and not self.master.startswith(("yarn", "k8s://")):
            raise SparkEnvironmentError(
                f"Spark connection {self._conn_id!r} has deploy mode cluster, which Spark has for Python "
                f"jobs on YARN and Kubernetes only, not on {self.master}: use deploy mode client"
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
        "create it, as Spark's provider would silently use YARN instead; as JSON, since a URI cannot say "
        'local[*]: {"conn_type": "spark", "host": "local[*]"}',
        SparkEnvironmentError,
    )
    if connection.conn_type not in _CONN_TYPES:
        raise SparkEnvironmentError(
            f"connection {conn_id!r} has type {connection.conn_type!r}; expected {' or '.join(_CONN_TYPES)}: "
            "the first starts spark-submit, the second uses a Spark Connect server",
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
    """
    Return the environment of a local job: this Python for the driver and the workers, and a Java that starts
    fast.

    :param given: what the task says; it wins.
    """
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
    """
    Check the Java that Spark would take, and return its major version.

    :raises SparkEnvironmentError: Java is missing, or too old.
    """
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
        said = f"is version {number}" if number else "does not say its version"
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
            f"{said} are installed into the same folder, so Spark's Python code does not fit its jars. Run: "
            f"{sys.executable} -m pip install --force-reinstall --no-deps {' '.join(wanted)}",
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
