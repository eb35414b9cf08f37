# SPDX-License-Identifier: Apache-2.0
"""How old frontiers are and why: the check, both operators, the notifier and ``status --max-age``."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, BaseNotifier

from airflow_changefeed.consumers.begin import create_consumer
from airflow_changefeed.consumers.handlers.run import run_consumer
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import ConsumerSpec, OnPoison
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors import cursors
from airflow_changefeed.doctor.dags import DagState
from airflow_changefeed.doctor.freshness import ConsumerFreshness, Freshness, check_freshness
from airflow_changefeed.exceptions import (
    AirflowUnavailableError,
    ConsumerNotFoundError,
    FeedNotFoundError,
    FreshnessError,
    InvalidArgumentError,
    PoisonError,
    SourceUnavailableError,
)
from airflow_changefeed.notifications.changefeed_freshness import ChangefeedFreshnessNotifier
from airflow_changefeed.operators.changefeed_freshness import (
    ChangefeedFreshnessBranchOperator,
    ChangefeedFreshnessOperator,
)
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.version_compat import AirflowFailException
from tests.examples import examples, run_example
from tests.identity import name_database
from tests.minors import since
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.fakes import context
from tests.unit.airflow.feeds import play
from tests.unit.export.consumers import Variables

FEED, OTHER, EXPORT = "shop.Order", "shop.Parcel", "warehouse"
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
RUN = "hourly/scheduled__1/export/1"


class Shop:
    """Two feeds in a file, by hours that have just passed."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.variables = Variables()
        self.known: dict[str, DagState] = {}
        self.is_airflow_away = False
        self.source = SqliteFeedSource(self.path, lock_timeout=0.2)
        self.hour = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0) - HOUR
        for feed in (FEED, OTHER):
            self.sql(f'create table "{feed}" (id integer primary key)')
            self.source.set_up_feed(feed)
        name_database(self.path)

    def sql(self, statement: str) -> None:
        """Do what a writer or a person does to the file."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute(statement)

    def write(self, number: int, ago: timedelta, feed: str = FEED, *, drain: bool = True) -> None:
        """Write an event of some time ago."""
        hint = int((self.source.now() - ago).timestamp() * 1000)
        self.sql(f'insert into "{feed}" values ({number})')
        self.sql(f'insert into "changefeed.outbox:{feed}" (time_hint, id) values ({hint}, {number})')
        if drain:
            self.source.drain(feed)

    def export(self, first: int, last: int, feed: str = FEED, *, by: str = RUN) -> None:
        """Complete the hours from ``first`` to ``last``, counted back from the last whole one, 0."""
        if not self.source.shards(feed):
            self.write(100, 12 * HOUR, feed)
        begin, end = self.hour - first * HOUR, self.hour - (last - 1) * HOUR
        window = UlidRange(Ulid.floor(begin).previous(), Ulid.floor(end).previous())
        self.source.seal(feed, end)
        self.source.begin_consumer(EXPORT, feed, {0: window.after}, by=by)
        cursors.advance(self.source, self.variables, EXPORT, feed, {0: [window]}, by=by)

    def age_cursors(self, by: timedelta) -> None:
        """Let all cursors have moved some time earlier."""
        self.sql(f'update "changefeed.consumer" set moved_at_ms = moved_at_ms - {by // MINUTE * 60_000}')

    def consumer(self, name: str = "billing", **settings: Any) -> None:
        """Create a consumer of all events."""
        create_consumer(self.source, ConsumerSpec(name, FEED, **settings), "earliest", by="a person")

    def check(self, max_age: timedelta = 2 * HOUR, **options: Any) -> Freshness:
        """Compute the freshness with the DAGs that are known here."""
        return check_freshness(self.source, None, self.find_dag, max_age, **options)

    def find_dag(self, dag_id: str) -> DagState:
        """Return what is known here of a DAG."""
        if self.is_airflow_away:
            raise AirflowUnavailableError.of(
                "could not read the state of the DAG: no such table", "Migrate it"
            )
        return self.known.get(dag_id, DagState(dag_id))

    def only(self, max_age: timedelta = 2 * HOUR, **options: Any) -> ConsumerFreshness:
        """Return the freshness of the only consumer."""
        (found,) = self.check(max_age, **options).consumers
        return found

    def codes(self, max_age: timedelta = 2 * HOUR) -> list[str]:
        """Return why the only consumer is late."""
        return [fault.kind.code for fault in self.only(max_age).reasons]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The feeds, and a connection to them."""
    shop = Shop(tmp_path / "shop.db")
    connection = {"conn_type": "sqlite", "host": shop.path, "extra": {"lock_timeout": 0.2}}
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(connection))
    yield shop
    shop.source.close()


def late(shop: Shop) -> Shop:
    """Let an export have stopped four hours ago."""
    shop.export(9, 4)
    shop.age_cursors(4 * HOUR)
    return shop


# ---- how old


def test_an_export_is_complete_until_the_end_of_its_last_window(shop: Shop) -> None:
    """Whether there were events in it or not; age is by the database's clock."""
    shop.write(1, 9 * HOUR)
    shop.export(9, 0)
    found = shop.only()
    assert (found.feed, found.consumer, found.complete_until) == (FEED, EXPORT, shop.hour + HOUR)
    assert found.is_fresh
    assert found.reasons == ()
    assert timedelta(0) <= found.age < 2 * HOUR


def test_an_export_that_stopped_is_late_also_in_a_feed_without_events(shop: Shop) -> None:
    """There is nothing to export, and yet nobody knows that."""
    found = late(shop).only()
    assert not found.is_fresh
    assert found.complete_until == shop.hour - 3 * HOUR
    assert 4 * HOUR <= found.age < 6 * HOUR


def test_the_oldest_shard_counts(shop: Shop) -> None:
    """A consumer is complete until where all its shards are."""
    shop.export(9, 0)
    shop.source.begin_consumer(EXPORT, FEED, {1: Ulid.floor(shop.hour - 9 * HOUR).previous()}, by=RUN)
    assert shop.only().complete_until == shop.hour - 9 * HOUR


def test_a_consumer_that_has_read_everything_is_complete_until_now(shop: Shop) -> None:
    """However long there has been nothing to read."""
    shop.consumer()
    assert shop.only().age == timedelta(0)
    shop.write(1, 9 * HOUR)
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, at_head=True)
    found = shop.only()
    assert (found.is_fresh, found.age) == (True, timedelta(0))


def test_a_consumer_is_as_old_as_the_first_event_that_it_has_not_read(shop: Shop) -> None:
    """Not as its cursor, and not as the head."""
    shop.consumer()
    shop.write(1, 9 * HOUR)
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, at_head=True)
    shop.write(2, HOUR)
    shop.write(3, MINUTE)
    assert HOUR <= shop.only().age < HOUR + MINUTE
    assert shop.only(30 * MINUTE).is_fresh is False


def test_a_lost_consumer_is_as_old_as_its_cursor(shop: Shop) -> None:
    """Also if nothing is left of what it has not read: nobody knows how much that was."""
    shop.consumer()
    shop.write(1, 9 * HOUR)
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, at_head=True)
    shop.write(2, 3 * HOUR)
    shop.source.set_up_feed(FEED, max_hold=HOUR)
    shop.source.seal(FEED, shop.source.now())
    shop.source.purge(FEED, shop.source.now())
    found = shop.only(30 * MINUTE)
    assert (found.is_fresh, found.age >= 9 * HOUR) == (False, True)
    assert "consumer-lost" in [fault.kind.code for fault in found.reasons]


def test_a_consumer_without_a_cursor_has_read_nothing(shop: Shop) -> None:
    """Its shards begin where it does."""
    shop.consumer()
    shop.write(1, 3 * HOUR)
    found = shop.only()
    assert 3 * HOUR <= found.age < 3 * HOUR + MINUTE
    assert "nothing has moved its cursor yet" in str(found)


def test_rows_that_wait_in_the_outbox_for_long_make_a_consumer_late(shop: Shop) -> None:
    """Their time is not known, so it is complete until its cursor; rows that have just come do not count."""
    shop.consumer()
    shop.write(1, 9 * HOUR)
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, at_head=True)
    shop.write(2, MINUTE, drain=False)
    assert shop.only().is_fresh
    shop.sql(f'update "changefeed.outbox:{FEED}" set time_hint = time_hint - 10800000')
    found = shop.only()
    assert found.age >= 9 * HOUR
    assert [fault.kind.code for fault in found.reasons] == ["outbox-not-drained"]


def test_a_batch_export_is_at_the_head_or_behind(shop: Shop) -> None:
    """As a consumer of events: it has no windows that must be complete."""
    shop.write(1, 9 * HOUR)
    (status,) = shop.source.shards(FEED)
    assert status.head is not None
    shop.source.begin_consumer(EXPORT, FEED, {0: Ulid.MIN}, by=RUN)
    done = {0: [UlidRange(Ulid.MIN, status.head)]}
    cursors.advance(shop.source, shop.variables, EXPORT, FEED, done, by=RUN)
    assert shop.only().age == timedelta(0)
    shop.write(2, 3 * HOUR)
    assert 3 * HOUR <= shop.only().age < 3 * HOUR + MINUTE


# ---- why


@pytest.mark.parametrize(
    ("dag", "code", "words"),
    [
        (DagState("hourly", is_paused=True), "dag-paused", "DAG hourly is paused"),
        (DagState("hourly", last_run="r7", last_state="failed"), "run-failed", "run r7 of DAG hourly"),
        (DagState("hourly", is_there=False), "no-run", "Airflow has no DAG hourly any more"),
        (DagState("hourly", last_run="r7", last_state="running"), "no-run", "its last one, is running"),
        (None, "no-run", f"nothing has moved its cursor since .*, by {RUN}"),
    ],
)
def test_what_airflow_knows_of_the_dag_is_a_reason(
    shop: Shop, dag: DagState | None, code: str, words: str
) -> None:
    """The DAG whose run moved the cursor last."""
    shop.known = {"hourly": dag} if dag is not None else {}
    (reason,) = late(shop).only().reasons
    assert reason.kind.code == code
    assert f"feed {FEED}, consumer {EXPORT}" == reason.where
    with pytest.raises(FreshnessError, match=words):
        shop.check().check()


def test_that_airflow_does_not_answer_is_told_and_hides_nothing(shop: Shop) -> None:
    """Nobody may take the other reasons for all that there is."""
    late(shop)
    shop.is_airflow_away = True
    unknown, reason = shop.only().reasons
    assert (unknown.kind.code, reason.kind.code) == ("not-checked", "no-run")
    assert str(unknown) == (
        f"note not-checked: feed {FEED}, consumer {EXPORT}: what became of its DAG: could not read the "
        "state of the DAG: no such table. Migrate it"
    )


def test_the_dag_is_found_also_after_a_person_moved_the_cursor(shop: Shop) -> None:
    """In the history of the cursor."""
    late(shop)
    (row,) = shop.source.cursors(FEED)
    shop.source.seal(FEED, shop.hour)
    back = {0: [UlidRange(row.ulid, Ulid.floor(shop.hour - 2 * HOUR).previous())]}
    cursors.advance(shop.source, shop.variables, EXPORT, FEED, back, by="anna")
    shop.age_cursors(3 * HOUR)
    shop.known = {"hourly": DagState("hourly", is_paused=True)}
    assert shop.codes() == ["dag-paused"]


def hole(shop: Shop) -> None:
    """Leave out an hour."""
    shop.export(9, 8)
    shop.export(6, 0)


def gap(shop: Shop) -> None:
    """Let a capture miss a change."""
    shop.sql("create table cart (id integer primary key, note text)")
    name = "cart_changes"
    shop.source.enable_capture(CaptureSpec((TableCapture("cart"),), name=name))
    shop.source.seal(name, shop.hour - 3 * HOUR)
    with closing(sqlite3.connect(shop.path, isolation_level=None)) as connection:
        triggers = connection.execute("select name from sqlite_master where type = 'trigger'").fetchall()
        for (trigger,) in triggers:
            connection.execute(f'drop trigger "{trigger}"')
    begin = Ulid.floor(shop.hour - 9 * HOUR).previous()
    shop.source.begin_consumer(EXPORT, name, {0: begin}, by=RUN)
    shop.source.check_capture(name)


def stuck(shop: Shop) -> None:
    """Let a process hold the lease, and do nothing."""
    late(shop)
    shop.source.acquire_leases(EXPORT, FEED, [0], holder="pod-7", seconds=7200, all_or_none=True)


def dead(shop: Shop) -> None:
    """Let a process die that held the lease."""
    stuck(shop)
    shop.sql('update "changefeed.consumer" set lease_expires_ms = 1')


def parked(shop: Shop) -> None:
    """Let an event fail."""
    shop.write(1, 9 * HOUR)
    shop.consumer(max_attempts=1, on_poison=OnPoison.PARK)

    def refuse(event: object, connection: object) -> None:
        raise ValueError("card 4111-1111")

    run_consumer(shop.source, "billing", FEED, refuse, max_events=1)


def failing(shop: Shop) -> None:
    """Let a handler fail until its consumer stops at the event."""
    shop.write(1, 9 * HOUR)
    shop.consumer(max_attempts=1)

    def refuse(event: object, connection: object) -> None:
        raise ValueError("card 4111-1111")

    with pytest.raises(PoisonError):
        run_consumer(shop.source, "billing", FEED, refuse, max_events=1)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (hole, "window-missing"),
        (failing, "consumer-failing"),
        (gap, "capture-gap"),
        (stuck, "lease-stuck"),
        (dead, "lease-expired"),
        (parked, "dead-letter"),
    ],
)
def test_what_doctor_finds_is_a_reason(shop: Shop, make: Callable[[Shop], None], code: str) -> None:
    """In its words, with its remedy; not what is in an event."""
    make(shop)
    found = shop.only()
    (reason, *_) = [fault for fault in found.reasons if fault.kind.code == code]
    assert reason.remedy
    assert reason.what in str(found)
    assert "4111" not in str(found)


def test_a_consumer_is_complete_until_the_gap_of_its_capture(shop: Shop) -> None:
    """Although it has read all there is: what the capture missed is not in the feed."""
    gap(shop)
    shop.source.drop_consumer(EXPORT, "cart_changes")
    create_consumer(
        shop.source, ConsumerSpec("billing", "cart_changes", max_attempts=1), "latest", by="a person"
    )
    found = shop.only()
    assert (found.consumer, found.is_fresh) == ("billing", False)
    assert found.complete_until == shop.hour - 3 * HOUR
    assert "capture-gap" in [fault.kind.code for fault in found.reasons]
    shop.source.resolve_capture("cart_changes", note="counted", by="a person")
    assert shop.only().is_fresh


def test_who_holds_the_lease_of_a_consumer_that_is_behind_is_a_reason(shop: Shop) -> None:
    """With the time since when, also while it moves the cursor: it may be slow."""
    shop.write(1, 9 * HOUR)
    shop.write(2, 8 * HOUR)
    shop.consumer()
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, max_events=1)
    begun = shop.source.now()
    shop.source.acquire_leases("billing", FEED, [0], holder="pod-7", seconds=60)
    found = shop.only()
    (reason,) = found.reasons
    assert reason.kind.code == "lease-held"
    (lease,) = shop.source.leases(FEED)
    assert lease.since is not None
    assert begun <= lease.since
    assert f"pod-7 holds the lease of shard 0 since {format_time(lease.since)}, and last moved" in reason.what
    assert f"--fencing-token {lease.token} --conn-id ..." in reason.remedy


def test_errors_come_before_the_reason_of_the_dag(shop: Shop) -> None:
    """No run mends them; then what else may stop it. A failed run is named although the DAG is paused."""
    hole(shop)
    shop.age_cursors(4 * HOUR)
    shop.sql(f'drop index "changefeed.outbox_shard:{FEED}"')
    shop.known = {"hourly": DagState("hourly", is_paused=True, last_run="r7", last_state="failed")}
    assert shop.codes() == ["object-missing", "dag-paused", "run-failed", "window-missing"]
    shop.known = {}
    assert shop.codes() == ["object-missing", "no-run", "window-missing"]


def test_a_writer_that_lets_seals_time_out_is_a_reason(shop: Shop) -> None:
    """All others wait for its transaction."""
    late(shop)
    with closing(sqlite3.connect(shop.path, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        assert "open-transaction" in shop.codes()
        writer.execute("rollback")
    assert "open-transaction" not in shop.codes()


def test_a_reason_that_cannot_be_found_does_not_hide_that_it_is_late(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check that failed is the reason."""

    def away(feed: str | None, limits: object) -> None:
        raise SourceUnavailableError("the database did not answer")

    monkeypatch.setattr(shop.source, "inspect", away)
    assert late(shop).codes() == ["no-run", "not-checked"]


# ---- which


def test_all_feeds_with_consumers_are_looked_at(shop: Shop) -> None:
    """Patterns and names choose, and so does a consumer's name."""
    shop.export(9, 0)
    shop.export(9, 4, OTHER)
    shop.consumer()
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, at_head=True)
    found = shop.check()
    assert [(one.feed, one.consumer, one.is_fresh) for one in found.consumers] == [
        (FEED, "billing", True),
        (FEED, EXPORT, True),
        (OTHER, EXPORT, False),
    ]
    assert found.summary == "consumers: 3, older than 2:00:00: 1"
    assert len(shop.check(feed="shop.O*").consumers) == 2
    assert len(shop.check(feed=[OTHER, "shop.*"], consumer=EXPORT).consumers) == 2
    assert shop.only(consumer="billing").consumer == "billing"
    shop.check(feed=FEED).check()


def test_a_feed_that_cannot_be_read_does_not_hide_the_others(shop: Shop) -> None:
    """The error names it, and the consumers that are late."""
    shop.export(9, 4)
    shop.export(9, 0, OTHER)
    shop.sql(f'drop table "{OTHER}"')
    found = shop.check()
    assert [one.feed for one in found.consumers] == [FEED]
    with pytest.raises(FreshnessError) as caught:
        found.check()
    assert f"feed {FEED}, consumer {EXPORT}: complete until" in str(caught.value)
    assert f"feed {OTHER}: FeedSetupError: " in str(caught.value)
    assert [(row["feed"], row["error"] is None) for row in caught.value.facts["rows"]] == [
        (FEED, True),
        (OTHER, False),
    ]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"feed": "shop.Cart"}, FeedNotFoundError, r"shop\.Cart"),
        ({"feed": "cart.*"}, InvalidArgumentError, "matches no feed"),
        ({"feed": OTHER}, ConsumerNotFoundError, "no consumer in shop.Parcel; it has none"),
        ({"consumer": "lake"}, ConsumerNotFoundError, f"no consumer 'lake' in .*; it has {EXPORT}"),
        ({"feed": FEED, "consumer": "lake"}, ConsumerNotFoundError, f"'lake' in {FEED}; it has {EXPORT}"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_there_is_no_good_news(
    shop: Shop, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """A watch of nothing would be quiet for ever."""
    shop.export(9, 0)
    with pytest.raises(error, match=message):
        shop.check(**options).check()


def test_a_connection_without_consumers_or_feeds_is_refused(shop: Shop, tmp_path: Path) -> None:
    """There is nothing to watch."""
    with pytest.raises(ConsumerNotFoundError, match=rf"no consumer in {FEED}, {OTHER}; it has none"):
        shop.check()
    for feed in (FEED, OTHER):
        shop.source.drop_feed(feed)
    with pytest.raises(ConsumerNotFoundError, match="the database has no feeds"):
        shop.check()


# ---- operators


def watch(**arguments: Any) -> tuple[Any, Any]:
    """Run the operator; return its result or failure, and the rows that it pushed."""
    pushed: dict[str, Any] = {}
    given = context()
    given["ti"].xcom_push = lambda key, value: pushed.update({key: value})
    task = ChangefeedFreshnessOperator(**{"task_id": "watch", "max_age": 2 * HOUR, **arguments})
    try:
        return task.execute(given), pushed["return_value"]
    except (AirflowFailException, SourceUnavailableError) as failure:
        return failure, pushed.get("return_value")


@pytest.mark.usefixtures("server")
def test_the_operator_succeeds_with_rows(shop: Shop) -> None:
    """One for each consumer, as JSON."""
    shop.export(9, 0)
    result, pushed = watch(max_age=7200)
    assert result == pushed == json.loads(json.dumps(result))
    (row,) = result
    assert (row["feed"], row["consumer"], row["is_fresh"], row["reasons"]) == (FEED, EXPORT, True, [])


@pytest.mark.usefixtures("server")
def test_a_late_consumer_fails_the_task_at_once(shop: Shop) -> None:
    """Named with age and reason, and the rows are the task's result."""
    failure, rows = watch(feed=late(shop) and FEED)
    assert isinstance(failure, AirflowFailException)
    assert str(failure).startswith("FreshnessError: consumers: 1, older than 2:00:00: 1")
    assert f"feed {FEED}, consumer {EXPORT}: complete until" in str(failure)
    assert "Airflow has no DAG hourly any more" in str(failure)
    assert [reason["code"] for reason in rows[0]["reasons"]] == ["no-run"]


@pytest.mark.usefixtures("server")
def test_commands_that_help_name_the_connection(shop: Shop) -> None:
    """They can be copied as they are."""
    stuck(shop)
    assert "airflow-changefeed consumer revoke" in str(watch()[0])
    assert "--conn-id changefeed_default" in str(watch()[0])


@pytest.mark.usefixtures("server")
def test_a_paused_dag_is_found_in_airflow(shop: Shop) -> None:
    """By the DAG that the cursor names; then its last run, if it is not paused."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
        session.flush()
        session.merge(DagModel(dag_id="hourly", bundle_name="tests", is_paused=True, is_stale=False))
    try:
        assert "dag-paused: " in str(watch(feed=late(shop) and FEED)[0])
    finally:
        with create_session() as session:
            session.delete(session.get(DagModel, "hourly"))


def test_a_database_that_is_away_is_transient(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow retries the task."""

    def feeds(source: object) -> None:
        raise SourceUnavailableError("the database did not answer")

    monkeypatch.setattr(play(monkeypatch), "feeds", feeds)
    failure, rows = watch()
    assert type(failure) is SourceUnavailableError
    assert rows is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_age": 0}, "max_age must be a timedelta, or seconds, above 0, not 0"),
        ({"max_age": -HOUR}, "max_age must be"),
        ({"max_age": "2h"}, "max_age must be"),
        ({"max_age": float("nan")}, "max_age must be"),
        ({"feed": []}, "feed is empty"),
        ({"feed": 7}, "feed must be names or patterns"),
        ({"consumer": "a:b"}, "consumer 'a:b' is not a valid name"),
        ({"changefeed_conn_id": ""}, "changefeed_conn_id is missing"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any], message: str) -> None:
    """With what may be given."""
    with pytest.raises(InvalidArgumentError, match=message):
        watch(**arguments)


def test_names_are_templated() -> None:
    """They are checked once they are known."""
    task = ChangefeedFreshnessOperator(
        task_id="watch", max_age=HOUR, feed="{{ params.feed }}", consumer="{{ params.consumer }}"
    )
    task.render_template_fields({"params": {"feed": FEED, "consumer": EXPORT}})
    assert (task.feed, task.consumer) == (FEED, EXPORT)


class TaskInstance(SimpleNamespace):
    """As much of a task instance as a branch uses."""

    map_index = -1
    pushed: dict[str, Any]

    def xcom_push(self, key: str, value: Any) -> None:
        """Keep it."""
        self.pushed[key] = value


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("last", "followed"), [(0, ["on"]), (4, ["page"])])
def test_the_branch_follows_freshness(shop: Shop, last: int, followed: list[str]) -> None:
    """The tasks of the other branch are skipped; the rows are an XCom of their own."""
    from airflow.providers.standard.operators.empty import EmptyOperator

    from airflow_changefeed.version_compat import DownstreamTasksSkipped

    shop.export(9, last)
    with DAG("dag", schedule=None):
        task = ChangefeedFreshnessBranchOperator(
            task_id="fresh",
            max_age=2 * HOUR,
            follow_task_ids_if_fresh=["on"],
            follow_task_ids_if_stale=["page"],
        )
        task >> [EmptyOperator(task_id="on"), EmptyOperator(task_id="page")]
    ti = TaskInstance(task=task, dag_id="dag", run_id="run", task_id="fresh", try_number=1, pushed={})
    with pytest.raises(DownstreamTasksSkipped) as caught:
        task.execute({"ti": ti})
    assert {"on", "page"} - {name for name, _ in caught.value.tasks} == set(followed)
    assert [row["consumer"] for row in ti.pushed["consumers"]] == [EXPORT]


@pytest.mark.usefixtures("server")
def test_a_branch_that_cannot_tell_fails(shop: Shop) -> None:
    """Neither branch is right."""
    task = ChangefeedFreshnessBranchOperator(
        task_id="fresh", max_age=HOUR, follow_task_ids_if_fresh="on", follow_task_ids_if_stale="page"
    )
    with pytest.raises(AirflowFailException, match="ConsumerNotFoundError: nothing to watch"):
        task.choose_branch({"ti": TaskInstance(pushed={})})


# ---- notifier


class Pigeon(BaseNotifier):
    """A notifier as providers have them, with a template."""

    template_fields = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.sent: list[str] = []

    def notify(self, context: Any) -> None:
        """Send."""
        self.sent.append(self.text)


@pytest.mark.usefixtures("server")
def test_another_notifier_sends_the_text(shop: Shop) -> None:
    """In its own template, with the same words as the operator."""
    pigeon = Pigeon("{{ ti.task_id }} failed. {{ freshness }}")
    notifier = ChangefeedFreshnessNotifier(
        notifier=pigeon, max_age=2 * HOUR, feed="{{ params.feed }}", consumer=EXPORT
    )
    late(shop)
    notifier(context(params={"feed": FEED}, dag=None))
    (text,) = pigeon.sent
    assert text.startswith("export failed. consumers: 1, older than 2:00:00: 1\n")
    assert f"feed {FEED}, consumer {EXPORT}: complete until" in text
    assert "warning no-run: " in text


@pytest.mark.usefixtures("server")
def test_a_function_sends_it_too(shop: Shop) -> None:
    """Also of consumers that are fresh: what failed need not have made them late."""
    shop.export(9, 0)
    sent: list[str] = []
    ChangefeedFreshnessNotifier(notifier=lambda given: sent.append(given["freshness"]), max_age=7200)(
        context(dag=None)
    )
    assert sent[0].splitlines()[1].startswith(f"feed {FEED}, consumer {EXPORT}: complete until")


def test_a_database_that_is_away_is_what_is_sent(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its secrets: the notification must not fail for it."""

    def feeds(source: object) -> None:
        raise SourceUnavailableError("mssql://anna:canary@db/shop did not answer")

    monkeypatch.setattr(play(monkeypatch), "feeds", feeds)
    sent: list[str] = []
    ChangefeedFreshnessNotifier(notifier=lambda given: sent.append(given["freshness"]), max_age=7200)(
        context(dag=None)
    )
    assert sent == ["SourceUnavailableError: mssql://***@db/shop did not answer"]


def test_a_notifier_that_can_send_nothing_is_refused() -> None:
    """When the DAG is parsed, with all that is wrong."""
    with pytest.raises(InvalidArgumentError, match=r"notifier must be .*max_age must be"):
        ChangefeedFreshnessNotifier(notifier="slack", max_age=0)  # type: ignore[arg-type]


# ---- command


@pytest.fixture
def commands(
    shop: Shop, server: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Commands:
    """Commands on the shop."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    return Commands(capsys)


def test_status_ends_with_0_if_all_are_fresh(shop: Shop, commands: Commands) -> None:
    """One row for each consumer."""
    shop.export(9, 0)
    (row,) = commands.rows("status", "--max-age", "2h")
    assert (row["feed"], row["consumer"], row["is_fresh"]) == (FEED, EXPORT, True)
    assert "changefeed_default: consumers: 1, older than 2:00:00: 0" in commands.err


def test_status_ends_with_1_if_one_is_late(shop: Shop, commands: Commands) -> None:
    """With the reason; other feeds and consumers can be left out."""
    late(shop)
    shop.consumer()
    shop.export(9, 0, OTHER)
    assert commands.run("status", "--max-age", "120m", "-o", "plain") == 1
    assert commands.out.split()[:6] == ["feed", "consumer", "complete", "until", "age", "fresh"]
    assert "no-run: nothing has moved its cursor since" in commands.out
    assert commands.run("status", "--max-age", "1d") == 0
    assert commands.run("status", "--max-age", "7200s", "--feed", OTHER) == 0
    assert commands.run("status", "--max-age", "2h", "--consumer", "billing") == 1
    assert commands.run("status", "--max-age", "2h", "--feed", "shop.*", "--consumer", EXPORT) == 1


def test_status_ends_with_2_if_it_cannot_tell(shop: Shop, commands: Commands) -> None:
    """But with 1 if something else is late."""
    assert "ConsumerNotFoundError: nothing to watch" in commands.fails("status", "--max-age", "2h")
    shop.export(9, 0)
    assert "no consumer 'lake'" in commands.fails("status", "--max-age", "2h", "--consumer", "lake")
    assert "FeedNotFoundError" in commands.fails("status", "--max-age", "2h", "--feed", "shop.Cart")
    assert "--consumer needs --max-age" in commands.fails("status", "--consumer", EXPORT)
    shop.sql(f'drop table "{OTHER}"')
    assert commands.run("status", "--max-age", "2h") == 2
    assert f"feed {OTHER}: FeedSetupError" in commands.err
    assert FEED in commands.out
    assert commands.run("status", "--max-age", "1s") == 1


@pytest.mark.parametrize(
    "text", ["2", "h", "0h", "-1h", "1.5h", "2w", "2 h", "99999d", "²h", "1" * 5000 + "s"]
)
def test_what_is_no_duration_is_refused(commands: Commands, text: str) -> None:
    """With what is one."""
    with pytest.raises(SystemExit) as caught:
        commands.run("status", f"--max-age={text}")
    assert caught.value.code == 2
    assert "expected 1 to 36525 with a unit, such as 90s, 15m, 2h or 1d" in commands.err


# ---- the page


@since("3.2", "the deadlines of the page")
@pytest.mark.usefixtures("server")
def test_the_python_of_the_page_runs(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks find what is there; the mail has the text."""
    names: dict[str, Any] = {}
    for code in examples("how-to/watch-freshness.md", {}):
        run_example(code, names)
    shop.export(9, 0)
    pushed: dict[str, Any] = {}
    assert names["watch"].execute({"ti": TaskInstance(pushed=pushed)})[0]["is_fresh"]
    assert names["fresh"].choose_branch({"ti": TaskInstance(pushed=pushed)}) == "report"
    assert "<pre>consumers: 1, older than 2:00:00: 0" in mail(names["notify"], monkeypatch)
    assert names["deadline"].interval == 45 * MINUTE


def mail(notify: ChangefeedFreshnessNotifier, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the mail that the page's notifier sends."""
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    sent: list[str] = []
    monkeypatch.setattr(SmtpNotifier, "notify", lambda self, context: sent.append(self.html_content))
    notify(context())
    return sent[0]


def test_the_commands_of_the_page_run(shop: Shop, commands: Commands) -> None:
    """As they stand there."""
    shop.export(9, 0)
    (block,) = examples("how-to/watch-freshness.md", {}, "bash")
    for line in block.splitlines():
        program, *words = shlex.split(line)
        assert program == "airflow-changefeed"
        assert commands.run_bare(words[0], *words[1:]) == 0, commands.err
