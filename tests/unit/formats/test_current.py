# SPDX-License-Identifier: Apache-2.0
"""
Current tables: one commit for each time, whoever is killed, comes twice or at once, or loses the answer.

What the Spark job writes is in ``tests/integration/spark/test_merge.py``.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import (
    NotExportedError,
    TableConflictError,
    TableError,
)
from tests.unit.export.captures import HOUR, Event, minute, shoe
from tests.unit.export.flights import START
from tests.unit.formats.current import KILLS, Between, Current, Kill, StoppedError, ids


def test_a_window_without_events_is_a_commit_without_a_job(current: Current) -> None:
    """Only the frontier moves; the next merge starts from there."""
    current.merge(current.window(0, Event(minute(1), "add", None, shoe(1))))
    files = current.files()
    found = current.merge(current.window(1))
    assert (found.changed, found.added, found.rows, found.at) == (True, 0, 1, START + 2 * HOUR)
    assert len(current.tasks) == 1
    assert current.files() == files
    current.merge(current.window(2, Event(minute(121), "del", shoe(1))))
    assert (current.rows(), current.files(), current.versions()) == ([], [], 3)
    current.merge(current.window(3, Event(minute(181), "add", None, shoe(2))))
    assert current.rows() == [shoe(2)]


def test_a_claim_that_is_lost_is_written_again_by_the_next_merge(current: Current) -> None:
    """By what the commits say of themselves, in the format that the table has."""
    current.merge(current.window(0, Event(minute(1), "add", None, shoe(1))))
    claim = Path(current.output.layout.claim)
    before = claim.read_bytes()
    claim.unlink()
    current.merge(current.window(1, Event(minute(61), "add", None, shoe(2))))
    assert claim.read_bytes() == before
    assert ids(current.rows()) == [1, 2]


def test_a_second_run_of_a_window_changes_nothing(current: Current) -> None:
    """Also of an older one; a later one covers what was left out."""
    ends = [current.window(hour, Event(minute(60 * hour), "add", None, shoe(hour))) for hour in range(4)]
    first = current.merge(ends[0], is_window=True)
    again = current.merge(ends[0], is_window=True)
    assert again == replace(first, written=0, added=0, removed=0, changed=False, written_bytes=0)
    assert current.said[-1].endswith(f"already has the events until {format_time(ends[0])}")
    current.merge(ends[2], is_window=True)
    assert ids(current.rows()) == [0, 1, 2]
    older = current.merge(ends[1], is_window=True)
    assert (older.changed, older.at) == (False, ends[2])
    assert current.versions() == 2
    with pytest.raises(TableError, match=r"the merge is for 2013-01-01T02:00:00.* a merge only goes forward"):
        current.merge(ends[1])
    with pytest.raises(NotExportedError) as missing:
        current.merge(ends[3] + HOUR)
    assert missing.value.at == ends[3] + HOUR
    assert current.versions() == 2


def test_a_table_is_made_again_from_a_base(current: Current) -> None:
    """In one commit, also backwards, and with another column."""
    ends = [
        current.window(0, *(Event(minute(n), "add", None, shoe(n)) for n in (1, 2))),
        current.window(1, Event(minute(61), "del", shoe(1))),
    ]
    current.merge(ends[1])
    before = current.versions()
    found = current.merge(ends[0], base="beginning", deleted="keep")
    assert (found.changed, found.removed, found.at) == (True, 1, ends[0])
    assert current.rows() == [{**shoe(n), "_deleted_at": None} for n in (1, 2)]
    assert current.versions() == before + 1
    with pytest.raises(TableError, match=r"was made with deleted='keep', not deleted='remove'"):
        current.merge(ends[1])
    current.merge(ends[1], deleted="keep")
    gone = {**shoe(1), "_deleted_at": minute(61)}
    assert current.rows() == [gone, {**shoe(2), "_deleted_at": None}]
    current.merge(ends[1], base="beginning")
    assert current.rows() == [shoe(2)]


@pytest.mark.parametrize(("where", "stopped"), KILLS)
def test_a_merge_that_was_killed_is_tried_again(current: Current, where: str, stopped: Kill) -> None:
    """Each window is one commit, with exact rows; left-overs go when they are old enough."""
    events = [
        [Event(minute(n), "add", None, shoe(n)) for n in (1, 2)],
        [Event(minute(61), "upd", shoe(1), shoe(1, "clog")), Event(minute(62), "del", shoe(2))],
    ]
    for hour, own in enumerate(events):
        end = current.window(hour, *own)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(StoppedError):
            current.merge(end, is_window=True, **stopped(current, patch))
        is_there = where in ("answer", "cleanup")
        assert current.merge(end, is_window=True).changed is not is_there
    assert current.rows() == [shoe(1, "clog")]
    assert current.versions() == 2
    output, record = current.output, current.output.read(current.look().marks)
    there = set(Path(output.layout.data).rglob("*.parquet"))
    output.clean(current.open(output).unused(timedelta(0)), START, record)
    assert set(Path(output.layout.data).rglob("*.parquet")) == there
    output.clean(current.open(output).unused(timedelta(0)), datetime.max.replace(tzinfo=START.tzinfo), record)
    left = [str(path.relative_to(output.layout.data)) for path in Path(output.layout.data).rglob("*.parquet")]
    assert [path for path in left if path.startswith("changefeed")] == current.files()
    assert len(output.files.names(f"{output.layout.control}/merges")) == 1
    assert current.rows() == [shoe(1, "clog")]


def test_of_two_at_once_one_commits(current: Current) -> None:
    """The other finds the table there, and its files are gone."""
    current.merge(current.window(0, Event(minute(1), "add", None, shoe(1))))
    end = current.window(1, Event(minute(61), "add", None, shoe(2)))

    def other() -> None:
        assert current.merge(end).changed

    found = current.merge(end, lambda output: Between(current.open(output), before=other))
    assert not found.changed
    assert current.said[-1].startswith("changefeed merge: somebody else has merged")
    assert (current.rows(), current.versions()) == ([shoe(1), shoe(2)], 2)
    folders = [name for name in current.output.files.names(current.output.layout.data) if name[0] != "_"]
    assert len(folders) == 2


def test_two_first_commits_at_once_make_one_table(current: Current) -> None:
    """Also for another time: that one is tried again."""
    end = current.window(0, Event(minute(1), "add", None, shoe(1)), Event(minute(50), "add", None, shoe(2)))

    def other() -> None:
        assert current.merge(START + HOUR / 2).changed

    with pytest.raises(TableConflictError, match="was changed by somebody else during the merge; retry"):
        current.merge(end, lambda output: Between(current.open(output), before=other))
    assert current.rows() == [shoe(1)]
    assert current.merge(end).changed
    assert current.rows() == [shoe(1), shoe(2)]


def test_a_commit_whose_answer_was_lost_is_recognised(current: Current) -> None:
    """By the attempt that it names: the merge goes on."""

    def lost() -> None:
        raise TableConflictError("the commit got no answer", table="t")

    for hour in range(2):
        end = current.window(hour, Event(minute(60 * hour + 1), "add", None, shoe(hour)))
        found = current.merge(end, lambda output: Between(current.open(output), after=lost))
        assert (found.changed, found.added) == (True, 1)
    assert (ids(current.rows()), current.versions()) == ([0, 1], 2)


def test_a_commit_whose_answer_was_lost_keeps_its_files_though_others_went_on(current: Current) -> None:
    """A later merge has written its rows again before anybody looked: older versions need the files."""
    current.merge(current.window(0, Event(minute(1), "add", None, shoe(1))))
    end = current.window(1, Event(minute(61), "add", None, shoe(2)))
    later = current.window(2, Event(minute(121), "upd", shoe(1), shoe(1, "clog")))

    def lost() -> None:
        assert current.merge(later, is_window=True).changed
        raise TableConflictError("the commit got no answer", table="t")

    found = current.merge(end, lambda output: Between(current.open(output), after=lost), is_window=True)
    assert (found.changed, found.at) == (False, later)
    own = current.output.written(current.tasks[1].attempt)
    assert [file.rows for file in own] == [2]
    assert {file.path for file in own}.isdisjoint(current.files())
    assert current.rows() == [shoe(1, "clog"), shoe(2)]


def test_a_commit_without_an_answer_that_may_still_come_keeps_its_files(current: Current) -> None:
    """The table is as it was, but what is on its way may be made yet."""

    def lost() -> None:
        raise TableConflictError("the commit got no answer", table="t")

    end = current.window(0, Event(minute(1), "add", None, shoe(1)))
    with pytest.raises(TableConflictError, match="got no answer"):
        current.merge(end, lambda output: Between(current.open(output), before=lost))
    (task,) = current.tasks
    assert current.output.written(task.attempt)
    assert current.merge(end).changed
