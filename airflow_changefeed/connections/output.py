# SPDX-License-Identifier: Apache-2.0
"""From Airflow's connections to an output's options, and to the table that has an export's files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_changefeed.connections.connection import find_connection, hide_secrets
from airflow_changefeed.core.export_plan import CATALOG_FORMATS, PARQUET
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.values import IN_EXTRA, Fields, flag, read_fields
from airflow_changefeed.exceptions import ConnectionNotUsableError
from airflow_changefeed.sources import SOURCES
from airflow_changefeed.storage.cloud import read_options, unusable
from airflow_changefeed.storage.files import CLOUDS

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_changefeed.core.export_plan import ExportOptions
    from airflow_changefeed.formats.base import LakeTable, TableHome, TableUse
    from airflow_changefeed.lake.current import CurrentOutput, CurrentVersion
    from airflow_changefeed.output.claims import Claim
    from airflow_changefeed.output.store import ExportStore


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
        f"create one that opens {path} (type aws, wasb, adls or google_cloud_platform, or generic with "
        "fsspec's storage options as its extra), or omit path_conn_id",
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
        raise unusable(
            connection,
            "it is the connection of a feeds' database: pass it as --conn-id or changefeed_conn_id",
        )
    cloud = CLOUDS.get(connection.conn_type or "")
    if cloud is None:
        # Of every other type the extra is for fsspec.
        return read_options(connection, _FIELDS.get(scheme, {}))
    if scheme not in cloud.schemes:
        raise unusable(
            connection,
            f"it opens {', '.join(f'{each}://' for each in cloud.schemes)}, and the output's path "
            f"begins with {scheme}://; name a connection for that storage, or omit path_conn_id",
        )
    return cloud.fsspec(connection, path)


def lake_table(
    store: TableHome,
    options: ExportOptions | Claim,
    storage_options: Mapping[str, Any],
    catalog_conn_id: str | None,
    use: TableUse | None = None,
) -> LakeTable | None:
    """
    Return the table of an output; None where it has none.

    :param options: what says the format; the claim of an output has it, too.
    :param storage_options: of the output.
    :param catalog_conn_id: Airflow connection of an Iceberg table's catalog, see :func:`catalog_properties`.
    :param use: what it is for; None for an export's.
    :raises ConnectionNotUsableError: the format's library is missing, or the connection.
    """
    if options.table_format == PARQUET:
        return None
    from airflow_changefeed.formats.base import EXPORTED
    from airflow_changefeed.formats.publish import open_table

    return open_table(
        options.table_format,
        store,
        storage_options,
        table=options.catalog_table or None,
        catalog=catalog_properties(catalog_conn_id) if options.catalog_table else None,
        use=use or EXPORTED,
    )


def table_of_export(
    store: ExportStore,
    storage_options: Mapping[str, Any],
    catalog_conn_id: str | None,
    options: ExportOptions | Claim | None = None,
) -> LakeTable:
    """
    Return the table of an export that has one.

    :param options: what says the format; None for the claim of the output.
    :raises OutputError: it was exported as plain Parquet.
    """
    from airflow_changefeed.exceptions import OutputError

    table = lake_table(store, options or store.claimed(), storage_options, catalog_conn_id)
    if table is None:
        raise OutputError(
            f"{store.layout.data} has no table, because the feed was exported as Parquet. Make a table: "
            f"{shell('output publish', '--feed', store.feed, '--path', store.path, '--table-format', '...')}",
            path=store.path,
        )
    return table


def table_to_verify(
    path: str, feed: str, storage_options: Mapping[str, Any], catalog_conn_id: str | None
) -> LakeTable | None:
    """
    Return the table with which an export can be compared; None where it has none.

    One in a catalog only where that is named: who verifies may have no access to it.
    """
    from airflow_changefeed.output.store import ExportStore

    store = ExportStore(path, feed, storage_options)
    if not store.is_table:
        return None
    claim = store.claimed()
    if claim.table_format in CATALOG_FORMATS and catalog_conn_id is None:
        return None
    return lake_table(store, claim, storage_options, catalog_conn_id)


def current_version(
    output: CurrentOutput, storage_options: Mapping[str, Any] | None, catalog_conn_id: str | None
) -> CurrentVersion:
    """Return the version that an output's current table has now; raise TableError if it cannot be used."""
    from airflow_changefeed.exceptions import TableError
    from airflow_changefeed.formats.base import CURRENT
    from airflow_changefeed.lake.merge import newest_version
    from airflow_changefeed.output import claims

    claim = claims.read(output.files, output.layout)
    options = storage_options or {}
    table = lake_table(output, claim, options, catalog_conn_id, CURRENT) if claim else None
    if table is None:
        raise TableError(
            f"{output.path} is not a current table of Delta Lake or Iceberg: make one with "
            "ChangefeedMergeOperator, or compare with another base",
            table=output.table,
        )
    return newest_version(output, table)


def catalog_properties(conn_id: str | None) -> dict[str, Any]:
    """
    Return the properties with which pyiceberg opens a catalog; may hold secrets.

    :param conn_id: Airflow connection of type ``iceberg`` (a REST catalog: host, client id and secret), or of
        any other with pyiceberg's properties as its extra, for example ``{"type": "glue"}``. None takes what
        pyiceberg's own configuration says of the catalog ``default``.
    :raises ConnectionNotUsableError: no such connection, or a field of its extra means nothing.
    """
    if conn_id is None:
        return {"name": "default"}
    connection = find_connection(
        conn_id,
        "create one that opens the Iceberg catalog (type iceberg, or generic with pyiceberg's "
        "properties as its extra), or omit catalog_conn_id and configure pyiceberg on the worker",
    )
    # pyiceberg reads flags and numbers from texts, and these two only as objects.
    extra, problems = read_fields(connection.extra_dejson, {"auth": {}, "ssl": {}}, IN_EXTRA)
    if problems:
        raise ConnectionNotUsableError(f"connection {conn_id!r}: {'; '.join(problems)}", conn_id=conn_id)
    properties: dict[str, Any] = {
        "name": conn_id,
        **{
            name: json.dumps(value) if isinstance(value, (bool, int, float)) else value
            for name, value in extra.items()
        },
    }
    if connection.host:
        properties.setdefault("uri", connection.host)
    if connection.login and connection.password:
        properties.setdefault("credential", f"{connection.login}:{connection.password}")
    hide_secrets(properties)
    return properties
