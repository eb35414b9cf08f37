# SPDX-License-Identifier: Apache-2.0
"""What tests ask of the library of each format, as any reader would: not of the code under test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

#: Name of a table that has one, in the catalog of :func:`catalog_below`.
NAME = "nyc.flight"


def catalog_below(folder: Path) -> dict[str, str]:
    """Return the catalog of an Iceberg table: a database beside the output."""
    return {"name": "tests", "type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}


class FormatLibrary(ABC):
    """
    A format's own library.

    :param folder: of everything.
    :param data: of the table.
    """

    #: Arguments of ``open_table`` besides the format and the store.
    named: Mapping[str, Any] = {}

    def __init__(self, folder: Path, data: str) -> None:
        self.folder = folder
        self.data = data

    @abstractmethod
    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return the rows of the newest version."""

    @abstractmethod
    def commits(self) -> int:
        """Return how many commits the table has had."""

    @abstractmethod
    def delete(self, where: str) -> None:
        """Delete rows, as somebody else may."""

    @abstractmethod
    def lose(self) -> None:
        """Lose the table, but none of its data."""


class Delta(FormatLibrary):
    """deltalake."""

    def _table(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.data)

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return the rows of the newest version."""
        return self._table().to_pyarrow_table(columns=list(columns))

    def commits(self) -> int:
        """Return how many commits the table has had."""
        return len(self._table().history())

    def delete(self, where: str) -> None:
        """Delete rows, as somebody else may."""
        self._table().delete(where)

    def lose(self) -> None:
        """Lose the log."""
        import shutil

        shutil.rmtree(f"{self.data}/_delta_log")


class Iceberg(FormatLibrary):
    """pyiceberg."""

    def __init__(self, folder: Path, data: str) -> None:
        super().__init__(folder, data)
        self.named = {"table": NAME, "catalog": catalog_below(folder)}

    def _table(self) -> Any:
        from pyiceberg.catalog import load_catalog

        catalog = catalog_below(self.folder)
        return load_catalog(catalog["name"], type="sql", uri=catalog["uri"]).load_table(NAME)

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return the rows of the newest version."""
        return self._table().scan(selected_fields=tuple(columns)).to_arrow()

    def commits(self) -> int:
        """Return how many commits the table has had."""
        return len(self._table().history())

    def delete(self, where: str) -> None:
        """Delete rows, as somebody else may."""
        self._table().delete(where)

    def lose(self) -> None:
        """Lose the catalog."""
        (self.folder / "catalog.db").unlink()


#: The library of each format.
LIBRARIES: Mapping[str, type[FormatLibrary]] = {"delta": Delta, "iceberg": Iceberg}
