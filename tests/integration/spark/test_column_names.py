# SPDX-License-Identifier: Apache-2.0
"""Captured columns of any name: in folds, states, snapshots, comparisons and current tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog

from airflow_changefeed.exceptions import ColumnTypeError, FeedSetupError, FoldError
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.formats.base import CURRENT, LakeTable
from airflow_changefeed.formats.publish import open_table
from airflow_changefeed.lake.current import CurrentOutput
from airflow_changefeed.lake.merge import MergedFiles, MergeRequest, MergeTask, merge
from airflow_changefeed.lake.snapshot_ranges import read_here
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.sources.sqlite.feed.names import quote
from airflow_changefeed.spark.fold import fold
from airflow_changefeed.spark.merge import run_merge
from tests.integration.spark.shop import Shop
from tests.unit.lake.stock import CAPTURE, TABLE, Stock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
#: Names with a meaning for somebody: SQL, Spark, Parquet, Delta Lake, Iceberg, or our own frames.
MEANINGFUL = (
    *("_metadata", "__metadata", "_file", "_pos", "_spec_id", "_partition", "_deleted", "_row_id"),
    *("_change_type", "_commit_version", "_corrupt_record", "element", "key_value", "list"),
    *("base0", "base_shard", "base_file", "key0", "row", "first", "shard", "since", "until", "adds"),
    *("old", "new", "type", "select", "order", "null", "true", "a b", "a.b", "a`b", 'a"b', "a'b", "a,b;c"),
    *("{a}", "(a)", "a=b", "a\nb", "a\tb", "[0]", "*", "?", "a/b", "a\\b", "a%20b", "#", "$", "", " a", "1"),
    *("ä", "日本", "😀", "x_100ns", "x_type", "_deleted_at", "_valid_from"),
)
NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12).filter(
    lambda name: not name.lower().startswith("changefeed_")
)


class NamedShop(Shop):
    """A table with columns of some names, a snapshot, and current tables of it."""

    def __init__(self, spark: SparkSession, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = names
        super().__init__(spark, Stock.create(folder, 20, names))

    def change(self) -> None:
        """Change, delete and insert rows, and export that."""
        given = ", ".join(f"{quote(name)} = 'changed'" for name in self.names)
        self.stock.change(f"update stock set {given} where id % 3 = 1", "delete from stock where id % 5 = 0")
        self.export()

    def merge(self, format: str, **more: Any) -> list[dict[str, Any]]:
        """Bring a current table to the end of the export, and return its rows."""
        catalog = {"name": "names", "type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db"}
        is_iceberg = format == "iceberg"

        def open_lake(output: CurrentOutput) -> LakeTable:
            named = {"table": "shop.stock", "catalog": catalog} if is_iceberg else {}
            return open_table(format, output, use=CURRENT, **named)

        def run(task: MergeTask) -> MergedFiles:
            return run_merge(lambda: self.spark, task, JobConnection({}), self.said.append)

        path = f"{self.folder}/{format}"
        request = MergeRequest(
            *(CAPTURE, self.stock.export, path, self.exported, "tests/run"),
            table_format=format,
            catalog_table="shop.stock" if is_iceberg else "",
            states=self.stock.lake,
            **more,
        )
        merge(request, None, open_lake, run, self.said.append)
        if is_iceberg:
            found = load_catalog(**catalog).load_table("shop.stock").scan().to_arrow()
        else:
            found = DeltaTable(f"{path}/{TABLE}").to_pyarrow_table()
        return self.own(found.to_pylist())

    def own(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return rows by key, without our own columns."""
        names = ("id", "name", "amount", *self.names)
        return sorted(({name: row[name] for name in names} for row in rows), key=lambda row: row["id"])


@pytest.mark.ci
@settings(max_examples=2, phases=[Phase.explicit, Phase.generate])
@given(st.lists(NAMES, max_size=20))
def test_a_column_may_have_any_name(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    """Everything gives the table's rows, of which some have changed since it began."""
    known = {name.casefold(): name for name in (*names, *MEANINGFUL)}
    for name in ("id", "name", "amount", "_tmp_metadata_row_index"):
        known.pop(name, None)
    shop = NamedShop(spark, tmp_path_factory.mktemp("names"), list(known.values()))
    formats = ("delta", "iceberg")
    for format in formats:
        assert shop.merge(format) == shop.stock.rows()
    shop.change()
    shop.fold()
    rows = shop.stock.rows()
    assert shop.own(shop.folded()) == rows
    for format in formats:
        assert shop.merge(format) == rows
    shop.change()
    assert shop.own(shop.folded()) == shop.stock.rows()
    assert shop.reconciled().equal


@pytest.mark.ci
def test_columns_that_swap_their_names_are_folded_as_what_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Before a refresh and after it, from a state and from a snapshot; a current table is refused then."""
    shop = NamedShop(spark, tmp_path, ("first", "last"))
    shop.merge("delta")
    for old, new in (("first", "x"), ("last", "first"), ("x", "last")):
        shop.stock.change(f"alter table stock rename column {old} to {new}")
    shop.change()
    assert shop.own(shop.folded()) == shop.stock.rows()
    with pytest.raises(ColumnTypeError, match=r"does not have column 'first', column 'last' of .* any more"):
        shop.merge("delta")
    shop.fold()
    shop.stock.source.refresh_capture(CAPTURE)
    shop.change()
    assert shop.own(shop.folded()) == shop.stock.rows()
    assert shop.reconciled().equal


@pytest.mark.ci
def test_a_current_table_is_made_again_after_a_rename_in_letter_case(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As after any rename: its error says how."""
    shop = NamedShop(spark, tmp_path, ("name_of",))
    shop.merge("delta")
    shop.fold()
    folded = shop.exported
    shop.stock.change("alter table stock rename column name_of to Name_Of")
    shop.stock.source.refresh_capture(CAPTURE)
    shop.names = ("Name_Of",)
    shop.change()
    with pytest.raises(ColumnTypeError, match=r"does not have column 'name_of' .* make the table again"):
        shop.merge("delta")
    assert shop.merge("delta", base=folded) == shop.own(shop.stock.rows())


@pytest.mark.ci
@pytest.mark.parametrize("written", [False, True])
def test_a_new_column_with_the_name_of_another_is_folded_or_refused(
    spark: SparkSession, tmp_path: Path, written: bool
) -> None:
    """Exactly, unless rows have values in it that no event has; then until the next snapshot."""
    shop = NamedShop(spark, tmp_path, ("price",))
    shop.stock.change(
        "alter table stock rename column price to price_old", "alter table stock add column price text"
    )
    if written:
        shop.stock.change("update stock set price = 'new' where id = 7")
    with pytest.raises(FeedSetupError, match=r"column 'price' of 'shop\.stock' is not the recorded column"):
        shop.export()
    shop.stock.source.refresh_capture(CAPTURE)
    shop.names = ("price", "price_old")
    shop.change()
    if written:
        with pytest.raises(FoldError, match="no event has the values of 'price' in older rows"):
            shop.folded()
        request = SnapshotRequest(CAPTURE, None, shop.stock.lake, "tests/run")
        read = partial(read_here, shop.stock.source)
        take_snapshot(shop.stock.source, request, None, read, shop.said.append)
        shop.change()
    assert shop.own(shop.folded()) == shop.own(shop.stock.rows())


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (
            ["_tmp_metadata_row_index"],
            "'_tmp_metadata_row_index' has a name that Spark's Parquet reader uses itself; rename",
        ),
        (["ä", "Ä"], "columns 'Ä', 'ä' differ only in letter case"),
        (["i", "\u0131"], "columns 'i', '\u0131' differ only in letter case"),
        (["s", "\u017f"], "columns 's', '\u017f' differ only in letter case"),
    ],
)
def test_names_that_spark_cannot_read_are_refused(
    spark: SparkSession, tmp_path: Path, names: list[str], why: str
) -> None:
    """Before a job begins: by folds, and by snapshots, of which folds begin. The export has them."""
    stock = Stock.create(tmp_path, 3, names)
    stock.change("update stock set amount = 0")
    end = stock.export_all().end
    with pytest.raises(FoldError, match=why):
        fold(spark, stock.export, CAPTURE, at=end)
    request = SnapshotRequest(CAPTURE, None, stock.lake, "tests/run")
    with pytest.raises(FoldError, match=why):
        take_snapshot(stock.source, request, None, lambda *_: None, lambda _: None)
