# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed status``, ``seal`` and ``doctor``."""

from __future__ import annotations

import os
from collections import defaultdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_changefeed.cli.command import (
    FAILED,
    Row,
    command,
    echo,
    feeds_command,
    open_feeds,
    show,
    show_faults,
    ulid_values,
    use_stored_connections,
)
from airflow_changefeed.cli.cursors import export_notes, files_text
from airflow_changefeed.core.cursor import lost_remedy, lost_text
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, ShardStatus, parse_shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_known, format_time
from airflow_changefeed.cursors.moves import is_of_events
from airflow_changefeed.cursors.window_grid import export_grids
from airflow_changefeed.exceptions import ChangefeedError, InvalidArgumentError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from airflow_changefeed.core.cursor import CursorRow
    from airflow_changefeed.core.fault import Examination
    from airflow_changefeed.core.feed import FeedInfo
    from airflow_changefeed.output.store import ExportStore
    from airflow_changefeed.sources.base import FeedSource


#: Exit status if a consumer's frontier is older than asked.
LATE = 1


@command
def status(args: Namespace) -> None:
    """Show shards and consumers; a feed that cannot be read does not hide the others."""
    if args.max_age is not None:
        _freshness(args)
        return
    if args.consumer is not None:
        raise InvalidArgumentError("--consumer needs --max-age, the highest age of the consumer's frontier")
    with open_feeds(args.conn_id) as source:
        infos = [source.feed(args.feed)] if args.feed else source.feeds()
        rows, problems, notes = [], [], []
        for info in infos:
            try:
                found = feed_rows(source, info)
                notes += _notes(source, info, found)
                rows += found
            except ChangefeedError as error:
                problems.append(error)
        show(rows, args.output, _short)
        echo(f"Feeds: {len(infos)}; time of the database: {format_time(source.now())}")
        for row in rows:
            if row["is_lost"]:
                echo(_lost(source, row))
        for note in notes:
            echo(note)
        if not infos and source.version() is None:
            echo(
                "Changefeed is not installed here, or this login may not see it. To install "
                f"changefeed: {shell('install')}"
            )
        for problem in problems:
            echo(problem)
        if problems:
            raise SystemExit(FAILED)


def _notes(source: FeedSource, info: FeedInfo, rows: Sequence[Row]) -> list[str]:
    """Return what the cursors of a feed's exports do not show."""
    from airflow_changefeed.doctor.airflow import whole_overview

    if all(row["consumer"] is None for row in rows):
        return []
    overview = whole_overview(source, info.name)
    of_events = {of.spec.consumer for of in overview.consumers}
    exports = sorted({row["consumer"] for row in rows} - {None, *of_events})
    return [line for name in exports for line in export_notes(source, overview, name)]


def _freshness(args: Namespace) -> None:
    """Show how old consumers' frontiers are; those that are older than allowed are an exit status."""
    from airflow_changefeed.hooks.changefeed import ChangefeedHook

    use_stored_connections()
    found = ChangefeedHook(args.conn_id).freshness(args.max_age, feed=args.feed, consumer=args.consumer)
    show([one.to_dict() for one in found.consumers], args.output, _short_freshness)
    echo(f"{args.conn_id}: {found.summary}")
    for one in found.consumers:
        for fault in one.warnings:
            echo(str(fault))
        if one.has_output and not (one.files and one.files.missing):
            echo(files_text(one.feed, one.consumer, one.files))
    for feed, error in found.errors.items():
        echo(f"feed {feed}: {type(error).__name__}: {error}")
    if found.late:
        raise SystemExit(LATE)
    if found.errors:
        raise SystemExit(FAILED)


def _short_freshness(row: Row) -> Row:
    reasons = [f"{one['code']}: {one['what']}. {one['remedy']}" for one in row["reasons"]]
    return {
        "feed": row["feed"],
        "consumer": row["consumer"],
        "complete until": row["complete_until"],
        "age": timedelta(seconds=round(row["age_seconds"])),
        "fresh": row["is_fresh"],
        "reasons": "; ".join(reasons),
    }


def _lost(source: FeedSource, row: Row) -> str:
    """Name a consumer that is lost, with the remedy."""
    consumer, feed, shard = row["consumer"], row["feed"], parse_shard(row["shard"])
    cursor = Ulid.parse_text(row["cursor"]) if row["cursor"] else Ulid.MIN
    purged_upto = Ulid.parse_text(row["purged_upto"])
    what = lost_text(cursor, purged_upto)
    grids = {} if is_of_events(source, consumer, feed) else export_grids(source, feed, [consumer])
    whole = grids[consumer].first_whole(purged_upto) if consumer in grids else None
    remedy = lost_remedy(consumer, feed, shard, whole)
    return f"Consumer {consumer} of feed {feed}, shard {row['shard']}: {what}. {remedy}"


def feed_rows(source: FeedSource, info: FeedInfo) -> list[Row]:
    """Return a row for each shard and consumer; values of a missing shard or consumer are null."""
    # The cursors first: they are never beyond a high-water time that is read later.
    cursors: dict[Shard | None, list[CursorRow | None]] = defaultdict(list)
    for cursor in source.cursors(info.name):
        cursors[cursor.shard].append(cursor)
    shards = {state.shard: state for state in source.shards(info.name)}
    now = source.now()
    found: list[Row] = []
    for shard in [*shards, *(shard for shard in cursors if shard not in shards)] or [None]:
        state = None if shard is None else shards.get(shard)
        found += [
            {
                "feed": info.name,
                "kind": info.kind.value,
                "feed_resource_version": info.resource_version,
                "shard": None if shard is None else shard_text(shard),
                **_shard_values(state),
                **_consumer_values(row, state, now),
            }
            for row in cursors[shard] or [None]
        ]
    return found


def _shard_values(state: ShardStatus | None) -> Row:
    head, purged_upto = (state.head, state.purged_upto) if state else (None, None)
    return {
        "high_water": state and format_time(state.high_water),
        "sealed_until": state and format_known(state.sealed_until),
        **ulid_values("head", head),
        **ulid_values("purged_upto", _moved(purged_upto)),
        "has_outbox": state and state.has_outbox,
    }


def _consumer_values(row: CursorRow | None, state: ShardStatus | None, now: datetime) -> Row:
    head, purged_upto = (state.head, state.purged_upto) if state else (None, Ulid.MIN)
    cursor, ack = (row.ulid, row.ack) if row else (None, None)
    return {
        "consumer": row and row.consumer,
        **ulid_values("cursor", _moved(cursor)),
        "is_lost": row and row.is_lost(purged_upto),
        "lag_seconds": row and row.lag(head),
        **ulid_values("ack", _moved(ack)),
        "moved_at": row and format_time(row.moved_at),
        "moved_by": row and row.moved_by,
        "resource_version": row and row.resource_version,
        "lease_holder": row and row.lease_holder,
        "lease_expires": row and format_known(row.lease_expires),
        "lease_is_held": row and row.is_held(now),
    }


def _moved(ulid: Ulid | None) -> Ulid | None:
    """Return None for the start of the feed, where there is no event."""
    return None if ulid == Ulid.MIN else ulid


def _short(row: Row) -> Row:
    seconds, holder = row["lag_seconds"], row["lease_holder"]
    is_at_start = row["consumer"] is not None and row["cursor"] is None
    behind: Any = "" if seconds is None else timedelta(seconds=round(seconds))
    lease = holder and f"{holder} {'until' if row['lease_is_held'] else 'expired'} {row['lease_expires']}"
    return {
        "feed": row["feed"],
        "shard": row["shard"],
        "high water": row["high_water"],
        "sealed until": row["sealed_until"],
        "head": row["head_time"],
        "outbox": row["has_outbox"],
        "consumer": row["consumer"],
        "cursor": "start" if is_at_start else row["cursor_time"],
        "lag": "lost" if row["is_lost"] else "all" if is_at_start and row["head"] else behind,
        "ack": row["ack_time"],
        "lease": lease,
    }


@feeds_command
def seal(source: FeedSource, args: Namespace) -> None:
    """Seal a feed until a time, by default the current one."""
    until = args.until or source.now()
    seals = source.seal(args.feed, until)
    rows = [
        {
            "shard": shard_text(seal.shard),
            "until": format_time(seal.until),
            **ulid_values("head", seal.head),
        }
        for seal in seals.values()
    ]
    show(rows, args.output)
    echo(f"Sealed feed {args.feed} until {format_time(until)}; shards: {len(rows)}")


FAULTY = 1


@command
def doctor(args: Namespace) -> None:
    """Find faults; they go to standard output, all else to standard error."""
    found = _with_spark(_examine(args))
    show_faults(found.faults, args.output)
    echo(f"{args.conn_id}: {found.summary}")
    echo(f"Checked: {'; '.join(found.checked)}")
    echo(f"Not checked: {'; '.join(found.left_out)}")
    if not found.is_clean:
        raise SystemExit(FAULTY)


def _examine(args: Namespace) -> Examination:
    from airflow_changefeed.core.fault import Limits
    from airflow_changefeed.doctor.doctor import examine
    from airflow_changefeed.hooks.changefeed import ChangefeedHook

    use_stored_connections()
    limits = Limits(
        high_water_ahead=args.high_water_ahead,
        outbox_age=args.outbox_age,
        open_transaction=args.open_transaction,
        idle_consumer=args.idle_consumer,
        role=args.role,
    )
    hook = ChangefeedHook(args.conn_id)
    source = hook.source()
    try:
        return examine(
            source,
            hook.variables(),
            feed=args.feed,
            consumer=args.consumer,
            open_store=None if args.path is None else lambda feed: _store(args, feed),
            limits=limits,
        )
    finally:
        source.close()


def _with_spark(found: Examination) -> Examination:
    """Add faults of Java and Spark on this machine; the tasks may run on others."""
    from airflow_changefeed.connections.spark import check_java, check_pyspark
    from airflow_changefeed.core.fault import Examination, Fault, FaultKind
    from airflow_changefeed.exceptions import SparkEnvironmentError

    faults, checked, left_out = list(found.faults), list(found.checked), list(found.left_out)
    here = "this machine"
    try:
        checked.append(f"Java {check_java(os.environ)} on {here}")
    except SparkEnvironmentError as problem:
        remedy = "Needed only where exports run on Spark; otherwise ignore this"
        faults.append(Fault(FaultKind.JAVA_MISSING, here, problem.message, remedy))
    try:
        version = check_pyspark(os.environ)
        if version is None:
            left_out.append(f"the version of Spark on {here} (Spark is missing, or was not installed by pip)")
        else:
            checked.append(f"pyspark and pyspark-client {version} on {here}")
    except SparkEnvironmentError as problem:
        what, _, remedy = problem.message.partition(" Run: ")
        faults.append(Fault(FaultKind.SPARK_VERSIONS_DIFFER, here, what.rstrip("."), f"Run: {remedy}"))
    return Examination.of(faults, found.facts, checked, left_out)


def _store(args: Namespace, feed: str) -> ExportStore:
    from airflow_changefeed.connections.output import storage_options
    from airflow_changefeed.output.store import ExportStore

    return ExportStore(args.path, feed, storage_options(args.path, args.path_conn_id))
