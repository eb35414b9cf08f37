# SPDX-License-Identifier: Apache-2.0
"""
Snapshots of a captured table on a file system: rows that were read while others wrote, range by range.

``<output>/_changefeed/<table>/snapshots/<token>/`` has ``begin.json`` with the ranges, for each range that
was read ``range-<number>.json`` and the file that it names, and in the end ``snapshot.json``. Each document
appears whole. A range may be read twice, and by two who do not know of each other: each reading is right, so
whichever document is there names one. Files that no document names are left-overs.

What was read only to be compared ends with ``reading.json`` instead, so no fold starts from it.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from airflow_changefeed.core.codec import Document, encode
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.values import now
from airflow_changefeed.exceptions import ManifestError
from airflow_changefeed.lake.states import BaseFacts, TableOutput
from airflow_changefeed.output import claims
from airflow_changefeed.sources.base_capture import KeyRange

_RANGE = re.compile(r"range-(\d{5,})\.json")
_PART = re.compile(r"part-(\d{5,})-[0-9a-f]+\.parquet")
_READERS = 8
_SNAPSHOT, _READING, _OTHER = "snapshot.json", "reading.json", "compared.json"
#: How long a reading waits for the events that it is compared by; later it says too little of the present.
KEPT = timedelta(days=1)
_SUMMARY = ("feed", "table", "token", "begin", "exact_from", "path", "rows", "bytes", "where")


@dataclass(frozen=True)
class SnapshotBegin(Document):
    """
    What a snapshot reads.

    :param begin: the feed was sealed until here before any row was read.
    :param ranges: of the key; together they are the table.
    :param database: identity of the feed's database.
    :param where: of the part that is read; empty for the whole table.
    :param shards: that the feed had before; None if that is not known.
    """

    KIND = "changefeed snapshot begin"
    ERROR = ManifestError

    feed: str
    table: str
    token: str
    begin: datetime
    ranges: tuple[KeyRange, ...]
    database: str
    where: str = ""
    shards: tuple[Shard, ...] | None = None


@dataclass(frozen=True)
class ReadRange(Document):
    """
    A range that was read.

    :param mark: in the database: while it is there, what was read is not lost.
    :param schema: of the rows: Arrow's serialized schema in base64.
    :param version: of the capture when it was read.
    :param file: in the snapshot's folder; empty if the range has no rows.
    """

    KIND = "changefeed snapshot range"
    ERROR = ManifestError

    number: int
    range: KeyRange
    mark: str
    schema: str
    version: int
    file: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Snapshot(Document):
    """
    Rows of a table, read between two times: the events of ``[begin, T)`` folded over them give it at T.

    :param begin: everything before it was committed before any row was read.
    :param exact_from: everything that was read has its event before it: the first possible T.
    :param path: of the folder with the files, in the form that Spark and other readers use.
    :param bytes: total size of all files.
    :param where: conditions on the key: it has the rows for which they are true; empty for the whole table.
    """

    KIND = "changefeed snapshot"
    ERROR = ManifestError

    feed: str
    table: str
    token: str
    begin: datetime
    exact_from: datetime
    path: str
    files: tuple[str, ...]
    rows: int
    bytes: int
    base: BaseFacts
    database: str = ""
    where: str = ""

    @property
    def summary(self) -> dict[str, Any]:
        """What a task or command says of it: JSON values, without what only later folds need."""
        content = encode(self)
        return {name: content[name] for name in _SUMMARY}


class SnapshotFiles(TableOutput):
    """The snapshots of one captured table."""

    #: Appears when all ranges are read.
    _document: ClassVar[str] = _SNAPSHOT

    def claimed(self) -> claims.Claim:
        """Return whose output it is to be, in whatever format it has the table."""
        there = claims.read(self.files, self.layout)
        own = super().claimed()
        if there is None:
            return own
        return replace(own, table_format=there.table_format, catalog_table=there.catalog_table)

    @property
    def claimed_path(self) -> str:
        """The output that a snapshot has in the database: those of the same one join."""
        return self.files.url(self.layout.path)

    @property
    def _all(self) -> str:
        return f"{self.layout.control}/snapshots"

    def folder(self, token: str) -> str:
        """Return the folder of a snapshot."""
        return f"{self._all}/{token}"

    def part(self, token: str, number: int, attempt: str) -> str:
        """Return the path of a file of a range, which only one reading writes."""
        return f"{self.folder(token)}/part-{number:05d}-{attempt}.parquet"

    def begin(self, begin: SnapshotBegin) -> SnapshotBegin:
        """Write what a snapshot reads, unless somebody else has; return what counts."""
        found = self.begun(begin.token)
        if found is None:
            self._write(begin.token, "begin.json", begin)
            # Of two that begin at once the last one to write counts.
            found = self.begun(begin.token)
        return found or begin

    def begun(self, token: str) -> SnapshotBegin | None:
        """Return what a snapshot reads; None if that is not written yet."""
        return self._read(token, "begin.json", SnapshotBegin)

    def has_range(self, token: str, number: int) -> bool:
        """Whether a range was read."""
        return self.files.size(f"{self.folder(token)}/{_name(number)}") is not None

    def numbers(self, token: str) -> set[int]:
        """Return the numbers of the ranges that were read, by one listing."""
        found = (_RANGE.fullmatch(name) for name in self.files.names(self.folder(token)))
        return {int(match[1]) for match in found if match}

    def add_range(self, token: str, found: ReadRange) -> None:
        """Let a range count, in place of an earlier reading of it."""
        self._write(token, _name(found.number), found)

    def remove_range(self, token: str, number: int) -> None:
        """Forget a range that was read."""
        self.files.remove_file(f"{self.folder(token)}/{_name(number)}")

    def ranges(self, token: str) -> list[ReadRange]:
        """Return the ranges that were read, by number."""
        names = [name for name in self.files.names(self.folder(token)) if _RANGE.fullmatch(name)]
        with ThreadPoolExecutor(_READERS, thread_name_prefix="changefeed-ranges") as pool:
            found = pool.map(lambda name: self._read(token, name, ReadRange), names)
            return sorted(filter(None, found), key=lambda one: one.number)

    def commit(self, snapshot: Snapshot) -> Snapshot:
        """Complete a snapshot, unless somebody else has; return what counts."""
        found = self.read(snapshot.token)
        if found is None:
            self._write(snapshot.token, self._document, snapshot)
        return found or snapshot

    def read(self, token: str) -> Snapshot | None:
        """Return a snapshot; None if it is not complete."""
        return self._read(token, self._document, Snapshot)

    def all(self, *, only_readable: bool = False) -> list[Snapshot]:
        """Return the complete snapshots, the newest begin first; a damaged one is left out, or an error."""
        found = []
        for token in self.files.names(self._all):
            try:
                found.append(self.read(token))
            except ManifestError:
                if not only_readable:
                    raise
        return sorted(filter(None, found), key=lambda one: one.begin, reverse=True)

    def clean(self, before: str) -> None:
        """
        Remove the left-overs of complete snapshots before a token, and those that will never be complete.

        Readings that wait to be compared stay.
        """
        for token in self.files.names(self._all):
            if token >= before:
                continue
            try:
                snapshot = self._read(token, _SNAPSHOT, Snapshot)
                reading = self._read(token, _READING, Snapshot)
            except ManifestError:
                # Folds name it; a new one is not stopped by it.
                continue
            if snapshot is None:
                if reading is None or not _is_kept(reading):
                    self.discard(token)
                continue
            self._abort_uploads(token)
            for name in self.files.names(self.folder(token)):
                if _PART.fullmatch(name) and name not in snapshot.files:
                    self.files.remove_file(f"{self.folder(token)}/{name}")

    def discard(self, token: str) -> None:
        """Remove what was read of a snapshot that will not be complete."""
        if self._read(token, _SNAPSHOT, Snapshot) is None:
            self._abort_uploads(token)
            self.files.remove(self.folder(token))
            self.files.prune(self._all, self.layout.control)

    def _abort_uploads(self, token: str) -> None:
        """Abort what readers that were killed have sent to an object store."""
        for upload in self.files.uploads(self.folder(token)):
            self.files.abort(upload.path, upload.upload_id)

    def _write(self, token: str, name: str, document: Document) -> None:
        self.write_document(f"{self.folder(token)}/{name}", document)

    def _read(self, token: str, name: str, kind: type[claims.Kind]) -> claims.Kind | None:
        return self.read_document(f"{self.folder(token)}/{name}", kind)


class ReadingFiles(SnapshotFiles):
    """
    Rows of one captured table that were read to be compared, beside its snapshots.

    :meth:`SnapshotFiles.commit` of the same token makes a snapshot of one.
    """

    _document: ClassVar[str] = _READING

    @property
    def claimed_path(self) -> str:
        """Another one than a snapshot's: who reads for it would never end what the other has begun."""
        return self.files.url(self.reports)

    @property
    def reports(self) -> str:
        """Folder of what comparisons have found."""
        return f"{self.layout.control}/reconciles"

    def all(self, *, only_readable: bool = False) -> list[Snapshot]:
        """Return those that wait to be compared, the newest begin first."""
        return [one for one in super().all(only_readable=only_readable) if _is_kept(one)]

    def other(self, token: str) -> str:
        """Return the path of what a reading is compared with, where that is no base that stays."""
        return f"{self.folder(token)}/{_OTHER}"

    def forget(self, token: str) -> None:
        """Remove a reading that is compared, but not the files of one that became a snapshot."""
        self.discard(token)
        for name in (_READING, _OTHER):
            self.files.remove_file(f"{self.folder(token)}/{name}")


def _is_kept(reading: Snapshot) -> bool:
    return now() - reading.exact_from < KEPT


def _name(number: int) -> str:
    return f"range-{number:05d}.json"
