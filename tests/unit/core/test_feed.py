# SPDX-License-Identifier: Apache-2.0
"""Shards in text, and whether they fit their feed; pages of events."""

from __future__ import annotations

import contextlib
import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_changefeed.core.feed import (
    INTEGER_SHARD_BITS,
    Event,
    FeedStorage,
    Page,
    Shard,
    check_shard,
    counted,
    parse_shard,
    shard_text,
)
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.shared import length_text
from tests.unit.core.strategies import shards, ulids


@given(shards)
@example(1 << 80)
def test_a_shard_survives_as_text(shard: Shard) -> None:
    """Paths and JSON give back a shard of the same type."""
    text = shard_text(shard)
    assert parse_shard(text) == shard
    assert type(parse_shard(text)) is type(shard)
    assert parse_shard(shard) == shard
    assert not set(text) & set("/:\\ ")


def test_how_a_feed_is_stored_is_checked_as_a_whole() -> None:
    """An empty filegroup is not the default one, and compressions have their names in T-SQL."""
    assert FeedStorage() == FeedStorage(None, None)
    assert FeedStorage("FEEDS", "row").compression == "row"
    with pytest.raises(
        InvalidArgumentError,
        match=r"filegroup is empty.*compression must be one of page, row, none, or None, not 'zstd'",
    ):
        FeedStorage("", "zstd")


def test_a_uuid_shard_is_written_in_lower_case() -> None:
    """One shard has one folder."""
    shard = uuid.UUID("ABCDEF00-0000-4000-8000-00000000000A")
    assert shard_text(shard) == "abcdef00-0000-4000-8000-00000000000a"
    assert parse_shard(str(shard).upper()) == shard


@given(st.text(max_size=12))
def test_other_text_is_refused_with_our_error(text: str) -> None:
    """What is not a shard never fails in a way of its own."""
    with contextlib.suppress(InvalidArgumentError):
        parse_shard(text)


@pytest.mark.parametrize("text", ["", "-", "1.5", "--1", "1-", "²", "EWR", "None", True])
def test_what_is_no_shard_is_refused(text: str) -> None:
    """Neither a whole number nor a UUID."""
    with pytest.raises(InvalidArgumentError):
        parse_shard(text)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("tinyint", 0, 255),
        ("smallint", -(1 << 15), (1 << 15) - 1),
        ("int", -(1 << 31), (1 << 31) - 1),
        ("bigint", -(1 << 63), (1 << 63) - 1),
    ],
)
def test_a_number_must_fit_the_shard_key_type(kind: str, low: int, high: int) -> None:
    """The borders are SQL Server's."""
    assert kind in INTEGER_SHARD_BITS
    check_shard(low, kind)
    check_shard(high, kind)
    for shard in (low - 1, high + 1, uuid.uuid4()):
        with pytest.raises(InvalidArgumentError, match=kind):
            check_shard(shard, kind)


def test_a_uuid_fits_only_a_feed_of_uuids() -> None:
    """A whole number is no UUID."""
    check_shard(uuid.uuid4(), "uniqueidentifier")
    with pytest.raises(InvalidArgumentError):
        check_shard(1, "uniqueidentifier")


@given(st.lists(ulids, max_size=5))
def test_a_page_knows_the_cursor_to_go_on_from(found: list[Ulid]) -> None:
    """It is the last event's ULID, and None on an empty page."""
    events = tuple(Event(ulid, (number,)) for number, ulid in enumerate(sorted(found)))
    page = Page(0, events)
    assert page.last == (max(found) if found else None)
    assert (len(page), tuple(page)) == (len(found), events)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (counted(0, "event"), "0 events"),
        (counted(1, "event"), "1 event"),
        (counted(2, "dead letter"), "2 dead letters"),
        (counted(1, "batch", "batches"), "1 batch"),
        (counted(3, "batch", "batches"), "3 batches"),
        (length_text(1.2), "1 second"),
    ],
)
def test_one_is_not_plural(text: str, expected: str) -> None:
    """Of words with another plural, it is given."""
    assert text == expected
