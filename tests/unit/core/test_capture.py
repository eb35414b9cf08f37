# SPDX-License-Identifier: Apache-2.0
"""What a capture is, as a migration declares it and as its readers see it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.capture import (
    MAX_SESSION_KEYS,
    CapturedTable,
    CaptureInfo,
    CaptureShape,
    CaptureSpec,
    KeyChange,
    Operation,
    TableCapture,
)
from airflow_changefeed.core.codec import decode, encode
from airflow_changefeed.core.feed import SHARD_KEY_TYPES
from airflow_changefeed.exceptions import InvalidArgumentError

_names = st.text(min_size=1, max_size=12)
_columns = st.none() | st.lists(_names, unique=True, max_size=3).map(tuple)
_tables = st.builds(
    TableCapture,
    table=_names,
    insert=_columns,
    update=_columns,
    delete=st.lists(_names, max_size=2).map(tuple),
)
_specs = st.builds(
    CaptureSpec,
    tables=st.lists(_tables, min_size=1, max_size=3, unique_by=lambda table: table.table).map(tuple),
    name=_names,
    shard_key_type=st.sampled_from(list(SHARD_KEY_TYPES)),
    key_change=st.sampled_from(KeyChange),
    keep_unchanged=st.booleans(),
    session_keys=st.lists(_names, unique=True, max_size=3).map(tuple),
    trace_key=st.none() | _names,
    with_sequence=st.booleans(),
    guard_table=st.booleans(),
    guard_schema=st.booleans(),
    not_for_replication=st.booleans(),
)
_fields = st.dictionaries(_names, _names, max_size=3)
_shapes = st.builds(
    CaptureShape,
    name=_names,
    key_change=st.sampled_from(KeyChange),
    with_sequence=st.booleans(),
    tables=st.dictionaries(
        _names,
        st.builds(
            CapturedTable,
            key_columns=st.lists(_names, max_size=2).map(tuple),
            columns=st.dictionaries(st.sampled_from(Operation), _fields),
            is_whole=st.booleans(),
        ),
        max_size=3,
    ),
    not_for_replication=st.booleans(),
)


@given(_specs)
def test_a_spec_survives_json(spec: CaptureSpec) -> None:
    """The command line and the embedded source read what was written."""
    assert decode(CaptureSpec, json.loads(json.dumps(encode(spec))), named="spec") == spec


@given(_shapes)
def test_a_shape_survives_json(shape: CaptureShape) -> None:
    """It travels as JSON in Arrow's metadata."""
    assert decode(CaptureShape, json.loads(json.dumps(encode(shape))), named="shape") == shape


def test_operations_are_those_that_are_not_none() -> None:
    """Empty means all columns of now, None that the operation is not recorded."""
    table = TableCapture("dbo.t", insert=(), update=("a",), delete=None)
    assert table.operations == {Operation.INSERT: (), Operation.UPDATE: ("a",)}


def test_a_capture_of_one_table_needs_no_name() -> None:
    """It is named after the table; a given name is kept."""
    spec = CaptureSpec((TableCapture("dbo.orders"),))
    assert spec.full_name == "dbo.orders_changes"
    assert replace(spec, name="dbo.x").full_name == "dbo.x"
    assert (
        CaptureSpec([TableCapture("dbo.orders")], key_change="delete_insert").key_change
        is KeyChange.DELETE_INSERT
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tables": ()}, ["at least one table"]),
        ({"tables": (TableCapture("t"), TableCapture("t")), "name": "n"}, ["'t' is given twice"]),
        (
            {"tables": (TableCapture("t", None, None, None),)},
            ["record at least one of insert, update and delete"],
        ),
        ({"tables": (TableCapture("t"), TableCapture("u"))}, ["several tables needs a name"]),
        ({"shard_key_type": "text"}, ["shard_key_type must be one of", "'text'"]),
        ({"key_change": "both"}, ["key_change must be one of new_only, delete_insert", "'both'"]),
        ({"session_keys": ("a", "a")}, ["session_keys"]),
        ({"session_keys": ("",)}, ["session_keys"]),
        ({"session_keys": ("x" * 129,)}, ["session_keys"]),
        ({"session_keys": tuple(map(str, range(MAX_SESSION_KEYS + 1)))}, ["session_keys", "32"]),
        ({"tables": (), "shard_key_type": "x", "key_change": "y"}, ["table", "shard_key_type", "key_change"]),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, Any], words: list[str]) -> None:
    """All of it at once, with what may be given."""
    with pytest.raises(InvalidArgumentError) as caught:
        CaptureSpec(**{"tables": (TableCapture("t"),), **arguments})
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"tables": [{}]},
        {"tables": [{"table": "t", "colour": []}]},
        {"tables": 3},
        {"tables": [], "colour": 1},
        [],
    ],
)
def test_what_is_no_capture_is_refused(value: Any) -> None:
    """An unknown name must not pass for a default."""
    with pytest.raises(InvalidArgumentError):
        decode(CaptureSpec, value, named="spec")


def test_a_capture_is_known_by_its_shapes_name() -> None:
    """The feed, the table of events and the capture have one name."""
    spec = CaptureSpec((TableCapture("dbo.t"),))
    shape = CaptureShape(spec.full_name, KeyChange.NEW_ONLY, False, {})
    info = CaptureInfo(spec, shape, True, datetime(2026, 1, 1, tzinfo=timezone.utc))
    assert info.name == "dbo.t_changes"
    assert (info.drift, info.gaps) == ((), ())
