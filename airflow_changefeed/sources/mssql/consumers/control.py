# SPDX-License-Identifier: Apache-2.0
"""Consumers and their leases, in SQL Server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_changefeed.core.consumer import ConsumerInfo, ConsumerSpec, Grant, LeaseInfo, Renewal, Waiter
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard, parse_shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ConsumerNotFoundError
from airflow_changefeed.sources.mssql.consumers.cursors import (
    MssqlCursors,
    check_lease_seconds,
    cursor_row,
    in_order,
)
from airflow_changefeed.sources.mssql.consumers.session import MssqlConsumerSession
from airflow_changefeed.sources.mssql.feed.calls import Record, ask_feeds, call_results
from airflow_changefeed.sources.mssql.feed.catalog import load_feed
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.names import as_time


class MssqlConsumers(MssqlCursors):
    """The part of the source that keeps consumers and their leases."""

    def create_consumer(
        self, spec: ConsumerSpec, *, begin: Ulid, starts: Mapping[Shard, Ulid], by: str
    ) -> ConsumerInfo:
        """See :class:`~airflow_changefeed.sources.base_consumers.ConsumerStore`, also for what follows."""
        shards = in_order(starts)

        def arguments(feed: MssqlFeed) -> Record:
            return {
                "settings": spec.to_json(),
                "begin_ulid": begin.bytes,
                "shards": _shards(feed, shards) if shards else None,
                "starts": b"".join(starts[shard].bytes for shard in shards) or None,
                "by": by,
                "lock_timeout": self.database.lock_timeout_ms,
            }

        ((row,),) = self._change("create_consumer", spec.consumer, spec.feed, arguments)
        return consumer_info(row)

    def change_consumer(self, spec: ConsumerSpec, *, resource_version: int, by: str) -> ConsumerInfo:
        """See the protocol."""
        value = {"settings": spec.to_json(), "resource_version": resource_version}
        ((row,),) = self._change("change_consumer", spec.consumer, spec.feed, lambda _: value)
        return consumer_info(row)

    def consumers(self, feed: str | None = None) -> list[ConsumerInfo]:
        """See the protocol."""
        (rows,) = ask_feeds(self.database, feed, "list_consumers", {})
        return [consumer_info(row) for row in rows]

    def consumer(self, consumer: str, feed: str) -> ConsumerInfo:
        """See the protocol."""
        known = {info.spec.consumer: info for info in self.consumers(feed)}
        if consumer not in known:
            raise ConsumerNotFoundError(
                f"feed {feed!r} has no consumer {consumer!r}; it has: {', '.join(sorted(known)) or 'none'}. "
                "Correct the name, or create the consumer first",
                consumer=consumer,
                feed=feed,
            )
        return known[consumer]

    def request_leases(
        self,
        consumer: str,
        feed: str,
        shards: Sequence[Shard],
        *,
        holder: str,
        seconds: float,
        at_most: int | None = None,
    ) -> Grant:
        """See the protocol."""
        check_lease_seconds(seconds)

        def arguments(found: MssqlFeed) -> Record:
            return {
                "shards": _shards(found, shards),
                "holder": holder,
                "seconds": float(seconds),
                "at_most": at_most,
                "lock_timeout": self.database.lock_timeout_ms,
            }

        (rows,) = self._change("request_leases", consumer, feed, arguments)
        granted = {row["shard"]: cursor_row(feed, row) for row in rows if row["is_granted"]}
        held = [row for row in rows if row["lease_expires"] is not None]
        others = [row for row in held if row["lease_holder"] not in (None, holder)]
        taken = {shard: granted[shard_text(shard)] for shard in shards if shard_text(shard) in granted}
        if not others:
            return Grant(taken)
        held_until = [as_time(row["lease_expires"]) for row in others]
        return Grant.of(taken, held_until, as_time(others[0]["asked_at"]))

    def renew_leases(
        self, consumer: str, feed: str, tokens: Mapping[Shard, int], *, holder: str, seconds: float
    ) -> Renewal:
        """See the protocol."""
        check_lease_seconds(seconds)

        def arguments(found: MssqlFeed) -> Record:
            return {"tokens": _tokens(found, tokens), "holder": holder, "seconds": float(seconds)}

        (state,), held = self._change("renew_leases", consumer, feed, arguments)
        shards = frozenset(parse_shard(row["shard"]) for row in held)
        return Renewal(shards, int(state["waiting"]), bool(state["has_retries"]))

    def leave(self, consumer: str, feed: str, tokens: Mapping[Shard, int], *, holder: str) -> None:
        """See the protocol."""
        self._change(
            "leave", consumer, feed, lambda found: {"tokens": _tokens(found, tokens), "holder": holder}
        )

    def leases(self, feed: str | None = None) -> list[LeaseInfo]:
        """See the protocol."""
        rows, waiting = ask_feeds(self.database, feed, "leases", {}, results=2)
        waiters: dict[tuple[str, str], list[Waiter]] = {}
        for row in waiting:
            waiter = Waiter(row["waiter"], as_time(row["since"]))
            waiters.setdefault((row["feed"], row["consumer"]), []).append(waiter)
        return [_lease(row, waiters.get((row["feed"], row["consumer"]), ())) for row in rows]

    def open_session(self, consumer: str, feed: str) -> MssqlConsumerSession:
        """See the protocol."""
        self.consumer(consumer, feed)
        found = self.database.ask(lambda session: load_feed(session, self.database.schema, feed), feed=feed)

        def find(shard: Shard) -> CursorRow | None:
            return next((row for row in self.cursors(feed, consumer) if row.shard == shard), None)

        return MssqlConsumerSession(self.database, found, consumer, find)

    def _change(
        self, procedure: str, consumer: str, feed: str, arguments: Callable[[MssqlFeed], Record]
    ) -> list[list[Record]]:
        """Call a procedure that changes something, without retries."""
        with self.database.connect(feed=feed, consumer=consumer) as session:
            found = load_feed(session, self.database.schema, feed)
            return call_results(session, found, procedure, {"consumer": consumer, **arguments(found)})


def _shards(feed: MssqlFeed, shards: Sequence[Shard]) -> str:
    return json.dumps([shard_text(feed.to_sql(shard)) for shard in shards])


def _tokens(feed: MssqlFeed, tokens: Mapping[Shard, int]) -> str:
    return json.dumps({shard_text(feed.to_sql(shard)): token for shard, token in tokens.items()})


def consumer_info(row: Mapping[str, Any]) -> ConsumerInfo:
    """Return a consumer from a procedure's row."""
    return ConsumerInfo(
        ConsumerSpec.from_json(row["consumer"], row["feed"], row["settings"]),
        Ulid.of_bytes(row["begin_ulid"]),
        as_time(row["created_at"]),
        row["created_by"],
        int(row["resource_version"]),
    )


def _lease(row: Mapping[str, Any], waiters: Sequence[Waiter]) -> LeaseInfo:
    since, expires = row["lease_since"], row["lease_expires"]
    return LeaseInfo(
        consumer=row["consumer"],
        feed=row["feed"],
        shard=parse_shard(row["shard"]),
        token=int(row["fencing_token"]),
        holder=row["lease_holder"],
        since=None if since is None else as_time(since),
        expires=None if expires is None else as_time(expires),
        waiters=tuple(waiters),
    )
