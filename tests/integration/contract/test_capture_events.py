# SPDX-License-Identifier: Apache-2.0
"""What an event has besides its rows: transaction, time, sequence, session variables and trace context."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_changefeed.core.capture import TableCapture
from tests.integration.contract.captures import AUTHOR, CaptureBench, row, set_up_author
from tests.integration.contract.engines import Engine

INSERT = 'insert into "shop.author" (id, name) values'
UPDATE = 'update "shop.author" set'
DELETE = 'delete from "shop.author"'
ONE = row(1, "one")


@pytest.fixture
def authors(engine: Engine) -> CaptureBench:
    """Capture a table with two rows."""
    return set_up_author(engine, (1, "one"), (2, "two"))


def test_a_statement_outside_a_transaction_is_recorded(authors: CaptureBench) -> None:
    """Programs that know nothing of us and of transactions lose nothing."""
    with authors.changer() as changer:
        changer.execute(f"{UPDATE} name = 'x' where id = 1")
    assert authors.new_events() == [("upd", ONE, row(1, "x"))]


def test_the_events_of_a_transaction_share_its_number(authors: CaptureBench) -> None:
    """And those of the next one have another."""
    authors.run(f"{INSERT} (3, 'three')", f"{UPDATE} name = 'x'", f"{DELETE} where id = 3")
    authors.run(f"{INSERT} (4, 'four')")
    *first, second = [event.tid for event in authors.events()]
    assert len(first) == 5
    assert len({*first}) == 1
    assert second not in (None, first[0])


def test_an_event_has_the_time_of_its_statement(authors: CaptureBench) -> None:
    """By the database's clock: in milliseconds, and in whole seconds."""
    before = authors.source.now()
    authors.run(f"{INSERT} (3, 'three')")
    after = authors.source.now()
    (event,) = authors.events()
    assert before <= event.captured_at <= after
    assert event.epoch == int(event.captured_at.timestamp())


def test_a_shard_that_is_a_number_is_there_before_its_first_event(engine: Engine) -> None:
    """So a quiet hour is exported as an empty unit; which shards an expression gives, only events say."""
    bench = set_up_author(engine, (1, "one"), table=TableCapture(AUTHOR.name, shard="7"))
    author, by_rows = bench.name, "shop.by_rows"
    bench.enable(TableCapture(AUTHOR.name, shard="id % 2"), name=by_rows)
    for name, shards in ((author, [7]), (by_rows, [])):
        seals = bench.source.seal(name, bench.source.now())
        assert sorted(seals) == shards
        assert [(one.shard, one.head) for one in bench.source.shards(name)] == [
            (each, None) for each in shards
        ]
    bench.run(f"{INSERT} (3, 'three')")
    assert len(bench.events(7, name=author)) == 1
    (status,) = bench.source.shards(author)
    assert status.head is not None


def test_sequences_count_the_events_of_each_shard(engine: Engine) -> None:
    """From 1, without a gap, across drains and transactions that were rolled back."""
    bench = set_up_author(engine, table=TableCapture(AUTHOR.name, shard="id % 2"), with_sequence=True)
    for number in range(4):
        bench.run(f"{INSERT} ({number}, 'x'), ({number + 10}, 'y')")
        bench.source.drain(bench.name)
        with bench.changer() as changer:
            changer.begin()
            changer.execute(f"{INSERT} (99, 'gone')")
            changer.rollback()
    assert [[event.sequence for event in bench.events(shard)] for shard in (0, 1)] == [[1, 2, 3, 4]] * 2


def test_without_sequence_there_is_none(authors: CaptureBench) -> None:
    """The column neither."""
    assert "sequence" not in authors.source.schema(authors.name).names


# ---- session variables and trace context

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def _told(bench: CaptureBench) -> list[tuple[Any, str | None]]:
    return [(event.variables, event.trace) for event in bench.events()]


def test_chosen_session_variables_and_the_trace_context_are_recorded(engine: Engine) -> None:
    """Those that are set, of those that were chosen; a transaction without any has none of an earlier one."""
    bench = set_up_author(engine, session_keys=("x-user-id", "x-role"))
    role = 'Zürich "東"'.translate(dict.fromkeys(map(ord, engine.unescapable)))
    with bench.changer() as changer:
        for number, variables in enumerate(
            [
                {"x-user-id": "1", "x-role": role, "other": "unseen", "traceparent": TRACE},
                {},
                {"x-role": "clerk"},
                {"traceparent": TRACE},
            ]
        ):
            changer.begin(variables)
            changer.execute(f"{INSERT} ({number}, 'x')")
            changer.commit()
    assert _told(bench) == [
        ({"x-user-id": "1", "x-role": role}, TRACE),
        (None, None),
        ({"x-role": "clerk"}, None),
        (None, TRACE),
    ]


def test_variables_of_a_transaction_that_was_rolled_back_are_gone(engine: Engine) -> None:
    """As those of one that was committed."""
    bench = set_up_author(engine, session_keys=("x-user-id",))
    with bench.changer() as changer:
        changer.begin({"x-user-id": "1", "traceparent": TRACE})
        changer.execute(f"{INSERT} (1, 'x')")
        changer.rollback()
        changer.begin()
        changer.execute(f"{INSERT} (2, 'x')")
        changer.commit()
        changer.execute(f"{INSERT} (3, 'x')")
    assert _told(bench) == [(None, None)] * 2


@pytest.mark.parametrize(("key", "expected"), [(None, None), ("x-request", "this")])
def test_the_trace_context_may_have_another_name_or_none(
    engine: Engine, key: str | None, expected: str | None
) -> None:
    """By default it is that of the W3C."""
    bench = set_up_author(engine, trace_key=key)
    bench.run(f"{INSERT} (1, 'x')", variables={"traceparent": TRACE, "x-request": "this"})
    assert _told(bench) == [(None, expected)]
