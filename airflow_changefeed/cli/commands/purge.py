# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed purge``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_changefeed.cli.command import Row, ask, echo, feeds_command, show, ulid_values
from airflow_changefeed.core.feed import FeedKind, counted, shard_text
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.base_control import held_reason

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_changefeed.core.consumer import DeadLetter
    from airflow_changefeed.core.cursor import CursorRow
    from airflow_changefeed.core.feed import Shard, ShardStatus
    from airflow_changefeed.sources.base import FeedSource
    from airflow_changefeed.sources.base_control import Purged


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
        echo("The events remain in the writers' own table; delete those that you no longer need there")


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
                f"consumer {consumer} is lost, and newer events are kept for it until they are older than "
                "the feed's max_hold: move its cursor on, or drop it"
            )
        elif ack is None:
            reasons.append(f"consumer {consumer} has not begun in this shard and needs all of it")
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
