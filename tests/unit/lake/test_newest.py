# SPDX-License-Identifier: Apache-2.0
"""Which of states and snapshots a fold starts from: what a snapshot mends must not come back by a state."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.values import EPOCH
from airflow_changefeed.exceptions import CaptureGapError, FoldError
from airflow_changefeed.lake.fold_plan import find_fold
from airflow_changefeed.lake.snapshot_ranges import RangesToRead, read_here
from airflow_changefeed.lake.snapshots import ReadingFiles, Snapshot, SnapshotFiles
from airflow_changefeed.lake.states import BaseChoice, StateStore, new_attempt
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.output.store import ExportStore
from tests.unit.lake.stock import CAPTURE, TABLE, Stock


class Lake:
    """An export that goes on, with states and snapshots."""

    def __init__(self, stock: Stock) -> None:
        self.stock = stock
        self.end: datetime | None = None

    def base(self, at: datetime | None = None, named: datetime | str = "newest") -> Any:
        """Return what a fold of a time starts from, or of the end of the export."""
        store = ExportStore(self.stock.export, CAPTURE)
        return find_fold(store, at or self.end, TABLE, BaseChoice(self.stock.lake, named)).base

    def fold(self) -> datetime:
        """Export until now, and leave a state without rows; return its time."""
        self.stock.change("insert into stock (name) values ('new')")
        self.end = at = self.stock.export_all(self.end).end
        store = ExportStore(self.stock.export, CAPTURE)
        states = StateStore(self.stock.lake, CAPTURE, TABLE, database=store.database())
        states.claim()
        attempt = new_attempt()
        with states.files.writer(f"{states.writing(at, attempt)}/part-0.parquet") as file:
            pq.write_table(pa.table({"id": pa.array([], pa.int64())}), file)
        found = find_fold(store, at, TABLE, BaseChoice(self.stock.lake))
        states.commit(at, attempt, found.base_facts())
        return at

    def snapshot(self, *, folds_meanwhile: int = 0) -> Snapshot:
        """Take one, while the hourly fold and the nightly purge go on."""
        source = self.stock.source

        def read(files: SnapshotFiles, wanted: RangesToRead) -> None:
            for _ in range(folds_meanwhile):
                self.fold()
            source.purge(CAPTURE, source.now() - timedelta(days=90))
            read_here(source, files, wanted)

        request = SnapshotRequest(CAPTURE, None, self.stock.lake, "tests/run")
        return take_snapshot(source, request, None, read, lambda line: None)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A table that is folded from a snapshot."""
    lake = Lake(Stock.create(tmp_path))
    lake.snapshot()
    lake.fold()
    return lake


def test_a_snapshot_goes_before_states_that_go_back_to_an_earlier_one(lake: Lake) -> None:
    """Also before those at later times, which were folded while it was read; then its own states go on."""
    taken = lake.snapshot(folds_meanwhile=2)
    meanwhile = lake.end
    assert taken.begin < meanwhile < taken.exact_from
    own = lake.fold()
    first = lake.base()
    assert (first.begin, first.exact_from) == (taken.begin, taken.exact_from)
    assert first.facts.origin == taken.begin
    next_one = lake.fold()
    base = lake.base(next_one)
    assert (base.begin, base.facts.origin) == (own, taken.begin)


def test_a_snapshot_is_no_base_of_a_time_at_which_it_is_not_exact_yet(lake: Lake) -> None:
    """Rows that were read after that time are in it."""
    taken = lake.snapshot(folds_meanwhile=1)
    meanwhile = lake.end
    assert taken.begin < meanwhile < taken.exact_from
    base = lake.base(meanwhile)
    assert base.begin < taken.begin


def read_to_compare(lake: Lake) -> Snapshot:
    """Read the table, for a comparison."""
    source = lake.stock.source
    request = SnapshotRequest(CAPTURE, None, lake.stock.lake, "tests/run", to_compare=True)
    return take_snapshot(source, request, None, partial(read_here, source), lambda line: None)


def test_a_reading_that_waits_to_be_compared_stays_beside_a_new_snapshot(lake: Lake) -> None:
    """What its table is compared with may be exported later."""
    reading = read_to_compare(lake)
    lake.snapshot()
    assert ReadingFiles(lake.stock.lake, CAPTURE, TABLE).read(reading.token) == reading


def test_a_reading_that_became_a_snapshot_is_not_compared_with_itself(lake: Lake) -> None:
    """As behind a repair that was killed: nothing would ever differ."""
    reading = read_to_compare(lake)
    SnapshotFiles(lake.stock.lake, CAPTURE, TABLE).commit(reading)
    lake.end = lake.stock.export_all(lake.end).end
    bases = BaseChoice(lake.stock.lake, "newest", without=reading.token)
    base = find_fold(ExportStore(lake.stock.export, CAPTURE), lake.end, TABLE, bases).base
    assert base.begin < reading.begin


def test_a_named_base_stays_as_it_is(lake: Lake) -> None:
    """Nothing else is taken in place of what was named; a time in between has the state before it."""
    before = lake.end
    taken = lake.snapshot(folds_meanwhile=2)
    meanwhile = lake.end
    assert before < lake.base(meanwhile).begin < meanwhile
    lake.fold()
    named = lake.base(named=meanwhile)
    assert (named.begin, named.facts.origin != taken.begin) == (meanwhile, True)


def test_a_snapshot_of_another_database_is_no_base(lake: Lake) -> None:
    """Where it has come into the folder of this one: states go on as if it was not there, named or not."""
    own = lake.fold()
    taken = lake.snapshot()
    document = Path(SnapshotFiles(lake.stock.lake, CAPTURE, TABLE).folder(taken.token), "snapshot.json")
    document.write_text(replace(taken, database="another").to_json())
    lake.end = lake.stock.export_all(lake.end).end
    base = lake.base()
    assert base.begin == own
    with pytest.raises(FoldError, match="has no state of that time, and no snapshot that began then"):
        lake.base(named=taken.begin)


def test_states_from_the_beginning_give_way_to_a_snapshot(tmp_path: Path) -> None:
    """A shard that came while it was read is in no earlier window, and is not asked for there."""
    lake = Lake(Stock.create(tmp_path, rows=0))
    first = lake.fold()
    second = lake.fold()
    base = lake.base(second)
    assert (base.begin, base.facts.origin) == (first, EPOCH)
    taken = lake.snapshot(folds_meanwhile=1)
    assert taken.base.shards == (1, 2)
    lake.fold()
    base = lake.base()
    assert base.begin == taken.begin


def test_a_snapshot_that_is_of_no_use_any_more_leaves_states_their_turn(lake: Lake) -> None:
    """As behind a gap: the rows were recorded again, and states go back to that."""
    source = lake.stock.source
    with closing(sqlite3.connect(source.describe()["path"], isolation_level=None)) as connection:
        found = "select name, sql from sqlite_master where type = 'trigger'"
        triggers = connection.execute(found).fetchall()
        for name, _ in triggers:
            connection.execute(f'drop trigger "{name}"')
        connection.execute(f"insert into \"{TABLE}\" (name) values ('lost')")
        for _, sql in triggers:
            connection.execute(sql)
    with pytest.raises(CaptureGapError):
        source.seal(CAPTURE, source.now())
    source.resolve_capture(CAPTURE, note="counted", by="anna", resync=True)
    first = lake.fold()
    assert lake.base() is None
    lake.fold()
    base = lake.base()
    assert (base.begin, base.facts.origin) == (first, EPOCH)
