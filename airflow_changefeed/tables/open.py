# SPDX-License-Identifier: Apache-2.0
"""Opens a table by the name of its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_changefeed.core.plan import CATALOG_FORMATS, DELTA, ICEBERG
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.tables.base import EXPORTED, LakeTable, TableHome, TableUse
from airflow_changefeed.tables.delta import DeltaLakeTable
from airflow_changefeed.tables.iceberg import IcebergTable

#: Formats of tables, and what opens each: of the arguments of :func:`open_table` those that it needs.
_OPENERS: Mapping[str, Callable[..., LakeTable]] = {
    DELTA: lambda store, options, use, table, catalog: DeltaLakeTable(store, options, use),
    ICEBERG: lambda store, options, use, table, catalog: IcebergTable(store, table, catalog, options, use),
}
FORMATS = tuple(_OPENERS)
#: Those that also hold current tables: files without partitions, marks, and a commit that replaces all.
CURRENT_FORMATS = (DELTA, ICEBERG)


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

    :param format: one of :data:`FORMATS`; for a current table, one of :data:`CURRENT_FORMATS`.
    :param storage_options: for fsspec, as the output has them.
    :param table: name with namespace, for formats in ``CATALOG_FORMATS``; other tables are found by their
        path.
    :param catalog: of such a table: its ``name``, and pyiceberg's properties of it.
    :param use: what it is for.
    :raises InvalidArgumentError: names everything that is wrong.
    :raises TableError: the format's package is not installed, or cannot use this output.
    """
    problems = []
    known = FORMATS if use.partitions else CURRENT_FORMATS
    if format not in known:
        problems.append(f"format is {format!r}; expected {' or '.join(map(repr, known))}")
    has_catalog = format in CATALOG_FORMATS
    if has_catalog and (not table or "." not in table.strip(".")):
        problems.append(f"table is {table!r}; expected a name with its namespace, such as 'sales.orders'")
    if has_catalog and not (catalog or {}).get("name"):
        problems.append("catalog has no name; expected for example {'name': 'default'}")
    if format in known and not has_catalog and (table or catalog):
        names = " or ".join(map(repr, CATALOG_FORMATS))
        problems.append(f"table and catalog are only for format {names}; a table of {format} has a path")
    InvalidArgumentError.collect(f"table of feed {store.feed!r}", problems)
    return _OPENERS[format](store, storage_options, use, table or "", catalog or {})
