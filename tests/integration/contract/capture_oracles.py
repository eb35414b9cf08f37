# SPDX-License-Identifier: Apache-2.0
"""
Judging a race of captures: pure functions over what was exported, and what its writers wrote down themselves.

Each statement stamps the rows that it changes with a number of its own, and the transaction notes key and
stamp in a journal that no trigger knows of: so no two events are the same, and none can be missed. A ULID
is its 26 characters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise, product
from operator import attrgetter
from typing import Any

from tests.integration.contract.oracles import (
    Change,
    Key,
    SealRecord,
    fold,
    seals_that_broke,
)

Place = tuple[str, Key]
Rows = Mapping[Place, Mapping[str, Any]]


@dataclass(frozen=True)
class Entry:
    """
    A row of the journal, written in the transaction that changed the row it tells of.

    :param stamp: of the row after the statement; None where the row was deleted.
    """

    table: str
    key: Key
    stamp: int | None
    transaction: str


@dataclass(frozen=True)
class Span:
    """When a transaction began and was known to be committed, in nanoseconds; None where nobody knows."""

    begun: int
    acknowledged: int | None


@dataclass(frozen=True)
class Exported:
    """
    A window that was exported, in all shards.

    :param below: lowest ULID that is not below its end.
    """

    below: str
    events: Mapping[int, Sequence[Change]]


@dataclass(frozen=True)
class Snapshot:
    """
    The tables' rows while nobody wrote.

    :param below: lowest ULID that is not below the seal that was made then.
    """

    below: str
    rows: Rows


@dataclass(frozen=True)
class Base:
    """
    Rows of a table that were read while others wrote.

    :param begin: lowest ULID that may not be in the rows yet.
    :param exact: the events below it are those that the rows may have in part.
    """

    table: str
    begin: str
    exact: str
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class CaptureHistory:
    """
    What happened in a race.

    :param keys: of each captured table.
    :param windows: in order of time, without a gap from the first event.
    :param again: the same windows, exported anew when all was over.
    :param journal: in the order of its rows' own numbers.
    :param feed: what the feed holds of each shard at the end.
    :param statements: that writers tried.
    :param killed: processes, by what they did.
    """

    keys: Mapping[str, Sequence[str]]
    windows: Sequence[Exported]
    again: Sequence[Exported]
    snapshots: Sequence[Snapshot]
    journal: Sequence[Entry]
    spans: Mapping[str, Span]
    feed: Mapping[int, Sequence[Change]]
    seals: Sequence[SealRecord] = ()
    bases: Sequence[Base] = ()
    killed: Mapping[str, int] = field(default_factory=dict)
    failures: Sequence[str] = ()
    statements: int = 0

    def exported(self, shard: int) -> list[Change]:
        """Return a shard's changes of rows, window after window."""
        return [change for window in self.windows for change in of_rows(window.events.get(shard, ()))]

    def events(self, table: str, shard: int) -> list[Change]:
        """Return all that was exported of a table in a shard, window after window."""
        own = (change for window in self.windows for change in window.events.get(shard, ()))
        return [change for change in own if change.table == table]

    @cached_property
    def shards(self) -> list[int]:
        """All that have anything."""
        return sorted({shard for window in self.windows for shard in window.events} | set(self.feed))

    def place(self, change: Change) -> Place:
        """Return whose row a change is."""
        row = change.new if change.new is not None else change.old or {}
        return change.table, tuple(row[name] for name in self.keys[change.table])

    def transactions(self) -> Mapping[int, str]:
        """Return the transaction of each stamp."""
        return {entry.stamp: entry.transaction for entry in self.journal if entry.stamp is not None}


def of_rows(changes: Sequence[Change]) -> list[Change]:
    """Return the changes of rows: not what is about the whole table, nor rows that were there already."""
    return [change for change in changes if (change.old or change.new) and not change.is_snapshot]


def stamp(change: Change) -> int:
    """Return the stamp of the statement, or of the one just before it that stamped what it deletes."""
    row = change.new if change.new is not None else change.old or {}
    return int(row["stamp"])


def bare(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without nulls: an event from before a column was added does not have it."""
    return {name: value for name, value in row.items() if value is not None}


def nobody_failed(history: CaptureHistory) -> list[str]:
    """No process ends by an error of its own."""
    return list(history.failures)


def exported_is_committed(history: CaptureHistory) -> list[str]:
    """Of each key the events are what was committed: none missing, added, twice, or in another order."""
    expected, found = defaultdict(list), defaultdict(list)
    for entry in history.journal:
        expected[entry.table, entry.key].append(entry.stamp)
    for shard in history.shards:
        for change in history.exported(shard):
            found[history.place(change)].append(None if change.new is None else stamp(change))
    return [
        f"{place}: {len(found[place])} events {found[place][-5:]}, committed were "
        f"{len(expected[place])} {expected[place][-5:]}"
        for place in sorted({*expected, *found})
        if found[place] != expected[place]
    ]


def chains_hold(history: CaptureHistory) -> list[str]:
    """Of each key an event's old row is the new row of the event before it."""
    complaints = []
    rows: dict[Place, dict[str, Any]] = {}
    for shard in history.shards:
        for change in history.exported(shard):
            place = history.place(change)
            before = None if change.old is None else bare(change.old)
            if rows.get(place) != before:
                complaints.append(
                    f"{place}: {change.type} at {change.ulid} was {before}, not {rows.get(place)}"
                )
            rows.pop(place, None)
            if change.new is not None:
                rows[place] = bare(change.new)
    return complaints


def folds_are_the_tables(history: CaptureHistory) -> list[str]:
    """Folding all that was exported up to a seal gives the tables' rows at that moment."""
    complaints = []
    for number, snapshot in enumerate(history.snapshots):
        below = [
            change
            for shard in history.shards
            for change in history.exported(shard)
            if change.ulid < snapshot.below
        ]
        folded = {place: bare(row) for place, row in fold(below, history.keys).items()}
        rows = {place: bare(row) for place, row in snapshot.rows.items()}
        wrong = [place for place in {*folded, *rows} if folded.get(place) != rows.get(place)]
        complaints += [
            f"snapshot {number}, {place}: folded {folded.get(place)}, the table has {rows.get(place)}"
            for place in sorted(wrong)
        ]
    return complaints


def folds_over_bases_are_the_tables(history: CaptureHistory) -> list[str]:
    """Folding what was exported since a base's begin over its rows gives the table at each later seal."""
    complaints = []
    events = [change for shard in history.shards for change in history.exported(shard)]
    for base in history.bases:
        seals = [(one.below, _of_table(one.rows, base.table)) for one in history.snapshots]
        below = [change for change in events if change.ulid < base.exact]
        seals.append((base.exact, _of_table(fold(below, history.keys), base.table)))
        since = [change for change in events if change.ulid >= base.begin and change.table == base.table]
        for at, rows in seals:
            if at < base.exact:
                continue
            folded = _over(base, [change for change in since if change.ulid < at], history.keys[base.table])
            wrong = [place for place in {*folded, *rows} if folded.get(place) != rows.get(place)]
            complaints += [
                f"base of {base.begin}, at {at}, {place}: folded {folded.get(place)}, the table has "
                f"{rows.get(place)}"
                for place in sorted(wrong)
            ]
        complaints += _unexpected(base, since, history)
    return complaints


def recordings_are_the_tables(history: CaptureHistory) -> list[str]:
    """What was recorded between a reset and its end, with all changes since the reset, is the table."""
    complaints = []
    for table, shard in product(history.keys, history.shards):
        events = history.events(table, shard)
        for begin, end in recordings(events):
            since = [change for change in events[begin:] if change.type not in ("reset", "ready")]
            for seal in history.snapshots:
                if seal.below <= events[end].ulid:
                    continue
                folded = fold([change for change in since if change.ulid < seal.below], history.keys)
                rows = {
                    place: bare(row)
                    for place, row in _of_table(seal.rows, table).items()
                    if row["id"] % len(history.shards) == shard
                }
                complaints += [
                    f"recorded since {events[begin].ulid}, at {seal.below}, {place}: folded "
                    f"{folded.get(place)}, the table has {rows.get(place)}"
                    for place in sorted({*folded, *rows})
                    if bare(folded.get(place, {})) != rows.get(place, {})
                ]
    return complaints


def recordings(events: Sequence[Change]) -> list[tuple[int, int]]:
    """Return the places of each reset of a shard's table that has an end, and of that."""
    found = []
    begin = None
    for place, change in enumerate(events):
        if change.type == "reset":
            begin = place
        elif change.type == "ready" and begin is not None:
            found.append((begin, place))
            begin = None
    return found


def _of_table(rows: Rows, table: str) -> dict[Place, dict[str, Any]]:
    return {place: bare(row) for place, row in rows.items() if place[0] == table}


def _over(base: Base, changes: Sequence[Change], key: Sequence[str]) -> dict[Place, dict[str, Any]]:
    """Fold events over rows, of which some may have their effect already."""
    rows: dict[Place, Mapping[str, Any]] = {
        (base.table, tuple(row[name] for name in key)): row for row in base.rows
    }
    for change in changes:
        if change.old is not None:
            rows.pop((base.table, tuple(change.old[name] for name in key)), None)
        if change.new is not None:
            rows[base.table, tuple(change.new[name] for name in key)] = change.new
    return {place: bare(row) for place, row in rows.items()}


def _unexpected(base: Base, since: Sequence[Change], history: CaptureHistory) -> list[str]:
    """From where a base is exact on, no event changes a row that neither it nor an earlier event has made."""
    known = {(base.table, tuple(row[name] for name in history.keys[base.table])) for row in base.rows}
    complaints = []
    for change in sorted(since, key=attrgetter("ulid")):
        place = history.place(change)
        if change.type != "add" and place not in known and change.ulid >= base.exact:
            complaints.append(f"base of {base.begin}: {change.type} at {change.ulid} of unknown {place}")
        known.add(place)
    return complaints


def windows_stay(history: CaptureHistory) -> list[str]:
    """An exported window has what the feed has of it at the end, and gives the same when exported again."""
    complaints = []
    for name, windows in (("at the end", _cut(history)), ("exported again", list(history.again))):
        if len(windows) != len(history.windows):
            complaints.append(f"{name}: {len(windows)} windows, not {len(history.windows)}")
        for first, second in zip(history.windows, windows, strict=False):
            complaints += [
                f"window below {first.below}, shard {shard}: {len(first.events.get(shard, ()))} events, "
                f"{name} {len(second.events.get(shard, ()))}"
                for shard in history.shards
                if _bare(first.events.get(shard, ())) != _bare(second.events.get(shard, ()))
            ]
    return complaints


def _bare(changes: Sequence[Change]) -> list[Change]:
    return [
        replace(change, old=change.old and bare(change.old), new=change.new and bare(change.new))
        for change in changes
    ]


def _cut(history: CaptureHistory) -> list[Exported]:
    """Cut what the feed holds at the end into the windows."""
    found: list[Exported] = []
    begins = dict.fromkeys(history.feed, 0)
    for window in history.windows:
        events = {}
        for shard, content in history.feed.items():
            end = bisect_left(content, window.below, key=attrgetter("ulid"))
            events[shard] = content[begins[shard] : end]
            begins[shard] = end
        found.append(Exported(window.below, events))
    return found


def nothing_comes_below_a_seal(history: CaptureHistory) -> list[str]:
    """No ULID below a seal appears or goes after the seal."""
    ulids = {shard: [change.ulid for change in content] for shard, content in history.feed.items()}
    return seals_that_broke(history.seals, ulids)


def transactions_are_whole(history: CaptureHistory) -> list[str]:
    """Within a shard a transaction's events stand together, in its order, in one window, with one number."""
    complaints = []
    names = history.transactions()
    for shard in history.shards:
        seen: set[str] = set()
        before: int | None = None
        placed = [
            (change, at)
            for at, window in enumerate(history.windows)
            for change in of_rows(window.events.get(shard, ()))
        ]
        for name, group in groupby(placed, key=lambda pair: names.get(stamp(pair[0]), "nobody")):
            own = list(group)
            # What is deleted has the stamp of an earlier statement; its place is held by the key's own order.
            stamps = [stamp(change) for change, _ in own if change.new is not None]
            tids = {change.tid for change, _ in own}
            wrong = {
                "is torn": name in seen,
                "lies in two windows": len({window for _, window in own}) > 1,
                "lost its order": stamps != sorted(stamps),
                "has several numbers": len(tids) > 1,
                "has no number": None in tids,
                "has its neighbour's number": before in tids,
            }
            complaints += [f"shard {shard}: {name} {what}" for what, is_so in wrong.items() if is_so]
            seen.add(name)
            before = own[-1][0].tid
    return complaints


def commits_are_in_order(history: CaptureHistory) -> list[str]:
    """If A is known committed before B starts, A's events come before B's in a shard."""
    complaints = []
    names = history.transactions()
    for shard in history.shards:
        latest, begun = "", 0
        for change in history.exported(shard):
            name = names.get(stamp(change), "")
            span = history.spans.get(name)
            if span is None:
                continue
            if span.acknowledged is not None and span.acknowledged < begun:
                complaints.append(f"shard {shard}: {name} ended before {latest} began, but is behind")
            if span.begun > begun:
                latest, begun = name, span.begun
    return complaints


def ulids_ascend(history: CaptureHistory) -> list[str]:
    """A shard's windows follow one another in strictly ascending ULID."""
    return [
        f"shard {shard}: {two.ulid} after {one.ulid}"
        for shard in history.shards
        for one, two in pairwise(history.exported(shard))
        if two.ulid <= one.ulid
    ]


CAPTURE_ORACLES: tuple[Callable[[CaptureHistory], list[str]], ...] = (
    nobody_failed,
    exported_is_committed,
    chains_hold,
    folds_are_the_tables,
    folds_over_bases_are_the_tables,
    recordings_are_the_tables,
    windows_stay,
    nothing_comes_below_a_seal,
    transactions_are_whole,
    commits_are_in_order,
    ulids_ascend,
)


def judge_captures(history: CaptureHistory) -> list[str]:
    """Return the complaints of all oracles, each with its oracle's name."""
    return [f"{oracle.__name__}: {complaint}" for oracle in CAPTURE_ORACLES for complaint in oracle(history)]
