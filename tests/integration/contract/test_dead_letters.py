# SPDX-License-Identifier: Apache-2.0
"""Events that are parked and tried again, and the log of all attempts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_changefeed.core.consumer import (
    MAX_BY,
    MAX_REASON,
    ConsumerSpec,
    Consumption,
    DeadLetter,
    DeadLetterState,
    Outcome,
    Parked,
)
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import DeadLetterError, FeedNotFoundError, StaleVersionError
from airflow_changefeed.sources.base_consumers import ConsumerSession
from tests.integration.contract.bench import KEPT, ODD
from tests.integration.contract.consumers import FIRST, ME, SECOND, Stand, refused


def _park(
    stand: Stand, session: ConsumerSession, row: CursorRow, number: int
) -> tuple[CursorRow, DeadLetter]:
    """Leave an event behind as a dead letter."""
    parked = Parked(stand.ulid(number, row.shard), 3, f"event {number} is bad")
    row = stand.take(session, stand.step(row, number, parked=parked))
    (dead_letter,) = (one for one in stand.source.dead_letters() if one.ulid == parked.ulid)
    return row, dead_letter


def test_an_event_that_is_parked_holds_back_the_ack(stand: Stand) -> None:
    """The cursor goes on; the ack stays below the first open letter, and follows when that is resolved."""
    row = stand.request(FIRST).rows[0]
    with stand.session() as session:
        row, first = _park(stand, session, row, 0)
        assert (row.ulid, row.ack) == (stand.ulid(0), stand.ulid(0).previous())
        assert (first.consumer, first.feed, first.shard, first.ulid) == (ME, stand.feed, 0, stand.ulid(0))
        assert (first.state, first.attempts, first.reason) == (DeadLetterState.PARKED, 3, "event 0 is bad")
        assert (first.parked_by, first.resolved_at, first.resolved_by, first.note) == (
            FIRST,
            None,
            None,
            None,
        )
        row = stand.take(session, stand.step(row, 1))
        row, second = _park(stand, session, row, 2)
        assert (row.ulid, row.ack) == (stand.ulid(2), stand.ulid(0).previous())
        assert second.number > first.number
        dropped = stand.source.resolve_dead_letter(
            first.number, DeadLetterState.DROPPED, by="a person", note="it is a test"
        )
        assert (dropped.state, dropped.resolved_by, dropped.note) == (
            DeadLetterState.DROPPED,
            "a person",
            "it is a test",
        )
        assert dropped.resolved_at is not None
        assert stand.row() == replace(row, ack=stand.ulid(2).previous())
        assert stand.source.dead_letters(stand.feed, ME) == [second]
        assert stand.source.dead_letters(is_open=False) == [dropped, second]
        assert stand.source.dead_letters(consumer="another") == []
        # The version is the same, so whoever consumes meanwhile is not disturbed.
        row = stand.take(session, stand.step(row, 2))
        assert row.ack == stand.ulid(2).previous()
        stand.source.resolve_dead_letter(second.number, DeadLetterState.DROPPED, by="a person")
    assert stand.row().ack == stand.ulid(2)


def test_a_letter_is_tried_again(stand: Stand) -> None:
    """A failure parks it again, a success resolves it, together with the work."""
    row = stand.request(FIRST).rows[0]
    tokens = {0: row.fencing_token}
    with stand.session() as session:
        row, dead_letter = _park(stand, session, row, 0)
        assert not stand.source.acquire_leases(
            ME, stand.feed, (), tokens=tokens, holder=FIRST, seconds=60
        ).has_retries
        retried = stand.source.resolve_dead_letter(dead_letter.number, DeadLetterState.RETRY, by="a person")
        assert retried == replace(dead_letter, state=DeadLetterState.RETRY)
        assert stand.source.acquire_leases(
            ME, stand.feed, (), tokens=tokens, holder=FIRST, seconds=60
        ).has_retries
        again = stand.source.park_again(dead_letter.number, Parked(dead_letter.ulid, 4, "still bad"))
        assert again == replace(dead_letter, attempts=4, reason="still bad")
        # The log, by which tries are counted, was purged meanwhile.
        again = stand.source.park_again(dead_letter.number, Parked(dead_letter.ulid, 1, "worse"))
        assert again == replace(dead_letter, attempts=5, reason="worse")
        stand.source.resolve_dead_letter(dead_letter.number, DeadLetterState.RETRY, by="a person")
        stand.source.resolve_dead_letter(dead_letter.number, DeadLetterState.PARKED, by="a person")
        stand.source.resolve_dead_letter(dead_letter.number, DeadLetterState.RETRY, by="a person")
        step = replace(stand.step(row, 0), dead_letter=dead_letter.number)
        with refused(session, ZeroDivisionError):
            stand.do(session, 0)
            session.consume(step)
            raise ZeroDivisionError
        assert stand.source.dead_letters() == [replace(again, state=DeadLetterState.RETRY)]
        with session.transaction():
            stand.do(session, 0)
            row = session.consume(step)
    assert (row.ulid, row.ack, stand.done()) == (stand.ulid(0), stand.ulid(0), {0})
    (done,) = stand.source.dead_letters(is_open=False)
    assert (done.state, done.resolved_by) == (DeadLetterState.DONE, FIRST)


def test_a_letter_that_is_to_be_tried_again_holds_the_ack_and_the_purge(stand: Stand) -> None:
    """As one that is parked: its event is still needed, whatever else is consumed or closed meanwhile."""
    rows = stand.request(FIRST).rows
    stand.bench.seal(stand.bench.after_now())
    with stand.session() as session:
        stand.take(session, stand.step(rows[1], 2))
        row, retried = _park(stand, session, rows[0], 0)
        stand.source.resolve_dead_letter(retried.number, DeadLetterState.RETRY, by="a person")
        row, dropped = _park(stand, session, row, 1)
        row = stand.take(session, stand.step(row, 2))
        held = stand.ulid(0).previous()
        assert (row.ulid, row.ack) == (stand.ulid(2), held)
        stand.source.resolve_dead_letter(dropped.number, DeadLetterState.DROPPED, by="a person")
        assert stand.row().ack == held
        purged = {one.shard: one.upto for one in stand.source.purge(stand.feed, stand.source.now())}
        assert purged == {0: held, 1: stand.ulid(2, 1)}
        stand.source.park_again(retried.number, Parked(retried.ulid, 4, "still bad"))
        assert stand.row().ack == held
        stand.source.resolve_dead_letter(retried.number, DeadLetterState.DROPPED, by="a person")
    assert stand.row().ack == stand.ulid(2)


def test_a_letter_that_changed_since_it_was_seen_is_left_alone(stand: Stand) -> None:
    """Retried, parked again, dropped or parked anew: each is a version, and the present one is named."""
    row = stand.request(FIRST).rows[0]
    with stand.session() as session:
        row, seen = _park(stand, session, row, 0)
        number = seen.number
        retried = stand.source.resolve_dead_letter(
            number, DeadLetterState.RETRY, by="ann", resource_version=seen.resource_version
        )
        again = stand.source.park_again(number, Parked(seen.ulid, 4, "still bad"))
        assert [one.resource_version for one in (seen, retried, again)] == [1, 2, 3]
        before = stand.row()
        for version, words in ((1, "attempts: 4"), (2, "parked"), (9, "before this database was restored")):
            with pytest.raises(StaleVersionError, match=words) as error:
                stand.source.resolve_dead_letter(
                    number, DeadLetterState.DROPPED, by="ben", note="gone", resource_version=version
                )
            assert error.value.facts["expected_version"] == version
            assert error.value.facts["present_version"] == 3
            assert stand.source.dead_letters() == [again]
            assert stand.row() == before
        dropped = stand.source.resolve_dead_letter(
            number, DeadLetterState.DROPPED, by="ben", note="gone", resource_version=3
        )
        assert (dropped.state, dropped.resource_version) == (DeadLetterState.DROPPED, 4)


def test_a_letter_that_is_closed_or_unknown_is_refused(stand: Stand) -> None:
    """By name; nothing is changed."""
    row = stand.request(FIRST).rows[0]
    with stand.session() as session:
        row, dead_letter = _park(stand, session, row, 0)
        stand.source.resolve_dead_letter(dead_letter.number, DeadLetterState.DROPPED, by="a person")
        row, before = stand.row(), stand.source.dead_letters(is_open=False)
        for number in (dead_letter.number, dead_letter.number + 1):
            with pytest.raises(DeadLetterError, match=str(number)):
                stand.source.resolve_dead_letter(number, DeadLetterState.RETRY, by="test")
            with pytest.raises(DeadLetterError, match=str(number)):
                stand.source.park_again(number, Parked(dead_letter.ulid, 9, "late"))
            with refused(session, DeadLetterError, str(number)):
                stand.do(session, 0)
                session.consume(replace(stand.step(row, 1), dead_letter=number))
        assert (stand.row(), stand.done()) == (row, set())
        assert stand.source.dead_letters(is_open=False) == before
        with pytest.raises(FeedNotFoundError):
            stand.source.dead_letters("no.feed")


def test_an_event_that_comes_again_opens_its_letter_again(stand: Stand) -> None:
    """After a person has set the cursor back and made the consumer's second life."""
    row = stand.request(FIRST).rows[0]
    with stand.session() as session:
        row, dead_letter = _park(stand, session, row, 0)
        stand.source.resolve_dead_letter(
            dead_letter.number, DeadLetterState.DROPPED, by="a person", note="no"
        )
        row, again = _park(stand, session, stand.row(), 0)
    assert again == replace(dead_letter, parked_at=again.parked_at)
    assert stand.source.dead_letters(is_open=False) == [again]


def test_purging_leaves_letters_that_are_open(stand: Stand) -> None:
    """The event of a letter can be tried again as long as it is open."""
    rows = stand.request(FIRST).rows
    stand.bench.seal(stand.bench.after_now())
    now = stand.source.now()
    with stand.session() as session:
        stand.take(session, stand.step(rows[1], 2))
        row, dead_letter = _park(stand, session, rows[0], 1)
        stand.take(session, stand.step(row, 2))
    assert {purged.shard: purged.upto for purged in stand.source.purge(stand.feed, now)} == {
        0: stand.ulid(1).previous(),
        1: stand.ulid(2, 1),
    }
    assert [event.ulid for event in stand.bench.events(0, stand.ulid(1).previous())] == [
        stand.ulid(1),
        stand.ulid(2),
    ]
    stand.source.resolve_dead_letter(dead_letter.number, DeadLetterState.DROPPED, by="a person")
    assert {purged.shard: purged.upto for purged in stand.source.purge(stand.feed, now)} == {
        0: stand.ulid(2),
        1: stand.ulid(2, 1),
    }


def test_every_attempt_is_logged(stand: Stand) -> None:
    """A success with its work, failures afterwards, whoever holds the lease then; long errors are cut."""
    rows = stand.request(FIRST).rows
    failed = stand.attempt(0, outcome=Outcome.FAILED, error="x" * (MAX_REASON + 1))
    with stand.session() as session:
        step = stand.step(rows[0], 0, attempt=failed)
        session.log([step, replace(step, attempt=None)], holder=FIRST)
        consumed = replace(stand.attempt(1), first=stand.ulid(0), events=2, number=2)
        with refused(session, ZeroDivisionError):
            session.consume(stand.step(rows[0], 1, attempt=consumed))
            raise ZeroDivisionError
        stand.take(session, stand.step(rows[0], 1, attempt=consumed))
        lost = stand.attempt(0, 1, outcome=Outcome.LOST, error="taken over")
        session.log([Consumption(1, stand.ulid(0, 1), 1, 1, 60, attempt=lost)], holder=SECOND)
    found = stand.source.invocations(stand.feed, ME)
    assert [one.attempt for one in found] == [lost, consumed, replace(failed, error="x" * MAX_REASON)]
    assert [(one.consumer, one.feed, one.shard, one.holder) for one in found] == [
        (ME, stand.feed, 1, SECOND),
        (ME, stand.feed, 0, FIRST),
        (ME, stand.feed, 0, FIRST),
    ]
    assert [one.fencing_token for one in found[1:]] == [rows[0].fencing_token] * 2
    assert found[0].number > found[1].number > found[2].number
    assert all(one.ended_at >= one.attempt.started_at for one in found)
    assert stand.source.invocations(stand.feed, ME, shard=0) == found[1:]
    assert stand.source.invocations(stand.feed, ME, limit=1) == found[:1]
    assert stand.source.invocations(stand.feed, "another") == []
    with pytest.raises(FeedNotFoundError):
        stand.source.invocations("no.feed", ME)


def test_a_text_that_no_database_takes_is_kept_in_a_readable_form(stand: Stand) -> None:
    """Half a surrogate pair and NUL are written as escapes: in errors, reasons, notes and names."""
    row = stand.request(FIRST).rows[0]
    failed = stand.attempt(0, outcome=Outcome.FAILED, error=ODD)
    with stand.session() as session:
        session.log([stand.step(row, 0, attempt=failed)], holder=ODD)
        (logged,) = stand.source.invocations(stand.feed, ME)
        assert (logged.attempt.error, logged.holder) == (KEPT, KEPT)
        parked = Parked(stand.ulid(0), 3, ODD)
        row = stand.take(session, stand.step(row, 0, attempt=replace(failed, number=2), parked=parked))
    assert stand.source.invocations(stand.feed, ME)[0].attempt.error == KEPT
    (letter,) = stand.source.dead_letters()
    assert letter.reason == KEPT
    stand.source.resolve_dead_letter(letter.number, DeadLetterState.RETRY, by=ODD)
    assert stand.source.park_again(letter.number, parked).reason == KEPT
    dropped = stand.source.resolve_dead_letter(letter.number, DeadLetterState.DROPPED, by=ODD, note=ODD)
    assert (dropped.resolved_by, dropped.note) == (KEPT, KEPT)
    made = stand.source.create_consumer(ConsumerSpec("odd", stand.feed), begin=Ulid.MIN, starts={}, by=ODD)
    assert made.created_by == KEPT


def test_a_long_text_is_cut_between_characters(stand: Stand) -> None:
    """Servers count halves of surrogate pairs, of which an emoji has two."""
    row = stand.request(FIRST).rows[0]
    failed = stand.attempt(0, outcome=Outcome.FAILED, error="x" + "\U0001f600" * MAX_REASON)
    with stand.session() as session:
        session.log([stand.step(row, 0, attempt=failed)], holder="y" + "\U0001f600" * MAX_BY)
    (logged,) = stand.source.invocations(stand.feed, ME)
    assert logged.attempt.error == "x" + "\U0001f600" * (MAX_REASON // 2 - 1)
    assert logged.holder == "y" + "\U0001f600" * (MAX_BY // 2 - 1)


def test_nothing_is_logged_of_a_consumer_that_was_dropped(stand: Stand) -> None:
    """Else one of its name that comes later would count it."""
    row = stand.request().rows[0]
    with stand.session() as session:
        stand.source.drop_consumer(ME, stand.feed)
        failed = stand.attempt(0, outcome=Outcome.FAILED, error="no")
        session.log([stand.step(row, 0, attempt=failed)], holder=FIRST)
    assert stand.source.invocations(stand.feed, ME) == []


def test_the_log_is_purged_by_age(stand: Stand) -> None:
    """Exclusive of the time that is given, and only a consumer's own."""
    stand.request(FIRST)
    with stand.session() as session:
        for number in range(3):
            failed = stand.attempt(number, outcome=Outcome.FAILED, error="no")
            session.log([Consumption(0, stand.ulid(0), 1, 1, 60, attempt=failed)], holder=FIRST)
            stand.bench.after_now()
    found = stand.source.invocations(stand.feed, ME)
    assert stand.source.purge_invocations(stand.feed, "another", before=stand.source.now()) == 0
    assert stand.source.purge_invocations(stand.feed, ME, before=found[0].ended_at) == 2
    assert stand.source.invocations(stand.feed, ME) == found[:1]
    assert stand.source.purge_invocations(stand.feed, ME, before=stand.source.now()) == 1
