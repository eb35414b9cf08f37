# SPDX-License-Identifier: Apache-2.0
"""One event that cannot be read: what is delivered all the same, and what becomes of it."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_changefeed.capture.session import transaction
from airflow_changefeed.consumers.aio import AsyncConsumer
from airflow_changefeed.consumers.consumer import default_rows
from airflow_changefeed.consumers.event import Batch
from airflow_changefeed.consumers.run import Backoff, Run, run_consumer
from airflow_changefeed.consumers.settings import DefaultOptions
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import DeadLetterState, OnPoison, Outcome
from airflow_changefeed.exceptions import ColumnTypeError, MissingEventError
from tests.unit.consumers.feeds import CAPTURE, NAME, PLAIN, TABLE, Shop
from tests.unit.consumers.runs import Sayer, log_of, run

BAD = "cast(x'ff' as text)"
PARK = {"max_attempts": 2, "on_poison": OnPoison.PARK}
STOP = {"max_attempts": 2}


def insert_bad(shop: Shop, number: int, value: str = BAD) -> None:
    """Commit a row of the captured table whose text is none; its number gives the shard."""
    shop.connection.execute(f'insert into "{TABLE}" values ({number}, {value})')


def insert_rows(shop: Shop, *numbers: int) -> None:
    """Commit rows whose text is their number."""
    for number in numbers:
        insert_bad(shop, number, f"'{number}'")


def order(shop: Shop, *values: str, column: str = "data") -> None:
    """Commit orders, each by itself, with a value given as SQL."""
    for value in values:
        number = shop.connection.execute(f'insert into "{PLAIN}" ({column}) values ({value})').lastrowid
        shop.connection.execute(f'insert into "changefeed.outbox:{PLAIN}" (id) values (?)', (number,))


def consume_orders(shop: Shop, **options: Any) -> tuple[Run, list[int]]:
    """Let a handler go through the plain feed; return the ids that it had."""
    seen: list[int] = []
    given = {"at_head": True, "register_timeout": 0.0, "pace": shop.pace(), **options}
    done = run_consumer(shop.source, NAME, PLAIN, lambda event, _: seen.append(event.row["id"]), **given)
    return done, seen


def correct_first(shop: Shop) -> None:
    """Correct what the first event recorded, by the statement that the error gives."""
    shop.connection.execute(f"""update "{CAPTURE}" set "new_data" = 'mended' where changefeed_event = 1""")


def retry(shop: Shop, number: int) -> None:
    """Ask for a dead letter to be tried again."""
    shop.source.resolve_dead_letter(number, DeadLetterState.RETRY, by="anna")


@pytest.mark.parametrize("page_size", [1, 3, 1000])
def test_all_other_events_are_delivered_and_it_is_parked(shop: Shop, page_size: int) -> None:
    """Those before it in its page, those after it, and those of other shards; the dead letter names it."""
    shop.create(**PARK)
    insert_rows(shop, 4, 8, 12, 16, 1)
    insert_bad(shop, 20)
    insert_rows(shop, 24, 28, 5)
    done = run(shop, Sayer(), pace=shop.pace(page_size))
    assert (done.events, done.failures, done.parked) == (8, 2, 1)
    assert sorted(map(int, shop.said())) == [1, 4, 5, 8, 12, 16, 24, 28]
    (letter,) = shop.source.dead_letters(CAPTURE)
    assert (letter.shard, letter.feed, letter.attempts) == (0, CAPTURE, 2)
    for part in (str(letter.ulid), f"table '{TABLE}' (id = 20)", "column 'data'", "changefeed_event = 6"):
        assert part in letter.reason
    assert [entry for entry in log_of(shop) if entry[0] is Outcome.FAILED] == [
        (Outcome.FAILED, 1, 1),
        (Outcome.FAILED, 2, 1),
    ]


@pytest.mark.parametrize("places", [[0, 9], [3, 4, 7], list(range(10))])
def test_any_number_of_them_is_parked_one_by_one(shop: Shop, places: list[int]) -> None:
    """Wherever they are."""
    shop.create(**PARK)
    for place in range(10):
        insert_bad(shop, 4 * place, BAD if place in places else f"'{place}'")
    done = run(shop, Sayer(), pace=shop.pace(4), backoff=Backoff(first=0.0, longest=0.0))
    good = [str(place) for place in range(10) if place not in places]
    assert (done.events, done.parked, shop.said()) == (len(good), len(places), good)
    letters = shop.source.dead_letters(CAPTURE)
    assert [f"(id = {4 * place})" in letter.reason for place, letter in zip(places, letters, strict=True)]
    assert run(shop, Sayer()) == Run()


def test_one_that_is_corrected_meanwhile_is_delivered(shop: Shop) -> None:
    """Each attempt reads it again."""
    shop.create(**PARK)
    insert_bad(shop, 4)
    insert_rows(shop, 8)

    def correct(number: int) -> None:
        if number == 0:
            correct_first(shop)

    shop.clock.meanwhile = correct
    done = run(shop, Sayer())
    assert (done.events, done.failures, done.parked, shop.said()) == (2, 1, 0, ["mended", "8"])


@pytest.mark.parametrize(
    ("column", "value"),
    [("price", "'free'"), ("price", str(2**53 + 1)), ("data", BAD)],
)
def test_a_value_of_another_class_is_parked_with_the_row_s_key(shop: Shop, column: str, value: str) -> None:
    """Whatever it is; the value itself, which may be anything, is not repeated."""
    if column == "price":
        shop.connection.execute(f'alter table "{PLAIN}" drop column price')
        shop.connection.execute(f'alter table "{PLAIN}" add column price numeric')
    shop.create(feed=PLAIN, **PARK)
    order(shop, "null", "null", column=column)
    order(shop, value, column=column)
    order(shop, "null", column=column)
    done, seen = consume_orders(shop)
    assert (done.parked, seen) == (1, [1, 2, 4])
    (letter,) = shop.source.dead_letters(PLAIN)
    assert f"table '{PLAIN}' (id = 3), cannot be read" in letter.reason
    assert f"column '{column}'" in letter.reason
    shop.connection.execute(f'update "{PLAIN}" set {column} = null where id = 3')
    retry(shop, letter.number)
    assert consume_orders(shop)[1] == [3]


def test_a_row_that_cannot_be_computed_is_parked(shop: Shop) -> None:
    """A generated column that was added later fails when it is read."""
    shop.create(feed=PLAIN, **PARK)
    order(shop, "'1'", "'{'", "'2'")
    shop.connection.execute(f"alter table \"{PLAIN}\" add column size integer as (json_extract(data, '$'))")
    done, seen = consume_orders(shop)
    assert (done.parked, seen) == (1, [1, 3])
    (letter,) = shop.source.dead_letters(PLAIN)
    assert "(id = 2), cannot be read" in letter.reason
    assert "malformed JSON" in letter.reason


def test_a_key_that_cannot_be_read_is_left_out(shop: Shop) -> None:
    """Of a row whose key is the bad value."""
    shop.connection.execute('create table "shop.named" (name text not null primary key, n integer)')
    shop.source.enable_capture(CaptureSpec((TableCapture("shop.named"),)))
    feed = "shop.named_changes"
    shop.create(feed=feed, **PARK)
    shop.connection.execute(f"insert into \"shop.named\" values ('a', 1), ({BAD}, 2), ('c', 3)")
    seen: list[str] = []
    given = {"at_head": True, "register_timeout": 0.0, "pace": shop.pace()}
    gc.disable()
    try:
        done = run_consumer(shop.source, NAME, feed, lambda event, _: seen.append(event.new["name"]), **given)
        # No read is left to whichever thread collects garbage: connections of SQLite are for one thread.
        collecting = threading.Thread(target=gc.collect)
        collecting.start()
        collecting.join()
    finally:
        gc.enable()
    assert (done.parked, seen) == (1, ["a", "c"])
    assert "table 'shop.named', cannot be read" in shop.source.dead_letters(feed)[0].reason


def test_a_plain_key_that_cannot_be_read_stops_neither_drain_nor_delivery(shop: Shop) -> None:
    """The outbox copies it as it is."""
    shop.connection.execute('create table "shop.file" (name text primary key, n integer)')
    shop.source.set_up_feed("shop.file")
    shop.create(feed="shop.file", **PARK)
    for number, name in enumerate(("'a'", BAD, "'c'")):
        shop.connection.execute(f'insert into "shop.file" values ({name}, {number})')
        shop.connection.execute(f'insert into "changefeed.outbox:shop.file" (name) values ({name})')
    seen: list[int] = []
    given = {"at_head": True, "register_timeout": 0.0, "pace": shop.pace()}
    done = run_consumer(shop.source, NAME, "shop.file", lambda event, _: seen.append(event.row["n"]), **given)
    assert (done.parked, seen) == (1, [0, 2])
    shop.later(seconds=1)
    shop.source.seal("shop.file", shop.source.now())
    assert shop.source.shards("shop.file")[0].sealed_until is not None


def test_a_batch_ends_before_it(shop: Shop) -> None:
    """What follows is a batch again."""
    shop.create(**PARK)
    insert_rows(shop, 4, 8, 12)
    insert_bad(shop, 16)
    insert_rows(shop, 20, 24)
    handler = Sayer()
    done = run(shop, handler, batch=Batch(events=100))
    assert (done.events, done.parked) == (5, 1)
    assert handler.calls == [["4", "8", "12"], ["20", "24"]]


def test_its_transaction_is_parked_whole(shop: Shop) -> None:
    """And neither the one before nor the one behind."""
    shop.create(**PARK)
    shop.insert("a", "b")
    with transaction(shop.connection):
        insert_rows(shop, 100)
        insert_bad(shop, 104)
        insert_rows(shop, 108)
    shop.insert("c", "d")
    handler = Sayer()
    done = run(shop, handler, batch=Batch(transaction=True), pace=shop.pace(2))
    assert (done.parked, shop.said()) == (3, ["a", "b", "c", "d"])
    assert all("(id = 104)" in letter.reason for letter in shop.source.dead_letters(CAPTURE))


def test_a_transaction_that_begins_with_it_is_parked_whole(shop: Shop) -> None:
    """Its number is read although its values are not."""
    shop.create(**PARK)
    shop.insert("a")
    with transaction(shop.connection):
        insert_bad(shop, 104)
        insert_rows(shop, 108)
    shop.insert("c")
    done = run(shop, Sayer(), batch=Batch(transaction=True))
    assert (done.parked, shop.said()) == (2, ["a", "c"])


Get = Callable[[Any], Any]


def each(get: Get) -> Callable[[Shop], list[str]]:
    """Return what consumes until nothing comes, and gives the texts."""

    def consume(shop: Shop) -> list[str]:
        texts = []
        with shop.consumer() as consumer:
            while event := get(consumer):
                texts.append(event.new["data"])
                consumer.consume()
        return texts

    return consume


def by_batches(shop: Shop) -> list[str]:
    """Consume batches of three."""
    texts = []
    with shop.consumer() as consumer:
        while events := consumer.get_batch(Batch(events=3), 0.0):
            texts += [event.new["data"] for event in events]
            consumer.consume()
    return texts


def in_transactions(shop: Shop) -> list[str]:
    """Consume up to three events in each transaction."""
    texts: list[str] = []
    with shop.consumer() as consumer:
        while True:
            got: list[str] = []
            with consumer.transaction():
                while len(got) < 3 and (event := consumer.poll()):
                    got.append(event.new["data"])
                    consumer.next()
            texts += got
            if not got:
                return texts


def after_begin(shop: Shop) -> list[str]:
    """Begin before each event."""
    texts: list[str] = []
    with shop.consumer() as consumer:
        while True:
            consumer.begin()
            if (event := consumer.poll()) is None:
                return texts
            consumer.next()
            consumer.commit()
            texts.append(event.new["data"])


def in_a_loop(shop: Shop) -> list[str]:
    """Consume by ``for``, until nothing came for a while."""
    texts: list[str] = []

    class Idle(Exception):
        """Nothing came."""

    def idle(number: int) -> None:
        raise Idle

    with shop.consumer() as consumer:
        shop.clock.meanwhile = idle
        try:
            for event in consumer:
                texts.append(event.new["data"])
        except Idle:
            return texts
        finally:
            shop.clock.meanwhile = lambda number: None
    return texts


def asynchronously(shop: Shop) -> list[str]:
    """Consume in an event loop."""

    async def work() -> list[str]:
        texts = []
        async with AsyncConsumer(shop.source, NAME, CAPTURE, pace=shop.pace()) as consumer:
            while event := await consumer.poll():
                texts.append(event.new["data"])
                await consumer.consume()
        return texts

    return asyncio.run(work())


def by_rows(shop: Shop) -> list[str]:
    """Read the default consumer's rows."""
    texts = []
    rows = default_rows(shop.source, NAME, CAPTURE, DefaultOptions(poll_timeout=0), pace=shop.pace())
    for row in rows:
        if row["changefeed_event"] == "poll_timeout":
            rows.close()
            return texts
        texts.append(row["data"])
    return texts


WAYS = {
    "get": each(lambda consumer: consumer.poll()),
    "poll": each(lambda consumer: consumer.poll(1.0)),
    "batches": by_batches,
    "transactions": in_transactions,
    "begin": after_begin,
    "loop": in_a_loop,
    "async": asynchronously,
    "rows": by_rows,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_gets_what_can_be_read_and_then_the_error(shop: Shop, way: str) -> None:
    """Each start counts; after as many as the settings say the event is parked, and the program goes on."""
    shop.create(**PARK)
    insert_rows(shop, 4, 8)
    insert_bad(shop, 12)
    insert_rows(shop, 16, 1, 5, 9)
    with pytest.raises(
        ColumnTypeError, match=r"event \w+ of shard 0, table 'shop.t' \(id = 12\), cannot be read"
    ):
        WAYS[way](shop)
    consumed = {row.shard: row.ulid for row in shop.source.cursors(CAPTURE, NAME)}
    heads = {status.shard: status.head for status in shop.source.shards(CAPTURE)}
    assert consumed[1] == heads[1]
    assert [number for outcome, number, _ in log_of(shop) if outcome is Outcome.FAILED] == [1]
    insert_rows(shop, 13)
    assert sorted(map(int, WAYS[way](shop))) == [13, 16]
    (letter,) = shop.source.dead_letters(CAPTURE)
    assert (letter.attempts, "(id = 12)" in letter.reason) == (2, True)


@pytest.mark.parametrize("way", WAYS)
def test_a_program_whose_settings_do_not_park_stops_there(shop: Shop, way: str) -> None:
    """At each start, after what comes in other shards."""
    shop.create(**STOP)
    insert_bad(shop, 12)
    for number in range(1, 4):
        insert_rows(shop, 4 * number + 1)
        with pytest.raises(ColumnTypeError):
            WAYS[way](shop)
        assert [attempt for _, attempt, _ in log_of(shop)] == list(range(1, number + 1))
    assert shop.source.dead_letters(CAPTURE) == []


def test_a_program_retries_dead_letters_that_cannot_be_read_yet(shop: Shop) -> None:
    """They are parked again, and do not stop it."""
    shop.create(max_attempts=1, on_poison=OnPoison.PARK)
    insert_bad(shop, 4)
    insert_rows(shop, 8)
    assert by_batches(shop) == ["8"]
    retry(shop, 1)
    insert_rows(shop, 12)
    assert by_batches(shop) == ["12"]
    (letter,) = shop.source.dead_letters(CAPTURE)
    assert (letter.state, letter.attempts) == (DeadLetterState.PARKED, 2)


def test_work_that_has_begun_is_committed_before_the_error(shop: Shop) -> None:
    """Within a transaction no event comes after the last good one; the next call gets the error."""
    shop.create(**STOP)
    insert_rows(shop, 4)
    insert_bad(shop, 8)
    with shop.consumer() as consumer:
        with consumer.transaction() as connection:
            event = consumer.get()
            connection.execute("insert into audit values (?, ?)", (str(event.id), "4"))
            consumer.next()
            assert consumer.poll() is None
        assert (shop.said(), log_of(shop)) == (["4"], [])
        with pytest.raises(ColumnTypeError), consumer.transaction():
            raise AssertionError("the transaction does not begin")
        with pytest.raises(ColumnTypeError):
            consumer.get()
    assert [attempt for _, attempt, _ in log_of(shop)] == [1, 2]


class NoColumns:
    """The outermost edge: a table of which a column has no exact form, so that no event can be read."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.is_broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shop.source, name)

    def schema(self, feed: str) -> Any:
        """Refuse, once it is broken."""
        if self.is_broken:
            raise ColumnTypeError(f"feed {feed!r} cannot be exported unchanged", columns=["data"])
        return self.shop.source.schema(feed)

    def stream(self, *arguments: Any, **options: Any) -> Any:
        """Refuse, too."""
        self.schema(CAPTURE)
        return self.shop.source.stream(*arguments, **options)


def test_no_event_is_blamed_where_none_can_be_read(shop: Shop) -> None:
    """The run ends with the feed's error, and nothing is counted or parked."""
    shop.create(max_attempts=1, on_poison=OnPoison.PARK)
    insert_rows(shop, *range(4, 84, 4))
    source = NoColumns(shop)

    def handler(event: Any, connection: Any) -> None:
        source.is_broken = True

    with pytest.raises(ColumnTypeError, match="cannot be exported unchanged"):
        run_consumer(
            source,  # type: ignore[arg-type] # a source but for what it overrides
            NAME,
            CAPTURE,
            handler,
            at_head=True,
            register_timeout=0.0,
            pace=shop.pace(page_size=1),
        )
    assert shop.source.dead_letters(CAPTURE) == []
    assert {outcome for outcome, *_ in log_of(shop)} == {Outcome.CONSUMED}


def test_a_daemon_goes_on_in_other_shards_between_the_attempts(shop: Shop) -> None:
    """And polls no more often than it would without it."""
    shop.create(max_attempts=None)
    insert_bad(shop, 4)
    stop = threading.Event()

    def write(number: int) -> None:
        if number < 100 and number % 10 == 0:
            insert_rows(shop, 1 + 4 * number)
        if number == 200:
            stop.set()

    shop.clock.meanwhile = write
    begun = shop.clock()
    done = run(shop, Sayer(), at_head=False, stop=stop, backoff=Backoff(jitter=lambda: 0.0))
    assert (done.events, done.parked) == (10, 0)
    # After half a second, then twice as long each time, at most a minute.
    assert done.failures == pytest.approx(8, abs=2)
    assert shop.clock() - begun > 60


def test_what_is_known_of_it_survives_pickling(shop: Shop) -> None:
    """As events do."""
    shop.create(**PARK)
    insert_bad(shop, 4)
    with shop.consumer() as consumer:
        (event,) = consumer.receive(Batch(events=1), 0.0)
        again = pickle.loads(pickle.dumps(event))  # noqa: S301 - our own bytes
    assert (again, again.type, again.name, again.error.message) == (
        event,
        "add",
        TABLE,
        event.error.message,  # type: ignore[attr-defined] # of one that cannot be read
    )
    assert isinstance(again.error, ColumnTypeError)
    assert not isinstance(again.error, MissingEventError)
