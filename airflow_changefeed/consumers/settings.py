# SPDX-License-Identifier: Apache-2.0
"""The settings of a consumer: its options, their checks, its pace, and where it begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.consumer import (
    Beginning,
    ConsumerInfo,
    ConsumerSpec,
    DeadLetter,
    Position,
    parse_position,
    place_before,
)
from airflow_changefeed.core.cursor import check_consumer
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, ShardStatus, check_shards, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import (
    Reader,
    flag,
    json_object,
    number,
    optional,
    read_each,
    read_value,
    read_values,
    whole,
)
from airflow_changefeed.exceptions import (
    ConsumerNotFoundError,
    CursorBeyondFeedError,
    InvalidArgumentError,
    PurgedError,
)
from airflow_changefeed.sources.base import MAX_PAGE_SIZE, FeedSource

if TYPE_CHECKING:
    from airflow_changefeed.consumers.page import EventColumns
    from airflow_changefeed.sources.base import FeedReader


#: Seconds of a day at most.
_SECONDS = number(above=0, highest=86_400, unit="seconds")
#: How each option of a consumer and of a run is read.
OPTIONS: dict[str, Reader] = {
    "register_timeout": optional(number(0, 86_400, "seconds")),
    "emit_timeout": _SECONDS,
    "poll_interval": _SECONDS,
    "at_most_shards": optional(whole(1)),
    "max_events": optional(whole(1)),
    # A century is no limit that anybody means.
    "handler_timeout": optional(number(above=0, highest=36_525 * 86_400, unit="seconds")),
}
_SUBJECT = "options of the default consumer"
_MAX_MILLISECONDS = 86_400_000
_WAIT = optional(number(0, _MAX_MILLISECONDS, "milliseconds"))
_READ: dict[str, Reader] = {
    **dict.fromkeys(("with_epoch", "with_sequence", "with_tid", "batch_consume", "with_txn_sentinel"), flag),
    **dict.fromkeys(("register_timeout", "poll_timeout"), _WAIT),
    "emit_timeout": number(1, _MAX_MILLISECONDS, "milliseconds"),
}


@dataclass(frozen=True)
class DefaultOptions:
    """
    Options of the default consumer; names and units are Comdb2's.

    :param with_epoch, with_sequence, with_tid: whether rows have this column.
    :param batch_consume: whether all events of a transaction are consumed together.
    :param with_txn_sentinel: whether a row marks the end of each transaction.
    :param register_timeout: milliseconds to wait for a shard before a timeout row; None waits forever.
    :param poll_timeout: milliseconds to wait for an event before a timeout row; None waits forever.
    :param emit_timeout: milliseconds the client has to request the next row while another consumer waits.
    :raises InvalidArgumentError: names every problem.
    """

    with_epoch: bool = False
    with_sequence: bool = False
    with_tid: bool = False
    batch_consume: bool = False
    with_txn_sentinel: bool = False
    register_timeout: float | None = None
    poll_timeout: float | None = None
    emit_timeout: float = 10_000

    def __post_init__(self) -> None:
        problems = read_values(self, _READ)
        if self.with_txn_sentinel is True and self.batch_consume is not True:
            problems.append("with_txn_sentinel needs batch_consume, which marks where a transaction ends")
        InvalidArgumentError.collect(_SUBJECT, problems)

    @classmethod
    def from_json(cls, text: str) -> DefaultOptions:
        """
        Read them.

        :raises InvalidArgumentError: not a JSON object, unknown names or values that mean nothing; names
            every problem.
        """
        given = read_value(_SUBJECT, text, json_object)
        problems = [
            f"unknown option {name!r}; known options are {', '.join(_READ)}"
            for name in given
            if name not in _READ
        ]
        try:
            found = cls(**{name: value for name, value in given.items() if name in _READ})
        except InvalidArgumentError as error:
            problems += error.facts["problems"]
        InvalidArgumentError.collect(_SUBJECT, problems)
        return found


@dataclass(frozen=True)
class Pace:
    """
    How a consumer waits and how much it reads at a time.

    :param page_size: events of a shard read at a time, 1 to 100_000; larger batches raise it, up to
        10,000.
    :param wait: called with the maximum seconds to wait; may return sooner, for example when there are
        new events or the process should end.
    :param clock: monotonic seconds. It only determines how often the database is queried; the database's
        own clock decides which leases have expired.
    """

    page_size: int = 1000
    wait: Callable[[float], object] = field(default_factory=lambda: threading.Event().wait)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        problems = read_values(self, {"page_size": whole(1, MAX_PAGE_SIZE, "events")})
        InvalidArgumentError.collect("pace", problems)


def create_consumer(
    source: FeedSource,
    spec: ConsumerSpec,
    start: Position | str = Beginning.EARLIEST,
    *,
    by: str,
) -> ConsumerInfo:
    """
    Create a consumer. Idempotent: repeating it with the same settings leaves its position unchanged.

    :param start: ``earliest``: at the first event not purged. ``latest``: after everything committed now,
        which is ordered first. A time: at the first event of that time or later. A ULID: after it. Shards
        created later are read from their first event, or from the same time or ULID.
    :param by: who creates it.
    :raises ConsumerSetupError: it exists with other settings, or as an export's cursor.
    :raises PurgedError: events after the start are purged.
    :raises FutureTimeError: the start is in the future by the database's clock.
    :raises CursorBeyondFeedError: the ULID is beyond the high-water time of every shard.
    :raises InvalidArgumentError: the start cannot be parsed, or settings are invalid.
    """
    position = parse_position(start)
    try:
        known = source.consumer(spec.consumer, spec.feed)
    except ConsumerNotFoundError:
        begin, starts = resolve(source, spec.feed, position)
    else:
        begin, starts = known.begin, {}
    return source.create_consumer(spec, begin=begin, starts=starts, by=by)


def resolve(source: FeedSource, feed: str, start: Position) -> tuple[Ulid, dict[Shard, Ulid]]:
    """Return where later shards begin, and where each existing shard begins; both exclusive."""
    if start is Beginning.EARLIEST:
        return Ulid.MIN, {status.shard: status.purged_upto for status in source.shards(feed)}
    if start is Beginning.LATEST:
        # Rows waiting in the outbox were committed before now, so they are not new.
        source.drain(feed)
        return Ulid.MIN, {status.shard: status.head or status.purged_upto for status in source.shards(feed)}
    before = place_before(start.time if isinstance(start, Ulid) else start, feed, source.now())
    after = start if isinstance(start, Ulid) else before
    statuses = source.shards(feed)
    _check_purged(feed, statuses, after)
    if isinstance(start, Ulid):
        _check_beyond(feed, statuses, after)
    # A shard refuses a cursor beyond its high-water time; all its later events are after its head anyway.
    return after, {status.shard: min(after, status.highest_cursor) for status in statuses}


def _check_purged(feed: str, statuses: list[ShardStatus], after: Ulid) -> None:
    purged = {status.shard: status.purged_upto for status in statuses if status.purged_upto > after}
    if purged:
        raise PurgedError(
            f"feed {feed!r}: a consumer cannot begin after {after}; events are purged up to "
            f"{', '.join(f'{upto} in shard {shard_text(shard)}' for shard, upto in purged.items())}. "
            "Begin at earliest, and read the purged events from an export",
            feed=feed,
            after=after,
        )


def _check_beyond(feed: str, statuses: list[ShardStatus], after: Ulid) -> None:
    # A capture's shard is there before its first event; its high-water time says nothing then.
    used = [status for status in statuses if status.head is not None or status.purged_upto > Ulid.MIN]
    if used and all(after > status.highest_cursor for status in used):
        raise CursorBeyondFeedError(
            f"feed {feed!r}: a consumer cannot begin after {after}, because the ULID is beyond the "
            "high-water time of every shard. The ULID is from another feed, or the database was "
            "restored. Begin at latest",
            feed=feed,
            cursor=after,
        )


def check_events(source: FeedReader, dead_letters: Sequence[DeadLetter]) -> None:
    """
    Refuse to retry dead letters whose events were purged: the retry would stop their consumer.

    :raises PurgedError: names the first.
    """
    for feed in dict.fromkeys(one.feed for one in dead_letters):
        purged = {status.shard: status.purged_upto for status in source.shards(feed)}
        for one in dead_letters:
            if one.feed == feed and one.ulid <= purged.get(one.shard, Ulid.MIN):
                raise purged_error(one)


def purged_error(dead_letter: DeadLetter) -> PurgedError:
    """Return the error of a dead letter that cannot be retried, with the remedy."""
    return PurgedError(
        f"dead letter {dead_letter.number} of consumer {dead_letter.consumer!r} of feed {dead_letter.feed!r} "
        f"cannot be retried, because its event {dead_letter.ulid} was purged. Drop it: "
        f"{shell('dead-letters drop', str(dead_letter.number), '--note', '...')}",
        consumer=dead_letter.consumer,
        feed=dead_letter.feed,
        shard=dead_letter.shard,
        number=dead_letter.number,
    )


def checked_options(name: str, feed: str, **given: Any) -> dict[str, Any]:
    """
    Read a consumer's own options.

    :param given: by the names of ``OPTIONS``.
    :raises InvalidArgumentError: names every invalid option.
    """
    values, problems = read_each(given, OPTIONS)
    try:
        check_consumer(name)
    except InvalidArgumentError as problem:
        problems.insert(0, problem.message)
    InvalidArgumentError.collect(f"consumer {name!r} of feed {feed!r}", problems)
    return values


def open_columns(
    source: FeedSource, feed: str, shards: Sequence[Shard] | None, **asked: bool
) -> EventColumns:
    """
    Check the options against the feed and describe its events.

    :raises FeedNotFoundError: the feed does not exist.
    :raises InvalidArgumentError: shards of the wrong type, or metadata that the feed does not have.
    """
    from airflow_changefeed.consumers.page import EventColumns

    check_shards(source.feed(feed), shards)
    if source.describe().get("bulk_reader") == "adbc":
        raise InvalidArgumentError(
            "a consumer keeps the file open, and the bulk reader 'adbc' could damage an open file; "
            "open the source with bulk_reader='sqlite3'"
        )
    return EventColumns.of(feed, source.schema(feed), **asked)
