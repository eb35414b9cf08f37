# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed cursor``: cursors, their moves and their history."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.utils.platform import getuser

from airflow_changefeed.cli.command import (
    Row,
    ask,
    command,
    echo,
    feeds_command,
    open_feeds,
    show,
    ulid_values,
)
from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.consumer import COUNTED, ConsumerPosition
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, counted, shard_text
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import AirflowUnavailableError, InvalidArgumentError, ShardNotFoundError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_changefeed.core.consumer import FeedOverview, OutputCheck
    from airflow_changefeed.core.cursor import CursorChange, CursorRow
    from airflow_changefeed.core.ulid import Ulid, UlidRange
    from airflow_changefeed.cursors.cursors import VariableStore
    from airflow_changefeed.cursors.moves import PlannedMove
    from airflow_changefeed.cursors.recovery import VariableState
    from airflow_changefeed.output.store import ExportStore
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
    """Yield what the cursors of an export do not show, a line each; the overview is of all its shards."""
    from airflow_changefeed.doctor.airflow import beginning_fault
    from airflow_changefeed.doctor.output import checked_fault

    feed = overview.info.name
    left_out = beginning_fault(source, overview, consumer)
    if left_out is not None:
        yield str(left_out)
    check = next((one for one in overview.checks if one.consumer == consumer), None)
    if check is not None and check.missing:
        yield str(checked_fault(check))
    else:
        yield files_text(feed, consumer, check)


def files_text(feed: str, consumer: str, check: OutputCheck | None) -> str:
    """Return when the files of an export's output were last looked at, where nothing was missing."""
    look = shell("doctor", "--feed", feed, "--path", "...")
    files = f"the files of its output have not been checked yet: {look}"
    if check is not None:
        files = f"files last checked at {format_time(check.checked_at)}"
    return f"Feed {feed}, consumer {consumer}: complete by the cursor; {files}"


@feeds_command
def show_cursors(source: FeedSource, args: Namespace) -> None:
    """Show the cursors of a consumer."""
    from airflow_changefeed.cursors.move_plan import known_rows
    from airflow_changefeed.cursors.moves import is_of_events
    from airflow_changefeed.cursors.recovery import variable_state
    from airflow_changefeed.doctor.airflow import whole_overview

    state = None
    if not is_of_events(source, args.name, args.feed):
        # First, because it says what to do if the database has lost the rows.
        try:
            state = variable_state(source, _variables(args), args.name, args.feed)
        except AirflowUnavailableError as problem:
            echo(problem)
        if state is not None and state.problem is not None:
            echo(f"{state.kind.value}: {state.problem}")
    rows = _chosen(known_rows(source, args.name, args.feed), args.shard)
    overview = whole_overview(source, args.feed)
    behind = {one.row.shard: one.behind for one in overview.positions(args.name)}
    show([cursor_row(row, behind.get(row.shard), state) for row in rows], args.output, short_cursor)
    echo(_summary(rows, state))
    if state is not None:
        for line in export_notes(source, overview, args.name):
            echo(line)


def _chosen(rows: Sequence[CursorRow], shards: Sequence[Shard] | None) -> Sequence[CursorRow]:
    unknown = [shard_text(shard) for shard in shards or () if shard not in {row.shard for row in rows}]
    if unknown:
        raise ShardNotFoundError(
            f"consumer {rows[0].consumer!r} has no cursor for shard {', '.join(unknown)} of feed "
            f"{rows[0].feed!r}",
            shards=unknown,
        )
    return [row for row in rows if not shards or row.shard in shards]


def _summary(rows: Sequence[CursorRow], state: VariableState | None) -> str:
    gaps = sum(len(row.frontier.missing()) for row in rows)
    words = [f"Cursors: {len(rows)}", f"gaps before them: {gaps}"]
    if state is not None:
        again = " (the next run publishes it again)" if state.kind.value in ("missing", "older") else ""
        words.append(f"Variable {state.key}: {state.kind.value}{again}")
    return "; ".join(words)


@feeds_command
def set_cursors(source: FeedSource, args: Namespace) -> None:
    """Move cursors."""
    from airflow_changefeed.cursors.moves import plan_moves

    moves = plan_moves(source, args.name, args.feed, args.to, args.shard, _outputs(args))
    _move(source, args, moves, "set")


@command
def reset_cursors(args: Namespace) -> None:
    """Move cursors back."""
    from airflow_changefeed.cursors.moves import go_back, plan_reset

    if args.change is not None and args.shard:
        raise InvalidArgumentError("--shard cannot be combined with --change, which already names the shard")
    with open_feeds(args.conn_id) as source:
        if args.change is None:
            moves, what = plan_reset(source, args.name, args.feed, args.shard), "reset"
        else:
            moves = go_back(source, args.name, args.feed, args.change)
            what = f"reset to before change {args.change}"
        _move(source, args, moves, what)


def _move(source: FeedSource, args: Namespace, moves: Sequence[PlannedMove], what: str) -> None:
    """Make the planned moves, after confirmation, if no cursor has changed since it was shown."""
    from airflow_changefeed.cursors.moves import move_to

    versions = None
    if args.resource_version:
        versions = named_versions(args.resource_version, [move.shard for move in moves])
    elif not args.yes:
        show([move_row(move) for move in moves], "table", short_move, on_error=True)
        _show_windows(args, moves)
        ask(_question(args, moves), "Nothing was moved")
    why = f"{what}: {args.note}" if args.note else what
    rows = move_to(
        source, _variables(args), args.name, args.feed, moves, versions=versions, by=getuser(), why=why
    )
    after = {row.shard: row for row in rows}
    show(
        [{**move_row(move), "resource_version": after[move.shard].resource_version} for move in moves],
        args.output,
        short_move,
    )
    if versions is not None or args.yes:
        _show_windows(args, moves)
    history = shell("cursor history", args.name, "--feed", args.feed)
    echo(f"Moved {counted(len(moves), 'cursor')}. To undo, see {history}")


def _show_windows(args: Namespace, moves: Sequence[PlannedMove]) -> None:
    """Say which cursors go where a window begins, and not to the place that was asked for."""
    for move in moves:
        if move.asked is not None:
            echo(
                f"Shard {shard_text(move.shard)}: {args.name} exports windows, so the cursor goes to "
                f"the start of a window, at {format_time(move.target.next().time)}, not after "
                f"{move.asked}"
            )


def named_versions(given: Sequence[tuple[Shard | None, int]], shards: Sequence[Shard]) -> dict[Shard, int]:
    """
    Return the expected version of each cursor that changes.

    :param given: versions with their shards; the shard may be None if a single cursor changes.
    :param shards: whose cursors change.
    :raises InvalidArgumentError: a version without a shard although several cursors change, or two versions
        of one shard.
    """
    if any(shard is None for shard, _ in given) and (len(given) > 1 or len(shards) > 1):
        names = " ".join(f"--resource-version {shard_text(shard)}=..." for shard in shards[:3])
        raise InvalidArgumentError(f"{len(shards)} cursors change; give each version with its shard: {names}")
    versions = {shards[0] if shard is None else shard: version for shard, version in given}
    if len(versions) < len(given):
        raise InvalidArgumentError("--resource-version names a shard twice")
    return versions


def _question(args: Namespace, moves: Sequence[PlannedMove]) -> str:
    again, skipped = sum(move.again for move in moves), sum(move.skipped for move in moves)
    skips_purged = any(move.skips_purged for move in moves)
    purged = ", and also purged events, which cannot be counted" if skips_purged else ""
    return (
        f"{counted(again, 'event')} will be repeated, {skipped} will be skipped{purged}. Move "
        f"{counted(len(moves), 'cursor')} of consumer {args.name}, feed {args.feed}?"
    )


@feeds_command
def accept_beginning(source: FeedSource, args: Namespace) -> None:
    """Accept what an export does not have, after confirmation."""
    from airflow_changefeed.cursors import moves
    from airflow_changefeed.doctor.airflow import whole_overview

    implied = moves.implied_beginnings(source, args.name, args.feed)
    known = whole_overview(source, args.feed).positions(args.name)
    positions = {one.row.shard: one for one in known}
    # A shard that the feed does not have has no events either.
    none = ConsumerPosition(implied[0], behind=0, next_event=None, before=0, before_from=None)
    found = [replace(positions.get(row.shard, none), row=row) for row in implied]
    versions = {row.shard: row.resource_version for row in implied}
    if args.resource_version:
        versions = named_versions(args.resource_version, list(versions))
    elif not args.yes:
        show([beginning_row(position) for position in found], "table", short_beginning, on_error=True)
        count = sum(position.before for position in found)
        more = " or more" if any(position.before >= COUNTED for position in found) else ""
        ask(
            f"Accept that {args.name} does not have {counted(count, 'event')}{more} of feed {args.feed} "
            "before its beginning? Purges will no longer keep these events for the export",
            "Nothing was accepted",
        )
    rows = moves.accept_beginning(
        source, _variables(args), args.name, args.feed, versions=versions, by=getuser(), why=args.note
    )
    after = {row.shard: row for row in rows}
    show(
        [beginning_row(replace(position, row=after[position.row.shard])) for position in found],
        args.output,
        short_beginning,
    )
    echo(f"Accepted the beginning of {args.name} in {counted(len(found), 'shard')}")


@feeds_command
def history(source: FeedSource, args: Namespace) -> None:
    """Show changes."""
    from airflow_changefeed.cursors.move_plan import known_rows

    known_rows(source, args.name, args.feed)
    found = source.history(args.feed, args.name, shard=args.shard, limit=args.limit)
    show([change_row(change) for change in found], args.output, short_change)
    echo(f"Changes: {len(found)}")
    if found:
        words = (args.name, "--feed", args.feed, "--change", str(found[0].number))
        echo(f"To undo the newest, for example: {shell('cursor reset', *words)}")


@feeds_command
def adopt(source: FeedSource, args: Namespace) -> None:
    """Set the cursors to the Variable, after confirmation."""
    from airflow_changefeed.cursors import recovery
    from airflow_changefeed.cursors.move_plan import plan_adoption

    _check_of_export(source, args)
    variables = _variables(args)
    before = source.cursors(args.feed, args.name)
    outputs = _outputs(args)
    wanted = recovery.adopted(source, variables, args.name, args.feed, outputs)
    moves = plan_adoption(source, args.name, args.feed, wanted)
    versions = {move.shard: move.row.resource_version for move in moves}
    if args.resource_version:
        versions |= named_versions(args.resource_version, [move.shard for move in moves])
    elif not args.yes:
        show([move_row(move) for move in moves], "table", short_move, on_error=True)
        ask(_question(args, moves), "Nothing was moved")
    rows = recovery.adopt(
        source, variables, args.name, args.feed, by=getuser(), versions=versions, outputs=outputs
    )
    _show_rows(args, before, rows)
    echo("Moved the cursors to the ULIDs of the Variable")


@feeds_command
def publish(source: FeedSource, args: Namespace) -> None:
    """Set the Variable to the cursors in the database."""
    from airflow_changefeed.cursors import recovery

    _check_of_export(source, args)
    rows = recovery.publish(source, _variables(args), args.name, args.feed)
    _show_rows(args, rows, rows)
    echo("Published the cursors in the database to the Variable")


@feeds_command
def rebuild(source: FeedSource, args: Namespace) -> None:
    """Restore lost cursors from the manifests."""
    from airflow_changefeed.cursors import recovery

    _check_of_export(source, args)
    store = _store(args)
    before = source.cursors(args.feed, args.name)
    rows = recovery.rebuild(source, _variables(args), args.name, args.feed, store, by=getuser())
    _show_rows(args, before, rows)
    echo("Restored the lost cursors and published them to the Variable")


def _outputs(args: Namespace) -> list[ExportStore]:
    """Return the output that was named, if one was; it must be there."""
    from airflow_changefeed.output.read import export_there

    if args.path is None:
        return []
    store = _store(args)
    export_there(store)
    return [store]


def _store(args: Namespace) -> ExportStore:
    from airflow_changefeed.connections.output import storage_options
    from airflow_changefeed.output.store import ExportStore

    return ExportStore(args.path, args.feed, storage_options(args.path, args.path_conn_id))


def _check_of_export(source: FeedSource, args: Namespace) -> None:
    from airflow_changefeed.cursors.moves import is_of_events

    if is_of_events(source, args.name, args.feed):
        raise InvalidArgumentError(
            f"consumer {args.name!r} of feed {args.feed!r} is not an export, so it has no Variable or "
            "manifests; move its cursors with cursor set"
        )


def _variables(args: Namespace) -> VariableStore:
    from airflow_changefeed.hooks.changefeed import ChangefeedHook

    return ChangefeedHook(args.conn_id).variables()


def _show_rows(args: Namespace, before: Sequence[CursorRow], after: Sequence[CursorRow]) -> None:
    was = {row.shard: row.ulid for row in before}
    rows = [
        {
            "shard": shard_text(row.shard),
            **ulid_values("before", was.get(row.shard)),
            **ulid_values("after", row.ulid),
            "resource_version": row.resource_version,
        }
        for row in after
    ]
    show(rows, args.output, short_move)
