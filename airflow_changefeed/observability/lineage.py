# SPDX-License-Identifier: Apache-2.0
"""
What tasks read and write, for OpenLineage: names of datasets, and the methods that its provider calls.

Nothing here needs the provider. Names hold hosts, databases, tables and paths; never a login, an option or a
query of a URL. Datasets follow https://openlineage.io/docs/spec/naming.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.output.layout import Layout
from airflow_changefeed.sources.base import RESERVED_PREFIX
from airflow_changefeed.storage.azure import SCHEMES as AZURE_SCHEMES

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    _Base = BaseOperator
else:
    _Base = object

_PROVIDER = "airflow.providers.openlineage"
_FILE = "file"
#: Schemes that OpenLineage names otherwise.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


@dataclass(frozen=True)
class Dataset:
    """
    A dataset of OpenLineage.

    :param columns: name to type; empty if they are not known.
    :param catalog_table: other name of an Iceberg table, ``namespace.table``.
    """

    namespace: str
    name: str
    columns: Mapping[str, str] = field(default_factory=dict)
    catalog_table: str = ""


@dataclass(frozen=True)
class Lineage:
    """
    What a task reads and writes.

    :param copied_from: of the inputs, the one whose columns the outputs have unchanged, under the same names.
    :param rows, size, files: of the outputs, as they are written: rows, bytes, number of files.
    :param window: of :class:`~airflow_changefeed.observability.openlineage_facet.ChangefeedWindowRunFacet`.
    """

    inputs: tuple[Dataset, ...]
    outputs: tuple[Dataset, ...] = ()
    copied_from: Dataset | None = None
    rows: int | None = None
    size: int | None = None
    files: int | None = None
    window: Mapping[str, Any] = field(default_factory=dict)


def table_dataset(description: Mapping[str, Any], table: str) -> Dataset:
    """
    Return the dataset of a feed or a table in a database.

    :param description: of the source, as :meth:`ChangefeedHook.describe` gives it.
    :param table: name of the feed, which is its table's or its capture's, or of a captured table.
    """
    if description["type"] == "sqlite":
        return Dataset(f"sqlite:{description['path']}", table)
    port = f":{description['port']}" if description["port"] else ""
    return Dataset(f"mssql://{description['host']}{port}", f"{description['database']}.{table}")


def connection_dataset(conn_id: str, table: str) -> Dataset:
    """Return the dataset of a feed or a table in the database of an Airflow connection."""
    return table_dataset(ChangefeedHook(conn_id).describe(), table)


def output_dataset(
    path: str, feed: str, columns: Mapping[str, str] | None = None, catalog_table: str = ""
) -> Dataset:
    """
    Return the dataset of the folder of an export, or of a table's states and snapshots.

    :param path: root of the output, a local path or an fsspec URL.
    :param feed: the feed, or the captured table.
    """
    if "://" not in path:
        folder = os.path.abspath(os.path.expanduser(path))
        return Dataset(_FILE, Layout(folder, feed).data, columns or {}, catalog_table)
    # Without its query, which may be a signature.
    parts = urlsplit(path)
    scheme = _SCHEMES.get(parts.scheme, parts.scheme)
    folder = Layout(parts.path.rstrip("/"), feed).data
    if scheme in (_FILE, "local"):
        return Dataset(_FILE, folder, columns or {}, catalog_table)
    user, _, host = parts.netloc.rpartition("@")
    # On Azure it is the container, elsewhere a login.
    if user and scheme in AZURE_SCHEMES and ":" not in user:
        host = f"{user}@{host}"
    return Dataset(f"{scheme}://{host}", folder.lstrip("/"), columns or {}, catalog_table)


def columns_of(schema: str) -> dict[str, str]:
    """Return columns and their types from a schema as documents in an output have it."""
    from airflow_changefeed.output.schemas import parse_schema

    return {column.name: str(column.type) for column in parse_schema(schema, named="the output's schema")}


class ReportsLineage(_Base):
    """A task that reports to OpenLineage what it reads and writes, if Airflow has that provider."""

    _lineage: Lineage | None = None

    def planned_lineage(self) -> Lineage | None:
        """Return what is known from the task's arguments alone; reads no database and no output."""
        return None

    def keep_lineage(self, make: Callable[[], Lineage]) -> None:
        """
        Keep what the run has read and written, for the provider, which asks later in a fork of this process:
        clients of databases and object stores do not work there.

        Without the provider nothing is computed. A failure is logged, and changes nothing else.
        """
        try:
            if find_spec(_PROVIDER) is not None:
                self._lineage = make()
        except Exception as error:
            # Its text may be about a connection.
            self.log.warning("No lineage of this run for OpenLineage: %s", type(error).__name__)

    def get_openlineage_facets_on_start(self) -> Any:
        """Return what the task will read and write, as far as its arguments say so."""
        return self._facets(self.planned_lineage)

    def get_openlineage_facets_on_complete(self, task_instance: object) -> Any:
        """Return what the run has read and written, or was to read and write."""
        return self._facets(lambda: self._lineage or self.planned_lineage())

    get_openlineage_facets_on_failure = get_openlineage_facets_on_complete

    def _facets(self, find: Callable[[], Lineage | None]) -> Any:
        try:
            found = find()
            return None if found is None else operator_lineage(found)
        except Exception as error:
            self.log.warning("No lineage for OpenLineage: %s", type(error).__name__)
            return None


def operator_lineage(lineage: Lineage) -> Any:
    """Return lineage as the OpenLineage provider wants it: an ``OperatorLineage``."""
    from airflow.providers.common.compat.openlineage.facet import (
        InputDataset,
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage

    from airflow_changefeed.observability.openlineage_facet import KEY, ChangefeedWindowRunFacet

    known = {"rowCount": lineage.rows, "size": lineage.size, "fileCount": lineage.files}
    # Older clients do not count files.
    given = {name: value for name, value in known.items() if value is not None}
    statistics = {"outputStatistics": OutputStatisticsOutputDatasetFacet(**given)} if given else {}
    return OperatorLineage(
        inputs=[
            InputDataset(namespace=each.namespace, name=each.name, facets=_dataset_facets(each))
            for each in lineage.inputs
        ],
        outputs=[
            OutputDataset(
                namespace=each.namespace,
                name=each.name,
                facets=_dataset_facets(each, lineage.copied_from),
                outputFacets=statistics,
            )
            for each in lineage.outputs
        ],
        run_facets={KEY: ChangefeedWindowRunFacet(**lineage.window)} if lineage.window else {},
    )


def _dataset_facets(dataset: Dataset, copied_from: Dataset | None = None) -> dict[str, Any]:
    from airflow.providers.common.compat.openlineage.facet import (
        ColumnLineageDatasetFacet,
        Fields,
        Identifier,
        InputField,
        SchemaDatasetFacet,
        SchemaDatasetFacetFields,
        SymlinksDatasetFacet,
    )

    facets: dict[str, Any] = {}
    if dataset.columns:
        columns = [SchemaDatasetFacetFields(name=name, type=kind) for name, kind in dataset.columns.items()]
        facets["schema"] = SchemaDatasetFacet(fields=columns)
    copied = [name for name in dataset.columns if not name.startswith(RESERVED_PREFIX)]
    if copied_from is not None and copied:
        fields = {}
        for name in copied:
            origin = InputField(namespace=copied_from.namespace, name=copied_from.name, field=name)
            fields[name] = Fields(
                inputFields=[origin], transformationType="IDENTITY", transformationDescription="copied"
            )
        facets["columnLineage"] = ColumnLineageDatasetFacet(fields=fields)
    if dataset.catalog_table:
        other = Identifier(namespace=dataset.namespace, name=dataset.catalog_table, type="TABLE")
        facets["symlinks"] = SymlinksDatasetFacet(identifiers=[other])
    return facets
