# SPDX-License-Identifier: Apache-2.0
"""Errors for unknown names: suggest similar ones, or how to create what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from airflow_changefeed.core.fault import shell
from airflow_changefeed.exceptions import CaptureNotFoundError, FeedNotFoundError

_MOST, _CLOSE = 3, 0.6
#: Suffix of a capture's default name.
_CAPTURES = "_changes"


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return similar names, best match first; the schema may be wrong or missing."""
    folded = name.casefold()
    whole = {each.casefold(): each for each in known}
    bare = {each.rpartition(".")[2]: each for each in whole}
    found = [whole[each] for each in get_close_matches(folded, whole, _MOST, _CLOSE)]
    found += [whole[bare[each]] for each in get_close_matches(folded.rpartition(".")[2], bare, _MOST, _CLOSE)]
    return list(dict.fromkeys(found))[:_MOST]


def no_table(table: str, tables: Sequence[str]) -> str:
    """Return the message for a table that does not exist."""
    near = nearest(table, tables)
    if near:
        return f"table {table!r} not found; did you mean {' or '.join(map(repr, near))}?"
    return f"table {table!r} not found; create it first"


def no_feed(feed: str, feeds: Sequence[str], tables: Sequence[str]) -> FeedNotFoundError:
    """
    Return the error for a feed that does not exist.

    :param feeds: all existing feeds.
    :param tables: of the database; the feed may be meant to be set up over one of them.
    """
    there = {table.casefold(): table for table in tables}
    captured = there.get(feed.removesuffix(_CAPTURES).casefold()) if feed.endswith(_CAPTURES) else None
    meant = _meant(feed, feeds)
    if captured and not any(each.casefold() == feed.casefold() for each in feeds):
        remedy = (
            f"Table {captured!r} is not captured yet; enable its capture: "
            f"{shell('capture enable', '--table', captured)}"
        )
    elif meant:
        remedy = meant
    elif feed.casefold() in there:
        remedy = "Create it with set_up_feed, or record the table's changes with enable_capture"
    else:
        remedy = "Create it with set_up_feed, or with enable_capture to record a table's changes"
    return FeedNotFoundError(
        f"feed {feed!r} not found; this database has {', '.join(feeds) or 'none'}. {remedy}",
        feed=feed,
        known=list(feeds),
    )


def no_capture(capture: str, known: Sequence[str]) -> CaptureNotFoundError:
    """
    Return the error for a capture that does not exist.

    :param known: the names of those that do.
    """
    remedy = _meant(capture, known) or "Create it with enable_capture"
    return CaptureNotFoundError(
        f"capture {capture!r} not found; this database has {', '.join(known) or 'none'}. {remedy}",
        capture=capture,
        known=list(known),
    )


def _meant(name: str, known: Sequence[str]) -> str:
    """Return the question for the names that may be meant: first of all one that differs in case only."""
    same = [each for each in known if each.casefold() == name.casefold()]
    near = same or nearest(name, known)
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else ""
