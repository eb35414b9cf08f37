# SPDX-License-Identifier: Apache-2.0
"""What the embedded source says to input that is wrong, odd or hostile."""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    ConnectionNotUsableError,
    FeedSetupError,
    HistoryError,
    InvalidArgumentError,
    SourceUnavailableError,
)
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.base_consumers import CursorMove
from airflow_changefeed.sources.sqlite import SqliteFeedSource

ALL = UlidRange(Ulid.MIN, Ulid.MAX)
#: What a URI, SQL, a format string and a template could stumble over.
ODD = 'my "Event\'s" 100%#?<<feed>> é'
OUTBOX = '"changefeed.outbox:t"'
HOUR = timedelta(hours=1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of a file that is not there yet."""
    return str(tmp_path / "a#b?c%20 é'.db")


@pytest.fixture
def sql(path: str) -> Iterator[Callable[..., Any]]:
    """Run a statement as a user does, on a connection of its own."""
    connection = sqlite3.connect(path, isolation_level=None)
    yield lambda text, *values: connection.execute(text, values).fetchall()
    connection.close()


@pytest.fixture
def source(path: str, sql: Callable[..., Any]) -> SqliteFeedSource:
    """Return a source with the feed ``t`` of an outbox."""
    sql("create table t (id integer primary key, amount numeric, note text)")
    source = SqliteFeedSource(path, lock_timeout=5)
    source.set_up_feed("t")
    return source


def _write(sql: Callable[..., Any], key: int) -> None:
    sql("insert into t (id) values (?)", key)
    sql(f"insert into {OUTBOX} (id) values (?)", key)


def test_names_with_quotes_and_signs_are_names(path: str, sql: Callable[..., Any]) -> None:
    """Files and tables may be called what the file system and SQLite allow."""
    quoted = '"' + ODD.replace('"', '""') + '"'
    outbox = '"changefeed.outbox:' + ODD.replace('"', '""') + '"'
    sql(f"create table {quoted} ({quoted} integer primary key)")
    source = SqliteFeedSource(path)
    source.set_up_feed(ODD)
    sql(f"insert into {quoted} values (7)")
    sql(f"insert into {outbox} ({quoted}) values (7)")
    assert [event.key for event in source.read_feed(ODD, 0, Ulid.MIN)] == [(7,)]
    (batch,) = source.stream(ODD, 0, ALL)
    assert batch.column(ODD).to_pylist() == [7]


@pytest.mark.parametrize("hint", ["garbage", "", "1700000000000", 1.5, -1, None, b"x", "1969-12-31"])
def test_a_hint_that_is_no_time_is_refused_to_its_writer(
    source: SqliteFeedSource, sql: Callable[..., Any], hint: Any
) -> None:
    """Accepted, it would stop the drain for everybody."""
    with pytest.raises(sqlite3.IntegrityError):
        sql(f"insert into {OUTBOX} (id, time_hint) values (1, ?)", hint)
    assert source.drain("t") == {}


def test_a_hint_that_passed_without_the_check_does_not_stop_the_drain(
    source: SqliteFeedSource, sql: Callable[..., Any]
) -> None:
    """It is worth as much as an old one: the event takes the shard's high-water time."""
    sql("pragma ignore_check_constraints = on")
    sql(f"insert into {OUTBOX} (id, time_hint) values (1, 'garbage')")
    assert source.drain("t") == {0: 1}


@pytest.mark.parametrize("shard", ["z" * 36, "1" * 36, "0" * 32, None, b"0" * 36, 5])
def test_a_shard_that_is_no_uuid_is_refused_to_its_writer(
    source: SqliteFeedSource, sql: Callable[..., Any], shard: Any
) -> None:
    """Accepted, it would stop drains and listings of the whole feed."""
    sql("create table u (id integer primary key)")
    source.set_up_feed("u", shard_key_type="uniqueidentifier")
    with pytest.raises(sqlite3.IntegrityError):
        sql('insert into "changefeed.outbox:u" (shard_id, id) values (?, 1)', shard)
    assert source.shards("u") == []


def test_true_is_no_shard(source: SqliteFeedSource) -> None:
    """Python counts it as the number 1, and text makes it a name that nobody finds again."""
    with pytest.raises(InvalidArgumentError, match="does not match"):
        source.read_feed("t", True, Ulid.MIN)


@pytest.mark.parametrize("key", [2**70, {}, [1], object()], ids=["huge", "dict", "list", "object"])
def test_history_names_a_key_that_cannot_be_stored(source: SqliteFeedSource, key: Any) -> None:
    """The error is ours, and nothing is written."""
    source.seal("t", source.now())
    with pytest.raises(HistoryError, match="cannot store"):
        source.insert_history("t", 0, [(source.now() - HOUR, (key,))], reason="test")
    assert source.shards("t") == []


def test_history_finds_a_key_twice_that_is_one_when_stored(
    source: SqliteFeedSource, sql: Callable[..., Any]
) -> None:
    """An integer column makes one value of 1 and '1'."""
    sql("insert into t (id) values (1)")
    source.seal("t", source.now())
    when = source.now() - HOUR
    with pytest.raises(HistoryError, match="a key occurs twice"):
        source.insert_history("t", 0, [(when, (1,)), (when, ("1",))], reason="test")


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), 1e30])
def test_a_lease_has_a_finite_length(source: SqliteFeedSource, seconds: float) -> None:
    """A number that no clock reaches is refused by name."""
    source.begin_consumer("c", "t", {0: Ulid.MIN}, by="test")
    with pytest.raises(InvalidArgumentError, match="lease"):
        source.acquire_leases("c", "t", [0], holder="h", seconds=seconds, all_or_none=True)


def test_a_cursor_moves_once_in_a_call(source: SqliteFeedSource) -> None:
    """The second of two moves would not have seen the first."""
    (row,) = source.begin_consumer("c", "t", {0: Ulid.MIN}, by="test")
    tokens = source.acquire_leases("c", "t", [0], holder="h", seconds=60, all_or_none=True).tokens
    move = CursorMove(0, row.frontier, row.resource_version, tokens[0])
    with pytest.raises(InvalidArgumentError, match="two moves"):
        source.move_cursors("c", "t", [move, move], by="test")


@pytest.mark.parametrize(
    ("assignment", "column"),
    [("amount = -9223372036854775808", "amount"), ("note = cast(x'ff' as text)", "note")],
)
def test_a_value_that_python_cannot_read_names_its_column(
    source: SqliteFeedSource, sql: Callable[..., Any], assignment: str, column: str
) -> None:
    """The lowest integer in a number's column and text that is not UTF-8 stop the export with our error."""
    _write(sql, 1)
    sql(f"update t set {assignment}")
    source.drain("t")
    with pytest.raises(ColumnTypeError, match=column):
        list(source.stream("t", 0, ALL))


@pytest.mark.parametrize("kind", ["int", "text", "date", "decimal"])
def test_a_table_with_more_columns_than_a_result_may_have_is_refused(
    source: SqliteFeedSource, sql: Callable[..., Any], kind: str
) -> None:
    """Setup says it, and not the first export; one column less works, of whatever type they are."""
    for name, count in (("most", 1_996), ("many", 1_997)):
        columns = ", ".join(f"c{number} {kind}" for number in range(count))
        sql(f"create table {name} (id integer primary key, {columns})")
    with pytest.raises(FeedSetupError, match="1998 columns"):
        source.set_up_feed("many")
    source.set_up_feed("most")
    sql("insert into most (id) values (1)")
    sql('insert into "changefeed.outbox:most" (id) values (1)')
    source.drain("most")
    assert [batch.num_rows for batch in source.stream("most", 0, ALL)] == [1]


def test_a_feed_without_its_table_says_so_and_can_be_dropped(
    source: SqliteFeedSource, sql: Callable[..., Any]
) -> None:
    """A renamed table is named as the cause, not a syntax error of ours."""
    sql("alter table t rename to elsewhere")
    for use in (source.drain, source.schema, source.shards):
        with pytest.raises(FeedSetupError, match="lost its event table"):
            use("t")
    source.drop_feed("t")
    assert source.feeds() == []


def test_a_table_made_anew_with_another_key_needs_a_new_feed(
    source: SqliteFeedSource, sql: Callable[..., Any]
) -> None:
    """Setup compares the key that the feed's own tables hold."""
    sql("drop table t")
    sql("create table t (a integer, b integer, primary key (b, a))")
    with pytest.raises(FeedSetupError, match=r"\(id\).*\(b, a\)"):
        source.set_up_feed("t")


def test_setting_up_in_a_missing_file_makes_none(tmp_path: Path) -> None:
    """A path with a slip leaves nothing behind."""
    path = tmp_path / "slip.db"
    with pytest.raises(ConnectionNotUsableError, match=r"slip\.db"):
        SqliteFeedSource(str(path)).set_up_feed("t")
    assert not path.exists()


def test_a_tolerance_beyond_what_a_ulid_can_say_is_refused(source: SqliteFeedSource) -> None:
    """A hint within such a tolerance would overflow the ULID, and the drain with it."""
    with pytest.raises(InvalidArgumentError, match="time_tolerance"):
        source.set_up_feed("t", time_tolerance=timedelta.max)


def test_a_serialized_feed_needs_a_blob_for_its_ulids(tmp_path: Path) -> None:
    """ULIDs kept as text would sort and compare with nothing: the set-up refuses the column."""
    path = tmp_path / "feeds.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table T (ulid text primary key, value integer)")
    source = open_source({"type": "sqlite", "path": str(path)})
    with pytest.raises(FeedSetupError, match="blob column named ulid"):
        source.set_up_feed("T", kind=FeedKind.SERIALIZED)


@pytest.mark.parametrize("options", [{"path": "x.db", "lock_timout": 5}, {}])
def test_an_unknown_or_missing_option_is_named(options: dict[str, Any]) -> None:
    """A description with a misspelt option, or without its path, is refused by the option's name."""
    with pytest.raises(InvalidArgumentError, match=r"lock_timout|path"):
        open_source({"type": "sqlite", **options})


@pytest.mark.parametrize("declared", ["integer", "boolean"])
def test_a_fraction_in_a_column_of_integers_stops_the_export(tmp_path: Path, declared: str) -> None:
    """Both readers refuse it: nothing is cut silently."""
    path = str(tmp_path / "feeds.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"create table T (id integer primary key, v {declared})")
        source = open_source({"type": "sqlite", "path": path})
        source.set_up_feed("T")
        connection.execute("insert into T values (1, 2.5)")
        connection.execute('insert into "changefeed.outbox:T" (id) values (1)')
    source.drain("T")
    with pytest.raises(ColumnTypeError, match="'v'"):
        list(source.stream("T", 0, ALL))


def test_long_rows_make_small_batches(tmp_path: Path) -> None:
    """Not many rows but long values fill a worker's memory."""
    path = str(tmp_path / "feeds.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("create table T (id integer primary key, v blob)")
        source = open_source({"type": "sqlite", "path": path})
        source.set_up_feed("T")
        connection.executemany("insert into T values (?, zeroblob(16000000))", [(n,) for n in range(9)])
        connection.executemany('insert into "changefeed.outbox:T" (id) values (?)', [(n,) for n in range(9)])
    source.drain("T")
    assert [batch.num_rows for batch in source.stream("T", 0, ALL)] == [4, 4, 1]


def test_long_rows_make_small_batches_also_behind_short_ones(tmp_path: Path) -> None:
    """A range may be many hours, and one of them full of pictures."""
    path = str(tmp_path / "feeds.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("create table T (id integer primary key, v blob)")
        source = open_source({"type": "sqlite", "path": path})
        source.set_up_feed("T")
        for first, rows, size in ((0, 300, 1), (300, 9, 16_000_000), (309, 300, 1)):
            for number in range(first, first + rows):
                time = 1_356_998_400_000 + first * 100_000 + number
                connection.execute("insert into T values (?, zeroblob(?))", (number, size))
                connection.execute(
                    'insert into "changefeed.outbox:T" (time_hint, id) values (?, ?)', (time, number)
                )
    source.drain("T")
    whole = UlidRange(Ulid.floor_milliseconds(1_356_998_400_000).previous(), source.shards("T")[0].head)
    batches = list(source.stream("T", 0, whole))
    assert sum(batch.num_rows for batch in batches) == 609
    assert max(batch.nbytes for batch in batches) < 80_000_000


def test_a_full_disk_is_transient(
    source: SqliteFeedSource, sql: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun is rolled back, and goes on when there is space."""
    numbers = "with n(i) as (select 1 union all select i + 1 from n where i < 2000)"
    sql(f"{numbers} insert into t (id) select i from n")
    sql(f"insert into {OUTBOX} (id) select id from t")
    real = sqlite3.connect

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = real(*arguments, **options)
        # As large as the file is now: SQLite then says what it says of a full disk.
        connection.execute("pragma max_page_count = 1")
        connection.execute("pragma temp.max_page_count = 3")
        return connection

    with monkeypatch.context() as full:
        full.setattr(sqlite3, "connect", connect)
        calls = (
            lambda: source.drain("t"),
            lambda: source.insert_history(
                "t", 0, [(source.now() - HOUR, (number,)) for number in range(2000)], reason="x"
            ),
        )
        for call in calls:
            with pytest.raises(SourceUnavailableError, match="database or disk is full; check the disk"):
                call()
    assert source.drain("t")
    assert len(source.read_feed("t", 0, Ulid.MIN, 10_000)) == 2000


def test_a_process_without_files_to_open_is_transient(source: SqliteFeedSource) -> None:
    """SQLite says no more than of a file that is not there; so with a disk without inodes."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 50, limits[1]))
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(SourceUnavailableError, match="limit of open files; then retry"):
            source.feeds()
    finally:
        for number in taken:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [info.name for info in source.feeds()] == ["t"]
