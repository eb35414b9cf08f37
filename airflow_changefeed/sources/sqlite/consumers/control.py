# SPDX-License-Identifier: Apache-2.0
"""Consumers, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from airflow_changefeed.core.consumer import ConsumerInfo, ConsumerSpec
from airflow_changefeed.core.cursor import Began
from airflow_changefeed.core.feed import Shard, check_shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ConsumerSetupError
from airflow_changefeed.sources.base_versions import check_version, consumer_text
from airflow_changefeed.sources.messages import known_consumer
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.consumers.cursor_history import remember
from airflow_changefeed.sources.sqlite.consumers.cursor_rows import (
    CURSORS,
    SETTINGS,
    end_consumers,
    first_version,
    remember_acknowledged,
)
from airflow_changefeed.sources.sqlite.consumers.cursors import SqliteCursors
from airflow_changefeed.sources.sqlite.consumers.session import SqliteConsumerSession
from airflow_changefeed.sources.sqlite.feed.names import CONSUMER_TABLES, load_feed
from airflow_changefeed.sources.sqlite.feed.reader import check_beyond


class SqliteConsumers(SqliteCursors):
    """The part of the source that keeps consumers."""

    database: SqliteDatabase

    def create_consumer(
        self, spec: ConsumerSpec, *, begin: Ulid, starts: Mapping[Shard, Ulid], by: str
    ) -> ConsumerInfo:
        consumer, feed = spec.consumer, spec.feed
        with self.database.connect() as connection, self.database.write(connection):
            tables = load_feed(connection, feed)
            known = {info.spec.consumer: info for info in SETTINGS.find(connection, {"feed": feed})}
            if consumer in known:
                return _same(known[consumer], spec)
            if CURSORS.find(connection, {"feed": feed, "consumer": consumer}, limit=1):
                raise ConsumerSetupError(
                    f"consumer {consumer!r} of feed {feed!r} is an export; choose another name",
                    consumer=consumer,
                    feed=feed,
                )
            for shard in sorted(starts, key=shard_text):
                after = starts[shard]
                check_shard(shard, tables.info.shard_key_type)
                check_beyond(tables, shard, after)
                row = self.insert_cursor(tables, consumer, shard, after, by, Began.CHOSEN)
                remember(connection, None, row, None)
            values = {
                "consumer": consumer,
                "feed": feed,
                "settings": spec.to_json(),
                "begin_ulid": begin,
                "created_at_ms": self.database.now_ms(),
                "created_by": by,
                "resource_version": first_version(connection, feed, consumer),
            }
            return SETTINGS.add(connection, values)

    def change_consumer(self, spec: ConsumerSpec, *, resource_version: int, by: str) -> ConsumerInfo:
        consumer, feed = spec.consumer, spec.feed
        with self.database.connect() as connection, self.database.write(connection):
            info = load_consumer(connection, consumer, feed)
            changed = SETTINGS.change(
                connection,
                {"feed": feed, "consumer": consumer},
                {"settings": spec.to_json()},
                expected_version=resource_version,
                keeps_version=spec == info.spec,
            )
            if not changed:
                _check_settings(info, resource_version)
            return changed[0]

    def drop_consumer(self, consumer: str, feed: str, *, resource_version: int | None = None) -> None:
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            infos = {info.spec.consumer: info for info in SETTINGS.find(connection, {"feed": feed})}
            if consumer in infos:
                _check_settings(infos[consumer], resource_version)
            rows = CURSORS.find(connection, {"feed": feed, "consumer": consumer})
            if consumer not in infos:
                version = sum(row.resource_version for row in rows)
                what = f"consumer {consumer!r} of feed {feed!r}"
                check_version(what, resource_version, version, consumer_text(None, rows))
            end_consumers(connection, feed, consumer)
            remember_acknowledged(connection, feed, rows)
            for name in CONSUMER_TABLES:
                connection.execute(
                    f'delete from "changefeed.{name}" where feed = ? and consumer = ?', (feed, consumer)
                )

    def consumers(self, feed: str | None = None) -> list[ConsumerInfo]:
        with self.database.connect() as connection:
            if feed is not None:
                load_feed(connection, feed)
            return SETTINGS.find(connection, {"feed": feed})

    def consumer(self, consumer: str, feed: str) -> ConsumerInfo:
        with self.database.connect() as connection:
            return load_consumer(connection, consumer, feed)

    def open_session(self, consumer: str, feed: str) -> SqliteConsumerSession:
        with self.database.connect() as connection:
            load_consumer(connection, consumer, feed)
        return SqliteConsumerSession(self.database, consumer, feed)


def _check_settings(info: ConsumerInfo, expected: int | None) -> None:
    what = f"consumer {info.spec.consumer!r} of feed {info.spec.feed!r}"
    check_version(what, expected, info.resource_version, consumer_text(info.spec, ()))


def _same(info: ConsumerInfo, spec: ConsumerSpec) -> ConsumerInfo:
    if info.spec != spec:
        raise ConsumerSetupError(
            f"consumer {spec.consumer!r} of feed {spec.feed!r} already exists with other settings: "
            f"{info.spec.to_json()}, not {spec.to_json()}. Drop it first, or choose another name",
            consumer=spec.consumer,
            feed=spec.feed,
            present=info.spec,
        )
    return info


def load_consumer(connection: sqlite3.Connection, consumer: str, feed: str) -> ConsumerInfo:
    """
    Return a consumer.

    :raises FeedNotFoundError: no such feed.
    :raises ConsumerNotFoundError: the consumer does not exist.
    """
    load_feed(connection, feed)
    return known_consumer(consumer, feed, SETTINGS.find(connection, {"feed": feed}))
