# SPDX-License-Identifier: Apache-2.0
"""A dataset of files that may be replaced while somebody holds it; a leaf module, imported by functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow.dataset as ds

from airflow_changefeed.output.read import gone_error


class ExportDataset(ds.FileSystemDataset):  # type: ignore[misc] # pyarrow has no types
    """
    A dataset that says why a file is gone which it has.

    The file system cannot say it: Arrow opens files in threads of its own, and would have to wait there for
    Python's lock, which DuckDB may hold while it waits for them. So DuckDB shows Arrow's own words.
    """

    def to_table(self, *arguments: Any, **options: Any) -> Any:
        """Read a table."""
        with _held():
            return super().to_table(*arguments, **options)

    def to_batches(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        """Read batch by batch."""
        with _held():
            yield from super().to_batches(*arguments, **options)

    def head(self, *arguments: Any, **options: Any) -> Any:
        """Read the first rows."""
        with _held():
            return super().head(*arguments, **options)

    def take(self, *arguments: Any, **options: Any) -> Any:
        """Read some rows, by their numbers."""
        with _held():
            return super().take(*arguments, **options)

    def count_rows(self, *arguments: Any, **options: Any) -> int:
        """Count the rows."""
        with _held():
            return int(super().count_rows(*arguments, **options))

    def sort_by(self, *arguments: Any, **options: Any) -> Any:
        """Read a table, sorted."""
        with _held():
            return super().sort_by(*arguments, **options)

    def join(self, *arguments: Any, **options: Any) -> Any:
        """Read a table, joined with another dataset."""
        with _held():
            return super().join(*arguments, **options)


@contextmanager
def _held() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as problem:
        raise gone_error(str(problem)) from problem
