# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed cursor``, on the embedded source and Airflow's own Variables."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from airflow.models import Variable

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.cursor import Began
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import AirflowUnavailableError
from airflow_changefeed.hooks.changefeed import AirflowVariables
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.conftest import CONSUMER, FEED, KEY, START
from tests.unit.airflow.cursor_commands import (
    HOUR,
    OF,
    answer,
    assert_published,
    at,
    edit,
    end_of,
    export,
    window,
)

# ---- show


def test_show_says_where_a_consumer_stands(commands: Commands, exported: SqliteFeedSource) -> None:
    """Place, version, how far it is behind, gaps, lease and Variable; nothing is changed."""
    export(exported, 4)
    before, text = exported.cursors(FEED, CONSUMER), Variable.get(KEY)
    first, second = commands.rows("cursor show", *OF)
    assert (first["shard"], first["cursor"], first["cursor_time"]) == (
        "0",
        end_of(2),
        "2013-01-01T02:59:59.999Z",
    )
    assert (first["resource_version"], first["behind"], first["variable"]) == (3, 9, "equal")
    (gap,) = first["missing"]
    assert (gap["start"], gap["end"]) == ("2013-01-01T03:00:00Z", "2013-01-01T04:00:00Z")
    assert (first["lease_holder"], first["moved_by"], second["shard"]) == (None, "a run", "1")
    assert "Cursors: 2; gaps before them: 2; Variable" in commands.err
    assert commands.rows("cursor show", *OF, "--shard", "1") == [second]
    assert (exported.cursors(FEED, CONSUMER), Variable.get(KEY)) == (before, text)


def test_show_shows_the_cursors_where_airflow_does_not_answer(
    commands: Commands, exported: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the database; only of the Variable nothing is known, and why is said."""

    def fail(*_: object) -> None:
        raise AirflowUnavailableError.of("could not read the Variable: no such table", "Migrate it")

    monkeypatch.setattr(AirflowVariables, "get", fail)
    assert [row["variable"] for row in commands.rows("cursor show", *OF)] == [None, None]
    assert "could not read the Variable: no such table. Migrate it" in commands.err
    assert "Cursors: 2; gaps before them: 0" in commands.err


def test_show_is_a_table_for_people(commands: Commands, exported: SqliteFeedSource) -> None:
    """With gaps as windows."""
    export(exported, 4)
    assert commands.run("cursor show", *OF, "-o", "plain") == 0
    head, line, _ = commands.out.splitlines()
    assert head.split()[:3] == ["shard", "cursor", "cursor"]
    assert "2013-01-01T03:00:00Z to 2013-01-01T04:00:00Z" in line


def test_show_says_what_a_variable_is(commands: Commands, exported: SqliteFeedSource) -> None:
    """Missing, older, edited with both values and the two commands, no cursor at all."""
    old = Variable.get(KEY)
    Variable.delete(KEY)
    assert {row["variable"] for row in commands.rows("cursor show", *OF)} == {"missing"}
    assert "missing (the next run publishes it again)" in commands.err
    export(exported, 3)
    Variable.set(KEY, old)
    assert {row["variable"] for row in commands.rows("cursor show", *OF)} == {"older"}
    assert commands.run("cursor publish", *OF) == 0
    edit("0", ulid=end_of(0))
    assert {row["variable"] for row in commands.rows("cursor show", *OF)} == {"edited"}
    for words in (
        f"the Variable has {end_of(0)} (2013-01-01T00:59:59.999Z, resource version 3), the database has",
        f"airflow-changefeed cursor adopt {CONSUMER} --feed {FEED} --conn-id changefeed_default",
        f"airflow-changefeed cursor publish {CONSUMER} --feed {FEED} --conn-id changefeed_default",
    ):
        assert words in commands.err
    Variable.set(KEY, "see below")
    assert {row["variable"] for row in commands.rows("cursor show", *OF)} == {"unreadable"}
    assert "The Variable has 'see below', the database has shard 0" in commands.err


def test_show_of_a_consumer_of_events(commands: Commands, exported: SqliteFeedSource) -> None:
    """It has no Variable."""
    create_consumer(exported, ConsumerSpec("billing", FEED), "earliest", by="test")
    rows = commands.rows("cursor show", "billing", "--feed", FEED)
    assert [(row["behind"], row["variable"]) for row in rows] == [(18, None), (18, None)]
    assert "Variable" not in commands.err


@pytest.mark.parametrize("name", ["show", "set", "reset", "history", "adopt", "publish", "rebuild"])
def test_a_consumer_that_is_not_there(
    commands: Commands, exported: SqliteFeedSource, tmp_path: Path, name: str
) -> None:
    """Status 2, and those that are."""
    more = {"set": ("--to", "latest", "--yes"), "rebuild": ("--path", str(tmp_path / "export"))}.get(name, ())
    message = commands.fails(f"cursor {name}", "lake", "--feed", FEED, *more)
    assert "lake" in message
    if name not in ("adopt", "publish", "rebuild"):
        assert message.startswith("ConsumerNotFoundError: ")
        assert f"the feed has: {CONSUMER}" in message


def test_a_shard_that_is_not_there(commands: Commands, exported: SqliteFeedSource) -> None:
    """Status 2, and those that are."""
    for name, more in (("show", ()), ("set", ("--to", "latest")), ("reset", ())):
        message = commands.fails(f"cursor {name}", *OF, "--shard", "7", *more)
        assert message.startswith("ShardNotFoundError: ")
        assert "no cursor for shard 7" in message


# ---- set


@pytest.mark.parametrize(
    ("to", "place", "words"),
    [
        (end_of(0), end_of(0), "12 events will be repeated, 0 will be skipped"),
        (end_of(0).lower(), end_of(0), "12 events will be repeated"),
        ("2013-01-01T01:00:00Z", end_of(0), "12 events will be repeated"),
        ("earliest", str(window(0).range.after), "18 events will be repeated"),
        ("latest", end_of(5), "0 events will be repeated, 18 will be skipped"),
    ],
    ids=["ULID", "small letters", "time", "earliest", "latest"],
)
def test_set_says_what_it_means_asks_and_moves(
    commands: Commands,
    exported: SqliteFeedSource,
    monkeypatch: pytest.MonkeyPatch,
    to: str,
    place: str,
    words: str,
) -> None:
    """The versions and places are shown first; after a yes all have moved, and the Variable too."""
    answer(monkeypatch, "y\n")
    rows = commands.rows("cursor set", *OF, "--to", to, "--note", "hour 2 was wrong")
    assert words in commands.err
    assert f"Move 2 cursors of consumer {CONSUMER}, feed {FEED}? [y/N]" in commands.err
    assert end_of(2) in commands.err
    assert "version" in commands.err
    assert [(row["before"], row["after"], row["resource_version"]) for row in rows] == [
        (end_of(2), place, 3)
    ] * 2
    assert at(exported) == [place] * 2
    assert_published(exported)
    first, *_ = commands.rows("cursor history", *OF)
    assert first["why"] == "set: hour 2 was wrong"


@pytest.mark.parametrize(("text", "status"), [("n\n", 1), ("", 2)], ids=["no", "nobody"])
def test_without_a_yes_nothing_moves(
    commands: Commands, exported: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch, text: str, status: int
) -> None:
    """Also where nobody is there to answer."""
    before, variable = exported.cursors(FEED, CONSUMER), Variable.get(KEY)
    for command in (("cursor set", *OF, "--to", "earliest"), ("cursor reset", *OF)):
        answer(monkeypatch, text)
        assert commands.run(*command) == status
        assert "Nothing was moved" in commands.err
        assert commands.out == ""
    assert (exported.cursors(FEED, CONSUMER), Variable.get(KEY)) == (before, variable)


def test_what_moved_while_a_person_thought_is_refused(
    commands: Commands, exported: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that was shown is the one that is sent."""

    class Slow(io.StringIO):
        def readline(self, size: int = -1, /) -> str:
            export(exported, 3)
            return "y\n"

    monkeypatch.setattr(sys, "stdin", Slow())
    assert commands.run("cursor set", *OF, "--to", "earliest") == 2
    assert "StaleVersionError: " in commands.err
    assert end_of(3) in commands.err
    assert at(exported) == [end_of(3)] * 2
    assert_published(exported)


def test_one_shard_is_moved_alone(commands: Commands, exported: SqliteFeedSource) -> None:
    """And several are, by name."""
    commands.rows("cursor set", *OF, "--to", end_of(0), "--shard", "1", "--yes")
    assert at(exported) == [end_of(2), end_of(0)]
    commands.rows("cursor set", *OF, "--to", end_of(1), "--shard", "0", "--shard", "1", "--yes")
    assert at(exported) == [end_of(1)] * 2


def test_versions_are_named_for_each_cursor(commands: Commands, exported: SqliteFeedSource) -> None:
    """One alone needs no shard; nothing is asked then."""
    to = ("--to", end_of(0))
    message = commands.fails("cursor set", *OF, *to, "--resource-version", "2")
    assert "2 cursors change; give each version with its shard: --resource-version 0=..." in message
    message = commands.fails("cursor set", *OF, *to, "--resource-version", "0=2")
    assert "shard 1: the version is missing" in message
    twice = ("--resource-version", "0=2", "--resource-version", "0=3")
    assert "names a shard twice" in commands.fails("cursor set", *OF, *to, *twice)
    message = commands.fails("cursor set", *OF, *to, "--shard", "0", "--resource-version", "1=2")
    assert "shard 1: a version is given, but its cursor does not change" in message
    assert at(exported) == [end_of(2)] * 2
    both = ("--resource-version", "0=2", "--resource-version", "1=2")
    commands.rows("cursor set", *OF, *to, *both)
    commands.rows("cursor set", *OF, "--to", end_of(1), "--shard", "0", "--resource-version", "3")
    assert at(exported) == [end_of(1), end_of(0)]


def test_two_people_at_one_cursor(commands: Commands, exported: SqliteFeedSource) -> None:
    """Both saw version 2; the second is told what the first has done, and nothing of it is lost."""
    seen = ("--shard", "0", "--resource-version", "2")
    commands.rows("cursor set", *OF, "--to", end_of(0), *seen, "--note", "mine")
    message = commands.fails("cursor set", *OF, "--to", end_of(1), *seen)
    assert message.startswith("StaleVersionError: ")
    assert end_of(0) in message
    assert "3" in message
    assert "nothing was changed" in message
    assert at(exported) == [end_of(0), end_of(2)]
    assert_published(exported)
    assert [row["why"] for row in commands.rows("cursor history", *OF)][:1] == ["set: mine"]


def test_a_version_of_the_future_is_refused(commands: Commands, exported: SqliteFeedSource) -> None:
    """It is of another database, or of before a restore."""
    message = commands.fails(
        "cursor set", *OF, "--to", end_of(0), "--shard", "0", "--resource-version", "900"
    )
    assert message.startswith("StaleVersionError: ")
    assert "another database" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--to", "yesterday"),
            "'yesterday' is not a ULID, a time with its zone (2026-03-01T00:00:00Z), earliest or latest",
        ),
        (("--to", "01ARZ3NDEKTSV4RRFFQ69G5FAU"), "ABCDEFGHJKMNPQRSTVWXYZ"),
        (("--to", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ"), "overflow 128-bits"),
        (("--to", "2013-01-01"), "zone"),
        ((), "required: --to"),
        (("--to", "latest", "--shard", "x"), "'x' is not a shard"),
        (("--to", "latest", "--resource-version"), "expected one argument"),
        (("--to", "latest", "--resource-version", "0"), "'0' is not a whole number, 1 or more"),
        (("--to", "latest", "--resource-version", "0=x"), "'x' is not a whole number, 1 or more"),
        (("--to", "latest", "--resource-version", "x=1"), "'x' is not a shard"),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, tuple) else "",
)
def test_options_of_set_that_mean_nothing(commands: Commands, options: tuple[str, ...], message: str) -> None:
    """By the parser, with what is wrong."""
    assert message in commands.refuses("cursor set", *OF, *options)


@pytest.mark.parametrize(
    ("to", "message"),
    [
        (str(Ulid.MAX), "CursorBeyondFeedError: "),
        ("2099-01-01T00:00:00Z", "FutureTimeError: "),
        (end_of(0), "PurgedError: "),
        ("2013-01-01T00:00:00Z", "PurgedError: "),
        (end_of(2), "is already there"),
    ],
    ids=["beyond", "future", "purged", "purged time", "same"],
)
def test_places_that_a_cursor_cannot_go_to(
    commands: Commands, exported: SqliteFeedSource, to: str, message: str
) -> None:
    """Status 2, and nothing is asked."""
    exported.purge(FEED, START + 2 * HOUR)
    assert message in commands.fails("cursor set", *OF, "--to", to)
    assert at(exported) == [end_of(2)] * 2


def test_the_output_that_is_named_says_where_windows_begin(
    commands: Commands, exported: SqliteFeedSource, tmp_path: Path
) -> None:
    """Where the moves so far do not, or show shorter ones: of two hours a cursor goes to the begin."""
    ExportStore(str(tmp_path), FEED).claim(exported.identity().id, unit=2 * HOUR)
    named = ("--path", str(tmp_path), "--yes")
    away = commands.fails("cursor set", *OF, "--to", end_of(0), "--path", str(tmp_path / "typo"), "--yes")
    assert "holds no export of feed" in away
    edit("0", ulid=end_of(0))
    assert "--to 2013-01-01T00:00:00Z" in commands.fails("cursor adopt", *OF, *named)
    commands.rows("cursor publish", *OF)
    commands.rows("cursor set", *OF, "--to", end_of(0), *named)
    assert at(exported) == [str(window(0).range.after)] * 2
    assert "exports windows, so the cursor goes to the start of a window" in commands.err


def test_whoever_holds_a_cursor_is_named(commands: Commands, exported: SqliteFeedSource) -> None:
    """With the command that takes its lease away, which can be pasted."""
    tokens = exported.acquire_leases(
        CONSUMER, FEED, [0], holder="a batch", seconds=600, all_or_none=True
    ).tokens
    message = commands.fails("cursor set", *OF, "--to", "earliest", "--yes")
    assert message.startswith("LeaseHeldError: ")
    assert "'a batch'" in message
    command = message.rpartition("revoke its lease: airflow-changefeed ")[2].strip()
    assert command.endswith(f"--fencing-token {tokens[0]} --conn-id changefeed_default")
    words = command.split()[:-2]
    assert commands.run(" ".join(words[:2]), *words[2:]) == 0, commands.err
    commands.rows("cursor set", *OF, "--to", "earliest", "--yes")
    assert at(exported) == [str(window(0).range.after)] * 2


# ---- reset and history


def test_history_says_who_changed_what(commands: Commands, exported: SqliteFeedSource) -> None:
    """Newest first, of one shard or all; each can be undone."""
    commands.rows("cursor set", *OF, "--to", "earliest", "--yes", "--note", "a mistake")
    rows = commands.rows("cursor history", *OF, "--shard", "1")
    assert [(row["before"], row["after"]) for row in rows] == [
        (end_of(2), str(window(0).range.after)),
        (str(window(0).range.after), end_of(2)),
        (None, str(window(0).range.after)),
    ]
    assert [row["by"] == "a run" for row in rows] == [False, True, True]
    assert [row["why"] for row in rows] == ["set: a mistake", None, None]
    assert [row["resource_version"] for row in rows] == [3, 2, 1]
    assert rows[0]["at"] >= rows[1]["at"]
    assert len(commands.rows("cursor history", *OF, "--limit", "2")) == 2
    number = str(rows[0]["number"])
    (undone,) = commands.rows("cursor reset", *OF, "--change", number, "--yes", "--note", "sorry")
    assert (undone["shard"], undone["after"]) == ("1", end_of(2))
    assert at(exported) == [str(window(0).range.after), end_of(2)]
    (row, *_) = commands.rows("cursor history", *OF, "--shard", "1")
    assert row["why"] == f"reset to before change {number}: sorry"
    assert commands.run("cursor history", *OF, "-o", "plain") == 0
    assert commands.out.split()[:2] == ["number", "shard"]


def test_reset_goes_back_to_the_beginning(commands: Commands, exported: SqliteFeedSource) -> None:
    """Of the consumer, not of the feed."""
    commands.rows("cursor reset", *OF, "--shard", "0", "--yes")
    assert at(exported) == [str(window(0).range.after), end_of(2)]
    assert [row["why"] for row in commands.rows("cursor history", *OF)][:1] == ["reset"]


def test_a_change_that_cannot_be_undone(commands: Commands, exported: SqliteFeedSource) -> None:
    """It is not there, it made the cursor, or it names its shard already."""
    assert "no change 99" in commands.fails("cursor reset", *OF, "--change", "99")
    first = commands.rows("cursor history", *OF)[-1]["number"]
    assert "cannot be undone" in commands.fails("cursor reset", *OF, "--change", str(first))
    assert "--shard cannot be combined with --change" in commands.fails(
        "cursor reset", *OF, "--change", "1", "--shard", "0"
    )


# ---- accept-beginning


@pytest.fixture
def begun_late(server: None, source: SqliteFeedSource) -> SqliteFeedSource:
    """Give a source of which an export has begun at the third hour, by its first run."""
    source.seal(FEED, START + 6 * HOUR)
    begin = dict.fromkeys((0, 1), window(2).range.after)
    source.begin_consumer(CONSUMER, FEED, begin, by="a run")
    return source


def _began(source: SqliteFeedSource) -> set[Began]:
    return {row.began for row in source.cursors(FEED, CONSUMER)}


def test_what_an_export_does_not_have_is_shown_and_accepted(
    commands: Commands, begun_late: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many events there are, and from when; the note is kept, and the Variable follows."""
    command = ("cursor accept-beginning", *OF, "--note", "test data")
    answer(monkeypatch, "n\n")
    assert commands.run(*command) == 1
    assert f"Accept that {CONSUMER} does not have 12 events of feed {FEED} before its" in commands.err
    (first,) = begun_late.read_feed(FEED, 0, Ulid.MIN, 1)
    assert format_time(first.ulid.time) in commands.err
    assert "Nothing was accepted" in commands.err
    assert _began(begun_late) == {Began.IMPLIED}
    answer(monkeypatch, "y\n")
    assert commands.run(*command, "-o", "json") == 0
    shown, other = json.loads(commands.out)
    assert (shown["shard"], shown["began"], shown["before"], other["shard"]) == ("0", "accepted", 6, "1")
    assert (shown["start"], shown["before_from"]) == (end_of(1), str(first.ulid))
    assert shown["resource_version"] == 2
    assert _began(begun_late) == {Began.ACCEPTED}
    (change, *_) = commands.rows("cursor history", *OF)
    assert (change["why"], change["before"]) == ("accept-beginning: test data", end_of(1))
    assert_published(begun_late)


def test_an_accepted_beginning_is_that_which_was_seen(
    commands: Commands, begun_late: SqliteFeedSource
) -> None:
    """By its version of each shard; what cannot be accepted is refused."""
    command = ("cursor accept-beginning", *OF, "--note", "test data")
    stale = ("--resource-version", "0=1", "--resource-version", "1=7")
    assert "StaleVersionError" in commands.fails(*command, *stale)
    assert _began(begun_late) == {Began.IMPLIED}
    seen = ("--resource-version", "0=1", "--resource-version", "1=1")
    assert len(commands.rows(*command, *seen)) == 2
    message = commands.fails(*command, "--yes")
    assert "has no implied beginning to accept: shard 0 accepted, shard 1 accepted" in message
    with pytest.raises(SystemExit):
        commands.run("cursor accept-beginning", *OF, "--note", "...", "--yes")
    assert "says nothing" in commands.err


# ---- what stands in the way


def test_a_time_is_when_a_consumer_goes_on(commands: Commands, exported: SqliteFeedSource) -> None:
    """Its events are the next ones."""
    commands.rows("cursor set", *OF, "--to", format_time(START + HOUR), "--shard", "0", "--yes")
    (row, _) = exported.cursors(FEED, CONSUMER)
    (event,) = exported.read_feed(FEED, 0, row.ulid, 1)
    assert event.ulid.time == START + HOUR


def test_a_database_that_is_busy(
    commands: Commands, exported: SqliteFeedSource, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 2, one line, and nothing has changed."""
    extra = {"conn_type": "sqlite", "host": database, "extra": {"lock_timeout": 0.1}}
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(extra))
    before = Variable.get(KEY)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        message = commands.fails("cursor set", *OF, "--to", "earliest", "--yes")
    assert message.startswith("LockTimeoutError: ")
    assert at(exported) == [end_of(2)] * 2
    assert Variable.get(KEY) == before


def test_a_consumer_of_very_many_shards(
    commands: Commands, exported: SqliteFeedSource, database: str
) -> None:
    """More than are looked at together: all are shown and moved; messages name the first ones only."""
    shards = range(2, 1_102)
    with closing(sqlite3.connect(database)) as connection:
        connection.executemany(
            'insert into "nyc.Flight" values (?, ?)', [(shard + 100, "JFK") for shard in shards]
        )
        connection.executemany(
            'insert into "changefeed.outbox:nyc.Flight" (shard_id, id) values (?, ?)',
            [(shard, shard + 100) for shard in shards],
        )
        connection.commit()
    exported.drain(FEED)
    exported.begin_consumer(CONSUMER, FEED, dict.fromkeys(shards, Ulid.MIN), by="test")
    rows = commands.rows("cursor show", *OF)
    assert {row["shard"]: row["behind"] for row in rows} == {
        **{"0": 9, "1": 9},
        **{str(shard): 1 for shard in shards},
    }
    message = commands.fails("cursor set", *OF, "--to", str(Ulid.MAX))
    assert "and 1092 more" in message
    assert len(message) < 2_000
    commands.rows("cursor set", *OF, "--to", "latest", "--yes")
    assert {row["behind"] for row in commands.rows("cursor show", *OF)} == {0}
    assert_published(exported)
