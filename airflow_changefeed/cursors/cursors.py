# SPDX-License-Identifier: Apache-2.0
"""
Moves of a consumer's cursors: the database rows decide, an Airflow Variable publishes them (ADR 0004).

Airflow has no compare-and-set for Variables, so every decision is a compare-and-set on the rows, and the
Variable is written afterwards. After a crash a Variable can only be missing or older than the rows; the next
reader repairs both. Any other difference is an edit by a person, and nothing moves until a person decides.

Windows of one consumer may be exported in parallel, so a windowed export needs its leases only to move the
cursors. A batch begins at the cursor: two concurrent batches would export the same events under two names, so
a batch holds its leases from before it reads the cursor until it has moved it.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Protocol

from airflow_changefeed.core.cursor import (
    RESTORED_PAGE,
    Began,
    Cursor,
    CursorDocument,
    CursorRow,
    Frontier,
    revoke_command,
    seal_command,
    variable_key,
)
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.retry import retry, scattered
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import EPOCH, format_time, from_milliseconds
from airflow_changefeed.exceptions import (
    ChangefeedError,
    CursorEditedError,
    CursorFormatError,
    LeaseHeldError,
    LeaseLostError,
    StaleVersionError,
    UnsupportedVersionError,
    storable,
)
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_consumers import CursorMove, Grant, LeaseStore


def recovery_commands(consumer: str, feed: str) -> tuple[str, str]:
    """Return the two commands that resolve an edited Variable: adopt it, or publish the rows."""
    return shell("cursor adopt", consumer, "--feed", feed), shell("cursor publish", consumer, "--feed", feed)


def beyond_remedy(
    source: FeedSource, consumer: str, feed: str, cursors: Mapping[Shard, Cursor]
) -> str | None:
    """
    Return what to do about a Variable of a later state of the database; None if it is not.

    It is beyond what its feed has reached, or, if that was sealed since, of a later version than the rows.
    """
    _, publish = recovery_commands(consumer, feed)
    ours = {row.shard: row.resource_version for row in source.cursors(feed, consumer)}
    ahead = ""
    if any(one.resource_version > ours[shard] for shard, one in cursors.items() if shard in ours):
        ahead = "The Variable is newer than the database's cursors, as after a restore of the database to an "
        ahead += (
            "earlier state. Do not adopt the Variable: events written since the restore would be skipped. "
        )
    statuses = source.shards(feed)
    # A shard that never had an event is sealed like the others.
    sealed = max((status.sealed_until or EPOCH for status in statuses), default=EPOCH)
    highest = {status.shard: status.highest_cursor for status in statuses}
    others = Ulid.floor(sealed).previous()
    beyond = [one.ulid for shard, one in cursors.items() if one.ulid > highest.get(shard, others)]
    again = f"Then run the windows since the restored state again, as a backfill; {RESTORED_PAGE}"
    if not beyond:
        if not ahead:
            return None
        # Its window was sealed for when it was exported.
        reached = from_milliseconds(max(one.ulid.ms for one in cursors.values()) + 1)
        overwrite = "Overwrite it"
        if sealed < reached <= source.now():
            overwrite = f"First seal the feed: {seal_command(feed, reached)}. Then overwrite it"
        return f"{ahead}{overwrite} with the cursors of the database: {publish}. {again}"
    last = max(beyond)
    until = from_milliseconds(last.ms + 1)
    if until > source.now():
        # Never sealed, so this is an edit by hand.
        return (
            f"The Variable is in the future ({format_time(last.time)}). Overwrite it with the cursors of the "
            f"database: {publish}"
        )
    return (
        f"The Variable ({format_time(last.time)}) is beyond the end of the feed. Do not adopt it. If "
        "the database was restored to an earlier state, first seal the feed: "
        f"{seal_command(feed, until)}. Then overwrite the Variable with the cursors of the database: "
        f"{publish}. {again}"
    )


#: Length of a lease in seconds; a move is one transaction and needs far less.
LEASE_SECONDS = 30.0
_RENEWALS_PER_LEASE = 3


class HeldLeases:
    """
    Leases that are renewed in the background until :meth:`release`.

    A process that loses them, for example because it slept longer than its lease, cannot commit a move: the
    database refuses its fencing token. Nothing has to be detected here.

    :param tokens: the fencing token of each shard; a renewal keeps it.
    """

    def __init__(
        self, source: LeaseStore, consumer: str, feed: str, shards: Sequence[Shard], by: str
    ) -> None:
        self._source = source
        self._consumer = consumer
        self._feed = feed
        # Unique to this call: a holder can acquire its own lease again, but two processes must not share one.
        self._holder = f"{storable(by, 100)}#{uuid.uuid4().hex}"
        self._is_over = threading.Event()
        self.tokens: Mapping[Shard, int] = self._acquire(shards).tokens
        self._thread = threading.Thread(target=self._renew, name="changefeed-lease", daemon=True)

    def _acquire(self, shards: Sequence[Shard], tokens: Mapping[Shard, int] | None = None) -> Grant:
        return self._source.acquire_leases(
            self._consumer,
            self._feed,
            shards,
            holder=self._holder,
            seconds=LEASE_SECONDS,
            tokens=tokens,
            all_or_none=True,
        )

    def start(self) -> None:
        """Start to renew."""
        self._thread.start()

    def _renew(self) -> None:
        while not self._is_over.wait(LEASE_SECONDS / _RENEWALS_PER_LEASE):
            # Temporarily busy: the next renewal or the move will show it.
            with suppress(ChangefeedError):
                self._acquire((), self.tokens)

    def release(self) -> None:
        """Release the leases."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._source.release_leases(self._consumer, self._feed, self.tokens, holder=self._holder)


@contextmanager
def leased(
    source: FeedSource, consumer: str, feed: str, shards: Sequence[Shard], by: str, *, renewed: bool = False
) -> Iterator[HeldLeases]:
    """
    Hold the leases of shards for a block.

    :param renewed: whether the block may take longer than a lease.
    :raises LeaseHeldError: somebody else holds one; has its name and the command that revokes it.
    """
    try:
        leases = HeldLeases(source, consumer, feed, shards, by)
    except LeaseHeldError as problem:
        raise _held(source, consumer, feed, shards, problem) from None
    try:
        if renewed:
            leases.start()
        yield leases
    finally:
        leases.release()


def _held(
    source: FeedSource, consumer: str, feed: str, shards: Sequence[Shard], problem: LeaseHeldError
) -> LeaseHeldError:
    now = source.now()
    for row in source.cursors(feed, consumer):
        if row.shard in shards and row.lease_expires is not None and row.lease_expires > now:
            return LeaseHeldError(
                f"consumer {consumer!r}, feed {feed!r}, shard {shard_text(row.shard)} is held by "
                f"{row.lease_holder!r} until {format_time(row.lease_expires)}. Nothing was moved. Wait "
                f"until then, or stop the holder and revoke its lease: {revoke_command(row)}",
                row=row,
                holder=row.lease_holder,
                expires=row.lease_expires,
            )
    return problem


log = logging.getLogger(__name__)

#: Seconds to retry while others move cursors of the same consumer. Longer than the lease of a dead holder.
MOVE_TIMEOUT = 90.0
_PUBLISH_TRIES = 50
_OF_ROWS = "; if the database lost the cursors, restore them from the manifests"


class VariableStore(Protocol):
    """The operations on Airflow Variables that cursors need."""

    def get(self, key: str) -> str | None:
        """Return a Variable's text; None only if it certainly does not exist, never after an error."""

    def set(self, key: str, value: str) -> None:
        """Write a Variable."""


def resolve(source: FeedSource, variables: VariableStore, consumer: str, feed: str) -> list[CursorRow]:
    """
    Read a consumer's cursors, and publish them again if the Variable is missing or older.

    :return: the rows of all its shards; empty for a consumer that is new to the feed.
    :raises CursorEditedError: the Variable has values that the rows never had; nothing moved.
    :raises CursorFormatError: the Variable is not a cursor; nothing moved.
    :raises UnsupportedVersionError: a newer version wrote the Variable.
    """
    rows, is_current = compare(source, variables, consumer, feed)
    return rows if is_current else publish_rows(source, variables, consumer, feed, rows)


def advance(
    source: FeedSource,
    variables: VariableStore,
    consumer: str,
    feed: str,
    done: Mapping[Shard, Iterable[UlidRange]],
    *,
    by: str,
    leases: HeldLeases | None = None,
    timeout: float = MOVE_TIMEOUT,
) -> list[CursorRow]:
    """
    Record complete ranges: each cursor moves to the end of its unbroken run of complete ranges, never back.

    Ranges may come in any order, repeatedly, and from several processes at once. Call it only after the
    manifests are written.

    :param done: complete ranges of each shard, ``(after, upto]``.
    :param by: who moves the cursors, for example a run's id.
    :param leases: leases that the caller already holds; None takes them for the move.
    :param timeout: seconds to wait for others who move cursors of this consumer.
    :return: the rows of all its shards; ``row.frontier.missing()`` has the gaps that hold a cursor back.
    :raises CursorEditedError: a person has edited the Variable; nothing moved.
    :raises LeaseHeldError: another process held a lease for longer than ``timeout``.
    """
    ranges = {shard: tuple(pieces) for shard, pieces in done.items()}

    def change(row: CursorRow) -> Frontier:
        return row.frontier.complete(*ranges.get(row.shard, ()))

    def attempt() -> list[CursorRow]:
        with (
            leased(source, consumer, feed, list(ranges), by)
            if leases is None
            else nullcontext(leases) as held
        ):
            # Under the lease, so that an edit between the check and the move must come within milliseconds.
            rows, _ = compare(source, variables, consumer, feed)
            return move(source, consumer, feed, rows, held.tokens, change, by)

    rows = retrying(attempt, timeout) if ranges else source.cursors(feed, consumer)
    return publish_rows(source, variables, consumer, feed, rows)


def compare(
    source: FeedSource, variables: VariableStore, consumer: str, feed: str
) -> tuple[list[CursorRow], bool]:
    """Return the rows, and whether the Variable agrees; changes neither, and raises as :func:`resolve`."""
    identity = source.identity()
    key = variable_key(identity.id, consumer, feed)
    # The Variable first, so that it can be older than the rows but never ahead of them.
    text = variables.get(key)
    rows = source.cursors(feed, consumer)
    if text is None:
        return rows, not rows
    document = _read(text, key, consumer, feed, rows)
    known = {row.shard: row for row in rows}
    problems = [] if document.is_intact else ["its digest does not match, so somebody edited the Variable"]
    if (document.database, document.consumer, document.feed) != (identity.id, consumer, feed):
        problems.append(
            f"it belongs to consumer {document.consumer!r} and feed {document.feed!r} of database "
            f"{document.database}, but this is database {identity.id}"
        )
    if None not in (forks := {document.recovery_fork, identity.recovery_fork}) and len(forks) > 1:
        problems.append(
            "the database has been restored to an earlier state, or failed over with data loss: its recovery "
            f"fork was {document.recovery_fork} and is now {identity.recovery_fork}: {RESTORED_PAGE}"
        )
    for shard, cursor in document.shards.items():
        row = known.get(shard)
        why = _difference(cursor, row)
        if why or (problems and row is not None and row.ulid != cursor.ulid):
            there = _place(row) if row else "nothing"
            both = f"shard {shard_text(shard)}: the Variable has {_place(cursor)}, the database has {there}"
            problems.append(f"{both}: {why}" if why else both)
    if problems:
        adopt, publish = recovery_commands(consumer, feed)
        remedy = beyond_remedy(source, consumer, feed, document.shards) or (
            f"Overwrite it with the cursors of the database: {publish}; or, if the Variable is correct, "
            f"move the cursors to its ULIDs: {adopt}"
        )
        raise CursorEditedError(
            f"Airflow Variable {key!r} differs from the cursors of consumer {consumer!r} in the database of "
            f"feed {feed!r}: {some(problems, '; ')}. Nothing was moved. {remedy}"
            + ("" if rows else f"{_OF_ROWS}: {rebuild_command(consumer, feed)}"),
            key=key,
            consumer=consumer,
            feed=feed,
            problems=problems,
            remedy=remedy,
        )
    is_current = {shard: row.resource_version for shard, row in known.items()} == {
        shard: cursor.resource_version for shard, cursor in document.shards.items()
    }
    return rows, is_current


def _read(text: str, key: str, consumer: str, feed: str, rows: Sequence[CursorRow]) -> CursorDocument:
    try:
        return CursorDocument.from_json(text, key=key)
    except CursorFormatError as problem:
        there = some(f"shard {shard_text(row.shard)} {_place(row)}" for row in rows) or "nothing"
        _, publish = recovery_commands(consumer, feed)
        rebuild = rebuild_command(consumer, feed)
        act = f"Overwrite the Variable: {publish}" if rows else f"Delete the Variable{_OF_ROWS}: {rebuild}"
        raise CursorFormatError(
            f"{problem.message}. The Variable has {text[:80]!r}, the database has {there}. Nothing was "
            f"moved. {act}",
            **problem.facts,
            reason=problem.message,
        ) from None


def rebuild_command(consumer: str, feed: str) -> str:
    """Return the command that restores lost rows; the output's path is not known."""
    return shell("cursor rebuild", consumer, "--feed", feed, "--path", "...")


def some(texts: Iterable[str], separator: str = ", ", most: int = 10) -> str:
    """Join the first texts: a feed may have thousands of shards."""
    found = list(texts)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return separator.join(found[:most]) + more


def _difference(cursor: Cursor, row: CursorRow | None) -> str:
    """Return why a published cursor cannot come from its row; empty if it can."""
    if row is None:
        return "the database has no cursor for this shard"
    if cursor.resource_version > row.resource_version:
        return "the Variable was edited, or the database was restored to an earlier state"
    if cursor.resource_version == row.resource_version and cursor.ulid != row.ulid:
        return "the two positions have the same resource version"
    return ""


def _place(cursor: Cursor | CursorRow) -> str:
    ulid = cursor.ulid
    return f"{ulid} ({format_time(ulid.time)}, resource version {cursor.resource_version})"


def move(
    source: FeedSource,
    consumer: str,
    feed: str,
    rows: Sequence[CursorRow],
    tokens: Mapping[Shard, int],
    change: Callable[[CursorRow], Frontier],
    by: str,
    why: str | None = None,
    *,
    is_rewind: bool = False,
) -> list[CursorRow]:
    """
    Change the rows whose frontier ``change`` changes, all or none.

    :param is_rewind: whether the cursor may move back, and the ack with it.
    :return: all rows, after the change.
    """
    moves = []
    for row in rows:
        if row.shard in tokens and (frontier := change(row)) != row.frontier:
            version, token = row.resource_version, tokens[row.shard]
            began = began_after(row, frontier) if is_rewind else None
            moves.append(CursorMove(row.shard, frontier, version, token, frontier.upto, is_rewind, began))
    return source.move_cursors(consumer, feed, moves, by=by, why=why) if moves else list(rows)


def began_after(row: CursorRow, frontier: Frontier) -> Began | None:
    """Return how the beginning came about after a person moved a cursor; None if the move leaves it."""
    return Began.CHOSEN if frontier.start < row.frontier.start else None


def publish_rows(
    source: FeedSource,
    variables: VariableStore,
    consumer: str,
    feed: str,
    rows: list[CursorRow],
    *,
    is_decided: bool = False,
) -> list[CursorRow]:
    """
    Write the Variable until the rows did not change while it was written.

    Shards share the Variable: a slower publisher may overwrite a newer value with its older one. It sees the
    newer rows when it reads them once more, and so the last one to write has written the newest.

    :param is_decided: whether a person decided to publish the rows; else :func:`compare` accepted the
        Variable.
    """
    if not rows:
        return rows
    identity = source.identity()
    key = variable_key(identity.id, consumer, feed)
    if identity.recovery_fork is None and not is_decided:
        # A login that cannot see the fork must not hide a restore from those that can.
        identity = replace(identity, recovery_fork=_published_fork(variables, key))
    for _ in range(_PUBLISH_TRIES):
        value = CursorDocument.of_rows(identity, consumer, feed, rows).to_json()
        variables.set(key, value)
        newer = source.cursors(feed, consumer)
        if CursorDocument.of_rows(identity, consumer, feed, newer).to_json() == value:
            return newer
        rows = newer
    # Others move faster than we write; each of them publishes after its own move.
    log.warning(
        "The cursors of consumer %s, feed %s move too fast to publish; the Variable may be older than "
        "the cursors",
        consumer,
        feed,
    )
    return rows


def _published_fork(variables: VariableStore, key: str) -> str | None:
    try:
        return CursorDocument.from_json(variables.get(key) or "", key=key).recovery_fork
    except (CursorFormatError, UnsupportedVersionError):
        return None


def retrying(
    attempt: Callable[[], list[CursorRow]],
    timeout: float,
    errors: tuple[type[Exception], ...] = (LeaseHeldError, LeaseLostError, StaleVersionError),
) -> list[CursorRow]:
    """Retry while others move the cursors, for at most ``timeout`` seconds; then raise the last error."""
    pauses = scattered(0.02, 1.0)
    return retry(attempt, lambda error: isinstance(error, errors), pauses, seconds=timeout, from_start=True)
