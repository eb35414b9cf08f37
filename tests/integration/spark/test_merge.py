# SPDX-License-Identifier: Apache-2.0
"""
Current tables on Spark: equal to the captured table, and only files with changed rows are written again.

How commits are made is in ``tests/unit/formats/test_current.py``; here Delta Lake stands for all formats
where only the rows matter.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    FoldError,
    OutputError,
)
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.formats.publish import CURRENT_FORMATS
from airflow_changefeed.lake.fold_plan import FoldTask
from airflow_changefeed.lake.merge_task import MergedFiles, MergeTask
from airflow_changefeed.lake.states import new_attempt
from airflow_changefeed.spark import job, merge
from airflow_changefeed.spark import merge as rows_module
from airflow_changefeed.spark.fold import fold, run_fold
from tests.integration.spark.merging import Merging
from tests.integration.spark.shoes import History
from tests.unit.export.captures import (
    CAPTURE,
    HOUR,
    TABLE,
    Event,
    fold_in_python,
    minute,
    reshaped,
    shape,
    shoe,
)
from tests.unit.export.flights import START
from tests.unit.formats.current import StoppedError, ids, kill

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


# In the gate: it is what current tables promise.
@pytest.mark.parametrize(
    ("merging", "step", "deleted"),
    [
        ("delta", 15, "keep"),
        *(
            pytest.param(format, 1, deleted, marks=pytest.mark.nightly)
            for format in CURRENT_FORMATS
            for deleted in ("keep", "remove")
        ),
    ],
    indirect=["merging"],
)
def test_the_table_is_the_captured_one_at_every_minute(
    merging: Merging, deleted: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A random history in three shards: each minute, or every fifteenth, is a commit, and some files stay.

    Each merge was killed somewhere before.
    """
    # As if the table were long: many files, of which a merge changes a few.
    monkeypatch.setattr(merge, "parts", lambda files: 3)
    history, draw = History(7), random.Random(7)
    history.run(0, 120)
    history.export(merging.export, 0)
    merging.merge(START + HOUR / 2, deleted=deleted)
    kept, killed = [], set()
    for number in range(30, 61, step):
        before = merging.files()
        at = minute(number)
        killed.add(kill(merging, draw, at, deleted=deleted))
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
    assert any(kept)
    assert len(merging.files()) <= 12
    assert len(killed) > 2


def deletions(history: History, at: datetime) -> dict[int, datetime | None]:
    """Return each key that there ever was, and when its row was deleted; None if it is there."""
    found: dict[int, datetime | None] = {}
    for _, event in sorted(history.events, key=lambda each: each[1].ulid):
        if event.at < at:
            row = event.new or event.old
            assert row is not None
            found[row["id"]] = event.ulid.time if event.new is None else None
    return found


@pytest.mark.ci
def test_a_first_commit_begins_from_the_newest_base(delta: Merging) -> None:
    """The events before it are not read."""
    end = delta.window(0, *(Event(minute(n), "add", None, shoe(n)) for n in (1, 2)))
    states = f"{delta.lake}-states"
    task = FoldTask(CAPTURE, delta.export.store.path, states, end, TABLE, new_attempt(), "tests/run")
    run_fold(lambda: delta.spark, task, JobConnection({}), delta.said.append)
    end = delta.window(1, Event(minute(61), "upd", shoe(1), shoe(1, "clog")))
    delta.merge(end, states=states)
    assert delta.said[-2].endswith(f"1 event since the state at {format_time(START + HOUR)}")
    assert delta.rows() == [shoe(1, "clog"), shoe(2)]


@pytest.mark.ci
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


@pytest.mark.ci
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


@pytest.mark.ci
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


@pytest.mark.ci
def test_a_wider_column_is_taken_where_the_format_widens(merging: Merging) -> None:
    """All files are written again: not every reader takes the old type. Other formats refuse it first."""
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
    folder = merging.output.layout.data
    kinds = [pq.read_schema(f"{folder}/{path}").field("price").type for path in merging.files()]
    assert set(kinds) == {pa.int64()}


@pytest.mark.ci
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


@pytest.mark.ci
def test_rows_that_were_recorded_again_replace_those_of_their_shard(delta: Merging) -> None:
    """A reset drops the others of its shard; with deleted rows kept it is refused."""
    delta.merge(delta.window(0, *(Event(minute(n), "add", None, shoe(n)) for n in (1, 2))))
    delta.merge(delta.window(1, Event(minute(61), "add", None, shoe(3))))
    end = delta.window(
        2,
        Event(minute(121), "reset"),
        Event(minute(121), "add", None, shoe(2, "clog"), number=1),
        Event(minute(122), "ready"),
    )
    delta.merge(end)
    assert delta.rows() == [shoe(2, "clog")]
    delta.merge(START + HOUR, base="beginning", deleted="keep")
    with pytest.raises(FoldError, match=r"rows that were deleted before cannot be found.*base="):
        delta.merge(end, deleted="keep")
    delta.merge(end, base="beginning", deleted="keep")
    assert delta.rows() == [{**shoe(2, "clog"), "_deleted_at": None}]


@pytest.mark.nightly
def test_a_job_that_is_killed_while_it_writes_is_tried_again(delta: Merging, tmp_path: Path) -> None:
    """By SIGKILL, in a process of its own: what it has left is never a part of the table."""
    first = delta.window(0, *(Event(minute(1), "add", None, shoe(n), number=n) for n in range(300)))
    delta.merge(first)
    end = delta.window(1, *(Event(minute(61), "upd", shoe(n), shoe(n, "clog"), number=n) for n in range(300)))

    def killed(task: MergeTask) -> MergedFiles:
        files = {name: tmp_path / f"{name}.json" for name in ("task", "connection")}
        files["task"].write_text(task.to_json())
        JobConnection({}).save(str(files["connection"]))
        arguments = [text for name, file in files.items() for text in (f"--{name}", str(file))]
        folder = Path(delta.output.writing(task.attempt))
        with subprocess.Popen(
            [sys.executable, "-m", job.__name__, *arguments],
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            while not folder.exists() and process.poll() is None:
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)
        assert folder.exists()
        assert not (tmp_path / "result.json").exists()
        raise StoppedError

    with pytest.raises(StoppedError):
        delta.merge(end, run=killed)
    assert delta.look().marks["changefeed.frontier"] == first.timestamp() * 1000
    assert delta.merge(end).changed
    assert delta.rows() == [shoe(n, "clog") for n in range(300)]
    assert delta.versions() == 2


@pytest.mark.ci
def test_the_output_may_have_the_snapshots_of_the_table(delta: Merging) -> None:
    """But no states: those are plain Parquet in the folder of the table."""
    end = delta.window(0, Event(minute(1), "add", None, shoe(1)))
    task = FoldTask(CAPTURE, delta.export.store.path, delta.lake, end, TABLE, new_attempt(), "tests/run")
    run_fold(lambda: delta.spark, task, JobConnection({}), delta.said.append)
    with pytest.raises(OutputError, match=r"as parquet, but the task writes delta.*another path"):
        delta.merge(end)
