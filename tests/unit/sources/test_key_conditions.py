# SPDX-License-Identifier: Apache-2.0
"""Conditions on a key: what is read of a text, and what is refused because it could mean two things."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.base_capture import KeyCondition, key_conditions, normal_where

KINDS = {
    "id": pa.int32(),
    "small": pa.uint8(),
    "amount": pa.decimal128(7, 2),
    "day": pa.date32(),
    'the "odd] one': pa.int64(),
    "and": pa.int64(),
    "name": pa.string(),
    "at": pa.timestamp("us"),
    "size": pa.float64(),
    "flag": pa.bool_(),
    "note": pa.int64(),
}
KEYS = [name for name in KINDS if name != "note"]


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        ("", ""),
        (" id>=1 ", "id >= 1"),
        ("id = +1\nAND\tsmall<2 and [day] > '2024-02-29'", "id = +1 and small < 2 and day > '2024-02-29'"),
        ('"the ""odd] one" <= -3', '"the ""odd] one" <= -3'),
        ('[the "odd]] one] <= -3', '"the ""odd] one" <= -3'),
        ("amount < 12345.5", "amount < 12345.5"),
        ("and = 1 and id = 2", "and = 1 and id = 2"),
    ],
)
def test_conditions_have_one_spelling(given: str, normal: str) -> None:
    """And it is read as the same again."""
    assert normal_where(given) == normal
    assert normal_where(normal) == normal
    assert key_conditions(given, KEYS, KINDS) == key_conditions(normal, KEYS, KINDS)


@pytest.mark.parametrize(
    "where",
    [
        *("id", "id = ", "= 1", "id = 1 and", "id = 1 and ", "and id = 1", "id = 1 or id = 2", "id <> 1"),
        *("id = 1 id = 2", "id = 1and id = 2", "id = 1; drop table x", "id in (1)", "id + 1 = 2", "1 = id"),
        *("id = '1'", "id = N'2024-01-01'", "id = 1e3", "id = 0x10", "id = 1 -- and", "f(id) = 1", "id == 1"),
        *("id = 1.", "id = .5", "id = '2024-1-1'", "t.id = 1", "id = \u0661"),
    ],
)
def test_what_is_no_comparison_is_refused(where: str) -> None:
    """Nothing of it reaches a database."""
    with pytest.raises(InvalidArgumentError, match="cannot be read; expected comparisons"):
        normal_where(where)


def test_values_have_the_types_of_the_columns() -> None:
    """Exactly, as nothing is rounded on one side alone."""
    found = key_conditions("id >= -5 and amount < 1.50 and day = '2024-02-29' and amount > 3", KEYS, KINDS)
    assert found == (
        KeyCondition("id", ">=", -5),
        KeyCondition("amount", "<", Decimal("1.50")),
        KeyCondition("day", "=", date(2024, 2, 29)),
        KeyCondition("amount", ">", Decimal(3)),
    )
    for wrong in (
        *("id = 1.0", "id = 2147483648", "small = -1", "small = 256", "id = 99999999999999999999999"),
        *("amount = 1.234", "amount = 123456", "amount = '2024-01-01'", "id = '2024-01-01'"),
        *("day = '2024-02-30'", "day = 20240101", "day = 9202401019"),
    ):
        with pytest.raises(InvalidArgumentError, match="is not a value of column"):
            key_conditions(wrong, KEYS, KINDS)


def test_columns_that_are_compared_in_two_ways_are_refused() -> None:
    """All at once, each with its reason."""
    with pytest.raises(InvalidArgumentError) as refused:
        key_conditions("name = 1 and at > '2024-01-01' and size < 1.5 and flag = 1 and note = 1", KEYS, KINDS)
    assert [problem.split(" cannot")[0] for problem in refused.value.facts["problems"][:4]] == [
        "column 'name' of type string",
        "column 'at' of type timestamp[us]",
        "column 'size' of type double",
        "column 'flag' of type bool",
    ]
    assert "'note' is not a key column" in refused.value.message
