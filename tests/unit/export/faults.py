# SPDX-License-Identifier: Apache-2.0
"""File systems that stop at a step: killed before or after it, or waiting while somebody else goes on."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
from fsspec.implementations.memory import MemoryFileSystem

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import EPOCH
from airflow_changefeed.export.verify import read_facts
from airflow_changefeed.output.layout import Layout
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.files import Files
from airflow_changefeed.storage.local import LocalFiles
from airflow_changefeed.storage.objects import OpenUpload, Receipt, Upload
from airflow_changefeed.storage.remote import OtherObjects, RemoteFiles
from tests.exports import unit_files

CHANGES = ("write", "move", "swap_in", "remove", "remove_file", "prune")


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


class SteppedObjects:
    """An object store that calls somebody before each change."""

    def __init__(self, objects: Any) -> None:
        self._objects = objects
        self.before: Callable[[int], None] = lambda number: None
        self.changes = 0

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._objects, name)
        if name not in ("write", "delete", "copy", "complete", "abort"):
            return inner

        def stepped(*arguments: Any) -> Any:
            self.before(self.changes)
            self.changes += 1
            return inner(*arguments)

        return stepped


class OwnMemory(MemoryFileSystem):
    """A store in memory, one for each instance."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]


class UploadingObjects(OtherObjects):
    """A store in memory with uploads, as S3 has them: a file appears when its upload is completed."""

    has_uploads = True

    def __init__(self, system: Any) -> None:
        super().__init__(system, has_folders=True)
        self._sent: dict[str, tuple[str, bytearray]] = {}

    def open(self, path: str) -> Upload:
        """Begin an upload."""
        upload_id = uuid.uuid4().hex
        _, sent = self._sent[upload_id] = (path, bytearray())
        return Upload(sent.extend, lambda: {"id": upload_id}, lambda: self.abort(path, upload_id))

    def complete(self, path: str, receipt: Receipt) -> None:
        """Let it appear."""
        if receipt["id"] not in self._sent:
            raise FileNotFoundError(path)
        self.write(path, bytes(self._sent.pop(receipt["id"])[1]))

    def uploads(self, folder: str) -> list[OpenUpload]:
        """Return those that were neither completed nor aborted."""
        found = ((path, upload_id) for upload_id, (path, _) in self._sent.items())
        return [OpenUpload(*each, EPOCH) for each in found if each[0].startswith(f"{folder}/")]

    def abort(self, path: str, upload_id: str) -> None:
        """Forget it."""
        self._sent.pop(upload_id, None)


def kill_at(number: int) -> Callable[[int], None]:
    """Return what kills at a change; who is dead changes nothing any more."""

    def before(change: int) -> None:
        if change >= number:
            raise Killed

    return before


def steps(run: Callable[[int], bool], most: int = 80) -> int:
    """Run with growing numbers of a step until one is beyond the last; return how many there were."""
    for number in range(most):
        if not run(number):
            return number
    raise AssertionError("more changes than expected")


def local_files(path: Path) -> Files:
    """A local file system."""
    return LocalFiles(str(path))


def remote_files() -> RemoteFiles:
    """A store in memory, where files are copied to their place."""
    return RemoteFiles(OwnMemory(), f"/{uuid.uuid4().hex}")


def uploading_files() -> RemoteFiles:
    """A store in memory, where files are uploaded to their place."""
    files = remote_files()
    files.objects = UploadingObjects(files.system)
    files.has_uploads = True
    return files


def stepped(files: Files, before: Callable[[int], None]) -> Files:
    """Return the same files, with somebody called before each change of the disk or store."""
    if not isinstance(files, RemoteFiles):
        return cast(Files, SteppedFiles(files, before))
    other = copy(files)
    other.objects = cast(Any, SteppedObjects(files.objects))
    other.objects.before = before
    return other


def plain_rows(files: Files, feed: str) -> list[str]:
    """ULIDs that a reader of plain Parquet finds, by listing, in an output."""
    folder = Layout(files.root, feed).data
    found: list[str] = []
    for name in files.sizes(folder):
        # None where it vanished since the listing.
        content = files.read(f"{folder}/{name}") if name.endswith(".parquet") else None
        if content is not None:
            found += pq.read_table(io.BytesIO(content), columns=["changefeed_ulid"])[0].to_pylist()
    return sorted(found)


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
