# SPDX-License-Identifier: Apache-2.0
"""Opens a table by the name of its format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.tables.base import EXPORTED, LakeTable, TableHome, TableUse
from airflow_changefeed.tables.delta import DeltaLakeTable
from airflow_changefeed.tables.iceberg import IcebergTable

#: Formats of tables.
FORMATS = ("delta", "iceberg")


def open_table(
    format: str,
    store: TableHome,
    storage_options: Mapping[str, Any] | None = None,
    *,
    table: str | None = None,
    catalog: Mapping[str, Any] | None = None,
    use: TableUse = EXPORTED,
) -> LakeTable:
    """
    Open the table of an output, which may not exist yet; asks nobody.

    :param format: one of :data:`FORMATS`.
    :param storage_options: for fsspec, as the output has them.
    :param table: name with namespace of a table of Iceberg; a Delta table is found by its path.
    :param catalog: of a table of Iceberg: its ``name``, and pyiceberg's properties of it.
    :param use: what it is for.
    :raises InvalidArgumentError: names everything that is wrong.
    :raises TableError: the format's package is not installed, or cannot use this output.
    """
    problems = []
    if format not in FORMATS:
        problems.append(f"format is {format!r}; expected {' or '.join(map(repr, FORMATS))}")
    if format == "iceberg" and (not table or "." not in table.strip(".")):
        problems.append(f"table is {table!r}; expected a name with its namespace, such as 'sales.orders'")
    if format == "iceberg" and not (catalog or {}).get("name"):
        problems.append("catalog has no name; expected for example {'name': 'default'}")
    if format == "delta" and (table or catalog):
        problems.append("table and catalog are only for format 'iceberg'; a Delta table is found by its path")
    InvalidArgumentError.collect(f"table of feed {store.feed!r}", problems)
    if format == "delta":
        return DeltaLakeTable(store, storage_options, use)
    return IcebergTable(store, table or "", catalog or {}, storage_options, use)
