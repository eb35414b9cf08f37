# SPDX-License-Identifier: Apache-2.0
"""Finding committed units of an interval without listing the whole output."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.export_plan import Manifest
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import ExportUnit, Window
from airflow_changefeed.exceptions import ManifestError
from airflow_changefeed.output.manifests import span
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.local import LocalFiles

START = datetime(2013, 1, 1, tzinfo=timezone.utc)


class Counting(LocalFiles):
    """A disk that remembers which folders were listed."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.listed: list[str] = []

    def names(self, folder: str) -> list[str]:
        """List a folder."""
        self.listed.append(folder)
        return super().names(folder)


def _complete(store: ExportStore, unit: ExportUnit) -> None:
    manifest: dict[str, Any] = {"consumer": "c", "run": "r", "made_at": START, "files": ()}
    store.write(Manifest("f", unit, 1, sealed_until=None, stale_seen=0, schema="", **manifest))


def _window(first: float, last: float) -> ExportUnit:
    return ExportUnit.of_window(0, Window(START + timedelta(hours=first), START + timedelta(hours=last)))


def test_an_hour_of_a_year_lists_few_folders(tmp_path: Path) -> None:
    """Of a year of days, one hour's units need the dates, its day, and one folder before and behind."""
    files = Counting(str(tmp_path))
    store = ExportStore(str(tmp_path), "f", files=files)
    for day in range(365):
        _complete(store, _window(24 * day, 24 * day + 1))
    files.listed.clear()
    found = store.units(0, START + timedelta(days=100), START + timedelta(days=100, hours=1))
    assert list(found) == [_window(2400, 2401)]
    assert len(files.listed) == 4
    assert len(store.units(0)) == 365


def test_a_manifest_that_lies_elsewhere_is_none(tmp_path: Path) -> None:
    """Below another date it is not listed; under the name of another attempt it is refused."""
    store = ExportStore(str(tmp_path), "f")
    unit = _window(0, 1)
    _complete(store, unit)
    where = store.layout.manifest(unit, 1)
    content = store.files.read(where) or b""
    store.files.write(store.layout.manifest(unit, 2), content)
    with pytest.raises(ManifestError, match="was moved here"):
        store.read(unit)
    store.files.remove(store.layout.unit_manifests(unit))
    store.files.write(where.replace(f"date={unit.date}", "date=2013-01-02"), content)
    assert store.units(0) == {}


@pytest.mark.parametrize(
    "unit",
    [
        _window(0, 24 * 40),
        ExportUnit(0, UlidRange(Ulid.floor(START), Ulid.floor(START + timedelta(days=40)))),
        ExportUnit(0, UlidRange(Ulid.MIN, Ulid.floor(START + timedelta(days=40)))),
    ],
)
def test_a_long_unit_is_found_from_its_middle(tmp_path: Path, unit: ExportUnit) -> None:
    """A window of forty days is filed under its first one, a batch under its last one."""
    store = ExportStore(str(tmp_path), "f")
    _complete(store, unit)
    middle = START + timedelta(days=20)
    assert list(store.units(0, middle, middle + timedelta(hours=1))) == [unit]
    assert list(store.units(0, middle)) == [unit]
    assert list(store.units(0, None, middle)) == [unit]
    assert list(store.units(0, START + timedelta(days=41))) == []
    assert list(store.units(0, middle, middle)) == []


@given(
    st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.booleans()), min_size=1, max_size=8),
    st.integers(0, 400),
    st.integers(0, 100),
)
def test_any_interval_gives_what_the_whole_list_gives(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[tuple[int, bool, bool]],
    first: int,
    length: int,
) -> None:
    """Whatever units there are that do not overlap: an interval finds all that touch it and no other."""
    store = ExportStore(str(tmp_path_factory.mktemp("out")), "f")
    at = 0
    for hours, is_batch, is_gap in lengths:
        unit = _window(at, at + hours + 1)
        if not is_gap:
            _complete(store, ExportUnit(0, unit.range) if is_batch else unit)
        at += hours + 1
    start, end = START + timedelta(hours=first), START + timedelta(hours=first + length)
    wanted = span(start, end)
    expected = [unit for unit in store.units(0) if wanted is not None and unit.range.overlaps(wanted)]
    assert list(store.units(0, start, end)) == expected
