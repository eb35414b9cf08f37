# SPDX-License-Identifier: Apache-2.0
"""
Differences between Variable and database, or lost rows: to see, and three ways to resolve them (ADR 0004).

``publish`` keeps the database's cursors, ``adopt`` takes the Variable's, ``rebuild`` restores them from the
manifests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from airflow_changefeed.core.cursor import (
    Began,
    Cursor,
    CursorDocument,
    CursorRow,
    Frontier,
    set_command,
    variable_key,
)
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import format_time
from airflow_changefeed.cursors.cursors import (
    MOVE_TIMEOUT,
    VariableStore,
    beyond_remedy,
    compare,
    leased,
    move,
    publish_rows,
    rebuild_command,
    retrying,
)
from airflow_changefeed.cursors.window_grid import export_grids, output_grid
from airflow_changefeed.exceptions import (
    CursorBeyondFeedError,
    CursorEditedError,
    CursorError,
    CursorFormatError,
    InvalidArgumentError,
    LeaseHeldError,
    LeaseLostError,
    PurgedError,
    StaleVersionError,
    UnsupportedVersionError,
)
from airflow_changefeed.output.claims import check_same
from airflow_changefeed.output.manifests import ManifestStore
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_control import stale_cursor


def publish(source: FeedSource, variables: VariableStore, consumer: str, feed: str) -> list[CursorRow]:
    """
    Overwrite the Variable with the cursors in the database.

    :raises CursorError: the database has no cursor of this consumer.
    """
    rows = source.cursors(feed, consumer)
    if not rows:
        raise CursorError(
            f"feed {feed!r}: the database has no cursors of consumer {consumer!r} to publish. Restore them "
            f"from the manifests of its export: {rebuild_command(consumer, feed)}; or "
            f"from the Variable: {shell('cursor adopt', consumer, '--feed', feed)}",
            feed=feed,
            consumer=consumer,
        )
    return publish_rows(source, variables, consumer, feed, rows, is_decided=True)


def adopt(
    source: FeedSource,
    variables: VariableStore,
    consumer: str,
    feed: str,
    *,
    by: str,
    versions: Mapping[Shard, int] | None = None,
    outputs: Sequence[ManifestStore] = (),
    timeout: float = MOVE_TIMEOUT,
) -> list[CursorRow]:
    """
    Move the cursors to the ULIDs that a person wrote into the Variable, forwards or backwards.

    A shard that is not in the Variable does not move; one that is only in the Variable gets a row.

    :param versions: resource versions that the person saw; None for any.
    :param outputs: of the export, which say where windows begin; where none does, the moves so far do.
    :raises StaleVersionError: a row has changed since; nothing moved.
    :raises CursorFormatError: the Variable is missing, or is not a cursor of this consumer and feed.
    :raises CursorBeyondFeedError: a ULID is beyond the shard's high-water time; nothing changed.
    :raises PurgedError: events after a ULID are purged and would be missed.
    :raises InvalidArgumentError: a ULID is inside a window of an export; nothing changed.
    """
    wanted = adopted(source, variables, consumer, feed, outputs)
    known = {row.shard for row in source.cursors(feed, consumer)}
    starts = {shard: ulid for shard, ulid in wanted.items() if shard not in known}
    if starts:
        source.begin_consumer(consumer, feed, starts, by=by, why="adopt", began=Began.CHOSEN)

    def change(row: CursorRow) -> Frontier:
        target = wanted[row.shard]
        return row.frontier if row.ulid == target else row.frontier.moved_to(target)

    def attempt() -> list[CursorRow]:
        with leased(source, consumer, feed, list(wanted), by) as leases:
            rows = source.cursors(feed, consumer)
            for row in rows:
                seen = (versions or {}).get(row.shard, row.resource_version)
                if row.shard in wanted and seen != row.resource_version:
                    raise stale_cursor(row, seen)
            return move(source, consumer, feed, rows, leases.tokens, change, by, "adopt", is_rewind=True)

    errors = (LeaseHeldError, LeaseLostError, *((StaleVersionError,) if versions is None else ()))
    rows = retrying(attempt, timeout, errors)
    return publish_rows(source, variables, consumer, feed, rows, is_decided=True)


def adopted(
    source: FeedSource,
    variables: VariableStore,
    consumer: str,
    feed: str,
    outputs: Sequence[ManifestStore] = (),
) -> dict[Shard, Ulid]:
    """Return the positions in the Variable, edited or not, or raise as :func:`adopt` does."""
    database = source.identity().id
    key = variable_key(database, consumer, feed)
    text = variables.get(key)
    if text is None:
        raise CursorFormatError(
            f"Airflow Variable {key!r} does not exist, so no cursors can be adopted", key=key
        )
    document = CursorDocument.from_json(text, key=key)
    if (document.database, document.consumer, document.feed) != (database, consumer, feed):
        raise CursorFormatError(
            f"Airflow Variable {key!r} has cursors of consumer {document.consumer!r} and feed "
            f"{document.feed!r} of database {document.database}, not of {consumer!r} and "
            f"{feed!r} of database {database}; overwrite it with the cursors in the database: "
            f"{shell('cursor publish', consumer, '--feed', feed)}",
            key=key,
        )
    wanted = document.shards
    _check_reachable(source, consumer, feed, wanted)
    _check_begins(source, consumer, feed, wanted, outputs)
    return {shard: cursor.ulid for shard, cursor in wanted.items()}


def rebuild(
    source: FeedSource,
    variables: VariableStore,
    consumer: str,
    feed: str,
    store: ManifestStore,
    *,
    by: str,
    timeout: float = MOVE_TIMEOUT,
) -> list[CursorRow]:
    """
    Restore lost rows from the manifests of a consumer's export, then publish; rows that have moved stay.

    :param store: the export. Only units that this consumer exported count.
    :raises CursorError: the export has no units of this consumer.
    :raises ForeignOutputError: it is the export of another database's feed.
    :raises CursorBeyondFeedError: a unit is beyond the shard's high-water time, so it belongs to another
        database.
    """
    pieces: dict[Shard, list[UlidRange]] = {}
    database = source.identity().id
    for manifest in store.list():
        if manifest.consumer == consumer and manifest.feed == feed:
            check_same("the export", manifest.database, database, feed)
            pieces.setdefault(manifest.unit.shard, []).append(manifest.unit.range)
    if not pieces:
        raise CursorError(
            f"feed {feed!r}: the export has no units of consumer {consumer!r} to rebuild its cursors from; "
            "check the path and the name of the consumer",
            feed=feed,
            consumer=consumer,
        )
    # After a crash here the rows have completed nothing, and count as lost the next time.
    starts = {shard: min(piece.after for piece in shard_pieces) for shard, shard_pieces in pieces.items()}
    rows = source.begin_consumer(consumer, feed, starts, by=by, why="rebuild")
    lost = {row.shard for row in rows if row.shard in pieces and not row.frontier.has_moved}

    def change(row: CursorRow) -> Frontier:
        return row.frontier.complete(*pieces[row.shard])

    def attempt() -> list[CursorRow]:
        shards = sorted(lost, key=shard_text)
        with leased(source, consumer, feed, shards, by) as leases:
            rows = source.cursors(feed, consumer)
            return move(source, consumer, feed, rows, leases.tokens, change, by, "rebuild")

    rows = retrying(attempt, timeout) if lost else rows
    return publish_rows(source, variables, consumer, feed, rows, is_decided=True)


def _check_begins(
    source: FeedSource,
    consumer: str,
    feed: str,
    wanted: Mapping[Shard, Cursor],
    outputs: Sequence[ManifestStore],
) -> None:
    """Check that an export of windows stops between two: it could not go on from within one."""
    by_moves = export_grids(source, feed, [consumer]).get(consumer)
    there = {row.shard: row.ulid for row in source.cursors(feed, consumer)}
    for shard, place in ((shard, one.ulid) for shard, one in wanted.items()):
        grid = output_grid(outputs, shard, place) or by_moves
        if grid and place not in (there.get(shard), Ulid.MIN) and not grid.is_begin(place):
            time = format_time(grid.floor(place).next().time) if grid.is_sure else "..."
            raise InvalidArgumentError(
                f"feed {feed!r} shard {shard_text(shard)}: cursor {place} in the Variable is inside a "
                f"window of consumer {consumer!r}, which exports windows. Nothing was changed. Give the "
                f"start of a window: {set_command(consumer, feed, shard, time)}; or publish: "
                f"{shell('cursor publish', consumer, '--feed', feed)}",
                feed=feed,
                shard=shard,
                consumer=consumer,
            )


def _check_reachable(source: FeedSource, consumer: str, feed: str, wanted: Mapping[Shard, Cursor]) -> None:
    """Check all positions before the first change: rows are created and moved in separate transactions."""
    states = {status.shard: status for status in source.shards(feed)}
    publish = shell("cursor publish", consumer, "--feed", feed)
    for shard, cursor in wanted.items():
        status = states.get(shard)
        if status is None or cursor.ulid > status.highest_cursor:
            raise CursorBeyondFeedError(
                f"feed {feed!r} shard {shard_text(shard)}: cursor {cursor.ulid} in the Variable is "
                "beyond the shard's high-water time "
                f"({format_time(status.high_water) if status else 'the feed has no such shard'}). The "
                "cursor belongs to another feed, or the database was restored to an earlier state. "
                "Nothing was changed. "
                f"{beyond_remedy(source, consumer, feed, wanted) or f'Publish: {publish}'}",
                feed=feed,
                shard=shard,
                cursor=cursor.ulid,
            )
        if cursor.ulid < status.purged_upto:
            raise PurgedError(
                f"feed {feed!r} shard {shard_text(shard)}: cursor {cursor.ulid} in the Variable would "
                f"miss events, because events are purged up to {status.purged_upto}. Nothing was "
                f"changed. Write a cursor at or after that ULID, or publish: {publish}",
                feed=feed,
                shard=shard,
                purged_upto=status.purged_upto,
            )


class VariableKind(str, Enum):
    """
    State of a Variable compared with the rows.

    ``EQUAL``: the same. ``MISSING``, ``OLDER``: the next run publishes it again. ``EDITED``: nothing moves
    until a person adopts or publishes. ``UNREADABLE``: it is not a cursor; nothing moves until a person
    publishes. ``NEWER``: a newer version of this package wrote it.
    """

    EQUAL = "equal"
    MISSING = "missing"
    OLDER = "older"
    EDITED = "edited"
    UNREADABLE = "unreadable"
    NEWER = "newer"


@dataclass(frozen=True)
class VariableState:
    """
    A Variable and how it compares with the rows.

    :param problem: what a person must decide, with both values and the commands; None if nothing.
    """

    key: str
    kind: VariableKind
    problem: str | None = None


def variable_state(source: FeedSource, variables: VariableStore, consumer: str, feed: str) -> VariableState:
    """
    Compare an export's Variable with its rows; changes neither.

    :raises SourceUnavailableError: Airflow or the database did not answer.
    """
    key = variable_key(source.identity().id, consumer, feed)
    try:
        _, is_current = compare(source, variables, consumer, feed)
    except CursorEditedError as problem:
        # The Variable of an old version has another key.
        return VariableState(problem.facts["key"], VariableKind.EDITED, problem.message)
    except CursorFormatError as problem:
        return VariableState(key, VariableKind.UNREADABLE, problem.message)
    except UnsupportedVersionError as problem:
        return VariableState(key, VariableKind.NEWER, problem.message)
    if is_current:
        return VariableState(key, VariableKind.EQUAL)
    is_missing = variables.get(key) is None
    return VariableState(key, VariableKind.MISSING if is_missing else VariableKind.OLDER)
