# SPDX-License-Identifier: Apache-2.0
"""
The file operations that exports need, on local disks and, through fsspec, on object stores.

Local: a folder appears, moves and vanishes by one rename. Elsewhere a move is a copy and a delete of each
file, and what :class:`airflow_changefeed.output.store.ExportStore` promises is less
(docs/adr/0002-output-layout.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, BinaryIO, Protocol

from airflow_changefeed.exceptions import OutputNotWritableError
from airflow_changefeed.storage.aws import AWS
from airflow_changefeed.storage.azure import AZURE
from airflow_changefeed.storage.cloud import Cloud, made_once
from airflow_changefeed.storage.errors import answering, check_path, secrets_of
from airflow_changefeed.storage.google import GOOGLE
from airflow_changefeed.storage.local import LocalFiles
from airflow_changefeed.storage.objects import OpenUpload, Receipt
from airflow_changefeed.storage.remote import RemoteFiles

#: By the type of Airflow's connections that mean what they mean to its providers.
CLOUDS: Mapping[str, Cloud] = {
    "aws": AWS,
    **dict.fromkeys(("adls", "azure_data_lake", "wasb"), AZURE),
    "google_cloud_platform": GOOGLE,
}
_MAKERS = {maker.__name__: maker for cloud in CLOUDS.values() for maker in cloud.makers}


def made(storage_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options with the credentials that they describe (:func:`made_once`)."""
    return {
        name: made_once(_MAKERS[value["make"]], value)
        if isinstance(value, Mapping) and value.get("make") in _MAKERS
        else value
        for name, value in storage_options.items()
    }


_HADOOPS = {"wasb": "abfs", "wasbs": "abfss"}


class Files(Protocol):
    """
    A file system below the root of an output; paths are its own, without protocol.

    ``url`` gives them back with scheme and authority as the user wrote them for the root: Spark may know the
    storage by that name only, as ``s3a://`` or an account in ``abfs://``.
    """

    root: str
    #: Whether a folder with all its files moves at once.
    moves_folders: bool
    #: Whether files are uploaded to their place, and become visible when they are completed.
    has_uploads: bool

    def url(self, path: str) -> str:
        """
        Return a path in the form that Spark and other readers use.

        :raises SymbolicLinkError: it is a link, or lies behind one.
        """

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; empty if it does not exist."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of all files below a folder, by path relative to it."""

    def links(self, folder: str) -> list[str]:
        """Return the symbolic links below a folder, or the first one on the way to it: their paths."""

    def exists(self, path: str) -> bool:
        """Whether a file or folder exists."""

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if it does not exist."""

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file atomically: readers see the old or the new content."""

    def writer(self, path: str) -> contextlib.AbstractContextManager[Any]:
        """Open a new file for writing bytes."""

    def complete(self, path: str, receipt: Receipt, size: int) -> bool:
        """Make an uploaded file visible; False if it was aborted. Can be repeated."""

    def uploads(self, folder: str) -> list[OpenUpload]:
        """Return the uploads below a folder that are running or abandoned."""

    def abort(self, path: str, upload_id: str) -> None:
        """Abort an upload, so that it can never be completed."""

    def reader(self, path: str) -> BinaryIO:
        """Open a file for random reads; FileNotFoundError if it does not exist."""

    def move(self, source: str, target: str) -> bool:
        """Move a file or folder to a free path; False if it does not exist."""

    def swap_in(self, source: str, target: str) -> bool | None:
        """Move a folder to a path that is free or empty; False if it is not, None without a source."""

    def remove(self, path: str) -> None:
        """Remove a folder with its content, if it exists."""

    def remove_file(self, path: str) -> None:
        """Remove a file, if it exists."""

    def sweep(self) -> None:
        """Clean up after a killed :meth:`remove`."""

    def prune(self, folder: str, upto: str) -> None:
        """Remove a folder if it is empty, then its parents up to but not ``upto``."""

    def check_writable(self) -> None:
        """Raise OutputNotWritableError if the root cannot be written; leaves no files."""


def open_files(path: str, storage_options: Mapping[str, Any] | None = None) -> Files:
    """
    Open the file system of an output.

    :param path: local path or fsspec URL.
    :param storage_options: for fsspec; may hold secrets, and what
        :func:`~airflow_changefeed.storage.files.made` makes credentials of.
    :raises OutputNotWritableError: no such protocol, its package is not installed, or the path holds a
        secret.
    :raises TransientError: the file system could not be reached.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    check_path(path)
    _check_spelling(path)
    secrets = tuple(secrets_of(storage_options or {}))
    scheme = path.partition("://")[0]
    extra = next((cloud.extra for cloud in CLOUDS.values() if scheme in cloud.schemes), "")
    with answering(path, secrets, ours=(), extra=extra):
        system, root = url_to_fs(_known(path), **made(storage_options or {}))
    if isinstance(system, LocalFileSystem):
        return LocalFiles(root, path if path.startswith("file:") else None)
    return RemoteFiles(system, root, secrets, url=path)


def _check_spelling(path: str) -> None:
    """Refuse paths that would silently become local folders, such as ``s3:/lake``."""
    if not path.strip():
        raise OutputNotWritableError(
            "the output path is empty; expected a folder, or a URL such as s3://lake/feeds"
        )
    scheme, separator, rest = path.partition(":")
    is_known = "://" in path or scheme == "file" or len(scheme) == 1
    if separator and scheme.isalnum() and not is_known:
        meant = f"{scheme}://{rest.lstrip('/')}"
        raise OutputNotWritableError(
            f"output path {path!r} is neither a URL nor an absolute path; did you mean {meant!r}?",
            path=path,
        )


def _known(path: str) -> str:
    """Return a path with a scheme that fsspec knows: Hadoop's older scheme for Azure blobs is replaced."""
    scheme, separator, rest = path.partition("://")
    return f"{_HADOOPS.get(scheme, scheme)}{separator}{rest}"
