# SPDX-License-Identifier: Apache-2.0
"""What released versions have left is read, upgraded and gone on from."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from airflow.models import Variable
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from airflow_changefeed import CompletedExport, export_dataset, open_source, run_consumer, verify_export
from airflow_changefeed.core.consumer import DeadLetterState
from airflow_changefeed.core.cursor import CursorDocument, variable_prefix
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.recovery import VariableKind, variable_state
from airflow_changefeed.doctor.doctor import examine
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.hooks.changefeed import AirflowVariables
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.spark import export_job
from tests.minors import ICEBERG_CATALOG
from tests.tools.released.place import Left, left_by, versions
from tests.tools.released.scenario import (
    CAPTURE,
    FEED,
    FORMATS,
    HOUR,
    HOURS,
    START,
    Group,
    change_stock,
    export_hours,
    write_orders,
)
from tests.tools.released.write import command_keys
from tests.unit.airflow.fakes import LocalSpark

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("metadata")]
EACH_FORMAT = [pytest.param(name, marks=[ICEBERG_CATALOG] if name == "iceberg" else []) for name in FORMATS]


@pytest.fixture(params=versions())
def left(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Left]:
    """Put back what a version left: files, databases, and Airflow's Variables and connections."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    with left_by(request.param) as found:
        for name, value in found.connections().items():
            monkeypatch.setenv(name, value)
        for key, value in found.documents["variables"].items():
            Variable.set(key, value)
        yield found
        for key in AirflowVariables().keys(
            variable_prefix(SqliteFeedSource(str(found.database)).identity().id)
        ):
            Variable.delete(key)


@pytest.fixture
def source(left: Left) -> SqliteFeedSource:
    """Open the version's database."""
    return SqliteFeedSource(str(left.database))


def rows(left: Left, name: str) -> list[list[Any]]:
    """Return what an export gives, without the columns of ours."""
    found = export_dataset(left.lake(name), FEED).to_table(columns=["id", "item", "amount"]).to_pylist()
    return sorted(list(row.values()) for row in found)


def lake_ids(left: Left, name: str) -> list[int]:
    """Return what readers of a table of Delta Lake or Iceberg find."""
    if name == "delta":
        found = DeltaTable(ExportStore(left.lake(name), FEED).layout.data).to_pyarrow_table()
    else:
        properties = dict(left.catalog)
        table = load_catalog(properties.pop("name"), **properties).load_table("shop.orders")
        found = table.scan().to_arrow()
    return sorted(found["id"].to_pylist())


def test_what_was_left_is_read_and_verified(left: Left, source: SqliteFeedSource) -> None:
    """
    Outputs have all rows, and no file differs from its manifest; Variables say what the database says; a DAG
    that an old worker woke reads its event. The doctor finds nothing but a dead letter, which was left on
    purpose.
    """
    for name in FORMATS:
        assert rows(left, name) == left.documents["rows"][FEED]
        report = verify_export(left.lake(name), FEED)
        assert (report.faults, report.units) == ([], 2 * HOURS)
        exported = examine(
            source,
            AirflowVariables(),
            feed=FEED,
            consumer=f"warehouse_{name}",
            open_store=lambda feed, name=name: ExportStore(left.lake(name), feed),
        )
        assert exported.faults == ()
    assert [fault.kind.code for fault in examine(source).faults] == ["dead-letter"]
    for key, value in left.documents["variables"].items():
        found = CursorDocument.from_json(value, key=key)
        assert found.is_intact
        state = variable_state(source, AirflowVariables(), found.consumer, found.feed)
        assert (state.key, state.kind) == (key, VariableKind.EQUAL)
    for name, (extra,) in left.documents["extras"].items():
        done = CompletedExport.from_extra(extra)
        assert (done.feed, done.path, done.rows) == (FEED, left.lake(name), 2 * HOURS)
        assert len(done.each()) == HOURS
        ids = [row for batch in done.batches(["id"]) for row in batch["id"].to_pylist()]
        assert sorted(ids) == list(range(2 * HOURS))


def test_commands_print_the_keys_that_they_printed(left: Left) -> None:
    """Programs read them; there may be more."""
    found = command_keys()
    for name, keys in left.documents["commands"].items():
        assert set(keys) <= set(found[name]), name


@pytest.mark.parametrize("name", EACH_FORMAT)
def test_an_export_goes_on_beside_the_old_files(left: Left, source: SqliteFeedSource, name: str) -> None:
    """The next window, into the same output and table; cursor and Variable move."""
    write_orders(left, HOURS, HOURS + 1)
    export_hours(left, name, HOURS, HOURS + 1)
    expected = [*left.documents["rows"][FEED], *([n, f"item {n}", n / 4] for n in (2 * HOURS, 2 * HOURS + 1))]
    assert rows(left, name) == expected
    assert verify_export(left.lake(name), FEED, source=source).faults == []
    if name != "parquet":
        assert lake_ids(left, name) == [row[0] for row in expected]
    end = Ulid.floor(START + (HOURS + 1) * HOUR).previous()
    assert [row.ulid for row in source.cursors(FEED, f"warehouse_{name}")] == [end, end]
    assert variable_state(source, AirflowVariables(), f"warehouse_{name}", FEED).kind is VariableKind.EQUAL


def test_a_window_is_exported_again_over_the_old_files(left: Left) -> None:
    """It is the same rows; the old attempt no longer counts."""
    export_hours(left, "parquet", 0, HOURS, run="again")
    assert rows(left, "parquet") == left.documents["rows"][FEED]
    assert verify_export(left.lake("parquet"), FEED).faults == []


def test_jobs_of_old_tasks_are_run_and_finished(left: Left) -> None:
    """One that was planned by its spec, with the XComs of the old task; one that has run by its receipt."""
    pushed = left.documents["xcoms"]
    connection = JobConnection(open_source({"type": "sqlite", "path": str(left.database)}).describe())
    export_job.run_spec(LocalSpark, pushed["planned"]["spec_uri"], connection, lambda line: None)
    for name in ("planned", "submitted"):
        assert Group(left, name, pushed[name]).run("finish")["rows"] == 2 * HOURS
        assert rows(left, name) == left.documents["rows"][FEED]


def test_consumers_go_on_and_dead_letters_are_resolved(left: Left, source: SqliteFeedSource) -> None:
    """Events that were consumed do not come again; the parked one comes when a person says so."""
    (parked,) = source.dead_letters(FEED)
    assert source.invocations(FEED, "mailer")
    handled: list[int] = []
    source.resolve_dead_letter(parked.number, DeadLetterState.RETRY, by="tests")
    run_consumer(source, "mailer", FEED, lambda event, _: handled.append(event.row["id"]), at_head=True)
    assert sorted(handled) == [1, 2, 3, 5]
    assert source.dead_letters(FEED) == []


def test_a_capture_goes_on_recording(left: Left, source: SqliteFeedSource) -> None:
    """Its triggers are still there, also after the upgrade."""
    before = {status.shard: status.head for status in source.shards(CAPTURE)}
    source.refresh_capture(CAPTURE)
    change_stock(left, "update stock set amount = 100 where id = 2")
    source.drain(CAPTURE)
    after = {status.shard: status.head for status in source.shards(CAPTURE)}
    assert (after[0] != before[0], after[1] == before[1]) == (True, True)
    assert source.capture_gaps(CAPTURE) == []


def test_setting_up_again_upgrades_the_database(left: Left, source: SqliteFeedSource) -> None:
    """As people do after an upgrade of the package; nothing is lost, and nothing is done twice."""
    select = f'select * from "changefeed.feed:{FEED}" order by ulid'
    with closing(sqlite3.connect(left.database)) as connection:
        before = connection.execute(select).fetchall()
    source.install()
    source.set_up_feed(FEED)
    source.refresh_capture(CAPTURE)
    with closing(sqlite3.connect(left.database)) as connection:
        assert len(before) == 2 * HOURS
        assert connection.execute(select).fetchall() == before
