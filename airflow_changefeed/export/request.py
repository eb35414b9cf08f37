# SPDX-License-Identifier: Apache-2.0
"""What somebody wants exported: a batch, or windows of feeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from itertools import pairwise

from airflow_changefeed.core.cursor import check_consumer
from airflow_changefeed.core.export_plan import ExportOptions
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.base import FeedReader


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
