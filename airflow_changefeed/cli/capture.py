# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed capture``, ``snapshot`` and ``reconcile``."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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
)
from airflow_changefeed.core.capture import TRACE_KEY, CaptureSpec, KeyChange, OnDdl, Operation, TableCapture
from airflow_changefeed.core.codec import decode, encode
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import FeedStorage, counted
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import InvalidArgumentError, SnapshotError

if TYPE_CHECKING:
    from argparse import Namespace

    from pyspark.sql import SparkSession

    from airflow_changefeed.core.capture import CaptureInfo
    from airflow_changefeed.lake.current import CurrentOutput, CurrentVersion
    from airflow_changefeed.lake.reconciliation import Comparison
    from airflow_changefeed.lake.snapshots import ReadRange
    from airflow_changefeed.lake.take_snapshot import SnapshotRequest
    from airflow_changefeed.sources.base import FeedSource
    from airflow_changefeed.sources.base_capture import SnapshotClaim


#: Exit status of a check that found an open gap.
OPEN = 1
#: Shown before triggers are created on SQL Server tables: without it their users learn it from errors.
OUTPUT_WARNING = """\
Tables with triggers refuse `output` without `into` (error 334) and cannot be the target of `output into`.
Before you enable a capture, change the applications that write {tables}:
  Entity Framework Core 7 and later: ToTable(table => table.HasTrigger("...")), or UseSqlOutputClause(false)
  SQLAlchemy: Table(..., implicit_returning=False)
  others: output into a table variable, or scope_identity()"""
_ENABLED = """\
Capture {name} is enabled: changes of {tables} are recorded from now on, in feed {name}.
Next, export this feed or consume its events."""
_NO_FOLD = """\
To fold these events into a current table of {table}, more is needed: {why}.
{remedy}."""
_ROWS_MISSING = "the existing rows are not recorded (--record-rows)"
#: Options that `--spec` replaces.
_OF_SPEC = (
    "table",
    "insert",
    "update",
    "delete",
    "shard",
    "name",
    "shard_key_type",
    "key_change",
    "keep_unchanged",
    "session_key",
    "trace_key",
    "with_sequence",
    "no_guard_table",
    "no_guard_schema",
    "on_ddl",
    "not_for_replication",
)
_ALL, _NONE = "all", "none"


@command
def enable(args: Namespace) -> None:
    """Record changes from now on; a dry run only prints the capture."""
    spec = spec_of(args)
    if args.dry_run:
        print(json.dumps(encode(spec), indent=2))
        _warn_of_folds(spec)
        return
    with open_feeds(args.conn_id) as source:
        if source.capabilities.set_triggers:
            echo(OUTPUT_WARNING.format(tables=", ".join(table.table for table in spec.tables)))
        version = _seen_disabled(source, spec, args)
        storage = FeedStorage(args.filegroup, args.compression)
        info = source.enable_capture(
            spec, record_rows=args.record_rows, storage=storage, resource_version=version
        )
        show([capture_row(info)], args.output, _short)
        tables = " and ".join(table.table for table in spec.tables)
        echo(_ENABLED.format(name=info.name, tables=tables))
        _warn_of_folds(spec, info)


def _warn_of_folds(spec: CaptureSpec, info: CaptureInfo | None = None) -> None:
    """
    Warn about tables that cannot be folded from the recorded events, with what would allow it.

    A snapshot has the rows of before; nothing but other options has changes that are not recorded.

    :param info: the capture; None if only its options are known.
    """
    for table in spec.tables:
        missing = [one.value for one in Operation if one not in table.operations]
        why = [f"{operation}s are not recorded (--{operation})" for operation in missing]
        if spec.not_for_replication:
            why.append("changes by replication are not recorded (--not-for-replication)")
        if spec.key_change is KeyChange.NEW_ONLY and table.update is not None:
            why.append("an update of a key records only the new row (--key-change delete_insert)")
        if None not in (table.insert, table.update) and set(table.insert or ()) != set(table.update or ()):
            why.append("inserts and updates record different columns (--insert, --update)")
        if info is not None:
            captured = info.shape.tables[table.table]
            is_partial = missing or spec.not_for_replication
            why += [] if is_partial or captured.is_whole else [_ROWS_MISSING]
            why += [] if captured.key_columns else ["it has no primary key"]
            lost = {
                key for one in captured.columns.values() for key in captured.key_columns if key not in one
            }
            why += [f"key columns are left out: {', '.join(sorted(lost))}"] if lost else []
        if why:
            remedy = "Enable a capture with these options under another --name"
            if info is not None and why == [_ROWS_MISSING]:
                take = shell(
                    "snapshot take", "--feed", info.name, "--table", table.table, "--output-path", "..."
                )
                remedy = (
                    f"Read these rows:\n  {take}\nOr enable a capture with this option under another --name"
                )
            echo(_NO_FOLD.format(table=table.table, why="; ".join(why), remedy=remedy))


def _seen_disabled(source: FeedSource, spec: CaptureSpec, args: Namespace) -> int | None:
    """Return the expected version of a disabled capture, given or confirmed; None if the capture is new."""
    is_installed = not source.capabilities.needs_install or source.version() is not None
    known = {info.name: info for info in source.captures()} if is_installed else {}
    present = known.get(spec.full_name)
    if present is None or present.is_enabled:
        return None if args.resource_version is None else int(args.resource_version)
    question = f"Capture {present.name} is disabled; changes made since then become a gap. Enable it again?"
    return seen_version(args, present.resource_version, question, "Nothing was enabled")


def spec_of(args: Namespace) -> CaptureSpec:
    """Return the capture that options or a file describe; raise InvalidArgumentError for both or neither."""
    if args.spec is not None:
        given = [f"--{name.replace('_', '-')}" for name in _OF_SPEC if getattr(args, name)]
        if given:
            raise InvalidArgumentError(
                f"--spec cannot be combined with {', '.join(given)}; the file describes the whole capture"
            )
        return _read(args.spec)
    if not args.table:
        raise InvalidArgumentError("no table given; pass --table, or a file with --spec")
    columns = {name: _columns(getattr(args, name)) for name in ("insert", "update", "delete")}
    chosen = [f"--{name}" for name, names in columns.items() if names]
    if chosen and len(args.table) > 1:
        raise InvalidArgumentError(
            f"{', '.join(chosen)} cannot be used with more than one --table; pass a file with --spec"
        )
    return CaptureSpec(
        tables=tuple(TableCapture(table, shard=args.shard or "0", **columns) for table in args.table),
        name=args.name or "",
        shard_key_type=args.shard_key_type or CaptureSpec.shard_key_type,
        key_change=KeyChange(args.key_change or CaptureSpec.key_change),
        keep_unchanged=args.keep_unchanged,
        session_keys=tuple(args.session_key or ()),
        trace_key=None if args.trace_key == _NONE else args.trace_key or TRACE_KEY,
        with_sequence=args.with_sequence,
        guard_table=not args.no_guard_table,
        guard_schema=not args.no_guard_schema,
        on_ddl=OnDdl(args.on_ddl or CaptureSpec.on_ddl),
        not_for_replication=args.not_for_replication,
    )


def _columns(text: str | None) -> tuple[str, ...] | None:
    """Return the columns of an operation; empty for all, None if the operation is not recorded."""
    if text is None or text == _ALL:
        return ()
    if text == _NONE:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise InvalidArgumentError(f"{text!r} is not a list of columns; expected a,b,c, {_ALL} or {_NONE}")
    return names


def _read(path: str) -> CaptureSpec:
    """Read a capture from a file or from standard input."""
    text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    where = "standard input" if path == "-" else path
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(f"{where} is not valid JSON: {error}") from None
    return decode(CaptureSpec, value, named=where)


@feeds_command
def disable(source: FeedSource, args: Namespace) -> None:
    """Stop recording."""
    present = source.capture(args.name)
    version = args.resource_version
    if present.is_enabled:
        question = f"Stop recording of capture {present.name}, enabled at {format_time(present.enabled_at)}?"
        version = seen_version(args, present.resource_version, question, "Nothing was disabled")
    source.disable_capture(args.name, resource_version=version)
    show([capture_row(source.capture(args.name))], args.output, _short)
    echo(f"Disabled capture {args.name}; its feed is kept, and all of its events can still be exported")


@feeds_command
def list_captures(source: FeedSource, args: Namespace) -> None:
    """Show all captures."""
    found = source.captures()
    show([capture_row(info) for info in found], args.output, _short)
    echo(f"Captures: {len(found)}")


@feeds_command
def refresh(source: FeedSource, args: Namespace) -> None:
    """Capture the current columns."""
    present = source.capture(args.name)
    again = f"Refresh capture {present.name} to the current columns, and create its triggers again?"
    drift = f"Differences: {'; '.join(present.drift)}" if present.drift else "There are no differences"
    question = f"{drift}. {again}"
    version = seen_version(args, present.resource_version, question, "Nothing was refreshed")
    without = tuple(args.without or ())
    on_ddl = None if args.on_ddl is None else OnDdl(args.on_ddl)
    info = source.refresh_capture(args.name, without=without, on_ddl=on_ddl, resource_version=version)
    show([capture_row(info)], args.output, _short)
    echo(f"Refreshed capture {info.name} to the current columns")


@feeds_command
def check(source: FeedSource, args: Namespace) -> None:
    """Check for gaps; the open ones go to standard output."""
    names = [info.name for info in source.captures()] if args.name is None else [args.name]
    found = [gap for name in names for gap in source.check_capture(name)]
    show([encode(gap) for gap in found], args.output, _open)
    echo(f"Captures: {len(names)}; open gaps: {len(found)}")
    if found:
        for name in dict.fromkeys(gap.capture for gap in found):
            echo(
                f"Feed {name} cannot be sealed until you resolve them: "
                f"{shell('capture resolve', name, '--note', '...')}"
            )
        raise SystemExit(OPEN)


@feeds_command
def resolve(source: FeedSource, args: Namespace) -> None:
    """Close the open gaps, or record all rows again if there are none, after confirmation."""
    before = source.capture(args.name)
    if not before.gaps and not args.resync and args.resource_version is None:
        show([capture_row(before)], args.output, _short)
        echo(f"Capture {args.name} has no open gaps; nothing was resolved")
        return
    if args.resync and not before.is_enabled:
        raise InvalidArgumentError(
            f"capture {args.name!r} is disabled and cannot record rows; enable it first, or omit --resync"
        )
    if args.resource_version is None and not args.yes:
        show([encode(gap) for gap in before.gaps], "table", _open, on_error=True)
    question = f"Capture {before.name} has no open gaps. Record all rows of its tables again?"
    if before.gaps:
        more = ", and record all rows of their tables again" if args.resync else ""
        question = f"Resolve {counted(len(before.gaps), 'gap')} of capture {before.name}{more}?"
    version = seen_version(args, before.resource_version, question, "Nothing was resolved")
    info = source.resolve_capture(
        args.name, note=args.note, by=getuser(), resync=args.resync, resource_version=version
    )
    show([capture_row(info)], args.output, _short)
    if before.gaps:
        echo(f"Resolved {counted(len(before.gaps), 'gap')} of capture {args.name}")
    if args.resync:
        echo("Recorded the existing rows; folds are correct from here on")


@feeds_command
def gaps(source: FeedSource, args: Namespace) -> None:
    """Show all gaps, open and resolved."""
    names = [info.name for info in source.captures()] if args.name is None else [args.name]
    found = [gap for name in names for gap in source.capture_gaps(name)]
    show([encode(gap) for gap in found], args.output)
    echo(f"Captures: {len(names)}; gaps: {len(found)}")


def capture_row(info: CaptureInfo) -> Row:
    """Return a capture as a JSON object."""
    return {
        "capture": info.name,
        "is_enabled": info.is_enabled,
        "enabled_at": format_time(info.enabled_at),
        "resource_version": info.resource_version,
        "whole_tables": [name for name, table in info.shape.tables.items() if table.is_whole],
        "drift": list(info.drift),
        "open_gaps": [encode(gap) for gap in info.gaps],
        "spec": encode(info.spec),
    }


def _short(row: Row) -> Row:
    return {
        "capture": row["capture"],
        "tables": [table["table"] for table in row["spec"]["tables"]],
        "enabled": row["is_enabled"],
        "since": row["enabled_at"],
        "version": row["resource_version"],
        "drift": row["drift"],
        "open gaps": len(row["open_gaps"]),
    }


def _open(row: Row) -> Row:
    return {name: row[name] for name in ("number", "capture", "table", "reason", "after")}


#: Exit status if the table and its export differ, and that was not repaired.
DIFFERENT = 1


@command
def take(args: Namespace) -> None:
    """Take a snapshot here, or continue with it."""
    from airflow_changefeed.connections.output import storage_options
    from airflow_changefeed.lake.snapshot_ranges import read_here
    from airflow_changefeed.lake.take_snapshot import take_snapshot

    with open_feeds(args.conn_id) as source:
        request = _reading(args, args.output_path)
        read = partial(read_here, source, report=_report)
        done = take_snapshot(
            source, request, storage_options(args.output_path, args.path_conn_id), read, echo
        )
    show([done.summary], args.output)
    echo(
        f"Folds of {done.table} can start from this snapshot at any time from "
        f"{format_time(done.exact_from)} on"
    )


@command
def reconcile_table(args: Namespace) -> None:
    """Compare a table with its export here."""
    from airflow_changefeed.connections.output import current_version, storage_options
    from airflow_changefeed.export.job_spec import JobConnection
    from airflow_changefeed.lake.reconcile import ReconcileRequest, ReconcileTask, reconcile
    from airflow_changefeed.lake.snapshot_ranges import read_here
    from airflow_changefeed.spark.reconcile import run_comparison

    request = ReconcileRequest(_reading(args, args.output_path), args.path, args.base, args.repair)
    options = storage_options(args.path, args.path_conn_id)

    def compare(task: ReconcileTask) -> Comparison:
        return run_comparison(partial(_spark, args.master), task, JobConnection({}, options or {}), echo)

    def look(output: CurrentOutput) -> CurrentVersion:
        return current_version(output, options, args.catalog_conn_id)

    with open_feeds(args.conn_id) as source:
        read = partial(read_here, source, report=_report)
        done = reconcile(source, request, options, read, compare, echo, look)
    show([done.summary], args.output)
    echo(f"Compared {done.text}")
    if not done.equal and not done.repaired:
        raise SystemExit(DIFFERENT)


def _reading(args: Namespace, path: str) -> SnapshotRequest:
    from airflow_changefeed.lake.take_snapshot import SnapshotRequest

    return SnapshotRequest(
        args.feed,
        args.table,
        path,
        getuser(),
        range_rows=args.range_rows,
        rows_per_second=args.rows_per_second,
        where=args.where or "",
    )


def _report(found: ReadRange) -> None:
    echo(f"Range {found.number}: {counted(found.rows, 'row')}")


def _spark(master: str) -> SparkSession:
    from pyspark.sql import SparkSession

    from airflow_changefeed.connections.spark import check_java

    check_java(os.environ)
    builder = SparkSession.builder.master(master).appName("changefeed reconcile")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    return builder.getOrCreate()


@feeds_command
def list_snapshots(source: FeedSource, args: Namespace) -> None:
    """Show the snapshots that have begun."""
    found = source.snapshots(args.feed)
    show([_row(claim) for claim in found], args.output)
    echo(f"Snapshots in progress: {len(found)}")


@feeds_command
def give_up(source: FeedSource, args: Namespace) -> None:
    """Give up a snapshot, after confirmation."""
    found = [one for one in source.snapshots(args.feed) if args.table in (None, one.table)]
    if len(found) != 1:
        tables = ", ".join(one.table for one in found)
        raise SnapshotError(
            f"feed {args.feed!r} has snapshots of {tables}: choose one with --table"
            if found
            else f"no snapshot of {args.table or 'a table'} of feed {args.feed!r} is in progress; "
            "nothing to give up",
            feed=args.feed,
        )
    (claim,) = found
    if not args.yes:
        show([_row(claim)], "table", on_error=True)
        ask(f"Give up the snapshot of {claim.table}?", "Nothing was given up")
    source.end_snapshot(claim.feed, claim.table, token=claim.token)
    show([_row(claim)], args.output)
    echo(f"Gave up the snapshot of {claim.table}; the snapshot no longer holds back purges")


def _row(claim: SnapshotClaim) -> Row:
    times = {"begin": format_time(claim.begin), "expires_at": format_time(claim.expires_at)}
    return {**asdict(claim), **times}
