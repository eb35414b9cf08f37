# SPDX-License-Identifier: Apache-2.0
"""What the list of feeds says is wrong, with what mends it, and what has not run yet."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.models.backfill import DagNonPeriodicScheduleException, _create_backfill
from airflow.utils.state import DagRunState

from airflow_changefeed import window_params
from airflow_changefeed.consumers.run import Backoff, run_consumer
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.completeness import MissingRange, Why
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, OnPoison, OutputCheck
from airflow_changefeed.core.fault import Examination, Fault, FaultKind, Limits
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors.cursors import advance
from airflow_changefeed.doctor.output import output_check
from airflow_changefeed.exceptions import PermissionDeniedError
from airflow_changefeed.plugins import actions
from airflow_changefeed.plugins.connections import MOST_EACH
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.browser.exports import Nowhere
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.page import CONN_ID, Visitor, add_run, listed, pause, remove_runs, store_export

pytestmark = since("3.1", "the page")

HOUR = timedelta(hours=1)
DAG_ID = "page_overview"


@pytest.fixture(autouse=True)
def stored(server: None, source: SqliteFeedSource, tmp_path: Path) -> Iterator[None]:
    """Give a DAG that exports hours of a feed with ordered events, and of one that is not there."""
    store_export(
        DAG_ID,
        "0 * * * *",
        {"task_id": FEED, "path": str(tmp_path / "out"), "unit": HOUR},
        {"task_id": "gone", "feed": "nyc.Gone", "path": str(tmp_path / "gone"), "unit": HOUR},
    )
    source.drain(FEED)
    pause(DAG_ID, is_paused=False)
    yield
    remove_runs(DAG_ID)


BY = f"{DAG_ID}/a run/export/1"


def begin(source: SqliteFeedSource, consumer: str = CONSUMER, by: str = BY) -> None:
    """Let a run of the DAG begin the export, and complete nothing."""
    start = Ulid.floor(START).previous()
    source.begin_consumer(consumer, FEED, dict.fromkeys((0, 1), start), by=by)


def leave_out(source: SqliteFeedSource, by: str) -> None:
    """Let a run complete all of six hours but the second and third."""
    begin(source, by=by)
    source.seal(FEED, START + 6 * HOUR)
    first, hole, back, last = (Ulid.floor(START + hours * HOUR).previous() for hours in (0, 1, 3, 6))
    done = [UlidRange(first, hole), UlidRange(back, last)]
    advance(source, Nowhere(), CONSUMER, FEED, dict.fromkeys((0, 1), done), by=by)


def troubles(role: str = "OP") -> dict[str, dict[str, Any]]:
    """Return the troubles of the feed, by code."""
    return {one["code"]: one for one in listed(role=role)["troubles"]}


def reasons(role: str) -> list[dict[str, Any]]:
    """Return the troubles of the feed with all reasons why its consumers are late."""
    return list(Visitor(role).ask("reasons", conn_id=CONN_ID, feed=FEED)["troubles"])


def test_a_paused_dag_of_a_late_export_is_a_trouble_with_its_mend(
    source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the task that exports, though a person moved the cursor last; not for who may not see its runs."""
    begin(source, by="ann")
    assert (troubles(), listed()["group"]) == ({}, "late")
    assert [(one["code"], one["severity"]) for one in reasons("OP")] == [("catching-up", "note")]
    pause(DAG_ID, is_paused=True)
    assert "dag-paused" in {one["code"] for one in reasons("OP")}
    paused = troubles()["dag-paused"]
    assert (paused["consumer"], paused["count"], paused["what"]) == (CONSUMER, 1, f"DAG {DAG_ID} is paused")
    assert f"airflow dags unpause {DAG_ID}" in paused["remedy"]
    assert "--from-date 2013-01-01T00:00:00Z --to-date 20" in paused["remedy"]
    assert listed()["group"] == "trouble"
    monkeypatch.setattr("airflow_changefeed.plugins.access.may_see_runs", lambda *_: False)
    found = listed()
    assert (found["troubles"], found["group"], found["consumers"][0]["state"]) == ([], "late", "missing")


def test_a_failed_run_is_a_trouble(source: SqliteFeedSource) -> None:
    """The last one of the DAG that moved the cursors."""
    begin(source)
    add_run(DAG_ID, START, DagRunState.FAILED, run_id="broken", run_after=source.now())
    assert troubles()["run-failed"]["what"] == f"run broken of DAG {DAG_ID}, its last run, failed"


def test_servers_and_logins_are_told_to_who_may_see_the_connection(
    source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are told what is wrong. The database is searched once, however many consumers are late."""
    asked: list[str] = []

    def inspect(_: SqliteFeedSource, feed: str, __: Limits) -> Examination:
        asked.append(feed)
        fault = Fault(FaultKind.OPEN_TRANSACTION, "session 7", "login ann, host pc7", "kill 7")
        return Examination((fault,))

    begin(source)
    begin(source, consumer="other")
    monkeypatch.setattr(SqliteFeedSource, "inspect", inspect)
    (seen,) = [one for one in reasons("OP") if one["code"] == "open-transaction"]
    assert (seen["what"], seen["remedy"], asked) == ("login ann, host pc7", "kill 7", [FEED])
    (hidden,) = [one for one in reasons("VIEWER") if one["code"] == "open-transaction"]
    assert "who may see the connection" in hidden["what"]
    assert not {"ann", "pc7", "kill"} & set(str(hidden).replace(",", " ").split())

    def fail(*_: Any) -> None:
        raise PermissionDeniedError("login ann of host pc7 may not look")

    monkeypatch.setattr(SqliteFeedSource, "inspect", fail)
    assert "login ann" in str(reasons("OP"))
    assert "login ann" not in str(reasons("VIEWER"))


def test_a_range_that_several_shards_lack_is_counted_once(source: SqliteFeedSource) -> None:
    """It is one trouble, whatever the number of shards, with the number of its windows."""
    leave_out(source, by=BY)
    missing = troubles()["window-missing"]
    assert (missing["count"], missing["windows"], "2013-01-01T01:00:00Z" in missing["what"]) == (1, 2, True)
    # No command: what dates Airflow takes depends on the timetable, and who reads this may not see the DAG.
    assert "under Windows" in missing["remedy"]
    assert DAG_ID not in missing["remedy"]
    assert [one["count"] for one in reasons("OP")] == [1]
    source.record_check(OutputCheck(CONSUMER, FEED, "/out", source.now(), "ann", 1, START + HOUR))
    assert [(one["code"], one["count"]) for one in listed()["troubles"]] == [("window-missing", 1)]


def test_dead_letters_and_changed_tables_are_troubles(source: SqliteFeedSource, database: str) -> None:
    """How many they are; what a handler said of an event is left out."""
    spec = ConsumerSpec("mailer", FEED, on_poison=OnPoison.PARK, max_attempts=1)
    create_consumer(source, spec, Beginning.EARLIEST, by="test")

    def refuse(event: object, connection: object) -> None:
        raise ValueError("hunter2")

    run_consumer(source, "mailer", FEED, refuse, max_events=3, backoff=Backoff(first=0, longest=0))
    parked = troubles()["dead-letter"]
    assert (parked["consumer"], parked["count"]) == ("mailer", 3)
    assert f"dead-letters list --consumer mailer --feed {FEED} --conn-id {CONN_ID}" in parked["remedy"]
    assert "hunter2" not in str(parked)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("create table fares (id integer primary key, price integer)")
        source.enable_capture(CaptureSpec((TableCapture("fares"),), name="fares changes"))
        assert listed(feed="fares changes")["troubles"] == []
        connection.execute("alter table fares add column tip integer")
    (drift,) = listed(feed="fares changes")["troubles"]
    assert (drift["code"], drift["count"], "tip" in drift["what"]) == ("capture-drift", 1, True)


def test_what_the_last_look_at_files_missed_is_a_trouble_without_paths_for_most(
    source: SqliteFeedSource,
) -> None:
    """Only who may see the connection sees where the output is."""
    begin(source)
    source.record_check(OutputCheck(CONSUMER, FEED, "/secret/out", source.now(), "ann", 2, START))
    seen, hidden = troubles("OP")["window-missing"], troubles("VIEWER")["window-missing"]
    assert (seen["count"], seen["windows"]) == (2, None)
    assert ("/secret/out" in seen["what"], "/secret/out" in seen["remedy"]) == (True, True)
    assert "/secret" not in str(hidden)
    assert "2 ranges of windows" in hidden["what"]


def test_an_export_that_lacks_files_is_not_up_to_date(source: SqliteFeedSource) -> None:
    """Whatever its cursors say; a range that several shards lack is one."""
    hour = source.now().replace(minute=0, second=0, microsecond=0)
    source.seal(FEED, hour)
    source.begin_consumer(CONSUMER, FEED, dict.fromkeys((0, 1), Ulid.floor(hour).previous()), by="a run")
    assert listed()["consumers"][0]["state"] == "complete"
    lost = UlidRange(Ulid.floor(START).previous(), Ulid.floor(START + HOUR).previous())
    missing = [MissingRange(shard, lost, Why.FILES_GONE) for shard in (0, 1)]
    check = output_check(FEED, CONSUMER, "/out", source.now(), "ann", missing)
    source.record_check(check)
    found = listed()
    assert (check.missing, found["consumers"][0]["state"], found["group"]) == (1, "missing", "trouble")


def test_an_export_that_has_not_run_yet_is_shown_with_what_waits(
    source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its first run; events in the outbox wait, too."""
    found = listed()
    assert (found["to_come"], found["consumers"], found["group"]) == ([CONSUMER], [], "late")
    since, end = "2013-01-01T00:00:00Z", "2014-01-01T00:00:00Z"
    assert waiting() == {"count": 36, "is_more": False, "since": since, "start": since, "end": end}
    # Nobody would find out why it does not run.
    assert troubles() == {}
    pause(DAG_ID, is_paused=True)
    found = troubles()["dag-paused"]
    assert (found["consumer"], found["what"]) == (CONSUMER, f"DAG {DAG_ID} is paused")
    # Cursors of shards beyond those that are summed up are looked for.
    monkeypatch.setattr("airflow_changefeed.plugins.api.SUMMED_SHARDS", 1)
    assert listed()["to_come"] == [CONSUMER]
    source.begin_consumer(CONSUMER, FEED, {1: Ulid.floor(START).previous()}, by="a run")
    assert listed()["to_come"] == []


def waiting() -> dict[str, Any]:
    """Return what waits for the export."""
    return dict(Visitor("OP").ask("waiting", conn_id=CONN_ID, feed=FEED, consumer=CONSUMER))


def test_what_waits_is_counted_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody waits for the number of many events; a first backfill has the runs that can be started."""
    for minutes, end in ((30, None), (150, "2013-01-01T02:00:00Z")):
        # It ends with a window that is over by the database's clock.
        with monkeypatch.context() as clock:
            clock.setattr(SqliteFeedSource, "now", lambda _, ago=minutes: START + timedelta(minutes=ago))
            assert waiting()["end"] == end
    task = {"task_id": FEED, "path": str(tmp_path / "out"), "unit": HOUR}
    store_export(DAG_ID, None, task, params=window_params())
    range_ = {name: waiting()[name] for name in ("start", "end")}
    found = Visitor("OP").ask("backfill", dag_id=DAG_ID, unit_seconds=3600, **range_)
    assert found["runs"] == 100
    monkeypatch.setattr("airflow_changefeed.plugins.overview.COUNTED", 20)
    assert (waiting()["count"], waiting()["is_more"]) == (20, True)
    monkeypatch.setattr("airflow_changefeed.plugins.api.SUMMED_SHARDS", 1)
    assert (waiting()["count"], waiting()["is_more"]) == (18, True)


def test_a_feed_that_a_task_names_and_nobody_has_set_up_is_a_trouble() -> None:
    """With what to do about it, before all others."""
    found = Visitor("VIEWER").ask("feeds", conn_id=CONN_ID)["feeds"][0]
    assert (found["feed"], found["group"]) == ("nyc.Gone", "trouble")
    (trouble,) = found["troubles"]
    assert trouble["what"] == f"the database has no such feed; {DAG_ID} exports it"
    assert "set_up_feed" in trouble["remedy"]


def test_outputs_that_hang_leave_the_list_of_feeds(
    source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database answers; only a store does not, and the button goes on to the next output of it."""
    begin(source)
    answered, op = threading.Event(), Visitor("OP")
    monkeypatch.setenv("AIRFLOW__CHANGEFEED__PAGE_TIMEOUT", "0.2")
    monkeypatch.setattr(actions, "check_files", lambda *_, **__: answered.wait(60))
    try:
        for _ in range(MOST_EACH + 1):
            op.send("check_files", {}, 503, conn_id=CONN_ID, dag_id=DAG_ID, task_id=FEED)
        monkeypatch.setenv("AIRFLOW__CHANGEFEED__PAGE_TIMEOUT", "30")
        assert op.ask("feeds", conn_id=CONN_ID)["feeds"]
    finally:
        answered.set()


@since("3.2", "how Airflow refuses it")
def test_no_backfill_is_printed_that_airflow_refuses(source: SqliteFeedSource, tmp_path: Path) -> None:
    """Runs of a DAG without a schedule are triggered with the window as params."""
    dag_id = "page_triggered"
    store_export(dag_id, None, {"path": str(tmp_path), "unit": HOUR}, params=window_params())
    pause(dag_id, is_paused=False)
    leave_out(source, by=f"{dag_id}/a run/export/1")
    with pytest.raises(DagNonPeriodicScheduleException):
        _create_backfill(
            dag_id=dag_id,
            from_date=START,
            to_date=START + HOUR,
            max_active_runs=1,
            reverse=False,
            triggering_user_name="ann",
            dag_run_conf=None,
        )
    assert "airflow backfill create" not in troubles()["window-missing"]["remedy"]
