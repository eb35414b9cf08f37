# SPDX-License-Identifier: Apache-2.0
"""What a feed is: its name, kind, keys and shards, the state of a shard, and a page of its events."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import EPOCH, one_of, optional, read_values, whole
from airflow_changefeed.exceptions import InvalidArgumentError, ShardNotFoundError

#: An independent partition of a feed: a whole number, or a UUID where the feed says so.
Shard = int | uuid.UUID

#: ``max_hold`` of a feed that keeps its events for as long as anybody needs them.
FOREVER = timedelta.max
#: Well within the 48 bits of milliseconds of a ULID.
_LONGEST = timedelta(days=36_500)
_MILLISECOND = timedelta(milliseconds=1)
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))

INTEGER_SHARD_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
SHARD_KEY_TYPES = (*INTEGER_SHARD_BITS, "uniqueidentifier")
TABLE_COMPRESSIONS = ("page", "row", "none")

#: Bytes of a folder's name, on most file systems.
MOST_BYTES = 255
# No percent sign: some readers decode it once too often. A "-x" of the name itself would look like ours.
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]|^[._]|-(?=x)")
_ESCAPED = re.compile(r"-x([0-9A-F]{2,6})-")
_MOST_CODE, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)
_SHOWN = 100


class FeedKind(str, Enum):
    """How a feed is written (mssql-changefeed, "Feed types")."""

    OUTBOX = "outbox"
    SERIALIZED = "serialized"


@dataclass(frozen=True)
class Column:
    """
    A column of an event table.

    :param name: as the database spells it.
    :param type: the database's own declared type.
    """

    name: str
    type: str


@dataclass(frozen=True)
class DatabaseIdentity:
    """
    Which database it is: names alone never join two things (ADR 0009).

    :param id: a UUID in lower case, made once at installation; upgrades and restored copies keep it.
    :param recovery_fork: changes when the database is restored to an earlier state; None where the database
        has no such thing, or does not show it to this login.
    """

    id: str
    recovery_fork: str | None = None


@dataclass(frozen=True)
class FeedInfo:
    """
    A feed as its database describes it.

    :param name: the table's name, for example ``myservice.MyEvent``.
    :param shard_key_type: one of ``SHARD_KEY_TYPES``.
    :param key_columns: the table's primary key, in its order.
    :param columns: all columns of the event table, in its order.
    :param sealed_until: for all shards, also those that do not exist yet; None before the first seal.
    :param resource_version: bumped at every change of the settings, at an upgrade, and when the columns of
        the table (of a capture: of the captured tables) changed.
    :param time_tolerance: a ``time_hint`` further in the future takes the present time instead.
    :param max_hold: a purge keeps events for consumers and snapshots until they are this old, by feed time;
        ``FOREVER`` for as long as they are needed.
    """

    name: str
    kind: FeedKind
    shard_key_type: str
    key_columns: tuple[Column, ...]
    columns: tuple[Column, ...]
    sealed_until: datetime | None = field(default=None, compare=False)
    resource_version: int = field(default=1, compare=False)
    time_tolerance: timedelta = timedelta(hours=1)
    max_hold: timedelta = FOREVER

    @property
    def settings(self) -> tuple[timedelta, timedelta]:
        """What may be changed of a feed that is there."""
        return self.time_tolerance, self.max_hold

    def held_since(self, now: datetime) -> Ulid:
        """Return up to where, inclusive, events are older than ``max_hold``: no purge keeps them."""
        if self.max_hold == FOREVER or now - self.max_hold <= EPOCH:
            return Ulid.MIN
        return Ulid.floor(now - self.max_hold).previous()


@dataclass(frozen=True)
class ShardStatus:
    """
    The state of a shard.

    :param high_water: no ULID below ``floor(high_water)`` will be given; UTC.
    :param head: last event in the feed; None if the feed never had one, or all were purged.
    :param sealed_until: the highest time sealed, None before the first seal.
    :param purged_upto: inclusive; events up to it may be gone. ``Ulid.MIN`` when nothing was purged.
    :param has_outbox: whether committed rows wait in the outbox.
    """

    shard: Shard
    high_water: datetime
    head: Ulid | None
    sealed_until: datetime | None
    purged_upto: Ulid
    has_outbox: bool

    @property
    def highest_cursor(self) -> Ulid:
        """The highest position that a cursor of the shard may have: no future event is at or below it."""
        return max(self.head or Ulid.MIN, Ulid.floor(self.high_water).previous(), self.purged_upto)


@dataclass(frozen=True)
class Seal:
    """
    A promise for a shard: no ULID below ``floor(until)`` will be given from now on.

    :param until: exclusive end of what is sealed; at least what was asked for, UTC.
    :param head: last event before ``until``; None without one.
    """

    shard: Shard
    until: datetime
    head: Ulid | None


@dataclass(frozen=True)
class StaleMark:
    """
    History was inserted into windows that may already be exported.

    :param number: grows with each mark of a feed; a manifest records the highest one its read has seen.
    :param range: from before the first to the last event inserted, ``(after, upto]``.
    :param at: when, by the database's clock.
    """

    number: int
    shard: Shard
    range: UlidRange
    at: datetime
    reason: str


@dataclass(frozen=True)
class FeedStorage:
    """
    How SQL Server stores the tables that it creates for a feed; None takes the default.

    :param filegroup: by default that of the database.
    :param compression: one of ``TABLE_COMPRESSIONS``: of the feed's log, ``page`` by default; or of a
        capture's table of events, for whose compression writers wait, ``none`` by default.
    :raises InvalidArgumentError: the filegroup is empty, or the compression unknown.
    """

    filegroup: str | None = None
    compression: str | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.filegroup == "":
            problems.append("filegroup is empty; name a filegroup, or omit it for the database's default")
        problems += read_values(self, {"compression": optional(one_of(TABLE_COMPRESSIONS))})
        InvalidArgumentError.collect("storage", problems)


def check_settings(
    feed: str, shard_key_type: str | None, time_tolerance: timedelta | None, max_hold: timedelta | None
) -> None:
    """
    Check the settings of a feed; None is always right.

    :raises InvalidArgumentError: names everything that is wrong.
    """
    problems = []
    if shard_key_type is not None and shard_key_type not in SHARD_KEY_TYPES:
        problems.append(f"shard_key_type must be one of {', '.join(SHARD_KEY_TYPES)}, not {shard_key_type!r}")
    if time_tolerance is not None and not timedelta(0) <= time_tolerance <= _LONGEST:
        problems.append(f"time_tolerance must be 0 to {_LONGEST.days} days, not {time_tolerance}")
    if max_hold not in (None, FOREVER) and not _MILLISECOND <= max_hold <= _LONGEST:
        problems.append(f"max_hold must be 1 millisecond to {_LONGEST.days} days, or FOREVER, not {max_hold}")
    InvalidArgumentError.collect(f"feed {feed!r}", problems)


def max_hold_text(max_hold: timedelta) -> str:
    """Write ``max_hold`` as it is given on a command line: ``30d``, ``12h``, ``forever``."""
    if max_hold == FOREVER:
        return "forever"
    milliseconds = max_hold // _MILLISECOND
    length, unit = next(one for one in _UNITS if milliseconds % one[0] == 0)
    return f"{milliseconds // length}{unit}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: ``1 event``, ``2 events``; ``many`` is a plural without an s."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def shard_text(shard: Shard) -> str:
    """Write a shard for JSON, paths and logs: decimal digits, or a UUID in lower case."""
    return str(shard)


#: Any that is written as a shard is read as one; whether it fits the feed is another question.
_NUMBER = whole(-(10**40), 10**40)


def parse_shard(text: str | int | uuid.UUID) -> Shard:
    """
    Read what :func:`shard_text` wrote.

    :raises InvalidArgumentError: neither a whole number nor a UUID.
    """
    if isinstance(text, uuid.UUID) or (isinstance(text, int) and not isinstance(text, bool)):
        return text
    with suppress(ValueError):
        return _NUMBER(text)
    with suppress(ValueError):
        found = uuid.UUID(str(text).strip())
        # Python passes over what int() does: 1_0, and digits of other scripts.
        if found.hex == str(text).strip().strip("{}").replace("-", "").lower():
            return found
    raise InvalidArgumentError(f"{text!r} is not a shard; expected a whole number or a UUID", value=text)


def parse_shards(shards: object) -> tuple[Shard, ...] | None:
    """
    Read shards: a list, or a text with commas between them; None for all.

    :raises InvalidArgumentError: names all that are wrong.
    """
    if shards is None:
        return None
    given = [part for part in shards.split(",") if part.strip()] if isinstance(shards, str) else shards
    found: list[Shard] = []
    problems = []
    if isinstance(given, (bytes, Mapping)) or not isinstance(given, Iterable):
        problems.append(f"{shards!r} is not a list of shards, or None for all")
        given = ()
    for shard in given:
        try:
            found.append(parse_shard(shard))
        except InvalidArgumentError as problem:
            problems.append(problem.message)
    if not found and not problems:
        problems.append("no shard is named: name at least one, or omit shards for all")
    if len(set(found)) < len(found):
        problems.append("a shard is named twice")
    if problems:
        raise InvalidArgumentError("; ".join(problems), problems=problems)
    return tuple(found)


def check_shard(shard: Shard, shard_key_type: str) -> None:
    """
    Check that a shard fits its feed's shard key type.

    :raises InvalidArgumentError: it does not.
    """
    bits = INTEGER_SHARD_BITS.get(shard_key_type)
    if bits is None:
        fits = isinstance(shard, uuid.UUID)
    else:
        low, high = (0, 255) if shard_key_type == "tinyint" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        fits = isinstance(shard, int) and not isinstance(shard, bool) and low <= shard <= high
    if not fits:
        raise InvalidArgumentError(
            f"shard {shard_text(shard)!r} does not match the feed's shard key type {shard_key_type}",
            shard=shard,
        )


def check_shards(info: FeedInfo, shards: Sequence[Shard] | None) -> None:
    """
    Check that shards fit their feed, each named once.

    :param shards: None for all, which always fit.
    :raises InvalidArgumentError: names all that do not.
    """
    problems = []
    for shard in shards or ():
        try:
            check_shard(shard, info.shard_key_type)
        except InvalidArgumentError as problem:
            problems.append(problem.message)
    if len(set(shards or ())) < len(shards or ()):
        problems.append("a shard is named twice")
    InvalidArgumentError.collect(f"feed {info.name!r}", problems)


def check_known_shards(
    feed: str, shards: Sequence[Shard] | None, known: Sequence[Shard], purpose: str
) -> None:
    """
    Check that shards have had an event.

    :param purpose: what they are named for, a verb: ``export``.
    :raises ShardNotFoundError: names those that have not, and those that there are.
    """
    unknown = [shard_text(shard) for shard in shards or () if shard not in known]
    if unknown:
        raise ShardNotFoundError(
            f"feed {feed!r} never had an event in shard {', '.join(unknown)}; it has "
            f"{', '.join(map(shard_text, known)) or 'no shards yet'}. Omit shards to {purpose} all "
            "shards",
            feed=feed,
            shards=unknown,
        )


@dataclass(frozen=True)
class Event:
    """
    One event: its position in the order and the primary key of its row.

    :param key: values of the feed's key columns, in their order.
    """

    ulid: Ulid
    key: tuple[Any, ...]


@dataclass(frozen=True)
class Page:
    """
    Events of a shard in ascending ULID.

    An empty page means that the shard is at its head; a short one does not.
    """

    shard: Shard
    events: tuple[Event, ...]

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    @property
    def last(self) -> Ulid | None:
        """The cursor to go on from; None on an empty page."""
        return self.events[-1].ulid if self.events else None


# ---- names of folders


def quote_name(name: str) -> str:
    """
    Write a name so that it can name a folder everywhere; distinct names get distinct folders.

    Each character outside ``[A-Za-z0-9._-]`` becomes ``-x<code point>-``, in hexadecimal digits, and so does
    a ``_`` or ``.`` in front, which would hide the folder: ``order items`` is ``order-x20-items``.

    :raises InvalidArgumentError: the name has half a character, which no folder has.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"the name {name[:_SHOWN]!r} contains half a character (a lone surrogate), which folders "
            "and documents cannot contain; rename the table"
        ) from None
    return _UNUSUAL.sub(lambda match: f"-x{ord(match[0]):02X}-", name)


def unquote_name(folder: str) -> str:
    """Read what :func:`quote_name` wrote."""
    return _ESCAPED.sub(_character, folder)


def _character(match: re.Match[str]) -> str:
    code = int(match[1], 16)
    return match[0] if code > _MOST_CODE or code in _SURROGATES else chr(code)


def folder_problems(*names: str) -> list[str]:
    """Describe the names that are too long for a folder."""
    sizes = {name: len(quote_name(name)) for name in names}
    return [
        f"the name {name[:_SHOWN]!r} needs a folder of {size} characters in outputs, and file systems "
        f"allow {MOST_BYTES} (each character other than A-Z a-z 0-9 . _ - takes 5 to 9); choose a "
        "shorter name"
        for name, size in sizes.items()
        if size > MOST_BYTES
    ]
