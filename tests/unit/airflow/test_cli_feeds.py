# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed status``, ``seal``, ``read`` and ``purge`` on the embedded source."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from contextlib import closing
from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID, uuid4

import pytest
import yaml
from airflow.cli import simple_table

from airflow_changefeed.cli.output import held_back, plain_value
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import DeadLetter, DeadLetterState
from airflow_changefeed.core.cursor import CursorRow, Frontier
from airflow_changefeed.core.feed import FeedKind, ShardStatus
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.sources.base_control import Purged
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.conftest import CONSUMER, FEED, START, insert
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


def test_status_shows_what_has_no_events(commands: Commands, database: str, source: SqliteFeedSource) -> None:
    """A feed, not to be taken for one that is not there, and a shard, where a consumer holds back purges."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute('create table "nyc.Empty" (id integer primary key)')
    assert commands.run("setup-feed", "nyc.Empty", "--kind", "outbox") == 0
    (row,) = commands.rows("status", "--feed", "nyc.Empty")
    assert (row["shard"], row["high_water"]) == (None, None)
    source.begin_consumer(CONSUMER, FEED, {7: Ulid.MIN}, by="test")
    (row,) = [row for row in commands.rows("status") if row["shard"] == "7"]
    assert (row["consumer"], row["high_water"], row["lag_seconds"]) == (CONSUMER, None, 0)


def test_feeds_that_are_broken_do_not_hide_the_others(commands: Commands, database: str) -> None:
    """The others are shown, the broken ones are named, and the status says that not all went well."""
    lost = {"nyc.Lost": ("nyc.Lost", "feed 'nyc.Lost' has lost its event table", "event-table-missing")}
    for kind in ("feed", "outbox", "state"):
        table = f"changefeed.{kind}:nyc.No_{kind}"
        lost[f"nyc.No_{kind}"] = (table, f"table '{table}' is missing", "table-missing")
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        for feed, (table, *_) in lost.items():
            connection.execute(f'create table "{feed}" (id integer primary key)')
            assert commands.run("setup-feed", feed) == 0
            SqliteFeedSource(database).begin_consumer(CONSUMER, feed, {0: Ulid.MIN}, by="test")
            connection.execute(f'drop table "{table}"')
    assert commands.run("status", "-o", "json") == 2
    assert {row["feed"] for row in json.loads(commands.out)} == {FEED}
    assert all(f"FeedSetupError: {error}" in commands.err for _, error, _ in lost.values())
    assert commands.run("status", "--max-age", "2h") == 2
    assert all(
        f"feed {feed}: FeedSetupError: {error}" in commands.err for feed, (_, error, _) in lost.items()
    )
    assert commands.run("doctor", "-o", "json") == 1
    found = {(row["code"], row["place"]) for row in json.loads(commands.out)}
    for feed, (_, _, fault) in lost.items():
        assert any(code == fault and feed in place for code, place in found)


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


def test_read_changes_nothing(commands: Commands, database: str, source: SqliteFeedSource) -> None:
    """It shows what is ordered only, and says what waits."""
    before = changes(database)
    assert commands.rows("read", "--feed", FEED, "--shard", "0") == []
    assert "events wait in the outbox; to order them, pass --drain" in commands.err
    assert changes(database) == before
    source.drain(FEED)
    insert(database, range(36, 40), START)
    before = changes(database)
    rows = commands.rows("read", "--feed", FEED, "--shard", "0")
    assert [row["key"] for row in rows] == [{"id": number} for number in range(0, 36, 2)]
    assert f"the last ordered event is {rows[-1]['ulid']}" in commands.err
    assert changes(database) == before


def test_read_orders_when_it_is_told_to(commands: Commands, source: SqliteFeedSource) -> None:
    """As a consumer's read does, the shard that is read alone."""
    rows = commands.rows("read", "--feed", FEED, "--shard", "1", "--drain")
    assert len(rows) == 18
    assert rows[0] == {
        "ulid": str(source.read_feed(FEED, 1, Ulid.MIN).events[0].ulid),
        "time": "2013-01-01T00:10:00Z",
        "key": {"id": 1},
    }
    assert {state.shard: state.has_outbox for state in source.shards(FEED)} == {0: True, 1: False}


def test_read_begins_with_a_time_and_goes_on_where_it_stopped(
    commands: Commands, source: SqliteFeedSource
) -> None:
    """Events of that time are the first ones, of 1970, all; the message names the next ULID."""
    source.drain(FEED)
    shard = ("--feed", FEED, "--shard", "0")
    whole = commands.rows("read", *shard)
    part = (*shard, "--limit", "3", "--start")
    rows = commands.rows("read", *part, "2013-01-01T01:00:00Z")
    assert [row["time"][11:16] for row in rows] == ["01:00", "01:20", "01:40"]
    assert commands.rows("read", *part, "2013-01-02T00:00:00Z") == []
    first = commands.rows("read", *part, "1970-01-01T00:00:00Z")
    assert f"--start {first[-1]['ulid']}" in commands.err
    assert first + commands.rows("read", *shard, "--start", first[-1]["ulid"]) == whole
    assert commands.run("read", *shard, "--limit", "1", "-o", "plain") == 0
    assert commands.out.splitlines()[0].split() == ["ulid", "time", "key"]
    assert commands.out.splitlines()[1].split()[1:] == ["2013-01-01T00:00:00Z", "id=0"]


def test_a_feed_or_place_that_is_not_there_is_named(commands: Commands) -> None:
    """The message says which there are, or what the feed has."""
    for arguments in (("status",), ("read", "--shard", "0")):
        message = commands.fails(*arguments, "--feed", "nyc.Weather")
        assert message.startswith("FeedNotFoundError: feed 'nyc.Weather' not found")
        assert FEED in message
    for words, complaint in {
        "--shard 7": "ShardNotFoundError: feed 'nyc.Flight' never had an event in shard 7; it has 0, 1",
        f"--shard {UUID(int=7)}": "does not match the feed's shard key type int",
        "--shard 0 --drain --start 2100-01-01T00:00:00Z": "CursorBeyondFeedError: ",
    }.items():
        assert complaint in commands.fails("read", "--feed", FEED, *words.split())


def test_read_begins_after_what_was_purged(commands: Commands, source: SqliteFeedSource) -> None:
    """Without a place; one that lies below is an error that names the bound."""
    source.seal(FEED, NOON)
    source.purge(FEED, START + HOUR)
    rows = commands.rows("read", "--feed", FEED, "--shard", "0", "--limit", "1")
    assert [row["time"] for row in rows] == ["2013-01-01T01:00:00Z"]
    message = commands.fails("read", "--feed", FEED, "--shard", "0", "--start", "2013-01-01T00:30:00Z")
    assert message.startswith("PurgedError: ")


def test_keys_survive_json() -> None:
    """Numbers stay numbers, and nothing is rounded."""
    for value, plain in (
        (2**63 - 1, 9223372036854775807),
        (0.1, 0.1),
        (float("inf"), "inf"),
        ("a\ud7ff", "a\ud7ff"),
        (None, None),
        (b"\x00\xff", "0x00ff"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2013, 1, 1, 0, 0, 0, 1), "2013-01-01T00:00:00.000001"),
        (START, "2013-01-01T00:00:00+00:00"),
        (START.date(), "2013-01-01"),
    ):
        assert json.loads(json.dumps(plain_value(value))) == plain


def purge_arguments(before: datetime) -> tuple[str, ...]:
    """Give the options of a purge."""
    return "--feed", FEED, "--before", format_time(before)


@pytest.mark.parametrize("option", ["--dry-run", "-n"])
def test_a_dry_run_removes_nothing(
    commands: Commands, database: str, source: SqliteFeedSource, option: str
) -> None:
    """It says what would go, for each shard, and who would be lost, and asks nobody."""
    source.seal(FEED, NOON)
    source.begin_consumer(CONSUMER, FEED, {0: Ulid.MIN}, by="test")
    source.begin_consumer("quick", FEED, {0: Ulid.floor(NOON).previous()}, by="test")
    (first, _) = commands.rows("purge", *purge_arguments(START + HOUR), option)
    assert (first["rows"], first["lost"]) == (0, [])
    source.set_up_feed(FEED, max_hold=HOUR)
    before = changes(database)
    rows = commands.rows("purge", *purge_arguments(START + HOUR), option)
    assert [(row["shard"], row["rows"], row["lost"]) for row in rows] == [("0", 3, [CONSUMER]), ("1", 3, [])]
    assert "Would remove 6 events" in commands.err
    assert changes(database) == before


def test_purge_asks(commands: Commands, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error, with what would go; nothing but a yes lets it go on; then there is nothing left."""
    source.seal(FEED, NOON)
    purge = ("purge", *purge_arguments(START + HOUR))
    for answer, status in {"n\n": 1, "\n": 1, "yeah\n": 1, "": 2, "YES\n": 0, "y\n": 0}.items():
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        assert commands.run(*purge, "-o", "json") == status
        count = 0 if answer == "y\n" else 6
        assert f"Remove {count} events of feed {FEED} before 2013-01-01T01:00:00Z? [y/N]" in commands.err
        assert "shard" in commands.err
        assert [state.purged_upto > Ulid.MIN for state in source.shards(FEED)] == [status == 0] * 2
        if status == 0:
            assert [row["rows"] for row in json.loads(commands.out)] == [count // 2] * 2
        else:
            assert (commands.out, "Nothing was removed" in commands.err) == ("", True)


def test_purge_names_what_holds_it_back(commands: Commands, source: SqliteFeedSource) -> None:
    """The seal, and every consumer that has not acknowledged as much."""
    source.drain(FEED)
    (first, _) = commands.rows("purge", *purge_arguments(START + HOUR), "-n")
    assert (first["upto"], first["held_back_by"]) == (None, ["the feed is not sealed"])
    source.seal(FEED, START + HOUR)
    consume(source, START + HOUR)
    first, second = commands.rows("purge", *purge_arguments(NOON), "--yes")
    assert first["held_back_by"] == [
        "the feed is only sealed until 2013-01-01T01:00:00Z",
        f"consumer {CONSUMER} has only acknowledged up to 2012-12-31T23:59:59.999Z",
    ]
    assert second["held_back_by"] == [
        "the feed is only sealed until 2013-01-01T01:00:00Z",
        f"consumer {CONSUMER} has not begun in this shard and needs all of its events",
    ]
    assert (first["rows"], second["rows"]) == (0, 0)


def test_purge_names_the_exports_that_it_keeps_their_past_for(
    commands: Commands, source: SqliteFeedSource
) -> None:
    """With the two ways on, of which one is a command; where nothing is kept, nothing is said."""
    source.seal(FEED, NOON)
    begin = Ulid.floor(START + HOUR).previous()
    for consumer in ("lake", "our copy"):
        source.begin_consumer(consumer, FEED, {0: begin, 1: Ulid.MIN}, by="test")
    first, second = commands.rows("purge", *purge_arguments(NOON), "-n")
    assert (first["rows"], first["upto"]) == (0, None)
    reason = first["held_back_by"][-1]
    assert reason.startswith(
        f"events from {format_time(START)} on are kept: they are before the beginning of "
    )
    assert "exports 'lake', 'our copy'" in reason
    for name in ("lake", "'our copy'"):
        command = f"airflow-changefeed cursor accept-beginning {name} --feed {FEED} --note ... --conn-id"
        assert command in reason
    assert second["held_back_by"] == [
        f"consumer {name} has acknowledged nothing" for name in ("lake", "our copy")
    ]


def test_every_consumer_that_holds_back_is_named() -> None:
    """Not only the one that holds back most, else the next one would be found by the next purge."""
    wanted = Ulid.floor(NOON).previous()

    def row(consumer: str, ack: Ulid, shard: int = 0) -> CursorRow:
        frontier = Frontier.beginning(Ulid.MIN)
        return CursorRow(consumer, FEED, shard, frontier, 1, START, "test", ack=ack)

    state = ShardStatus(0, NOON, None, NOON, Ulid.MIN, False)
    rows = [row("done", wanted), row("b", Ulid.MIN), row("a", Ulid.floor(START + HOUR))]
    found = held_back(Purged(0, 0, Ulid.floor(START)), wanted, state, rows)
    assert found == [
        "consumer a has only acknowledged up to 2013-01-01T01:00:00Z",
        "consumer b has acknowledged nothing",
    ]
    assert held_back(Purged(0, 5, wanted), wanted, state, rows) == []


def test_a_lost_consumer_that_holds_back_is_named_as_lost(
    commands: Commands, source: SqliteFeedSource
) -> None:
    """Events that are not older than max_hold are kept for it, too: without it, they go."""
    source.seal(FEED, NOON)
    source.begin_consumer(CONSUMER, FEED, {0: Ulid.MIN, 1: Ulid.MIN}, by="test")
    age = source.now() - START - HOUR - HOUR / 4
    source.set_up_feed(FEED, max_hold=age)
    commands.rows("purge", *purge_arguments(NOON), "--yes")
    first, _ = commands.rows("purge", *purge_arguments(NOON), "--yes")
    assert (first["rows"], first["lost"]) == (0, [CONSUMER])
    (reason,) = first["held_back_by"]
    assert reason.startswith(f"consumer {CONSUMER} is lost. Newer events are kept for it until they")
    source.drop_consumer(CONSUMER, FEED)
    first, _ = commands.rows("purge", *purge_arguments(NOON), "--yes")
    assert first["rows"] > 0


def test_times_are_whole_on_a_narrow_terminal(
    commands: Commands, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that would break them is shown value by value."""
    source.seal(FEED, NOON)
    consume(source, START + HOUR)
    monkeypatch.setattr(simple_table, "is_tty", lambda: True)
    for width in ("80", "160"):
        monkeypatch.setenv("COLUMNS", width)
        assert commands.run("status") == 0
        assert commands.out.count("2013-01-01T12:00:00Z") == 4
        assert {"feed", "shard", "consumer"} <= {line.split("  ")[0] for line in commands.out.splitlines()}
        assert "sealed until  2013-01-01T12:00:00Z" in commands.out
    monkeypatch.setenv("COLUMNS", "250")
    assert commands.run("status") == 0
    assert commands.out.splitlines()[0].split("|")[3].strip() == "sealed until"


def test_consumers_of_events_that_hold_back_are_named() -> None:
    """Also those without a row, from where they begin, and a dead letter that is the reason."""
    wanted = Ulid.floor(NOON).previous()
    parked = Ulid.floor(START + HOUR)
    frontier = Frontier.beginning(wanted)
    row = CursorRow("mailer", FEED, 0, frontier, 1, START, "test", ack=parked.previous())
    dead_letter = DeadLetter(7, "mailer", FEED, 0, parked, DeadLetterState.PARKED, 3, "no", NOON, "test")
    begins = {"mailer": Ulid.MIN, "new": Ulid.MIN, "from": parked, "behind": wanted}
    state = ShardStatus(0, NOON, None, NOON, Ulid.MIN, False)
    assert held_back(Purged(0, 0, Ulid.floor(START)), wanted, state, [row], begins, [dead_letter]) == [
        "consumer from has only acknowledged up to 2013-01-01T01:00:00Z",
        "consumer mailer has only acknowledged up to 2013-01-01T00:59:59.999Z, because dead letter 7 is open",
        "consumer new has not begun in this shard and needs all of its events",
    ]


def test_purge_says_who_keeps_the_events_of_serialized_writers(commands: Commands, database: str) -> None:
    """They stay in the user's table."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute('create table "nyc.Reading" (ulid blob, id integer primary key)')
    assert commands.run("setup-feed", "nyc.Reading", "--kind", FeedKind.SERIALIZED.value) == 0
    assert commands.run("purge", "--feed", "nyc.Reading", "--before", format_time(NOON), "--yes") == 0
    assert "delete there what you no longer need" in commands.err


def test_a_stored_connection_is_found(commands: Commands, database: str, metadata: None) -> None:
    """One that Airflow keeps in its own database, as most are."""
    from airflow.models import Connection
    from airflow.utils.session import create_session

    commands.conn_id = f"stored_{uuid4().hex}"
    stored = Connection(conn_id=commands.conn_id, conn_type="sqlite", host=database)
    with create_session() as session:
        session.add(stored)
    try:
        assert {row["feed"] for row in commands.rows("status")} == {FEED}
    finally:
        with create_session() as session:
            session.delete(session.merge(stored))


def test_a_seal_does_not_count_a_shard_without_events_as_one_with_events(
    commands: Commands, database: str
) -> None:
    """The shard of a capture is there from the start, and nobody has changed the table yet."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute('create table "nyc.Plane" (tail text primary key not null, seats integer)')
    SqliteFeedSource(database).enable_capture(CaptureSpec((TableCapture("nyc.Plane"),)))
    (row,) = commands.rows("seal", "--feed", "nyc.Plane_changes")
    assert row["head"] is None
    assert "; shards: 1" in commands.err
