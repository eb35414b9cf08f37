# SPDX-License-Identifier: Apache-2.0
"""The columns of files of captured events: whether their tables can be folded, and the fold's own columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_changefeed.core.capture import (
    BASE_TYPE,
    METADATA_KEY,
    OFFSET,
    TICKS,
    CapturedTable,
    CaptureShape,
    Operation,
)
from airflow_changefeed.exceptions import FoldError, ManifestError
from airflow_changefeed.output.read import UnitFile
from airflow_changefeed.output.schemas import wider_type
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import ULID_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa


OLD, NEW = "old", "new"
#: Column in which Spark counts the rows of a file.
_OF_SPARK = "_tmp_metadata_row_index"
_EVENT = (ULID_COLUMN, "name", "type", "captured_at", OLD, NEW)
# Arrow types of second columns, and of the columns that they belong to.
_INSTANT = "timestamp[us, tz=UTC]"
_SECONDS = {
    TICKS: ("uint8", ("timestamp[us]", _INSTANT, "time64[us]")),
    OFFSET: ("int16", (_INSTANT,)),
    BASE_TYPE: ("string", ("string",)),
}


@dataclass(frozen=True)
class FileColumns:
    """The columns of a file of captured events; ``fields`` are those of ``old`` and ``new``, in order."""

    shape: CaptureShape
    fields: Mapping[str, pa.DataType]

    def fields_of(self, table: str) -> set[str]:
        """Return the fields that may hold values of a table, also of columns that are recorded no more."""
        if self.shape.tables.keys() == {table}:
            return set(self.fields)
        columns = self.shape.tables[table].columns.values() if table in self.shape.tables else ()
        own = {place for each in columns for place in each.values()}
        return {field for field in self.fields if field in own or field.removesuffix(_suffix(field)) in own}


def _suffix(field: str) -> str:
    return next((suffix for suffix in _SECONDS if field.endswith(suffix)), "")


def file_columns(store: ExportStore, file: UnitFile) -> FileColumns:
    """
    Read a file's schema.

    :raises FoldError: its rows are not captured events with typed columns.
    :raises ManifestError: the file is damaged or missing.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from airflow_changefeed.sources.arrow import shape_of

    try:
        with store.files.reader(file.path) as opened:
            schema = pq.read_schema(opened)
    except FileNotFoundError:
        raise ManifestError(
            f"{file.path} no longer exists: its unit was replaced; read the export again", path=file.path
        ) from None
    except pa.ArrowException as problem:
        raise ManifestError(f"{file.path} is damaged: {problem}", path=file.path) from None
    shape = shape_of(schema)
    if shape is None:
        raise FoldError(
            f"{file.manifest.unit} of feed {store.feed!r} in {store.path} is not from a capture "
            f"({METADATA_KEY.decode()} is missing in {file.path}); only exports of a capture in shape "
            "'typed' can be folded",
            feed=store.feed,
        )
    images = [column.name for column in schema if pa.types.is_struct(column.type)]
    missing = [name for name in _EVENT if name not in (images if name in (OLD, NEW) else schema.names)]
    if missing:
        raise FoldError(
            f"{file.manifest.unit} of feed {store.feed!r} in {store.path} has no typed columns "
            f"{', '.join(missing)}, because it was exported in another shape. Export the unit with "
            "shape='typed', again or to another path",
            feed=store.feed,
        )
    image = schema.field(NEW).type
    return FileColumns(shape, {field.name: field.type for field in image})


def second_fields(fields: Mapping[str, pa.DataType], own: str, taken: Collection[str]) -> list[str]:
    """Return the suffixes of the second fields of a field, but those that are ``taken`` by other columns."""
    names = {name: str(kind) for name, kind in fields.items()}
    return [
        suffix
        for suffix, (kind, kinds) in _SECONDS.items()
        if names.get(own) in kinds and names.get(own + suffix) == kind and own + suffix not in taken
    ]


def foldable_table(shape: CaptureShape, table: str | None) -> str:
    """
    Return the table of a capture to fold, if its events are sufficient.

    :param table: None if there is only one.
    :raises FoldError: the table does not exist, or the capture does not record what a fold needs; has all
        problems.
    """
    name = _table(shape, table)
    problems = _problems(shape.tables[name]) + _name_problems(shape, name)
    if shape.not_for_replication:
        problems.append(
            "it does not capture changes by replication (not_for_replication); enable a capture "
            "without not_for_replication"
        )
    if problems:
        raise FoldError(
            f"table {name!r} of capture {shape.name!r} cannot be folded: {'; '.join(problems)}",
            feed=shape.name,
            table=name,
            problems=problems,
        )
    return name


def _table(shape: CaptureShape, table: str | None) -> str:
    names = ", ".join(map(repr, shape.tables))
    if table is None and len(shape.tables) == 1:
        return next(iter(shape.tables))
    if table is None:
        raise FoldError(
            f"capture {shape.name!r} has several tables; choose one with table=: {names}",
            feed=shape.name,
        )
    if table not in shape.tables:
        raise FoldError(
            f"capture {shape.name!r} does not have table {table!r}; its tables are {names}",
            feed=shape.name,
            table=table,
        )
    return table


def _name_problems(shape: CaptureShape, table: str) -> list[str]:
    """Return why Spark cannot read a table's columns, or its events', by their names."""
    own = shape.tables[table].columns.get(Operation.INSERT, {})
    problems = [
        f"its column {name!r} has a name that Spark's Parquet reader uses itself; rename the column, or "
        "refresh the capture without it"
        for name in own
        if name.lower() == _OF_SPARK
    ]
    # Two tables may have fields that differ so, in one struct.
    for names in (own, shape.own_fields):
        alike = set[str]()
        # Spark takes whole names for one another in lower case, or letter by letter.
        for folded in (str.lower, _ignoring_case):
            counts = Counter(map(folded, names))
            alike |= {name for name in names if counts[folded(name)] > 1}
        if alike:
            problems.append(
                f"columns {', '.join(map(repr, sorted(alike)))} differ only in letter case, which Spark "
                "ignores; rename one of them, or refresh the capture without it"
            )
            break
    return problems


def _ignoring_case(name: str) -> str:
    """
    Return what is equal for names that Java's ``equalsIgnoreCase`` takes for one.

    It compares the lower cases of upper cases, so that a dotless i is an i, and a long s an s. A letter whose
    other case is several ones stays.
    """
    upper = (letter.upper() if len(letter.upper()) == 1 else letter for letter in name)
    return "".join(letter.lower()[0] for letter in upper)


def _problems(captured: CapturedTable) -> list[str]:
    problems = [
        f"it does not capture {operation.value}s; enable a capture of all operations"
        for operation in Operation
        if operation not in captured.columns
    ]
    if not captured.key_columns:
        problems.append("it has no primary key, so its events do not identify rows")
    for operation, columns in captured.columns.items():
        lost = [key for key in captured.key_columns if key not in columns]
        if lost:
            named = ", ".join(map(repr, lost))
            problems.append(f"its {operation.value}s do not record the key columns {named}; capture them")
    inserted, updated = (captured.columns.get(one) for one in (Operation.INSERT, Operation.UPDATE))
    if inserted is not None and updated is not None:
        for one, other, what in ((inserted, updated, "update"), (updated, inserted, "insert")):
            lost = [column for column in one if column not in other]
            if lost:
                problems.append(
                    f"its {what}s do not record {', '.join(map(repr, lost))}; capture the same columns for "
                    "inserts and updates"
                )
    return problems


@dataclass(frozen=True)
class FoldedFiles(FileColumns):
    """Files with the same columns; ``shape`` is that of the capture when they were written."""

    files: tuple[UnitFile, ...]


def group_files(store: ExportStore, files: Iterable[UnitFile]) -> tuple[FoldedFiles, ...]:
    """Group files with the same columns; one footer is read for each group."""
    by_schema: dict[str, list[UnitFile]] = {}
    for file in files:
        by_schema.setdefault(file.manifest.schema, []).append(file)
    found = ((tuple(own), file_columns(store, own[-1])) for own in by_schema.values())
    return tuple(FoldedFiles(columns.shape, columns.fields, own) for own, columns in found)


def table_columns(
    own: Mapping[str, str], files: Sequence[FoldedFiles]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns, each followed by its second columns, and the owner of each second column."""
    taken = frozenset().union(*(each.shape.own_fields for each in files))
    columns: dict[str, str] = {}
    seconds: dict[str, str] = {}
    for name, place in own.items():
        columns[name] = place
        for suffix in dict.fromkeys(
            suffix for each in files for suffix in second_fields(each.fields, place, taken)
        ):
            columns[name + suffix] = place + suffix
            seconds[name + suffix] = name
    return columns, seconds


def column_kinds(
    store: ExportStore, table: str, columns: Mapping[str, str], groups: Sequence[FoldedFiles]
) -> dict[str, pa.DataType]:
    """Return for each column the type that holds its values in all files."""
    kinds: dict[str, pa.DataType] = {}
    for column, place in columns.items():
        for group in groups:
            kind = group.fields.get(place)
            if kind is None:
                continue
            wider = wider_type(kinds.get(column, kind), kind)
            if wider is None:
                raise FoldError(
                    f"column {column!r} of table {table!r} is {kinds[column]} in some units of feed "
                    f"{store.feed!r} and {kind} in {group.files[0].manifest.unit}; no type can hold "
                    "both. Export the older units again, or fold a time before the change",
                    table=table,
                    column=column,
                )
            kinds[column] = wider
    return kinds
