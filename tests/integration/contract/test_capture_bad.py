# SPDX-License-Identifier: Apache-2.0
"""What cannot be captured is refused with all reasons, and nothing is changed by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_changefeed.core.capture import KeyChange, TableCapture
from airflow_changefeed.core.feed import quote_name
from airflow_changefeed.exceptions import (
    CaptureNotFoundError,
    FeedNotFoundError,
    FeedSetupError,
)
from tests.integration.contract.captures import (
    AUTHOR,
    CAPTURE,
    CaptureBench,
    row,
    set_up_author,
)
from tests.integration.contract.engines import Engine, Table

INSERT = 'insert into "shop.author" (id, name) values'
NAME = AUTHOR.name


@pytest.fixture
def bench(engine: Engine) -> CaptureBench:
    """Give tables of which none is captured."""
    engine.create_table(AUTHOR)
    engine.create_table(Table("shop.keyless", keys=(), columns=(("id", "integer"),)))
    engine.create_table(Table("shop.ours", keys=(("id", "integer"),), columns=(("changefeed_op", "text"),)))
    engine.create_table(Table("shop.feed", keys=(("id", "integer"),), columns=()))
    bench = CaptureBench(engine, engine.source())
    bench.source.set_up_feed("shop.feed")
    with bench.changer() as changer:
        changer.execute('create view "shop.view" as select id, name from "shop.author"')
    return bench


#: What is asked, and what the error says.
REFUSED: dict[str, tuple[tuple[TableCapture, ...], dict[str, Any], str]] = {
    "no such table": ((TableCapture("shop.nothing"),), {}, r"shop\W+nothing"),
    "a view": ((TableCapture("shop.view"),), {}, r"(?i)view"),
    "updates without a key": (
        (TableCapture("shop.keyless"),),
        {"guard_table": False},
        r"(?i)shop\.keyless.*primary key",
    ),
    "a column that is not there": ((TableCapture(NAME, insert=("id", "nickname")),), {}, "nickname"),
    "a column of ours": ((TableCapture("shop.ours"),), {}, "changefeed_op"),
    "a shard of a column that can change": ((TableCapture(NAME, shard="id + name"),), {}, r"(?i)shard|name"),
    "a shard of a column that is not there": ((TableCapture(NAME, shard="nickname"),), {}, "nickname"),
    "a shard by a query": ((TableCapture(NAME, shard="(select 1)"),), {}, r"(?i)shard"),
    "a shard that is no expression": ((TableCapture(NAME, shard="id +"),), {}, r"(?i)shard"),
    "a shard that is more than an expression": ((TableCapture(NAME, shard="id) -- "),), {}, r"(?i)shard"),
    "a shard that is empty": ((TableCapture(NAME, shard=" "),), {}, r"(?i)shard"),
    "a shard of many rows": ((TableCapture(NAME, shard="max(id)"),), {}, r"(?i)shard"),
    "a shard that is too large": ((TableCapture(NAME, shard="5000000000"),), {}, r"(?i)shard|5000000000"),
    "a shard that is too large for its type": (
        (TableCapture(NAME, shard="300"),),
        {"shard_key_type": "tinyint"},
        r"(?i)shard|300",
    ),
    "a shard that is no UUID": (
        (TableCapture(NAME, shard="7"),),
        {"shard_key_type": "uniqueidentifier"},
        r"(?i)shard|uuid|uniqueidentifier",
    ),
    "the name of a table": ((TableCapture(NAME),), {"name": "shop.keyless"}, r"shop\.keyless"),
    "the name of a feed": ((TableCapture(NAME),), {"name": "shop.feed"}, r"shop\.feed"),
    "its own table's name": ((TableCapture(NAME),), {"name": NAME}, r"shop\.author"),
    "one table that can be captured and one that cannot": (
        (TableCapture(NAME), TableCapture("shop.nothing")),
        {"name": "shop.both"},
        r"shop\W+nothing",
    ),
}
#: Shards that give another value each time, which every engine writes in its own way.
CHANGING = {
    "sqlite": ("random()", "unixepoch()"),
    "mssql": ("checksum(newid())", "datepart(second, getdate())"),
}


def _refuse(bench: CaptureBench, tables: tuple[TableCapture, ...], options: dict[str, Any]) -> FeedSetupError:
    """Check that a capture is refused, and that nothing is left of it."""
    with pytest.raises(FeedSetupError) as caught:
        bench.enable(*tables, **options)
    assert not caught.value.transient
    assert bench.source.captures() == []
    assert [info.name for info in bench.source.feeds()] == ["shop.feed"]
    return caught.value


def test_what_cannot_be_captured_is_refused(bench: CaptureBench) -> None:
    """With the reason, and without a trace; the tables' writers go on."""
    said = {}
    for case, (tables, options, _) in REFUSED.items():
        said[case] = _refuse(bench, tables, options).message
    for shard in CHANGING[bench.engine.name]:
        _refuse(bench, (TableCapture(NAME, shard=shard),), {})
    bench.run(f"{INSERT} (1, 'one')", 'insert into "shop.keyless" (id) values (1)')
    for case, (*_, expected) in REFUSED.items():
        with pytest.raises(FeedSetupError, match=expected):
            raise FeedSetupError(f"{said[case]}")


def test_all_reasons_are_named_at_once(bench: CaptureBench) -> None:
    """Of a table; of several where they are asked for together: SQL Server's procedure takes one table."""
    tables = (
        TableCapture(NAME, insert=("nickname",), delete=("surname",)),
        TableCapture("shop.ours"),
    )
    message = _refuse(bench, tables, {"name": "shop.all"}).message
    expected = {"sqlite": ("nickname", "surname", "changefeed_op"), "mssql": ("nickname", "surname")}
    assert [word for word in expected[bench.engine.name] if word not in message] == []


def test_a_table_with_too_many_columns_is_refused(bench: CaptureBench) -> None:
    """Those that are chosen count, not those that there are."""
    columns = tuple((f"c{number}", "integer") for number in range(1_020))
    bench.engine.create_table(Table("shop.broad", keys=(("id", "integer"),), columns=columns))
    assert "columns" in _refuse(bench, (TableCapture("shop.broad"),), {}).message
    few = ("id", "c0", "c1019")
    bench.enable(TableCapture("shop.broad", insert=few, update=few, delete=few))
    assert bench.changes_of('insert into "shop.broad" (id, c1019) values (1, 7)') == [
        ("add", None, {"id": 1, "c0": None, "c1019": 7})
    ]


def test_enabling_again_changes_nothing(engine: Engine) -> None:
    """It may be a step of every deployment."""
    bench = set_up_author(engine)
    bench.run(f"{INSERT} (1, 'one')")
    before = bench.source.capture(bench.name)
    assert bench.enable(NAME) == before
    assert bench.source.enable_capture(before.spec) == before
    assert bench.source.captures() == [before]
    bench.run(f"{INSERT} (2, 'two')")
    assert bench.new_events() == [("add", None, row(1, "one")), ("add", None, row(2, "two"))]
    bench.source.seal(bench.name, bench.source.now())


#: What differs from the spec of a capture.
OTHER: tuple[dict[str, Any], ...] = (
    {"table": TableCapture(NAME, delete=None)},
    {"table": TableCapture(NAME, insert=("id",))},
    {"table": TableCapture(NAME, shard="1")},
    {"key_change": KeyChange.DELETE_INSERT},
    {"keep_unchanged": True},
    {"session_keys": ("x",)},
    {"trace_key": None},
    {"with_sequence": True},
    {"shard_key_type": "bigint"},
)


def test_another_spec_under_the_same_name_is_refused(engine: Engine) -> None:
    """And the capture stays as it was."""
    bench = set_up_author(engine)
    before = bench.source.capture(bench.name)
    for options in OTHER:
        given = {"table": TableCapture(NAME), **options}
        with pytest.raises(FeedSetupError, match=r"shop\.author_changes"):
            bench.enable(given.pop("table"), **given)
        assert bench.source.capture(bench.name) == before, options
    assert bench.changes_of(f"{INSERT} (1, 'one')") == [("add", None, row(1, "one"))]


#: What is asked of a capture that is not there.
ASKED: dict[str, Callable[[Any, str], object]] = {
    "capture": lambda source, name: source.capture(name),
    "disable": lambda source, name: source.disable_capture(name),
    "refresh": lambda source, name: source.refresh_capture(name),
    "check": lambda source, name: source.check_capture(name),
    "resolve": lambda source, name: source.resolve_capture(name, note="seen", by="test"),
    "gaps": lambda source, name: source.capture_gaps(name),
}


def test_a_capture_that_is_not_there_is_named_with_those_that_are(engine: Engine) -> None:
    """A feed that is no capture is none, either."""
    bench = set_up_author(engine)
    engine.create_table(Table("shop.feed", keys=(("id", "integer"),), columns=()))
    bench.source.set_up_feed("shop.feed")
    for asked in ASKED.values():
        for name in ("shop.nothing", "shop.feed"):
            with pytest.raises(CaptureNotFoundError) as caught:
                asked(bench.source, name)
            assert name in caught.value.message
            assert CAPTURE in caught.value.message


def test_a_capture_s_name_in_other_letters_is_said_with_the_name_that_it_has(engine: Engine) -> None:
    """Nobody is told to enable it once more."""
    source, other = set_up_author(engine).source, CAPTURE.replace("author", "Author")
    for ask in (source.capture, source.feed):
        with pytest.raises((CaptureNotFoundError, FeedNotFoundError)) as caught:
            ask(other)
        assert caught.value.message.endswith(f"Did you mean {CAPTURE!r}?")


def test_a_name_that_no_folder_can_have_is_refused(engine: Engine) -> None:
    """When it is enabled, and not when it is exported: each unusual letter takes more places."""
    engine.create_table(AUTHOR)
    bench = CaptureBench(engine, engine.source())
    with pytest.raises(FeedSetupError, match=r"needs a folder of 285 characters in outputs.*allow 255"):
        bench.enable(NAME, name="shop." + "日" * 40)


def test_the_longest_name_that_a_folder_can_have_is_taken(engine: Engine) -> None:
    """It takes 253 characters of 255."""
    if not engine.keeps_names:
        pytest.skip("a server that cuts names to 63 bytes cannot have one that long")
    engine.create_table(AUTHOR)
    bench = CaptureBench(engine, engine.source())
    name = "shop." + "日" * 34 + "é" * 2
    assert len(quote_name(name)) == 253
    bench.enable(NAME, name=name)


def test_a_shard_that_does_not_fit_stops_its_writer(engine: Engine) -> None:
    """Rather than the event being lost; the transaction leaves nothing."""
    bench = set_up_author(engine, table=TableCapture(NAME, shard="id"), shard_key_type="smallint")
    for number in ("40000", "-40000"):
        with bench.changer() as changer:
            changer.begin()
            with pytest.raises(Exception, match=r"(?i)shard|overflow|range|constraint"):
                changer.execute(f"{INSERT} ({number}, 'x')")
            changer.rollback()
    bench.run(f"{INSERT} (7, 'x')")
    assert bench.engine.rows('select id from "shop.author"') == [(7,)]
    assert [event.new for event in bench.events(7)] == [row(7, "x")]


def test_a_shard_without_a_value_stops_its_writer(engine: Engine) -> None:
    """Such an event would belong to nobody."""
    bench = set_up_author(engine, table=TableCapture(NAME, shard="nullif(id, 3)"))
    with bench.changer() as changer:
        changer.begin()
        with pytest.raises(Exception, match=r"(?i)shard|null"):
            changer.execute(f"{INSERT} (3, 'x')")
        changer.rollback()
    bench.run(f"{INSERT} (4, 'x')")
    assert [event.new for event in bench.events(4)] == [row(4, "x")]
