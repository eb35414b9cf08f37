# SPDX-License-Identifier: Apache-2.0
"""``examine``: each fault that a file, its consumers or an export can have is found alone."""

from __future__ import annotations

import re
import shlex
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_changefeed.cli.changefeed import parser
from airflow_changefeed.core.consumer import ConsumerInfo, ConsumerSpec
from airflow_changefeed.core.cursor import CursorDocument, CursorRow, Frontier, variable_key
from airflow_changefeed.core.fault import Examination, Fault, FaultKind, Limits, Severity
from airflow_changefeed.core.feed import FeedKind, ShardStatus
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors import cursors, recovery
from airflow_changefeed.cursors.moves import move_to, plan_moves
from airflow_changefeed.doctor.airflow import published
from airflow_changefeed.doctor.cursors import FeedState, cursor_faults
from airflow_changefeed.doctor.doctor import examine
from airflow_changefeed.doctor.freshness import check_freshness
from airflow_changefeed.doctor.output import begins_later
from airflow_changefeed.exceptions import (
    ConnectionNotUsableError,
    CursorBeyondFeedError,
    FeedNotFoundError,
    InvalidArgumentError,
)
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.exports import unit_files
from tests.identity import DATABASE
from tests.unit.export.ailments import (
    ASKED,
    FAULTS,
    KEY,
    LAST,
    ListedVariables,
    Patient,
    consume,
    die,
    edit_by_hand,
    insert_history,
    leave_hole,
    leave_idle,
    make_read_only,
    rest_undrained,
    stop_inside,
)
from tests.unit.export.consumers import Variables
from tests.unit.export.flights import CONSUMER, FEED, START, Flights, hours


@pytest.fixture(scope="session")
def well(tmp_path_factory: pytest.TempPathFactory, whole: Path) -> tuple[Path, dict[str, str]]:
    """A feed, its export and its consumer, and its Variable, for copies: all is well."""
    folder = tmp_path_factory.mktemp("well")
    patient = Patient(Flights.copy(whole, folder), ExportStore(str(folder / "out"), FEED))
    patient.complete(*range(LAST))
    return folder, patient.variables.values


@pytest.fixture
def patient(tmp_path: Path, well: tuple[Path, dict[str, str]]) -> Patient:
    """All is well."""
    folder, values = well
    patient = Patient(Flights.copy(folder, tmp_path), ExportStore(str(tmp_path / "out"), FEED))
    patient.variables.values |= values
    return patient


_EIGHT_DAYS_AGO = (
    "update \"changefeed.{table}\" set {column} = {column} - 691200000 where consumer = 'mailer'"
)


def test_a_healthy_feed_has_no_fault_at_all(patient: Patient) -> None:
    """Not even a note; nor have one of serialized writers, and a consumer of events that waits for some."""
    found = patient.examine(consumer=CONSUMER)
    assert found.faults == ()
    assert found.is_clean
    assert found.facts["journal mode"] == "wal"
    assert found.summary.startswith("errors: 0, warnings: 0, notes: 0; SQLite: ")
    patient.sql('create table "nyc.Reading" (shard integer, ulid blob, primary key (shard, ulid))')
    patient.source.set_up_feed("nyc.Reading", kind=FeedKind.SERIALIZED)
    assert patient.examine(feed="nyc.Reading", open_store=None).faults == ()
    patient.source.drop_feed("nyc.Reading")
    consume(patient, start="latest")
    patient.sql(_EIGHT_DAYS_AGO.format(table="consumer", column="moved_at_ms"))
    assert patient.examine().faults == patient.examine(consumer="mailer").faults == ()


def test_a_consumer_of_events_that_stands_still_is_told(patient: Patient) -> None:
    """
    With its lease, where there is something to consume; also one that never began, which
    holds back purges.
    """
    with patient.restoring():
        consume(patient)
        patient.sql(_EIGHT_DAYS_AGO.format(table="consumer", column="moved_at_ms"))
        patient.sql(_EIGHT_DAYS_AGO.format(table="consumer_settings", column="created_at_ms"))
        kinds = [fault.kind for fault in patient.examine().faults]
        assert kinds == [FaultKind.CONSUMER_IDLE, FaultKind.LEASE_STUCK, FaultKind.LEASE_STUCK]
    patient.source.create_consumer(ConsumerSpec("mailer", FEED), begin=Ulid.MIN, starts={}, by="test")
    assert patient.examine(consumer="mailer").faults == ()
    patient.sql(_EIGHT_DAYS_AGO.format(table="consumer_settings", column="created_at_ms"))
    (fault,) = patient.examine().faults
    assert fault.kind is FaultKind.CONSUMER_IDLE
    assert "shard 1 from 1970-01-01T00:00:00Z, shard 2" in fault.what


def test_looking_changes_nothing(patient: Patient) -> None:
    """Neither the file, but for the note of the look, nor the output, nor the Variables."""
    patient.sql(f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (1, 0, 999)')

    def seen() -> tuple[object, ...]:
        with closing(sqlite3.connect(patient.flights.path)) as connection:
            lines = [line for line in connection.iterdump() if "changefeed.output_check" not in line]
        return lines, dict(patient.variables.values), sorted(map(str, Path(patient.store.path).rglob("*")))

    before = seen()
    patient.examine(consumer=CONSUMER)
    assert seen() == before


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.code)
def test_a_fault_is_found_alone_and_has_a_remedy(patient: Patient, kind: FaultKind) -> None:
    """What is broken is named, nothing else is, and it says what to do."""
    (make, text), options = FAULTS[kind], ASKED.get(kind, {})
    make(patient)
    (fault,) = patient.examine(**options).faults
    assert fault.kind is kind
    assert text in str(fault)
    assert fault.remedy
    assert not re.search(r"(?<!\.)\.\.(?!\.)", str(fault))
    # Names of files in our repository are of no use to an administrator.
    assert "docs/" not in str(fault)
    for command in re.findall(r"airflow-changefeed .*?--conn-id \.\.\.(?: --path \.\.\.)?", fault.remedy):
        parser().parse_args(shlex.split(command)[1:])
    assert patient.examine(**options).is_clean == (kind.severity is Severity.NOTE)


def test_a_lost_table_is_told_with_what_it_hides(patient: Patient) -> None:
    """What could not be looked at for that reason is one note, not many; other checks go on."""
    with patient.restoring():
        patient.sql(f'drop table "changefeed.state:{FEED}"')
        found = patient.examine().faults
        assert {fault.kind for fault in found} >= {FaultKind.TABLE_MISSING, FaultKind.NOT_CHECKED}
        (hidden,) = (fault for fault in found if fault.kind is FaultKind.NOT_CHECKED)
        assert hidden.place == f"shards of feed {FEED}; beginnings of feed {FEED}"
        assert f"table 'changefeed.state:{FEED}' is missing" in hidden.what
    patient.sql(f'alter table "{FEED}" rename to "nyc.Elsewhere"')
    lost, hidden = patient.examine(open_store=None).faults
    assert (lost.kind, hidden.kind) == (FaultKind.EVENT_TABLE_MISSING, FaultKind.NOT_CHECKED)
    assert hidden.place == "; ".join(
        f"{what} of feed {FEED}"
        for what in ("shards", "cursors", "consumers", "dead letters", "stale marks", "Variables")
    )


def test_a_file_that_cannot_be_written_is_told(patient: Patient) -> None:
    """
    There is one writer at a time, and all others wait for one whose transaction stays open;
    reading goes on.
    """
    with closing(sqlite3.connect(patient.flights.path, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        (fault,) = patient.examine().faults
    assert fault.kind is FaultKind.OPEN_TRANSACTION
    assert "0.2 s" in fault.what
    make_read_only(patient)
    kinds = {fault.kind for fault in patient.examine().faults}
    assert kinds == {FaultKind.NOT_WRITABLE, FaultKind.NOT_WAL}


# ---- windows and Variables in more detail


def test_a_window_missing_in_the_output_is_found_without_the_consumer(patient: Patient) -> None:
    """By the names of manifests; once, though the cursor is held back by it, too."""
    leave_hole(patient)
    found = patient.examine(consumer=CONSUMER).faults
    assert [(fault.kind, fault.what.partition(" in ")[2][:7]) for fault in found] == [
        (FaultKind.WINDOW_MISSING, "shard 1"),
        (FaultKind.WINDOW_MISSING, "shard 2"),
    ]


def test_a_manifest_that_the_consumer_had_and_is_gone_is_found(patient: Patient) -> None:
    """The first and last one, too, and of a consumer that is not named."""
    for number in (0, 1, 2):
        window = hours(number, number + 1)[0]
        (manifest,) = patient.store.list(1, window.start, window.end)
        patient.store.remove_manifest(manifest.unit, manifest.attempt)
        (fault,) = patient.examine(consumer=CONSUMER).faults
        assert fault.kind is FaultKind.WINDOW_MISSING
        assert f"nothing is complete in shard 1 {window}, although " in fault.what
        assert "the consumer's cursor has passed it: its manifest is gone, or " in fault.what
        assert patient.examine().faults == (fault,)
        patient.store.write(manifest)


def test_an_output_of_batches_that_was_moved_away_is_not_filled_by_a_backfill(tmp_path: Path) -> None:
    """No window has them: the cursor is reset."""
    flights = Flights.create(tmp_path / "feeds.db")
    for number, path in enumerate(("before", "now")):
        flights.add(1, number, shard=1)
        store = ExportStore(str(tmp_path / path), FEED)
        plan = flights.plan(store, None)
        flights.run(store, plan)
        done = {one.unit.shard: [one.unit.range] for one in plan.units}
        rows = cursors.advance(flights.source, Variables(), CONSUMER, FEED, done, by="test")
    fault = begins_later(store, rows[0])
    assert fault is not None
    assert "has passed batches before" in fault.what
    assert f"export them again: airflow-changefeed cursor reset {CONSUMER} --feed {FEED}" in fault.remedy


def test_a_file_whose_events_were_purged_comes_from_a_backup_only(patient: Patient) -> None:
    """No run exports its window again; those after the purge it can."""
    patient.source.set_up_feed(FEED, max_hold=timedelta(hours=1))
    patient.source.purge(FEED, START + timedelta(hours=1))
    for number in (0, 1):
        window = hours(number, number + 1)[0]
        for file in unit_files(patient.store, window.start, window.end, [1]):
            patient.store.files.remove_file(file.path)
    gone, missing = patient.examine().faults
    assert (gone.kind, missing.kind) == (FaultKind.FILE_MISSING, FaultKind.FILE_MISSING)
    assert gone.remedy.startswith("Restore it from a backup of the output; events of the unit were purged")
    assert missing.remedy.startswith("Restore it, or export the unit again")


def test_a_lost_window_that_holds_the_cursor_can_be_passed(patient: Patient) -> None:
    """The command moves the cursor to the end of what is complete after it; then all is well."""
    hint = int((START + timedelta(hours=LAST, minutes=59)).timestamp() * 1000)
    patient.sql(
        f'insert into "{FEED}" (id) values (999)',
        f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (1, {hint}, 999)',
    )
    patient.source.drain(FEED)
    leave_hole(patient)
    patient.source.set_up_feed(FEED, max_hold=timedelta(hours=1))
    patient.source.purge(FEED, START + timedelta(hours=LAST + 2))
    lost, window = patient.examine(open_store=None).faults
    assert (lost.kind, window.kind) == (FaultKind.CONSUMER_LOST, FaultKind.WINDOW_LOST)
    command = window.remedy.partition("move the cursor past it: ")[2]
    given = parser().parse_args(shlex.split(command)[1:])
    (move,) = plan_moves(patient.source, given.name, given.feed, given.to, given.shard)
    assert (move.skipped, move.skips_purged) == (0, True)
    move_to(patient.source, patient.variables, CONSUMER, FEED, [move], versions=None, by="me", why="lost")
    assert patient.examine(open_store=None).faults == ()


@pytest.mark.parametrize("keeps_events", [False, True])
def test_a_database_that_was_restored_is_sealed_before_its_cursors_are_published(
    patient: Patient, keeps_events: bool
) -> None:
    """
    To adopt a Variable that is ahead of the feed is refused, and so it is not proposed. Where the database
    kept the events, the next run would refuse to go on without the seal.
    """
    until = START + timedelta(hours=LAST + 1)
    if keeps_events:
        hint = int((until + timedelta(hours=1)).timestamp() * 1000)
        patient.sql(
            f'insert into "{FEED}" (id) values (998), (999)',
            f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (1, {hint}, 998)',
            f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (2, {hint}, 999)',
        )
        patient.source.drain(FEED)
    with patient.restoring():
        patient.source.seal(FEED, until)
        patient.complete(LAST)
    (fault,) = patient.examine(open_store=None).faults
    assert fault.kind is FaultKind.VARIABLE_EDITED
    seal = f"airflow-changefeed seal --feed {FEED} --until 2013-01-01T04:00:00Z --conn-id ..."
    assert re.search(f"(?s){re.escape(seal)}.*[Oo]verwrite", fault.remedy)
    assert "cursor adopt" not in fault.remedy
    if not keeps_events:
        with pytest.raises(CursorBeyondFeedError, match="first seal the feed"):
            recovery.adopt(patient.source, patient.variables, CONSUMER, FEED, by="me")
    patient.source.seal(FEED, until)
    (fault,) = patient.examine(open_store=None).faults
    assert "Do not adopt the Variable: events written since the restore would be skipped" in fault.remedy
    assert f"cursor publish {CONSUMER} --feed {FEED} --conn-id ..." in fault.remedy
    assert (seal in fault.remedy, "cursor adopt" in fault.remedy) == (False, False)


def test_a_cursor_within_a_window_makes_an_export_late(patient: Patient) -> None:
    """Windows that are complete behind it do not count until the rest of its own is; the reason is said."""
    FAULTS[FaultKind.CURSOR_IN_WINDOW][0](patient)
    patient.complete(2, shards=(1,))
    found = check_freshness(patient.source, patient.variables, lambda dag_id: None, timedelta(hours=1))
    (late,) = (one for one in found.consumers if one.consumer == CONSUMER)
    assert late.complete_until == START + timedelta(minutes=90)
    assert FaultKind.CURSOR_IN_WINDOW in [reason.kind for reason in late.reasons]


def test_a_variable_within_a_window_is_not_adopted(patient: Patient) -> None:
    """The export could not go on from there; the error has the begin of the window."""
    patient.edit(1, ulid=Ulid.floor(START + timedelta(minutes=90)))
    before = patient.source.cursors(FEED)
    with pytest.raises(
        InvalidArgumentError, match=r"is inside a window of .*cursor set .*--to \.\.\. .*publish"
    ):
        recovery.adopt(patient.source, patient.variables, CONSUMER, FEED, by="me")
    assert patient.source.cursors(FEED) == before


def in_window(found: Examination) -> list[Fault]:
    """Return the faults of cursors within windows."""
    return [fault for fault in found.faults if fault.kind is FaultKind.CURSOR_IN_WINDOW]


def test_the_windows_of_the_output_say_where_one_begins(patient: Patient) -> None:
    """The moves of three hours do not; the place could be where another export's windows begin."""
    inside = Ulid.floor(START + timedelta(minutes=90)).previous()
    patient.edit(1, ulid=inside)
    with pytest.raises(InvalidArgumentError, match=r"cursor set .* --to 2013-01-01T01:00:00Z .*publish"):
        recovery.adopt(patient.source, patient.variables, CONSUMER, FEED, by="me", outputs=[patient.store])
    stop_inside(patient, inside)
    assert not in_window(patient.examine(open_store=None))
    (fault,) = in_window(patient.examine())
    assert "--to 2013-01-01T01:00:00Z" in fault.remedy
    (row, _) = patient.source.cursors(FEED, CONSUMER)
    patient.source.begin_consumer("lake", FEED, {1: row.frontier.start}, by="test")
    stopped = {1: [UlidRange(row.frontier.start, inside)]}
    cursors.advance(patient.source, patient.variables, "lake", FEED, stopped, by="test")
    assert in_window(patient.examine()) == [fault]


def test_a_variable_in_the_future_was_edited(patient: Patient) -> None:
    """No feed can be sealed until then, and none was."""
    patient.edit(1, ulid=Ulid.floor(datetime(2100, 1, 1, tzinfo=timezone.utc)))
    (fault,) = patient.examine(open_store=None).faults
    assert "The Variable is in the future (2100-01-01T00:00:00Z). Overwrite it" in fault.remedy
    assert "seal" not in fault.remedy


def test_a_stale_window_that_was_exported_again_is_well(patient: Patient) -> None:
    """The manifest says which marks its read has seen."""
    insert_history(patient)
    patient.flights.export(patient.store, hours(0, 1))
    assert patient.examine().faults == ()


def test_variables_out_of_reach_are_told(patient: Patient) -> None:
    """The rest is looked at nevertheless."""
    patient.variables.is_down = True
    die(patient)
    found = patient.examine()
    lease, hidden = found.faults
    assert lease.kind is FaultKind.LEASE_EXPIRED
    assert hidden.place == f"Variables of feed {FEED}; Variables of other feeds"
    assert (hidden.what, hidden.remedy) == ("could not list Airflow Variables: no such table", "Migrate it")
    assert "Airflow's Variables" in found.left_out
    assert "Airflow's Variables" not in found.checked
    patient.variables.is_down = False
    assert "Airflow's Variables" in patient.examine().checked


def test_a_person_s_own_variables_are_left_alone(patient: Patient) -> None:
    """Only names of ours count, hashed ones too."""
    patient.variables.values |= {"changefeed:": "{}", "changefeed:~": "x", "changefeeds": "42"}
    feed = "a/b" + "c" * 300
    key = variable_key(DATABASE, "lake", feed)
    patient.variables.values[key] = CursorDocument("lake", feed, {}, DATABASE).to_json()
    (fault,) = patient.examine().faults
    assert fault.place == f"Variable {key}"
    assert feed in fault.what


# ---- what cannot be looked at


class _Reader(SqliteFeedSource):
    """A login that may not read one of the feeds, as SQL Server has them."""

    def inspect(self, feed: str | None, limits: Limits) -> Examination:
        """Say so."""
        return replace(super().inspect(feed, limits), closed_feeds=("nyc.Reading",))


def test_a_feed_that_the_login_may_not_read_is_left_out(patient: Patient) -> None:
    """The inspection says so in a note; nothing else is asked of it."""
    patient.sql('create table "nyc.Reading" (id integer primary key)')
    patient.source.set_up_feed("nyc.Reading")
    assert f"feeds {FEED}" in examine(_Reader(str(patient.flights.path))).checked
    assert f"feeds {FEED}, nyc.Reading" in examine(patient.source).checked


def test_a_feed_that_is_not_there_is_refused(patient: Patient) -> None:
    """Instead of a clean answer."""
    with pytest.raises(FeedNotFoundError, match=r"'nyc.Weather' not found; this database has nyc.Flight"):
        patient.examine(feed="nyc.Weather")
    patient.source.drop_feed(FEED)
    with pytest.raises(FeedNotFoundError, match="this database has no feeds"):
        patient.examine(feed=FEED)


def test_a_file_that_is_not_there_is_refused(patient: Patient, tmp_path: Path) -> None:
    """With the source's own words."""
    with pytest.raises(ConnectionNotUsableError, match="check the path"):
        examine(SqliteFeedSource(str(tmp_path / "nothing.db")))


def test_limits_that_mean_nothing_are_refused() -> None:
    """All of them at once."""
    with pytest.raises(
        InvalidArgumentError, match=r"high_water_ahead must be .*; role must be one of readers"
    ):
        Limits(high_water_ahead=timedelta(0), role="owner")


def test_limits_are_heeded(patient: Patient) -> None:
    """What is a fault for one is none for another."""
    rest_undrained(patient)
    leave_idle(patient)
    wide = Limits(outbox_age=timedelta(days=36_500), idle_consumer=timedelta(days=9))
    assert patient.examine(limits=wide).faults == ()


def test_errors_come_first(patient: Patient) -> None:
    """Then warnings, then notes."""
    die(patient)
    rest_undrained(patient)
    edit_by_hand(patient)
    found = patient.examine()
    assert [fault.severity for fault in found.faults] == list(Severity)
    assert found.summary.startswith("errors: 1, warnings: 1, notes: 1; ")
    assert found.faults[0].to_dict() == {
        "severity": "error",
        "code": "variable-edited",
        "place": f"Variable {KEY}",
        "what": found.faults[0].what,
        "remedy": found.faults[0].remedy,
        "shard": None,
        "unit": None,
        "path": None,
    }


def test_what_a_consumer_of_events_lost_and_what_a_dead_letter_holds() -> None:
    """It is lost in a shard that it has not begun, too; one that a dead letter holds has not stopped."""
    now, begun = START + timedelta(days=60), START
    mailer = ConsumerInfo(ConsumerSpec("mailer", FEED), Ulid.MIN, begun, "test")
    place = Ulid.floor(begun)

    def kinds(status: ShardStatus, *rows: CursorRow) -> list[FaultKind]:
        state = FeedState(FEED, now, [status], rows, {"mailer": mailer})
        return [fault.kind for fault in cursor_faults(state, Limits())]

    purged = ShardStatus(0, now, None, None, place, has_outbox=False)
    assert kinds(purged) == [FaultKind.CONSUMER_LOST]
    parked = CursorRow("mailer", FEED, 0, Frontier(Ulid.MIN, place), 2, begun, "test")
    assert kinds(replace(purged, head=place, purged_upto=Ulid.MIN), parked) == []


def test_a_variable_is_that_of_its_key_whatever_its_value_says() -> None:
    """An edit may have put another consumer into it."""
    variables, key = ListedVariables(), variable_key(DATABASE, "mailer", FEED)
    variables.set(key, '{"consumer": "other", "feed": "other"}')
    assert published(variables, DATABASE) == {key: ("mailer", FEED)}
