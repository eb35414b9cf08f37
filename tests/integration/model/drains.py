# SPDX-License-Identifier: Apache-2.0
"""Drains and seals."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any

from tests.integration.contract.oracles import SealRecord, digest
from tests.integration.model.database import ENDLESS, SHARDS, SPAN, Database
from tests.integration.model.locks import Lock, Work
from tests.integration.model.scheduler import Actor, Step
from tests.integration.model.writers import own_clock, ulid_text


@dataclass(frozen=True)
class DrainRun:
    """
    How a drain came to its end.

    :param scans: of the outbox for one page.
    :param open_writers: transactions of users that were open when it began.
    """

    name: str
    scans: int
    open_writers: int


@dataclass(frozen=True)
class SealRun:
    """
    What a seal left behind.

    :param left: events that were committed before it began and are not in the feed at its end.
    """

    name: str
    left: frozenset[Any]


def _visit(database: Database, work: Work, shard: int, after: int, bound: int) -> Step:
    """Come to the next row of a shard's outbox: lock it, or pass it by if another has it (``readpast``)."""

    def act() -> tuple[int, Any] | None:
        key = database.next_key("outbox", (shard, after), (shard, bound), work)
        if key is None:
            return None
        page = [key]
        if not database.remedies.row_locks:
            rows = sorted(database.tables["outbox"].keys() | page)
            start = rows.index(key) // database.page_rows * database.page_rows
            page = rows[start : start + database.page_rows]
        resources = [("outbox", *row) for row in page]
        if not database.are_free(resources, work, Lock.UPDATE):
            return key[1], None
        database.hold(work, resources, Lock.UPDATE)
        return key[1], database.tables["outbox"][key]

    return Step(f"visits the outbox of {shard} after {after}", act)


def _scan(
    database: Database, work: Work, shard: int, bound: int, page_size: int
) -> Generator[Step, Any, dict[int, Any]]:
    """Scan the outbox of a shard once; return the rows it could lock, by order number."""
    rows: dict[int, Any] = {}
    after = -1
    while len(rows) < page_size:
        visited = yield _visit(database, work, shard, after, bound)
        if visited is None:
            break
        after, row = visited
        rows |= {after: row} if row else {}
    return rows


def order_page(
    database: Database, work: Work, shard: int, page_size: int = ENDLESS, backwards: bool = False
) -> Generator[Step, Any, DrainRun]:
    """
    Move a page of a shard's outbox to its feed; the shard's lock is held.

    :param backwards: insert the rows of the page in descending order.
    """
    bound, open_writers = yield database.draw_bound()
    page = yield from _scan(database, work, shard, bound, page_size)
    scans = 1
    while database.remedies.repeat:
        last, page = page, (yield from _scan(database, work, shard, bound, page_size))
        scans += 1
        if (len(last), max(last, default=0)) == (len(page), max(page, default=0)):
            break
    run = DrainRun(work.name, scans, open_writers)
    if not page:
        return run
    forget = database.delete(work, "outbox", [(shard, number) for number in page])
    if not database.remedies.state_before_delete:
        yield forget
    clock = yield from own_clock(database, work, shard)
    events = []
    for key, hint in page.values():
        ulid = max(clock, hint * SPAN)
        events.append((ulid, key))
        clock = ulid + 1
    for ulid, key in reversed(events) if backwards else events:
        yield database.put(work, "feed", (shard, ulid), key)
    if database.remedies.state_before_delete:
        yield forget
    yield database.raise_clock(work, shard, clock)
    return run


def drain(
    database: Database,
    name: str,
    shard: int,
    *,
    page_size: int = ENDLESS,
    backwards: bool = False,
    rolls_back: bool = False,
) -> Actor:
    """Drain one page of a shard."""
    work = Work(name)
    yield database.lock(work, "application", shard)
    run = yield from order_page(database, work, shard, page_size, backwards)
    yield database.roll_back(work) if rolls_back else database.commit(work)
    return [run]


def _not_in_feed(database: Database, events: Iterable[Any] | None = None) -> Step:
    """Look which events, of those given or of all that are committed, are not in the feed for all to see."""

    def act() -> frozenset[Any]:
        looked_for = database.committed if events is None else events
        return frozenset(looked_for) - {*database.visible("feed").values(), *database.purged.values()}

    return Step("looks what is not in the feed", act)


def _waiting(database: Database) -> Step:
    """List the shards of the outbox, passing by what is exclusively locked (``readpast``)."""

    def act() -> tuple[int, ...]:
        return tuple(sorted({shard for shard, _ in database.visible("outbox")}))

    return Step("lists the shards of the outbox", act)


def _list_shards(database: Database) -> Generator[Step, Any, list[int]]:
    """List the shards that have state, row by row; wait for state that is just being made."""
    shards: list[int] = []
    while True:
        seen = yield database.seek("state", (shards[-1] if shards else -1,), (ENDLESS,))
        if seen is None:
            return shards
        (shard,), state, must_wait = seen
        if must_wait:
            state = yield database.read(None, "state", (shard,))
        shards += [shard] if state else []


def _seal_shard(
    database: Database, work: Work, shard: int, until: int
) -> Generator[Step, Any, list[DrainRun]]:
    """Drain what is left of a shard and raise its clock, in one transaction."""
    if not database.remedies.seal_waits:

        def raise_at_once() -> None:
            clock, purged = database.tables["state"].get((shard,), (0, -1))
            database.tables["state"][shard,] = max(clock, until * SPAN), purged

        yield Step("raises the clock without waiting", raise_at_once)
        return []
    yield database.lock(work, "application", shard)
    run = yield from order_page(database, work, shard)
    yield from own_clock(database, work, shard)
    yield database.raise_clock(work, shard, until * SPAN)
    yield database.commit(work)
    return [run]


def _promise(database: Database, until: int) -> Step:
    """Note what is below the seal in each shard, used or not."""

    def act() -> tuple[tuple[int, str, int, str], ...]:
        records = []
        for shard in SHARDS:
            keys = [*database.visible("feed", shard), *(key for key in database.purged if key[0] == shard)]
            ulids = [ulid_text(ulid) for _, ulid in sorted(keys) if ulid < until * SPAN]
            records.append((shard, ulid_text(until * SPAN), len(ulids), digest(ulids)))
        return tuple(records)

    return Step(f"has sealed until {until}", act)


def seal(database: Database, name: str, until: int) -> Actor:
    """Seal all shards, those that do not exist yet too."""
    remedies = database.remedies
    facts: list[Any] = []
    committed = yield _not_in_feed(database)
    for shard in (yield _waiting(database)):
        facts += yield from drain(database, f"{name} draining {shard}", shard)
    shards = [] if remedies.floor_first else (yield from _list_shards(database))
    if remedies.floor:
        work = Work(f"{name}'s floor")
        yield database.lock(work, "feeds")
        floor = yield database.read(work, "feeds", ())
        yield database.put(work, "feeds", (), max(floor, until))
        yield database.commit(work)
    if remedies.floor_first:
        shards = yield from _list_shards(database)
    for shard in shards:
        facts += yield from _seal_shard(database, Work(f"{name} at {shard}"), shard, until)
    records = yield _promise(database, until)
    left = yield _not_in_feed(database, committed)
    return [*facts, SealRun(name, left), *(SealRecord(*record) for record in records)]
