# SPDX-License-Identifier: Apache-2.0
"""Export units."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given

from airflow_changefeed.core.codec import decode, encode
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.exceptions import InvalidArgumentError
from tests.unit.core.strategies import ranges, shards, units, windows


@given(units)
def test_a_unit_survives_json(unit: ExportUnit) -> None:
    """Windows and batches come back as they were."""
    assert decode(ExportUnit, json.loads(json.dumps(encode(unit))), named="unit") == unit


@given(ranges)
def test_a_range_survives_json(range_: UlidRange) -> None:
    """So does a bare range."""
    assert decode(UlidRange, json.loads(json.dumps(encode(range_))), named="range") == range_


@given(units, units)
def test_units_of_different_intervals_have_different_names(one: ExportUnit, other: ExportUnit) -> None:
    """A name is the key of a unit within its shard, and fits a path."""
    assert (one.name == other.name) == ((one.range, one.window) == (other.range, other.window))
    assert not set(one.name) & set("/:\\ ")
    assert one.name[0] not in "._"


@given(shards, windows)
def test_a_windows_unit_is_filed_under_its_start(shard: Shard, window: Window) -> None:
    """The folder's date is the UTC date at which the window starts."""
    unit = ExportUnit.of_window(shard, window)
    assert unit.date == window.start.strftime("%Y-%m-%d").rjust(10, "0")
    assert unit.name == window.name


@given(shards, windows, ranges)
def test_a_window_goes_with_its_own_range_only(shard: Shard, window: Window, range_: UlidRange) -> None:
    """A unit cannot say one interval and read another."""
    assume(range_ != window.range)
    with pytest.raises(InvalidArgumentError):
        ExportUnit(shard, range_, window)
