# SPDX-License-Identifier: Apache-2.0
"""What people change: each action in Python, as a command, and on the page where the page has it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.models import Variable

from airflow_changefeed.consumers.run import Backoff, run_consumer
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, DeadLetterState, OnPoison
from airflow_changefeed.core.feed import parse_shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.cursors.cursors import advance
from airflow_changefeed.cursors.moves import accept_beginning, move_to, plan_moves
from airflow_changefeed.exceptions import (
    CaptureNotFoundError,
    ChangefeedError,
    ConsumerNotFoundError,
    DeadLetterError,
    FeedNotFoundError,
    ShardNotFoundError,
)
from airflow_changefeed.hooks.changefeed import AirflowVariables
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.identity import name_database
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.conftest import CONSUMER, FEED, KEY, START, insert
from tests.unit.airflow.page import CONN_ID, Visitor

CAPTURE, MAILER, HELD = "fares changes", "mailer", "held"
HOUR = timedelta(hours=1)
TO = format_time(START + 2 * HOUR)
SPEC = ConsumerSpec(MAILER, FEED, max_attempts=1, on_poison=OnPoison.PARK)
NEW = ConsumerSpec("new", FEED, max_attempts=3, on_poison=OnPoison.PARK)
#: Names that nothing has, by what they are of.
UNKNOWN = {"feed": "nyc.Nothing", "consumer": "nobody", "shard": "7", "number": "99"}

Names = Mapping[str, str]


@dataclass(frozen=True)
class Action:
    """
    Something that people change.

    :param python: makes the change, with the names of what is changed, and ``version``, which a person saw.
    :param command: its words, with names in braces; ``versions`` are the words for the version.
    :param route: of the page's API, whose body has the version under ``sent``; None if the page lacks it.
    :param names: of what is changed.
    :param seen: returns the version that a person sees; None if the action needs none.
    :param meanwhile: changes the same thing, as another person.
    :param result: what the action changes, without who did it.
    :param unknown: the error for each name that can be unknown.
    """

    python: Callable[[FeedSource, Names], object]
    command: tuple[str, ...]
    names: Mapping[str, str]
    result: Callable[[FeedSource], object]
    seen: Callable[[FeedSource], object] | None = None
    meanwhile: Callable[[FeedSource], object] | None = None
    versions: tuple[str, ...] = ("--resource-version", "{version}")
    route: str | None = None
    body: Mapping[str, object] = field(default_factory=dict)
    sent: str = "resource_version"
    unknown: Mapping[str, type[ChangefeedError]] = field(default_factory=dict)


def _cursor(source: FeedSource, consumer: str, shard: int = 0) -> Any:
    return next(row for row in source.cursors(FEED, consumer) if row.shard == shard)


def _move(source: FeedSource, names: Names) -> object:
    shard = parse_shard(names["shard"])
    moves = plan_moves(source, names["consumer"], names["feed"], TO, [shard])
    of, versions = (names["consumer"], names["feed"]), {shard: int(names["version"])}
    return move_to(source, AirflowVariables(), *of, moves, by="ann", versions=versions, why="set: why")


def move_elsewhere(source: FeedSource) -> object:
    """Choose another beginning of one shard, as another person."""
    moves = plan_moves(source, CONSUMER, FEED, format_time(START + HOUR), [0])
    return move_to(source, AirflowVariables(), CONSUMER, FEED, moves, by="ben")


def _accept(source: FeedSource, names: Names) -> object:
    of, each = (names["consumer"], names["feed"]), int(names["version"]) // 2
    versions = {0: each, 1: each}
    return accept_beginning(source, AirflowVariables(), *of, by="ann", why="why", versions=versions)


def _export_on(source: FeedSource) -> object:
    done = {shard: [Window(START + 4 * HOUR, START + 5 * HOUR).range] for shard in (0, 1)}
    return advance(source, AirflowVariables(), CONSUMER, FEED, done, by="a run")


def _lease_again(source: FeedSource) -> object:
    token = _cursor(source, HELD).fencing_token
    source.release_leases(HELD, FEED, {0: token}, holder="worker")
    return source.acquire_leases(HELD, FEED, [0], holder="another", seconds=600)


def _letter(state: DeadLetterState) -> Callable[[FeedSource, Names], object]:
    note = None if state is DeadLetterState.RETRY else "why"
    return lambda source, names: source.resolve_dead_letter(
        int(names["number"]), state, by="ann", note=note, resource_version=int(names["version"])
    )


def _letters(source: FeedSource) -> object:
    return [
        (one.state, one.note, one.resource_version)
        for one in source.dead_letters(FEED, MAILER, is_open=False)
    ]


def _beginnings(source: FeedSource) -> object:
    rows = source.cursors(FEED, CONSUMER)
    return [(one.began, one.ulid, one.ack, one.resource_version) for one in rows], _newest(source)


def _newest(source: FeedSource) -> object:
    return source.history(FEED, CONSUMER)[0].why


def _settings(source: FeedSource) -> object:
    return [(one.spec, one.begin) for one in source.consumers(FEED)], source.cursors(FEED, MAILER)


_NO_CONSUMER: dict[str, type[ChangefeedError]] = {
    "feed": FeedNotFoundError,
    "consumer": ConsumerNotFoundError,
}
#: What the actions on an export, on a consumer, on a dead letter and on a capture have in common.
_EXPORT: dict[str, Any] = {"names": {"feed": FEED, "consumer": CONSUMER}, "result": _beginnings}
_CONSUMER: dict[str, Any] = {
    "names": {"feed": FEED, "consumer": MAILER},
    "result": _settings,
    "seen": lambda source: source.consumer(MAILER, FEED).resource_version,
    "meanwhile": lambda source: source.change_consumer(
        replace(SPEC, max_attempts=7), resource_version=1, by="ben"
    ),
    "unknown": {"consumer": ConsumerNotFoundError},
}
_LETTER: dict[str, Any] = {
    "names": {"feed": FEED, "consumer": MAILER, "number": "1"},
    "result": _letters,
    "seen": lambda source: source.dead_letters(FEED)[0].resource_version,
    "meanwhile": lambda source: source.resolve_dead_letter(1, DeadLetterState.RETRY, by="ben"),
    "route": "resolve_dead_letter",
    "unknown": {"number": DeadLetterError},
}
_CAPTURE: dict[str, Any] = {
    "names": {"feed": CAPTURE},
    "result": lambda source: (source.capture(CAPTURE), source.capture_gaps(CAPTURE)[0].note),
    "seen": lambda source: source.capture(CAPTURE).resource_version,
    "meanwhile": lambda source: source.refresh_capture(CAPTURE),
    "unknown": {"feed": CaptureNotFoundError},
}
_FEED: dict[str, Any] = {
    "names": {"feed": FEED},
    "result": lambda source: (source.feed(FEED), source.shards(FEED)),
    "unknown": {"feed": FeedNotFoundError},
}

ACTIONS = {
    "move a cursor": Action(
        **{**_EXPORT, "names": {**_EXPORT["names"], "shard": "0"}},
        python=_move,
        command=(
            *("cursor set", "{consumer}", "--feed", "{feed}"),
            *("--shard", "{shard}", "--to", TO, "--note", "why"),
        ),
        seen=lambda source: _cursor(source, CONSUMER).resource_version,
        meanwhile=move_elsewhere,
        route="move",
        body={"to": TO, "note": "why"},
        unknown={**_NO_CONSUMER, "shard": ShardNotFoundError},
    ),
    "accept a beginning": Action(
        **_EXPORT,
        python=_accept,
        command=("cursor accept-beginning", "{consumer}", "--feed", "{feed}", "--note", "why"),
        seen=lambda source: sum(row.resource_version for row in source.cursors(FEED, CONSUMER)),
        meanwhile=_export_on,
        versions=("--resource-version", "0={half}", "--resource-version", "1={half}"),
        route="accept_beginning",
        body={"note": "why"},
        unknown=_NO_CONSUMER,
    ),
    "revoke a lease": Action(
        python=lambda source, names: source.revoke_lease(
            *(names["consumer"], names["feed"], parse_shard(names["shard"])),
            fencing_token=int(names["version"]),
        ),
        command=("consumer revoke", "{consumer}", "--feed", "{feed}", "--shard", "{shard}"),
        names={"feed": FEED, "consumer": HELD, "shard": "0"},
        result=lambda source: _cursor(source, HELD).lease_holder,
        seen=lambda source: _cursor(source, HELD).fencing_token,
        meanwhile=_lease_again,
        versions=("--fencing-token", "{version}"),
        route="revoke",
        sent="fencing_token",
        unknown={**_NO_CONSUMER, "shard": ShardNotFoundError},
    ),
    "create a consumer": Action(
        python=lambda source, names: create_consumer(
            source, replace(NEW, consumer=names["consumer"], feed=names["feed"]), TO, by="ann"
        ),
        command=(
            *("consumer create", "{consumer}", "--feed", "{feed}", "--start", TO),
            *("--max-attempts", "3", "--on-poison", "park"),
        ),
        names={"feed": FEED, "consumer": "new"},
        result=lambda source: (_settings(source), [row.ulid for row in source.cursors(FEED, "new")]),
        versions=(),
        route="create_consumer",
        body={"start": TO, "max_attempts": 3, "on_poison": "park"},
        unknown={"feed": FeedNotFoundError},
    ),
    "change a consumer": Action(
        **_CONSUMER,
        python=lambda source, names: source.change_consumer(
            replace(SPEC, consumer=names["consumer"], feed=names["feed"], max_attempts=5),
            resource_version=int(names["version"]),
            by="ann",
        ),
        command=("consumer alter", "{consumer}", "--feed", "{feed}", "--max-attempts", "5"),
    ),
    "drop a consumer": Action(
        **_CONSUMER,
        python=lambda source, names: source.drop_consumer(
            names["consumer"], names["feed"], resource_version=int(names["version"])
        ),
        command=("consumer drop", "{consumer}", "--feed", "{feed}"),
        route="drop_consumer",
    ),
    "retry a dead letter": Action(
        **_LETTER,
        python=_letter(DeadLetterState.RETRY),
        command=("dead-letters retry", "{number}"),
        versions=(),
        body={"to": "retry"},
    ),
    "drop a dead letter": Action(
        **_LETTER,
        python=_letter(DeadLetterState.DROPPED),
        command=("dead-letters drop", "{number}", "--note", "why"),
        versions=("--yes",),
        body={"to": "drop", "note": "why"},
    ),
    "resolve gaps": Action(
        **_CAPTURE,
        python=lambda source, names: source.resolve_capture(
            names["feed"], note="why", by="ann", resource_version=int(names["version"])
        ),
        command=("capture resolve", "{feed}", "--note", "why"),
        route="resolve_gaps",
        body={"note": "why"},
    ),
    "refresh a capture": Action(
        **_CAPTURE,
        python=lambda source, names: source.refresh_capture(
            names["feed"], resource_version=int(names["version"])
        ),
        command=("capture refresh", "{feed}"),
        route="refresh_capture",
    ),
    "disable a capture": Action(
        **_CAPTURE,
        python=lambda source, names: source.disable_capture(
            names["feed"], resource_version=int(names["version"])
        ),
        command=("capture disable", "{feed}"),
    ),
    "set up a feed": Action(
        **{**_FEED, "unknown": {}},
        python=lambda source, names: source.set_up_feed(
            names["feed"], time_tolerance=HOUR / 60, resource_version=int(names["version"])
        ),
        command=("setup-feed", "{feed}", "--time-tolerance", "60s"),
        seen=lambda source: source.feed(FEED).resource_version,
        meanwhile=lambda source: source.set_up_feed(FEED, max_hold=HOUR),
    ),
    "purge": Action(
        **_FEED,
        python=lambda source, names: source.purge(names["feed"], START + HOUR),
        command=("purge", "--feed", "{feed}", "--before", format_time(START + HOUR)),
        versions=("--yes",),
    ),
    "seal": Action(
        **_FEED,
        python=lambda source, names: source.seal(names["feed"], START + 8 * HOUR),
        command=("seal", "--feed", "{feed}", "--until", format_time(START + 8 * HOUR)),
        versions=(),
    ),
}


def build_world(path: str) -> None:
    """Write a database in which every action has something to change."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f'create table "{FEED}" (id integer primary key, origin text)')
        connection.execute("create table fares (id integer primary key, price integer)")
        with closing(SqliteFeedSource(path)) as source:
            source.set_up_feed(FEED)
            name_database(path)
            insert(path, range(36), START)
            source.drain(FEED)
            source.seal(FEED, START + 7 * HOUR)
            middle = Ulid.floor(START + 4 * HOUR).previous()
            source.begin_consumer(CONSUMER, FEED, {0: middle, 1: middle}, by="a run")
            create_consumer(source, SPEC, Beginning.EARLIEST, by="test")
            backoff = Backoff(first=0, longest=0)
            run_consumer(source, MAILER, FEED, refuse, max_events=2, backoff=backoff)
            create_consumer(source, ConsumerSpec(HELD, FEED), Beginning.LATEST, by="test")
            source.acquire_leases(HELD, FEED, [0], holder="worker", seconds=600)
            source.enable_capture(CaptureSpec((TableCapture("fares"),), name=CAPTURE))
            (trigger, *_) = connection.execute(
                "select name from sqlite_master where type = 'trigger' and tbl_name = 'fares'"
            ).fetchone()
            connection.execute(f'drop trigger "{trigger}"')
            assert source.check_capture(CAPTURE)
            connection.execute("alter table fares add column tax integer")
            source.capture(CAPTURE)


def refuse(event: object, connection: object) -> None:
    """Handle no event."""
    raise ValueError("no such airport")


@dataclass
class Answer:
    """What a face said of a change: the name of the error, if it was refused, and the words."""

    error: str | None
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


#: How the page answers an error, and what it calls one that it raises itself.
STATUS = {
    **dict.fromkeys(("StaleVersionError", "LeaseHeldError", "CursorFormatError"), 409),
    **dict.fromkeys(("FeedNotFoundError", "ConsumerNotFoundError", "ShardNotFoundError"), 404),
    **{"CaptureNotFoundError": 404, "DeadLetterError": 404, "LockTimeoutError": 503},
}


class World:
    """Copies of the database, and the three faces."""

    def __init__(self, built: Path, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built, self.commands, self.monkeypatch = built, commands, monkeypatch
        self.path, self.lock_timeout, self.copies = "", 5.0, 0

    def fresh(self) -> SqliteFeedSource:
        """Give all faces a new copy."""
        self.copies += 1
        self.path = f"{self.built.parent}/copy{self.copies}.db"
        shutil.copy(self.built, self.path)
        connection = {"conn_type": "sqlite", "host": self.path, "extra": {"lock_timeout": self.lock_timeout}}
        self.monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(connection))
        Variable.delete(KEY)
        return SqliteFeedSource(self.path, lock_timeout=self.lock_timeout)

    def content(self) -> list[Any]:
        """Return what the copy holds but the tokens of leases: a change that is refused may take one."""
        with closing(sqlite3.connect(self.path)) as connection:
            tables = connection.execute(
                "select name from sqlite_master where type = 'table' and name <> 'sqlite_sequence'"
            ).fetchall()
            rows: list[Any] = []
            for (table,) in tables:
                found = connection.execute(f'select * from "{table}"')
                names = [name for name, *_ in found.description]
                kept = [number for number, name in enumerate(names) if name != "fencing_token"]
                rows += [(table, *(row[number] for number in kept)) for row in found]
            return rows

    def take(self, face: str, action: Action, version: object = None, **others: str) -> Answer:
        """Take an action by a face, on what others may have changed."""
        names = {**action.names, **others, "version": str(version)}
        if isinstance(version, int):
            names["half"] = str(version // 2)
        return {"python": self._python, "command": self._command, "page": self._page}[face](action, names)

    def _python(self, action: Action, names: Names) -> Answer:
        with closing(SqliteFeedSource(self.path, lock_timeout=self.lock_timeout)) as source:
            try:
                action.python(source, names)
            except ChangefeedError as error:
                return Answer(type(error).__name__, error.message, error.facts)
        return Answer(None, "")

    def _command(self, action: Action, names: Names) -> Answer:
        words = (*action.command, *action.versions)
        status = self.commands.run(*(word.format_map(names) for word in words))
        error, _, text = self.commands.err.partition(": ")
        assert status in (0, 2), self.commands.err
        assert "Traceback" not in text
        return Answer(error, text) if status else Answer(None, text)

    def _page(self, action: Action, names: Names) -> Answer:
        body = {**action.body}
        if action.seen is not None:
            body[action.sent] = int(names["version"])
        answer = self.post(action, names, body)
        if answer.status_code == 200:
            return Answer(None, "")
        found = answer.json()
        if found["error"] is None:
            return Answer("DeadLetterError", found["detail"])
        assert answer.status_code == STATUS[found["error"]], found
        return Answer(found["error"], found["detail"], found)

    def post(self, action: Action, names: Names, body: Mapping[str, Any], role: str = "OP") -> Any:
        """Send a change to the page's server."""
        query = {"conn_id": CONN_ID} | {name: names[name] for name in action.names}
        return Visitor(role).post(str(action.route), body, **query)


def of_face(face: str) -> Iterator[tuple[str, Action]]:
    """Return the actions that a face has."""
    return ((name, action) for name, action in ACTIONS.items() if face != "page" or action.route)
