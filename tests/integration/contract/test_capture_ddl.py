# SPDX-License-Identifier: Apache-2.0
"""Changed columns of captured tables, as events in the order of the changes around them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_changefeed.capture.shapes import shaped_batch
from airflow_changefeed.consumers.consumer import Consumer
from airflow_changefeed.consumers.run import run_consumer
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.capture import TableCapture
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.export_plan import Shape
from airflow_changefeed.core.ulid import Ulid, UlidRange
from tests.integration.contract.captures import AUTHOR, CAPTURE, CaptureBench, row, set_up_author
from tests.integration.contract.engines import Engine, Table
from tests.integration.contract.oracles import Change

ADD = 'alter table "shop.author" add born integer'
INSERT = 'insert into "shop.author" (id, name) values'
BY_ID = TableCapture(AUTHOR.name, shard="id % 2")


def _columns(facts: dict[str, Any], which: str) -> list[str]:
    return [column["name"] for column in facts[which]]


def _ddl(bench: CaptureBench, shard: int = 0) -> list[dict[str, Any]]:
    """Return the facts of the changes of columns in a shard, each event checked for what all have."""
    bench.source.drain(bench.name)
    found = []
    for batch in bench.source.stream(bench.name, shard, UlidRange(Ulid.MIN, Ulid.MAX)):
        for event in batch.to_pylist():
            assert (event["ddl"] is not None) == (event["type"] == "ddl")
            if event["type"] == "ddl":
                assert (event["old"], event["new"], event["is_snapshot"]) == (None, None, False)
                assert event["captured_at"] is not None
                found.append(json.loads(event["ddl"]))
                assert list(found[-1]) == ["statement", "before", "after", "by", "unrecorded"]
    return found


def _types(events: list[Change]) -> list[str]:
    return [event.type for event in events]


def test_changed_columns_come_between_the_changes_before_and_after(engine: Engine) -> None:
    """In each shard that has events, numbered like any other, with the columns before and after."""
    bench = set_up_author(engine, table=BY_ID, with_sequence=True)
    bench.run(f"{INSERT} (1, 'one')", f"{INSERT} (2, 'two')")
    with bench.changer() as changer:
        changer.execute(ADD)
    bench.run(f"{INSERT} (3, 'three')")
    bench.source.refresh_capture(bench.name)
    bench.run(
        "insert into \"shop.author\" (id, name, born) values (4, 'four', 1900)", f"{INSERT} (5, 'five')"
    )
    assert [_types(bench.events(shard)) for shard in (0, 1)] == [
        ["add", "ddl", "add"],
        ["add", "add", "ddl", "add"],
    ]
    assert [event.sequence for event in bench.fed(1)] == [1, 2, 3, 4]
    for shard in (0, 1):
        (facts,) = _ddl(bench, shard)
        assert (_columns(facts, "before"), _columns(facts, "after")) == (
            ["id", "name"],
            ["id", "name", "born"],
        )
        assert all(column["type"] for column in facts["after"])
        assert facts["statement"] is None
        assert bool(facts["by"]) == (engine.name == "mssql")
    neighbours = bench.fed(1)
    assert neighbours[2].tid not in (neighbours[1].tid, neighbours[3].tid)


def test_shards_of_committed_changes_that_wait_have_it_too(engine: Engine) -> None:
    """Nothing has ordered them yet; a shard that begins later begins with the new columns."""
    bench = set_up_author(engine, table=BY_ID)
    bench.run(f"{INSERT} (1, 'one')")
    with bench.changer() as changer:
        changer.execute(ADD)
    bench.source.refresh_capture(bench.name)
    bench.run(f"{INSERT} (2, 'two')")
    assert [_types(bench.events(shard)) for shard in (0, 1)] == [["add"], ["add", "ddl"]]


def test_nothing_is_recorded_where_nothing_changed(engine: Engine) -> None:
    """Refreshing, and a change of a column that is not captured."""
    bench = set_up_author(engine, (1, "one"), table=TableCapture(AUTHOR.name, ("id",), ("id",), ("id",)))
    bench.source.refresh_capture(bench.name)
    with bench.changer() as changer:
        changer.execute(ADD)
    bench.source.refresh_capture(bench.name)
    assert bench.events() == []


def test_a_column_that_is_left_out_is_recorded(engine: Engine) -> None:
    """So is the one that comes back."""
    bench = set_up_author(engine)
    bench.source.refresh_capture(bench.name, without=["name"])
    bench.run("insert into \"shop.author\" (id, name) values (1, 'unseen')")
    bench.source.refresh_capture(bench.name)
    assert _types(bench.events()) == ["ddl", "add", "ddl"]
    without, again = _ddl(bench)
    assert (_columns(without, "before"), _columns(without, "after")) == (["id", "name"], ["id"])
    assert (again["before"], again["after"]) == (without["after"], without["before"])


TEXT = {"mssql": "nvarchar(max)", "sqlite": "text"}
UNRECORDED = {
    "with a default": ("add born integer default 1900", ["born"]),
    "not null": ("add born integer default 1900 not null", ["born"]),
    "computed": ("add born <computed> as (id + 1900)", ["born"]),
    "plain": ("add born integer", []),
}


@pytest.mark.parametrize(("change", "fields"), UNRECORDED.values(), ids=UNRECORDED)
def test_columns_that_are_added_with_values_are_named(engine: Engine, change: str, fields: list[str]) -> None:
    """No event has those values; an empty table has no such rows."""
    change = change.replace("<computed>", "" if engine.name == "mssql" else "integer")
    bench = set_up_author(engine)
    with bench.changer() as changer:
        changer.execute(f'alter table "shop.author" {change}')
    bench.source.refresh_capture(bench.name)
    bench.run(f"{INSERT} (1, 'one')")
    with bench.changer() as changer:
        changer.execute(f'alter table "shop.author" {change}'.replace("born", "died"))
    bench.source.refresh_capture(bench.name)
    empty, full = _ddl(bench)
    assert empty["unrecorded"] == []
    assert full["unrecorded"] == ["died" for _ in fields]
    shape = bench.source.capture(bench.name).shape
    assert (shape.tables["shop.author"].unrecorded_at is not None) == bool(fields)


def test_columns_that_were_recorded_before_are_named_once(engine: Engine) -> None:
    """One that was left out meanwhile, or dropped and added: older events have other values of it."""
    bench = set_up_author(engine, (1, "one"), guard_table=False)
    bench.source.refresh_capture(bench.name, without=["name"])
    bench.source.refresh_capture(bench.name)
    bench.source.refresh_capture(bench.name, without=["name"])
    with bench.changer() as changer:
        changer.execute('alter table "shop.author" drop column name')
        changer.execute(f"{ADD}")
    bench.source.refresh_capture(bench.name)
    with bench.changer() as changer:
        changer.execute(f'alter table "shop.author" add name {TEXT[engine.name]}')
    bench.source.refresh_capture(bench.name)
    bench.source.refresh_capture(bench.name)
    bench.run(f"{INSERT} (2, 'two')")
    # The first events of the only shard.
    assert [facts["unrecorded"] for facts in _ddl(bench)] == [[], ["name"], [], [], ["name"]]


def test_columns_of_another_table_were_not_recorded_before(engine: Engine) -> None:
    """Two tables of a capture share the field of a column that both have."""
    engine.create_table(AUTHOR)
    engine.create_table(
        Table("shop.book", keys=(("id", "integer"),), columns=(("title", "text"), ("born", "integer")))
    )
    bench = CaptureBench(engine, engine.source())
    bench.enable("shop.author", "shop.book", name=CAPTURE)
    bench.run(f"{INSERT} (1, 'one')")
    with bench.changer() as changer:
        changer.execute(ADD)
    bench.source.refresh_capture(bench.name)
    (facts,) = _ddl(bench)
    assert (_columns(facts, "after")[-1], facts["unrecorded"]) == ("born", [])


def test_it_is_an_event_of_its_table(engine: Engine) -> None:
    """A capture of two tables; each has its own columns."""
    engine.create_table(AUTHOR)
    engine.create_table(Table("shop.book", keys=(("id", "integer"),), columns=(("title", "text"),)))
    bench = CaptureBench(engine, engine.source())
    bench.enable("shop.author", "shop.book", name=CAPTURE)
    with bench.changer() as changer:
        changer.execute('alter table "shop.book" add pages integer')
    bench.source.refresh_capture(bench.name)
    assert [(event.table, event.type) for event in bench.events()] == [("shop.book", "ddl")]
    (facts,) = _ddl(bench)
    assert (_columns(facts, "before"), _columns(facts, "after")) == (
        ["id", "title"],
        ["id", "title", "pages"],
    )


def test_names_and_types_are_valid_json(engine: Engine) -> None:
    """Whatever they are called."""
    engine.create_table(AUTHOR)
    bench = CaptureBench(engine, engine.source())
    bench.enable(AUTHOR.name)
    with bench.changer() as changer:
        changer.execute('alter table "shop.author" add "it\'s a \\ column" integer')
    bench.source.refresh_capture(bench.name)
    (facts,) = _ddl(bench)
    assert _columns(facts, "after") == ["id", "name", "it's a \\ column"]


def test_a_capture_is_checked_and_sealed_as_before(engine: Engine) -> None:
    """An event without a row changes no number of rows."""
    bench = set_up_author(engine, (1, "one"), snapshot=True)
    with bench.changer() as changer:
        changer.execute(ADD)
    bench.source.refresh_capture(bench.name)
    bench.run(f"{INSERT} (2, 'two')")
    assert bench.source.check_capture(bench.name) == []
    bench.source.resolve_capture(bench.name, note="again", by="user-1", resync=True)
    recorded, again = ["reset", "add", "ready"], ["reset", "add", "add", "ready"]
    assert _types(bench.events()) == [*recorded, "ddl", "add", *again]


def _changed(engine: Engine) -> CaptureBench:
    """Return a capture with a change of columns between two changes, and one at the end."""
    bench = set_up_author(engine)
    bench.run(f"{INSERT} (1, 'one')")
    with bench.changer() as changer:
        changer.execute(ADD)
    bench.source.refresh_capture(bench.name)
    bench.run(f"{INSERT} (2, 'two')")
    bench.source.refresh_capture(bench.name, without=["born"])
    bench.source.drain(bench.name)
    return bench


def test_consumers_take_changes_of_columns_if_they_ask_for_them(engine: Engine) -> None:
    """The cursor of one that does not passes them, also where nothing follows."""
    bench = _changed(engine)
    ends = []
    for name, ddl in (("with", True), ("without", False)):
        create_consumer(bench.source, ConsumerSpec(name, bench.name, ddl=ddl), by="user-1")
        assert bench.source.consumer(name, bench.name).spec.ddl is ddl
        got: list[tuple[str, Any]] = []
        run = run_consumer(
            bench.source,
            name,
            bench.name,
            lambda event, _, got=got: got.append((event.type, event.ddl)),
            at_head=True,
        )
        assert run.events == len(got)
        assert [type_ for type_, _ in got] == (["add", "ddl", "add", "ddl"] if ddl else ["add", "add"])
        for type_, facts in got:
            assert (facts is not None) == (type_ == "ddl")
        if ddl:
            assert _columns(got[1][1], "after") == ["id", "name", "born"]
        (cursor,) = bench.source.cursors(bench.name, name)
        ends.append(cursor.ulid)
    assert ends[0] == ends[1] == Ulid.parse_text(bench.fed()[-1].ulid)


def test_a_consumer_that_waits_passes_them_too(engine: Engine) -> None:
    """One by one, and goes on with what follows."""
    bench = set_up_author(engine)
    create_consumer(bench.source, ConsumerSpec("waits", bench.name), by="user-1")
    with Consumer(bench.source, "waits", bench.name, poll_interval=0.05) as consumer:
        bench.source.refresh_capture(bench.name, without=["name"])
        assert consumer.poll(0.2) is None
        (cursor,) = bench.source.cursors(bench.name, "waits")
        assert cursor.ulid == Ulid.parse_text(bench.events()[-1].ulid)
        bench.source.refresh_capture(bench.name)
        bench.run(f"{INSERT} (1, 'one')")
        event = consumer.get()
        assert (event.type, event.new) == ("add", row(1, "one"))
        consumer.consume()


@pytest.mark.parametrize("shape", Shape)
def test_every_shape_has_a_row_for_each_event(engine: Engine, shape: Shape) -> None:
    """As a manifest counts them; each shape carries what changed in its own way."""
    bench = _changed(engine)
    (batch,) = bench.source.stream(bench.name, 0, UlidRange(Ulid.MIN, Ulid.MAX))
    rows = shaped_batch(batch, shape, feed=bench.name).to_pylist()
    assert len(rows) == 4
    column = {Shape.HASURA: "payload", Shape.DEBEZIUM: "value"}.get(shape)
    if column is None:
        found = [(one["type"], one["ddl"] and json.loads(one["ddl"])) for one in rows]
    else:
        texts = [json.loads(one[column]) for one in rows]
        texts = [one["event"] if shape is Shape.HASURA else one for one in texts]
        found = [(one["op"].lower(), one.get("ddl")) for one in texts]
    assert [type_ for type_, _ in found if type_ == "ddl"] == ["ddl", "ddl"]
    assert [facts is not None for _, facts in found] == [False, True, False, True]
    assert [facts for _, facts in found if facts] == _ddl(bench)
    if shape is Shape.DEBEZIUM:
        assert rows[1]["key"] is None
