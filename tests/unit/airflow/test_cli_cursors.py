# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed cursor``, on the embedded source and Airflow's own Variables."""

from __future__ import annotations

import io
import json
import shlex
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from airflow.models import Variable

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.cursor import Began, variable_key
from airflow_changefeed.core.export_plan import Manifest
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import AirflowUnavailableError
from airflow_changefeed.hooks.changefeed import AirflowVariables
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.identity import DATABASE
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

START_OF_ALL = str(window(0).range.after)

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
    assert commands.run("cursor show", *OF, "-o", "plain") == 0
    head, line, _ = commands.out.splitlines()
    assert head.split()[:3] == ["shard", "cursor", "cursor"]
    assert "2013-01-01T03:00:00Z to 2013-01-01T04:00:00Z" in line
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


def test_show_says_what_a_variable_is(commands: Commands, exported: SqliteFeedSource) -> None:
    """Missing, older, edited with both values and the two commands, no cursor at all."""

    def shown() -> set[str]:
        return {row["variable"] for row in commands.rows("cursor show", *OF)}

    old = Variable.get(KEY)
    Variable.delete(KEY)
    assert shown() == {"missing"}
    assert "missing (the next run publishes it again)" in commands.err
    export(exported, 3)
    Variable.set(KEY, old)
    assert shown() == {"older"}
    assert commands.run("cursor publish", *OF) == 0
    edit("0", ulid=end_of(0))
    assert shown() == {"edited"}
    for words in (
        f"the Variable has {end_of(0)} (2013-01-01T00:59:59.999Z, resource version 3), the database has",
        f"airflow-changefeed cursor adopt {CONSUMER} --feed {FEED} --conn-id changefeed_default",
        f"airflow-changefeed cursor publish {CONSUMER} --feed {FEED} --conn-id changefeed_default",
    ):
        assert words in commands.err
    Variable.set(KEY, "see below")
    assert shown() == {"unreadable"}
    assert "The Variable has 'see below', the database has shard 0" in commands.err


def test_a_consumer_or_shard_that_is_not_there_is_named(
    commands: Commands, exported: SqliteFeedSource, tmp_path: Path
) -> None:
    """Status 2, and those that are; consumers of events have no Variable to resolve."""
    path = ("--path", str(tmp_path / "export"))
    for name, more in {"show": (), "set": ("--to", "latest", "--yes"), "reset": (), "history": ()}.items():
        message = commands.fails(f"cursor {name}", "lake", "--feed", FEED, *more)
        assert message.startswith("ConsumerNotFoundError: ")
        assert f"the feed has: {CONSUMER}" in message
        if name != "history":
            message = commands.fails(f"cursor {name}", *OF, "--shard", "7", *more)
            assert message.startswith("ShardNotFoundError: ")
            assert "no cursor for shard 7" in message
    create_consumer(exported, ConsumerSpec("billing", FEED), "earliest", by="test")
    for name, more in {"adopt": (), "publish": (), "rebuild": path}.items():
        assert "lake" in commands.fails(f"cursor {name}", "lake", "--feed", FEED, *more)
        assert "is not an export" in commands.fails(f"cursor {name}", "billing", "--feed", FEED, *more)
    rows = commands.rows("cursor show", "billing", "--feed", FEED)
    assert [(row["behind"], row["variable"]) for row in rows] == [(18, None), (18, None)]
    assert "Variable" not in commands.err
    commands.rows("cursor set", "billing", "--feed", FEED, "--to", "latest", "--yes")
    assert {str(row.ulid) for row in exported.cursors(FEED, "billing")} == {end_of(5)}
    assert Variable.get(variable_key(DATABASE, "billing", FEED), default_var=None) is None


# ---- set


@pytest.mark.parametrize(
    ("to", "place", "words"),
    [
        ("2013-01-01T01:00:00Z", end_of(0), "12 events will be repeated, 0 will be skipped"),
        ("latest", end_of(5), "0 events will be repeated, 18 will be skipped"),
    ],
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


def test_versions_are_named_for_each_cursor(commands: Commands, exported: SqliteFeedSource) -> None:
    """One alone needs no shard; nothing is asked then. One shard is moved alone, and several are by name."""
    to = ("--to", end_of(0))
    for words, complaint in (
        ("2", "2 cursors change; give each version with its shard: --resource-version 0=..."),
        ("0=2", "shard 1: the version is missing"),
        ("0=2 --resource-version 0=3", "names a shard twice"),
        ("1=2 --shard 0", "shard 1: a version is given, but its cursor does not change"),
    ):
        options = f"--resource-version {words}".split()
        assert complaint in commands.fails("cursor set", *OF, *to, *options)
    assert at(exported) == [end_of(2)] * 2
    both = ("--resource-version", "0=2", "--resource-version", "1=2")
    commands.rows("cursor set", *OF, *to, *both)
    commands.rows("cursor set", *OF, "--to", end_of(1), "--shard", "0", "--resource-version", "3")
    assert at(exported) == [end_of(1), end_of(0)]
    commands.rows("cursor set", *OF, "--to", end_of(2), "--shard", "0", "--shard", "1", "--yes")
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
    assert at(exported) == [START_OF_ALL] * 2
    assert "exports windows, so the cursor goes to the start of a window" in commands.err


def test_a_consumer_of_very_many_shards(
    commands: Commands, exported: SqliteFeedSource, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are looked at together: all are shown and moved; messages name the first ones only."""
    monkeypatch.setattr("airflow_changefeed.doctor.airflow._PAGE", 10)
    shards = range(2, 32)
    with closing(sqlite3.connect(database)) as connection:
        rows, outbox = [(shard + 100, shard) for shard in shards], "changefeed.outbox:nyc.Flight"
        connection.executemany("""insert into "nyc.Flight" values (?1, 'JFK')""", [row[:1] for row in rows])
        connection.executemany(f'insert into "{outbox}" (id, shard_id) values (?, ?)', rows)
        connection.commit()
    exported.drain(FEED)
    exported.begin_consumer(CONSUMER, FEED, dict.fromkeys(shards, Ulid.MIN), by="test")
    behind = {row["shard"]: row["behind"] for row in commands.rows("cursor show", *OF)}
    assert behind == {"0": 9, "1": 9, **{str(shard): 1 for shard in shards}}
    assert "and 22 more" in commands.fails("cursor set", *OF, "--to", str(Ulid.MAX))
    commands.rows("cursor set", *OF, "--to", "latest", "--yes")
    assert {row["behind"] for row in commands.rows("cursor show", *OF)} == {0}
    assert_published(exported)


# ---- reset, history and accept-beginning


def test_history_says_who_changed_what(commands: Commands, exported: SqliteFeedSource) -> None:
    """Newest first, of one shard or all; each can be undone but that which made the cursor."""
    commands.rows("cursor set", *OF, "--to", "earliest", "--yes", "--note", "a mistake")
    rows = commands.rows("cursor history", *OF, "--shard", "1")
    assert [(row["before"], row["after"]) for row in rows] == [
        (end_of(2), START_OF_ALL),
        (START_OF_ALL, end_of(2)),
        (None, START_OF_ALL),
    ]
    assert [row["by"] == "a run" for row in rows] == [False, True, True]
    assert [row["why"] for row in rows] == ["set: a mistake", None, None]
    assert [row["resource_version"] for row in rows] == [3, 2, 1]
    assert rows[0]["at"] >= rows[1]["at"]
    assert len(commands.rows("cursor history", *OF, "--limit", "2")) == 2
    number, first = (str(rows[place]["number"]) for place in (0, -1))
    for words, complaint in (
        (("--change", "99"), "no change 99"),
        (("--change", first), "cannot be undone"),
        (("--change", "1", "--shard", "0"), "--shard cannot be combined with --change"),
    ):
        assert complaint in commands.fails("cursor reset", *OF, *words)
    (undone,) = commands.rows("cursor reset", *OF, "--change", number, "--yes", "--note", "sorry")
    assert (undone["shard"], undone["after"]) == ("1", end_of(2))
    assert at(exported) == [START_OF_ALL, end_of(2)]
    (row, *_) = commands.rows("cursor history", *OF, "--shard", "1")
    assert row["why"] == f"reset to before change {number}: sorry"
    assert commands.run("cursor history", *OF, "-o", "plain") == 0
    assert commands.out.split()[:2] == ["number", "shard"]


def test_what_an_export_does_not_have_is_shown_and_accepted(
    server: None, commands: Commands, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many events there are, and from when; once it is accepted, there is nothing more to accept."""
    source.seal(FEED, START + 6 * HOUR)
    source.begin_consumer(CONSUMER, FEED, dict.fromkeys((0, 1), window(2).range.after), by="a run")
    command = ("cursor accept-beginning", *OF, "--note", "test data")
    answer(monkeypatch, "n\n")
    assert commands.run(*command) == 1
    assert f"Accept that {CONSUMER} does not have 12 events of feed {FEED} before its" in commands.err
    (first,) = source.read_feed(FEED, 0, Ulid.MIN, 1)
    assert format_time(first.ulid.time) in commands.err
    assert {row.began for row in source.cursors(FEED, CONSUMER)} == {Began.IMPLIED}
    answer(monkeypatch, "y\n")
    assert commands.run(*command, "-o", "json") == 0
    shown, other = json.loads(commands.out)
    assert (shown["shard"], shown["began"], shown["before"], other["shard"]) == ("0", "accepted", 6, "1")
    assert (shown["start"], shown["before_from"]) == (end_of(1), str(first.ulid))
    message = commands.fails(*command, "--yes")
    assert "has no implied beginning to accept: shard 0 accepted, shard 1 accepted" in message


# ---- the ways back when a Variable, manifests or the database's rows are lost


@pytest.mark.parametrize("choice", ["adopt", "publish"])
def test_a_variable_set_back_by_hand_is_resolved(
    commands: Commands, exported: SqliteFeedSource, choice: str
) -> None:
    """Either side may be right; the command that the message names does it."""
    edit("1", ulid=end_of(0))
    message = commands.fails("cursor set", *OF, "--to", "earliest", "--yes")
    assert message.startswith("CursorEditedError: ")
    command = f"airflow-changefeed cursor {choice} {CONSUMER} --feed {FEED} --conn-id changefeed_default"
    assert command in message
    rows = commands.rows(f"cursor {choice}", *OF, *(("--yes",) if choice == "adopt" else ()))
    place = end_of(0) if choice == "adopt" else end_of(2)
    assert [row["after"] for row in rows] == at(exported) == [end_of(2), place]
    # What is exported again is kept from being purged.
    assert str(exported.cursors(FEED, CONSUMER)[1].ack) == place
    assert_published(exported)
    (newest, *_) = commands.rows("cursor history", *OF)
    assert newest["why"] == ("adopt" if choice == "adopt" else None)


def test_adopting_asks_first_and_names_the_version(
    commands: Commands, exported: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Showing what it means; without an answer, after a no, and with an old version nothing is moved."""
    edit("0", ulid=end_of(0))
    version = exported.cursors(FEED, CONSUMER)[0].resource_version
    for text, status in (("", 2), ("n\n", 1)):
        answer(monkeypatch, text)
        assert commands.run("cursor adopt", *OF) == status
        assert "events will be repeated, 0 will be skipped. Move 1 cursor of" in commands.err
        assert end_of(0) in commands.err
    message = commands.fails("cursor adopt", *OF, "--resource-version", str(version - 1))
    assert message.startswith("StaleVersionError: ")
    assert f"is at resource version {version}" in message
    assert at(exported) == [end_of(2)] * 2
    commands.rows("cursor adopt", *OF, "--resource-version", str(version))
    assert at(exported) == [end_of(0), end_of(2)]


def manifests(path: Path, *numbers: int) -> ExportStore:
    """Write an export with the manifests of empty hours."""
    store = ExportStore(str(path), FEED)
    store.claim(DATABASE)
    for shard in (0, 1):
        for number in numbers:
            unit = ExportUnit.of_window(shard, window(number))
            store.write(Manifest(FEED, unit, 1, CONSUMER, "run", START, (), window(number).end, 0, ""))
    return store


def test_lost_cursors_are_rebuilt(commands: Commands, exported: SqliteFeedSource, tmp_path: Path) -> None:
    """The manifests say where the export ends; a gap in them is named by show."""
    path = ("--path", str(tmp_path / "export"))
    manifests(tmp_path / "export", 0, 2)
    exported.drop_consumer(CONSUMER, FEED)
    Variable.delete(KEY)
    rows = commands.rows("cursor rebuild", *OF, *path)
    assert [(row["before"], row["after"]) for row in rows] == [(None, end_of(0))] * 2
    assert_published(exported)
    assert {row["why"] for row in commands.rows("cursor history", *OF)} == {"rebuild"}
    (row, _) = commands.rows("cursor show", *OF)
    ((start, end),) = [(gap["start"], gap["end"]) for gap in row["missing"]]
    assert (start, end) == ("2013-01-01T01:00:00Z", "2013-01-01T02:00:00Z")


def _faults(commands: Commands) -> list[dict[str, str]]:
    commands.run("doctor", "-o", "json")
    found: list[dict[str, str]] = json.loads(commands.out)
    return found


def test_a_lost_export_goes_on_with_the_first_whole_window(
    commands: Commands, exported: SqliteFeedSource
) -> None:
    """Whose time status and doctor print, in a command that can be pasted."""
    for number in (3, 4):
        export(exported, number)
    commands.rows("cursor set", *OF, "--to", "2013-01-01T00:00:00Z", "--yes")
    exported.set_up_feed(FEED, max_hold=HOUR)
    exported.purge(FEED, START + 2.5 * HOUR)
    assert commands.run("status") == 0
    said = commands.err
    faults = [fault for fault in _faults(commands) if fault["code"] == "consumer-lost"]
    for fault in faults:
        command = fault["remedy"].partition(": ")[2]
        assert command.startswith("airflow-changefeed cursor set ")
        assert "--to 2013-01-01T03:00:00Z" in command
        assert command in said
        words = shlex.split(command)[1:-2]
        assert commands.run(" ".join(words[:2]), *words[2:], "--yes") == 0, commands.err
    assert at(exported) == [end_of(2)] * 2
    codes = {fault["code"] for fault in _faults(commands)}
    assert len(faults) == 2
    assert not codes & {"consumer-lost", "cursor-in-window"}


def test_an_export_is_dropped_as_the_faults_advise(
    commands: Commands, exported: SqliteFeedSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cursors and Variable after a yes, which purges then no longer wait for; its output stays."""
    store = manifests(tmp_path / "export", 0)
    answer(monkeypatch, "n\n")
    assert commands.run("consumer drop", *OF) == 1
    assert f"Resource version 4. Drop the cursors of export {CONSUMER}" in commands.err
    assert "StaleVersionError: " in commands.fails("consumer drop", *OF, "--resource-version", "3")
    assert_published(exported)
    rows = commands.rows("consumer drop", *OF, "--resource-version", "4")
    assert [(row["shard"], row["cursor"]) for row in rows] == [("0", end_of(2)), ("1", end_of(2))]
    assert f"and Variable {KEY}. The output stays" in commands.err
    assert exported.cursors(FEED) == []
    assert Variable.get(KEY, default_var=None) is None
    assert len(store.list()) == 2
    assert f"ConsumerNotFoundError: consumer '{CONSUMER}'" in commands.fails("consumer drop", *OF, "--yes")
