# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed sql``, ``install``, ``renew-identity`` and ``setup-feed``."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_changefeed import __version__
from airflow_changefeed.cli.command import ask, command, echo, feeds_command, open_feeds, seen_version, show
from airflow_changefeed.core.feed import FOREVER, FeedKind, FeedStorage, max_hold_text
from airflow_changefeed.exceptions import FeedNotFoundError

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_changefeed.core.feed import FeedInfo
    from airflow_changefeed.sources.base import FeedSource
    from airflow_changefeed.sources.base_control import Installed


@command
def sql(args: Namespace) -> None:
    """Write the script; opens no connection and does not use Airflow's metadata database."""
    from airflow_changefeed.sources.mssql.setup import install_text

    _write(install_text(args.schema, sequence_cache=args.sequence_cache), args.output_file)


def _write(text: str, output_file: str | None) -> None:
    if output_file is None:
        sys.stdout.write(text)
        return
    # Bytes, so that Windows does not change the line ends.
    Path(output_file).write_bytes(text.encode())
    echo(f"Wrote the script of version {__version__} to {output_file}")


@feeds_command
def install(source: FeedSource, args: Namespace) -> None:
    """Run the script through a connection."""
    done = source.install(sequence_cache=args.sequence_cache, force=args.force)
    feeds = [info.name for info in source.feeds()]
    row = {"conn_id": args.conn_id, "before": done.before, "after": done.after, "feeds": feeds}
    # An embedded database without feeds has none of our tables.
    has_identity = source.capabilities.needs_install or feeds
    show([{**row, "database": source.identity().id if has_identity else None}], args.output)
    if source.capabilities.needs_install:
        echo(f"{_sentence(done)}; feeds on this version: {len(feeds)}")
    else:
        echo("This database needs no installation; create feeds with setup-feed")


@feeds_command
def renew_identity(source: FeedSource, args: Namespace) -> None:
    """Give a copy of a database its own identity, after confirmation."""
    before = source.identity().id
    if not args.yes:
        ask(
            f"This is database {before}. With a new identity, its consumers publish to new Variables. "
            "Its exports refuse the outputs of the original and need new paths. Do this only to a "
            "copy, while no export from the copy is running. Renew the identity?",
            "Nothing was changed",
        )
    after = source.renew_identity().id
    show([{"conn_id": args.conn_id, "before": before, "after": after}], args.output)
    echo(f"The identity of this database is now {after}")


def _sentence(done: Installed) -> str:
    if done.before is None:
        return f"Installed version {done.after}"
    if done.before == done.after:
        return f"Reinstalled version {done.after}"
    return f"Upgraded from version {done.before} to {done.after}"


@command
def setup_feed(args: Namespace) -> None:
    """Create or upgrade a feed."""
    with open_feeds(args.conn_id) as source:
        info = source.set_up_feed(
            args.table,
            kind=FeedKind(args.kind),
            shard_key_type=args.shard_key_type,
            time_tolerance=args.time_tolerance,
            max_hold=args.max_hold,
            storage=FeedStorage(args.filegroup, args.compression),
            resource_version=_seen(args, _present(source, args.table), args.time_tolerance),
        )
    row = {
        "feed": info.name,
        "kind": info.kind.value,
        "shard_key_type": info.shard_key_type,
        "key_columns": [column.name for column in info.key_columns],
        "time_tolerance": info.time_tolerance.total_seconds(),
        "max_hold": None if info.max_hold == FOREVER else info.max_hold.total_seconds(),
        "resource_version": info.resource_version,
    }
    show([row], args.output)
    echo(f"Feed {info.name} is set up")


def _present(source: FeedSource, table: str) -> FeedInfo | None:
    if source.capabilities.needs_install and source.version() is None:
        return None
    try:
        return source.feed(table)
    except FeedNotFoundError:
        return None


def _seen(args: Namespace, present: FeedInfo | None, tolerance: timedelta | None) -> int | None:
    """Return the expected version: given, or confirmed; None if nothing changes."""
    changes = []
    if present is not None and tolerance not in (None, present.time_tolerance):
        changes.append(
            f"the time tolerance from {present.time_tolerance.total_seconds():g} to "
            f"{tolerance.total_seconds():g} seconds"
        )
    if present is not None and args.max_hold not in (None, present.max_hold):
        changes.append(
            f"max_hold from {max_hold_text(present.max_hold)} to {max_hold_text(args.max_hold)} (purges "
            "remove older events even if a consumer needs them)"
        )
    if present is None or not changes:
        return None if args.resource_version is None else int(args.resource_version)
    question = f"Change of feed {present.name} {'; and '.join(changes)}?"
    return seen_version(args, present.resource_version, question, "Nothing was changed")
