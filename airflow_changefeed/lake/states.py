# SPDX-License-Identifier: Apache-2.0
"""
States of a captured table on a file system, and which base a fold starts from.

``<output>/<table>/changefeed_at=<time>/changefeed_attempt=<attempt>/`` has the files of an attempt. It is
complete when ``changefeed_at=<time>/_state.<attempt>.json`` exists; the highest attempt counts. All attempts
at one time write the same rows, so any of them is correct, and each has its own folder, so they never mix. On
a local disk the folder of a time appears by one rename, so that plain readers see a whole state or none;
elsewhere they may see two attempts during a replacement, but readers of the document do not.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_changefeed.core.capture import CaptureShape
from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import (
    format_compact,
    format_time,
    now,
    parse_compact,
    parse_time,
    to_milliseconds,
)
from airflow_changefeed.exceptions import InvalidArgumentError, ManifestError, OutputNotWritableError
from airflow_changefeed.formats.base import PlainFile
from airflow_changefeed.output import claims
from airflow_changefeed.storage.files import Files

_DOCUMENT = re.compile(r"_state\.([0-9A-Z]{26})\.json")
# Not the leftovers of tasks below _temporary.
PARQUET_FILE = re.compile(r"[^/_.][^/]*\.parquet")
_FOLDER = "changefeed_at="
_TRIES = 20


@dataclass(frozen=True)
class BaseFacts:
    """
    What a later fold must know of a state's rows. Their shards are in the column ``changefeed_shard``.

    :param shape: of the capture.
    :param schema: the table's columns: Arrow's serialized schema in base64.
    :param fields: of ``old`` and ``new``, for each column.
    :param known_fields: all that the table's events had until then, also those that are no column's any more.
    :param shards: that the feed had until then: each must be exported from there on.
    :param origin: begin of the snapshot that the rows go back to, ``EPOCH`` for the beginning of the capture.
    :param has_integer_shards: whether shards are whole numbers; else texts.
    """

    shape: CaptureShape
    schema: str
    fields: Mapping[str, str]
    known_fields: tuple[str, ...]
    shards: tuple[Shard, ...]
    origin: datetime
    has_integer_shards: bool = True


@dataclass(frozen=True)
class State(Document):
    """
    A table's state at a time in the output.

    :param at: feed time, exclusive.
    :param attempt: the attempt that wrote it; later attempts sort after it.
    :param path: folder that contains exactly its files, in the form that Spark and other readers use.
    :param bytes: total size of all files.
    :param database: identity of the feed's database; empty if the export does not have it.
    :param base: what a later fold needs to start from it; None if none can.
    """

    KIND = "changefeed state"
    ERROR = ManifestError

    feed: str
    table: str
    at: datetime
    attempt: str
    path: str
    files: tuple[str, ...]
    rows: int
    bytes: int
    database: str = ""
    base: BaseFacts | None = None


def new_attempt() -> str:
    """Return the name of a new attempt; it sorts after those of earlier attempts."""
    return str(Ulid.of_int((to_milliseconds(now()) << 80) | secrets.randbits(80)))


class TableOutput(claims.Output):
    """Where states and snapshots of a captured table are; ``database`` is empty if the export has none."""

    def __init__(
        self,
        path: str,
        feed: str,
        table: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        files: Files | None = None,
        database: str = "",
    ) -> None:
        super().__init__(path, feed, table, storage_options, files)
        self.database = database
        self.table = table

    def claimed(self) -> claims.Claim:
        """Return whose output it is to be, and in which format."""
        return claims.Claim(self.feed, self.database, self.table)

    def check(self) -> None:
        """
        Check, without a trace, that the output is this table's, or nobody's.

        :raises ForeignOutputError: it contains something else, or is inside another output.
        :raises OutputError: it has the table in another format.
        """
        claims.check(self.files, self.layout, self.claimed(), self._documents)

    def claim(self) -> None:
        """
        Check the output and claim it for this table; can be repeated.

        :raises ForeignOutputError: it contains something else, or is inside another output.
        :raises OutputNotWritableError: the path cannot be written.
        """
        claim = self.claimed()
        claims.check(self.files, self.layout, claim, self._documents)
        self.files.check_writable()
        claims.write(self.files, self.layout, claim)

    def _documents(self) -> Iterable[claims.Owned]:
        """Return what says whose the output is, where the claim is lost."""
        return ()

    def _written(self, folder: str) -> list[PlainFile]:
        import pyarrow.parquet as pq

        found = []
        for name, size in sorted(self.files.sizes(folder).items()):
            if PARQUET_FILE.fullmatch(name):
                with self.files.reader(f"{folder}/{name}") as file:
                    found.append(PlainFile(name, int(pq.read_metadata(file).num_rows), size))
        return found


class StateStore(TableOutput):
    """The states of one captured table."""

    def folder(self, at: datetime) -> str:
        """Return the folder of a time's state."""
        return f"{self.layout.data}/{_FOLDER}{format_compact(at)}"

    def placed(self, at: datetime, attempt: str) -> str:
        """Return the folder of an attempt's files, once it is complete."""
        return f"{self.folder(at)}/changefeed_attempt={attempt}"

    def writing(self, at: datetime, attempt: str) -> str:
        """Return the folder that only this attempt writes to."""
        return f"{self._home(at, attempt)}/changefeed_attempt={attempt}"

    def _home(self, at: datetime, attempt: str) -> str:
        """Return the folder that becomes the state, by a rename or by a document in it."""
        return f"{self._attempts(at)}/{attempt}" if self.files.moves_folders else self.folder(at)

    def _attempts(self, at: datetime) -> str:
        return f"{self.layout.attempts}/{format_compact(at)}"

    def times(self) -> list[datetime]:
        """Return the times that may have a state, ascending."""
        found = []
        for name in self.files.names(self.layout.data):
            if name.startswith(_FOLDER):
                with contextlib.suppress(InvalidArgumentError):
                    found.append(parse_compact(name.removeprefix(_FOLDER)))
        return sorted(found)

    def read(self, at: datetime) -> State | None:
        """Return the state of a time; None without a complete one; raise ManifestError if it is damaged."""
        for _ in range(_TRIES):
            attempts = self._committed(self.folder(at))
            if not attempts:
                return None
            state = self.read_document(f"{self.folder(at)}/_state.{attempts[-1]}.json", State)
            # Replaced between listing and reading: try again.
            if state is not None:
                return state
        raise ManifestError(f"{self.folder(at)} is being replaced again and again; read it later")

    def _documents(self) -> Iterator[State]:
        for at in self.times():
            with contextlib.suppress(ManifestError):
                if state := self.read(at):
                    yield state

    def commit(self, at: datetime, attempt: str, base: BaseFacts | None = None) -> State:
        """Commit an attempt, remove older ones, and return the state that counts, perhaps a newer one."""
        written = self._written(self.writing(at, attempt))
        path = self.files.url(self.placed(at, attempt))
        state = State(
            feed=self.feed,
            table=self.table,
            at=at,
            attempt=attempt,
            path=path,
            files=tuple(file.path for file in written),
            rows=sum(file.rows for file in written),
            bytes=sum(file.size for file in written),
            database=self.database,
            base=base,
        )
        document = f"{self._home(at, attempt)}/_state.{attempt}.json"
        if self.files.moves_folders:
            self.write_document(document, state)
            self._swap_in(at, attempt)
        elif (self._committed(self.folder(at)) or [""])[-1] < attempt:
            self.write_document(document, state)
        self._clean(at)
        counting = self.read(at)
        return counting if counting is not None else state

    def _committed(self, folder: str) -> list[str]:
        found = (_DOCUMENT.fullmatch(name) for name in self.files.names(folder))
        return sorted(match[1] for match in found if match)

    def _swap_in(self, at: datetime, attempt: str) -> None:
        target = self.folder(at)
        for _ in range(_TRIES):
            if self.files.swap_in(self._home(at, attempt), target) is not False:
                return
            others = self._committed(target)
            if others and others[-1] > attempt:
                return
            self.files.remove(target)
        raise OutputNotWritableError(f"{target} is being replaced again and again; retry later", path=target)

    def _clean(self, at: datetime) -> None:
        """Remove attempts older than the one that counts: documents first, then files."""
        committed = self._committed(self.folder(at))
        newest = committed[-1] if committed else ""
        for attempt in committed[:-1]:
            self.files.remove_file(f"{self.folder(at)}/_state.{attempt}.json")
        folders = {self.folder(at): "changefeed_attempt=", self._attempts(at): ""}
        for folder, prefix in folders.items():
            for name in self.files.names(folder):
                if name.startswith(prefix) and name[0] != "_" and name.removeprefix(prefix) < newest:
                    self.files.remove(f"{folder}/{name}")
        self.files.prune(self._attempts(at), self.layout.control)

    def discard(self, at: datetime, attempt: str) -> None:
        """Remove the files of a failed attempt."""
        with contextlib.suppress(OutputNotWritableError):
            self.files.remove(self.writing(at, attempt))
            if self.files.moves_folders:
                self.files.remove(self._home(at, attempt))
            self.files.prune(self._attempts(at), self.layout.control)


#: The newest state before the time to fold, or snapshot that is exact by then; else the beginning.
NEWEST = "newest"
#: All events since the capture began, without a base.
BEGINNING = "beginning"
#: The table that merges keep current, for comparisons only.
CURRENT = "current"


@dataclass(frozen=True)
class BaseChoice:
    """
    Where states and snapshots are, and which of them a fold may start from.

    :param path: root of both.
    :param base: ``newest`` of the whole table before the time to fold, if one exists; ``beginning`` of the
        capture; or the time of a state, or the begin of a snapshot, also one of a part.
    :param storage_options: for fsspec; may contain secrets.
    :param without: token of a snapshot that is not used.
    """

    path: str
    base: datetime | str = NEWEST
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    without: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", parse_base(self.base))

    @property
    def is_named(self) -> bool:
        """Whether one base was named, and no other will do."""
        return isinstance(self.base, datetime)


def base_text(base: datetime | str) -> str:
    """Write which base is wanted, for documents; :func:`parse_base` reads it."""
    return base if isinstance(base, str) else format_time(base)


def parse_base(base: object, *words: str) -> datetime | str:
    """
    Read which base is wanted.

    :param words: that are a base here, too.
    :raises InvalidArgumentError: neither a word nor a time with a zone.
    """
    if base in (NEWEST, BEGINNING, *words):
        return str(base)
    try:
        return parse_time(base)
    except InvalidArgumentError as problem:
        named = ", ".join(map(repr, (NEWEST, BEGINNING, *words)))
        raise InvalidArgumentError(
            f"base must be {named}, the time of a state or the begin of a snapshot: {problem.message}"
        ) from None
