# SPDX-License-Identifier: Apache-2.0
"""How old frontiers are, whose are looked at, and why one is older than it may be."""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from airflow.cli.cli_parser import get_parser

from airflow_changefeed.consumers.run import run_consumer
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import ConsumerSpec, OnPoison
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import format_time, parse_time
from airflow_changefeed.cursors import cursors
from airflow_changefeed.doctor.airflow import DagState
from airflow_changefeed.doctor.freshness import Freshness, check_freshness
from airflow_changefeed.exceptions import (
    AirflowUnavailableError,
    ChangefeedError,
    ConsumerNotFoundError,
    FeedNotFoundError,
    FeedSetupError,
    FreshnessError,
    InvalidArgumentError,
    PoisonError,
    SourceUnavailableError,
)
from tests.unit.airflow.freshness import EXPORT, FEED, HOUR, MINUTE, OTHER, RUN, Shop, late, stuck
from tests.unit.export.ailments import ListedVariables

# ---- how old


def test_an_export_is_complete_until_the_end_of_its_last_window(shop: Shop) -> None:
    """Whether there were events in it or not; age is by the database's clock. The oldest shard counts."""
    shop.export(9, 4)
    found = shop.only()
    assert (found.is_fresh, found.complete_until) == (False, shop.hour - 3 * HOUR)
    assert 4 * HOUR <= found.age < 6 * HOUR
    shop.write(1, 9 * HOUR)
    shop.export(9, 0)
    found = shop.only()
    assert (found.feed, found.consumer, found.complete_until) == (FEED, EXPORT, shop.hour + HOUR)
    assert (found.is_fresh, found.reasons) == (True, ())
    assert timedelta(0) <= found.age < 2 * HOUR
    shop.source.begin_consumer(EXPORT, FEED, {1: Ulid.floor(shop.hour - 9 * HOUR).previous()}, by=RUN)
    assert shop.only().complete_until == shop.hour - 9 * HOUR


def read_all(shop: Shop) -> None:
    """Let the consumer read all events."""
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, at_head=True)


def test_a_consumer_is_as_old_as_the_first_event_that_it_has_not_read(shop: Shop) -> None:
    """Not as its cursor, and not as the head; complete until now, however long there was nothing to read."""
    shop.consumer()
    assert shop.only().age == timedelta(0)
    shop.write(1, 9 * HOUR)
    found = shop.only()
    assert 9 * HOUR <= found.age < 9 * HOUR + MINUTE
    assert "its cursor has not moved yet" in str(found)
    read_all(shop)
    assert (shop.only().is_fresh, shop.only().age) == (True, timedelta(0))
    shop.write(2, HOUR)
    shop.write(3, MINUTE)
    assert HOUR <= shop.only().age < HOUR + MINUTE
    assert shop.only(30 * MINUTE).is_fresh is False


def test_a_lost_consumer_is_as_old_as_its_cursor(shop: Shop) -> None:
    """Also if nothing is left of what it has not read: nobody knows how much that was."""
    shop.consumer()
    shop.write(1, 9 * HOUR)
    read_all(shop)
    shop.write(2, 3 * HOUR)
    shop.source.set_up_feed(FEED, max_hold=HOUR)
    shop.source.seal(FEED, shop.source.now())
    shop.source.purge(FEED, shop.source.now())
    found = shop.only(30 * MINUTE)
    assert (found.is_fresh, found.age >= 9 * HOUR) == (False, True)
    (lost,) = [fault for fault in found.reasons if fault.kind.code == "consumer-lost"]
    assert lost.what.endswith("; max_hold of the feed is 1h")


def test_rows_that_wait_in_the_outbox_for_long_make_a_consumer_late(shop: Shop) -> None:
    """They get a time at or after the hint of the first one; rows that have just come do not make it late."""
    shop.consumer()
    shop.write(1, 9 * HOUR)
    read_all(shop)
    shop.write(2, MINUTE, drain=False)
    assert shop.only().is_fresh
    shop.sql(f'update "changefeed.outbox:{FEED}" set time_hint = time_hint - 10800000')
    found = shop.only()
    assert 3 * HOUR <= found.age < 9 * HOUR
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


# ---- which


def test_all_feeds_with_consumers_are_looked_at(shop: Shop) -> None:
    """Patterns and names choose, and so does a consumer's name."""
    shop.export(9, 0)
    shop.export(9, 4, OTHER)
    shop.consumer()
    read_all(shop)
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
    assert f"feed {FEED}, consumer {EXPORT}: complete by its cursor until" in str(caught.value)
    assert f"feed {OTHER}: FeedSetupError: " in str(caught.value)
    assert [(row["feed"], row["error"] is None) for row in caught.value.facts["rows"]] == [
        (FEED, True),
        (OTHER, False),
    ]


def test_what_is_not_there_is_no_good_news(shop: Shop) -> None:
    """A watch of nothing would be quiet for ever."""
    with pytest.raises(ConsumerNotFoundError, match=rf"no consumer in {FEED}, {OTHER}; it has none"):
        shop.check()
    shop.export(9, 0)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"feed": "shop.Cart"}, FeedNotFoundError, r"shop\.Cart"),
        ({"feed": "cart.*"}, InvalidArgumentError, "matches no feed"),
        ({"feed": OTHER}, ConsumerNotFoundError, "no consumer in shop.Parcel; it has none"),
        ({"consumer": "lake"}, ConsumerNotFoundError, f"no consumer 'lake' in .*; it has {EXPORT}"),
        ({"feed": FEED, "consumer": "lake"}, ConsumerNotFoundError, f"'lake' in {FEED}; it has {EXPORT}"),
    ]
    for options, error, message in cases:
        with pytest.raises(error, match=message):
            shop.check(**options).check()
    for feed in (FEED, OTHER):
        shop.source.drop_feed(feed)
    with pytest.raises(ConsumerNotFoundError, match="the database has no feeds"):
        shop.check()


def test_several_feeds_that_cannot_be_read_are_an_error_though_none_is_late() -> None:
    """Nobody knows how old they are."""
    errors: dict[str, ChangefeedError] = {name: FeedSetupError(f"{name} is gone") for name in ("a", "b")}
    with pytest.raises(FreshnessError, match=r"a is gone[\s\S]*b is gone"):
        Freshness(MINUTE, (), errors).check()


# ---- why


def test_what_airflow_knows_of_the_dag_is_a_reason(shop: Shop) -> None:
    """The DAG whose run moved the cursor last."""
    late(shop)
    for dag, code, words in (
        (DagState("hourly", is_paused=True), "dag-paused", "DAG hourly is paused"),
        (DagState("hourly", last_run="r7", last_state="failed"), "run-failed", "run r7 of DAG hourly"),
        (
            DagState("hourly", is_there=False),
            "no-run",
            "no longer has DAG hourly. If the DAG runs in",
        ),
        (DagState("hourly", last_run="r7", last_state="running"), "no-run", "its last run, is running"),
        (None, "no-run", f"its cursor has not moved since .*, by {RUN}"),
    ):
        shop.known = {"hourly": dag} if dag is not None else {}
        (reason,) = shop.only().reasons
        assert (reason.kind.code, reason.place) == (code, f"feed {FEED}, consumer {EXPORT}")
        with pytest.raises(FreshnessError, match=words):
            shop.check().check()


class Encrypted(ListedVariables):
    """Variables that another key has encrypted."""

    def get(self, key: str) -> str | None:
        raise AirflowUnavailableError.of(
            f"Airflow did not return the value of Variable {key!r}", "Migrate it"
        )


def test_that_airflow_does_not_answer_is_told_and_hides_nothing(shop: Shop) -> None:
    """Nobody may take the other reasons for all that there is; of all of Airflow it is told once."""
    late(shop)

    def codes() -> list[str]:
        (found,) = check_freshness(shop.source, Encrypted(), shop.find_dag, 2 * HOUR).consumers
        return [fault.kind.code for fault in found.reasons]

    assert codes() == ["not-checked", "no-run"]
    shop.is_airflow_away = True
    assert codes() == ["not-checked", "no-run"]
    unknown, reason = shop.only().reasons
    assert (unknown.kind.code, reason.kind.code) == ("not-checked", "no-run")
    assert "the state of its DAG: could not read the state of the DAG: no such table" in str(unknown)


def test_a_consumer_at_work_that_is_behind_says_when_it_moved(shop: Shop) -> None:
    """No empty reason: the person who was woken must see whether it goes on."""
    shop.write(1, 9 * HOUR)
    shop.consumer("billing")
    (reason,) = shop.only().reasons
    assert reason.kind.code == "catching-up"
    assert "no cause was found; its cursor last moved at " in reason.what
    assert "the holders: airflow-changefeed leases --feed shop.Order --conn-id ..." in reason.remedy
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
    backfill = f"airflow backfill create --dag-id hourly --from-date {until} --to-date "
    words = f"Unpause it: {unpause}. If its schedule does not catch up, backfill the runs that it left out: "
    assert reason.remedy.startswith(words + backfill)
    last = parse_time(reason.remedy.removeprefix(words + backfill))
    # The present time, of which Airflow starts no run before it is over.
    assert last < shop.source.now() < last + HOUR
    for command in (unpause, reason.remedy.removeprefix(words)):
        assert get_parser().parse_args(shlex.split(command)[1:]).func


def test_the_dag_of_a_consumer_of_events_is_found_though_its_run_has_a_long_name(shop: Shop) -> None:
    """The cursor has as much of it as servers keep beside the process; nothing is to be backfilled."""
    shop.write(1, 9 * HOUR)
    shop.consumer("billing")
    run = f"hourly/asset_triggered__{'x' * 100}/group.{'y' * 40}/12"
    run_consumer(shop.source, "billing", FEED, lambda event, connection: None, max_events=1, by=run)
    shop.write(2, 8 * HOUR)
    shop.age_cursors(8 * HOUR)
    shop.known = {"hourly": DagState("hourly", is_paused=True)}
    (reason,) = shop.only().reasons
    assert (reason.kind.code, reason.remedy) == ("dag-paused", "Unpause it: airflow dags unpause hourly")


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


def refuse(event: object, connection: object) -> None:
    """Handle no event."""
    raise ValueError("card 4111-1111")


def parked(shop: Shop) -> None:
    """Let an event fail."""
    shop.write(1, 9 * HOUR)
    shop.consumer(max_attempts=1, on_poison=OnPoison.PARK)
    run_consumer(shop.source, "billing", FEED, refuse, max_events=1)


def failing(shop: Shop) -> None:
    """Let a handler fail until its consumer stops at the event."""
    shop.write(1, 9 * HOUR)
    shop.consumer(max_attempts=1)
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
