# SPDX-License-Identifier: Apache-2.0
"""Resource versions at the command line: whoever changes what somebody else has changed since is refused."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.consumer import Consumption, OnPoison
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import LeaseLostError
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.airflow.commands import Commands

FEED, TABLE = "shop.Event", "shop.Order"
CAPTURE = f"{TABLE}_changes"
NAME = "billing"
OF = (NAME, "--feed", FEED)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A SQLite file with a feed of three events, and a table to capture."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, closing(SqliteFeedSource(str(path))) as source:
        connection.execute(f'create table "{TABLE}" (Id integer primary key, Status text)')
        connection.execute(f'create table "{FEED}" (id integer primary key)')
        source.set_up_feed(FEED)
        for number in range(3):
            connection.execute(f'insert into "{FEED}" values (?)', (number,))
            connection.execute(f'insert into "changefeed.outbox:{FEED}" (id) values (?)', (number,))
        connection.commit()
        source.drain(FEED)
    return path


@pytest.fixture
def source(path: Path) -> Iterator[SqliteFeedSource]:
    """What the commands work on."""
    with closing(SqliteFeedSource(str(path))) as source:
        yield source


@pytest.fixture
def commands(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Give the commands on that file, with a consumer and a capture."""
    description = json.dumps({"conn_type": "sqlite", "host": str(path)})
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", description)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    commands = Commands(capsys)
    commands.rows("consumer create", *OF, "--start", "earliest")
    commands.rows("capture enable", "--table", TABLE)
    return commands


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let a person answer; nobody where there is not a text."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def version(commands: Commands, name: str) -> str:
    """Return the resource version that a list shows."""
    (row,) = commands.rows(name)
    return str(row["resource_version"])


def add_column(path: Path) -> None:
    """Change the captured table."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'alter table "{TABLE}" add column Colour text')


# ---- the two stories of Hasura's RFC


def test_what_somebody_dropped_is_gone_for_the_second(commands: Commands) -> None:
    """Two people drop one consumer: the second is told that it is not there, and what is."""
    seen = version(commands, "consumer list")
    commands.rows("consumer drop", *OF, "--resource-version", seen)
    message = commands.fails("consumer drop", *OF, "--resource-version", seen)
    assert message.startswith("ConsumerNotFoundError: ")
    assert "the feed has: none" in message


def test_what_somebody_changed_is_not_dropped_with_it(commands: Commands, source: SqliteFeedSource) -> None:
    """One alters a consumer while another, who saw it before, drops it: refused, and told the present one."""
    seen = version(commands, "consumer list")
    commands.rows("consumer alter", *OF, "--on-poison", "park", "--resource-version", seen)
    message = commands.fails("consumer drop", *OF, "--resource-version", seen)
    assert message.startswith("StaleVersionError: ")
    assert "park" in message
    assert str(int(seen) + 1) in message
    assert source.consumer(NAME, FEED).spec.on_poison is OnPoison.PARK
    assert [row.ulid for row in source.cursors(FEED, NAME)] == [Ulid.MIN]
    commands.rows("consumer drop", *OF, "--resource-version", str(int(seen) + 1))


def test_what_was_reloaded_is_not_resolved_as_it_was_seen(
    commands: Commands, path: Path, source: SqliteFeedSource
) -> None:
    """A refresh may change what a resolving means, so it is a change, also where nothing differed."""
    seen = version(commands, "capture list")
    commands.rows("capture refresh", CAPTURE, "--resource-version", seen)
    message = commands.fails("capture resolve", CAPTURE, "--note", "seen", "--resource-version", seen)
    assert message.startswith("StaleVersionError: ")
    assert str(int(seen) + 1) in message
    commands.rows(
        "capture resolve", CAPTURE, "--note", "ok", "--resync", "--resource-version", str(int(seen) + 1)
    )


def test_a_table_that_changed_beneath_is_a_change(commands: Commands, path: Path) -> None:
    """Whoever saw its capture before the change is refused; the list shows the new version."""
    seen = version(commands, "capture list")
    add_column(path)
    message = commands.fails("capture refresh", CAPTURE, "--resource-version", seen)
    assert message.startswith("StaleVersionError: ")
    present = version(commands, "capture list")
    assert int(present) == int(seen) + 1
    (row,) = commands.rows("capture refresh", CAPTURE, "--resource-version", present)
    assert row["drift"] == []
    assert row["resource_version"] == int(present) + 1


# ---- each command that changes something


@pytest.mark.parametrize(
    ("command", "listing"),
    [
        (("consumer alter", *OF, "--max-attempts", "3"), "consumer list"),
        (("consumer drop", *OF), "consumer list"),
        (("capture disable", CAPTURE), "capture list"),
        (("capture refresh", CAPTURE), "capture list"),
        (("capture resolve", CAPTURE, "--note", "x", "--resync"), "capture list"),
        (("capture enable", "--table", TABLE), "capture list"),
        (("setup-feed", FEED, "--time-tolerance", "60s"), None),
    ],
    ids=["alter", "drop", "disable", "refresh", "resolve", "enable", "setup-feed"],
)
def test_a_stale_version_changes_nothing(
    commands: Commands, source: SqliteFeedSource, command: tuple[str, ...], listing: str | None
) -> None:
    """Neither does one that is no number, or one that never was, which is of another database."""
    before = (source.consumers(), source.captures(), source.feed(FEED))
    message = commands.fails(*command, "--resource-version", "900")
    assert message.startswith("StaleVersionError: ")
    assert "900" in message
    assert "another database" in message
    assert "nothing was changed" in message
    assert "is not a whole number, 1 or more" in commands.refuses(*command, "--resource-version", "x")
    assert (source.consumers(), source.captures(), source.feed(FEED)) == before


@pytest.mark.parametrize(
    ("command", "question", "otherwise"),
    [
        (
            ("consumer alter", *OF, "--max-attempts", "3"),
            f"Resource version 1. Change consumer {NAME} of feed {FEED} from",
            "Nothing was changed",
        ),
        (
            ("consumer drop", *OF),
            f"Resource version 1. Drop consumer {NAME} of feed {FEED}?",
            "Nothing was dropped",
        ),
        (("capture disable", CAPTURE), "Resource version 1. Stop recording", "Nothing was disabled"),
        (("capture refresh", CAPTURE), "There are no differences", "Nothing was refreshed"),
        (
            ("capture resolve", CAPTURE, "--note", "x", "--resync"),
            "Resource version 1. Capture",
            "Nothing was resolved",
        ),
        (
            ("setup-feed", FEED, "--time-tolerance", "60s"),
            "Change of feed shop.Event the time tolerance from 3600 to 60 seconds?",
            "Nothing was changed",
        ),
    ],
    ids=["alter", "drop", "disable", "refresh", "resolve", "setup-feed"],
)
@pytest.mark.parametrize(("text", "status"), [("y\n", 0), ("n\n", 1), ("", 2)], ids=["yes", "no", "nobody"])
def test_without_a_version_a_person_is_asked(
    commands: Commands,
    source: SqliteFeedSource,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    question: str,
    otherwise: str,
    text: str,
    status: int,
) -> None:
    """With the version and what changes; nothing but a yes changes it, and nobody there is no yes."""
    before = (source.consumers(), source.captures(), source.feed(FEED).time_tolerance)
    answer(monkeypatch, text)
    assert commands.run(*command) == status, commands.err
    assert question in commands.err
    is_same = (source.consumers(), source.captures(), source.feed(FEED).time_tolerance) == before
    assert is_same == (status != 0 or "refresh" in command[0] or "resolve" in command[0])
    assert (otherwise in commands.err) == (status != 0)


def test_a_disabled_capture_is_enabled_after_asking(
    commands: Commands, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what changed meanwhile is a gap; enabling one that is enabled is harmless."""
    commands.rows("capture disable", CAPTURE, "--yes")
    answer(monkeypatch, "n\n")
    assert commands.run("capture enable", "--table", TABLE) == 1
    assert f"Resource version 2. Capture {CAPTURE} is disabled" in commands.err
    assert not source.capture(CAPTURE).is_enabled
    commands.rows("capture enable", "--table", TABLE, "--yes")
    commands.rows("capture enable", "--table", TABLE)
    assert source.capture(CAPTURE).is_enabled


def test_a_harmless_repeat_asks_nothing(commands: Commands, source: SqliteFeedSource) -> None:
    """And leaves the version as it is; a feed's settings that are not named stay."""
    commands.rows("setup-feed", FEED, "--time-tolerance", "60s", "--yes")
    (row,) = commands.rows("setup-feed", FEED)
    assert (row["time_tolerance"], row["resource_version"]) == (60, 2)
    assert source.feed(FEED).time_tolerance.total_seconds() == 60
    (info,) = commands.rows("consumer alter", *OF, "--max-attempts", "10")
    assert info["resource_version"] == 1
    assert "already has these settings" in commands.err


def test_a_repeat_does_not_set_back_what_somebody_sets_meanwhile(
    commands: Commands, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that are not named stay as they are by then."""
    set_up = SqliteFeedSource.set_up_feed

    def slowly(self: SqliteFeedSource, table: str, **options: Any) -> Any:
        set_up(source, table, time_tolerance=timedelta(minutes=1))
        return set_up(self, table, **{**options, "resource_version": None})

    monkeypatch.setattr(SqliteFeedSource, "set_up_feed", slowly)
    commands.rows("setup-feed", FEED, "--max-hold", "12h", "--yes")
    info = source.feed(FEED)
    assert (info.time_tolerance, info.max_hold) == (timedelta(minutes=1), timedelta(hours=12))


def test_max_hold_is_set_after_asking(
    commands: Commands, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a feed or a capture, with what it was; ``forever`` takes it away again."""
    for name in (FEED, CAPTURE):
        answer(monkeypatch, "n\n")
        assert commands.run("setup-feed", name, "--max-hold", "30d") == 1
        assert f"Change of feed {name} max_hold from forever to 30d" in commands.err
        assert source.feed(name).max_hold == timedelta.max
        (row,) = commands.rows("setup-feed", name, "--max-hold", "30d", "--yes")
        assert (row["feed"], row["max_hold"], row["resource_version"]) == (name, 2_592_000, 2)
        (row,) = commands.rows("setup-feed", name, "--max-hold", "forever", "--yes")
        assert row["max_hold"] is None


def test_altering_names_what_changes(commands: Commands, source: SqliteFeedSource) -> None:
    """What is not named stays; nothing named is a mistake, and so is what no consumer can be."""
    (row,) = commands.rows(
        "consumer alter", *OF, "--max-attempts", "3", "--keep-log", "60s", "--on-poison", "park", "--yes"
    )
    assert (row["max_attempts"], row["keep_log"], row["on_poison"]) == (3, 60, "park")
    (row,) = commands.rows("consumer alter", *OF, "--keep-log", "90s", "--yes")
    assert (row["max_attempts"], row["keep_log"], row["resource_version"]) == (3, 90, 3)
    assert row["ddl"] is False
    for option, taken in (("--ddl", True), ("--no-ddl", False)):
        (row,) = commands.rows("consumer alter", *OF, option, "--yes")
        assert row["ddl"] is taken
    assert "nothing to change; pass" in commands.fails("consumer alter", *OF)
    assert "needs max_attempts" in commands.fails("consumer alter", *OF, "--max-attempts", "none", "--yes")
    message = commands.fails("consumer alter", "lake", "--feed", FEED, "--keep-log", "9s", "--yes")
    assert "it has: billing" in message


def test_versions_are_shown(commands: Commands) -> None:
    """Of feeds, captures, consumers and cursors."""
    assert {row["feed_resource_version"] for row in commands.rows("status")} == {1}
    assert {row["resource_version"] for row in commands.rows("status", "--feed", FEED)} == {1}
    assert version(commands, "capture list") == version(commands, "consumer list") == "1"


# ---- leases


def test_a_lease_is_taken_away(
    commands: Commands, source: SqliteFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After asking; whoever held it writes nothing under it any more, and another may have the shard."""
    row = source.acquire_leases(NAME, FEED, [0], holder="worker", seconds=600).rows[0]
    of = (*OF, "--shard", "0")
    answer(monkeypatch, "n\n")
    assert commands.run("consumer revoke", *of) == 1
    assert f"Revoke the lease of worker on shard 0 (fencing token {row.fencing_token}, until" in commands.err
    assert source.leases(FEED)[0].holder == "worker"
    answer(monkeypatch, "y\n")
    (lease,) = commands.rows("consumer revoke", *of)
    assert lease["holder"] is None
    (event, *_) = source.read_feed(FEED, 0, Ulid.MIN)
    step = Consumption(0, event.ulid, row.resource_version, row.fencing_token, 60)
    with (
        closing(source.open_session(NAME, FEED)) as session,
        pytest.raises(LeaseLostError),
        session.transaction(),
    ):
        session.consume(step)
    assert source.acquire_leases(NAME, FEED, [0], holder="next", seconds=600).rows[0].fencing_token


def test_another_lease_is_left_alone(commands: Commands, source: SqliteFeedSource) -> None:
    """A token that is not the newest, a shard that nobody holds, one that is not there."""
    of = (*OF, "--shard", "0")
    assert "has no lease; nothing to revoke" in commands.fails("consumer revoke", *of)
    first = source.acquire_leases(NAME, FEED, [0], holder="first", seconds=600).rows[0].fencing_token
    source.release_leases(NAME, FEED, {0: first}, holder="first")
    source.acquire_leases(NAME, FEED, [0], holder="second", seconds=600)
    message = commands.fails("consumer revoke", *of, "--fencing-token", str(first))
    assert message.startswith("StaleVersionError: ")
    assert source.leases(FEED)[0].holder == "second"
    message = commands.fails("consumer revoke", *OF, "--shard", "7")
    assert message.startswith("ShardNotFoundError: ")
    assert "it has 0" in message
    message = commands.fails("consumer revoke", *OF, "--shard", "7", "--fencing-token", "1")
    assert message.startswith("ShardNotFoundError: ")
    assert "required: --shard" in commands.refuses("consumer revoke", *OF)
