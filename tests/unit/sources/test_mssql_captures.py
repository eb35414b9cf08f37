# SPDX-License-Identifier: Apache-2.0
"""What is made of the registry of captures of SQL Server: specs, shapes, drift and faults."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_changefeed.core.capture import KeyChange, Operation
from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.feed import Column
from airflow_changefeed.sources.mssql.capture.info import TableDrift, capture_spec, column_drift
from airflow_changefeed.sources.mssql.capture.registry import Registry, is_of_capture
from airflow_changefeed.sources.mssql.doctor import captures as told
from tests.unit.sources.mssql_captures import (
    BROKEN,
    NAME,
    OTHERS,
    capture,
    column,
    guards,
    place,
    schema_guards,
    table,
    trigger,
    triggers,
)

# ---- the registry


def test_a_capture_is_known_by_the_key_of_its_table() -> None:
    """No plain feed is asked about."""
    names = ("changefeed_statement", "changefeed_row", "changefeed_image")
    key = [Column(name, "int") for name in names]
    assert is_of_capture(key)
    assert not is_of_capture(key[:2])
    assert not is_of_capture([])


def test_a_spec_has_the_columns_that_are_captured_now() -> None:
    """And an operation that is not captured has none."""
    row = capture(
        key_change="delete_insert",
        keep_unchanged=1,
        session_keys='["user", "tenant"]',
        trace_key=None,
        shard_key_type="bigint",
        guard_table=0,
    )
    registry = Registry(
        [row],
        [table(update_columns=None, delete_columns='["k"]', shard="[k] % 4")],
        [column("k", on_update=0, key_place=1), column("v", on_update=0, on_delete=0)],
    )
    spec = capture_spec(registry, row)
    (only,) = spec.tables
    assert (only.table, only.insert, only.update, only.delete, only.shard) == (
        "myservice.MyTable",
        ("k", "v"),
        None,
        ("k",),
        "[k] % 4",
    )
    assert (spec.full_name, spec.key_change, spec.shard_key_type) == (NAME, KeyChange.DELETE_INSERT, "bigint")
    assert (spec.keep_unchanged, spec.trace_key, spec.guard_table) == (True, None, False)
    assert spec.session_keys == ("user", "tenant")


def test_keys_have_the_order_of_the_primary_key() -> None:
    """Not that of the columns; one that no operation records is part of the key nevertheless."""
    registry = Registry(
        [capture()],
        [table()],
        [
            column("a", key_place=2),
            column("v"),
            column("b", key_place=1, on_insert=0, on_update=0, on_delete=0),
        ],
    )
    found = registry.shape(registry.captures[0]).tables["myservice.MyTable"]
    assert found.key_columns == ("b", "a")
    assert found.columns[Operation.INSERT] == {"a": "a", "v": "v"}


# ---- drift


def _present(name: str, kind: str = "int", key: int | None = None, **other: Any) -> dict[str, Any]:
    """A column as the catalog has it."""
    return {
        "column_id": place(name),
        "name": name,
        "type": kind,
        "max_length": 4,
        "precision": 10,
        "scale": 0,
        "collation": None,
        "key_ordinal": key,
        **other,
    }


CAPTURED = [column("k", key_place=1), column("v", stored_name="v_1")]
STORED = [_present("k"), _present("v_1")]


@pytest.mark.parametrize(
    ("present", "words"),
    [
        ([_present("k", key=1), _present("v")], []),
        ([_present("k", key=1)], ["column v is missing"]),
        (
            [_present("k", key=1), _present("v", "bigint")],
            ["column v is now bigint, but recorded as int"],
        ),
        ([_present("k", key=1), _present("v"), _present("w")], ["column w is not recorded"]),
        (
            [_present("k", key=1), _present("v", key=2)],
            ["its primary key is now (k, v), previously (k)"],
        ),
        ([_present("k"), _present("v")], ["its primary key is now (), previously (k)"]),
        (
            [_present("k", key=1), _present("w", column_id=place("v"))],
            ["column v is now named w"],
        ),
        ([_present("k", key=1), _present("V", column_id=place("v"))], []),
        (
            [_present("k", key=1), _present("w", column_id=place("v")), _present("v", column_id=9)],
            [
                "column v is now named w",
                "column v is not the recorded column, but is recorded in its place",
                "column v is not recorded",
            ],
        ),
        (
            [_present("k", key=1), _present("v", column_id=9)],
            [
                "column v is not the recorded column, but is recorded in its place",
                "column v is not recorded",
            ],
        ),
        (
            [_present("v", key=1, column_id=place("k")), _present("k", column_id=place("v"))],
            [
                "column k is now named v",
                "column k is not the recorded column, but is recorded in its place",
                "column v is now named k",
                "column v is not the recorded column, but is recorded in its place",
            ],
        ),
    ],
    ids=[
        *("none", "gone", "retyped", "new", "longer key", "no key", "renamed", "other case", "name reused"),
        *("dropped and added", "names swapped"),
    ],
)
def test_drift_is_told_in_words(present: list[dict[str, Any]], words: list[str]) -> None:
    """Column by column, then the key."""
    assert list(column_drift(table(), CAPTURED, present, STORED)) == words


def test_new_columns_are_no_drift_where_columns_were_chosen() -> None:
    """Nor are those that no operation records."""
    own = table(insert_columns='["k", "v"]', update_columns=None, delete_columns='["k"]')
    present = [_present("k", key=1), _present("v"), _present("w")]
    assert list(column_drift(own, CAPTURED, present, STORED)) == []


def test_a_row_version_is_recorded_as_its_bytes() -> None:
    """Which is no other type; nor is another spelling of one."""
    present = [_present("k", key=1), _present("v", "timestamp", max_length=8)]
    stored = [_present("k"), _present("v_1", "binary", max_length=8)]
    assert list(column_drift(table(), CAPTURED, present, stored)) == []


def test_another_collation_is_drift() -> None:
    """It may hold texts that the capture's table cannot."""
    texts: dict[str, Any] = {"kind": "varchar", "max_length": 10}
    present = [_present("k", key=1), _present("v", **texts, collation="Latin1_General_100_CI_AS_SC_UTF8")]
    stored = [_present("k"), _present("v_1", **texts, collation="Latin1_General_CI_AS")]
    (words,) = column_drift(table(), CAPTURED, present, stored)
    assert words == (
        "column v now has collation Latin1_General_100_CI_AS_SC_UTF8, but is recorded in Latin1_General_CI_AS"
    )


def test_a_column_that_somebody_dropped_from_the_captures_table_is_told() -> None:
    """Its writers fail."""
    present = [_present("k", key=1), _present("v")]
    (words,) = column_drift(table(), CAPTURED, present, STORED[:1])
    assert words == "column v no longer has a column v_1 in the capture's table"


def test_what_was_not_compared_is_said() -> None:
    """A login that does not see the table knows of no drift, and says so."""
    assert str(TableDrift(NAME, "s.T", is_seen=False)).startswith("s.T: this login cannot see its columns")
    assert str(TableDrift(NAME, "s.T", ("one", "two"))) == "s.T: one; two"


# ---- faults


@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_of_a_capture_is_told_with_its_remedy(name: str) -> None:
    """One fault of one kind for one thing that is wrong."""
    kind, make, text = BROKEN[name]
    (fault,) = make()
    assert fault.kind is kind
    assert text in str(fault)


def test_a_healthy_capture_has_no_fault() -> None:
    """Nor one that nobody asked to guard, nor triggers that fire after those of the capture."""
    assert triggers(trigger(), OTHERS) == []
    assert triggers(trigger(is_first=0)) == []
    assert triggers(trigger(is_first=0), OTHERS, tells_order=False) == []
    assert triggers(trigger(is_first=0), OTHERS | {"is_disabled": 1}) == []
    assert guards((1, 0)) == guards(guard_name=None) == []
    assert schema_guards(guard_schema=0) == []
    assert schema_guards({"name": "changefeed_captures", "is_disabled": 0}) == []


def test_rows_that_were_counted_are_compared_with_what_was_recorded() -> None:
    """Agreement is no fault, a difference is a gap, and what could not be counted is said."""

    def found(rows: int | None) -> list[Any]:
        row = {"table_schema": "s", "table_name": "T", "rows": rows, "expected": 3}
        return list(told.count_faults(NAME, [row]))

    assert found(3) == []
    (gap,) = found(2)
    assert gap.kind is FaultKind.CAPTURE_GAP
    assert "table s.T" in gap.place
    assert "the table has 2 rows, but 3 according to the recorded changes" in str(gap)
    (busy,) = found(None)
    assert busy.kind is FaultKind.NOT_CHECKED
    assert "number of rows" in str(busy)


def test_triggers_of_each_operation_are_looked_for() -> None:
    """And of those alone that are captured."""
    rows = [trigger(one) for one in (Operation.INSERT, Operation.DELETE)]
    (fault,) = told.trigger_faults(capture(), table(), rows)
    assert fault.place == f"trigger capture_update.0:{NAME} on myservice.MyTable"
    assert list(told.trigger_faults(capture(), table(update_columns=None), rows)) == []
