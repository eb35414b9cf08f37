# SPDX-License-Identifier: Apache-2.0
"""Names that are not there: which were meant, and how to make what is missing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from difflib import get_close_matches

from airflow_changefeed.exceptions import FeedNotFoundError

_MOST, _CLOSE = 3, 0.6
#: How a capture is named whose spec does not name it.
_CAPTURES = "_changes"


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return the names that may have been meant, the likeliest first; the schema may be wrong or missing."""
    folded = name.casefold()
    whole = {each.casefold(): each for each in known}
    bare = {each.rpartition(".")[2]: each for each in whole}
    found = [whole[each] for each in get_close_matches(folded, whole, _MOST, _CLOSE)]
    found += [whole[bare[each]] for each in get_close_matches(folded.rpartition(".")[2], bare, _MOST, _CLOSE)]
    return list(dict.fromkeys(found))[:_MOST]


def no_table(table: str, tables: Sequence[str]) -> str:
    """Say that a table is not there, and what to do."""
    near = nearest(table, tables)
    if near:
        return f"there is no table {table!r}; did you mean {' or '.join(map(repr, near))}"
    return f"there is no table {table!r}: create it first"


def no_feed(feed: str, feeds: Sequence[str], tables: Sequence[str]) -> FeedNotFoundError:
    """
    Return the error for a feed that is not there.

    :param feeds: all that are there.
    :param tables: of the database; one may be what the feed was to be made of.
    """
    there = {table.casefold(): table for table in tables}
    captured = there.get(feed.removesuffix(_CAPTURES).casefold()) if feed.endswith(_CAPTURES) else None
    near = nearest(feed, feeds)
    if captured:
        remedy = (
            f"It would be the capture of table {captured!r}, which is not enabled: airflow changefeed "
            f"capture enable --table {shlex.quote(captured)} --conn-id ..."
        )
    elif near:
        remedy = f"Did you mean {' or '.join(map(repr, near))}?"
    elif feed.casefold() in there:
        remedy = "Make it with set_up_feed, or record the table's changes with enable_capture"
    else:
        remedy = "Make it with set_up_feed, or with enable_capture if it is to hold a table's changes"
    return FeedNotFoundError(
        f"no feed {feed!r} in this database; it has {', '.join(feeds) or 'none'}. {remedy}",
        feed=feed,
        known=list(feeds),
    )
