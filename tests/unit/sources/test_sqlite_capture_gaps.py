# SPDX-License-Identifier: Apache-2.0
"""Changes that pass SQLite's triggers unseen stop the seals, and the doctor tells them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.fault import FaultKind, Limits
from airflow_changefeed.exceptions import CaptureGapError, FeedSetupError, InvalidArgumentError
from airflow_changefeed.sources.sqlite.capture import record
from tests.clocks import after_now, time_with
from tests.unit.sources.sqlite_captures import CaptureFile

NAME = "flight_changes"
TRIGGER = f'"changefeed.capture:{NAME}:0:insert"'
ALTERED = (
    f"drop trigger {TRIGGER}",
    f"create trigger {TRIGGER} after insert on flight when new.id > 0 begin select 1; end",
)
COPIED = (
    "create table copy (id integer primary key, status text)",
    "insert into copy select * from flight",
    "drop table flight",
    "alter table copy rename to flight",
)
UNSEEN: dict[str, tuple[tuple[str, ...], str]] = {
    "dropped trigger": ((f"drop trigger {TRIGGER}",), f"its trigger {TRIGGER} was dropped"),
    "altered trigger": (ALTERED, f"its trigger {TRIGGER} was altered"),
    "copied table": (COPIED, "was dropped, perhaps with the table"),
    "renamed table": (("alter table flight rename to flown",), "the table was renamed to 'flown'"),
    "dropped table": (("drop table flight",), "the table was dropped or renamed"),
    "hidden delete": (
        ("insert or replace into flight values (1, 'again')",),
        "the table has 2 rows, but 3 according to the recorded changes",
    ),
}
BACK: dict[str, tuple[str, ...]] = {
    "renamed table": ("alter table flown rename to flight",),
    "dropped table": ("create table flight (id integer primary key, status text)",),
}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CaptureFile]:
    """Return a file with a captured table of two rows, sealed."""
    file = CaptureFile(tmp_path / "feeds.db", "create table flight (id integer primary key, status text)")
    file.enable("flight")
    file.sql("insert into flight values (1, 'a'), (2, 'b')")
    file.source.seal(NAME, after_now(file.source))
    yield file
    file.connection.close()


def _kinds(file: CaptureFile) -> list[FaultKind]:
    return [fault.kind for fault in file.source.inspect(NAME, Limits()).faults]


@pytest.mark.parametrize("case", UNSEEN)
def test_what_passed_unseen_is_found_kept_and_resolved(file: CaptureFile, case: str) -> None:
    """Once, with the table, the reason and the remedy; nothing is sealed before it is resolved."""
    statements, reason = UNSEEN[case]
    file.sql(*statements)
    source, sealed = file.source, file.source.feed(NAME).sealed_until
    for _ in range(2):
        with pytest.raises(CaptureGapError) as caught:
            source.seal(NAME, after_now(source))
        assert reason.replace('"', "'") in caught.value.message
        assert f"airflow-changefeed capture resolve {NAME}" in caught.value.message
        assert source.feed(NAME).sealed_until == sealed
    (gap,) = source.capture_gaps(NAME)
    assert (gap.table, gap.after, gap.resolved_at) == ("flight", sealed, None)
    assert FaultKind.CAPTURE_GAP in _kinds(file)
    file.sql(*BACK.get(case, ()))
    source.resolve_capture(NAME, note="looked at it", by="test", resync=True)
    (gap,) = source.capture_gaps(NAME)
    assert (gap.resolved_by, gap.note) == ("test", "looked at it")
    rows = dict(file.sql("select id, status from flight"))
    events = [event for event in file.events(NAME) if event["changefeed_time"] >= gap.found_at]
    (last,) = [number for number, event in enumerate(events) if event["type"] == "reset"]
    assert {event["new"]["id"]: event["new"]["status"] for event in events[last + 1 : -1]} == rows
    assert events[-1]["type"] == "ready"
    file.sql("insert into flight values (7, 'seen')")
    source.seal(NAME, after_now(source))
    assert file.changes(NAME)[-1] == ("add", None, {"id": 7, "status": "seen"})
    assert _kinds(file) == []


def test_a_table_that_is_gone_for_good_is_resolved_when_the_capture_is_disabled(file: CaptureFile) -> None:
    """Before, it says what to do."""
    file.sql("drop table flight")
    source = file.source
    assert len(source.check_capture(NAME)) == 1
    with pytest.raises(FeedSetupError, match="table 'flight' is missing; restore it, or disable the capture"):
        source.resolve_capture(NAME, note="gone", by="test")
    source.disable_capture(NAME)
    assert source.resolve_capture(NAME, note="gone", by="test").gaps == ()
    source.seal(NAME, after_now(source))


def test_a_gap_that_nobody_has_seen_is_not_resolved(file: CaptureFile) -> None:
    """It is told first, by the resolving itself if nothing looked before."""
    file.sql(f"drop trigger {TRIGGER}")
    source = file.source
    with pytest.raises(CaptureGapError, match="was dropped"):
        source.resolve_capture(NAME, note="all is well", by="test")
    assert len(source.capture(NAME).gaps) == 1
    file.sql("delete from flight where id = 1", "alter table flight rename to flown")
    with pytest.raises(FeedSetupError, match="table 'flight' is missing"):
        source.resolve_capture(NAME, note="only the trigger", by="test")
    file.sql("alter table flown rename to flight", "insert or replace into flight values (2, 'x')")
    assert source.resolve_capture(NAME, note="all of it", by="test", resync=True).gaps == ()


def test_resolving_needs_a_person_and_a_note(file: CaptureFile) -> None:
    """And is harmless where nothing is open; a resync records all rows anew all the same."""
    with pytest.raises(InvalidArgumentError) as caught:
        file.source.resolve_capture(NAME, note=" ", by="")
    assert len(caught.value.facts["problems"]) == 2
    assert file.source.resolve_capture(NAME, note="n", by="b").gaps == ()
    assert len(file.changes(NAME)) == 2
    file.source.resolve_capture(NAME, note="n", by="b", resync=True)
    assert [kind for kind, _, _ in file.changes(NAME)[2:]] == ["reset", "add", "add", "ready"]


def test_a_refresh_or_a_pause_does_not_hide_what_passed_before(file: CaptureFile) -> None:
    """Both make triggers anew, or none; the gap is kept."""
    file.sql(f"drop trigger {TRIGGER}")
    assert len(file.source.refresh_capture(NAME).gaps) == 1
    file.source.resolve_capture(NAME, note="n", by="b")
    file.sql(f"drop trigger {TRIGGER}")
    file.source.disable_capture(NAME)
    assert len(file.source.capture(NAME).gaps) == 1
    with pytest.raises(CaptureGapError):
        file.source.seal(NAME, after_now(file.source))


def test_a_pause_makes_unsure_what_was_sealed_in_it(file: CaptureFile) -> None:
    """A disabled capture is sealed all the same; whoever folds a time since then must know."""
    source = file.source
    source.disable_capture(NAME)
    disabled = after_now(source)
    file.sql("delete from flight")
    source.seal(NAME, after_now(source))
    assert source.feed(NAME).sealed_until >= disabled
    (gap,) = source.enable_capture(CaptureSpec((TableCapture("flight"),))).gaps
    assert gap.after is not None
    assert gap.after <= disabled
    ((after, found),) = source.capture(NAME).shape.tables["flight"].gaps
    assert (after, found) == (gap.after, gap.found_at)


def test_the_doctor_tells_what_the_next_seal_will_find(file: CaptureFile) -> None:
    """Without changing anything: a trigger that is gone, or columns that are not captured."""
    assert _kinds(file) == []
    file.sql("alter table flight add column gate int")
    (drift,) = file.source.inspect(None, Limits()).faults
    assert (drift.kind, drift.place) == (FaultKind.CAPTURE_DRIFT, f"capture {NAME}")
    assert "column 'gate' of 'flight' is not captured by insert, update, delete" in drift.what
    file.sql(f"drop trigger {TRIGGER}")
    assert _kinds(file) == [FaultKind.CAPTURE_TRIGGER, FaultKind.CAPTURE_DRIFT]
    assert file.source.capture_gaps(NAME) == []
    file.sql('drop table "changefeed.context"')
    assert FaultKind.TABLE_MISSING in _kinds(file)


def test_a_disabled_capture_records_no_rows(file: CaptureFile) -> None:
    """A resync that did nothing would close the gap all the same."""
    file.source.disable_capture(NAME)
    with pytest.raises(FeedSetupError, match="is disabled"):
        file.source.resolve_capture(NAME, note="n", by="b", resync=True)


def test_another_key_ends_the_recording_of_rows(file: CaptureFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows which rows are recorded then: `ready` never comes, and a resync begins again."""
    monkeypatch.setattr(record, "_FIRST_ROWS", 1)
    with monkeypatch.context() as patch:
        patch.setattr(record, "time", time_with(_kill))
        with pytest.raises(KeyboardInterrupt):
            file.source.resolve_capture(NAME, note="n", by="b", resync=True)
    assert len(file.source.snapshots(NAME)) == 1
    file.sql(
        "create table copy (id integer not null, status text not null primary key)",
        "insert into copy select * from flight",
        "drop table flight",
        "alter table copy rename to flight",
    )
    file.source.refresh_capture(NAME)
    assert file.source.snapshots(NAME) == []
    file.source.resolve_capture(NAME, note="n", by="b", resync=True)
    kinds = [kind for kind, _, _ in file.changes(NAME)]
    assert (kinds.count("reset"), kinds.count("ready"), kinds[-1]) == (2, 1, "ready")


def _kill(_: float) -> None:
    """Die behind the first row."""
    raise KeyboardInterrupt
