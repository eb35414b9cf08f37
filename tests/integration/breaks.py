# SPDX-License-Identifier: Apache-2.0
"""
Deliberate breaks of a source and of the export, to show that the tests notice them.

A break is named by an environment variable, so that it holds in every process of a race. As a pytest plugin
(``-p tests.integration.breaks``) it is applied to the tests' own process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

VARIABLE = "CHANGEFEED_TEST_BREAK"


def no_lock_in_drain() -> None:
    """Let a SQLite drain read the outbox and write the feed without the lock, each statement for itself."""
    from airflow_changefeed.sources.sqlite.feed.control import SqliteControl

    class Unlocked:
        """A database whose write transactions are none."""

        def __init__(self, database: Any) -> None:
            self._database = database

        def __getattr__(self, name: str) -> Any:
            return getattr(self._database, name)

        def write(self, connection: Any) -> AbstractContextManager[None]:
            """Begin nothing."""
            return nullcontext()

    def unlocked(drain: Any) -> Any:
        def broken(self: Any, *arguments: Any) -> Any:
            database = self.database
            self.database = Unlocked(database)
            try:
                return drain(self, *arguments)
            finally:
                self.database = database

        return broken

    SqliteControl.drain_some = unlocked(SqliteControl.drain_some)
    SqliteControl.drain_page = unlocked(SqliteControl.drain_page)


def no_clock_raise_in_seal() -> None:
    """Let a SQLite seal drain, and then promise what it does not hold."""
    from airflow_changefeed.sources.sqlite.feed.control import SqliteControl

    SqliteControl.raise_high_water = lambda *_: None


def no_floor_for_new_shards() -> None:
    """Let a SQLite seal raise the clocks of the shards that exist, and forget those to come (R7)."""
    from airflow_changefeed.sources.sqlite.feed.control import SqliteControl

    def broken(self: Any, connection: Any, tables: Any, until_ms: int) -> None:
        connection.execute(f"update {tables.state} set time_ms = max(time_ms, ?)", (until_ms,))

    SqliteControl.raise_high_water = broken


def manifest_before_data() -> None:
    """Let a unit's commit say that it is complete before its files are in place."""
    from airflow_changefeed.exceptions import SupersededError
    from airflow_changefeed.output import commit

    def broken(self: Any, number: int, others: Any) -> Any:
        store, plan, planned = self._store, self._plan, self._plan.units[number]
        unit, attempt, staged = planned.unit, plan.attempt, self._files.get(number, ())
        manifest = commit._manifest(plan, planned, staged, self._schema)
        store.write(manifest)
        for other in store.placed_attempts(unit):
            if other < attempt:
                store.retire(unit, other)
        try:
            if staged:
                store.place(unit, attempt, staged)
        except SupersededError as problem:
            self._withdraw(unit, problem.message)
            return None
        return manifest

    commit.Commit._commit_unit = broken


def cursor_before_manifest() -> None:
    """Let the operator move the cursors first, and export what they have passed afterwards."""
    from airflow_changefeed.cursors import cursors
    from airflow_changefeed.hooks.changefeed import ChangefeedHook
    from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator

    whole = ChangefeedToParquetOperator._run

    def broken(self: Any, context: Any, source: Any, plan: Any, *arguments: Any) -> Any:
        hook = ChangefeedHook(self.changefeed_conn_id)
        done: dict[Any, list[Any]] = {}
        for planned in plan.units:
            done.setdefault(planned.unit.shard, []).append(planned.unit.range)
        cursors.advance(hook.source(), hook.variables(), plan.consumer, plan.feed, done, by=plan.run)
        return whole(self, context, source, plan, *arguments)

    ChangefeedToParquetOperator._run = broken


def no_fence_in_consume() -> None:
    """Let a SQLite consumer move its cursor whoever holds the lease now, and wherever the cursor stands."""
    from airflow_changefeed.sources.sqlite.consumers.session import SqliteConsumerSession

    SqliteConsumerSession._fenced = lambda self, connection, step: self._row(connection, step)


def work_before_consumption() -> None:
    """Let a SQLite consumer commit its work, and consume in a transaction after it."""
    from airflow_changefeed.sources.sqlite.consumers import session as consumer_session

    session = consumer_session.SqliteConsumerSession
    consume = session.consume

    def broken(self: Any, step: Any) -> Any:
        self._say(consumer_session._COMMIT)
        self._say(consumer_session._BEGIN)
        return consume(self, step)

    session.consume = broken


def _change_tsql(procedure: str, changes: dict[str, str]) -> None:
    """Let a procedure of SQL Server have other conditions than it was written with."""
    from airflow_changefeed.sql import mssql

    whole = mssql.load_sql

    def broken(name: str) -> str:
        text = whole(name)
        if name.endswith(f"/{procedure}.procedure.sql"):
            for fence, gap in changes.items():
                assert fence in text, fence
                text = text.replace(fence, gap)
        return text

    mssql.load_sql = broken


def no_fence_in_consume_events() -> None:
    """Let consumers of SQL Server move their cursors whoever holds the lease now, and wherever they stand."""
    _change_tsql(
        "consume_events",
        {
            "if @token <> @fencing_token or @holder is null or @fencing_token is null": "if 1 = 0",
            "if @version <> @expected_version": "if 1 = 0",
            "and fencing_token = @fencing_token and lease_holder is not null;": ";",
        },
    )


def no_version_check_in_move_cursor() -> None:
    """Let a cursor of SQL Server be moved by whoever has the lease, wherever it stands since it was seen."""
    _change_tsql("move_cursor", {"if @version <> @expected_version": "if 1 = 0"})


def work_before_consume_events() -> None:
    """Let a consumer of SQL Server commit its work, and consume in a transaction after it."""
    from airflow_changefeed.sources.mssql.consumers import session as consumer_session

    session = consumer_session.MssqlConsumerSession
    consume = session.consume

    def broken(self: Any, step: Any) -> Any:
        self._working().rows(consumer_session._COMMIT.format(transaction_id=self._transaction_id))
        self._transaction_id = self._begin()
        return consume(self, step)

    session.consume = broken


def no_version_check_in_move() -> None:
    """Let a SQLite cursor be moved by whoever has the lease, wherever it stands since it was seen."""
    from airflow_changefeed.sources.sqlite.consumers import cursors

    cursors.check_version = lambda *_: None


def nothing_held_for_beginnings() -> None:
    """Let a SQLite purge take what lies before an implied beginning for acknowledged."""
    from airflow_changefeed.sources.sqlite.feed import control

    control.uncovered = lambda *_: []


def dropped_consumers_forgotten() -> None:
    """Let SQLite forget what a consumer has acknowledged when it is dropped."""
    from airflow_changefeed.sources.sqlite.consumers import control

    control.remember_acknowledged = lambda *_: None


def nothing_held_for_beginnings_by_purge_feed() -> None:
    """Let a purge of SQL Server take what lies before an implied beginning for acknowledged."""
    _change_tsql("purge_feed", {"if @bound < @start set @start = @bound;": "set @start = null;"})


def dropped_consumers_forgotten_by_drop_consumer() -> None:
    """Let SQL Server forget what a consumer has acknowledged when it is dropped."""
    _change_tsql(
        "drop_consumer", {"while exists (select 1 from @kept as k where k.place = @place)": "while 1 = 0"}
    )


BREAKS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        no_lock_in_drain,
        no_clock_raise_in_seal,
        no_floor_for_new_shards,
        manifest_before_data,
        cursor_before_manifest,
        no_fence_in_consume,
        work_before_consumption,
        no_fence_in_consume_events,
        work_before_consume_events,
        no_version_check_in_move,
        no_version_check_in_move_cursor,
        nothing_held_for_beginnings,
        dropped_consumers_forgotten,
        nothing_held_for_beginnings_by_purge_feed,
        dropped_consumers_forgotten_by_drop_consumer,
    )
}


def apply_from_environment() -> None:
    """Apply the break that the environment names, if any."""
    if name := os.environ.get(VARIABLE):
        BREAKS[name]()


def pytest_configure() -> None:
    """Apply it as a plugin."""
    apply_from_environment()
