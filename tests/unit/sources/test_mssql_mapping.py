# SPDX-License-Identifier: Apache-2.0
"""Types of SQL Server below the driver: from the batches that it gives to what is read of Parquet."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mssql_python import exceptions as driver

from airflow_changefeed.core.feed import Column
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import ColumnTypeError, MissingEventError, SchemaChangedError
from airflow_changefeed.sources.base import TIME_COLUMN, ULID_COLUMN
from airflow_changefeed.sources.mssql.capture.query import feed_schema
from airflow_changefeed.sources.mssql.feed.arrow import computed, converted, plan_batches
from airflow_changefeed.sources.mssql.feed.query import BATCH_BYTES, BatchRows, RangeQuery
from tests.mssql_types import CASES, ROWVERSION
from tests.unit.sources.mssql_feeds import make_feed

ALL = UlidRange(Ulid.MIN, Ulid.MAX)
DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference" / "types.md"


def _never(number: int, texts: Mapping[Ulid, str]) -> dict[Ulid, bytes]:
    raise AssertionError("the server must not be asked")


def _same(number: int, texts: Mapping[Ulid, str]) -> dict[Ulid, bytes]:
    return {}


def _query(*columns: Column, on_missing: str = "fail") -> RangeQuery:
    return RangeQuery(make_feed(columns=(Column("k", "int"), *columns)), 0, ALL, on_missing)


def _given(arrays: list[pa.Array], *, missing: Sequence[int] = ()) -> pa.RecordBatch:
    """Return what the driver gives: ULID, whether the row is missing, the key, and the columns."""
    rows = len(arrays[0])
    ulids = pa.array([number.to_bytes(16, "big") for number in range(1, rows + 1)], pa.large_binary())
    flags = pa.array([int(number in missing) for number in range(rows)], pa.int32())
    keys = pa.array(range(rows), pa.int32())
    columns = [ulids, flags, keys, *arrays]
    return pa.RecordBatch.from_arrays(columns, names=["u", "m", *(f"c{n}" for n in range(len(arrays) + 1))])


def _read_back(batch: pa.RecordBatch) -> pa.Table:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), file, version="2.6")
    file.seek(0)
    return pq.read_table(file)


def test_what_the_driver_gives_arrives_in_parquet() -> None:
    """At the type's limits, and as null; also where the batch is a part of a larger one."""
    for case in [*CASES, ROWVERSION]:
        query = _query(Column("v", case.type))
        rows = [*case.driver_values, (None,) * len(case.given)]
        arrays = [pa.array([row[part] for row in rows], kind) for part, kind in enumerate(case.given)]
        table = _read_back(converted(query, _given(arrays), _same))
        names = ["v", *(f"v{suffix}" for suffix in case.suffixes)]
        assert table.schema.names == [ULID_COLUMN, TIME_COLUMN, "k", *names]
        found = list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
        assert found == [*(expected for _, expected in case.values), (None,) * len(names)], case.type
        part = converted(query, _given(arrays).slice(1), _same)
        assert part.column("v").to_pylist() == [row[0] for row in found[1:]]
        assert part.column(ULID_COLUMN)[0].as_py() == str(Ulid.of_int(2))


def test_each_row_of_the_docs_is_a_case_here() -> None:
    """And each case is a row there."""
    table = DOCS.read_text(encoding="utf-8").partition("## Second columns")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    documented = {kind for row in rows for kind in re.findall(r"`(\w+)", row)}
    tested = {re.match(r"\w+", case.type)[0] for case in (*CASES, ROWVERSION)}
    assert documented == tested


@pytest.mark.parametrize("kind", ["vector", "MyOwnClrType", "cursor", "table"])
def test_types_without_an_exact_form_are_refused_by_name(kind: str) -> None:
    """All of them at once, with their types."""
    columns = (Column("k", "int"), Column("one", kind), Column("fine", "int"), Column("two", kind))
    with pytest.raises(ColumnTypeError) as caught:
        feed_schema(make_feed(columns=columns))
    assert f"'one' of type {kind}" in str(caught.value)
    assert caught.value.facts["columns"] == ["one", "two"]
    assert not caught.value.transient


def test_a_column_that_the_login_sees_otherwise_is_refused() -> None:
    """Masked or encrypted, with the reason."""
    columns = (Column("k", "int"), Column("v", "int"))
    with pytest.raises(ColumnTypeError, match="'v' of type int is masked for this login") as caught:
        feed_schema(make_feed(columns=columns, refusals={"v": "is masked for this login"}))
    assert caught.value.facts["columns"] == ["v"]


@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        ("datetime2(7)", "at_100ns"),
        ("datetime2(7)", "AT_100NS"),
        ("datetimeoffset(3)", "at_offset_minutes"),
        ("sql_variant", "at_type"),
    ],
)
def test_a_second_column_does_not_take_anothers_name(kind: str, taken: str) -> None:
    """Neither would be lost without a word; Spark compares names case-insensitively."""
    columns = (Column("k", "int"), Column("at", kind), Column(taken, "int"))
    with pytest.raises(ColumnTypeError, match=f"'{taken.lower()}'.*rename"):
        feed_schema(make_feed(columns=columns))


def test_another_type_than_was_selected_is_not_taken() -> None:
    """The table was changed, or the driver: nothing is cast to fit."""
    given = _given([pa.array([1, 2], pa.int64())])
    with pytest.raises(SchemaChangedError, match="'v' of type int arrived as int64, not as int32") as caught:
        converted(_query(Column("v", "int")), given, _never)
    assert caught.value.transient


def test_half_of_a_surrogate_pair_stops_the_export() -> None:
    """The driver replaces it silently, and so would UTF-8; the event is named."""
    given = _given([pa.array(["fine", "\ufffd", "x\ufffd\ufffd"], pa.large_string())])

    def recheck(number: int, texts: Mapping[Ulid, str]) -> dict[Ulid, bytes]:
        assert texts == {Ulid.of_int(2): "\ufffd", Ulid.of_int(3): "x\ufffd\ufffd"}
        return {Ulid.of_int(3): b"x\x00\x00\xd8\x3d\xd8"}

    with pytest.raises(ColumnTypeError, match="half of a surrogate pair") as caught:
        converted(_query(Column("v", "nvarchar(10)")), given, recheck)
    assert caught.value.facts["column"] == "v"
    assert caught.value.facts["ulid"] == str(Ulid.of_int(3))


def test_columns_that_are_not_read_are_nulls_of_their_types() -> None:
    """Nothing of them is read, measured or computed on the server."""
    columns = (Column("k", "int"), Column("v", "nvarchar(max)"), Column("at", "datetime2(7)"))
    query = RangeQuery(make_feed(columns=columns), 0, ALL, "keys_only", ("k",))
    assert "f.[k] as c0" in query.sql
    assert "case when 1 = 0 then e.[v] end as c1" in query.sql
    assert "datepart(nanosecond, case when 1 = 0 then e.[at] end)" in query.sql
    assert "datalength(case when 1 = 0 then e.[v] end)" in query.sizes_sql


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Divide by zero error encountered.", ColumnTypeError),
        ("Conversion failed when converting the varchar value 'x' to data type int.", ColumnTypeError),
        ("Arithmetic overflow error converting expression to data type int.", ColumnTypeError),
        ("Could not continue scan with NOLOCK due to data movement.", driver.Error),
    ],
)
def test_a_computed_column_that_fails_is_told_as_a_value(text: str, kind: type[Exception]) -> None:
    """What the server says of a row's own value; anything else stays what it is."""
    error = driver.ProgrammingError("Syntax error or access violation", f"[Microsoft][SQL Server]{text}")
    with pytest.raises(kind, match=text.partition("'")[0].rstrip(".")), computed(_query(Column("v", "int"))):
        raise error


def test_many_texts_that_hold_the_replacement_itself_are_exported() -> None:
    """Each is asked for once, a hundred at a time."""
    asked: list[int] = []

    def recheck(number: int, texts: Mapping[Ulid, str]) -> dict[Ulid, bytes]:
        asked.append(len(texts))
        # As if all rows had been changed meanwhile, to other texts.
        return dict.fromkeys(texts, "fine".encode("utf-16-le"))

    texts = ["a\ufffdb\ufffd", None, ""] * 250
    given = _given([pa.array(texts, pa.large_string())])
    assert converted(_query(Column("v", "nvarchar(10)")), given, recheck).column("v").to_pylist() == texts
    assert asked == [100, 100, 50]


def test_a_missing_row_is_named_whatever_the_others_are() -> None:
    """The first one, and how many there are."""
    given = _given([pa.array([1, None, None], pa.int32())], missing=(1, 2))
    with pytest.raises(MissingEventError, match="2 such rows in this batch") as caught:
        converted(_query(Column("v", "int")), given, _never)
    assert caught.value.facts["ulid"] == str(Ulid.of_int(2))
    kept = converted(_query(Column("v", "int"), on_missing="keys_only"), given, _never)
    assert kept.column("v").to_pylist() == [1, None, None]


class _Server:
    """The answer of a server to the question for sizes."""

    def __init__(self, *rows: tuple[int, ...]) -> None:
        self._rows = list(rows)

    def rows(self, sql: str, *values: Any) -> list[tuple[int, ...]]:
        """Answer."""
        assert "datalength" in sql
        return self._rows


def test_a_value_beyond_the_limit_is_refused_by_its_column() -> None:
    """Two GB of SQL Server are more than Parquet and Java can address."""
    query = _query(Column("short", "nvarchar(max)"), Column("long", "varbinary(max)"))
    server: Any = _Server((5, 10, 100), (1, 10, 2**31 - 1))
    with pytest.raises(ColumnTypeError, match=r"'long' .* 2,147,483,647 bytes") as caught:
        plan_batches(server, query, 1000)
    assert caught.value.facts["column"] == "long"


def test_batches_of_large_objects_are_those_that_were_measured() -> None:
    """None has more rows than asked for, and unmeasured rows come a few at a time."""
    server: Any = _Server((250, 10), (1, 2**30), (7, 5))
    rows = plan_batches(server, _query(Column("v", "nvarchar(max)")), 100)
    assert [rows.next() for _ in range(7)] == [100, 100, 50, 1, 7, 64, 64]


def test_batches_of_wide_rows_grow_with_what_is_learnt() -> None:
    """They begin with what fits at the declared length, and never pass the bytes of a batch by far."""
    rows = BatchRows(65_536, row_bytes=100_000)
    first = rows.next()
    assert first == BATCH_BYTES // 100_000
    rows.learn(first, first * 50)
    assert rows.next() == 65_536
    rows.learn(65_536, 65_536 * 10_000)
    assert first <= rows.next() <= BATCH_BYTES // 10_000


def test_measured_batches_are_as_careful_with_the_other_columns() -> None:
    """What was measured are the large objects; no batch is longer than they or the others allow."""
    rows = BatchRows(65_536, [3, 200_000], row_bytes=100_000)
    careful = BATCH_BYTES // 100_000
    assert [rows.next(), rows.next()] == [3, careful]
    rows.learn(careful, careful * 50)
    assert [rows.next() for _ in range(4)] == [65_536, 65_536, 65_536, 200_000 - careful - 3 * 65_536]


def test_doubtful_texts_are_asked_for_where_they_lie() -> None:
    """Not in the whole range for each hundred of them."""
    texts = {Ulid.of_int(5): "a", Ulid.of_int(9): "b"}
    _, values = _query(Column("t", "nvarchar(5)")).differing_sql(1, texts)
    assert values[:2] == (Ulid.of_int(4).bytes, Ulid.of_int(9).bytes)


def test_char_is_not_filled_up_to_as_many_characters_as_it_has_bytes() -> None:
    """In UTF-8, or a code page of Japan, say, ``char(10)`` holds fewer than ten; the server keeps blanks."""
    assert "cast(e.[c] as nvarchar(10)) as c1" in _query(Column("c", "char(10)")).sql


def test_xml_is_measured_as_the_text_that_it_becomes() -> None:
    """The server keeps it in a form that may be far shorter."""
    sizes = _query(Column("x", "xml"), Column("b", "varbinary(max)")).sizes_sql
    assert "datalength(cast(e.[x] as nvarchar(max)))" in sizes
    assert "datalength(e.[b])" in sizes


def test_narrow_rows_come_as_many_as_asked_for() -> None:
    """From the first batch on."""
    rows = plan_batches(_NO_SERVER, _query(Column("v", "int")), 5000)
    assert rows.next() == 5000


_NO_SERVER: Any = None


def test_ulids_are_read_where_they_lie() -> None:
    """A batch that begins in the middle of the driver's buffers has its own ULIDs."""
    given = _given([pa.array(range(10), pa.int32())]).slice(4, 3)
    found = converted(_query(Column("v", "int")), given, _never)
    assert found.column(ULID_COLUMN).to_pylist() == [str(Ulid.of_int(number)) for number in (5, 6, 7)]
    assert found.column("v").to_pylist() == [4, 5, 6]
    assert np.array(found.column("k").to_pylist()).tolist() == [4, 5, 6]
