# SPDX-License-Identifier: Apache-2.0
"""
The operations that exports need of an object store, in few requests: one class for each kind of
store, and one for any other file system of fsspec.

A store with uploads lets a task send a file to the key where it stays, and the driver let it appear: on S3 by
completing a multipart upload, on Azure by committing a list of blocks (docs/adr/0002-output-layout.md).
Paths are fsspec's, without protocol. A missing source is ``FileNotFoundError``; all other errors are the
store's own, which :class:`airflow_changefeed.storage.remote.RemoteFiles` translates.
"""

from __future__ import annotations

import base64
import contextlib
import posixpath
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from airflow_changefeed.exceptions import TransientError

#: What completes an upload, as JSON values; it holds no secret.
Receipt = Mapping[str, Any]
#: S3 takes 10,000 parts, all of one size in some stores that speak its protocol: files of up to 160 GB.
PART_BYTES = 16 * 1024 * 1024
COPY_SECONDS = 600.0
_FLAT = {"gs", "gcs"}


class OpenUpload(NamedTuple):
    """An upload that was neither completed nor aborted."""

    path: str
    upload_id: str
    begun: datetime


class Objects(Protocol):
    """An object store."""

    #: Whether files can be sent to their place unseen, and appear at the commit.
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
        """Remove what is left of a folder once its files are gone, where the store has folders."""

    def prune(self, folder: str) -> bool:
        """Remove an empty folder, where the store has such; whether its parent may be empty now."""

    def open(self, path: str) -> Any:
        """Open a new file for writing: an :class:`Upload` that nobody sees, or one that is seen at once."""

    def complete(self, path: str, receipt: Receipt) -> None:
        """Let an uploaded file appear; ``FileNotFoundError`` when the upload was completed or aborted."""

    def uploads(self, folder: str) -> list[OpenUpload]:
        """Return the uploads below a folder that were neither completed nor aborted."""

    def abort(self, path: str, upload_id: str) -> None:
        """Remove what an upload has sent; harmless when it is over."""


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
        """Take bytes, and send what makes up whole parts."""
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
        """Send the rest; a file has one part at least."""
        if not self.closed:
            self.closed = True
            if self._waiting or not self._sent:
                self._send_part(bytes(self._waiting))
                self._waiting.clear()

    def abandon(self) -> None:
        """Give the file up."""
        self.closed = True
        self._abandon()

    @property
    def receipt(self) -> Receipt:
        """What completes it, once it is closed."""
        return self._receipt()


def open_objects(system: Any) -> Objects:
    """Return what speaks to an fsspec file system's store."""
    protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    if "s3" in protocols and hasattr(system, "call_s3"):
        return S3Objects(system)
    if "abfs" in protocols and hasattr(system, "service_client"):
        return AzureObjects(system)
    return AnyObjects(system, has_folders=not protocols & _FLAT)


class S3Objects:
    """S3 and what speaks its protocol, through s3fs."""

    has_uploads = True

    def __init__(self, system: Any) -> None:
        self._system = system

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        bucket, key, _ = self._system.split_path(path)
        return self._system.call_s3(method, Bucket=bucket, Key=key, **arguments)

    def _pages(self, folder: str, **arguments: Any) -> Iterator[tuple[str, Any]]:
        # Not s3fs's own ls: where nothing is, it lists the parent as well.
        bucket, key, _ = self._system.split_path(folder)
        prefix = f"{key}/" if key else ""
        more: dict[str, str] = {}
        while True:
            found = self._system.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, **arguments, **more)
            yield prefix, found
            if not found.get("IsTruncated"):
                return
            more = {"ContinuationToken": found["NextContinuationToken"]}

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a folder."""
        keys = [
            (prefix, key)
            for prefix, page in self._pages(folder, Delimiter="/")
            for key in (
                *(each["Key"] for each in page.get("Contents", ())),
                *(each["Prefix"] for each in page.get("CommonPrefixes", ())),
            )
        ]
        return [key[len(prefix) :].rstrip("/") for prefix, key in keys if key != prefix]

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of all files below a folder."""
        return {
            each["Key"][len(prefix) :]: each["Size"]
            for prefix, page in self._pages(folder)
            for each in page.get("Contents", ())
            if not each["Key"].endswith("/")
        }

    def size(self, path: str) -> int | None:
        """Return a file's bytes."""
        try:
            return int(self._call("head_object", path)["ContentLength"])
        except FileNotFoundError:
            return None

    def read(self, path: str) -> bytes:
        """Return a file's content, by one request."""
        return bytes(self._system.cat_file(path, max_concurrency=1))

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file at once."""
        self._system.pipe_file(path, content)

    def delete(self, path: str) -> None:
        """Remove a file, by itself: s3fs passes over what fails in a bulk delete."""
        self._call("delete_object", path)

    def copy(self, source: str, target: str) -> None:
        """Copy a file; S3 answers when it is done."""
        self._system.invalidate_cache()
        self._system.cp_file(source, target)

    def drop(self, folder: str) -> None:
        """Nothing to do: S3 has no folders."""

    def prune(self, folder: str) -> bool:
        """Nothing to do: S3 has no folders."""
        return False

    def open(self, path: str) -> Upload:
        """Begin a multipart upload, also of a small file: only so it appears at the commit."""
        upload_id = self._call("create_multipart_upload", path)["UploadId"]
        parts: list[dict[str, Any]] = []

        def send(part: bytes) -> None:
            number = len(parts) + 1
            answer = self._call("upload_part", path, UploadId=upload_id, PartNumber=number, Body=part)
            # S3 wants the checksums of an upload that was begun with an algorithm again to complete it.
            kept = {name: value for name, value in answer.items() if _is_of_part(name)}
            parts.append({"PartNumber": number, **kept})

        return Upload(
            send,
            lambda: {"id": upload_id, "parts": list(parts)},
            lambda: self.abort(path, upload_id),
        )

    def complete(self, path: str, receipt: Receipt) -> None:
        """Complete a multipart upload."""
        arguments = {"UploadId": receipt["id"], "MultipartUpload": {"Parts": receipt["parts"]}}
        self._call("complete_multipart_upload", path, **arguments)

    def uploads(self, folder: str) -> list[OpenUpload]:
        """Return the multipart uploads under way below a folder."""
        bucket, key, _ = self._system.split_path(folder)
        found: list[OpenUpload] = []
        more: dict[str, str] = {}
        while True:
            page = self._system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/", **more)
            found += [
                OpenUpload(f"{bucket}/{each['Key']}", each["UploadId"], each["Initiated"])
                for each in page.get("Uploads", ())
            ]
            if not page.get("IsTruncated"):
                return found
            more = {"KeyMarker": page["NextKeyMarker"]}
            if marker := page.get("NextUploadIdMarker"):
                more["UploadIdMarker"] = marker

    def abort(self, path: str, upload_id: str) -> None:
        """Abort a multipart upload."""
        with contextlib.suppress(FileNotFoundError):
            self._call("abort_multipart_upload", path, UploadId=upload_id)


def _is_of_part(name: str) -> bool:
    """Whether the answer to a part has something that completing needs: its ETag, its checksums."""
    return name == "ETag" or (name.startswith("Checksum") and name != "ChecksumType")


class AzureObjects:
    """Azure's blobs, through adlfs and the client of Azure that it holds."""

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
        """Return the names directly below a folder."""

        async def work() -> list[str]:
            container, prefix = self._container(folder)
            found = container.walk_blobs(name_starts_with=prefix or None, delimiter="/")
            return [each.name[len(prefix) :].rstrip("/") async for each in found]

        return [name for name in self._wait(work) if name]

    def _list(self, folder: str) -> dict[str, int | None]:
        """Return the bytes of all blobs below a folder; None for what only stands for a folder."""

        async def work() -> dict[str, int | None]:
            container, prefix = self._container(folder)
            found = container.list_blobs(name_starts_with=prefix or None, include=["metadata"])
            return {
                each.name[len(prefix) :]: None if _is_folder(each.metadata) else each.size
                async for each in found
            }

        return dict(self._wait(work))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of all files below a folder."""
        return {name: size for name, size in self._list(folder).items() if size is not None}

    def _properties(self, path: str) -> Any:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            return self._wait(self._blob(path).get_blob_properties)
        except ResourceNotFoundError:
            return None

    def size(self, path: str) -> int | None:
        """Return a file's bytes."""
        properties = self._properties(path)
        return None if properties is None or _is_folder(properties.metadata) else int(properties.size)

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        return bytes(self._system.cat_file(path))

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file at once."""
        self._system.pipe_file(path, content)

    def delete(self, path: str) -> None:
        """Remove a file."""
        from azure.core.exceptions import ResourceNotFoundError

        with contextlib.suppress(ResourceNotFoundError):
            self._wait(self._blob(path).delete_blob)

    def copy(self, source: str, target: str) -> None:
        """Copy a file: Azure only begins it, and says later how it ended. adlfs does not wait for that."""
        from azure.core.exceptions import HttpResponseError, ResourceNotFoundError

        url = self._blob(source).url
        try:
            self._wait(lambda: self._blob(target).start_copy_from_url(url))
        except ResourceNotFoundError:
            raise FileNotFoundError(source) from None
        except HttpResponseError as problem:
            # Another exporter copies the same file to the same place at this moment.
            if _code(problem) != "PendingCopyOperation":
                raise
        until = time.monotonic() + COPY_SECONDS
        pause = 0.05
        while (status := self._copy_status(target)) == "pending":
            if time.monotonic() > until:
                raise TransientError(
                    f"the copy of {source} to {target} is incomplete after {COPY_SECONDS:.0f} seconds; retry"
                )
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
        if status != "success":
            raise TransientError(
                f"the copy of {source} to {target} ended with status {status or 'missing'}; retry"
            )

    def _copy_status(self, path: str) -> str | None:
        properties = self._properties(path)
        return properties.copy.status if properties is not None else None

    def drop(self, folder: str) -> None:
        """Remove the folders in an empty folder, the deepest first, and itself."""
        folders = sorted((name for name, size in self._list(folder).items() if size is None), reverse=True)
        for name in folders:
            self.prune(f"{folder}/{name}")
        if folders:
            self.prune(folder)

    def prune(self, folder: str) -> bool:
        """Remove an empty folder of an account that has such (a hierarchical namespace)."""
        from azure.core.exceptions import HttpResponseError

        try:
            self._wait(self._blob(folder).delete_blob)
        except HttpResponseError:
            # No such folder, as everywhere else, or not empty, which Azure refuses.
            return False
        return True

    def open(self, path: str) -> Upload:
        """Begin to stage blocks; those of a task's twin have other ids, and all ids one length."""
        blocks: list[str] = []

        def send(part: bytes) -> None:
            block = base64.b64encode(uuid.uuid4().bytes).decode()
            self._wait(lambda: self._blob(path).stage_block(block, part, length=len(part)))
            blocks.append(block)

        # Azure removes blocks by itself that were not committed for a week.
        return Upload(send, lambda: {"blocks": list(blocks)}, lambda: None)

    def complete(self, path: str, receipt: Receipt) -> None:
        """Commit the list of blocks; done again it changes nothing."""
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
        """Return nothing: Azure removes blocks by itself that were not committed for a week."""
        return []

    def abort(self, path: str, upload_id: str) -> None:
        """Nothing to do, see :meth:`uploads`."""


def _code(problem: Exception) -> str:
    """Return Azure's own name of an error."""
    code = getattr(problem, "error_code", None)
    return str(getattr(code, "value", code))


def _is_folder(metadata: Mapping[str, str] | None) -> bool:
    values = {name.lower(): value for name, value in (metadata or {}).items()}
    return "true" in (values.get("hdi_isfolder"), values.get("is_directory"))


class AnyObjects:
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
        """Return the names directly below a folder."""
        self._system.invalidate_cache()
        try:
            found = self._system.ls(folder, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = (path.rstrip("/") for path in found)
        return [posixpath.basename(name) for name in names if name.strip("/") != folder.strip("/")]

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of all files below a folder."""
        prefix = f"{folder}/"
        self._system.invalidate_cache()
        found = self._system.find(folder, detail=True)
        return {path[len(prefix) :]: info["size"] for path, info in found.items() if path.startswith(prefix)}

    def size(self, path: str) -> int | None:
        """Return a file's bytes."""
        self._system.invalidate_cache()
        try:
            info = self._system.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return info["size"] if info["type"] == "file" else None

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        return bytes(self._system.cat_file(path))

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file at once."""
        self._make_folder(path)
        self._system.pipe_file(path, content)

    def delete(self, path: str) -> None:
        """Remove a file."""
        self._system.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            self._system.rm_file(path)

    def copy(self, source: str, target: str) -> None:
        """Copy a file."""
        self._make_folder(target)
        self._system.cp_file(source, target)

    def drop(self, folder: str) -> None:
        """Remove an empty folder with the folders in it."""
        if self._has_folders:
            self._system.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                self._system.rm(folder, recursive=True)

    def prune(self, folder: str) -> bool:
        """Remove an empty folder."""
        if not self._has_folders or self.names(folder):
            return False
        with contextlib.suppress(Exception):
            self._system.rmdir(folder)
        return True

    def open(self, path: str) -> Any:
        """Open a new file for writing."""
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
