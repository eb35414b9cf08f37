# SPDX-License-Identifier: Apache-2.0
"""What somebody wants exported, a batch or windows of feeds; and what a job gets besides the plan."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.cursor import CursorRow, check_consumer
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.plan import ExportOptions, Manifest
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import Window
from airflow_changefeed.cursors.cursors import HeldLeases, leased
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.output.layout import parse_token
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedReader, FeedSource


@dataclass(frozen=True)
class ExportRequest:
    """
    What somebody wants exported.

    :param windows: each becomes a unit of each shard, not overlapping; None exports a batch from the
        consumer's cursor.
    :param shards: None for all that are known.
    :param unit: length of the windows, which are then at multiples of it, counted from 1970 UTC; None where
        each has a length of its own. An output keeps the unit of its first export.
    :param run: who makes the export, for example ``dag_id/run_id/task_id/try``.
    """

    feed: str
    path: str
    consumer: str
    run: str
    windows: Sequence[Window] | None = None
    shards: Sequence[Shard] | None = None
    options: ExportOptions = field(default_factory=ExportOptions)
    unit: timedelta | None = None

    def check(self) -> None:
        """Raise InvalidArgumentError, which names everything that is wrong as far as no database is asked."""
        problems = [f"{name} is missing" for name in ("feed", "path", "run") if not getattr(self, name)]
        try:
            check_consumer(self.consumer)
        except InvalidArgumentError as problem:
            problems.append(problem.message)
        if self.windows is not None:
            problems += _problems_of(self.windows)
        if self.shards is not None and not self.shards:
            problems.append("shards is empty: name at least one shard, or pass None for all")
        InvalidArgumentError.collect(f"export of feed {self.feed!r}", problems)


def _problems_of(windows: Sequence[Window]) -> list[str]:
    if not windows:
        return ["windows is empty: name at least one window, or pass None to export a batch from the cursor"]
    ordered = sorted(windows)
    return [
        f"windows {first} and {second} overlap"
        for first, second in pairwise(ordered)
        if second.start < first.end
    ]


_WILDCARDS = frozenset("*?[")


def parse_feeds(argument: str, feeds: object) -> list[str]:
    """
    Read names and patterns of feeds: one, or several.

    :param argument: names the argument in errors.
    :raises InvalidArgumentError: something else, or an empty name.
    """
    found = [feeds] if isinstance(feeds, str) else feeds
    if not isinstance(found, (list, tuple)) or not all(isinstance(each, str) and each for each in found):
        raise InvalidArgumentError(f"{argument} must be names or patterns of feeds, not {feeds!r}")
    return list(found)


def choose_feeds(source: FeedReader, feeds: Sequence[str], exclude: Sequence[str] = ()) -> list[str]:
    """
    Return the names of the feeds to export, each once: names as they are given, then what patterns match.

    A name is taken whether the database has such a feed or not: a missing one is its own failure, and stops
    no other.

    :param feeds: names, and patterns with ``*``, ``?`` or ``[...]`` as of a shell; case counts.
    :param exclude: names and patterns of feeds to leave out.
    :raises InvalidArgumentError: a pattern matches no feed, or all are excluded.
    """
    known = sorted(info.name for info in source.feeds())
    chosen: dict[str, None] = {}
    for pattern in sorted(feeds, key=_is_pattern):
        found = [name for name in known if fnmatchcase(name, pattern)] if _is_pattern(pattern) else [pattern]
        if not found:
            there = f"{', '.join(known[:10])}{', ...' if len(known) > 10 else ''}" if known else "none"
            raise InvalidArgumentError(
                f"pattern {pattern!r} matches no feed of the connection; its feeds: {there}"
            )
        chosen |= dict.fromkeys(found)
    left = [name for name in chosen if not any(fnmatchcase(name, pattern) for pattern in exclude)]
    if not left:
        raise InvalidArgumentError(
            f"no feed is left of {len(chosen)}: exclude leaves out all feeds that feeds names; change "
            "feeds or exclude"
        )
    return left


def _is_pattern(text: str) -> bool:
    return not _WILDCARDS.isdisjoint(text)


@dataclass(frozen=True)
class JobConnection(Document):
    """
    How a Spark job reaches the feed and the output.

    :param source: as ``FeedSource.describe`` gives it.
    :param storage_options: for fsspec.
    """

    KIND = "changefeed connection"

    source: Mapping[str, Any] = field(repr=False)
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def save(self, path: str) -> None:
        """Write the connection to a new file that only its owner reads."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(self.to_json())


#: Batches of other runs that are skipped in search of those of earlier tries.
_MOST_BETWEEN = 100


@contextmanager
def batch_leases(
    source: FeedSource, request: ExportRequest, store: ExportStore
) -> Iterator[tuple[ExportRequest, HeldLeases | None]]:
    """
    Hold the leases of a batch from before its cursor is read until it has moved.

    A shard that appears after this is left to the next batch.

    :return: the request for the shards that are held, and their leases; the request as it is, and None, for a
        feed without shards.
    :raises OutputError: the output cannot be written, or is another feed's.
    :raises FeedNotFoundError: the database has no such feed.
    :raises LeaseHeldError: another batch of the consumer runs, or one died less than a lease ago.
    """
    request.check()
    with source.open(request.feed) as feed:
        # A refused batch must not leave a consumer that has acknowledged nothing: it would block purges.
        store.check(feed.database, request.options, request.windows)
        state = feed.state(request.consumer)
    # A shard that does not exist is refused by the plan, by name.
    wanted = [shard for shard in state.shards if request.shards is None or shard in request.shards]
    if not wanted or (request.shards is not None and len(wanted) < len(request.shards)):
        yield request, None
        return
    starts = {shard: Ulid.MIN for shard in wanted if shard not in state.cursors}
    source.begin_consumer(request.consumer, request.feed, starts, by=request.run)
    with leased(source, request.consumer, request.feed, wanted, request.run, renewed=True) as leases:
        yield replace(request, shards=wanted), leases


def batches_of_earlier_tries(
    store: ExportStore, rows: Iterable[CursorRow], request: ExportRequest
) -> list[Manifest]:
    """
    Return the batches that earlier tries of the same run have committed and moved their cursors behind.

    To be called under the leases of the batch. A batch whose cursor did not move is planned again, by name.

    :param request: its ``run`` ends with ``/`` and the number of the try.
    :return: by shard and in order; none for a first try.
    """
    run, _, number = request.run.rpartition("/")
    if not run or not number.isdecimal() or int(number) <= 1:
        return []
    wanted = [row for row in rows if request.shards is None or row.shard in request.shards]
    return [manifest for row in wanted for manifest in _chain(store, row.shard, row.ulid, run, int(number))]


def _chain(store: ExportStore, shard: Shard, cursor: Ulid, run: str, number: int) -> list[Manifest]:
    """
    Follow batches back from a cursor to the first one of an earlier try of a run.

    Those of other runs between them are reported again: a batch is reported as one range of each shard.
    """
    found: list[Manifest] = []
    ours = 0
    while cursor > Ulid.MIN and len(found) - ours < _MOST_BETWEEN:
        units = store.overlapping(shard, UlidRange(cursor.previous(), cursor))
        batch = next((unit for unit in units if unit.window is None and unit.range.upto == cursor), None)
        manifest = store.read(batch) if batch is not None else None
        if manifest is None:
            break
        found.append(manifest)
        theirs, _, their_number = manifest.run.rpartition("/")
        earlier = parse_token(their_number)
        if theirs == run and earlier is not None and earlier < number:
            ours = len(found)
        cursor = manifest.unit.range.after
    return found[:ours][::-1]
