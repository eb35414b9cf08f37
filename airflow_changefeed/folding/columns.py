# SPDX-License-Identifier: Apache-2.0
"""The columns of a fold: which files have the same ones, the table's own, and types that hold all values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_changefeed.exceptions import FoldError
from airflow_changefeed.folding.inputs import FileColumns, file_columns, second_fields
from airflow_changefeed.output.read import UnitFile
from airflow_changefeed.output.schemas import wider_type
from airflow_changefeed.output.store import ExportStore

if TYPE_CHECKING:
    import pyarrow as pa


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
                    f"{store.feed!r} and {kind} in {group.files[0].manifest.unit}; no type can hold both. "
                    "Export the older units again, or fold a time before the change",
                    table=table,
                    column=column,
                )
            kinds[column] = wider
    return kinds
