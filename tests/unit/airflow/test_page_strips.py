# SPDX-License-Identifier: Apache-2.0
"""The last windows of each consumer at one look, and how old its frontier is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from airflow.models.serialized_dag import SerializedDagModel
from airflow.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable

from airflow_changefeed.consumers.run import Backoff, run_consumer
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, OnPoison
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import EPOCH, format_time
from airflow_changefeed.cursors.cursors import advance
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.browser.exports import Nowhere
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, START, insert
from tests.unit.airflow.page import CONN_ID, Visitor, add_run, listed, remove_runs, store_export

pytestmark = since("3.1", "the page")

HOUR = timedelta(hours=1)
DAG_ID = "page_strips"


@pytest.fixture
def now(source: SqliteFeedSource) -> datetime:
    """Return the hour that the database's clock is in."""
    return source.now().replace(minute=0, second=0, microsecond=0)


@pytest.fixture(autouse=True)
def stored(server: None, source: SqliteFeedSource, now: datetime, tmp_path: Any) -> Any:
    """Give a DAG that exports hours, and events of the last two days."""
    store_export(DAG_ID, "0 * * * *", {"path": str(tmp_path / "out")})
    insert(source.database.path, range(60, 60 + 6 * 47), now - 57 * HOUR)
    source.drain(FEED)
    yield
    remove_runs(DAG_ID)


def ulid(time: datetime) -> Ulid:
    """Return the exclusive end of windows that end at a time."""
    return Ulid.floor(time).previous()


def begin(
    source: SqliteFeedSource,
    since: datetime,
    *ranges: tuple[datetime, datetime],
    consumer: str = CONSUMER,
) -> None:
    """Let a consumer begin, and complete ranges of both shards."""
    source.seal(FEED, source.now().replace(minute=0, second=0, microsecond=0))
    source.begin_consumer(consumer, FEED, dict.fromkeys((0, 1), ulid(since)), by="test")
    done = [UlidRange(ulid(start), ulid(end)) for start, end in ranges]
    if done:
        advance(source, Nowhere(), consumer, FEED, dict.fromkeys((0, 1), done), by="test")


def shown(consumer: str = CONSUMER, feed: str = FEED) -> dict[str, Any]:
    """Return what the list of feeds says of a consumer, which is what its feed's own page says."""
    (found,) = [one for one in listed(feed)["consumers"] if one["consumer"] == consumer]
    detail = Visitor("OP").ask("feed", conn_id=CONN_ID, feed=feed)
    assert found["strip"] in [one["strip"] for one in detail["consumers"]]
    return dict(found)


def test_the_last_windows_of_an_export_are_shown(source: SqliteFeedSource, now: datetime) -> None:
    """Before its beginning, complete, missing, complete ahead of a gap, and not over yet."""
    begin(source, now - 40 * HOUR, (now - 40 * HOUR, now - 3 * HOUR), (now - 2 * HOUR, now))
    found = shown()
    strip = found["strip"]
    assert (strip["start"], strip["unit_seconds"]) == (format_time(now - 47 * HOUR), 3600)
    assert strip["states"] == ["before"] * 7 + ["complete"] * 37 + ["missing"] + ["complete"] * 2 + ["open"]
    assert found["complete_until"] == format_time(now - 3 * HOUR)
    assert 3 * 3600 <= found["age_seconds"] < 5 * 3600
    assert (found["state"], strip["is_missing_before"]) == ("missing", False)


def test_a_window_that_is_missing_before_the_last_ones_makes_a_consumer_late(
    source: SqliteFeedSource, now: datetime
) -> None:
    """Although all of the last ones are complete."""
    begin(source, now - 57 * HOUR, (now - 57 * HOUR, now - 50 * HOUR), (now - 49 * HOUR, now))
    found = shown()
    assert found["strip"]["states"] == ["complete"] * 47 + ["open"]
    assert found["complete_until"] == format_time(now - 50 * HOUR)
    assert (found["state"], found["strip"]["is_missing_before"]) == ("missing", True)
    done = [UlidRange(ulid(now - 50 * HOUR), ulid(now - 49 * HOUR))]
    advance(source, Nowhere(), CONSUMER, FEED, dict.fromkeys((0, 1), done), by="test")
    found = shown()
    assert found["complete_until"] == format_time(now)
    assert (found["state"], found["strip"]["is_missing_before"]) == ("complete", False)


def test_windows_are_those_of_the_export(source: SqliteFeedSource, now: datetime, tmp_path: Any) -> None:
    """They begin where the export's do, none before 1970; of a unit that is a template the output says it."""
    week, days = timedelta(days=7), timedelta(days=500)
    for consumer, schedule, unit in (
        ("weeks", DeltaDataIntervalTimetable(week), None),
        ("long", DeltaDataIntervalTimetable(days), None),
        ("cut", "0 0 * * *", "{{ params.unit }}"),
        ("said", "0 0 * * *", 2 * HOUR),
    ):
        task = {"consumer": consumer, "path": str(tmp_path / consumer), "unit": unit}
        store_export(f"page_strips_{consumer}", schedule, task)
    last = now - week + 2 * HOUR
    begin(source, last - 2 * week, (last - 2 * week, last), consumer="weeks")
    strip = shown("weeks")["strip"]
    # A week that has not ended yet is not missing.
    assert (strip["start"], strip["unit_seconds"]) == (format_time(last - 47 * week), week.total_seconds())
    assert strip["states"] == ["before"] * 45 + ["complete"] * 2 + ["open"]
    source.begin_consumer("long", FEED, dict.fromkeys((0, 1), Ulid.MIN), by="test")
    strip = shown("long")["strip"]
    assert (strip["start"], strip["unit_seconds"]) == ("1970-01-01T00:00:00Z", days.total_seconds())
    # Before the first event there is nothing to export.
    empty, all_windows = (START - EPOCH) // days, (source.now() - EPOCH) // days
    assert strip["states"] == ["before"] * empty + ["missing"] * (all_windows - empty) + ["open"]
    ExportStore(str(tmp_path / "cut"), FEED).claim(source.identity().id, unit=HOUR)
    for consumer, seconds in (("cut", 3600), ("said", 7200)):
        begin(source, now - 4 * HOUR, (now - 4 * HOUR, now), consumer=consumer)
        assert shown(consumer)["strip"]["unit_seconds"] == seconds


@pytest.mark.parametrize("failure", ["deleted", "timetable"])
def test_one_odd_dag_leaves_the_other_consumers_on_the_page(
    failure: str, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its consumer has no strip; what its cursors say is shown, and why the strip is not is logged."""
    begin(source, START, (START, START + 48 * HOUR))
    create_consumer(source, ConsumerSpec("mailer", FEED), Beginning.LATEST, by="test")

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("no such shift")

    if failure == "deleted":
        monkeypatch.setattr(SerializedDagModel, "get_dag", lambda *_, **__: None)
    else:
        monkeypatch.setattr(CronDataIntervalTimetable, "infer_manual_data_interval", fail)
    found = shown()
    assert (found["strip"], found["complete_until"]) == (None, format_time(START + 48 * HOUR))
    assert found["state"] is None
    (feed,) = [one for one in Visitor("VIEWER").ask("feeds", conn_id=CONN_ID)["feeds"] if one["feed"] == FEED]
    unknown = [one for one in feed["troubles"] if one["code"] == "not-checked"]
    assert (feed["group"], [one["consumer"] for one in unknown]) == ("late", [CONSUMER])
    assert len(shown("mailer")["strip"]["states"]) == 48
    reason = "no longer exists" if failure == "deleted" else "ZeroDivisionError: no such shift"
    assert f"consumer {CONSUMER!r} of feed {FEED!r} without its windows" in caplog.text
    assert reason in caplog.text


def test_one_shard_that_lacks_a_window_is_enough(source: SqliteFeedSource, now: datetime) -> None:
    """The frontier is that of the shard that is least far."""
    begin(source, now - 40 * HOUR)
    for shard, hours in ((0, 1), (1, 5)):
        done = {shard: [UlidRange(ulid(now - 40 * HOUR), ulid(now - hours * HOUR))]}
        advance(source, Nowhere(), CONSUMER, FEED, done, by="test")
    found = shown()
    assert found["complete_until"] == format_time(now - 5 * HOUR)
    assert found["strip"]["states"][-7:] == ["complete"] + ["missing"] * 5 + ["open"]


def test_a_window_that_runs_is_shown_to_who_may_see_runs(
    source: SqliteFeedSource, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others see that it is missing."""
    begin(source, now - 40 * HOUR, (now - 40 * HOUR, now - HOUR))
    add_run(DAG_ID, now - HOUR)
    found = shown()
    assert (found["state"], found["strip"]["states"][-3:]) == ("running", ["complete", "running", "open"])
    monkeypatch.setattr("airflow_changefeed.plugins.access.may_see_runs", lambda *_: False)
    found = shown()
    assert (found["state"], found["strip"]["states"][-3:]) == ("missing", ["complete", "missing", "open"])


def test_a_consumer_is_shown_where_it_stands_however_long_ago_that_was(source: SqliteFeedSource) -> None:
    """A day of windows after it is missing; who has completed nothing is complete until the first event."""
    begin(source, START, (START, START + 48 * HOUR))
    source.begin_consumer("nothing", FEED, dict.fromkeys((0, 1), Ulid.MIN), by="test")
    create_consumer(source, ConsumerSpec("mailer", FEED), Beginning.LATEST, by="test")
    found = shown()
    assert found["strip"]["states"] == ["complete"] * 23 + ["missing"] * 25
    assert found["age_seconds"] > 365 * 24 * 3600
    found = shown("nothing")
    assert (found["complete_until"], found["state"]) == (format_time(START), "missing")
    assert found["age_seconds"] > 365 * 24 * 3600
    assert found["strip"]["states"][-1] == "missing"
    # Who has read all is complete until now; hours are its windows.
    found = shown("mailer")
    assert found["age_seconds"] < 5
    assert found["strip"]["states"][-1] in ("complete", "open")
    assert "missing" not in found["strip"]["states"]


def test_a_dead_letter_holds_the_frontier_of_its_consumer(source: SqliteFeedSource, now: datetime) -> None:
    """Although its cursor goes on."""
    spec = ConsumerSpec("mailer", FEED, on_poison=OnPoison.PARK, max_attempts=1)
    create_consumer(source, spec, now - 3 * HOUR, by="test")

    def refuse(event: object, connection: object) -> None:
        raise ValueError("no such airport")

    run_consumer(source, "mailer", FEED, refuse, max_events=1, backoff=Backoff(first=0, longest=0))
    run_consumer(source, "mailer", FEED, lambda *_: None, until=source.now(), max_events=1000)
    (letter,) = source.dead_letters(FEED)
    found = shown("mailer")
    assert found["complete_until"] is not None
    parked = datetime.fromisoformat(found["complete_until"].replace("Z", "+00:00"))
    assert abs(parked - letter.ulid.time) < timedelta(seconds=1)
    assert found["strip"]["states"][-4:-1] == ["missing"] * 3
    assert parked.tzinfo == timezone.utc


def set_up_parcels(source: SqliteFeedSource) -> None:
    """Create another feed."""
    with closing(sqlite3.connect(source.database.path)) as connection:
        connection.execute("create table parcels (id integer primary key)")
    source.set_up_feed("parcels")


@pytest.fixture
def young(source: SqliteFeedSource, now: datetime) -> SqliteFeedSource:
    """Give a feed whose first event is six hours old at most; the second came later, in another shard."""
    set_up_parcels(source)
    with closing(sqlite3.connect(source.database.path)) as connection:
        for number, hours in ((1, 5.5), (2, 4.5)):
            hint = int((now - hours * HOUR).timestamp() * 1000)
            connection.execute("insert into parcels values (?)", (number,))
            connection.execute(
                'insert into "changefeed.outbox:parcels" (shard_id, time_hint, id) values (?, ?, ?)',
                (number % 2, hint, number),
            )
        connection.commit()
    return source


def states_of(consumer: str) -> list[str]:
    """Return the last windows of a consumer of parcels, until the present hour."""
    states: list[str] = shown(consumer, "parcels")["strip"]["states"]
    assert len(states) == 48
    return states


def test_a_consumer_of_all_events_has_nothing_before_the_first_of_them(
    young: SqliteFeedSource, now: datetime
) -> None:
    """Hours before it are before the beginning, later ones are complete; so they are of a batch."""
    create_consumer(young, ConsumerSpec("mailer", "parcels"), Beginning.EARLIEST, by="test")
    assert states_of("mailer")[:41] == ["before"] * 41
    young.drain("parcels")
    assert states_of("mailer")[:43] == ["before"] * 41 + ["missing"] * 2
    run_consumer(young, "mailer", "parcels", lambda *_: None, at_head=True)
    young.begin_consumer("lake", "parcels", dict.fromkeys((0, 1), Ulid.MIN), by="test")
    heads = {one.shard: one.head for one in young.shards("parcels")}
    done = {shard: [UlidRange(Ulid.MIN, head)] for shard, head in heads.items() if head is not None}
    advance(young, Nowhere(), "lake", "parcels", done, by="test")
    for consumer in ("mailer", "lake"):
        assert states_of(consumer)[:47] == ["before"] * 41 + ["complete"] * 6
    # Where events were purged, nobody knows when the first of them came.
    young.seal("parcels", now)
    young.purge("parcels", now - 5 * HOUR)
    assert set(states_of("mailer")[:47]) == {"complete"}


def test_a_consumer_of_a_feed_that_never_had_an_event_has_nothing_before_it_was_created(
    source: SqliteFeedSource,
) -> None:
    """Of the time before nobody knows anything; since then it is complete, until the table is gone."""
    set_up_parcels(source)
    create_consumer(source, ConsumerSpec("mailer", "parcels"), Beginning.EARLIEST, by="test")
    states = states_of("mailer")
    assert states[:46] == ["before"] * 46
    assert "missing" not in states
    found = shown("mailer", "parcels")
    assert (found["complete_until"] is not None, found["state"]) == (True, "complete")
    with closing(sqlite3.connect(source.database.path)) as connection:
        connection.execute("drop table parcels")
    assert listed("parcels")["consumers"] == []
