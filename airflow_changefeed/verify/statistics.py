# SPDX-License-Identifier: Apache-2.0
"""
Finds Parquet files whose footer statistics do not cover all values.

Readers that filter or count trust the footer without reading the rows, so they would silently lose rows
although the checksum is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_changefeed.output.structs import leaves

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


class MisleadingFooterError(ValueError):
    """The statistics in a footer do not cover the values in the file."""


class Extent:
    """
    The actual content of a row group: number of rows, and minimum, maximum and nulls of each leaf.

    Leaves are identified by number: ``a.b`` may be the name of a column or the path to a field.
    """

    def __init__(self) -> None:
        self._rows = 0
        self._nulls: dict[int, int] = {}
        self._ends: dict[int, tuple[Any, Any]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of the group."""
        import pyarrow.compute as pc

        self._rows += batch.num_rows
        columns = zip(batch.schema.names, batch.columns, strict=True)
        found = [values for name, column in columns for _, values in leaves(name, column)]
        for number, values in enumerate(found):
            self._nulls[number] = self._nulls.get(number, 0) + values.null_count
            ends = pc.min_max(values).as_py()
            if ends["min"] is not None:
                least, greatest = self._ends.get(number, (ends["min"], ends["max"]))
                self._ends[number] = (min(least, ends["min"]), max(greatest, ends["max"]))

    def check(self, group: pq.RowGroupMetaData) -> None:
        """
        Compare with the footer.

        :raises MisleadingFooterError: has the names of the columns.
        """
        wrong = list(self._wrong(group))
        if wrong:
            raise MisleadingFooterError(
                f"its footer statistics do not cover all values of {', '.join(wrong)}"
            )

    def _wrong(self, group: pq.RowGroupMetaData) -> Iterator[str]:
        if group.num_rows != self._rows:
            yield "rows"
        for number in range(group.num_columns):
            column = group.column(number)
            said = column.statistics
            if said is None:
                continue
            least, greatest = self._ends.get(number, (None, None))
            # Bounds that are wider than the values are harmless.
            is_cut = least is not None and said.has_min_max and (least < said.min or greatest > said.max)
            if is_cut or (said.has_null_count and said.null_count != self._nulls.get(number)):
                yield repr(column.path_in_schema)
