# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed consumer`` and ``leases``."""

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
    seen_version,
    show,
    ulid_values,
)
from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, OnPoison, Outcome
from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.values import format_known, format_time
from airflow_changefeed.cursors.cursors import some
from airflow_changefeed.cursors.move_plan import known_rows
from airflow_changefeed.cursors.moves import is_of_events
from airflow_changefeed.exceptions import ConsumerNotFoundError, InvalidArgumentError, ShardNotFoundError

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_changefeed.core.consumer import ConsumerInfo, Invocation
    from airflow_changefeed.core.cursor import CursorRow
    from airflow_changefeed.sources.base import FeedSource
    from airflow_changefeed.sources.base_consumers import LeaseInfo


@command
def create(args: Namespace) -> None:
    """Create a consumer."""
    from airflow_changefeed.consumers.settings import create_consumer

    spec = ConsumerSpec(args.name, args.feed, **_given(args))
    with open_feeds(args.conn_id) as source:
        info = create_consumer(source, spec, args.start or Beginning.LATEST, by=getuser())
        show([consumer_row(info)], args.output)
        echo(
            f"Created consumer {args.name} of feed {args.feed}. Purges keep the events that this "
            "consumer has not acknowledged until the consumer is dropped"
        )


@command
def alter(args: Namespace) -> None:
    """Change the settings of a consumer, after confirmation."""
    given = _given(args)
    if not given:
        raise InvalidArgumentError("nothing to change; pass --max-attempts, --on-poison, --keep-log or --ddl")
    with open_feeds(args.conn_id) as source:
        info = source.consumer(args.name, args.feed)
        spec = replace(info.spec, **given)
        is_same = spec == info.spec
        if is_same and args.resource_version is None:
            show([consumer_row(info)], args.output)
            echo(f"Consumer {args.name} of feed {args.feed} already has these settings; nothing was changed")
            return
        question = (
            f"Change consumer {args.name} of feed {args.feed} from {info.spec.to_json()} to {spec.to_json()}?"
        )
        version = seen_version(args, info.resource_version, question, "Nothing was changed")
        info = source.change_consumer(spec, resource_version=version, by=getuser())
        show([consumer_row(info)], args.output)
        echo(f"Changed consumer {args.name}. A running process keeps the old settings until it is restarted")


def _given(args: Namespace) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if args.max_attempts is not None:
        given["max_attempts"] = None if args.max_attempts == "none" else args.max_attempts
    if args.on_poison is not None:
        given["on_poison"] = OnPoison(args.on_poison)
    if args.keep_log is not None:
        given["keep_log"] = args.keep_log
    if args.ddl is not None:
        given["ddl"] = args.ddl
    return given


@feeds_command
def revoke(source: FeedSource, args: Namespace) -> None:
    """Revoke a lease, after confirmation."""
    token = args.fencing_token
    if token is None:
        token = _seen_lease(source, args)
    source.revoke_lease(args.name, args.feed, args.shard, fencing_token=token)
    found = [one for one in source.leases(args.feed) if one.consumer == args.name and one.shard == args.shard]
    show([lease_row(one) for one in found], args.output)
    echo(f"Lease {token} revoked; its holder can no longer commit")


def _seen_lease(source: FeedSource, args: Namespace) -> int:
    """Return the fencing token of the current lease, after confirmation."""
    rows = {row.shard: row for row in source.cursors(args.feed, args.name)}
    row = rows.get(args.shard)
    if row is None:
        raise ShardNotFoundError(
            f"consumer {args.name!r} has no cursor for shard {shard_text(args.shard)} of feed {args.feed!r}; "
            f"it has {some(map(shard_text, rows)) or 'none'}",
            consumer=args.name,
            feed=args.feed,
        )
    if row.lease_holder is None:
        raise InvalidArgumentError(
            f"shard {shard_text(args.shard)} of consumer {args.name!r}, feed {args.feed!r} has no lease; "
            "nothing to revoke"
        )
    if not args.yes:
        until = format_known(row.lease_expires)
        ask(
            f"Revoke the lease of {row.lease_holder} on shard {shard_text(args.shard)} (fencing token "
            f"{row.fencing_token}, until {until})?",
            "Nothing was revoked",
        )
    return row.fencing_token


@feeds_command
def list_consumers(source: FeedSource, args: Namespace) -> None:
    """Show consumers."""
    found = source.consumers(args.feed)
    show([consumer_row(info) for info in found], args.output)
    echo(f"Consumers: {len(found)}")


@feeds_command
def drop(source: FeedSource, args: Namespace) -> None:
    """Drop a consumer, after confirmation."""
    if not is_of_events(source, args.name, args.feed):
        _drop_export(source, args)
        return
    info = source.consumer(args.name, args.feed)
    dead_letters = source.dead_letters(args.feed, args.name)
    if args.resource_version is None and not args.yes:
        show([_position_row(row) for row in source.cursors(args.feed, args.name)], "table", on_error=True)
    also = f" and its {len(dead_letters)} open dead letters" if dead_letters else ""
    question = f"Drop consumer {args.name} of feed {args.feed}{also}?"
    version = seen_version(args, info.resource_version, question, "Nothing was dropped")
    source.drop_consumer(args.name, args.feed, resource_version=version)
    show([consumer_row(info)], args.output)
    echo(f"Dropped consumer {args.name} of feed {args.feed}")


def _drop_export(source: FeedSource, args: Namespace) -> None:
    """Drop the cursors of an export, then its Variable, so that a crash between leaves what doctor finds."""
    from airflow_changefeed.hooks.changefeed import ChangefeedHook

    rows = known_rows(source, args.name, args.feed)
    key = variable_key(source.identity().id, args.name, args.feed)
    positions = [_position_row(row) for row in rows]
    if args.resource_version is None and not args.yes:
        show(positions, "table", on_error=True)
    question = f"Drop the cursors of export {args.name} of feed {args.feed}, and Variable {key}?"
    version = sum(row.resource_version for row in rows)
    version = seen_version(args, version, question, "Nothing was dropped")
    source.drop_consumer(args.name, args.feed, resource_version=version)
    ChangefeedHook(args.conn_id).variables().delete(key)
    show(positions, args.output)
    echo(
        f"Dropped the cursors of export {args.name} of feed {args.feed}, and Variable {key}. The output "
        "stays. The next run of the DAG would create the cursors again"
    )


@feeds_command
def log(source: FeedSource, args: Namespace) -> None:
    """Show attempts."""
    source.consumer(args.name, args.feed)
    found = source.invocations(args.feed, args.name, limit=args.limit)
    chosen = [one for one in found if not args.failed or one.attempt.outcome is not Outcome.CONSUMED]
    show([invocation_row(one) for one in chosen], args.output)
    echo(f"Attempts: {len(chosen)}")


@feeds_command
def leases(source: FeedSource, args: Namespace) -> None:
    """Show leases."""
    found = [one for one in source.leases(args.feed) if args.consumer in (None, one.consumer)]
    if args.consumer is not None and not found:
        _check_known(source, args.consumer, args.feed)
    show([lease_row(one) for one in found], args.output)
    held = sum(one.holder is not None for one in found)
    echo(f"Shards: {len(found)}; held: {held}")


def _check_known(source: FeedSource, consumer: str, feed: str | None) -> None:
    """Raise an error for an unknown consumer; one that exists may have no shards yet."""
    known = sorted({info.spec.consumer for info in source.consumers(feed)})
    if consumer not in known:
        raise ConsumerNotFoundError(
            f"consumer {consumer!r} not found; known consumers: {', '.join(known) or 'none'}",
            consumer=consumer,
        )


def consumer_row(info: ConsumerInfo) -> Row:
    """Return a consumer as a JSON object."""
    return {
        **encode(info.spec),
        "created_at": format_time(info.created_at),
        "created_by": info.created_by,
        "resource_version": info.resource_version,
    }


def _position_row(row: CursorRow) -> Row:
    return {
        "shard": shard_text(row.shard),
        **ulid_values("cursor", row.ulid),
        "moved_at": format_time(row.moved_at),
        "moved_by": row.moved_by,
    }


def lease_row(lease: LeaseInfo) -> Row:
    """Return a lease as a JSON object."""
    return {
        "consumer": lease.consumer,
        "feed": lease.feed,
        "shard": shard_text(lease.shard),
        "holder": lease.holder,
        "since": format_known(lease.since),
        "expires": format_known(lease.expires),
        "fencing_token": lease.token,
        "waiters": [f"{waiter.name} since {format_time(waiter.since)}" for waiter in lease.waiters],
    }


def invocation_row(one: Invocation) -> Row:
    """Return an attempt as a JSON object."""
    return {
        "number": one.number,
        "shard": shard_text(one.shard),
        "first": str(one.attempt.first),
        "last": str(one.attempt.last),
        "events": one.attempt.events,
        "attempt": one.attempt.number,
        "outcome": one.attempt.outcome.value,
        "error": one.attempt.error,
        "started_at": format_time(one.attempt.started_at),
        "ended_at": format_time(one.ended_at),
        "holder": one.holder,
        "fencing_token": one.fencing_token,
    }
