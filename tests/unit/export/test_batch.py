# SPDX-License-Identifier: Apache-2.0
"""Batches hold their leases, so that two of one consumer never export the same events."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.cursors import cursors
from airflow_changefeed.cursors import cursors as lease_module
from airflow_changefeed.exceptions import LeaseHeldError, LeaseLostError, OutputNotWritableError
from airflow_changefeed.export.batch import batch_leases
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.store import ExportStore
from tests.unit.export.consumers import CONSUMER, FEED, Warehouse, places


@pytest.fixture
def request_(tmp_path: Path) -> ExportRequest:
    """A batch of all shards."""
    return ExportRequest(FEED, str(tmp_path / "export"), CONSUMER, "first")


@pytest.fixture
def store(request_: ExportRequest) -> ExportStore:
    """The batch's output."""
    return ExportStore(request_.path, FEED)


def until(what: Callable[[], bool]) -> None:
    """Wait for something that happens in the background, and fail when it does not."""
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_second_batch_is_refused_while_the_first_runs(
    warehouse: Warehouse, request_: ExportRequest, store: ExportStore
) -> None:
    """Both would begin at the same cursor and export the same events under two names."""
    with (
        batch_leases(warehouse.source, request_, store),
        pytest.raises(
            LeaseHeldError, match=r"held by 'first#.* until .*Wait until then, or stop the holder"
        ) as caught,
        batch_leases(warehouse.source, request_, store),
    ):
        pass
    revoke = (
        f"consumer revoke {CONSUMER} --feed {FEED} --shard 0 --fencing-token {caught.value.row.fencing_token}"
    )
    assert revoke in caught.value.message
    with batch_leases(warehouse.source, request_, store) as (held, _):
        assert held.shards == [0, 1]


def test_a_batch_moves_the_cursor_with_the_leases_it_holds(
    warehouse: Warehouse, request_: ExportRequest, store: ExportStore
) -> None:
    """The next batch begins where the first one ended, and there is nothing left."""
    with batch_leases(warehouse.source, request_, store) as (held, leases):
        plan = make_plan(warehouse.source, store, held)
        done = {planned.unit.shard: [planned.unit.range] for planned in plan.units}
        rows = cursors.advance(
            warehouse.source, warehouse.variables, CONSUMER, FEED, done, by="first", leases=leases
        )
    assert plan.rows == 96
    assert places(rows) == {shard: ranges[0].upto for shard, ranges in done.items()}
    warehouse.check_published()
    with batch_leases(warehouse.source, request_, store) as (held, _):
        assert make_plan(warehouse.source, store, held).units == ()


def test_leases_are_renewed_for_as_long_as_the_batch_takes(
    warehouse: Warehouse,
    request_: ExportRequest,
    store: ExportStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch that takes longer than a lease keeps it, and moves the cursor with its token."""
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.6)
    with batch_leases(warehouse.source, request_, store) as (_, leases):
        expiries = set()

        def grants() -> int:
            expiries.update(row.lease_expires for row in warehouse.rows)
            return len(expiries)

        until(lambda: grants() > 4)
        assert leases.tokens == {row.shard: row.fencing_token for row in warehouse.rows}
        with pytest.raises(LeaseHeldError), batch_leases(warehouse.source, request_, store):
            pass
        row = warehouse.rows[0]
        head = warehouse.source.shards(FEED)[0].head
        done = {row.shard: [UlidRange(row.ulid, head)]}
        rows = cursors.advance(
            warehouse.source, warehouse.variables, CONSUMER, FEED, done, by="first", leases=leases
        )
    assert places(rows)[row.shard] == head


def test_a_batch_whose_lease_was_revoked_does_not_take_it_again(
    warehouse: Warehouse,
    request_: ExportRequest,
    store: ExportStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes on renewing the others, and moves nothing."""
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.3)
    with batch_leases(warehouse.source, request_, store) as (_, leases):
        warehouse.source.revoke_lease(CONSUMER, FEED, 0, fencing_token=leases.tokens[0])
        expiries = set()

        def renewals() -> int:
            expiries.update(row.lease_expires for row in warehouse.rows if row.shard != 0)
            return len(expiries)

        until(lambda: renewals() > 3)
        rows = {row.shard: row for row in warehouse.rows}
        assert rows[0].lease_holder is None
        head = warehouse.source.shards(FEED)[0].head
        done = {0: [UlidRange(rows[0].ulid, head)]}
        with pytest.raises(LeaseLostError):
            cursors.advance(
                warehouse.source,
                warehouse.variables,
                CONSUMER,
                FEED,
                done,
                by="first",
                leases=leases,
                timeout=0.1,
            )


def test_a_batch_that_lost_its_lease_moves_nothing(
    warehouse: Warehouse,
    request_: ExportRequest,
    store: ExportStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A holder that slept beyond its lease is refused, whatever it believes."""
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.05)
    monkeypatch.setattr(lease_module.HeldLeases, "start", lambda self: None)
    with batch_leases(warehouse.source, request_, store) as (_, leases):
        before = warehouse.rows
        expires = max(row.lease_expires for row in before if row.lease_expires is not None)
        until(lambda: warehouse.source.now() > expires)
        head = warehouse.source.shards(FEED)[0].head
        done = {0: [UlidRange(before[0].ulid, head)]}
        with pytest.raises(LeaseLostError):
            cursors.advance(
                warehouse.source,
                warehouse.variables,
                CONSUMER,
                FEED,
                done,
                by="first",
                leases=leases,
                timeout=0.1,
            )
    assert warehouse.places == places(before)


def test_a_refused_batch_leaves_no_consumer(warehouse: Warehouse, tmp_path: Path) -> None:
    """A consumer that has acknowledged nothing would hold back purging for ever."""
    (tmp_path / "file").write_text("no folder")
    path = str(tmp_path / "file" / "export")
    request = ExportRequest(FEED, path, CONSUMER, "first")
    with (
        pytest.raises(OutputNotWritableError),
        batch_leases(warehouse.source, request, ExportStore(path, FEED)),
    ):
        pass
    assert warehouse.source.cursors(FEED) == []
