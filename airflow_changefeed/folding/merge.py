# SPDX-License-Identifier: Apache-2.0
"""
Keeps a table of Delta Lake or Iceberg equal to the captured table: one commit for each time.

A commit holds the files, the frontier and the number of its attempt, and is compare-and-set. So it is made
once, by one of those who try at the same moment, and whoever comes later finds it there, also behind a commit
whose answer was lost (docs/adr/0011-commits-by-format.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.documents import Document
from airflow_changefeed.core.times import format_time, now
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ColumnTypeError,
    InvalidArgumentError,
    TableConflictError,
    TableError,
)
from airflow_changefeed.folding.choice import NEWEST, BaseChoice, parse_base
from airflow_changefeed.folding.current import (
    DELETED_COLUMN,
    KEEP,
    REMOVE,
    CurrentOutput,
    CurrentVersion,
    MergeRecord,
    new_merge,
)
from airflow_changefeed.folding.plan import FoldSource, find_fold, fold_from, table_of
from airflow_changefeed.output.read import SHARD_COLUMN
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.tables.base import FRONTIER_MARK, LakeTable, PlainFile, TableChange, TableState
from airflow_changefeed.tables.clean import KEPT_HOURS
from airflow_changefeed.tables.open import FORMATS

if TYPE_CHECKING:
    import pyarrow as pa

_REMEDY = "make it again from a snapshot, a state or the beginning (base=), or merge into another output_path"


@dataclass(frozen=True)
class MergeRequest:
    """
    A current table, and the time that it is to have.

    :param path: root of the capture's export.
    :param output: root of the table.
    :param at: feed time, exclusive.
    :param table: of the capture; None if it has only one.
    :param table_format: ``delta`` or ``iceberg``.
    :param catalog_table: of Iceberg: its name in the catalog.
    :param base: what the first commit begins with, see
        :class:`~airflow_changefeed.folding.choice.BaseChoice`. Any but ``newest`` makes a table that is there
        again.
    :param states: root of states and snapshots; None for that of the table.
    :param deleted: ``remove`` or ``keep``.
    :param is_window: whether ``at`` is the end of a run's window: then a table that is further is right.
    :param kept_hours: how long files stay that the table does not need any more.
    """

    feed: str
    path: str
    output: str
    at: datetime
    run: str
    table: str | None = None
    table_format: str = "delta"
    catalog_table: str = ""
    base: datetime | str = NEWEST
    states: str | None = None
    deleted: str = REMOVE
    is_window: bool = False
    kept_hours: float = KEPT_HOURS

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", parse_base(self.base))
        check_format(self.table_format, self.catalog_table)
        check_deleted(self.deleted)
        check_kept_hours(self.kept_hours)


def check_format(table_format: object, catalog_table: object) -> None:
    """Refuse what is no table, or a table without its name."""
    problems = []
    if table_format not in FORMATS:
        plain = "; plain Parquet is written by ChangefeedFoldOperator" if table_format == "parquet" else ""
        problems.append(f"table_format must be {' or '.join(FORMATS)}, not {table_format!r}{plain}")
    if table_format == "iceberg" and len([part for part in str(catalog_table or "").split(".") if part]) < 2:
        problems.append(
            f"catalog_table must name the Iceberg table, as namespace.table, not {catalog_table!r}"
        )
    if table_format == "delta" and catalog_table:
        problems.append("catalog_table is for table_format='iceberg'; a Delta table is found by its path")
    if problems:
        raise InvalidArgumentError("; ".join(problems), problems=problems)


def check_deleted(deleted: object) -> None:
    """Refuse what is no way to treat deleted rows."""
    if deleted not in (REMOVE, KEEP):
        raise InvalidArgumentError(f"deleted must be {REMOVE} or {KEEP}, not {deleted!r}")


def check_kept_hours(kept_hours: object) -> None:
    """Refuse what is not a number of hours; files of merges that run now are younger than one."""
    is_number = isinstance(kept_hours, (int, float)) and not isinstance(kept_hours, bool)
    if not is_number or not 1 <= kept_hours <= 1_000_000:  # type: ignore[operator]
        raise InvalidArgumentError(f"kept_hours must be 1 to 1,000,000 hours, not {kept_hours!r}")


@dataclass(frozen=True)
class MergeTask(Document):
    """
    Files that a job writes.

    :param states: root of states and snapshots.
    :param attempt: names the folder of the files.
    :param record: the table that they are written for, as its newest commit says; None begins from ``base``.
    :param files: that it has.
    """

    KIND = "changefeed merge task"

    feed: str
    path: str
    output: str
    states: str
    table: str
    at: datetime
    attempt: int
    run: str
    base: str
    deleted: str
    record: MergeRecord | None = None
    files: tuple[PlainFile, ...] = ()

    def source(self, storage_options: Mapping[str, Any] | None) -> FoldSource:
        """
        Find what is folded, by manifests and the schemas of a few files.

        :raises FoldError: the events do not determine the table.
        :raises NotExportedError: some are not exported yet.
        """
        store = ExportStore(self.path, self.feed, storage_options)
        if self.record is not None:
            output = CurrentOutput(self.output, self.feed, self.table, storage_options)
            return fold_from(store, output.base(self.record, self.files), self.at)
        choice = BaseChoice(self.states, self.base, storage_options)
        source = find_fold(store, self.at, self.table, choice)
        if source.base is not None and source.base.where:
            raise source.refusal(
                f"{source.base.what} has only a part of the table, and a current table has all of it. Choose "
                "another base"
            )
        return source


@dataclass(frozen=True)
class MergedFiles(Document):
    """
    What a job has written, or its error.

    :param add: of the table: paths, relative to its folder.
    :param remove: those of the task's that they replace.
    :param error: of :func:`~airflow_changefeed.exceptions.error_text`.
    """

    KIND = "changefeed merge result"

    add: tuple[PlainFile, ...] = ()
    remove: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class MergeResult:
    """
    A current table after a merge.

    :param at: its frontier.
    :param path: of its folder.
    :param rows: that it has, deleted ones that are kept included.
    :param written: rows that were written, unchanged ones of the same files included.
    :param added: files.
    :param removed: files that the added ones replace.
    :param changed: whether the merge has made a commit; False where the table was there already.
    """

    feed: str
    table: str
    at: datetime
    attempt: int
    path: str
    table_format: str
    catalog_table: str
    rows: int
    written: int = 0
    added: int = 0
    removed: int = 0
    changed: bool = False


def merge(
    request: MergeRequest,
    storage_options: Mapping[str, Any] | None,
    open_lake: Callable[[CurrentOutput], LakeTable],
    run: Callable[[MergeTask], MergedFiles],
    report: Callable[[str], None],
) -> MergeResult:
    """
    Bring a current table to a time, in one commit.

    :param storage_options: for fsspec; may contain secrets.
    :param open_lake: gives the table of an output.
    :param run: writes files on Spark; not called where no event is new.
    :param report: takes one line of progress.
    :raises FoldError: the events since its frontier do not determine the table; terminal.
    :raises NotExportedError: some are not exported yet; transient.
    :raises ColumnTypeError: the format does not hold a column, or the columns changed as the table's cannot.
    :raises TableError: the table is further than an explicit time, was changed by others, or cannot be used.
    :raises TableConflictError: others keep committing; transient.
    """
    export = ExportStore(request.path, request.feed, storage_options)
    table = table_of(export, request.table)
    output = CurrentOutput(
        request.output,
        request.feed,
        table,
        storage_options,
        table_format=request.table_format,
        catalog_table=request.catalog_table,
        database=export.database(),
    )
    lake = open_lake(output)
    seen = lake.look()
    is_remade = request.base != NEWEST
    record = None if is_remade else _record(output, lake, seen)
    if record is not None and (found := _there(output, lake, record, request)) is not None:
        report(f"changefeed merge: {lake.what} has the events until {format_time(found.at)} already")
        return found
    base = request.base if isinstance(request.base, str) else format_time(request.base)
    task = MergeTask(
        request.feed,
        request.path,
        request.output,
        request.states or request.output,
        table,
        request.at,
        new_merge(),
        request.run,
        base,
        request.deleted,
        record,
        seen.plain if record is not None else (),
    )
    source = task.source(storage_options)
    schema = _schema(source, request.deleted)
    _check_columns(lake, seen, record, source, schema)
    facts = source.base_facts()
    if facts is None:  # pragma: no cover - _schema has refused it
        raise _taken(source, SHARD_COLUMN)
    output.claim()
    events = sum(file.facts.rows for group in source.groups for file in group.files)
    since = "the beginning" if source.base is None else source.base.what
    report(f"changefeed merge: {lake.what} at {format_time(request.at)}: {events} events since {since}")
    done = MergedFiles() if record is not None and not source.groups else run(task)
    if record is None and seen.plain:
        done = MergedFiles(done.add, tuple(file.path for file in seen.plain))
    replaced = set(done.remove)
    rows = sum(file.rows for file in (*seen.plain, *done.add) if file.path not in replaced)
    new = MergeRecord(
        request.feed,
        table,
        request.at,
        task.attempt,
        request.run,
        None if source.base is None else source.base.begin,
        rows,
        request.deleted,
        facts,
        output.database,
    )
    change = TableChange(
        schema,
        done.add,
        done.remove,
        _note(new),
        marks=new.marks,
        replaces_all=record is None and seen.version is not None,
    )
    other = _commit(output, lake, seen, change, new)
    if other is not None:
        if (found := _there(output, lake, other, request)) is not None and not is_remade:
            report(f"changefeed merge: somebody else has brought {lake.what} to {format_time(found.at)}")
            return found
        raise TableConflictError(
            f"{lake.what} was changed by somebody else during the merge; retry", table=lake.what
        )
    _clean(output, lake, new, request.kept_hours, report)
    written = sum(file.rows for file in done.add)
    return _result(output, new, written=written, added=len(done.add), removed=len(done.remove), changed=True)


def _record(output: CurrentOutput, lake: LakeTable, seen: TableState) -> MergeRecord | None:
    """
    Return what the newest commit says of itself; None if there is no table yet.

    :raises TableError: it says nothing, or its document is lost.
    """
    if seen.version is None:
        return None
    if FRONTIER_MARK not in seen.marks:
        raise TableError(
            f"the newest commit to {lake.what} is not of a merge, so until when events are in the table is "
            f"unknown: something else has written to it. Undo that; or {_REMEDY}",
            table=lake.what,
        )
    record = output.read(seen.marks)
    if record is None:
        raise TableError(
            f"{lake.what} has lost the document of its newest commit in {output.layout.control}/merges: put "
            f"it back; or {_REMEDY}",
            table=lake.what,
        )
    # Marks of Delta Lake outlive commits of others.
    if (rows := sum(file.rows for file in seen.plain)) != record.rows:
        raise TableError(
            f"{lake.what} has {rows} rows, and its newest merge left {record.rows}: something else has "
            f"written to it. Undo that; or {_REMEDY}",
            table=lake.what,
        )
    return record


def newest_version(output: CurrentOutput, lake: LakeTable) -> CurrentVersion:
    """
    Return the version that a table has now.

    :raises TableError: there is no table yet, or it cannot be used.
    :raises TransientError: it could not be reached.
    """
    seen = lake.look()
    record = _record(output, lake, seen)
    if record is None:
        raise TableError(f"{lake.what} does not exist yet: merge first", table=lake.what)
    return CurrentVersion(record, seen.plain)


def _there(
    output: CurrentOutput, lake: LakeTable, record: MergeRecord, request: MergeRequest
) -> MergeResult | None:
    """
    Return the table if it has a request's time already; None if not.

    :raises TableError: it is further than an explicit time, or keeps deleted rows in another way.
    """
    if record.deleted != request.deleted:
        raise TableError(
            f"{lake.what} was made with deleted={record.deleted!r}, not {request.deleted!r}: give that, or "
            f"{_REMEDY}",
            table=lake.what,
        )
    if record.at < request.at:
        return None
    if record.at > request.at and not request.is_window:
        raise TableError(
            f"{lake.what} has the events until {format_time(record.at)}, and it was asked for at "
            f"{format_time(request.at)}: a merge only goes forward. Read an older version of the table; or "
            f"{_REMEDY}",
            table=lake.what,
            at=request.at,
        )
    return _result(output, record)


def _result(output: CurrentOutput, record: MergeRecord, **more: Any) -> MergeResult:
    return MergeResult(
        record.feed,
        record.table,
        record.at,
        record.attempt,
        output.path,
        output.table_format,
        output.catalog_table,
        record.rows,
        **more,
    )


def _note(record: MergeRecord) -> dict[str, str]:
    """Return what a commit says of itself, for people who read the table's history."""
    return {
        "changefeed.feed": record.feed,
        "changefeed.run": record.run,
        "changefeed.at": format_time(record.at),
        "changefeed.rows": str(record.rows),
    }


# ---- columns


def _schema(source: FoldSource, deleted: str) -> pa.Schema:
    """
    Return the columns of a table, in the types that Spark writes.

    :raises ColumnTypeError: a captured column has the name of one of ours.
    """
    import pyarrow as pa

    own: dict[str, pa.DataType] = {SHARD_COLUMN: pa.int64() if source.has_integer_shards else pa.string()}
    if deleted == KEEP:
        own[DELETED_COLUMN] = pa.timestamp("us", "UTC")
    for name in own:
        if name in map(str.casefold, source.kinds):
            raise _taken(source, name)
    kinds = {name: _written(kind) for name, kind in source.kinds.items()}
    return pa.schema([*kinds.items(), *own.items()])


def _taken(source: FoldSource, name: str) -> ColumnTypeError:
    return ColumnTypeError(
        f"table {source.table!r} of feed {source.store.feed!r} has a column {name!r}, and a current table "
        "has one of that name of its own; rename it, or leave it out of the capture",
        column=name,
    )


def _written(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _written(each.type)) for each in kind])
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return pa.int64() if kind == pa.uint32() else kind


def _check_columns(
    lake: LakeTable, seen: TableState, record: MergeRecord | None, source: FoldSource, schema: pa.Schema
) -> None:
    """
    Check, before anything is written, that a table can have the columns of the events.

    :raises ColumnTypeError: it cannot; names them, and the remedy.
    """
    lake.check(schema, seen.schema if record is not None else None)
    if record is None:
        return
    lost = [name for name, place in record.base.fields.items() if source.columns.get(name) != place]
    if lost:
        raise ColumnTypeError(
            f"table {source.table!r} of feed {source.store.feed!r} does not have "
            f"{', '.join(f'column {name!r}' for name in lost)} of {lake.what} any more, or as another "
            f"column: {_REMEDY}",
            column=lost[0],
            columns=lost,
        )


# ---- the commit


def _commit(
    output: CurrentOutput, lake: LakeTable, seen: TableState, change: TableChange, new: MergeRecord
) -> MergeRecord | None:
    """Commit; return what counts if it is somebody else's."""
    output.write(new)
    try:
        lake.commit(seen, change)
        return None
    except ChangefeedError as problem:
        # The answer may have been lost, so the table says how it went.
        there = lake.look()
        if there.marks == new.marks:
            return None
        if there.marks != seen.marks or not isinstance(problem, TableConflictError):
            # What may still be on its way can no longer be committed.
            output.discard(new.attempt, new.at)
        if not isinstance(problem, TableConflictError) or there.marks == seen.marks:
            raise
        other = _record(output, lake, there)
        if other is None:
            raise
        return other


def _clean(
    output: CurrentOutput,
    lake: LakeTable,
    record: MergeRecord,
    kept_hours: float,
    report: Callable[[str], None],
) -> None:
    """Remove what older versions needed; the next merge does it if this one cannot."""
    try:
        removed = output.clean(lake.unused(kept_hours), now() - timedelta(hours=kept_hours), record)
    except ChangefeedError as problem:
        report(f"changefeed merge: files that {lake.what} does not need could not be removed: {problem}")
        return
    if removed:
        report(f"changefeed merge: {len(removed)} files that {lake.what} does not need were removed")
