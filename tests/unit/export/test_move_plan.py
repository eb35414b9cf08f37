# SPDX-License-Identifier: Apache-2.0
"""What a move of cursors would mean, told before it is made."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_changefeed.core.consumer import Beginning, Position, parse_position
from airflow_changefeed.core.cursor import CursorRow, Frontier
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors.moves import plan_moves
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConsumerNotFoundError,
    CursorBeyondFeedError,
    FeedNotFoundError,
    FutureTimeError,
    InvalidArgumentError,
    InvalidUlidError,
    PurgedError,
    ShardNotFoundError,
)
from tests.unit.export.consumers import (
    CONSUMER,
    FAR,
    FEED,
    HOURS,
    START,
    Warehouse,
    end_of,
    hour,
)


def test_a_plan_says_what_comes_again(warehouse: Warehouse, exported: list[CursorRow]) -> None:
    """Backwards: the events between the place and the cursor; nothing is changed."""
    (first, second) = warehouse.plan(end_of(1))
    assert (first.shard, first.row, first.target, first.again, first.skipped) == (
        0,
        exported[0],
        end_of(1),
        4,
        0,
    )
    assert second.again == 4
    assert warehouse.rows == exported


def test_a_plan_says_what_is_skipped(warehouse: Warehouse) -> None:
    """Forwards: the events that are not exported; those of windows ahead of a gap are, and are absorbed."""
    warehouse.begin()
    warehouse.advance(0, 3, 4, 9)
    (found,) = warehouse.plan(end_of(6), 0)
    assert (found.again, found.skipped) == (0, 4)
    assert found.absorbed == (UlidRange(hour(3).range.after, hour(4).range.upto),)
    assert found.forgotten == ()
    assert found.frontier == Frontier(hour(0).range.after, end_of(6), (hour(9).range,))


def test_a_plan_ends_where_complete_windows_do(warehouse: Warehouse) -> None:
    """A place within a window that is complete takes the cursor to its end."""
    warehouse.begin()
    warehouse.advance(0, 2)
    (found,) = warehouse.plan(START + timedelta(hours=2, minutes=10), 0)
    assert found.frontier.upto == end_of(2)
    assert (found.again, found.skipped) == (0, 1)


def test_a_plan_says_what_is_forgotten(warehouse: Warehouse) -> None:
    """Backwards, windows ahead of a gap count no longer; their events come again, too."""
    warehouse.begin()
    warehouse.advance(0, 1, 3)
    (found,) = warehouse.plan(end_of(0), 1)
    assert found.forgotten == (hour(3).range,)
    assert found.absorbed == ()
    assert found.again == 2


@pytest.mark.parametrize(
    ("to", "place"),
    [
        (end_of(2), end_of(2)),
        (START + timedelta(hours=3), end_of(2)),
        (START + timedelta(hours=3, microseconds=999), end_of(2)),
        (Beginning.EARLIEST, hour(0).range.after),
        (Beginning.LATEST, end_of(HOURS - 1)),
    ],
    ids=["ULID", "time", "fine time", "earliest", "latest"],
)
def test_a_cursor_goes_where_it_is_told(
    warehouse: Warehouse, exported: list[CursorRow], to: Position, place: Ulid
) -> None:
    """A ULID is where it then stands, a time is when it goes on; latest is the clock, not the last event."""
    assert [one.target for one in warehouse.plan(to)] == [place, place]


def test_earliest_is_the_first_event_that_is_not_purged(
    warehouse: Warehouse, exported: list[CursorRow]
) -> None:
    """Nothing before it can be read."""
    for number in (6, 7):
        warehouse.advance(number)
    warehouse.source.purge(FEED, START + timedelta(hours=2))
    assert {one.target for one in warehouse.plan(Beginning.EARLIEST)} == {end_of(1)}


def test_a_time_that_a_shard_has_not_come_to_is_its_clock(
    warehouse: Warehouse, exported: list[CursorRow]
) -> None:
    """A time of the past is no mistake, wherever the shard stands: what comes is later."""
    found = warehouse.plan(START + timedelta(hours=HOURS + 5))
    assert {one.target for one in found} == {end_of(HOURS - 1)}


@pytest.mark.parametrize(
    ("consumer", "feed", "to", "shards", "error", "words"),
    [
        (
            "lake",
            FEED,
            end_of(1),
            None,
            ConsumerNotFoundError,
            "consumer 'lake' of feed 'nyc.Flight' not found; the feed has: warehouse",
        ),
        (CONSUMER, "nyc.Weather", end_of(1), None, FeedNotFoundError, "nyc.Weather"),
        (CONSUMER, FEED, end_of(1), [0, 7], ShardNotFoundError, "no cursor for shard 7.*it has 0, 1"),
        (CONSUMER, FEED, end_of(1), [0, 0], InvalidArgumentError, "named twice"),
        (CONSUMER, FEED, FAR, None, CursorBeyondFeedError, "highest position of shard 0 .*restored.*latest"),
        (CONSUMER, FEED, datetime(2099, 1, 1, tzinfo=timezone.utc), None, FutureTimeError, "latest"),
        (CONSUMER, FEED, datetime(2013, 1, 1), None, InvalidArgumentError, "zone"),
        (CONSUMER, FEED, end_of(0), None, PurgedError, "purged up to .* in shard 0.*earliest"),
        (CONSUMER, FEED, START, None, PurgedError, "earliest"),
        (CONSUMER, FEED, end_of(5), None, InvalidArgumentError, "is already there: shard 0 at"),
    ],
    ids=["consumer", "feed", "shard", "twice", "beyond", "future", "zone", "purged", "before", "same"],
)
def test_a_place_that_means_nothing_is_refused(
    warehouse: Warehouse,
    exported: list[CursorRow],
    consumer: str,
    feed: str,
    to: Position,
    shards: list[int] | None,
    error: type[ChangefeedError],
    words: str,
) -> None:
    """Whatever is wrong with it: named, with what to do instead."""
    warehouse.source.purge(FEED, START + timedelta(hours=2))
    with pytest.raises(error, match=words):
        plan_moves(warehouse.source, consumer, feed, to, shards)
    assert warehouse.places == {0: end_of(5), 1: end_of(5)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("yesterday", "'yesterday' is not a ULID"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAU", "letters in 0123456789ABCDEFGHJKMNPQRSTVWXYZ"),
        ("8ZZZZZZZZZZZZZZZZZZZZZZZZZ", "overflow 128-bits"),
        ("2013-01-01T00:00", "zone"),
        ("", "not a time"),
    ],
)
def test_a_text_that_is_no_place_is_refused(text: str, words: str) -> None:
    """
    Not a ULID, of a wrong alphabet, beyond 128 bits, a time without zone; others in either
    case of letters.
    """
    with pytest.raises((InvalidArgumentError, InvalidUlidError), match=words):
        parse_position(text)
    assert parse_position(str(end_of(1)).lower()) == end_of(1)
    assert parse_position("2013-01-01T00:00:00Z") == START
    assert parse_position("earliest") is Beginning.EARLIEST
    assert parse_position("latest") is Beginning.LATEST
