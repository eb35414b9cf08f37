# SPDX-License-Identifier: Apache-2.0
"""A current table of a captured table that nobody has changed yet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_changefeed.exceptions import FoldError
from airflow_changefeed.lake.plan import find_fold
from airflow_changefeed.lake.states import BaseChoice
from airflow_changefeed.output.store import ExportStore
from tests.unit.lake.lake import merge_here, take
from tests.unit.lake.stock import CAPTURE, TABLE, Stock


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    """A table with rows; it has one shard."""
    return Stock.create(tmp_path, shard="0")


def test_quiet_hours_are_merged_from_a_snapshot_and_go_on_with_the_first_event(stock: Stock) -> None:
    """Each window is a unit, so nothing has to be exported again later."""
    take(stock.source, CAPTURE, stock.lake)
    paths = {"path": stock.export, "output": stock.lake}
    first = stock.export_all()
    merged = merge_here(stock.source, CAPTURE, TABLE, paths, first.end)
    assert (merged.table, merged.rows) == (TABLE, 100)
    second = stock.export_all(first.end)
    assert merge_here(stock.source, CAPTURE, TABLE, paths, second.end).rows == 100
    stock.change("insert into stock (name) values ('new')")
    third = stock.export_all(second.end)
    source = find_fold(ExportStore(stock.export, CAPTURE), third.end, TABLE, BaseChoice(stock.lake))
    assert sum(file.facts.rows for group in source.groups for file in group.files) == 1
    assert not source.unknown


def test_the_export_of_a_quiet_capture_has_its_hours(stock: Stock) -> None:
    """An empty unit says that nothing happened."""
    first = stock.export_all()
    (manifest,) = ExportStore(stock.export, CAPTURE).list()
    assert (manifest.unit.shard, manifest.unit.window, manifest.rows) == (0, first, 0)


def test_a_snapshot_that_is_exact_later_is_named(stock: Stock) -> None:
    """It is why the window before it cannot be merged; the next one can."""
    first = stock.export_all()
    take(stock.source, CAPTURE, stock.lake)
    store, bases = ExportStore(stock.export, CAPTURE), BaseChoice(stock.lake)
    with pytest.raises(FoldError, match=r"the snapshot of .* can be used from .* on: choose a window"):
        find_fold(store, first.end, TABLE, bases)
    stock.change("insert into stock (name) values ('new')")
    second = stock.export_all(first.end)
    assert find_fold(store, second.end, TABLE, bases).base is not None
    unknown = find_fold(store, first.end, TABLE, bases).unknown
    assert re.search("did not record the rows .* can be used from", unknown)
