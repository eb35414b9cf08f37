# SPDX-License-Identifier: Apache-2.0
"""
Where a current table lies, and what each of its commits says of itself.

``<output>/<table>/changefeed_attempt=<attempt>/`` has the files that an attempt has written, beside the log
or the metadata of the table's format. The table has the time until which events are in it, its frontier, and
the attempt that made it so. Both name the document
``<output>/_changefeed/<table>/merges/<frontier>.<attempt>.json``, which was written before the commit and has
what the next merge must know. So a table is a base whose two times are its frontier
(docs/adr/0011-commits-by-format.md).
"""

from __future__ import annotations

import posixpath
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.values import format_time, from_milliseconds, now, to_milliseconds
from airflow_changefeed.exceptions import ManifestError
from airflow_changefeed.formats.base import ATTEMPT, ATTEMPT_MARK, FRONTIER_MARK, PlainFile
from airflow_changefeed.lake.bases import Base
from airflow_changefeed.lake.states import PARQUET_FILE, BaseFacts, TableOutput
from airflow_changefeed.output import claims

#: What becomes of rows that were deleted: they go, or stay with the time in a column more.
REMOVE, KEEP = "remove", "keep"
DELETED_COLUMN = "_deleted_at"
#: Of a table with history: the times of the events that have made a version of a row, and ended it.
VALID_FROM, VALID_TO = "_valid_from", "_valid_to"
_RANDOM_BITS = 20
_DOCUMENT = re.compile(r"(\d+)\.(\d+)\.json")
_FOLDER = re.compile(rf"{ATTEMPT}=(\d+)")


@dataclass(frozen=True)
class MergeRecord(Document):
    """
    What a commit to a current table says of itself.

    :param at: the frontier: feed time, exclusive, until which events are in the table.
    :param attempt: which attempt has made it; others at the same time have other numbers.
    :param begin: from when on events were folded; None for the capture's beginning.
    :param rows: of the table then.
    :param deleted: ``remove`` or ``keep``.
    :param base: what the next merge needs to start from the table.
    :param database: identity of the feed's database; empty if the export does not have it.
    :param history: whether the table has all versions of its rows.
    """

    KIND = "changefeed merge"
    ERROR = ManifestError

    feed: str
    table: str
    at: datetime
    attempt: int
    run: str
    begin: datetime | None
    rows: int
    deleted: str
    base: BaseFacts
    database: str = ""
    history: bool = False

    @property
    def marks(self) -> dict[str, int]:
        """What the commit itself has."""
        return {FRONTIER_MARK: to_milliseconds(self.at), ATTEMPT_MARK: self.attempt}


@dataclass(frozen=True)
class CurrentVersion(Document):
    """
    A version of a current table: what its commit says of itself, and the files that it had.

    It can be read as long as the merges' ``keep_for`` lets it.
    """

    KIND = "changefeed table version"
    ERROR = ManifestError

    record: MergeRecord
    files: tuple[PlainFile, ...]


def new_merge() -> int:
    """Return the number of a new attempt: of its time, and at random."""
    return (to_milliseconds(now()) << _RANDOM_BITS) | secrets.randbits(_RANDOM_BITS)


def begun_at(attempt: int) -> datetime:
    """Return when an attempt began."""
    return from_milliseconds(attempt >> _RANDOM_BITS)


class CurrentOutput(TableOutput):
    """The output of one current table; of Iceberg, ``catalog_table`` is its name in the catalog."""

    def __init__(
        self,
        path: str,
        feed: str,
        table: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        table_format: str = "delta",
        catalog_table: str = "",
        database: str = "",
    ) -> None:
        super().__init__(path, feed, table, storage_options, database=database)
        self.table_format = table_format
        self.catalog_table = catalog_table

    def claimed(self) -> claims.Claim:
        return claims.Claim(self.feed, self.database, self.table, self.table_format, self.catalog_table)

    @property
    def path(self) -> str:
        """Folder of the table, in the form that Spark and other readers use."""
        return self.files.url(self.layout.data)

    @property
    def _records(self) -> str:
        return f"{self.layout.control}/merges"

    def _record(self, at: int, attempt: int) -> str:
        return f"{self._records}/{at}.{attempt}.json"

    def writing(self, attempt: int) -> str:
        """Return the folder of an attempt's files, which only it writes to."""
        return f"{self.layout.data}/{ATTEMPT}={attempt}"

    def read(self, marks: Mapping[str, int]) -> MergeRecord | None:
        """
        Return what a commit says of itself; None if its document is gone.

        :param marks: that the table has.
        :raises ManifestError: it is damaged.
        """
        return self.read_document(self._record(marks[FRONTIER_MARK], marks[ATTEMPT_MARK]), MergeRecord)

    def _documents(self) -> Iterator[MergeRecord]:
        for name in self.files.names(self._records):
            if match := _DOCUMENT.fullmatch(name):
                with suppress(ManifestError):
                    if record := self.read({FRONTIER_MARK: int(match[1]), ATTEMPT_MARK: int(match[2])}):
                        yield record

    def write(self, record: MergeRecord) -> None:
        """Write a document; it counts once the table has its marks."""
        self.write_document(self._record(to_milliseconds(record.at), record.attempt), record)

    def written(self, attempt: int) -> tuple[PlainFile, ...]:
        """Return the files of an attempt that have rows."""
        written = self._written(self.writing(attempt))
        return tuple(replace(file, path=f"{ATTEMPT}={attempt}/{file.path}") for file in written if file.rows)

    def base(self, current: CurrentVersion) -> Base:
        """Return a version of the table, or some of its files, as a base."""
        record = current.record
        deleted = DELETED_COLUMN if record.deleted == KEEP else ""
        return Base(
            f"the table at {format_time(record.at)}",
            record.table,
            record.at,
            record.at,
            self.path,
            record.base,
            tuple(self.files.url(f"{self.layout.data}/{file.path}") for file in current.files),
            deleted=VALID_TO if record.history else deleted,
            valid_from=VALID_FROM if record.history else "",
        )

    def missing(self, current: CurrentVersion) -> list[str]:
        """Return the files of a version that are gone, relative to the table's folder."""
        own = [file.path for file in current.files]
        there = {
            posixpath.join(folder, name)
            for folder in {posixpath.dirname(path) for path in own}
            for name in self.files.sizes(posixpath.join(self.layout.data, folder))
        }
        return [
            path
            for path in own
            if path not in there and not self.files.exists(posixpath.join(self.layout.data, path))
        ]

    def discard(self, attempt: int, at: datetime) -> None:
        """Remove the files and the document of a failed attempt."""
        self.files.remove(self.writing(attempt))
        self.files.remove_file(self._record(to_milliseconds(at), attempt))

    def clean(self, unused: Sequence[str], before: datetime, kept: MergeRecord) -> list[str]:
        """
        Remove what attempts from before a time have left that no version of the table needs.

        :param unused: files that no kept version names.
        :param kept: the document that counts.
        :return: the removed files, relative to the table's folder.
        """
        removed = []
        for path in unused:
            match = _FOLDER.match(path)
            if match and begun_at(int(match[1])) < before:
                self.files.remove_file(f"{self.layout.data}/{path}")
                removed.append(path)
        for name in self.files.names(self.layout.data):
            match = _FOLDER.fullmatch(name)
            if match and begun_at(int(match[1])) < before:
                folder = f"{self.layout.data}/{name}"
                if any(PARQUET_FILE.fullmatch(path) for path in self.files.sizes(folder)):
                    self.files.remove(f"{folder}/_temporary")
                else:
                    self.files.remove(folder)
        for name in self.files.names(self._records):
            match = _DOCUMENT.fullmatch(name)
            if match and int(match[2]) != kept.attempt and begun_at(int(match[2])) < before:
                self.files.remove_file(f"{self._records}/{name}")
        return removed
