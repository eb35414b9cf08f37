# SPDX-License-Identifier: Apache-2.0
"""
Judging a race: pure functions over what its processes logged, a complaint for each broken promise.

docs/explanation/promises.md says what they hold. A ULID is its 26 characters here, which sort alike.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

Key = tuple[Any, ...]
#: What a feed holds of a shard: ULID and key of each event, as read from its start to its head.
Content = Sequence[tuple[str, Key]]


@dataclass(frozen=True)
class Transaction:
    """
    A writer's transaction that came as far as its commit.

    :param begun: monotonic nanoseconds, the same clock in all processes; taken before it began.
    :param acknowledged: taken after the commit returned; None where the writer was killed in it.
    :param is_rolled_back: whether it was rolled back instead.
    :param events: shard and key, in the order of writing.
    :param given: ULIDs of serialized writers, known before the commit.
    """

    name: str
    begun: int
    acknowledged: int | None
    events: tuple[tuple[int, Key], ...]
    is_rolled_back: bool = False
    given: Mapping[Key, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """All that a reader read of a shard, going on from its own cursor through any number of kills."""

    reader: str
    shard: int
    content: tuple[tuple[str, Key], ...]


@dataclass(frozen=True)
class SealRecord:
    """
    What lay below a seal right after sealing.

    :param below: lowest ULID that is not below the seal.
    :param count: events of the shard below it.
    :param digest: of their ULIDs.
    """

    shard: int
    below: str
    count: int
    digest: str


@dataclass(frozen=True)
class Change:
    """
    An event of a capture, as streams and files have it.

    :param table: that was changed.
    :param variables: that the session had; None without any.
    """

    ulid: str
    shard: Any
    table: str
    type: str
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None
    tid: int | None = None
    is_snapshot: bool = False
    sequence: int | None = None
    epoch: int = 0
    captured_at: Any = None
    variables: Mapping[str, str] | None = None
    trace: str | None = None


@dataclass(frozen=True)
class History:
    """
    What happened in a race.

    :param transactions: all that came as far as a commit or rollback.
    :param rows: keys in the event table at the end: they decide about writers killed in their commit.
    :param feed: shard to all that the feed holds at the end.
    :param failures: processes that ended by an error of their own.
    """

    transactions: tuple[Transaction, ...]
    rows: frozenset[Key]
    feed: Mapping[int, Content]
    readings: tuple[Reading, ...] = ()
    seals: tuple[SealRecord, ...] = ()
    failures: tuple[str, ...] = ()

    def committed(self) -> list[Transaction]:
        """Return what was committed, the killed-in-commit decided by their rows."""
        return [
            transaction
            for transaction in self.transactions
            if transaction.acknowledged is not None
            or (not transaction.is_rolled_back and any(key in self.rows for _, key in transaction.events))
        ]


def digest(ulids: Iterable[str]) -> str:
    """Return a digest of ULIDs in order."""
    return hashlib.sha256("".join(ulids).encode()).hexdigest()


def fold(
    changes: Iterable[Change], keys: Mapping[str, Sequence[str]]
) -> dict[tuple[str, Key], Mapping[str, Any]]:
    """
    Return the rows that tables have after changes, by table and key: the plainest fold there can be.

    :param changes: of any number of shards, each in ascending ULID.
    :param keys: of each table.
    """
    rows: dict[tuple[str, Key], tuple[Any, Mapping[str, Any]]] = {}
    for change in changes:
        names = keys[change.table]
        if change.type == "reset":
            rows = {
                place: found
                for place, found in rows.items()
                if (place[0], found[0]) != (change.table, change.shard)
            }
        if change.old is not None:
            rows.pop((change.table, tuple(change.old[name] for name in names)), None)
        if change.new is not None:
            place = (change.table, tuple(change.new[name] for name in names))
            rows[place] = (change.shard, change.new)
    return {place: row for place, (_, row) in rows.items()}


def nobody_failed(history: History) -> list[str]:
    """No process ends by an error of its own."""
    return list(history.failures)


def transactions_are_whole(history: History) -> list[str]:
    """The event table has all rows of a committed transaction, none of others, and no one else's."""
    complaints = []
    committed = {transaction.name for transaction in history.committed()}
    known: set[Key] = set()
    for transaction in history.transactions:
        keys = {key for _, key in transaction.events}
        known |= keys
        expected = keys if transaction.name in committed else set()
        if keys & history.rows != expected:
            complaints.append(f"{transaction.name}: has {len(keys & history.rows)} rows, not {len(expected)}")
    return complaints + [f"row {key} was written by nobody" for key in sorted(history.rows - known)]


def feed_is_complete(history: History) -> list[str]:
    """Committed events are the feed's distinct events in each shard: none missing, added or twice."""
    complaints = []
    expected: dict[int, set[Key]] = {shard: set() for shard in history.feed}
    for transaction in history.committed():
        for shard, key in transaction.events:
            expected.setdefault(shard, set()).add(key)
    for shard, keys in expected.items():
        found = Counter(key for _, key in history.feed.get(shard, ()))
        complaints += [f"shard {shard}: committed {key} is missing" for key in sorted(keys - found.keys())]
        complaints += [f"shard {shard}: {key} was never committed" for key in sorted(found.keys() - keys)]
        complaints += [f"shard {shard}: {key} is there {n} times" for key, n in found.items() if n > 1]
    return complaints


def ulids_ascend(history: History) -> list[str]:
    """A shard is read in strictly ascending ULID."""
    return [
        f"shard {shard}: {two} after {one}"
        for shard, content in history.feed.items()
        for (one, _), (two, _) in pairwise(content)
        if two <= one
    ]


def commits_are_in_order(history: History) -> list[str]:
    """If A is known committed before B starts, A's events come before B's in a shard."""
    by_key = {key: transaction for transaction in history.committed() for _, key in transaction.events}
    complaints = []
    for shard, content in history.feed.items():
        latest: Transaction | None = None
        for _, key in content:
            transaction = by_key.get(key)
            if transaction is None:
                continue
            at = transaction.acknowledged
            if latest is not None and at is not None and at < latest.begun:
                complaints.append(
                    f"shard {shard}: {transaction.name} ended before {latest.name} began, but is behind"
                )
            if latest is None or transaction.begun > latest.begun:
                latest = transaction
    return complaints


def transactions_keep_their_order(history: History) -> list[str]:
    """One transaction's events keep their order within a shard."""
    places = {
        (shard, key): place
        for shard, content in history.feed.items()
        for place, (_, key) in enumerate(content)
    }
    complaints = []
    for transaction in history.committed():
        last: dict[int, int] = {}
        for shard, key in transaction.events:
            place = places.get((shard, key), -1)
            if place < last.get(shard, -1):
                complaints.append(f"shard {shard}: {transaction.name} lost its order at {key}")
            last[shard] = place
    return complaints


def transactions_stay_together(history: History) -> list[str]:
    """In a shard, no event of another transaction lies between those of one."""
    name = {key: transaction.name for transaction in history.committed() for _, key in transaction.events}
    complaints = []
    for shard, content in history.feed.items():
        names = [own for own, _ in groupby(name.get(key) for _, key in content)]
        torn = sorted(str(own) for own, times in Counter(names).items() if times > 1)
        complaints += [f"shard {shard}: another lies within {own}" for own in torn]
    return complaints


def readers_skip_nothing(history: History) -> list[str]:
    """A reader that goes on from its cursor to the head reads exactly the feed, once and in its order."""
    complaints = []
    for reading in history.readings:
        content = list(history.feed.get(reading.shard, ()))
        if list(reading.content) != content:
            same = sum(1 for one, two in zip(reading.content, content, strict=False) if one == two)
            complaints.append(
                f"{reading.reader}, shard {reading.shard}: {len(reading.content)} events read, "
                f"{len(content)} in the feed, {same} of them at the same place"
            )
    return complaints


def sealed_windows_stay(history: History) -> list[str]:
    """No ULID below a seal appears or goes after the seal: reading it again gives the same set."""
    ulids = {shard: [ulid for ulid, _ in content] for shard, content in history.feed.items()}
    return seals_that_broke(history.seals, ulids)


def seals_that_broke(seals: Iterable[SealRecord], ulids: Mapping[int, Iterable[str]]) -> list[str]:
    """
    Compare what lay below each seal with what does at the end.

    :param ulids: of each shard, at the end.
    """
    complaints = []
    ascending = {shard: sorted(own) for shard, own in ulids.items()}
    for seal in seals:
        below = ascending.get(seal.shard, [])
        below = below[: bisect_left(below, seal.below)]
        if (len(below), digest(below)) != (seal.count, seal.digest):
            complaints.append(
                f"shard {seal.shard}: {seal.count} events below {seal.below} at its seal, "
                f"{len(below)} at the end"
            )
    return complaints


def given_ulids_are_kept(history: History) -> list[str]:
    """A serialized writer's event has the ULID that was given before the commit."""
    found = {key: ulid for content in history.feed.values() for ulid, key in content}
    return [
        f"{transaction.name}: {key} was given {ulid}, the feed says {found.get(key)}"
        for transaction in history.committed()
        for key, ulid in transaction.given.items()
        if found.get(key) != ulid
    ]


ORACLES: tuple[Callable[[History], list[str]], ...] = (
    nobody_failed,
    transactions_are_whole,
    feed_is_complete,
    ulids_ascend,
    commits_are_in_order,
    transactions_keep_their_order,
    transactions_stay_together,
    readers_skip_nothing,
    sealed_windows_stay,
    given_ulids_are_kept,
)


def judge(history: History) -> list[str]:
    """Return the complaints of all oracles, each with its oracle's name."""
    return [f"{oracle.__name__}: {complaint}" for oracle in ORACLES for complaint in oracle(history)]
