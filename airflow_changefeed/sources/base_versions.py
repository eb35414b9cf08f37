# SPDX-License-Identifier: Apache-2.0
"""Errors of stale writes: the expected version, the current one, and the current value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_changefeed.core.capture import CaptureGap
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import FeedInfo, max_hold_text, shard_text
from airflow_changefeed.exceptions import StaleVersionError

#: Maximum columns, shards or tables listed in a current value; more are counted.
_NAMED = 20
#: The current value of what does not exist; its version is 0.
NOTHING = "it does not exist"


def stale(what: str, expected: int, version: int, present: str, **facts: object) -> StaleVersionError:
    """
    Return the error of a stale write.

    :param what: the object to change: ``feed 'myservice.MyEvent'``.
    :param expected: the version that the caller named.
    :param version: the current version; 0 if it does not exist.
    :param present: a summary of the current value.
    """
    future = (
        " A version above the current one comes from another database, or from before this database was "
        "restored."
        if expected > version
        else ""
    )
    return StaleVersionError(
        f"{what} is at resource version {version} ({present}), not {expected}: nothing was changed.{future} "
        "Read it again, then decide",
        expected_version=expected,
        present_version=version,
        present=present,
        **facts,
    )


def stale_cursor(row: CursorRow, expected: int) -> StaleVersionError:
    """Return the error of a stale move."""
    return stale(
        f"cursor of consumer {row.consumer!r}, feed {row.feed!r}, shard {shard_text(row.shard)}",
        expected,
        row.resource_version,
        f"{row.ulid}, moved by {row.moved_by!r}",
        row=row,
    )


def stale_lease(row: CursorRow, token: int) -> StaleVersionError:
    """Return the error of revoking a lease that is no longer held."""
    held = f"held by {row.lease_holder!r}" if row.lease_holder is not None else "not held by anyone"
    return StaleVersionError(
        f"lease {token} on consumer {row.consumer!r}, feed {row.feed!r}, shard {shard_text(row.shard)} is no "
        f"longer current: the newest lease is {row.fencing_token}, {held}. Nothing was changed. Read the "
        "cursor again, then decide",
        expected_version=token,
        present_version=row.fencing_token,
        present=held,
        row=row,
    )


def check_version(what: str, expected: int | None, version: int, present: str) -> None:
    """
    Check the version that a write names.

    :param expected: None passes.
    :raises StaleVersionError: it is not the current one.
    """
    if expected is not None and expected != version:
        raise stale(what, expected, version, present)


def feed_text(info: FeedInfo) -> str:
    """Return a summary of a feed's settings."""
    columns = _listed(f"{column.name} {column.type}".rstrip() for column in info.columns)
    return (
        f"{info.kind.value}, {info.shard_key_type} shards, time tolerance "
        f"{info.time_tolerance.total_seconds():g} s, max_hold {max_hold_text(info.max_hold)}, "
        f"columns: {columns or 'none; the table is missing'}"
    )


def capture_text(
    tables: Sequence[str], drift: Sequence[str], gaps: Sequence[CaptureGap], *, is_enabled: bool
) -> str:
    """Return a summary of a capture."""
    state = "enabled" if is_enabled else "disabled"
    parts = [f"{state}, tables: {_listed(tables)}", *drift[:_NAMED]]
    if gaps:
        parts.append(f"open gaps: {_listed(str(gap.number) for gap in gaps)}")
    return "; ".join(parts)


def consumer_text(spec: ConsumerSpec | None, rows: Iterable[CursorRow]) -> str:
    """
    Return a summary of a consumer.

    :param spec: of a consumer; None for an export.
    :param rows: of an export.
    """
    if spec is not None:
        return f"settings {spec.to_json()}"
    places = _listed(f"shard {shard_text(row.shard)} at {row.ulid}" for row in rows)
    return places or NOTHING


def _listed(texts: Iterable[str]) -> str:
    given = list(texts)
    more = f" and {len(given) - _NAMED} more" if len(given) > _NAMED else ""
    return ", ".join(given[:_NAMED]) + more
