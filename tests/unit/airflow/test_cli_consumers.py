# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed consumer``, ``leases`` and ``dead-letters``, on the embedded source."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from airflow_changefeed.cli.consume import json_text, printer
from airflow_changefeed.consumers.event import FeedEvent
from airflow_changefeed.core.consumer import Attempt, Consumption, DeadLetterState, Outcome, Parked
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.clocks import after_now
from tests.unit.airflow.commands import Commands

FEED = "shop.Event"
NAME = "billing"
CREATE = ("consumer create", NAME, "--feed", FEED)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteFeedSource]:
    """A feed with three events in shard 0, and the connection to it."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, closing(SqliteFeedSource(str(path))) as source:
        connection.execute(f'create table "{FEED}" (id integer primary key)')
        source.set_up_feed(FEED)
        for number in range(3):
            connection.execute(f'insert into "{FEED}" values (?)', (number,))
            connection.execute(f'insert into "changefeed.outbox:{FEED}" (id) values (?)', (number,))
        connection.commit()
        source.drain(FEED)
        monkeypatch.setenv(
            "AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": str(path)})
        )
        monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
        yield source


@pytest.fixture
def commands(source: SqliteFeedSource, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Give the commands on that connection."""
    return Commands(capsys)


def ulids(source: SqliteFeedSource) -> list[Ulid]:
    """Return the events' ULIDs."""
    return [event.ulid for event in source.read_feed(FEED, 0, Ulid.MIN)]


def park_two(source: SqliteFeedSource) -> None:
    """Let the consumer park the first two events."""
    row = source.acquire_leases(NAME, FEED, [0], holder="tests", seconds=60).rows[0]
    session = source.open_session(NAME, FEED)
    for ulid in ulids(source)[:2]:
        attempt = Attempt(ulid, ulid, 1, 3, source.now(), Outcome.FAILED, "ValueError: no")
        parked = Parked(ulid, 3, "ValueError: no")
        with session.transaction():
            row = session.consume(
                Consumption(0, ulid, row.resource_version, row.fencing_token, 60, attempt, parked)
            )
    session.close()


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let a person answer."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_a_consumer_is_created_listed_and_dropped(
    commands: Commands, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creating it again changes nothing or is refused; dropping it names the dead letters."""
    settings = ("--max-attempts", "3", "--on-poison", "park")
    (row,) = commands.rows(*CREATE, "--start", "earliest", *settings)
    assert (row["consumer"], row["max_attempts"], row["on_poison"]) == (NAME, 3, "park")
    assert "Purges keep the events that this consumer has not acknowledged" in commands.err
    assert commands.rows(*CREATE, *settings) == [row]
    assert "ConsumerSetupError: consumer 'billing'" in commands.fails(*CREATE)
    assert commands.rows("consumer list") == commands.rows("consumer list", "--feed", FEED) == [row]
    park_two(source)
    answer(monkeypatch, "n\n")
    assert commands.run("consumer drop", NAME, "--feed", FEED) == 1
    assert "and its 2 open dead letters? [y/N]" in commands.err
    assert "the feed has: billing" in commands.fails("consumer drop", "nobody", "--feed", FEED, "--yes")
    assert commands.rows("consumer drop", NAME, "--feed", FEED, "--yes") == [row]
    assert (commands.rows("consumer list"), source.cursors(FEED, NAME)) == ([], [])
    # By default it begins at the head.
    commands.rows(*CREATE, "--keep-log", "60s", "--max-attempts", "none")
    assert [row.ulid for row in source.cursors(FEED, NAME)] == ulids(source)[-1:]
    (info,) = source.consumers()
    assert (info.spec.max_attempts, info.spec.keep_log.total_seconds()) == (None, 60)


def test_altering_names_what_changes(commands: Commands) -> None:
    """What is not named stays; nothing named is a mistake, and so is what no consumer can be."""
    alter = ("consumer alter", NAME, "--feed", FEED)
    commands.rows(*CREATE)
    (row,) = commands.rows(*alter, "--max-attempts", "3", "--keep-log", "60s", "--on-poison", "park", "--yes")
    assert (row["max_attempts"], row["keep_log"], row["on_poison"], row["ddl"]) == (3, 60, "park", False)
    for option, taken in (("--ddl", True), ("--no-ddl", False)):
        (row,) = commands.rows(*alter, option, "--yes")
        assert (row["ddl"], row["max_attempts"]) == (taken, 3)
    assert commands.rows(*alter, "--max-attempts", "3") == [row]
    assert "already has these settings" in commands.err
    assert "nothing to change; pass" in commands.fails(*alter)
    assert "needs max_attempts" in commands.fails(*alter, "--max-attempts", "none", "--yes")


def test_leases_show_who_consumes_and_who_waits(
    commands: Commands, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all consumers, or of one; one without any shard is told from one that is not there."""
    commands.rows(*CREATE, "--start", "earliest")
    assert commands.run("leases", "--consumer", NAME) == 0
    revoke = ("consumer revoke", NAME, "--feed", FEED, "--shard", "0")
    assert "has no lease; nothing to revoke" in commands.fails(*revoke)
    for holder in ("first", "second"):
        source.acquire_leases(NAME, FEED, [0], holder=holder, seconds=60)
    (row,) = commands.rows("leases", "--feed", FEED, "--consumer", NAME)
    assert (row["consumer"], row["shard"], row["holder"]) == (NAME, "0", "first")
    assert row["since"] is not None
    assert row["expires"] > row["since"]
    assert [waiter.partition(" since ")[0] for waiter in row["waiters"]] == ["second"]
    assert "Shards: 1; held: 1" in commands.err
    answer(monkeypatch, "n\n")
    assert commands.run(*revoke) == 1
    assert "Revoke the lease of first on shard 0 (fencing token" in commands.err
    assert "known consumers: billing" in commands.fails("leases", "--consumer", "nobody")


def test_dead_letters_are_listed_tried_again_and_dropped(
    commands: Commands, source: SqliteFeedSource
) -> None:
    """All that are named or none; what is resolved frees the consumer's ack. The log has what was tried."""
    commands.rows(*CREATE, "--start", "earliest")
    park_two(source)
    assert [row["number"] for row in commands.rows("dead-letters list")] == [1, 2]
    assert "open: 2" in commands.err
    rows = commands.rows("consumer log", NAME, "--feed", FEED, "--failed", "--limit", "10")
    assert [row["number"] for row in rows] == [2, 1]
    assert (rows[0]["outcome"], rows[0]["error"], rows[0]["attempt"]) == ("failed", "ValueError: no", 3)
    assert "nobody" in commands.fails("consumer log", "nobody", "--feed", FEED)
    assert [row["state"] for row in commands.rows("dead-letters retry", "1")] == ["retry"]
    assert f"The next run of {NAME} retries 1 event" in commands.err
    drop = ("--note", "booked by hand", "--yes")
    message = commands.fails("dead-letters drop", "1", "9", *drop)
    assert "dead letter 9 not found. Nothing was changed" in message
    (row, _) = commands.rows("dead-letters drop", "1", "2", *drop)
    assert (row["state"], row["note"]) == ("dropped", "booked by hand")
    assert source.cursors(FEED, NAME)[0].ack == ulids(source)[1]
    assert commands.rows("dead-letters list", "--consumer", NAME) == []
    assert len(commands.rows("dead-letters list", "--all", "--feed", FEED)) == 2
    assert "dead letter 1 is already dropped" in commands.fails("dead-letters retry", "1")


def test_dead_letters_whose_events_were_purged_are_not_retried(
    commands: Commands, source: SqliteFeedSource
) -> None:
    """The retry would stop their consumer; none of those that are named is changed."""
    commands.rows(*CREATE, "--start", "earliest")
    park_two(source)
    source.set_up_feed(FEED, max_hold=timedelta(milliseconds=1))
    source.seal(FEED, after_now(source))
    source.purge(FEED, after_now(source))
    message = commands.fails("dead-letters retry", "2", "1")
    assert ("cannot be retried" in message, "dead-letters drop" in message) == (True, True)
    assert {one.state for one in source.dead_letters(FEED)} == {DeadLetterState.PARKED}


def lines(commands: Commands) -> list[dict[str, object]]:
    """Return the JSON lines that the last command wrote."""
    return [json.loads(line) for line in commands.out.splitlines()]


def test_events_are_printed_and_consumed(commands: Commands, source: SqliteFeedSource) -> None:
    """As JSON lines, to the head; then there is nothing left."""
    commands.rows(*CREATE, "--start", "earliest")
    assert commands.run("consume", NAME, "--max-events", "1") == 0, commands.err
    (first,) = lines(commands)
    assert (first["changefeed_event"], first["id"]) == ("add", 0)
    assert first["changefeed_id"] == str(ulids(source)[0])
    assert commands.run("consume", NAME, "--feed", FEED, "--at-head") == 0
    assert [line["id"] for line in lines(commands)] == [1, 2]
    assert f"Consumed 2 events of feed {FEED}" in commands.err
    assert source.cursors(FEED, NAME)[0].ulid == ulids(source)[-1]
    assert commands.run("consume", NAME, "--at-head", "--options", '{"poll_timeout": 0}') == 0
    assert [line["changefeed_event"] for line in lines(commands)] == ["poll_timeout"]
    assert all(lease.holder is None for lease in source.leases())


@pytest.mark.parametrize("kind", ["json", "table"])
def test_a_row_is_shown_before_the_next_one_is_asked_for(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As that consumes it, and a process that is killed then would have lost it."""
    with printer(kind) as write:
        for text in ("first", "a longer second", None):
            write({"changefeed_event": "add", "data": text})
            assert (text or "add") in capsys.readouterr().out


def test_a_wait_for_another_process_is_said(commands: Commands, source: SqliteFeedSource) -> None:
    """Who holds which shard, until when, and the command that lists them."""
    assert commands.run(*CREATE, "--start", "earliest") == 0
    source.acquire_leases(NAME, FEED, [0], holder="a laptop", seconds=1)
    assert commands.run("consume", NAME, "--at-head", "--max-events", "1") == 0
    assert "Waiting for shards that other processes hold: shard 0 by a laptop until 20" in commands.err
    listed = f"airflow-changefeed leases --consumer {NAME} --feed {FEED} --conn-id changefeed_default"
    assert listed in commands.err
    assert "Consumed 1 event of" in commands.err


def test_a_handler_is_run_for_each_event(commands: Commands, source: SqliteFeedSource) -> None:
    """What fails too often stops the consumer; the printed command sets aside that one event alone."""
    commands.rows(*CREATE, "--start", "earliest", "--max-attempts", "1")
    handler = f"{__name__}:refuse_the_second"
    HANDLED.clear()
    assert commands.run("consume", NAME, "--handler", handler, "--at-head") == 2
    assert "PoisonError: consumer 'billing'" in commands.err
    printed = commands.err.partition("only this event aside: airflow-changefeed consume ")[2]
    words = printed.partition("; parked events")[0].replace(" ... ", f" {__name__}:refuse_all ").split()
    assert commands.run("consume", *words[: words.index("--conn-id")]) == 0
    assert "Parked 1 event:" in commands.err
    assert [dead_letter.reason for dead_letter in source.dead_letters()] == ["ValueError: no such service"]
    assert commands.run("consume", NAME, "--handler", handler, "--at-head", "--on-poison", "park") == 0
    assert HANDLED == [0, 2]


def refuse_all(event: FeedEvent, connection: sqlite3.Connection) -> None:
    """Handle nothing."""
    raise ValueError("no such service")


HANDLED: list[int] = []


def refuse_the_second(event: FeedEvent, connection: sqlite3.Connection) -> None:
    """Handle all events but one."""
    number = (event.row or {})["id"]
    if number == 1:
        raise ValueError("not this one")
    HANDLED.append(number)


def test_options_that_mean_nothing_are_refused(commands: Commands, source: SqliteFeedSource) -> None:
    """Of a handler without one, of printing beside one, of another consumer; of unknown names all at once."""
    commands.rows(*CREATE)
    for words, complaint in (
        ((NAME, "--handler-timeout", "1s"), "--handler-timeout cannot be used without --handler"),
        ((NAME, "--handler", "a:b", "--options", "{}"), "--options cannot be used with --handler"),
        ((NAME, "--options", '{"x": 1, "with_tid": 2}'), "unknown option 'x'"),
        ((NAME, "--handler", "nowhere:f"), "HandlerError: handler 'nowhere:f'"),
        (("nobody",), "airflow-changefeed consumer create nobody"),
    ):
        assert commands.run("consume", *words, "--at-head") == 2
        assert complaint in commands.err
    # Of a name that several feeds have, events of the wrong one would be consumed.
    with closing(sqlite3.connect(source.describe()["path"])) as connection:
        connection.execute("create table other (id integer primary key)")
    source.set_up_feed("other")
    commands.rows("consumer create", NAME, "--feed", "other")
    assert "choose one with --feed" in commands.fails("consume", NAME, "--at-head")


def test_json_is_exact() -> None:
    """Nothing is rounded, and null stays null."""
    for value, text in (
        (Decimal("1.10"), "1.10"),
        (Decimal("1E+3"), "1000"),
        (2**63, "9223372036854775808"),
        (b"\x00\xff", '"AP8="'),
        (float("inf"), '"Infinity"'),
        (float("nan"), '"NaN"'),
        (datetime(2026, 1, 2, 3, 4, 5, 678000), '"2026-01-02T03:04:05.678000"'),
        ({"é": [None, True, 0.1]}, '{"\\u00e9": [null, true, 0.1]}'),
    ):
        assert json_text(value) == text
