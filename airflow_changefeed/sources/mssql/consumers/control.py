# SPDX-License-Identifier: Apache-2.0
"""Consumers, in SQL Server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain

from airflow_changefeed.core.consumer import ConsumerInfo, ConsumerSpec
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.messages import known_consumer
from airflow_changefeed.sources.mssql.connection.session import Record
from airflow_changefeed.sources.mssql.consumers.cursors import MssqlCursors, in_order
from airflow_changefeed.sources.mssql.consumers.session import MssqlConsumerSession
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.rows import consumer_info


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
