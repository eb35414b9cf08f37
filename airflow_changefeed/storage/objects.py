# SPDX-License-Identifier: Apache-2.0
"""
The operations that exports need of an object store, in few requests: ``aws``, ``azure``, and ``remote`` for
any other file system of fsspec.

A store with uploads lets a task send a file to the key where it stays, and the driver let it appear: on S3 by
completing a multipart upload, on Azure by committing a list of blocks (docs/adr/0002-output-layout.md).
Paths are fsspec's, without protocol. A missing source is ``FileNotFoundError``; all other errors are the
store's own, which :class:`airflow_changefeed.storage.remote.RemoteFiles` translates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol

#: What completes an upload, as JSON values; it holds no secret.
Receipt = Mapping[str, Any]
#: S3 accepts 10,000 parts, and some compatible stores require one size: files of up to 160 GB.
PART_BYTES = 16 * 1024 * 1024
#: Seconds that a copy within a store may take.
COPY_SECONDS = 600.0


def looks(seconds: float) -> Iterator[None]:
    """Yield for each look at a copy, with pauses that double between them, until the seconds are over."""
    until, pause = time.monotonic() + seconds, 0.05
    yield
    while time.monotonic() <= until:
        time.sleep(pause)
        pause = min(2 * pause, 5.0)
        yield


class OpenUpload(NamedTuple):
    """An upload that was neither completed nor aborted."""

    path: str
    upload_id: str
    begun: datetime


class Objects(Protocol):
    """An object store."""

    #: Whether files can be uploaded to their place, and become visible at the commit.
    has_uploads: bool

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a folder; empty if it does not exist."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of all files below a folder, by path relative to it."""

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""

    def read(self, path: str) -> bytes:
        """Return a file's content."""

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file at once."""

    def delete(self, path: str) -> None:
        """Remove a file, if it exists."""

    def copy(self, source: str, target: str) -> None:
        """Copy a file; returns when the copy is complete."""

    def drop(self, folder: str) -> None:
        """Remove an emptied folder, if the store has folders."""

    def prune(self, folder: str) -> bool:
        """Remove an empty folder, if the store has folders; return whether its parent may be empty now."""

    def open(self, path: str) -> Any:
        """Open a new file for writing: an invisible :class:`Upload`, or a file that is visible at once."""

    def complete(self, path: str, receipt: Receipt) -> None:
        """Make an uploaded file visible; ``FileNotFoundError`` if the upload was completed or aborted."""

    def uploads(self, folder: str) -> list[OpenUpload]:
        """Return the uploads below a folder that were neither completed nor aborted."""

    def abort(self, path: str, upload_id: str) -> None:
        """Remove what an upload has sent; harmless if it has ended."""


class Upload:
    """
    A file on its way to where it stays, sent in parts of one size.

    :param send: sends a part, and keeps what completing will need.
    :param abandon: removes the parts that were sent.
    """

    def __init__(
        self, send: Callable[[bytes], None], receipt: Callable[[], Receipt], abandon: Callable[[], None]
    ) -> None:
        self._send = send
        self._receipt = receipt
        self._abandon = abandon
        self._waiting = bytearray()
        self._sent = 0
        self.closed = False

    def write(self, content: Any) -> int:
        """Take bytes, and send whole parts."""
        given = memoryview(content).cast("B")
        self._waiting += given
        while len(self._waiting) >= PART_BYTES:
            part = bytes(self._waiting[:PART_BYTES])
            del self._waiting[:PART_BYTES]
            self._send_part(part)
        return len(given)

    def _send_part(self, part: bytes) -> None:
        self._send(part)
        self._sent += len(part)

    def tell(self) -> int:
        """Return the bytes taken so far."""
        return self._sent + len(self._waiting)

    def flush(self) -> None:
        """Nothing to do: parts have one size."""

    def close(self) -> None:
        """Send the rest; a file has at least one part."""
        if not self.closed:
            self.closed = True
            if self._waiting or not self._sent:
                self._send_part(bytes(self._waiting))
                self._waiting.clear()

    def abandon(self) -> None:
        """Abandon the file."""
        self.closed = True
        self._abandon()

    @property
    def receipt(self) -> Receipt:
        """What completes it, once it is closed."""
        return self._receipt()
