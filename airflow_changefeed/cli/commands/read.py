# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed read``."""

from __future__ import annotations

from datetime import date, datetime, time
from math import isfinite
from typing import TYPE_CHECKING, Any

from airflow_changefeed.cli.command import Row, echo, feeds_command, show
from airflow_changefeed.core.feed import Shard, ShardStatus, check_shards, counted, shard_text
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ShardNotFoundError

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_changefeed.core.feed import Event, FeedInfo
    from airflow_changefeed.sources.base import FeedSource

_PAGE_SIZE = 1000


@feeds_command
def read(source: FeedSource, args: Namespace) -> None:
    """Show events of a shard, in order."""
    info = source.feed(args.feed)
    check_shards(info, [args.shard])
    state = _state(source, args.feed, args.shard)
    # Purged events cannot be read.
    after = state.purged_upto if args.after is None else args.after
    upto = Ulid.MAX if args.drain else state.head
    events = read_events(source, args.feed, args.shard, after, upto, args.limit)
    show([event_row(info, event) for event in events], args.output)
    echo(_summary(args, state, events))


def _state(source: FeedSource, feed: str, shard: Shard) -> ShardStatus:
    states = {state.shard: state for state in source.shards(feed)}
    if shard not in states:
        raise ShardNotFoundError(
            f"feed {feed!r} never had an event in shard {shard_text(shard)}; it has "
            f"{', '.join(map(shard_text, states)) or 'no shards yet'}",
            feed=feed,
            shards=[shard_text(shard)],
        )
    return states[shard]


def read_events(
    source: FeedSource, feed: str, shard: Shard, after: Ulid, upto: Ulid | None, limit: int
) -> list[Event]:
    """
    Read events page by page.

    :param after: exclusive.
    :param upto: last ULID to read, inclusive; None reads nothing. Reads no page after it: a read at the head
        would order the events that wait in the outbox.
    """
    events: list[Event] = []
    while upto is not None and after < upto and len(events) < limit:
        page = source.read_feed(feed, shard, after, min(_PAGE_SIZE, limit - len(events)))
        if page.last is None:
            break
        events += [event for event in page if event.ulid <= upto]
        after = page.last
    return events


def event_row(info: FeedInfo, event: Event) -> Row:
    """Return an event as a JSON object, without loss."""
    names = [column.name for column in info.key_columns]
    return {
        "ulid": str(event.ulid),
        "time": format_time(event.ulid.time),
        "key": {name: plain_value(value) for name, value in zip(names, event.key, strict=True)},
    }


def plain_value(value: Any) -> Any:
    """Return a key's value for JSON: numbers and strings as they are, all else as an exact string."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        # JSON has no infinities.
        return value if isfinite(value) else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"0x{bytes(value).hex()}"
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    return str(value)


def _summary(args: Namespace, state: ShardStatus, events: list[Event]) -> str:
    where = f"feed {args.feed}, shard {shard_text(args.shard)}"
    parts = [f"{counted(len(events), 'event')} of {where}"]
    if len(events) == args.limit:
        parts.append(f"there may be more: --after {events[-1].ulid}")
    elif not args.drain:
        last = state.head
        parts.append(f"the last ordered event is {last}" if last else "there are no ordered events")
        if state.has_outbox:
            parts.append("events wait in the outbox; --drain orders them")
    return "; ".join(parts)
