# SPDX-License-Identifier: Apache-2.0
"""What remote file systems say becomes our errors, without secrets."""

from __future__ import annotations

import errno
import json
from typing import Any, cast
from urllib.parse import quote, quote_plus

import pytest
import requests
from botocore.exceptions import IncompleteReadError, ParamValidationError, ProfileNotFound

from airflow_changefeed.exceptions import ChangefeedError, OutputNotWritableError, TransientError
from airflow_changefeed.storage.errors import check_path, harmless, secrets_of
from airflow_changefeed.storage.files import open_files
from airflow_changefeed.storage.remote import RemoteFiles
from tests.unit.export.faults import remote_files

SECRET = "hunter2-hunter2"
OPTIONS = {"key": "AKIA", "client_kwargs": {"password": SECRET, "numbers": [1, "fourmore"]}}


class EndpointConnectionError(Exception):
    """Named as the one of a cloud's client."""


class ClientError(Exception):
    """Named as the one of a cloud's client, with the status that it carries."""

    def __init__(self, text: str, status: int = 403) -> None:
        super().__init__(text)
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class ClientPayloadError(Exception):
    """Named as the one of aiohttp where a body is cut off."""


def _of(status: int, number: int, text: str = "An error occurred") -> OSError:
    """What s3fs makes of an answer: an error with a number, and the answer as its cause."""
    error = OSError(number, "An error occurred")
    error.__cause__ = ClientError(text, status)
    return error


class Refusing:
    """The outermost edge: a store that answers everything with one error."""

    protocol = "refusing"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def invalidate_cache(self) -> None:
        """Nothing is kept."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: object, **__: object) -> Any:
            raise self.error

        return refuse


def _calls(files: RemoteFiles) -> list[Any]:
    return [
        lambda: files.names("b/x"),
        lambda: files.sizes("b/x"),
        lambda: files.exists("b/x"),
        lambda: files.read("b/x"),
        lambda: files.write("b/x", b""),
        lambda: files.writer("b/x").__enter__(),
        lambda: files.reader("b/x"),
        lambda: files.move("b/x", "b/y"),
        lambda: files.remove("b/x"),
    ]


def _of_requests(status: int) -> Exception:
    """Return what file systems raise that speak HTTP by requests, such as WebHDFS."""
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(f"{status} for url", response=response)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ClientError(f"key {SECRET} is not known"), OutputNotWritableError),
        (PermissionError(f"https://me:{SECRET}@host/b?sig={SECRET}"), OutputNotWritableError),
        (EndpointConnectionError(f"no answer from https://host/b?sig={SECRET}x"), TransientError),
        (TimeoutError("too long"), TransientError),
        (ClientError("SlowDown: reduce", 503), TransientError),
        (_of(500, errno.EREMOTEIO), TransientError),
        (_of(503, errno.EBUSY), TransientError),
        (_of(429, errno.EIO), TransientError),
        (_of(400, errno.EINVAL), OutputNotWritableError),
        (_of(403, errno.EIO), OutputNotWritableError),
        (OSError(errno.EREMOTEIO, "no cause given"), TransientError),
        (OSError(errno.EBUSY, "no cause given"), TransientError),
        (OSError("what nobody has thought of"), TransientError),
        (_of_requests(503), TransientError),
        (_of_requests(403), OutputNotWritableError),
        (ClientPayloadError("Response payload is not completed"), TransientError),
        (ConnectionResetError("cut"), TransientError),
        (OSError(errno.ENOSPC, "No space left"), TransientError),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), TransientError),
        (ClientError("XMinioStorageFull", 507), TransientError),
        (ClientError("XMinioAdminBucketQuotaExceeded: Bucket quota exceeded", 400), TransientError),
        (_of(403, errno.EACCES, "QuotaExceeded"), TransientError),
        (OSError("DSQuotaExceededException: The DiskSpace quota of /lake is exceeded"), TransientError),
        (OSError(errno.EFBIG, "File too large"), OutputNotWritableError),
        (OSError("Forbidden: https://host/b"), OutputNotWritableError),
        (PermissionError("Access Denied"), OutputNotWritableError),
        (type("NoCredentialsError", (Exception,), {})("Unable to locate"), OutputNotWritableError),
        (ParamValidationError(report="Invalid length for parameter RoleArn"), OutputNotWritableError),
        (ProfileNotFound(profile="lake"), OutputNotWritableError),
        (IncompleteReadError(actual_bytes=1, expected_bytes=2), TransientError),
        (TypeError("unexpected keyword"), OutputNotWritableError),
        (KeyError("region"), OutputNotWritableError),
    ],
)
def test_a_refusal_is_ours_and_tells_no_secret_and_an_outage_is_transient(
    error: Exception, kind: type[ChangefeedError]
) -> None:
    """
    Each call that the store refuses is an error of ours with the path. s3fs leaves a number and a cause of an
    answer, others a status or a name: a retry helps where the store failed, a person where it refused, or
    where we asked in a wrong way.
    """
    files = RemoteFiles(Refusing(error), "b", tuple(secrets_of(OPTIONS)))
    for call in _calls(files):
        with pytest.raises(kind, match=r"b/[xy]") as caught:
            call()
        assert type(caught.value) is kind
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__


def test_an_outage_of_the_look_at_a_completed_upload_is_transient() -> None:
    """Completed, but the answer was lost: the store knows no such upload, and then is not reached."""

    class Completed:
        def complete(self, *_: object) -> None:
            raise FileNotFoundError("NoSuchUpload") from ClientError("NoSuchUpload", 404)

        def size(self, path: str) -> int:
            raise EndpointConnectionError(path)

    files = remote_files()
    files.objects = cast(Any, Completed())
    with pytest.raises(TransientError, match="did not answer"):
        files.complete("b/x", {}, 1)


def test_a_bucket_that_is_not_there_is_named() -> None:
    """Writing where no bucket is gives an error of ours, not a file that nobody looks for."""
    files = RemoteFiles(Refusing(FileNotFoundError("The specified bucket does not exist")), "b")
    for call in (lambda: files.write("b/x", b""), lambda: files.writer("b/x").__enter__()):
        with pytest.raises(OutputNotWritableError, match="bucket does not exist"):
            call()


def test_a_secret_that_begins_with_another_one_is_masked_as_a_whole() -> None:
    """The longer one is masked first; otherwise the rest of it would be shown."""
    assert harmless("key abcdefgh", ["abcd", "abcdefgh"]) == "key ***"


def test_a_secret_is_not_told_however_it_is_written() -> None:
    """Stores repeat a request: there a secret stands as a URL, JSON or Python writes it."""
    secret = "a/b+c=&'\"\\d e"
    forms = [
        secret,
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        json.dumps(secret),
        repr(secret),
    ]
    for form in forms:
        files = RemoteFiles(Refusing(ClientError(f"refused: <{form}>")), "b", (secret,))
        with pytest.raises(OutputNotWritableError, match=r"""refused: <['"]?\*\*\*['"]?>"""):
            files.read("b/x")


def test_a_file_that_cannot_be_written_on_is_ours_and_other_errors_stay() -> None:
    """The store's refusal in the middle of a file is told from the error of who writes it."""
    files = remote_files()
    with pytest.raises(LookupError, match="source"), files.writer(f"{files.root}/a"):
        raise LookupError("source")
    with files.writer(f"{files.root}/a") as file:
        file._file = Refusing(ClientError("no space"))
        with pytest.raises(OutputNotWritableError, match="no space"):
            file.write(b"1")
        file._file = type("Closed", (), {"close": lambda self: None})()


@pytest.mark.parametrize(
    "path",
    [
        f"ftp://me:{SECRET}@host/out",
        f"ftp://me:{SECRET}@2@host:21/out",
        f"sftp://:{SECRET}@host",
        f"simplecache::ftp://me:{SECRET}/x@host/out",
    ],
)
def test_a_path_with_a_secret_is_refused_unseen(path: str) -> None:
    """A secret in the path is an error before anything is opened, which names the remedy, not the path."""
    with pytest.raises(OutputNotWritableError, match="path_conn_id") as caught:
        open_files(path)
    assert SECRET not in str(caught.value) + repr(caught.value.facts)


@pytest.mark.parametrize(
    "path",
    [
        "/data/out",
        "/data/a:b@c",
        "s3://bucket/a:b@c",
        "hdfs://host:9000/a@b",
        "abfs://container@account.dfs.core.windows.net/out",
        "sftp://me@host:22/out",
        "hdfs://[::1]:9000/out",
        "memory://out",
    ],
)
def test_a_path_without_a_secret_is_not_refused(path: str) -> None:
    """Ports, containers, users and colons in folders are no secrets."""
    check_path(path)


def test_whatever_opening_says_is_ours() -> None:
    """An archive that is missing, or a server that does not answer, is an error of ours."""
    with pytest.raises(OutputNotWritableError, match="FileNotFoundError"):
        open_files("zip://out::/nowhere/at/all.zip")
    with pytest.raises(TransientError, match="did not answer"):
        open_files("ftp://127.0.0.1:1/out", {"password": SECRET})
