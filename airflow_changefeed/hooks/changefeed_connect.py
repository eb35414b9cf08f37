# SPDX-License-Identifier: Apache-2.0
"""A session at a Spark Connect server: no Java here, no start of Spark, the job runs in the Airflow task."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

from airflow_changefeed.core.values import flag
from airflow_changefeed.exceptions import SparkEnvironmentError, TransientError
from airflow_changefeed.hooks.changefeed_secrets import hide_secrets
from airflow_changefeed.spark.archive import package_archive

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from pyspark.sql import SparkSession

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
            f"Spark Connect connection {conn_id!r} has no host: put the server's into the field "
            "host, for example spark.example.com, and its port into the field port",
            conn_id=conn_id,
        )
    try:
        url = SparkConnectHook(conn_id).get_connection_url()
    except ValueError:
        raise SparkEnvironmentError(
            f"the host of Spark Connect connection {conn_id!r} has a path, or is not a URL: give the name of "
            "the server alone, for example spark.example.com",
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
        later ones of this hour find it warm: Spark starts Python anew for each session, which takes longer
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
        text = f"the Spark Connect server of connection {conn_id!r} gives no session: {error}"
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
    """
    Return the session of this hour.

    :return: None where that fails: the server never takes the number of a session again that it has closed.
    """
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
            f"{ANSWER_SECONDS:.0f} s; check that it runs, and that host, port and use_ssl are right"
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
