# SPDX-License-Identifier: Apache-2.0
"""Load the flights: one writer process for each shard, in parallel, while a reader reads."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError
from typing import Any

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import TransientError
from airflow_changefeed.sources import open_source
from tests.system.demo.engine import Engine
from tests.system.demo.flights import FEED, SHARDS, data_set, events_of
from tests.system.processes import interrupts_blocked

#: Of a transaction. SQL Server takes a whole table from 5,000 locks of one statement on.
BATCH_ROWS = 2_000
_TIMEOUT = 600.0


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


def load(engine: Engine) -> Loaded:
    """
    Write all flights into an empty feed.

    :raises RuntimeError: a writer or the reader failed, or the reader missed or repeated an event.
    """
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(len(SHARDS) + 2)
    seen: multiprocessing.Queue[Any] = context.Queue()
    writers = [
        context.Process(target=_write, args=(engine, origin, shard, ready), name=f"writer {origin}")
        for origin, shard in SHARDS.items()
    ]
    reader = context.Process(target=_read, args=(engine, ready, seen), name="reader")
    try:
        # Ctrl-C reaches the whole group: this process alone is to answer it, by ending the others.
        with interrupts_blocked():
            for process in (*writers, reader):
                process.start()
        with suppress(BrokenBarrierError):
            ready.wait(_TIMEOUT)
        begun = time.monotonic()
        _join(writers)
        seconds = time.monotonic() - begun
        _join([reader])
        return Loaded(len(data_set()), seconds, seen.get(timeout=_TIMEOUT))
    finally:
        for process in (*writers, reader):
            if process.is_alive():
                process.kill()
                process.join()


def _join(processes: Sequence[BaseProcess]) -> None:
    """Wait for processes to end well."""
    deadline = time.monotonic() + _TIMEOUT
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    failed = [process.name for process in processes if process.exitcode != 0]
    if failed:
        raise RuntimeError(f"failed while loading: {', '.join(failed)}")


def _write(engine: Engine, origin: str, shard: int, ready: Barrier) -> None:
    with _needed(ready), engine.writer(shard) as write:
        events = iter(events_of(origin))
        ready.wait(_TIMEOUT)
        while batch := list(islice(events, BATCH_ROWS)):
            write(batch)


@contextmanager
def _needed(ready: Barrier) -> Iterator[None]:
    """Tell those who wait for this process when it fails."""
    try:
        yield
    except BaseException:
        ready.abort()
        raise


def _read(engine: Engine, ready: Barrier, seen: Any) -> None:
    """Follow all shards until every flight was seen once, each shard in the order it was written."""
    with _needed(ready):
        seen.put(_follow(engine, ready))


def _follow(engine: Engine, ready: Barrier) -> int:
    source = open_source({**engine.description, "lock_timeout": 5})
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
    return sum(places.values())
