# SPDX-License-Identifier: Apache-2.0
"""The reference of the command line: it names all there is, and its examples run."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from airflow_changefeed.consumers.run import run_consumer
from airflow_changefeed.consumers.trying import Backoff
from airflow_changefeed.export.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.sql.mssql import script
from tests.examples import DOCS, examples
from tests.unit.airflow.commands import described, run
from tests.unit.export.flights import FEED, Flights, hours

PAGE = "reference/cli.md"
#: Commands whose examples need no more than a feed.
ON_A_FEED = ("sql", "install", "setup-feed", "status", "seal", "read", "purge")


def _lines(*commands: str) -> list[list[str]]:
    found = [shlex.split(line) for block in examples(PAGE, {}, "bash") for line in block.splitlines()]
    assert all(words[:2] == ["airflow", "changefeed"] for words in found)
    return [words[2:] for words in found if words[2] in commands]


def test_every_command_and_option_is_in_the_reference() -> None:
    """Under the command's own heading, or among the options of all."""
    beginning, *sections = re.split("\n##+ ", (DOCS / PAGE).read_text(encoding="utf-8"))
    texts = {section.partition("\n")[0]: section for section in sections}
    assert {name for name, _ in described()} <= set(texts)
    for name, command in described():
        for argument in command.args:
            flags = [flag for flag in argument.flags if flag.startswith("--")]
            missing = [flag for flag in flags if f"`{flag}`" not in beginning + texts[name]]
            assert not missing, (name, missing)


def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the page, on the embedded source; the feed's events are there at the end but one."""
    path = tmp_path / "feeds.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('create table "myservice.MyEvent" (EventID integer primary key)')
        connection.execute(
            'create table "myservice.UserEvent" (shard integer, ulid blob, primary key (shard, ulid))'
        )
        SqliteFeedSource(str(path)).set_up_feed("myservice.MyEvent")
        for number, hint in enumerate((1_700_000_000_000, 1_770_000_000_000)):
            connection.execute('insert into "myservice.MyEvent" values (?)', (number,))
            connection.execute(
                'insert into "changefeed.outbox:myservice.MyEvent" (time_hint, EventID) values (?, ?)',
                (hint, number),
            )
        connection.commit()
    monkeypatch.setenv("AIRFLOW_CONN_FEEDS", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    monkeypatch.chdir(tmp_path)
    lines = _lines(*ON_A_FEED)
    assert {words[0] for words in lines} == set(ON_A_FEED)
    for words in lines:
        assert run(*words) == 0, (words, capsys.readouterr().err)
    assert (tmp_path / "changefeed.sql").read_text(encoding="utf-8") == script()
    source = SqliteFeedSource(str(path))
    (state,) = source.shards("myservice.MyEvent")
    assert [event.key for event in source.read_feed("myservice.MyEvent", 0, state.purged_upto)] == [(1,)]


def test_the_examples_of_verify_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On an export of another feed."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(20, 0, shard=0, length=2)
    store = ExportStore(str(tmp_path / "export"), FEED)
    flights.export(store, hours(0, 24))
    there = {
        "/data/export": store.path,
        "myservice.MyEvent": FEED,
        "2026-01-01T00:00:00Z": "2013-01-01T00:00:00Z",
        "2026-01-02T00:00:00Z": "2013-01-02T00:00:00Z",
    }
    lines = _lines("verify")
    assert len(lines) > 1
    for words in lines:
        assert run(*(there.get(word, word) for word in words)) == 0, capsys.readouterr().err


def test_the_examples_of_captures_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the page, which ends with a look at gaps; none was ever there."""
    path = tmp_path / "feeds.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute('create table "shop.Order" (Id integer primary key, Status text, PaidAt text)')
        connection.execute('create table "shop.OrderLine" (Id integer primary key, Amount integer)')
    monkeypatch.setenv("AIRFLOW_CONN_FEEDS", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    lines = _lines("capture")
    assert {words[1] for words in lines} == {
        name.removeprefix("capture ") for name, _ in described() if name.startswith("capture ")
    }
    for words in lines:
        assert run(*words) == 0, (words, capsys.readouterr().err)
    with closing(SqliteFeedSource(str(path))) as source:
        assert {info.name: info.is_enabled for info in source.captures()} == {
            "shop.Order_changes": True,
            "shop.Orders_changes": False,
        }


def test_the_examples_of_consumers_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made first and dropped last, with two dead letters to be tried again and then dropped."""
    path = tmp_path / "feeds.db"
    feed = "myservice.MyEvent"
    with closing(sqlite3.connect(path)) as connection, closing(SqliteFeedSource(str(path))) as source:
        connection.execute(f'create table "{feed}" (EventID integer primary key)')
        source.set_up_feed(feed)
        for number in range(3):
            connection.execute(f'insert into "{feed}" values (?)', (number,))
            connection.execute(f'insert into "changefeed.outbox:{feed}" (EventID) values (?)', (number,))
        connection.commit()
        monkeypatch.setenv("AIRFLOW_CONN_FEEDS", json.dumps({"conn_type": "sqlite", "host": str(path)}))
        monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
        lines = _lines("consumer", "consume", "leases", "dead-letters")
        last = next(words for words in lines if words[:2] == ["consumer", "drop"])
        first = next(words for words in lines if words[:2] == ["consumer", "create"])
        assert run(*first) == 0, capsys.readouterr().err
        _park_two(source, feed)
        # Plain feeds know no transactions.
        there = {'{"with_tid": true, "poll_timeout": 2000}': '{"poll_timeout": 0}'}
        for words in (*(one for one in lines if one not in (first, last)), last):
            assert run(*(there.get(word, word) for word in words)) == 0, (words, capsys.readouterr().err)
        assert source.consumers() == []


def _park_two(source: SqliteFeedSource, feed: str) -> None:
    def refuse(event: object, connection: object) -> None:
        raise ValueError("no")

    backoff = Backoff(first=0, longest=0)
    assert run_consumer(source, "billing", feed, refuse, max_events=2, backoff=backoff).parked == 2
