# SPDX-License-Identifier: Apache-2.0
"""Flags, numbers and words mean the same as JSON values and as texts; what is not known stays as it is."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.values import (
    Fields,
    duration,
    flag,
    flag_or,
    json_object,
    number,
    one_of,
    printable,
    read_each,
    read_fields,
    whole,
)
from airflow_changefeed.exceptions import InvalidArgumentError

FIELDS: Fields = {
    "flag": flag,
    "whole": whole(-5, 9_999),
    "number": number(),
    "inner": {"flag": flag, "whole": whole(0)},
}
TYPED = st.fixed_dictionaries(
    {},
    optional={
        "flag": st.booleans(),
        "whole": st.integers(-5, 9_999),
        "number": st.floats(allow_nan=False, allow_infinity=False),
        "inner": st.fixed_dictionaries(
            {}, optional={"flag": st.booleans(), "whole": st.integers(0, 99), "other": st.booleans()}
        ),
    },
)
#: Whatever a URI or JSON may give under a name that nobody knows.
OTHERS = st.dictionaries(
    st.text(min_size=1).map("x{}".format),
    st.one_of(st.text(), st.sampled_from(["true", "false", "0123", "1", ""]), st.booleans(), st.integers()),
)


def quoted(value: Any) -> Any:
    """Return known fields as texts."""
    return {name: each if name == "other" else json.dumps(each) for name, each in value.items()}


@given(TYPED, OTHERS)
def test_a_text_means_what_its_json_means(typed: dict[str, Any], others: dict[str, Any]) -> None:
    """In an object, too; with types; and every other field is the very same."""
    expected = json.dumps({**typed, **others}, sort_keys=True)
    for form in (typed, quoted(typed), {**typed, "inner": quoted(typed.get("inner", {}))}):
        found, problems = read_fields({**form, **others}, FIELDS)
        if "inner" not in typed and found.get("inner") == {}:
            del found["inner"]
        assert problems == []
        assert json.dumps(found, sort_keys=True) == expected


@pytest.mark.parametrize("blank", ["", None])
def test_a_blank_field_is_not_given(blank: str | None) -> None:
    """Forms leave them; under a name that nobody knows they are somebody else's."""
    assert read_fields({"flag": blank, "inner": {"whole": blank}, "x": blank}, FIELDS) == (
        {"inner": {}, "x": blank},
        [],
    )


@pytest.mark.parametrize(
    ("reader", "value", "said"),
    [
        *((flag, value, "true or false") for value in ("maybe", "", 2, 1.0, None, [True], "truee")),
        (flag_or("a path"), 5, "true, false, or a path"),
        *((whole(1), value, "a whole number, 1 or more") for value in (0, "x", "1.0", 1.5, True, "1_0", "٣")),
        (whole(1, 9, "bytes"), "10", "a whole number of bytes, 1 to 9"),
        (whole(1), "9" * 5000, "a whole number, 1 or more"),
        *((number(), value, "a number") for value in ("", "x", "nan", "inf", "-1e999", True, [1], {})),
        (number(0, 9, "seconds"), "9.1", "a number of seconds, 0 to 9"),
        (one_of(("yes", "No")), "maybe", "one of yes, No"),
        (printable, "a\0b", "a text of printable characters"),
        (json_object, "[1]", "a JSON object"),
        (json_object, "{", "a JSON object"),
    ],
)
def test_what_means_nothing_is_refused_with_what_it_may_be(reader: Any, value: Any, said: str) -> None:
    """In words that follow "must be"."""
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        reader(value)


def test_words_are_found_in_any_case() -> None:
    """And handed on as the library wants them."""
    assert one_of(("IPv4First", "IPv6First"))(" ipv6first") == "IPv6First"


def test_all_that_is_wrong_is_named_with_its_place() -> None:
    """An object is named without what it holds, which may be secret."""
    _, problems = read_fields({"flag": "x", "inner": {"whole": "-1"}}, FIELDS, " in its extra")
    assert problems == [
        "flag in its extra must be true or false, not 'x'",
        "inner.whole in its extra must be a whole number, 0 or more, not '-1'",
    ]
    assert read_fields({"inner": "secret"}, FIELDS) == ({}, ["inner must be a JSON object"])


READERS: list[Any] = [flag, whole(1), number(), number(above=0), duration(), one_of(("a", "b")), printable]


@given(st.sampled_from(READERS), st.one_of(st.text(), st.integers(), st.floats(), st.binary(), st.none()))
def test_a_reader_reads_or_says_what_it_wants(reader: Any, value: Any) -> None:
    """And raises nothing else, whatever it is given."""
    with suppress(ValueError):
        reader(value)


@given(st.timedeltas(timedelta(microseconds=1), timedelta(days=36_525)))
def test_lengths_are_read_as_python_writes_them(length: timedelta) -> None:
    """As in a serialized DAG; and as seconds."""
    assert duration()(str(length)) == duration()(length) == length
    assert abs(duration()(length.total_seconds()) - length) <= timedelta(microseconds=1)


def test_all_problems_of_a_value_are_named_with_it() -> None:
    """A reader may find several."""

    def read(value: Any) -> Any:
        raise InvalidArgumentError("one; two", problems=["one", "two"])

    assert read_each({"x": 1}, {"x": read}, {"x": "x in its extra"}) == (
        {},
        ["x in its extra: one", "x in its extra: two"],
    )
