# SPDX-License-Identifier: Apache-2.0
"""Locks of rows and of applications, and the transactions that hold them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import IntEnum
from typing import Any

#: A table and the key of a row, "shard" and its number, or "floor".
Resource = tuple[Any, ...]


class Lock(IntEnum):
    """Two transactions may hold locks of a resource whose numbers add up to 3 or less."""

    SHARED = 1
    UPDATE = 2
    EXCLUSIVE = 3


class Work:
    """
    A transaction.

    :param is_writer: whether it is a user's, which the order promise speaks of.
    """

    def __init__(self, name: str, *, is_writer: bool = False) -> None:
        self.name = name
        self.is_writer = is_writer
        self.undo: list[Callable[[], None]] = []


class Locks:
    """Who holds what. A reader under read committed keeps no lock: it waits for what it may not share."""

    def __init__(self) -> None:
        #: resource to the lock of each holder
        self.locks: dict[Resource, dict[str, Lock]] = {}

    def held_by_all(self) -> frozenset[Any]:
        """Return all locks, hashable."""
        return frozenset((resource, *one) for resource in self.locks for one in self.locks[resource].items())

    def is_free(self, resource: Resource, work: Work | None = None, lock: Lock = Lock.SHARED) -> bool:
        """Return whether no other transaction's lock is in the way."""
        name = work.name if work else None
        return all(
            holder == name or held + lock <= 3 for holder, held in self.locks.get(resource, {}).items()
        )

    def are_free(self, resources: Iterable[Resource], work: Work, lock: Lock = Lock.EXCLUSIVE) -> bool:
        """Return whether all of them are free."""
        return all(self.is_free(resource, work, lock) for resource in resources)

    def hold(self, work: Work, resources: Iterable[Resource], lock: Lock = Lock.EXCLUSIVE) -> None:
        """Take locks that are free."""
        for resource in resources:
            holders = self.locks.setdefault(resource, {})
            holders[work.name] = max(lock, holders.get(work.name, lock))

    def release(self, work: Work, resources: Collection[Resource]) -> None:
        """Give locks back."""
        for resource in resources:
            self.locks[resource].pop(work.name)
            if not self.locks[resource]:
                del self.locks[resource]

    def held(self, work: Work) -> list[Resource]:
        """Return what a transaction has locked, in the order of locking."""
        return [resource for resource, holders in self.locks.items() if work.name in holders]
