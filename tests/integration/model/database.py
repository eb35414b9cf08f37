# SPDX-License-Identifier: Apache-2.0
"""
Tables, locks and transactions as SQL Server has them under locking read committed, one row at a time.

Changes are made in place and are hidden by the exclusive lock of their row alone. A lock is held to the end
of its transaction; deleted rows stay as ghosts until then. A ULID is a whole number: its time times SPAN,
and a count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from functools import partial
from typing import Any

from tests.integration.model.locks import Lock, Locks, Work
from tests.integration.model.remedies import Remedies
from tests.integration.model.scheduler import Step

#: ULIDs of one moment.
SPAN = 100
SHARDS = (1, 2)
ENDLESS = 10**9

Key = tuple[Any, ...]


class Database(Locks):
    """
    One feed.

    :param page_rows: outbox rows in a page, where a drain locks pages.
    """

    def __init__(self, remedies: Remedies, page_rows: int = 2) -> None:
        super().__init__()
        self.remedies = remedies
        self.page_rows = page_rows
        #: outbox: (shard, number) to (event's key, hint); feed: (shard, ulid) to the event's key;
        #: state: (shard,) to (next ULID, purged up to); feeds: () to the floor, a time.
        self.tables: dict[str, dict[Key, Any]] = {"outbox": {}, "feed": {}, "state": {}, "feeds": {(): 0}}
        #: rows of the feed that were purged
        self.purged: dict[Key, Any] = {}
        #: events that were committed in the outbox
        self.committed: set[Any] = set()
        #: row of a user's table to the events of those who locked it, in that order
        self.locked_rows: dict[int, tuple[Any, ...]] = {}
        self._numbers = 0
        self._ended = 0
        self._open: set[str] = set()

    def fingerprint(self) -> tuple[Any, ...]:
        """Return all that it holds, hashable."""
        rows = tuple(frozenset(table.items()) for table in self.tables.values())
        history = frozenset(self.purged), frozenset(self.committed), frozenset(self._open)
        history += (frozenset(self.locked_rows.items()),)
        return rows, self.held_by_all(), history, self._numbers, self._ended

    def lock(self, work: Work, *resource: Hashable, lock: Lock = Lock.EXCLUSIVE) -> Step:
        """Wait for a lock and take it."""
        return Step(
            f"locks {resource[0]}: {resource[1:]}",
            partial(self.hold, work, [resource], lock),
            partial(self.is_free, resource, work, lock),
        )

    def lock_row(self, work: Work, row: int, event: Any) -> Step:
        """Wait for a row of a user's table and lock it, to change it; the event tells of the change."""

        def act() -> None:
            self.hold(work, [("row", row)])
            self.locked_rows[row] = (*self.locked_rows.get(row, ()), event)

        return Step(f"locks row: {row}", act, partial(self.is_free, ("row", row), work, Lock.EXCLUSIVE))

    def outbox_locks(self, key: Key) -> list[Key]:
        """Return what a drain locks for a row of the outbox: that row, or its whole page."""
        if self.remedies.row_locks:
            return [("outbox", *key)]
        rows = sorted(self.tables["outbox"].keys() | {key})
        start = rows.index(key) // self.page_rows * self.page_rows
        return [("outbox", *row) for row in rows[start : start + self.page_rows]]

    # Transactions
    def begin(self, work: Work) -> Step:
        """Begin; the time in transactions that ended before it is observed."""

        def act() -> int:
            self._open.update([work.name] if work.is_writer else [])
            return 2 * self._ended

        return Step("begins", act)

    def commit(self, work: Work) -> Step:
        """Make all changes visible at once; its time is observed."""

        def act() -> int:
            if work.is_writer:
                self.committed |= {key for key, _ in self.tables["outbox"].values() if key[0] == work.name}
            self.release(work, self.held(work))
            return self._end(work)

        return Step("commits", act)

    def _end(self, work: Work) -> int:
        self._ended += work.is_writer
        self._open.discard(work.name)
        work.undo.clear()
        return 2 * self._ended - 1

    def roll_back(self, work: Work) -> Step:
        """Take all changes back at once."""

        def act() -> None:
            for undo in reversed(work.undo):
                undo()
            self.release(work, self.held(work))
            self._end(work)

        return Step("rolls back", act)

    def draw(self) -> Step:
        """Draw an order number; it does not come back if the transaction rolls back."""

        def act() -> int:
            self._numbers += 1
            return self._numbers

        return Step("draws number", act)

    def draw_bound(self) -> Step:
        """Draw the bound of a drain; bound, and how many writers are open, are observed."""

        def act() -> tuple[int, int]:
            if not self.remedies.bound:
                return ENDLESS, len(self._open)
            self._numbers += 1
            return self._numbers, len(self._open)

        return Step("draws bound", act)

    # Rows
    def put(self, work: Work, table: str, key: Key, value: Any) -> Step:
        """Insert a row, and lock it."""
        return self._change(f"inserts {table}: {key} {value}", work, table, key, lambda _: value)

    def raise_clock(self, work: Work, shard: int, clock: int) -> Step:
        """Set a shard's next ULID where it is lower."""
        return self._change(
            f"raises clock: {shard} to {clock}",
            work,
            "state",
            (shard,),
            lambda state: (max(state[0], clock), state[1]),
        )

    def store_purged(self, work: Work, shard: int, upto: int) -> Step:
        """Store up to where a shard is purged."""
        return self._change(
            f"stores purged_upto: {shard} {upto}",
            work,
            "state",
            (shard,),
            lambda state: (state[0], max(state[1], upto)),
        )

    def _change(self, label: str, work: Work, table: str, key: Key, change: Callable[[Any], Any]) -> Step:
        resource = (table, *key)
        rows = self.tables[table]

        def act() -> None:
            self.hold(work, [resource])
            before = rows.get(key)
            work.undo.append(
                partial(rows.pop, key) if before is None else partial(rows.__setitem__, key, before)
            )
            rows[key] = change(before)

        return Step(label, act, partial(self.is_free, resource, work, Lock.EXCLUSIVE))

    def delete(self, work: Work, table: str, keys: Collection[Key]) -> Step:
        """Delete rows, and lock them."""
        rows = self.tables[table]

        def resources() -> list[Key]:
            if table == "outbox":
                return [resource for key in keys for resource in self.outbox_locks(key)]
            return [(table, *key) for key in keys]

        def act() -> None:
            self.hold(work, resources())
            for key in keys:
                value = rows.pop(key)
                work.undo.append(partial(rows.__setitem__, key, value))
                if table == "feed":
                    self.purged[key] = value
                    work.undo.append(partial(self.purged.pop, key))

        return Step(f"deletes {table}: {list(keys)}", act, lambda: self.are_free(resources(), work))

    def read(self, work: Work | None, table: str, key: Key) -> Step:
        """Read one row as soon as it is committed; None where there is none."""
        return Step(
            f"reads {table}: {key}",
            partial(self.tables[table].get, key),
            partial(self.is_free, (table, *key), work),
        )

    def read_for_update(self, work: Work, table: str, key: Key) -> Step:
        """Read one row and keep others from changing it (``updlock``); None if it does not exist."""
        resource, rows = (table, *key), self.tables[table]

        def act() -> Any:
            if key in rows:
                self.hold(work, [resource], Lock.UPDATE)
            return rows.get(key)

        return Step(
            f"reads {table} for update: {key}", act, partial(self.is_free, resource, work, Lock.UPDATE)
        )

    def next_key(self, table: str, after: Key, below: Key, work: Work | None = None) -> Key | None:
        """Return the key that follows in a scan, of rows and of the ghosts of others."""
        ghosts = (resource for resource in self.locks if resource[0] == table)
        keys = {resource[1:] for resource in ghosts if not self.is_free(resource, work)}
        return min((key for key in self.tables[table].keys() | keys if after < key < below), default=None)

    def seek(self, table: str, after: Key, below: Key) -> Step:
        """
        Let a scan come to its next row, where it stays if it must wait.

        Key and value are observed, and whether the row must be waited for; None at the end.
        """

        def act() -> tuple[Key, Any, bool] | None:
            key = self.next_key(table, after, below)
            if key is None:
                return None
            is_free = self.is_free((table, *key))
            return key, self.tables[table].get(key) if is_free else None, not is_free

        return Step(f"seeks {table}: after {after}", act)

    def visible(self, table: str, shard: int | None = None) -> dict[Key, Any]:
        """Return the rows of a table that a reader need not wait for."""
        return {
            key: value
            for key, value in self.tables[table].items()
            if shard in {None, key[0]} and self.is_free((table, *key))
        }
