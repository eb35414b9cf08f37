# SPDX-License-Identifier: Apache-2.0
"""What tests ask of the library of each format, as any reader would: not of the code under test."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.export_plan import ExportOptions
from airflow_changefeed.formats.types import DELTA, ICEBERG, TableTypes

#: Name of a table that has one, in the catalog of :func:`catalog_below`.
NAME = "nyc.flight"
Row = dict[str, Any]


def catalog_below(folder: Path) -> dict[str, str]:
    """Return the catalog of an Iceberg table: a database beside the output."""
    return {"name": "tests", "type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}


class FormatLibrary(ABC):
    """
    A format's own library, and what differs between formats: tests ask it, and have no branches.

    Conditions (``where``) are SQL with one comparison, such as ``changefeed_date = '2013-01-02'``.

    :param folder: of everything on this machine.
    :param data: of the table.
    """

    #: What the format holds.
    types: TableTypes
    #: Types of files that it refuses, besides those that every format refuses (``test_types.py``).
    refuses: Collection[pa.DataType] = ()
    #: The package that must be installed; empty if it needs none.
    package = ""
    #: The table's name in its catalog; empty if it is found by its path.
    catalog_table = ""
    #: Arguments of ``open_table`` besides the format and the store.
    named: Mapping[str, Any] = {}

    def __init__(self, folder: Path, data: str) -> None:
        self.folder = folder
        self.data = data

    @abstractmethod
    def read(self) -> pa.Table:
        """Return all columns of the newest version."""

    @abstractmethod
    def readers(self) -> Mapping[str, Callable[[], list[Row]]]:
        """Return what else reads the newest version, by name, or nothing; :meth:`read` is tested anyway."""

    @abstractmethod
    def rows(self, where: str) -> list[Row]:
        """
        Return the rows that fulfil a condition, without opening files that cannot have one.

        :param where: on ``changefeed_date``, ``changefeed_time`` (``>= '2013-01-02T00:00:00+00:00'``) or
            ``changefeed_ulid``. Files that cannot match are gone when it is called: what tells them apart are
            their partitions (``TableFile.values``) and the bounds of their events (``TableFile.bounds``).
        """

    @abstractmethod
    def notes(self) -> list[Mapping[str, Any]]:
        """Return what each commit says of itself, oldest first."""

    @abstractmethod
    def delete(self, where: str) -> None:
        """Delete rows, as somebody else may: in files of other names."""

    @abstractmethod
    def update(self, where: str, column: str, value: int | str) -> None:
        """Update rows, as somebody else may."""

    @abstractmethod
    def restore(self, commit: int) -> None:
        """Make the table what it was after a commit, as somebody else may."""

    @abstractmethod
    def lose(self) -> None:
        """Lose the table, but none of its data."""

    @abstractmethod
    def make_foreign(self) -> None:
        """Make a table that is none of ours, where ours would be."""

    @abstractmethod
    def lose_answer(self, patched: pytest.MonkeyPatch) -> None:
        """Let the library make each commit, and then say that the connection broke (:func:`losing`)."""


def losing(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose answer is lost."""

    def call(*arguments: Any, **more: Any) -> None:
        inner(*arguments, **more)
        raise OSError("Generic S3 error: error sending request: connection closed")

    return call


class Delta(FormatLibrary):
    """deltalake."""

    types = DELTA
    refuses = (pa.time64("us"),)
    package = "deltalake"

    def table(self) -> Any:
        """Open the table."""
        from deltalake import DeltaTable

        return DeltaTable(self.data)

    def read(self) -> pa.Table:
        """Return all columns of the newest version."""
        return self.table().to_pyarrow_table()

    def readers(self) -> Mapping[str, Callable[[], list[Row]]]:
        """DataFusion and Polars."""
        import polars as pl

        return {
            "datafusion": lambda: self.rows("true"),
            "polars": lambda: pl.scan_delta(self.data).collect().to_dicts(),
        }

    def rows(self, where: str) -> list[Row]:
        """Ask DataFusion."""
        from deltalake import QueryBuilder

        query = QueryBuilder().register("feed", self.table())
        found = query.execute(f"select * from feed where {where}")
        return list(pa.table(found.read_all()).to_pylist())

    def notes(self) -> list[Mapping[str, Any]]:
        """Return the log."""
        return list(reversed(self.table().history()))

    def delete(self, where: str) -> None:
        """Delete rows."""
        self.table().delete(where)

    def update(self, where: str, column: str, value: int | str) -> None:
        """Update rows."""
        self.table().update(predicate=where, new_values={column: value})

    def restore(self, commit: int) -> None:
        """Commit the files of an older version."""
        self.table().restore(commit)

    def lose(self) -> None:
        """Lose the log."""
        shutil.rmtree(f"{self.data}/_delta_log")

    def make_foreign(self) -> None:
        """Make a table without partitions."""
        from deltalake import write_deltalake

        write_deltalake(self.data, pa.table({"a": [1]}))

    def lose_answer(self, patched: pytest.MonkeyPatch) -> None:
        """Of the commit that creates a table, and of any other."""
        from deltalake import DeltaTable, transaction

        for where, name in (
            (transaction, "create_table_with_add_actions"),
            (DeltaTable, "create_write_transaction"),
        ):
            patched.setattr(where, name, losing(getattr(where, name)))


class Iceberg(FormatLibrary):
    """pyiceberg."""

    types = ICEBERG
    # Readers refuse files with them; exports to Iceberg have wider numbers in their files.
    refuses = (pa.uint8(), pa.uint16())
    package = "pyiceberg"
    catalog_table = NAME

    def __init__(self, folder: Path, data: str) -> None:
        super().__init__(folder, data)
        self.named = {"table": NAME, "catalog": catalog_below(folder)}

    @contextmanager
    def catalog(self) -> Any:
        """Open the catalog."""
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(**catalog_below(self.folder))
        try:
            yield catalog
        finally:
            catalog.close()

    @contextmanager
    def table(self) -> Any:
        """Open the table as strangers do: by the catalog alone."""
        with self.catalog() as catalog:
            yield catalog.load_table(NAME)

    def read(self) -> pa.Table:
        """Return all columns of the newest version."""
        with self.table() as table:
            return table.scan().to_arrow()

    def readers(self) -> Mapping[str, Callable[[], list[Row]]]:
        """Polars, and DuckDB from Arrow: its own extension comes from the network."""
        return {"polars": self._by_polars, "duckdb": self._by_duckdb}

    def _by_polars(self) -> list[Row]:
        import polars as pl

        # It warns where its own package for planning is missing.
        with pytest.MonkeyPatch.context() as patched, self.table() as table:
            patched.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
            return pl.scan_iceberg(table).collect().to_dicts()

    def _by_duckdb(self) -> list[Row]:
        import duckdb

        with duckdb.connect() as connection:
            connection.register("feed", self.read())
            connection.execute("set timezone = 'UTC'")
            return list(connection.sql("select * from feed").to_arrow_table().to_pylist())

    def rows(self, where: str) -> list[Row]:
        """Scan what a condition leaves."""
        with self.table() as table:
            return list(table.scan(row_filter=where).to_arrow().to_pylist())

    def notes(self) -> list[Mapping[str, Any]]:
        """Return the summaries of the snapshots."""
        with self.table() as table:
            return [each.summary.additional_properties for each in table.metadata.snapshots]

    def delete(self, where: str) -> None:
        """Delete rows."""
        with self.table() as table:
            table.delete(where)

    def update(self, where: str, column: str, value: int | str) -> None:
        """Replace rows."""
        with self.table() as table:
            rows = table.scan(row_filter=where).to_arrow().to_pylist()
            columns = table.schema().as_arrow()
            table.overwrite(pa.Table.from_pylist([{**row, column: value} for row in rows], columns), where)

    def restore(self, commit: int) -> None:
        """Make an older snapshot the newest."""
        with self.table() as table:
            table.manage_snapshots().set_current_snapshot(
                table.metadata.snapshots[commit].snapshot_id
            ).commit()

    def lose(self) -> None:
        """Lose the catalog."""
        (self.folder / "catalog.db").unlink()

    def make_foreign(self) -> None:
        """Make a table that lies elsewhere."""
        with self.catalog() as catalog:
            catalog.create_namespace(NAME.partition(".")[0])
            catalog.create_table(NAME, pa.schema([("a", pa.int64())]), location=f"{self.folder}/elsewhere")

    def lose_answer(self, patched: pytest.MonkeyPatch) -> None:
        """Of the catalog."""
        from pyiceberg.catalog.sql import SqlCatalog

        patched.setattr(SqlCatalog, "commit_table", losing(SqlCatalog.commit_table))


#: The library of each format.
LIBRARIES: Mapping[str, type[FormatLibrary]] = {"delta": Delta, "iceberg": Iceberg}
#: How a table of each format is asked for.
OPTIONS = {
    format: ExportOptions(table_format=format, catalog_table=library.catalog_table)
    for format, library in LIBRARIES.items()
}
