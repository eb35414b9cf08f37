# SPDX-License-Identifier: Apache-2.0
"""File systems that stop at a step: killed before or after it, or waiting while somebody else goes on."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
from fsspec.implementations.memory import MemoryFileSystem

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.export.files import Files, LocalFiles, RemoteFiles
from airflow_changefeed.export.layout import Layout
from airflow_changefeed.export.read import unit_files
from airflow_changefeed.export.store import ExportStore
from airflow_changefeed.export.verify import read_facts

CHANGES = ("write", "move", "swap_in", "remove", "prune")


class Killed(BaseException):
    """The process ends here; nothing of ours may catch it."""


class SteppedFiles:
    """
    A file system that calls somebody before each change it is asked for.

    :param before: takes the number of the change, from 0.
    """

    def __init__(self, files: Files, before: Callable[[int], None]) -> None:
        self._files = files
        self._before = before
        self.changes = 0

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._files, name)
        if name not in CHANGES:
            return inner

        def stepped(*arguments: Any) -> Any:
            self._before(self.changes)
            self.changes += 1
            return inner(*arguments)

        return stepped


class SteppedMemory(MemoryFileSystem):
    """An object store in memory, one for each instance, that calls somebody before each change."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self.before: Callable[[int], None] = lambda number: None
        self.changes = 0

    def _step(self) -> None:
        self.before(self.changes)
        self.changes += 1

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Write an object."""
        self._step()
        super().pipe_file(path, value, mode, **options)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        """Copy an object."""
        self._step()
        super().cp_file(path1, path2, **options)

    def _rm(self, path: str) -> None:
        self._step()
        super()._rm(path)


def kill_at(number: int) -> Callable[[int], None]:
    """Return what kills at a change."""

    def before(change: int) -> None:
        if change == number:
            raise Killed

    return before


def local_files(path: Path) -> Files:
    """A local file system."""
    return LocalFiles(str(path))


def remote_files() -> tuple[Files, SteppedMemory]:
    """An object store in memory."""
    system = SteppedMemory()
    return RemoteFiles(system, f"/{uuid.uuid4().hex}"), system


def plain_rows(files: Files, feed: str) -> list[str]:
    """ULIDs that a reader of plain Parquet finds in a local output."""
    folder = Layout(files.root, feed).data
    names = [name for name in files.sizes(folder) if name.endswith(".parquet")]
    if not names:
        return []
    query = f"select changefeed_ulid from read_parquet('{folder}/**/*.parquet')"
    return sorted(row[0] for row in duckdb.sql(query).fetchall())


def manifest_rows(store: ExportStore) -> int:
    """Rows that a reader of manifests finds, each file read in full and compared with its facts."""
    rows = 0
    for file in unit_files(store):
        facts = read_facts(store, file.path, file.facts.name)
        assert facts == file.facts
        rows += facts.rows
    return rows


def tree(files: Files) -> list[str]:
    """Paths of all files below the root."""
    return sorted(files.sizes(files.root))


def ulids(texts: list[str]) -> Iterator[Ulid]:
    """Parse texts."""
    return map(Ulid.parse_text, texts)
