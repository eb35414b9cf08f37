# SPDX-License-Identifier: Apache-2.0
"""Cursor rows and the Variable that publishes them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core import codec
from airflow_changefeed.core.cursor import (
    KIND,
    Cursor,
    CursorDocument,
    CursorRow,
    Frontier,
    check_consumer,
    variable_key,
)
from airflow_changefeed.core.feed import DatabaseIdentity
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import CursorFormatError, InvalidArgumentError, UnsupportedVersionError
from tests.identity import DATABASE
from tests.unit.core.strategies import frontiers, shards, texts, times, ulids

_cursors = st.builds(Cursor, ulids, st.integers(0, 1 << 62), times, texts)
_documents = st.builds(
    CursorDocument,
    texts,
    texts,
    st.dictionaries(shards, _cursors, max_size=4),
    database=texts,
    recovery_fork=st.none() | texts,
)
OTHER = "91bc0d22-0000-4000-8000-c0ffee000002"
_TIME = datetime(2013, 1, 1, tzinfo=timezone.utc)
_NOON = _TIME + timedelta(hours=12)
_ONE = CursorDocument("export", "nyc.Flight", {1: Cursor(Ulid.floor(_TIME), 7, _TIME, "run")}, DATABASE)


def _read(text: str) -> CursorDocument:
    return CursorDocument.from_json(text, key="changefeed:3f2a9c1e:export:nyc.Flight")


@given(_documents)
def test_a_published_document_is_read_back_intact(document: CursorDocument) -> None:
    """The Variable gives back every cursor, UUID shards too."""
    assert _read(document.to_json()) == document


@given(frontiers(), st.integers(0, 99), times, texts)
def test_a_row_is_published_as_its_frontiers_end(
    frontier: Frontier, version: int, at: datetime, by: str
) -> None:
    """The cursor is where the unbroken run ends, whatever is complete ahead."""
    row = CursorRow("export", "nyc.Flight", 3, frontier, version, at, by, fencing_token=5, lease_holder="x")
    document = CursorDocument.of_rows(DatabaseIdentity(DATABASE, "fork"), "export", "nyc.Flight", [row])
    assert document.shards == {3: Cursor(frontier.upto, version, at, by)}
    assert (document.database, document.recovery_fork) == (DATABASE, "fork")


@pytest.mark.parametrize(
    ("cursor", "head", "seconds"),
    [
        (Ulid.MIN, None, 0),
        (Ulid.floor(_NOON), Ulid.floor(_NOON), 0),
        (Ulid.floor(_NOON), Ulid.floor(_TIME), 0),
        (Ulid.floor(_TIME), Ulid.floor(_NOON), 43_200),
        (Ulid.MIN, Ulid.floor(_NOON), None),
    ],
    ids=["empty", "at the head", "beyond it", "behind", "at the start"],
)
def test_lag_is_feed_time_to_the_last_event(cursor: Ulid, head: Ulid | None, seconds: float | None) -> None:
    """A cursor at the start has no time of its own."""
    row = CursorRow("c", "f", 0, Frontier.beginning(cursor), 1, _TIME, "run")
    assert row.lag(head) == seconds


@given(_documents)
def test_equal_documents_are_equal_text(document: CursorDocument) -> None:
    """The order in which shards were found does not show in the Variable."""
    turned = dict(reversed(list(document.shards.items())))
    assert replace(document, shards=turned).to_json() == document.to_json()


def test_an_edited_document_is_read_and_known_as_edited() -> None:
    """A person's edit is neither lost nor taken for ours."""
    value = json.loads(_ONE.to_json())
    value["shards"]["1"]["ulid"] = str(Ulid.floor(_TIME).next())
    edited = _read(json.dumps(value))
    assert not edited.is_intact
    assert edited.shards[1].ulid == Ulid.floor(_TIME).next()
    assert _read(_ONE.to_json()).is_intact


def test_a_newer_version_is_refused() -> None:
    """A Variable written by a newer installation is left alone."""
    with pytest.raises(UnsupportedVersionError, match=r"changefeed:3f2a9c1e:export:nyc\.Flight"):
        _read(codec.dump(KIND, 99, {}))


def _with(**changes: object) -> str:
    shard = {"ulid": "0" * 26, "resource_version": 1, "moved_at": "2013-01-01T00:00:00Z", **changes}
    return codec.dump(KIND, 1, {"consumer": "c", "feed": "f", "shards": {"0": shard}})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        '{"ulid": 1}',
        codec.dump("changefeed manifest", 1, {}),
        codec.dump(KIND, 1, {}),
        codec.dump(KIND, 1, {"consumer": "c", "feed": "f", "shards": []}),
        codec.dump(KIND, 1, {"consumer": "c", "feed": "f", "shards": {"EWR": {}}}),
        codec.dump(KIND, 1, {"consumer": "c", "feed": "f", "shards": {"0": None}}),
        _with(ulid="x"),
        _with(ulid=None),
        _with(ulid="8" + "0" * 25),
        _with(resource_version="1"),
        _with(resource_version=True),
        _with(moved_at="yesterday"),
        _with(moved_at="2013-01-01T00:00:00"),
        _with(moved_at=1),
    ],
)
def test_what_is_no_cursor_is_refused_and_named(text: str) -> None:
    """The error names the Variable."""
    with pytest.raises(CursorFormatError, match=r"changefeed:3f2a9c1e:export:nyc\.Flight"):
        _read(text)


@given(texts, texts, texts, texts)
def test_variable_names_fit_airflow_and_differ(consumer: str, feed: str, other: str, more: str) -> None:
    """At most 250 characters, the same each time, and another one for another consumer or feed."""
    consumer, other = consumer.replace(":", ""), other.replace(":", "")
    for long in ("", "x" * 300):
        one, two = (consumer, feed + long), (other, more + long)
        assert len(variable_key(DATABASE, *one)) <= 250
        assert (variable_key(DATABASE, *one) == variable_key(DATABASE, *two)) == (one == two)


def test_a_short_variable_name_is_readable() -> None:
    """People look for it in the UI."""
    assert variable_key(DATABASE, "export", "nyc.Flight") == "changefeed:3f2a9c1e:export:nyc.Flight"


def test_the_same_names_in_two_databases_have_two_variables() -> None:
    """Names alone never join two things, nor do they where a long name keeps a hash only."""
    for feed in ("nyc.Flight", "x" * 300):
        assert variable_key(DATABASE, "export", feed) != variable_key(OTHER, "export", feed)


@pytest.mark.parametrize("name", ["", "a:b", "x" * 129, "a\nb", "a\x00"])
def test_names_that_would_break_variable_names_are_refused(name: str) -> None:
    """Empty, too long, unprintable, or with the separator."""
    with pytest.raises(InvalidArgumentError):
        check_consumer(name)


@pytest.mark.parametrize("name", ["a", "x" * 128, "nightly export/Zürich"])
def test_usual_names_are_taken(name: str) -> None:
    """Anything printable."""
    check_consumer(name)


@pytest.mark.parametrize(
    "odd", ["etl#1", "etl?x", "50%", "a/b", "a\\b", "a b", "Zürich", "東京", "a\u00a0b", "😀"]
)
def test_a_variables_name_survives_a_url(odd: str) -> None:
    """A task's API puts it into a URL as it is; what means something there is replaced, and stays apart."""
    for names in ((odd, "nyc.Flight"), ("export", odd)):
        key = variable_key(DATABASE, *names)
        assert re.fullmatch(r"[!-~]+", key)
        assert not set(key) & set("#?%/\\")
        plain, more = (tuple(each.replace(odd, other) for each in names) for other in ("_", f"{odd}2"))
        assert len({key, variable_key(DATABASE, *plain), variable_key(DATABASE, *more)}) == 3
