# SPDX-License-Identifier: Apache-2.0
"""Captures of a SQLite file: what is refused, how they change with their tables, and how they end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_changefeed.capture.session import transaction
from airflow_changefeed.core.capture import CaptureSpec, KeyChange, Operation, TableCapture
from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    CaptureNotFoundError,
    FeedNotFoundError,
    FeedSetupError,
    PurgedError,
)
from airflow_changefeed.sources.sqlite.feed.control import DRAIN_ROWS
from tests.clocks import after_now
from tests.examples import examples
from tests.unit.sources.sqlite_captures import ALL, CaptureFile

FLIGHT = "create table flight (id integer primary key, status text, gate int)"
NAME = "flight_changes"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CaptureFile]:
    """Return a file with a table that is not captured yet, and tables that cannot be."""
    file = CaptureFile(
        tmp_path / "feeds.db",
        FLIGHT,
        "create table log (line text)",
        "create virtual table words using fts4 (body)",
    )
    yield file
    file.connection.close()


REFUSED: dict[str, tuple[CaptureSpec, str]] = {
    "a virtual table": (CaptureSpec((TableCapture("words"),)), "'words' is a virtual table"),
    "a column twice": (
        CaptureSpec((TableCapture("flight", delete=("id", "id")),)),
        "table 'flight', delete: a column is named twice",
    ),
    "a name that is taken": (
        CaptureSpec((TableCapture("flight"),), name="LOG"),
        "a table 'LOG' already exists",
    ),
    "a name of ours": (CaptureSpec((TableCapture("flight"),), name="changefeed.gap"), "is reserved"),
}


def test_a_table_that_cannot_be_captured_so_is_refused_with_the_reason(file: CaptureFile) -> None:
    """Nothing is changed."""
    before = file.sql("select name, sql from sqlite_master order by name")
    for spec, reason in REFUSED.values():
        with pytest.raises(FeedSetupError) as caught:
            file.source.enable_capture(spec)
        assert reason in caught.value.message
        assert file.sql("select name, sql from sqlite_master order by name") == before


NULLABLE = {
    "text": "id text primary key, x int",
    "int": "id int primary key, x int",
    "descending": "id integer primary key desc, x int",
    "a part": "x int not null, id text, primary key (x, id)",
}
NEVER_NULL = {
    "rowid": "(id integer primary key, x int)",
    "not null": "(id text not null primary key, x int)",
    "strict": "(id text primary key, x int) strict",
    "no rowid": "(id text primary key, x int) without rowid",
}


@pytest.mark.parametrize("columns", NULLABLE.values(), ids=NULLABLE)
@pytest.mark.parametrize("rule", list(KeyChange))
def test_a_key_that_can_be_null_is_refused(file: CaptureFile, columns: str, rule: KeyChange) -> None:
    """SQLite takes any number of null keys, of which no event says which row it changed."""
    file.sql(f"create table shoe ({columns})")
    with pytest.raises(FeedSetupError, match=r"key column 'id' of table 'shoe' can be null.*`not null`"):
        file.enable("shoe", key_change=rule)
    assert file.source.captures() == []


@pytest.mark.parametrize("columns", NEVER_NULL.values(), ids=NEVER_NULL)
def test_a_key_that_is_never_null_is_captured(file: CaptureFile, columns: str) -> None:
    """As SQLite itself forbids nulls there, declared or not."""
    file.sql(f"create table shoe {columns}")
    assert file.enable("shoe").is_enabled


def test_a_table_whose_key_can_be_null_is_made_again_as_the_reference_says(file: CaptureFile) -> None:
    """Then it is captured."""
    file.sql("create table parts (code text primary key, price integer)", "insert into parts values ('a', 1)")
    (again,) = examples("reference/api.md#embedded-source-sqlite", {}, "sql")
    file.connection.executescript(again)
    file.enable("parts", snapshot=True)
    assert ("add", None, {"code": "a", "price": 1}) in file.changes("parts_changes")


def test_a_key_that_can_be_null_by_now_is_refused_when_a_gap_is_resolved(file: CaptureFile) -> None:
    """The table was made anew meanwhile, with the same names."""
    file.sql("create table shoe (id text not null primary key)")
    file.enable("shoe")
    file.sql("drop table shoe", "create table shoe (id text primary key)")
    file.source.check_capture("shoe_changes")
    with pytest.raises(FeedSetupError, match="key column 'id' of table 'shoe' can be null"):
        file.source.resolve_capture("shoe_changes", note="made anew", by="me", resync=True)


@pytest.mark.parametrize(
    ("shard", "reason"),
    [
        ("random()", "non-deterministic functions prohibited"),
        ("date('now')", "non-deterministic"),
        ("status", "no such column: status"),
        ("new.id", "no such column: new.id"),
        ("?1", "parameters prohibited"),
        ("id), x as (1", "syntax error"),
        ("1; drop table flight", "syntax error"),
        ("nowhere(id)", "no such function"),
        ('"ident"', "is not of type int, the feed's shard key type"),
        ("1.5", "is not of type int"),
        ("gate / 2 * 0", "no such column: gate"),
        ("id * 1e9", "is not of type int, the feed's shard key type, for 1 of its rows"),
    ],
)
def test_a_shard_that_is_no_expression_over_the_key_is_refused(
    file: CaptureFile, shard: str, reason: str
) -> None:
    """When it is enabled, and not when a writer comes by."""
    file.sql("insert into flight values (7, 'a', 1)")
    with pytest.raises(FeedSetupError) as caught:
        file.enable(TableCapture("flight", shard=shard))
    assert f"table 'flight': shard {shard!r}" in caught.value.message
    assert reason in caught.value.message


def test_more_columns_than_can_be_read_are_refused(file: CaptureFile) -> None:
    """SQLite reads no more in one statement."""
    file.sql(f"create table wide (id integer primary key, {', '.join(f'c{n}' for n in range(990))})")
    with pytest.raises(FeedSetupError, match="its tables have 991 columns; at most 990"):
        file.enable("wide")
    file.enable(TableCapture("wide", insert=("c1",), update=("c1", "c2"), delete=("id",)))


def test_tables_share_fields_unless_they_disagree_about_the_type(file: CaptureFile) -> None:
    """A field of each table then, which its name says."""
    file.sql("create table gate (ID integer primary key, status int, gate int)")
    info = file.enable("flight", "gate", name="both")
    file.sql("insert into flight values (1, 'a', 2)", "insert into gate values (3, 4, 5)")
    none = {"id": None, "flight.status": None, "gate": None, "gate.status": None}
    assert file.changes("both") == [
        ("add", None, {**none, "id": 1, "flight.status": "a", "gate": 2}),
        ("add", None, {**none, "id": 3, "gate.status": 4, "gate": 5}),
    ]
    assert info.shape.tables["gate"].columns[Operation.INSERT] == {
        "ID": "id",
        "status": "gate.status",
        "gate": "gate",
    }


def test_a_spec_may_be_repeated_and_another_is_refused(file: CaptureFile) -> None:
    """As it was asked for, or as the capture describes itself; the difference is named."""
    info = file.enable("flight", key_change=KeyChange.DELETE_INSERT)
    assert file.enable("flight", key_change=KeyChange.DELETE_INSERT) == info
    assert file.source.enable_capture(info.spec) == info
    with pytest.raises(
        FeedSetupError, match="with a different definition: keep_unchanged is True, not False"
    ):
        file.enable("flight", key_change=KeyChange.DELETE_INSERT, keep_unchanged=True)
    with pytest.raises(FeedSetupError, match="table 'flight' is TableCapture"):
        file.enable(TableCapture("flight", delete=None), key_change=KeyChange.DELETE_INSERT)
    with pytest.raises(FeedSetupError, match="already exists, as outbox with int shards"):
        file.source.set_up_feed(NAME, shard_key_type="bigint")


# ---- the feed


def test_a_transaction_is_ordered_whole_however_long_it_is(file: CaptureFile) -> None:
    """A reader's page finds all of it, at one time, or nothing; neighbours are not drawn in."""
    rows = DRAIN_ROWS + 5_000
    file.enable(TableCapture("flight", shard="id % 2"), with_sequence=True)
    file.sql("insert into flight values (-2, 'before', 0)")
    series = f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {rows})"
    with transaction(file.connection):
        file.sql(f"{series} insert into flight select i, 'a', 0 from n", "update flight set gate = 1")
    file.sql("insert into flight values (-4, 'after', 0)")
    source = file.source
    source.read_feed(NAME, 0, Ulid.MIN, page_size=1)
    assert file.sql(f'select count(*) from "changefeed.outbox:{NAME}"') == [(1,)]
    events = file.events(NAME, shards=[0])
    inside = [event for event in events if event["tid"] is not None]
    assert len(inside) == rows // 2 * 2 + 1
    assert len({event["changefeed_time"] for event in inside}) == len({event["tid"] for event in inside}) == 1
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert [event["new"]["id"] for event in (events[0], events[-1])] == [-2, -4]
    assert [event["sequence"] for event in file.events(NAME, shards=[1])][-1] == rows


def test_a_look_finds_what_waits_in_each_shard(file: CaptureFile) -> None:
    """At the first look, which knows no capture yet, and at later ones; also when it has become another."""
    file.enable(TableCapture("flight", shard="id % 3"))
    source = file.source
    assert source.poll(NAME, "reader").shards == ()
    file.sql("insert into flight values (1, 'a', 1), (5, 'b', 2)")
    for _ in range(2):
        new_events = source.poll(NAME, "reader").new_events
        assert {shard: found.has_outbox for shard, found in new_events.items()} == {1: True, 2: True}
    source.drain(NAME)
    file.sql("delete from flight where id = 5")
    looks = source.poll(NAME, "reader").new_events
    assert {shard: (one.has_outbox, one.head is None) for shard, one in looks.items()} == {
        1: (False, False),
        2: (True, False),
    }
    assert [status.has_outbox for status in source.shards(NAME)] == [False, True]
    source.drop_feed(NAME)
    file.sql(f"create table {NAME} (id integer primary key)")
    source.set_up_feed(NAME)
    file.sql(f'insert into "changefeed.outbox:{NAME}" (shard_id, id) values (8, 1)')
    assert source.poll(NAME, "reader").shards == (8,)


def test_a_purge_removes_the_captured_rows_too(file: CaptureFile) -> None:
    """In batches, up to the bound; what was said of their transactions goes with them."""
    file.enable("flight", session_keys=("who",))
    source = file.source
    with transaction(file.connection, session_variables={"who": "a"}):
        file.sql("insert into flight values (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    source.seal(NAME, after_now(source))
    for number, who in enumerate("bc", 1):
        with transaction(file.connection, session_variables={"who": who}):
            file.sql(f"delete from flight where id = {number}")
    source.drain(NAME)
    bound = source.feed(NAME).sealed_until
    assert bound is not None
    (purged,) = source.purge(NAME, bound + timedelta(days=1), batch_rows=2)
    assert purged.rows == 3
    assert file.sql(f"select changefeed_op from {NAME}") == [("d",), ("d",)]
    assert file.sql('select session from "changefeed.context"') == [('{"who": "b"}',), ('{"who": "c"}',)]
    with pytest.raises(PurgedError):
        list(source.stream(NAME, 0, ALL))
    source.seal(NAME, source.now())


def test_dropping_the_feed_drops_all_that_belongs_to_the_capture(file: CaptureFile) -> None:
    """The tables stay, and the capture can be made anew; other feeds and captures are left alone."""
    before = set(file.sql("select name from sqlite_master where name not like 'changefeed.%'"))
    file.enable("flight", name="other")
    kept = set(file.sql("select name from sqlite_master"))
    file.enable("flight")
    file.sql("insert into flight values (1, 'a', 1)")
    file.source.drop_feed(NAME)
    assert set(file.sql("select name from sqlite_master")) == kept
    with pytest.raises(FeedNotFoundError):
        file.source.feed(NAME)
    with pytest.raises(CaptureNotFoundError):
        file.source.capture(NAME)
    assert len(file.changes("other")) == 1
    file.source.drop_feed("other")
    now = set(file.sql("select name from sqlite_master where name not like 'changefeed.%'"))
    assert now - before <= {("sqlite_sequence",)} | {name for name in now if "changefeed" in name[0]}
    file.source.set_up_feed("flight", kind=FeedKind.OUTBOX)


def test_a_disabled_capture_keeps_its_feed(file: CaptureFile) -> None:
    """Nothing more is recorded, what was is exported to its end, and tables may change as they like."""
    file.enable("flight")
    file.sql("insert into flight values (1, 'a', 1)")
    source = file.source
    source.disable_capture(NAME)
    source.disable_capture(NAME)
    assert not source.capture(NAME).is_enabled
    file.sql(
        "insert into flight values (2, 'b', 2)", "alter table flight drop column gate", "drop table flight"
    )
    source.seal(NAME, source.now())
    assert [change[2]["id"] for change in file.changes(NAME)] == [1]
    with pytest.raises(FeedSetupError, match="table 'flight' is missing"):
        file.enable("flight")
    file.sql(FLIGHT, "insert into flight values (9, 'x', 9)")
    (gap,) = file.enable("flight", snapshot=True).gaps
    assert "not recorded while the capture was disabled" in gap.reason
    source.resolve_capture(NAME, note="recorded anew", by="test")
    file.sql("update flight set status = 'y'")
    assert [change[0] for change in file.changes(NAME)] == ["add", "reset", "add", "ready", "upd"]
    source.seal(NAME, source.now())
