# SPDX-License-Identifier: Apache-2.0
"""The protocol of what changes feeds: set-up, draining, sealing and purging; and errors of stale writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from airflow_changefeed.core.capture import CaptureGap
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import shell, with_conn_id
from airflow_changefeed.core.feed import (
    DatabaseIdentity,
    FeedInfo,
    FeedKind,
    FeedStorage,
    Seal,
    Shard,
    StaleMark,
    max_hold_text,
    shard_text,
)
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import StaleVersionError


@dataclass(frozen=True)
class Purged:
    """
    What a purge removed, or would remove, from a shard.

    :param rows: events removed.
    :param upto: inclusive; up to where.
    :param held_from: the first event that was held because nobody has acknowledged it and it lies before the
        beginning of an export that began by itself; None if none was.
    :param held_by: these exports, by name.
    """

    shard: Shard
    rows: int
    upto: Ulid
    held_from: Ulid | None = None
    held_by: tuple[str, ...] = ()


def held_reason(feed: str, purged: Iterable[Purged], conn_id: str | None = None) -> str | None:
    """
    Return what a purge has kept because it lies before a beginning, and what to do; None if it kept nothing.

    :param conn_id: for the commands.
    """
    held = [one for one in purged if one.held_from is not None]
    if not held:
        return None
    exports = sorted({name for one in held for name in one.held_by})
    first = format_time(min(one.held_from for one in held if one.held_from is not None).time)
    names = f"export{'s' if len(exports) > 1 else ''} {', '.join(map(repr, exports))}"
    accept = (shell("cursor accept-beginning", name, "--feed", feed, "--note", "...") for name in exports)
    return with_conn_id(
        f"events from {first} on are kept: they are before the beginning of {names}, which its first "
        "run implied, and no consumer has acknowledged them. Backfill the export from then on, or "
        f"accept that the export lacks them: {'; '.join(accept)}",
        conn_id,
    )


@dataclass(frozen=True)
class Installed:
    """
    Result of an installation.

    :param before: previous version; None if there was none or it is unknown, as for mssql-changefeed v2.
    :param after: version now installed.
    """

    before: str | None
    after: str


class FeedControl(Protocol):
    """Set-up, draining, sealing and purging of feeds."""

    def version(self) -> str | None:
        """Return the version installed in the database; None if nothing with a version is installed."""

    def install(self, *, sequence_cache: int | None = None, force: bool = False) -> Installed:
        """
        Bring the database's objects and all its feeds to this package's version. Idempotent.

        :param sequence_cache: cache size of each sequence created, at least 1; None uses the source's
            default. Ignored by a source without sequences.
        :param force: also downgrade from a newer version.
        :raises UnsupportedVersionError: the installed version is newer than this package.
        :raises PermissionDeniedError: the login may not create objects.
        """

    def renew_identity(self) -> DatabaseIdentity:
        """
        Give a copy of a database its own identity.

        Its consumers then publish under new Variables, and its exports refuse outputs begun under the old
        identity. Nothing else changes.

        :raises PermissionDeniedError: the login may not change objects.
        :raises FeedNotFoundError, UnsupportedVersionError: as ``identity``.
        """

    def set_up_feed(
        self,
        table: str,
        *,
        kind: FeedKind = FeedKind.OUTBOX,
        shard_key_type: str | None = None,
        time_tolerance: timedelta | None = None,
        max_hold: timedelta | None = None,
        storage: FeedStorage | None = None,
        resource_version: int | None = None,
    ) -> FeedInfo:
        """
        Create a feed over a table, using the table's primary key, or change its settings. Idempotent.

        The feed of a capture, which ``enable_capture`` creates, has the same settings. None keeps what a feed
        has, and takes the default for a new one.

        :param shard_key_type: one of ``SHARD_KEY_TYPES``; ``int`` by default. It cannot be changed.
        :param time_tolerance: a ``time_hint`` further in the future is replaced by the current time; one hour
            by default.
        :param max_hold: a purge keeps events for consumers and snapshots until they are this old;
            ``FOREVER``, the default, for as long as they are needed.
        :param storage: of the tables of a new outbox feed; not for an embedded source, whose tables are in
            one file. None leaves an existing feed as it is stored.
        :param resource_version: expected version of the settings; None skips the check. It grows with
            each change of the settings, with an upgrade, and when the table's columns change.
        :raises StaleVersionError: the feed was changed since; carries the current version; nothing was
            changed.
        :raises FeedSetupError: the table does not exist, has no primary key or reserved column names, or
            is a feed of another kind, or stored in another way.
        :raises InvalidArgumentError: a setting is out of range; names everything that is wrong.
        """

    def drop_feed(self, feed: str, *, resource_version: int | None = None) -> None:
        """
        Drop a feed, with its order, cursors and marks. The event table stays.

        :param resource_version: as for :meth:`set_up_feed`.
        """

    def drain(self, feed: str) -> dict[Shard, int]:
        """
        Order what is committed in the outbox.

        :return: events ordered, for each shard with any.
        :raises LockTimeoutError: another session holds a lock longer than the lock timeout.
        """

    def seal(self, feed: str, until: datetime) -> dict[Shard, Seal]:
        """
        Drain, then promise that no later event gets a ULID below ``floor(until)``.

        Also applies to shards that do not exist yet. An idle shard can be sealed; sealing again is harmless.

        :param until: exclusive; at most the database's current time.
        :return: a seal for each known shard.
        :raises NotYetError: ``until`` is less than a minute in the future.
        :raises FutureTimeError: ``until`` is further in the future.
        :raises LockTimeoutError: a writer or drain holds a lock longer than the lock timeout.
        """

    def insert_history(
        self, feed: str, shard: Shard, events: Sequence[tuple[datetime, tuple[Any, ...]]], *, reason: str
    ) -> StaleMark:
        """
        Insert past events directly into the feed, and mark the windows they touch as stale.

        :param events: feed time and primary key of each; their rows must already be in the event table.
            Events with the same time keep this order, after those already in the feed at that time.
        :raises HistoryError: a time at or above the shard's seal, or below what was purged; a key twice.
        """

    def purge(
        self, feed: str, before: datetime, *, batch_rows: int = 10_000, dry_run: bool = False
    ) -> list[Purged]:
        """
        Remove old events from the feed, in batches; the event table is not touched: of a feed of serialized
        writers, which has its events there, it is only recorded that they are no longer guaranteed.

        Purges up to ``floor(before)``, but not into an unsealed window, and no event that is younger than the
        feed's ``max_hold`` and that a consumer has not acknowledged, or that came after the begin of a
        snapshot. A consumer whose cursor is passed is lost (``CursorRow.is_lost``).

        An event before the beginning of an export that began by itself (``Began.IMPLIED``) is kept likewise,
        unless a consumer, also one that was dropped, has acknowledged it: it lies between the consumer's
        start and ``ack``, or in ``Frontier.before``.

        :param dry_run: only return what would be removed.
        """

    def next_attempt(self, feed: str, *, above: int = 0) -> int:
        """Draw an attempt token: higher than every earlier one of the feed, and than ``above``."""


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
        f"{what} is at resource version {version} ({present}), not {expected}: nothing was "
        f"changed.{future} Read it again, then decide",
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
