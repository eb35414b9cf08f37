# SPDX-License-Identifier: Apache-2.0
"""Comparing a table with what its export gives, and mending that, while others write."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.capture import CapturedTable, CaptureShape, KeyChange, Operation
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import (
    CaptureNotFoundError,
    FoldError,
    ForeignOutputError,
    InvalidArgumentError,
    ManifestError,
    NotExportedError,
    ReconcileError,
    SnapshotError,
    TransientError,
)
from airflow_changefeed.lake.bases import Base
from airflow_changefeed.lake.fold_plan import FoldSource, fold_from
from airflow_changefeed.lake.reconcile import ReconcileRequest, reconcile
from airflow_changefeed.lake.reconciliation import Comparison, Reconciliation
from airflow_changefeed.lake.snapshot_ranges import RangesToRead, read_here
from airflow_changefeed.lake.snapshots import ReadingFiles, SnapshotFiles
from airflow_changefeed.lake.states import BaseFacts, new_attempt
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.output.schemas import schema_text
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.fold import SETTINGS, session_settings
from airflow_changefeed.spark.reconcile import compare
from tests.identity import DATABASE
from tests.integration.spark.shop import Shop
from tests.unit.export.captures import CAPTURE as SHOES
from tests.unit.export.captures import CapturedExport
from tests.unit.export.flights import START
from tests.unit.lake.stock import CAPTURE, TABLE, Stock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    """A table of a hundred rows with a snapshot."""
    return Shop(spark, Stock.create(tmp_path))


@pytest.mark.ci
def test_a_table_that_was_recorded_equals_its_export(shop: Shop) -> None:
    """Also what changed while it was read, and later; the report says so, and what was read is gone."""
    shop.stock.change(
        "update stock set name = 'new' where id < 50", "insert into stock values (500, 'x', null)"
    )
    with pytest.raises(NotExportedError):
        shop.reconcile()
    shop.stock.change("delete from stock where id = 7", "update stock set id = 700 where id = 70")
    shop.export()
    found = shop.reconcile()
    assert (found.equal, found.rows, found.differences) == (True, 101, ())
    assert found.base.startswith("the snapshot of ")
    assert found.begin < found.at < shop.exported
    assert Reconciliation.from_json(Path(found.report).read_text(), named="report") == found
    readings = ReadingFiles(shop.stock.lake, CAPTURE, TABLE)
    assert (readings.all(), len(SnapshotFiles(shop.stock.lake, CAPTURE, TABLE).all())) == ([], 1)
    assert len(readings.files.names(readings.folder(""))) == 1


def test_each_difference_is_found_and_mended(shop: Shop) -> None:
    """Missing and extra rows, changed values, null or not, and rows whose values were swapped."""
    shop.behind(
        "insert into stock values (-5, 'new', 1.0), (-4, 'new', null)",
        "delete from stock where id in (10, 11)",
        "update stock set name = null where id = 20",
        "update stock set name = 'NAME 21' where id = 21",
        "update stock set name = 'name 22 ' where id = 22",
        "update stock set amount = amount + 0.001 where id = 23",
        "update stock set name = 'name 31', amount = 7.75 where id = 30",
        "update stock set name = 'name 30', amount = 7.5 where id = 31",
    )
    shop.stock.change("update stock set name = 'known' where id = 50")
    found = shop.reconciled(repair=True)
    assert (found.missing, found.extra, found.different, found.rows) == (2, 2, 6, 100)
    assert [(one.kind, one.key["id"], one.columns) for one in found.differences] == [
        ("missing", "-5", ()),
        ("missing", "-4", ()),
        ("extra", "10", ()),
        ("extra", "11", ()),
        ("different", "20", ("name",)),
        ("different", "21", ("name",)),
        ("different", "22", ("name",)),
        ("different", "23", ("amount",)),
        ("different", "30", ("name", "amount")),
        ("different", "31", ("name", "amount")),
    ]
    assert found.repaired
    found.check()
    shop.export()
    assert shop.folded() == shop.stock.rows()
    again = shop.reconciled()
    assert again.equal


@pytest.mark.ci
def test_a_fold_between_reading_and_repair_does_not_bring_the_difference_back(shop: Shop) -> None:
    """As an hourly DAG folds what it exports: its states go back to what was wrong, at later times."""
    shop.fold()
    shop.behind(
        "update stock set name = 'NAME 10' where id = 10",
        "delete from stock where id = 11",
        "insert into stock values (300, 'a', 1.0)",
    )
    with pytest.raises(NotExportedError):
        shop.reconcile(repair=True)
    shop.fold()
    found = shop.reconcile(repair=True)
    assert (found.missing, found.extra, found.different, found.repaired) == (1, 1, 1, True)
    for _ in range(2):
        shop.stock.change("insert into stock (name) values ('new')")
        shop.fold()
        assert shop.folded() == shop.stock.rows()
    assert shop.reconciled(repair=True).equal


@pytest.mark.ci
def test_an_event_of_a_row_that_the_lake_never_had_is_a_missing_row(shop: Shop) -> None:
    """A fold from the old base fails there; repair mends that, too."""
    shop.behind(
        "insert into stock values (300, 'a', 1.0), (301, 'b', 1.0)", "delete from stock where id in (1, 2)"
    )
    shop.stock.change("update stock set name = 'c' where id = 300", "delete from stock where id = 301")
    found = shop.reconciled(repair=True)
    kinds = [("extra", "1"), ("extra", "2"), ("missing", "300"), ("missing", "301")]
    assert [(one.kind, one.key["id"]) for one in found.differences] == kinds
    shop.export()
    assert shop.folded() == shop.stock.rows()


@pytest.mark.ci
def test_a_retry_does_not_read_the_table_again(shop: Shop) -> None:
    """What was read waits for the export, but not longer than a day."""
    with pytest.raises(NotExportedError):
        shop.reconcile()
    (reading,) = ReadingFiles(shop.stock.lake, CAPTURE, TABLE).all()
    shop.stock.change("update stock set name = 'later' where id = 5")
    shop.said.clear()
    with pytest.raises(NotExportedError) as caught:
        shop.reconcile()
    assert caught.value.at == reading.exact_from
    assert shop.said == [
        f"changefeed snapshot: nothing to read, the snapshot of table {TABLE} of feed {CAPTURE} since "
        f"{format_time(reading.begin)} exists"
    ]
    # A snapshot of others removes what is left over, but not what waits.
    request = SnapshotRequest(CAPTURE, None, shop.stock.lake, "others")
    take_snapshot(shop.stock.source, request, None, partial(read_here, shop.stock.source), shop.said.append)
    shop.export()
    found = shop.reconcile()
    assert (found.at, found.equal) == (reading.exact_from, True)


@pytest.mark.ci
def test_what_waits_for_a_day_is_left(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says too little of the present: the table is read again, and what was read is removed."""
    with pytest.raises(NotExportedError):
        shop.reconcile()
    readings = ReadingFiles(shop.stock.lake, CAPTURE, TABLE)
    (first,) = readings.all()
    monkeypatch.setattr("airflow_changefeed.lake.snapshots.KEPT", timedelta(0))
    with pytest.raises(NotExportedError) as caught:
        shop.reconcile()
    assert caught.value.at > first.exact_from
    assert first.token not in readings.files.names(readings.folder(""))


def test_a_reading_and_a_snapshot_do_not_join(shop: Shop) -> None:
    """One would wait for ever for what the other has begun: the second is refused by name."""
    request = SnapshotRequest(CAPTURE, None, shop.stock.lake, "others")

    def stop(files: SnapshotFiles, wanted: RangesToRead) -> None:
        raise TransientError("not now")

    with pytest.raises(TransientError, match="not now"):
        take_snapshot(shop.stock.source, request, None, stop, shop.said.append)
    with pytest.raises(SnapshotError, match=r"that others began at .* has not ended"):
        shop.reconcile()


@pytest.mark.ci
def test_a_part_is_compared_alone(shop: Shop) -> None:
    """What differs elsewhere does not count; repairing a part is refused, as no fold would start from it."""
    shop.behind("update stock set name = 'x' where id in (10, 60)")
    found = shop.reconciled(where="id > 50")
    assert [(one.key["id"], one.columns) for one in found.differences] == [("60", ("name",))]
    assert (found.rows, found.where) == (50, "id > 50")
    with pytest.raises(InvalidArgumentError, match="repair needs the whole table"):
        shop.reconcile(where="id > 50", repair=True)


@pytest.mark.ci
def test_what_cannot_be_compared_is_refused(shop: Shop, tmp_path: Path) -> None:
    """With the remedy; what was read for it is gone."""
    shop.said.clear()
    with pytest.raises(CaptureNotFoundError):
        _reconcile(shop, "shop.none", shop.stock.export)
    with pytest.raises(ManifestError, match="holds no export of feed"):
        _reconcile(shop, CAPTURE, str(tmp_path / "nowhere"))
    ExportStore(str(tmp_path / "empty"), CAPTURE).claim("")
    with pytest.raises(NotExportedError, match="has no complete units yet; export the feed first"):
        _reconcile(shop, CAPTURE, str(tmp_path / "empty"))
    ExportStore(str(tmp_path / "other"), CAPTURE).claim("01ARZ3NDEKTSV4RRFFQ69G5FAV")
    with pytest.raises(ForeignOutputError):
        _reconcile(shop, CAPTURE, str(tmp_path / "other"))
    assert shop.said == []
    with pytest.raises(NotExportedError):
        shop.reconcile()
    shop.export()
    with pytest.raises(FoldError, match=r"did not record the rows that existed.*take a snapshot"):
        shop.reconcile(base="beginning")
    assert ReadingFiles(shop.stock.lake, CAPTURE, TABLE).all() == []


def _reconcile(shop: Shop, feed: str, path: str) -> None:
    request = ReconcileRequest(SnapshotRequest(feed, None, shop.stock.lake, "tests/run"), path)
    read = partial(read_here, shop.stock.source)
    reconcile(shop.stock.source, request, None, read, shop.compare, shop.said.append, shop.look)


@pytest.mark.ci
def test_a_part_is_no_base_to_compare_with(shop: Shop) -> None:
    """Rows that it does not have are not missing."""
    request = SnapshotRequest(CAPTURE, None, shop.stock.lake, "tests/run", where="id > 50")
    part = take_snapshot(
        shop.stock.source, request, None, partial(read_here, shop.stock.source), shop.said.append
    )
    shop.export()
    with pytest.raises(NotExportedError):
        shop.reconcile(base=part.begin)
    shop.export()
    with pytest.raises(
        ReconcileError, match=r"has only a part of table .* give where for the part to compare"
    ):
        shop.reconcile(base=part.begin)


class Typed:
    """Two readings of a table with columns of many types."""

    SCHEMA = pa.schema(
        [
            ("id", pa.binary()),
            ("text", pa.string()),
            ("double", pa.float64()),
            ("float", pa.float32()),
            ("blob", pa.binary()),
            ("price", pa.decimal128(9, 2)),
            ("whole", pa.int64()),
            ("day", pa.date32()),
            ("moment", pa.timestamp("us")),
            ("moment_100ns", pa.uint8()),
            ("instant", pa.timestamp("us", "UTC")),
            ("is_new", pa.bool_()),
        ]
    )
    ROW: ClassVar[dict[str, Any]] = {
        "text": "boot",
        "double": 0.0,
        "float": float("nan"),
        "blob": b"\x00\x01",
        "price": Decimal("9.50"),
        "whole": 7,
        "day": date(2013, 1, 1),
        "moment": datetime(2013, 1, 1, 12),
        "moment_100ns": 3,
        "instant": datetime(2013, 1, 1, 12, tzinfo=timezone.utc),
        "is_new": True,
    }

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        columns = {name: name for name in self.SCHEMA.names if name != "moment_100ns"}
        table = CapturedTable(("id",), dict.fromkeys(Operation, columns), is_whole=False)
        self.shape = CaptureShape(SHOES, KeyChange.DELETE_INSERT, False, {TABLE: table})
        self.spark = spark
        export = CapturedExport.create(folder / "out", shape=self.shape, image=self.SCHEMA)
        export.write([])
        self.store = export.store
        self.files = SnapshotFiles(str(folder / "lake"), SHOES, TABLE, database=DATABASE)

    def source(self, rows: list[dict[str, Any]]) -> FoldSource:
        """Return the fold of rows that were read, without events."""
        token = new_attempt()
        folder = Path(self.files.folder(token))
        folder.mkdir(parents=True)
        schema = self.SCHEMA.append(pa.field("changefeed_shard", pa.int64()))
        pq.write_table(
            pa.Table.from_pylist([{**row, "changefeed_shard": 0} for row in rows], schema),
            folder / "part-0.parquet",
        )
        fields = {name: name for name in self.SCHEMA.names}
        facts = BaseFacts(self.shape, schema_text(self.SCHEMA), fields, tuple(fields), (), START)
        base = Base("rows", TABLE, START, START, str(folder), facts, (str(folder / "part-0.parquet"),))
        return fold_from(self.store, base, START + timedelta(hours=1))


@pytest.mark.ci
def test_a_changed_value_of_each_type_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """Null or not; by case or blanks only; NaN is itself, and -0.0 is not 0.0."""
    changes: list[dict[str, Any]] = [
        {"text": "Boot"},
        {"text": "boot "},
        {"double": -0.0},
        {"double": None},
        {"double": float("nan")},
        {"float": 1.5},
        {"blob": b"\x00"},
        {"price": Decimal("9.49")},
        {"whole": None},
        {"day": date(2013, 1, 2)},
        {"moment": datetime(2013, 1, 1, 12, 0, 0, 1)},
        {"moment_100ns": 4},
        {"instant": None, "is_new": False},
        {},
    ]
    typed = Typed(spark, tmp_path)
    before = [{"id": bytes([number]), **Typed.ROW} for number in range(len(changes))]
    after = [{**row, **change} for row, change in zip(before, changes, strict=True)]
    nothing = {"id": b"\xff", **dict.fromkeys(Typed.ROW)}
    with session_settings(spark, SETTINGS):
        found = compare(spark, typed.source([*before, nothing]), typed.source([*after, nothing]))
    assert [one.key["id"] for one in found.differences] == [
        f"{number:02X}" for number in range(len(changes) - 1)
    ]
    named = [
        tuple(dict.fromkeys("moment" if name == "moment_100ns" else name for name in one)) for one in changes
    ]
    assert [one.columns for one in found.differences] == named[:-1]
    assert (found.rows, found.different) == (len(changes) + 1, len(changes) - 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({**dict.fromkeys(Typed.ROW), "text": "a"}, {**dict.fromkeys(Typed.ROW), "blob": b"a"}),
        pytest.param({"double": 0.0}, {"double": -0.0}, marks=pytest.mark.ci),
    ],
    ids=["moved", "sign"],
)
def test_the_only_difference_is_found(
    spark: SparkSession, tmp_path: Path, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Checksums see it, too: a value that moved to another column between nulls, and the sign of zero."""
    typed = Typed(spark, tmp_path)
    rows = [{"id": bytes([number]), **Typed.ROW} for number in range(3)]
    one, other = ([*rows, {"id": b"\xff", **Typed.ROW, **change}] for change in (before, after))
    with session_settings(spark, SETTINGS):
        found = compare(spark, typed.source(one), typed.source(other))
        assert (found.missing, found.extra, found.different) == (0, 0, 1)
        same = compare(spark, typed.source(one), typed.source(one[::-1]))
    assert same == Comparison(same.base, rows=4)


@pytest.mark.ci
@pytest.mark.parametrize(("kept", "missing"), [(3, 0), (2, 1)])
def test_a_row_that_the_lake_has_twice_is_extra(
    spark: SparkSession, tmp_path: Path, kept: int, missing: int
) -> None:
    """Also in place of another one."""
    typed = Typed(spark, tmp_path)
    rows = [{"id": bytes([number]), **Typed.ROW} for number in range(3)]
    with session_settings(spark, SETTINGS):
        found = compare(spark, typed.source(rows), typed.source([*rows[:kept], rows[0]]))
    assert (found.rows, found.missing, found.extra, found.different) == (3, missing, 1, 0)
    assert (found.differences[0].kind, found.differences[0].key["id"]) == ("extra", "00")


def test_other_columns_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """By name: there is nothing to compare them with."""
    typed = Typed(spark, tmp_path)
    table = typed.source([])
    lake = typed.source([])
    less = {name: place for name, place in lake.columns.items() if name != "text"}
    with pytest.raises(
        ReconcileError, match=r"read with the columns id, text, .* and its export has id, double"
    ):
        compare(spark, table, replace(lake, columns=less))
    other = {**lake.kinds, "text": pa.int64()}
    with pytest.raises(
        ReconcileError, match=r"'text' of table 'shop.stock' was read as string, and .* has int64"
    ):
        compare(spark, table, replace(lake, kinds=other))


@contextmanager
def writing(shop: Shop, rows: int) -> Iterator[None]:
    """Change rows other than those that :func:`planted` changes, in two threads."""
    stop = threading.Event()

    def write(seed: int) -> None:
        dice = random.Random(seed)
        while not stop.is_set():
            number = dice.randrange(rows) // 10 * 10 + dice.randrange(5)
            shop.stock.change(
                dice.choice(
                    (
                        f"update stock set amount = {dice.random()} where id = {number}",
                        f"delete from stock where id = {number}",
                        f"insert or ignore into stock values ({number}, 'again', {dice.random()})",
                        f"update or ignore stock set id = {rows + number} where id = {number}",
                    )
                )
            )

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.ci
@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_each_of_a_hundred_differences_is_found_while_others_write(
    spark: SparkSession, tmp_path: Path, rows: int
) -> None:
    """25 missing, 25 extra, 26 changed, 24 in swapped pairs, and no other; repaired, none is left."""
    shop = Shop(spark, Stock.create(tmp_path, rows), range_rows=rows // 7)
    dice = random.Random(7)
    keys = dice.sample([number for number in range(1, rows) if number % 10 == 7], 75)
    extra, changed, swapped = keys[:25], keys[25:51], keys[51:]
    missing = [-number for number in range(1, 26)]
    pairs = [(one, other) for one, other in zip(swapped[::2], swapped[1::2], strict=False)]
    with writing(shop, rows):
        shop.behind(
            *(f"insert into stock values ({number}, 'new', 1.5)" for number in missing),
            *(f"delete from stock where id = {number}" for number in extra),
            *(f"update stock set amount = amount + 0.25 where id = {number}" for number in changed),
            *(
                f"update stock set name = 'name ' || ({one + other} - id) where id in ({one}, {other})"
                for one, other in pairs
            ),
        )
        found = shop.reconciled(repair=True)
    expected = {
        **{str(number): ("missing", ()) for number in missing},
        **{str(number): ("extra", ()) for number in extra},
        **{str(number): ("different", ("amount",)) for number in changed},
        **{str(number): ("different", ("name",)) for number in swapped},
    }
    assert len(expected) == 100
    assert {one.key["id"]: (one.kind, one.columns) for one in found.differences} == expected
    shop.export()
    assert shop.folded() == shop.stock.rows()
