# SPDX-License-Identifier: Apache-2.0
"""Stores that fail, cut off, hang, and answer before they are done: what a task says, and a retry makes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_changefeed.exceptions import TransientError
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.output.attempts import forget
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage import azure, remote
from airflow_changefeed.storage.remote import RemoteFiles
from tests.exports import verify
from tests.stores.proxy import Answer, Request
from tests.stores.servers import Server
from tests.unit.export.faults import manifest_rows, plain_rows
from tests.unit.export.flights import FEED, Flights, hours

ROWS = 12
_XML = {"Content-Type": "application/xml"}
_BODY = b"<Error><Code>%s</Code><Message>Please try again</Message></Error>"
ANSWERS = {
    "503": Answer(503, _XML, _BODY % b"ServiceUnavailable"),
    "no answer": Answer(200, _XML, b"x" * 100, cut=0),
    "cut": Answer(200, _XML, b"<ListBucketResult>" + b" " * 1000, cut=20),
}
#: What an export on S3 does, each by its request.
REQUESTS: dict[str, Callable[[Request], bool]] = {
    "everything": lambda given: True,
    "a listing": lambda given: given.is_listing,
    "the begin of an upload": lambda given: "uploads" in given.query and given.method == "POST",
    "a part": lambda given: "partNumber" in given.query,
    "the completion": lambda given: "uploadId" in given.query and given.method == "POST",
    "a manifest": lambda given: given.method == "PUT" and "/manifests/" in given.path,
}


def export(files: RemoteFiles, flights: Flights) -> None:
    """Export two hours, one of them empty."""
    store = ExportStore("remote://out", FEED, files=files)
    plan = flights.plan(store, hours(0, 2))
    run_here(flights.source, store, plan, lambda line: None)
    forget(store, [plan.attempt])


def check_whole(files: RemoteFiles) -> None:
    """Check that all rows are there once, by manifests and by listing, and nothing is left of the dead."""
    store = ExportStore("remote://out", FEED, files=files)
    assert manifest_rows(store) == len(plain_rows(files, FEED)) == ROWS
    assert list(store.uploads()) == []
    assert verify(store) == []


@pytest.fixture
def s3_files(s3_server: Server) -> RemoteFiles:
    """A new output on S3, whose client does not try again by itself."""
    files = s3_server.files()
    files.system.retries = 1
    return files


#: Ways to fail, at whatever comes first and at what counts most. Which answers may pass says
#: ``tests/unit/export/test_remote.py``.
CASES = [
    ("everything", "503"),
    ("everything", "no answer"),
    ("a listing", "cut"),
    ("the begin of an upload", "503"),
    ("a part", "503"),
    ("the completion", "503"),
    ("a manifest", "503"),
]


@pytest.mark.parametrize(("what", "how"), CASES)
def test_an_outage_is_transient_and_a_retry_mends_it(
    s3_server: Server, s3_files: RemoteFiles, flights: Flights, what: str, how: str
) -> None:
    """Whatever fails of a replacement, a retry mends it; readers of manifests have all rows meanwhile."""
    export(s3_files, flights)

    def fail(given: Request) -> Answer | None:
        return ANSWERS[how] if REQUESTS[what](given) else None

    with s3_server.proxy.answering(fail), pytest.raises(TransientError):
        export(s3_files, flights)
    assert manifest_rows(ExportStore("remote://out", FEED, files=s3_files)) == ROWS
    assert len(plain_rows(s3_files, FEED)) in (0, ROWS)
    export(s3_files, flights)
    check_whole(s3_files)


def test_a_store_that_hangs_is_left(s3_server: Server) -> None:
    """The client's own timeout ends a request that is never answered; the error may pass."""
    files = s3_server.files(config_kwargs={"retries": {"max_attempts": 1}, "read_timeout": 1})
    files.system.retries = 1
    over = threading.Event()

    def hang(given: Request) -> Answer | None:
        over.wait(30)
        return ANSWERS["no answer"]

    with s3_server.proxy.answering(hang):
        try:
            with pytest.raises(TransientError):
                files.write(f"{files.root}/a", b"1")
        finally:
            over.set()


def _copies(status: str) -> Callable[[Request, Answer], Answer]:
    """Answer every copy with a status, as Azure does while it copies."""

    def change(given: Request, answer: Answer) -> Answer:
        headers = {
            name: status if name.lower() == "x-ms-copy-status" else value
            for name, value in answer.headers.items()
        }
        return replace(answer, headers=headers)

    return change


@pytest.mark.parametrize("status", ["pending", "failed", "aborted"])
def test_a_source_outlives_a_copy_that_is_not_done(
    azure_server: Server, flights: Flights, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """Azure only begins a copy: while it is under way, and where it fails, the source is what there is."""
    files = azure_server.files()
    export(files, flights)
    monkeypatch.setattr(azure, "COPY_SECONDS", 0.3)
    with azure_server.proxy.answering(change=_copies(status)), pytest.raises(TransientError, match="copy"):
        export(files, flights)
    assert len(plain_rows(files, FEED)) == manifest_rows(ExportStore("x", FEED, files=files)) == ROWS
    export(files, flights)
    check_whole(files)


def test_a_copy_that_takes_its_time_is_waited_for(azure_server: Server, flights: Flights) -> None:
    """A copy that is pending for a few looks ends as any other, and its source is there until then."""
    files = azure_server.files()
    export(files, flights)
    looks: list[Request] = []
    removed_early: list[Request] = []

    def late(given: Request, answer: Answer) -> Answer:
        if given.method == "DELETE" and "/changefeed_unit=" in given.path and len(looks) < 3:
            removed_early.append(given)
        if given.method == "HEAD" and "/attempts/" in given.path and len(looks) < 3:
            looks.append(given)
            return _copies("pending")(given, answer)
        return answer

    with azure_server.proxy.answering(change=late):
        export(files, flights)
    assert len(looks) == 3
    assert removed_early == []
    check_whole(files)


def test_a_copy_that_is_shorter_is_not_taken_for_whole(
    s3_files: RemoteFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a store answers before its copy is whole, the source stays until it is."""
    monkeypatch.setattr(remote, "COPY_SECONDS", 0.3)
    source, target = f"{s3_files.root}/a", f"{s3_files.root}/b"
    s3_files.write(source, b"whole")
    monkeypatch.setattr(s3_files.objects, "copy", lambda _, to: s3_files.write(to, b"wh"))
    with pytest.raises(TransientError, match="2 of 5 bytes"):
        s3_files.move(source, target)
    assert s3_files.read(source) == b"whole"
