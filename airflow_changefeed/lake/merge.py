# SPDX-License-Identifier: Apache-2.0
"""
Keeps a table of Delta Lake or Iceberg equal to the captured table: one commit for each time.

A commit holds the files, the frontier and the number of its attempt, and is compare-and-set. So it is made
once, by one of those who try at the same moment, and a later run finds it there, also behind a commit
whose answer was lost (docs/adr/0011-commits-by-format.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.values import format_time, now
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ColumnTypeError,
    TableConflictError,
    TableError,
)
from airflow_changefeed.formats.base import FRONTIER_MARK, LakeTable, TableChange, TableState
from airflow_changefeed.lake.current import (
    DELETED_COLUMN,
    KEEP,
    REMOVE,
    VALID_FROM,
    VALID_TO,
    CurrentOutput,
    CurrentVersion,
    MergeRecord,
    new_merge,
)
from airflow_changefeed.lake.fold_plan import FoldSource, table_of
from airflow_changefeed.lake.merge_task import MergedFiles, MergeRequest, MergeResult, MergeTask
from airflow_changefeed.lake.states import NEWEST, BaseChoice
from airflow_changefeed.output.schemas import parse_schema
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import SHARD_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa

_REMEDY = (
    "make the table again from a snapshot, a state or the beginning (base=), or merge into another "
    "output_path"
)


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
    :raises FoldError: the events since its frontier do not determine the table.
    :raises NotExportedError: some are not exported yet.
    :raises ColumnTypeError: the format does not hold a column, or the columns changed as the table's cannot.
    :raises TableError: the table is further than an explicit time, was changed by others, or cannot be used.
    :raises TableConflictError: others keep committing.
    """
    export = ExportStore(request.path, request.feed, storage_options)
    output = CurrentOutput(
        request.output,
        request.feed,
        table_of(
            export, request.table, BaseChoice(request.states or request.output, NEWEST, storage_options)
        ),
        storage_options,
        table_format=request.table_format,
        catalog_table=request.catalog_table,
        database=export.database(),
    )
    output.check()
    lake = open_lake(output)
    seen = lake.look()
    is_remade = request.base != NEWEST
    record = None if is_remade else _record(output, lake, seen)
    if record is not None and (found := _there(output, lake, record, request)) is not None:
        report(f"changefeed merge: {lake.what} already has the events until {format_time(found.at)}")
        return found
    current = None if record is None else CurrentVersion(record, seen.plain)
    task = MergeTask.of(request, output.table, new_merge(), current)
    source = task.source(storage_options)
    schema = _schema(source, request.deleted, history=request.history)
    if request.deleted == KEEP:
        _check_deletes(source)
    _check_columns(lake, seen, record, source, schema)
    output.claim()
    events = sum(file.facts.rows for group in source.groups for file in group.files)
    since = "the beginning" if source.base is None else source.base.what
    report(
        f"changefeed merge: {lake.what} at {format_time(request.at)}: {counted(events, 'event')} "
        f"since {since}"
    )
    done = MergedFiles() if record is not None and not source.groups else run(task)
    if record is None:
        done = MergedFiles(done.add, tuple(file.path for file in seen.plain))
    new = _new_record(task, source, seen, done, output.database)
    is_replaced = record is None and seen.version is not None
    note = {
        "changefeed.feed": new.feed,
        "changefeed.run": new.run,
        "changefeed.at": format_time(new.at),
        "changefeed.rows": str(new.rows),
    }
    change = TableChange(schema, done.add, done.remove, note, marks=new.marks, replaces_all=is_replaced)
    other = _commit(output, lake, seen, change, new)
    if other is not None:
        found = None if is_remade else _there(output, lake, other, request)
        if found is None:
            raise TableConflictError(
                f"{lake.what} was changed by somebody else during the merge; retry", table=lake.what
            )
        report(f"changefeed merge: somebody else has merged {lake.what} to {format_time(found.at)}")
        return found
    _clean(output, lake, new, request.keep_for, report)
    return _result(output, new, done)


def _new_record(
    task: MergeTask, source: FoldSource, seen: TableState, done: MergedFiles, database: str
) -> MergeRecord:
    facts = source.base_facts()
    if facts is None:
        raise _taken(source, SHARD_COLUMN)
    replaced = set(done.remove)
    rows = sum(file.rows for file in (*seen.plain, *done.add) if file.path not in replaced)
    return MergeRecord(
        task.feed,
        task.table,
        task.at,
        task.attempt,
        task.run,
        None if source.base is None else source.base.begin,
        rows,
        task.deleted,
        facts,
        database,
        task.history,
    )


def _record(output: CurrentOutput, lake: LakeTable, seen: TableState) -> MergeRecord | None:
    """Return what the newest commit says of itself; None if there is no table yet."""
    if seen.version is None:
        return None
    if FRONTIER_MARK not in seen.marks:
        raise TableError(
            f"something other than a merge has written to {lake.what}, so its frontier is unknown. "
            f"Restore the version of the newest merge; or {_REMEDY}",
            table=lake.what,
        )
    record = output.read(seen.marks)
    if record is None:
        raise TableError(
            f"{lake.what} has lost the document of its newest commit in {output.layout.control}/merges: "
            f"restore the document; or {_REMEDY}",
            table=lake.what,
        )
    # A log of Delta Lake that was cleaned up does not tell what others have done.
    if (rows := sum(file.rows for file in seen.plain)) != record.rows:
        raise TableError(
            f"{lake.what} has {counted(rows, 'row')}, and its newest merge left {record.rows}: "
            f"something else has written to the table. Restore the version of the merge; or {_REMEDY}",
            table=lake.what,
        )
    # Somebody who may write only the table's log could have us read files that are closed to them.
    paths = [file.path for file in seen.plain]
    outside = [path for path in paths if "://" in path or path.startswith("/") or ".." in path.split("/")]
    if outside:
        raise TableError(
            f"{lake.what} names {outside[0]}, which is not in its folder: something else has written to "
            f"the table. Undo that change; or {_REMEDY}",
            table=lake.what,
            files=outside,
        )
    return record


def newest_version(output: CurrentOutput, lake: LakeTable) -> CurrentVersion:
    """Return the version that a table has now; raise TableError if it does not exist or cannot be used."""
    seen = lake.look()
    record = _record(output, lake, seen)
    if record is None:
        raise TableError(f"{lake.what} does not exist yet: merge first", table=lake.what)
    return CurrentVersion(record, seen.plain)


def _there(
    output: CurrentOutput, lake: LakeTable, record: MergeRecord, request: MergeRequest
) -> MergeResult | None:
    """Return the table if it has a request's time already; None if not."""
    made_with, asked_for = (
        "history=True" if one.history else f"deleted={one.deleted!r}" for one in (record, request)
    )
    if made_with != asked_for:
        raise TableError(
            f"{lake.what} was made with {made_with}, not {asked_for}: pass the former, or {_REMEDY}",
            table=lake.what,
        )
    if record.at < request.at:
        return None
    if record.at > request.at and not request.is_window:
        raise TableError(
            f"{lake.what} has the events until {format_time(record.at)}, and the merge is for "
            f"{format_time(request.at)}: a merge only goes forward. Read an older version of the table; "
            f"or {_REMEDY}",
            table=lake.what,
            at=request.at,
        )
    return _result(output, record)


def _result(output: CurrentOutput, record: MergeRecord, done: MergedFiles | None = None) -> MergeResult:
    add, remove = ((), ()) if done is None else (done.add, done.remove)
    own = _own_columns(record.base.has_integer_shards, record.deleted, history=record.history)
    columns = [*parse_schema(record.base.schema, named=output.path), *own]
    return MergeResult(
        record.feed,
        record.table,
        record.at,
        record.attempt,
        output.path,
        output.table_format,
        output.catalog_table,
        record.rows,
        sum(file.rows for file in add),
        len(add),
        len(remove),
        done is not None,
        sum(file.size for file in add),
        {column.name: str(_written(column.type)) for column in columns},
    )


# ---- columns


def _schema(source: FoldSource, deleted: str, *, history: bool) -> pa.Schema:
    """Return the columns of a table, in the types that Spark writes."""
    import pyarrow as pa

    own = _own_columns(source.has_integer_shards, deleted, history=history)
    for name in own.names:
        if name in map(str.casefold, source.kinds):
            raise _taken(source, name)
    kinds = {name: _written(kind) for name, kind in source.kinds.items()}
    return pa.schema([*kinds.items(), *own])


def _own_columns(has_integer_shards: bool, deleted: str, *, history: bool) -> pa.Schema:
    import pyarrow as pa

    shard = pa.int64() if has_integer_shards else pa.string()
    times = [DELETED_COLUMN] if deleted == KEEP else []
    times += [VALID_FROM, VALID_TO] if history else []
    return pa.schema([(SHARD_COLUMN, shard), *((name, pa.timestamp("us", "UTC")) for name in times)])


def _check_deletes(source: FoldSource) -> None:
    """Check that deletes have the last values of the rows."""
    tables = [group.shape.tables.get(source.table) for group in source.groups]
    for table in (source.shape.tables[source.table], *tables):
        if table is None:
            continue
        recorded = table.columns.get(Operation.DELETE, {})
        lost = [name for name in table.columns.get(Operation.INSERT, {}) if name not in recorded]
        if lost:
            raise source.refusal(
                f"with deleted={KEEP!r} deleted rows keep their last values, and its deletes do not record "
                f"{', '.join(map(repr, lost))}: capture these columns for deletes, too, or merge with "
                f"deleted={REMOVE!r}",
                columns=lost,
            )


def _taken(source: FoldSource, name: str) -> ColumnTypeError:
    return ColumnTypeError(
        f"table {source.table!r} of feed {source.store.feed!r} has a column {name!r}, and a current "
        "table has a column of its own with that name; rename the table's column, or leave it out of "
        "the capture",
        column=name,
    )


def _written(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _written(each.type)) for each in kind])
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    return wider.get(kind, kind)


def _check_columns(
    lake: LakeTable, seen: TableState, record: MergeRecord | None, source: FoldSource, schema: pa.Schema
) -> None:
    """Check, before anything is written, that a table can have the columns of the events."""
    fields = {} if record is None else record.base.fields
    lost = [name for name, place in fields.items() if source.columns.get(name) != place]
    # First: a column whose name has other letter case now has the same remedy.
    if lost:
        raise ColumnTypeError(
            f"table {source.table!r} of feed {source.store.feed!r} does not have "
            f"{', '.join(f'column {name!r}' for name in lost)} of {lake.what} any more, or has another "
            f"column of that name: {_REMEDY}",
            column=lost[0],
            columns=lost,
        )
    lake.check(schema, seen.schema if record is not None else None)


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
        is_conflict = isinstance(problem, TableConflictError)
        other = None if there.marks == seen.marks else _record(output, lake, there)
        # What may still be on its way can no longer be committed. But others may have merged behind a commit
        # whose answer was lost: not if theirs begins where ours does.
        has_none = {file.path for file in there.plain}.isdisjoint(file.path for file in change.add)
        is_lost = other is not None and other.begin == new.begin and has_none
        if is_lost or (there.marks == seen.marks and not is_conflict):
            output.discard(new.attempt, new.at)
        if not is_conflict or other is None:
            raise
        return other


def _clean(
    output: CurrentOutput,
    lake: LakeTable,
    record: MergeRecord,
    keep_for: timedelta,
    report: Callable[[str], None],
) -> None:
    """Remove what older versions needed; the next merge does it if this one cannot."""
    try:
        removed = output.clean(lake.unused(keep_for), now() - keep_for, record)
    except ChangefeedError as problem:
        report(f"changefeed merge: files that {lake.what} no longer needs could not be removed: {problem}")
        return
    if removed:
        report(f"changefeed merge: removed {counted(len(removed), 'file')} that {lake.what} no longer needs")
