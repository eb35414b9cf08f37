# SPDX-License-Identifier: Apache-2.0
"""The data source without Spark: what a frame holds, what it refuses, and what filters leave of it."""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    ConnectionNotUsableError,
    FeedNotFoundError,
    FutureTimeError,
    IncompleteReadError,
    InvalidArgumentError,
    MissingEventError,
    NotSealedError,
    PurgedError,
    ShardNotFoundError,
    changefeed_error,
)
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.datasource.ranges import parse_options
from airflow_changefeed.spark.datasource.source import ChangefeedDataSource
from tests.unit.export.flights import FEED, START, Flights, hours
from tests.unit.spark.feeds import exported, load, make_flights, planned, rows, tables, ulids

HOUR = timedelta(hours=1)


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """A feed with 40 events in four hours of shard 1 and 6 in one hour of shard 2, sealed to hour 4."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(40, 0, shard=1, length=4)
    flights.add(6, 1, shard=2)
    flights.source.seal(FEED, START + 4 * HOUR)
    return flights


@pytest.mark.parametrize("shard_key_type", ["int", "uniqueidentifier"])
def test_a_whole_feed_is_what_an_export_of_it_holds(tmp_path: Path, shard_key_type: str) -> None:
    """Every event once, with the values and the order that the export gives, for both kinds of shards."""
    flights = make_flights(tmp_path / "feeds.db", shard_key_type)
    shards: list[Any] = [7, 8] if shard_key_type == "int" else [str(uuid.uuid4()), str(uuid.uuid4())]
    flights.add(300, 0, shard=shards[0], length=4)
    flights.add(50, 1, shard=shards[1], length=2)
    store = ExportStore(str(tmp_path / "out"), FEED)
    flights.export(store, hours(0, 4))
    found = rows(load(flights))
    assert len(found) == 350
    assert found == exported(store)
    assert {row["changefeed_shard"] for row in found} == set(shards)
    kind = load(flights).columns["changefeed_shard"].dataType.simpleString()
    assert kind == ("bigint" if shard_key_type == "int" else "string")


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 1000])
def test_partitions_share_the_events_in_their_order(flights: Flights, partitions: int) -> None:
    """There are no more partitions than asked for, about equal, and each ascends within a shard."""
    whole = rows(load(flights))
    found = tables(*planned(load(flights, partitions=partitions)))
    assert len(found) <= partitions
    assert max(table.num_rows for table in found) <= 2 * -(-46 // partitions)
    keys = [
        [(row["changefeed_shard"], row["changefeed_ulid"]) for row in table.to_pylist()] for table in found
    ]
    assert all(each == sorted(each) for each in keys)
    assert sorted(key for each in keys for key in each) == [
        (row["changefeed_shard"], row["changefeed_ulid"]) for row in whole
    ]


def test_a_batch_has_no_more_rows_than_asked_for(flights: Flights) -> None:
    """batch_rows bounds what a task holds."""
    reader, partitions = planned(load(flights, batch_rows=3))
    sizes = [batch.num_rows for partition in partitions for batch in reader.read(partition)]
    assert sum(sizes) == 46
    assert max(sizes) <= 3


def test_a_range_of_time_or_ulids_is_cut_exactly(flights: Flights) -> None:
    """A start is inclusive and an end exclusive, after exclusive and upto inclusive; nothing is between."""
    whole = rows(load(flights))
    end = START + 2 * HOUR
    first = rows(load(flights, end=format_time(end)))
    second = rows(load(flights, start=format_time(end)))
    assert (len(first), len(second)) == (26, 20)
    assert all(row["changefeed_time"] < end for row in first)
    assert sorted(ulids(first + second)) == sorted(ulids(whole))
    places = ulids(rows(load(flights, shards="1")))
    between = rows(load(flights, shards="1", after=places[4], upto=places[9]))
    assert ulids(between) == places[5:10]


def test_only_the_shards_named_are_read(flights: Flights) -> None:
    """Shards that are not named are left alone."""
    assert {row["changefeed_shard"] for row in rows(load(flights, shards="2"))} == {2}


def test_an_empty_range_is_an_empty_frame(flights: Flights) -> None:
    """No events, no partitions with work, the same columns."""
    late = format_time(START + 3 * HOUR)
    for options in ({"shards": "2", "start": late}, {"after": Ulid.MIN, "upto": Ulid.MIN}):
        frame = load(flights, **options)
        _, partitions = planned(frame)
        assert [partition.value for partition in partitions] == [()]
        assert rows(frame) == []
        assert frame.columns == load(flights).columns


def test_a_frame_holds_what_was_sealed_when_it_was_loaded(flights: Flights) -> None:
    """Events and seals that come later are in the next frame, not in this one."""
    before = load(flights)
    flights.add(10, 5, shard=1)
    flights.add(10, 5, shard=3)
    assert len(rows(load(flights))) == 46
    flights.source.seal(FEED, START + 6 * HOUR)
    assert len(rows(before)) == 46
    assert len(rows(load(flights))) == 66


def test_reading_changes_nothing_in_the_database(flights: Flights) -> None:
    """Neither a seal nor a drain, unless the option says so; then the events of the outbox are there."""
    flights.add(10, 4, shard=1)
    before = flights.source.shards(FEED)
    assert any(status.has_outbox for status in before)
    load(flights)
    assert len(rows(load(flights, unsealed="read"))) == 46
    assert flights.source.shards(FEED) == before
    assert len(rows(load(flights, seal="true", end=format_time(START + 5 * HOUR)))) == 56
    (until,) = {status.sealed_until for status in flights.source.shards(FEED)}
    assert until == START + 5 * HOUR


def test_a_seal_reaches_to_an_ulid_or_to_now(flights: Flights) -> None:
    """With upto the feed is sealed just beyond it; without an end up to the database's present time."""
    flights.add(10, 4, shard=1)
    upto = Ulid.floor(START + 5 * HOUR)
    assert len(rows(load(flights, seal="true", upto=upto))) == 56
    (until,) = {status.sealed_until for status in flights.source.shards(FEED)}
    assert until == START + 5 * HOUR + timedelta(milliseconds=1)
    before = flights.source.now()
    load(flights, seal="true")
    assert all((status.sealed_until or START) >= before for status in flights.source.shards(FEED))
    with pytest.raises(FutureTimeError):
        load(flights, seal="true", end="2999-01-01T00:00:00Z")


def test_what_is_not_sealed_is_refused(flights: Flights) -> None:
    """A range beyond the seal names the time that the feed is sealed until, and what to do."""
    flights.add(10, 4, shard=1)
    flights.source.drain(FEED)
    words = "is sealed until 2013-01-01T04:00:00Z: the range from its beginning to 2013-01-01T05:00:00Z may "
    with pytest.raises(NotSealedError, match=words) as caught:
        load(flights, end=format_time(START + 5 * HOUR))
    assert caught.value.facts["sealed_until"] == START + 4 * HOUR
    assert "seal=true" in caught.value.message
    assert "unsealed=read" in caught.value.message
    with pytest.raises(NotSealedError, match="to its end may still get events"):
        load(flights, start=format_time(START + 5 * HOUR))
    assert len(rows(load(flights, end=format_time(START + 4 * HOUR)))) == 46
    assert len(rows(load(flights, unsealed="read", end=format_time(START + 5 * HOUR)))) == 56
    last = max(ulids(rows(load(flights, unsealed="read"))))
    with pytest.raises(NotSealedError, match=f"to {last} may still"):
        load(flights, upto=last)


def test_a_feed_that_was_never_sealed_is_refused(tmp_path: Path) -> None:
    """No frame is empty only because nobody has sealed the feed yet."""
    flights = Flights.create(tmp_path / "feeds.db")
    assert rows(load(flights)) == []
    with pytest.raises(NotSealedError, match="has no events yet, so the time of its seal is unknown"):
        load(flights, end=format_time(START + HOUR))
    flights.add(10, 0)
    with pytest.raises(NotSealedError, match="was never sealed: "):
        load(flights)
    assert rows(load(flights, unsealed="read")) == []
    flights.source.drain(FEED)
    assert len(rows(load(flights, unsealed="read"))) == 10
    assert len(rows(load(flights, seal="true"))) == 10


def test_a_seal_tells_of_a_feed_without_events(tmp_path: Path) -> None:
    """Whoever seals knows that the range of an empty feed is complete."""
    flights = Flights.create(tmp_path / "feeds.db")
    assert rows(load(flights, seal="true", end=format_time(START + HOUR))) == []


def test_a_purge_is_an_error_wherever_it_comes(flights: Flights) -> None:
    """Events that are gone are missed by name: before the frame, before its plan, and before its read."""
    frame = load(flights)
    reader, partitions = planned(frame)
    flights.source.purge(FEED, START + 2 * HOUR)
    with pytest.raises(PurgedError, match="were purged"):
        tables(reader, partitions)
    with pytest.raises(PurgedError, match="were purged"):
        planned(frame)
    for options in ({}, {"unsealed": "read"}, {"end": format_time(START + HOUR)}):
        with pytest.raises(PurgedError, match="were purged"):
            planned(load(flights, **options))
    assert len(rows(load(flights, start=format_time(START + 2 * HOUR)))) == 20
    flights.source.purge(FEED, START + 4 * HOUR)
    with pytest.raises(PurgedError, match="were purged"):
        planned(load(flights, unsealed="read"))


def test_history_that_comes_in_meanwhile_is_noticed(flights: Flights) -> None:
    """A read that gives another number of events than were counted is refused, and a new one is right."""
    frame = load(flights)
    reader, partitions = planned(frame)
    flights.execute(f'insert into "{FEED}" (id) values (99)')
    flights.source.insert_history(FEED, 1, [(START + HOUR, (99,))], reason="late")
    with pytest.raises(IncompleteReadError, match="had 40 events when it was planned, 41 when it was read"):
        tables(reader, partitions)
    assert len(rows(frame)) == 47


def test_deleted_rows_fail_or_leave_their_keys(flights: Flights) -> None:
    """on_missing says what becomes of an event whose row was deleted."""
    flights.execute(f'delete from "{FEED}" where id = 3')
    with pytest.raises(MissingEventError, match="was deleted"):
        rows(load(flights))
    found = {row["id"]: row for row in rows(load(flights, on_missing="keys_only"))}
    assert len(found) == 46
    assert found[3]["origin"] is None


def test_a_schema_of_the_reader_chooses_columns(flights: Flights) -> None:
    """Some of the columns in another order are given as asked for; chosen when planned."""
    columns = StructType().add("delay", "double").add("changefeed_shard", "long").add("id", "long")
    options = {"type": "sqlite", "path": str(flights.path), "feed": FEED}
    reader = ChangefeedDataSource(options).reader(columns)
    (table,) = tables(reader, reader.partitions())
    assert table.column_names == ["delay", "changefeed_shard", "id"]
    assert table.num_rows == 46


def test_columns_that_the_feed_does_not_have_are_refused(flights: Flights) -> None:
    """A schema of the reader, or a table that changed since, is refused by the names of the columns."""
    frame = load(flights)
    wrong = StructType().add("id", "string").add("nothing", "long").add("origin", "string")
    with pytest.raises(ColumnTypeError, match="'id' is bigint, not string; 'nothing' is missing, not bigint"):
        frame.source.reader(wrong)
    reader, partitions = planned(frame)
    flights.execute(f'alter table "{FEED}" drop column tail')
    with pytest.raises(ColumnTypeError, match="'tail' is missing, not string"):
        planned(frame)
    with pytest.raises(ColumnTypeError, match="column 'tail' cannot be read as string"):
        tables(reader, partitions)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"feed": "no.Such"}, FeedNotFoundError, "no.Such"),
        ({"shards": "1,9,8"}, ShardNotFoundError, "never had an event in shard 9, 8; it has 1, 2"),
        ({"shards": "9", "seal": "true"}, ShardNotFoundError, "never had an event in shard 9"),
        ({"shards": str(uuid.UUID(int=1))}, InvalidArgumentError, "does not match the feed's shard key type"),
        ({"path": "/nowhere/feeds.db"}, ConnectionNotUsableError, "/nowhere/feeds.db"),
    ],
)
def test_what_is_not_there_is_named(
    flights: Flights, options: dict[str, str], error: type[Exception], words: str
) -> None:
    """A feed, shard or file that does not exist is an error when the frame is loaded, and seals nothing."""
    before = flights.source.shards(FEED)
    with pytest.raises(error, match=words):
        load(flights, **options)
    assert flights.source.shards(FEED) == before


def test_wrong_options_are_named_before_any_file_is_opened(tmp_path: Path) -> None:
    """The file does not exist, and it is the option that is wrong."""
    source = ChangefeedDataSource({"type": "sqlite", "path": str(tmp_path / "none.db"), "shard": "1"})
    for call in (source.schema, lambda: source.reader(StructType())):
        with pytest.raises(
            InvalidArgumentError, match="option 'shard' is unknown: did you mean shards"
        ) as found:
            call()
        assert len(found.value.facts["problems"]) == 2


def test_a_password_is_in_no_text_of_what_spark_gets() -> None:
    """The objects that Spark holds show nothing of the connection's secrets."""
    options = {"type": "mssql", "host": "h", "database": "d", "user": "u", "password": "hunter2", "feed": "f"}
    source = ChangefeedDataSource(options)
    reader = source._reader(parse_options(options), (), StructType())
    assert "hunter2" not in f"{source!r} {reader!r} {reader.options!r}"


def test_our_error_is_found_in_the_text_of_sparks() -> None:
    """The class and the message come back as they were; the last error named is the one that ended it."""
    text = (
        "Job aborted: Traceback (most recent call last):\n"
        "airflow_changefeed.exceptions.SourceUnavailableError: gone\n"
        "airflow_changefeed.exceptions.PurgedError: feed 'a': events are purged\n"
        "\n\tat org.apache.spark.Some(Java.scala)"
    )
    found = changefeed_error(RuntimeError(text))
    assert type(found) is PurgedError
    assert found.message == "feed 'a': events are purged"
    assert changefeed_error(found) is found
    assert changefeed_error(RuntimeError("airflow_changefeed.exceptions.Nothing: x")) is None
    assert changefeed_error(RuntimeError("executor lost")) is None
