# SPDX-License-Identifier: Apache-2.0
"""A table of Delta Lake, through the package ``deltalake``; no Java (docs/adr/0011-commits-by-format.md)."""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_changefeed.core.feed import shard_text
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
    TableFile,
    TableHome,
    TableState,
    TableUse,
    asking,
    check_installed,
)
from airflow_changefeed.formats.storage import (
    check_conditional_put,
    check_links,
    object_store_options,
    table_url,
)
from airflow_changefeed.formats.types import DELTA, table_schema, united, with_partitions
from airflow_changefeed.output.layout import DELTA_LOG
from airflow_changefeed.sources.base import TIME_COLUMN, ULID_COLUMN
from airflow_changefeed.storage.errors import secrets_of
from airflow_changefeed.storage.files import Files

if TYPE_CHECKING:
    import pyarrow as pa


_HOUR = 3600
_SECONDS = {"second": 1, "minute": 60, "hour": _HOUR, "day": 24 * _HOUR, "week": 7 * 24 * _HOUR}
_DURATION = re.compile(rf"(\d+) *({'|'.join(_SECONDS)})s?\b", re.IGNORECASE)
#: For so long checkpoints name removed files.
_REMOVALS = "delta.deletedFileRetentionDuration"
#: Hours for which a log has what an old version needs, by Delta Lake's properties, where they are not set.
_HOURS = {_REMOVALS: 7 * 24, "delta.logRetentionDuration": 30 * 24}
#: Our own property: milliseconds from when on each removal is in the log. Without it, as far back as it says.
_TOLD_SINCE = "changefeed.removalsSince"


def has_other_rows(files: Files, table: str, version: int, attempt: int) -> bool:
    """
    Whether somebody has changed rows of a current table since a merge, and not restored its files.

    Delta's log says of each file that a commit adds or removes whether rows change by that: not by OPTIMIZE.
    False as well where the log does not tell, as it was cleaned up: it is kept for 30 days.

    :param files: where the table lies, as older versions need not be readable.
    :param version: the newest.
    :param attempt: of the merge, which its commit names.
    """
    # Of all files, and of those by which rows change: no rows have changed if one of them has nothing left.
    files_left: Counter[str] = Counter()
    rows_left: Counter[str] = Counter()
    while version >= 0 and (content := files.read(f"{table}/_delta_log/{version:020}.json")) is not None:
        actions = [json.loads(line) for line in content.splitlines()]
        marks = (action["txn"] for action in actions if "txn" in action)
        if any((mark["appId"], mark["version"]) == (ATTEMPT_MARK, attempt) for mark in marks):
            break
        for kind, sign in (("add", 1), ("remove", -1)):
            for file in (action[kind] for action in actions if kind in action):
                files_left[file["path"]] += sign
                rows_left[file["path"]] += sign * file.get("dataChange", True)
        version -= 1
    return any(files_left.values()) and any(rows_left.values())


def kept_longer(configuration: Mapping[str, str], hours: int, now: float) -> dict[str, str]:
    """Return the properties that a log lacks to tell of the last hours; ``now`` is in seconds."""
    short = [name for name, usual in _HOURS.items() if _hours(configuration, name, usual) < hours]
    new = dict.fromkeys(short, f"interval {hours} hours")
    if _REMOVALS in new:
        told = now - _HOUR * _hours(configuration, _REMOVALS, _HOURS[_REMOVALS])
        new[_TOLD_SINCE] = str(max(int(1000 * told), int(configuration.get(_TOLD_SINCE, 0))))
    return new


def is_told(configuration: Mapping[str, str], since: float) -> bool:
    """Whether each removal since a time, in seconds, is in the log."""
    return int(configuration.get(_TOLD_SINCE, 0)) <= 1000 * since


def _hours(configuration: Mapping[str, str], name: str, usual: float) -> float:
    """Return a duration: ``interval 1 week``, ``interval 720 hours``, also of several parts."""
    if name not in configuration:
        return usual
    return (
        sum(int(number) * _SECONDS[unit.lower()] for number, unit in _DURATION.findall(configuration[name]))
        / _HOUR
    )


#: Whose commits a table counts; the count survives the log's clean-up.
_APPLICATION = "changefeed"


class _File(NamedTuple):
    """A file of a table: its partition, and how many rows it has; None where that is not said."""

    size: int
    rows: int | None
    values: Mapping[str, Any]


class DeltaLakeTable:
    """The Delta table in the data folder of an output; ``storage_options`` are for fsspec."""

    def __init__(
        self,
        store: TableHome,
        storage_options: Mapping[str, Any] | None = None,
        use: TableUse = EXPORTED,
    ) -> None:
        self._store = store
        self._use = use
        self._options = dict(storage_options or {})
        self._secrets = tuple(secrets_of(self._options))
        self.what = f"Delta table {store.files.url(store.layout.data)}"
        check_installed("deltalake", "delta", self.what)
        self._url = table_url(store.files, store.layout.data, self.what)

    def check(self, schema: pa.Schema, have: pa.Schema | None = None) -> None:
        columns = table_schema(schema, DELTA, self._use)
        if have is not None:
            united(have, columns, DELTA, self.what, self._use)

    def columns(self) -> pa.Schema | None:
        table = self._load()
        return None if table is None else self._columns(table)

    def look(self) -> TableState:
        table = self._load()
        if table is None:
            return TableState()
        found = self._files(table)
        if not self._use.partitions:
            plain = tuple(PlainFile(path, each.rows or 0, each.size) for path, each in found.items())
            return TableState(table.version(), self._columns(table), plain=plain, marks=self._marks(table))
        files = (
            ((str(each.values[SHARD]), each.values[UNIT], int(each.values[ATTEMPT])), path, each.rows)
            for path, each in found.items()
        )
        return TableState.of(table.version(), self._columns(table), files)

    def commit(self, seen: TableState, change: TableChange) -> None:
        """New columns are a commit of their own before it: ``deltalake`` adds none together with files."""
        from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError

        columns = table_schema(change.schema, DELTA, self._use)
        if seen.version is None:
            self._create(columns, change)
            return
        # Loaded again for the keys of now: what was seen may be as old as a job is long.
        table = self._load()
        if table is None:
            raise TableConflictError(
                f"{self.what} was removed after it was read; read the table again", table=self.what
            )
        if table.version() != seen.version:
            raise TableConflictError(
                f"{self.what} was changed by somebody else after it was read; read the table again",
                table=self.what,
            )
        own = self._columns(table)
        wanted = columns if change.replaces_all else united(own, columns, DELTA, self.what, self._use)
        removed = self._removed(table, change.remove)
        with asking(
            self.what,
            self._secrets,
            conflicts=(CommitFailedError,),
            terminal=(DeltaProtocolError, DeltaError),
            is_commit=True,
        ):
            number = (table.transaction_version(_APPLICATION) or 0) + 1
            if wanted != own and not change.replaces_all:
                table.alter.add_columns(
                    self._new_fields(table, wanted),
                    commit_properties=_properties({"changefeed": "new columns"}),
                    post_commithook_properties=_hooks(),
                )
            # "overwrite" removes all files by itself, and takes another schema.
            table.create_write_transaction(
                [
                    *(_add(file, change.schema) for file in change.add),
                    *(() if change.replaces_all else removed),
                ],
                mode="overwrite" if change.replaces_all else "append",
                schema=self._schema(columns, has_uuid_shards=change.has_uuid_shards)
                if change.replaces_all
                else table.schema(),
                partition_by=list(self._use.partitions),
                commit_properties=_properties(change.note, {_APPLICATION: number, **change.marks}),
                post_commithook_properties=_hooks(),
            )

    def unused(self, older_than: timedelta) -> list[str]:
        """
        An older version stays in the log, but the caller may delete its files. If the log does not tell of so
        many hours, a commit lets it tell of them from then on. Until it does, no file is named, as each may
        be of a version that is kept.

        :param older_than: a part of an hour counts as a whole one.
        :raises TableConflictError: somebody else has committed at the same moment.
        """
        table = self._load()
        if table is None:
            return []
        hours = math.ceil(older_than / timedelta(hours=1))
        if not is_told(self._tell_of(table, hours), time.time() - 3600 * hours):
            return []
        with asking(self.what, self._secrets):
            # Of a file that several versions removed, it names each.
            found = table.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        return sorted(
            {path for path in found if path.startswith(self._use.folder) and path.endswith(".parquet")}
        )

    def _tell_of(self, table: Any, hours: int) -> dict[str, str]:
        """Let the log tell of the last hours from now on; return the table's properties then."""
        from deltalake.exceptions import CommitFailedError

        configuration = dict(table.metadata().configuration)
        longer = kept_longer(configuration, hours, time.time())
        if longer:
            with asking(self.what, self._secrets, conflicts=(CommitFailedError,), is_commit=True):
                table.alter.set_table_properties(
                    longer,
                    raise_if_not_exists=False,
                    commit_properties=_properties({"changefeed": f"versions are kept for {hours} hours"}),
                    post_commithook_properties=_hooks(),
                )
        return configuration | longer

    # ---- reading

    def _storage_options(self) -> dict[str, str]:
        return object_store_options(self._url, self._options)

    def _load(self) -> Any:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        check_links(self._store, DELTA_LOG)
        with asking(self.what, self._secrets, terminal=(DeltaError,)):
            try:
                table = DeltaTable(self._url, storage_options=self._storage_options())
            except TableNotFoundError:
                return None
            if tuple(table.metadata().partition_columns) != self._use.partitions:
                raise TableError(
                    f"{self.what} was not created by {self._use.maker}: its partitions are not "
                    f"{', '.join(self._use.partitions) or 'none'}. Use another path",
                    table=self.what,
                )
            if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
                raise TableError(
                    f"{self.what} has delta.columnMapping.mode set, so the columns of its files have "
                    "other names than the table's; create a new table without that property",
                    table=self.what,
                )
            if "deletionVectors" in (table.protocol().reader_features or ()):
                raise TableError(
                    f"{self.what} has deletion vectors, which can hide rows of the export's files; "
                    "create a new table from the export, without delta.enableDeletionVectors",
                    table=self.what,
                )
        return table

    def _marks(self, table: Any) -> dict[str, int]:
        """Return the marks of the newest merge; none if others have changed rows since, who leave them."""
        versions = {name: table.transaction_version(name) for name in (FRONTIER_MARK, ATTEMPT_MARK)}
        marks = {name: version for name, version in versions.items() if version is not None}
        if ATTEMPT_MARK in marks:
            with asking(self.what, self._secrets):
                files, folder = self._store.files, self._store.layout.data
                if has_other_rows(files, folder, table.version(), marks[ATTEMPT_MARK]):
                    return {}
        return marks

    def _columns(self, table: Any) -> pa.Schema:
        import pyarrow as pa

        schema = pa.schema(table.schema().to_arrow())
        columns = pa.schema([each for each in schema if each.name not in self._use.partitions])
        return table_schema(columns, DELTA, self._use)

    def _files(self, table: Any) -> dict[str, _File]:
        import pyarrow as pa

        found = pa.table(table.get_add_actions(flatten=True))
        columns = ["path", "size_bytes", "num_records"]
        columns += [f"partition.{name}" for name in self._use.partitions]
        files = zip(*(found[name].to_pylist() for name in columns), strict=True)
        return {
            path: _File(size, rows, dict(zip(self._use.partitions, values, strict=True)))
            for path, size, rows, *values in files
        }

    # ---- writing

    def _schema(self, columns: pa.Schema, *, has_uuid_shards: bool) -> Any:
        from deltalake import Schema

        partitions = self._use.partitions
        return Schema.from_arrow(with_partitions(columns, partitions, has_uuid_shards=has_uuid_shards))

    def _create(self, columns: pa.Schema, change: TableChange) -> None:
        """Create the table with its first files: version 0, which only one can write."""
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import create_table_with_add_actions

        if change.remove:
            raise TableConflictError(
                f"{self.what} was removed after it was read; read the table again", table=self.what
            )
        with asking(self.what, self._secrets, is_commit=True):
            check_conditional_put(self._store.files, self._store.layout.control, self.what)
        with asking(self.what, self._secrets, conflicts=(CommitFailedError,), is_commit=True):
            try:
                create_table_with_add_actions(
                    self._url,
                    self._schema(columns, has_uuid_shards=change.has_uuid_shards),
                    [_add(file, change.schema) for file in change.add],
                    mode="error",
                    partition_by=list(self._use.partitions),
                    storage_options=self._storage_options(),
                    commit_properties=_properties(change.note, {_APPLICATION: 1, **change.marks}),
                    post_commithook_properties=_hooks(),
                )
            except CommitFailedError:
                raise
            except DeltaError as problem:
                if self._load() is None:
                    raise
                raise CommitFailedError(str(problem)) from None

    def _removed(self, table: Any, paths: Sequence[str]) -> list[Any]:
        """Return the removal of files; the library itself takes paths that the table does not have."""
        from deltalake.transaction import RemoveAction

        if not paths:
            return []
        files = self._files(table)
        missing = [path for path in paths if path not in files]
        if missing:
            raise TableConflictError(
                f"{self.what} no longer has file {missing[0]}, which is to be removed; read the table again",
                table=self.what,
                files=missing,
            )
        now = int(time.time() * 1000)
        return [
            RemoveAction(
                path,
                True,
                now,
                files[path].size,
                {name: str(value) for name, value in files[path].values.items()},
            )
            for path in paths
        ]

    def _new_fields(self, table: Any, wanted: pa.Schema) -> list[Any]:
        """Return the columns that are new or, as structs, have new fields."""
        from deltalake import Schema

        own = self._columns(table)
        changed = [
            each for each in wanted if each.name not in own.names or own.field(each.name).type != each.type
        ]
        return list(
            Schema.from_arrow(wanted.empty_table().select([each.name for each in changed]).schema).fields
        )


def _add(file: TableFile | PlainFile, schema: pa.Schema) -> Any:
    """Return the addition of a file, with what is known of its rows."""
    from deltalake.transaction import AddAction

    known: dict[str, tuple[str, str]] = {}
    if file.bounds is not None:
        first, last = file.bounds
        known[ULID_COLUMN] = (str(first), str(last))
        if TIME_COLUMN in schema.names:
            times = [each.time.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z" for each in (first, last)]
            known[TIME_COLUMN] = (times[0], times[1])
    known = {name: each for name, each in known.items() if name in schema.names}
    statistics = {
        "numRecords": file.rows,
        "minValues": {name: lowest for name, (lowest, _) in known.items()},
        "maxValues": {name: highest for name, (_, highest) in known.items()},
        "nullCount": dict.fromkeys(known, 0),
    }
    values = {name: shard_text(value) if name == SHARD else str(value) for name, value in file.values.items()}
    return AddAction(
        file.path,
        file.size,
        values,
        int(time.time() * 1000),
        True,
        json.dumps(statistics),
    )


def _properties(note: Mapping[str, str], marks: Mapping[str, int] | None = None) -> Any:
    """Return the properties of a commit that is tried once, at the version after the one that was loaded."""
    from deltalake import CommitProperties, Transaction

    own = [Transaction(name, number) for name, number in (marks or {}).items()] or None
    return CommitProperties(custom_metadata=dict(note), max_commit_retries=0, app_transactions=own)


def _hooks() -> Any:
    """Return what happens after a commit: checkpoints, but no removal of old log files."""
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
