# SPDX-License-Identifier: Apache-2.0
"""Reading captures of SQL Server below the driver: the statements, and what is made of their batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.core.feed import Column
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    FeedSetupError,
    MissingEventError,
    SchemaChangedError,
)
from airflow_changefeed.sources.arrow import shape_of
from airflow_changefeed.sources.base import TIME_COLUMN, ULID_COLUMN
from airflow_changefeed.sources.mssql.capture.query import feed_schema, range_query
from airflow_changefeed.sources.mssql.capture.registry import Registry
from airflow_changefeed.sources.mssql.feed.arrow import converted, plan_batches
from airflow_changefeed.sources.mssql.feed.query import RangeQuery
from tests.mssql_types import CASES, ROWVERSION
from tests.unit.sources.mssql_captures import (
    NAME,
    capture,
    capture_feed,
    column,
    table,
)
from tests.unit.sources.mssql_feeds import make_feed

ALL = UlidRange(Ulid.MIN, Ulid.MAX)
AT = datetime(2026, 11, 21, 10, 20, 30, 456000)
KEY = Column("k", "int")


def _query(*columns: Column, own: Sequence[str] = (), on_missing: str = "fail") -> RangeQuery:
    return range_query(capture_feed(KEY, *columns, own=own), 0, ALL, on_missing)


def _never(number: int, texts: Mapping[Ulid, str]) -> dict[Ulid, bytes]:
    raise AssertionError("the server must not be asked")


def _same(number: int, texts: Mapping[Ulid, str]) -> dict[Ulid, bytes]:
    return {}


def _given(query: RangeQuery, new: list[pa.Array], old: list[pa.Array], **event: list[Any]) -> pa.RecordBatch:
    """Return what the driver gives of events; all have both rows unless told otherwise."""
    rows = len(new[0])
    said: dict[str, list[Any]] = {
        "has_new": [1] * rows,
        "has_old": [1] * rows,
        "changefeed_table": [0] * rows,
        "changefeed_op": ["u"] * rows,
        "changefeed_tid": [None] * rows,
        "changefeed_at": [AT] * rows,
        "changefeed_trace": [None] * rows,
        "changefeed_session": [None] * rows,
        "changefeed_ddl": [None] * rows,
        "changefeed_sequence": list(range(1, rows + 1)),
        **event,
    }
    number = len(query.columns) - len(new) - len(old)
    header = [pa.array(said[one.column.name], one.part.given) for one in query.columns[:number]]
    ulids = pa.array([place.to_bytes(16, "big") for place in range(1, rows + 1)], pa.large_binary())
    missing = pa.array(said.get("missing", [0] * rows), pa.int32())
    arrays = [ulids, missing, *header, *new, *old]
    return pa.RecordBatch.from_arrays(arrays, names=[f"c{place}" for place in range(len(arrays))])


def _ints(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int32())


def _texts(*values: str | None) -> pa.Array:
    return pa.array(values, pa.large_string())


# ---- the statement


def test_an_event_is_joined_with_both_of_its_rows() -> None:
    """By the key of its rows and the image; the range is the feed's, and planned for itself."""
    query = _query(Column("a]b", "char(10)"), own=("sequence",))
    on = (
        "on {0}.[changefeed_statement] = f.[changefeed_statement] and {0}.[changefeed_row] = "
        "f.[changefeed_row] and {0}.[changefeed_image] = {1}"
    )
    events = "[myservice].[MyTable_changes]"
    assert query.sql.endswith(
        "f.[changefeed_sequence] as c7, n.[k] as c8, cast(n.[a]]b] as nvarchar(10)) as c9, o.[k] as c10, "
        f"cast(o.[a]]b] as nvarchar(10)) as c11 from [changefeed].[feed:{NAME}] f "
        f"left join {events} n {on.format('n', 1)} left join {events} o {on.format('o', 0)} "
        "where f.shard_id = @shard_id and f.ulid > @after and f.ulid <= @upto order by f.ulid "
        "option (recompile)"
    )
    assert query.sql.startswith(
        "declare @after binary(16) = ?, @upto binary(16) = ?, @shard_id int = ?; select f.ulid as u, "
        "case when n.[changefeed_statement] is null and o.[changefeed_statement] is null then 1 else 0 end "
        "as m, case when n.[changefeed_statement] is not null and "
        "n.[changefeed_op] not in (N't', N'e', N'c') "
        "then 1 else 0 end as c0, case when o.[changefeed_statement] is not null then 1 else 0 end as c1, "
        "coalesce(n.[changefeed_table], o.[changefeed_table]) as c2"
    )


def test_what_a_capture_does_not_record_is_not_selected() -> None:
    """Long texts, which would have the driver read each row alone, and the number of an event."""
    plain, whole = _query(), _query(own=("session", "sequence", "ddl"))
    assert "changefeed_session" not in plain.sql
    assert "changefeed_ddl" not in plain.sql
    assert "changefeed_sequence" not in plain.sql
    assert plain.large_objects == []
    assert "coalesce(n.[changefeed_session], o.[changefeed_session])" in whole.sql
    assert [one.column.name for one in whole.large_objects] == ["changefeed_session", "changefeed_ddl"]


def test_large_objects_are_measured_in_both_rows() -> None:
    """What memory must hold is their sum, and the row is named with a column that is too long."""
    query = _query(Column("v", "nvarchar(max)"))
    assert "isnull(convert(bigint, datalength(n.[v])), 0) as s0" in query.sizes_sql
    assert "isnull(convert(bigint, datalength(o.[v])), 0) as s1" in query.sizes_sql

    class Server:
        def rows(self, sql: str, *values: Any) -> list[tuple[int, ...]]:
            return [(5, 10, 2**31 - 1)]

    server: Any = Server()
    with pytest.raises(ColumnTypeError, match="'v' of the old row of type nvarchar") as caught:
        plan_batches(server, query, 1000)
    assert caught.value.facts["column"] == "v"


def test_a_row_is_as_long_as_both_images() -> None:
    """So a batch of wide rows begins with half as many."""
    one = RangeQuery(make_feed(columns=(KEY, Column("v", "varbinary(8000)"))), 0, ALL, "fail")
    assert _query(Column("v", "varbinary(8000)")).most_row_bytes > 2 * one.most_row_bytes


def test_columns_beyond_what_one_select_has_are_refused() -> None:
    """The second columns of some types count, in both rows."""
    fits = [Column(f"c{number}", "int") for number in range(1_012)]
    assert len(feed_schema(capture_feed(*fits)).field("new").type) == 1_012
    wide = [Column(f"c{number}", "datetimeoffset(7)") for number in range(700)]
    with pytest.raises(ColumnTypeError, match=r"takes 4209 columns.* at most 4096") as caught:
        feed_schema(capture_feed(*wide))
    assert caught.value.facts["columns"][0] == "c0"


@pytest.mark.parametrize("name", ["at_100ns", "AT_100NS"])
def test_a_second_column_does_not_take_anothers_name_within_a_row(name: str) -> None:
    """As in a plain feed."""
    with pytest.raises(ColumnTypeError, match=r"'at_100ns'.*rename"):
        feed_schema(capture_feed(Column("at", "datetime2(7)"), Column(name, "int")))


def test_a_masked_column_of_the_captures_table_is_refused() -> None:
    """Somebody may mask it after the capture was enabled."""
    feed = capture_feed(KEY, Column("v", "int"), refusals={"v": "is masked for this login"})
    with pytest.raises(ColumnTypeError, match="'v' of type int is masked for this login"):
        feed_schema(feed)


def test_a_capture_without_its_table_cannot_be_streamed() -> None:
    """As any feed."""
    query = range_query(capture_feed(KEY, table=None), 0, ALL)
    with pytest.raises(FeedSetupError, match="the table of its events is missing"):
        _ = query.sql


# ---- batches


def test_what_the_driver_gives_arrives_in_both_rows() -> None:
    """At the type's limits, and as null; also where the batch is a part of a larger one."""
    for case in [*CASES, ROWVERSION]:
        query = _query(Column("v", case.type))
        rows = [*case.driver_values, (None,) * len(case.given)]
        new = [pa.array([row[part] for row in rows], kind) for part, kind in enumerate(case.given)]
        old = [pa.array([row[part] for row in reversed(rows)], kind) for part, kind in enumerate(case.given)]
        keys = _ints(*range(len(rows)))
        given = _given(query, [keys, *new], [keys, *old])
        names = ["v", *(f"v{suffix}" for suffix in case.suffixes)]
        expected = [*(values for _, values in case.values), (None,) * len(names)]
        for batch, start in (
            (converted(query, given, _same), 0),
            (converted(query, given.slice(1), _same), 1),
        ):
            assert batch.schema == query.schema
            for image, values in (("new", expected), ("old", expected[::-1])):
                found = [tuple(row[name] for name in names) for row in batch.column(image).to_pylist()]
                assert found == values[start:], (case.type, image)


def test_an_event_is_put_together_of_what_was_selected() -> None:
    """Rows that are not there are null, which a row of nulls is not."""
    query = _query(own=("session", "sequence"))
    given = _given(
        query,
        [_ints(1, None, None, None)],
        [_ints(None, 5, None, None)],
        has_new=[1, 0, 1, 0],
        has_old=[0, 1, 1, 0],
        changefeed_op=["r", "d", "u", "t"],
        changefeed_tid=[7, None, 7, None],
        changefeed_session=['{"user": "é"}', None, None, None],
        changefeed_trace=[None, "00-1-2-01", None, None],
        changefeed_sequence=[4, 5, 6, 7],
    )
    found = converted(query, given, _never).to_pylist()
    at = AT.replace(tzinfo=timezone.utc)
    same = {
        "name": "myservice.MyTable",
        "epoch": int(at.timestamp()),
        "captured_at": at,
    }
    assert [row.pop(ULID_COLUMN) for row in found] == [str(Ulid.of_int(number)) for number in range(1, 5)]
    assert all(row.pop(TIME_COLUMN) == datetime(1970, 1, 1, tzinfo=timezone.utc) for row in found)
    assert all(row.items() >= same.items() for row in found)
    rest = [
        {name: value for name, value in row.items() if name not in same and value is not None}
        for row in found
    ]
    assert rest == [
        {
            **{"type": "add", "is_snapshot": True, "tid": 7, "sequence": 4, "new": {"k": 1}},
            "session_variables": '{"user": "é"}',
        },
        {
            **{"type": "del", "is_snapshot": False, "sequence": 5, "old": {"k": 5}},
            "trace_context": "00-1-2-01",
        },
        {
            **{"type": "upd", "is_snapshot": False, "tid": 7, "sequence": 6},
            **{"old": {"k": None}, "new": {"k": None}},
        },
        {"type": "reset", "is_snapshot": False, "sequence": 7},
    ]


def test_events_of_several_tables_have_their_names() -> None:
    """By their number, which need not begin with the first."""
    registry = Registry(
        [capture()],
        [table(), table(table_no=1, table_name="Other", update_columns=None, is_whole=0)],
        [
            column("k"),
            column("k", table_no=1, stored_name="k_1", key_place=1, on_update=0),
            column("v", table_no=1, on_delete=0, on_update=0),
        ],
    )
    feed = capture_feed(KEY, Column("k_1", "bigint"), Column("v", "int"), registry=registry)
    query = range_query(feed, 0, ALL)
    big, none = pa.array([None, 3], pa.int64()), _ints(None, None)
    given = _given(query, [_ints(1, None), big, none], [none, big, none], changefeed_table=[0, 1])
    batch = converted(query, given, _never)
    assert batch.column("name").to_pylist() == ["myservice.MyTable", "myservice.Other"]
    assert batch.column("new").to_pylist() == [
        {"k": 1, "k_1": None, "v": None},
        {"k": None, "k_1": 3, "v": None},
    ]
    shape = shape_of(batch.schema)
    assert shape is not None
    other = shape.tables["myservice.Other"]
    assert other.key_columns == ("k",)
    assert other.columns == {Operation.INSERT: {"k": "k_1", "v": "v"}, Operation.DELETE: {"k": "k_1"}}
    assert not other.is_whole


@pytest.mark.parametrize(("image", "number"), [("new", 0), ("old", 1)])
def test_half_of_a_surrogate_pair_in_either_row_stops_the_export(image: str, number: int) -> None:
    """The server is asked for the text of that row."""
    query = _query(Column("v", "nvarchar(10)"))
    texts = [_texts("fine", "fine"), _texts("fine", "fine")]
    texts[number] = _texts("fine", "x\ufffd")
    asked: list[str] = []

    def recheck(place: int, texts: Mapping[Ulid, str]) -> dict[Ulid, bytes]:
        asked.append(query.differing_sql(place, texts)[0])
        return {Ulid.of_int(2): b"x\x00\x3d\xd8"}

    keys = _ints(1, 2)
    with pytest.raises(ColumnTypeError, match=f"of the {image} row .*half of a surrogate pair") as caught:
        converted(query, _given(query, [keys, texts[0]], [keys, texts[1]]), recheck)
    assert caught.value.facts["ulid"] == str(Ulid.of_int(2))
    assert f"convert(nvarchar(max), {image[0]}.[v])" in asked[0]
    # Correcting the captured row alone leaves what is recorded.
    advice = caught.value.message.partition("Then correct the recorded row: ")[2]
    assert advice.startswith(f"update {image[0]} set [v] = N'...' from ")
    assert advice.endswith(f"[changefeed_image] = {1 - number} and f.ulid = 0x{2:032x}")
    assert f"and {image[0]}.[v] is not null" in query.present_sql(8 + 2 * number, [Ulid.of_int(2)])[0]


def test_another_type_than_was_selected_is_named_with_its_row() -> None:
    """The capture was refreshed between, and a retry reads it anew."""
    query = _query()
    given = _given(query, [_ints(1)], [pa.array([1], pa.int64())])
    with pytest.raises(SchemaChangedError, match="'k' of the old row of type int arrived as int64") as caught:
        converted(query, given, _never)
    assert caught.value.transient


@pytest.mark.parametrize("on_missing", ["fail", "keys_only"])
def test_an_event_without_rows_is_nothing_to_export(on_missing: str) -> None:
    """Its key alone says nothing, not even whether something was deleted."""
    query = _query(on_missing=on_missing)
    given = _given(
        query,
        [_ints(1, None)],
        [_ints(1, None)],
        missing=[0, 1],
        changefeed_table=[0, None],
        changefeed_op=["u", None],
        changefeed_at=[AT, None],
    )
    with pytest.raises(MissingEventError, match="'keys_only' does not help") as caught:
        converted(query, given, _never)
    assert caught.value.facts["ulid"] == str(Ulid.of_int(2))


def test_changed_columns_are_read_once_there_are_any() -> None:
    """A reader that began before the first of them has to begin again."""
    ddl = '{"statement":null,"before":[],"after":[],"by":"anna"}'
    event = {"has_new": [0], "has_old": [0], "changefeed_op": ["c"], "changefeed_ddl": [ddl]}
    query = _query(own=("ddl",))
    (found,) = converted(query, _given(query, [_ints(None)], [_ints(None)], **event), _never).to_pylist()
    assert (found["type"], found["ddl"], found["old"], found["new"]) == ("ddl", ddl, None, None)
    early = _query()
    with pytest.raises(SchemaChangedError, match="retry"):
        converted(early, _given(early, [_ints(None)], [_ints(None)], **event), _never)
