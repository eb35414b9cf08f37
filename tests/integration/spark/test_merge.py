# SPDX-License-Identifier: Apache-2.0
"""Current tables of Delta Lake and Iceberg: equal to the captured table, with one commit for each time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.core.times import format_time
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    FoldError,
    InvalidArgumentError,
    NotExportedError,
    OutputError,
    TableConflictError,
    TableError,
)
from airflow_changefeed.export.job_connection import JobConnection
from airflow_changefeed.folding.current import CurrentOutput
from airflow_changefeed.folding.merge_task import MergedFiles, MergeTask
from airflow_changefeed.folding.states import new_attempt
from airflow_changefeed.folding.task import FoldTask
from airflow_changefeed.spark.fold import fold
from airflow_changefeed.spark.fold_job import run_fold
from airflow_changefeed.spark.merge import merge_job
from airflow_changefeed.spark.merge import rows as rows_module
from airflow_changefeed.tables.open import CURRENT_FORMATS
from tests.integration.spark.merging import Between, Merging, StoppedError, ids
from tests.integration.spark.shoes import HOUR, History, minute, shoe
from tests.unit.export.captures import CAPTURE, IMAGE, TABLE, Event, fold_in_python, reshaped, shape
from tests.unit.export.flights import START, hours
from tests.unit.tables.formats import LIBRARIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(params=CURRENT_FORMATS)
def merging(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Merging:
    """An empty export, and no table yet."""
    return Merging(spark, tmp_path, request.param)


@pytest.fixture
def delta(spark: SparkSession, tmp_path: Path) -> Merging:
    """Likewise, for what does not depend on the format."""
    return Merging(spark, tmp_path, "delta")


def expected(history: History, at: datetime) -> list[dict[str, Any]]:
    """Return the rows of a history at a time."""
    return sorted(fold_in_python(history.events, at), key=lambda row: row["id"])


def exported(merging: Merging, history: History, hour: int, changes: int) -> None:
    """Let an hour of changes happen, and export it in three shards."""
    history.run(hour, changes)
    for shard in range(3):
        merging.export.write(history.of(shard, hour), hours(hour, hour + 1)[0], shard=shard)


@pytest.mark.parametrize("deleted", ["remove", "keep"])
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_the_table_is_the_captured_one_at_every_minute(
    merging: Merging, deleted: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random history in three shards: each minute, or every fifth, is a commit, and some files stay."""
    # As if the table were long: many files, of which a merge changes a few.
    monkeypatch.setattr(merge_job, "parts", lambda files: 3)
    history = History(7)
    exported(merging, history, 0, 120)
    merging.merge(START + HOUR / 2, deleted=deleted)
    kept = []
    for number in range(30, 61, step):
        before = merging.files()
        at = minute(number)
        found = merging.merge(at, deleted=deleted)
        kept.append(bool(set(before) & set(merging.files())))
        rows = merging.rows(shards=True)
        assert found.rows == len(rows)
        assert all(row["changefeed_shard"] == row["id"] % 3 for row in rows)
        rows = [{name: value for name, value in row.items() if name != "changefeed_shard"} for row in rows]
        if deleted == "keep":
            assert {row["id"]: row["_deleted_at"] for row in rows} == deletions(history, at)
            rows = [row for row in rows if row.pop("_deleted_at") is None]
        assert rows == expected(history, at)
        assert merging.look().marks["changefeed.frontier"] == at.timestamp() * 1000
    frame = fold(merging.spark, merging.export.store.path, CAPTURE, at=at)
    assert sorted((row.asDict() for row in frame.collect()), key=lambda row: row["id"]) == rows
    assert sum(kept) > len(kept) / 2
    assert len(merging.files()) <= 12


def deletions(history: History, at: datetime) -> dict[int, datetime | None]:
    """Return each key that there ever was, and when its row was deleted; None if it is there."""
    found: dict[int, datetime | None] = {}
    for _, event in sorted(history.events, key=lambda each: each[1].ulid):
        if event.at < at:
            row = event.new or event.old
            assert row is not None
            found[row["id"]] = event.ulid.time if event.new is None else None
    return found


def test_a_window_without_events_is_a_commit_without_a_job(merging: Merging) -> None:
    """Only the frontier moves; the next merge starts from there."""
    merging.merge(merging.window(0, Event(minute(1), "add", None, shoe(1))))
    files = merging.files()
    found = merging.merge(merging.window(1))
    assert (found.changed, found.added, found.rows, found.at) == (True, 0, 1, START + 2 * HOUR)
    assert len(merging.tasks) == 1
    assert merging.files() == files
    merging.merge(merging.window(2, Event(minute(121), "del", shoe(1))))
    assert (merging.rows(), merging.files(), merging.versions()) == ([], [], 3)
    merging.merge(merging.window(3, Event(minute(181), "add", None, shoe(2))))
    assert merging.rows() == [shoe(2)]


def test_a_second_run_of_a_window_changes_nothing(merging: Merging) -> None:
    """Also of an older one; a later one covers what was left out."""
    ends = [merging.window(hour, Event(minute(60 * hour), "add", None, shoe(hour))) for hour in range(4)]
    first = merging.merge(ends[0], is_window=True)
    again = merging.merge(ends[0], is_window=True)
    assert again == replace(first, written=0, added=0, removed=0, changed=False)
    assert merging.said[-1].endswith(f"has the events until {format_time(ends[0])} already")
    merging.merge(ends[2], is_window=True)
    assert ids(merging.rows()) == [0, 1, 2]
    older = merging.merge(ends[1], is_window=True)
    assert (older.changed, older.at) == (False, ends[2])
    assert merging.versions() == 2
    with pytest.raises(TableError, match=r"asked for at 2013-01-01T02:00:00.* a merge only goes forward"):
        merging.merge(ends[1])
    with pytest.raises(NotExportedError) as missing:
        merging.merge(ends[3] + HOUR)
    assert missing.value.at == ends[3] + HOUR
    assert merging.versions() == 2


def test_a_first_commit_begins_from_the_newest_base(merging: Merging) -> None:
    """The events before it are not read."""
    end = merging.window(0, *(Event(minute(n), "add", None, shoe(n)) for n in (1, 2)))
    states = f"{merging.lake}-states"
    task = FoldTask(CAPTURE, merging.export.store.path, states, end, TABLE, new_attempt(), "tests/run")
    run_fold(lambda: merging.spark, task, JobConnection({}), merging.said.append)
    end = merging.window(1, Event(minute(61), "upd", shoe(1), shoe(1, "clog")))
    merging.merge(end, states=states)
    assert merging.said[-2].endswith(f"1 events since the state at {format_time(START + HOUR)}")
    assert merging.rows() == [shoe(1, "clog"), shoe(2)]


def test_a_table_is_made_again_from_a_base(merging: Merging) -> None:
    """In one commit, also backwards, and with another column."""
    ends = [
        merging.window(0, *(Event(minute(n), "add", None, shoe(n)) for n in (1, 2))),
        merging.window(1, Event(minute(61), "del", shoe(1))),
    ]
    merging.merge(ends[1])
    before = merging.versions()
    found = merging.merge(ends[0], base="beginning", deleted="keep")
    assert (found.changed, found.removed, found.at) == (True, 1, ends[0])
    assert merging.rows() == [{**shoe(n), "_deleted_at": None} for n in (1, 2)]
    assert merging.versions() == before + 1
    with pytest.raises(TableError, match=r"was made with deleted='keep', not deleted='remove'"):
        merging.merge(ends[1])
    merging.merge(ends[1], deleted="keep")
    gone = {**shoe(1), "_deleted_at": minute(61)}
    assert merging.rows() == [gone, {**shoe(2), "_deleted_at": None}]
    merging.merge(ends[1], base="beginning")
    assert merging.rows() == [shoe(2)]


def test_deleted_rows_come_back(merging: Merging) -> None:
    """And are null again; one that was deleted in between has its last time and values."""
    first = merging.window(
        0,
        *(Event(minute(n), "add", None, shoe(n)) for n in (1, 2, 3)),
        Event(minute(5), "del", shoe(1)),
        Event(minute(6), "del", shoe(2)),
    )
    merging.merge(first, deleted="keep")
    found = merging.merge(
        merging.window(
            1,
            Event(minute(61), "add", None, shoe(1, "clog")),
            Event(minute(62), "add", None, shoe(2, "clog")),
            Event(minute(63), "upd", shoe(2, "clog"), shoe(2, "sandal")),
            Event(minute(64), "del", shoe(2, "sandal")),
        ),
        deleted="keep",
    )
    assert found.rows == 3
    assert [(row["id"], row["name"], row["_deleted_at"]) for row in merging.rows()] == [
        (1, "clog", None),
        (2, "sandal", minute(64)),
        (3, "boot", None),
    ]


def test_rows_whose_deletes_have_only_keys_cannot_be_kept(spark: SparkSession, tmp_path: Path) -> None:
    """Their last values are in no event that a merge reads; without deleted rows the table is exact."""
    known = shape()
    columns = {**known.tables[TABLE].columns, Operation.DELETE: {"id": "id"}}
    merging = Merging(spark, tmp_path, "delta", shape=reshaped(known, columns=columns))
    gone = {"id": 1, "name": None, "price": None}
    added = [Event(minute(n), "add", None, shoe(n)) for n in (1, 2)]
    end = merging.window(0, *added, Event(minute(3), "del", gone))
    with pytest.raises(FoldError, match=r"its deletes do not record 'name', 'price': capture these") as error:
        merging.merge(end, deleted="keep")
    assert error.value.facts["columns"] == ["name", "price"]
    merging.merge(end)
    assert merging.rows() == [shoe(2)]


def test_only_files_with_changed_rows_are_written_again(
    merging: Merging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones are joined when they have become many."""
    monkeypatch.setattr(rows_module, "MOST_SMALL", 3)
    merging.merge(merging.window(0, *(Event(minute(n), "add", None, shoe(n)) for n in (1, 2))))
    (first,) = merging.files()
    merging.merge(merging.window(1, Event(minute(61), "add", None, shoe(61))))
    assert first in merging.files()
    found = merging.merge(merging.window(2, Event(minute(121), "upd", shoe(61), shoe(61, "clog"))))
    assert (found.written, found.removed) == (1, 1)
    assert first in merging.files()
    merging.merge(merging.window(3, Event(minute(181), "add", None, shoe(181))))
    assert len(merging.files()) == 3
    found = merging.merge(merging.window(4, Event(minute(241), "add", None, shoe(241))))
    assert (found.removed, found.added, found.written, found.rows) == (3, 1, 5, 5)
    assert ids(merging.rows()) == [1, 2, 61, 181, 241]


def test_new_columns_are_added(merging: Merging) -> None:
    """Null in the rows of before; a column that is gone, or has another type, is refused."""
    merging.merge(merging.window(0, *(Event(minute(n), "add", None, shoe(n)) for n in (1, 2))))
    merging.merge(merging.window(1, Event(minute(61), "add", None, shoe(3))))
    image, before = merging.export.image, merging.export.shape
    merging.export.image = image.append(pa.field("size", pa.int32()))
    same = {name: name for name in merging.export.image.names}
    merging.export.shape = reshaped(shape(), columns=dict.fromkeys(Operation, same))
    new = {**shoe(1), "size": 44}
    merging.merge(merging.window(2, Event(minute(121), "upd", {**shoe(1), "size": None}, new)))
    assert merging.rows() == [new, {**shoe(2), "size": None}, {**shoe(3), "size": None}]
    versions = merging.versions()
    merging.export.image, merging.export.shape = image, before
    end = merging.window(3, Event(minute(181), "add", None, shoe(4)))
    with pytest.raises(ColumnTypeError, match=r"does not have column 'size' of .* any more.*base="):
        merging.merge(end)
    assert merging.versions() == versions
    merging.merge(end, base="beginning")
    assert merging.rows() == [shoe(n) for n in (1, 2, 3, 4)]


def test_a_wider_column_is_taken_where_the_format_widens(merging: Merging) -> None:
    """All files are written again; other formats refuse it before anything is written."""
    narrow = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.int32())])
    merging.export.image = narrow
    merging.merge(merging.window(0, Event(minute(1), "add", None, {**shoe(1), "price": 1})))
    merging.merge(merging.window(1, Event(minute(61), "add", None, {**shoe(2), "price": 2})))
    assert len(merging.files()) == 2
    merging.export.image = pa.schema([*list(narrow)[:2], pa.field("price", pa.int64())])
    end = merging.window(2, Event(minute(121), "add", None, {**shoe(3), "price": 1 << 40}))
    if not merging.library.types.widens:
        with pytest.raises(ColumnTypeError, match=r"'price' is int32 .* Make the table again .*base="):
            merging.merge(end)
        assert len(merging.tasks) == 2
        merging.merge(end, base="beginning")
    else:
        merging.merge(end)
    assert [row["price"] for row in merging.rows()] == [1, 2, 1 << 40]


def test_events_that_do_not_determine_the_table_are_refused(delta: Merging) -> None:
    """As by a fold; nothing of the table changes, and no file is left."""
    delta.merge(delta.window(0, Event(minute(1), "add", None, shoe(1))))
    seen = delta.look()
    end = delta.window(1, Event(minute(61), "upd", shoe(9), shoe(9, "clog")))
    with pytest.raises(FoldError, match="changes a row that no earlier event has inserted"):
        delta.merge(end)
    assert delta.look() == seen
    assert len(delta.output.files.names(delta.output.layout.data)) == 2
    gap = (START + HOUR / 2, START + 1.2 * HOUR)
    delta.export.shape = reshaped(delta.export.shape, gaps=(gap,))
    with pytest.raises(FoldError, match=r"the table at .* the capture missed changes"):
        delta.merge(delta.window(2, Event(minute(121), "add", None, shoe(2))))


def test_rows_that_were_recorded_again_replace_those_of_their_shard(merging: Merging) -> None:
    """A reset drops the others of its shard; with deleted rows kept it is refused."""
    merging.merge(merging.window(0, *(Event(minute(n), "add", None, shoe(n)) for n in (1, 2))))
    merging.merge(merging.window(1, Event(minute(61), "add", None, shoe(3))))
    end = merging.window(
        2,
        Event(minute(121), "reset"),
        Event(minute(121), "add", None, shoe(2, "clog"), number=1),
        Event(minute(122), "ready"),
    )
    merging.merge(end)
    assert merging.rows() == [shoe(2, "clog")]
    merging.merge(START + HOUR, base="beginning", deleted="keep")
    with pytest.raises(FoldError, match=r"which of them were deleted before is unknown.*base="):
        merging.merge(end, deleted="keep")
    merging.merge(end, base="beginning", deleted="keep")
    assert merging.rows() == [{**shoe(2, "clog"), "_deleted_at": None}]


def kills() -> list[tuple[str, Callable[[Merging, Any], dict[str, Any]]]]:
    """Return where a merge is stopped: what of it, and how."""

    def stop() -> None:
        raise StoppedError

    def job(merging: Merging, patch: Any) -> dict[str, Any]:
        def run(task: MergeTask) -> MergedFiles:
            merging.run(task)
            raise StoppedError

        return {"run": run}

    def document(merging: Merging, patch: Any) -> dict[str, Any]:
        def write(self: CurrentOutput, record: Any) -> None:
            raise StoppedError

        patch.setattr(CurrentOutput, "write", write)
        return {}

    def clean(merging: Merging, patch: Any) -> dict[str, Any]:
        def stopped(*_: object) -> None:
            raise StoppedError

        patch.setattr(CurrentOutput, "clean", stopped)
        return {}

    def commit(when: str) -> Callable[[Merging, Any], dict[str, Any]]:
        return lambda merging, patch: {
            "open_lake": lambda output: Between(merging.open(output), **{when: stop})
        }

    return [
        ("files", job),
        ("document", document),
        ("commit", commit("before")),
        ("answer", commit("after")),
        ("cleanup", clean),
    ]


@pytest.mark.parametrize(("where", "stopped"), kills())
def test_a_merge_that_was_killed_is_tried_again(
    merging: Merging, where: str, stopped: Callable[[Merging, Any], dict[str, Any]]
) -> None:
    """Each window is one commit, with exact rows; left-overs go when they are old enough."""
    events = [
        [Event(minute(n), "add", None, shoe(n)) for n in (1, 2)],
        [Event(minute(61), "upd", shoe(1), shoe(1, "clog")), Event(minute(62), "del", shoe(2))],
    ]
    for hour, own in enumerate(events):
        end = merging.window(hour, *own)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(StoppedError):
            merging.merge(end, is_window=True, **stopped(merging, patch))
        is_there = where in ("answer", "cleanup")
        assert merging.merge(end, is_window=True).changed is not is_there
    assert merging.rows() == [shoe(1, "clog")]
    assert merging.versions() == 2
    output, record = merging.output, merging.output.read(merging.look().marks)
    assert record is not None
    there = {path.name for path in Path(output.layout.data).glob("changefeed_attempt=*")}
    output.clean(merging.open(output).unused(0), START, record)
    assert {path.name for path in Path(output.layout.data).glob("changefeed_attempt=*")} == there
    output.clean(merging.open(output).unused(0), datetime.max.replace(tzinfo=START.tzinfo), record)
    left = [str(path.relative_to(output.layout.data)) for path in Path(output.layout.data).rglob("*.parquet")]
    assert [path for path in left if path.startswith("changefeed")] == merging.files()
    assert len(output.files.names(f"{output.layout.control}/merges")) == 1
    assert merging.rows() == [shoe(1, "clog")]


def test_a_job_that_is_killed_while_it_writes_is_tried_again(delta: Merging, tmp_path: Path) -> None:
    """By SIGKILL, in a process of its own: what it has left is never a part of the table."""
    first = delta.window(0, *(Event(minute(1), "add", None, shoe(n), number=n) for n in range(300)))
    delta.merge(first)
    end = delta.window(1, *(Event(minute(61), "upd", shoe(n), shoe(n, "clog"), number=n) for n in range(300)))

    def killed(task: MergeTask) -> MergedFiles:
        files = {name: tmp_path / f"{name}.json" for name in ("task", "connection", "result")}
        files["task"].write_text(task.to_json())
        JobConnection({}).save(str(files["connection"]))
        arguments = [text for name, file in files.items() for text in (f"--{name}", str(file))]
        folder = Path(delta.output.writing(task.attempt))
        with subprocess.Popen(
            [sys.executable, "-m", merge_job.__name__, *arguments],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            while not folder.exists() and process.poll() is None:
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)
        assert folder.exists()
        assert not files["result"].exists()
        raise StoppedError

    with pytest.raises(StoppedError):
        delta.merge(end, run=killed)
    assert delta.look().marks["changefeed.frontier"] == first.timestamp() * 1000
    assert delta.merge(end).changed
    assert delta.rows() == [shoe(n, "clog") for n in range(300)]
    assert delta.versions() == 2


def test_of_two_at_once_one_commits(merging: Merging) -> None:
    """The other finds the table there, and its files are gone."""
    merging.merge(merging.window(0, Event(minute(1), "add", None, shoe(1))))
    end = merging.window(1, Event(minute(61), "add", None, shoe(2)))

    def other() -> None:
        assert merging.merge(end).changed

    found = merging.merge(end, lambda output: Between(merging.open(output), before=other))
    assert not found.changed
    assert merging.said[-1].startswith("changefeed merge: somebody else has brought")
    assert (merging.rows(), merging.versions()) == ([shoe(1), shoe(2)], 2)
    folders = [name for name in merging.output.files.names(merging.output.layout.data) if name[0] != "_"]
    assert len(folders) == 2


def test_two_first_commits_at_once_make_one_table(merging: Merging) -> None:
    """Also for another time: that one is tried again."""
    end = merging.window(0, Event(minute(1), "add", None, shoe(1)), Event(minute(50), "add", None, shoe(2)))

    def other() -> None:
        assert merging.merge(START + HOUR / 2).changed

    with pytest.raises(TableConflictError, match="was changed by somebody else during the merge; retry"):
        merging.merge(end, lambda output: Between(merging.open(output), before=other))
    assert merging.rows() == [shoe(1)]
    assert merging.merge(end).changed
    assert merging.rows() == [shoe(1), shoe(2)]


def test_a_commit_whose_answer_was_lost_is_recognised(merging: Merging) -> None:
    """By the attempt that it names: the merge goes on."""

    def lost() -> None:
        raise TableConflictError("the commit got no answer", table="t")

    for hour in range(2):
        end = merging.window(hour, Event(minute(60 * hour + 1), "add", None, shoe(hour)))
        found = merging.merge(end, lambda output: Between(merging.open(output), after=lost))
        assert (found.changed, found.added) == (True, 1)
    assert (ids(merging.rows()), merging.versions()) == ([0, 1], 2)


def test_a_commit_whose_answer_was_lost_keeps_its_files_though_others_went_on(merging: Merging) -> None:
    """A merge of a later window has built on it before anybody looked."""
    merging.merge(merging.window(0, Event(minute(1), "add", None, shoe(1))))
    end = merging.window(1, Event(minute(61), "add", None, shoe(2)))
    later = merging.window(2, Event(minute(121), "upd", shoe(1), shoe(1, "clog")))

    def lost() -> None:
        assert merging.merge(later, is_window=True).changed
        raise TableConflictError("the commit got no answer", table="t")

    found = merging.merge(end, lambda output: Between(merging.open(output), after=lost), is_window=True)
    assert (found.changed, found.at) == (False, later)
    assert merging.rows() == [shoe(1, "clog"), shoe(2)]


def test_a_commit_without_an_answer_that_may_still_come_keeps_its_files(merging: Merging) -> None:
    """The table is as it was, but what is on its way may be made yet."""

    def lost() -> None:
        raise TableConflictError("the commit got no answer", table="t")

    end = merging.window(0, Event(minute(1), "add", None, shoe(1)))
    with pytest.raises(TableConflictError, match="got no answer"):
        merging.merge(end, lambda output: Between(merging.open(output), before=lost))
    (task,) = merging.tasks
    assert merging.output.written(task.attempt)
    assert merging.merge(end).changed


def test_what_others_have_done_to_the_table_is_noticed(merging: Merging) -> None:
    """A lost document, and a snapshot of somebody else; a table of another maker, and another format."""
    end = merging.window(0, Event(minute(1), "add", None, shoe(1)))
    merging.merge(end)
    with pytest.raises(OutputError, match=r"holds table 'shop.Shoe' as .*, and it was asked for as"):
        Merging.merge(_of_another_format(merging), end)
    merging.output.files.remove(f"{merging.output.layout.control}/merges")
    with pytest.raises(TableError, match=r"has lost the document of its newest commit .*base="):
        merging.merge(end)
    merging.merge(end, base="beginning")
    merging.library.delete("id = 1")
    with pytest.raises(TableError, match=r"something else has written to it.*base="):
        merging.merge(end + HOUR)
    merging.merge(end, base="beginning")
    assert merging.rows() == [shoe(1)]


def test_files_that_were_joined_by_others_are_merged_into(delta: Merging) -> None:
    """Rewriting files changes no row, and the frontier stays."""
    from deltalake import DeltaTable

    delta.merge(delta.window(0, *(Event(minute(n), "add", None, shoe(n)) for n in (1, 2))))
    delta.merge(delta.window(1, Event(minute(61), "add", None, shoe(3))))
    assert len(delta.files()) == 2
    DeltaTable(delta.library.data).optimize.compact()
    assert len(delta.files()) == 1
    delta.merge(delta.window(2, Event(minute(121), "upd", shoe(2), shoe(2, "clog"))))
    assert delta.rows() == [shoe(1), shoe(2, "clog"), shoe(3)]


def _of_another_format(merging: Merging) -> Merging:
    other = copy(merging)
    other.format = next(format for format in CURRENT_FORMATS if format != merging.format)
    other.library = LIBRARIES[other.format](merging.folder, merging.output.layout.data)
    return other


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"table_format": "parquet"}, r"not 'parquet'; plain Parquet is written by ChangefeedFoldOperator"),
        ({"table_format": "iceberg", "catalog_table": "shoe"}, "catalog_table must name"),
        ({"table_format": "delta", "catalog_table": "shop.shoe"}, "catalog_table is for"),
        ({"deleted": "mark"}, "deleted must be remove or keep, not 'mark'"),
        ({"deleted": "keep", "history": True}, "cannot be combined .* Give only one of the two"),
        ({"deleted": "mark", "history": 1}, "deleted must be .*; history must be True or False, not 1"),
        ({"kept_hours": 0}, "kept_hours must be 1 to"),
        ({"base": "oldest"}, "base must be"),
    ],
)
def test_wrong_requests_are_refused(delta: Merging, wrong: dict[str, Any], named: str) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidArgumentError, match=named):
        delta.merge(START, **wrong)


def test_a_column_with_the_name_of_ours_is_refused(delta: Merging) -> None:
    """Before anything is written."""
    delta.export.image = IMAGE.append(pa.field("_Deleted_At", pa.int32()))
    same = {name: name for name in delta.export.image.names}
    delta.export.shape = reshaped(shape(), columns=dict.fromkeys(Operation, same))
    end = delta.window(0, Event(minute(1), "add", None, {**shoe(1), "_Deleted_At": 1}))
    with pytest.raises(ColumnTypeError, match=r"has a column '_deleted_at'.*rename it"):
        delta.merge(end, deleted="keep")
    assert delta.merge(end).changed


def test_the_output_may_have_the_snapshots_of_the_table(delta: Merging) -> None:
    """But no states: those are plain Parquet in the folder of the table."""
    end = delta.window(0, Event(minute(1), "add", None, shoe(1)))
    task = FoldTask(CAPTURE, delta.export.store.path, delta.lake, end, TABLE, new_attempt(), "tests/run")
    run_fold(lambda: delta.spark, task, JobConnection({}), delta.said.append)
    with pytest.raises(OutputError, match=r"as parquet, and it was asked for as delta.*another path"):
        delta.merge(end)
