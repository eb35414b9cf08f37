# SPDX-License-Identifier: Apache-2.0
"""A column of a SQLite table is the one that was recorded, whatever its name and its place are now."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_changefeed.core.capture import CaptureInfo, CaptureSpec, Operation, TableCapture
from airflow_changefeed.core.fault import FaultKind, Limits
from airflow_changefeed.exceptions import CaptureGapError, ColumnTypeError, FeedSetupError
from airflow_changefeed.sources.sqlite.capture import record
from airflow_changefeed.sources.sqlite.feed.names import quote
from tests.clocks import after_now, time_with
from tests.unit.sources.sqlite_captures import CaptureFile

NAME = "item_changes"
RENAMED = ("alter table item rename column price to price_old", "alter table item add column price int")
SWAPPED = (
    "alter table item rename column price to x",
    "alter table item rename column cost to price",
    "alter table item rename column x to cost",
)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CaptureFile]:
    """Return a file with a captured table of a row, sealed."""
    file = CaptureFile(
        tmp_path / "feeds.db", "create table item (id integer primary key, price int, cost int)"
    )
    file.enable("item")
    file.sql("insert into item values (1, 10, 5)")
    file.source.seal(NAME, after_now(file.source))
    yield file
    file.connection.close()


def _columns(info: CaptureInfo, table: str = "item") -> Mapping[str, str]:
    return info.shape.tables[table].columns[Operation.INSERT]


def _ddl(file: CaptureFile) -> tuple[list[str], list[str], list[str]]:
    """Return the columns before and after the last change of columns, and those that are not recorded."""
    *_, ddl = (json.loads(event["ddl"]) for event in file.events(NAME) if event["type"] == "ddl")
    before, after = ([column["name"] for column in ddl[side]] for side in ("before", "after"))
    return before, after, ddl["unrecorded"]


def test_a_new_column_with_the_name_of_a_recorded_one_stops_the_seals(file: CaptureFile) -> None:
    """Drift and doctor say that its changes are not recorded; readers have the recorded one's new name."""
    file.sql(*RENAMED, "update item set price = 9", "update item set price_old = 11")
    source, another = file.source, "column 'price' of 'item' is not the recorded column, which is now named"
    info = source.capture(NAME)
    assert [line for line in info.drift if another in line]
    assert _columns(info) == {"id": "id", "price_old": "price", "cost": "cost"}
    assert file.changes(NAME)[-1][2] == {"id": 1, "price": 11, "cost": 5}
    (fault,) = source.inspect(NAME, Limits()).faults
    assert fault.kind is FaultKind.CAPTURE_DRIFT
    assert another in fault.what
    sealed = source.feed(NAME).sealed_until
    with pytest.raises(FeedSetupError, match=rf"{another} 'price_old'.*capture refresh {NAME}"):
        source.seal(NAME, after_now(source))
    assert source.feed(NAME).sealed_until == sealed


@pytest.mark.parametrize("added", ["price int", "price text", "PRICE int", '"price" int default null'])
def test_a_refresh_records_a_new_column_in_a_field_of_its_own(file: CaptureFile, added: str) -> None:
    """And goes on with the recorded one in its field."""
    file.sql(RENAMED[0], f"alter table item add column {added}")
    name = added.split(maxsplit=1)[0].strip('"')
    info = file.source.refresh_capture(NAME)
    assert info.drift == ()
    assert _columns(info) == {"id": "id", "price_old": "price", "cost": "cost", name: f"item.{name}"}
    file.sql("update item set price = 9")
    value = "9" if "text" in added else 9
    assert file.changes(NAME)[-1][2] == {"id": 1, "price": 10, "cost": 5, f"item.{name}": value}
    assert _ddl(file) == (["id", "price", "cost"], ["id", "price_old", "cost", name], [])
    file.source.seal(NAME, after_now(file.source))


@pytest.mark.parametrize(
    ("added", "written"),
    [
        ("gate int", "update item set gate = 9"),
        ("gate int default 3", "select 1"),
        ("gate int not null default 3", "select 1"),
        ("gate int as (cost * 2)", "select 1"),
    ],
)
def test_a_refresh_tells_columns_whose_values_no_event_has(
    file: CaptureFile, added: str, written: str
) -> None:
    """What was written before the refresh, or came with the column; so no fold takes them for null."""
    file.sql(f"alter table item add column {added}", written)
    file.source.refresh_capture(NAME)
    assert _ddl(file)[2] == ["gate"]


def test_a_name_is_given_to_one_column_after_the_other(file: CaptureFile) -> None:
    """Each has a field of its own, as often as that happens."""
    for number in range(1, 4):
        file.sql(
            f"alter table item rename column price to price_{number}", "alter table item add column price int"
        )
        info = file.source.refresh_capture(NAME)
    fields = {"price_1": "price", "price_2": "item.price", "price_3": "item.price.2", "price": "item.price.3"}
    assert _columns(info) == {"id": "id", "cost": "cost", **fields}


def test_the_names_of_columns_that_are_not_captured_are_watched(file: CaptureFile) -> None:
    """A capture of chosen columns goes on with these, by whatever name."""
    file.source.enable_capture(CaptureSpec((TableCapture("item", ("id", "price"), ("id", "price")),), "some"))
    file.sql(*SWAPPED)
    source = file.source
    with pytest.raises(FeedSetupError, match="column 'price' of 'item' is not the recorded column"):
        source.seal("some", after_now(source))
    info = source.refresh_capture("some")
    assert info.drift == ()
    assert _columns(info) == {"id": "id", "cost": "price"}
    file.sql("update item set price = 8")
    assert len(file.changes("some")) == 1
    source.seal("some", after_now(source))


def test_a_renamed_key_is_drift_even_if_it_is_not_recorded(file: CaptureFile) -> None:
    """Readers know it by name."""
    file.enable(TableCapture("item", ("cost",), ("cost",), ("cost",)), name="keyless")
    file.sql("alter table item rename column id to number")
    assert file.source.capture("keyless").drift == ("column 'id' of 'item' is now named 'number'",)
    assert file.source.refresh_capture("keyless").shape.tables["item"].key_columns == ("number",)


def test_a_refresh_does_not_let_rows_change_their_shards(file: CaptureFile) -> None:
    """A shard's text names key columns, and SQLite does not follow renames there."""
    file.sql("create table pair (a int not null, b int not null, c int, primary key (a, b))")
    file.enable(TableCapture("pair", shard="a % 2"), name="pairs")
    file.sql("insert into pair values (1, 2, 3)")
    swapped = [f"alter table pair rename column {was} to {now}" for was, now in ("ax", "ba", "xb")]
    file.sql(*swapped, "update pair set c = 4")
    with pytest.raises(
        FeedSetupError, match=r"shard 'a % 2' may name key column 'a', which is now named 'b'"
    ):
        file.source.refresh_capture("pairs")
    file.sql("update pair set c = 5", *swapped)
    assert file.source.refresh_capture("pairs").drift == ()
    assert len(file.changes("pairs", shards=(1,))) == 3
    file.enable(TableCapture("pair"), name="whole")
    file.sql(*swapped)
    assert file.source.refresh_capture("whole").drift == ()


def test_triggers_are_not_made_again_by_names_of_others(file: CaptureFile) -> None:
    """Resolving a gap needs a refresh first; a pause keeps each column in its field."""
    file.sql(*SWAPPED, f'drop trigger "changefeed.capture:{NAME}:0:delete"')
    source = file.source
    with pytest.raises(CaptureGapError):
        source.seal(NAME, after_now(source))
    with pytest.raises(FeedSetupError, match="columns 'cost', 'price' of table 'item' were renamed; refresh"):
        source.resolve_capture(NAME, note="n", by="b")
    source.disable_capture(NAME)
    assert _ddl(file) == (["id", "price", "cost"], ["id", "cost", "price"], [])
    source.enable_capture(CaptureSpec((TableCapture("item"),)))
    file.sql("update item set price = 6")
    assert _columns(source.capture(NAME)) == {"id": "id", "cost": "price", "price": "cost"}
    assert file.changes(NAME)[-1][2] == {"id": 1, "price": 10, "cost": 6}


def test_rows_are_recorded_by_the_present_names(file: CaptureFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite takes a name that no column has any more for a text."""
    file.sql("insert into item values (2, 20, 6)")
    monkeypatch.setattr(record, "_FIRST_ROWS", 1)
    with monkeypatch.context() as patch:
        patch.setattr(record, "time", time_with(_kill))
        with pytest.raises(KeyboardInterrupt):
            file.source.resolve_capture(NAME, note="n", by="b", resync=True)
    file.sql("alter table item rename column price to amount", "alter table item rename column id to number")
    file.source.resolve_capture(NAME, note="n", by="b", resync=True)
    rows = [new for kind, _, new in file.changes(NAME) if kind == "add"]
    assert rows[-2:] == [{"id": 1, "price": 10, "cost": 5}, {"id": 2, "price": 20, "cost": 6}]


def test_a_table_is_read_when_its_capture_knows_the_names(file: CaptureFile) -> None:
    """A snapshot has the columns of the events, so it waits for a refresh."""
    file.sql(*SWAPPED)
    with pytest.raises(FeedSetupError, match=f"columns 'price', 'cost' were changed.*capture refresh {NAME}"):
        file.source.table_columns(NAME, "item")
    file.source.refresh_capture(NAME)
    assert file.source.table_columns(NAME, "item").fields == {"id": "id", "cost": "price", "price": "cost"}


def test_a_value_that_cannot_be_exported_is_of_the_present_column(file: CaptureFile) -> None:
    """And the statement that corrects it is of the event's column, whatever the column's name is now."""
    file.sql("update item set price = 'x'", *SWAPPED)
    with pytest.raises(ColumnTypeError, match=r"column 'cost' of table 'item'.*set \"new_price\" = "):
        file.events(NAME)


def test_a_trigger_that_records_one_column_for_two_was_altered(file: CaptureFile) -> None:
    """It is no rename."""
    trigger = f"changefeed.capture:{NAME}:0:insert"
    ((text,),) = file.sql(f"select sql from sqlite_master where name = '{trigger}'")
    file.sql(f"drop trigger {quote(trigger)}", text.replace('new."price"', 'new."cost"'))
    (gap,) = file.source.check_capture(NAME)
    assert "was altered" in gap.reason


def _rebuild(file: CaptureFile, columns: list[str]) -> None:
    """Build the table again as SQLite's documentation says, with its columns in another order."""
    triggers = file.sql("select sql from sqlite_master where type = 'trigger' and tbl_name = 'item'")
    given = ", ".join(quote(name) + (" integer primary key" if name == "id" else " int") for name in columns)
    names = ", ".join(map(quote, columns))
    file.sql(
        "begin",
        f"create table new_item ({given})",
        f"insert into new_item ({names}) select {names} from item",
        "drop table item",
        "alter table new_item rename to item",
        *(sql for (sql,) in triggers),
        "commit",
    )


def _kill(_: float) -> None:
    """Die behind the first row."""
    raise KeyboardInterrupt


# ---- whatever happens to the names

POOL = ("a", "b", "c", "order", "select", "new", 'old."a', "q'x", "a b", "ä", "value%")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rename"), st.integers(0, 9), st.sampled_from(POOL)),
        st.tuples(st.just("add"), st.just(0), st.sampled_from(POOL)),
        st.tuples(st.just("rebuild"), st.integers(0, 9), st.just("")),
        st.tuples(st.just("refresh"), st.just(0), st.just("")),
    ),
    min_size=1,
    max_size=12,
)


class Model:
    """The captured table as its users know it: columns in their order, each with an identity and a name."""

    def __init__(self, folder: str) -> None:
        self.file = CaptureFile(
            Path(folder) / "feeds.db", "create table item (id integer primary key, a int, b int)"
        )
        self.file.enable("item")
        self.file.sql("insert into item values (1, 0, 0)")
        self.names = {0: "id", 1: "a", 2: "b"}
        self.recorded = dict(self.names)
        self.fields = {self.names[one]: one for one in self.names}
        self.written = 100

    def step(self, what: str, number: int, name: str) -> None:
        """Do what a user does, if SQLite can."""
        if what in ("rename", "add") and name in self.names.values():
            return
        if what == "rename":
            column = sorted(self.names)[1:][number % (len(self.names) - 1)]
            was = self.names[column]
            self.file.sql(f"alter table item rename column {quote(was)} to {quote(name)}")
            self.names[column] = name
        elif what == "add":
            self.file.sql(f"alter table item add column {quote(name)} int")
            self.names[max(self.names) + 1] = name
        elif what == "rebuild":
            order = list(self.names.values())
            _rebuild(self.file, order[number % len(order) :] + order[: number % len(order)])
        else:
            columns = _columns(self.file.source.refresh_capture(NAME))
            ids = {name: column for column, name in self.names.items()}
            assert columns.keys() == ids.keys()
            for name, place in columns.items():
                # A field stays its column's.
                assert self.fields.setdefault(place, ids[name]) == ids[name]
            self.recorded = dict(self.names)

    def check(self) -> None:
        """Compare what the capture says of the table, and of a change, with what is true."""
        source, others = self.file.source, {name: one for one, name in self.names.items()}
        info = source.capture(NAME)
        assert (info.drift == ()) == (self.recorded == self.names)
        columns = _columns(info)
        assert {self.fields[place] for place in columns.values()} == self.recorded.keys()
        for name, place in columns.items():
            assert others.get(name, self.fields[place]) == self.fields[place]
        self.written += 10
        values = {one: self.written + one for one in self.names if one}
        given = ", ".join(f"{quote(self.names[one])} = {value}" for one, value in values.items())
        self.file.sql(f"update item set {given}")
        new = self.file.changes(NAME)[-1][2]
        assert {self.fields[place]: new[place] for place in columns.values()} == {
            0: 1,
            **{one: value for one, value in values.items() if one in self.recorded},
        }
        unseen = {self.names[one] for one in self.names.keys() - self.recorded.keys()}
        taken = {name for one, name in self.recorded.items() if self.names[one] != name} & unseen
        try:
            source.seal(NAME, after_now(source))
        except FeedSetupError:
            assert taken
        else:
            assert not taken


@settings(max_examples=15)
@given(STEPS)
def test_a_column_is_never_taken_for_another(steps: list[tuple[str, int, str]]) -> None:
    """Whatever names are given, in whatever order: drift, readers and seals know each for what it is."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")) as folder:
        model = Model(folder)
        try:
            for step in steps:
                model.step(*step)
                model.check()
        finally:
            model.file.connection.close()
