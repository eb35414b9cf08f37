# SPDX-License-Identifier: Apache-2.0
"""Captured tables read in ranges of their key: every row once, with the values that its events have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import (
    CaptureNotFoundError,
    ColumnTypeError,
    FeedSetupError,
    InvalidArgumentError,
    ReplicaBehindError,
    SchemaChangedError,
)
from airflow_changefeed.sources.base_snapshots import KeyRange, key_ranges
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.retry import RetryPolicy
from tests.integration.mssql.captured import Captured, HandMade
from tests.integration.mssql.server import Client, Database
from tests.mssql_types import CASES

ALL = UlidRange(Ulid.MIN, Ulid.MAX)
WHOLE = KeyRange()
SHARD = "changefeed_shard"


@dataclass
class Lab:
    """A database whose tables are captured and read."""

    client: Client
    source: MssqlFeedSource

    def capture(self, name: str, columns: str, *rows: str, snapshot: bool = False, **options: Any) -> str:
        """Make a table with rows, and capture it; return the capture's name."""
        self.client.results(f"create table myservice.{name} ({columns})")
        self.insert(name, *rows)
        return self.enable(name, snapshot=snapshot, **options)

    def enable(self, name: str, *, snapshot: bool = False, shard: str = "0", **options: Any) -> str:
        """Capture a table; return the capture's name."""
        own = {one: options.pop(one) for one in ("insert", "update", "delete") if one in options}
        table = TableCapture(f"myservice.{name}", shard=shard, **own)
        spec = CaptureSpec((table,), guard_schema=False, guard_table=False, **options)
        return self.source.enable_capture(spec, snapshot=snapshot).name

    def insert(self, name: str, *rows: str) -> None:
        """Insert rows, as T-SQL."""
        for row in rows:
            self.client.results(f"insert into myservice.{name} values ({row})")

    def read(
        self, capture: str, table: str, range_: KeyRange = WHOLE, **options: Any
    ) -> list[dict[str, Any]]:
        """Read a range."""
        batches = self.source.stream_table(capture, f"myservice.{table}", range_, **options)
        return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def lab(database: Database) -> Iterator[Lab]:
    """Connect to the module's database."""
    with database.client() as client, database.source() as source:
        yield Lab(client, source)


_UUIDS = [f"'{byte:02x}000000-0000-0000-0000-{256 - byte:02x}00000000{byte:02x}'" for byte in range(1, 8)]


@dataclass(frozen=True)
class Keyed:
    """
    A table with a key.

    :param rows: as T-SQL, in another order than that of the key.
    :param key: its columns, as an index declares them.
    """

    columns: dict[str, str]
    rows: list[str]
    key: tuple[str, ...] = ("k",)

    @property
    def names(self) -> list[str]:
        """The columns of the key."""
        return [one.partition(" ")[0] for one in self.key]


def _single(type_: str, *rows: str, key: str = "k") -> Keyed:
    return Keyed({"k": type_}, list(rows), (key,))


KEYS = {
    "bit": _single("bit", "1", "0"),
    "tinyint": _single("tinyint", "255", "0", "7"),
    "bigint": _single("bigint", "9223372036854775807", "-9223372036854775808", "0", "-1", "9007199254740993"),
    "decimal": _single(
        "decimal(38,10)",
        "-1234567890123456789012345678.0123456789",
        "-1234567890123456789012345678.0123456788",
        "0",
        "-0.0000000001",
        "99.5",
    ),
    "money": _single("money", "'-922337203685477.5808'", "'922337203685477.5807'", "'-0.0001'", "'1.2345'"),
    "float": _single(
        "float", "1.7976931348623157e308", "-2.3e-308", "0.1", "0.30000000000000004", "0.3", "-7"
    ),
    "real": _single("real", "3.4028235e38", "0.1", "-0.1", "16777216"),
    "date": _single("date", "'9999-12-31'", "'0001-01-01'", "'2000-02-29'"),
    "time": _single("time(6)", "'23:59:59.999999'", "'00:00:00'", "'12:00:00.000001'"),
    "datetime": _single(
        "datetime", "'2000-01-01 00:00:00.007'", "'2000-01-01 00:00:00.003'", "'1753-01-01'", "'2000-01-01'"
    ),
    "smalldatetime": _single("smalldatetime", "'2079-06-06 23:59'", "'1900-01-01'"),
    "datetime2": _single(
        "datetime2(7)", "'0001-01-01'", "'9999-12-31 23:59:59.999999'", "'2000-01-01 00:00:00.000001'"
    ),
    "datetimeoffset": _single(
        "datetimeoffset(7)",
        "'2000-01-01 12:00 -05:30'",
        "'2000-01-01 12:00:00.000001 +14:00'",
        "'2000-01-01 12:00 +00:00'",
    ),
    "uniqueidentifier": _single("uniqueidentifier", *_UUIDS),
    "nvarchar": _single(
        "nvarchar(60)",
        "N'b'",
        "N'A'",
        "N'a b'",
        "N'a-b'",
        "N'ab'",
        "N''",
        "N'東京'",
        "N'🛫'",
        "N'it''s'",
        "N'z '",
    ),
    "no case": _single(
        "nvarchar(60) collate Latin1_General_CI_AS",
        *("N'b'", "N'A'", "N'B2 '", "N'a1'", "N'A0'", "N'_'", "N'ß'", "N'Sz'"),
    ),
    "nchar": _single("nchar(5)", "N'b'", "N'A'", "N''", "N'ab'"),
    "varchar": _single("varchar(60)", "'b'", "'A'", "'ü'", "' a '", "''", "'a-b'"),
    "char": _single("char(5) collate Latin1_General_CI_AS", "'b'", "'A'", "''", "'ab'"),
    "varbinary": _single("varbinary(20)", "0x", "0x0001", "0xff00", "0x6100", "0xfe"),
    "binary": _single("binary(3)", "0x000000", "0x0000ff", "0xff0000"),
    "descending": _single("int", "3", "1", "2", "-5", "0", key="k desc"),
    "compound": Keyed(
        {"a": "nvarchar(20)", "b": "int", "c": "date"},
        [f"N'{a}', {b}, '2000-01-0{c}'" for a in ("x", "Y", "z") for b in (2, -1) for c in (1, 2)],
        ("a", "b desc", "c"),
    ),
    "in another order": Keyed(
        {"v": "int", "b": "int", "a": "char(1)"},
        [f"0, {b}, '{a}'" for a in "qpr" for b in (5, 4, 9)],
        ("a desc", "b"),
    ),
}
KEYED = "myservice.keys_changes"


@pytest.fixture(scope="module")
def keyed(lab: Lab) -> dict[str, str]:
    """Register all these tables as one capture, which costs less than to enable it; their names."""
    names, tables = {}, []
    for number, (name, one) in enumerate(KEYS.items()):
        names[name] = f"keys_{number}"
        columns = ", ".join(f"{column} {type_} not null" for column, type_ in one.columns.items())
        lab.client.results(
            f"create table myservice.keys_{number} ({columns}, primary key ({', '.join(one.key)}))"
        )
        lab.insert(f"keys_{number}", *one.rows)
        stored = {column: (f"{column}_{number}", type_) for column, type_ in one.columns.items()}
        tables.append(Captured(f"myservice.keys_{number}", stored, one.names))
    HandMade(lab.client, KEYED, tables).make()
    return names


@pytest.mark.parametrize("name", KEYS)
def test_ranges_are_the_table_wherever_it_is_cut(lab: Lab, keyed: dict[str, str], name: str) -> None:
    """Cut at each row, or at each second one: every row is in one range, and ranges follow each other."""
    table, rows = keyed[name], len(KEYS[name].rows)
    whole = lab.read(KEYED, table)
    assert len(whole) == rows
    for step in (1, 2, rows, rows + 1):
        bounds = lab.source.cut_table(KEYED, f"myservice.{table}", step)
        assert len(bounds) == rows // step
        found = [lab.read(KEYED, table, range_) for range_ in key_ranges(bounds)]
        assert [len(part) for part in found[:-1]] == [step] * len(bounds)
        assert sorted(map(repr, (row for part in found for row in part))) == sorted(map(repr, whole))


def test_rows_may_come_and_go_at_every_end(lab: Lab) -> None:
    """Bounds stay true where their own row is deleted, and where rows come between, below and above."""
    capture = lab.capture("moving", "k nvarchar(9) primary key", "N'd'", "N'f'", "N'h'")
    bounds = lab.source.cut_table(capture, "myservice.moving", 1)
    lab.client.results("delete from myservice.moving where k = N'f'")
    lab.insert("moving", "N'a'", "N'e'", "N'g'", "N'z'")
    found = [sorted(row["k"] for row in lab.read(capture, "moving", one)) for one in key_ranges(bounds)]
    assert found == [["a", "d"], ["e"], ["g", "h"], ["z"]]


def test_an_empty_table_is_one_range_without_rows(lab: Lab) -> None:
    """It has no bound."""
    capture = lab.capture("empty", "k int primary key")
    assert lab.source.cut_table(capture, "myservice.empty", 1) == []
    assert lab.read(capture, "empty") == []


# ---- values


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
    expected = sorted(events.column("new").to_pylist(), key=lambda row: row["k"])
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
    lab.source.enable_capture(spec, snapshot=True)
    lab.source.drain("myservice.both")
    events = [row for batch in lab.source.stream("myservice.both", 0, ALL) for row in batch.to_pylist()]
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
    key, rows = ("uniqueidentifier", _UUIDS[:3]) if is_uuid else ("int", ["1", "2", "3"])
    shard = "K" if is_uuid else "K % 2"
    table = f"shards_{type_}"
    columns = f"K {key} not null primary key"
    capture = lab.capture(table, columns, *rows, shard=shard, shard_key_type=type_)
    found = {row[SHARD] for row in lab.read(capture, table)}
    assert found == ({row.strip("'") for row in _UUIDS[:3]} if is_uuid else {0, 1})


def test_a_row_without_a_shard_is_refused(lab: Lab) -> None:
    """Its next change would fail as well."""
    capture = lab.capture("unsharded", "k bigint primary key", "3000000000", shard="k")
    with pytest.raises(ColumnTypeError, match=r"myservice\.unsharded.* 1 rows have no shard") as caught:
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
    "variant": ("k sql_variant primary key", {}, _alter(), "whose values cannot bound a range"),
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


def test_all_reasons_are_named_at_once(lab: Lab) -> None:
    """One remedy after the other would take as many attempts."""
    capture = lab.capture("several", "k int primary key, v int null, w int null", delete=None)
    for column in ("v", "w"):
        lab.client.results(f"alter table myservice.several drop column {column}")
    lab.source.disable_capture(capture)
    message = _refusal(lab, capture, "myservice.several")
    for word in ("disabled", "deletes are not captured", "column v is missing; column w is missing"):
        assert word in message


def test_what_is_not_captured_is_named(lab: Lab) -> None:
    """With the names that there are."""
    capture = lab.capture("known", "k int primary key")
    with pytest.raises(FeedSetupError, match=r"does not have table 'dbo\.no'; it has myservice\.known"):
        lab.source.table_columns(capture, "dbo.no")
    with pytest.raises(CaptureNotFoundError, match=r"'dbo\.no' not found; .*myservice\.known_changes"):
        lab.source.cut_table("dbo.no", "dbo.no", 1)
    with pytest.raises(InvalidArgumentError, match="rows must be at least 1, not 0"):
        lab.source.cut_table(capture, "myservice.known", 0)
    with pytest.raises(InvalidArgumentError, match="batch_rows must be 1 to"):
        lab.read(capture, "known", batch_rows=0)
    with pytest.raises(InvalidArgumentError, match="is not a key of it, which has 1 columns; cut the table"):
        lab.read(capture, "known", KeyRange("[1, 2]"))


def test_a_secondary_must_have_the_snapshot(database: Database, lab: Lab) -> None:
    """The server has no secondary: what lags is the snapshot itself, as a secondary would see it."""
    capture = lab.capture("replicated", "k int primary key", "1", "2")
    table = "myservice.replicated"
    replica = MssqlFeedSource(**database.description, lock_timeout=20, read_only_replica=True)
    with closing(replica):
        replica.database.retry = RetryPolicy(attempts=2, first_pause=0.0, longest_pause=0.0)
        with pytest.raises(ReplicaBehindError, match="does not have the snapshot of table"):
            list(replica.stream_table(capture, table, WHOLE))
        lab.source.begin_snapshot(
            capture, table, token="t", path="p", begin=lab.source.now(), by="a person", seconds=60
        )
        assert sum(batch.num_rows for batch in replica.stream_table(capture, table, WHOLE)) == 2
        assert len(replica.cut_table(capture, table, 1)) == 2
