# SPDX-License-Identifier: Apache-2.0
"""Events as delivered to consumers: alone, in batches, unreadable ones, and how often they have failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.consumer import MAX_REASON, Attempt, Outcome
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import floor_to_millisecond, number, read_values, shown, whole
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ColumnTypeError,
    InvalidArgumentError,
    MissingEventError,
    described,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator

    from airflow_changefeed.consumers.page import EventColumns, EventPage
    from airflow_changefeed.core.capture import CaptureShape
    from airflow_changefeed.sources.base import FeedSource


#: Type of a plain feed's events; captures have several types.
PLAIN_TYPE = "add"
#: Length of a ULID in bytes.
_SIZE = 16


class FeedEvent:
    """
    An event; immutable, and equal to the same event delivered again.

    Values are exactly what the database holds: ``Decimal``, ``bytes``, integers of any size, times with a
    time zone if the type has one. Columns are those of the export, so what Python's types cannot hold is in a
    second column (``at_100ns``, ``at_offset_minutes``); see the type reference.

    Its page is read once; values are converted on first access, one column at a time.
    """

    __slots__ = ("_page", "_position")

    _page: EventPage
    _position: int

    def __init__(self, page: EventPage, position: int) -> None:
        _set_page(self, page)
        _set_position(self, position)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"events are immutable; cannot set {name}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FeedEvent):
            return NotImplemented
        return (self.feed, self.shard, self.id) == (other.feed, other.shard, other.id)

    def __hash__(self) -> int:
        return hash((self.feed, self.shard, self.id))

    def __reduce__(self) -> tuple[Any, ...]:
        return FeedEvent, (self._page, self._position)

    def __repr__(self) -> str:
        what = self.row if not self.is_captured else {"old": self.old, "new": self.new}
        return f"FeedEvent({self.feed!r}, shard={shard_text(self.shard)}, id={self.id}, {self.type}, {what})"

    @property
    def page(self) -> EventPage:
        """The page the event was read in."""
        return self._page

    @property
    def position(self) -> int:
        """The event's index in its page, from 0."""
        return self._position

    def _value(self, name: str) -> Any:
        """Return the event's value of a capture column; None for a plain feed, which has no such column."""
        page = self._page
        return page.values(name)[self._position] if page.columns.is_captured else None

    @property
    def id(self) -> Ulid:
        """The event's permanent identifier, its ULID; the same when it is delivered again."""
        begin = self._position * _SIZE
        return Ulid(self._page.ids[begin : begin + _SIZE])

    @property
    def feed(self) -> str:
        """The feed's name."""
        return self.page.feed

    @property
    def shard(self) -> Shard:
        """The shard; events are ordered only within a shard."""
        return self.page.shard

    @property
    def time(self) -> datetime:
        """The time in its ULID, UTC: feed time, not the time of the change."""
        return self.id.time

    @property
    def dead_letter(self) -> int | None:
        """Number of its dead letter if it was parked and is being retried, else None."""
        return self.page.dead_letter

    @property
    def is_captured(self) -> bool:
        """Whether it is a capture's event, with ``old`` and ``new`` instead of ``row``."""
        return self.page.columns.is_captured

    @property
    def row(self) -> dict[str, Any] | None:
        """The event's row in its table; None for a capture's event."""
        page = self._page
        return None if page.columns.is_captured else page.rows()[self._position]

    @property
    def name(self) -> str:
        """The changed table; for a plain feed, its event table."""
        return self._value("name") or self.feed

    @property
    def type(self) -> str:
        """``add``, ``upd``, ``del``, ``reset``, ``ready`` or ``ddl``; always ``add`` for a plain feed."""
        return self._value("type") or PLAIN_TYPE

    @property
    def old(self) -> dict[str, Any] | None:
        """The row before an update or delete; columns not captured for the operation are None."""
        found: dict[str, Any] | None = self._value("old")
        return found

    @property
    def new(self) -> dict[str, Any] | None:
        """The row after an insert or update."""
        found: dict[str, Any] | None = self._value("new")
        return found

    @property
    def is_snapshot(self) -> bool:
        """Whether the row already existed and was recorded by a snapshot, a resync, or behind a merge."""
        return bool(self._value("is_snapshot"))

    @property
    def session_variables(self) -> dict[str, str] | None:
        """Session variables that the capture recorded; None if there were none."""
        text = self._value("session_variables")
        found: dict[str, str] | None = None if text is None else json.loads(text)
        return found

    @property
    def ddl(self) -> dict[str, Any] | None:
        """
        How the table's captured columns changed, for the type ``ddl``; None for all others.

        ``statement`` (text or None), ``before`` and ``after`` (lists of ``name`` and ``type``), ``by``.
        """
        text = self.ddl_text
        return None if text is None else dict(json.loads(text))

    @property
    def ddl_text(self) -> str | None:
        """:attr:`ddl` as it was recorded: a JSON object."""
        found: str | None = self._value("ddl")
        return found

    @property
    def trace_context(self) -> str | None:
        """The writer's W3C trace context, or None."""
        found: str | None = self._value("trace_context")
        return found

    @property
    def sequence(self) -> int | None:
        """The event's number in the shard, from 1 without gaps; only if the consumer is ``with_sequence``."""
        found: int | None = self._value("sequence") if self.page.columns.with_sequence else None
        return found

    @property
    def epoch(self) -> int | None:
        """Seconds since 1970 when the statement ran; only if the consumer is ``with_epoch``."""
        found: int | None = self._value("epoch") if self.page.columns.with_epoch else None
        return found

    @property
    def tid(self) -> int | None:
        """
        Number of the originating transaction; only if the consumer is ``with_tid``.

        Groups neighbouring events; numbers are eventually reused. None if the transaction is unknown.
        """
        return self.transaction if self.page.columns.with_tid else None

    @property
    def metadata(self) -> tuple[int | None, int | None, int | None]:
        """Transaction, sequence and epoch, whatever the options: passed to procedures."""
        sequence = self._value("sequence") if "sequence" in self._page.batch.schema.names else None
        return self.transaction, sequence, self._value("epoch")

    @property
    def transaction(self) -> int | None:
        """As ``tid``, whatever the options: used to form batches."""
        found: int | None = self._value("tid")
        return found


# Faster than object.__setattr__, which looks up the name for each event.
_set_page, _set_position = FeedEvent._page.__set__, FeedEvent._position.__set__  # type: ignore[misc, attr-defined]


def events_of(page: EventPage) -> Iterator[FeedEvent]:
    """Return the events of a page that its consumer takes, in order."""
    wanted = page.wanted()
    return map(FeedEvent, repeat(page, len(wanted)), wanted)


def pages(
    source: FeedSource,
    feed: str,
    shard: Shard,
    range_: UlidRange,
    columns: EventColumns,
    page_size: int,
    dead_letter: int | None = None,
    *,
    only: Collection[str] | None = None,
    limit: int | None = None,
) -> Generator[EventPage, None, None]:
    """
    Read the events of a range.

    :param dead_letter: number of the dead letter that the range holds.
    :param limit: events, at most, from the beginning of the range; None for all.
    :param only: columns of a row that are read, the others are null; then also where the row was deleted.
    """
    from airflow_changefeed.consumers.page import EventPage

    on_missing = "fail" if only is None else "keys_only"
    for batch in source.stream(
        feed, shard, range_, batch_rows=page_size, on_missing=on_missing, columns=only, limit=limit
    ):
        if batch.num_rows:
            yield EventPage(feed, shard, columns, batch, dead_letter)


#: Maximum events in a batch by number or seconds: they are held in memory and consumed in one transaction.
MAX_BATCH = 100_000


@dataclass(frozen=True)
class Batch:
    """
    What is handled and consumed together: always events of one shard, in order.

    :param events: maximum number, 1 to 100_000.
    :param seconds: how long to wait for more after the first one, 0 to 86,400. With 0 a batch is whatever
        is available as soon as anything is.
    :param transaction: all events of one transaction in the shard, however many; captures only. An event
        whose transaction is unknown is a batch by itself.
    :raises InvalidArgumentError: names every problem.
    """

    events: int = MAX_BATCH
    seconds: float = 0.0
    transaction: bool = False

    def __post_init__(self) -> None:
        problems = read_values(self, {"events": whole(1, MAX_BATCH), "seconds": number(0, 86_400)})
        if self.transaction and (self.events != MAX_BATCH or self.seconds):
            problems.append(
                "a batch by transaction always holds the whole transaction; omit events and seconds"
            )
        InvalidArgumentError.collect("batch", problems)


#: One event at a time.
ONE = Batch(events=1)


#: What reading raises where an event cannot be read.
UNREADABLE = (ColumnTypeError, MissingEventError)


class UnreadableEvent(FeedEvent):
    """
    It takes its place in its shard, so that its turn comes; it is never delivered.

    :param error: why it cannot be read.
    """

    __slots__ = ("error",)

    error: ChangefeedError

    def __init__(self, page: EventPage, position: int, error: ChangefeedError) -> None:
        super().__init__(page, position)
        object.__setattr__(self, "error", error)

    def __reduce__(self) -> tuple[Any, ...]:
        return UnreadableEvent, (self.page, self.position, self.error)


def first_unreadable(events: Iterable[FeedEvent]) -> UnreadableEvent | None:
    """Return the first event of some that cannot be read."""
    return next((event for event in events if isinstance(event, UnreadableEvent)), None)


def unreadable_event(
    source: FeedSource,
    feed: str,
    shard: Shard,
    columns: EventColumns,
    ulid: Ulid,
    error: ChangefeedError,
    dead_letter: int | None = None,
) -> UnreadableEvent:
    """
    Return what is known of an event that cannot be read: its key, its table and its transaction, if readable.

    :raises ColumnTypeError: no event of the feed can be read.
    """
    from airflow_changefeed.consumers.page import unknown_page
    from airflow_changefeed.sources.arrow import shape_of

    schema = source.schema(feed)
    shape = shape_of(schema)
    # A plain feed's keys are its own columns.
    keys = {feed: {column.name: column.name for column in source.feed(feed).key_columns}}
    if shape is not None:
        keys = {name: _key_fields(shape, name) for name in shape.tables}
    range_ = UlidRange(ulid.previous(), ulid)
    page = None
    for wanted in ({field for fields in keys.values() for field in fields.values()}, set[str]()):
        found = pages(source, feed, shard, range_, columns, 1, dead_letter, only=wanted)
        # Here, and not wherever the garbage is collected: connections are for one thread.
        with suppress(*UNREADABLE), closing(found):
            page = page or next(found, None)
    event = FeedEvent(page or unknown_page(feed, shard, columns, schema, ulid, dead_letter), 0)
    row = (event.new or event.old) if event.is_captured else event.row
    values = [
        f"{column} = {shown(row[field])}"
        for column, field in keys.get(event.name, {}).items()
        if row and row.get(field) is not None
    ]
    where = f"table {event.name!r}" if event.name else f"feed {feed!r}"
    told = f" ({', '.join(values)})" if values else ""
    message = f"event {ulid} of shard {shard_text(shard)}, {where}{told}, cannot be read: {error.message}"
    facts = {**error.facts, "feed": feed, "shard": shard, "ulid": str(ulid)}
    return UnreadableEvent(event.page, 0, type(error)(message, **facts))


def _key_fields(shape: CaptureShape, table: str) -> dict[str, str]:
    captured = shape.tables[table]
    fields = {column: field for columns in captured.columns.values() for column, field in columns.items()}
    return {column: fields[column] for column in captured.key_columns if column in fields}


#: Newest log entries of a shard that are searched for failures of its next event.
_ENTRIES = 100


class Attempts:
    """Counts the attempts at each event and creates the log entries."""

    def __init__(self, source: FeedSource, feed: str, consumer: str, clock: Callable[[], float]) -> None:
        self._source = source
        self._feed = feed
        self._consumer = consumer
        self._clock = clock
        #: With the fencing token of the lease under which they were counted.
        self._failed: dict[Shard, tuple[int, dict[Ulid, int]]] = {}
        # By the database's clock, without a query per event.
        self._begun, self._begun_at = clock(), source.now()

    def now(self) -> datetime:
        """Return the estimated current time of the database."""
        return floor_to_millisecond(self._begun_at + timedelta(seconds=self._clock() - self._begun))

    def next(self, events: Sequence[FeedEvent], token: int) -> Attempt:
        """Return the log entry of the next attempt at events, as it is if the attempt succeeds."""
        first = events[0]
        number = self._counts(first.shard, token).get(first.id, 0) + 1
        return Attempt(first.id, events[-1].id, len(events), number, self.now())

    def failed(self, shard: Shard, token: int, attempt: Attempt) -> None:
        """Count a failed attempt once it is in the log."""
        self._counts(shard, token)[attempt.first] = attempt.number

    def done(self, shard: Shard, token: int, attempt: Attempt) -> None:
        """Forget the failures of events that are now consumed."""
        self._counts(shard, token).pop(attempt.first, None)

    def _counts(self, shard: Shard, token: int) -> dict[Ulid, int]:
        """Return the failures of each event; under a new lease from the log, as others may have tried."""
        known, counts = self._failed.get(shard, (None, {}))
        if known != token:
            counts = self._load(shard)
            self._failed[shard] = (token, counts)
        return counts

    def _load(self, shard: Shard) -> dict[Ulid, int]:
        found: dict[Ulid, int] = {}
        for entry in self._source.invocations(self._feed, self._consumer, shard=shard, limit=_ENTRIES):
            attempt = entry.attempt
            if attempt.outcome is Outcome.FAILED:
                found[attempt.first] = max(found.get(attempt.first, 0), attempt.number)
        return found


def ended(attempt: Attempt, outcome: Outcome, error: BaseException) -> Attempt:
    """Return the log entry of an attempt that did not succeed."""
    return replace(attempt, outcome=outcome, error=described(error, MAX_REASON))
