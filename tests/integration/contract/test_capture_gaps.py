# SPDX-License-Identifier: Apache-2.0
"""Changes that pass a capture unseen stop its seals until a person resolves them; so do altered tables."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from airflow_changefeed.core.capture import Operation, TableCapture
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import CaptureGapError, FeedSetupError, LockTimeoutError, StaleVersionError
from tests.clocks import after_now
from tests.integration.contract.bench import IMPATIENT, KEPT, ODD
from tests.integration.contract.captures import AUTHOR, CaptureBench, row, set_up_author
from tests.integration.contract.engines import Engine
from tests.integration.contract.oracles import fold

INSERT = 'insert into "shop.author" (id, name) values'
UPDATE = 'update "shop.author" set'
NAME = AUTHOR.name


def _bench(engine: Engine, **options: Any) -> CaptureBench:
    """Capture a table with rows 1 to 3, which nothing guards."""
    bench = set_up_author(engine, guard_table=False, **options)
    bench.run(f"{INSERT} (1, 'one'), (2, 'two'), (3, 'three')")
    bench.source.seal(bench.name, after_now(bench.source))
    return bench


def _table(bench: CaptureBench) -> dict[Any, Any]:
    rows = bench.engine.rows('select id, name from "shop.author"')
    return {(NAME, (id,)): row(id, name) for id, name in rows}


def _ways(engine: Engine) -> list[str]:
    return [unseen.what for unseen in engine.unseen(NAME)]


def _pass_unseen(bench: CaptureBench, what: str) -> None:
    (way,) = [unseen for unseen in bench.engine.unseen(NAME) if unseen.what == what]
    with bench.changer() as changer:
        for statement in way.statements:
            changer.execute(statement)


def test_changes_that_passed_unseen_stop_the_seal_until_they_are_resolved(engine: Engine) -> None:
    """However they passed; reading goes on, and after a resync the events give the table's state again."""
    bench = _bench(engine)
    ways = _ways(engine)
    assert len(ways) >= 3
    for number, what in enumerate(ways):
        _check_way(bench, what, number)


def _check_way(bench: CaptureBench, what: str, number: int) -> None:
    source, name = bench.source, bench.name
    _pass_unseen(bench, what)
    until = after_now(source)
    with pytest.raises(CaptureGapError) as caught:
        source.seal(name, until)
    assert name in caught.value.message, what
    assert not caught.value.transient
    gaps = source.check_capture(name)
    assert [(gap.capture, gap.table, gap.resolved_at) for gap in gaps] == [(name, NAME, None)] * len(gaps), (
        what
    )
    assert gaps, what
    assert source.capture(name).gaps == tuple(gaps)
    bench.events()
    # The remedy that the error names, on each source.
    refresh, resolve = (caught.value.message.find(f" capture {verb} ") for verb in ("refresh", "resolve"))
    assert 0 < refresh < resolve, caught.value.message
    assert source.refresh_capture(name).gaps == tuple(gaps), what
    source.resolve_capture(name, note=f"seen {number}", by="test", resync=True)
    assert source.check_capture(name) == [], what
    source.seal(name, after_now(source))
    resolved = source.capture_gaps(name)[-len(gaps) :]
    assert all((gap.note, gap.resolved_by) == (f"seen {number}", "test") for gap in resolved)
    assert all(gap.resolved_at is not None for gap in resolved)
    assert fold(bench.events(), {NAME: ("id",)}) == _table(bench), what
    bench.run('delete from "shop.author"', f"{INSERT} (1, 'one'), (2, 'two')", f"{INSERT} (3, '{number}')")
    source.seal(name, after_now(source))
    assert fold(bench.events(), {NAME: ("id",)}) == _table(bench), what


def test_a_gap_that_is_resolved_without_a_resync_leaves_the_events_alone(engine: Engine) -> None:
    """Whoever needs no state, or has repaired it elsewhere, goes on."""
    bench = _bench(engine)
    before = bench.events()
    _pass_unseen(bench, "rows were removed meanwhile")
    with pytest.raises(CaptureGapError):
        bench.source.seal(bench.name, after_now(bench.source))
    bench.enable(NAME, guard_table=False)
    bench.source.resolve_capture(bench.name, note=ODD, by=ODD)
    bench.source.seal(bench.name, after_now(bench.source))
    assert bench.events() == before
    assert {(gap.note, gap.resolved_by) for gap in bench.source.capture_gaps(bench.name)} == {(KEPT, KEPT)}


def test_a_capture_whose_changes_are_all_seen_has_no_gap(engine: Engine) -> None:
    """Whatever was done, and however often it is looked at."""
    bench = _bench(engine)
    for statement in (f"{INSERT} (4, 'x')", f"{UPDATE} name = 'y'", 'delete from "shop.author" where id > 2'):
        bench.run(statement)
        with bench.changer() as changer:
            changer.begin()
            changer.execute(f"{INSERT} (9, 'undone')")
            changer.rollback()
        assert bench.source.check_capture(bench.name) == []
        bench.source.seal(bench.name, after_now(bench.source))
    assert bench.source.capture_gaps(bench.name) == []


def test_a_transaction_that_is_open_is_no_gap(engine: Engine) -> None:
    """Rows that are not committed count on neither side."""
    bench = _bench(engine)
    with bench.changer() as changer:
        changer.begin()
        changer.execute(f"{INSERT} (4, 'x')")
        if bench.source.capabilities.parallel_writers:
            bench.source.seal(bench.name, after_now(bench.source))
        changer.commit()
    bench.source.seal(bench.name, after_now(bench.source))
    assert bench.source.capture_gaps(bench.name) == []


def test_an_open_transaction_stalls_no_seal(engine: Engine) -> None:
    """Rows that it inserted, updated and deleted are no gap; what others commit is sealed meanwhile."""
    bench = _bench(engine)
    if not bench.source.capabilities.parallel_writers:
        # Nobody else can commit meanwhile either: a seal gives up soon, and finds all in order afterwards.
        with bench.changer() as changer:
            changer.begin()
            changer.execute(f"{INSERT} (4, 'x')")
            with pytest.raises(LockTimeoutError):
                engine.source(lock_timeout=IMPATIENT).seal(bench.name, after_now(bench.source))
            changer.commit()
    else:
        with bench.changer() as changer:
            changer.begin()
            changer.execute(f"{INSERT} (4, 'x'), (5, 'x')")
            changer.execute(f"{UPDATE} name = 'y' where id = 1")
            changer.execute('delete from "shop.author" where id = 2')
            for number in range(3):
                bench.run(f"{INSERT} ({10 + number}, 'other')")
                seals = engine.source(lock_timeout=IMPATIENT).seal(bench.name, after_now(bench.source))
                assert seals[0].head == Ulid.parse_text(bench.fed()[-1].ulid)
                assert bench.fed()[-1].new == row(10 + number, "other")
                assert bench.source.check_capture(bench.name) == []
            changer.commit()
    bench.source.seal(bench.name, after_now(bench.source))
    assert bench.source.capture_gaps(bench.name) == []
    assert fold(bench.events(), {NAME: ("id",)}) == _table(bench)


def test_a_capture_that_was_disabled_meanwhile_has_a_gap_if_anything_changed(engine: Engine) -> None:
    """Nothing is recorded while it is disabled; its events stay."""
    bench = _bench(engine)
    bench.source.disable_capture(bench.name)
    assert not bench.source.capture(bench.name).is_enabled
    bench.run(f"{INSERT} (4, 'unseen')")
    assert len(bench.events()) == 3
    bench.enable(NAME, guard_table=False)
    with pytest.raises(CaptureGapError, match=r"shop\.author_changes"):
        bench.source.seal(bench.name, after_now(bench.source))
    bench.source.resolve_capture(bench.name, note="seen", by="test", resync=True)
    bench.source.seal(bench.name, after_now(bench.source))
    assert fold(bench.events(), {NAME: ("id",)}) == _table(bench)


def test_a_disabled_capture_can_be_sealed_and_read_to_its_end(engine: Engine) -> None:
    """Disabling it again is harmless; the table is free."""
    bench = _bench(engine)
    bench.source.disable_capture(bench.name)
    bench.source.disable_capture(bench.name)
    bench.run('delete from "shop.author"')
    bench.source.seal(bench.name, after_now(bench.source))
    assert len(bench.events()) == 3


def test_rows_that_were_there_are_recorded_on_demand(engine: Engine) -> None:
    """As added, marked as snapshot; the capture then tells all rows that there ever were."""
    engine.create_table(AUTHOR)
    bench = CaptureBench(engine, engine.source())
    bench.run(f"{INSERT} (1, 'one'), (2, null)")
    info = bench.enable(NAME, snapshot=True)
    bench.run(f"{UPDATE} name = 'x' where id = 2")
    events = bench.events()
    assert [(event.type, event.is_snapshot) for event in events] == [
        ("reset", False),
        ("add", True),
        ("add", True),
        ("ready", False),
        ("upd", False),
    ]
    assert fold(events, {NAME: ("id",)}) == _table(bench)
    assert info.shape.tables[NAME].is_whole


def test_whether_a_capture_is_whole_is_told(engine: Engine) -> None:
    """Without the rows that were there before, or some operation, the table's state cannot be told."""
    bench = CaptureBench(engine, engine.source())
    found = {}
    for name, is_empty, is_recorded, delete in (
        ("shop.empty", True, False, ()),
        ("shop.recorded", False, True, ()),
        ("shop.lost", False, False, ()),
        ("shop.undeleted", False, True, None),
    ):
        engine.create_table(replace(AUTHOR, name=name))
        if not is_empty:
            bench.run(f"insert into \"{name}\" (id, name) values (1, 'one')")
        info = bench.enable(TableCapture(name, delete=delete), snapshot=is_recorded)
        found[name] = info.shape.tables[name].is_whole
    assert found == {"shop.empty": True, "shop.recorded": True, "shop.lost": False, "shop.undeleted": False}


# ---- tables that are altered

ALTERED = {
    "a column is added": 'alter table "shop.author" add born integer',
    "a captured column is dropped": 'alter table "shop.author" drop column name',
}


@pytest.mark.parametrize("what", ALTERED)
def test_an_altered_table_never_fails_its_writers_without_a_word(engine: Engine, what: str) -> None:
    """Altering works, and writing goes on; or it is refused at once, and writing goes on."""
    bench = _bench(engine)
    refused = None
    with bench.changer() as changer:
        try:
            changer.execute(ALTERED[what])
        except Exception as error:
            refused = str(error)
    if what == "a captured column is dropped" and not engine.guards_schema:
        # Nothing on this server can refuse it; it is told.
        assert refused is None
        assert any("name" in drift for drift in bench.source.capture(bench.name).drift)
        return
    bench.run('insert into "shop.author" (id) values (4)')
    assert bench.new_events()[-1] == ("add", None, row(4, None))
    assert (refused is None) == (what == "a column is added")
    assert refused is None or "shop.author" in refused or "name" in refused
    assert bool(bench.source.capture(bench.name).drift) == (refused is None)


def test_a_column_can_be_dropped_once_it_is_captured_no_longer(engine: Engine) -> None:
    """Refreshing without it first; events that have it keep it."""
    bench = _bench(engine)
    info = bench.source.refresh_capture(bench.name, without=["name"])
    assert "name" not in info.shape.tables[NAME].columns
    with bench.changer() as changer:
        changer.execute(ALTERED["a captured column is dropped"])
    if not engine.keeps_triggers:
        with pytest.raises(CaptureGapError, match="trigger"):
            bench.source.seal(bench.name, after_now(bench.source))
        bench.source.refresh_capture(bench.name)
    bench.run('insert into "shop.author" (id) values (4)')
    events = [event for event in bench.events() if event.type != "ddl"]
    assert [(event.new or {})["id"] for event in events] == [1, 2, 3, 4]
    assert [(event.new or {}).get("name") for event in events] == ["one", "two", "three", None]
    assert bench.source.capture(bench.name).drift == ()


def test_refreshing_takes_the_present_columns(engine: Engine) -> None:
    """Drift is told until then; events before have null."""
    bench = _bench(engine)
    with bench.changer() as changer:
        changer.execute(ALTERED["a column is added"])
    bench.run('insert into "shop.author" (id, born) values (4, 1900)')
    assert any("born" in drift for drift in bench.source.capture(bench.name).drift)
    assert bench.source.refresh_capture(bench.name).drift == ()
    bench.run('insert into "shop.author" (id, born) values (5, 1900)', f"{UPDATE} born = 1950 where id = 1")
    events = bench.events()
    assert [event.type for event in events] == ["add"] * 4 + ["ddl", "add", "upd"]
    assert [(event.new or {}).get("born") for event in events] == [None] * 5 + [1900, 1950]
    bench.source.seal(bench.name, after_now(bench.source))


def test_a_name_given_to_another_column_stops_the_seals_until_a_refresh(engine: Engine) -> None:
    """A column is not known by its name: drift says so, and a refresh records each in a field of its own."""
    bench = _bench(engine, guard_schema=False)
    source, name, add = bench.source, bench.name, ALTERED["a column is added"]
    with bench.changer() as changer:
        changer.execute(add)
        source.refresh_capture(name)
        changer.execute(engine.rename.format(table=NAME, old="born", new="birth"))
        changer.execute(add)
    bench.run(f"{UPDATE} born = 1900 where id = 1")
    assert any("is not the recorded column" in one for one in source.capture(name).drift)
    with pytest.raises((CaptureGapError, FeedSetupError), match="born"):
        source.seal(name, after_now(source))
    info = source.refresh_capture(name)
    assert info.drift == ()
    if info.gaps:
        source.resolve_capture(name, note="renamed", by="test")
    fields = info.shape.tables[NAME].columns[Operation.INSERT]
    assert fields.keys() == {"id", "name", "birth", "born"}
    bench.run(f"{UPDATE} birth = 1, born = 2 where id = 1")
    last = bench.events()[-1].new or {}
    assert {column: last[field] for column, field in fields.items()} == {
        **row(1, "one"),
        "birth": 1,
        "born": 2,
    }
    assert [event.type for event in bench.events()].count("ddl") == 2
    source.seal(name, after_now(source))


def test_a_table_is_not_dropped_without_a_word(engine: Engine) -> None:
    """It is refused, or stops the seals."""
    bench = set_up_author(engine)
    bench.run(f"{INSERT} (1, 'one')")
    with bench.changer() as changer, suppress(Exception):
        changer.execute('drop table "shop.author"')
    gone = not engine.rows('select 1 from "shop.author"') if _is_there(bench) else True
    if gone:
        with pytest.raises(CaptureGapError, match=r"shop\.author"):
            bench.source.seal(bench.name, after_now(bench.source))
    else:
        bench.source.seal(bench.name, after_now(bench.source))
    assert len(bench.events()) == 1


def _is_there(bench: CaptureBench) -> bool:
    try:
        bench.engine.rows('select 1 from "shop.author"')
    except Exception:
        return False
    return True


def test_a_gap_that_nobody_saw_is_not_resolved(engine: Engine) -> None:
    """Each gap that is found is a new version, once; who saw the capture before is told of it."""
    bench = _bench(engine)
    source, name = bench.source, bench.name
    seen = source.capture(name).resource_version
    _pass_unseen(bench, _ways(engine)[0])
    with pytest.raises(CaptureGapError):
        source.seal(name, after_now(source))
    (gap, *_) = source.check_capture(name)
    present = source.capture(name).resource_version
    assert present > seen
    with pytest.raises(StaleVersionError) as caught:
        source.resolve_capture(name, note="as before", by="user-1", resource_version=seen)
    assert "open gaps" in caught.value.facts["present"]
    assert gap in source.capture(name).gaps
    assert source.capture(name).resource_version == present
