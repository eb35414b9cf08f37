# SPDX-License-Identifier: Apache-2.0
"""Cursors, their moves and their history, as commands show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_changefeed.cli.command import Row, ulid_values
from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.consumer import COUNTED
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.times import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_changefeed.core.consumer import ConsumerPosition, FeedOverview, OutputCheck
    from airflow_changefeed.core.cursor import CursorChange, CursorRow
    from airflow_changefeed.core.ulid import Ulid, UlidRange
    from airflow_changefeed.cursors.moves import PlannedMove
    from airflow_changefeed.cursors.variable_state import VariableState
    from airflow_changefeed.sources.base import FeedSource

_SHOWN = ("shard", "cursor", "cursor_time", "resource_version", "behind", "missing", "lease", "variable")


def cursor_row(row: CursorRow, behind: int | None, state: VariableState | None) -> Row:
    """
    Return a cursor as a JSON object.

    :param behind: number of events after the cursor; None if the feed does not have the shard.
    :param state: of the Variable; None for a consumer, which has none.
    """
    plain = encode(row)
    del plain["frontier"], plain["ack"]
    return {
        **plain,
        **ulid_values("cursor", row.ulid),
        **ulid_values("start", row.frontier.start),
        **ulid_values("ack", row.ack),
        "behind": behind,
        "missing": [_range(gap) for gap in row.frontier.missing()],
        "variable": None if state is None else state.kind.value,
    }


def beginning_row(position: ConsumerPosition) -> Row:
    """Return the beginning of an export in a shard as a JSON object."""
    row = position.row
    return {
        "shard": shard_text(row.shard),
        "resource_version": row.resource_version,
        "began": row.began.value,
        **ulid_values("start", row.frontier.start),
        "before": position.before,
        **ulid_values("before_from", position.before_from),
    }


def short_beginning(row: Row) -> Row:
    """Return the values of a beginning that fit a screen."""
    return {
        "shard": row["shard"],
        "version": row["resource_version"],
        "began": row["began"],
        "start": row["start_time"],
        "events before": f"{COUNTED} or more" if row["before"] == COUNTED else row["before"],
        "from": row["before_from_time"],
    }


def move_row(move: PlannedMove) -> Row:
    """Return a move as a JSON object."""
    return {
        "shard": shard_text(move.shard),
        "resource_version": move.row.resource_version,
        **ulid_values("before", move.row.ulid),
        **ulid_values("after", move.frontier.upto),
        "again": move.again,
        "skipped": move.skipped,
        "skips_purged": move.skips_purged,
        "forgotten": [_range(one) for one in move.forgotten],
        "absorbed": [_range(one) for one in move.absorbed],
    }


def change_row(change: CursorChange) -> Row:
    """Return a change as a JSON object."""
    return {
        **encode(change),
        **ulid_values("before", change.before),
        **ulid_values("after", change.after),
    }


def _range(one: UlidRange) -> Row:
    return {
        "after": str(one.after),
        "upto": str(one.upto),
        # As in the names of windows: the first millisecond, and the first one after.
        "start": format_time(_next(one.after).time),
        "end": format_time(_next(one.upto).time),
    }


def _next(ulid: Ulid) -> Ulid:
    return ulid if ulid == type(ulid).MAX else ulid.next()


def short_cursor(row: Row) -> Row:
    """Return the values of a cursor that fit a screen."""
    values: dict[str, Any] = {**row, "lease": row["lease_holder"]}
    if row["behind"] == COUNTED:
        values["behind"] = f"{COUNTED} or more"
    values["missing"] = _windows(row["missing"])
    return {name.replace("_", " "): values[name] for name in _SHOWN}


def _windows(ranges: Sequence[Mapping[str, str]], most: int = 3) -> list[str]:
    texts = [f"{one['start']} to {one['end']}" for one in ranges]
    return texts[:most] + ([f"{len(texts) - most} more"] if len(texts) > most else [])


def short_move(row: Row) -> Row:
    """Return the values of a move that fit a screen."""
    short = {
        "shard": row["shard"],
        "version": row["resource_version"],
        "from": row["before"],
        "time": row["before_time"],
        "to": row["after"],
        "its time": row["after_time"],
    }
    if "again" in row:
        purged = " and purged events" if row["skips_purged"] else ""
        short |= {"again": row["again"], "skipped": f"{row['skipped']}{purged}"}
        short |= {name: _windows(row[name]) for name in ("forgotten", "absorbed")}
    return short


def short_change(row: Row) -> Row:
    """Return the values of a change that fit a screen."""
    names = ("number", "shard", "at", "by", "before_time", "after_time", "resource_version", "why")
    return {name.replace("_", " "): row[name] for name in names}


def export_notes(source: FeedSource, overview: FeedOverview, consumer: str) -> Iterator[str]:
    """
    Yield what the cursors of an export do not show, a line each.

    :param overview: of its feed, with all shards.
    """
    from airflow_changefeed.doctor.files import checked_fault
    from airflow_changefeed.doctor.frontiers import beginning_fault

    feed = overview.info.name
    left_out = beginning_fault(source, overview, consumer)
    if left_out is not None:
        yield str(left_out)
    check = next((one for one in overview.checks if one.consumer == consumer), None)
    if check is not None and check.missing:
        yield str(checked_fault(check))
    else:
        yield f"Feed {feed}, consumer {consumer}: complete by the cursor; {files_text(check)}"


def files_text(check: OutputCheck | None) -> str:
    """Return when the files of an output were last looked at, where nothing was missing."""
    if check is None:
        look = shell("doctor", "--feed", "...", "--path", "...")
        return f"the files of its output were not checked yet: {look}"
    return f"files last checked at {format_time(check.checked_at)}"
