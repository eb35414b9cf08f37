# SPDX-License-Identifier: Apache-2.0
"""What the row triggers of a capture record in SQLite, and what they leave alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.capture import KeyChange, TableCapture
from airflow_changefeed.exceptions import CaptureGapError, ColumnTypeError, MissingEventError
from tests.unit.sources.sqlite_captures import ALL, CaptureFile

ODD = 'my "Event\'s" 100%#?<<events>> é'
FLIGHT = "create table flight (id integer primary key, status text)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file that is not there yet."""
    return tmp_path / "a#b %20.db"


@pytest.fixture
def flights(path: Path) -> Iterator[CaptureFile]:
    """Return a file with a table that is captured."""
    file = CaptureFile(path, FLIGHT)
    file.enable("flight")
    yield file
    file.connection.close()


def test_a_writer_sees_its_own_counts_and_row_ids(flights: CaptureFile) -> None:
    """As if there were no triggers, which write more rows than it did, with other numbers."""
    flights.sql("insert into flight values (50, 'a'), (60, 'b'), (70, 'c')")
    cursor = flights.connection.execute("insert into flight (status) values ('d')")
    assert (cursor.rowcount, cursor.lastrowid) == (1, 71)
    assert flights.sql("select changes(), last_insert_rowid()") == [(1, 71)]
    assert flights.connection.execute("update flight set status = 'x'").rowcount == 4
    assert flights.sql("select changes(), last_insert_rowid()") == [(4, 71)]
    assert flights.sql("insert into flight values (1, 'r') returning id, status") == [(1, "r")]


def test_a_statement_that_changes_many_rows_is_recorded_at_one_time(flights: CaptureFile) -> None:
    """A window that ends meanwhile does not part them."""
    flights.sql("insert into flight select value, 'a' from json_each('[1, 2, 3, 4, 5]')")
    events = flights.events("flight_changes")
    assert len(events) == 5
    assert len({(event["captured_at"], event["changefeed_time"], event["epoch"]) for event in events}) == 1


@pytest.mark.parametrize(
    ("declared", "before", "after"),
    [
        ("", "1", "1.0"),
        ("", "1", "'1'"),
        ("", "'a'", "x'61'"),
        ("blob", "2", "2.0"),
    ],
)
def test_an_update_counts_where_bytes_or_type_differ(
    path: Path, declared: str, before: str, after: str
) -> None:
    """Also where SQLite calls the two values equal."""
    file = CaptureFile(path, f"create table t (id integer primary key, v {declared})")
    file.enable("t")
    file.sql(f"insert into t values (1, {before})", f"update t set v = {after}", f"update t set v = {after}")
    assert file.sql("select changefeed_op from t_changes") == [("i",), ("u",)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (KeyChange.NEW_ONLY, [("upd", None, {"id": 2, "status": "a"})]),
        (
            KeyChange.DELETE_INSERT,
            [("del", {"id": 1, "status": "a"}, None), ("add", None, {"id": 2, "status": "a"})],
        ),
    ],
)
@pytest.mark.parametrize("name", ["rowid", "_rowid_"])
def test_a_key_that_is_changed_by_any_of_its_names_is_a_key_change(
    path: Path, name: str, rule: KeyChange, expected: list[Any]
) -> None:
    """SQLite's own names of an integer key fire no trigger that waits for updates of the column."""
    file = CaptureFile(path, FLIGHT)
    file.enable("flight", key_change=rule)
    file.sql("insert into flight values (1, 'a')", f"update flight set {name} = 2 where id = 1")
    assert file.changes("flight_changes")[1:] == expected


def test_replaced_and_merged_rows(flights: CaptureFile) -> None:
    """An upsert is an update. A replacement is a delete, too, where the connection says so."""
    flights.sql(
        "pragma recursive_triggers = on",
        "insert into flight values (1, 'a')",
        "insert into flight values (1, 'b') on conflict (id) do update set status = excluded.status",
        "insert or replace into flight values (1, 'c')",
        "insert or ignore into flight values (1, 'd')",
    )
    a, b, c = ({"id": 1, "status": status} for status in "abc")
    expected = [("add", None, a), ("upd", a, b), ("del", b, None), ("add", None, c)]
    assert flights.changes("flight_changes") == expected
    flights.source.seal("flight_changes", flights.source.now())


def test_a_replacement_whose_delete_sqlite_hides_is_found(flights: CaptureFile) -> None:
    """Without the pragma SQLite fires no delete trigger, but the rows are one fewer than recorded."""
    flights.sql("insert into flight values (1, 'a')", "insert or replace into flight values (1, 'c')")
    with pytest.raises(
        CaptureGapError, match=r"the table has 1 row, but 2 according to the recorded changes"
    ):
        flights.source.seal("flight_changes", flights.source.now())


def test_cascades_and_older_triggers_are_recorded_in_their_order(path: Path) -> None:
    """What a trigger, or a foreign key, does to captured tables is a change like others."""
    file = CaptureFile(
        path,
        FLIGHT,
        "create table bag (id integer primary key, flight integer references flight on delete cascade)",
        "create trigger touch after insert on flight begin "
        "update flight set status = upper(new.status) where id = new.id; end",
    )
    file.enable("flight", "bag", name="both")
    file.sql(
        "pragma foreign_keys = on",
        "insert into flight values (1, 'a')",
        "insert into bag values (7, 1)",
        "delete from flight",
    )
    found = [(event["name"], event["type"]) for event in file.events("both")]
    assert found[:3] == [("flight", "add"), ("flight", "upd"), ("bag", "add")]
    assert sorted(found[3:]) == [("bag", "del"), ("flight", "del")]
    file.source.seal("both", file.source.now())


def test_a_trigger_that_would_come_first_is_a_gap(flights: CaptureFile) -> None:
    """SQLite fires the newest first, so what it does would be recorded before its cause; resolving helps."""
    flights.sql(
        "create trigger touch after insert on flight begin "
        "update flight set status = upper(new.status) where id = new.id; end",
        "insert into flight values (1, 'a')",
    )
    with pytest.raises(CaptureGapError, match="trigger 'touch' was created after the capture's triggers"):
        flights.source.seal("flight_changes", flights.source.now())
    assert [change[0] for change in flights.changes("flight_changes")] == ["upd", "add"]
    flights.source.resolve_capture("flight_changes", note="new trigger", by="test", resync=True)
    flights.sql("insert into flight values (2, 'b')")
    flights.source.seal("flight_changes", flights.source.now())
    assert flights.changes("flight_changes")[-2:] == [
        ("add", None, {"id": 2, "status": "b"}),
        ("upd", {"id": 2, "status": "b"}, {"id": 2, "status": "B"}),
    ]


def test_a_newer_trigger_that_raises_ignore_is_a_gap(flights: CaptureFile) -> None:
    """SQLite makes the change, and fires no other trigger for it; resolving helps."""
    flights.sql(
        "insert into flight values (1, 'a')",
        "create trigger quiet after update on FLIGHT begin select RAISE ( ignore ); end",
        "update flight set status = 'b'",
    )
    with pytest.raises(CaptureGapError, match="trigger 'quiet' was created after the capture's triggers"):
        flights.source.seal("flight_changes", flights.source.now())
    assert [change[0] for change in flights.changes("flight_changes")] == ["add"]
    flights.source.resolve_capture("flight_changes", note="new trigger", by="test", resync=True)
    flights.sql("update flight set status = 'c'")
    flights.source.seal("flight_changes", flights.source.now())
    assert flights.changes("flight_changes")[-1] == (
        "upd",
        {"id": 1, "status": "b"},
        {"id": 1, "status": "c"},
    )


def test_a_newer_trigger_that_writes_elsewhere_is_none_of_ours(flights: CaptureFile) -> None:
    """It changes nothing that is captured."""
    flights.sql(
        "create table note (text)",
        "create trigger noting after insert on flight begin insert into note values (new.status); end",
        "insert into flight values (1, 'a')",
    )
    flights.source.seal("flight_changes", flights.source.now())


def test_a_shard_that_is_none_makes_the_write_fail(path: Path) -> None:
    """Also where the writer says to ignore conflicts, which would leave out the event without a word."""
    file = CaptureFile(path, FLIGHT)
    file.enable(TableCapture("flight", shard="id * 1000000"))
    for statement in ("insert", "insert or ignore", "insert or replace"):
        with pytest.raises(sqlite3.IntegrityError, match="the shard of a row of flight is not of type int"):
            file.sql(f"{statement} into flight values (1000000, 'x')")
    file.sql("insert into flight values (2, 'x')")
    with pytest.raises(sqlite3.IntegrityError, match="the shard of a row of flight is not of type int"):
        file.sql("update or ignore flight set id = 1000000")
    assert file.sql("select id from flight") == [(2,)]
    assert file.changes("flight_changes", shards=[2_000_000]) == [("add", None, {"id": 2, "status": "x"})]


def test_shards_are_computed_from_the_key_of_the_row(path: Path) -> None:
    """Whatever SQL makes of it; here UUIDs in another spelling."""
    file = CaptureFile(path, "create table u (id text not null primary key, v)")
    key = "0a1b2c3d-0000-4000-8000-00000000000f"
    file.enable(TableCapture("u", shard="lower(id) -- whose"), shard_key_type="uniqueidentifier")
    file.sql(f"insert into u values ('{key.upper()}', x'00')")
    (shard,) = file.source.drain("u_changes")
    assert str(shard) == key
    assert file.changes("u_changes", shards=[shard]) == [("add", None, {"id": key.upper(), "v": b"\0"})]


def test_odd_names_and_tables_without_row_ids(path: Path) -> None:
    """Quotes, template tokens and dots in names; a key of two columns."""
    name = ODD.replace('"', '""')
    file = CaptureFile(
        path,
        f'create table "{name}" ("a ""b" text, "new.c" int, "<<now>>" real, primary key ("new.c", "a ""b"))'
        " without rowid",
    )
    file.enable(TableCapture(ODD, shard='"new.c" % 2'), with_sequence=True)
    file.sql(
        f"""insert into "{name}" values ('x', 2, 1.5)""",
        f"""update "{name}" set "<<now>>" = 2""",
        f"""update "{name}" set "new.c" = 4""",
    )
    events = file.events(f"{ODD}_changes")
    assert [(event["type"], event["sequence"], event["name"]) for event in events] == [
        ("add", 1, ODD),
        ("upd", 2, ODD),
        ("upd", 3, ODD),
    ]
    assert events[-1]["new"] == {'a "b': "x", "new.c": 4, "<<now>>": 2.0}
    assert events[-1]["old"] is None


def test_generated_columns_and_wide_tables(path: Path) -> None:
    """990 columns, of which one is computed; both images are read."""
    names = [f"c{number}" for number in range(988)]
    file = CaptureFile(
        path,
        f"create table wide (id integer primary key, {', '.join(f'{name} int' for name in names)}, "
        "twice int as (id * 2))",
    )
    file.enable("wide")
    file.sql("insert into wide (id, c0, c987) values (1, 5, 6)", "update wide set c987 = 7")
    for source in (file.source, file.quick_source):
        _, (kind, old, new) = [
            (row["type"], row["old"], row["new"]) for row in file.events("wide_changes", source=source)
        ]
        assert (kind, old["c987"], new["c987"], new["twice"], len(new)) == ("upd", 6, 7, 2, 990)


def test_what_a_strict_table_holds_in_any_column_is_kept(path: Path) -> None:
    """A column declared ANY elsewhere makes a number of '007'; here it is refused when it is exported."""
    file = CaptureFile(path, "create table t (id integer primary key, v any) strict")
    file.enable("t")
    file.sql("insert into t values (1, 1.5)")
    assert file.changes("t_changes") == [("add", None, {"id": 1, "v": 1.5})]
    file.sql("insert into t values (2, '007')")
    assert file.sql("select new_v from t_changes") == [(1.5,), ("007",)]
    with pytest.raises(ColumnTypeError, match=r"column 'v' of table 't', declared 'ANY', cannot be exported"):
        file.events("t_changes")


@pytest.mark.parametrize("reader", ["source", "quick_source"])
def test_a_value_of_another_class_stops_the_export_and_names_its_image(
    flights: CaptureFile, reader: str
) -> None:
    """By both readers; what is stored is never turned into something else."""
    flights.sql("insert into flight values (1, 'a')", "update flight set status = x'ff'")
    flights.source.drain("flight_changes")
    source = getattr(flights, reader)
    with pytest.raises(ColumnTypeError, match=r"column 'status' of table 'flight'.*the new row of event"):
        list(source.stream("flight_changes", 0, ALL))


@pytest.mark.parametrize("on_missing", ["fail", "keys_only"])
def test_an_event_that_was_deleted_by_hand_is_missing(flights: CaptureFile, on_missing: str) -> None:
    """Its key is a number of ours, of which nobody could make an event."""
    flights.sql("insert into flight values (1, 'a'), (2, 'b')")
    flights.source.drain("flight_changes")
    flights.sql("delete from flight_changes where changefeed_event = 2")
    for source in (flights.source, flights.quick_source):
        with pytest.raises(MissingEventError, match="was deleted from 'flight_changes'"):
            list(source.stream("flight_changes", 0, ALL, on_missing=on_missing))


def test_both_readers_give_the_same(path: Path) -> None:
    """Also where a column begins with nothing but nulls, in batches of two."""
    file = CaptureFile(path, "create table t (id integer primary key, a text, b real, c blob)")
    file.enable("t", session_keys=("who",), with_sequence=True)
    file.sql(
        "insert into t (id) values (1), (2), (3)", "update t set a = 'x', b = 1, c = x'01'", "delete from t"
    )
    file.source.drain("t_changes")
    slow, quick = (
        [row for batch in source.stream("t_changes", 0, ALL, batch_rows=2) for row in batch.to_pylist()]
        for source in (file.source, file.quick_source)
    )
    assert len(slow) == 9
    assert slow == quick
    assert slow[3]["new"] == {"id": 1, "a": "x", "b": 1.0, "c": b"\1"}
