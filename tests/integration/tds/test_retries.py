# SPDX-License-Identifier: Apache-2.0
"""What is tried again, and what never is, through the real driver."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_changefeed.core.consumer import ConsumerSpec, DeadLetterState, OutputCheck, Parked
from airflow_changefeed.core.cursor import Frontier
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import DeadlockError, LockTimeoutError, SourceUnavailableError
from airflow_changefeed.sources.base_consumers import CursorMove
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.pool import RetryPolicy
from airflow_changefeed.sources.mssql.connection.session import Session
from tests.integration.tds.endpoint import CUT, OK, Refusal, endpoint
from tests.integration.tds.sources import BUSY, DEADLOCK, batches, logins, source_at

UNTIL = datetime(2025, 1, 1, tzinfo=timezone.utc)
FEED = "myservice.MyEvent"
LOCKED = Refusal(1222, "Lock request time out period exceeded.")
UNNAMED = Refusal(8134, "Divide by zero error encountered.")
UPGRADING = Refusal(
    18401,
    "Login failed for user 'me'. Reason: Server is in script upgrade mode. Only administrator can connect at "
    "this time.",
)


def _ask(session: Session) -> None:
    session.execute("select 1")


def test_a_server_that_starts_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """Opening a connection changes nothing; each attempt after the first is told, with feed and reason."""
    with endpoint(logins=(BUSY, UPGRADING, OK)) as server:
        with caplog.at_level(logging.WARNING), source_at(server.port).database.connect(feed=FEED):
            pass
        assert len(logins(server.seen())) == 3
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert all(repr(FEED) in text for text in told)
    assert "is not currently available" in told[0]
    assert "Attempt 2 of 4" in told[0]
    assert "script upgrade mode" in told[1]


@pytest.mark.parametrize("failure", [DEADLOCK, CUT])
def test_a_question_is_put_again(failure: Refusal | str) -> None:
    """To a new connection, after a deadlock and after a connection that was lost."""
    with endpoint(batches=(OK, failure, OK)) as server:
        source_at(server.port).database.ask(_ask, feed=FEED)
        seen = server.seen()
        assert batches(seen) == ["select 1"] * 2
        assert len(logins(seen)) == 2


@pytest.mark.parametrize("failure", [LOCKED, UNNAMED])
def test_a_question_is_put_once_if_another_time_would_not_help(failure: Refusal) -> None:
    """Somebody who holds a lock was waited for already; who would wait again, doubles the lock timeout."""
    with endpoint(batches=(OK, failure)) as server:
        with pytest.raises(Exception, match=failure.text) as caught:
            source_at(server.port).database.ask(_ask, feed=FEED)
        assert (type(caught.value) is LockTimeoutError) == (failure is LOCKED)
        assert batches(server.seen()) == ["select 1"]


@pytest.mark.parametrize("failure", [UNNAMED, CUT])
def test_a_kept_connection_that_fails_is_replaced_at_once(failure: Refusal | str) -> None:
    """Nothing is known of it, whatever it says."""
    with endpoint(batches=(OK, OK, failure, OK)) as server:
        database = source_at(server.port).database
        database.ask(_ask, feed=FEED)
        database.ask(_ask, feed=FEED)
        seen = server.seen()
        assert batches(seen) == ["select 1"] * 3
        assert len(logins(seen)) == 2


def test_what_is_done_with_a_connection_is_done_once() -> None:
    """Nobody knows whether it was done."""
    with endpoint(batches=(OK, CUT)) as server:
        database = source_at(server.port).database
        with pytest.raises(SourceUnavailableError), database.connect(feed=FEED) as session:
            session.execute("insert myservice.MyEvent (AggregateID) values (1)")
        assert len(batches(server.seen())) == 1


_MOVE = CursorMove(0, Frontier(Ulid.MIN, Ulid.MIN), 1, 1)
CALLS: dict[str, Callable[[MssqlFeedSource], Any]] = {
    "drain": lambda source: source.drain(FEED),
    "seal": lambda source: source.seal(FEED, UNTIL),
    "next_attempt": lambda source: source.next_attempt(FEED),
    "cursors": lambda source: source.cursors(FEED),
    "peek": lambda source: source.poll(FEED, "nightly"),
    "poll_many": lambda source: source.poll_many([(FEED, "nightly"), ("s.Other", "nightly")]),
    "now": lambda source: source.now(),
    "purge": lambda source: source.purge(FEED, UNTIL),
    "begin_consumer": lambda source: source.begin_consumer("nightly", FEED, {0: Ulid.MIN}, by="me"),
    "move_cursors": lambda source: source.move_cursors("nightly", FEED, [_MOVE], by="me"),
    "drop_consumer": lambda source: source.drop_consumer("nightly", FEED),
    "record_check": lambda source: source.record_check(
        OutputCheck("nightly", FEED, "/lake", UNTIL, "me", 0, None)
    ),
    "create_consumer": lambda source: source.create_consumer(
        ConsumerSpec("nightly", FEED), begin=Ulid.MIN, starts={}, by="me"
    ),
    "consumers": lambda source: source.consumers(FEED),
    "acquire_leases": lambda source: source.acquire_leases("nightly", FEED, [0], holder="me", seconds=5),
    "acquire_leases, all or none": lambda source: source.acquire_leases(
        "nightly", FEED, [0], holder="me", seconds=5, all_or_none=True
    ),
    "acquire_leases, extending": lambda source: source.acquire_leases(
        "nightly", FEED, (), tokens={0: 1}, holder="me", seconds=5
    ),
    "release_leases": lambda source: source.release_leases("nightly", FEED, {0: 1}, holder="me"),
    "revoke_lease": lambda source: source.revoke_lease("nightly", FEED, 0, fencing_token=1),
    "change_consumer": lambda source: source.change_consumer(
        ConsumerSpec("nightly", FEED), resource_version=1, by="me"
    ),
    "history": lambda source: source.history(FEED, "nightly"),
    "feed": lambda source: source.feed(FEED),
    "overview": lambda source: source.overview([FEED]),
    "leases": lambda source: source.leases(FEED),
    "dead_letters": lambda source: source.dead_letters(FEED),
    "resolve_dead_letter": lambda source: source.resolve_dead_letter(1, DeadLetterState.RETRY, by="me"),
    "park_again": lambda source: source.park_again(1, Parked(Ulid.MIN, 1, "x")),
    "invocations": lambda source: source.invocations(FEED, "nightly"),
    "purge_invocations": lambda source: source.purge_invocations(FEED, "nightly", before=UNTIL),
    "insert_history": lambda source: source.insert_history(FEED, 0, [(UNTIL, (1,))], reason="x"),
    "set_up_feed": lambda source: source.set_up_feed(FEED),
    "drop_feed": lambda source: source.drop_feed(FEED),
}
AGAIN = {
    "drain",
    "seal",
    "next_attempt",
    "cursors",
    "peek",
    "poll_many",
    "now",
    "consumers",
    "leases",
    "dead_letters",
    "invocations",
    "history",
    "feed",
    "overview",
    "record_check",
}


@pytest.mark.parametrize("name", CALLS)
def test_only_what_may_be_done_twice_is_tried_again(name: str) -> None:
    """Moves of cursors, leases, history and set-ups are for whoever knows what they meant to do."""
    with endpoint(batches=(OK, DEADLOCK)) as server:
        source = source_at(server.port)
        # Opened before, as opening is tried again for everybody.
        with source.database.connect():
            pass
        source.database.retry = RetryPolicy(attempts=3, first_pause=0.0, longest_pause=0.0)
        with pytest.raises((DeadlockError, SourceUnavailableError)):
            CALLS[name](source)
        assert (len(logins(server.seen())) > 1) == (name in AGAIN)
