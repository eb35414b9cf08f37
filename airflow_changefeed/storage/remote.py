# SPDX-License-Identifier: Apache-2.0
"""The files of an output on an object store, or any other file system of fsspec."""

from __future__ import annotations

import contextlib
import io
import posixpath
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from airflow_changefeed.exceptions import ChangefeedError, TransientError
from airflow_changefeed.storage.aws import S3Objects
from airflow_changefeed.storage.azure import AzureObjects
from airflow_changefeed.storage.errors import answering
from airflow_changefeed.storage.objects import COPY_SECONDS, Objects, OpenUpload, Receipt, looks


class OtherObjects:
    """
    Any other file system of fsspec, through fsspec's own calls: files are copied to their path.

    :param has_folders: a file needs its folder to be there first.
    """

    has_uploads = False

    def __init__(self, system: Any, *, has_folders: bool) -> None:
        self._system = system
        self._has_folders = has_folders

    def _make_folder(self, path: str) -> None:
        if self._has_folders:
            self._system.makedirs(posixpath.dirname(path), exist_ok=True)

    def names(self, folder: str) -> list[str]:
        self._system.invalidate_cache()
        try:
            found = self._system.ls(folder, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = (path.rstrip("/") for path in found)
        return [posixpath.basename(name) for name in names if name.strip("/") != folder.strip("/")]

    def sizes(self, folder: str) -> dict[str, int]:
        prefix = f"{folder}/"
        self._system.invalidate_cache()
        found = self._system.find(folder, detail=True)
        return {path[len(prefix) :]: info["size"] for path, info in found.items() if path.startswith(prefix)}

    def size(self, path: str) -> int | None:
        self._system.invalidate_cache()
        try:
            info = self._system.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return info["size"] if info["type"] == "file" else None

    def read(self, path: str) -> bytes:
        return bytes(self._system.cat_file(path))

    def write(self, path: str, content: bytes) -> None:
        self._make_folder(path)
        self._system.pipe_file(path, content)

    def delete(self, path: str) -> None:
        self._system.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            self._system.rm_file(path)

    def copy(self, source: str, target: str) -> None:
        self._make_folder(target)
        self._system.cp_file(source, target)

    def drop(self, folder: str) -> None:
        """Remove an empty folder with the folders in it."""
        if self._has_folders:
            self._system.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                self._system.rm(folder, recursive=True)

    def prune(self, folder: str) -> bool:
        if not self._has_folders or self.names(folder):
            return False
        with contextlib.suppress(Exception):
            self._system.rmdir(folder)
        return True

    def open(self, path: str) -> Any:
        self._make_folder(path)
        return self._system.open(path, "wb")

    def complete(self, path: str, receipt: Receipt) -> None:
        """Refuse, as :attr:`has_uploads` says."""
        raise NotImplementedError(path)

    def uploads(self, folder: str) -> list[OpenUpload]:
        """Return none."""
        return []

    def abort(self, path: str, upload_id: str) -> None:
        """Nothing to do."""


#: Protocols of stores without folders, of those that are not S3 or Azure.
_FLAT = {"gs", "gcs"}


class _Remote:
    """A remote file being written or read; maps its errors, but not those of the writer or of its content."""

    def __init__(self, file: Any, answering_: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._file = file
        self._answering = answering_

    def write(self, content: Any) -> Any:
        with self._answering():
            return self._file.write(content)

    def read(self, *size: int) -> Any:
        with self._answering():
            return self._file.read(*size)

    def seek(self, *position: int) -> Any:
        with self._answering():
            return self._file.seek(*position)

    def __enter__(self) -> _Remote:
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
        self.objects = _open_objects(system)
        self.has_uploads = self.objects.has_uploads
        self._secrets = secrets
        self._url = url

    def _answering(self, path: str) -> contextlib.AbstractContextManager[None]:
        return answering(path, self._secrets)

    def _writing(self, path: str) -> contextlib.AbstractContextManager[None]:
        """The same, where only the bucket can be missing."""
        return answering(path, self._secrets, ours=(ChangefeedError,))

    @contextmanager
    def _sending(self, path: str) -> Iterator[None]:
        """The same, where only the upload can be missing."""
        try:
            with self._answering(path):
                yield
        except FileNotFoundError:
            raise TransientError(
                f"the upload to {path} was aborted by a newer attempt, or by the bucket's lifecycle rule for "
                "uploads; retry",
                path=path,
            ) from None

    def url(self, path: str) -> str:
        if self._url is None:
            return str(self.system.unstrip_protocol(path))
        return self._url.rstrip("/") + path.removeprefix(self.root)

    def names(self, folder: str) -> list[str]:
        with self._answering(folder), contextlib.suppress(FileNotFoundError):
            return sorted(set(self.objects.names(folder)))
        return []

    def sizes(self, folder: str) -> dict[str, int]:
        with self._answering(folder), contextlib.suppress(FileNotFoundError):
            return self.objects.sizes(folder)
        return {}

    def links(self, folder: str) -> list[str]:
        """Return none: stores have no links."""
        return []

    def exists(self, path: str) -> bool:
        return self.size(path) is not None or bool(self.names(path))

    def size(self, path: str) -> int | None:
        with self._answering(path):
            return self.objects.size(path)

    def read(self, path: str) -> bytes | None:
        with self._answering(path):
            try:
                return self.objects.read(path)
            except (FileNotFoundError, IsADirectoryError):
                return None

    def write(self, path: str, content: bytes) -> None:
        with self._writing(path):
            self.objects.write(path, content)

    @contextmanager
    def writer(self, path: str) -> Iterator[Any]:
        """Open a new file for writing bytes; with uploads it is invisible until it is completed."""
        with self._writing(path):
            file: Any = self.objects.open(path)
        sending = self._sending if self.has_uploads else self._writing
        try:
            yield _Remote(file, lambda: sending(path))
        except BaseException:
            # The source's error, or our own; it says more than an error of the close.
            with contextlib.suppress(Exception):
                getattr(file, "abandon", file.close)()
            raise
        with sending(path):
            file.close()

    def complete(self, path: str, receipt: Receipt, size: int) -> bool:
        with self._answering(path):
            try:
                self.objects.complete(path, receipt)
                return True
            except FileNotFoundError:
                pass
            # Completed already, before a crash; or aborted by a newer attempt. Not asked within the except:
            # an outage here would be judged by the 404 before it.
            return self.objects.size(path) == size

    def uploads(self, folder: str) -> list[OpenUpload]:
        """
        Return the uploads below a folder that are running or abandoned.

        :raises OutputNotWritableError: the right to list them is missing.
        """
        with self._answering(folder), contextlib.suppress(FileNotFoundError):
            return self.objects.uploads(folder)
        return []

    def abort(self, path: str, upload_id: str) -> None:
        with self._answering(path):
            self.objects.abort(path, upload_id)

    def reader(self, path: str) -> BinaryIO:
        with self._answering(path):
            self.system.invalidate_cache()
            file = self.system.open(path, "rb")
        return cast(BinaryIO, _Remote(file, lambda: self._answering(path)))

    def move(self, source: str, target: str) -> bool:
        """
        Move a file, or the files of a folder; False when there is nothing to move.

        A file that vanishes meanwhile was moved, or removed, by another exporter.
        """
        below = {f"/{name}": size for name, size in self.sizes(source).items()}
        if not below and (own := self.size(source)) is not None:
            below = {"": own}
        moved = [end for end, each in below.items() if self._copy(f"{source}{end}", f"{target}{end}", each)]
        # Only now: a reader that looks at both places always finds one.
        for end in moved:
            self.remove_file(f"{source}{end}")
        return bool(moved)

    def _copy(self, source: str, target: str, size: int) -> bool:
        with self._answering(target):
            try:
                self.objects.copy(source, target)
            except FileNotFoundError:
                return False
        for _ in looks(COPY_SECONDS):
            if (copied := self.size(target)) == size:
                return True
            # Gone, source and copy: a newer attempt has removed both.
            if copied is None and self.size(source) is None:
                return False
        raise TransientError(
            f"the copy of {source} to {target} has {copied or 0} of {size} bytes after "
            f"{COPY_SECONDS:.0f} seconds; the source is unchanged; retry"
        )

    def swap_in(self, source: str, target: str) -> bool | None:
        """Refuse: an object store has no exclusive rename, as :attr:`moves_folders` says."""
        raise io.UnsupportedOperation(f"no folder can be renamed to {target}: {source} is on an object store")

    def remove(self, path: str) -> None:
        for name in self.sizes(path):
            self.remove_file(f"{path}/{name}")
        with self._answering(path):
            self.objects.drop(path)

    def remove_file(self, path: str) -> None:
        with self._answering(path):
            self.objects.delete(path)

    def sweep(self) -> None:
        """Nothing to do: a remove that was killed is repeated under the same names."""

    def prune(self, folder: str, upto: str) -> None:
        """Remove a folder if it is empty, where the store has folders at all."""
        with self._answering(folder):
            while folder.startswith(f"{upto}/") and self.objects.prune(folder):
                folder = posixpath.dirname(folder)

    def check_writable(self) -> None:
        """Do nothing: an object store only shows it when it is written to, by claiming the output."""


def _open_objects(system: Any) -> Objects:
    """Return what speaks to the store of an fsspec file system."""
    protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    if "s3" in protocols and hasattr(system, "call_s3"):
        return S3Objects(system)
    if "abfs" in protocols and hasattr(system, "service_client"):
        return AzureObjects(system)
    return OtherObjects(system, has_folders=not protocols & _FLAT)
