# SPDX-License-Identifier: Apache-2.0
"""A feed that is well in all, and how each fault that ``examine`` names is made."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow_changefeed.consumers.run import run_consumer
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec, OnPoison
from airflow_changefeed.core.cursor import CursorDocument, variable_key
from airflow_changefeed.core.fault import Examination, FaultKind
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors import cursors, recovery
from airflow_changefeed.cursors.cursors import leased
from airflow_changefeed.doctor.doctor import examine
from airflow_changefeed.exceptions import AirflowUnavailableError, PoisonError
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.clocks import after_now
from tests.identity import DATABASE
from tests.unit.export.consumers import Variables
from tests.unit.export.damage import DAMAGES
from tests.unit.export.flights import CONSUMER, FEED, START, Flights, hours

KEY = variable_key(DATABASE, CONSUMER, FEED)
LAST = 3


class ListedVariables(Variables):
    """Airflow's Variables, which can be listed, and can be out of reach."""

    is_down = False

    def keys(self, prefix: str) -> list[str]:
        if self.is_down:
            raise AirflowUnavailableError.of("could not list Airflow Variables: no such table", "Migrate it")
        return sorted(key for key in self.values if key.startswith(prefix))


@dataclass
class Patient:
    """A feed of three exported hours in two shards, its consumer, Variable and output: all is well."""

    flights: Flights
    store: ExportStore
    variables: ListedVariables = field(default_factory=ListedVariables)

    @property
    def source(self) -> SqliteFeedSource:
        return SqliteFeedSource(str(self.flights.path), lock_timeout=0.2)

    def sql(self, *statements: str) -> None:
        """Do what a person, or an older version, does to the file."""
        with closing(sqlite3.connect(self.flights.path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Restore the file to what it was before a block."""
        with closing(sqlite3.connect(":memory:")) as copy:
            with closing(sqlite3.connect(self.flights.path)) as connection:
                connection.backup(copy)
            yield
            with closing(sqlite3.connect(self.flights.path)) as connection:
                copy.backup(connection)

    def complete(self, *numbers: int, shards: tuple[int, ...] = (1, 2)) -> None:
        """Say that hours are complete."""
        done = {shard: [hours(number, number + 1)[0].range for number in numbers] for shard in shards}
        cursors.advance(self.source, self.variables, CONSUMER, FEED, done, by="test")

    def examine(self, **options: Any) -> Examination:
        """Look at everything, as the command does."""
        given = {"open_store": lambda feed: ExportStore(self.store.path, feed), **options}
        return examine(self.source, self.variables, **given)

    def edit(self, shard: int, **values: Any) -> None:
        """Write other values into the Variable, with a digest that fits, as a program would."""
        document = CursorDocument.from_json(self.variables.values[KEY], key=KEY)
        text = document.to_json()
        for name, value in values.items():
            old = getattr(document.shards[shard], name)
            text = text.replace(str(old), str(value))
        self.variables.values[KEY] = text


# ---- each fault, made


def _drop_everything(patient: Patient) -> None:
    patient.source.drop_feed(FEED)
    names = ("registry", "consumer", "stale", "lease")
    patient.sql(*(f'drop table "changefeed.{name}"' for name in names))
    patient.variables.values.clear()


def _other_outbox(patient: Patient) -> None:
    """An outbox as another version might make it, without the check of its time hint."""
    outbox = f'"changefeed.outbox:{FEED}"'
    patient.sql(
        f"drop table {outbox}",
        f"create table {outbox} (order_sequence integer primary key autoincrement, shard_id integer not null "
        "default 0, time_hint not null, id integer not null)",
        f'create index "changefeed.outbox_shard:{FEED}" on {outbox} (shard_id)',
    )


def make_read_only(patient: Patient) -> None:
    """A file whose header says that only newer versions of SQLite may write it."""
    patient.sql("pragma journal_mode = delete")
    with open(patient.flights.path, "r+b") as file:
        file.seek(18)
        file.write(b"\x03")


def _hint_ahead(patient: Patient) -> None:
    """A writer whose clock is two hours ahead, in a feed that lets him."""
    patient.source.set_up_feed(FEED, time_tolerance=timedelta(days=1))
    ahead = int((datetime.now(timezone.utc) + timedelta(hours=2)).timestamp() * 1000)
    patient.sql(
        f'insert into "{FEED}" (id) values (999)',
        f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (2, {ahead}, 999)',
    )
    patient.source.drain(FEED)


def rest_undrained(patient: Patient) -> None:
    """A row of 2024 waits in the outbox."""
    patient.sql(
        f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) '
        "values (2, '2024-05-06T07:08:09Z', 998)"
    )


def leave_idle(patient: Patient) -> None:
    """A second consumer that read one hour, eight days ago."""
    patient.source.begin_consumer("lake", FEED, {1: hours(0, 1)[0].range.after}, by="test")
    cursors.advance(patient.source, patient.variables, "lake", FEED, {1: [hours(0, 1)[0].range]}, by="test")
    patient.sql(
        "update \"changefeed.consumer\" set moved_at_ms = moved_at_ms - 691200000 where consumer = 'lake'"
    )


def consume(patient: Patient, name: str = "mailer", start: str = "earliest") -> None:
    """A consumer of events that has all shards, and is alive."""
    spec = ConsumerSpec(name, FEED, max_attempts=1, on_poison=OnPoison.PARK)
    create_consumer(patient.source, spec, start, by="test")
    patient.source.acquire_leases(name, FEED, [1, 2], holder="host:1:x", seconds=60)


def _fails(event: object, connection: object) -> None:
    raise ValueError("no such airport")


def _park(patient: Patient) -> None:
    """An event that cannot be handled, and all others that can."""
    consume(patient)
    patient.source.release_leases("mailer", FEED, {1: 2, 2: 2}, holder="host:1:x")
    run_consumer(patient.source, "mailer", FEED, _fails, at_head=True, max_events=1)
    run_consumer(patient.source, "mailer", FEED, lambda event, connection: None, at_head=True)


def _restored(patient: Patient) -> None:
    """The file of before the last seal."""
    patient.sql(
        f'update "changefeed.state:{FEED}" set time_ms = time_ms - 3600000 where shard_id = 1',
        'update "changefeed.registry" set floor_ms = floor_ms - 3600000',
    )


def _purged(patient: Patient) -> None:
    """A consumer that begins at the start of a feed whose first hour is gone."""
    patient.source.purge(FEED, START + timedelta(hours=1))
    patient.sql("delete from \"changefeed.consumer\" where consumer = 'lake'")
    patient.source.begin_consumer("lake", FEED, {1: hours(0, 1)[0].range.after}, by="test")
    cursors.publish_rows(
        patient.source, patient.variables, "lake", FEED, patient.source.cursors(FEED, "lake")
    )


def stop_inside(patient: Patient, place: Ulid | None = None) -> None:
    """As an earlier version adopted the Variable of somebody who had written an event into it."""
    place = place or Ulid.floor(START + timedelta(minutes=90))
    with leased(patient.source, CONSUMER, FEED, [1], "anna") as leases:
        rows = patient.source.cursors(FEED, CONSUMER)
        cursors.move(
            *(patient.source, CONSUMER, FEED, rows, leases.tokens),
            *(lambda row: row.frontier.moved_to(place), "anna", "adopt"),
            is_rewind=True,
        )
    recovery.publish(patient.source, patient.variables, CONSUMER, FEED)


def die(patient: Patient) -> None:
    """A process died with a lease, which has expired."""
    patient.source.acquire_leases(
        CONSUMER, FEED, [1], holder="dag/run/task/1", seconds=0.001, all_or_none=True
    )
    after_now(patient.source)


def _sleeps(patient: Patient) -> None:
    patient.source.acquire_leases(CONSUMER, FEED, [1], holder="notebook", seconds=86_400, all_or_none=True)


def edit_by_hand(patient: Patient) -> None:
    """A person wrote into the Variable."""
    patient.variables.values[KEY] = patient.variables.values[KEY].replace("test", "me")


def _orphan(patient: Patient) -> None:
    """A second consumer was dropped, its Variable stayed."""
    patient.source.begin_consumer("lake", FEED, {1: hours(0, 1)[0].range.after}, by="test")
    cursors.resolve(patient.source, patient.variables, "lake", FEED)
    patient.source.drop_consumer("lake", FEED)


def _of_no_feed(patient: Patient) -> None:
    key = variable_key(DATABASE, "lake", "nyc.Gone")
    patient.variables.values[key] = CursorDocument("lake", "nyc.Gone", {}, DATABASE).to_json()


def _behind(patient: Patient) -> None:
    """A process died after it moved the cursor, before it published."""
    old = patient.variables.values[KEY]
    patient.source.seal(FEED, START + timedelta(hours=LAST + 1))
    patient.flights.export(patient.store, hours(LAST, LAST + 1))
    patient.complete(LAST)
    patient.variables.values[KEY] = old


def leave_hole(patient: Patient) -> None:
    """A window in the middle is not exported."""
    patient.source.seal(FEED, START + timedelta(hours=LAST + 2))
    patient.flights.export(patient.store, hours(LAST + 1, LAST + 2))
    patient.complete(LAST + 1, shards=(1,))


def insert_history(patient: Patient) -> None:
    """History comes into an hour that was exported."""
    patient.sql(f'insert into "{FEED}" (id) values (1000)')
    patient.source.insert_history(FEED, 1, [(START + timedelta(minutes=5), (1000,))], reason="imported")


def _export_moved(patient: Patient) -> None:
    Path(patient.store.path).rename(f"{patient.store.path}.moved")


def _bring_back_an_older_file(patient: Patient) -> None:
    """The file is restored to before its last export."""
    with patient.restoring():
        patient.source.seal(FEED, START + timedelta(hours=LAST + 1))
        patient.flights.export(patient.store, hours(LAST, LAST + 1))


def fail(patient: Patient) -> None:
    """A handler fails, and its consumer stops at the event."""
    create_consumer(patient.source, ConsumerSpec("mailer", FEED, max_attempts=2), "latest", by="test")
    patient.sql(
        f'insert into "{FEED}" (id) values (997)',
        f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (2, 0, 997)',
    )
    with suppress(PoisonError):
        run_consumer(patient.source, "mailer", FEED, _fails, at_head=True)


def _purge_hole(patient: Patient) -> None:
    """Long ago, nobody had exported the second hour, and then its events were purged."""
    for unit in patient.store.units(1):
        if unit.range == hours(1, 2)[0].range:
            patient.store.remove_manifest(unit, patient.store.units(1)[unit])
    patient.source.purge(FEED, START + timedelta(hours=2))


Break = Callable[[Patient], None]
#: Of each fault how it is made, and what its text has.
FAULTS: dict[FaultKind, tuple[Break, str]] = {
    FaultKind.NOT_INSTALLED: (_drop_everything, "the file has no feeds"),
    FaultKind.OBJECT_MISSING: (
        lambda patient: patient.sql(f'drop index "changefeed.outbox_shard:{FEED}"'),
        f"index changefeed.outbox_shard:{FEED}: feed {FEED} has lost",
    ),
    FaultKind.TABLE_MISSING: (
        lambda patient: patient.sql('drop table "changefeed.lease"'),
        "table changefeed.lease: the file has lost this table",
    ),
    FaultKind.VERSION_DIFFERS: (
        lambda patient: patient.sql('alter table "changefeed.consumer" add column note text'),
        "table changefeed.consumer: the object was created by another version",
    ),
    FaultKind.FEED_VERSION_DIFFERS: (
        _other_outbox,
        f"table changefeed.outbox:{FEED}: the object was created by another version",
    ),
    FaultKind.NOT_WAL: (
        lambda patient: patient.sql("pragma journal_mode = delete"),
        "the journal mode is delete",
    ),
    FaultKind.HIGH_WATER_AHEAD: (_hint_ahead, f"feed {FEED}, shard 2: its high-water time is"),
    FaultKind.OUTBOX_NOT_DRAINED: (
        rest_undrained,
        f"feed {FEED}, shard 2: the first row in its outbox has the time_hint 2024-05-06T07:08:09Z",
    ),
    FaultKind.CONSUMER_UNKNOWN: (
        lambda patient: None,
        f"consumer warhouse: the database has no cursors of this consumer; it has {CONSUMER}",
    ),
    FaultKind.CONSUMER_IDLE: (
        leave_idle,
        "holds back purges: shard 1 from 2013-01-01T00:59:59.999Z, shard 2 from 1970",
    ),
    FaultKind.DEAD_LETTER: (
        _park,
        f"feed {FEED}, consumer mailer: 1 dead letter is open, the first of 2013-01-01T00:00:00Z in "
        "shard 1 (ValueError: no such airport)",
    ),
    FaultKind.CURSOR_BEYOND_FEED: (_restored, f"feed {FEED}, shard 1, consumer {CONSUMER}: its cursor"),
    FaultKind.SEAL_LOST: (
        _bring_back_an_older_file,
        f"Seal the feed until then: airflow-changefeed seal --feed {FEED} --until 2013-01-01T04:00:00Z "
        "--conn-id ...; then run the windows since the restored state as a backfill",
    ),
    FaultKind.CONSUMER_FAILING: (
        fail,
        "the consumer stops there (max_attempts, on_poison=stop). Read the reason: airflow-changefeed "
        f"consumer log mailer --feed {FEED} --failed --conn-id ...; then fix the handler or the data, "
        "and run the consumer again. To set only this event aside: airflow-changefeed consume "
        f"mailer --feed {FEED} --handler ... --on-poison park --max-events 1 --at-head --conn-id ...",
    ),
    FaultKind.WINDOW_LOST: (
        _purge_hole,
        "nothing is complete in shard 1 [2013-01-01T01:00:00Z, 2013-01-01T02:00:00Z), and events were "
        "purged up to 2013-01-01T01:59:59.999Z, so no run can export all of it any more",
    ),
    FaultKind.CURSOR_IN_WINDOW: (
        stop_inside,
        f"feed {FEED}, shard 1, consumer {CONSUMER}: the consumer exports windows, but its cursor",
    ),
    FaultKind.CONSUMER_LOST: (_purged, f"feed {FEED}, shard 1, consumer lake: the consumer is lost: events"),
    FaultKind.LEASE_EXPIRED: (die, "dag/run/task/1 did not release its lease"),
    FaultKind.LEASE_STUCK: (_sleeps, "notebook holds the lease until"),
    FaultKind.VARIABLE_EDITED: (
        edit_by_hand,
        f"Variable {KEY}: its digest does not match, so somebody edited the Variable",
    ),
    FaultKind.VARIABLE_UNREADABLE: (
        lambda patient: patient.variables.set(KEY, "42"),
        "the JSON has another structure. Overwrite it",
    ),
    FaultKind.VARIABLE_ORPHANED: (
        _orphan,
        "the database has none of consumer 'lake'. If the consumer was dropped, delete the Variable",
    ),
    FaultKind.VARIABLE_OF_NO_FEED: (
        _of_no_feed,
        "the Variable belongs to consumer 'lake' of feed 'nyc.Gone', which this database does not have",
    ),
    FaultKind.VARIABLE_MISSING: (
        lambda patient: patient.variables.values.clear(),
        f"Variable {KEY}: the Variable does not exist, but the database has cursors of this consumer",
    ),
    FaultKind.VARIABLE_BEHIND: (_behind, f"Variable {KEY}: the Variable is older than the cursors"),
    FaultKind.WINDOW_MISSING: (
        leave_hole,
        f"feed {FEED}, shard 1, consumer {CONSUMER}: nothing is complete in shard 1 "
        "[2013-01-01T03:00:00Z, 2013-01-01T04:00:00Z), although later windows are complete",
    ),
    FaultKind.WINDOW_STALE: (
        insert_history,
        "shard 1 [2013-01-01T00:00:00Z, 2013-01-01T01:00:00Z): history was inserted after it was exported "
        "(imported)",
    ),
    FaultKind.EXPORT_MISSING: (_export_moved, f"holds no export of feed '{FEED}'"),
    FaultKind.NOT_CHECKED: (
        insert_history,
        f"feed {FEED}: whether windows with inserted history (1 mark) were exported again. Pass",
    ),
}
#: What else is asked for.
ASKED: dict[FaultKind, dict[str, Any]] = {
    FaultKind.HIGH_WATER_AHEAD: {"open_store": None},
    FaultKind.CONSUMER_UNKNOWN: {"consumer": "warhouse"},
    FaultKind.CURSOR_BEYOND_FEED: {"open_store": None},
    FaultKind.WINDOW_MISSING: {"open_store": None},
    FaultKind.NOT_CHECKED: {"open_store": None},
}
#: Faults that bring others with them, or need somebody else; each has a test of its own below.
APART = {FaultKind.EVENT_TABLE_MISSING, FaultKind.NOT_WRITABLE, FaultKind.OPEN_TRANSACTION}
#: Only object stores have it: tests/stores/test_uploads.py.
APART |= {FaultKind.UPLOAD_LEFT}
#: Those of captures are in ``tests/unit/sources/test_sqlite_capture_gaps.py``.
APART |= {FaultKind.CAPTURE_GAP, FaultKind.CAPTURE_TRIGGER, FaultKind.CAPTURE_DRIFT}
#: Those of damaged exports; doctor finds some of them, too: ``tests/unit/airflow/test_doctor_command.py``.
APART |= {kind for _, kind, _ in DAMAGES.values()} | {FaultKind.UNITS_OVERLAP}
#: Those of tables of Delta Lake and Iceberg: ``tests/unit/airflow/test_tables.py``.
APART |= {FaultKind.LAKE_TABLE_DIFFERS}
#: Those of DAGs: ``tests/unit/airflow/test_freshness_dags.py``.
APART |= {FaultKind.DAG_PAUSED, FaultKind.RUN_FAILED, FaultKind.NO_RUN, FaultKind.CATCHING_UP}
#: Who holds a lease is a fault only of a consumer that is late: ``tests/unit/airflow/test_freshness.py``.
APART |= {FaultKind.LEASE_HELD}
#: Those of Java and Spark are there as well.
APART |= {FaultKind.JAVA_MISSING, FaultKind.SPARK_VERSIONS_DIFFER}
#: Those of snapshots are in ``tests/unit/airflow/test_cli_snapshots.py``.
APART |= {FaultKind.SNAPSHOT_OPEN, FaultKind.SNAPSHOT_EXPIRED, FaultKind.SNAPSHOT_LOST}
#: Those of outputs that begin later, and of events before a beginning: ``tests/unit/airflow``.
APART |= {FaultKind.OUTPUT_BEGINS_LATER, FaultKind.EVENTS_BEFORE_BEGINNING}
#: Those of links: ``tests/unit/hostile/test_links.py``.
APART |= {FaultKind.SYMBOLIC_LINK}
