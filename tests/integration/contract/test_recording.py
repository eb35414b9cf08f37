# SPDX-License-Identifier: Apache-2.0
"""Recording the rows that captured tables already have: in short transactions, while others write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.capture import KeyChange, TableCapture
from airflow_changefeed.exceptions import LockTimeoutError, SnapshotError
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.sources.base_capture import INTO_FEED
from airflow_changefeed.sources.mssql.capture import control
from airflow_changefeed.sources.sqlite.capture import record as recording
from tests.clocks import after_now, time_with
from tests.integration.contract.captures import AUTHOR, CaptureBench, row, set_up_author
from tests.integration.contract.engines import Engine, Table
from tests.integration.contract.oracles import fold

INSERT = 'insert into "shop.author" (id, name) values (?, ?)'
NAME = AUTHOR.name
#: Some transactions' worth on either engine.
ROWS = 250
LINES = Table("shop.line", keys=(("place", "integer"), ("code", "text")), columns=(("name", "text"),))


class KilledError(Exception):
    """The process is killed; its transaction is committed."""


def _rows(count: int = ROWS) -> list[tuple[int, str]]:
    return [(number, f"name {number}") for number in range(count)]


@contextmanager
def _killed(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the process that records rows die after its first transaction, of 100 rows."""

    def record(source: Any, name: str) -> None:
        # Ends behind one transaction, which takes longer than that.
        batch = control.call(source.database.schema, f"record_rows:{name}", {"seconds": 0.0001})
        with source.database.connect() as session:
            session.records(*batch)
        raise KilledError

    with patch.context() as patched:
        patched.setattr(recording, "_FIRST_ROWS", 100)
        patched.setattr(recording, "time", time_with(_die))
        patched.setattr(control.MssqlCaptures, "_record_rows", record)
        try:
            yield
        except KilledError:
            return
    raise AssertionError("nobody recorded rows")


def _die(*_: Any) -> None:
    raise KilledError


def _resync(bench: CaptureBench) -> None:
    bench.source.resolve_capture(bench.name, note="again", by="test", resync=True)


def _folded(bench: CaptureBench) -> list[tuple[Any, ...]]:
    rows = fold(bench.events(), {NAME: ("id",)})
    return sorted((found["id"], found["name"]) for found in rows.values())


def _table(bench: CaptureBench) -> list[tuple[Any, ...]]:
    return sorted(bench.engine.rows('select id, name from "shop.author"'))


def test_rows_follow_a_reset_and_an_event_says_when_all_have(engine: Engine) -> None:
    """As adds of a snapshot, in the order of the key; nothing is left of it then."""
    bench = set_up_author(engine, *_rows(), snapshot=True)
    first, *adds, last = bench.events()
    assert (first.type, first.old, first.new) == ("reset", None, None)
    assert (last.type, last.old, last.new) == ("ready", None, None)
    assert [(change.type, change.is_snapshot, change.new) for change in adds] == [
        ("add", True, row(*one)) for one in _rows()
    ]
    assert len({change.tid for change in adds}) > 1
    # Behind the rows of every shard.
    assert last.tid != adds[-1].tid
    assert bench.source.snapshots(bench.name) == []
    assert bench.source.check_capture(bench.name) == []


def test_an_empty_table_has_nothing_to_record(engine: Engine) -> None:
    """But a resync discards what was recorded of it."""
    bench = set_up_author(engine, snapshot=True)
    assert bench.events() == []
    _resync(bench)
    assert [change.type for change in bench.events()] == ["reset", "ready"]


def test_who_was_killed_continues_where_it_was(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are not recorded twice; what changed meanwhile is right in the end, on both sides."""
    bench = set_up_author(engine, *_rows(), key_change=KeyChange.DELETE_INSERT)
    with _killed(monkeypatch):
        _resync(bench)
    (claim,) = bench.source.snapshots(bench.name)
    assert (claim.table, claim.path, claim.by) == (NAME, INTO_FEED, "test")
    types = [change.type for change in bench.events()]
    assert types == ["reset"] + ["add"] * 100
    bench.run(
        "update \"shop.author\" set name = 'recorded before' where id = 3",
        "update \"shop.author\" set name = 'recorded later' where id = 203",
        'delete from "shop.author" where id in (4, 204)',
        'update "shop.author" set id = id + 1000 where id in (5, 205)',
        (INSERT, -7, "before all"),
        (INSERT, 777, "behind all"),
    )
    _resync(bench)
    events = bench.events()
    assert [change.type for change in events].count("reset") == 1
    assert events[-1].type == "ready"
    assert _folded(bench) == _table(bench)
    recorded = [change.new["id"] for change in events if change.is_snapshot and change.new]
    assert len(recorded) == len(set(recorded))
    assert bench.source.snapshots(bench.name) == []


def test_enabling_again_continues_what_enabling_began(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command, repeated, goes on."""
    engine.create_table(AUTHOR)
    bench = CaptureBench(engine, engine.source())
    bench.run(*((INSERT, *one) for one in _rows()))
    with _killed(monkeypatch):
        bench.enable(NAME, snapshot=True)
    bench.enable(NAME, snapshot=True)
    assert [change.type for change in bench.events()] == ["reset", *["add"] * ROWS, "ready"]
    bench.enable(NAME, snapshot=True)
    assert len(bench.events()) == ROWS + 2


def test_a_gap_meanwhile_begins_it_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a change that was missed may be of a row that is recorded already."""
    bench = set_up_author(engine, *_rows(), guard_table=False)
    with _killed(monkeypatch):
        _resync(bench)
    unseen = bench.engine.unseen(NAME)[0]
    with bench.changer() as changer:
        for statement in unseen.statements:
            changer.execute(statement)
    bench.source.check_capture(bench.name)
    bench.enable(NAME, guard_table=False)
    bench.source.check_capture(bench.name)
    _resync(bench)
    assert [change.type for change in bench.events()].count("reset") == 2
    assert _folded(bench) == _table(bench)
    bench.source.seal(bench.name, after_now(bench.source))


def test_each_shard_has_its_reset_and_its_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that have events, and where the first row is; other rows come behind it."""
    table = TableCapture(NAME, shard="id % 3")
    bench = set_up_author(engine, *_rows(), table=table, key_change=KeyChange.DELETE_INSERT)
    bench.run("update \"shop.author\" set name = 'x' where id = 1")
    _resync(bench)
    found = {shard: [change.type for change in bench.events(shard)] for shard in range(3)}
    assert [types[-1] for types in found.values()] == ["ready"] * 3
    assert found[1][:2] == ["upd", "reset"]
    assert sum(types.count("reset") for types in found.values()) == 2
    assert sum(types.count("add") for types in found.values()) == ROWS


def test_keys_of_several_columns_are_recorded_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows with the same first column, and many with one of their own."""
    engine.create_table(LINES)
    bench = CaptureBench(engine, engine.source())
    rows = [(1, f"a{number:03}") for number in range(130)]
    rows += [(number, code) for number in range(2, 60) for code in ("Ä", "b")]
    bench.run(*(('insert into "shop.line" (place, code, name) values (?, ?, ?)', *one, "n") for one in rows))
    with _killed(monkeypatch):
        bench.enable(LINES.name, snapshot=True)
    bench.enable(LINES.name, snapshot=True)
    found = [(change.new["place"], change.new["code"]) for change in bench.events() if change.new]
    assert sorted(found) == sorted(rows)


def test_a_snapshot_into_an_output_and_one_into_the_feed_exclude_each_other(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, with what continues the other one, or gives it up."""
    bench = set_up_author(engine, *_rows(), key_change=KeyChange.DELETE_INSERT)
    request = SnapshotRequest(bench.name, None, str(tmp_path / "lake"), "run")
    with _killed(monkeypatch):
        _resync(bench)
    with pytest.raises(SnapshotError, match=r"into its own events .* test .*--resync.*give-up"):
        take_snapshot(bench.source, request, None, lambda *_: None, lambda _: None)
    _resync(bench)
    with pytest.raises(KilledError):
        take_snapshot(bench.source, request, None, _die, lambda _: None)
    with pytest.raises(SnapshotError, match=r"into .*lake.* has not ended.*give-up"):
        _resync(bench)
    (claim,) = bench.source.snapshots(bench.name)
    bench.source.end_snapshot(claim.feed, claim.table, token=claim.token)
    _resync(bench)


def test_one_that_was_given_up_stays_without_an_end(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next one begins from the beginning; so does disabling the capture."""
    bench = set_up_author(engine, *_rows())
    with _killed(monkeypatch):
        _resync(bench)
    (claim,) = bench.source.snapshots(bench.name)
    assert bench.source.end_snapshot(claim.feed, claim.table, token=claim.token)
    _resync(bench)
    types = [change.type for change in bench.events()]
    assert (types.count("reset"), types.count("ready"), types.count("add")) == (2, 1, 100 + ROWS)
    with _killed(monkeypatch):
        _resync(bench)
    bench.source.disable_capture(bench.name)
    assert bench.source.snapshots(bench.name) == []


def test_it_gives_way_to_a_writer_and_comes_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that a transaction holds is not waited for for long; what is recorded stays."""
    if not engine.locks_reads:
        pytest.skip("a server that takes no locks for what it reads does not wait for a writer")
    bench = set_up_author(engine, *_rows())
    with _killed(monkeypatch):
        _resync(bench)
    impatient = engine.source(lock_timeout=1.0)
    with bench.changer() as changer:
        changer.begin()
        changer.execute("update \"shop.author\" set name = 'held' where id = 120")
        with pytest.raises(LockTimeoutError):
            impatient.resolve_capture(bench.name, note="again", by="test", resync=True)
        if bench.source.capabilities.parallel_writers:
            bench.run("update \"shop.author\" set name = 'free' where id in (7, 240)")
        changer.commit()
    _resync(bench)
    assert _folded(bench) == _table(bench)
    assert [change.type for change in bench.events()].count("reset") == 1
