# SPDX-License-Identifier: Apache-2.0
"""What is recorded of each kind of statement: the cases of Hasura's event triggers, and their neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_changefeed.core.capture import KeyChange, TableCapture
from tests.integration.contract.captures import (
    AUTHOR,
    CaptureBench,
    Shown,
    Statement,
    row,
    set_up_author,
    unordered,
)
from tests.integration.contract.engines import Engine, Table

INSERT = 'insert into "shop.author" (id, name) values'
UPDATE = 'update "shop.author" set'
DELETE = 'delete from "shop.author"'
ONE, TWO = row(1, "one"), row(2, "two")
NEW_ONLY, DELETE_INSERT = KeyChange.NEW_ONLY, KeyChange.DELETE_INSERT
RULES = pytest.mark.parametrize("rule", list(KeyChange), ids=lambda rule: rule.value)

#: Of a table with rows 1 and 2: what is done, and the events of it, those of one statement in any order.
CASES: dict[str, tuple[Statement, list[Shown]]] = {
    "a row is inserted": (f"{INSERT} (3, 'three')", [("add", None, row(3, "three"))]),
    "rows are inserted": (
        f"{INSERT} (3, 'three'), (4, null)",
        [("add", None, row(3, "three")), ("add", None, row(4, None))],
    ),
    "rows are inserted from rows": (
        'insert into "shop.author" (id, name) select id + 10, name from "shop.author"',
        [("add", None, row(11, "one")), ("add", None, row(12, "two"))],
    ),
    "a row is deleted": (f"{DELETE} where id = 2", [("del", TWO, None)]),
    "rows are deleted": (DELETE, [("del", ONE, None), ("del", TWO, None)]),
    "a row is updated": (f"{UPDATE} name = 'uno' where id = 1", [("upd", ONE, row(1, "uno"))]),
    "rows are updated": (
        f"{UPDATE} name = 'x'",
        [("upd", ONE, row(1, "x")), ("upd", TWO, row(2, "x"))],
    ),
    "one of the rows changes": (f"{UPDATE} name = 'two'", [("upd", ONE, row(1, "two"))]),
    "an update changes nothing": (f"{UPDATE} name = name", []),
    "an update sets its key to itself": (
        f"{UPDATE} id = id, name = 'x' where id = 1",
        [("upd", ONE, row(1, "x"))],
    ),
    "nothing is inserted": (
        'insert into "shop.author" (id, name) select id, name from "shop.author" where id < 0',
        [],
    ),
    "nothing is updated": (f"{UPDATE} name = 'x' where id < 0", []),
    "nothing is deleted": (f"{DELETE} where id < 0", []),
}


@pytest.fixture
def authors(engine: Engine) -> CaptureBench:
    """Capture a table with two rows."""
    return set_up_author(engine, (1, "one"), (2, "two"))


def test_the_documented_cases(authors: CaptureBench) -> None:
    """Insert, update and delete of one row, of several, and of none give what the documentation says."""
    found = {}
    for case, (statement, _) in CASES.items():
        found[case] = unordered(authors.changes_of(statement))
        authors.run(DELETE, f"{INSERT} (1, 'one'), (2, 'two')")
    assert found == {case: unordered(expected) for case, (_, expected) in CASES.items()}


#: Of rows 1 and 2: what is done to the keys, and the events of both rules.
KEY_CASES: dict[str, tuple[Statement, list[Shown], list[Shown]]] = {
    "to a new value": (
        f"{UPDATE} id = 9 where id = 1",
        [("upd", None, row(9, "one"))],
        [("del", ONE, None), ("add", None, row(9, "one"))],
    ),
    "to a new value, with another name": (
        f"{UPDATE} id = 9, name = 'nine' where id = 1",
        [("upd", None, row(9, "nine"))],
        [("del", ONE, None), ("add", None, row(9, "nine"))],
    ),
    "of all rows to new values": (
        f"{UPDATE} id = id + 10",
        [("upd", None, row(11, "one")), ("upd", None, row(12, "two"))],
        [
            ("del", ONE, None),
            ("add", None, row(11, "one")),
            ("del", TWO, None),
            ("add", None, row(12, "two")),
        ],
    ),
    "of one, and another row keeps its own": (
        f"{UPDATE} id = case when id = 1 then 9 else id end, name = 'x'",
        [("upd", None, row(9, "x")), ("upd", TWO, row(2, "x"))],
        [("del", ONE, None), ("add", None, row(9, "x")), ("upd", TWO, row(2, "x"))],
    ),
}


@RULES
def test_the_documented_cases_of_keys(engine: Engine, rule: KeyChange) -> None:
    """A key that changes to a new value has no old row, or is deleted and inserted."""
    bench = set_up_author(engine, (1, "one"), (2, "two"), key_change=rule)
    found = {}
    for case, (statement, *_) in KEY_CASES.items():
        found[case] = unordered(bench.changes_of(statement))
        bench.run(DELETE, f"{INSERT} (1, 'one'), (2, 'two')")
    place = list(KeyChange).index(rule)
    assert found == {case: unordered(expected[place]) for case, (_, *expected) in KEY_CASES.items()}


@RULES
def test_a_key_that_moves_to_one_of_the_changed_rows(engine: Engine, rule: KeyChange) -> None:
    """That key has old and new; a source that sees one row after the other says what each row became."""
    # Servers that look at each row's key by itself move the row that was written first first.
    bench = set_up_author(engine, (2, "two"), (1, "one"), key_change=rule)
    if bench.source.capabilities.set_triggers:
        found = bench.changes_of(f"{UPDATE} id = id + 1")
        taken, gone, come = ("upd", TWO, row(2, "one")), ("del", ONE, None), ("add", None, row(3, "two"))
        expected: dict[KeyChange, list[Shown]] = {
            NEW_ONLY: [taken, ("upd", None, row(3, "two"))],
            DELETE_INSERT: [gone, taken, come],
        }
    else:
        found = bench.changes_of(f"{UPDATE} id = 3 where id = 2", f"{UPDATE} id = 2 where id = 1")
        expected = {
            NEW_ONLY: [("upd", None, row(3, "two")), ("upd", None, row(2, "one"))],
            DELETE_INSERT: [
                ("del", TWO, None),
                ("add", None, row(3, "two")),
                ("del", ONE, None),
                ("add", None, row(2, "one")),
            ],
        }
    assert unordered(found) == unordered(expected[rule])


def test_a_deleted_key_comes_before_it_is_added_elsewhere(engine: Engine) -> None:
    """Whoever folds one row's change sees the row gone, then come."""
    bench = set_up_author(engine, (1, "one"), key_change=DELETE_INSERT)
    assert [kind for kind, *_ in bench.changes_of(f"{UPDATE} id = 9")] == ["del", "add"]


@RULES
def test_a_key_that_differs_only_for_bytes_is_the_same_key(engine: Engine, rule: KeyChange) -> None:
    """As the database sees it; the event has both spellings."""
    engine.create_table(Table("shop.tag", keys=(("tag", "nocase"),), columns=()))
    bench = CaptureBench(engine, engine.source())
    bench.run("insert into \"shop.tag\" (tag) values ('ab')")
    bench.enable("shop.tag", key_change=rule)
    assert bench.changes_of("update \"shop.tag\" set tag = 'AB'") == [("upd", {"tag": "ab"}, {"tag": "AB"})]
    assert bench.changes_of("update \"shop.tag\" set tag = 'AB'") == []


WIDE = Table(
    "shop.wide",
    keys=(("id", "integer"),),
    columns=(("word", "nocase"), ("padded", "padded"), ("raw", "bytes"), ("ratio", "double")),
)
#: Column, and values that a database may take for equal, or for unknown.
DIFFERENT: dict[str, tuple[str, Any, Any]] = {
    "another case": ("word", "a", "A"),
    "a trailing space": ("padded", "a", "a "),
    "null to empty text": ("word", None, ""),
    "text to null": ("word", "a", None),
    "a trailing zero byte": ("raw", b"\x61", b"\x61\x00"),
    "null to empty bytes": ("raw", None, b""),
    "bytes to null": ("raw", b"", None),
    "null to zero": ("ratio", None, 0.0),
    "zero to null": ("ratio", 0.0, None),
}


def _literal(engine: Engine, value: Any) -> str:
    """Write a value down, as drivers cannot tell the type of a null."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}" if engine.name == "mssql" else f"x'{value.hex()}'"
    return "null" if value is None else repr(value)


def test_unchanged_is_decided_by_bytes_and_length(engine: Engine) -> None:
    """What a collation, padding or null hides from a comparison is a change all the same."""
    engine.create_table(WIDE)
    bench = CaptureBench(engine, engine.source())
    bench.run('insert into "shop.wide" (id) values (1)')
    bench.enable(WIDE.name)
    found, again = {}, {}
    for case, (column, before, after) in DIFFERENT.items():
        bench.run(f'update "shop.wide" set {column} = {_literal(engine, before)}')
        change = f'update "shop.wide" set {column} = {_literal(engine, after)}'
        found[case] = [
            (kind, (old or {})[column], (new or {})[column]) for kind, old, new in bench.changes_of(change)
        ]
        again[case] = bench.changes_of(change)
    assert found == {case: [("upd", before, after)] for case, (_, before, after) in DIFFERENT.items()}
    assert again == {case: [] for case in DIFFERENT}


def test_unchanged_updates_are_kept_on_demand(engine: Engine) -> None:
    """With old and new, which are the same."""
    bench = set_up_author(engine, (1, "one"), keep_unchanged=True)
    assert bench.changes_of(f"{UPDATE} name = name") == [("upd", ONE, ONE)]
    assert bench.changes_of(f"{UPDATE} name = 'x' where id < 0") == []


def test_an_update_of_other_columns_is_left_out(engine: Engine) -> None:
    """Only the chosen columns count, of which the key need not be one."""
    engine.create_table(WIDE)
    bench = CaptureBench(engine, engine.source())
    bench.run("insert into \"shop.wide\" (id, word, ratio) values (1, 'a', 1)")
    bench.enable(TableCapture(WIDE.name, insert=None, update=("ratio",), delete=None))
    assert bench.changes_of("update \"shop.wide\" set word = 'b'") == []
    assert bench.changes_of("update \"shop.wide\" set word = 'c', ratio = 2") == [
        ("upd", {"ratio": 1.0}, {"ratio": 2.0})
    ]


def test_only_the_chosen_operations_are_recorded(engine: Engine) -> None:
    """The others leave nothing."""
    bench = set_up_author(engine, (1, "one"), table=TableCapture(AUTHOR.name, insert=None, update=None))
    assert bench.changes_of(f"{INSERT} (3, 'three')", f"{UPDATE} name = 'x'", f"{DELETE} where id = 3") == [
        ("del", row(3, "x"), None)
    ]


def test_a_table_without_a_key_gives_inserts_and_deletes(engine: Engine) -> None:
    """Two equal rows are two events."""
    engine.create_table(replace(AUTHOR, keys=(), columns=(("id", "integer"), ("name", "text"))))
    bench = CaptureBench(engine, engine.source())
    bench.enable(TableCapture(AUTHOR.name, update=None), guard_table=False)
    assert bench.changes_of(f"{INSERT} (1, 'one'), (1, 'one')") == [("add", None, ONE)] * 2
    assert bench.changes_of(f"{UPDATE} name = 'uno'") == []
    assert bench.changes_of(DELETE) == [("del", row(1, "uno"), None)] * 2


def test_a_key_of_several_columns_is_compared_whole(engine: Engine) -> None:
    """In the key's order, whatever the columns' order; one part that changes makes another key."""
    keys = (("b", "text"), ("a", "integer"))
    engine.create_table(Table("shop.pair", keys=keys, columns=(("name", "text"),)))
    bench = CaptureBench(engine, engine.source())
    bench.run("insert into \"shop.pair\" (a, b, name) values (1, 'x', 'n'), (1, 'y', 'n')")
    bench.enable("shop.pair")
    assert bench.changes_of("update \"shop.pair\" set name = 'm' where b = 'x'") == [
        ("upd", {"b": "x", "a": 1, "name": "n"}, {"b": "x", "a": 1, "name": "m"})
    ]
    assert bench.changes_of("update \"shop.pair\" set a = 2 where b = 'x'") == [
        ("upd", None, {"b": "x", "a": 2, "name": "m"})
    ]


def test_rows_that_go_with_their_parents_are_recorded(engine: Engine) -> None:
    """A cascade is a delete like any other."""
    engine.create_table(AUTHOR)
    with CaptureBench(engine, None).changer() as changer:
        changer.execute(
            'create table "shop.book" (isbn bigint not null primary key, '
            'author bigint references "shop.author" (id) on delete cascade)'
        )
    bench = CaptureBench(engine, engine.source())
    bench.enable(AUTHOR.name, "shop.book", name="shop.library")
    bench.run(f"{INSERT} (1, 'one')", 'insert into "shop.book" (isbn, author) values (7, 1), (8, 1)')
    bench.new_events()
    bench.run(DELETE)
    events = bench.events()[3:]
    others = {"id": None, "name": None}
    assert unordered(
        [(event.type, event.old, event.new) for event in events if event.table == "shop.book"]
    ) == [
        ("del", {**others, "isbn": 7, "author": 1}, None),
        ("del", {**others, "isbn": 8, "author": 1}, None),
    ]
    assert [event.type for event in events] == ["del"] * 3
    assert len({event.tid for event in events}) == 1


def test_a_statement_that_fails_leaves_nothing(authors: CaptureBench) -> None:
    """And the transaction that goes on has what it did besides, where the database lets it go on."""
    with authors.changer() as changer:
        changer.begin()
        with pytest.raises(Exception, match=r"(?i)unique|duplicate|primary"):
            changer.execute(f"{INSERT} (3, 'three'), (1, 'again')")
        changer.rollback()
    assert authors.new_events() == []
