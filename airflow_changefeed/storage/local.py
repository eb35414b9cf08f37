# SPDX-License-Identifier: Apache-2.0
"""Files on a disk that this machine mounts: a folder appears, moves and vanishes by one rename."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from airflow_changefeed.exceptions import ChangefeedError, OutputNotWritableError, TransientError
from airflow_changefeed.storage.errors import answering, full_error, is_full, is_refusal
from airflow_changefeed.storage.objects import OpenUpload, Receipt

#: The folder of an output for what is not data; readers of Parquet skip names that begin with "_".
CONTROL = "_changefeed"
_TRIES = 100
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}")


def unfinished(name: str) -> str | None:
    """Return the final name of a temporary file; None if it is not one."""
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match else None


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Map the operating system's write errors to ours."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as problem:
        said = f"{problem.strerror or problem}"
        if is_full(problem):
            raise full_error(path, said) from problem
        if not is_refusal(problem.errno):
            raise TransientError(
                f"output path {path} cannot be written now: {said}; retry", path=path
            ) from problem
        raise OutputNotWritableError(
            f"output path {path} cannot be written: {said}; give the export its own writable folder",
            path=path,
        ) from problem


def _looking(path: str) -> contextlib.AbstractContextManager[None]:
    """
    Map what the operating system refuses to ours: a name that is too long, a folder for a file, rights.

    :raises OutputNotWritableError: it refused.
    :raises TransientError: the disk did not answer.
    """
    return answering(path, ours=(FileNotFoundError, NotADirectoryError, ChangefeedError))


def _never_there(path: str) -> OutputNotWritableError:
    """Return the error for a file whose folder cannot be created."""
    there = _deepest(os.path.dirname(path))
    return OutputNotWritableError(
        f"{path} cannot be created: a folder cannot be created in {there}, or disappears. "
        "Check the path and its mounts",
        path=path,
    )


def _deepest(path: str) -> str:
    """Return the deepest existing part of a path."""
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _make_folder(path: str) -> None:
    """Make a folder with its parents; FileNotFoundError if somebody prunes it at the same time."""
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError:
        # What makedirs found may be gone before it checks whether it is a folder.
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


class LocalFiles:
    """
    Files on a disk that this machine mounts.

    :param root: absolute path.
    :param url: the root as the user wrote it; None for the path alone.
    """

    moves_folders = True
    has_uploads = False

    def __init__(self, root: str, url: str | None = None) -> None:
        self.root = root.rstrip("/") or "/"
        self._url = (self.root if url is None else url).rstrip("/")

    def url(self, path: str) -> str:
        """Return a path in the form that Spark and other readers use."""
        return self._url + path.removeprefix(self.root.rstrip("/"))

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; empty if it does not exist."""
        with _looking(folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return sorted(os.listdir(folder))
        return []

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of all files below a folder, by path relative to it."""
        found: dict[str, int] = {}
        for where, _, names in os.walk(folder):
            for name in names:
                path = f"{where}/{name}"
                # A file may vanish meanwhile: another attempt is being cleaned up.
                with _looking(path), contextlib.suppress(FileNotFoundError):
                    found[os.path.relpath(path, folder)] = os.stat(path).st_size
        return found

    def exists(self, path: str) -> bool:
        """Whether a file or folder exists."""
        return os.path.exists(path)

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        return os.path.getsize(path) if os.path.isfile(path) else None

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if it does not exist."""
        with (
            _looking(path),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            open(path, "rb") as file,
        ):
            return file.read()
        return None

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file atomically: readers see the old or the new content."""
        folder, name = os.path.split(path)
        for _ in range(_TRIES):
            temporary = f"{folder}/.{name}.{uuid.uuid4().hex[:8]}"
            with writing(path):
                try:
                    with self._create(temporary) as file:
                        file.write(content)
                    # Not found: a newer attempt removed it as a leftover; let it find the whole file.
                    with contextlib.suppress(FileNotFoundError):
                        os.replace(temporary, path)
                        return
                finally:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary)
        raise OutputNotWritableError(f"{path} cannot be written because it is removed repeatedly", path=path)

    @staticmethod
    def _create(path: str) -> BinaryIO:
        for _ in range(_TRIES):
            # Not found: somebody pruned the empty folder just made.
            with contextlib.suppress(FileNotFoundError):
                _make_folder(os.path.dirname(path))
                return open(path, "wb")
        raise _never_there(path)

    @contextmanager
    def writer(self, path: str) -> Iterator[Any]:
        """Open a new file for writing bytes."""
        with writing(path), self._create(path) as file:
            yield file

    def complete(self, path: str, receipt: Receipt, size: int) -> bool:
        """Refuse: files are renamed to their place, as :attr:`has_uploads` says."""
        raise io.UnsupportedOperation(f"{path} is on a disk, where nothing is uploaded")

    def uploads(self, folder: str) -> list[OpenUpload]:
        """Return none."""
        return []

    def abort(self, path: str, upload_id: str) -> None:
        """Nothing to do: there are no uploads."""

    def reader(self, path: str) -> BinaryIO:
        """Open a file for random reads; FileNotFoundError if it does not exist."""
        return open(path, "rb")

    def move(self, source: str, target: str) -> bool:
        """Move a file or folder to a free path; False if it does not exist."""
        with writing(target):
            for _ in range(_TRIES):
                if not os.path.exists(source):
                    return False
                # Not found: the source is gone meanwhile, or somebody pruned the target's empty parent.
                with contextlib.suppress(FileNotFoundError):
                    _make_folder(os.path.dirname(target))
                    os.rename(source, target)
                    return True
        raise _never_there(target)

    def swap_in(self, source: str, target: str) -> bool | None:
        """Move a folder to a path that is free or empty; False if it is not, None without a source."""
        try:
            return self.move(source, target) or None
        except OutputNotWritableError as problem:
            cause = problem.__cause__
            # rename(2) replaces an empty folder only: of two attempts at a unit one gets its place.
            if isinstance(cause, OSError) and cause.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise

    def remove(self, path: str) -> None:
        """Remove a folder with its content, if it exists."""
        if not os.path.isdir(path):
            self.remove_file(path)
            return
        with writing(path):
            # First out of reach of its owner, who may still write to it; then piece by piece.
            condemned = f"{self._trash}/{uuid.uuid4().hex}"
            if self.move(path, condemned):
                shutil.rmtree(condemned, ignore_errors=True)
                self.prune(self._trash, self.root)

    def remove_file(self, path: str) -> None:
        """Remove a file, if it exists."""
        with writing(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)

    @property
    def _trash(self) -> str:
        return f"{self.root}/{CONTROL}/removed"

    def sweep(self) -> None:
        """Clean up after a killed :meth:`remove`."""
        for name in self.names(self._trash):
            shutil.rmtree(f"{self._trash}/{name}", ignore_errors=True)
        self.prune(self._trash, self.root)

    def prune(self, folder: str, upto: str) -> None:
        """Remove a folder if it is empty, then its parents up to but not ``upto``."""
        while folder.startswith(f"{upto}/"):
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                return
            folder = os.path.dirname(folder)

    def check_writable(self) -> None:
        """Check whether the root can be written, without leaving files."""
        there = _deepest(self.root)
        if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK):
            why = "is not writable" if os.path.isdir(there) else "is not a folder"
            raise OutputNotWritableError(
                f"output path {self.root} cannot be written: {there} {why}; give the export its own writable "
                "folder",
                path=self.root,
            )
        if there != self.root:
            # Some folders claim to be writable but are not, such as /proc and mount points.
            probe = f"{there}/.changefeed-{uuid.uuid4().hex[:8]}"
            try:
                os.mkdir(probe)
                os.rmdir(probe)
            except OSError as problem:
                if is_full(problem):
                    raise full_error(self.root, problem.strerror or str(problem)) from problem
                raise OutputNotWritableError(
                    f"output path {self.root} cannot be created: a folder cannot be created in {there} "
                    f"({problem.strerror}). Check the path and its mounts",
                    path=self.root,
                ) from problem
