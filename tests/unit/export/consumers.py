# SPDX-License-Identifier: Apache-2.0
"""A consumer of two days by hours, its Variables, and what people do to them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow_changefeed.core.consumer import Position
from airflow_changefeed.core.cursor import CursorDocument, CursorRow, variable_key
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import Window
from airflow_changefeed.cursors import cursors, recovery
from airflow_changefeed.cursors.moves import PlannedMove, move_to, plan_moves
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.identity import DATABASE, name_database
from tests.templates import content_of

FEED, CONSUMER = "nyc.Flight", "warehouse"
KEY = variable_key(DATABASE, CONSUMER, FEED)
START = datetime(2013, 1, 1, tzinfo=timezone.utc)
FAR = Ulid.floor(datetime(2099, 1, 1, tzinfo=timezone.utc))
HOURS = 48


class Variables:
    """Airflow's Variables, the outermost edge: a dict that counts and can fail."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.writes = 0
        self.before_set: Callable[[], None] = lambda: None

    def get(self, key: str) -> str | None:
        return self.values.get(key)

    def set(self, key: str, value: str) -> None:
        self.before_set()
        self.writes += 1
        self.values[key] = value


class SharedVariables:
    """Variables that processes share: a SQLite table with a plain upsert, as Airflow's."""

    def __init__(self, path: str) -> None:
        self.path = path

    def get(self, key: str) -> str | None:
        with sqlite3.connect(self.path, timeout=60) as connection:
            connection.execute("create table if not exists variable (key text primary key, value text)")
            row = connection.execute("select value from variable where key = ?", (key,)).fetchone()
        connection.close()
        return row[0] if row else None

    def set(self, key: str, value: str) -> None:
        with sqlite3.connect(self.path, timeout=60) as connection:
            connection.execute("insert or replace into variable values (?, ?)", (key, value))
        connection.close()


class Crash(BaseException):
    """The process died here."""


def make_source(tmp_path: Path) -> SqliteFeedSource:
    """A feed with an event in each of 48 hours and two shards, sealed to their end."""
    path = tmp_path / "feeds.db"
    path.write_bytes(content_of(_make))
    return SqliteFeedSource(str(path), lock_timeout=30)


def _make(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, closing(SqliteFeedSource(str(path))) as source:
        connection.execute('create table "nyc.Flight" (id integer primary key)')
        connection.commit()
        source.set_up_feed(FEED)
        name_database(path)
        for hour in range(HOURS):
            at = START + timedelta(hours=hour, minutes=30)
            for shard in (0, 1):
                connection.execute('insert into "nyc.Flight" values (?)', (hour * 2 + shard,))
                connection.execute(
                    'insert into "changefeed.outbox:nyc.Flight" (shard_id, time_hint, id) values (?, ?, ?)',
                    (shard, int(at.timestamp() * 1000), hour * 2 + shard),
                )
        connection.commit()
        source.seal(FEED, START + timedelta(hours=HOURS))


def hour(number: int) -> Window:
    """Return an hour of the feed."""
    return Window(START + timedelta(hours=number), START + timedelta(hours=number + 1))


def end_of(number: int) -> Ulid:
    """Where the cursor stands after an hour."""
    return hour(number).range.upto


def begin(source: SqliteFeedSource, shards: tuple[Shard, ...] = (0, 1)) -> None:
    """Register the consumer at the feed's first hour."""
    source.begin_consumer(CONSUMER, FEED, dict.fromkeys(shards, hour(0).range.after), by="test")


def advance(
    source: SqliteFeedSource, variables: Any, *numbers: int, shards: tuple[Shard, ...] = (0, 1)
) -> list[CursorRow]:
    """Say that hours are complete."""
    done = {shard: [hour(number).range for number in numbers] for shard in shards}
    return cursors.advance(source, variables, CONSUMER, FEED, done, by="test")


def places(rows: list[CursorRow]) -> dict[Shard, Ulid]:
    """Return where the cursors stand."""
    return {row.shard: row.ulid for row in rows}


def published(variables: Any) -> CursorDocument:
    """Read the Variable."""
    return CursorDocument.from_json(variables.get(KEY), key=KEY)


@dataclass
class Warehouse:
    """A consumer that exports two days by hours: its feed, its Variables, and what people do to it."""

    source: SqliteFeedSource
    variables: Variables

    @property
    def rows(self) -> list[CursorRow]:
        """Its cursors."""
        return self.source.cursors(FEED, CONSUMER)

    @property
    def places(self) -> dict[Shard, Ulid]:
        """Where they stand."""
        return places(self.rows)

    @property
    def published(self) -> CursorDocument:
        """What the Variable says."""
        return published(self.variables)

    def begin(self, shards: tuple[Shard, ...] = (0, 1)) -> None:
        """Register the consumer at the feed's first hour."""
        begin(self.source, shards)

    def advance(self, *numbers: int, shards: tuple[Shard, ...] = (0, 1)) -> list[CursorRow]:
        """Say that hours are complete."""
        return advance(self.source, self.variables, *numbers, shards=shards)

    def resolve(self) -> list[CursorRow]:
        """Look at cursors and Variable, as each run does first."""
        return cursors.resolve(self.source, self.variables, CONSUMER, FEED)

    def state(self) -> recovery.VariableState:
        """What the Variable is beside the cursors."""
        return recovery.variable_state(self.source, self.variables, CONSUMER, FEED)

    def edit(self, change: Callable[[dict[str, Any]], object], *, redigest: bool = False) -> None:
        """Change the Variable as a person, or (``redigest``) as a program that keeps the digest right."""
        value = json.loads(self.variables.values[KEY])
        change(value)
        text = json.dumps(value)
        if redigest:
            document = CursorDocument.from_json(text, key=KEY)
            text = replace(document, is_intact=True).to_json()
        self.variables.values[KEY] = text

    def publish(self) -> None:
        """Overwrite the Variable."""
        recovery.publish(self.source, self.variables, CONSUMER, FEED)

    def adopt(self, **more: Any) -> list[CursorRow]:
        """Take over what the Variable says."""
        return recovery.adopt(self.source, self.variables, CONSUMER, FEED, **{"by": "me", **more})

    def rebuild(self, store: Any) -> list[CursorRow]:
        """Make cursors of manifests."""
        return recovery.rebuild(self.source, self.variables, CONSUMER, FEED, store, by="me")

    def plan(self, to: Position, *shards: int, output: ExportStore | None = None) -> list[PlannedMove]:
        """Plan a move of its cursors."""
        outputs = () if output is None else [output]
        return plan_moves(self.source, CONSUMER, FEED, to, shards or None, outputs)

    def move(self, moves: list[PlannedMove], **more: Any) -> list[CursorRow]:
        """Make it."""
        given = {"by": "anna", "timeout": 0.1, **more}
        return move_to(self.source, self.variables, CONSUMER, FEED, moves, **given)

    def check_published(self) -> None:
        """Check that the Variable says what the cursors say."""
        document = CursorDocument.of_rows(self.source.identity(), CONSUMER, FEED, self.rows)
        assert self.published == document


# ---- resolve


def set_ulid(value: dict[str, Any]) -> None:
    """Another place."""
    value["shards"]["1"]["ulid"] = str(end_of(5))


def set_version(value: dict[str, Any]) -> None:
    """A version that the database never had."""
    value["shards"]["1"]["resource_version"] += 7


def add_shard(value: dict[str, Any]) -> None:
    """A shard that the feed does not have."""
    value["shards"]["9"] = value["shards"]["1"]


def other_consumer(value: dict[str, Any]) -> None:
    """Another consumer's cursor."""
    value["consumer"] = "lake"


def other_feed(value: dict[str, Any]) -> None:
    """Another feed's cursor."""
    value["feed"] = "nyc.Weather"


def set_note(value: dict[str, Any]) -> None:
    """Something that is no cursor."""
    value["note"] = "look at this"


EDITS = {
    "ulid by hand": (set_ulid, False),
    "something else by hand": (set_note, False),
    "same version, other ULID": (set_ulid, True),
    "version ahead of the row": (set_version, True),
    "extra shard": (add_shard, True),
    "other consumer": (other_consumer, True),
    "other feed": (other_feed, True),
}


class Crashing(SqliteFeedSource):
    """A source whose process dies as it moves cursors, before the change."""

    def move_cursors(self, consumer: str, feed: str, moves: Any, **more: Any) -> list[CursorRow]:
        raise Crash

    def release_leases(self, consumer: str, feed: str, tokens: Mapping[Shard, int], *, holder: str) -> None:
        """A dead process releases nothing."""
