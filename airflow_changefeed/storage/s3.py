# SPDX-License-Identifier: Apache-2.0
"""S3, and stores that speak its protocol: files are multipart uploads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from airflow_changefeed.storage.objects import OpenUpload, Receipt, Upload


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
        return {
            each["Key"][len(prefix) :]: each["Size"]
            for prefix, page in self._pages(folder)
            for each in page.get("Contents", ())
            if not each["Key"].endswith("/")
        }

    def size(self, path: str) -> int | None:
        try:
            return int(self._call("head_object", path)["ContentLength"])
        except FileNotFoundError:
            return None

    def read(self, path: str) -> bytes:
        """Return a file's content, by one request."""
        return bytes(self._system.cat_file(path, max_concurrency=1))

    def write(self, path: str, content: bytes) -> None:
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
        arguments = {"UploadId": receipt["id"], "MultipartUpload": {"Parts": receipt["parts"]}}
        self._call("complete_multipart_upload", path, **arguments)

    def uploads(self, folder: str) -> list[OpenUpload]:
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
        with contextlib.suppress(FileNotFoundError):
            self._call("abort_multipart_upload", path, UploadId=upload_id)


def _is_of_part(name: str) -> bool:
    """Whether the answer to a part has something that completing needs: its ETag, its checksums."""
    return name == "ETag" or (name.startswith("Checksum") and name != "ChecksumType")
