# SPDX-License-Identifier: Apache-2.0
"""What is said to S3, call by call, where no server of the tests looks as closely as Amazon's."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_changefeed.storage.aws import S3Objects
from airflow_changefeed.storage.objects import PART_BYTES
from airflow_changefeed.storage.remote import OtherObjects
from tests.unit.export.faults import remote_files, uploading_files

BEGUN = datetime(2026, 1, 1, tzinfo=timezone.utc)


class S3:
    """The outermost edge: s3fs, which keeps what it is asked, and answers as Amazon does."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def split_path(self, path: str) -> tuple[str, str, None]:
        """Return bucket and key."""
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call_s3(self, method: str, **arguments: Any) -> Any:
        """Answer a call."""
        self.calls.append((method, arguments))
        return getattr(self, method)(**arguments)

    def create_multipart_upload(self, **_: Any) -> Any:
        """Begin."""
        return {"UploadId": "1"}

    def upload_part(self, *, PartNumber: int, **_: Any) -> Any:
        """Answer with a checksum, as where the upload was begun with an algorithm."""
        sums = {"ChecksumSHA256": f"sum{PartNumber}", "ChecksumType": "COMPOSITE"}
        return {"ETag": f"etag{PartNumber}", **sums, "ResponseMetadata": {"HTTPStatusCode": 200}}

    def complete_multipart_upload(self, **_: Any) -> Any:
        """Complete."""
        return {}

    def list_multipart_uploads(self, *, KeyMarker: str = "", **_: Any) -> Any:
        """Answer with two pages, without the marker that some stores leave out."""
        upload = {"Key": f"k/{KeyMarker}x", "UploadId": "1", "Initiated": BEGUN}
        more = {} if KeyMarker else {"IsTruncated": True, "NextKeyMarker": "next"}
        return {"Uploads": [upload], **more}


def test_parts_are_completed_with_their_checksums() -> None:
    """Amazon refuses to complete an upload with checksums whose parts are named without theirs."""
    system = S3()
    objects = S3Objects(system)
    upload = objects.open("b/k")
    upload.write(b"x" * (PART_BYTES + 1))
    upload.close()
    objects.complete("b/k", json.loads(json.dumps(upload.receipt)))
    method, arguments = system.calls[-1]
    assert method == "complete_multipart_upload"
    assert arguments["MultipartUpload"]["Parts"] == [
        {"PartNumber": 1, "ETag": "etag1", "ChecksumSHA256": "sum1"},
        {"PartNumber": 2, "ETag": "etag2", "ChecksumSHA256": "sum2"},
    ]


def test_an_upload_that_is_gone_counts_only_where_all_of_its_file_is_there() -> None:
    """It was completed before a crash; a file of another size is another one."""
    files = uploading_files()
    files.write(f"{files.root}/a", b"12345")
    assert files.complete(f"{files.root}/a", {"id": "gone"}, 5)
    assert not files.complete(f"{files.root}/a", {"id": "gone"}, 3)


def test_a_copy_counts_once_all_of_it_is_there() -> None:
    """A store may go on copying behind its answer, and the source goes after that."""
    files, seen = remote_files(), []

    class Slow(OtherObjects):
        """Copies the rest when somebody has looked."""

        def copy(self, source: str, target: str) -> None:
            self.write(target, self.read(source)[:1])

        def size(self, path: str) -> int | None:
            seen.append(super().size(path))
            if seen[-1] == 1:
                self.write(path, b"123")
            return seen[-1]

    files.objects = Slow(files.system, has_folders=True)
    files.write(f"{files.root}/a", b"123")
    assert files.move(f"{files.root}/a", f"{files.root}/b")
    assert seen == [3, 1, 3]


class Paged(S3):
    """With two uploads of one file on two pages, and a name a page."""

    def list_multipart_uploads(self, *, UploadIdMarker: str = "", **_: Any) -> Any:
        """Give the marker of the upload, too."""
        upload = {"Key": "k/x", "UploadId": UploadIdMarker or "1", "Initiated": BEGUN}
        more = {"IsTruncated": True, "NextKeyMarker": "k/x", "NextUploadIdMarker": "2"}
        return {"Uploads": [upload], **({} if UploadIdMarker else more)}

    def list_objects_v2(self, *, ContinuationToken: str = "", **_: Any) -> Any:
        """A page has a thousand at most."""
        more = {} if ContinuationToken else {"IsTruncated": True, "NextContinuationToken": "2"}
        return {"Contents": [{"Key": f"k/{ContinuationToken or 1}", "Size": 1}], **more}


@pytest.mark.timeout(20)
def test_uploads_of_one_file_may_be_on_two_pages() -> None:
    """The next page begins behind the last upload of the file; a store need not name an upload to go on."""
    system = S3()
    assert [each.path for each in S3Objects(system).uploads("b/k")] == ["b/k/x", "b/k/nextx"]
    assert [arguments.get("UploadIdMarker") for _, arguments in system.calls] == [None, None]
    assert [one.upload_id for one in S3Objects(Paged()).uploads("b/k")] == ["1", "2"]


def test_names_are_listed_to_the_last_page() -> None:
    """A page has a thousand at most."""
    assert S3Objects(Paged()).names("b/k") == ["1", "2"]
