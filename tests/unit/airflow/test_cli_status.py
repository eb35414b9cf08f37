# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed status`` and ``seal`` on the embedded source."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import timedelta

import pytest
import yaml

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.feed_state import changes, consume

HOUR = timedelta(hours=1)
NOON = START + 12 * HOUR


def test_status_of_a_feed_that_nobody_has_read(commands: Commands, database: str) -> None:
    """Shards whose rows are all in the outbox; looking changes nothing."""
    before = changes(database)
    rows = commands.rows("status")
    assert [(row["feed"], row["kind"], row["shard"]) for row in rows] == [
        (FEED, "outbox", "0"),
        (FEED, "outbox", "1"),
    ]
    for row in rows:
        assert row["has_outbox"] is True
        assert [row[name] for name in ("sealed_until", "head", "purged_upto", "consumer", "cursor")] == [
            None
        ] * 5
    assert "Feeds: 1" in commands.err
    assert changes(database) == before


def test_status_shows_shards_and_consumers(commands: Commands, source: SqliteFeedSource) -> None:
    """Clock, seal, head, cursor, lag, ack and lease, with whole ULIDs for programs."""
    source.seal(FEED, NOON)
    cursor = consume(source, START + HOUR, ack=True)
    first, second = commands.rows("status", "--feed", FEED)
    head = source.read_feed(FEED, 0, Ulid.MIN).events[-1].ulid
    assert first["high_water"] == first["sealed_until"] == "2013-01-01T12:00:00Z"
    assert (first["head"], first["head_time"]) == (str(head), "2013-01-01T05:40:00Z")
    assert first["has_outbox"] is False
    assert first["consumer"] == CONSUMER
    assert first["cursor"] == first["ack"] == str(cursor)
    assert first["cursor_time"] == first["ack_time"] == "2013-01-01T00:59:59.999Z"
    assert first["lag_seconds"] == (4 * HOUR + timedelta(minutes=40, milliseconds=1)).total_seconds()
    assert (first["moved_by"], first["lease_holder"], first["lease_is_held"]) == ("a run", "a task", True)
    assert first["resource_version"] == 2
    assert second["consumer"] is None
    assert second["head_time"] == "2013-01-01T05:50:00Z"


def test_status_is_a_table_for_people(commands: Commands, source: SqliteFeedSource) -> None:
    """Times instead of ULIDs; a consumer without a move stands at the start."""
    source.seal(FEED, NOON)
    consume(source, START + HOUR)
    source.begin_consumer("new", FEED, {1: Ulid.MIN}, by="test")
    assert commands.run("status", "-o", "plain") == 0
    words = " ".join(commands.out.split())
    assert words.startswith("feed shard high water sealed until head outbox consumer cursor lag ack lease")
    assert "2013-01-01T05:40:00Z no warehouse 2013-01-01T00:59:59.999Z 4:40:00 2012" in words
    assert "Z a task until 20" in words
    assert "2013-01-01T05:50:00Z no new start all" in words
    assert commands.run("status") == 0
    table = " ".join(commands.out.replace("|", " ").split())
    assert "2013-01-01T05:50:00Z no new start all" in table
    assert commands.run("status", "-o", "yaml") == 0
    assert yaml.safe_load(commands.out) == commands.rows("status")


def test_status_names_a_lost_consumer_with_the_remedy(commands: Commands, source: SqliteFeedSource) -> None:
    """For people and for programs."""
    source.seal(FEED, NOON)
    cursor = consume(source, START + HOUR)
    assert [row["is_lost"] for row in commands.rows("status")] == [False, None]
    source.set_up_feed(FEED, max_hold=HOUR)
    source.purge(FEED, START + 2 * HOUR)
    assert [row["is_lost"] for row in commands.rows("status")] == [True, None]
    assert (
        f"Consumer {CONSUMER} of feed {FEED}, shard 0: the consumer is lost: events after its cursor {cursor}"
    ) in (commands.err)
    assert (
        f"airflow-changefeed cursor set {CONSUMER} --feed {FEED} --shard 0 --to earliest "
        "--conn-id changefeed_default"
    ) in commands.err
    assert commands.run("status", "-o", "plain") == 0
    assert " 2013-01-01T00:59:59.999Z lost " in " ".join(commands.out.split())


def test_status_of_a_feed_without_events_is_a_row(commands: Commands, database: str) -> None:
    """So that it is not taken for one that is not there."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute('create table "nyc.Empty" (id integer primary key)')
    assert commands.run("setup-feed", "nyc.Empty", "--kind", "outbox") == 0
    (row,) = commands.rows("status", "--feed", "nyc.Empty")
    assert row["shard"] is None
    assert row["high_water"] is None


def test_status_shows_a_consumer_of_a_shard_without_events(
    commands: Commands, source: SqliteFeedSource
) -> None:
    """It holds back retention there."""
    source.begin_consumer(CONSUMER, FEED, {7: Ulid.MIN}, by="test")
    (row,) = [row for row in commands.rows("status") if row["shard"] == "7"]
    assert (row["consumer"], row["high_water"], row["lag_seconds"]) == (CONSUMER, None, 0)


@pytest.mark.parametrize(
    ("table", "error", "fault"),
    [
        ("nyc.Lost", "feed 'nyc.Lost' has lost its event table", "event-table-missing"),
        *(
            (f"changefeed.{kind}:nyc.Lost", f"table 'changefeed.{kind}:nyc.Lost' is missing", "table-missing")
            for kind in ("feed", "outbox", "state")
        ),
    ],
)
def test_a_feed_that_is_broken_does_not_hide_the_others(
    commands: Commands, database: str, table: str, error: str, fault: str
) -> None:
    """The others are shown, the broken one is named, and the status says that not all went well."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute('create table "nyc.Lost" (id integer primary key)')
        assert commands.run("setup-feed", "nyc.Lost") == 0
        SqliteFeedSource(database).begin_consumer(CONSUMER, "nyc.Lost", {0: Ulid.MIN}, by="test")
        connection.execute(f'drop table "{table}"')
    assert commands.run("status", "-o", "json") == 2
    assert {row["feed"] for row in json.loads(commands.out)} == {FEED}
    assert f"FeedSetupError: {error}" in commands.err
    assert commands.run("status", "--max-age", "2h") == 2
    assert f"feed nyc.Lost: FeedSetupError: {error}" in commands.err
    assert commands.run("doctor", "-o", "json") == 1
    codes = {row["code"]: row["place"] for row in json.loads(commands.out)}
    assert "nyc.Lost" in codes[fault]


def test_seal_takes_the_present_time(commands: Commands, source: SqliteFeedSource) -> None:
    """The seals of all shards are shown, and the outbox is empty afterwards."""
    before = source.now()
    rows = commands.rows("seal", "--feed", FEED)
    assert [row["shard"] for row in rows] == ["0", "1"]
    assert {row["head_time"] for row in rows} == {"2013-01-01T05:40:00Z", "2013-01-01T05:50:00Z"}
    (until,) = {row["until"] for row in rows}
    assert format_time(before) <= until <= format_time(source.now())
    assert f"Sealed feed {FEED} until {until}; shards: 2" in commands.err
    assert not any(state.has_outbox for state in source.shards(FEED))


def test_seal_until_a_time(commands: Commands, source: SqliteFeedSource) -> None:
    """In any zone; a seal that is there already stays where it is."""
    until = ("--feed", FEED, "--until", "2013-01-01T13:00:00+01:00")
    assert {row["until"] for row in commands.rows("seal", *until)} == {"2013-01-01T12:00:00Z"}
    later = commands.rows("seal", "--feed", FEED, "--until", "2013-01-01T06:00:00Z")
    assert {row["until"] for row in later} == {"2013-01-01T12:00:00Z"}
    assert {state.sealed_until for state in source.shards(FEED)} == {NOON}


def test_the_future_is_not_sealed(commands: Commands, source: SqliteFeedSource) -> None:
    """A little of it is transient, more is not, and both say what the database's clock is at."""
    for ahead, error in ((timedelta(seconds=30), "NotYetError"), (timedelta(days=1), "FutureTimeError")):
        message = commands.fails("seal", "--feed", FEED, "--until", format_time(source.now() + ahead))
        assert message.startswith(f"{error}: ")
        assert "the database's clock is at" in message
    assert {state.sealed_until for state in source.shards(FEED)} == {None}
