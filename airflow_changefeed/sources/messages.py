# SPDX-License-Identifier: Apache-2.0
"""What all sources say in the same words: of refused arguments, unknown names, and an old outbox."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from airflow_changefeed.core.consumer import ConsumerInfo
from airflow_changefeed.core.fault import Fault, FaultKind, Limits, shell
from airflow_changefeed.core.feed import Shard, counted, shard_text
from airflow_changefeed.core.plan import ON_MISSING
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    CaptureNotFoundError,
    ConsumerNotFoundError,
    FeedNotFoundError,
    InvalidArgumentError,
    PurgedError,
)

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


def check_stream(batch_rows: int, on_missing: str) -> None:
    """Check the options of a stream of events."""
    problems = []
    if not 1 <= batch_rows <= MAX_BATCH_ROWS:
        problems.append(f"batch_rows must be 1 to {MAX_BATCH_ROWS}, not {batch_rows}")
    if on_missing not in ON_MISSING:
        problems.append(f"on_missing must be one of {', '.join(ON_MISSING)}, not {on_missing!r}")
    InvalidArgumentError.collect("stream", problems)


def check_purged_upto(feed: str, shard: Shard, after: Ulid, purged: Ulid) -> None:
    """Raise PurgedError if events after a position were purged (ADR 0001, R12)."""
    if after < purged:
        raise PurgedError(
            f"feed {feed!r} shard {shard_text(shard)}: events up to {purged} were purged, so reading cannot "
            f"start after {after}. Start at {purged}, or read the export of that time",
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
    return f"table {table!r} not found; create it first"


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
            "Drain the feed: run an export, a reader (read_feed), or drain on a schedule. Harmless if a "
            "writer sets old time hints and the feed is drained",
        )
    ]


def length_text(seconds: float) -> str:
    """Format a duration for people."""
    for unit, name in ((_DAY, "days"), (_HOUR, "hours"), (_MINUTE, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return counted(round(seconds), "second")
