# SPDX-License-Identifier: Apache-2.0
"""Consumers and their leases, in SQL Server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from airflow_changefeed.core.consumer import ConsumerInfo, ConsumerSpec
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard, parse_shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import StaleVersionError
from airflow_changefeed.sources.base_consumers import Grant, LeaseInfo, Waiter, check_lease
from airflow_changefeed.sources.base_control import stale_lease
from airflow_changefeed.sources.mssql.connection.session import Record
from airflow_changefeed.sources.mssql.consumer_session import MssqlConsumerSession
from airflow_changefeed.sources.mssql.cursors import MssqlCursors, cursor_row, in_order
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.shared import as_time, as_time_or_none, consumer_info, known_consumer


class MssqlConsumers(MssqlCursors):
    """The part of the source that keeps consumers."""

    def create_consumer(
        self, spec: ConsumerSpec, *, begin: Ulid, starts: Mapping[Shard, Ulid], by: str
    ) -> ConsumerInfo:
        shards = in_order(starts)

        def arguments(feed: MssqlFeed) -> Record:
            return {
                "consumer": spec.consumer,
                "settings": spec.to_json(),
                "begin_ulid": begin.bytes,
                "shards": in_json(feed, shards) if shards else None,
                "starts": b"".join(starts[shard].bytes for shard in shards) or None,
                "by": by,
                "lock_timeout": self.database.lock_timeout_ms,
            }

        ((row,),) = self._change(spec.feed, "create_consumer", arguments, consumer=spec.consumer)
        return consumer_info(row)

    def change_consumer(self, spec: ConsumerSpec, *, resource_version: int, by: str) -> ConsumerInfo:
        arguments = {
            "consumer": spec.consumer,
            "settings": spec.to_json(),
            "resource_version": resource_version,
        }
        ((row,),) = self._change(spec.feed, "change_consumer", arguments, consumer=spec.consumer)
        return consumer_info(row)

    def consumers(self, feed: str | None = None) -> list[ConsumerInfo]:
        return [consumer_info(row) for row in chain(*self._ask_feeds(feed, "list_consumers"))]

    def consumer(self, consumer: str, feed: str) -> ConsumerInfo:
        return known_consumer(consumer, feed, self.consumers(feed))

    def open_session(self, consumer: str, feed: str) -> MssqlConsumerSession:
        self.consumer(consumer, feed)
        found = self._ask_feed(feed, lambda _, found: found)

        def find(shard: Shard) -> CursorRow | None:
            return next((row for row in self.cursors(feed, consumer) if row.shard == shard), None)

        return MssqlConsumerSession(self.database, found, consumer, find)


def in_json(feed: MssqlFeed, shards: Sequence[Shard]) -> str:
    """Return shards as a JSON array."""
    return json.dumps([shard_text(feed.to_sql(shard)) for shard in shards])


class MssqlLeases(MssqlConsumers):
    """The part of the source that grants leases."""

    def acquire_leases(
        self,
        consumer: str,
        feed: str,
        shards: Sequence[Shard],
        *,
        holder: str,
        seconds: float,
        tokens: Mapping[Shard, int] | None = None,
        at_most: int | None = None,
        all_or_none: bool = False,
    ) -> Grant:
        check_lease(seconds, at_most, all_or_none=all_or_none)

        def arguments(found: MssqlFeed) -> Record:
            return {
                "consumer": consumer,
                "shards": in_json(found, shards),
                "holder": holder,
                "seconds": float(seconds),
                "tokens": _tokens(found, tokens) if tokens else None,
                "at_most": at_most,
                "all_or_none": all_or_none or None,
                "lock_timeout": self.database.lock_timeout_ms,
            }

        def is_held(row: CursorRow) -> bool:
            is_of_another = row.shard in shards and row.lease_holder not in (None, holder)
            return is_of_another and row.lease_expires is not None and row.lease_expires > self.database.now()

        with self._telling_row(consumer, feed, is_held):
            (state,), rows = self._change(feed, "acquire_leases", arguments, consumer=consumer)
        held = {parse_shard(row["shard"]): cursor_row(feed, row) for row in rows}
        return Grant(
            {shard: held[shard] for shard in (*(tokens or ()), *shards) if shard in held},
            as_time(state["asked_at"]),
            as_time_or_none(state["free_at"]),
            int(state["waiting"]),
            bool(state["has_retries"]),
        )

    def release_leases(self, consumer: str, feed: str, tokens: Mapping[Shard, int], *, holder: str) -> None:
        self._change(
            feed,
            "release_leases",
            lambda found: {"consumer": consumer, "tokens": _tokens(found, tokens), "holder": holder},
            consumer=consumer,
        )

    def revoke_lease(self, consumer: str, feed: str, shard: Shard, *, fencing_token: int) -> None:
        def arguments(found: MssqlFeed) -> Record:
            of = shard_text(found.to_sql(shard))
            return {"consumer": consumer, "shard": of, "fencing_token": fencing_token}

        try:
            with self._telling_row(consumer, feed, lambda row: row.shard == shard):
                self._change(feed, "revoke_lease", arguments, consumer=consumer)
        except StaleVersionError as error:
            if (row := error.facts.get("row")) is None:
                raise
            raise stale_lease(row, fencing_token) from error

    def leases(self, feed: str | None = None) -> list[LeaseInfo]:
        rows, waiting = self._ask_feeds(feed, "list_leases") or ([], [])
        waiters: dict[tuple[str, str], list[Waiter]] = {}
        for row in waiting:
            waiter = Waiter(row["waiter"], as_time(row["since"]))
            waiters.setdefault((row["feed"], row["consumer"]), []).append(waiter)
        return [_lease(row, waiters.get((row["feed"], row["consumer"]), ())) for row in rows]


def _tokens(feed: MssqlFeed, tokens: Mapping[Shard, int]) -> str:
    return json.dumps({shard_text(feed.to_sql(shard)): token for shard, token in tokens.items()})


def _lease(row: Mapping[str, Any], waiters: Sequence[Waiter]) -> LeaseInfo:
    since, expires = row["lease_since"], row["lease_expires"]
    return LeaseInfo(
        consumer=row["consumer"],
        feed=row["feed"],
        shard=parse_shard(row["shard"]),
        token=int(row["fencing_token"]),
        holder=row["lease_holder"],
        since=as_time_or_none(since),
        expires=as_time_or_none(expires),
        waiters=tuple(waiters),
    )
