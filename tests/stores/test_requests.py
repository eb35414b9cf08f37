# SPDX-License-Identifier: Apache-2.0
"""What an export asks of S3: how often, where, and with which rights."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.exceptions import OutputNotWritableError, TransientError
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.output.attempts import forget
from airflow_changefeed.output.store import ExportStore
from tests.exports import verify
from tests.stores.day import (
    DAY_ROWS,
    MOST_REQUESTS,
    MOST_REQUESTS_OF_A_REPLACEMENT,
    UNITS,
    counted,
    create_day,
    export_day,
    requests_of_a_day,
)
from tests.stores.proxy import Answer, Request
from tests.stores.servers import BUCKET, Server
from tests.unit.export.faults import manifest_rows, plain_rows
from tests.unit.export.flights import FEED, Flights, found_faults, hours
from tests.unit.export.test_commit import ROWS, World

_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flights:
    """Events in each hour of a day; after the first, units are committed together on fast machines, too."""
    monkeypatch.setattr("airflow_changefeed.output.commit._PAUSE", math.inf)
    return create_day(tmp_path / "day.db")


def test_a_unit_takes_ten_requests_of_s3(s3_server: Server, day: Flights) -> None:
    """A day of hourly windows takes at most ten requests a window, all of them told, none to the bucket."""
    store = ExportStore("s3://out", FEED, files=s3_server.files())
    asked = requests_of_a_day(s3_server, store, day)
    assert len(asked) <= MOST_REQUESTS * UNITS, counted(asked)
    assert not [each for each in asked if each.path.strip("/") == BUCKET and not each.is_listing]
    assert manifest_rows(store) == DAY_ROWS
    assert verify(store) == []


def test_a_replaced_unit_takes_sixteen(s3_server: Server, day: Flights) -> None:
    """Replacing costs the copies that keep the old rows readable, and their removal."""
    store = ExportStore("s3://out", FEED, files=s3_server.files())
    export_day(store, day)
    asked = requests_of_a_day(s3_server, store, day)
    assert len(asked) <= MOST_REQUESTS_OF_A_REPLACEMENT * UNITS, counted(asked)
    assert manifest_rows(store) == DAY_ROWS
    assert verify(store) == []


def _only_below(prefix: str, given: Request) -> Answer | None:
    """Refuse what a policy refuses that grants rights to one prefix of a bucket, and none to the bucket."""
    within = f"{given.path.strip('/').partition('/')[2]}" if not given.is_listing else given.query["prefix"]
    if given.is_listing and "prefix" not in given.query:
        within = ""
    return None if within.startswith(prefix) else Answer(403, {"Content-Type": "application/xml"}, _DENIED)


def test_rights_on_the_prefix_are_enough(s3_server: Server, day: Flights) -> None:
    """Whoever may use one prefix of a bucket exports, replaces and verifies there: nothing else is asked."""
    store = ExportStore("s3://out", FEED, files=s3_server.files("granted/out"))
    with s3_server.proxy.answering(lambda given: _only_below("granted/out/", given)):
        export_day(store, day, units=2)
        export_day(store, day, units=2)
        assert verify(store) == []


#: What a policy may lack: the right to list uploads, and the right to abort them.
LACKING: dict[str, Callable[[Request], bool]] = {
    "list": lambda given: given.method == "GET" and "uploads" in given.query,
    "abort": lambda given: given.method == "DELETE" and "uploadId" in given.query,
}


@pytest.mark.parametrize("lacking", LACKING)
def test_a_store_that_does_not_let_uploads_be_aborted_fails_no_export(
    s3_server: Server, flights: Flights, caplog: pytest.LogCaptureFixture, lacking: str
) -> None:
    """The export counts, a warning names the lifecycle rule, and verify and doctor say what they see."""
    world = World(s3_server.files(), flights)
    world.attempt()
    denied = Answer(403, {"Content-Type": "application/xml"}, _DENIED)
    with s3_server.proxy.answering(lambda given: denied if LACKING[lacking](given) else None):
        plan = flights.plan(world.store, hours(0, 2))
        run_here(flights.source, world.store, plan, lambda line: None)
        forget(world.store, [plan.attempt])
        assert manifest_rows(world.store) == len(plain_rows(world.files, FEED)) == ROWS
        assert [record.getMessage().count("lifecycle rule") for record in caplog.records] == [1]
        [left] = verify(world.store)
        [fault] = found_faults(world.store, flights.source.identity().id)
    assert left.kind is FaultKind.LEFTOVER
    assert ("could not check" in left.what) == ("could not check" in fault.what) == (lacking == "list")


def test_an_error_is_not_hidden_by_uploads_that_may_not_be_listed(
    s3_server: Server, flights: Flights
) -> None:
    """A store is busy at a manifest, and refuses to list uploads: a retry may help, and nothing stays."""
    world = World(s3_server.files(), flights)
    world.files.system.retries = 1
    busy = Answer(503, {}, b"<Error><Code>ServiceUnavailable</Code></Error>")

    def rule(given: Request) -> Answer | None:
        if LACKING["list"](given):
            return Answer(403, {"Content-Type": "application/xml"}, _DENIED)
        return busy if given.method == "PUT" and "/manifests/" in given.path else None

    plan = flights.plan(world.store, hours(0, 2))
    with s3_server.proxy.answering(rule), pytest.raises(TransientError):
        run_here(flights.source, world.store, plan, lambda line: None)
    assert world.files.names(world.store.layout.attempts) == []


def test_rights_elsewhere_are_named(s3_server: Server, day: Flights) -> None:
    """An output outside what is granted is refused for good, with its path, before anything is written."""
    store = ExportStore("s3://out", FEED, files=s3_server.files("elsewhere"))
    with (
        s3_server.proxy.answering(lambda given: _only_below("granted/", given)),
        pytest.raises(OutputNotWritableError, match="elsewhere"),
    ):
        export_day(store, day)


def test_a_mistyped_bucket_is_not_made(s3_server: Server, day: Flights) -> None:
    """The error names it, and the store has no such bucket afterwards."""
    files = s3_server.files()
    files.root = files.root.replace(BUCKET, "mistyped")
    store = ExportStore("s3://out", FEED, files=files)
    with pytest.raises(OutputNotWritableError, match="mistyped"):
        export_day(store, day)
    assert "mistyped" not in files.system.ls("/", refresh=True)
