# SPDX-License-Identifier: Apache-2.0
"""
Finds where a Parquet file's footer leaves out values that are in it.

A reader that filters or counts believes the footer without a look at the rows, so that it would lose them
without a word, while their checksum fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_changefeed.output.structs import leaves

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


class MisleadingFooterError(ValueError):
    """A footer leaves out what is in its file."""


class Extent:
    """
    What a row group really holds: its rows, and of each leaf the least and greatest value and nulls.

    Leaves are known by their number: ``a.b`` may be a column's name as well as the way to a field.
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
        Compare with what the footer says.

        :raises MisleadingFooterError: names the columns.
        """
        wrong = list(self._wrong(group))
        if wrong:
            raise MisleadingFooterError(f"its footer leaves out values of {', '.join(wrong)}")

    def _wrong(self, group: pq.RowGroupMetaData) -> Iterator[str]:
        if group.num_rows != self._rows:
            yield "rows"
        for number in range(group.num_columns):
            column = group.column(number)
            said = column.statistics
            if said is None:
                continue
            least, greatest = self._ends.get(number, (None, None))
            # Bounds that are wider than the values lose nothing.
            is_cut = least is not None and said.has_min_max and (least < said.min or greatest > said.max)
            if is_cut or (said.has_null_count and said.null_count != self._nulls.get(number)):
                yield repr(column.path_in_schema)
