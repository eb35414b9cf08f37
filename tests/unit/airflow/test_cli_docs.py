# SPDX-License-Identifier: Apache-2.0
"""The reference of the command line: it names all there is, and its examples run."""

from __future__ import annotations

import io
import json
import re
import shlex
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_changefeed.consumers.run import Backoff, run_consumer
from airflow_changefeed.core.cursor import CursorDocument
from airflow_changefeed.core.export_plan import Manifest
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.cursors import cursors
from airflow_changefeed.hooks.changefeed import AirflowVariables
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.sql.mssql import script
from tests.examples import DOCS, examples, run_example
from tests.identity import DATABASE
from tests.unit.airflow.commands import described, run
from tests.unit.airflow.conftest import CONSUMER, KEY, START
from tests.unit.export.flights import FEED, Flights, hours

HOUR = timedelta(hours=1)

PAGE, EVENTS = "reference/cli.md", "myservice.MyEvent"
NOTHING: Mapping[str, str] = {}
#: Commands whose examples need no more than a feed.
ON_A_FEED = ("sql", "install", "setup-feed", "status", "seal", "read", "purge")


def _lines(*commands: str) -> list[list[str]]:
    found = [shlex.split(line) for block in examples(PAGE, {}, "bash") for line in block.splitlines()]
    assert all(words[0] == "airflow-changefeed" for words in found)
    return [words[1:] for words in found if words[1] in commands]


def test_every_command_and_option_is_in_the_reference() -> None:
    """Under the command's own heading, or among the options of all; the first table has all groups."""
    beginning, *sections = re.split("\n##+ ", (DOCS / PAGE).read_text(encoding="utf-8"))
    texts = {section.partition("\n")[0]: section for section in sections}
    assert {name for name, _ in described()} <= set(texts)
    assert {name.split()[0] for name, _ in described()} == set(re.findall(r"\[([a-z-]+)\]\(#", beginning))
    for name, command in described():
        for argument in command.args:
            flags = [flag for flag in argument.flags if flag.startswith("--")]
            missing = [flag for flag in flags if f"`{flag}`" not in beginning + texts[name]]
            assert not missing, (name, missing)


@pytest.fixture
def feeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the connection that the pages name, to a file that a test fills."""
    path = tmp_path / "feeds.db"
    monkeypatch.setenv("AIRFLOW_CONN_FEEDS", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    monkeypatch.chdir(tmp_path)
    return path


def _write(path: Path, *hints: int) -> SqliteFeedSource:
    """Set up the feed that the pages name, with an event for each hint."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'create table "{EVENTS}" (EventID integer primary key)')
        source = SqliteFeedSource(str(path))
        source.set_up_feed(EVENTS)
        for number, hint in enumerate(hints):
            connection.execute(f'insert into "{EVENTS}" values (?)', (number,))
            outbox = f'insert into "changefeed.outbox:{EVENTS}" (time_hint, EventID) values (?, ?)'
            connection.execute(outbox, (hint, number))
        connection.commit()
    return source


def _run(words: list[str], capsys: pytest.CaptureFixture[str], there: Mapping[str, str] = NOTHING) -> None:
    """Run an example that must succeed, with what is there in place of what it names."""
    assert run(*(there.get(word, word) for word in words)) == 0, (words, capsys.readouterr().err)


def test_the_examples_run(feeds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the page, on the embedded source; the feed's events are there at the end but one."""
    source = _write(feeds, 1_700_000_000_000, 1_770_000_000_000)
    with closing(sqlite3.connect(feeds)) as connection:
        columns = "shard integer, ulid blob, primary key (shard, ulid)"
        connection.execute(f'create table "myservice.UserEvent" ({columns})')
    lines = _lines(*ON_A_FEED)
    assert {words[0] for words in lines} == set(ON_A_FEED)
    for words in lines:
        _run(words, capsys)
    assert Path("changefeed.sql").read_text(encoding="utf-8") == script()
    (state,) = source.shards(EVENTS)
    assert [event.key for event in source.read_feed(EVENTS, 0, state.purged_upto)] == [(1,)]


def test_the_examples_of_verify_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On an export of another feed."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(20, 0, shard=0, length=2)
    store = ExportStore(str(tmp_path / "export"), FEED)
    flights.export(store, hours(0, 24))
    times = {f"2026-01-0{day}T00:00:00Z": f"2013-01-0{day}T00:00:00Z" for day in (1, 2)}
    lines = _lines("verify")
    assert len(lines) > 1
    for words in lines:
        _run(words, capsys, {"/data/export": store.path, EVENTS: FEED, **times})


def test_the_examples_of_captures_run(feeds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of the page, which ends with a look at gaps; none was ever there."""
    with closing(sqlite3.connect(feeds)) as connection:
        connection.execute('create table "shop.Order" (Id integer primary key, Status text, PaidAt text)')
        connection.execute('create table "shop.OrderLine" (Id integer primary key, Amount integer)')
    lines = _lines("capture")
    assert {words[1] for words in lines} == {
        name.removeprefix("capture ") for name, _ in described() if name.startswith("capture ")
    }
    for words in lines:
        _run(words, capsys)
    with closing(SqliteFeedSource(str(feeds))) as source:
        assert {info.name: info.is_enabled for info in source.captures()} == {
            "shop.Order_changes": True,
            "shop.Orders_changes": False,
        }


def test_the_examples_of_consumers_run(feeds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Made first and dropped last, with two dead letters to be tried again and then dropped."""
    with closing(_write(feeds, *[1_770_000_000_000] * 3)) as source:
        lines = _lines("consumer", "consume", "leases", "dead-letters")
        last = next(words for words in lines if words[:2] == ["consumer", "drop"])
        first = next(words for words in lines if words[:2] == ["consumer", "create"])
        _run(first, capsys)
        _park_two(source, EVENTS)
        # Plain feeds know no transactions.
        there = {'{"with_tid": true, "poll_timeout": 2000}': '{"poll_timeout": 0}'}
        for words in (*(one for one in lines if one not in (first, last)), last):
            if words[1] == "revoke":
                source.acquire_leases("billing", EVENTS, [0], holder="worker", seconds=600)
            _run(words, capsys, there)
        assert source.consumers() == []


def _export(source: SqliteFeedSource, path: Path) -> ExportStore:
    """Let a consumer have exported three hours of shard 0, whose manifests are there."""
    ends = [Window(START + number * HOUR, START + (number + 1) * HOUR) for number in range(3)]
    source.seal(FEED, START + 6 * HOUR)
    source.begin_consumer(CONSUMER, FEED, {0: ends[0].range.after}, by="a run")
    done = {0: [window.range for window in ends]}
    cursors.advance(source, AirflowVariables(), CONSUMER, FEED, done, by="a run")
    store = ExportStore(str(path), FEED)
    store.claim(DATABASE)
    for window in ends:
        unit = ExportUnit.of_window(0, window)
        store.write(Manifest(FEED, unit, 1, CONSUMER, "run", START, (), window.end, 0, ""))
    return store


@pytest.fixture
def places(
    server: None, database: str, source: SqliteFeedSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """What the pages name, and where it is here: an export of another feed; all questions get a yes."""
    store = _export(source, tmp_path / "export")
    description = json.dumps({"conn_type": "sqlite", "host": database})
    monkeypatch.setenv("AIRFLOW_CONN_FEEDS", description)
    monkeypatch.setattr(sys, "stdin", Yes())
    return {
        "/data/export": store.path,
        EVENTS: FEED,
        "2026-01-01T00:00:00Z": "2013-01-01T01:00:00Z",
    }


class Yes(io.StringIO):
    """A person who agrees to everything."""

    def readline(self, size: int | None = -1, /) -> str:
        """Say yes."""
        return "y\n"


def test_the_examples_of_cursors_run(
    places: dict[str, str], source: SqliteFeedSource, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the page, with the versions and numbers that it names; rebuilt at the end."""
    lines = _lines("cursor")
    assert [words[1] for words in lines if words[1] in ("show", "rebuild")] == ["show", "rebuild"]
    for words in lines:
        _run(words, capsys, places)
    (row,) = source.cursors(FEED, CONSUMER)
    assert row.ulid == Ulid.floor(START + 3 * HOUR).previous()


@pytest.mark.parametrize(
    "page", ["how-to/backfill.md#move-cursors", "how-to/when-something-is-wrong.md#recover"]
)
def test_the_pages_on_cursors_run(
    places: dict[str, str], source: SqliteFeedSource, capsys: pytest.CaptureFixture[str], page: str
) -> None:
    """Each command answered with yes, then each block of Python; all leave the Variable as the row."""
    for block in examples(page, places, "bash"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)[1:]
            if words[1] == "revoke":
                source.acquire_leases(CONSUMER, FEED, [0], holder="a batch", seconds=600, all_or_none=True)
            _run(words, capsys)
    names: dict[str, object] = {}
    for block in examples(page, places):
        run_example(block, names)
    rows = source.cursors(FEED, CONSUMER)
    assert (
        AirflowVariables().get(KEY)
        == CursorDocument.of_rows(source.identity(), CONSUMER, FEED, rows).to_json()
    )


def _park_two(source: SqliteFeedSource, feed: str) -> None:
    def refuse(event: object, connection: object) -> None:
        raise ValueError("no")

    backoff = Backoff(first=0, longest=0)
    assert run_consumer(source, "billing", feed, refuse, max_events=2, backoff=backoff).parked == 2
