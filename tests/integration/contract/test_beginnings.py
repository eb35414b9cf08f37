# SPDX-License-Identifier: Apache-2.0
"""The beginning of an export that nobody chose: what lies before it is counted, and purges keep it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_changefeed.core import consumer as core
from airflow_changefeed.core.consumer import ConsumerPosition, ConsumerSpec, OutputCheck
from airflow_changefeed.core.cursor import Began, CursorRow, Frontier
from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import FeedNotFoundError
from airflow_changefeed.sources.base_consumers import CursorMove
from airflow_changefeed.sources.base_control import Purged
from tests.integration.contract.bench import HOUR, KEPT, ODD, PAST, Bench, another, set_up
from tests.integration.contract.captures import CAPTURE, set_up_author
from tests.integration.contract.engines import Engine, Table

LAKE, OTHER = "lake", "other"
#: Events of the shard that the tests fill.
EVENTS = 12


@dataclass
class Filled:
    """
    A feed whose shard 0 is sealed.

    :param ulids: of its events.
    """

    source: Any
    feed: str
    ulids: list[Ulid]

    def part(self, first: int, last: int) -> UlidRange:
        """Return the range that has the events from one to another, counted from 0; inclusive both."""
        after = Ulid.MIN if first == 0 else self.ulids[first - 1]
        return UlidRange(after, self.ulids[last])

    def begin(self, consumer: str, first: int, began: Began = Began.IMPLIED) -> None:
        """Begin an export with an event."""
        after = self.part(first, first).after
        self.source.begin_consumer(consumer, self.feed, {0: after}, by="test", began=began)

    def rows(self, consumer: str | None = None) -> dict[str, CursorRow]:
        """Return the rows of consumers."""
        return {row.consumer: row for row in self.source.cursors(self.feed, consumer)}

    def change(self, consumer: str, frontier: Frontier, began: Began | None = None) -> CursorRow:
        """Change a row as a run or a person does."""
        row = self.rows()[consumer]
        (token,) = self.source.acquire_leases(
            consumer, self.feed, [0], holder="test", seconds=60, all_or_none=True
        ).tokens.values()
        move = CursorMove(0, frontier, row.resource_version, token, frontier.upto, began=began)
        self.source.move_cursors(consumer, self.feed, [move], by="test")
        self.source.release_leases(consumer, self.feed, {0: token}, holder="test")
        return self.rows()[consumer]

    def complete(self, consumer: str, *parts: tuple[int, int]) -> CursorRow:
        """Complete the events from one to another of each part."""
        done = [self.part(*part) for part in parts]
        return self.change(consumer, self.rows()[consumer].frontier.complete(*done))

    def accept(self, consumer: str) -> None:
        """Accept the beginning of an export."""
        self.change(consumer, self.rows()[consumer].frontier, Began.ACCEPTED)

    def drop_after(self, consumer: str, first: int, last: int) -> None:
        """Let a consumer acknowledge the events from one to another, and drop it."""
        self.begin(consumer, first, Began.CHOSEN)
        self.complete(consumer, (first, last))
        self.drop(consumer)

    def drop(self, consumer: str) -> None:
        """Drop a consumer."""
        self.source.drop_consumer(consumer, self.feed)

    def purge(self, **options: Any) -> Purged:
        """Purge up to the present."""
        (purged,) = self.source.purge(self.feed, self.source.now(), **options)
        assert isinstance(purged, Purged)
        return purged

    def check_held(self, first: int, *consumers: str) -> None:
        """Check that a purge stops before an event, and says why, with and without a dry run."""
        would, purged = self.purge(dry_run=True), self.purge()
        assert (purged.held_from, purged.held_by) == (self.ulids[first], consumers)
        assert purged.upto == (Ulid.MIN if first == 0 else self.ulids[first - 1])
        assert would == purged
        (status,) = self.source.shards(self.feed)
        assert status.purged_upto == purged.upto
        assert self.left() == EVENTS - first

    def check_gone(self, last: int) -> None:
        """Check that a purge goes up to an event, and that nothing was held for a beginning."""
        purged = self.purge()
        assert (purged.held_from, purged.held_by) == (None, ())
        assert self.left() == EVENTS - last - 1

    def left(self) -> int:
        """Return how many events were not purged."""
        (status,) = self.source.shards(self.feed)
        count: int = self.source.count(self.feed, 0, [UlidRange(status.purged_upto, Ulid.MAX)])[0]
        return count

    def position(self, consumer: str = LAKE) -> ConsumerPosition:
        """Return a consumer's position, as an overview has it."""
        (found,) = self.source.overview([self.feed])
        (position,) = [one for one in found.shards[0].consumers if one.row.consumer == consumer]
        assert isinstance(position, ConsumerPosition)
        return position

    def before(self, consumer: str = LAKE) -> tuple[int, Ulid | None]:
        """Return how many events lie before a beginning, and the first one."""
        position = self.position(consumer)
        return position.before, position.before_from


def _filled(bench: Bench) -> Filled:
    """Feed three events in each of four hours, and seal."""
    for hour in range(4):
        bench.write(3, hint=PAST + HOUR * hour)
    ulids = [event.ulid for event in bench.events()]
    bench.seal(bench.after_now())
    return Filled(bench.source, bench.feed, ulids)


@pytest.fixture
def plain(bench: Bench) -> Filled:
    """Give an outbox feed with events."""
    return _filled(bench)


@pytest.fixture(params=["outbox", "serialized", "capture"])
def filled(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Filled]:
    """Give a feed of each kind with events."""
    if request.param != "capture":
        yield _filled(set_up(engine, Table(kind=FeedKind(request.param))))
        return
    author = set_up_author(engine)
    for number in range(EVENTS):
        author.run(f"insert into \"shop.author\" (id, name) values ({number}, 'x')")
    ulids = [Ulid.parse_text(event.ulid) for event in author.events()]
    author.source.seal(CAPTURE, author.source.now())
    yield Filled(author.source, CAPTURE, ulids)


# ---- how a consumer began


def test_a_row_says_how_its_consumer_began(plain: Filled) -> None:
    """Exports by themselves unless somebody says otherwise; consumers of events where they were created."""
    plain.begin(LAKE, 6)
    plain.begin(OTHER, 6, Began.CHOSEN)
    spec = ConsumerSpec("mailer", plain.feed)
    plain.source.create_consumer(spec, begin=Ulid.MIN, starts={0: Ulid.MIN}, by="test")
    plain.source.acquire_leases("mailer", plain.feed, [1], holder="test", seconds=60)
    began = {(row.consumer, row.shard): row.began for row in plain.source.cursors(plain.feed)}
    assert began == {
        (LAKE, 0): Began.IMPLIED,
        (OTHER, 0): Began.CHOSEN,
        ("mailer", 0): Began.CHOSEN,
        ("mailer", 1): Began.CHOSEN,
    }


def test_a_move_changes_how_a_consumer_began_only_if_it_says_so(plain: Filled) -> None:
    """An earlier window that is planned, a run that ends, and another call to begin leave it."""
    plain.begin(LAKE, 6, Began.CHOSEN)
    plain.begin(LAKE, 5)
    assert plain.rows()[LAKE].began is Began.CHOSEN
    assert plain.complete(LAKE, (5, 7)).began is Began.CHOSEN
    row = plain.rows()[LAKE]
    assert plain.change(LAKE, row.frontier, Began.ACCEPTED).began is Began.ACCEPTED
    accepted = plain.rows()[LAKE]
    assert (accepted.frontier, accepted.resource_version) == (row.frontier, row.resource_version + 1)


def test_what_is_complete_before_the_beginning_is_kept(plain: Filled) -> None:
    """As it was stored; a consumer that has completed it no longer begins earlier."""
    plain.begin(LAKE, 6)
    row = plain.complete(LAKE, (1, 2), (4, 4))
    assert row.frontier == Frontier(
        plain.ulids[5], plain.ulids[5], before=(plain.part(1, 2), plain.part(4, 4))
    )
    assert plain.position().row == row
    plain.begin(LAKE, 3)
    assert plain.rows()[LAKE] == row
    row = plain.complete(LAKE, (5, 5))
    assert row.frontier == Frontier(plain.ulids[3], plain.ulids[5], before=(plain.part(1, 2),))


# ---- what lies before it


def test_an_overview_counts_what_lies_before_a_beginning(filled: Filled) -> None:
    """From the first event on, without what a backfill has completed, until somebody accepts it."""
    filled.begin(LAKE, 6)
    assert filled.before() == (6, filled.ulids[0])
    filled.complete(LAKE, (6, 11), (0, 0), (3, 3))
    assert filled.before() == (4, filled.ulids[1])
    filled.complete(LAKE, (4, 5))
    assert filled.rows()[LAKE].frontier.start == filled.ulids[2]
    assert filled.before() == (2, filled.ulids[1])
    filled.accept(LAKE)
    assert filled.before() == (0, None)


def test_nothing_lies_before_a_beginning_that_was_chosen(plain: Filled) -> None:
    """Nor before that of a consumer of events, nor where the first event begins it."""
    plain.begin(OTHER, 6, Began.CHOSEN)
    plain.begin(LAKE, 0)
    spec = ConsumerSpec("mailer", plain.feed)
    plain.source.create_consumer(spec, begin=Ulid.MIN, starts={0: plain.ulids[8]}, by="test")
    assert {plain.before(consumer) for consumer in (OTHER, LAKE, "mailer")} == {(0, None)}


def test_what_was_purged_no_longer_lies_before_a_beginning(filled: Filled) -> None:
    """Also where the events are rows of the user's own table, which no purge removes."""
    filled.drop_after(OTHER, 0, 3)
    filled.begin(LAKE, 6)
    assert filled.before() == (6, filled.ulids[0])
    filled.check_held(4, LAKE)
    assert filled.before() == (2, filled.ulids[4])


def test_what_lies_before_a_beginning_is_counted_no_further_than_it_says(bench: Bench) -> None:
    """However much there is, in one piece or between pieces that are complete."""
    bench.write(core.COUNTED + 5)
    ulids = [event.ulid for event in bench.events(page_size=100_000)]
    filled = Filled(bench.source, bench.feed, ulids)
    filled.begin(LAKE, core.COUNTED + 4)
    assert filled.before() == (core.COUNTED, ulids[0])
    filled.complete(LAKE, (1, 2))
    assert filled.before() == (core.COUNTED, ulids[0])
    filled.complete(LAKE, (3, 4))
    assert filled.before() == (core.COUNTED, ulids[0])
    filled.complete(LAKE, (0, 0))
    assert filled.before() == (core.COUNTED - 1, ulids[5])


# ---- what a purge keeps


#: What consumers do, and what a purge then holds: each step is a method of ``Filled`` with its arguments.
STEPS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "nobody has begun": (("check_gone", 11),),
    "it was chosen": (
        ("begin", LAKE, 6, Began.CHOSEN),
        ("complete", LAKE, (6, 11)),
        ("check_gone", 11),
    ),
    "it was accepted": (
        ("begin", LAKE, 6),
        ("complete", LAKE, (6, 11)),
        ("accept", LAKE),
        ("check_gone", 11),
    ),
    "another consumer has acknowledged it": (
        ("begin", LAKE, 6),
        ("complete", LAKE, (6, 11)),
        ("begin", OTHER, 0, Began.CHOSEN),
        ("complete", OTHER, (0, 8)),
        ("check_gone", 8),
    ),
    # Up to the first event that nobody has had; also if that lies between two that somebody had.
    "another has acknowledged a part": (
        ("begin", LAKE, 6),
        ("complete", LAKE, (6, 11)),
        ("begin", OTHER, 3, Began.CHOSEN),
        ("complete", OTHER, (3, 11), (0, 1)),
        ("check_held", 2, LAKE),
    ),
    # A purge says of what a consumer needs that this consumer needs it.
    "another has yet to read it": (
        ("begin", LAKE, 6),
        ("begin", OTHER, 0, Began.CHOSEN),
        ("complete", OTHER, (0, 3)),
        ("check_gone", 3),
    ),
    "a dropped export had backfilled a part": (
        ("begin", OTHER, 6, Began.CHOSEN),
        ("complete", OTHER, (0, 1), (3, 3)),
        ("drop", OTHER),
        ("begin", LAKE, 5),
        ("complete", LAKE, (5, 11)),
        ("check_held", 2, LAKE),
    ),
    "a dropped consumer had acknowledged nothing": (
        ("begin", OTHER, 3, Began.CHOSEN),
        ("drop", OTHER),
        ("begin", LAKE, 6),
        ("check_held", 0, LAKE),
    ),
    # Windows in any order; each goes once no event before it is kept.
    "a backfill reaches it": (
        ("begin", LAKE, 6),
        ("complete", LAKE, (6, 11)),
        ("complete", LAKE, (3, 5)),
        ("check_held", 0, LAKE),
        ("complete", LAKE, (0, 0)),
        ("check_held", 1, LAKE),
        ("complete", LAKE, (1, 2)),
        ("check_gone", 11),
    ),
    # Each is named that keeps the first event, until one of them has it.
    "there are two": (
        ("begin", "early", 3),
        ("begin", "late", 6),
        ("complete", "early", (3, 11)),
        ("complete", "late", (6, 11)),
        ("check_held", 0, "early", "late"),
        ("accept", "early"),
        ("check_held", 0, "late"),
        ("complete", "late", (0, 5)),
        ("check_gone", 11),
    ),
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_what_is_kept_for_a_beginning_is_what_nobody_has_had(
    filled: Filled, steps: tuple[tuple[Any, ...], ...]
) -> None:
    """And only for one that nobody chose or accepted."""
    for method, *arguments in steps:
        getattr(filled, method)(*arguments)


def test_what_lies_before_a_beginning_that_nobody_chose_is_kept(filled: Filled) -> None:
    """Nobody has had it, though the export has all that came after."""
    filled.begin(LAKE, 6)
    filled.complete(LAKE, (6, 11))
    filled.check_held(0, LAKE)


def test_what_a_consumer_of_events_has_acknowledged_goes(filled: Filled) -> None:
    """From where it began; what is parked it has not acknowledged."""
    filled.begin(LAKE, 6)
    filled.complete(LAKE, (6, 11))
    spec = ConsumerSpec("mailer", filled.feed)
    filled.source.create_consumer(spec, begin=Ulid.MIN, starts={0: filled.ulids[0]}, by="test")
    filled.complete("mailer", (1, 11))
    filled.check_held(0, LAKE)
    filled.complete(LAKE, (0, 0))
    filled.check_gone(11)


def test_what_a_dropped_consumer_had_acknowledged_goes(filled: Filled) -> None:
    """In one piece or in several, in any order, an export or a consumer of events."""
    filled.drop_after(OTHER, 4, 5)
    filled.begin(LAKE, 8)
    filled.complete(LAKE, (8, 11))
    filled.check_held(0, LAKE)
    spec = ConsumerSpec("mailer", filled.feed)
    filled.source.create_consumer(spec, begin=Ulid.MIN, starts={0: Ulid.MIN}, by="test")
    filled.complete("mailer", (0, 2))
    filled.source.drop_consumer("mailer", filled.feed)
    filled.check_held(3, LAKE)
    filled.drop_after("between", 3, 3)
    filled.check_held(6, LAKE)
    filled.drop_after("last", 6, 7)
    filled.check_gone(11)


def test_a_feed_of_the_same_name_begins_without_what_was_acknowledged(bench: Bench) -> None:
    """It has other events."""
    first = _filled(bench)
    first.drop_after(OTHER, 0, 11)
    first.source.drop_feed(bench.feed)
    bench.source.set_up_feed(bench.feed, kind=bench.table.kind)
    again = _filled(bench)
    again.begin(LAKE, 6)
    again.check_held(0, LAKE)


def test_beyond_max_hold_nothing_is_kept_for_a_beginning(bench: Bench) -> None:
    """Younger events still are; what goes is no longer counted."""
    filled = _filled(bench)
    filled.begin(LAKE, 11)
    filled.complete(LAKE, (11, 11))
    age = bench.source.now() - (PAST + HOUR * 1.5)
    bench.source.set_up_feed(bench.feed, kind=bench.table.kind, max_hold=age)
    filled.check_held(6, LAKE)
    assert filled.before() == (5, filled.ulids[6])
    bench.source.set_up_feed(bench.feed, kind=bench.table.kind, max_hold=timedelta(milliseconds=1))
    purged = filled.purge()
    assert (purged.held_from, purged.upto) == (None, filled.ulids[11])


def test_a_purge_goes_on_in_other_shards_and_feeds(bench: Bench) -> None:
    """What is kept in one is said of that one."""
    other = another(bench, "myservice.Other")
    for each, shard in ((bench, 1), (other, 0)):
        each.write(2, shard=shard)
        each.events(shard)
        each.seal(each.after_now())
    filled = _filled(bench)
    filled.begin(LAKE, 6)
    bench.source.begin_consumer(LAKE, bench.feed, {1: Ulid.MIN}, by="test", began=Began.CHOSEN)
    one, two = bench.source.purge(bench.feed, bench.source.now())
    assert (one.held_by, two.held_by) == ((LAKE,), ())
    (free,) = bench.source.purge(other.feed, bench.source.now())
    assert (free.rows, free.held_from) == (2, None)


def test_what_was_kept_can_still_be_read_from_the_beginning_of_its_window(plain: Filled) -> None:
    """A purge that removes nothing leaves a backfill of the first window whole."""
    plain.begin(LAKE, 6)
    plain.check_held(0, LAKE)
    window = UlidRange(Ulid.floor(PAST).previous(), Ulid.floor(PAST + HOUR).previous())
    assert plain.source.count(plain.feed, 0, [window]) == [3]


# ---- what a look at an output found


def _check(filled: Filled, consumer: str, at: datetime, missing: int = 0, **values: Any) -> OutputCheck:
    first = PAST if missing else None
    return OutputCheck(consumer, filled.feed, values.get("path", "/lake"), at, "a run", missing, first)


def _checks(filled: Filled) -> tuple[OutputCheck, ...]:
    (found,) = filled.source.overview([filled.feed])
    checks: tuple[OutputCheck, ...] = found.checks
    return checks


def test_the_newest_look_at_an_output_is_kept(plain: Filled) -> None:
    """Whoever records it last; of each consumer one, and no version grows."""
    for consumer in (OTHER, LAKE):
        plain.begin(consumer, 0)
    assert _checks(plain) == ()
    begun = plain.source.now()
    rows = plain.rows()
    late = _check(plain, LAKE, begun, 3, path="/ümlaut lake")
    plain.source.record_check(late)
    plain.source.record_check(_check(plain, LAKE, begun - HOUR))
    plain.source.record_check(_check(plain, OTHER, begun - HOUR))
    assert _checks(plain) == (late, _check(plain, OTHER, begun - HOUR))
    assert [one.checks for one in plain.source.overview()] == [_checks(plain)]
    newest = replace(_check(plain, LAKE, begun + timedelta(milliseconds=1)), checked_by=ODD)
    plain.source.record_check(newest)
    assert (_checks(plain)[0].missing, _checks(plain)[0].checked_by) == (0, KEPT)
    assert plain.rows() == rows


def test_a_look_in_the_future_counts_as_one_of_now(plain: Filled) -> None:
    """The database's clock decides, so that no later look is passed over."""
    plain.begin(LAKE, 0)
    plain.source.record_check(_check(plain, LAKE, plain.source.now() + HOUR, 1))
    assert _checks(plain)[0].checked_at <= plain.source.now()


def test_a_look_goes_with_its_consumer_or_feed(bench: Bench) -> None:
    """Nothing is recorded for a consumer that does not exist, and no other one is found."""
    filled = _filled(bench)
    for consumer in (LAKE, OTHER):
        filled.begin(consumer, 0)
        filled.source.record_check(_check(filled, consumer, filled.source.now()))
    filled.source.drop_consumer(LAKE, filled.feed)
    filled.source.record_check(_check(filled, LAKE, filled.source.now()))
    assert [check.consumer for check in _checks(filled)] == [OTHER]
    filled.source.drop_feed(bench.feed)
    with pytest.raises(FeedNotFoundError):
        filled.source.record_check(_check(filled, OTHER, filled.source.now()))
    bench.source.set_up_feed(bench.feed, kind=bench.table.kind)
    assert _checks(filled) == ()
