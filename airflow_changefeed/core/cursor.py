# SPDX-License-Identifier: Apache-2.0
"""
Cursors: the database's row for a consumer and shard, and the Airflow Variable publishing all of a feed.

A row has the frontier of a windowed export: where the unbroken run of complete ranges begins and ends. The
ranges may end in any order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import ClassVar

from airflow_changefeed.core.codec import decode, dump, encode, load
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import FOREVER, DatabaseIdentity, Shard, max_hold_text, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange, merge, uncovered
from airflow_changefeed.core.values import format_time
from airflow_changefeed.core.window import is_border
from airflow_changefeed.exceptions import CursorFormatError, InvalidArgumentError, PurgedError

KIND = "changefeed cursors"
SCHEMA_VERSION = 1
KEY_PREFIX = "changefeed"
#: Changes that a database keeps of each consumer and shard: the newest ones.
KEPT_CHANGES = 200
#: Where people read what to do after a restore.
RESTORED_PAGE = "see 'The database was restored to an earlier state' on the page 'Recover'"
_KEY_LIMIT = 250
_URL_UNSAFE = re.compile(r"[^!-~]|[#?%/\\]")


@dataclass(frozen=True)
class Frontier:
    """
    What a consumer has completed of one shard.

    :param start: exclusive; where the unbroken run of complete ranges begins. At first this is where the
        consumer's first window begins; complete ranges that reach it extend the run backwards.
    :param upto: inclusive; the end of the run: the cursor.
    :param ahead: complete ranges beyond a gap; ascending, none touching the next nor ``upto``.
    :param before: complete ranges before ``start``, by a backfill; ascending, none touching the next nor
        ``start``.
    """

    start: Ulid
    upto: Ulid
    ahead: tuple[UlidRange, ...] = ()
    before: tuple[UlidRange, ...] = ()

    def __post_init__(self) -> None:
        if self.upto < self.start:
            raise CursorFormatError(f"frontier {self.upto} is before its start {self.start}")
        run = UlidRange(self.start, self.upto)
        pieces = [*self.before, run, *self.ahead]
        if merge(pieces) != pieces or any(piece.is_empty for piece in (*self.before, *self.ahead)):
            raise CursorFormatError(
                f"ranges before or ahead of frontier {self.upto} are not ascending and separate"
            )

    @classmethod
    def beginning(cls, after: Ulid) -> Frontier:
        """Return the frontier of a consumer that has completed nothing and begins after a ULID."""
        return cls(after, after)

    @property
    def has_moved(self) -> bool:
        """Whether any range was completed."""
        return self.upto > self.start or bool(self.ahead or self.before)

    @property
    def complete_ranges(self) -> tuple[UlidRange, ...]:
        """All ranges that were completed, ascending; that of the run may be empty."""
        return (*self.before, UlidRange(self.start, self.upto), *self.ahead)

    def begin_at(self, after: Ulid) -> Frontier:
        """
        Let the consumer begin earlier; this is possible until it has completed a range.

        Runs of a backfill plan in any order; the earliest that plans before the first one ends is the
        beginning. Afterwards an earlier window extends the beginning backwards once all between is complete.
        """
        return self if self.has_moved or after >= self.start else Frontier.beginning(after)

    def complete(self, *done: UlidRange) -> Frontier:
        """
        Add complete ranges; the order of such calls does not matter, nor do repetitions and overlaps.

        :param done: each ``(after, upto]``. One that touches the run from ``start`` to ``upto``, from above
            or below, extends it; the others wait in ``ahead`` and ``before`` until they do.
        """
        pieces = [piece for piece in (*self.complete_ranges, *done) if not piece.is_empty]
        # An empty (start, start] joins the pieces that touch it, and stays where none does.
        merged = merge([UlidRange(self.start, self.start), *pieces])
        at = next(place for place, one in enumerate(merged) if one.after <= self.start <= one.upto)
        return Frontier(merged[at].after, merged[at].upto, tuple(merged[at + 1 :]), tuple(merged[:at]))

    def moved_to(self, ulid: Ulid) -> Frontier:
        """
        Return the frontier after a person moved the cursor: forwards it absorbs complete ranges on the way,
        backwards it forgets what was completed after the new position, and below ``start`` what was before.
        """
        if ulid < self.start:
            return Frontier.beginning(ulid)
        if ulid <= self.upto:
            return replace(self, upto=ulid, ahead=())
        return self.complete(UlidRange(self.start, ulid))

    def missing(self) -> tuple[UlidRange, ...]:
        """
        Return the gaps which hold the frontier back; empty when nothing is complete ahead of it.

        What lies before ``start`` is not missing.
        """
        ends = [self.upto, *(piece.upto for piece in self.ahead)]
        return tuple(UlidRange(end, piece.after) for end, piece in zip(ends, self.ahead, strict=False))


@dataclass(frozen=True)
class Cursor:
    """
    A consumer's position in a shard, as published.

    :param ulid: the last ULID consumed; after a complete window ``floor(end) - 1``.
    :param resource_version: bumped at every change of the row.
    :param moved_at: by the database's clock, UTC.
    :param moved_by: the run, person or program that moved it.
    """

    ALSO_WRITTEN: ClassVar[tuple[str, ...]] = ("time",)

    ulid: Ulid
    resource_version: int
    moved_at: datetime
    moved_by: str = ""

    @property
    def time(self) -> datetime:
        """Feed time of the cursor, for people."""
        return self.ulid.time


class Began(str, Enum):
    """
    How the beginning of a consumer came about.

    ``CHOSEN``: a person or a program named the place. ``IMPLIED``: it is where the first windows begin that
    a run of an export planned, so events before it may be missed by mistake. ``ACCEPTED``: implied, and a
    person accepted that the export does not have what lies before.
    """

    CHOSEN = "chosen"
    IMPLIED = "implied"
    ACCEPTED = "accepted"


@dataclass(frozen=True)
class CursorRow:
    """
    The database's row for a consumer, feed and shard; it arbitrates (ADR 0004).

    :param fencing_token: of the newest grant; 0 before the first one.
    :param lease_holder: who holds the lease; None if it is not held.
    :param lease_expires: by the database's clock; None if it is not held.
    :param ack: inclusive; what the consumer no longer needs. A purge passes the lowest one only for
        events that are older than the feed's ``max_hold``.
    """

    consumer: str
    feed: str
    shard: Shard
    frontier: Frontier
    resource_version: int
    moved_at: datetime
    moved_by: str
    fencing_token: int = 0
    lease_holder: str | None = None
    lease_expires: datetime | None = None
    ack: Ulid = field(default=Ulid.MIN)
    began: Began = Began.IMPLIED

    @property
    def ulid(self) -> Ulid:
        """The cursor: the last ULID consumed."""
        return self.frontier.upto

    @property
    def has_windows(self) -> bool:
        """Whether it is of an export of windows: it stands where one may end, or waits for one."""
        return is_border(self.ulid) or bool(self.frontier.ahead)

    @property
    def acknowledged(self) -> tuple[UlidRange, ...]:
        """The ranges whose events the consumer has completed, and no longer needs."""
        start = self.frontier.start
        return (*self.frontier.before, UlidRange(start, max(start, self.ack)))

    def before_beginning(self, purged_upto: Ulid) -> list[UlidRange]:
        """
        Return the ranges before an implied beginning that no backfill has completed, ascending; none before
        one that was chosen or accepted.

        :param purged_upto: of the shard; what was purged is left out.
        """
        start = self.frontier.start
        if self.began is not Began.IMPLIED or start <= purged_upto:
            return []
        return uncovered(UlidRange(purged_upto, start), self.frontier.before)

    def is_lost(self, purged_upto: Ulid) -> bool:
        """Whether events after the cursor were purged, so that the consumer can no longer read them."""
        return self.ulid < purged_upto

    @property
    def cursor(self) -> Cursor:
        """The row as it is published."""
        return Cursor(self.ulid, self.resource_version, self.moved_at, self.moved_by)

    def is_held(self, now: datetime) -> bool:
        """Whether somebody holds the lease at a time of the database's."""
        return self.lease_expires is not None and self.lease_expires > now

    def lag(self, head: Ulid | None) -> float | None:
        """
        Return how far the cursor is behind the last event of its shard, in seconds of feed time.

        Events in the outbox have no time yet and do not count.

        :return: 0 at or after the last event; None for a cursor at the start of a shard that has events.
        """
        if head is None or self.ulid >= head:
            return 0.0
        return None if self.ulid == Ulid.MIN else (head.ms - self.ulid.ms) / 1000


@dataclass(frozen=True)
class CursorChange:
    """
    A change of a cursor.

    :param number: grows with each change of a database.
    :param before: where the cursor stood; None when the row was made.
    :param by: the run, person or program that made it.
    :param why: what was done, and the person's own words; None where a program moved on as it does.
    """

    number: int
    consumer: str
    feed: str
    shard: Shard
    before: Ulid | None
    after: Ulid
    resource_version: int
    at: datetime
    by: str
    why: str | None = None


@dataclass(frozen=True)
class CursorDocument:
    """
    The value of a consumer's Airflow Variable: the cursors of all its shards of a feed.

    :param is_intact: whether the digest fits the content; False after an edit by hand.
    :param database: identity of the feed's database.
    :param recovery_fork: of the database when this was published; None where it was not seen.
    """

    consumer: str
    feed: str
    shards: Mapping[Shard, Cursor]
    database: str
    is_intact: bool = True
    recovery_fork: str | None = None

    @classmethod
    def of_rows(
        cls, identity: DatabaseIdentity, consumer: str, feed: str, rows: Iterable[CursorRow]
    ) -> CursorDocument:
        """Return what should be published for the rows of a consumer and feed."""
        shards = {row.shard: row.cursor for row in rows}
        return cls(consumer, feed, shards, identity.id, recovery_fork=identity.recovery_fork)

    def to_json(self) -> str:
        """Write the Variable's value."""
        content = encode(self)
        del content["is_intact"]
        # Equal cursors give equal texts, in whatever order they were found.
        content["shards"] = dict(sorted(content["shards"].items()))
        return dump(KIND, SCHEMA_VERSION, content, indent=2)

    @classmethod
    def from_json(cls, text: str, *, key: str) -> CursorDocument:
        """
        Read a Variable's value, edited by hand or not.

        :raises CursorFormatError: the Variable is not a cursor.
        :raises UnsupportedVersionError: a newer version wrote it.
        """
        named = f"Airflow Variable {key!r}"
        if not text.strip():
            raise CursorFormatError(
                f"{named} is empty. Overwrite the Variable with the cursors in the database (publish). "
                "If it is still empty then, a secrets backend of Airflow returns an empty text for "
                "Variables that it does not have: that backend must not answer for names that begin "
                f"with {KEY_PREFIX!r}",
                named=named,
            )
        try:
            content = load(
                text, KIND, SCHEMA_VERSION, named=named, error=CursorFormatError, check_digest=False
            )
            return decode(cls, content, named=named, error=CursorFormatError)
        except CursorFormatError as problem:
            raise CursorFormatError(
                f"{problem.message}. Overwrite it with the cursors in the database (publish)", named=named
            ) from None


def variable_prefix(database: str) -> str:
    """Return how the names of all Variables of a database begin: with the first part of its identity."""
    return f"{KEY_PREFIX}:{database.partition('-')[0]}:"


def variable_key(database: str, consumer: str, feed: str) -> str:
    """
    Return the name of the Variable of a consumer and feed.

    Names are at most 250 characters (Airflow's column), and a task's API puts them into a URL as they are: a
    longer one, or one with characters that mean something there or are not of ASCII, keeps what it can and
    gets a hash.

    :param database: its identity, of which the name has the first part and the value has all.
    """
    return distinct_name(f"{variable_prefix(database)}{consumer}:{feed}", _URL_UNSAFE, _KEY_LIMIT)


def distinct_name(name: str, unsafe: re.Pattern[str], most: int, mark: str = "~", digits: int = 32) -> str:
    """
    Return a name where not all names can be: what it can keep, and a hash, so that it stays another one.

    :param unsafe: characters that cannot be there.
    """
    plain = unsafe.sub("_", name)
    if plain == name and len(name) <= most:
        return name
    # Half a character, too: a name that nobody can have must not stop a search among Variables.
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:digits]
    return f"{plain[: most - len(mark) - digits]}{mark}{digest}"


def seal_command(feed: str, until: datetime) -> str:
    """Return the command that seals a feed, ready to paste."""
    return shell("seal", "--feed", feed, "--until", format_time(until))


def revoke_command(row: CursorRow) -> str:
    """Return the command that revokes the lease of a cursor."""
    words = ("--shard", shard_text(row.shard), "--fencing-token", str(row.fencing_token))
    return shell("consumer revoke", row.consumer, "--feed", row.feed, *words)


def set_command(consumer: str, feed: str, shard: Shard, to: str) -> str:
    """Return the command that sets a cursor."""
    return shell("cursor set", consumer, "--feed", feed, "--shard", shard_text(shard), "--to", to)


def lost_text(cursor: Ulid, purged_upto: Ulid, max_hold: timedelta = FOREVER) -> str:
    """Return what has become of a consumer that is lost."""
    after = (
        "the start of the feed" if cursor == Ulid.MIN else f"its cursor {cursor} ({format_time(cursor.time)})"
    )
    return (
        f"the consumer is lost: events after {after} were purged, up to {purged_upto} "
        f"({format_time(purged_upto.time)})"
        + (f"; max_hold of the feed is {max_hold_text(max_hold)}" if max_hold != FOREVER else "")
    )


def lost_remedy(consumer: str, feed: str, shard: Shard, whole: datetime | None = None) -> str:
    """
    Return what to do about a consumer that is lost.

    :param whole: begin of the first window that is whole, of an export of windows whose length is known.
    """
    to = "earliest" if whole is None else format_time(whole)
    left = "event that is left" if whole is None else "window that is whole"
    return (
        "If you need the purged events, read them from an export. Then move the cursor to the first "
        f"{left}: {set_command(consumer, feed, shard, to)}"
    )


def lost_error(consumer: str, feed: str, shard: Shard, cursor: Ulid, purged_upto: Ulid) -> PurgedError:
    """Return the error of a consumer that is lost: what has become of it, and the remedy."""
    return PurgedError(
        f"consumer {consumer!r} of feed {feed!r}, shard {shard_text(shard)}: "
        f"{lost_text(cursor, purged_upto)}. {lost_remedy(consumer, feed, shard)}",
        consumer=consumer,
        feed=feed,
        shard=shard,
        after=cursor,
        purged_upto=purged_upto,
    )


def check_consumer(consumer: object) -> None:
    """
    Check a consumer's name: 1 to 128 characters, printable, without ``:``, which separates it in names of
    Variables.

    :raises InvalidArgumentError: it is not such a name.
    """
    name = consumer.strip() if isinstance(consumer, str) else ""
    if not name or len(str(consumer)) > 128 or ":" in name or not str(consumer).isprintable():
        raise InvalidArgumentError(
            f"consumer {consumer!r} is not a valid name; use 1 to 128 printable characters without ':'",
            consumer=consumer,
        )
