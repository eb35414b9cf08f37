# SPDX-License-Identifier: Apache-2.0
"""
Files on a disk that this machine mounts: a folder appears, moves and vanishes by one rename.

A user who can write to an output could put a symbolic link where we list, write, rename or remove, and lead
us elsewhere. So each call goes from the root to its file folder by folder, and follows no link on its way: a
check of the whole path would be over before the path is used. Only the root, and what is above it, may be a
link.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO

from airflow_changefeed.exceptions import (
    ChangefeedError,
    OutputError,
    OutputNotWritableError,
    SymbolicLinkError,
    TransientError,
)
from airflow_changefeed.storage.errors import answering, full_error, is_full, is_refusal
from airflow_changefeed.storage.objects import OpenUpload, Receipt

#: The folder of an output for what is not data; readers of Parquet skip names that begin with "_".
CONTROL = "_changefeed"
#: The folder of what is being removed, below the root.
TRASH = f"{CONTROL}/removed"
_TRIES = 100
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}")
_LIST = os.O_RDONLY | os.O_DIRECTORY
# On Linux a folder on the way need not be readable.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY


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
        remedy = "give the export its own writable folder"
        if problem.errno == errno.EXDEV:
            remedy = "an output must lie on one file system, so mount all of it, not a folder in it"
        raise OutputNotWritableError(
            f"output path {path} cannot be written: {said}; {remedy}", path=path
        ) from problem


def _looking(path: str) -> contextlib.AbstractContextManager[None]:
    """Map what the operating system refuses to ours: a name that is too long, a folder for a file, rights."""
    return answering(path, ours=(FileNotFoundError, NotADirectoryError, ChangefeedError))


def _never_there(path: str) -> OutputNotWritableError:
    there = _deepest(os.path.dirname(path))
    return OutputNotWritableError(
        f"{path} cannot be created: a folder cannot be created in {there}, or disappears. Check the "
        "path and its mounts",
        path=path,
    )


def _deepest(path: str) -> str:
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def link_error(path: str) -> SymbolicLinkError:
    """Return the error for a symbolic link in an output."""
    return SymbolicLinkError(
        f"{path} is a symbolic link, and links below the root of an output are not followed: a user who "
        "can write there could redirect the export to other files. Remove the link. To keep the files "
        "elsewhere, mount that place as the root of the output, or make it the root, which may be a "
        "link",
        path=path,
    )


def _open(name: str, flags: int, folder: int, path: str) -> int:
    """Open a name in an open folder; ``path`` is the same, for messages."""
    try:
        # Non-blocking: somebody may have put a pipe there, to which nobody writes.
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=folder)
    except OSError as problem:
        # Of a link the system says one of these.
        if problem.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(_status(name, folder)):
            raise link_error(path) from None
        raise


def _status(name: str, folder: int) -> os.stat_result:
    """Return what the system knows of a name in an open folder; of a link, not of where it leads."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _is_link(status: os.stat_result) -> bool:
    return stat.S_ISLNK(status.st_mode)


def _discard(name: str, folder: int) -> None:
    """Remove a file, a link, or a folder with its content from an open folder; what is refused stays."""
    with contextlib.suppress(OSError, RecursionError):
        try:
            inside = os.open(name, _LIST | os.O_NOFOLLOW, dir_fd=folder)
        except OSError:
            os.unlink(name, dir_fd=folder)
            return
        try:
            for each in os.listdir(inside):
                _discard(each, inside)
        finally:
            os.close(inside)
        os.rmdir(name, dir_fd=folder)


class LocalFiles:
    """
    Files on a disk that this machine mounts; every path is the root or below it.

    A symbolic link below the root is a :class:`~airflow_changefeed.exceptions.SymbolicLinkError` where it is
    met; but :meth:`remove` removes it, and :meth:`sizes` passes over it.

    :param root: absolute path.
    :param url: the root as the user wrote it; None for the path alone.
    """

    moves_folders = True
    has_uploads = False

    def __init__(self, root: str, url: str | None = None) -> None:
        self.root = root.rstrip("/") or "/"
        self._url = (self.root if url is None else url).rstrip("/")
        # Once: where it is a link, all that we do goes to one place.
        self._real = os.path.realpath(self.root)

    # ---- the way to a file

    @contextmanager
    def _folder(self, path: str, flags: int = _PASS, *, make: bool = False) -> Iterator[int]:
        """Open a folder; FileNotFoundError if it is made and somebody prunes a parent at the same time."""
        way = self.root.rstrip("/")
        parts = [part for part in path[len(way) :].split("/") if part]
        if not f"{path}/".startswith(f"{way}/") or ".." in parts:
            raise self._outside(path)
        if make and not os.path.isdir(self._real):
            os.makedirs(self._real, exist_ok=True)
        folder = os.open(self._real, _PASS if parts else flags)
        try:
            for number, part in enumerate(parts, 1):
                way = f"{way}/{part}"
                inner = self._step(part, flags if number == len(parts) else _PASS, folder, way, make=make)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)

    @staticmethod
    def _step(name: str, flags: int, folder: int, path: str, *, make: bool) -> int:
        try:
            return _open(name, flags, folder, path)
        except FileNotFoundError:
            if not make:
                raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=folder)
        return _open(name, flags, folder, path)

    @contextmanager
    def _beside(self, path: str, *, make: bool = False) -> Iterator[tuple[str, int]]:
        """Open the folder that a path lies in; give the path's name in it, and the folder."""
        parent, _, name = path.rpartition("/")
        if name == "..":
            raise self._outside(path)
        with self._folder(parent, make=make) as folder:
            yield name, folder

    def _outside(self, path: str) -> OutputError:
        return OutputError(f"{path} does not lie below {self.root}", path=path)

    def _open_file(self, path: str, flags: int) -> int:
        """Open a file, and make its folder if it is to be created; for Python's ``open``."""
        with self._beside(path, make=bool(flags & os.O_CREAT)) as (name, folder):
            return _open(name, flags, folder, path)

    def _find(self, path: str) -> os.stat_result | None:
        """Return what the system knows of a file, folder or link; None if it does not exist."""
        with _looking(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if path == self.root:
                return os.stat(self._real)
            with self._beside(path) as (name, folder):
                return _status(name, folder)
        return None

    def _check(self, path: str) -> os.stat_result | None:
        """Return what the system knows of a file or folder; refuse a link."""
        found = self._find(path)
        if found is not None and _is_link(found):
            raise link_error(path)
        return found

    def _below(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield files and links below a folder, by path relative to it; none if it does not exist."""
        waiting = [""]
        while waiting:
            inside = waiting.pop()
            path = f"{folder}/{inside}".rstrip("/")
            # Anything may vanish meanwhile: another attempt is being cleaned up.
            with (
                _looking(path),
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                self._folder(path, _LIST) as opened,
                os.scandir(opened) as entries,
            ):
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{inside}{entry.name}/")
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        yield f"{inside}{entry.name}", entry.stat(follow_symlinks=False)

    # ---- what is there

    def url(self, path: str) -> str:
        """
        Return a path in the form that Spark and other readers use, which follow links.

        :raises SymbolicLinkError: it is one at this moment, or lies behind one.
        """
        self._check(path)
        return self._url + path.removeprefix(self.root.rstrip("/"))

    def names(self, folder: str) -> list[str]:
        with (
            _looking(folder),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            self._folder(folder, _LIST) as opened,
        ):
            return sorted(os.listdir(opened))
        return []

    def sizes(self, folder: str) -> dict[str, int]:
        return {path: found.st_size for path, found in self._below(folder) if not _is_link(found)}

    def links(self, folder: str) -> list[str]:
        try:
            return sorted(f"{folder}/{path}" for path, found in self._below(folder) if _is_link(found))
        except SymbolicLinkError as problem:
            return [problem.facts["path"]]

    def exists(self, path: str) -> bool:
        return self._check(path) is not None

    def size(self, path: str) -> int | None:
        found = self._check(path)
        return found.st_size if found is not None and stat.S_ISREG(found.st_mode) else None

    def read(self, path: str) -> bytes | None:
        with (
            _looking(path),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            self.reader(path) as file,
        ):
            return file.read()
        return None

    def reader(self, path: str) -> BinaryIO:
        return open(path, "rb", opener=self._open_file)

    # ---- changes

    def write(self, path: str, content: bytes) -> None:
        for _ in range(_TRIES):
            # Not found: somebody pruned the folder just made, or a newer attempt removed what is not whole.
            with (
                writing(path),
                contextlib.suppress(FileNotFoundError),
                self._beside(path, make=True) as (name, folder),
            ):
                temporary = f".{name}.{uuid.uuid4().hex[:8]}"
                try:
                    with open(temporary, "xb", opener=partial(_open, folder=folder, path=path)) as file:
                        file.write(content)
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                    return
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
                    raise
        raise _never_there(path)

    @contextmanager
    def writer(self, path: str) -> Iterator[Any]:
        with writing(path), self._create(path) as file:
            yield file

    def _create(self, path: str) -> BinaryIO:
        for _ in range(_TRIES):
            # Not found: somebody pruned the empty folder just made.
            with contextlib.suppress(FileNotFoundError):
                return open(path, "wb", opener=self._open_file)
        raise _never_there(path)

    def complete(self, path: str, receipt: Receipt, size: int) -> bool:
        """Refuse: files are renamed to their place, as :attr:`has_uploads` says."""
        raise io.UnsupportedOperation(f"{path} is on a disk, which needs no uploads")

    def uploads(self, folder: str) -> list[OpenUpload]:
        """Return none."""
        return []

    def abort(self, path: str, upload_id: str) -> None:
        """Nothing to do: there are no uploads."""

    def move(self, source: str, target: str) -> bool:
        with writing(target):
            for _ in range(_TRIES):
                if self._check(source) is None:
                    return False
                # Not found: the source is gone meanwhile, or somebody pruned the target's empty parent.
                with (
                    contextlib.suppress(FileNotFoundError),
                    self._beside(source) as (name, folder),
                    self._beside(target, make=True) as (new_name, new_folder),
                ):
                    os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)
                    return True
        raise _never_there(target)

    def swap_in(self, source: str, target: str) -> bool | None:
        try:
            return self.move(source, target) or None
        except OutputNotWritableError as problem:
            cause = problem.__cause__
            # rename(2) replaces an empty folder only: of two attempts at a unit one gets its place.
            if isinstance(cause, OSError) and cause.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise

    def remove(self, path: str) -> None:
        found = self._find(path)
        if found is None or not stat.S_ISDIR(found.st_mode):
            self.remove_file(path)
            return
        # First out of reach of its owner, who may still write to it; then piece by piece.
        condemned = uuid.uuid4().hex
        if self.move(path, f"{self._trash}/{condemned}"):
            self._empty_trash([condemned])

    def remove_file(self, path: str) -> None:
        with (
            writing(path),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            self._beside(path) as (name, folder),
        ):
            os.unlink(name, dir_fd=folder)

    @property
    def _trash(self) -> str:
        return f"{self.root}/{TRASH}"

    def sweep(self) -> None:
        self._empty_trash(self.names(self._trash))

    def _empty_trash(self, names: Iterable[str]) -> None:
        with contextlib.suppress(FileNotFoundError), self._folder(self._trash) as trash:
            for name in names:
                _discard(name, trash)
        self.prune(self._trash, self.root)

    def prune(self, folder: str, upto: str) -> None:
        while folder.startswith(f"{upto}/"):
            try:
                with self._beside(folder) as (name, parent):
                    os.rmdir(name, dir_fd=parent)
            except FileNotFoundError:
                pass
            except OSError:
                return
            folder = os.path.dirname(folder)

    def check_writable(self) -> None:
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
