# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for the values of ``core``."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from hypothesis import strategies as st

from airflow_changefeed.core.cursor import Frontier
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import EPOCH, from_milliseconds
from airflow_changefeed.core.window import ExportUnit, Window

#: Milliseconds from 1970 to the last one of the year 9999.
LAST_MS = (datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=timezone.utc) - EPOCH) // timedelta(
    milliseconds=1
)

milliseconds = st.integers(0, LAST_MS)
times = milliseconds.map(from_milliseconds)
numbers = st.integers(0, (1 << 128) - 1)
ulids = numbers.map(Ulid.of_int)
ranges = st.tuples(ulids, ulids).map(lambda pair: UlidRange(min(pair), max(pair)))
shards = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.uuids())
windows = (
    st.tuples(milliseconds, milliseconds)
    .filter(lambda pair: pair[0] != pair[1])
    .map(lambda pair: Window(from_milliseconds(min(pair)), from_milliseconds(max(pair))))
)
# Text as JSON can carry it: lone surrogates have no UTF-8.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
units = st.one_of(st.builds(ExportUnit.of_window, shards, windows), st.builds(ExportUnit, shards, ranges))

#: Small numbers make neighbours, overlaps and gaps likely.
SMALL = 30
small_ranges = st.tuples(st.integers(0, SMALL), st.integers(0, SMALL)).map(
    lambda pair: UlidRange(Ulid.of_int(min(pair)), Ulid.of_int(max(pair)))
)
pieces = st.lists(small_ranges, max_size=12)


@st.composite
def frontiers(draw: st.DrawFn) -> Frontier:
    """Draw frontiers as they come to be: from a beginning, by completed ranges."""
    frontier = Frontier.beginning(Ulid.of_int(draw(st.integers(0, SMALL))))
    for piece in draw(pieces):
        frontier = frontier.complete(piece)
    return frontier
