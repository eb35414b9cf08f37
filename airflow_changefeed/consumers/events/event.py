# SPDX-License-Identifier: Apache-2.0
"""An event as a consumer gets it."""

from __future__ import annotations

import json
from datetime import datetime
from itertools import repeat
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_changefeed.consumers.events.page import EventPage

#: What an event of a plain feed is called; those of a capture have types of their own.
PLAIN_TYPE = "add"
#: Length of a ULID in bytes.
_SIZE = 16


class FeedEvent:
    """
    An event; cannot be changed, and is equal to the same event got again.

    Values are what the database holds: ``Decimal``, ``bytes``, whole numbers of any size, times with their
    zone where the type has one. Columns are those of the export, so what Python's own types cannot hold
    stands in a second column (``at_100ns``, ``at_offset_minutes``), as the reference of types says.

    Its page is read once, and its values are made when they are first asked for, a column at a time.
    """

    __slots__ = ("_page", "_position")

    _page: EventPage
    _position: int

    def __init__(self, page: EventPage, position: int) -> None:
        object.__setattr__(self, "_page", page)
        object.__setattr__(self, "_position", position)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an event cannot be changed: {name}")

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
        """The page that the event was read with."""
        return self._page

    @property
    def position(self) -> int:
        """The event's number in its page, from 0."""
        return self._position

    def _value(self, name: str) -> Any:
        """Return the event's value of a capture's column; None of a plain feed, which has no such column."""
        page = self._page
        return page.values(name)[self._position] if page.columns.is_captured else None

    @property
    def id(self) -> Ulid:
        """What names the event for ever: its ULID. It comes again with the same one until it is consumed."""
        begin = self._position * _SIZE
        return Ulid(self._page.ids[begin : begin + _SIZE])

    @property
    def feed(self) -> str:
        """The feed's name."""
        return self.page.feed

    @property
    def shard(self) -> Shard:
        """The shard, within which alone events have an order."""
        return self.page.shard

    @property
    def time(self) -> datetime:
        """The time of its ULID, UTC: feed time, not when it happened."""
        return self.id.time

    @property
    def dead_letter(self) -> int | None:
        """Number of the dead letter that it is, when it was parked and is tried again; else None."""
        return self.page.dead_letter

    @property
    def is_captured(self) -> bool:
        """Whether it is the event of a capture, with ``old`` and ``new`` instead of ``row``."""
        return self.page.columns.is_captured

    @property
    def row(self) -> dict[str, Any] | None:
        """The event's row in its table; None for the event of a capture."""
        return None if self.is_captured else self.page.rows()[self.position]

    @property
    def name(self) -> str:
        """The table that was changed; of a plain feed, its event table."""
        return self._value("name") or self.feed

    @property
    def type(self) -> str:
        """``add``, ``upd``, ``del`` or ``reset``; of a plain feed always ``add``."""
        return self._value("type") or PLAIN_TYPE

    @property
    def old(self) -> dict[str, Any] | None:
        """The row before an update or delete; a column that its operation does not capture is None."""
        found: dict[str, Any] | None = self._value("old")
        return found

    @property
    def new(self) -> dict[str, Any] | None:
        """The row after an insert or update."""
        found: dict[str, Any] | None = self._value("new")
        return found

    @property
    def is_snapshot(self) -> bool:
        """Whether the row was there before, and was recorded when the capture was enabled or resolved."""
        return bool(self._value("is_snapshot"))

    @property
    def session_variables(self) -> dict[str, str] | None:
        """What the capture recorded of the writer's session; None without any."""
        text = self._value("session_variables")
        found: dict[str, str] | None = None if text is None else json.loads(text)
        return found

    @property
    def trace_context(self) -> str | None:
        """The W3C trace context of the writer; None where it had none."""
        found: str | None = self._value("trace_context")
        return found

    @property
    def sequence(self) -> int | None:
        """Counts the shard's events from 1 without a gap; only of a consumer made ``with_sequence``."""
        found: int | None = self._value("sequence") if self.page.columns.with_sequence else None
        return found

    @property
    def epoch(self) -> int | None:
        """Seconds since 1970 when the statement ran; only of a consumer made ``with_epoch``."""
        found: int | None = self._value("epoch") if self.page.columns.with_epoch else None
        return found

    @property
    def tid(self) -> int | None:
        """
        Number of the transaction that made it; only of a consumer made ``with_tid``.

        Groups neighbours, and comes again some day. None, too, where the writer's transaction is not known.
        """
        return self.transaction if self.page.columns.with_tid else None

    @property
    def metadata(self) -> tuple[int | None, int | None, int | None]:
        """Transaction, sequence and epoch, also where nobody asked for them: what procedures get."""
        sequence = self._value("sequence") if "sequence" in self._page.batch.schema.names else None
        return self.transaction, sequence, self._value("epoch")

    @property
    def transaction(self) -> int | None:
        """As ``tid``, also where nobody asked for it: what batches go by."""
        found: int | None = self._value("tid")
        return found


def events_of(page: EventPage) -> Iterator[FeedEvent]:
    """Return the events of a page, in order."""
    return map(FeedEvent, repeat(page, len(page)), range(len(page)))
