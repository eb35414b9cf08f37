# SPDX-License-Identifier: Apache-2.0
"""Captures without events, and snapshots that are exact only later: what is refused, and what is named."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.capture import CaptureSpec, KeyChange, TableCapture
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.cursors.window_grid import end_of_window
from airflow_changefeed.exceptions import FoldError, NotExportedError
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.lake.plan import find_fold, table_of
from airflow_changefeed.lake.snapshot_ranges import read_here
from airflow_changefeed.lake.snapshots import SnapshotFiles
from airflow_changefeed.lake.states import BaseChoice
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.identity import DATABASE
from tests.unit.lake.lake import merge_here, take
from tests.unit.lake.stock import CAPTURE, TABLE, Stock
from tests.unit.lake.test_newest import Lake


@pytest.mark.parametrize("shard", ["+1", " +1 "])
def test_a_shard_with_a_plus_is_a_number_on_both_engines(tmp_path: Path, shard: str) -> None:
    """T-SQL's try_convert takes it, and so does the pattern of whole numbers in the plan of SQLite."""
    stock = Stock.create(tmp_path, shard=shard)
    assert [status.shard for status in stock.source.shards(CAPTURE)] == [1]


def test_a_capture_of_an_older_version_gets_its_shard_when_it_is_enabled_again(tmp_path: Path) -> None:
    """It was made before captures got their shards; nobody has changed its table yet."""
    stock = Stock.create(tmp_path, shard="0")
    with closing(sqlite3.connect(stock.source.database.path)) as connection:
        connection.execute(f'delete from "changefeed.state:{CAPTURE}"')
        connection.commit()
    assert stock.source.shards(CAPTURE) == []
    stock.source.disable_capture(CAPTURE)
    stock.source.enable_capture(stock.source.capture(CAPTURE).spec)
    assert [status.shard for status in stock.source.shards(CAPTURE)] == [0]


def test_a_consumer_may_begin_at_a_ulid_in_a_capture_without_events(tmp_path: Path) -> None:
    """As it may where the shard is an expression, and as it could before: no event is before it."""
    for shard, folder in (("id % 3", tmp_path / "a"), ("0", tmp_path / "b")):
        folder.mkdir()
        stock = Stock.create(folder, shard=shard)
        start = Ulid.floor(stock.source.now())
        create_consumer(stock.source, ConsumerSpec("c", CAPTURE), start, by="tests")


def test_a_named_snapshot_that_is_exact_later_is_named_with_its_time(tmp_path: Path) -> None:
    """Not only where the newest one is taken: the refusal names no time, and tells to choose from none."""
    stock = Stock.create(tmp_path, shard="0")
    first = stock.export_all()
    take(stock.source, CAPTURE, stock.lake)
    store = ExportStore(stock.export, CAPTURE)
    (snapshot,) = SnapshotFiles(stock.lake, CAPTURE, TABLE, database=store.database()).all()
    with pytest.raises(FoldError) as caught:
        find_fold(store, first.end, TABLE, BaseChoice(stock.lake, snapshot.begin))
    assert format_time(snapshot.exact_from) in caught.value.message


class TestTwoTables:
    """A capture of two tables that nobody has changed yet."""

    OTHER = "shop.other"

    @pytest.fixture
    def store(self, tmp_path: Path) -> ExportStore:
        """Its export of a quiet window."""
        path = tmp_path / "shop.db"
        with closing(sqlite3.connect(path)) as connection:
            for table in (TABLE, self.OTHER):
                connection.execute(f'create table "{table}" (id integer primary key, name text)')
                connection.execute(f"insert into \"{table}\" values (1, 'one')")
            connection.commit()
        self.source = SqliteFeedSource(str(path))
        tables = (TableCapture(TABLE), TableCapture(self.OTHER))
        self.source.enable_capture(CaptureSpec(tables, CAPTURE, key_change=KeyChange.DELETE_INSERT))
        self.lake = str(tmp_path / "lake")
        store = ExportStore(str(tmp_path / "out"), CAPTURE)
        start = self.source.capture(CAPTURE).enabled_at
        while (end := self.source.now()) <= start:
            pass
        self.source.seal(CAPTURE, end)
        request = ExportRequest(CAPTURE, store.path, "tests", "tests/run", [Window(start, end)])
        run_here(self.source, store, make_plan(self.source, store, request), lambda line: None)
        return store

    def take(self, table: str) -> None:
        """Take a snapshot of one."""
        request = SnapshotRequest(CAPTURE, table, self.lake, "tests/run")
        take_snapshot(self.source, request, {}, lambda *of: read_here(self.source, *of), lambda line: None)

    def test_the_refusal_names_the_tables(self, store: ExportStore) -> None:
        """Both have a snapshot: to wait for events does not help, to name the table does."""
        self.take(TABLE)
        self.take(self.OTHER)
        with pytest.raises(FoldError) as caught:
            table_of(store, None, BaseChoice(self.lake))
        assert TABLE in caught.value.message
        assert self.OTHER in caught.value.message

    def test_the_only_table_with_a_snapshot_is_not_the_only_table(self, store: ExportStore) -> None:
        """With the first event the same merge is refused, as the capture has two: so it is from the start."""
        self.take(TABLE)
        with pytest.raises(FoldError, match="several tables"):
            table_of(store, None, BaseChoice(self.lake))


def test_a_snapshot_that_is_exact_later_is_named_beside_a_state_of_no_use(tmp_path: Path) -> None:
    """Somebody took it because the capture was recreated: the old state hides that it is for later."""
    lake = Lake(Stock.create(tmp_path, shard="0"))
    lake.snapshot()
    lake.fold()
    stock = lake.stock
    spec = stock.source.capture(CAPTURE).spec
    stock.source.drop_feed(CAPTURE)
    stock.source.enable_capture(spec)
    stock.change("insert into stock (name) values ('new')")
    end = stock.export_all(lake.end).end
    late = lake.snapshot()
    assert late.exact_from > end
    store, bases = ExportStore(stock.export, CAPTURE), BaseChoice(stock.lake)
    try:
        said = find_fold(store, end, TABLE, bases).unknown
    except FoldError as error:
        said = error.message
    assert format_time(late.exact_from) in said, said


def test_the_window_of_a_time_ends_by_the_unit_also_where_no_shard_is_yet(tmp_path: Path) -> None:
    """As of a capture whose shard is an expression, in its quiet first hours."""
    store = ExportStore(str(tmp_path / "out"), CAPTURE)
    store.claim(DATABASE, unit=timedelta(hours=1))
    start = datetime(2013, 1, 1, tzinfo=timezone.utc)
    assert end_of_window(store, start + timedelta(minutes=12)) == start + timedelta(hours=1)


def test_a_base_of_before_a_capture_was_recreated_is_not_used_in_quiet_hours(tmp_path: Path) -> None:
    """
    What changed between the drop and the new capture nobody has recorded: the fold would be wrong, silently.

    Its quiet hours are empty units now, which say nothing of when the capture began.
    """
    lake = Lake(Stock.create(tmp_path, shard="0"))
    lake.snapshot()
    lake.fold()
    stock = lake.stock
    spec = stock.source.capture(CAPTURE).spec
    stock.source.drop_feed(CAPTURE)
    stock.change("delete from stock where id < 50")
    stock.source.enable_capture(spec)
    end = stock.export_all(lake.end).end
    store = ExportStore(stock.export, CAPTURE)
    try:
        said = find_fold(store, end, TABLE, BaseChoice(stock.lake)).unknown
    except (FoldError, NotExportedError) as error:
        said = error.message
    assert said


def test_quiet_hours_of_a_recreated_capture_are_not_merged(tmp_path: Path) -> None:
    """The frontier moves over changes that nobody has recorded; only the first event has it refused."""
    stock = Stock.create(tmp_path, shard="0")
    take(stock.source, CAPTURE, stock.lake)
    paths = {"path": stock.export, "output": stock.lake}
    stock.change("insert into stock (name) values ('new')")
    first = stock.export_all()
    assert merge_here(stock.source, CAPTURE, TABLE, paths, first.end).rows == 101
    spec = stock.source.capture(CAPTURE).spec
    stock.source.drop_feed(CAPTURE)
    stock.change("delete from stock where id < 50")
    stock.source.enable_capture(spec)
    second = stock.export_all(first.end)
    with pytest.raises((FoldError, NotExportedError)):
        merge_here(stock.source, CAPTURE, TABLE, paths, second.end)
