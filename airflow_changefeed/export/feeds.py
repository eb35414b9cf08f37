# SPDX-License-Identifier: Apache-2.0
"""Which feeds of a connection an export of several feeds takes: by names and patterns."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.base import FeedReader

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
            f"no feed is left of {len(chosen)}: exclude leaves out all that feeds names; change one of both"
        )
    return left


def _is_pattern(text: str) -> bool:
    return not _WILDCARDS.isdisjoint(text)
