# SPDX-License-Identifier: Apache-2.0
"""What a snapshot must not survive, or must not lose: gaps, files, columns, other readers, killed commits."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.capture import CaptureSpec, KeyChange, TableCapture
from airflow_changefeed.exceptions import (
    CaptureGapError,
    FoldError,
    ForeignOutputError,
    SnapshotError,
    TransientError,
)
from airflow_changefeed.lake.fold_plan import find_fold
from airflow_changefeed.lake.snapshot_ranges import RangesToRead, read_ranges
from airflow_changefeed.lake.snapshots import Snapshot, SnapshotFiles
from airflow_changefeed.lake.states import BaseChoice
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base_capture import key_ranges
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.lake.stock import CAPTURE, TABLE, Stock


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    """A table of a hundred rows."""
    return Stock.create(tmp_path)


def take(stock: Stock, then: Any = lambda number: None, **more: Any) -> Snapshot:
    """Take a snapshot here, and do something behind each range."""

    def read(files: SnapshotFiles, wanted: RangesToRead) -> None:
        for number, range_ in wanted.of_task(0):
            read_ranges(stock.source, files, wanted, [(number, range_)])
            then(number)

    request = SnapshotRequest(CAPTURE, None, stock.lake, "tests/run", **{"range_rows": 30, **more})
    return take_snapshot(stock.source, request, None, read, lambda line: None)


def snapshots(stock: Stock) -> SnapshotFiles:
    """The folder of the snapshots."""
    database = stock.source.identity().id
    return SnapshotFiles(stock.lake, CAPTURE, TABLE, database=database)


def rows(stock: Stock, taken: Snapshot) -> list[dict[str, Any]]:
    """What a snapshot has read."""
    folder = snapshots(stock).folder(taken.token)
    return [row for name in taken.files for row in pq.read_table(f"{folder}/{name}").to_pylist()]


def load_unseen(stock: Stock) -> None:
    """Insert rows without triggers, find that, and resolve it."""
    with closing(sqlite3.connect(stock.source.database.path, isolation_level=None)) as one:
        names = one.execute("select name from sqlite_master where type = 'trigger'").fetchall()
        for (name,) in names:
            one.execute(f'drop trigger "{name}"')
        one.execute(f'insert into "{TABLE}" values (1001, null, null), (1002, null, null)')
    with pytest.raises(CaptureGapError):
        stock.source.seal(CAPTURE, stock.source.now())
    stock.source.resolve_capture(CAPTURE, note="a bulk load", by="tests")


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_gap_is_known_from_windows_without_events(stock: Stock, is_changed: bool) -> None:
    """A bulk load, after which nothing happens: a fold behind it is refused until the next snapshot."""
    store = ExportStore(stock.export, CAPTURE)
    if is_changed:
        stock.change("update stock set name = 'before' where id < 4")
    else:
        stock.change("update stock set name = 'x' where id = 1")
    taken = take(stock)
    if is_changed:
        stock.change("update stock set name = 'between' where id < 4")
    first = stock.export_all()
    assert find_fold(store, first.end, None, BaseChoice(stock.lake)).base is not None
    load_unseen(stock)
    second = stock.export_all(first.end)
    assert store.list(start=second.start)[0].rows == 0
    with pytest.raises(FoldError, match=r"cannot be its base: the capture missed changes"):
        find_fold(store, second.end, None, BaseChoice(stock.lake, taken.begin))
    without = find_fold(store, second.end, None, BaseChoice(stock.lake))
    assert without.base is None
    assert "missed changes" in without.unknown
    assert "the snapshot of" in without.unknown
    assert find_fold(store, first.end, None, BaseChoice(stock.lake)).base is not None
    again = take(stock)
    third = stock.export_all(second.end)
    base = find_fold(store, third.end, None, BaseChoice(stock.lake)).base
    assert base.begin == again.begin


@pytest.mark.parametrize("reader", ["sqlite3", "adbc"])
@pytest.mark.parametrize("kind", ["real", "numeric", "text", "blob", "integer"])
def test_keys_of_each_class_are_read(tmp_path: Path, kind: str, reader: str) -> None:
    """By both readers, in ranges of each length."""
    values = {
        "real": [-1e300, -0.5, 0.0, 1e-310, 0.1, 2.5, float("inf")],
        "numeric": [-3, 0, 0.25, 7, 7.5, 10**12],
        "text": ["", "a", "A", "ä", "\U0001f600", "a\x00b", "x" * 5000],
        "blob": [b"", b"\x00", b"a", b"\xff" * 20],
        "integer": [-(2**63), -1, 0, 1, 2**63 - 1],
    }[kind]
    path = tmp_path / "keys.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'create table "k" (id {kind} not null primary key, n integer) without rowid')
        connection.executemany('insert into "k" values (?, 1)', [(value,) for value in values])
        connection.commit()
    source = SqliteFeedSource(str(path), bulk_reader=reader)
    source.enable_capture(CaptureSpec((TableCapture("k"),), key_change=KeyChange.DELETE_INSERT))
    for size in (1, 2, 100):
        ranges = key_ranges(source.cut_table("k_changes", "k", size))
        found = [
            row["id"]
            for range_ in ranges
            for batch in source.stream_table("k_changes", "k", range_)
            for row in batch.to_pylist()
        ]
        assert sorted(found, key=repr) == sorted(map(type(found[0]), values), key=repr)


@pytest.mark.parametrize("is_finer", [True, False])
def test_ranges_of_another_reading_are_not_committed(stock: Stock, is_finer: bool) -> None:
    """
    Two began at the same moment with ranges of other lengths: the last one to write its plan counts.
    Whichever reading of one range is there last counts as well.
    """
    files = snapshots(stock)

    def read_otherwise(number: int) -> None:
        (claim,) = stock.source.snapshots()
        begun = files.begun(claim.token)
        if number:
            return
        place, range_ = 0, files.ranges(claim.token)[0].range
        if is_finer:
            place, range_ = 7, key_ranges(stock.source.cut_table(CAPTURE, TABLE, 10))[7]
        else:
            files.remove_range(claim.token, 0)
        wanted = RangesToRead(CAPTURE, TABLE, stock.lake, claim.token, begun.database, (place,), (range_,), 1)
        read_ranges(stock.source, files, wanted, wanted.of_task(0))

    taken = take(stock, read_otherwise)
    assert sorted(row["id"] for row in rows(stock, taken)) == list(range(1, 101))
    assert (taken.rows, len(taken.files)) == (100, 4)
    assert taken.exact_from - taken.begin < timedelta(minutes=1)


def _add_again(stock: Stock) -> None:
    stock.source.refresh_capture(CAPTURE, without=["amount"])
    stock.change("alter table stock drop column amount", "alter table stock add column amount real")
    stock.source.refresh_capture(CAPTURE)


def test_a_column_that_was_dropped_and_added_again_discards_it(stock: Stock) -> None:
    """It has the same name and type, and other values, which no event has; so one of before is missing."""
    first = take(stock)
    _add_again(stock)
    second = take(stock, only_if_missing=True)
    assert second.token != first.token
    assert take(stock, only_if_missing=True) == second
    with pytest.raises(TransientError, match="the table's columns were changed"):
        take(stock, lambda number: _add_again(stock) if number == 1 else None)
    assert {row["amount"] for row in rows(stock, take(stock))} == {None}


def test_one_without_the_present_columns_is_missing(stock: Stock) -> None:
    """A fold could not start from it."""
    stock.source.refresh_capture(CAPTURE, without=["amount"])
    first = take(stock, only_if_missing=True)
    assert take(stock, only_if_missing=True) == first
    stock.source.refresh_capture(CAPTURE)
    second = take(stock, only_if_missing=True)
    assert second.token != first.token
    assert {row["id"]: row["amount"] for row in rows(stock, second)}[4] == 1.0


def test_a_file_that_is_gone_is_read_again(stock: Stock) -> None:
    """So that a snapshot that counts is whole."""

    def lose(number: int) -> None:
        if number == 2:
            (claim,) = stock.source.snapshots()
            next(Path(snapshots(stock).folder(claim.token)).glob("part-00000-*")).unlink()

    taken = take(stock, lose)
    assert len(rows(stock, taken)) == 100


def test_a_damaged_snapshot_is_in_nobodys_way(stock: Stock) -> None:
    """A new one is taken, also where one is wanted only if there is none."""
    first = take(stock)
    folder = Path(snapshots(stock).folder(first.token))
    (folder / first.files[0]).unlink()
    second = take(stock, only_if_missing=True)
    assert second.token != first.token
    (folder / "snapshot.json").write_text("{")
    assert take(stock, only_if_missing=True) == second
    assert take(stock).token > second.token


def test_one_of_another_database_is_not_usable(stock: Stock) -> None:
    """A copy of the database has other events since: it is told to use another path, not that all is well."""
    first = take(stock)
    stock.source.renew_identity()
    with pytest.raises(ForeignOutputError, match="Their events must not be mixed"):
        take(stock, only_if_missing=True)
    assert snapshots(stock).all() == [first]


def test_what_was_left_by_others_is_removed(stock: Stock) -> None:
    """
    Of a snapshot that was given up nothing stays, and where another run has discarded it a retry takes a new
    one; of one that is complete its own files stay.
    """

    def give_up(number: int, *, is_discarded: bool = False) -> None:
        if number == 1:
            (claim,) = stock.source.snapshots()
            stock.source.end_snapshot(CAPTURE, TABLE, token=claim.token)
            if is_discarded:
                snapshots(stock).discard(claim.token)

    with pytest.raises(SnapshotError, match="was given up"):
        take(stock, give_up)
    with pytest.raises(TransientError, match="A retry takes a new snapshot"):
        take(stock, partial(give_up, is_discarded=True))
    first = take(stock)
    folder = Path(snapshots(stock).folder(first.token))
    (folder / "part-00000-00ff.parquet").write_bytes(b"left")
    second = take(stock)
    there = {path.name for path in folder.parent.iterdir()}
    assert there == {first.token, second.token}
    assert {path.name for path in folder.glob("part-*")} == set(first.files)


def test_one_that_is_found_holds_back_no_purge(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its run was killed right behind the commit."""
    with monkeypatch.context() as patched:
        patched.setattr(stock.source, "end_snapshot", lambda *of, token: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            take(stock)
    assert len(stock.source.snapshots()) == 1
    take(stock, only_if_missing=True)
    assert stock.source.snapshots() == []


def test_a_disk_that_fills_stops_it_and_leaves_the_last_base(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file; what was read stays, and folds go on from the snapshot before."""
    stock.change("update stock set name = 'before' where id < 4")
    first = take(stock)
    real, written = pq.ParquetWriter.write_batch, list[int]()

    def write(self: Any, batch: Any) -> None:
        written.append(1)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, batch)

    with monkeypatch.context() as full:
        full.setattr(pq.ParquetWriter, "write_batch", write)
        with pytest.raises(TransientError, match=r"part-00002-.* has no space left: No space left"):
            take(stock)
    window = stock.export_all()
    base = find_fold(ExportStore(stock.export, CAPTURE), window.end, None, BaseChoice(stock.lake)).base
    assert base.begin == first.begin
    done: list[int] = []
    assert take(stock, done.append).rows == 100
    assert done == [2, 3]


def test_a_path_that_workers_do_not_share_is_named(stock: Stock) -> None:
    """Their ranges are read, and lie elsewhere."""
    request = SnapshotRequest(CAPTURE, None, stock.lake, "tests/run", range_rows=30)
    with pytest.raises(
        TransientError,
        match=r"4 ranges .* are not in .*: this task and Spark's workers must see the same folder",
    ):
        take_snapshot(stock.source, request, None, lambda files, wanted: None, lambda line: None)


def test_a_clock_that_is_set_back_is_waited_for(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is never exact from a time before its begin."""
    real = stock.source.database.now_ms
    back = {"ms": 0}
    monkeypatch.setattr(stock.source.database, "now_ms", lambda: real() - back["ms"])
    taken = take(stock, lambda number: back.update(ms=300))
    assert taken.exact_from > taken.begin
