# SPDX-License-Identifier: Apache-2.0
"""Captures without events, and snapshots that are exact only later: what is refused, and what is named."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.capture import CaptureSpec, KeyChange, TableCapture
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.cursors.window_grid import end_of_window
from airflow_changefeed.exceptions import FoldError, NotExportedError
from airflow_changefeed.lake.fold_plan import find_fold, table_of
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


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    """A table with rows that nobody has changed yet; it has one shard."""
    return Stock.create(tmp_path, shard="0")


def test_quiet_hours_are_merged_from_a_snapshot_and_go_on_with_the_first_event(stock: Stock) -> None:
    """Each window is a unit, so nothing has to be exported again later."""
    take(stock.source, CAPTURE, stock.lake)
    paths = {"path": stock.export, "output": stock.lake}
    first = stock.export_all()
    (manifest,) = ExportStore(stock.export, CAPTURE).list()
    assert (manifest.unit.shard, manifest.unit.window, manifest.rows) == (0, first, 0)
    merged = merge_here(stock.source, CAPTURE, TABLE, paths, first.end)
    assert (merged.table, merged.rows) == (TABLE, 100)
    second = stock.export_all(first.end)
    assert merge_here(stock.source, CAPTURE, TABLE, paths, second.end).rows == 100
    stock.change("insert into stock (name) values ('new')")
    third = stock.export_all(second.end)
    source = find_fold(ExportStore(stock.export, CAPTURE), third.end, TABLE, BaseChoice(stock.lake))
    assert sum(file.facts.rows for group in source.groups for file in group.files) == 1
    assert not source.unknown


def test_a_snapshot_that_is_exact_later_is_named_with_its_time(stock: Stock) -> None:
    """
    It is why the window before it cannot be merged, whether it is named or the newest; the
    next one can.
    """
    first = stock.export_all()
    take(stock.source, CAPTURE, stock.lake)
    store, bases = ExportStore(stock.export, CAPTURE), BaseChoice(stock.lake)
    (snapshot,) = SnapshotFiles(stock.lake, CAPTURE, TABLE, database=store.database()).all()
    said = rf"can be used from {format_time(snapshot.exact_from)} on"
    for choice in (bases, BaseChoice(stock.lake, snapshot.begin)):
        with pytest.raises(FoldError, match=said):
            find_fold(store, first.end, TABLE, choice)
    stock.change("insert into stock (name) values ('new')")
    second = stock.export_all(first.end)
    assert find_fold(store, second.end, TABLE, bases).base is not None
    unknown = find_fold(store, first.end, TABLE, bases).unknown
    assert re.search("did not record the rows .* can be used from", unknown)


def test_one_of_two_quiet_tables_is_named(tmp_path: Path) -> None:
    """
    Whichever of them have a snapshot: with the first event the same merge is refused, so it is from the
    start, with the tables to choose from.
    """
    other, path = "shop.other", tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        for table in (TABLE, other):
            connection.execute(f'create table "{table}" (id integer primary key, name text)')
            connection.execute(f"insert into \"{table}\" values (1, 'one')")
        connection.commit()
    stock = Stock(tmp_path, SqliteFeedSource(str(path)))
    tables = (TableCapture(TABLE), TableCapture(other))
    stock.source.enable_capture(CaptureSpec(tables, CAPTURE, key_change=KeyChange.DELETE_INSERT))
    stock.export_all()
    for table in (TABLE, other):
        request = SnapshotRequest(CAPTURE, table, stock.lake, "tests/run")
        take_snapshot(stock.source, request, {}, partial(read_here, stock.source), lambda line: None)
        with pytest.raises(FoldError, match="several tables") as caught:
            table_of(ExportStore(stock.export, CAPTURE), None, BaseChoice(stock.lake))
        assert TABLE in caught.value.message
    assert other in caught.value.message


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
