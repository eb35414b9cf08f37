# SPDX-License-Identifier: Apache-2.0
"""The ranges of a feed to read, sealed or present, and how they are cut into partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_changefeed.core.feed import Shard, ShardStatus, check_known_shards, check_shards
from airflow_changefeed.core.times import format_time, from_milliseconds
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import NotSealedError
from airflow_changefeed.sources.base import FeedReader, FeedSource
from airflow_changefeed.spark.options import ReadOptions

#: Rows of one partition, unless the options set their number: a few seconds of a task.
PARTITION_ROWS = 500_000
_MOST_PARTS = 10_000
_RANDOM_BITS = 80


@dataclass(frozen=True)
class ShardRange:
    """The range to read of a shard."""

    shard: Shard
    range: UlidRange


@dataclass(frozen=True)
class Piece:
    """
    A range that a task reads at a stretch.

    :param rows: events counted in it; the read must give as many.
    """

    shard: Shard
    range: UlidRange
    rows: int


def resolve(source: FeedSource, options: ReadOptions) -> tuple[ShardRange, ...]:
    """
    Return what is read of each shard, by shard; seals first if that was asked for, else changes nothing.

    A read without an end goes to the end of what is sealed, one with ``unsealed=read`` to the last event that
    is there: in both cases the same frame gives the same events whenever it is computed.

    :raises FeedNotFoundError: the database has no such feed.
    :raises ShardNotFoundError: a shard that never had an event was named.
    :raises InvalidArgumentError: a shard that is of another type than the feed's.
    :raises NotSealedError: the range reaches beyond what is sealed.
    """
    check_shards(source.feed(options.feed), options.shards)
    if options.seal:
        # Before the seal, which changes the database. The seal may add shards, but none that was named.
        _chosen(source.shards(options.feed), options)
        ends = source.now() if options.upto is None else from_milliseconds(options.upto.ms + 1)
        source.seal(options.feed, ends)
    statuses = _chosen(source.shards(options.feed), options)
    if options.unsealed == "fail":
        _check_sealed(statuses, options)
    found = []
    for status in statuses:
        end = _sealed(status) if options.unsealed == "fail" else _last(status)
        upto = end if options.upto is None else min(end, options.upto)
        if options.after < upto:
            found.append(ShardRange(status.shard, UlidRange(options.after, upto)))
    return tuple(found)


def _chosen(statuses: Sequence[ShardStatus], options: ReadOptions) -> list[ShardStatus]:
    known = sorted(statuses, key=lambda status: status.shard)
    check_known_shards(options.feed, options.shards, [status.shard for status in known], "read")
    if options.shards is None:
        return known
    return [status for status in known if status.shard in options.shards]


def _sealed(status: ShardStatus) -> Ulid:
    """Return the last sealed ULID."""
    return Ulid.MIN if status.sealed_until is None else Ulid.floor(status.sealed_until).previous()


def _last(status: ShardStatus) -> Ulid:
    """Return the last ULID, purged or not: purged events must be reported as missing, not skipped."""
    return max(status.head or Ulid.MIN, status.purged_upto)


def _check_sealed(statuses: Sequence[ShardStatus], options: ReadOptions) -> None:
    sealed = min((_sealed(status) for status in statuses), default=None)
    if sealed is None:
        # The time of the seal is read from a shard, and a feed has no shard before its first event.
        if options.upto is None or options.seal:
            return
        state = "has no events yet, so it is not known until when it is sealed"
    elif sealed == Ulid.MIN:
        state = "was never sealed"
    elif max(options.after, options.upto or Ulid.MIN) > sealed:
        state = f"is sealed until {_place(sealed)}"
    else:
        return
    begin = "its beginning" if options.after == Ulid.MIN else _place(options.after)
    end = "its end" if options.upto is None else _place(options.upto)
    raise NotSealedError(
        f"feed {options.feed!r} {state}: the range from {begin} to {end} may still get events. Read what is "
        "sealed, seal more (an export does, or the option seal=true), or read what is there (unsealed=read)",
        feed=options.feed,
        sealed_until=None if sealed is None or sealed == Ulid.MIN else sealed.next().time,
    )


def _place(ulid: Ulid) -> str:
    """Write an end of a range as a time if it is one, otherwise as a ULID."""
    milliseconds, rest = divmod(int(ulid) + 1, 1 << _RANDOM_BITS)
    return str(ulid) if rest else format_time(from_milliseconds(milliseconds))


def plan_partitions(
    source: FeedReader, feed: str, ranges: Sequence[ShardRange], most: int | None
) -> list[tuple[Piece, ...]]:
    """
    Cut ranges into partitions of about the same number of events.

    :param most: partitions, at most; None for about one for each ``PARTITION_ROWS``.
    :return: partitions in the order of shard and ULID; none where there are no events.
    :raises PurgedError: a range reaches below what was purged.
    """
    pieces: list[Piece] = []
    with source.open(feed) as found:
        counts = found.counts({each.shard: [each.range] for each in ranges})
        total = sum(rows for (rows,) in counts.values())
        if not total:
            return []
        aimed = most or -(-total // PARTITION_ROWS)
        size = -(-total // aimed)
        for each in ranges:
            (rows,) = counts[each.shard]
            parts = min(-(-rows // size), _MOST_PARTS)
            if parts > 1:
                split = found.split(each.shard, each.range, parts, rows=rows)
                pieces += [Piece(each.shard, part.range, part.rows) for part in split]
            elif parts:
                pieces.append(Piece(each.shard, each.range, rows))
    groups: dict[int, list[Piece]] = {}
    before = 0
    for piece in pieces:
        # By the place of its middle among all events, so that there are never too many groups.
        middle = before + piece.rows / 2
        groups.setdefault(min(int(middle * aimed / total), aimed - 1), []).append(piece)
        before += piece.rows
    return [tuple(group) for _, group in sorted(groups.items())]
