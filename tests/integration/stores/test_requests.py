# SPDX-License-Identifier: Apache-2.0
"""What an export asks of S3: how often, where, and with which rights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from airflow_changefeed.core.plan import Plan
from airflow_changefeed.exceptions import OutputNotWritableError
from airflow_changefeed.export.result import take_result
from airflow_changefeed.export.run import run_here
from airflow_changefeed.export.store import ExportStore
from airflow_changefeed.export.verify import verify
from tests.integration.stores.proxy import Answer, Request
from tests.integration.stores.servers import BUCKET, Server
from tests.unit.export.faults import manifest_rows
from tests.unit.export.flights import FEED, Flights, hours

UNITS = 24
#: All requests of an export, from the plan to the result, for each of a day's units.
MOST_REQUESTS = 10
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@pytest.fixture
def day(tmp_path: Path) -> Flights:
    """Events in each hour of a day."""
    flights = Flights.create(tmp_path / "day.db")
    flights.add(10 * UNITS, 0, length=UNITS)
    return flights


def export(store: ExportStore, flights: Flights) -> Plan:
    """Export a day as an operator does, from the plan to the result."""
    plan = flights.plan(store, hours(0, UNITS))
    run_here(flights.source, store, plan, lambda line: None)
    assert take_result(store, plan.attempt) is not None
    return plan


def test_a_unit_takes_ten_requests_of_s3(s3_server: Server, day: Flights) -> None:
    """A day of hourly windows takes at most ten requests a window, all of them told, none to the bucket."""
    store = ExportStore("s3://out", FEED, files=s3_server.files())
    s3_server.proxy.requests.clear()
    export(store, day)
    asked = list(s3_server.proxy.requests)
    assert len(asked) <= MOST_REQUESTS * UNITS, _counted(asked)
    assert not [each for each in asked if each.path.strip("/") == BUCKET and not each.is_listing]
    assert manifest_rows(store) == 10 * UNITS
    assert verify(store) == []


def test_a_replaced_unit_takes_sixteen(s3_server: Server, day: Flights) -> None:
    """Replacing costs the copies that keep the old rows readable, and their removal."""
    store = ExportStore("s3://out", FEED, files=s3_server.files())
    export(store, day)
    s3_server.proxy.requests.clear()
    export(store, day)
    assert len(s3_server.proxy.requests) <= 16 * UNITS
    assert manifest_rows(store) == 10 * UNITS
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
        export(store, day)
        export(store, day)
        assert verify(store) == []


def test_rights_elsewhere_are_named(s3_server: Server, day: Flights) -> None:
    """An output outside what is granted is refused for good, with its path, before anything is written."""
    store = ExportStore("s3://out", FEED, files=s3_server.files("elsewhere"))
    with (
        s3_server.proxy.answering(lambda given: _only_below("granted/", given)),
        pytest.raises(OutputNotWritableError, match="elsewhere"),
    ):
        export(store, day)


def test_a_mistyped_bucket_is_not_made(s3_server: Server, day: Flights) -> None:
    """The error names it, and the store has no more buckets than before."""
    files = s3_server.files()
    files.root = files.root.replace(BUCKET, "mistyped")
    store = ExportStore("s3://out", FEED, files=files)
    with pytest.raises(OutputNotWritableError, match="mistyped"):
        export(store, day)
    assert files.system.ls("/", refresh=True) == [BUCKET]


def _counted(asked: list[Request]) -> Mapping[str, int]:
    """Return how often each kind of request was made; for people who look why a bound is broken."""
    kinds = [f"{each.method} {'LIST' if each.is_listing else ''}" for each in asked]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}
