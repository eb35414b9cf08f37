# SPDX-License-Identifier: Apache-2.0
"""How old frontiers are, and why one is older than it may be."""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.cli.cli_parser import get_parser

from airflow_changefeed.consumers.begin import create_consumer
from airflow_changefeed.consumers.handlers.run import run_consumer
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import ConsumerSpec, OnPoison
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors import cursors
from airflow_changefeed.doctor.dags import DagState
from airflow_changefeed.doctor.freshness import check_freshness
from airflow_changefeed.exceptions import (
    AirflowUnavailableError,
    ConsumerNotFoundError,
    FeedNotFoundError,
    FreshnessError,
    InvalidArgumentError,
    PoisonError,
    SourceUnavailableError,
)
from tests.unit.airflow.freshness import EXPORT, FEED, HOUR, MINUTE, OTHER, RUN, Shop, late, stuck
from tests.unit.export.ailments import ListedVariables

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
    (lost,) = [fault for fault in found.reasons if fault.kind.code == "consumer-lost"]
    assert lost.what.endswith("; max_hold of the feed is 1h")


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
        (
            DagState("hourly", is_there=False),
            "no-run",
            "no DAG hourly any more. If this is another",
        ),
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


class Encrypted(ListedVariables):
    """Variables that another key has encrypted."""

    def get(self, key: str) -> str | None:
        raise AirflowUnavailableError.of(
            f"Airflow has Variable {key!r} but did not give its value", "Migrate it"
        )


def test_a_variable_that_cannot_be_read_is_told_unless_all_of_airflow_is_away(shop: Shop) -> None:
    """It might have been edited; the next run would fail with that."""
    late(shop)

    def codes() -> list[str]:
        (found,) = check_freshness(shop.source, Encrypted(), shop.find_dag, 2 * HOUR).consumers
        return [fault.kind.code for fault in found.reasons]

    assert codes() == ["not-checked", "no-run"]
    shop.is_airflow_away = True
    assert codes() == ["not-checked", "no-run"]


def test_a_consumer_at_work_that_is_behind_says_when_it_moved(shop: Shop) -> None:
    """No empty reason: the person who was woken must see whether it goes on."""
    shop.write(1, 9 * HOUR)
    shop.consumer("billing")
    (reason,) = shop.only().reasons
    assert reason.kind.code == "catching-up"
    assert "nothing was found that stops it; its cursor moved last at " in reason.what
    assert "who holds it: airflow-changefeed leases --feed shop.Order --conn-id ..." in reason.remedy
    assert "catching-up" in str(shop.only())
    shop.age_cursors(3 * HOUR)
    assert shop.codes() == ["no-run"]


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


def test_a_paused_dag_comes_with_the_commands_that_let_it_catch_up(shop: Shop) -> None:
    """From the first hour that it left out; Airflow takes both commands."""
    late(shop)
    shop.known = {"hourly": DagState("hourly", is_paused=True)}
    found = shop.only()
    (reason,) = found.reasons
    until = format_time(found.complete_until)
    unpause = "airflow dags unpause hourly"
    backfill = f"airflow backfill create --dag-id hourly --from-date {until} --to-date ..."
    assert reason.remedy == (
        f"Unpause it: {unpause}. If its schedule does not catch up, backfill what it left out: {backfill}"
    )
    for command in (unpause, backfill.replace("...", until)):
        assert get_parser().parse_args(shlex.split(command)[1:]).func


def test_the_dag_of_a_run_with_a_long_name_is_found(shop: Shop) -> None:
    """The cursor has as much of the name as servers keep beside the process."""
    shop.write(1, 9 * HOUR)
    shop.consumer("billing")
    run = f"hourly/asset_triggered__{'x' * 100}/group.{'y' * 40}/12"
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, max_events=1, by=run)
    shop.write(2, 8 * HOUR)
    shop.age_cursors(8 * HOUR)
    shop.known = {"hourly": DagState("hourly", is_paused=True)}
    assert shop.codes() == ["dag-paused"]


def test_a_paused_dag_of_a_consumer_of_events_leaves_nothing_out(shop: Shop) -> None:
    """It goes on where it stopped, so nothing is to be backfilled."""
    shop.write(1, 9 * HOUR)
    shop.consumer("billing")
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, max_events=1, by=RUN)
    shop.write(2, 8 * HOUR)
    shop.age_cursors(8 * HOUR)
    shop.known = {"hourly": DagState("hourly", is_paused=True)}
    assert [reason.remedy for reason in shop.only().reasons] == ["Unpause it: airflow dags unpause hourly"]


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
    assert shop.codes() == ["object-missing", "window-missing", "no-run"]


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
    assert late(shop).codes() == ["not-checked", "no-run"]


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
