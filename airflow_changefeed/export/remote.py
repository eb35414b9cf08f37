# SPDX-License-Identifier: Apache-2.0
"""Object stores and whatever else fsspec knows, and how their errors become ours."""

from __future__ import annotations

import contextlib
import io
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, cast
from urllib.parse import quote, quote_plus

from airflow_changefeed.exceptions import ChangefeedError, OutputNotWritableError, TransientError

_LEAST_SECRET = 4
# A colon before the host's port, or before anything that is no port; an IPv6 host is in brackets.
_USERINFO = re.compile(r"://[^/@:\[]*:(?:[^/]*@|(?!\d*(?:[/:]|$)))")
_LOGIN = re.compile(r"://[^/\s@]*@")
_QUERY = re.compile(r"(://[^\s?'\"]+)\?[^\s'\"]+")
_UNREACHED = re.compile(r"Timeout|Connect|Unreachable|ServerDisconnected")
_BUSY = re.compile(r"SlowDown|ServiceUnavailable|InternalError|Throttl|reduce your request rate")


def check_path(path: str) -> None:
    """
    Check that an output path carries no secret; does not repeat it.

    :raises OutputNotWritableError: it has a user's secret before the host.
    """
    if _USERINFO.search(path):
        raise OutputNotWritableError(
            "the output path holds a user and a secret (user:secret@host), which logs and plans would show: "
            "leave both out, put them into an Airflow connection and name it as path_conn_id"
        )


def secrets_of(value: object) -> Iterator[str]:
    """Yield what may be secret in storage options, at whatever depth."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from secrets_of(each)
    elif isinstance(value, str) and len(value) >= _LEAST_SECRET:
        yield value


def _forms(secret: str) -> set[str]:
    """Return how a secret may be written: as it is, in a URL, in JSON, or in Python's own text."""
    in_url = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    return {secret, *in_url, json.dumps(secret)[1:-1], repr(secret)[1:-1]}


def _harmless(text: str, secrets: Sequence[str]) -> str:
    """Return an error's text without secrets: those of the options, and what signs or names one in a URL."""
    for secret in sorted({form for each in secrets for form in _forms(each)}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _QUERY.sub(r"\1?***", _LOGIN.sub("://***@", text))


@contextmanager
def answering(
    path: str,
    secrets: Sequence[str] = (),
    *,
    ours: tuple[type[Exception], ...] = (FileNotFoundError, ChangefeedError),
) -> Iterator[None]:
    """
    Turn whatever a remote file system says into our errors, without secrets.

    :param ours: errors that stay what they are; a missing file is one that callers expect.
    :raises TransientError: it could not be reached, or not in time.
    :raises OutputNotWritableError: anything else.
    """
    try:
        yield
    except ours:
        raise
    except Exception as problem:
        names = " ".join(kind.__name__ for kind in type(problem).__mro__)
        path = _harmless(path, secrets)
        said = _harmless(f"{type(problem).__name__}: {problem}", secrets)
        if _UNREACHED.search(names) or _BUSY.search(said):
            raise TransientError(f"output path {path} did not answer: {said}", path=path) from None
        raise OutputNotWritableError(
            f"output path {path} cannot be used: {said}; check the path, its path_conn_id and its rights",
            path=path,
        ) from None


class _Sink:
    """A remote file that is being written: its errors are told from those of who writes."""

    def __init__(self, file: Any, answering_: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._file = file
        self._answering = answering_

    def write(self, content: Any) -> Any:
        """Write bytes."""
        with self._answering():
            return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Source:
    """A remote file that is being read: its errors are told from those of its content."""

    def __init__(self, file: Any, answering_: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._file = file
        self._answering = answering_

    def read(self, *size: int) -> Any:
        """Read bytes."""
        with self._answering():
            return self._file.read(*size)

    def seek(self, *place: int) -> Any:
        """Go to a place."""
        with self._answering():
            return self._file.seek(*place)

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class RemoteFiles:
    """
    Files of an object store, or of any other file system that fsspec knows: nothing but single files is
    atomic.

    :param url: the root as the user wrote it; None for fsspec's own way.
    """

    moves_folders = False

    def __init__(
        self, system: Any, root: str, secrets: Sequence[str] = (), *, url: str | None = None
    ) -> None:
        self.system = system
        self.root = root.rstrip("/")
        self._secrets = secrets
        self._url = url

    def _answering(self, path: str) -> contextlib.AbstractContextManager[None]:
        return answering(path, self._secrets)

    def url(self, path: str) -> str:
        """Return a path as Spark and other readers name it."""
        if self._url is None:
            return str(self.system.unstrip_protocol(path))
        return self._url.rstrip("/") + path.removeprefix(self.root)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; none when there is no such folder."""
        with self._answering(folder):
            self.system.invalidate_cache()
            try:
                found = self.system.ls(folder, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
            return sorted({posixpath.basename(path.rstrip("/")) for path in found})

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of all files below a folder, by path relative to it."""
        prefix = f"{folder}/"
        with self._answering(folder):
            self.system.invalidate_cache()
            found = self.system.find(folder, detail=True)
        return {path[len(prefix) :]: info["size"] for path, info in found.items() if path.startswith(prefix)}

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        with self._answering(path):
            self.system.invalidate_cache()
            return bool(self.system.exists(path))

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None when there is no such file."""
        with self._answering(path):
            try:
                return bytes(self.system.cat_file(path))
            except (FileNotFoundError, IsADirectoryError):
                return None

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file at once: readers see all of it, or what was there before."""
        with self._answering(path):
            self.system.makedirs(posixpath.dirname(path), exist_ok=True)
            self.system.pipe_file(path, content)

    @contextmanager
    def writer(self, path: str) -> Iterator[Any]:
        """Open a new file for writing bytes."""
        with self._answering(path):
            self.system.makedirs(posixpath.dirname(path), exist_ok=True)
            file = self.system.open(path, "wb")
        try:
            yield _Sink(file, lambda: self._answering(path))
        except BaseException:
            # The source's error, or our own; it says more than what the close may add.
            with contextlib.suppress(Exception):
                file.close()
            raise
        with self._answering(path):
            file.close()

    def reader(self, path: str) -> BinaryIO:
        """Open a file for reading bytes at random places; FileNotFoundError when there is none."""
        with self._answering(path):
            file = self.system.open(path, "rb")
        return cast(BinaryIO, _Source(file, lambda: self._answering(path)))

    def move(self, source: str, target: str) -> bool:
        """Move a file, or the files of a folder one by one; False when there is nothing to move."""
        with self._answering(target):
            self.system.invalidate_cache()
            if self.system.isfile(source):
                self._move_file(source, target)
                return True
            names = sorted(self.sizes(source))
            for name in names:
                self._move_file(f"{source}/{name}", f"{target}/{name}")
            return bool(names)

    def _move_file(self, source: str, target: str) -> None:
        self.system.makedirs(posixpath.dirname(target), exist_ok=True)
        # Copy, then delete: a reader that looks at both places always finds one.
        self.system.copy(source, target)
        self.system.rm_file(source)

    def swap_in(self, source: str, target: str) -> bool | None:
        """Refuse: an object store has no exclusive rename, as :attr:`moves_folders` says."""
        raise io.UnsupportedOperation(
            f"no folder can be renamed to {target}: {source} lies on an object store"
        )

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all in it; harmless when there is none."""
        with self._answering(path), contextlib.suppress(FileNotFoundError):
            self.system.invalidate_cache()
            self.system.rm(path, recursive=True)

    def sweep(self) -> None:
        """Nothing to do: a remove that was killed is repeated under the same names."""

    def prune(self, folder: str, upto: str) -> None:
        """Remove a folder if it is empty, where the store has folders at all."""
        while folder.startswith(f"{upto}/") and not self.names(folder):
            with contextlib.suppress(Exception):
                self.system.rmdir(folder)
            folder = posixpath.dirname(folder)

    def check_writable(self) -> None:
        """An object store tells only when it is written to: claiming the output does that."""
