# SPDX-License-Identifier: Apache-2.0
"""Events of captures as they are read: every type in both of their rows, and what an event is beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    PermissionDeniedError,
)
from airflow_changefeed.sources.mssql import MssqlFeedSource
from tests.integration.mssql.captured import AT, Captured, HandMade
from tests.integration.mssql.server import Client, Database
from tests.mssql_types import CASES, Case

ALL = UlidRange(Ulid.MIN, Ulid.MAX)
HERE = [(f"C{number} x", case) for number, case in enumerate(CASES) if case.is_everywhere]
ROWS = max(len(case.values) for _, case in HERE)
#: Types that no table which is captured may have.
NEVER = ("text", "ntext", "image")
TYPES, TWO = "myservice.types_changes", "myservice.two_changes"
PLAIN, BROKEN = "myservice.plain_changes", "myservice.broken_changes"
CAPTURED_AT = datetime.fromisoformat(AT).replace(tzinfo=timezone.utc)


def _is_long(kind: str) -> bool:
    return "max" in kind or kind in (*NEVER, "xml", "varchar(8000)", "nvarchar(4000)")


def _read(source: MssqlFeedSource, feed: str, folder: Path, **options: Any) -> pa.Table:
    """Order what waits, stream it, and bring it through a file."""
    source.seal(feed, source.now())
    batches = list(source.stream(feed, 0, ALL, **{"batch_rows": 2, **options}))
    table = pa.Table.from_batches(batches, source.schema(feed))
    pq.write_table(table, folder / "all.parquet", version="2.6")
    return pq.read_table(folder / "all.parquet")


def _value(case: Case, row: int) -> str:
    return f"convert({case.type}, {case.values[row][0]})" if row < len(case.values) else "null"


@pytest.fixture(scope="module")
def source(database: Database) -> Iterator[MssqlFeedSource]:
    """Give a source over the module's database."""
    with database.source() as source:
        yield source


@pytest.fixture(scope="module", params=[False, True], ids=["short", "long"])
def types(
    request: pytest.FixtureRequest,
    database: Database,
    source: MssqlFeedSource,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, Case], pa.Table]:
    """Every type that can be captured, each value once as old and once as new; and what arrived."""
    is_long = bool(request.param)
    own = {name: case for name, case in HERE if _is_long(case.type) == is_long and case.type not in NEVER}
    feed = f"{TYPES}_{'long' if is_long else 'short'}"
    columns = {name: (name, case.type) for name, case in own.items()}
    with database.client() as client:
        capture = HandMade(client, feed, [Captured("myservice.types", columns)]).make()
        for row in range(ROWS):
            values = {name: _value(case, row) for name, case in own.items()}
            others = {name: _value(case, ROWS - 1 - row) for name, case in own.items()}
            capture.event("u", old=others, new=values)
    return own, _read(source, feed, tmp_path_factory.mktemp("types"))


def test_values_arrive_unchanged_in_both_rows(types: tuple[dict[str, Case], pa.Table]) -> None:
    """At the limits of their type, empty, and null; second columns are within the row as well."""
    own, table = types
    assert table.num_rows == ROWS
    for image, rows in (("new", range(ROWS)), ("old", range(ROWS - 1, -1, -1))):
        found = table.column(image).to_pylist()
        for name, case in own.items():
            names = [name, *(f"{name}{suffix}" for suffix in case.suffixes)]
            expected = [
                case.values[row][1] if row < len(case.values) else (None,) * len(names) for row in rows
            ]
            assert [tuple(one[each] for each in names) for one in found] == expected, (image, case.type)


@pytest.fixture(scope="module")
def two(database: Database) -> HandMade:
    """A capture over two tables that disagree about a column, with session variables and a sequence."""
    orders = Captured(
        "myservice.orders",
        {"id": ("id", "int"), "state": ("state", "nvarchar(10)"), "At": ("At", "datetime2(3)")},
        keys=("id",),
    )
    items = Captured(
        "myservice.items",
        {"order_id": ("order_id", "int"), "no": ("no", "int"), "state": ("state_1", "int")},
        keys=("order_id", "no"),
        operations=("insert", "delete"),
        is_whole=False,
    )
    with database.client() as client:
        capture = HandMade(
            client,
            TWO,
            [orders, items],
            session_keys=["user"],
            with_sequence=True,
            key_change="delete_insert",
        ).make()
        trace = "N'00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'"
        capture.event("t", new={})
        capture.event("r", new={"id": "1", "state": "N'new'"})
        capture.event("i", table=1, new={"order_id": "1", "no": "7", "state_1": "5"}, tid="42")
        long = f"N'{json.dumps({'user': 'é' * 5000}, ensure_ascii=False)}'"
        row = {"id": "1", "state": "N'paid'", "At": f"'{AT}'"}
        capture.event("u", old={"id": "1", "state": "N'new'"}, new=row, tid="42", session=long, trace=trace)
        capture.event("u", new={"id": "2"}, session="N'{}'")
        capture.event("d", table=1, old={"order_id": "1", "no": "7", "state_1": "null"})
    return capture


def test_an_event_is_told_as_the_protocol_says(
    two: HandMade, source: MssqlFeedSource, tmp_path: Path, client: Client
) -> None:
    """Kind, table, transaction, session and times; a row that is not there is null, not one of nulls."""
    source.drain(TWO)
    HandMade(client, TWO, two.tables).count_events()
    table = _read(source, TWO, tmp_path)
    assert table.column("type").to_pylist() == ["reset", "add", "add", "upd", "upd", "del"]
    names = ["myservice.orders"] * 2 + ["myservice.items"] + ["myservice.orders"] * 2 + ["myservice.items"]
    assert table.column("name").to_pylist() == names
    assert table.column("is_snapshot").to_pylist() == [False, True, False, False, False, False]
    assert table.column("tid").to_pylist() == [None, None, 42, 42, None, None]
    assert table.column("sequence").to_pylist() == [1, 2, 3, 4, 5, 6]
    assert set(table.column("captured_at").to_pylist()) == {CAPTURED_AT}
    assert set(table.column("epoch").to_pylist()) == {int(CAPTURED_AT.timestamp())}
    sessions = table.column("session_variables").to_pylist()
    assert sessions == [None, None, None, json.dumps({"user": "é" * 5000}, ensure_ascii=False), "{}", None]
    assert table.column("trace_context").to_pylist()[3].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    nothing = dict.fromkeys(("id", "state", "At", "order_id", "no", "state_1"))
    paid = {"id": 1, "state": "paid", "At": CAPTURED_AT.replace(tzinfo=None)}
    assert table.column("new").to_pylist() == [
        None,
        nothing | {"id": 1, "state": "new"},
        nothing | {"order_id": 1, "no": 7, "state_1": 5},
        nothing | paid,
        nothing | {"id": 2},
        None,
    ]
    assert table.column("old").to_pylist() == [
        *[None] * 3,
        nothing | {"id": 1, "state": "new"},
        None,
        nothing | {"order_id": 1, "no": 7},
    ]
    assert table.column("new").null_count == table.column("old").null_count - 2


@pytest.fixture(scope="module")
def plain(database: Database) -> Iterator[HandMade]:
    """A capture of one narrow table."""
    with database.client() as client:
        columns = {"id": ("id", "int"), "text": ("text", "nvarchar(20)"), "long": ("long", "varbinary(max)")}
        yield HandMade(client, PLAIN, [Captured("myservice.plain", columns, keys=("id",))]).make()


def test_a_replacement_character_is_looked_at_again_in_both_rows(
    plain: HandMade, source: MssqlFeedSource
) -> None:
    """What the text really holds is no half of a surrogate pair, and is exported."""
    rows = {"new": "nchar(65533)", "old": "N'x' + nchar(65533)"}
    plain.event("u", **{image: {"id": "1", "text": text} for image, text in rows.items()})
    source.drain(PLAIN)
    (batch,) = source.stream(PLAIN, 0, ALL)
    assert [batch.column(image).to_pylist()[-1]["text"] for image in rows] == ["\ufffd", "x\ufffd"]


@pytest.mark.parametrize("image", ["new", "old"])
def test_a_value_beyond_the_limit_stops_the_export_of_either_row(
    plain: HandMade, source: MssqlFeedSource, monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    """By the length that the server tells, before anything of it is read; the error says which row."""
    source.drain(PLAIN)
    statuses = source.shards(PLAIN)
    before = statuses[0].head if statuses else None
    rows = {"new": {"id": "1", "long": "0x00"}, "old": {"id": "1", "long": "0x00"}}
    rows[image]["long"] = "convert(varbinary(max), replicate(convert(varchar(max), 'x'), 10000))"
    plain.event("u", **rows)
    source.drain(PLAIN)
    monkeypatch.setattr("airflow_changefeed.sources.mssql.feed.arrow.MAX_VALUE_BYTES", 9_999)
    text = rf"'long' of the {image} row of type varbinary\(max\) holds a value of 10,000 bytes"
    with pytest.raises(ColumnTypeError, match=text):
        list(source.stream(PLAIN, 0, UlidRange(before or Ulid.MIN, Ulid.MAX)))


@pytest.fixture(scope="module")
def broken(database: Database, source: MssqlFeedSource) -> Iterator[HandMade]:
    """A capture with two events, of which the rows of the second are gone."""
    table = Captured("myservice.broken", {"id": ("id", "int")}, keys=("id",))
    with database.client() as client:
        capture = HandMade(client, BROKEN, [table]).make()
        capture.event("i", new={"id": "1"})
        capture.event("d", old={"id": "1"})
        source.drain(BROKEN)
        client.results(f"delete from {capture.full} where changefeed_statement = 2")
        yield capture


def test_a_capture_that_is_not_in_the_registry_is_no_plain_feed(
    broken: HandMade, source: MssqlFeedSource
) -> None:
    """A login that must not see the registry is told what it lacks, instead of half of each event."""
    number = broken.client.value("select feed_id from [changefeed].[captures] where name = ?", BROKEN)
    broken.client.results("update [changefeed].[captures] set feed_id = null where name = ?", BROKEN)
    try:
        with pytest.raises(PermissionDeniedError, match=rf"changefeed\.readers:{BROKEN}"):
            source.schema(BROKEN)
        assert BROKEN in [info.name for info in source.feeds()]
    finally:
        sql = "update [changefeed].[captures] set feed_id = ? where name = ?"
        broken.client.results(sql, number, BROKEN)
    assert source.schema(BROKEN).names[-1] == "new"
