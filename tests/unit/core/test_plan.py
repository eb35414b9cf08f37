# SPDX-License-Identifier: Apache-2.0
"""Plans and their options."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core import codec
from airflow_changefeed.core.export_plan import (
    COMPRESSIONS,
    ON_MISSING,
    ExportOptions,
    Plan,
    PlannedUnit,
    Shape,
)
from airflow_changefeed.exceptions import InvalidArgumentError, TerminalError, UnsupportedVersionError
from tests.unit.core.strategies import ranges, shards, texts, times, units

_options = st.builds(
    ExportOptions,
    compression=st.sampled_from(COMPRESSIONS),
    target_file_rows=st.integers(1, 100_000_000),
    target_file_bytes=st.none() | st.integers(1 << 20, 1 << 40),
    partitions=st.none() | st.integers(1, 10_000),
    batch_rows=st.integers(1, 1_000_000),
    on_missing=st.sampled_from(ON_MISSING),
    shape=st.sampled_from(Shape),
)
_planned = st.builds(
    PlannedUnit, units, st.integers(0, 1 << 40), st.lists(ranges, max_size=3).map(tuple), st.integers(0, 99)
)
_plans = st.builds(
    Plan,
    feed=texts,
    path=texts,
    consumer=texts,
    attempt=st.integers(1, 1 << 40),
    run=texts,
    made_at=times,
    units=st.lists(_planned, max_size=3).map(tuple),
    seals=st.dictionaries(shards, times, max_size=3),
    options=_options,
)


@given(_plans)
def test_a_plan_survives_json(plan: Plan) -> None:
    """The Spark job reads what the operator wrote."""
    assert Plan.from_json(plan.to_json(), named="plan") == plan


@given(_plans)
def test_a_plan_of_before_there_were_shapes_is_typed(plan: Plan) -> None:
    """An operator of one version and a job of the next understand each other."""
    content = json.loads(plan.to_json())
    for header in ("kind", "schema_version", "digest"):
        del content[header]
    content["options"].pop("shape", None)
    found = Plan.from_json(codec.dump(Plan.KIND, 1, content), named="plan")
    assert found.options.shape is Shape.TYPED
    assert found.units == plan.units


def test_a_shape_may_be_given_by_its_name() -> None:
    """As DAG files and plans have it."""
    assert ExportOptions(shape="hasura").shape is Shape.HASURA
    assert ExportOptions(shape="hasura") == ExportOptions(shape=Shape.HASURA)


@given(_plans)
def test_a_plan_is_empty_when_no_unit_has_rows(plan: Plan) -> None:
    """Units without rows are committed all the same, but need no Spark."""
    assert plan.is_empty == all(unit.rows == 0 for unit in plan.units)
    assert plan.rows == sum(unit.rows for unit in plan.units)


def test_all_wrong_options_are_named_at_once() -> None:
    """One error lists every one of them with its limits."""
    with pytest.raises(InvalidArgumentError) as caught:
        ExportOptions(
            compression="zip",
            target_file_rows=0,
            target_file_bytes=1,
            partitions=10_001,
            batch_rows=True,
            on_missing="skip",
            shape="avro",
        )
    problems = caught.value.facts["problems"]
    assert len(problems) == 7
    for name in (
        "compression",
        "target_file_rows",
        "target_file_bytes",
        "partitions",
        "batch_rows",
        "on_missing",
        "shape",
    ):
        assert any(problem.startswith(name) for problem in problems)


_PLAN = Plan("f", "/out", "c", 1, "run", datetime(2013, 1, 1, tzinfo=timezone.utc), (), {})


def _without(name: str) -> str:
    content = json.loads(_PLAN.to_json())
    for ours in ("kind", "schema_version", "digest", name):
        del content[ours]
    return codec.dump(Plan.KIND, 1, content)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        *(_without(name) for name in ("feed", "attempt", "made_at", "units", "seals", "options")),
        _PLAN.to_json().replace("/out", "/elsewhere"),
        codec.dump(Plan.KIND, 1, {**json.loads(_without("options")), "options": {"unknown": 1}, "x": 1}),
    ],
)
def test_a_damaged_plan_is_refused(text: str) -> None:
    """A terminal error that names the plan."""
    with pytest.raises(TerminalError, match="my plan"):
        Plan.from_json(text, named="my plan")


def test_a_plan_of_a_newer_version_is_refused() -> None:
    """The cluster's installation may be older than the scheduler's."""
    with pytest.raises(UnsupportedVersionError):
        Plan.from_json(codec.dump(Plan.KIND, 2, {}), named="plan")
