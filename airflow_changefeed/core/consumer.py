# SPDX-License-Identifier: Apache-2.0
"""
A consumer: its settings, leases, attempts, dead letters and position.

One active consumer of a queue with fail-over, consumption that is atomic with the work, and retries until
success are those of Comdb2's Lua consumers; the log of invocations is that of Hasura's event triggers.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, ClassVar

from airflow_changefeed.core.capture import CaptureGap
from airflow_changefeed.core.codec import decode, decode_text, encode
from airflow_changefeed.core.cursor import CursorRow, check_consumer
from airflow_changefeed.core.feed import FeedInfo, Shard, ShardStatus
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import (
    floor_to_millisecond,
    format_time,
    one_of,
    optional,
    parse_time,
    read_values,
    whole,
)
from airflow_changefeed.exceptions import (
    ChangefeedError,
    FutureTimeError,
    InvalidArgumentError,
    InvalidUlidError,
    InvalidWindowError,
)

MAX_ATTEMPTS = 1_000_000
#: UTF-16 code units of a reason or note that are kept, and of who did something; the rest is cut.
MAX_REASON = 2_000
MAX_BY = 256
#: Characters that the name of a lease's holder has of the run that consumes; behind them is the process.
LONGEST_RUN = 150
#: Maximum number of events or rows that an overview counts; more are shown as "or more".
COUNTED = 10_000
_MAX_KEEP = timedelta(days=36_500)


class Beginning(str, Enum):
    """A position in a feed that is not a time or a ULID."""

    EARLIEST = "earliest"
    LATEST = "latest"


_BEGINNING = one_of([one.value for one in Beginning])
#: Where a consumer begins, or a cursor is set to.
Position = Ulid | datetime | Beginning


class OnPoison(str, Enum):
    """
    What is done with an event that failed too often.

    ``STOP``: the consumer ends with an error, and begins with this event again. ``PARK``: the event becomes a
    dead letter, and the consumer continues after it.
    """

    STOP = "stop"
    PARK = "park"


class DeadLetterState(str, Enum):
    """
    What became of a dead letter.

    ``PARKED``: it waits for a person. ``RETRY``: the consumer takes it next. ``DONE``: it was consumed.
    ``DROPPED``: a person discarded it.
    """

    PARKED = "parked"
    RETRY = "retry"
    DONE = "done"
    DROPPED = "dropped"

    @property
    def is_open(self) -> bool:
        """Whether the event is still to be consumed."""
        return self in (DeadLetterState.PARKED, DeadLetterState.RETRY)


class Outcome(str, Enum):
    """How an attempt at events ended. ``LOST``: nothing was written, as another process held the lease."""

    CONSUMED = "consumed"
    FAILED = "failed"
    LOST = "lost"


def parse_position(value: object) -> Position:
    """
    Read a position, typed or as text: ``earliest``, ``latest``, a time with its zone, or a ULID.

    :raises InvalidArgumentError: none of these; the message says why.
    """
    if isinstance(value, Ulid):
        return value
    with suppress(ValueError):
        return Beginning(_BEGINNING(value))
    try:
        # A clock has microseconds; a beginning takes all events of its millisecond.
        return parse_time(floor_to_millisecond(value) if isinstance(value, datetime) else value)
    except InvalidWindowError as no_time:
        text = value.strip() if isinstance(value, str) else ""
        # A text with other characters than letters and digits is meant as a time.
        if not text.isalnum():
            raise InvalidArgumentError(no_time.message, value=value) from None
    try:
        return Ulid.parse_text(text)
    except InvalidUlidError as no_ulid:
        why = f". {no_ulid.message}" if len(text) == len(str(Ulid.MIN)) else ""
        raise InvalidUlidError(
            f"{text!r} is not a ULID, a time with its zone (2026-03-01T00:00:00Z), earliest or latest{why}",
            value=text,
        ) from None


def place_before(time: datetime, feed: str, now: datetime) -> Ulid:
    """
    Return the ULID before the first event of a time.

    :raises FutureTimeError: the time is in the future.
    """
    if time > now:
        raise FutureTimeError(
            f"feed {feed!r}: {format_time(time)} is in the future; the database's clock is at "
            f"{format_time(now)}. For the current time use latest",
            feed=feed,
        )
    return Ulid.floor(time).previous()


@dataclass(frozen=True)
class ConsumerSpec:
    """
    The settings of a consumer.

    :param consumer: its name, 1 to 128 printable characters without ``:``.
    :param feed: whose events it consumes.
    :param max_attempts: failures of one event before ``on_poison``; None retries forever.
    :param on_poison: what is done then.
    :param keep_log: how long its attempts stay in the log of invocations.
    :param ddl: whether it gets the events of type ``ddl``: changes of captured columns. Otherwise its cursor
        passes them.
    """

    #: ``create_consumer:T`` stores what its caller wrote; a misspelt setting would do nothing.
    REFUSES_UNKNOWN: ClassVar[bool] = True

    consumer: str
    feed: str
    max_attempts: int | None = 10
    on_poison: OnPoison = OnPoison.STOP
    keep_log: timedelta = timedelta(days=7)
    ddl: bool = False

    def __post_init__(self) -> None:
        problems = []
        try:
            check_consumer(self.consumer)
        except InvalidArgumentError as problem:
            problems.append(problem.message)
        problems += read_values(self, {"max_attempts": optional(whole(1, MAX_ATTEMPTS))})
        if self.on_poison is OnPoison.PARK and self.max_attempts is None:
            problems.append(
                "on_poison 'park' needs max_attempts: without max_attempts no event is ever parked"
            )
        if not timedelta(0) <= self.keep_log <= _MAX_KEEP:
            problems.append(f"keep_log must be 0 to {_MAX_KEEP.days} days, not {self.keep_log}")
        InvalidArgumentError.collect(f"consumer {self.consumer!r} of feed {self.feed!r}", problems)

    def to_json(self) -> str:
        """Write the settings, without consumer and feed; equal settings give equal texts."""
        content = encode(self)
        del content["consumer"], content["feed"]
        if not self.ddl:
            # The settings of a consumer from before there were such events are the same text.
            del content["ddl"]
        return json.dumps(content, sort_keys=True)

    @classmethod
    def from_json(cls, consumer: str, feed: str, text: str) -> ConsumerSpec:
        """
        Read what :meth:`to_json` or a caller of ``create_consumer:T`` wrote.

        :raises InvalidArgumentError: a value is wrong, or a name is unknown.
        """
        where = f"settings of consumer {consumer!r}"
        settings = decode_text(dict[str, Any], text, named=where)
        return decode(cls, {**settings, "consumer": consumer, "feed": feed}, named=where)


@dataclass(frozen=True)
class ConsumerInfo:
    """
    A consumer as its database describes it.

    :param begin: exclusive; where shards begin that come later.
    """

    spec: ConsumerSpec
    begin: Ulid
    created_at: datetime
    created_by: str
    resource_version: int = 1


@dataclass(frozen=True)
class Attempt:
    """
    One attempt at events of a shard, for the log of invocations.

    :param first, last: of the events, inclusive both.
    :param number: 1 for the first attempt at ``first``, then the next ones.
    :param error: why it failed; None if it succeeded.
    """

    first: Ulid
    last: Ulid
    events: int
    number: int
    started_at: datetime
    outcome: Outcome = Outcome.CONSUMED
    error: str | None = None


@dataclass(frozen=True)
class Invocation:
    """An entry of the log: an attempt, and who made it under which fencing token."""

    number: int
    consumer: str
    feed: str
    shard: Shard
    attempt: Attempt
    ended_at: datetime
    holder: str
    fencing_token: int


@dataclass(frozen=True)
class Parked:
    """An event that becomes a dead letter: which, after how many failures, and why."""

    ulid: Ulid
    attempts: int
    reason: str


@dataclass(frozen=True)
class Consumption:
    """
    A step of a consumer in a shard, made in one transaction with its work, or not at all.

    :param upto: inclusive; the new cursor. The present one where only a dead letter is resolved.
    :param expected_version: resource version of the cursor row as it was last seen.
    :param fencing_token: the consumer's grant; refused unless it is the newest, expired or not.
    :param seconds: for which the lease is prolonged, from now.
    :param attempt: for the log; None writes nothing there.
    :param dead_letter: number of a dead letter that was consumed with this step.
    """

    shard: Shard
    upto: Ulid
    expected_version: int
    fencing_token: int
    seconds: float
    attempt: Attempt | None = None
    parked: Parked | None = None
    dead_letter: int | None = None


@dataclass(frozen=True)
class DeadLetter:
    """
    An event that a consumer parked. Until it is done or dropped, its window is not complete for the consumer,
    and a purge passes it only if it is older than the feed's ``max_hold``.

    :param resolved_at, resolved_by, note: when, by whom and why it was done or dropped; None before.
    """

    ALSO_WRITTEN: ClassVar[tuple[str, ...]] = ("time",)

    number: int
    consumer: str
    feed: str
    shard: Shard
    ulid: Ulid
    state: DeadLetterState
    attempts: int
    reason: str
    parked_at: datetime
    parked_by: str
    resolved_at: datetime | None = field(default=None)
    resolved_by: str | None = None
    note: str | None = None
    resource_version: int = field(default=1, compare=False)

    @property
    def time(self) -> datetime:
        """Feed time of the event."""
        return self.ulid.time


@dataclass(frozen=True)
class ConsumerPosition:
    """
    A consumer's position in a shard.

    :param behind: events in the feed beyond its cursor, at most ``COUNTED``.
    :param next_event: the first of them.
    :param before: events in the feed before its beginning, at most ``COUNTED``: they were not purged, and no
        backfill has completed them. 0 unless the beginning was implied.
    :param before_from: the first of them; None if there are none.
    """

    row: CursorRow
    behind: int
    next_event: Ulid | None
    before: int
    before_from: Ulid | None


@dataclass(frozen=True)
class OutputCheck:
    """
    What the newest look at an output's files found, for those who do not read the files.

    :param path: root of the output, without secrets.
    :param checked_at: when the look began, by the database's clock.
    :param missing: ranges that should be complete and are not.
    :param first: begin of the first of them; None if none is missing.
    """

    consumer: str
    feed: str
    path: str
    checked_at: datetime
    checked_by: str
    missing: int
    first: datetime | None


@dataclass(frozen=True)
class ShardOverview:
    """
    A shard and its consumers.

    :param waiting: committed rows in the outbox, at most ``COUNTED``; 0 for serialized writers.
    :param waiting_since: ``time_hint`` of the first of them; None if none waits.
    :param first_event: of those in the feed; None without any, and if the database's objects are older than
        this package.
    """

    status: ShardStatus
    waiting: int
    waiting_since: datetime | None
    consumers: tuple[ConsumerPosition, ...]
    first_event: Ulid | None = None

    @property
    def shard(self) -> Shard:
        """The shard."""
        return self.status.shard


@dataclass(frozen=True)
class FeedOverview:
    """
    A feed at a glance: its shards, what waits in them, and the positions of its consumers.

    :param shards: those asked for, in their order: numbers ascending, UUIDs by text.
    :param shard_count: total number of shards.
    :param consumers: those with settings. Exports have none and appear in ``shards`` only.
    :param gaps: of a capture, those that are open; None for other feeds, and if the login may not read them.
    :param checks: of the outputs of its exports, by consumer; those that were recorded.
    :param problem: why its shards could not be read, for example a missing table; None if they were.
    """

    info: FeedInfo
    shards: tuple[ShardOverview, ...]
    shard_count: int
    consumers: tuple[ConsumerInfo, ...] = ()
    gaps: tuple[CaptureGap, ...] | None = None
    checks: tuple[OutputCheck, ...] = ()
    problem: ChangefeedError | None = None

    def check(self) -> FeedOverview:
        """
        Return this overview, of a feed that was read.

        :raises ChangefeedError: the feed's problem.
        """
        if self.problem is not None:
            raise self.problem
        return self

    @property
    def first_event(self) -> Ulid | None:
        """
        The first event of these shards; None if it is not known, as after a purge.

        Of a feed that never had one: where its first consumer of all events was created.
        """
        shards = [one.status for one in self.shards]
        known = {one.shard: one.first_event for one in self.shards}
        if any(one.purged_upto > Ulid.MIN or (one.head and not known[one.shard]) for one in shards):
            return None
        events = [event for event in known.values() if event is not None]
        events += [Ulid.floor(one.waiting_since) for one in self.shards if one.waiting_since is not None]
        created = [Ulid.floor(one.created_at) for one in self.consumers if one.begin == Ulid.MIN]
        return min(events or created, default=None)

    def positions(self, consumer: str) -> list[ConsumerPosition]:
        """Return the positions of a consumer in these shards."""
        return [one for shard in self.shards for one in shard.consumers if one.row.consumer == consumer]

    def lost_shards(self, consumer: str) -> list[Shard]:
        """
        Return the shards, of these, in which a consumer is lost: events that it has not read were purged.

        In a shard without its cursor, a consumer of events has yet to read all that came after its begin.
        """
        begins = [info.begin for info in self.consumers if info.spec.consumer == consumer]
        lost = []
        for one in self.shards:
            cursors = [position.row.ulid for position in one.consumers if position.row.consumer == consumer]
            if any(place < one.status.purged_upto for place in cursors or begins):
                lost.append(one.shard)
        return lost
