# SPDX-License-Identifier: Apache-2.0
"""Captured tables below the driver: statements, what is made of their batches, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.feed import Column
from airflow_changefeed.exceptions import ColumnTypeError, InvalidArgumentError, SchemaChangedError
from airflow_changefeed.sources.base_capture import KeyRange
from airflow_changefeed.sources.mssql.capture.registry import Registry
from airflow_changefeed.sources.mssql.capture.table import (
    SourceTable,
    TableFacts,
    source_table,
    table_problems,
)
from airflow_changefeed.sources.mssql.capture.table_query import TableQuery, cut, stream_range, table_columns
from tests.unit.sources.mssql_captures import capture, capture_feed, column, place, table

FULL = "[myservice].[MyTable]"

# ---- statements


def _indexed(name: str, type_: str = "int", **other: Any) -> dict[str, Any]:
    """A row of the columns of a table's indexes: of a primary key of one column, unless told otherwise."""
    kind, _, length = type_.rstrip(")").partition("(")
    size = int(length) * (2 if kind.startswith("n") else 1) if length else 4
    return {
        "index_name": "PK]",
        "is_primary_key": 1,
        "key_ordinal": 1,
        "is_descending": 0,
        "name": name,
        "type": kind,
        "max_length": size,
        "precision": 0,
        "scale": 0,
        "collation": "Latin1_General_CI_AS" if "char" in kind else None,
        **other,
    }


def _present(name: str, type_: str = "int", **other: Any) -> dict[str, Any]:
    """A row of a table's columns."""
    row = _indexed(name, type_)
    own = {one: row[one] for one in ("name", "type", "max_length", "precision", "scale", "collation")}
    own["column_id"] = place(name)
    return {**own, "key_ordinal": None, "encryption_type": None, "is_masked": 0, "may_unmask": None, **other}


def _facts(**changes: Any) -> TableFacts:
    """Return a table with the columns ``k``, its key, and ``v``, which fits its events."""
    columns = [_present("k", key_ordinal=1), _present("v", "nvarchar(10)")]
    access = {"user_name": "us]er", "may_select": 1, "is_filtered": 0, "is_renamed": 0, "name": "a.b"}
    return TableFacts(
        **{
            "capture": capture(),
            "table": table(),
            "captured": [column("k", key_place=1), column("v")],
            "stored": columns,
            "present": columns,
            "indexes": [_indexed("k")],
            "changing": [],
            "access": access | changes.pop("access", {}),
            **changes,
        }
    )


def _source(facts: TableFacts | None = None, *, shard: str = "k % 2", **feed: Any) -> SourceTable:
    found = facts or _facts()
    registry = Registry([capture()], [table(shard=shard)], found.captured)
    own = [Column("k", "int"), Column("v", "nvarchar(10)")]
    return source_table(
        capture_feed(*own, registry=registry, **feed),
        registry.shape(registry.captures[0]),
        replace(found, table=table(shard=shard)),
    )


def test_a_range_is_read_by_the_index_of_the_key() -> None:
    """In one statement, which declares variables of the columns' types."""
    query = TableQuery((source := _source()).feed, source, KeyRange("[1]", "[5]"))
    assert query.sql == (
        "declare @a0 int = ?, @b0 int = ?; select t.[k] as c0, t.[v] as c1, "
        f"convert(bigint, s.changefeed_shard) as c2 from {FULL} as t with (index([PK]]])) "
        "cross apply (select try_convert(int, (k % 2)) as changefeed_shard from (select t.[k]) as k) as s "
        "where t.[k] > @a0 and t.[k] <= @b0 option (recompile)"
    )
    assert query.values == (1, 5)
    whole = TableQuery(source.feed, source, KeyRange())
    assert whole.sql.startswith("select t.[k] as c0")
    assert whole.sql.endswith("as k) as s option (recompile)")
    assert whole.values == ()


def test_large_objects_are_measured_and_read_in_the_order_of_the_index() -> None:
    """Only then is there an order; the index has it."""
    columns = [_present("k", key_ordinal=1), _present("v", "nvarchar(10)", max_length=-1)]
    facts = _facts(present=columns, stored=columns, indexes=[_indexed("k", is_descending=1)])
    query = TableQuery((source := _source(facts)).feed, source, KeyRange("[1]"))
    assert [one.column.name for one in query.large_objects] == ["v"]
    assert query.sql.endswith("where t.[k] < @a0 order by t.[k] desc option (recompile)")
    assert "over (order by t.[k] desc rows unbounded preceding)" in query.sizes_sql


def test_a_key_of_another_table_is_no_range() -> None:
    """The table was cut before its key was changed."""
    source = _source()
    with pytest.raises(InvalidArgumentError, match="which has 1 column; cut the table again"):
        TableQuery(source.feed, source, KeyRange(upto="[1, 2]"))


def test_columns_are_described_with_their_fields() -> None:
    """The shard is the last one, and has no field."""
    found = table_columns(_source())
    shard = pa.field("changefeed_shard", pa.int64())
    assert found.schema == pa.schema([pa.field("k", pa.int32()), pa.field("v", pa.string()), shard])
    assert found.fields == {"k": "k", "v": "v"}
    assert all(field.nullable for field in found.schema)
    of_uuids = table_columns(_source(shard_key_type="uniqueidentifier"))
    assert of_uuids.schema.field("changefeed_shard").type == pa.string()


def test_a_table_is_cut_by_statements_that_seek_on() -> None:
    """Each from the last bound, in the index's order."""
    asked: list[tuple[str, tuple[Any, ...]]] = []
    answers = iter([[(3,)], [(7,)], []])

    def ask(sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        asked.append((sql, values))
        return next(answers)

    assert cut(_source(), 100, ask) == ["[3]", "[7]"]
    select = f"select convert(bigint, t.[k]) as k0 from {FULL} as t with (index([PK]]]))"
    rest = "order by t.[k] offset 99 rows fetch next 1 rows only"
    assert asked == [
        (f"{select} {rest}", ()),
        (f"declare @a0 int = ?; {select} where t.[k] > @a0 {rest}", (3,)),
        (f"declare @a0 int = ?; {select} where t.[k] > @a0 {rest}", (7,)),
    ]


def test_a_key_that_no_text_holds_is_not_cut_by_for_ever() -> None:
    """The driver replaces half of a surrogate pair, and the next statement would find it again."""
    with pytest.raises(ColumnTypeError, match="a key holds half of a surrogate pair"):
        cut(_source(), 1, lambda sql, values: [("\ufffd",)])


# ---- batches


class Driver:
    """A session that gives batches."""

    def __init__(self, *batches: pa.RecordBatch) -> None:
        self._batches = batches

    def arrow_batches(self, sql: str, values: tuple[Any, ...], next_rows: Callable[[], int]) -> Any:
        """Give them, however many rows are asked for."""
        assert next_rows() > 0
        yield from self._batches


def _batch(keys: list[int], texts: list[str | None], shards: list[int | None], **types: Any) -> Any:
    arrays = [
        pa.array(keys, types.get("key", pa.int32())),
        pa.array(texts, pa.large_string()),
        pa.array(shards, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=["c0", "c1", "c2"])


def _stream(*batches: Any, ask: Any = None) -> list[dict[str, Any]]:
    source = _source()
    query = TableQuery(source.feed, source, KeyRange())
    streamed = stream_range(Driver(*batches), query, 10, ask)  # type: ignore[arg-type]
    return [row for batch in streamed for row in batch.to_pylist()]


def test_batches_have_the_columns_names() -> None:
    """And the types of the events."""
    found = _stream(_batch([1, 2], ["a", None], [0, 1]), _batch([3], ["b"], [0]))
    assert found == [
        {"k": 1, "v": "a", "changefeed_shard": 0},
        {"k": 2, "v": None, "changefeed_shard": 1},
        {"k": 3, "v": "b", "changefeed_shard": 0},
    ]


def test_half_a_surrogate_pair_is_refused() -> None:
    """The server is asked once for a column, however many batches have a doubtful text."""
    asked: list[str] = []

    def ask(sql: str, values: tuple[Any, ...], *answer: str) -> list[tuple[bytes]]:
        asked.append(sql)
        return [(text.encode("utf-16-le", "surrogatepass"),) for text in ("🛫", *answer)]

    doubtful = [_batch([1], ["\ufffd"], [0]), _batch([2], ["a\ufffd"], [0])]
    assert [row["v"] for row in _stream(*doubtful, ask=ask)] == ["\ufffd", "a\ufffd"]
    assert len(asked) == 1
    assert "convert(nvarchar(max), t.[v]) collate Latin1_General_BIN2 like N'%[^'" in asked[0]
    with pytest.raises(ColumnTypeError, match=r"'v' of type .*half of a surrogate pair") as caught:
        _stream(*doubtful, ask=lambda sql, values: ask(sql, values, "a\ud83d"))
    assert caught.value.table == "myservice.MyTable"


def test_a_row_without_a_shard_is_refused() -> None:
    """With the expression."""
    with pytest.raises(ColumnTypeError, match=r"no shard for 2 rows: k % 2 is null or not of type int"):
        _stream(_batch([1, 2, 3], ["a"] * 3, [None, 0, None]))


def test_another_type_than_was_described_is_refused() -> None:
    """The table was changed between the two."""
    with pytest.raises(SchemaChangedError, match="'k' of type int arrived as int64") as caught:
        _stream(_batch([1], ["a"], [0], key=pa.int64()))
    assert caught.value.transient


# ---- refusals


def _unrecorded(name: str, operation: str) -> list[dict[str, Any]]:
    return [column("k", key_place=1), column("v"), column(name, **{f"on_{operation}": 0})]


#: What is wrong, and what is said of it.
WRONG: dict[str, tuple[TableFacts, str]] = {
    "disabled": (_facts(capture=capture(is_enabled=0)), "the capture is disabled"),
    "no deletes": (_facts(table=table(delete_columns=None)), "deletes are not captured; enable a capture"),
    "no right": (
        _facts(access={"may_select": 0}),
        f"ask a DBA for: grant select on {FULL} to [us]]er] (no role of changefeed includes it)",
    ),
    "gone": (_facts(present=[]), "this login may not read it, or it was dropped"),
    "renamed": (_facts(access={"is_renamed": 1}), "the table is now named a.b: refresh the capture"),
    "no column": (
        _facts(present=[_present("k", key_ordinal=1)]),
        "column v is missing: refresh the capture",
    ),
    "another type": (
        _facts(present=[_present("k", "bigint", key_ordinal=1), _present("v", "nvarchar(10)")]),
        "column k is now bigint, but recorded as int: refresh",
    ),
    "another key": (
        _facts(present=[_present("k"), _present("v", "nvarchar(10)", key_ordinal=1)]),
        "its primary key is now (v), previously (k): refresh",
    ),
    "row-level security": (_facts(access={"is_filtered": 1}), "row-level security may hide rows"),
    "masked": (
        _facts(
            present=[
                _present("k", key_ordinal=1),
                _present("v", "nvarchar(10)", is_masked=1, may_unmask=0),
            ]
        ),
        "column v is masked for this login",
    ),
    "computed": (_facts(changing=["v"]), "column v is computed and not deterministic"),
    "no key": (_facts(indexes=[]), "it has no primary key, which a read in ranges needs"),
    "key without a form": (
        _facts(indexes=[_indexed("k", "sql_variant")]),
        "column k of its primary key has type int, whose values cannot delimit a range",
    ),
    "clustered index": (
        _facts(indexes=[_indexed("k"), _indexed("c", is_primary_key=0)]),
        "column c decides where a row is stored",
    ),
    "partition": (
        _facts(
            indexes=[_indexed("k"), _indexed("p", key_ordinal=0)],
            captured=_unrecorded("p", "update"),
            present=[*_facts().present, _present("p")],
            stored=[*_facts().present, _present("p")],
        ),
        "column p decides where a row is stored (primary key, clustered index or partition), and is not "
        "captured for inserts and updates",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_reason_is_named(name: str) -> None:
    """By itself, as nothing else is wrong."""
    facts, words = WRONG[name]
    (problem,) = table_problems(facts)
    assert words in problem


def test_a_table_that_fits_has_no_problem() -> None:
    """A computed column, a mask and an index of others are not its matter."""
    others = [_present("x", is_masked=1, may_unmask=0), _present("y")]
    facts = _facts(present=[*_facts().present, *others], changing=["y"])
    assert list(table_problems(facts)) == []


def test_all_reasons_are_named() -> None:
    """Those that can be seen at once."""
    facts = _facts(
        capture=capture(is_enabled=0),
        table=table(update_columns=None),
        access={"is_filtered": 1},
        changing=["v"],
        indexes=[],
    )
    assert len(list(table_problems(facts))) == 5
