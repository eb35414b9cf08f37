# SPDX-License-Identifier: Apache-2.0
"""What the page changes: only for users who may, only what they saw, and logged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.api_fastapi.logging.decorators import action_logging
from fastapi import APIRouter, Body, Depends, HTTPException, Query
from fastapi.params import Depends as Dependency
from pydantic import StringConstraints

from airflow_changefeed.connections.connection import without_secrets
from airflow_changefeed.consumers.settings import resolve
from airflow_changefeed.core.consumer import (
    MAX_REASON,
    ConsumerInfo,
    ConsumerSpec,
    DeadLetterState,
    OnPoison,
    Position,
    parse_position,
)
from airflow_changefeed.core.cursor import Began, CursorRow, variable_key
from airflow_changefeed.core.feed import Shard, parse_shard
from airflow_changefeed.core.values import format_time
from airflow_changefeed.cursors.move_plan import known_rows
from airflow_changefeed.cursors.moves import PlannedMove, accept_beginning, move_to, plan_moves
from airflow_changefeed.doctor.output import check_files
from airflow_changefeed.exceptions import InvalidArgumentError, StaleVersionError
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.plugins.access import (
    Runs,
    may_change,
    may_edit_connection,
    reading,
    same_origin,
)
from airflow_changefeed.plugins.api import Exporting, OfConnection
from airflow_changefeed.plugins.connections import ConnId, ask_output, ask_source, opened
from airflow_changefeed.plugins.rows import Row, capture_row, cursor_row, move_row, resolve_dead_letter
from airflow_changefeed.plugins.strips import Exports
from airflow_changefeed.plugins.windows import Export
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_control import check_version, consumer_text, stale, stale_cursor

#: Seconds to wait for an export that is moving its cursor.
_HELD_TIMEOUT = 3.0
_NO_VERSION = "{} is missing; pass the version that you saw, so that later changes are not overwritten"

router = APIRouter(dependencies=[Depends(reading)])

Version = Annotated[int | None, Body()]
Note = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_REASON)]


async def changing(user: GetUserDep, conn_id: ConnId, feed: str, consumer: str) -> None:
    """Require permission to change a consumer; 403 without it."""
    database = await ask_source(conn_id, lambda source: source.identity().id)
    if not may_change(user, database, consumer, feed):
        raise HTTPException(
            403,
            "You have read-only access to cursors. To change them you need Airflow's permission to edit the "
            f"Variable {variable_key(database, consumer, feed)}",
        )


async def changing_export(user: GetUserDep, use: Exporting) -> None:
    """Require permission to change the consumer that a task exports for; 403 without it."""
    await changing(user, use.conn_id, str(use.feed), str(use.consumer))


async def changing_capture(user: GetUserDep, conn_id: ConnId) -> None:
    """Require permission to change captures; 403 without it."""
    if not may_edit_connection(user, conn_id):
        raise HTTPException(
            403,
            "You have read-only access to captures. To change them you need Airflow's permission to edit the "
            f"connection {conn_id}",
        )


@router.get("/move", dependencies=[Depends(changing)])
async def planned_move(
    exports: OfConnection,
    conn_id: ConnId,
    feed: str,
    consumer: str,
    shard: str,
    to: str,
    resource_version: int | None = None,
) -> Row:
    """Return the effect of a move; changes nothing."""
    version = _named(resource_version, "resource_version")
    destination = parse_position(to)

    def question(source: FeedSource) -> Row:
        return move_row(_plan(source, exports, consumer, feed, parse_shard(shard), destination, version))

    return await ask_source(conn_id, question)


def _guarded(may: Callable[..., Any], event: str) -> list[Dependency]:
    """Return what a change must pass: same origin, permission; then Airflow's audit log has the event."""
    return [Depends(same_origin), Depends(may), Depends(action_logging(event=event))]


@router.post("/move", dependencies=_guarded(changing, "changefeed_move_cursor"))
async def move(
    user: GetUserDep,
    exports: OfConnection,
    conn_id: ConnId,
    feed: str,
    consumer: str,
    shard: str,
    to: Annotated[str, Body()],
    resource_version: Version = None,
    note: Annotated[str, Body(max_length=MAX_REASON - 10)] = "",
) -> Row:
    """Move a cursor and publish it, if it has not changed since the user saw it."""
    version = _named(resource_version, "resource_version")
    destination = parse_position(to)
    hook, by = ChangefeedHook(conn_id), user.get_name()

    def question(source: FeedSource) -> Row:
        of = parse_shard(shard)
        planned = _plan(source, exports, consumer, feed, of, destination, version)
        rows = move_to(
            source,
            hook.variables(),
            consumer,
            feed,
            [planned],
            by=by,
            versions={of: version},
            why=": ".join(filter(None, ["set", note.strip()])),
            timeout=_HELD_TIMEOUT,
        )
        moved = next(row for row in rows if row.shard == of)
        return {**move_row(planned), "cursor": cursor_row(moved, source.now(), exports.run_names)}

    return await ask_source(conn_id, question)


def _plan(
    source: FeedSource,
    exports: Exports,
    consumer: str,
    feed: str,
    shard: Shard,
    to: Position,
    version: int,
) -> PlannedMove:
    """Plan a move; ``version`` is that of the cursor that the user saw."""

    def check() -> None:
        for row in known_rows(source, consumer, feed):
            if row.shard == shard and row.resource_version != version:
                raise stale_cursor(row, version)

    check()
    try:
        (planned,) = plan_moves(source, consumer, feed, to, [shard], exports.outputs(feed, consumer))
    except InvalidArgumentError:
        # If two users press the same button, the second sees the first one's change, not "nothing to move".
        check()
        raise
    return planned


@router.post("/accept_beginning", dependencies=_guarded(changing, "changefeed_accept_beginning"))
async def beginning_accepted(
    user: GetUserDep,
    conn_id: ConnId,
    feed: str,
    consumer: str,
    note: Annotated[Note, Body(max_length=MAX_REASON - 20)],
    resource_version: Version = None,
) -> Row:
    """
    Accept that an export does not have what lies before its beginning, if no cursor of it has changed since
    the user saw them.

    :param resource_version: sum of those of its cursors.
    """
    version = _named(resource_version, "resource_version")
    hook, by = ChangefeedHook(conn_id), user.get_name()

    def question(source: FeedSource) -> Row:
        rows = known_rows(source, consumer, feed)
        what = f"consumer {consumer!r} of feed {feed!r}"
        check_version(what, version, _sum_of(rows), consumer_text(None, rows))
        versions = {row.shard: row.resource_version for row in rows if row.began is Began.IMPLIED}
        rows = accept_beginning(
            source,
            hook.variables(),
            consumer,
            feed,
            by=by,
            why=note,
            versions=versions,
            timeout=_HELD_TIMEOUT,
        )
        return {"resource_version": _sum_of(rows)}

    return await ask_source(conn_id, question)


def _sum_of(rows: Iterable[CursorRow]) -> int:
    return sum(row.resource_version for row in rows)


@router.post("/check_files", dependencies=_guarded(changing_export, "changefeed_check_files"))
async def files_checked(user: GetUserDep, exports: OfConnection, use: Exporting) -> Row:
    """Look at the names of all files of what a task exports, and note what was missing."""
    by = user.get_name()

    path = without_secrets(str(use.path))

    def question() -> Row:
        with opened(use.conn_id) as source, source.connected():
            store = Export(source, use, exports).store
            check = check_files(source, store, str(use.consumer), path, by=by)
        return {"checked_at": format_time(check.checked_at), "missing": check.missing}

    # An output that hangs must not take the connection's turns.
    return await ask_output(path, question)


@router.post("/revoke", dependencies=_guarded(changing, "changefeed_revoke_lease"))
async def revoked(
    runs: Runs,
    conn_id: ConnId,
    feed: str,
    consumer: str,
    shard: str,
    fencing_token: Annotated[int | None, Body(embed=True)] = None,
) -> Row:
    """Revoke a lease, if it is still the one that the user saw."""
    token = _named(fencing_token, "fencing_token")

    def question(source: FeedSource) -> Row:
        of = parse_shard(shard)
        source.feed(feed)
        known_rows(source, consumer, feed)
        source.revoke_lease(consumer, feed, of, fencing_token=token)
        now = source.now()
        rows = [row for row in source.cursors(feed, consumer) if row.shard == of]
        return {"cursors": [cursor_row(row, now, runs) for row in rows]}

    return await ask_source(conn_id, question)


@router.post("/resolve_gaps", dependencies=_guarded(changing_capture, "changefeed_resolve_gaps"))
async def gaps_resolved(
    user: GetUserDep,
    conn_id: ConnId,
    feed: str,
    note: Annotated[Note, Body()],
    resource_version: Version = None,
) -> Row:
    """Resolve the open gaps of a capture, if nothing has changed since the user saw them."""
    version, by = _named(resource_version, "resource_version"), user.get_name()

    def question(source: FeedSource) -> Row:
        info = source.resolve_capture(feed, note=note, by=by, resource_version=version)
        return {"open_gaps": len(info.gaps), "resource_version": info.resource_version}

    return await ask_source(conn_id, question)


@router.post("/refresh_capture", dependencies=_guarded(changing_capture, "changefeed_refresh_capture"))
async def capture_refreshed(
    conn_id: ConnId, feed: str, resource_version: Annotated[int | None, Body(embed=True)] = None
) -> Row:
    """Capture the present columns, if neither the capture nor a table has changed since the user saw them."""
    version = _named(resource_version, "resource_version")

    def question(source: FeedSource) -> Row:
        info = source.refresh_capture(feed, resource_version=version)
        return capture_row(info, conn_id, feed, may_change=True)

    return await ask_source(conn_id, question)


@router.post("/create_consumer", dependencies=_guarded(changing, "changefeed_create_consumer"))
async def consumer_created(
    user: GetUserDep,
    conn_id: ConnId,
    feed: str,
    consumer: str,
    start: Annotated[str, Body()],
    max_attempts: Annotated[int | None, Body()] = ConsumerSpec.max_attempts,
    on_poison: Annotated[OnPoison, Body()] = ConsumerSpec.on_poison,
) -> Row:
    """Create a consumer that does not exist."""
    by, position = user.get_name(), parse_position(start)
    spec = ConsumerSpec(consumer, feed, max_attempts, on_poison)

    def question(source: FeedSource) -> Row:
        present = next((one for one in source.consumers(feed) if one.spec.consumer == consumer), None)
        if present is not None:
            raise _created_before(present)
        begin, starts = resolve(source, feed, position)
        made = source.create_consumer(spec, begin=begin, starts=starts, by=by)
        # If somebody else created it since the look above, with the same settings, theirs is returned.
        begun = {row.shard: row.frontier.start for row in source.cursors(feed, consumer)}
        is_ours = (made.created_by, made.begin) == (by, begin)
        if not is_ours or any(begun.get(shard) != after for shard, after in starts.items()):
            raise _created_before(made)
        return {"resource_version": made.resource_version}

    return await ask_source(conn_id, question)


def _created_before(present: ConsumerInfo) -> StaleVersionError:
    what = f"consumer {present.spec.consumer!r} of feed {present.spec.feed!r}"
    return stale(what, 0, present.resource_version, f"created by {present.created_by}")


@router.post("/drop_consumer", dependencies=_guarded(changing, "changefeed_drop_consumer"))
async def consumer_dropped(
    conn_id: ConnId,
    feed: str,
    consumer: str,
    resource_version: Annotated[int | None, Body(embed=True)] = None,
) -> Row:
    """Drop a consumer of events, if its settings have not changed since the user saw them."""
    version = _named(resource_version, "resource_version")

    def question(source: FeedSource) -> Row:
        source.consumer(consumer, feed)
        source.drop_consumer(consumer, feed, resource_version=version)
        return {}

    return await ask_source(conn_id, question)


class Resolution(str, Enum):
    """What becomes of a dead letter."""

    RETRY = "retry"
    DROP = "drop"


@router.post("/resolve_dead_letter", dependencies=_guarded(changing, "changefeed_resolve_dead_letter"))
async def dead_letter_resolved(
    user: GetUserDep,
    conn_id: ConnId,
    feed: str,
    consumer: str,
    number: Annotated[int, Query(ge=1, le=(1 << 63) - 1)],
    to: Annotated[Resolution, Body()],
    note: Annotated[Note | None, Body()] = None,
    resource_version: Version = None,
) -> Row:
    """Retry a dead letter, or drop it with a note, if it has not changed since the user saw it."""
    version, by = _named(resource_version, "resource_version"), user.get_name()
    if to is Resolution.DROP and note is None:
        raise HTTPException(
            422, "note is missing; say why the event is not needed. The note is stored with the dead letter"
        )
    state = DeadLetterState.RETRY if to is Resolution.RETRY else DeadLetterState.DROPPED

    def question(source: FeedSource) -> Row:
        return resolve_dead_letter(source, consumer, feed, number, state, version, by=by, note=note)

    return await ask_source(conn_id, question)


def _named(version: int | None, name: str) -> int:
    if version is None:
        raise HTTPException(428, _NO_VERSION.format(name))
    return version
