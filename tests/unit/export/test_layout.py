# SPDX-License-Identifier: Apache-2.0
"""Paths of an export."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.feed import quote_name, unquote_name
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.output.layout import Layout, ManifestName, parse_unit
from tests.unit.export.flights import hours

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40) | st.text(
    "-x2F_. ", min_size=1, max_size=12
)


@given(NAMES)
def test_any_feed_has_a_folder_that_is_visible_and_safe(feed: str) -> None:
    """A quoted name holds harmless characters only, hides nothing, climbs nowhere; that of one feed only."""
    name = quote_name(feed)
    assert re.fullmatch(r"[A-Za-z0-9-][A-Za-z0-9._-]*", name)
    assert unquote_name(name) == feed


@pytest.mark.parametrize(
    ("feed", "folder"),
    [
        ("nyc.Flight", "nyc.Flight"),
        ("_changefeed", "-x5F-changefeed"),
        ("..", "-x2E-."),
        ("a/b c=1", "a-x2F-b-x20-c-x3D-1"),
        ("Größe", "Gr-xF6--xDF-e"),
        ("a-b-xF6-", "a-b-x2D-xF6-"),
    ],
)
def test_usual_names_stay_readable(feed: str, folder: str) -> None:
    """A schema and a table need no quoting; what would hide or climb does."""
    assert quote_name(feed) == folder


@pytest.mark.parametrize("name", ["-xFFFFFF-", "-xD800-", "-x1-", "-xf6-"])
def test_a_folder_of_others_has_a_name_as_it_is(name: str) -> None:
    """No character has such a number."""
    assert unquote_name(name) == name


def test_names_of_units_and_manifests_read_back() -> None:
    """A window's and a batch's unit are known again from a manifest's name, whatever its token's length."""
    window = ExportUnit.of_window(3, hours(0, 1)[0])
    batch = ExportUnit(uuid.UUID(int=7), UlidRange(Ulid.MIN, Ulid.floor(hours(0, 1)[0].end)))
    for unit in (window, batch):
        for token in (1, 10**13):
            name = ManifestName.parse(str(ManifestName(unit.name, token)))
            assert name == ManifestName(unit.name, token)
            assert parse_unit(unit.shard, name.unit) == unit
    assert ManifestName.parse(".20130101T000000Z_20130101T010000Z.000000000001.json.ab12") is None
    assert parse_unit(0, "notes") is None


def test_only_whole_units_lie_where_plain_readers_look() -> None:
    """The folder of the data and that of all else are apart, the latter hidden from plain readers."""
    layout, unit = Layout("/out", "nyc.Flight"), ExportUnit.of_window(1, hours(0, 1)[0])
    assert layout.placed(unit, 12) == (
        "/out/nyc.Flight/changefeed_shard=1/changefeed_date=2013-01-01/"
        "changefeed_unit=20130101T000000Z_20130101T010000Z/changefeed_attempt=12"
    )
    assert layout.manifest(unit, 12) == (
        "/out/_changefeed/nyc.Flight/manifests/shard=1/date=2013-01-01/"
        "20130101T000000Z_20130101T010000Z.000000000012.json"
    )
    for path in (
        layout.unplaced(unit, 12),
        layout.writing(12),
        layout.spec(12),
        layout.receipt(12, 13),
        layout.claim,
    ):
        assert path.startswith("/out/_changefeed/")
