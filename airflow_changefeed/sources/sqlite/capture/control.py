# SPDX-License-Identifier: Apache-2.0
"""Captures in SQLite: row triggers, a table of events, and an outbox feed over it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from airflow_changefeed.core.capture import (
    CaptureGap,
    CaptureInfo,
    CaptureSpec,
    OnDdl,
    Operation,
)
from airflow_changefeed.core.consumer import MAX_BY, MAX_REASON
from airflow_changefeed.core.feed import FeedKind, FeedStorage, folder_problems
from airflow_changefeed.core.values import from_milliseconds
from airflow_changefeed.exceptions import FeedSetupError, InvalidArgumentError, storable
from airflow_changefeed.sources.sqlite.capture.gaps import (
    DISABLED,
    add_gaps,
    close_gaps,
    drift_of,
    find_gaps,
    gap_error,
    gaps,
    refreshed_spec,
    take_baseline,
    unrecorded_fields,
)
from airflow_changefeed.sources.sqlite.capture.plan import (
    WHOLE_NUMBER,
    Plan,
    check_columns,
    check_policy,
    check_replication,
    check_same,
    name_problems,
    refuse,
)
from airflow_changefeed.sources.sqlite.capture.record import (
    begin_recording,
    has_rows,
    image_columns,
    make_events,
    record_begun,
    record_ddl,
    recordings,
    stop_recording,
)
from airflow_changefeed.sources.sqlite.capture.registry import (
    StoredCapture,
    load_capture,
    load_captures,
    store_capture,
)
from airflow_changefeed.sources.sqlite.capture.triggers import drop_triggers, with_triggers
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, load_feed, quote
from airflow_changefeed.sources.sqlite.feed.reader import load_high_water, store_high_water
from airflow_changefeed.sources.sqlite.setup import check_storage, create, install, register
from airflow_changefeed.sources.sqlite.versions import (
    begin_version,
    bump_version,
    check_absent,
    check_beneath,
    check_feed,
    note_changes,
)

#: Who began to record the rows.
_ENABLING = "enable_capture"


class SqliteCapture:
    """The part of the source that captures; see :class:`~airflow_changefeed.sources.base.CaptureControl`."""

    database: SqliteDatabase

    def enable_capture(
        self,
        spec: CaptureSpec,
        *,
        record_rows: bool = False,
        storage: FeedStorage | None = None,
        resource_version: int | None = None,
    ) -> CaptureInfo:
        spec = replace(spec, name=spec.full_name)
        check_policy(spec.name, spec.on_ddl)
        check_replication(spec)
        check_storage(f"capture {spec.name!r}", storage)
        with self.database.connect(wal=True) as connection:
            note_changes(self.database, connection, spec.name)
            with self.database.write(connection):
                install(connection)
                if not load_captures(connection, spec.name):
                    check_absent(f"capture {spec.name!r}", resource_version)
                    self._enable_new(connection, spec, record_rows=record_rows)
                    begin_version(load_feed(connection, spec.name))
                else:
                    tables = load_feed(connection, spec.name)
                    check_feed(tables, resource_version)
                    check_same(tables.captured, spec)
                    if not tables.captured.is_enabled:
                        self._enable_again(tables, record_rows=record_rows)
                        bump_version(connection, spec.name)
        if record_rows:
            record_begun(self.database, spec.name)
        return self.capture(spec.name)

    def _enable_new(self, connection: sqlite3.Connection, spec: CaptureSpec, *, record_rows: bool) -> None:
        plan = Plan(connection, spec)
        problems = name_problems(connection, spec.name) + plan.problems
        problems += folder_problems(spec.name, *(table.table for table in spec.tables))
        refuse(spec.name, problems)
        now_ms = self.database.now_ms()
        capture = StoredCapture(spec, tuple(plan.fields.values()), tuple(plan.tables), now_ms)
        make_events(connection, capture)
        store_capture(connection, capture)
        tables = register(connection, spec.name, FeedKind.OUTBOX, spec.shard_key_type)
        create(connection, tables, list(tables.info.key_columns))
        filled = [number for number, table in enumerate(capture.tables) if has_rows(connection, table.name)]
        # Whether a table's events cover all rows.
        whole = [
            len(table.columns) == len(Operation) and (record_rows or number not in filled)
            for number, table in enumerate(capture.tables)
        ]
        tables = replace(tables, capture=capture)
        _restart(tables, whole, filled if record_rows else (), now_ms, _ENABLING)

    def _enable_again(self, tables: FeedTables, *, record_rows: bool) -> None:
        """Record again; changes made meanwhile are unknown, so they are a gap."""
        capture, now_ms = tables.captured, self.database.now_ms()
        check_columns(tables.connection, capture)
        since_ms = capture.disabled_at_ms or capture.enabled_at_ms
        since, numbers = from_milliseconds(since_ms), range(len(capture.tables))
        reason = f"changes were not recorded while the capture was disabled, since {since:%Y-%m-%d %H:%M:%S}Z"
        # A disabled capture can still be sealed, so that it is exported to its end.
        add_gaps(tables, [(number, DISABLED, reason) for number in numbers], now_ms, since_ms)
        tables = replace(tables, capture=replace(capture, disabled_at_ms=None))
        _restart(tables, None, numbers if record_rows else (), now_ms, _ENABLING)

    def disable_capture(self, name: str, *, resource_version: int | None = None) -> None:
        with self._written(name, resource_version) as tables:
            connection = tables.connection
            find_gaps(tables, self.database.now_ms())
            capture = load_capture(connection, name)
            drop_triggers(connection, name, range(len(capture.tables)))
            stop_recording(connection, name, [table.name for table in capture.tables])
            bare = tuple(replace(table, triggers={}) for table in capture.tables)
            if capture.is_enabled:
                now_ms = self.database.now_ms()
                # Without the triggers nobody knows any more which columns were renamed.
                record_ddl(tables, capture, capture, [()] * len(capture.tables), now_ms)
                spec = refreshed_spec(capture)
                store_capture(connection, replace(capture, spec=spec, tables=bare, disabled_at_ms=now_ms))
                bump_version(connection, name)

    def refresh_capture(
        self,
        name: str,
        *,
        without: Sequence[str] = (),
        on_ddl: OnDdl | None = None,
        resource_version: int | None = None,
    ) -> CaptureInfo:
        if on_ddl is not None:
            check_policy(name, on_ddl)
        with self._written(name, resource_version) as tables:
            connection = tables.connection
            # First: recreating altered triggers would hide the gap.
            find_gaps(tables, self.database.now_ms())
            before = load_capture(connection, name)
            before = replace(before, spec=refreshed_spec(before))
            plan = Plan(connection, before.spec, before, without)
            refuse(name, plan.problems)
            known = {one.name.casefold() for one in before.fields}
            added = [one for folded, one in plan.fields.items() if folded not in known]
            for definition in image_columns(added):
                connection.execute(f"alter table {quote(name)} add column {definition}")
            now_ms = self.database.now_ms()
            both = list(zip(before.tables, plan.tables, strict=True))
            unrecorded = [unrecorded_fields(connection, before, was, now) for was, now in both]
            renewed = tuple(
                replace(
                    now, is_whole=was.is_whole, unrecorded_at_ms=now_ms if fields else was.unrecorded_at_ms
                )
                for (was, now), fields in zip(both, unrecorded, strict=True)
            )
            capture = replace(before, fields=tuple(plan.fields.values()), tables=renewed)
            if capture.is_enabled:
                capture = with_triggers(connection, capture, None)
            store_capture(connection, capture)
            # By another key, nobody knows which rows are recorded.
            pairs = zip(before.tables, capture.tables, strict=True)
            other_keys = [now.name for was, now in pairs if was.key_columns != now.key_columns]
            stop_recording(connection, name, other_keys)
            record_ddl(tables, before, capture, unrecorded, now_ms)
            # Even if nothing changed: what was read before may mean something else now (Hasura's reload).
            bump_version(connection, name)
            return self._info(connection, name)

    def captures(self) -> list[CaptureInfo]:
        with self.database.connect() as connection:
            check_beneath(self.database, connection)
            with self.database.snapshot(connection):
                return [self._info(connection, one.name) for one in load_captures(connection)]

    def capture(self, name: str) -> CaptureInfo:
        with self.database.connect() as connection:
            check_beneath(self.database, connection, name)
            with self.database.snapshot(connection):
                return self._info(connection, name)

    def check_capture(self, name: str) -> list[CaptureGap]:
        with self._written(name) as tables:
            return find_gaps(tables, self.database.now_ms())

    def resolve_capture(
        self, name: str, *, note: str, by: str, resync: bool = False, resource_version: int | None = None
    ) -> CaptureInfo:
        note, by = _checked_note(f"resolving capture {name!r}", note, by)
        with self._written(name, resource_version) as tables:
            connection = tables.connection
            seen = gaps(connection, name, is_open=True)
            unseen = [gap for gap in find_gaps(tables, self.database.now_ms()) if gap not in seen]
            # Without a gap, what has begun to be recorded goes on.
            begins = resync and not (unseen or (not seen and recordings(connection, name)))
            if (seen and not unseen) or begins:
                self._resolve(load_feed(connection, name), seen, by if begins else None)
                close_gaps(connection, name, self.database.now_ms(), by, note)
                bump_version(connection, name)
            info = self._info(connection, name)
        if unseen:
            raise gap_error(name, unseen)
        if resync:
            record_begun(self.database, name)
        return info

    def _resolve(self, tables: FeedTables, seen: list[CaptureGap], recorder: str | None) -> None:
        """
        Recreate the triggers, and count again.

        :param recorder: who has the rows recorded; None if they shall not be.
        """
        capture = tables.captured
        if not capture.is_enabled:
            if recorder is not None:
                raise FeedSetupError(
                    f"capture {capture.name!r} is disabled, so its rows cannot be recorded; enable it with "
                    "record_rows=True, or resolve without resync",
                    capture=capture.name,
                )
            return
        check_columns(tables.connection, capture)
        affected = {gap.table for gap in seen}
        recorded = [
            number
            for number, table in enumerate(capture.tables)
            if recorder is not None and (table.name in affected or not affected)
        ]
        _restart(tables, None, recorded, self.database.now_ms(), recorder or "")

    def capture_gaps(self, name: str) -> list[CaptureGap]:
        with self.database.connect() as connection, self.database.snapshot(connection):
            load_capture(connection, name)
            return gaps(connection, name)

    @contextmanager
    def _written(self, name: str, resource_version: int | None = None) -> Iterator[FeedTables]:
        """Open a write transaction for an existing capture at the expected version."""
        with self.database.connect() as connection:
            note_changes(self.database, connection, name)
            with self.database.write(connection):
                load_capture(connection, name)
                tables = load_feed(connection, name)
                check_feed(tables, resource_version)
                yield tables

    def _info(self, connection: sqlite3.Connection, name: str) -> CaptureInfo:
        capture = load_capture(connection, name)
        return CaptureInfo(
            spec=capture.present_spec,
            shape=capture.shape,
            is_enabled=capture.is_enabled,
            enabled_at=from_milliseconds(capture.enabled_at_ms),
            drift=drift_of(connection, capture),
            gaps=tuple(gaps(connection, name, is_open=True)),
            resource_version=load_feed(connection, name, is_whole=False).info.resource_version,
        )


def _begin_shards(tables: FeedTables, now_ms: int) -> None:
    """Give a capture the shards that are plain numbers, so that windows before its first event are units."""
    for table in tables.captured.spec.tables:
        if WHOLE_NUMBER.fullmatch(table.shard):
            shard = int(table.shard)
            store_high_water(tables, shard, load_high_water(tables, shard, now_ms))


def _checked_note(subject: str, note: str, by: str) -> tuple[str, str]:
    problems = [
        f"{what} is missing: {why}"
        for what, value, why in (
            ("note", note, "describe what was done"),
            ("by", by, "name the person or program"),
        )
        if not value.strip()
    ]
    InvalidArgumentError.collect(subject, problems)
    return storable(note, MAX_REASON), storable(by, MAX_BY)


def _restart(
    tables: FeedTables, whole: Sequence[bool] | None, numbers: Sequence[int], now_ms: int, by: str
) -> None:
    """
    Create the triggers of a capture again, and count its rows again.

    :param whole: as of :func:`with_triggers`.
    :param numbers: of the tables whose rows are to be recorded, too.
    """
    _begin_shards(tables, now_ms)
    capture = with_triggers(tables.connection, tables.captured, whole)
    store_capture(tables.connection, capture)
    begin_recording(replace(tables, capture=capture), numbers, now_ms, by)
    take_baseline(tables.connection, capture)
