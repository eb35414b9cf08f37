# SPDX-License-Identifier: Apache-2.0
"""Variables that anybody who may edit them has edited, with the cursors of a real database beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.cursors.cursors import resolve
from airflow_changefeed.cursors.recovery import adopt, adopted, publish, variable_state
from airflow_changefeed.doctor.airflow import unknown_feeds, variable_faults
from airflow_changefeed.sources.base import FeedSource
from tests.unit.export.consumers import CONSUMER, FEED, Variables, advance, begin, make_source
from tests.unit.hostile.mutation import NAMES, hostile, hostile_texts, value_or_error


class ListedVariables(Variables):
    """Airflow's Variables, with a list of them."""

    def keys(self, prefix: str) -> list[str]:
        """Return the names that begin so."""
        return sorted(key for key in self.values if key.startswith(prefix))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[FeedSource, str, str]:
    """Give a consumer that has exported some hours, with the name and the text of its Variable."""
    source, variables = make_source(Path(tmp_path_factory.mktemp("variables"))), Variables()
    begin(source)
    advance(source, variables, *range(4))
    (key,) = variables.values
    return source, key, variables.values[key]


@hostile
@given(data=st.data())
def test_an_edited_variable_stops_or_is_said(
    exported: tuple[FeedSource, str, str], data: st.DataObject
) -> None:
    """No command fails in a way of its own, and publishing what the database has always helps."""
    source, key, text = exported
    variables = ListedVariables()
    variables.set(key, data.draw(hostile_texts(text)))
    other = data.draw(st.sampled_from(NAMES))
    variables.set(f"changefeed:{other[:100]}", data.draw(hostile_texts(text)))
    rows = source.cursors(FEED, CONSUMER)
    assert variable_state(source, variables, CONSUMER, FEED)
    variable_faults(source, variables, FEED, rows, None)
    unknown_feeds(source, variables, [FEED])
    for look in (resolve, adopted):
        with value_or_error("Variable", "shard"):
            look(source, variables, CONSUMER, FEED)
    with value_or_error("Variable", "shard"):
        adopt(source, variables, CONSUMER, FEED, by="test")
    publish(source, variables, CONSUMER, FEED)
    assert resolve(source, variables, CONSUMER, FEED) == source.cursors(FEED, CONSUMER)


@hostile
@given(st.text() | st.sampled_from(NAMES), st.text() | st.sampled_from(NAMES))
def test_any_names_have_a_key_that_airflow_takes(consumer: str, feed: str) -> None:
    """In its column and in a URL, and different names have different keys."""
    key = variable_key("1234-5", consumer, feed)
    assert len(key) <= 250
    assert key.isascii()
    assert key.isprintable()
    assert not set("#?%/\\ ") & set(key)
