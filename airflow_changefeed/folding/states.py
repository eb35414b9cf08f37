# SPDX-License-Identifier: Apache-2.0
"""
States of a captured table on a file system: one folder for each time, replaced as a whole.

``<output>/<table>/changefeed_at=<time>/changefeed_attempt=<attempt>/`` holds an attempt's files, and
``changefeed_at=<time>/_state.<attempt>.json`` says that they are all there; of several the highest counts.
Attempts at one time make the same rows, so whichever counts is right; two never mix, as each has a folder of
its own. On a local disk the time's folder appears by one rename, so that plain readers see a whole state or
none; elsewhere they may see two attempts while one replaces the other, and readers of the document do not.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_changefeed.core.documents import Document
from airflow_changefeed.core.times import format_compact, now, to_milliseconds
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ManifestError, OutputNotWritableError
from airflow_changefeed.output import claims
from airflow_changefeed.output.layout import Layout
from airflow_changefeed.storage.files import Files, open_files

_DOCUMENT = re.compile(r"_state\.([0-9A-Z]{26})\.json")
# Not what a task has left below _temporary.
_PARQUET = re.compile(r"[^/_.][^/]*\.parquet")
_TRIES = 20


@dataclass(frozen=True)
class State(Document):
    """
    A table's state at a time, as it lies in the output.

    :param at: feed time, exclusive.
    :param attempt: who wrote it; later ones sort behind.
    :param path: folder of exactly its files, as Spark and other readers name it.
    :param bytes: of all files.
    :param database: identity of the feed's database; empty where its export does not say.
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


def new_attempt() -> str:
    """Return a name for an attempt, which sorts behind those of attempts that began before it."""
    return str(Ulid.of_int((to_milliseconds(now()) << 80) | secrets.randbits(80)))


class StateStore:
    """
    The states of one captured table below a path.

    :param path: root of the output, local or an fsspec URL; other tables' states, and exports, may share it.
    :param feed: the capture.
    :param storage_options: for fsspec; may hold secrets.
    :param database: identity of the capture's database; empty where its export does not say.
    """

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
        self.feed = feed
        self.database = database
        self.table = table
        self.files = files or open_files(path, storage_options)
        self.layout = Layout(self.files.root, table)

    def claim(self) -> None:
        """
        Check the output, and write down that it is this table's; harmless to repeat.

        :raises ForeignOutputError: it holds something else, or lies inside another output.
        :raises OutputNotWritableError: the path cannot be written.
        """
        claims.check(self.files, self.layout, self.database, self.feed)
        self.files.check_writable()
        claims.write(self.files, self.layout, self.database, self.feed)

    def folder(self, at: datetime) -> str:
        """Return the folder of a time's state."""
        return f"{self.layout.data}/changefeed_at={format_compact(at)}"

    def writing(self, at: datetime, attempt: str) -> str:
        """Return the folder that an attempt writes its files to, and nobody else."""
        return f"{self._home(at, attempt)}/changefeed_attempt={attempt}"

    def _home(self, at: datetime, attempt: str) -> str:
        """Return the folder that becomes a time's state: at once by a rename, or by a document in it."""
        return f"{self._attempts(at)}/{attempt}" if self.files.moves_folders else self.folder(at)

    def _attempts(self, at: datetime) -> str:
        return f"{self.layout.attempts}/{format_compact(at)}"

    def read(self, at: datetime) -> State | None:
        """
        Return the state of a time; None where there is no whole one.

        :raises ManifestError: its document is damaged.
        """
        for _ in range(_TRIES):
            attempts = self._committed(self.folder(at))
            if not attempts:
                return None
            where = f"{self.folder(at)}/_state.{attempts[-1]}.json"
            content = self.files.read(where)
            # Gone between the look and the read: it was replaced, look again.
            if content is not None:
                return State.from_json(content.decode(errors="replace"), where=where)
        raise ManifestError(f"{self.folder(at)} is replaced again and again; read it later")

    def commit(self, at: datetime, attempt: str) -> State:
        """
        Let an attempt's files count, and remove what older attempts left of the time.

        :return: the state that counts: a newer attempt's, if there is one.
        """
        folder = self.writing(at, attempt)
        sizes = {name: size for name, size in self.files.sizes(folder).items() if _PARQUET.fullmatch(name)}
        rows = sum(self._rows(f"{folder}/{name}") for name in sizes)
        path = self.files.url(f"{self.folder(at)}/changefeed_attempt={attempt}")
        state = State(
            feed=self.feed,
            table=self.table,
            at=at,
            attempt=attempt,
            path=path,
            files=tuple(sorted(sizes)),
            rows=rows,
            bytes=sum(sizes.values()),
            database=self.database,
        )
        text = state.to_json()
        document = f"{self._home(at, attempt)}/_state.{attempt}.json"
        if self.files.moves_folders:
            self.files.write(document, text.encode())
            self._swap_in(at, attempt)
        elif (self._committed(self.folder(at)) or [""])[-1] < attempt:
            self.files.write(document, text.encode())
        self._clean(at)
        counting = self.read(at)
        return counting if counting is not None else state

    def _rows(self, path: str) -> int:
        import pyarrow.parquet as pq

        with self.files.reader(path) as file:
            return int(pq.read_metadata(file).num_rows)

    def _committed(self, folder: str) -> list[str]:
        """Return the attempts that have a document in a folder, ascending."""
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
        raise OutputNotWritableError(f"{target} is replaced again and again; retry later", path=target)

    def _clean(self, at: datetime) -> None:
        """Remove what attempts older than the one that counts have left: documents first, then files."""
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
        """Remove what an attempt that failed has written."""
        with contextlib.suppress(OutputNotWritableError):
            self.files.remove(self.writing(at, attempt))
            if self.files.moves_folders:
                self.files.remove(self._home(at, attempt))
            self.files.prune(self._attempts(at), self.layout.control)
