# SPDX-License-Identifier: Apache-2.0
"""Manifests and the facts of their files."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core import codec
from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.export_plan import FileFacts, Manifest, checksum_text, combine_checksums
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import ManifestError, UnsupportedVersionError
from tests.unit.core.strategies import texts, times, ulids, units

_checksums = st.integers(0, (1 << 128) - 1)
_names = texts.filter(lambda name: name not in ("", ".", "..") and not set("/\\\0") & set(name))
_files = st.builds(
    FileFacts, _names, st.integers(1, 1 << 40), st.integers(0, 1 << 40), ulids, ulids, _checksums
)
_manifests = st.builds(
    Manifest,
    feed=texts,
    unit=units,
    attempt=st.integers(1, 1 << 40),
    consumer=texts,
    run=texts,
    made_at=times,
    files=st.lists(_files, max_size=4).map(tuple),
    sealed_until=st.none() | times,
    stale_seen=st.integers(0, 99),
    schema=texts,
    columns=st.dictionaries(texts, texts, max_size=4),
)


@given(_manifests)
def test_a_manifest_survives_json(manifest: Manifest) -> None:
    """What was committed is what is read, and its totals are those of its files."""
    found = Manifest.from_json(manifest.to_json(), named="m.json")
    assert found == manifest
    written = json.loads(manifest.to_json())
    assert (written["rows"], written["size"]) == (found.rows, found.size)
    assert int(written["checksum"], 16) == found.checksum


@given(st.lists(_checksums), st.randoms(use_true_random=False))
def test_checksums_add_up_in_any_order_and_grouping(checksums: list[int], random: object) -> None:
    """However rows are cut into files, the unit's checksum is the same, and has 128 bits."""
    total = combine_checksums(checksums)
    half = len(checksums) // 2
    assert (
        combine_checksums([combine_checksums(checksums[:half]), combine_checksums(checksums[half:])]) == total
    )
    random.shuffle(checksums)
    assert combine_checksums(checksums) == total
    assert len(checksum_text(total)) == 32
    assert int(checksum_text(total), 16) == total


_UNIT = ExportUnit(0, UlidRange(Ulid.MIN, Ulid.of_int(9)))
_FACTS = FileFacts("part.parquet", 3, 100, Ulid.of_int(1), Ulid.of_int(9), 5)
_TIME = datetime(2013, 1, 1, tzinfo=timezone.utc)
_MANIFEST = Manifest("f", _UNIT, 1, "c", "run", _TIME, (_FACTS,), None, 0, "")


def _changed(**changes: object) -> str:
    content = json.loads(_MANIFEST.to_json())
    for ours in ("kind", "schema_version", "digest"):
        del content[ours]
    return codec.dump(Manifest.KIND, 1, {**content, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        _MANIFEST.to_json()[:-20],
        _MANIFEST.to_json().replace('"rows": 3', '"rows": 4'),
        _changed(unit={}),
        _changed(unit=None),
        _changed(files=[{}]),
        _changed(files=[{**encode(_FACTS), "checksum": "xyz"}]),
        _changed(files=[{**encode(_FACTS), "checksum": 7}]),
        _changed(files=[{**encode(_FACTS), "first": "xyz"}]),
        _changed(made_at="soon"),
        _changed(made_at=None),
    ],
)
def test_a_damaged_manifest_is_refused_and_named(text: str) -> None:
    """Truncated, edited or senseless: the error names its path."""
    with pytest.raises(ManifestError, match=r"out/m\.json"):
        Manifest.from_json(text, named="out/m.json")


def test_a_manifest_of_a_newer_version_is_refused() -> None:
    """It is not damaged: the installation is too old."""
    with pytest.raises(UnsupportedVersionError):
        Manifest.from_json(codec.dump(Manifest.KIND, 2, {}), named="m.json")


def test_an_empty_unit_has_a_manifest() -> None:
    """Complete, 0 rows, is a result."""
    empty = Manifest("f", _UNIT, 1, "c", "run", _TIME, (), _TIME, 0, "")
    assert (empty.rows, empty.size, empty.checksum) == (0, 0, 0)
    assert Manifest.from_json(empty.to_json(), named="m.json") == empty
