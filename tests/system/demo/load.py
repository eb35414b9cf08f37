# SPDX-License-Identifier: Apache-2.0
"""Load the flights: one writer process for each shard, in parallel, while a reader reads."""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import TransientError
from airflow_changefeed.sources import open_source
from tests.system.demo.flights import COLUMNS, FEED, SHARDS, data_set, events_of
from tests.system.processes import interrupts_blocked

BATCH_ROWS = 2_000
_TIMEOUT = 120.0


@dataclass(frozen=True)
class Loaded:
    """
    What the load did.

    :param rows: events, each with its outbox row.
    :param seconds: from the moment all writers were ready until the last one was done.
    :param read: events that the reader saw, each once and in order, while the writers wrote.
    """

    rows: int
    seconds: float
    read: int


def create_feed(path: Path) -> None:
    """Make the event table and its feed in a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = ", ".join(f'"{name}" {declared}' for name, declared in COLUMNS.items())
    key = next(iter(COLUMNS))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'create table "{FEED}" ({columns}, primary key ("{key}"))')
        connection.commit()
    open_source({"type": "sqlite", "path": str(path)}).set_up_feed(FEED)


def load(path: Path) -> Loaded:
    """
    Write all flights.

    :raises RuntimeError: a writer or the reader failed, or the reader missed or repeated an event.
    """
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(len(SHARDS) + 2)
    seen: multiprocessing.Queue[Any] = context.Queue()
    writers = [
        context.Process(target=_write, args=(path, origin, shard, ready), name=f"writer {origin}")
        for origin, shard in SHARDS.items()
    ]
    reader = context.Process(target=_read, args=(path, ready, seen), name="reader")
    try:
        # Ctrl-C reaches the whole group: this process alone is to answer it, by ending the others.
        with interrupts_blocked():
            for process in (*writers, reader):
                process.start()
        ready.wait(_TIMEOUT)
        begun = time.monotonic()
        for process in writers:
            process.join(_TIMEOUT)
        seconds = time.monotonic() - begun
        read = seen.get(timeout=_TIMEOUT)
        reader.join(_TIMEOUT)
    finally:
        for process in (*writers, reader):
            if process.is_alive():
                process.kill()
                process.join()
    failed = [process.name for process in (*writers, reader) if process.exitcode != 0]
    if failed:
        raise RuntimeError(f"failed while loading: {', '.join(failed)}")
    return Loaded(len(data_set()), seconds, read)


def _write(path: Path, origin: str, shard: int, ready: Barrier) -> None:
    events = iter(events_of(origin))
    marks = ", ".join("?" * len(COLUMNS))
    key = next(iter(COLUMNS))
    with closing(sqlite3.connect(path, timeout=_TIMEOUT, isolation_level=None)) as connection:
        # Durable enough for a load that can be repeated; the feed's own commits keep SQLite's default.
        connection.execute("pragma synchronous = normal")
        ready.wait(_TIMEOUT)
        while batch := list(islice(events, BATCH_ROWS)):
            connection.execute("begin immediate")
            connection.executemany(f'insert into "{FEED}" values ({marks})', [row for _, row in batch])
            connection.executemany(
                f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, "{key}") values (?, ?, ?)',
                [(shard, hint, row[0]) for hint, row in batch],
            )
            connection.execute("commit")


def _read(path: Path, ready: Barrier, seen: Any) -> None:
    """Follow all shards until every flight was seen once, each shard in the order it was written."""
    source = open_source({"type": "sqlite", "path": str(path), "lock_timeout": 5})
    expected = {SHARDS[origin]: [row[0] for _, row in events_of(origin)] for origin in SHARDS}
    cursors = dict.fromkeys(expected, Ulid.MIN)
    places = dict.fromkeys(expected, 0)
    ready.wait(_TIMEOUT)
    deadline = time.monotonic() + _TIMEOUT
    while any(places[shard] < len(keys) for shard, keys in expected.items()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the reader saw {places} events and no more came")
        for shard, keys in expected.items():
            try:
                page = source.read_feed(FEED, shard, cursors[shard], 10_000)
            except TransientError:
                continue
            found = [event.key[0] for event in page]
            if found != keys[places[shard] : places[shard] + len(found)]:
                raise RuntimeError(f"shard {shard}: events after {cursors[shard]} are not those written")
            places[shard] += len(found)
            cursors[shard] = page.last or cursors[shard]
    seen.put(sum(places.values()))
