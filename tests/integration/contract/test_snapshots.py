# SPDX-License-Identifier: Apache-2.0
"""What a source gives a snapshot: ranges of a table in the database's own order, marks, held-back purges."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from airflow_changefeed.core.capture import Operation, TableCapture
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    CaptureNotFoundError,
    FeedSetupError,
    InvalidArgumentError,
    SnapshotError,
)
from airflow_changefeed.sources.base_capture import KeyRange, key_ranges
from tests.clocks import after_now
from tests.integration.contract.bench import KEPT, ODD
from tests.integration.contract.captures import AUTHOR, CAPTURE, CaptureBench, set_up_author
from tests.integration.contract.engines import Engine, Table

DAY = 86_400.0
#: Tables with keys whose order is the database's own.
KEYS = {
    "number": (("id", "integer"),),
    "text": (("id", "text"),),
    "no case": (("id", "nocase"),),
    "padded": (("id", "padded"),),
    "compound": (("a", "integer"), ("b", "nocase"), ("c", "integer")),
}


def _value(kind: str, number: int) -> Any:
    if kind == "integer":
        return number - 20
    # Equal but for case would be one key.
    text = f"{'kK'[number % 2]}{number % 7}é{number}" if number else ""
    return text + " x" * (number % 3)


def _key(keys: tuple[tuple[str, str], ...], number: int) -> tuple[Any, ...]:
    places = [number] if len(keys) == 1 else [number % 3, number // 3 % 4, number]
    return tuple(_value(kind, place) for (_, kind), place in zip(keys, places, strict=True))


def _filled(engine: Engine, keys: tuple[tuple[str, str], ...], rows: int) -> CaptureBench:
    """Capture a table that has rows."""
    table = Table("shop.stock", keys=keys, columns=(("name", "text"), ("size", "double")))
    engine.create_table(table)
    bench = CaptureBench(engine, engine.source())
    names = ", ".join(name for name, _ in keys)
    marks = ", ".join("?" * (len(keys) + 2))
    statements = [
        (
            f'insert into "shop.stock" ({names}, name, size) values ({marks})',
            *_key(keys, number),
            None if number % 5 == 0 else f"Größe {number}",
            number / 7,
        )
        for number in range(rows)
    ]
    bench.run(*statements)
    bench.enable("shop.stock")
    return bench


def _read(
    bench: CaptureBench, range_: KeyRange, table: str = "shop.stock", where: str = ""
) -> list[dict[str, Any]]:
    batches = bench.source.stream_table(bench.name, table, range_, where=where, batch_rows=7)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("rows", [1, 10, 1_000])
def test_ranges_are_the_table_each_row_once(
    engine: Engine, keys: tuple[tuple[str, str], ...], rows: int
) -> None:
    """In any order of the database: none is in two ranges, none in no range, and none has too many."""
    bench = _filled(engine, keys, 60)
    bounds = bench.source.cut_table(bench.name, "shop.stock", rows)
    assert len(bounds) == 60 // rows
    parts = [_read(bench, range_) for range_ in key_ranges(bounds)]
    assert all(len(part) == rows for part in parts[:-1])
    found = [tuple(row[name] for name, _ in keys) for part in parts for row in part]
    assert sorted(found) == sorted(_key(keys, number) for number in range(60))


def test_rows_that_come_at_the_ends_are_in_the_first_and_last_range(engine: Engine) -> None:
    """The first range is open below, the last one above, whatever the table was when it was cut."""
    bench = _filled(engine, KEYS["number"], 20)
    bounds = bench.source.cut_table(bench.name, "shop.stock", 5)
    bench.run(
        "insert into \"shop.stock\" (id, name) values (-500, 'first'), (500, 'last')",
        'delete from "shop.stock" where id in (-16, -1)',
    )
    first, *_, last = (_read(bench, range_) for range_ in key_ranges(bounds))
    assert [row["id"] for row in first if row["name"] == "first"] == [-500]
    assert [row["name"] for row in last] == ["last"]


def test_a_table_without_rows_is_one_range(engine: Engine) -> None:
    """And it is read as such."""
    bench = _filled(engine, KEYS["number"], 0)
    assert bench.source.cut_table(bench.name, "shop.stock", 5) == []
    assert _read(bench, KeyRange()) == []


def test_a_part_is_cut_and_read_alone(engine: Engine) -> None:
    """Only rows for which the conditions on the key are true, in the ranges of those rows."""
    bench = _filled(engine, KEYS["compound"], 60)
    where = "c >= -10 and c < 25 and a = -19"
    expected = [key for key in (_key(KEYS["compound"], number) for number in range(60)) if key[0] == -19]
    expected = [key for key in expected if -10 <= key[2] < 25]
    bounds = bench.source.cut_table(bench.name, "shop.stock", 3, where=where)
    assert len(bounds) == len(expected) // 3 > 2
    parts = [_read(bench, range_, where=where) for range_ in key_ranges(bounds)]
    assert all(len(part) == 3 for part in parts[:-1])
    found = [(row["a"], row["b"], row["c"]) for part in parts for row in part]
    assert sorted(found) == sorted(expected)
    assert _read(bench, KeyRange(), where="c > 1000") == []


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("b = 1", "column 'b' of type string cannot be used: .* only whole numbers, decimals and dates"),
        ("size > 1", "'size' is not a key column; the key columns are 'a', 'b', 'c'"),
        ("a = 1.5 and c = '2024-01-01'", "1.5 is not a value of column 'a' .*; '2024-01-01' is not a value"),
        ("a > 99999999999999999999", "99999999999999999999 is not a value of column 'a'"),
        ("a > 1 or a < 0", "cannot be read; expected comparisons"),
    ],
)
def test_conditions_that_do_not_suit_the_key_are_refused(engine: Engine, where: str, why: str) -> None:
    """They would mean something else to Spark, or nothing."""
    bench = _filled(engine, KEYS["compound"], 0)
    with pytest.raises(InvalidArgumentError, match=why):
        bench.source.cut_table(bench.name, "shop.stock", 3, where=where)
    with pytest.raises(InvalidArgumentError, match=why):
        _read(bench, KeyRange(), where=where)


def test_rows_are_read_as_events_record_them(engine: Engine) -> None:
    """Columns, types and values are those of the new row of an event; behind them the row's shard."""
    bench = _filled(engine, KEYS["compound"], 0)
    bench.name = bench.enable(
        TableCapture("shop.stock", shard="a % 2"), name="shop.by_two", key_change="delete_insert"
    ).name
    insert = 'insert into "shop.stock" (a, b, c, name, size) values (?, ?, ?, ?, ?)'
    keys = [_key(KEYS["compound"], number) for number in range(30)]
    bench.run(*((insert, *key, None, key[2] / 3) for key in keys))
    columns = bench.source.table_columns(bench.name, "shop.stock")
    *own, shard = columns.schema
    image = bench.source.schema(bench.name).field("new").type
    by_field = {field.name: field.type for field in image}
    assert {name: by_field[place] for name, place in columns.fields.items()} == {
        field.name: field.type for field in own
    }
    assert shard.name == "changefeed_shard"
    assert columns.shape.tables["shop.stock"].columns[Operation.INSERT].keys() <= columns.fields.keys()
    bench.source.drain(bench.name)
    events = [
        {**event.new, "changefeed_shard": one.shard}
        for one in bench.source.shards(bench.name)
        for event in bench.fed(one.shard)
    ]
    assert len(events) == 30
    assert sorted(_read(bench, KeyRange()), key=repr) == sorted(events, key=repr)


def test_what_cannot_be_read_is_refused_by_name(engine: Engine) -> None:
    """A table of another capture, and a disabled capture."""
    bench = set_up_author(engine, (1, "Anna"))
    with pytest.raises(FeedSetupError, match=r"does not have table 'shop\.stock'; .* shop\.author"):
        bench.source.table_columns(CAPTURE, "shop.stock")
    bench.source.disable_capture(CAPTURE)
    with pytest.raises(FeedSetupError, match="the capture is disabled"):
        _read(bench, KeyRange(), AUTHOR.name)


def _begin(
    bench: CaptureBench, token: str, seconds: float = DAY, path: str = "/lake", feed: str = CAPTURE
) -> Any:
    begin = after_now(bench.source)
    bench.source.seal(feed, begin)
    return bench.source.begin_snapshot(
        feed, AUTHOR.name, token=token, path=path, begin=begin, by=ODD, seconds=seconds
    )


def _replace(bench: CaptureBench, old: str, new: str) -> None:
    bench.source.end_snapshot(CAPTURE, AUTHOR.name, token=old)
    _begin(bench, new)


def test_the_first_of_two_snapshots_counts(engine: Engine) -> None:
    """The second one gets the first; once that has ended, another one can begin."""
    bench = set_up_author(engine, (1, "Anna"))
    assert bench.source.snapshots() == []
    first = _begin(bench, "01A", path="/lake/é")
    assert (first.feed, first.table, first.token, first.path, first.by) == (
        CAPTURE,
        AUTHOR.name,
        "01A",
        "/lake/é",
        KEPT,
    )
    assert first.expires_at - bench.source.now() > timedelta(hours=23)
    assert _begin(bench, "01B") == first
    assert bench.source.snapshots(CAPTURE) == bench.source.snapshots() == [first]
    again = bench.enable(AUTHOR.name, name="shop.again").name
    assert bench.source.snapshots(again) == []
    second = _begin(bench, "01C", feed=again)
    assert {one.token: one for one in bench.source.snapshots()} == {"01A": first, "01C": second}
    assert bench.source.end_snapshot(again, AUTHOR.name, token="01C")
    assert not bench.source.end_snapshot(CAPTURE, AUTHOR.name, token="01B")
    assert bench.source.end_snapshot(CAPTURE, AUTHOR.name, token="01A")
    assert _begin(bench, "01B").token == "01B"


def test_one_of_many_that_begin_at_once_counts(engine: Engine) -> None:
    """They race, and all get the same one."""
    bench = set_up_author(engine, (1, "Anna"))
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda token=f"01{number}": found.append(_begin(bench, token).token))
        for number in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1


def test_marks_say_which_ranges_were_read(engine: Engine) -> None:
    """Not one of a read that failed; none of another snapshot; and none once the snapshot has ended."""
    bench = set_up_author(engine, (1, "Anna"))
    source, mine = bench.source, (CAPTURE, AUTHOR.name)
    _begin(bench, "01A", seconds=1.0)
    for mark in ("0.a", "0.A", "1.b"):
        with source.marking(*mine, token="01A", mark=mark, seconds=DAY):
            pass
    with pytest.raises(ZeroDivisionError), source.marking(*mine, token="01A", mark="2.c", seconds=DAY):
        raise ZeroDivisionError
    assert source.snapshot_marks(*mine, token="01A") == {"0.a", "0.A", "1.b"}
    assert source.snapshot_marks(*mine, token="01B") == set()
    (claim,) = source.snapshots()
    assert claim.expires_at - source.now() > timedelta(hours=23)
    with (
        pytest.raises(SnapshotError, match="was given up"),
        source.marking(*mine, token="01A", mark="3.d", seconds=DAY),
    ):
        _replace(bench, "01A", "01B")
    assert [source.snapshot_marks(*mine, token=token) for token in ("01A", "01B")] == [set(), set()]
    source.end_snapshot(*mine, token="01B")
    with pytest.raises(SnapshotError), source.marking(*mine, token="01A", mark="4.e", seconds=DAY):
        raise AssertionError("the block of a snapshot that has ended runs")
    _begin(bench, "01A")
    assert source.snapshot_marks(*mine, token="01A") == set()


def test_a_purge_stops_where_a_snapshot_has_begun(engine: Engine) -> None:
    """Until it has ended, or expired."""
    bench = set_up_author(engine, (1, "Anna"))
    bench.run("insert into \"shop.author\" (id, name) values (2, 'Ben')")
    claim = _begin(bench, "01A")
    bench.run("insert into \"shop.author\" (id, name) values (3, 'Cleo')")
    until = after_now(bench.source)
    bench.source.seal(CAPTURE, until)
    (purged,) = bench.source.purge(CAPTURE, until)
    assert (purged.rows, purged.upto) == (1, Ulid.floor(claim.begin).previous())
    bench.source.end_snapshot(CAPTURE, AUTHOR.name, token="01A")
    _begin(bench, "01B", seconds=0.001)
    after_now(bench.source)
    (purged,) = bench.source.purge(CAPTURE, until)
    assert purged.rows == 1


def test_a_snapshot_that_expired_holds_no_purge_back(engine: Engine) -> None:
    """Nobody reads for it any more; but it stays until somebody ends it."""
    bench = set_up_author(engine, (1, "Anna"))
    _begin(bench, "01A", seconds=0.001)
    bench.run("insert into \"shop.author\" (id, name) values (2, 'Ben')")
    until = after_now(bench.source)
    bench.source.seal(CAPTURE, until)
    (purged,) = bench.source.purge(CAPTURE, until)
    assert purged.rows == 1
    assert _begin(bench, "01B").token == "01A"


def test_a_dropped_feed_has_no_snapshot(engine: Engine) -> None:
    """Nor has one that is made anew with its name."""
    bench = set_up_author(engine, (1, "Anna"))
    _begin(bench, "01A")
    with bench.source.marking(CAPTURE, AUTHOR.name, token="01A", mark="0.a", seconds=DAY):
        pass
    bench.source.drop_feed(CAPTURE)
    assert bench.source.snapshots() == []
    bench.enable(AUTHOR.name)
    assert bench.source.snapshots() == []
    _begin(bench, "01A")
    assert bench.source.snapshot_marks(CAPTURE, AUTHOR.name, token="01A") == set()


def test_what_is_not_a_capture_is_named(engine: Engine) -> None:
    """With the captures that there are."""
    source, feed, table = set_up_author(engine).source, "shop.none", AUTHOR.name
    begin = source.now()
    for call in (
        lambda: source.begin_snapshot(feed, table, token="01A", path="/x", begin=begin, by="me", seconds=1),
        lambda: source.snapshots(feed),
        lambda: source.order_bound(feed),
        lambda: source.first_waiting(feed),
        lambda: source.cut_table(feed, table, 10),
    ):
        with pytest.raises(CaptureNotFoundError, match=f"'{feed}' not found; .*{CAPTURE}"):
            call()


def test_what_waits_in_the_outbox_is_known_by_its_order(engine: Engine) -> None:
    """Everything committed is below a bound that is drawn later; nothing is left of it behind a drain."""
    bench = set_up_author(engine, (1, "Anna"))
    assert bench.source.first_waiting(CAPTURE) is None
    bench.run("insert into \"shop.author\" (id, name) values (2, 'Ben')")
    bound = bench.source.order_bound(CAPTURE)
    first = bench.source.first_waiting(CAPTURE)
    assert first is not None
    assert first < bound
    bench.source.drain(CAPTURE)
    assert bench.source.first_waiting(CAPTURE) is None
    later = bench.source.order_bound(CAPTURE)
    with bench.changer() as changer:
        changer.begin()
        changer.execute("insert into \"shop.author\" (id, name) values (3, 'Cleo')")
        changer.commit()
    first = bench.source.first_waiting(CAPTURE)
    assert first is not None
    assert first >= min(bound, later)
