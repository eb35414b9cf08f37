# SPDX-License-Identifier: Apache-2.0
"""Values as JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Annotated, Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.codec import Form, decode, encode
from airflow_changefeed.core.cursor import Frontier
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import InvalidArgumentError, ManifestError
from tests.unit.core.strategies import frontiers, ranges, shards, texts, times, ulids, windows


class Colour(str, Enum):
    """An enum."""

    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    """What lies within."""

    REFUSES_UNKNOWN: ClassVar[bool] = True

    window: Window
    rows: int = 0


@dataclass(frozen=True)
class Outer:
    """A field of each type that there is."""

    ALSO_WRITTEN: ClassVar[tuple[str, ...]] = ("double", "until")

    number: int
    ratio: float
    is_whole: bool
    text: str
    ulid: Ulid
    shard: Shard
    at: datetime
    length: timedelta
    colour: Colour
    frontier: Frontier
    inners: tuple[Inner, ...]
    pair: tuple[str, datetime]
    names: Sequence[str]
    by_shard: Mapping[Shard, UlidRange]
    by_ulid: Mapping[Ulid, Colour]
    by_colour: Mapping[Colour, Mapping[str, int | None]]
    anything: Any
    hexadecimal: Annotated[int, Form(hex, lambda text: int(text, 16))]
    maybe_shard: Shard | None = None
    maybe: Inner | None = None
    secret: tuple[str, ...] = field(default=(), repr=False)
    filled: Mapping[str, int] = field(default_factory=dict)

    @property
    def double(self) -> int:
        """Written for readers."""
        return self.number * 2

    @property
    def until(self) -> datetime:
        """The same, in the form of its type."""
        return self.at


_inners = st.builds(Inner, windows, st.integers())
_lengths = st.timedeltas(timedelta(days=-1000), timedelta(days=1000))
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
_outers = st.builds(
    Outer,
    number=st.integers(),
    ratio=st.floats(allow_nan=False, allow_infinity=False),
    is_whole=st.booleans(),
    text=texts,
    ulid=ulids,
    shard=shards,
    at=times,
    length=_lengths,
    colour=st.sampled_from(Colour),
    frontier=frontiers(),
    inners=st.lists(_inners, max_size=2).map(tuple),
    pair=st.tuples(texts, times),
    names=st.lists(texts, max_size=2).map(tuple),
    by_shard=st.dictionaries(shards, ranges, max_size=2),
    by_ulid=st.dictionaries(ulids, st.sampled_from(Colour), max_size=2),
    by_colour=st.dictionaries(
        st.sampled_from(Colour), st.dictionaries(texts, st.none() | st.integers(), max_size=2)
    ),
    anything=_json,
    hexadecimal=st.integers(0),
    maybe_shard=st.none() | shards,
    maybe=st.none() | _inners,
    secret=st.lists(texts, max_size=2).map(tuple),
    filled=st.dictionaries(texts, st.integers(), max_size=2),
)


@given(_outers)
def test_what_was_encoded_is_decoded_as_it_was(outer: Outer) -> None:
    """Every type, through the text of JSON, and with what is written for readers."""
    written = json.loads(json.dumps(encode(outer), allow_nan=False))
    assert written["double"] == 2 * outer.number
    assert written["until"] == written["at"]
    assert decode(Outer, written, named="outer") == outer


@given(st.lists(ranges).map(tuple))
def test_a_bare_list_needs_its_type(some: tuple[UlidRange, ...]) -> None:
    """Which says what the empty one is."""
    written = json.loads(json.dumps(encode(some, tuple[UlidRange, ...])))
    assert decode(tuple[UlidRange, ...], written, named="ranges") == some


_ULID, _TIME = "0" * 26, "2013-01-01T00:00:00Z"
_WINDOW = {"start": _TIME, "end": "2013-01-01T01:00:00Z"}
_GIVEN: dict[str, Any] = {
    **{"number": 1, "ratio": 1, "is_whole": True, "text": "", "ulid": _ULID, "shard": "0", "at": _TIME},
    **{"length": 1.5, "colour": "red", "frontier": {"start": _ULID, "upto": _ULID}, "anything": None},
    **{"inners": [{"window": _WINDOW}], "pair": ["", _TIME], "names": [], "hexadecimal": "0x1f"},
    **{"by_shard": {}, "by_ulid": {}, "by_colour": {}, "filled": {}},
}


def test_what_is_missing_takes_its_default() -> None:
    """And a name that nobody knows is passed over, where nothing says otherwise."""
    found = decode(Outer, {**_GIVEN, "taste": "sour"}, named="outer")
    assert (found.maybe, found.secret, found.inners[0].rows) == (None, (), 0)
    assert (found.length, found.hexadecimal, type(found.ratio)) == (timedelta(seconds=1.5), 31, float)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": "abc"}, "outer: number: 'abc' is not a whole number"),
        ({"number": True}, "outer: number: True is not a whole number"),
        ({"number": 1.0}, "outer: number: 1.0 is not a whole number"),
        ({"number": None}, "outer: number: None is not a whole number"),
        ({"is_whole": 1}, "outer: is_whole: 1 is not true or false"),
        ({"ratio": "x" * 200}, f"outer: ratio: '{'x' * 99}... is not a number"),
        ({"text": 3}, "outer: text: 3 is not a text"),
        ({"ulid": "x"}, "outer: ulid: 'x' "),
        ({"shard": "EWR"}, "outer: shard: 'EWR' "),
        ({"maybe_shard": []}, "outer: maybe_shard: [] "),
        ({"at": 3}, "outer: at: 3 "),
        ({"at": "2013-01-01T00:00:00"}, "outer: at: time 2013-01-01T00:00:00 has no time zone"),
        ({"length": "1 h"}, "outer: length: '1 h' is not a number"),
        ({"length": float("nan")}, "outer: length: nan is not a number"),
        ({"ratio": float("inf")}, "outer: ratio: inf is not a number"),
        ({"length": 1e300}, "outer: length: "),
        ({"colour": "green"}, "outer: colour: 'green' is not one of red, blue"),
        ({"inners": {}}, "outer: inners: {} is not a list"),
        ({"inners": "ab"}, "outer: inners: 'ab' is not a list"),
        ({"inners": [{}]}, "outer: inners[0].window: is missing"),
        ({"inners": [{"window": None}]}, "outer: inners[0].window: None is not an object"),
        ({"inners": [{"window": {**_WINDOW, "end": _TIME}}]}, "outer: inners[0].window: window [2013-01-01"),
        ({"inners": [{"window": _WINDOW, "row": 1}]}, "outer: inners[0]: row is unknown; known are window, "),
        ({"pair": ["a"]}, "outer: pair: ['a'] is not a list of 2"),
        ({"pair": ["a", "b"]}, "outer: pair[1]: 'b' "),
        ({"frontier": {"start": "7" + "Z" * 25, "upto": _ULID}}, "outer: frontier: frontier "),
        ({"by_shard": []}, "outer: by_shard: [] is not an object"),
        ({"by_shard": {"EWR": {}}}, "outer: by_shard['EWR']: 'EWR' "),
        ({"by_shard": {"1": 2}}, "outer: by_shard['1']: 2 is not an object"),
        ({"by_colour": {"red": {"a": "b"}}}, "outer: by_colour['red']['a']: 'b' is not a whole number"),
        ({"hexadecimal": "xyz"}, "outer: hexadecimal: invalid literal for int() with base 16: 'xyz'"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(changes: dict[str, Any], message: str) -> None:
    """The field, however deep, the value, and what it must be."""
    with pytest.raises(InvalidArgumentError) as caught:
        decode(Outer, {**_GIVEN, **changes}, named="outer")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["number", "by_shard", "filled"])
def test_what_has_no_plain_default_must_be_there(name: str) -> None:
    """What is always written, such as an empty mapping, is not taken for empty where it is missing."""
    given = {key: value for key, value in _GIVEN.items() if key != name}
    with pytest.raises(ManifestError, match=f"outer: {name}: is missing") as caught:
        decode(Outer, given, named="outer", error=ManifestError)
    assert caught.value.facts == {"named": "outer"}


@pytest.mark.parametrize("secret", ["hunter2", ["hunter2", 2], {"hunter2": 1}])
def test_a_field_that_no_repr_shows_is_not_shown(secret: object) -> None:
    """It may hold a password."""
    with pytest.raises(InvalidArgumentError, match="outer: secret") as caught:
        decode(Outer, {**_GIVEN, "secret": secret}, named="outer")
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("kind", [object, int | str, bytes])
def test_a_type_without_a_form_is_an_error_of_ours(kind: Any) -> None:
    """Whatever the value."""
    with pytest.raises(TypeError, match="has no form in JSON"):
        decode(kind, None, named="it")


@dataclass(frozen=True)
class Options:
    """Settings of a version."""

    REFUSES_UNKNOWN: ClassVar[bool] = True
    OMITS_DEFAULTS: ClassVar[bool] = True

    rows: int = 10
    colour: Colour = Colour.RED


def test_what_has_its_default_is_left_out_where_the_type_says_so() -> None:
    """So an older version, which knows only some of the names, reads what uses none of the others."""
    assert encode(Options()) == {}
    assert encode(Options(rows=5)) == {"rows": 5}
    assert decode(Options, {"rows": 5}, named="it") == Options(rows=5)
    assert decode(Options, {}, named="it") == Options()
