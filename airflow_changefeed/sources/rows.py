# SPDX-License-Identifier: Apache-2.0
"""
Rows of the databases as values: the columns of all engines have the same names.

A time is a naive ``datetime2``, which is UTC, or milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from airflow_changefeed.core.consumer import (
    Attempt,
    ConsumerInfo,
    ConsumerSpec,
    DeadLetter,
    DeadLetterState,
    Invocation,
    Outcome,
    OutputCheck,
)
from airflow_changefeed.core.cursor import Began, CursorChange, CursorRow, Frontier
from airflow_changefeed.core.feed import Shard, ShardStatus, StaleMark, parse_shard
from airflow_changefeed.core.times import floor_to_millisecond, from_milliseconds
from airflow_changefeed.core.ulid import Ulid, UlidRange

Row = Mapping[str, Any]


def as_time(value: datetime | int) -> datetime:
    """Return the time of a column."""
    if isinstance(value, int):
        return from_milliseconds(value)
    return floor_to_millisecond(value.replace(tzinfo=timezone.utc))


def as_time_or_none(value: datetime | int | None) -> datetime | None:
    """Return the time of a column that may be null."""
    return None if value is None else as_time(value)


def as_ulid(value: bytes | None) -> Ulid | None:
    """Return a ULID of a column; None for a null."""
    return None if value is None else Ulid.of_bytes(value)


def shard_status(shard: Shard, row: Row) -> ShardStatus:
    """Return the state of a shard."""
    head, clock = as_ulid(row["head"]), as_time(row["time"])
    return ShardStatus(
        shard=shard,
        # The high-water time of a shard that a writer has locked is not visible.
        high_water=clock if head is None else max(clock, head.time),
        head=head,
        sealed_until=as_time_or_none(row["sealed_until"]),
        purged_upto=Ulid.of_bytes(row["purged_upto"]),
        has_outbox=bool(row["has_outbox"]),
    )


def row_of_cursor(feed: str, row: Row, ranges: Callable[[str], tuple[UlidRange, ...]]) -> CursorRow:
    """
    Return a cursor row.

    :param ranges: reads the ranges of a frontier.
    """
    return CursorRow(
        consumer=row["consumer"],
        feed=feed,
        shard=parse_shard(row["shard"]),
        frontier=Frontier(
            Ulid.of_bytes(row["start_ulid"]),
            Ulid.of_bytes(row["ulid"]),
            ranges(row["ahead"]),
            ranges(row["before"]),
        ),
        resource_version=int(row["resource_version"]),
        moved_at=as_time(row["moved_at"]),
        moved_by=row["moved_by"],
        fencing_token=int(row["fencing_token"]),
        lease_holder=row["lease_holder"],
        lease_expires=as_time_or_none(row["lease_expires"]),
        ack=Ulid.of_bytes(row["ack"]),
        began=Began(row["began"]),
    )


def cursor_change(feed: str, row: Row) -> CursorChange:
    """Return a change of a cursor."""
    return CursorChange(
        number=int(row["number"]),
        consumer=row["consumer"],
        feed=feed,
        shard=parse_shard(row["shard"]),
        before=as_ulid(row["before_ulid"]),
        after=Ulid.of_bytes(row["after_ulid"]),
        resource_version=int(row["resource_version"]),
        at=as_time(row["moved_at"]),
        by=row["moved_by"],
        why=row["why"],
    )


def output_check(feed: str, row: Row) -> OutputCheck:
    """Return what a look at an export's output found."""
    return OutputCheck(
        consumer=row["consumer"],
        feed=feed,
        path=row["path"],
        checked_at=as_time(row["checked_at"]),
        checked_by=row["checked_by"],
        missing=int(row["missing"]),
        first=as_time_or_none(row["first_missing"]),
    )


def consumer_info(row: Row) -> ConsumerInfo:
    """Return a consumer."""
    return ConsumerInfo(
        ConsumerSpec.from_json(row["consumer"], row["feed"], row["settings"]),
        Ulid.of_bytes(row["begin_ulid"]),
        as_time(row["created_at"]),
        row["created_by"],
        int(row["resource_version"]),
    )


def dead_letter(row: Row) -> DeadLetter:
    """Return a dead letter."""
    return DeadLetter(
        number=int(row["number"]),
        consumer=row["consumer"],
        feed=row["feed"],
        shard=parse_shard(row["shard"]),
        ulid=Ulid.of_bytes(row["ulid"]),
        state=DeadLetterState(row["state"]),
        attempts=int(row["attempts"]),
        reason=row["reason"],
        parked_at=as_time(row["parked_at"]),
        parked_by=row["parked_by"],
        resolved_at=as_time_or_none(row["resolved_at"]),
        resolved_by=row["resolved_by"],
        note=row["note"],
        resource_version=int(row["resource_version"]),
    )


def invocation(feed: str, row: Row) -> Invocation:
    """Return an invocation of a handler."""
    return Invocation(
        number=int(row["number"]),
        consumer=row["consumer"],
        feed=feed,
        shard=parse_shard(row["shard"]),
        attempt=Attempt(
            first=Ulid.of_bytes(row["first_ulid"]),
            last=Ulid.of_bytes(row["last_ulid"]),
            events=int(row["events"]),
            number=int(row["attempt"]),
            started_at=as_time(row["started_at"]),
            outcome=Outcome(row["outcome"]),
            error=row["error"],
        ),
        ended_at=as_time(row["ended_at"]),
        holder=row["holder"],
        fencing_token=int(row["fencing_token"]),
    )


def stale_mark(row: Row) -> StaleMark:
    """Return the mark of inserted history."""
    range_ = UlidRange(Ulid.of_bytes(row["after_ulid"]), Ulid.of_bytes(row["upto_ulid"]))
    return StaleMark(int(row["number"]), parse_shard(row["shard"]), range_, as_time(row["at"]), row["reason"])
