# SPDX-License-Identifier: Apache-2.0
"""Inserting history: events of the past, straight into the feed."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import EPOCH
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import HistoryError
from tests.integration.contract.bench import HOUR, KEPT, ODD, PAST, Bench
from tests.integration.contract.captures import CAPTURE, set_up_author
from tests.integration.contract.engines import Engine


def _sealed(bench: Bench) -> list[Ulid]:
    """Feed an event at hours 0 and 4, and seal."""
    for hour in (0, 4):
        bench.write(1, hint=PAST + HOUR * hour)
    ulids = [event.ulid for event in bench.events()]
    bench.seal()
    return ulids


def test_history_stands_at_its_time(bench: Bench) -> None:
    """Between the events that were there, with the times it was given."""
    _sealed(bench)
    keys = bench.write_rows(2)
    before = bench.keys()
    bench.source.insert_history(
        bench.feed, 0, [(PAST + HOUR, keys[0]), (PAST + HOUR * 2, keys[1])], reason="late file"
    )
    events = bench.events()
    assert [event.key for event in events] == [before[0], *keys, before[1]]
    assert [event.ulid.time for event in events[1:3]] == [PAST + HOUR, PAST + HOUR * 2]


def test_events_of_one_time_keep_their_order_behind_those_of_the_feed(bench: Bench) -> None:
    """In one call and over several."""
    _sealed(bench)
    keys = bench.write_rows(6)
    turned = [keys[2], keys[0], keys[1]]
    for chunk in (turned, keys[3:]):
        bench.source.insert_history(bench.feed, 0, [(PAST, key) for key in chunk], reason="x")
    found = bench.events()
    assert [event.key for event in found][1:7] == turned + keys[3:]
    assert all(one.ulid < two.ulid for one, two in pairwise(found))


def test_times_in_any_order_are_sorted_by_the_feed(bench: Bench) -> None:
    """History need not come sorted."""
    _sealed(bench)
    keys = bench.write_rows(3)
    hours = (3, 1, 2)
    bench.source.insert_history(
        bench.feed, 0, [(PAST + HOUR * hour, key) for hour, key in zip(hours, keys, strict=True)], reason="x"
    )
    assert bench.keys()[1:4] == [keys[1], keys[2], keys[0]]


def test_a_capture_takes_no_history(engine: Engine) -> None:
    """What was not captured did not happen to the table."""
    source = set_up_author(engine).source
    with pytest.raises(HistoryError, match="it is a capture"):
        source.insert_history(CAPTURE, 0, [(source.now(), (1, 1))], reason="test")


def test_the_mark_covers_what_was_inserted(bench: Bench) -> None:
    """Exactly the windows it touches overlap it; numbers grow; it says when and why."""
    _sealed(bench)
    keys = bench.write_rows(3)
    before = bench.source.now()
    mark = bench.source.insert_history(
        bench.feed, 0, [(PAST + HOUR, keys[0]), (PAST + HOUR * 2, keys[1])], reason="late file"
    )
    ulids = {event.key: event.ulid for event in bench.events()}
    assert ulids[keys[0]] in mark.range
    assert mark.range.upto == ulids[keys[1]]
    windows = Window(PAST, PAST + HOUR * 4).cut(HOUR)
    assert [window.range.overlaps(mark.range) for window in windows] == [False, True, True, False]
    assert (mark.shard, mark.reason) == (0, "late file")
    assert before <= mark.at <= bench.source.now()
    second = bench.source.insert_history(bench.feed, 0, [(PAST, keys[2])], reason=ODD)
    assert (second.number > mark.number, second.reason) == (True, KEPT)
    assert bench.source.stale_marks(bench.feed) == [mark, second]


def _refused(bench: Bench, events: list[tuple[object, object]], word: str, shard: int = 0) -> None:
    before, marks = bench.events(shard), bench.source.stale_marks(bench.feed)
    with pytest.raises(HistoryError, match=word) as caught:
        bench.source.insert_history(bench.feed, shard, events, reason="x")
    assert not caught.value.transient
    assert bench.events(shard) == before
    assert bench.source.stale_marks(bench.feed) == marks


def test_history_at_or_above_the_seal_is_refused(bench: Bench) -> None:
    """Readers at the head would miss it; one such event refuses the whole call."""
    until = PAST + HOUR * 5
    bench.write(1, hint=PAST)
    bench.events()
    bench.seal(until)
    keys = bench.write_rows(2)
    sealed = bench.status().sealed_until
    assert sealed is not None
    _refused(bench, [(PAST, keys[0]), (sealed, keys[1])], "seal")
    _refused(bench, [(sealed + HOUR, keys[1])], "seal")
    bench.source.insert_history(bench.feed, 0, [(sealed - timedelta(milliseconds=1), keys[0])], reason="x")
    assert bench.keys()[-1] == keys[0]


def test_history_of_a_feed_that_was_never_sealed_is_refused(bench: Bench) -> None:
    """Nothing is known to be past there."""
    bench.write(1)
    bench.events()
    (key,) = bench.write_rows(1)
    _refused(bench, [(PAST, key)], "seal")


def test_history_below_what_was_purged_is_refused(bench: Bench) -> None:
    """Nobody could read it."""
    _sealed(bench)
    bench.source.purge(bench.feed, PAST + HOUR)
    (key,) = bench.write_rows(1)
    with pytest.raises(HistoryError, match="purged"):
        bench.source.insert_history(bench.feed, 0, [(PAST, key)], reason="x")
    bench.source.insert_history(bench.feed, 0, [(PAST + HOUR, key)], reason="x")


def test_history_of_which_a_part_was_purged_is_refused(bench: Bench) -> None:
    """All of it: the rest alone would be another history."""
    _sealed(bench)
    bench.source.purge(bench.feed, PAST + HOUR)
    gone, kept = bench.write_rows(2)
    with pytest.raises(HistoryError, match="purged"):
        bench.source.insert_history(bench.feed, 0, [(PAST + HOUR, kept), (PAST, gone)], reason="x")


def test_history_begins_in_1970(bench: Bench) -> None:
    """Nothing was purged there, until a purge."""
    _sealed(bench)
    first, second = bench.write_rows(2)
    mark = bench.source.insert_history(bench.feed, 0, [(EPOCH, first)], reason="x")
    event = bench.events()[0]
    assert (event.key, event.ulid.time) == (first, EPOCH)
    assert event.ulid in mark.range
    assert event.ulid in Window(EPOCH, EPOCH + HOUR).range
    bench.source.purge(bench.feed, EPOCH + HOUR)
    with pytest.raises(HistoryError, match="purged"):
        bench.source.insert_history(bench.feed, 0, [(EPOCH, second)], reason="x")


def test_a_key_is_fed_once(bench: Bench) -> None:
    """Twice in the call, in the feed already, or waiting in the outbox."""
    _sealed(bench)
    (key,) = bench.write_rows(1)
    _refused(bench, [(PAST, key), (PAST + HOUR, key)], "twice")
    bench.source.insert_history(bench.feed, 0, [(PAST, key)], reason="x")
    _refused(bench, [(PAST + HOUR, key)], "already")
    waiting = bench.write(1)
    with pytest.raises(HistoryError, match="already"):
        bench.source.insert_history(bench.feed, 0, [(PAST, waiting[0])], reason="x")


def test_history_without_rows_is_refused(bench: Bench) -> None:
    """The rows are written first; no events at all are a mistake, too."""
    _sealed(bench)
    _refused(bench, [(PAST, bench.table.key(999_999))], "row")
    _refused(bench, [], "no events")


def test_history_may_be_a_shards_first(bench: Bench) -> None:
    """The shard is known then, and its later events are above the seal."""
    _sealed(bench)
    (key,) = bench.write_rows(1)
    bench.source.insert_history(bench.feed, 6, [(PAST, key)], reason="x")
    assert bench.keys(6) == [key]
    assert bench.source.count(bench.feed, 6, [UlidRange(Ulid.MIN, Ulid.MAX)]) == [1]
    later = bench.write(1, shard=6, hint=PAST)
    assert bench.keys(6) == [key, *later]


def test_a_feed_of_serialized_writers_takes_no_history(serialized: Bench) -> None:
    """Its ULIDs are its rows' own."""
    keys = serialized.write(1, hint=PAST)
    serialized.seal()
    _refused(serialized, [(PAST, keys[0])], "ULID")
