# SPDX-License-Identifier: Apache-2.0
"""Drains and seals."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.integration.contract.oracles import SealRecord, digest
from tests.integration.model.database import ENDLESS, SHARDS, SPAN, Database
from tests.integration.model.locks import Lock, Work
from tests.integration.model.scheduler import Actor, Step
from tests.integration.model.writers import lock_shard, ulid_text, update_state


@dataclass(frozen=True)
class DrainRun:
    """
    How a drain came to its end.

    :param scans: of the outbox.
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
    """Come to the next row of a shard's outbox: read it, or pass it by if it is locked (``readpast``)."""

    def act() -> tuple[int, Any] | None:
        key = database.next_key("outbox", (shard, after), (shard, bound), work)
        if key is None:
            return None
        is_free = database.is_free(("outbox", *key), work)
        return key[1], database.tables["outbox"][key] if is_free else None

    return Step(f"visits outbox: {shard} after {after}", act)


def _scan(database: Database, work: Work, shard: int, bound: int) -> Generator[Step, Any, dict[int, Any]]:
    """Scan the outbox of a shard once; return the rows that are not locked, by order number."""
    rows: dict[int, Any] = {}
    after = -1
    while visited := (yield _visit(database, work, shard, after, bound)):
        after, row = visited
        rows |= {after: row} if row else {}
    return rows


def _seen_in_part(
    database: Database, shard: int, rows: Mapping[int, Any]
) -> Generator[Step, Any, frozenset[str]]:
    """Return the transactions with a row that was not scanned, seen in spite of its lock (``nolock``)."""
    found = set()
    after = -1

    def act() -> tuple[int, str] | None:
        there = ((one[1], value[0][0]) for one, value in database.tables["outbox"].items() if one[0] == shard)
        return min((row for row in there if row[0] > after), default=None)

    while seen := (yield Step(f"looks at outbox: {shard} after {after}", act)):
        after, transaction = seen
        found |= set() if after in rows else {transaction}
    return frozenset(found)


def plan(
    database: Database, work: Work, shard: int, bound: tuple[int, int], page_size: int
) -> Generator[Step, Any, tuple[list[list[int]], DrainRun]]:
    """
    Decide what a drain orders, as ``plan_drain:T``; the shard's lock is held.

    :param bound: only rows below are seen; and how many writers were open when it was drawn.
    :param page_size: events of a page, which never cuts a transaction.
    :return: the order numbers of each page, in order.
    """
    remedies = database.remedies
    below, open_writers = bound
    rows = yield from _scan(database, work, shard, below)
    scans = 1
    if remedies.transactions and remedies.whole:
        torn = yield from _seen_in_part(database, shard, rows)
        rows = {number: row for number, row in rows.items() if row[0][0] not in torn}
    while not remedies.transactions and remedies.repeat:
        found = yield from _scan(database, work, shard, below)
        scans += 1
        if found.keys() <= rows.keys():
            break
        rows |= found
    together: dict[Any, list[int]] = {}
    for number, row in sorted(rows.items()):
        together.setdefault(row[0][0] if remedies.transactions else number, []).append(number)
    pages: dict[int, list[int]] = {}
    before = 0
    for numbers in sorted(together.values(), key=max if remedies.highest else min):
        pages.setdefault(before // page_size, []).extend(numbers)
        before += len(numbers)
    return list(pages.values()), DrainRun(work.name, scans, open_writers)


def _take(database: Database, work: Work, shard: int, page: list[int]) -> Step:
    """Lock the rows of a page and read them, those that are still there (``readpast``)."""

    def act() -> tuple[tuple[int, Any], ...]:
        taken = []
        for number in page:
            row = database.tables["outbox"].get((shard, number))
            locks = database.outbox_locks((shard, number)) if row else []
            if row and database.are_free(locks, work, Lock.UPDATE):
                database.hold(work, locks, Lock.UPDATE)
                taken.append((number, row))
        return tuple(taken)

    return Step(f"takes outbox: {page} of {shard}", act)


def order_page(
    database: Database, work: Work, shard: int, page: list[int], backwards: bool = False
) -> Generator[Step, Any, None]:
    """
    Move a page of a shard's outbox to its feed, as ``order_page:T``; the shard's lock is held.

    :param backwards: insert the rows of the page in descending order.
    """
    state_first = database.remedies.state_before_delete
    clock = (yield from update_state(database, work, shard)) if state_first else 0
    rows = yield _take(database, work, shard, page)
    if not rows:
        return
    forget = database.delete(work, "outbox", [(shard, number) for number, _ in rows])
    if not state_first:
        yield forget
        clock = yield from update_state(database, work, shard)
    events = []
    for _, (key, hint) in rows:
        ulid = max(clock, hint * SPAN)
        events.append((ulid, key))
        clock = ulid + 1
    after = clock
    yield from update_state(database, work, shard, lambda _: after)
    for ulid, key in reversed(events) if backwards else events:
        yield database.put(work, "feed", (shard, ulid), key)
    if state_first:
        yield forget


def drain(
    database: Database,
    name: str,
    shard: int,
    *,
    page_size: int = ENDLESS,
    backwards: bool = False,
    rolls_back: bool = False,
) -> Actor:
    """
    Drain a shard, each page in a transaction of its own.

    :param rolls_back: it dies in its first page.
    """
    work = Work(f"{name}'s plan")
    bound = yield database.draw_bound()
    if database.remedies.plan_locked:
        yield from lock_shard(database, work, shard)
    pages, run = yield from plan(database, work, shard, bound, page_size)
    yield database.commit(work)
    for number, page in enumerate(pages):
        work = Work(f"{name}'s page {number}")
        yield from lock_shard(database, work, shard)
        yield from order_page(database, work, shard, page, backwards)
        if rolls_back:
            yield database.roll_back(work)
            break
        yield database.commit(work)
    return [run]


def _not_in_feed(database: Database, events: Iterable[Any] | None = None) -> Step:
    """Look which events, of those given or of all that are committed, are not in the feed for all to see."""

    def act() -> frozenset[Any]:
        looked_for = database.committed if events is None else events
        return frozenset(looked_for) - {*database.visible("feed").values(), *database.purged.values()}

    return Step("notes: what is not in the feed", act)


def _waiting(database: Database) -> Step:
    """List the shards of the outbox, passing by what is exclusively locked (``readpast``)."""

    def act() -> tuple[int, ...]:
        return tuple(sorted({shard for shard, _ in database.visible("outbox")}))

    return Step("lists outbox", act)


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


def seal_shard(
    database: Database, work: Work, shard: int, until: int
) -> Generator[Step, Any, list[DrainRun]]:
    """Drain what is left of a shard and raise its clock, in one transaction."""
    if not database.remedies.seal_waits:

        def raise_at_once() -> None:
            clock, purged = database.tables["state"].get((shard,), (0, -1))
            database.tables["state"][shard,] = max(clock, until * SPAN), purged

        yield Step("raises clock: without waiting", raise_at_once)
        return []
    yield from lock_shard(database, work, shard)
    bound = yield database.draw_bound()
    pages, run = yield from plan(database, work, shard, bound, ENDLESS)
    for page in pages:
        yield from order_page(database, work, shard, page)
    yield from update_state(database, work, shard, lambda clock: max(clock, until * SPAN))
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

    return Step(f"notes: sealed until {until}", act)


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
        yield database.lock(work, "floor")
        floor = yield database.read(work, "feeds", ())
        yield database.put(work, "feeds", (), max(floor, until))
        yield database.commit(work)
    if remedies.floor_first:
        shards = yield from _list_shards(database)
    for shard in shards:
        facts += yield from seal_shard(database, Work(f"{name} at {shard}"), shard, until)
    records = yield _promise(database, until)
    left = yield _not_in_feed(database, committed)
    return [*facts, SealRun(name, left), *(SealRecord(*record) for record in records)]
