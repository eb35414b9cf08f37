# SPDX-License-Identifier: Apache-2.0
"""``ConsumerSession``: the step that is atomic with the work, dead letters, and the log of attempts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    ConsumerUseError,
    CursorBeyondFeedError,
    LeaseLostError,
    ShardNotFoundError,
    StaleVersionError,
    WorkTransactionError,
)
from tests.integration.contract.consumers import DO, FIRST, ME, SECOND, Stand, expire, refused


def test_the_work_and_the_cursor_commit_together(stand: Stand) -> None:
    """The row that is returned is the one that all see afterwards."""
    row = stand.request(FIRST).rows[0]
    # Versions go on where a consumer of this name ended that was dropped.
    version = row.resource_version
    with stand.session() as session:
        for number in range(3):
            with session.transaction():
                stand.do(session, number)
                row = session.consume(stand.step(row, number))
            assert row == stand.row()
            assert (row.ulid, row.ack) == (stand.ulid(number), stand.ulid(number))
            assert (row.moved_by, row.resource_version, row.frontier.ahead) == (
                FIRST,
                version + number + 1,
                (),
            )
    assert stand.done() == {0, 1, 2}
    assert stand.row(1).ulid == Ulid.MIN


def test_neither_the_work_nor_the_cursor_stays_when_the_work_fails(stand: Stand) -> None:
    """Before its step or after; the session goes on, and a later step is taken."""
    row = stand.request(FIRST).rows[0]
    with stand.session() as session:
        with refused(session, ZeroDivisionError):
            stand.do(session, 0)
            raise ZeroDivisionError
        with refused(session, ZeroDivisionError):
            stand.do(session, 0)
            session.consume(stand.step(row, 0))
            raise ZeroDivisionError
        assert (stand.done(), stand.row()) == (set(), row)
        with session.transaction():
            stand.do(session, 0)
            session.consume(stand.step(row, 0))
    assert (stand.done(), stand.row().ulid) == ({0}, stand.ulid(0))


def test_a_transaction_without_a_step_commits_its_work(stand: Stand) -> None:
    """A consumer may do something that consumes nothing."""
    stand.request(FIRST)
    with stand.session() as session, session.transaction():
        stand.do(session, 7)
    assert (stand.done(), stand.row().ulid) == ({7}, Ulid.MIN)


@pytest.mark.parametrize("flaw", ["older", "made up", "given back", "version"])
def test_nothing_is_written_under_a_lease_that_is_lost(stand: Stand, flaw: str) -> None:
    """The work is undone, and the error has the row that stands in the way."""
    row = stand.request(FIRST, 0, seconds=0.05 if flaw == "older" else 60).rows[0]
    step = stand.step(row, 0)
    if flaw == "older":
        expire(stand)
        assert stand.request(SECOND, 0).rows
    elif flaw == "made up":
        step = replace(step, fencing_token=row.fencing_token + 1)
    elif flaw == "given back":
        stand.source.release_leases(ME, stand.feed, {0: row.fencing_token}, holder=FIRST)
    else:
        step = replace(step, expected_version=row.resource_version + 1)
    before = stand.row()
    error = StaleVersionError if flaw == "version" else LeaseLostError
    with stand.session() as session:
        with refused(session, error) as caught:
            stand.do(session, 0)
            session.consume(step)
        assert caught.value.transient == (flaw != "version")
        assert caught.value.facts["row"] == before
        assert (stand.done(), stand.row()) == (set(), before)
        if flaw == "version":
            stand.take(session, stand.step(row, 0))


def test_a_lease_that_ran_out_counts_until_somebody_asks(stand: Stand) -> None:
    """Each step prolongs it."""
    row = stand.request(FIRST, 0, seconds=0.05).rows[0]
    expire(stand)
    with stand.session() as session:
        row = stand.take(session, stand.step(row, 0))
    assert row.lease_expires is not None
    assert row.lease_expires > stand.source.now()
    assert not stand.request(SECOND, 0).rows


def test_work_that_ended_its_transaction_consumes_nothing(stand: Stand) -> None:
    """By a commit or rollback of its own, or an error that it caught; nor does what it writes then stay."""
    engine, row = stand.bench.engine, stand.request(FIRST).rows[0]
    with stand.session() as session:
        for key, sql in ((10, "commit"), (20, "rollback")):
            with refused(session, WorkTransactionError):
                stand.do(session, key)
                with suppress(Exception):
                    engine.run(session.connection, sql)
                session.consume(stand.step(row, 0))
            with refused(session, WorkTransactionError), suppress(Exception):
                engine.run(session.connection, sql)
        with session.transaction():
            stand.do(session, 1)
        with refused(session, WorkTransactionError):
            stand.do(session, 2)
            with suppress(Exception):
                engine.ruin(session.connection, DO, 1, "again")
            with suppress(Exception):
                # Would commit by itself, as no transaction is open any more.
                stand.do(session, 3)
            session.consume(stand.step(row, 0))
        assert stand.row() == row
        # What the work committed by itself may stay: nothing can take it back.
        assert stand.done() - {10} == {1}
        stand.take(session, stand.step(row, 0))
    assert stand.row().ulid == stand.ulid(0)


def test_an_error_of_a_step_cannot_be_swallowed(stand: Stand) -> None:
    """The transaction is gone with it, and with it the work."""
    row = stand.request(FIRST).rows[0]
    with stand.session() as session, refused(session, WorkTransactionError):
        stand.do(session, 0)
        with suppress(LeaseLostError):
            session.consume(replace(stand.step(row, 0), fencing_token=row.fencing_token - 1))
    assert (stand.done(), stand.row()) == (set(), row)


def test_work_may_set_savepoints(stand: Stand) -> None:
    """What it undoes by itself is undone, the rest commits with the cursor."""
    engine, row = stand.bench.engine, stand.request(FIRST).rows[0]
    with stand.session() as session, session.transaction():
        stand.do(session, 0)
        engine.run(session.connection, engine.savepoint[0])
        stand.do(session, 1)
        engine.run(session.connection, engine.savepoint[1])
        session.consume(stand.step(row, 0))
    assert (stand.done(), stand.row().ulid) == ({0}, stand.ulid(0))


def test_work_that_closes_its_connection_consumes_nothing(stand: Stand) -> None:
    """The next transaction gets another one."""
    row = stand.request(FIRST).rows[0]
    with stand.session() as session:
        with refused(session, WorkTransactionError):
            stand.do(session, 0)
            session.connection.close()
        assert (stand.done(), stand.row()) == (set(), row)
        stand.take(session, stand.step(row, 0))


def test_a_step_belongs_into_a_transaction(stand: Stand) -> None:
    """Else nothing is consumed; and it moves forwards, to what the feed has reached."""
    row = stand.request(FIRST).rows[0]
    with stand.session() as session:
        with pytest.raises(ConsumerUseError):
            session.consume(stand.step(row, 0))
        assert stand.row() == row
        beyond = Ulid.floor(stand.source.now() + timedelta(days=1))
        with refused(session, CursorBeyondFeedError):
            stand.do(session, 0)
            session.consume(replace(stand.step(row, 0), upto=beyond))
        assert (stand.done(), stand.row()) == (set(), row)
        row = stand.take(session, stand.step(row, 1))
        row = stand.take(session, stand.step(row, 0))
    assert row.ulid == stand.ulid(1)


def test_a_step_of_a_consumer_that_was_dropped_is_refused(stand: Stand) -> None:
    """Also when it was made again under the same name."""
    row = stand.request(FIRST).rows[0]
    with stand.session() as session:
        stand.source.drop_consumer(ME, stand.feed)
        with refused(session, ShardNotFoundError):
            stand.do(session, 0)
            session.consume(stand.step(row, 0))
        stand.source.create_consumer(stand.spec, begin=Ulid.MIN, starts={0: Ulid.MIN}, by="again")
        for _ in range(2):
            with refused(session, LeaseLostError):
                stand.do(session, 0)
                session.consume(stand.step(row, 0))
            stand.request(SECOND, 0)
    assert (stand.done(), stand.row().ulid) == (set(), Ulid.MIN)


@pytest.mark.parametrize("is_same", [True, False], ids=["one token", "old and new token"])
def test_one_of_many_sessions_takes_a_step(stand: Stand, is_same: bool) -> None:
    """However many try at once; the work of the others is undone."""
    old = stand.request(FIRST, 0, seconds=60 if is_same else 0.05).rows[0]
    new = old
    if not is_same:
        expire(stand)
        new = stand.request(SECOND, 0).rows[0]
    triers = 4
    start = threading.Barrier(triers)

    def attempt(number: int) -> bool:
        row = new if number % 2 else old
        with stand.session() as session:
            start.wait(timeout=60)
            try:
                with session.transaction():
                    stand.do(session, number)
                    session.consume(stand.step(row, 0))
            except (LeaseLostError, StaleVersionError):
                return False
            return True

    with ThreadPoolExecutor(triers) as pool:
        won = [number for number, has_won in enumerate(pool.map(attempt, range(triers))) if has_won]
    assert len(won) == 1
    assert stand.done() == set(won)
    assert is_same or won[0] % 2
    assert (stand.row().ulid, stand.row().resource_version) == (stand.ulid(0), new.resource_version + 1)
