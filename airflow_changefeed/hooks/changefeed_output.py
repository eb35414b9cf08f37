# SPDX-License-Identifier: Apache-2.0
"""From an Airflow connection to the options with which fsspec opens an output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.values import Fields, flag
from airflow_changefeed.hooks.changefeed_connection import find_connection
from airflow_changefeed.hooks.changefeed_secrets import hide_secrets
from airflow_changefeed.sources import SOURCES
from airflow_changefeed.storage.clouds.cloud import read_options, unusable
from airflow_changefeed.storage.credentials import CLOUDS

if TYPE_CHECKING:
    from airflow.sdk import Connection

_SECRET_PARTS = ("AccountKey=", "SharedAccessSignature=")
#: Of file systems of fsspec, by scheme.
_FIELDS: dict[str, Fields] = {
    **{scheme: cloud.fields for cloud in CLOUDS.values() for scheme in cloud.schemes},
    "file": {"auto_mkdir": flag},
}


def storage_options(path: str, path_conn_id: str | None) -> dict[str, Any]:
    """
    Return fsspec's storage options of an output, as JSON values; may hold secrets.

    :param path: the output.
    :param path_conn_id: Airflow connection that holds them; None for none.
    :raises ConnectionNotUsableError: no such connection, or one that does not fit the path.
    """
    if path_conn_id is None:
        return {}
    connection = find_connection(
        path_conn_id,
        f"create it with what opens {path} (type aws, wasb, adls or google_cloud_platform, or generic with "
        "fsspec's storage options as its extra), or leave out path_conn_id",
    )
    hide_secrets(connection.extra_dejson)
    options = _translated(connection, path)
    # Also what stands in other fields, and may be written into a URL.
    hide_secrets(options)
    parts = str(options.get("connection_string", "")).split(";")
    hide_secrets({"keys": [part.partition("=")[2] for part in parts if part.startswith(_SECRET_PARTS)]})
    return options


def publish_program(program_path: str, conn_id: str | None) -> tuple[str, str]:
    """
    Put the job's program where a driver elsewhere finds it, or see that it is there unchanged.

    :param conn_id: Airflow connection of the path.
    :return: the URIs of the job's file and of the package's archive.
    """
    from airflow_changefeed.output.store import ExportStore
    from airflow_changefeed.spark.archive import store_program

    return store_program(ExportStore(program_path, "", storage_options(program_path, conn_id)))


def _translated(connection: Connection, path: str) -> dict[str, Any]:
    scheme = path.partition("://")[0] if "://" in path else "file"
    if connection.conn_type in SOURCES:
        raise unusable(connection, "it is a feeds' database: give it as --conn-id or changefeed_conn_id")
    cloud = CLOUDS.get(connection.conn_type or "")
    if cloud is None:
        # Of every other type the extra is for fsspec.
        return read_options(connection, _FIELDS.get(scheme, {}))
    if scheme not in cloud.schemes:
        raise unusable(
            connection,
            f"it opens {', '.join(f'{each}://' for each in cloud.schemes)}, and the output's path begins "
            f"with {scheme}://; name a connection for that, or leave out path_conn_id",
        )
    return cloud.fsspec(connection, path)
