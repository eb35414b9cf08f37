# SPDX-License-Identifier: Apache-2.0
"""Taking a snapshot while others write: also one that is killed, joined, given up or made useless."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.capture import TableCapture
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    CaptureGapError,
    CaptureNotFoundError,
    FoldError,
    InvalidArgumentError,
    SnapshotError,
    TransientError,
)
from airflow_changefeed.lake.snapshot_ranges import RangesToRead, read_ranges
from airflow_changefeed.lake.snapshots import Snapshot, SnapshotFiles
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from tests.clocks import after_now
from tests.integration.contract.captures import AUTHOR, CAPTURE, CaptureBench, row, set_up_author
from tests.integration.contract.engines import Engine

INSERT = 'insert into "shop.author" (id, name) values'
UPDATE = 'update "shop.author" set'


class KilledError(Exception):
    """The process that reads is gone."""


class Taker:
    """Takes snapshots of a table, and does something after each range."""

    def __init__(self, bench: CaptureBench, folder: Path) -> None:
        self.bench = bench
        self.path = str(folder / "lake")
        self.read: list[int] = []
        self.said: list[str] = []
        self.then: Callable[[int], object] = lambda number: None

    def take(self, source: Any = None, **more: Any) -> Snapshot:
        """Take a snapshot, or continue with one."""
        used = source or self.bench.source

        def read(files: SnapshotFiles, wanted: RangesToRead) -> None:
            for number, range_ in wanted.of_task(0):
                read_ranges(used, files, wanted, [(number, range_)])
                self.read.append(number)
                self.then(len(self.read))

        given = {"range_rows": 3, **more}
        request = SnapshotRequest(CAPTURE, None, given.pop("path", self.path), "tests/run", **given)
        return take_snapshot(used, request, None, read, self.said.append)

    def rows(self, taken: Snapshot) -> list[dict[str, Any]]:
        """Return what a snapshot has read."""
        files = SnapshotFiles(self.path, CAPTURE, AUTHOR.name)
        parts = [pq.read_table(f"{files.folder(taken.token)}/{name}") for name in taken.files]
        return [dict(one) for part in parts for one in part.drop(["changefeed_shard"]).to_pylist()]

    def folded(self, taken: Snapshot, at: datetime) -> dict[int, dict[str, Any]]:
        """Fold the events since a snapshot's begin over its rows."""
        found = {one["id"]: one for one in self.rows(taken)}
        for event in self.bench.events(after=Ulid.floor(taken.begin).previous()):
            if event.ulid < str(Ulid.floor(at)):
                if event.old is not None:
                    found.pop(event.old["id"], None)
                if event.new is not None:
                    found[event.new["id"]] = dict(event.new)
        return found

    def table(self) -> dict[int, dict[str, Any]]:
        """Return the table as it is."""
        rows = self.bench.engine.rows('select id, name from "shop.author"')
        return {id: row(id, name) for id, name in rows}


@pytest.fixture
def taker(engine: Engine, tmp_path: Path) -> Taker:
    """A capture of a table that had ten rows before."""
    rows = [(number, f"name {number}") for number in range(10)]
    return Taker(set_up_author(engine, *rows, key_change="delete_insert", guard_table=False), tmp_path)


def _change(taker: Taker) -> None:
    """Change rows that were read already, and some that were not; keys too."""
    taker.bench.run(
        f"{UPDATE} name = 'changed' where id in (1, 8)",
        'delete from "shop.author" where id in (2, 7)',
        f"{UPDATE} id = 20 where id = 0",
        f"{UPDATE} id = -1 where id = 9",
        f"{INSERT} (5000, 'new')",
    )


def test_a_table_that_had_rows_is_known_from_then_on(taker: Taker) -> None:
    """Its rows were never recorded; they change while it is read, and afterwards."""
    taker.then = lambda number: _change(taker) if number == 2 else None
    taken = taker.take()
    assert taken.begin < taken.exact_from
    assert taken.rows == len(taker.rows(taken))
    assert [one["id"] for one in taker.rows(taken)] != sorted(taker.table())
    assert taker.folded(taken, taken.exact_from) == taker.table()
    taker.bench.run(f"{UPDATE} name = 'later' where id > 3", 'delete from "shop.author" where id = 1')
    at = after_now(taker.bench.source)
    assert taker.folded(taken, at) == taker.table()
    assert taker.bench.source.snapshots() == []


def _killed_at(number: int) -> Callable[[int], None]:
    def kill(read: int) -> None:
        if read == number:
            raise KilledError

    return kill


def test_the_next_try_goes_on_where_one_was_killed(taker: Taker) -> None:
    """It has the begin of the first try, and reads no range again."""
    taker.then = _killed_at(2)
    with pytest.raises(KilledError):
        taker.take()
    (claim,) = taker.bench.source.snapshots()
    _change(taker)
    taker.then = lambda number: None
    taken = taker.take(range_rows=100)
    assert (taken.begin, taken.token) == (claim.begin, claim.token)
    assert taker.read == [0, 1, 2, 3]
    assert taker.said[-1].endswith(": 2 of 4 ranges to read")
    assert taker.folded(taken, taken.exact_from) == taker.table()


def test_a_try_that_was_killed_before_it_cut_the_table_is_continued(taker: Taker) -> None:
    """Nothing but its begin is known then."""
    source = taker.bench.source
    begin = after_now(source)
    source.seal(CAPTURE, begin)
    path = SnapshotFiles(taker.path, CAPTURE, AUTHOR.name)
    source.begin_snapshot(
        CAPTURE,
        AUTHOR.name,
        token="01ARZ3NDEKTSV4RRFFQ69G5FAV",
        path=path.files.url(path.layout.path),
        begin=begin,
        by="tests",
        seconds=60.0,
    )
    taken = taker.take()
    assert (taken.begin, taken.rows) == (begin, 10)


def test_one_that_was_killed_after_its_commit_is_the_result(
    taker: Taker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is complete, and the database forgets it; the next one is another."""
    source = taker.bench.source
    with monkeypatch.context() as patched:
        patched.setattr(source, "end_snapshot", lambda *of, token: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            taker.take()
    (claim,) = source.snapshots()
    taken = taker.take()
    assert taken.token == claim.token
    assert len(taker.read) == 4
    assert source.snapshots() == []
    assert taker.take().token != claim.token


def test_two_at_once_join(taker: Taker) -> None:
    """They read the same snapshot, and both return it."""
    gate = threading.Barrier(2)

    def meet(number: int) -> None:
        # The second one may find that nothing is left.
        with suppress(threading.BrokenBarrierError):
            gate.wait(0.5)

    taker.then = meet
    found: list[Snapshot] = []
    threads = [threading.Thread(target=lambda: found.append(taker.take())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = found
    # Where both complete it at once, each says from when on it is exact; both are right.
    assert (first.token, first.begin, first.rows) == (second.token, second.begin, second.rows)
    assert sorted(one["id"] for one in taker.rows(first)) == list(range(10))


def test_another_output_is_refused_by_name_until_the_first_has_expired(
    taker: Taker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table is read once at a time; a snapshot that nobody goes on with does not stand in the way."""
    taker.then = _killed_at(1)
    with pytest.raises(KilledError):
        taker.take()
    other = str(tmp_path / "other")
    with pytest.raises(
        SnapshotError, match=r"into .*/lake that tests/run began .* give (it up|up the snapshot): .*give-up"
    ):
        taker.take(path=other)
    (claim,) = taker.bench.source.snapshots()
    taker.bench.source.end_snapshot(CAPTURE, AUTHOR.name, token=claim.token)
    monkeypatch.setattr("airflow_changefeed.lake.take_snapshot.PROTECTED", 0.001)
    monkeypatch.setattr("airflow_changefeed.lake.snapshot_ranges.PROTECTED", 0.001)
    taker.read.clear()
    with pytest.raises(KilledError):
        taker.take()
    after_now(taker.bench.source)
    taker.then = lambda number: None
    assert taker.take(path=other).rows == 10


def test_one_that_is_given_up_while_it_is_read_fails(taker: Taker) -> None:
    """Its next range says so, and a new one begins anew."""
    source = taker.bench.source
    (table,) = (AUTHOR.name,)
    taker.then = lambda number: [
        source.end_snapshot(CAPTURE, table, token=one.token) for one in source.snapshots()
    ]
    with pytest.raises(SnapshotError, match="was given up"):
        taker.take()
    taker.then = lambda number: None
    assert taker.take().rows == 10


def test_a_range_whose_mark_is_gone_is_read_again(taker: Taker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a fail-over that lost commits: what was read may be what was lost."""
    source = taker.bench.source
    real, lost = source.snapshot_marks, set[str]()

    def marks(feed: str, table: str, *, token: str) -> set[str]:
        return {one for one in real(feed, table, token=token) if one not in lost}

    def lose(number: int) -> None:
        if number == 4:
            (claim,) = source.snapshots()
            lost.update(one for one in real(CAPTURE, AUTHOR.name, token=claim.token) if one[0] in "12")
            taker.bench.run(f"{UPDATE} name = 'again' where id = 4")

    monkeypatch.setattr(source, "snapshot_marks", marks)
    taker.then = lose
    taken = taker.take()
    assert taker.read == [0, 1, 2, 3, 1, 2]
    assert next(one["name"] for one in taker.rows(taken) if one["id"] == 4) == "again"
    assert len(taker.rows(taken)) == 10


def test_ranges_with_other_columns_are_read_again(taker: Taker) -> None:
    """So that a column that is captured meanwhile has its values, also of rows that were read before."""

    def alter(number: int) -> None:
        if number == 2:
            taker.bench.run('alter table "shop.author" add email nvarchar(50)')
            taker.bench.source.refresh_capture(CAPTURE)
            taker.bench.run(f"{UPDATE} email = 'some'")

    taker.then = alter
    taken = taker.take()
    assert taker.read == [0, 1, 2, 3, 0, 1]
    assert {one["email"] for one in taker.rows(taken)} == {"some"}
    assert taker.take(only_if_missing=True) == taken


def test_values_that_no_event_has_discard_it(taker: Taker) -> None:
    """The events since its begin lack them; a snapshot that began behind the change has them."""

    def alter(number: int) -> None:
        if number == 2:
            taker.bench.run("alter table \"shop.author\" add email nvarchar(50) default 'none' not null")
            taker.bench.source.refresh_capture(CAPTURE)

    taker.then = alter
    with pytest.raises(TransientError, match="is discarded: the table's columns were changed at"):
        taker.take()
    assert taker.bench.source.snapshots() == []
    taker.then = lambda number: None
    taken = taker.take()
    assert {one["email"] for one in taker.rows(taken)} == {"none"}
    assert taker.take(only_if_missing=True) == taken


def test_a_gap_while_it_is_read_discards_it(taker: Taker) -> None:
    """The changes that were missed may be in what was read, or not; a new one closes the gap."""
    source = taker.bench.source
    before = taker.take()
    taker.read.clear()
    taker.then = lambda number: _miss(taker) if number == 2 else None
    with pytest.raises(CaptureGapError):
        taker.take()
    source.resolve_capture(CAPTURE, note="seen", by="tests")
    with pytest.raises(TransientError, match=r"is discarded: the capture missed changes, as detected at"):
        taker.take()
    assert source.snapshots() == []
    taker.then = lambda number: None
    taken = taker.take()
    assert taker.folded(taken, taken.exact_from) == taker.table()
    files = SnapshotFiles(taker.path, CAPTURE, AUTHOR.name)
    assert [one.token for one in files.all()] == [taken.token, before.token]


def _miss(taker: Taker) -> None:
    """Change a row in a way that no trigger sees."""
    way = taker.bench.engine.unseen(AUTHOR.name)[0]
    with taker.bench.changer() as changer:
        for statement in way.statements:
            changer.execute(statement)
    with pytest.raises(CaptureGapError):
        taker.bench.source.seal(CAPTURE, after_now(taker.bench.source))
    taker.bench.enable(TableCapture(AUTHOR.name), guard_table=False, key_change="delete_insert")


def test_one_that_is_too_old_is_followed_by_another(taker: Taker) -> None:
    """And one that is not is returned."""
    first = taker.take(max_age=timedelta(hours=1))
    assert taker.take(max_age=timedelta(hours=1)) == first
    taker.bench.run(f"{UPDATE} name = 'later' where id = 3")
    second = taker.take(max_age=timedelta(milliseconds=1))
    assert second.begin > first.begin
    assert taker.take(only_if_missing=True) == second


def test_only_if_missing_reads_again_after_a_gap(taker: Taker) -> None:
    """While a later fold can start from the last one, that is returned, and nothing is read."""
    first = taker.take(only_if_missing=True)
    assert taker.take(only_if_missing=True) == first
    assert taker.said[-1].endswith("exists")
    assert len(taker.read) == 4
    _miss(taker)
    taker.bench.source.resolve_capture(CAPTURE, note="seen", by="tests")
    again = taker.take(only_if_missing=True)
    assert again.begin > first.begin
    assert taker.folded(again, again.exact_from) == taker.table()
    assert taker.take(only_if_missing=True) == again


def test_events_that_were_purged_discard_it(taker: Taker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has expired nothing holds them."""
    monkeypatch.setattr("airflow_changefeed.lake.take_snapshot.PROTECTED", 0.001)
    monkeypatch.setattr("airflow_changefeed.lake.snapshot_ranges.PROTECTED", 0.001)
    taker.then = _killed_at(1)
    with pytest.raises(KilledError):
        taker.take()
    _change(taker)
    until = after_now(taker.bench.source)
    taker.bench.source.seal(CAPTURE, until)
    taker.bench.source.purge(CAPTURE, until)
    taker.then = lambda number: None
    with pytest.raises(
        TransientError, match=r"events since its begin were purged\. A retry takes a new snapshot"
    ):
        taker.take()
    taken = taker.take()
    assert taker.folded(taken, taken.exact_from) == taker.table()


def test_what_no_fold_can_start_from_is_refused(engine: Engine, tmp_path: Path) -> None:
    """No capture, one that leaves out deletes, one with an open gap; nothing has begun then."""
    bench = set_up_author(
        engine, (1, "Anna"), table=TableCapture(AUTHOR.name, delete=None), guard_table=False
    )
    taker = Taker(bench, tmp_path)
    with pytest.raises(FoldError, match="does not capture deletes; enable a capture of all operations"):
        taker.take()
    bench.source.drop_feed(CAPTURE)
    with pytest.raises(CaptureNotFoundError, match=CAPTURE):
        taker.take()
    bench.enable(AUTHOR.name, guard_table=False)
    way = bench.engine.unseen(AUTHOR.name)[0]
    bench.run('delete from "shop.author"', f"{INSERT} (1, 'one'), (2, 'two'), (3, 'three')")
    bench.source.seal(CAPTURE, after_now(bench.source))
    with bench.changer() as changer:
        for statement in way.statements:
            changer.execute(statement)
    with pytest.raises(CaptureGapError):
        taker.take()
    assert bench.source.snapshots() == []
    assert not Path(taker.path, "_changefeed", AUTHOR.name, "snapshots").exists()


@pytest.mark.parametrize(
    "wrong", [{"range_rows": 0}, {"range_rows": 2.5}, {"tasks": 0}, {"rows_per_second": -1}, {"tasks": True}]
)
def test_what_is_no_number_of_rows_is_refused(wrong: dict[str, Any]) -> None:
    """By its name."""
    with pytest.raises(InvalidArgumentError, match=f"{next(iter(wrong))} must be a whole number"):
        SnapshotRequest(CAPTURE, None, "/lake", "tests", **wrong)


def test_a_reader_breathes_between_two_ranges(taker: Taker) -> None:
    """As long as its rows may take, of which others have their part."""
    pauses: list[float] = []
    files = SnapshotFiles(taker.path, CAPTURE, AUTHOR.name)
    taker.then = _killed_at(1)
    with pytest.raises(KilledError):
        taker.take()
    (claim,) = taker.bench.source.snapshots()
    begun = files.begun(claim.token)
    assert begun is not None
    wanted = RangesToRead(
        CAPTURE,
        AUTHOR.name,
        taker.path,
        claim.token,
        "",
        (0, 1, 2),
        begun.ranges[:3],
        tasks=2,
        rows_per_second=2,
    )
    assert [number for task in range(2) for number, _ in wanted.of_task(task)] == [0, 2, 1]
    read_ranges(taker.bench.source, files, wanted, wanted.of_task(0), sleep=pauses.append)
    # The first was read before; three rows at one row a second, less what reading took on a slow server.
    (pause,) = pauses
    assert 1.0 < pause <= 3.0


def test_a_part_is_taken_and_another_part_is_refused_meanwhile(taker: Taker) -> None:
    """Its rows alone, and it says so; the whole table or another part is another snapshot."""
    taker.then = _killed_at(1)
    with pytest.raises(KilledError):
        taker.take(where="id >= 2  and id<8")
    (claim,) = taker.bench.source.snapshots()
    assert claim.where == "id >= 2 and id < 8"
    taker.then = lambda number: None
    for other in ("", "id >= 3 and id < 8"):
        with pytest.raises(
            SnapshotError, match=r"of the rows where id >= 2 and id < 8, into .* has not ended"
        ):
            taker.take(where=other)
    taken = taker.take(where="id >= 2 and id < 8")
    assert (taken.token, taken.where) == (claim.token, claim.where)
    assert sorted(one["id"] for one in taker.rows(taken)) == [2, 3, 4, 5, 6, 7]
    assert taken.summary["where"] == claim.where


def test_only_a_snapshot_of_the_same_part_is_not_missing(taker: Taker) -> None:
    """A part does not spare the whole table, and the whole table does not spare a part."""
    part = taker.take(where="id > 5")
    whole = taker.take(only_if_missing=True)
    assert (whole.rows, whole.where) == (10, "")
    assert taker.take(where="id > 5", only_if_missing=True).token == part.token
    assert taker.take(only_if_missing=True).token == whole.token
    assert taker.take(where="id > 6", only_if_missing=True).rows == 3


def test_a_part_that_is_not_one_of_the_key_begins_nothing(taker: Taker) -> None:
    """Refused before it holds back a purge."""
    with pytest.raises(InvalidArgumentError, match="'name' is not a key column"):
        taker.take(where="name = 1")
    assert taker.bench.source.snapshots() == []
