# SPDX-License-Identifier: Apache-2.0
"""Captured tables read while others may write: the values that their events have, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    FeedSetupError,
    ReplicaBehindError,
    SchemaChangedError,
)
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.pool import RetryPolicy
from tests.integration.mssql.lab import WHOLE, Lab
from tests.integration.mssql.server import Database
from tests.mssql_types import CASES

ALL = UlidRange(Ulid.MIN, Ulid.MAX)
SHARD = "changefeed_shard"
UUIDS = [f"'{digit * 8}-0000-0000-0000-000000000000'" for digit in "1ab"]


#: Types that a captured table may have here, and that fit into one row.
_TYPES = [case for case in CASES if case.is_everywhere and case.type not in ("text", "ntext", "image")]


@pytest.fixture(scope="module", params=[False, True], ids=["short", "long"])
def types(request: pytest.FixtureRequest, lab: Lab) -> tuple[str, str]:
    """Rows with each value of every type, recorded as they are; the name of capture and table."""

    def is_long(kind: str) -> bool:
        return "max" in kind or kind in ("xml", "varchar(8000)", "nvarchar(4000)", "varbinary(8000)")

    own = [case for case in _TYPES if is_long(case.type) == request.param]
    if lab.client.is_babelfish:
        # Its bytes of a text are of a code page, so it cannot show that a doubtful one is valid.
        own = [case for case in own if case.type != "nvarchar(20)"]
    table = f"types_{request.param}"
    columns = ", ".join(f"[C{number} x] {case.type} null" for number, case in enumerate(own))
    rows = [
        ", ".join(
            f"convert({case.type}, {case.values[row][0]})" if row < len(case.values) else "null"
            for case in own
        )
        for row in range(max(len(case.values) for case in own) + 1)
    ]
    rows = [f"{number}, {row}" for number, row in enumerate(rows)]
    return lab.capture(table, f"k int primary key, {columns}", *rows, snapshot=True), table


def test_values_are_those_of_the_events(lab: Lab, types: tuple[str, str]) -> None:
    """Name by name, type by type, at their limits, empty and null."""
    capture, table = types
    described = lab.source.table_columns(capture, f"myservice.{table}")
    lab.source.drain(capture)
    batches = list(lab.source.stream(capture, 0, ALL))
    events = pa.Table.from_batches(batches)
    image = events.schema.field("new").type
    own = {field.name: field.type for field in described.schema}
    assert own.pop(SHARD) == pa.int64()
    assert own == {name: image.field(field).type for name, field in described.fields.items()}
    expected = sorted(filter(None, events.column("new").to_pylist()), key=lambda row: row["k"])
    for rows in (1, 3, 1000):
        found = lab.read(capture, table, batch_rows=rows)
        assert {row.pop(SHARD) for row in found} == {0}
        assert sorted(found, key=lambda row: row["k"]) == expected
    assert described.shape == lab.source.capture(capture).shape


def test_tables_that_disagree_about_a_column_are_read_each_by_itself(lab: Lab) -> None:
    """The field of the events may have another name than the column; a row version is bytes."""
    version = "" if lab.client.is_babelfish else ", r rowversion"
    lab.client.results(f"create table myservice.one (k int primary key, v int null{version})")
    lab.client.results("create table myservice.two (k int primary key, v nvarchar(9) null)")
    lab.client.results("insert into myservice.one (k, v) values (1, 5)")
    lab.client.results("insert into myservice.two (k, v) values (1, N'x')")
    tables = (TableCapture("myservice.one"), TableCapture("myservice.two"))
    spec = CaptureSpec(tables, name="myservice.both", guard_schema=False, guard_table=False)
    lab.source.enable_capture(spec, record_rows=True)
    lab.source.drain("myservice.both")
    batches = lab.source.stream("myservice.both", 0, ALL)
    # Of each table also a reset before its rows, and the end of it.
    events = [row for batch in batches for row in batch.to_pylist() if row["new"] is not None]
    fields = []
    for table in ("one", "two"):
        described = lab.source.table_columns("myservice.both", f"myservice.{table}")
        (new,) = (event["new"] for event in events if event["name"] == f"myservice.{table}")
        (row,) = lab.read("myservice.both", table)
        assert row.pop(SHARD) == 0
        assert row == {name: new[field] for name, field in described.fields.items()}
        fields.append(described.fields["v"])
    assert len(set(fields)) == 2


@pytest.mark.parametrize("type_", ["int", "bigint", "uniqueidentifier"])
def test_each_row_has_the_shard_of_its_events(lab: Lab, type_: str) -> None:
    """Computed from its key, as the triggers do."""
    is_uuid = type_ == "uniqueidentifier"
    key, rows = ("uniqueidentifier", UUIDS) if is_uuid else ("int", ["1", "2", "3"])
    shard = "K" if is_uuid else "K % 2"
    table = f"shards_{type_}"
    columns = f"K {key} not null primary key"
    capture = lab.capture(table, columns, *rows, shard=shard, shard_key_type=type_)
    found = {row[SHARD] for row in lab.read(capture, table)}
    assert found == ({row.strip("'") for row in UUIDS} if is_uuid else {0, 1})


def test_a_row_without_a_shard_is_refused(lab: Lab) -> None:
    """Its next change would fail as well."""
    capture = lab.capture("unsharded", "k bigint primary key", "3000000000", shard="k")
    with pytest.raises(ColumnTypeError, match=r"myservice\.unsharded.* no shard for 1 row:") as caught:
        lab.read(capture, "unsharded")
    assert caught.value.column == SHARD


def test_a_column_that_changes_meanwhile_is_not_mixed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrives is compared with what was described."""
    from airflow_changefeed.sources.mssql.capture import table_query

    capture = lab.capture("altered", "k int primary key, v int null", "1, 2")
    plan = table_query.plan_batches

    def change_first(*arguments: Any) -> Any:
        lab.client.results("alter table myservice.altered alter column v bigint")
        return plan(*arguments)

    monkeypatch.setattr(table_query, "plan_batches", change_first)
    with pytest.raises(SchemaChangedError, match="'v' of type int arrived as int64"):
        lab.read(capture, "altered")
    monkeypatch.undo()
    with pytest.raises(FeedSetupError, match="column v is now bigint, but recorded as int: refresh"):
        lab.read(capture, "altered")


# ---- refusals


def _refusal(lab: Lab, capture: str, table: str) -> str:
    with pytest.raises(FeedSetupError) as caught:
        lab.source.table_columns(capture, table)
    with pytest.raises(FeedSetupError) as read:
        list(lab.source.stream_table(capture, table, WHOLE))
    assert str(read.value) == str(caught.value)
    return str(caught.value)


def _alter(*statements: str) -> Callable[[Lab, str], None]:
    def alter(lab: Lab, capture: str) -> None:
        for statement in statements:
            lab.client.results(statement)

    return alter


REFUSED: dict[str, tuple[str, dict[str, Any], Callable[[Lab, str], None], str]] = {
    "disabled": (
        "k int primary key",
        {},
        lambda lab, capture: lab.source.disable_capture(capture),
        "the capture is disabled, so changes leave no event",
    ),
    "no_key": ("k int not null", {"update": None}, _alter(), "it has no primary key"),
    "no_updates": ("k int primary key", {"update": None}, _alter(), "updates are not captured"),
    "missing": (
        "k int primary key, v int null",
        {},
        _alter("alter table myservice.refused_missing drop column v"),
        "column v is missing: refresh the capture",
    ),
    "another_type": (
        "k int primary key, v int null",
        {},
        _alter("alter table myservice.refused_another_type alter column v bigint"),
        "column v is now bigint, but recorded as int: refresh the capture",
    ),
    "dropped": (
        "k int primary key",
        {},
        _alter("drop table myservice.refused_dropped"),
        "this login may not read it, or it was dropped; ask a DBA for: grant select on "
        "[myservice].[refused_dropped] to [",
    ),
    "clustered": (
        "k int not null primary key nonclustered, c int not null",
        {"insert": ("k",), "update": ("k",)},
        _alter("create clustered index c on myservice.refused_clustered (c)"),
        "column c decides where a row is stored",
    ),
    "variant": ("k sql_variant primary key", {}, _alter(), "whose values cannot delimit a range"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_its_events_is_refused(lab: Lab, name: str) -> None:
    """With the reason and the remedy, before a row is read."""
    columns, options, alter, words = REFUSED[name]
    if lab.client.is_babelfish and name in ("clustered", "variant"):
        pytest.skip("Babelfish has no clustered index, and no sql_variant as it is declared")
    capture = lab.capture(f"refused_{name}", columns, **options)
    alter(lab, capture)
    assert words in _refusal(lab, capture, f"myservice.refused_{name}")


def test_a_secondary_must_have_the_snapshot(database: Database, lab: Lab) -> None:
    """The server has no secondary: what lags is the snapshot itself, as a secondary would see it."""
    capture = lab.capture("replicated", "k int primary key", "1", "2")
    table = "myservice.replicated"
    replica = MssqlFeedSource(**database.description | {"lock_timeout": 20, "read_only_replica": True})
    with closing(replica):
        replica.database.retry = RetryPolicy(attempts=2, first_pause=0.0, longest_pause=0.0)
        with pytest.raises(ReplicaBehindError, match="does not have the snapshot of table"):
            list(replica.stream_table(capture, table, WHOLE))
        lab.source.begin_snapshot(
            capture, table, token="t", path="p", begin=lab.source.now(), by="a person", seconds=60
        )
        assert sum(batch.num_rows for batch in replica.stream_table(capture, table, WHOLE)) == 2
        assert len(replica.cut_table(capture, table, 1)) == 2
