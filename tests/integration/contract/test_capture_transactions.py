# SPDX-License-Identifier: Apache-2.0
"""Events of one transaction: whole, in their order, in one window, behind what was committed before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from threading import Barrier, Event
from typing import Any

import pytest

from airflow_changefeed.core.capture import TableCapture
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import LockTimeoutError
from tests.integration.contract.bench import IMPATIENT
from tests.integration.contract.captures import CaptureBench, row, set_up_author, shown
from tests.integration.contract.engines import Changer, Engine
from tests.integration.contract.oracles import Change

INSERT = 'insert into "shop.author" (id, name) values'
UPDATE = 'update "shop.author" set'


@pytest.fixture
def authors(engine: Engine) -> CaptureBench:
    """Capture an empty table."""
    return set_up_author(engine)


def _names(events: Sequence[Change]) -> list[str]:
    return [(event.new or event.old or {})["name"] for event in events]


def _move_on(bench: CaptureBench) -> None:
    """Drain and seal the present beside what is open; with one writer at a time that has to wait for it."""
    source = bench.engine.source(lock_timeout=IMPATIENT)
    try:
        source.drain(bench.name)
        source.seal(bench.name, source.now())
    except LockTimeoutError:
        assert not source.capabilities.parallel_writers


def test_a_transaction_that_is_open_across_drains_and_seals_arrives_whole(authors: CaptureBench) -> None:
    """In its own order, with one number, and in the window in which it was committed."""
    authors.run(f"{INSERT} (1, 'before')")
    with authors.changer() as late:
        late.begin()
        for number in range(2, 5):
            late.execute(f"{INSERT} ({number}, 'late {number}')")
            late.execute(f"{UPDATE} name = 'later {number}' where id = {number}")
            _move_on(authors)
        until = authors.source.now()
        _move_on(authors)
        late.commit()
    events = authors.events()
    assert _names(events[:1]) == ["before"]
    assert _names(events[1:]) == [f"{word} {number}" for number in range(2, 5) for word in ("late", "later")]
    assert len({event.tid for event in events[1:]}) == 1
    if authors.source.capabilities.parallel_writers:
        assert events[1].ulid >= str(Ulid.floor(until))


def test_a_seal_never_splits_a_transaction(engine: Engine) -> None:
    """In no shard, whenever the seal comes: all of its events lie on one side."""
    bench = set_up_author(engine, table=TableCapture("shop.author", shard="id % 2"))
    borders = []
    with bench.changer() as changer:
        for number in range(0, 40, 4):
            changer.begin()
            changer.execute(f"{INSERT} ({number}, 'a'), ({number + 1}, 'b')")
            _move_on(bench)
            borders.append(str(Ulid.floor(bench.source.now())))
            changer.execute(f"{INSERT} ({number + 2}, 'c'), ({number + 3}, 'd')")
            changer.commit()
    bench.source.seal(bench.name, bench.source.now())
    for shard in (0, 1):
        for _, own in groupby(bench.events(shard), key=lambda event: event.tid):
            ulids = [event.ulid for event in own]
            assert len(ulids) == 2
            assert all((ulids[0] < border) == (ulids[1] < border) for border in borders)


def test_what_was_committed_before_a_transaction_began_comes_before_it(authors: CaptureBench) -> None:
    """Whatever connection wrote it, and however often the outbox is drained in between."""
    with authors.changer() as one, authors.changer() as two:
        for number in range(12):
            changer = (one, two)[number % 2]
            changer.begin()
            changer.execute(f"{INSERT} ({100 - number}, 'n{number:02}')")
            changer.execute(f"{UPDATE} name = 'm{number:02}' where id = {100 - number}")
            changer.commit()
            if number % 3 == 0:
                authors.source.drain(authors.name)
    assert _names(authors.events()) == [f"{word}{number:02}" for number in range(12) for word in "nm"]


def test_transactions_side_by_side_do_not_mix(authors: CaptureBench) -> None:
    """R6: one that has rows around another's, and is open when that is drained, is neither torn nor lost."""
    if not authors.source.capabilities.parallel_writers:
        with authors.changer() as one, authors.changer(IMPATIENT) as two:
            one.begin()
            one.execute(f"{INSERT} (1, 'one 1')")
            with pytest.raises(Exception, match=r"lock|busy|timeout"):
                two.begin()
            one.commit()
        assert _names(authors.events()) == ["one 1"]
        return
    with authors.changer() as one, authors.changer() as two:
        one.begin()
        two.begin()
        one.execute(f"{INSERT} (1, 'one 1')")
        two.execute(f"{INSERT} (2, 'two 2')")
        one.execute(f"{INSERT} (3, 'one 3')")
        two.execute(f"{INSERT} (4, 'two 4')")
        authors.source.drain(authors.name)
        one.execute(f"{INSERT} (5, 'one 5')")
        two.commit()
        authors.source.drain(authors.name)
        one.commit()
    assert _names(authors.events()) == ["two 2", "two 4", "one 1", "one 3", "one 5"]


@contextmanager
def _draining(bench: CaptureBench) -> Iterator[None]:
    """Drain again and again meanwhile."""
    ended, begun = Event(), Barrier(2)

    def drain() -> None:
        source = bench.engine.source()
        begun.wait(30)
        while not ended.is_set():
            source.drain(bench.name)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(drain)
        begun.wait(30)
        try:
            yield
        finally:
            ended.set()
        done.result(timeout=60)


def _in_threads(*works: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result(timeout=120)


@pytest.mark.races
def test_transactions_stay_whole_while_drains_race_them(authors: CaptureBench) -> None:
    """R6 as a race: three programs write, two drains run all the time."""
    bench, count, parts = authors, 8, 4

    def write(writer: int) -> None:
        with bench.changer() as changer:
            for number in range(count):
                changer.begin()
                for part in range(parts):
                    changer.execute(
                        f"{INSERT} ({writer * 1000 + number * 10 + part}, 'w{writer} {number} {part}')"
                    )
                changer.commit()

    with _draining(bench), _draining(bench):
        _in_threads(*(lambda writer=writer: write(writer) for writer in range(3)))
    events = bench.events()
    groups = [list(own) for _, own in groupby(events, key=lambda event: event.tid)]
    assert len(groups) == 3 * count
    for own in groups:
        begin = _names(own)[0].rpartition(" ")[0]
        assert _names(own) == [f"{begin} {part}" for part in range(parts)]
    for writer in range(3):
        mine = [name for name in _names(events) if name.startswith(f"w{writer} ")]
        assert mine == [f"w{writer} {number} {part}" for number in range(count) for part in range(parts)]


def test_the_order_respects_the_locks_of_rows(authors: CaptureBench) -> None:
    """One that began first, and had to wait for a row of another, comes behind that one."""
    bench = authors
    bench.run(f"{INSERT} (1, 'start'), (2, 'start')")
    is_parallel = bench.source.capabilities.parallel_writers
    has_begun, may_wait = Event(), Event()

    def wait_for_the_row() -> None:
        with bench.changer() as second:
            if is_parallel:
                second.begin()
                second.execute(f"{UPDATE} name = 'second' where id = 2")
                has_begun.set()
                may_wait.wait(60)
            else:
                has_begun.set()
                second.begin()
                second.execute(f"{UPDATE} name = 'second' where id = 2")
            second.execute(f"{UPDATE} name = 'second' where id = 1")
            second.commit()

    with ThreadPoolExecutor(1) as pool, bench.changer() as first:
        if not is_parallel:
            first.begin()
            first.execute(f"{UPDATE} name = 'first' where id = 1")
        done = pool.submit(wait_for_the_row)
        assert has_begun.wait(60)
        if is_parallel:
            first.begin()
            first.execute(f"{UPDATE} name = 'first' where id = 1")
        may_wait.set()
        bench.engine.source(lock_timeout=IMPATIENT)
        first.commit()
        done.result(timeout=60)
    events = shown(bench.events())[2:]
    assert events == [
        ("upd", row(1, "start"), row(1, "first")),
        ("upd", row(2, "start"), row(2, "second")),
        ("upd", row(1, "first"), row(1, "second")),
    ]


def test_a_transaction_that_is_rolled_back_leaves_nothing(authors: CaptureBench) -> None:
    """Nor does it hold up, or stand between, what others write."""
    authors.run(f"{INSERT} (1, 'one')")
    with authors.changer() as changer:
        changer.begin()
        changer.execute(f"{INSERT} (2, 'two')")
        changer.execute(f"{UPDATE} name = 'x'")
        _move_on(authors)
        changer.rollback()
    authors.run(f"{INSERT} (3, 'three')")
    assert _names(authors.events()) == ["one", "three"]


def test_a_connection_that_is_lost_leaves_nothing(authors: CaptureBench) -> None:
    """As if its transaction were rolled back, which it is."""
    with authors.changer() as changer:
        changer.begin()
        changer.execute(f"{INSERT} (2, 'two')")
    authors.run(f"{INSERT} (3, 'three')")
    assert _names(authors.events()) == ["three"]


def test_what_was_undone_to_a_savepoint_leaves_nothing(authors: CaptureBench) -> None:
    """The rest of the transaction is there, in its order."""
    with authors.changer() as changer:
        changer.begin()
        changer.execute(f"{INSERT} (1, 'one')")
        changer.savepoint()
        changer.execute(f"{INSERT} (2, 'undone')")
        changer.execute(f"{UPDATE} name = 'undone' where id = 1")
        changer.rollback_to_savepoint()
        changer.execute(f"{INSERT} (3, 'three')")
        changer.commit()
    assert _names(authors.events()) == ["one", "three"]


def _fill(changer: Changer, rows: int) -> None:
    """Insert rows in statements of very different sizes: the first few, then as many as there are."""
    first = min(rows, 500)
    changer.execute(f"{INSERT} {', '.join(f'({number}, null)' for number in range(first))}")
    there = first
    while there < rows:
        more = min(there, rows - there)
        changer.execute(
            f'insert into "shop.author" (id, name) select id + {there}, name '
            f'from "shop.author" where id >= 0 and id < {more}'
        )
        there += more


def _check_giant(bench: CaptureBench, rows: int) -> None:
    bench.run(f"{INSERT} (-1, 'before')")
    with bench.changer() as changer:
        changer.begin()
        _fill(changer, rows // 2)
        _move_on(bench)
        changer.execute(f"{UPDATE} name = 'x' where id >= 0")
        _move_on(bench)
        changer.commit()
    bench.run(f"{INSERT} (-2, 'after')")
    until = bench.source.now()
    bench.source.seal(bench.name, until)
    ids, tids, ulids = [], [], []
    for event in _lean(bench):
        ids.append(event["id"])
        tids.append(event["tid"])
        ulids.append(event["ulid"])
    half = rows // 2
    # Statement after statement; the rows of one are in the database's order.
    assert (ids[0], ids[-1], len(ids)) == (-1, -2, rows + 2)
    assert sorted(ids[1 : 1 + half]) == sorted(ids[1 + half : -1]) == list(range(half))
    assert len({*tids[1:-1]}) == 1
    assert len({*tids}) == 3
    assert ulids == sorted(set(ulids))


def _lean(bench: CaptureBench) -> Iterator[dict[str, Any]]:
    """Read events with little of each, as there are many."""
    import pyarrow.compute as pc

    from airflow_changefeed.core.ulid import UlidRange

    for batch in bench.source.stream(bench.name, 0, UlidRange(Ulid.MIN, Ulid.MAX)):
        ids = pc.struct_field(batch.column("new"), "id").to_pylist()
        tids, ulids = batch.column("tid").to_pylist(), batch.column("changefeed_ulid").to_pylist()
        yield from ({"id": i, "tid": t, "ulid": u} for i, t, u in zip(ids, tids, ulids, strict=True))


def test_a_giant_transaction_arrives_whole(authors: CaptureBench) -> None:
    """20,000 events of statements of many rows, drained in the middle: in one piece and in their order."""
    _check_giant(authors, 20_000)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_transaction_of_a_million_events_arrives_whole(authors: CaptureBench) -> None:
    """However many pages a drain takes for it."""
    _check_giant(authors, 1_000_000)
