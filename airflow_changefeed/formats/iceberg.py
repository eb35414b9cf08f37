# SPDX-License-Identifier: Apache-2.0
"""A table of Iceberg, through the package ``pyiceberg``; no Java (docs/adr/0011-commits-by-format.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_changefeed.exceptions import TableConflictError, TableError
from airflow_changefeed.formats.base import (
    ATTEMPT,
    ATTEMPT_MARK,
    EXPORTED,
    FRONTIER_MARK,
    SHARD,
    UNIT,
    PlainFile,
    TableChange,
    TableHome,
    TableState,
    TableUse,
    UnitKey,
    asking,
    check_installed,
)
from airflow_changefeed.formats.storage import check_links
from airflow_changefeed.formats.types import ICEBERG, coarse_times, table_schema, united
from airflow_changefeed.output.layout import ICEBERG_FILES
from airflow_changefeed.storage.errors import secrets_of

if TYPE_CHECKING:
    import pyarrow as pa

_RETRIES = "commit.retry.num-retries"
_METADATA_PATH = "write.metadata.path"
#: The version of a table that has no snapshot.
_NO_SNAPSHOT = 0


class IcebergTable:
    """
    The Iceberg table of an output: in any catalog that ``pyiceberg`` knows.

    :param name: with its namespace, for example ``sales.orders``.
    :param catalog: its ``name``, and pyiceberg's properties of it; those that are missing come from
        pyiceberg's own configuration.
    :param storage_options: for fsspec, as the output has them.
    :param use: what it is for.
    """

    def __init__(
        self,
        store: TableHome,
        name: str,
        catalog: Mapping[str, Any],
        storage_options: Mapping[str, Any] | None = None,
        use: TableUse = EXPORTED,
    ) -> None:
        self._store = store
        self._use = use
        self._name = tuple(name.split("."))
        self._properties = dict(catalog)
        self._catalog_name = str(self._properties.pop("name", "default"))
        private = {name: value for name, value in self._properties.items() if name != "type"}
        self._secrets = (
            *secrets_of(dict(storage_options or {})),
            *secrets_of(private),
            *secrets_of(_inner_secrets(private)),
        )
        self._location = store.files.url(store.layout.data)
        self.what = f"Iceberg table {name} in catalog {self._catalog_name}"
        check_installed("pyiceberg", "iceberg", self.what)
        if len(self._name) < 2 or not all(self._name):
            raise TableError(f"{self.what} needs a namespace; expected a name such as sales.orders")
        self._files: tuple[int, dict[str, Any]] | None = None

    def check(self, schema: pa.Schema, have: pa.Schema | None = None) -> None:
        columns = table_schema(schema, ICEBERG, self._use)
        if have is not None:
            united(have, columns, ICEBERG, self.what, self._use)

    def columns(self) -> pa.Schema | None:
        with self._catalog() as catalog:
            table = self._load(catalog)
            return None if table is None else self._columns(table)

    def look(self) -> TableState:
        """The version is the ID of the table's snapshot."""
        with self._catalog() as catalog:
            table = self._load(catalog)
            if table is None:
                return TableState()
            tasks = {self._path(task.file.file_path): task for task in table.scan().plan_files()}
        version = _version(table)
        self._files = (version, {path: task.file for path, task in tasks.items()})
        if not self._use.partitions:
            plain = tuple(
                PlainFile(path, task.file.record_count, task.file.file_size_in_bytes)
                for path, task in tasks.items()
            )
            return TableState(version, self._columns(table), plain=plain, marks=_marks(table))
        units = (self._unit_file(table, path, task) for path, task in tasks.items())
        return TableState.of(version, self._columns(table), units)

    def commit(self, seen: TableState, change: TableChange) -> None:
        columns = table_schema(change.schema, ICEBERG, self._use)
        files, self._files = self._files, None
        with self._catalog(is_commit=True) as catalog:
            table = self._load(catalog)
            if seen.version is None:
                if table is not None or change.remove:
                    raise self._conflict()
                self._create(catalog, columns, change)
                return
            if table is None or _version(table) != seen.version:
                raise self._conflict()
            known = files[1] if files and files[0] == seen.version else self._data_files(table)
            missing = [path for path in change.remove if path not in known]
            if missing:
                raise self._conflict(f"it no longer has file {missing[0]}, which is to be removed")
            own = self._columns(table)
            wanted = columns
            if not change.replaces_all:
                wanted = united(own, columns, ICEBERG, self.what, self._use)
            # By default pyiceberg would add to a table that somebody else changed meanwhile. Only here: other
            # writers keep the property that the table has.
            table.metadata.properties[_RETRIES] = "0"
            transaction = table.transaction()
            if wanted != own:
                from airflow_changefeed.formats.types import iceberg_schema

                if change.replaces_all:
                    # Also one with another type: the new column of that name has another ID.
                    with transaction.update_schema(allow_incompatible_changes=True) as update:
                        for name in own.names:
                            if name not in wanted.names or wanted.field(name) != own.field(name):
                                update.delete_column(name)
                with transaction.update_schema() as update:
                    update.union_by_name(iceberg_schema(wanted))
            self._snapshot(transaction, change, [known[path] for path in change.remove])
            transaction.commit_transaction()

    def unused(self, older_than: timedelta) -> list[str]:
        """Expire the snapshots that were replaced before then, but for those that branches and tags name."""
        limit = datetime.now(timezone.utc) - older_than
        with self._catalog(is_commit=True) as catalog:
            table = self._load(catalog)
            if table is None:
                return []
            since = int(limit.timestamp() * 1000)
            kept = {reference.snapshot_id for reference in table.metadata.refs.values()}
            # However old it is, it was read until the next one was made.
            then = table.snapshot_as_of_timestamp(since)
            kept |= {then.snapshot_id} if then is not None else set()
            old = [
                each.snapshot_id
                for each in table.metadata.snapshots
                if each.timestamp_ms < since and each.snapshot_id not in kept
            ]
            if old:
                table.maintenance.expire_snapshots().by_ids(old).commit()
                table = self._load(catalog)
            named = self._named(table)
        there = self._store.files.sizes(self._store.layout.data)
        return sorted(
            path
            for path in there
            if path.startswith(self._use.folder) and path.endswith(".parquet") and path not in named
        )

    # ---- reading

    @contextmanager
    def _catalog(self, *, is_commit: bool = False) -> Iterator[Any]:
        """Open the catalog for one call, with the credentials of now; errors of the call are mapped."""
        from pyiceberg import exceptions
        from pyiceberg.catalog import load_catalog

        from airflow_changefeed.formats.iceberg_io import io_properties

        check_links(self._store, ICEBERG_FILES)
        with asking(
            self.what,
            self._secrets,
            conflicts=(
                exceptions.CommitFailedException,
                exceptions.CommitStateUnknownException,
                exceptions.TableAlreadyExistsError,
                exceptions.ValidationException,
            ),
            terminal=(
                exceptions.BadRequestError,
                exceptions.ForbiddenError,
                exceptions.OAuthError,
                exceptions.UnauthorizedError,
                exceptions.ValidationError,
            ),
            is_commit=is_commit,
        ):
            properties = {**self._properties, **io_properties(self._store.files)}
            catalog = load_catalog(self._catalog_name, **properties)
            try:
                yield catalog
            finally:
                catalog.close()

    def _load(self, catalog: Any) -> Any:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
        from pyiceberg.transforms import IdentityTransform

        try:
            table = catalog.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        if _plain(table.location()) != _plain(self._location):
            raise TableError(
                f"{self.what} lies at {table.location()}, and {self._use.maker} writes to "
                f"{self._location}: choose another table",
                table=self.what,
            )
        # Whoever can write to the output can change the file that says so.
        metadata = _plain(table.metadata.properties.get(_METADATA_PATH, self._location))
        if not f"{metadata}/".startswith(f"{_plain(self._location)}/") or ".." in metadata.split("/"):
            raise TableError(
                f"{self.what} has its metadata written to {metadata}, outside {self._location}: "
                f"somebody changed its property {_METADATA_PATH}; set it to "
                f"{self._location}/{ICEBERG_FILES}/metadata",
                table=self.what,
            )
        fields = {field.name: field.transform for field in table.spec().fields}
        if set(fields) != set(self._use.partitions) or not all(
            isinstance(each, IdentityTransform) for each in fields.values()
        ):
            raise TableError(
                f"{self.what} was not created by {self._use.maker}: its partitions are not "
                f"{', '.join(self._use.partitions) or 'none'}. Use another table",
                table=self.what,
            )
        return table

    def _columns(self, table: Any) -> pa.Schema:
        import pyarrow as pa

        schema = table.schema().as_arrow()
        columns = pa.schema([each for each in schema if each.name not in self._use.partitions])
        return table_schema(columns, ICEBERG, self._use)

    def _path(self, path: str) -> str:
        """Return a file's path relative to the table's folder; as it is, if it lies elsewhere."""
        return _plain(path).removeprefix(f"{_plain(self._location)}/")

    def _data_files(self, table: Any) -> dict[str, Any]:
        """Return the files of the newest snapshot, by their paths."""
        return {self._path(task.file.file_path): task.file for task in table.scan().plan_files()}

    def _unit_file(self, table: Any, path: str, task: Any) -> tuple[UnitKey, str, int | None]:
        """Return a file with its unit, by the spec that it was written with, and its rows."""
        file, spec = task.file, table.specs()[task.file.spec_id]
        values = {field.name: file.partition[place] for place, field in enumerate(spec.fields)}
        # Rows that other files delete are not known without reading those.
        rows = None if task.delete_files else file.record_count
        return (str(values[SHARD]), str(values[UNIT]), int(values[ATTEMPT])), path, rows

    def _named(self, table: Any) -> set[str]:
        """Return the files that any snapshot names."""
        manifests = {
            manifest.manifest_path: manifest
            for snapshot in table.metadata.snapshots
            for manifest in snapshot.manifests(table.io)
        }
        return {
            self._path(entry.data_file.file_path)
            for manifest in manifests.values()
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        }

    # ---- writing

    def _create(self, catalog: Any, columns: pa.Schema, change: TableChange) -> None:
        """Create the table with its first snapshot; the catalog lets only one do so."""
        from pyiceberg.exceptions import NamespaceAlreadyExistsError
        from pyiceberg.table.name_mapping import create_mapping_from_schema

        from airflow_changefeed.formats.types import iceberg_schema, partition_spec

        for depth in range(1, len(self._name)):
            if not catalog.namespace_exists(self._name[:depth]):
                try:
                    catalog.create_namespace(self._name[:depth])
                except NamespaceAlreadyExistsError:
                    continue
        schema = iceberg_schema(columns, self._use.partitions, has_uuid_shards=change.has_uuid_shards)
        transaction = catalog.create_table_transaction(
            self._name,
            schema=schema,
            location=self._location,
            partition_spec=partition_spec(schema, self._use.partitions),
            properties={
                "format-version": "2",
                # Otherwise each commit leaves one manifest more, and all are read to look at the table.
                "commit.manifest-merge.enabled": "true",
                # The files have no field IDs.
                "schema.name-mapping.default": create_mapping_from_schema(schema).model_dump_json(),
                # Files that were not written for Iceberg: Spark's vectors take their milliseconds for
                # microseconds.
                **({"read.parquet.vectorization.enabled": "false"} if coarse_times(change.schema) else {}),
                # Readers of plain Parquet skip folders that begin with "_".
                _METADATA_PATH: f"{self._location}/{ICEBERG_FILES}/metadata",
                "write.data.path": f"{self._location}/{ICEBERG_FILES}/data",
            },
        )
        self._snapshot(transaction, change, [])
        transaction.commit_transaction()

    def _snapshot(self, transaction: Any, change: TableChange, removed: list[Any]) -> None:
        """Add a snapshot to a transaction: an append where nothing is removed, as streams read no others."""
        from airflow_changefeed.formats.types import data_file

        said = {**change.note, **{name: str(number) for name, number in change.marks.items()}}
        update = transaction.update_snapshot(snapshot_properties=said)
        metadata = transaction.table_metadata  # each access copies all of it
        with update.overwrite() if removed else update.merge_append() as snapshot:
            for file in change.add:
                snapshot.append_data_file(data_file(file, self._location, metadata))
            for file in removed:
                snapshot.delete_data_file(file)

    def _conflict(self, why: str = "somebody else changed it") -> TableConflictError:
        return TableConflictError(
            f"{self.what} has changed since it was read: {why}; read the table again", table=self.what
        )


def _inner_secrets(properties: Mapping[str, Any]) -> list[str]:
    """Return the secrets that are parts of a catalog's properties: libraries say them alone."""
    found = str(properties.get("credential") or "").partition(":")[2]
    try:
        password = urlsplit(str(properties.get("uri") or "")).password or ""
    except ValueError:
        password = ""
    return [found, password, unquote(password)]


def _version(table: Any) -> int:
    snapshot = table.current_snapshot()
    return _NO_SNAPSHOT if snapshot is None else int(snapshot.snapshot_id)


def _marks(table: Any) -> dict[str, int]:
    """Return the marks of the newest snapshot, or of the one that was only rewritten since; empty if none."""
    from pyiceberg.table.snapshots import Operation

    snapshot = table.current_snapshot()
    while snapshot is not None and snapshot.summary is not None:
        said = snapshot.summary.additional_properties
        if FRONTIER_MARK in said and ATTEMPT_MARK in said:
            return {name: int(said[name]) for name in (FRONTIER_MARK, ATTEMPT_MARK)}
        if snapshot.summary.operation is not Operation.REPLACE or snapshot.parent_snapshot_id is None:
            break
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id)
    return {}


def _plain(url: str) -> str:
    """Return a URL in one spelling: without the scheme of local files, and with one scheme for S3."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        return (rest or url.removeprefix("file:")).rstrip("/")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}".rstrip("/")
