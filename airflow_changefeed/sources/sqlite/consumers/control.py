# SPDX-License-Identifier: Apache-2.0
"""Consumers, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from airflow_changefeed.core.consumer import MAX_BY, ConsumerInfo, ConsumerSpec
from airflow_changefeed.core.feed import Shard, check_shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ConsumerSetupError, storable
from airflow_changefeed.sources.base_versions import check_version, consumer_text
from airflow_changefeed.sources.messages import known_consumer
from airflow_changefeed.sources.rows import consumer_info
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase, records
from airflow_changefeed.sources.sqlite.consumers.cursor_rows import (
    cursor_rows,
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
            known = {info.spec.consumer: info for info in consumer_infos(connection, feed)}
            if consumer in known:
                return _same(known[consumer], spec)
            if cursor_rows(connection, feed, consumer):
                raise ConsumerSetupError(
                    f"consumer {consumer!r} of feed {feed!r} is an export; choose another name",
                    consumer=consumer,
                    feed=feed,
                )
            for shard, after in starts.items():
                check_shard(shard, tables.info.shard_key_type)
                check_beyond(connection, tables, shard, after)
                self.insert_cursor(connection, consumer, feed, shard, after, by)
            self.remembered(connection, consumer, feed, {}, None)
            connection.execute(
                'insert into "changefeed.consumer_settings" '
                "(consumer, feed, settings, begin_ulid, created_at_ms, created_by, resource_version) "
                "values (?, ?, ?, ?, ?, ?, ?)",
                (
                    consumer,
                    feed,
                    spec.to_json(),
                    begin.bytes,
                    self.database.now_ms(),
                    storable(by, MAX_BY),
                    first_version(connection, feed, consumer),
                ),
            )
            return load_consumer(connection, consumer, feed)

    def change_consumer(self, spec: ConsumerSpec, *, resource_version: int, by: str) -> ConsumerInfo:
        consumer, feed = spec.consumer, spec.feed
        with self.database.connect() as connection, self.database.write(connection):
            info = load_consumer(connection, consumer, feed)
            _check_settings(info, resource_version)
            if spec != info.spec:
                connection.execute(
                    'update "changefeed.consumer_settings" set settings = ?, '
                    "resource_version = resource_version + 1 where feed = ? and consumer = ?",
                    (spec.to_json(), feed, consumer),
                )
            return load_consumer(connection, consumer, feed)

    def drop_consumer(self, consumer: str, feed: str, *, resource_version: int | None = None) -> None:
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            infos = {info.spec.consumer: info for info in consumer_infos(connection, feed)}
            if consumer in infos:
                _check_settings(infos[consumer], resource_version)
            rows = cursor_rows(connection, feed, consumer)
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
            return consumer_infos(connection, feed)

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


def consumer_infos(connection: sqlite3.Connection, feed: str | None) -> list[ConsumerInfo]:
    """Return the consumers of a feed or of all feeds; empty if none was ever created."""
    rows = records(
        connection,
        'select * from "changefeed.consumer_settings" where ?1 is null or feed = ?1 order by feed, consumer',
        (feed,),
    )
    return [consumer_info(row) for row in rows]


def load_consumer(connection: sqlite3.Connection, consumer: str, feed: str) -> ConsumerInfo:
    """
    Return a consumer.

    :raises FeedNotFoundError: no such feed.
    :raises ConsumerNotFoundError: the consumer does not exist.
    """
    load_feed(connection, feed)
    return known_consumer(consumer, feed, consumer_infos(connection, feed))
