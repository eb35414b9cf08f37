# SPDX-License-Identifier: Apache-2.0
"""
What somebody may have made of a document: valid ones, mutated in their values, structure or bytes.

Few examples in a usual run; ``CHANGEFEED_HOSTILE_ROUNDS`` sets how many, as ``make soak`` does.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from airflow_changefeed.core import codec
from airflow_changefeed.exceptions import ChangefeedError

_Test = TypeVar("_Test", bound=Callable[..., Any])

#: Examples of each test in a usual run, and what asks for more.
ROUNDS, ROUNDS_VARIABLE = 40, "CHANGEFEED_HOSTILE_ROUNDS"

#: Names that lead out of a folder, or that a path, a terminal, a page or a database takes for something else.
NAMES = (
    *(
        "",
        " ",
        ".",
        "..",
        "../../secret.parquet",
        "/nowhere/secret.parquet",
        "a/../../b",
        "s3://other/b",
        "file:///b",
    ),
    *("..\\..\\b", "C:\\b", "~", "~root", "a\x00b", "a\nb", "\x1b[2J", "\u202egnp.exe", "e\u0301", "\u212a"),
    *(
        "\ufeff",
        "\ud800",
        "a\udcffb",
        "<img src=x onerror=alert(1)>",
        "'; drop table x; --",
        "]]",
        '"',
        "%00",
    ),
    *("%2e%2e%2f", "\u0663", "\u00b2", "00", "-0", "+1", "1_0", "0x1", "1e9", "nan", "9" * 30, "9" * 5000),
    *(
        "x" * 10_000,
        "\u00df" * 13,
        "{{ 7*7 }}",
        "$(id)",
        "CON",
        "con.",
        "東京" * 200,
        "مرحبا",
        "Zürich",
        "🛫",
    ),
    *("2013-01-01", "9999-12-31T23:59:59-12:00"),
)

#: Values of every kind, and of every kind's ends.
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, False, 0, -1, 1, 255, 256, 1 << 31, 1 << 63, (1 << 63) - 1, -(1 << 63) - 1]),
    st.sampled_from([1 << 64, 10**300, 0.5, -0.0, 1e308, 5e-324, float("inf"), float("-inf"), float("nan")]),
    st.sampled_from(NAMES),
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.sampled_from([[], {}, [[]], [{}], {"": []}, [None] * 1000, {"a": {"b": {"c": []}}}]),
)


def hostile(test: _Test) -> _Test:
    """Give a property test its number of examples."""
    rounds = int(os.environ.get(ROUNDS_VARIABLE) or ROUNDS)
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    return settings(max_examples=rounds, suppress_health_check=slow)(test)


@contextmanager
def value_or_error(*names: str) -> Iterator[None]:
    """
    Let a block end well, or with one of our errors.

    :param names: of what was read; the error has one of them.
    """
    try:
        yield
    except ChangefeedError as error:
        if names and not any(name in error.message for name in names):
            raise AssertionError(f"does not name {' or '.join(names)}: {error.message}") from error


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of all values within a JSON value."""
    found = [place]
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        found += _places(each, (*place, name))
    return found


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for name in place:
        value = value[name]
    return value


@st.composite
def mutated(draw: st.DrawFn, document: Any) -> Any:
    """Draw a JSON value that differs from another one in some places."""
    found = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in _places(found) if place]
        if not places:
            return copy.deepcopy(draw(VALUES))
        place = draw(st.sampled_from(places))
        inside, name = _at(found, place[:-1]), place[-1]
        what = draw(st.sampled_from(["set", "set", "set", "drop", "copy", "wrap", "rename", "repeat"]))
        if what == "set":
            # A copy: the next mutation may change what is in it.
            inside[name] = copy.deepcopy(draw(VALUES))
        elif what == "copy":
            inside[name] = copy.deepcopy(_at(found, draw(st.sampled_from(places))))
        elif what == "wrap":
            inside[name] = [inside[name]]
        elif what == "drop" or (what == "rename" and isinstance(inside, list)):
            del inside[name]
        elif what == "rename":
            inside[draw(st.sampled_from(NAMES))] = inside.pop(name)
        elif isinstance(inside, list):
            inside.append(copy.deepcopy(inside[name]))
    return found


def sealed(document: Any) -> str:
    """Write a document with the digest that fits it, as everybody can, if there is one."""
    if isinstance(document, dict):
        content = {name: each for name, each in document.items() if name not in _OURS}
        kind, version = document.get("kind"), document.get("schema_version")
        try:
            return codec.dump(kind, version, content)  # type: ignore[arg-type] # wrong types are the point
        except (ValueError, TypeError):
            pass
    return json.dumps(document)


_OURS = ("kind", "schema_version", "digest")


@st.composite
def _bytes_changed(draw: st.DrawFn, text: str) -> str:
    """Draw a text that was cut, overwritten, repeated or interspersed."""
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 50)))
    pieces = ["", "\x00", "\ufffd", "}", "]", "{", "[" * 200, '{"a":' * 5000, "1e400", "NaN", "-Infinity"]
    pieces += ["9" * 5000, '"\\ud800"', "null", text[start:end] * 3, '"schema_version": 99', "\u2028"]
    piece = draw(st.sampled_from(pieces))
    return text[:start] + piece + text[end:]


@st.composite
def _twice(draw: st.DrawFn, document: Mapping[str, Any]) -> str:
    """Draw a document in which a name has two values; the last one counts in Python, elsewhere the first."""
    name = draw(st.sampled_from(sorted(document)))
    return f"{{{json.dumps(name)}: {json.dumps(draw(VALUES))}, {json.dumps(document)[1:]}"


@st.composite
def _deep(draw: st.DrawFn, document: Mapping[str, Any]) -> str:
    """Draw a document with a value that is as deep as a parser may just take, or deeper."""
    depth = draw(st.sampled_from([50, 300, 480, 900, 980, 990, 995, 1000, 3000, 100_000]))
    name = draw(st.sampled_from([*document, "other"]))
    open_, close = draw(st.sampled_from([("[", "]"), ('{"a":', "}")]))
    value = open_ * depth + ("1" if open_ != "[" else "") + close * depth
    return json.dumps({**document, name: "@"}).replace('"@"', value, 1)


def hostile_texts(text: str) -> st.SearchStrategy[str]:
    """Draw what may be found in the place of a valid document."""
    document = json.loads(text)
    return st.one_of(
        mutated(document).map(sealed),
        mutated(document).map(sealed),
        mutated(document).map(json.dumps),
        _bytes_changed(text),
        _twice(document),
        _deep(document),
        st.text(max_size=50),
    )
