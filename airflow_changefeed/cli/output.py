# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed verify``, ``output``, ``job-connection``, ``read`` and ``purge``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from math import isfinite
from types import MappingProxyType
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
    show_faults,
    ulid_values,
    use_stored_connections,
)
from airflow_changefeed.core.feed import FeedKind, Shard, ShardStatus, check_shards, counted, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import ShardNotFoundError, visible
from airflow_changefeed.sources.base_control import held_reason

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_changefeed.core.consumer import DeadLetter
    from airflow_changefeed.core.cursor import CursorRow
    from airflow_changefeed.core.feed import Event, FeedInfo
    from airflow_changefeed.export.orphans import Report
    from airflow_changefeed.output.store import ExportStore
    from airflow_changefeed.sources.base import FeedSource
    from airflow_changefeed.sources.base_control import Purged


#: Exit status if there is damage. An export that cannot be verified exits like every failed command: it
#: need not be damaged.
DAMAGED = 1


@command
def verify(args: Namespace) -> None:
    """Verify an export; the faults go to standard output, all else to standard error."""
    report = _report(args)
    show_faults([*report.damage, *report.leftovers], args.output)
    echo(f"Feed {report.feed} in {report.path}: {report.summary}")
    if report.damage:
        raise SystemExit(DAMAGED)


def _report(args: Namespace) -> Report:
    from airflow_changefeed.connections.output import storage_options, table_to_verify
    from airflow_changefeed.export.verify import verify_export
    from airflow_changefeed.hooks.changefeed import ChangefeedHook

    if args.conn_id or args.path_conn_id or args.catalog_conn_id:
        use_stored_connections()
    source = ChangefeedHook(args.conn_id).source() if args.conn_id else None
    options = storage_options(args.path, args.path_conn_id)
    table = table_to_verify(args.path, args.feed, options, args.catalog_conn_id)
    return verify_export(
        args.path, args.feed, args.start, args.end, args.shard, options, source=source, table=table
    )


@command
def publish(args: Namespace) -> None:
    """Make a table hold what an export has committed."""
    from airflow_changefeed.connections.output import table_of_export
    from airflow_changefeed.core.export_plan import ExportOptions
    from airflow_changefeed.formats.publish import publish

    store, options = _output(args)
    if args.table_format:
        wanted = ExportOptions(table_format=args.table_format, catalog_table=args.catalog_table or "")
        # Before the claim says so: a table that cannot be reached changes nothing.
        table_of_export(store, options, args.catalog_conn_id, wanted).look()
        store.become_table(wanted)
    table = table_of_export(store, options, args.catalog_conn_id)
    is_changed = publish(store, table, None, getuser())
    echo(f"{table.what} {'now holds' if is_changed else 'already held'} all committed units")


@command
def clean(args: Namespace) -> None:
    """Remove files that a table no longer needs."""
    from airflow_changefeed.connections.output import table_of_export
    from airflow_changefeed.formats.base import clean

    store, options = _output(args)
    table = table_of_export(store, options, args.catalog_conn_id)
    removed = clean(store, table, args.keep_for)
    for path in removed:
        print(visible(path))
    echo(f"Files removed: {len(removed)}")


def _output(args: Namespace) -> tuple[ExportStore, Mapping[str, Any]]:
    from airflow_changefeed.connections.output import storage_options
    from airflow_changefeed.output.read import export_there
    from airflow_changefeed.output.store import ExportStore

    if args.path_conn_id or args.catalog_conn_id:
        use_stored_connections()
    options = storage_options(args.path, args.path_conn_id)
    store = ExportStore(args.path, args.feed, options)
    export_there(store)
    return store, options


@command
def job_connection(args: Namespace) -> None:
    """Print how a job reaches the feed and the output, with its secrets."""
    from airflow_changefeed.connections.output import storage_options
    from airflow_changefeed.export.job_spec import JobConnection

    with open_feeds(args.conn_id) as source:
        connection = JobConnection(source.describe(), storage_options(args.path, args.path_conn_id))
    sys.stdout.write(f"{connection.to_json()}\n")


_PAGE_SIZE = 1000


@feeds_command
def read(source: FeedSource, args: Namespace) -> None:
    """Show events of a shard, in order."""
    info = source.feed(args.feed)
    check_shards(info, [args.shard])
    state = _state(source, args.feed, args.shard)
    # Purged events cannot be read.
    after = state.purged_upto if args.start is None else args.start
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
        parts.append(f"for more events: --start {events[-1].ulid}")
    elif not args.drain:
        last = state.head
        parts.append(f"the last ordered event is {last}" if last else "there are no ordered events")
        if state.has_outbox:
            parts.append("events wait in the outbox; to order them, pass --drain")
    return "; ".join(parts)


@feeds_command
def purge(source: FeedSource, args: Namespace) -> None:
    """Remove old events, after confirmation; a dry run only shows what would be removed."""
    if not args.dry_run and not args.yes:
        preview = _rows(source, args, dry_run=True)
        show(preview, "table", on_error=True)
        ask(
            f"Remove {_total(preview)} of feed {args.feed} before {format_time(args.before)}?",
            "Nothing was removed",
        )
    rows = _rows(source, args, dry_run=args.dry_run)
    show(rows, args.output)
    verb = "Would remove" if args.dry_run else "Removed"
    echo(f"{verb} {_total(rows)} of feed {args.feed} before {format_time(args.before)}")
    if source.feed(args.feed).kind is FeedKind.SERIALIZED:
        echo("The rows stay in the writers' own table; delete there what you no longer need")


def _rows(source: FeedSource, args: Namespace, *, dry_run: bool) -> list[Row]:
    # Read before the purge: what held it back may be gone afterwards.
    states = {state.shard: state for state in source.shards(args.feed)}
    cursors = source.cursors(args.feed)
    begins = {info.spec.consumer: info.begin for info in source.consumers(args.feed)}
    dead_letters = source.dead_letters(args.feed)
    wanted = Ulid.floor(args.before).previous()
    found = source.purge(args.feed, args.before, dry_run=dry_run)
    return [
        _row(
            purged,
            _lost(purged.shard, purged.upto, cursors, begins),
            [
                *held_back(purged, wanted, states.get(purged.shard), cursors, begins, dead_letters),
                *filter(None, [held_reason(args.feed, [purged], args.conn_id)]),
            ],
        )
        for purged in found
    ]


def _lost(shard: Shard, upto: Ulid, cursors: Iterable[CursorRow], begins: Mapping[str, Ulid]) -> list[str]:
    """Return the consumers that have not read all events of a shard up to a position."""
    places = {**begins, **{row.consumer: row.ulid for row in cursors if row.shard == shard}}
    return sorted(consumer for consumer, place in places.items() if place < upto)


def _row(purged: Purged, lost: list[str], reasons: list[str]) -> Row:
    return {
        "shard": shard_text(purged.shard),
        "rows": purged.rows,
        **ulid_values("upto", None if purged.upto == Ulid.MIN else purged.upto),
        "lost": lost,
        "held_back_by": reasons,
    }


def held_back(
    purged: Purged,
    wanted: Ulid,
    state: ShardStatus | None,
    cursors: Sequence[CursorRow],
    begins: Mapping[str, Ulid] = MappingProxyType({}),
    dead_letters: Iterable[DeadLetter] = (),
) -> list[str]:
    """
    Return who and what else made a purge stop early; empty if it did not.

    :param wanted: ULID up to which the purge was asked to go, inclusive.
    :param cursors: of all consumers and exports. One without a row for the shard needs all of it.
    :param begins: of the consumers; one without a row for the shard needs everything after it.
    :param dead_letters: that are open.
    """
    if purged.upto >= wanted:
        return []
    reasons = []
    sealed = None if state is None else state.sealed_until
    if sealed is None:
        reasons.append("the feed is not sealed")
    elif Ulid.floor(sealed).previous() < wanted:
        reasons.append(f"the feed is only sealed until {format_time(sealed)}")
    lost = [] if state is None else _lost(purged.shard, state.purged_upto, cursors, begins)
    acks = {name: None if begin == Ulid.MIN else begin for name, begin in begins.items()}
    for row in cursors:
        acks.setdefault(row.consumer, None)
        if row.shard == purged.shard:
            acks[row.consumer] = row.ack
    for consumer, ack in sorted(acks.items()):
        if consumer in lost and (ack is None or ack < wanted):
            reasons.append(
                f"consumer {consumer} is lost. Newer events are kept for it until they are older than "
                "the feed's max_hold. Move its cursor forward, or drop the consumer"
            )
        elif ack is None:
            reasons.append(f"consumer {consumer} has not begun in this shard and needs all of its events")
        elif ack == Ulid.MIN:
            reasons.append(f"consumer {consumer} has acknowledged nothing")
        elif ack < wanted:
            parked = [one for one in dead_letters if (one.consumer, one.shard) == (consumer, purged.shard)]
            first = min(parked, key=lambda one: one.ulid, default=None)
            is_parked = first is not None and first.ulid.previous() == ack
            why = f", because dead letter {first.number} is open" if first is not None and is_parked else ""
            reasons.append(f"consumer {consumer} has only acknowledged up to {format_time(ack.time)}{why}")
    return reasons


def _total(rows: list[Row]) -> str:
    return counted(sum(row["rows"] for row in rows), "event")
