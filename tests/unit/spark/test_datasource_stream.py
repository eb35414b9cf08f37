# SPDX-License-Identifier: Apache-2.0
"""The streaming reader, called as PySpark 4.0 and 4.2 call it; in a real session: tests/integration/spark."""

from __future__ import annotations

import copy
import random
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_changefeed.capture.session import transaction
from airflow_changefeed.consumers.holding import Holding
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.feed import ShardStatus
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    ConnectionNotUsableError,
    ConsumerNotFoundError,
    ConsumerUseError,
    HistoryError,
    InvalidArgumentError,
    LeaseHeldError,
    LeaseLostError,
    LockTimeoutError,
    NotSealedError,
    PurgedError,
    SealLostError,
)
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.spark.datasource.ranges import parse_options
from airflow_changefeed.spark.datasource.stream import StreamOffset
from tests.identity import name_database
from tests.unit.export.flights import FEED, Flights, hours
from tests.unit.spark.queries import PASSES_START, STEPS, Checkpoint, KilledError, Query

EACH_MINOR = pytest.mark.parametrize("passes_start", sorted({False, PASSES_START}), ids=str)


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """A feed in a file of its own."""
    return Flights.create(tmp_path / "feeds.db")


def written(flights: Flights) -> list[tuple[int, str]]:
    """All events of the feed, by shard in order: the oracle."""
    source, found = flights.source, []
    source.drain(FEED)
    for status in sorted(source.shards(FEED), key=lambda each: each.shard):
        after = Ulid.MIN
        while page := source.read_feed(FEED, status.shard, after, 1000).events:
            found += [(status.shard, str(event.ulid)) for event in page]
            after = page[-1].ulid
    return found


def read(checkpoint: Checkpoint) -> list[tuple[int, str]]:
    """All events of a sink, by shard, in the order in which they came."""
    rows = [(row["changefeed_shard"], row["changefeed_ulid"]) for row in checkpoint.rows()]
    return sorted(rows, key=lambda each: each[0])


@EACH_MINOR
def test_each_event_comes_once_in_order(flights: Flights, passes_start: bool) -> None:
    """Also those of a shard that appears later; without new events there is no batch."""
    flights.add(30, 0, shard=1)
    log = Checkpoint()
    query = Query(flights, log, passes_start=passes_start)
    assert query.run() == 1
    assert query.run() == 0
    flights.add(5, 1, shard=1)
    flights.add(5, 1, shard=2)
    assert query.run() == 1
    assert read(log) == written(flights)
    assert len(read(log)) == 40
    query.stop()


@EACH_MINOR
def test_batches_are_bounded_and_shared_by_the_shards(flights: Flights, passes_start: bool) -> None:
    """A shard with few events leaves its share to the others; a batch has about as many as were asked for."""
    flights.add(95, 0, shard=1, length=4)
    flights.add(3, 0, shard=2)
    log = Checkpoint()
    query = Query(flights, log, passes_start=passes_start, maxEventsPerTrigger=20)
    query.run()
    assert read(log) == written(flights)
    sizes = [len(rows) for _, rows in sorted(log.sink.items())]
    assert sizes[:-1] == [20] * (len(sizes) - 1)
    assert {row["changefeed_shard"] for row in log.sink[0]} == {1, 2}


@EACH_MINOR
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 12))]
)
def test_a_query_that_is_killed_anywhere_reads_each_event_once(
    flights: Flights, passes_start: bool, seed: int
) -> None:
    """With a consumer or without, bounded or not; what a batch had, it has when it is read again."""
    choose = random.Random(seed)
    options: dict[str, object] = choose.choice([{}, {"maxEventsPerTrigger": 7}])
    options |= choose.choice([{}, {"consumer": "lake"}])
    flights.add(20, 0, shard=1)
    log = Checkpoint()
    for round_ in range(12):
        query = Query(flights, log, passes_start=passes_start, **options)
        if choose.random() < 0.7:
            flights.add(choose.randint(1, 15), round_ // 3, shard=choose.randint(1, 3))
        try:
            for _ in range(choose.randint(1, 4)):
                query.batch(choose.choice([None, None, *STEPS]))
        except KilledError:
            continue
        query.stop()
    Query(flights, log, passes_start=passes_start, **options).run()
    assert read(log) == written(flights)


@EACH_MINOR
def test_latest_is_not_lost_with_the_first_batch(flights: Flights, passes_start: bool) -> None:
    """Events that were there are left out; what came after the first offset was logged is read."""
    flights.add(10, 0, shard=1)
    log = Checkpoint()
    with pytest.raises(KilledError):
        Query(flights, log, passes_start=passes_start, startingPosition="latest").batch("planned")
    flights.add(4, 1, shard=1)
    flights.add(2, 1, shard=2)
    Query(flights, log, passes_start=passes_start, startingPosition="latest").run()
    assert len(read(log)) == 6
    assert read(log) == [each for each in written(flights) if each not in written_first(flights, 10)]


def written_first(flights: Flights, number: int) -> list[tuple[int, str]]:
    """The first events of shard 1."""
    return [each for each in written(flights) if each[0] == 1][:number]


def test_a_query_begins_at_a_time_or_after_a_ulid(flights: Flights) -> None:
    """At the first event of the time; after the ULID, whatever shards come later."""
    flights.add(10, 0, shard=1, length=2)
    everything = written(flights)
    second = hours(1, 2)[0].start
    begun = [each for each in everything if Ulid.parse_text(each[1]).time >= second]
    log = Checkpoint()
    Query(flights, log, startingPosition=format_time(second)).run()
    assert read(log) == begun
    assert 0 < len(begun) < len(everything)
    log = Checkpoint()
    Query(flights, log, startingPosition=everything[3][1]).run()
    assert read(log) == everything[4:]


def test_the_column_of_the_seal_is_never_too_late(flights: Flights) -> None:
    """No event of a later batch lies before it, also where batches are cut."""
    flights.add(60, 0, shard=1, length=3)
    flights.add(25, 0, shard=2, length=3)
    log = Checkpoint()
    Query(flights, log, maxEventsPerTrigger=9).run()
    bound = datetime.min.replace(tzinfo=timezone.utc)
    for number in sorted(log.sink):
        rows = log.sink[number]
        assert all(row["changefeed_time"] >= bound for row in rows)
        seals = {row["changefeed_sealed_until"] for row in rows}
        if rows:
            (seal,) = seals
            assert seal >= bound
            bound = seal
    assert bound > hours(0, 3)[-1].start


def test_a_transaction_is_never_cut(tmp_path: Path) -> None:
    """A batch is as long as the transaction in which it would end."""
    path = tmp_path / "orders.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("create table orders (id integer primary key, note text)")
        with closing(SqliteFeedSource(path)) as source:
            source.enable_capture(CaptureSpec((TableCapture("orders"),), name="changes"))
            for size in (3, 8, 1, 6):
                with transaction(connection):
                    for _ in range(size):
                        connection.execute("insert into orders (note) values ('x')")
            source.drain("changes")
    log = Checkpoint()
    connection_options = {"type": "sqlite", "path": path}
    Query(connection_options, log, feed="changes", maxEventsPerTrigger=4).run()
    sizes = [len(rows) for _, rows in sorted(log.sink.items()) if rows]
    assert sum(sizes) == 18
    tids = [{row["tid"] for row in rows} for _, rows in sorted(log.sink.items()) if rows]
    assert all(not (one & other) for one, other in pairwise(tids))
    assert max(sizes) >= 8


def test_a_purge_below_the_checkpoint_stops_the_query(flights: Flights) -> None:
    """It is an error, not a hole; a consumer prevents it."""
    flights.add(10, 0, shard=1)
    plain, held = Checkpoint(), Checkpoint()
    Query(flights, plain).run()
    query = Query(flights, held, consumer="lake")
    query.run()
    flights.add(10, 1, shard=1)
    query.run()
    query.stop()
    flights.add(10, 2, shard=1)
    flights.source.drain(FEED)
    flights.source.purge(FEED, flights.source.now())
    Query(flights, held, consumer="lake").run()
    assert len(read(held)) == 30
    flights.source.drop_consumer("lake", FEED)
    flights.source.purge(FEED, flights.source.now())
    with pytest.raises(PurgedError):
        Query(flights, plain).run()


def test_an_old_copy_of_a_checkpoint_is_refused_with_a_consumer(flights: Flights) -> None:
    """Its batches would come twice; the newest checkpoint goes on."""
    flights.add(10, 0, shard=1)
    log = Checkpoint()
    Query(flights, log, consumer="lake").run()
    old = copy.deepcopy(log)
    for hour in (1, 2, 3):
        flights.add(10, hour, shard=1)
        query = Query(flights, log, consumer="lake")
        query.run()
        query.stop()
    with pytest.raises(ConsumerUseError, match="the checkpoint is an old copy"):
        Query(flights, old, consumer="lake").run()
    flights.add(1, 4, shard=1)
    assert Query(flights, log, consumer="lake").run() == 1


def test_of_two_queries_of_a_consumer_the_older_one_stops(flights: Flights) -> None:
    """By its lease; a consumer that another kind of process holds is refused at once."""
    flights.add(10, 0, shard=1)
    log = Checkpoint()
    older = Query(flights, log, consumer="lake")
    older.run()
    copied = copy.deepcopy(log)
    flights.add(10, 1, shard=1)
    newer = Query(flights, copied, consumer="lake")
    newer.run()
    with pytest.raises(LeaseLostError):
        older.run()
    flights.add(10, 2, shard=1)
    assert newer.run() == 1
    newer.stop()
    tokens = flights.source.acquire_leases("lake", FEED, [1], holder="run_consumer", seconds=60).tokens
    assert tokens
    with pytest.raises(LeaseHeldError, match="shard 1 by run_consumer"):
        Query(flights, copied, consumer="lake").run()


def test_a_query_without_checkpoint_begins_where_its_consumer_stands(flights: Flights) -> None:
    """So a lost checkpoint loses nothing, and repeats at most the last batch."""
    flights.add(10, 0, shard=1)
    log = Checkpoint()
    query = Query(flights, log, consumer="lake")
    query.run()
    flights.add(5, 1, shard=1)
    query.run()
    query.stop()
    again = Checkpoint()
    Query(flights, again, consumer="lake", startingPosition="latest").run()
    assert read(again) == written(flights)[10:]


def test_a_restored_database_stops_the_query(flights: Flights, tmp_path: Path) -> None:
    """Before a new seal hides it; so does another database."""
    flights.add(10, 0, shard=1)
    copied = tmp_path / "copy.db"
    shutil.copy(flights.path, copied)
    log = Checkpoint()
    Query(flights, log).run()
    shutil.copy(copied, flights.path)
    with pytest.raises(SealLostError, match="its database was restored"):
        Query(flights, log).run()
    other = Flights.create(tmp_path / "other.db")
    name_database(other.path, "another")
    other.add(10, 0, shard=1)
    with pytest.raises(ConnectionNotUsableError, match="the checkpoint belongs to database"):
        Query(other, log).run()


def test_a_change_of_columns_stops_the_query(flights: Flights) -> None:
    """A new column would be left out; a query that is started again reads it."""
    flights.add(10, 0, shard=1)
    log = Checkpoint()
    query = Query(flights, log)
    query.run()
    flights.execute(f'alter table "{FEED}" add column gate text')
    flights.execute(f'insert into "{FEED}" (id, gate) values (99, ?)', "D4")
    flights.execute(f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (1, 0, 99)')
    with pytest.raises(ColumnTypeError, match="has new columns, which the query does not read: gate"):
        query.run()
    Query(flights, log).run()
    assert log.rows()[-1]["gate"] == "D4"
    assert len(read(log)) == 11


def test_a_seal_that_fails_for_a_moment_is_made_later(
    flights: Flights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning; one that fails for long stops the query."""
    flights.add(10, 0, shard=1)
    query = Query(flights, Checkpoint())
    query.run()

    flights.add(10, 1, shard=1)
    monkeypatch.setattr(query.reader.source, "seal", _locked)
    assert query.run() == 0
    assert "was not sealed, and will be sealed later: shard 1 is locked" in caplog.text
    for _ in range(8):
        assert query.run() == 0
    with pytest.raises(LockTimeoutError):
        query.run()
    monkeypatch.undo()
    assert query.run() == 1


def test_without_seal_a_query_reads_what_others_seal(flights: Flights) -> None:
    """A feed that was never sealed is refused; latest begins at the seal."""
    flights.add(10, 0, shard=1)
    with pytest.raises(NotSealedError, match="was never sealed, and the stream does not seal"):
        Query(flights, Checkpoint(), seal=False).run()
    flights.source.seal(FEED, hours(0, 1)[0].end)
    log, latest = Checkpoint(), Checkpoint()
    assert Query(flights, log, seal=False).run() == 1
    Query(flights, latest, seal=False, startingPosition="latest").run()
    assert len(read(log)) == 10
    flights.add(5, 2, shard=1)
    assert Query(flights, log, seal=False).run() == 0
    flights.source.seal(FEED, flights.source.now())
    for each, number in ((log, 15), (latest, 5)):
        Query(flights, each, seal=False).run()
        assert len(read(each)) == number


def test_an_idle_feed_asks_the_database_at_most_once_an_interval(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks a hundred times a second."""
    flights.add(10, 0, shard=1)
    query = Query(flights, Checkpoint(), seal_interval="1h")
    query.run()
    monkeypatch.setattr(query.reader, "_source", None)
    monkeypatch.setattr(
        "airflow_changefeed.spark.datasource.stream.open_source", lambda *_: pytest.fail("asked")
    )
    assert query.run() == 0


def test_equal_offsets_are_equal_texts() -> None:
    """Whatever the order in which shards are found."""
    time = datetime(2026, 1, 1, tzinfo=timezone.utc)
    one, other = {"1": Ulid.MIN, "2": Ulid.MAX}, {"2": Ulid.MAX, "1": Ulid.MIN}
    offset = StreamOffset(FEED, None, "x", time, shards=one, starts=other, recovery_fork="f")
    assert str(offset.to_json()) == str(replace(offset, shards=other, starts=one).to_json())
    assert StreamOffset.from_json(offset.to_json()) == offset
    assert offset.complete_until == Ulid.MIN.time
    assert replace(offset, shards={}).complete_until == time


def test_an_offset_does_not_grow_with_its_shards(flights: Flights) -> None:
    """Those that were read up to the seal are not listed."""
    for shard in range(30):
        flights.add(1, 0, shard=shard)
    log = Checkpoint()
    query = Query(flights, log)
    query.run()
    flights.add(1, 1, shard=3)
    query.run()
    assert all(len(offset) < 400 for offset in log.offsets)
    assert read(log) == written(flights)


def test_other_shards_or_another_feed_are_refused(flights: Flights) -> None:
    """Events before the seal would be left out."""
    flights.add(10, 0, shard=1)
    flights.add(10, 0, shard=2)
    log = Checkpoint()
    Query(flights, log, shards="1").run()
    assert len(read(log)) == 10
    for options in ({"shards": "1,2"}, {}):
        with pytest.raises(InvalidArgumentError, match="the checkpoint belongs to shards 1 of feed"):
            Query(flights, log, **options).run()
    flights.add(10, 1, shard=1)
    assert Query(flights, log, shards="1").run() == 1


def test_a_shard_that_a_seal_has_not_reached_is_not_read_as_sealed(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQL Server a seal raises the feed's floor before it seals the shards, and may fail between."""
    flights.add(10, 0, shard=1)
    flights.add(10, 0, shard=2)
    start = hours(0, 1)[0].end
    flights.source.seal(FEED, start)
    log = Checkpoint()
    query = Query(flights, log, seal=False)
    source = query.reader.source
    shards = source.shards

    def halfway(feed: str) -> list[ShardStatus]:
        return [replace(each, sealed_until=start) if each.shard == 2 else each for each in shards(feed)]

    monkeypatch.setattr(source, "shards", halfway)
    flights.source.seal(FEED, hours(4, 5)[0].end)
    query.run()
    assert all(row["changefeed_sealed_until"] <= start for row in log.rows())
    monkeypatch.undo()
    flights.add(5, 6, shard=2)
    flights.source.seal(FEED, hours(8, 9)[0].end)
    Query(flights, log, seal=False).run()
    assert read(log) == written(flights)


def test_history_that_was_inserted_behind_the_checkpoint_stops_the_query(flights: Flights) -> None:
    """It would never be read; somebody reads it and accepts that."""
    flights.add(10, 0, shard=1)
    log = Checkpoint()
    Query(flights, log).run()
    flights.execute(f'insert into "{FEED}" (id) values (?)', 777)
    flights.source.insert_history(FEED, 1, [(hours(0, 1)[0].start, (777,))], reason="found again")
    with pytest.raises(HistoryError, match=r"start the query again with the option acceptHistory=1$"):
        Query(flights, log).run()
    flights.add(5, 1, shard=1)
    Query(flights, log, acceptHistory=9).run()
    flights.add(5, 2, shard=1)
    Query(flights, log).run()
    assert len(read(log)) == 20
    # What was accepted is the history that there was, not all that may come.
    flights.execute(f'insert into "{FEED}" (id) values (?)', 9999)
    flights.source.insert_history(FEED, 1, [(hours(0, 1)[0].start, (9999,))], reason="found again")
    with pytest.raises(HistoryError, match=r"acceptHistory=2$"):
        Query(flights, log).run()


def test_a_consumer_whose_events_were_purged_says_what_to_do(flights: Flights) -> None:
    """A new checkpoint alone would begin where the consumer stands."""
    flights.add(10, 0, shard=1)
    plain = Checkpoint()
    Query(flights, plain).run()
    flights.add(10, 1, shard=1)
    flights.source.seal(FEED, flights.source.now())
    flights.source.purge(FEED, flights.source.now())
    with pytest.raises(PurgedError):
        Query(flights, plain, consumer="lake").run()
    assert flights.source.consumers(FEED) == []
    flights.add(10, 2, shard=1)
    log = Checkpoint()
    Query(flights, log, consumer="lake").run()
    assert len(read(log)) == 10
    flights.source.drop_consumer("lake", FEED)
    create_consumer(flights.source, ConsumerSpec("lake", FEED, ddl=True), by="test")
    flights.add(10, 3, shard=1)
    flights.source.seal(FEED, flights.source.now())
    flights.source.set_up_feed(FEED, max_hold=timedelta(milliseconds=1))
    flights.source.purge(FEED, flights.source.now())
    with pytest.raises(PurgedError, match="Then drop the consumer"):
        Query(flights, Checkpoint(), consumer="lake").run()


def test_a_run_that_is_to_read_everything_fails_where_it_cannot_seal(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end would look like success."""
    flights.add(10, 0, shard=1)
    log = Checkpoint()
    Query(flights, log).run()
    flights.add(10, 1, shard=1)
    query = Query(flights, log)
    query.reader.prepareForTriggerAvailableNow()
    monkeypatch.setattr(query.reader.source, "seal", _locked)
    with pytest.raises(LockTimeoutError):
        query.run()


def _locked(*_: object) -> None:
    raise LockTimeoutError("shard 1 is locked")


def test_a_consumer_that_is_locked_follows_later(
    flights: Flights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The query goes on; at its end nothing hides its own error."""
    flights.add(10, 0, shard=1)
    log = Checkpoint()
    query = Query(flights, log, consumer="lake")
    query.run()
    flights.add(10, 1, shard=1)
    with monkeypatch.context() as locked:
        locked.setattr(query.reader._consumer._work, "commit", _locked)
        assert query.run() == 1
        locked.setattr(query.reader._consumer._holding, "leave", _locked)
        query.stop()
    assert "follows with the next batch: shard 1 is locked" in caplog.text
    assert "was not released: shard 1 is locked" in caplog.text
    flights.add(10, 2, shard=1)
    Query(flights, log, consumer="lake").run()
    assert len(read(log)) == 30


def test_a_small_batch_of_many_shards_is_small(flights: Flights) -> None:
    """Each shard has its turn."""
    for shard in range(40):
        flights.add(3, 0, shard=shard)
    log = Checkpoint()
    Query(flights, log, maxEventsPerTrigger=10).run()
    sizes = [len(rows) for _, rows in sorted(log.sink.items())]
    assert max(sizes) == 10
    assert {row["changefeed_shard"] for number in range(4) for row in log.sink[number]} == set(range(40))
    assert read(log) == written(flights)


def test_without_seal_nothing_is_drained(flights: Flights) -> None:
    """Also where a batch is bounded."""
    flights.add(10, 0, shard=1)
    flights.source.seal(FEED, hours(2, 3)[0].end)
    flights.add(10, 3, shard=1)
    Query(flights, Checkpoint(), seal=False, maxEventsPerTrigger=4).run()
    (status,) = flights.source.shards(FEED)
    assert status.has_outbox


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"startingPosition": "soon"}, "startingPosition: 'soon' is not a ULID, a time with its zone"),
        ({"maxEventsPerTrigger": "0"}, "maxEventsPerTrigger must be a whole number"),
        ({"consumer": "a:b"}, "consumer: consumer 'a:b' is not a valid name"),
        ({"seal_interval": "often"}, "seal_interval must be a length of time"),
        ({"start": "2013-01-01T00:00:00Z"}, "start belongs to spark.read, which reads a batch: omit it"),
        ({"consumer": "lake", "shards": "1"}, "consumer and shards exclude each other"),
        ({"unsealed": "read"}, "unsealed belongs to spark.read, which reads a batch: omit it"),
    ],
)
def test_each_wrong_option_of_a_stream_says_what_to_do(options: dict[str, str], problem: str) -> None:
    """And one of a stream is refused in a batch."""
    given = {"type": "sqlite", "path": "x", "feed": FEED, "startingPosition": "earliest", **options}
    with pytest.raises(InvalidArgumentError) as caught:
        parse_options(given, is_stream=True)
    (found,) = caught.value.facts["problems"]
    assert found.startswith(problem)


def test_a_stream_says_where_it_begins_and_a_batch_does_not() -> None:
    """A default would leave out events, or repeat them, unasked."""
    given = {"type": "sqlite", "path": "x", "feed": FEED}
    with pytest.raises(InvalidArgumentError, match="startingPosition is missing: give earliest, latest"):
        parse_options(given, is_stream=True)
    with pytest.raises(InvalidArgumentError, match=r"startingPosition belongs to spark\.readStream"):
        parse_options({**given, "startingposition": "latest"})


@pytest.mark.parametrize("takes", ["", "leases that are due", "a new shard"])
def test_a_consumer_that_is_dropped_under_its_query_stops_it(
    flights: Flights, monkeypatch: pytest.MonkeyPatch, takes: str
) -> None:
    """
    With what to do: started again, the query creates the consumer where its checkpoint stands.

    Also where the query renews its leases, or takes a new shard, before it acknowledges.
    """
    log = Checkpoint()
    query = Query(flights, log, consumer="lake")
    flights.add(3, 0)
    query.run()
    flights.source.drop_consumer("lake", FEED)
    flights.add(3, 1, shard=77 if takes == "a new shard" else 0)
    with monkeypatch.context() as patched:
        if takes == "leases that are due":
            patched.setattr(Holding, "is_due", True)
        with pytest.raises(
            ConsumerNotFoundError, match=r"dropped while its query ran\. Start the query again"
        ):
            query.run()
    Query(flights, log, consumer="lake", startingPosition="latest").run()
    assert read(log) == written(flights)
    assert {row.consumer for row in flights.source.cursors(FEED)} == {"lake"}
