# SPDX-License-Identifier: Apache-2.0
"""The options of the data source, and the ranges of a feed that it reads and cuts into partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from airflow_changefeed.core.consumer import Position, parse_position
from airflow_changefeed.core.cursor import check_consumer
from airflow_changefeed.core.export_plan import BATCH_ROWS, ON_MISSING, PARTITIONS, Shape
from airflow_changefeed.core.feed import Shard, ShardStatus, check_known_shards, check_shards, parse_shards
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import (
    Reader,
    duration,
    flag,
    format_time,
    from_milliseconds,
    one_of,
    parse_time,
    read_each,
    whole,
)
from airflow_changefeed.exceptions import InvalidArgumentError, NotSealedError
from airflow_changefeed.sources.base import FeedReader, FeedSource
from airflow_changefeed.sources.mssql.connection import options as mssql
from airflow_changefeed.sources.sqlite import connection as sqlite

#: Options of a connection, by its type, and how they are read.
CONNECTIONS: Mapping[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "sqlite": (("path", "lock_timeout"), sqlite.read_connection),
    "mssql": ((*mssql.CONNECTION, "password", *mssql.DRIVER_OPTIONS), mssql.read_connection),
}
UNSEALED = ("fail", "read")


def _consumer(text: str) -> str:
    check_consumer(text)
    return text


_READ: dict[str, Reader] = {
    "start": parse_time,
    "end": parse_time,
    "after": lambda text: Ulid.parse_text(text.strip()),
    "upto": lambda text: Ulid.parse_text(text.strip()),
    "shards": parse_shards,
    "unsealed": one_of(UNSEALED),
    "seal": flag,
    "partitions": PARTITIONS,
    "batch_rows": BATCH_ROWS,
    "on_missing": one_of(ON_MISSING),
    "shape": one_of(tuple(Shape)),
    "position": parse_position,
    "max_events": whole(1, unit="events"),
    "consumer": _consumer,
    "seal_interval": duration(shortest=timedelta(0)),
    "accept_history": whole(0),
}
#: Options that are called as those of Spark's own sources are.
_NAMES = {
    "position": "startingPosition",
    "max_events": "maxEventsPerTrigger",
    "accept_history": "acceptHistory",
}
_FIELDS = {_NAMES.get(name, name).lower(): name for name in _READ}
#: Options of what is read, whatever the connection.
READING = ("feed", *(_NAMES.get(name, name) for name in _READ), "lock_timeout")
_OF_BATCHES = ("start", "end", "after", "upto", "unsealed")
_OF_STREAMS = ("position", "max_events", "consumer", "seal_interval", "accept_history")


@dataclass(frozen=True)
class ReadOptions:
    """
    What somebody wants read.

    :param connection: for ``open_source``; may hold a password.
    :param shards: None for all.
    :param after: exclusive; ``Ulid.MIN`` is the start of the feed.
    :param upto: inclusive; None for all that is sealed, or there.
    :param unsealed: ``fail`` to refuse what is not sealed, ``read`` to read what is there.
    :param seal: whether to seal first; None for a stream, which does, and for a batch, which does not.
    :param partitions: of Spark, at most; None lets the number of rows decide.
    :param batch_rows: rows that a task holds at once, at most.
    :param shape: of a capture's events.
    :param position: where a stream begins; None for a batch.
    :param max_events: of a batch of a stream, about; None for all that is sealed.
    :param consumer: that follows a stream; None for none.
    :param seal_interval: a stream seals at most this often.
    :param accept_history: number of the newest mark of inserted history that a stream passes over.
    """

    connection: Mapping[str, Any] = field(repr=False)
    feed: str
    shards: tuple[Shard, ...] | None = None
    after: Ulid = Ulid.MIN
    upto: Ulid | None = None
    unsealed: str = "fail"
    seal: bool | None = None
    partitions: int | None = None
    batch_rows: int = 65_536
    on_missing: str = "fail"
    shape: Shape = Shape.TYPED
    position: Position | None = None
    max_events: int | None = None
    consumer: str | None = None
    seal_interval: timedelta = timedelta(seconds=10)
    accept_history: int = 0


def is_stream(options: Mapping[str, str]) -> bool:
    """Whether options are those of ``spark.readStream``."""
    of_streams = {_NAMES.get(name, name).lower() for name in _OF_STREAMS}
    return not of_streams.isdisjoint(map(str.lower, options))


def parse_options(options: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
    """
    Read and check all options, without any I/O.

    :param options: names in any case, values as Spark hands them over: texts.
    :param is_stream: whether they are those of ``spark.readStream``.
    :raises InvalidArgumentError: names everything that is wrong, and nothing of a password.
    """
    given = {name.lower(): str(value) for name, value in options.items()}
    connection, problems = _connection(given)
    feed = given.get("feed", "").strip()
    if not feed:
        problems.append("feed is missing: give the name of the table whose feed to read")
    for time, ulid, does in (("start", "after", "begins"), ("end", "upto", "ends")):
        if time in given and ulid in given:
            problems.append(f"{time} and {ulid} both say where the range {does}: give only one of them")
    read, wrong = read_each(
        {name: given[option] for option, name in _FIELDS.items() if option in given}, _READ, _NAMES
    )
    wrong += _of_the_other_face(given, is_stream)
    start, end = read.pop("start", None), read.pop("end", None)
    if start is not None:
        read["after"] = Ulid.floor(start).previous()
    if end is not None:
        read["upto"] = Ulid.floor(end).previous()
    found = ReadOptions(connection, feed, **read)
    if not wrong and found.upto is not None:
        if start is not None and end is not None and start >= end:
            wrong.append("start must lie before end: start is inclusive, end exclusive")
        elif found.upto < found.after:
            wrong.append(f"the range ({found.after}, {found.upto}] is reversed: it ends before it begins")
    if found.seal and found.unsealed == "read":
        wrong.append(
            "seal=true and unsealed=read contradict each other: a range that is sealed first needs no "
            "unsealed=read; omit one of them"
        )
    InvalidArgumentError.collect("options of the changefeed data source", problems + wrong)
    return found


def _of_the_other_face(given: Mapping[str, str], is_stream: bool) -> Iterator[str]:
    """Yield what is wrong with options of ``spark.read`` in a stream, and of streams in a batch."""
    face, reads = ("spark.read", "a batch") if is_stream else ("spark.readStream", "a stream")
    for name in _OF_BATCHES if is_stream else _OF_STREAMS:
        if (label := _NAMES.get(name, name)).lower() in given:
            yield f"{label} belongs to {face}, which reads {reads}: omit it"
    if is_stream and "startingposition" not in given:
        yield (
            "startingPosition is missing: give earliest, latest, a time with its zone, or a ULID; a query "
            "with a checkpoint goes on where that ends"
        )
    if "consumer" in given and "shards" in given:
        yield (
            "consumer and shards exclude each other: the consumer would keep the events of all other shards "
            "from being purged; omit one of them"
        )


def _connection(given: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    kind = given.get("type", "").strip().lower()
    if kind not in CONNECTIONS:
        known = ", ".join(CONNECTIONS)
        missing = f"type is missing: give one of {known}"
        wrong = f"type {kind!r} cannot hold feeds: use one of {known}" if kind else missing
        return {}, [wrong, *_wrong_names(given, None)]
    names, read_connection = CONNECTIONS[kind]
    fields: dict[str, Any] = {name: given[name] for name in names if name in given}
    if "path" in fields:
        fields["path"] = fields["path"].strip()
    fields["driver_options"] = {name: fields[name] for name in mssql.DRIVER_OPTIONS if name in fields}
    described, missing, problems = read_connection(fields)
    lacks = [f"{name} is missing: type {kind} needs it" for name in missing]
    return {"type": kind, **described}, [*_wrong_names(given, kind), *lacks, *problems]


def _wrong_names(given: Mapping[str, str], kind: str | None) -> Iterator[str]:
    """Yield unknown names, and those of another type; shows no values, because one may be a secret."""
    of_type = {
        name: each for each, (names, _) in CONNECTIONS.items() for name in names if name not in READING
    }
    known = {name.lower(): name for name in ("type", *READING, *of_type)}
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {known[near[0]]}" if near else f"known are {', '.join(known.values())}"
            yield f"option {name!r} is unknown: {hint}"
        elif kind is not None and of_type.get(name, kind) != kind:
            yield f"{name} belongs to type {of_type[name]}, not to {kind}: omit it"


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
    """A range that a task reads at a stretch, and how many events the read must give."""

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
        end = _sealed(status) if options.unsealed == "fail" else last_event(status)
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
    return Ulid.MIN if status.sealed_until is None else Ulid.floor(status.sealed_until).previous()


def last_event(status: ShardStatus) -> Ulid:
    """Return the last ULID, purged or not: purged events must be reported as missing, not skipped."""
    return max(status.head or Ulid.MIN, status.purged_upto)


def _check_sealed(statuses: Sequence[ShardStatus], options: ReadOptions) -> None:
    sealed = min((_sealed(status) for status in statuses), default=None)
    if sealed is None:
        # The time of the seal is read from a shard, and a feed has no shard before its first event.
        if options.upto is None or options.seal:
            return
        state = "has no events yet, so the time of its seal is unknown"
    elif sealed == Ulid.MIN:
        state = "was never sealed"
    elif max(options.after, options.upto or Ulid.MIN) > sealed:
        state = f"is sealed until {_place(sealed)}"
    else:
        return
    begin = "its beginning" if options.after == Ulid.MIN else _place(options.after)
    end = "its end" if options.upto is None else _place(options.upto)
    raise NotSealedError(
        f"feed {options.feed!r} {state}: the range from {begin} to {end} may still get events. Read "
        "only the sealed part; or seal up to the end (an export does, or the option seal=true); or "
        "read the present events (unsealed=read). A stream needs the option startingPosition",
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
