# SPDX-License-Identifier: Apache-2.0
"""Azure Blob Storage: files are lists of blocks."""

from __future__ import annotations

import base64
import contextlib
import uuid
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from airflow_changefeed.exceptions import TransientError
from airflow_changefeed.storage.objects import COPY_SECONDS, OpenUpload, Receipt, Upload, looks


class AzureObjects:
    """Azure's blobs, through adlfs and its Azure client."""

    has_uploads = True

    def __init__(self, system: Any) -> None:
        self._system = system

    def _wait(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        from fsspec.asyn import sync

        return sync(self._system.loop, work)

    def _split(self, path: str) -> tuple[str, str]:
        container, name, _ = self._system.split_path(path)
        return container, name.strip("/")

    def _blob(self, path: str) -> Any:
        container, name = self._split(path)
        return self._system.service_client.get_blob_client(container, name)

    def _container(self, path: str) -> tuple[Any, str]:
        container, name = self._split(path)
        return self._system.service_client.get_container_client(container), f"{name}/" if name else ""

    def names(self, folder: str) -> list[str]:

        async def work() -> list[str]:
            container, prefix = self._container(folder)
            found = container.walk_blobs(name_starts_with=prefix or None, delimiter="/")
            return [each.name[len(prefix) :].rstrip("/") async for each in found]

        return [name for name in self._wait(work) if name]

    def _list(self, folder: str) -> dict[str, int | None]:
        """Return the bytes of all blobs below a folder; None for a placeholder of a folder."""

        async def work() -> dict[str, int | None]:
            container, prefix = self._container(folder)
            found = container.list_blobs(name_starts_with=prefix or None, include=["metadata"])
            return {
                each.name[len(prefix) :]: None if _is_folder(each.metadata) else each.size
                async for each in found
            }

        return dict(self._wait(work))

    def sizes(self, folder: str) -> dict[str, int]:
        return {name: size for name, size in self._list(folder).items() if size is not None}

    def _properties(self, path: str) -> Any:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            return self._wait(self._blob(path).get_blob_properties)
        except ResourceNotFoundError:
            return None

    def size(self, path: str) -> int | None:
        properties = self._properties(path)
        return None if properties is None or _is_folder(properties.metadata) else int(properties.size)

    def read(self, path: str) -> bytes:
        return bytes(self._system.cat_file(path))

    def write(self, path: str, content: bytes) -> None:
        self._system.pipe_file(path, content)

    def delete(self, path: str) -> None:
        from azure.core.exceptions import ResourceNotFoundError

        with contextlib.suppress(ResourceNotFoundError):
            self._wait(self._blob(path).delete_blob)

    def copy(self, source: str, target: str) -> None:
        """Copy a file. Azure only begins the copy and reports its end later; adlfs does not wait for it."""
        from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

        url = self._blob(source).url
        try:
            self._wait(lambda: self._blob(target).start_copy_from_url(url))
        except ResourceNotFoundError:
            raise FileNotFoundError(source) from None
        except HttpResponseError as problem:
            # Another exporter is copying the same file to the same place.
            if _code(problem) != "PendingCopyOperation":
                raise
        for _ in looks(COPY_SECONDS):
            if (status := self._copy_status(target)) != "pending":
                break
        else:
            raise TransientError(
                f"the copy of {source} to {target} is incomplete after {COPY_SECONDS:.0f} seconds; retry"
            )
        if status != "success":
            raise TransientError(
                f"the copy of {source} to {target} ended with status {status or 'missing'}; retry"
            )

    def _copy_status(self, path: str) -> str | None:
        properties = self._properties(path)
        return properties.copy.status if properties is not None else None

    def drop(self, folder: str) -> None:
        """Remove an empty folder and the folders in it, deepest first."""
        folders = sorted((name for name, size in self._list(folder).items() if size is None), reverse=True)
        for name in folders:
            self.prune(f"{folder}/{name}")
        if folders:
            self.prune(folder)

    def prune(self, folder: str) -> bool:
        """Remove an empty folder, if the account has folders (a hierarchical namespace)."""
        from azure.core.exceptions import HttpResponseError

        try:
            self._wait(self._blob(folder).delete_blob)
        except HttpResponseError:
            # No such folder, as everywhere else, or not empty, which Azure refuses.
            return False
        return True

    def open(self, path: str) -> Upload:
        """Begin to stage blocks. A duplicate task uses other ids; all ids have one length."""
        blocks: list[str] = []

        def send(part: bytes) -> None:
            block = base64.b64encode(uuid.uuid4().bytes).decode()
            self._wait(lambda: self._blob(path).stage_block(block, part, length=len(part)))
            blocks.append(block)

        # Azure removes uncommitted blocks after a week.
        return Upload(send, lambda: {"blocks": list(blocks)}, lambda: None)

    def complete(self, path: str, receipt: Receipt) -> None:
        """Commit the list of blocks; safe to repeat."""
        from azure.core.exceptions import HttpResponseError
        from azure.storage.blob import BlobBlock

        blocks = [BlobBlock(block) for block in receipt["blocks"]]
        try:
            self._wait(lambda: self._blob(path).commit_block_list(blocks))
        except HttpResponseError as problem:
            if _code(problem) == "InvalidBlockList":
                raise FileNotFoundError(path) from None
            raise

    def uploads(self, folder: str) -> list[OpenUpload]:
        """Return nothing: Azure removes uncommitted blocks after a week."""
        return []

    def abort(self, path: str, upload_id: str) -> None:
        """Nothing to do, see :meth:`uploads`."""


def _code(problem: Exception) -> str:
    """Return Azure's code of an error."""
    code = getattr(problem, "error_code", None)
    return str(getattr(code, "value", code))


def _is_folder(metadata: Mapping[str, str] | None) -> bool:
    values = {name.lower(): value for name, value in (metadata or {}).items()}
    return "true" in (values.get("hdi_isfolder"), values.get("is_directory"))
