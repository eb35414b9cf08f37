# SPDX-License-Identifier: Apache-2.0
"""Object stores and file systems without uploads, by fsspec: files are copied."""

from __future__ import annotations

import contextlib
import posixpath
from typing import Any

from airflow_changefeed.storage.objects import OpenUpload, Receipt


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
