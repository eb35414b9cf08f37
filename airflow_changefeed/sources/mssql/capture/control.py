# SPDX-License-Identifier: Apache-2.0
"""Captures in SQL Server: enabling, refreshing, checking and resolving, by calling its procedures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from airflow_changefeed.core.capture import (
    CaptureGap,
    CaptureInfo,
    CaptureSpec,
    OnDdl,
    TableCapture,
)
from airflow_changefeed.core.feed import FeedStorage
from airflow_changefeed.core.retry import growing, retry
from airflow_changefeed.exceptions import (
    CaptureGapError,
    FeedSetupError,
    InvalidArgumentError,
    LockTimeoutError,
)
from airflow_changefeed.sources.base_control import capture_text, check_version
from airflow_changefeed.sources.mssql.capture.info import load_captures
from airflow_changefeed.sources.mssql.capture.registry import load_capture
from airflow_changefeed.sources.mssql.connection.errors import is_driver_error, name_error
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.catalog import check_tables
from airflow_changefeed.sources.mssql.feed.feed import call
from airflow_changefeed.sources.mssql.names import quote, split_name
from airflow_changefeed.sources.mssql.setup import install_where_missing
from airflow_changefeed.sources.shared import no_capture

#: Of a call that records rows.
_RECORD_SECONDS = 5.0


class MssqlCaptures:
    """The part of the source that records changes of any table."""

    database: MssqlDatabase

    def enable_capture(
        self,
        spec: CaptureSpec,
        *,
        record_rows: bool = False,
        storage: FeedStorage | None = None,
        resource_version: int | None = None,
    ) -> CaptureInfo:
        """
        Installs changefeed first if it is missing and the login has the right to. Locks each table while its
        triggers are created, several tables until the last has its own; counts their rows afterwards.
        """
        schema, name = split_name(spec.full_name)
        capture = f"{schema}.{name}"

        def enable(version: int | None, *, is_whole: bool) -> None:
            with self.database.connect(capture=capture) as session:
                install_where_missing(session, self.database)
                tables = {table.table: ".".join(map(quote, split_name(table.table))) for table in spec.tables}
                check_tables(session, self.database.server, tables, capture=spec.full_name)
                _check_present(session, self.database.schema, spec, capture, version)
                with session.transaction() if is_whole else nullcontext():
                    for number, table in enumerate(spec.tables):
                        arguments = _arguments(
                            spec, table, capture, storage or FeedStorage(), record_rows=record_rows
                        )
                        # The first table increments the version.
                        arguments["resource_version"] = None if number else version
                        with server_refusals(capture, f"table {table.table!r}, shard {table.shard!r}"):
                            session.execute(*call(self.database.schema, "enable_capture", arguments))

        is_whole = len(spec.tables) > 1
        retry(
            lambda: enable(resource_version, is_whole=is_whole),
            lambda error: is_whole and isinstance(error, LockTimeoutError),
            growing(1, 1),
            seconds=self.database.lock_timeout,
            from_start=True,
        )
        if is_whole:
            # Outside a transaction the server counts the rows of each.
            enable(None, is_whole=False)
        if record_rows:
            self._record_rows(capture)
        return self.capture(capture)

    def disable_capture(self, name: str, *, resource_version: int | None = None) -> None:
        arguments = {"capture": name, "resource_version": resource_version}
        self._change_capture(name, "disable_capture", arguments)

    def refresh_capture(
        self,
        name: str,
        *,
        without: Sequence[str] = (),
        on_ddl: OnDdl | None = None,
        resource_version: int | None = None,
    ) -> CaptureInfo:
        arguments = {
            "capture": name,
            "without": json.dumps(list(without)),
            "on_ddl": None if on_ddl is None else OnDdl(on_ddl).value,
            "resource_version": resource_version,
        }
        self._change_capture(name, "refresh_capture", arguments)
        return self.capture(name)

    def captures(self) -> list[CaptureInfo]:
        return self.database.ask(lambda session: load_captures(session, self.database.schema))

    def capture(self, name: str) -> CaptureInfo:
        return self.database.ask(lambda session: self._capture(session, name), capture=name)

    def check_capture(self, name: str) -> list[CaptureGap]:
        def check(session: Session) -> None:
            self._capture(session, name)
            session.execute(*call(self.database.schema, f"check_capture:{name}", {}))

        try:
            # Gaps found are stored, so asking again is harmless.
            self.database.ask(check, capture=name)
            return []
        except CaptureGapError:
            return [gap for gap in self.capture_gaps(name) if gap.resolved_at is None]

    def resolve_capture(
        self, name: str, *, note: str, by: str, resync: bool = False, resource_version: int | None = None
    ) -> CaptureInfo:
        problems = [f"{what} is missing" for what, given in (("note", note), ("by", by)) if not given.strip()]
        InvalidArgumentError.collect(f"capture {name!r}", problems)
        arguments = {
            "note": note,
            "by": by,
            "resync": resync,
            "lock_timeout": self.database.lock_timeout_ms,
            "resource_version": resource_version,
        }
        self._change_capture(name, f"resolve_capture:{name}", arguments)
        if resync:
            self._record_rows(name)
        return self.capture(name)

    def capture_gaps(self, name: str) -> list[CaptureGap]:
        def gaps(session: Session) -> list[CaptureGap]:
            registry, row = load_capture(session, self.database.schema, name)
            return registry.gaps_in(row, is_open=False)

        return self.database.ask(gaps, capture=name)

    def _record_rows(self, name: str) -> None:
        """
        Go on to record the rows that are there, until all are.

        :raises LockTimeoutError: writers have held the next rows for as long as the lock timeout.
        """
        batch = call(self.database.schema, f"record_rows:{name}", {"seconds": _RECORD_SECONDS})
        advanced = time.monotonic()
        while True:
            (row,) = self.database.ask(lambda session: session.records(*batch), capture=name)
            if not row["unfinished"]:
                return
            if row["recorded"]:
                advanced = time.monotonic()
            elif time.monotonic() - advanced > self.database.lock_timeout_ms / 1000:
                raise LockTimeoutError(
                    f"capture {name!r}: its existing rows are not all recorded, because a transaction "
                    "holds the next rows. The rows recorded so far stay. Repeat the command when that "
                    "transaction has ended",
                    capture=name,
                )

    def _change_capture(self, name: str, procedure: str, arguments: dict[str, Any]) -> None:
        """Call a procedure once on a capture that exists."""
        with self.database.connect(capture=name) as session:
            self._capture(session, name)
            session.execute(*call(self.database.schema, procedure, arguments))

    def _capture(self, session: Session, name: str) -> CaptureInfo:
        found = load_captures(session, self.database.schema)
        for one in found:
            if one.name == name:
                return one
        raise no_capture(name, [one.name for one in found])


@contextmanager
def server_refusals(capture: str, asked: str = "") -> Iterator[None]:
    """
    Translate what the server refuses to create: a shard expression, rows that are too wide.

    :param asked: what of, for people.
    """
    try:
        yield
    except Exception as error:
        if not is_driver_error(error) or name_error(error) is not error:
            raise
        raise FeedSetupError(
            f"capture {capture!r} cannot be enabled as requested{f' ({asked})' if asked else ''}; nothing "
            f"was changed. The server's error: {error}",
            capture=capture,
        ) from error


def _arguments(
    spec: CaptureSpec, table: TableCapture, capture: str, storage: FeedStorage, *, record_rows: bool
) -> dict[str, Any]:
    """Return the arguments of ``enable_capture``, by name."""
    schema, name = split_name(table.table)

    def columns(asked: tuple[str, ...] | None) -> str:
        return "none" if asked is None else json.dumps(list(asked), ensure_ascii=False)

    return {
        "table": f"{quote(schema)}.{quote(name)}",
        "capture": capture,
        "insert_columns": columns(table.insert),
        "update_columns": columns(table.update),
        "delete_columns": columns(table.delete),
        "shard": table.shard,
        "shard_key_type": spec.shard_key_type,
        "key_change": spec.key_change.value,
        "keep_unchanged": spec.keep_unchanged,
        "session_keys": json.dumps(list(spec.session_keys), ensure_ascii=False),
        "trace_key": spec.trace_key or "",
        "with_sequence": spec.with_sequence,
        "guard_table": spec.guard_table,
        "guard_schema": spec.guard_schema,
        "on_ddl": spec.on_ddl.value,
        "not_for_replication": spec.not_for_replication,
        "filegroup": storage.filegroup,
        "compression": storage.compression,
        "record_rows": record_rows,
    }


def _check_present(
    session: Session, schema: str, spec: CaptureSpec, capture: str, resource_version: int | None
) -> None:
    """
    Raise if the capture exists at another version, or with other tables.

    The server compares the rest of each table, and the version again, under its lock.
    """
    wanted = {".".join(split_name(table.table)).casefold() for table in spec.tables}
    for one in load_captures(session, schema):
        present = {table.table.casefold() for table in one.spec.tables}
        if one.name == capture:
            text = capture_text(sorted(present), one.drift, one.gaps, is_enabled=one.is_enabled)
            check_version(f"capture {capture!r}", resource_version, one.resource_version, text)
        if one.name == capture and present != wanted:
            raise FeedSetupError(
                f"capture {capture!r} already exists, for {', '.join(sorted(present))}; choose another "
                "name, or add tables with the procedure enable_capture. To replace the capture, "
                "disable it, export all of its events and drop its feed first",
                capture=capture,
            )
