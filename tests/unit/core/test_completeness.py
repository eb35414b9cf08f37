# SPDX-License-Identifier: Apache-2.0
"""What is complete, missing, under way, or before the beginning: one function, against hours in sets."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.completeness import (
    Evidence,
    MissingRange,
    ShardProgress,
    Verdict,
    Why,
    WindowState,
    due_until,
    judge,
    of_overview,
    since_first_event,
)
from airflow_changefeed.core.consumer import (
    ConsumerInfo,
    ConsumerPosition,
    ConsumerSpec,
    FeedOverview,
    ShardOverview,
)
from airflow_changefeed.core.cursor import CursorRow, Frontier
from airflow_changefeed.core.feed import FeedInfo, FeedKind, ShardStatus
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import Window

HOUR = timedelta(hours=1)
START = datetime(2026, 3, 1, tzinfo=timezone.utc)
HOURS = 12


def at(hour: int) -> datetime:
    """Return the begin of an hour."""
    return START + hour * HOUR


def before(hour: int) -> Ulid:
    """Return the last ULID before an hour."""
    return Ulid.floor(at(hour)).previous()


def pieces(*hours: tuple[int, int]) -> tuple[UlidRange, ...]:
    """Return ranges of hours, each from its begin to its exclusive end."""
    return tuple(UlidRange(before(first), before(last)) for first, last in hours)


def windows(count: int = HOURS) -> list[Window]:
    """Return the hours as windows."""
    return [Window(at(hour), at(hour + 1)) for hour in range(count)]


def ask(*shards: ShardProgress, runs: tuple[tuple[int, int], ...] = (), **evidence: datetime) -> Verdict:
    """Judge some shards over all hours."""
    under_way = tuple((at(first), at(last)) for first, last in runs)
    return judge(Evidence(shards, runs=under_way, **evidence), UlidRange(before(0), before(HOURS)))


def states(verdict: Verdict, now: int = HOURS) -> str:
    """Return the states of the hours, by their first letters."""
    return "".join(state.value[0] for state in verdict.states(windows(), at(now)))


def named(missing: tuple[MissingRange, ...]) -> list[tuple[object, int, int, str]]:
    """Return shards, hours and reasons of ranges."""
    return [
        (
            one.shard,
            *((ulid.next().time - START) // HOUR for ulid in (one.range.after, one.range.upto)),
            one.why.value,
        )
        for one in missing
    ]


def test_a_window_is_due_when_its_run_had_time_to_begin() -> None:
    """Five minutes after an hour, and less for short windows: else all exports are red at each full hour."""
    now, hour = datetime(2013, 1, 1, 10, tzinfo=timezone.utc), timedelta(hours=1)
    assert now - due_until(now, hour) == timedelta(minutes=5)
    assert now - due_until(now, 24 * hour) == timedelta(minutes=5)
    assert now - due_until(now, timedelta(minutes=1)) == timedelta(seconds=5)


def test_cursors_alone_say_what_was_exported() -> None:
    """Before the beginning, complete, a hole, complete ahead of it, and not yet; no file was looked at."""
    verdict = ask(ShardProgress(7, before(2), pieces((2, 5), (6, 8))))
    assert states(verdict, now=10) == "bbcccmccmmoo"
    assert named(verdict.missing) == [(7, 5, 6, "hole"), (7, 8, 12, "not_yet")]
    assert verdict.complete_until == at(5)


def test_what_the_output_has_counts_and_not_the_cursor() -> None:
    """A manifest that is gone is missing, and one that the cursor does not know is there."""
    verdict = ask(ShardProgress(7, before(2), pieces((2, 8)), files=pieces((2, 4), (5, 10))))
    assert states(verdict) == "bbccmcccccmm"
    assert named(verdict.missing) == [(7, 4, 5, "files_gone"), (7, 10, 12, "not_yet")]
    assert verdict.complete_until == at(4)


def test_one_range_may_be_missing_for_two_reasons() -> None:
    """Its first part was exported once, the other never."""
    verdict = ask(ShardProgress(7, before(0), pieces((0, 3)), files=pieces((0, 2), (5, 12))))
    assert named(verdict.missing) == [(7, 2, 3, "files_gone"), (7, 3, 5, "hole")]


def test_what_runs_is_not_missing() -> None:
    """Nor is it offered again; a window that is complete stays so while it runs again."""
    verdict = ask(ShardProgress(7, before(1), pieces((1, 4))), runs=((0, 2), (5, 7)))
    assert states(verdict) == "rcccmrrmmmmm"
    assert named(verdict.missing) == [(7, 4, 5, "not_yet"), (7, 7, 12, "not_yet")]
    assert named(verdict.running) == [(7, 5, 7, "not_yet")]


def test_nothing_is_complete_after_a_gap_of_the_capture_or_beyond_the_seal() -> None:
    """Whatever was exported: changes were missed, or the database was restored."""
    done = ShardProgress(7, before(0), pieces((0, 9)))
    assert named(ask(done, gap=at(6)).missing) == [(7, 6, 9, "capture_gap"), (7, 9, 12, "not_yet")]
    assert named(ask(done, sealed_until=at(6)).missing) == [(7, 6, 9, "unsealed"), (7, 9, 12, "not_yet")]
    assert ask(done, gap=at(6), sealed_until=at(8)).complete_until == at(6)


def test_each_shard_is_judged_from_its_own_begin_on() -> None:
    """One that has not begun lacks nothing; one that lacks a window makes it missing, and is named."""
    verdict = ask(
        ShardProgress(1, before(0), pieces((0, 12))),
        ShardProgress(2, before(4), pieces((4, 6))),
        ShardProgress(3, Ulid.MAX),
    )
    assert states(verdict) == "ccccccmmmmmm"
    assert verdict.lacking(windows())[6] == {2}
    assert verdict.complete_until == at(6)


def test_what_was_backfilled_before_the_beginning_is_complete() -> None:
    """What lies between is before the beginning still, and nobody misses it."""
    verdict = ask(ShardProgress(7, before(6), pieces((1, 3), (6, 12))))
    assert states(verdict) == "bccbbbcccccc"
    assert verdict.missing == ()


def test_a_consumer_that_has_nothing_is_complete_until_nothing() -> None:
    """From the start of the feed on; without shards nothing is known."""
    assert ask(ShardProgress(7, Ulid.MIN)).complete_until is None
    assert ask().complete_until is None


def test_a_cursor_whose_windows_all_wait_for_an_earlier_one_is_of_windows() -> None:
    """Of a database that was restored, what the seal no longer covers is missing, also there."""
    frontier = Frontier(Ulid.MIN, Ulid.MIN, pieces((1, 2), (5, 6)))
    position = ConsumerPosition(CursorRow("lake", "feed", 0, frontier, 1, at(6), "test"), 0, None, 0, None)
    status = ShardStatus(0, at(3), before(2), None, Ulid.MIN, has_outbox=False)
    feed = FeedInfo("feed", FeedKind.OUTBOX, "int", (), (), sealed_until=at(3))
    found = FeedOverview(feed, (ShardOverview(status, 0, None, (position,)),), 1)
    evidence = of_overview(found, "lake", at(6))
    verdict = judge(evidence, UlidRange(before(0), before(6)))
    assert named(verdict.missing) == [
        (0, 0, 1, "hole"),
        (0, 5, 6, "unsealed"),
        (0, 2, 5, "hole"),
    ]


RANGES = st.lists(st.tuples(st.integers(0, HOURS), st.integers(0, HOURS)).map(sorted).map(tuple), max_size=5)


def test_in_a_shard_without_its_cursor_a_consumer_has_nothing_unless_there_was_never_an_event() -> None:
    """Events that were purged before it came were events, too."""
    feed = FeedInfo("feed", FeedKind.OUTBOX, "int", (), ())
    consumer = ConsumerInfo(ConsumerSpec("mailer", "feed"), Ulid.MIN, at(0), "test")

    def until(head: Ulid | None = None, purged_upto: Ulid = Ulid.MIN) -> datetime | None:
        shard = ShardOverview(ShardStatus(0, at(3), head, None, purged_upto, has_outbox=False), 0, None, ())
        found = FeedOverview(feed, (shard,), 1, (consumer,))
        return judge(of_overview(found, "mailer", at(3))).complete_until

    assert until() == at(3)
    assert until(head=before(2)) is None
    assert until(purged_upto=before(2)) is None


@given(
    until=st.integers(1, HOURS),
    first=st.integers(0, HOURS - 1),
    gap=st.none() | st.integers(1, HOURS),
)
def test_hours_before_the_first_event_are_before_the_beginning_and_nothing_else_changes(
    until: int, first: int, gap: int | None
) -> None:
    """Of a consumer of all events; what it lacks, and until when it is complete, stays the same."""
    shard = ShardProgress(7, Ulid.MIN, (UlidRange(Ulid.MIN, before(until)),))
    evidence = Evidence((shard,), gap=None if gap is None else at(gap))
    wanted = UlidRange(before(0), before(HOURS))
    was = judge(evidence, wanted)
    now = judge(since_first_event(evidence, Ulid.floor(at(first))), wanted)
    assert (now.missing, now.complete_until) == (was.missing, was.complete_until)
    done = min(until, HOURS if gap is None else gap)
    assert states(now) == "b" * min(first, done) + "c" * (done - min(first, done)) + "m" * (HOURS - done)


@given(
    begin=st.integers(0, HOURS),
    cursor=RANGES,
    files=st.none() | RANGES,
    runs=RANGES.map(lambda ranges: [one for one in ranges if one[0] < one[1]]),
    gap=st.none() | st.integers(0, HOURS),
    sealed=st.none() | st.integers(0, HOURS),
)
def test_it_agrees_with_sets_of_hours(
    begin: int,
    cursor: list[tuple[int, int]],
    files: list[tuple[int, int]] | None,
    runs: list[tuple[int, int]],
    gap: int | None,
    sealed: int | None,
) -> None:
    """Each hour that must be complete is complete, missing or under way, and only one of them."""

    def hours(ranges: list[tuple[int, int]]) -> set[int]:
        return {hour for first, last in ranges for hour in range(first, last)}

    def of(ranges: tuple[MissingRange, ...]) -> set[int]:
        return hours([(first, last) for _, first, last, _ in named(ranges)])

    progress = ShardProgress(7, before(begin), pieces(*cursor), None if files is None else pieces(*files))
    limits = {name: at(hour) for name, hour in (("gap", gap), ("sealed_until", sealed)) if hour is not None}
    verdict = ask(progress, runs=tuple(runs), **limits)
    limit = min(HOURS if gap is None else gap, HOURS if sealed is None else sealed)
    complete = {hour for hour in hours(cursor if files is None else files) if hour < limit}
    required = set(range(begin, HOURS))
    assert of(verdict.missing) == required - complete - hours(runs)
    assert of(verdict.running) == (required - complete) & hours(runs)
    assert of(verdict.before) == set(range(begin)) - complete
    unbroken = next((hour for hour in range(begin, HOURS) if hour not in complete), HOURS)
    assert verdict.complete_until == (at(unbroken) if begin < HOURS or unbroken == HOURS else None)
    gone = {hour for one in verdict.missing if one.why is Why.FILES_GONE for hour in of((one,))}
    assert files is not None or not gone
    assert gone <= hours(cursor) - complete
    shown = dict(enumerate(verdict.states(windows(), at(HOURS))))
    assert {place for place, state in shown.items() if state is WindowState.MISSING} == of(verdict.missing)
