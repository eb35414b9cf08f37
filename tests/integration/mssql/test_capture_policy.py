# SPDX-License-Identifier: Apache-2.0
"""
What a change of a table's columns does to its capture, by the capture's policy.

Where a server has no triggers on DDL, each change calls the procedure of the guard itself, in its own
transaction, as the guard does; only that the server calls it, and with which rights, is not shown then.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.capture import OnDdl
from airflow_changefeed.exceptions import InvalidArgumentError
from tests.integration.contract.captures import AUTHOR, CaptureBench, row, set_up_author
from tests.integration.contract.engines import Engine, open_engine

ADD = 'alter table "shop.author" add born int null'
INSERT = 'insert into "shop.author" (id, name) values'
WRITERS, COLUMNS, PATIENCE = 2, 4, 120.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Give the server with an empty database."""
    with open_engine("mssql", tmp_path) as engine:
        yield engine


@dataclass
class Guarded:
    """A capture whose table is altered under a policy."""

    bench: CaptureBench

    def alter(self, statement: str, *added: str, before: str = "", after: str = "") -> str | None:
        """
        Alter the table in a transaction, and return the error of the guard that undid it.

        :param added: columns that the statement adds.
        :param before: a statement of the same transaction, likewise ``after``.
        """
        with self.bench.changer() as changer:
            changer.begin()
            try:
                for one in filter(None, (before, statement)):
                    changer.execute(one)
                if not self.bench.engine.guards_schema:
                    changer.execute(
                        "exec [changefeed].[check_captured_tables] @event = N'ALTER_TABLE', "
                        "@table_schema = N'shop', @table_name = N'author', @added = ?, @statement = ?",
                        json.dumps(added) if added else None,
                        statement,
                    )
                if after:
                    changer.execute(after)
            except Exception as error:
                changer.rollback()
                return str(error)
            changer.commit()
        return None

    def refresh(self, **options: Any) -> None:
        """Refresh a capture that evolves; a server that cannot create the guard is not asked to."""
        bench = self.bench
        if not bench.engine.guards_schema:
            bench.run("update [changefeed].[captures] set guard_schema = 0, on_ddl = 'pause'")
        bench.source.refresh_capture(bench.name, **options)
        if not bench.engine.guards_schema:
            bench.run("update [changefeed].[captures] set guard_schema = 1, on_ddl = 'evolve'")

    @property
    def drift(self) -> bool:
        """Whether the capture does not record all columns as they are."""
        return bool(self.bench.source.capture(self.bench.name).drift)


def _guarded(engine: Engine, on_ddl: OnDdl, *rows: tuple[int, str | None], **options: Any) -> Guarded:
    """Capture a table by a policy; on a server without triggers on DDL, written into the registry."""
    if engine.guards_schema:
        return Guarded(set_up_author(engine, *rows, on_ddl=on_ddl, **options))
    bench = set_up_author(engine, *rows, **options)
    bench.run(f"update [changefeed].[captures] set guard_schema = 1, on_ddl = '{on_ddl.value}'")
    return Guarded(bench)


def test_a_policy_needs_the_guard(engine: Engine) -> None:
    """Without it nobody would see a change in time."""
    engine.create_table(AUTHOR)
    bench = CaptureBench(engine, engine.source())
    with pytest.raises(InvalidArgumentError, match="'evolve' needs guard_schema"):
        bench.enable(AUTHOR.name, guard_schema=False, on_ddl=OnDdl.EVOLVE)


def test_an_added_column_is_recorded_from_its_own_transaction_on(engine: Engine) -> None:
    """What was there before, the change of the columns, and the first value of the new one, in this order."""
    guarded = _guarded(engine, OnDdl.EVOLVE, (1, "one"))
    bench = guarded.bench
    version = bench.source.capture(bench.name).resource_version
    bench.run(f"{INSERT} (2, 'two')")
    first = 'update "shop.author" set born = 1900 where id = 1'
    assert guarded.alter(ADD, "born", before=f"{INSERT} (3, 'three')", after=first) is None
    bench.run("insert into \"shop.author\" (id, name, born) values (4, 'four', 1904)")
    events = bench.events()
    one = {**row(1, "one"), "born": None}
    assert [(event.type, event.old, event.new) for event in events] == [
        ("add", None, {**row(2, "two"), "born": None}),
        ("add", None, {**row(3, "three"), "born": None}),
        ("ddl", None, None),
        ("upd", one, {**one, "born": 1900}),
        ("add", None, {**row(4, "four"), "born": 1904}),
    ]
    assert len({event.tid for event in events[1:4]}) == 1
    info = bench.source.capture(bench.name)
    assert (info.drift, info.gaps, info.spec.on_ddl) == ((), (), OnDdl.EVOLVE)
    assert info.resource_version > version
    (ddl,) = [json.loads(one) for one in _texts(bench) if one]
    assert [column["name"] for column in ddl["before"]] == ["id", "name"]
    assert [column["name"] for column in ddl["after"]] == ["id", "name", "born"]
    assert "add born int null" in ddl["statement"]
    assert ddl["by"]
    assert ddl["unrecorded"] == []
    assert bench.source.check_capture(bench.name) == []


def _texts(bench: CaptureBench) -> list[str | None]:
    from airflow_changefeed.core.ulid import Ulid, UlidRange

    batches = bench.source.stream(bench.name, 0, UlidRange(Ulid.MIN, Ulid.MAX))
    return [event["ddl"] for batch in batches for event in batch.to_pylist()]


def test_an_added_column_that_was_recorded_before_has_other_values(engine: Engine) -> None:
    """It is null in every row, but in older events it is not."""
    guarded = _guarded(engine, OnDdl.EVOLVE, (1, "one"))
    bench = guarded.bench
    assert guarded.alter(ADD, "born") is None
    bench.run('update "shop.author" set born = 1900')
    guarded.refresh(without=["born"])
    bench.run('alter table "shop.author" drop column born')
    if not engine.keeps_triggers:
        guarded.refresh()
    assert guarded.alter(ADD, "born") is None
    bench.source.drain(bench.name)
    found = [json.loads(one) for one in _texts(bench) if one]
    assert [one["unrecorded"] for one in found] == [[], [], ["born"]]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("exec sp_rename N'shop.author.born', N'birth', N'COLUMN'", "birth"),
        ('alter table "shop.author" alter column born bigint', "born"),
    ],
    ids=["rename", "retype"],
)
def test_a_renamed_or_retyped_column_has_values_that_no_event_has(
    engine: Engine, change: str, field: str
) -> None:
    """In the field that has it from then on; the other columns are as they were."""
    if not engine.guards_schema and field == "born":
        pytest.skip("the server that stands for SQL Server cannot retype the column of the capture's table")
    bench = set_up_author(engine, (1, "one"), guard_schema=False)
    bench.run(ADD, 'update "shop.author" set born = 1900')
    bench.source.refresh_capture(bench.name)
    bench.run(change)
    bench.source.refresh_capture(bench.name)
    bench.run(f"{INSERT} (2, 'two')")
    bench.source.drain(bench.name)
    found = [json.loads(one) for one in _texts(bench) if one]
    assert [one["unrecorded"] for one in found] == [[], [field]]


def test_a_change_that_is_rolled_back_leaves_nothing(engine: Engine) -> None:
    """The capture is what it was."""
    guarded = _guarded(engine, OnDdl.EVOLVE)
    bench = guarded.bench
    assert guarded.alter(ADD, "born", after="select 1 / 0") is not None
    bench.run(f"{INSERT} (1, 'one')")
    assert bench.new_events() == [("add", None, row(1, "one"))]
    assert bench.source.capture(bench.name).drift == ()


@pytest.mark.parametrize(
    "definition",
    [
        "int not null default 1",
        "int null default 1 with values",
        "int null default 1",
        "as id + 1",
        "rowversion",
    ],
)
def test_a_column_that_may_have_values_waits_for_a_refresh(engine: Engine, definition: str) -> None:
    """No event could say which values the rows have got; the column beside it is recorded."""
    guarded = _guarded(engine, OnDdl.EVOLVE, (1, "one"))
    bench = guarded.bench
    if not engine.guards_schema and definition in ("rowversion", "int null default 1 with values"):
        pytest.skip("the server that stands for SQL Server has no such columns")
    statement = f'alter table "shop.author" add filled {definition}'
    assert guarded.alter(statement, "filled") is None
    assert guarded.drift
    assert bench.new_events() == []
    assert guarded.alter(ADD, "born") is None
    bench.run('insert into "shop.author" (id, born) values (2, 1900)')
    assert bench.new_events() == [("ddl", None, None), ("add", None, {**row(2, None), "born": 1900})]
    assert guarded.drift


def test_a_column_left_out_or_filled_before_is_not_taken_by_the_way(engine: Engine) -> None:
    """Only what the statement itself has added is known to be without values."""
    guarded = _guarded(engine, OnDdl.PAUSE, (1, "one"))
    bench = guarded.bench
    assert guarded.alter(ADD, "born") is None
    bench.run('update "shop.author" set born = 1900')
    assert guarded.drift
    bench.run("update [changefeed].[captures] set on_ddl = 'evolve'")
    assert guarded.alter('alter table "shop.author" add died int null', "died") is None
    columns = bench.source.capture(bench.name).spec.tables[0].insert
    assert columns == ("id", "name", "died")


DROP = 'alter table "shop.author" drop column name'
CHANGES = {
    "add": (ADD, ("born",)),
    "drop": (DROP, ()),
    "retype": ('alter table "shop.author" alter column name nvarchar(4000)', ()),
    "rename": ("exec sp_rename N'shop.author.name', N'called', N'COLUMN'", ()),
}


@pytest.mark.parametrize("on_ddl", OnDdl)
@pytest.mark.parametrize("what", CHANGES)
def test_what_each_policy_does_with_each_change(engine: Engine, on_ddl: OnDdl, what: str) -> None:
    """Refused, recorded, or waiting for a refresh; the table's writers go on in any case."""
    guarded = _guarded(engine, on_ddl, (1, "one"))
    bench = guarded.bench
    statement, added = CHANGES[what]
    if what == "drop" and not engine.keeps_triggers:
        pytest.skip("the server that stands for SQL Server drops the triggers with the column")
    error = guarded.alter(statement, *added)
    if what == "add" and on_ddl is not OnDdl.REFUSE:
        assert error is None
        assert guarded.drift == (on_ddl is OnDdl.PAUSE)
        expected = [("ddl", None, None)] if on_ddl is OnDdl.EVOLVE else []
    else:
        assert error is not None
        assert "77144" in error
        assert "nothing was changed" in error
        assert ("refresh_capture, @on_ddl" in error) == (on_ddl is OnDdl.REFUSE)
        assert not guarded.drift
        expected = []
    bench.run(f"{INSERT} (2, 'two')")
    events = bench.new_events()
    assert events[:-1] == expected
    assert events[-1][2] is not None
    assert events[-1][2]["name"] == "two"


def test_a_refused_change_is_made_once_it_is_allowed(engine: Engine) -> None:
    """As the error says; afterwards changes are refused again."""
    if not engine.guards_schema:
        pytest.skip("a refresh creates the guard, which this server has not")
    guarded = _guarded(engine, OnDdl.REFUSE)
    bench = guarded.bench
    assert guarded.alter(ADD, "born") is not None
    assert bench.source.refresh_capture(bench.name, on_ddl=OnDdl.PAUSE).spec.on_ddl is OnDdl.PAUSE
    assert guarded.alter(ADD, "born") is None
    assert bench.source.refresh_capture(bench.name, on_ddl=OnDdl.REFUSE).drift == ()
    assert guarded.alter('alter table "shop.author" add died int null', "died") is not None


def _write(engine: Engine, writer: int, columns: Any) -> None:
    """Insert rows with a value in each column that there is, until all columns are there."""
    changer = engine.changer(PATIENCE)
    number = 0
    while (known := columns.value) <= COLUMNS:
        number += 1
        names = ["id", "name", *(f"extra{one}" for one in range(min(known, COLUMNS)))]
        values = [number * WRITERS + writer, f"w{writer}", *range(number, number + len(names) - 2)]
        listed = ", ".join(str(one) if isinstance(one, int) else f"'{one}'" for one in values)
        changer.execute(f'insert into "shop.author" ({", ".join(names)}) values ({listed})')
    changer.close()


def test_no_value_is_lost_while_columns_are_added_and_processes_write(engine: Engine) -> None:
    """Each row of the table is in the events with all of its values; each column begins behind its event."""
    guarded = _guarded(engine, OnDdl.EVOLVE)
    bench = guarded.bench
    context = multiprocessing.get_context("spawn")
    columns = context.Value("i", 0)
    writers = [context.Process(target=_write, args=(engine, number, columns)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    try:
        _wait_for_rows(bench, 10)
        for number in range(COLUMNS):
            name = f"extra{number}"
            statement = f'alter table "shop.author" add {name} int null'
            deadline = time.monotonic() + PATIENCE
            while (error := guarded.alter(statement, name)) is not None:
                # The writer wins.
                assert "deadlock" in error.lower(), error
                assert time.monotonic() < deadline
            columns.value = number + 1
            _wait_for_rows(bench, 10)
        columns.value = COLUMNS + 1
    finally:
        columns.value = COLUMNS + 1
        for writer in writers:
            writer.join(PATIENCE)
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    names = ["id", "name", *(f"extra{number}" for number in range(COLUMNS))]
    rows = [
        dict(zip(names, values, strict=True))
        for values in bench.engine.rows(f'select {", ".join(names)} from "shop.author" order by id')
    ]
    events = bench.events()
    added = [event.new for event in events if event.type == "add"]
    assert sorted(added, key=lambda one: one["id"]) == rows
    assert [event.type for event in events].count("ddl") == COLUMNS
    there = 0
    for event in events:
        there += event.type == "ddl"
        assert event.new is None or all(
            event.new[f"extra{number}"] is None for number in range(there, COLUMNS)
        )
    assert sum(one["extra0"] is not None for one in added) > 0
    assert bench.source.check_capture(bench.name) == []


def _wait_for_rows(bench: CaptureBench, more: int) -> None:
    """Wait until the writers have written more rows."""
    ((begun,),) = bench.engine.rows('select count(*) from "shop.author"')
    deadline = time.monotonic() + PATIENCE
    while bench.engine.rows('select count(*) from "shop.author"')[0][0] < begun + more:
        assert time.monotonic() < deadline
        time.sleep(0.05)
