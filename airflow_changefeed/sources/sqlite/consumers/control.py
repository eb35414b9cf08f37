# SPDX-License-Identifier: Apache-2.0
"""Consumers, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from airflow_changefeed.core.consumer import ConsumerInfo, ConsumerSpec
from airflow_changefeed.core.cursor import Began
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ConsumerSetupError
from airflow_changefeed.sources.base_versions import check_version, consumer_text, stale
from airflow_changefeed.sources.messages import known_consumer
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
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


class SqliteConsumers(SqliteCursors):
    """The part of the source that keeps consumers."""

    database: SqliteDatabase

    def create_consumer(
        self, spec: ConsumerSpec, *, begin: Ulid, starts: Mapping[Shard, Ulid], by: str
    ) -> ConsumerInfo:
        consumer, feed = spec.consumer, spec.feed
        key = {"feed": feed, "consumer": consumer}
        with self.database.connect() as connection, self.database.write(connection):
            tables = load_feed(connection, feed)
            for info in SETTINGS.find(connection, key):
                return _same(info, spec)
            if CURSORS.find(connection, key, limit=1):
                raise ConsumerSetupError(
                    f"consumer {consumer!r} of feed {feed!r} is an export; choose another name",
                    consumer=consumer,
                    feed=feed,
                )
            self.begin_on(tables, consumer, starts, by=by, began=Began.CHOSEN)
            values = {
                "settings": spec.to_json(),
                "begin_ulid": begin,
                "created_at": self.database.now(),
                "created_by": by,
                "resource_version": first_version(connection, feed, consumer),
            }
            return SETTINGS.add(connection, {**key, **values})

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
                what, present = f"consumer {consumer!r} of feed {feed!r}", consumer_text(info.spec, ())
                raise stale(what, resource_version, info.resource_version, present)
            return changed[0]

    def drop_consumer(self, consumer: str, feed: str, *, resource_version: int | None = None) -> None:
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            key = {"feed": feed, "consumer": consumer}
            infos, rows = SETTINGS.find(connection, key), CURSORS.find(connection, key)
            version = sum(one.resource_version for one in infos or rows)
            present = consumer_text(infos[0].spec if infos else None, rows)
            check_version(f"consumer {consumer!r} of feed {feed!r}", resource_version, version, present)
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
