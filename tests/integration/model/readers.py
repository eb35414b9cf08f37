# SPDX-License-Identifier: Apache-2.0
"""Readers that go on from a cursor, readers of a range, and purges."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from tests.integration.model.database import ENDLESS, SPAN, Database
from tests.integration.model.drains import drain
from tests.integration.model.locks import Work
from tests.integration.model.scheduler import Actor, Step

#: ULID and key of each event.
Content = tuple[tuple[int, Any], ...]


@dataclass(frozen=True)
class ReaderRun:
    """
    What a reader that began at the start read until its cursor.

    :param is_refused: whether it was told that rows behind its cursor were purged.
    """

    name: str
    shard: int
    content: Content
    is_refused: bool


@dataclass(frozen=True)
class RangeRun:
    """
    What a reader of a range took for the whole of it.

    :param upto: last ULID of the range, which begins at the start.
    """

    name: str
    shard: int
    upto: int
    content: Content


def _scan(
    database: Database, shard: int, after: int, below: int, page_size: int
) -> Generator[Step, Any, Content]:
    """Read rows of the feed one by one, waiting at each that is locked."""
    rows: list[tuple[int, Any]] = []
    while len(rows) < page_size:
        seen = yield database.seek("feed", (shard, after), (shard, below))
        if seen is None:
            break
        (_, after), key, must_wait = seen
        if must_wait:
            key = yield database.read(None, "feed", (shard, after))
        rows += [(after, key)] if key else []
    return tuple(rows)


def _read_page(
    database: Database, shard: int, cursor: int, page_size: int
) -> Generator[Step, Any, Content | None]:
    """Read a page after a cursor; None where rows after the cursor were purged."""
    clock, purged = (yield database.read(None, "state", (shard,))) or (0, -1)
    if cursor < purged:
        return None
    rows = yield from _scan(
        database, shard, cursor, clock if database.remedies.head_bound else ENDLESS, page_size
    )
    if database.remedies.check_after:
        _, purged = (yield database.read(None, "state", (shard,))) or (0, -1)
        if cursor < purged:
            return None
    return rows


def read(
    database: Database,
    name: str,
    shard: int,
    *,
    pages: int = 2,
    page_size: int = ENDLESS,
    drains: bool = False,
) -> Actor:
    """
    Read a shard from its start, page by page.

    :param drains: the outbox is drained, and the page read again, when the feed has nothing new.
    """
    content: Content = ()
    facts: list[Any] = []
    for turn in range(pages):
        cursor = content[-1][0] if content else -1
        page = yield from _read_page(database, shard, cursor, page_size)
        if drains and page == ():
            facts += yield from drain(database, f"{name}'s drain {turn}", shard, page_size=page_size)
            page = yield from _read_page(database, shard, cursor, page_size)
        if page is None:
            return [*facts, ReaderRun(name, shard, content, is_refused=True)]
        content += page
    return [*facts, ReaderRun(name, shard, content, is_refused=False)]


def read_range(database: Database, name: str, shard: int, until: int) -> Actor:
    """Read a shard from its start to a seal, as an export does; nothing is taken if it is refused."""
    clock, purged = (yield database.read(None, "state", (shard,))) or (0, -1)
    if clock < until * SPAN or purged >= 0:
        return []
    rows = yield from _scan(database, shard, -1, until * SPAN, ENDLESS)
    if database.remedies.check_after:
        _, purged = yield database.read(None, "state", (shard,))
        if purged >= 0:
            return []
    return [RangeRun(name, shard, until * SPAN - 1, rows)]


def purge(database: Database, name: str, shard: int, until: int) -> Actor:
    """Delete the oldest events of a shard, each in its own transaction, never beyond its high-water time."""
    stores_first = database.remedies.purge_stored_first
    bound = Work(f"{name}'s bound")
    state = yield database.read_for_update(bound, "state", (shard,))
    if state is None or state[0] < until * SPAN:
        yield database.commit(bound)
        return []
    upto = until * SPAN - 1
    if stores_first:
        yield database.store_purged(bound, shard, upto)
    yield database.commit(bound)
    for ulid in (yield Step("lists feed", lambda: _ulids(database, shard, upto))):
        work = Work(f"{name} of {ulid}")
        yield database.lock(work, "feed", shard, ulid)
        if (yield database.read(work, "feed", (shard, ulid))):
            yield database.delete(work, "feed", [(shard, ulid)])
        yield database.commit(work)
    if not stores_first:
        yield database.store_purged(bound, shard, upto)
        yield database.commit(bound)
    return []


def _ulids(database: Database, shard: int, upto: int) -> tuple[int, ...]:
    return tuple(sorted(ulid for _, ulid in database.visible("feed", shard) if ulid <= upto))
