# SPDX-License-Identifier: Apache-2.0
"""
What all engines share: values made of rows, refusals in the same words, one look for many polls.

In a row a time is a naive ``datetime2``, which is UTC, or milliseconds since 1970.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from difflib import get_close_matches
from enum import EnumMeta
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from airflow_changefeed.core.consumer import (
    Attempt,
    ConsumerInfo,
    ConsumerSpec,
    DeadLetter,
    Invocation,
    OutputCheck,
)
from airflow_changefeed.core.cursor import CursorChange, CursorRow, Frontier, check_consumer
from airflow_changefeed.core.export_plan import ON_MISSING
from airflow_changefeed.core.fault import Fault, FaultKind, Limits, shell
from airflow_changefeed.core.feed import Shard, ShardStatus, StaleMark, counted, parse_shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import floor_to_millisecond, from_milliseconds
from airflow_changefeed.exceptions import (
    CaptureNotFoundError,
    ConsumerNotFoundError,
    FeedNotFoundError,
    InvalidArgumentError,
    PurgedError,
)
from airflow_changefeed.sources.base import Ask, FeedStatus
from airflow_changefeed.sources.base_consumers import LeaseInfo, Waiter

MAX_PARTS = 10_000
MAX_BATCH_ROWS = 1_000_000
MAX_SHARDS = 100_000
_MOST, _CLOSE = 3, 0.6
#: Suffix of a capture's default name.
_CAPTURES = "_changes"
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def check_count(name: str, count: int, most: int, unit: str = "") -> None:
    """Check a number of things, 1 or more."""
    if not 1 <= count <= most:
        raise InvalidArgumentError(f"{name} must be 1 to {most}{unit}, not {count}")


def check_stream(batch_rows: int, on_missing: str, limit: int | None) -> None:
    """Check the options of a stream of events."""
    problems = []
    if not 1 <= batch_rows <= MAX_BATCH_ROWS:
        problems.append(f"batch_rows must be 1 to {MAX_BATCH_ROWS}, not {batch_rows}")
    if limit is not None and limit < 1:
        problems.append(f"limit must be 1 or more events, not {limit}")
    if on_missing not in ON_MISSING:
        problems.append(f"on_missing must be one of {', '.join(ON_MISSING)}, not {on_missing!r}")
    InvalidArgumentError.collect("stream", problems)


def check_purged_upto(feed: str, shard: Shard, after: Ulid, purged: Ulid) -> None:
    """Raise PurgedError if events after a position were purged (ADR 0005, R12)."""
    if after < purged:
        raise PurgedError(
            f"feed {feed!r} shard {shard_text(shard)}: events up to {purged} were purged, so reading "
            f"cannot start after {after}. Start at {purged}, or read the export of that time",
            feed=feed,
            shard=shard,
            after=after,
            purged_upto=purged,
        )


def check_overview(first_shard: int, shards: int) -> None:
    """Check which shards an overview shall have."""
    problems = []
    if first_shard < 0:
        problems.append(f"first_shard must be 0 or more, not {first_shard}")
    if not 0 <= shards <= MAX_SHARDS:
        problems.append(f"shards must be 0 to {MAX_SHARDS}, not {shards}")
    InvalidArgumentError.collect("overview", problems)


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return similar names, best match first; the schema may be wrong or missing."""
    folded = name.casefold()
    whole = {each.casefold(): each for each in known}
    bare = {each.rpartition(".")[2]: each for each in whole}
    found = [whole[each] for each in get_close_matches(folded, whole, _MOST, _CLOSE)]
    found += [whole[bare[each]] for each in get_close_matches(folded.rpartition(".")[2], bare, _MOST, _CLOSE)]
    return list(dict.fromkeys(found))[:_MOST]


def no_table(table: str, tables: Sequence[str]) -> str:
    """Return the message for a table that does not exist."""
    near = nearest(table, tables)
    if near:
        return f"table {table!r} not found; did you mean {' or '.join(map(repr, near))}?"
    return f"table {table!r} not found; create the table first"


def no_feed(feed: str, feeds: Sequence[str], tables: Sequence[str]) -> FeedNotFoundError:
    """
    Return the error for a feed that does not exist.

    :param feeds: all existing feeds.
    :param tables: of the database; the feed may be meant to be set up over one of them.
    """
    there = {table.casefold(): table for table in tables}
    captured = there.get(feed.removesuffix(_CAPTURES).casefold()) if feed.endswith(_CAPTURES) else None
    meant = _meant(feed, feeds)
    if captured and not any(each.casefold() == feed.casefold() for each in feeds):
        remedy = (
            f"Table {captured!r} is not captured yet; enable its capture: "
            f"{shell('capture enable', '--table', captured)}"
        )
    elif meant:
        remedy = meant
    elif feed.casefold() in there:
        remedy = "Create it with set_up_feed, or record the table's changes with enable_capture"
    else:
        remedy = "Create it with set_up_feed, or with enable_capture to record a table's changes"
    return FeedNotFoundError(
        f"feed {feed!r} not found; this database has {', '.join(feeds) or 'none'}. {remedy}",
        feed=feed,
        known=list(feeds),
    )


def no_capture(capture: str, known: Sequence[str]) -> CaptureNotFoundError:
    """
    Return the error for a capture that does not exist.

    :param known: the names of those that do.
    """
    remedy = _meant(capture, known) or "Create it with enable_capture"
    return CaptureNotFoundError(
        f"capture {capture!r} not found; this database has {', '.join(known) or 'none'}. {remedy}",
        capture=capture,
        known=list(known),
    )


def known_consumer(consumer: str, feed: str, infos: Iterable[ConsumerInfo]) -> ConsumerInfo:
    """Return a consumer of those of a feed, or raise ConsumerNotFoundError."""
    known = {info.spec.consumer: info for info in infos}
    if consumer not in known:
        raise ConsumerNotFoundError(
            f"feed {feed!r} has no consumer {consumer!r}; it has: {', '.join(sorted(known)) or 'none'}. "
            "Correct the name, or create the consumer first",
            consumer=consumer,
            feed=feed,
        )
    return known[consumer]


def _meant(name: str, known: Sequence[str]) -> str:
    """Return the question for the names that may be meant: first of all one that differs in case only."""
    same = [each for each in known if each.casefold() == name.casefold()]
    near = same or nearest(name, known)
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else ""


def old_outbox(feed: str, shard: str, hint: str, age: float, limits: Limits) -> list[Fault]:
    """
    Return the fault of a shard whose first committed row has waited too long; empty otherwise.

    :param hint: its ``time_hint``, as text.
    :param age: seconds since then.
    """
    if age <= limits.outbox_age.total_seconds():
        return []
    return [
        Fault(
            FaultKind.OUTBOX_NOT_DRAINED,
            f"feed {feed}, shard {shard}",
            f"the first row in its outbox has the time_hint {hint}, {length_text(age)} ago",
            "Drain the feed: run an export, a reader (read_feed), or drain on a schedule. The fault is "
            "harmless if a writer sets old time hints and the feed is drained",
        )
    ]


def length_text(seconds: float) -> str:
    """Format a duration for people."""
    for unit, name in ((_DAY, "days"), (_HOUR, "hours"), (_MINUTE, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return counted(round(seconds), "second")


Row = Mapping[str, Any]
#: The columns of fields that have another name, of dataclasses within others.
FRONTIER = {"start": "start_ulid", "upto": "ulid"}
RANGE = {"after": "after_ulid", "upto": "upto_ulid"}
ATTEMPT = {"first": "first_ulid", "last": "last_ulid", "number": "attempt"}
_Value = TypeVar("_Value")


def as_time(value: datetime | int) -> datetime:
    """Return the time of a column."""
    if isinstance(value, int):
        return from_milliseconds(value)
    return floor_to_millisecond(value.replace(tzinfo=timezone.utc))


def as_time_or_none(value: datetime | int | None) -> datetime | None:
    """Return the time of a column that may be null."""
    return None if value is None else as_time(value)


def as_ulid(value: bytes | None) -> Ulid | None:
    """Return a ULID of a column; None for a null."""
    return None if value is None else Ulid.of_bytes(value)


def as_value(
    kind: type[_Value], row: Row, columns: Mapping[str, str] | None = None, **known: object
) -> _Value:
    """
    Return the dataclass that a row holds; the type of each field says how its column is read.

    :param columns: of the fields that have another name.
    :param known: fields that are not read.
    """
    hashable: Any = kind
    readers, columns = _readers(hashable), columns or {}
    read = {name: readers[name](row[columns.get(name, name)]) for name in readers if name not in known}
    return kind(**read, **known)


def as_row(value: Any, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a dataclass by their columns: what :func:`as_value` reads."""
    return {columns.get(one.name, one.name): getattr(value, one.name) for one in fields(value)}


#: How the columns of a type are read; all others hold the value itself.
_READ: dict[Any, Callable[[Any], Any]] = {Ulid: Ulid.of_bytes, datetime: as_time, int: int}


@cache
def _readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind)
    return {one.name: _reader(hints[one.name]) for one in fields(kind)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    kinds = [one for one in get_args(hint) or [hint] if one is not NoneType]
    if kinds == [int, uuid.UUID]:
        return parse_shard
    read = kinds[0] if isinstance(kinds[0], EnumMeta) else _READ.get(kinds[0])
    return lambda value: value if value is None or read is None else read(value)


def shard_status(shard: Shard, row: Row) -> ShardStatus:
    """Return the state of a shard."""
    head, clock = as_ulid(row["head"]), as_time(row["time"])
    # The high-water time of a shard that a writer has locked is not visible.
    high_water = clock if head is None else max(clock, head.time)
    return as_value(ShardStatus, row, shard=shard, high_water=high_water, has_outbox=bool(row["has_outbox"]))


def row_of_cursor(feed: str, row: Row, ranges: Callable[[str], tuple[UlidRange, ...]]) -> CursorRow:
    """
    Return a cursor row.

    :param ranges: reads the ranges of a frontier.
    """
    pieces = {name: ranges(row[name]) for name in ("ahead", "before")}
    return as_value(CursorRow, row, feed=feed, frontier=as_value(Frontier, row, FRONTIER, **pieces))


def cursor_change(feed: str, row: Row) -> CursorChange:
    """Return a change of a cursor."""
    columns = {"before": "before_ulid", "after": "after_ulid", "at": "moved_at", "by": "moved_by"}
    return as_value(CursorChange, row, columns, feed=feed)


def output_check(feed: str, row: Row) -> OutputCheck:
    """Return what a look at an export's output found."""
    return as_value(OutputCheck, row, {"first": "first_missing"}, feed=feed)


def consumer_info(row: Row) -> ConsumerInfo:
    """Return a consumer."""
    spec = ConsumerSpec.from_json(row["consumer"], row["feed"], row["settings"])
    return as_value(ConsumerInfo, row, {"begin": "begin_ulid"}, spec=spec)


def dead_letter(row: Row) -> DeadLetter:
    """Return a dead letter."""
    return as_value(DeadLetter, row)


def invocation(feed: str, row: Row) -> Invocation:
    """Return an invocation of a handler."""
    return as_value(Invocation, row, feed=feed, attempt=as_value(Attempt, row, ATTEMPT))


def lease_info(row: Row, waiters: Sequence[Waiter]) -> LeaseInfo:
    """Return who holds a shard for a consumer, and who waits."""
    columns = {"token": "fencing_token", "holder": "lease_holder", "expires": "lease_expires"}
    since = None if row["lease_holder"] is None else as_time_or_none(row["lease_since"])
    return as_value(LeaseInfo, row, columns, since=since, waiters=tuple(waiters))


def stale_mark(row: Row) -> StaleMark:
    """Return the mark of inserted history."""
    return as_value(StaleMark, row, range=as_value(UlidRange, row, RANGE))


@dataclass(frozen=True)
class FeedPoll:
    """
    Result of one poll of a feed for several consumers.

    :param at: the database's clock, read first.
    :param shards: each that is known, with its last event in the feed and whether rows are
        waiting.
    :param cursors: of the consumers that have cursors.
    """

    at: datetime
    shards: Sequence[tuple[Shard, Ulid | None, bool]]
    cursors: Mapping[str, Mapping[Shard, Ulid]]

    def poll(self, consumer: str | None) -> FeedStatus:
        """Return the result for one of them."""
        after = self.cursors.get(consumer, {}) if consumer is not None else {}
        return FeedStatus.of(self.at, [(*shard, after.get(shard[0])) for shard in self.shards])


def wanted_of(asks: Sequence[Ask]) -> dict[str, list[str]]:
    """Return each feed to poll, with the consumers whose cursors are wanted."""
    wanted: dict[str, dict[str, None]] = {}
    for feed, consumer in asks:
        if consumer is None:
            wanted.setdefault(feed, {})
        elif _refusal(consumer) is None:
            wanted.setdefault(feed, {})[consumer] = None
    return {feed: list(consumers) for feed, consumers in wanted.items()}


def answers(asks: Sequence[Ask], polls: Mapping[str, FeedPoll | Exception]) -> list[FeedStatus | Exception]:
    """
    Answer all polls with one poll per feed of :func:`wanted_of`.

    :return: in the given order; an invalid consumer name fails only its own poll.
    """
    found: list[FeedStatus | Exception] = []
    for feed, consumer in asks:
        refusal = _refusal(consumer) if consumer is not None else None
        one = polls[feed] if refusal is None else refusal
        found.append(one if isinstance(one, Exception) else one.poll(consumer))
    return found


def _refusal(consumer: str) -> InvalidArgumentError | None:
    try:
        check_consumer(consumer)
    except InvalidArgumentError as error:
        return error
    return None


def only(found: Sequence[FeedStatus | Exception]) -> FeedStatus:
    """Return a single result, or raise it."""
    (one,) = found
    if isinstance(one, Exception):
        raise one
    return one
