# SPDX-License-Identifier: Apache-2.0
"""Writers of both kinds of feed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import Enum
from functools import partial
from typing import Any

from tests.integration.contract.oracles import Transaction
from tests.integration.model.database import SPAN, Database
from tests.integration.model.locks import Lock, Work
from tests.integration.model.scheduler import Actor, Step

#: Shard and time hint of each event, and perhaps the row of the user's table that it tells of.
Events = Sequence[tuple[int, ...]]


class Release(Enum):
    """In which order a commit gives its locks back."""

    AT_ONCE = "at once"
    OLDEST_FIRST = "oldest first"
    NEWEST_FIRST = "newest first"


def ulid_text(ulid: int) -> str:
    """Return a ULID as the oracles of the contract suite want it."""
    return f"{ulid:010}"


def lock_shard(database: Database, work: Work, shard: int) -> Generator[Step, Any, None]:
    """Lock a shard, as ``lock_shard:T``: a new one with the feed's floor, shared."""
    yield database.lock(work, "shard", shard)
    remedies = database.remedies
    if remedies.floor and remedies.floor_held and not (yield database.read(work, "state", (shard,))):
        yield database.lock(work, "floor", lock=Lock.SHARED)


def update_state(
    database: Database, work: Work, shard: int, clock: Callable[[int], int] = lambda before: before
) -> Generator[Step, Any, int]:
    """
    Raise the clock of a locked shard, as ``update_state:T``; a new one begins at the feed's floor.

    :param clock: gives the new one for the old one.
    :return: the old one, the next ULID.
    """
    state = yield database.read_for_update(work, "state", (shard,))
    if state is None:
        floor = (yield database.read(work, "feeds", ())) if database.remedies.floor else 0
        state = floor * SPAN, -1
        yield database.put(work, "state", (shard,), state)
    before = int(state[0])
    yield database.raise_clock(work, shard, clock(before))
    return before


def _release_singly(database: Database, work: Work, releases: Release) -> Generator[Step, Any, None]:
    resources = database.held(work)
    for resource in resources if releases is Release.OLDEST_FIRST else reversed(resources):
        yield Step(f"is committed, releases: {resource}", partial(database.release, work, [resource]))


def write(
    database: Database,
    name: str,
    transactions: Sequence[Events],
    *,
    rolls_back: bool = False,
    releases: Release = Release.AT_ONCE,
) -> Actor:
    """
    Write transactions to the outbox, one after the other.

    :param releases: how the locks go at a commit, before the client hears of it.
    """
    facts = []
    for turn, events in enumerate(transactions):
        work = Work(f"{name}{turn}", is_writer=True)
        begun = yield database.begin(work)
        keys = [(work.name, place) for place in range(len(events))]
        for key, (shard, hint, *rows) in zip(keys, events, strict=True):
            for row in rows:
                yield database.lock_row(work, row, key)
            # The number is drawn before the row of the outbox is there.
            number = yield database.draw()
            yield database.put(work, "outbox", (shard, number), (key, hint))
        written = tuple((shard, key) for key, (shard, *_) in zip(keys, events, strict=True))
        if rolls_back:
            yield database.roll_back(work)
            facts.append(Transaction(work.name, begun, None, written, is_rolled_back=True))
            continue
        if releases is not Release.AT_ONCE:
            yield from _release_singly(database, work, releases)
        facts.append(Transaction(work.name, begun, (yield database.commit(work)), written))
    return facts


def write_serialized(
    database: Database, name: str, shard: int, hint: int, order: Sequence[int], *, rolls_back: bool = False
) -> Actor:
    """
    Write a transaction that takes its ULIDs under the shard's lock.

    :param order: in which the rows of its ULIDs are inserted, for example (1, 0).
    """
    work = Work(name, is_writer=True)
    begun = yield database.begin(work)
    yield from lock_shard(database, work, shard)
    before = yield from update_state(
        database, work, shard, lambda before: max(before, hint * SPAN) + len(order)
    )
    first = max(before, hint * SPAN)
    given = {(name, place): ulid_text(first + place) for place in range(len(order))}
    for place in order:
        yield database.put(work, "feed", (shard, first + place), (name, place))
    events = tuple((shard, key) for key in given)
    if rolls_back:
        yield database.roll_back(work)
        return [Transaction(name, begun, None, events, is_rolled_back=True)]
    return [Transaction(name, begun, (yield database.commit(work)), events, given=given)]
