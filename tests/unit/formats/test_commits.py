# SPDX-License-Identifier: Apache-2.0
"""Commits to tables: all of a change or nothing of it, by one of those who saw the same version."""

from __future__ import annotations

import inspect
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.exceptions import ColumnTypeError, TableConflictError, TableError
from airflow_changefeed.formats.base import TableFile, TableState
from airflow_changefeed.output.store import ExportStore
from tests.exports import verify
from tests.unit.export.faults import Killed
from tests.unit.formats.exports import COLUMNS, Export, change, first, paths, unit

KEY = ("0", unit(0).name, 1)


def test_a_commit_adds_replaces_and_removes(export: Export) -> None:
    """Who opens the table again finds the files by shard, unit and attempt; looking makes no table."""
    assert export.table().look() == TableState()
    assert (export.table().columns(), export.table().unused(timedelta(0))) == (None, [])
    assert export.store.files.names(export.store.layout.data) == []
    file, seen = first(export)
    assert seen.files == {KEY: (file.path,)}
    assert seen.schema.names == COLUMNS.names
    newer = [export.write(unit(0), 2, name=f"part-00000-0000{number}.parquet") for number in (0, 1)]
    other = export.write(unit(1, shard=7), 2)
    export.table().commit(seen, change([*newer, other], [file.path]))
    seen = export.table().look()
    assert {key: sorted(files) for key, files in seen.files.items()} == {
        ("0", unit(0).name, 2): [each.path for each in newer],
        ("7", unit(1).name, 2): [other.path],
    }
    export.table().commit(seen, change(remove=paths(seen)))
    assert export.table().look().files == {}


def test_a_change_without_files_is_a_commit_with_a_note(export: Export) -> None:
    """Windows without rows count as well: also those that create the table."""
    table = export.table()
    table.commit(table.look(), change(number="1"))
    before = table.look()
    assert (before.version is not None, before.files) == (True, {})
    table.commit(before, change(number="2"))
    assert table.look().version != before.version
    assert [each["number"] for each in export.library.notes()] == ["1", "2"]


@pytest.mark.parametrize("is_replacement", [False, True])
def test_one_of_two_who_saw_the_same_version_wins(export: Export, is_replacement: bool) -> None:
    """Also where both only add other files, which the libraries would let happen."""
    file, _ = first(export)
    removed = [file.path] if is_replacement else []
    tables = [export.table(), export.table()]
    states = [table.look() for table in tables]
    ours, theirs = (export.write(unit(0), attempt) for attempt in (2, 3))
    tables[0].commit(states[0], change([ours], removed))
    with pytest.raises(TableConflictError):
        tables[1].commit(states[1], change([theirs], removed))
    assert paths(export.table().look()) == sorted({file.path, ours.path} - set(removed))
    tables[1].commit(tables[1].look(), change([theirs], [ours.path]))
    assert theirs.path in paths(export.table().look())


def race(export: Export, seen: TableState, files: list[TableFile]) -> list[str]:
    """Let each file be committed by a thread of its own at once; return the paths that won."""
    start, won = threading.Barrier(len(files)), []
    lost: list[Exception] = []

    def work(file: TableFile) -> None:
        table = export.table()
        start.wait()
        try:
            table.commit(seen, change([file]))
        except Exception as problem:
            lost.append(problem)
        else:
            won.append(file.path)

    threads = [threading.Thread(target=work, args=(file,)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(each) for each in lost] == [TableConflictError] * (len(files) - 1), lost
    return won


def test_one_of_many_at_the_same_moment_creates_the_table(export: Export) -> None:
    """The others get a conflict; so do those who commit to it at the same moment afterwards."""
    assert race(export, TableState(), [export.write(unit(0), attempt) for attempt in (1, 2, 3)])
    seen = export.table().look()
    assert len(paths(seen)) == 1
    [second] = race(export, seen, [export.write(unit(1), attempt) for attempt in (4, 5, 6)])
    assert sorted(paths(export.table().look())) == sorted([*paths(seen), second])


def traced(call: Callable[[], object], module: str, before: Callable[[int], object]) -> list[int]:
    """
    Call something, and something else before each line of a module that it comes to; return their numbers.

    :param module: its file.
    :param before: gets how many lines there were before.
    """
    lines: list[int] = []

    def line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            lines.append(frame.f_lineno)
            before(len(lines) - 1)
        return line

    earlier = sys.gettrace()
    sys.settrace(lambda frame, event, _: line if frame.f_code.co_filename == module else None)
    try:
        call()
    finally:
        sys.settrace(earlier)
    return lines


@pytest.mark.parametrize("is_first", [True, False])
def test_one_of_two_wins_at_whichever_line_the_other_comes_between(export: Export, is_first: bool) -> None:
    """Eight lines of the format's own module, as another process may be as fast as it likes."""
    module = inspect.getfile(type(export.table()))

    def race(number: int, place: int | None) -> int:
        racing = Export(export.format, export.folder / str(number))
        seen = TableState() if is_first else first(racing)[1]
        won = []

        def commit(attempt: int) -> None:
            file = racing.write(unit(1), attempt)
            try:
                racing.table().commit(seen, change([file]))
            except TableConflictError:
                return
            won.append(file.path)

        lines = len(traced(lambda: commit(2), module, lambda line: line == place and commit(3)))
        assert len(won) == 1, f"line {place} of {lines}"
        assert set(paths(racing.table().look())) == {*paths(seen), *won}
        return lines

    lines = race(0, None)
    for place in range(0, lines, -(-lines // 8)):
        race(place + 1, place)


@pytest.mark.parametrize("most", [10, pytest.param(1_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_commit_killed_at_any_line_is_whole_or_not_there(export: Export, is_first: bool, most: int) -> None:
    """At each line of the format's own module; what is left behind does not stop the next commit."""
    module = inspect.getfile(type(export.table()))

    def kill(number: int, place: int | None) -> tuple[bool, list[int]]:
        """Commit, killed before a line; return whether the commit is there, and the lines it came to."""
        # A table has eight of them, each with a column of its own.
        killed = Export(export.format, export.folder / str(number if is_first else number // 8))
        seen = killed.table().look()
        if not is_first and seen.version is None:
            seen = first(killed)[1]
        column = f"more_{number}"
        wider = pa.schema([*COLUMNS, (column, pa.string())])
        attempts = (2 * number + 2, 2 * number + 3)
        ours, next_one = (killed.write(unit(1), attempt, [{column: "x"}], wider) for attempt in attempts)

        def stop(line: int) -> None:
            if line == place:
                raise Killed

        lines = []
        with nullcontext() if place is None else pytest.raises(Killed):
            table = killed.table()
            lines = traced(lambda: table.commit(seen, change([ours], paths(seen), wider)), module, stop)
        after = killed.table().look()
        is_there = paths(after) == [ours.path]
        assert is_there or paths(after) == paths(seen), f"line {place}"
        killed.table().commit(after, change([next_one], paths(after), wider))
        rows = killed.library.read().select(["changefeed_attempt", column]).to_pylist()
        assert rows == [{"changefeed_attempt": attempts[1], column: "x"}], f"line {place}"
        return is_there, lines

    whole, lines = kill(0, None)
    places = sorted({line: place for place, line in reversed(list(enumerate(lines)))}.values())
    found = [kill(place + 1, place)[0] for place in places[:: -(-len(places) // most)]]
    # Only one line makes the change: it is not there before, and is afterwards.
    assert whole
    assert found[0] is False
    assert found == sorted(found)


def test_who_saw_another_table_loses(export: Export) -> None:
    """
    None, where one exists, an older version, also one that was let go, or a file that is gone, where the
    libraries differ: each is a conflict, and nothing of the table changes.
    """
    file, seen = first(export)
    late = [export.write(unit(0), attempt) for attempt in (2, 3)]
    for old, removed in ((TableState(), []), (seen, ["changefeed_shard=0/none.parquet"])):
        with pytest.raises(TableConflictError):
            export.table().commit(old, change([late[0]], removed))
        assert export.table().look() == seen
    export.table().commit(seen, change([late[1]], [file.path]))
    time.sleep(0.01)
    export.table().unused(timedelta(0))
    after = export.table().look()
    for old in (TableState(), seen):
        with pytest.raises(TableConflictError):
            export.table().commit(old, change([export.write(unit(1), 3)]))
        assert export.table().look() == after
    assert paths(after) == [late[1].path]


def test_new_columns_come_with_their_files(export: Export) -> None:
    """Also new fields of a struct, and a time without zone, which is a feature of its own in Delta Lake."""
    old = pa.schema([*COLUMNS, ("row", pa.struct([("a", pa.int32())]))])
    new = pa.schema(
        [*COLUMNS, ("row", pa.struct([("a", pa.int32()), ("b", pa.string())])), ("at", pa.timestamp("us"))]
    )
    table = export.table()
    older = export.write(unit(0), 1, [{"number": 1, "row": {"a": 1}}], old)
    table.commit(table.look(), change([older], schema=old))
    newer = export.write(unit(1), 2, [{"number": 2, "row": {"a": 2, "b": "x"}}], new)
    table.commit(table.look(), change([newer], schema=new))
    seen = export.table().look()
    assert {field.name: field.type for field in seen.schema} == {
        **{field.name: field.type for field in new},
        "changefeed_time": pa.timestamp("us", "UTC"),
    }
    assert paths(seen) == sorted([older.path, newer.path])
    # A column that the files have no more stays.
    table.commit(seen, change([export.write(unit(2), 3)]))
    assert export.table().look().schema == export.table().columns() == seen.schema


def test_a_column_of_another_type_is_refused(export: Export) -> None:
    """With its name; nothing is changed."""
    _, seen = first(export)
    other = pa.schema([*list(COLUMNS)[:2], ("number", pa.string())])
    file = export.write(unit(1), 2, [{"number": "a"}], other)
    with pytest.raises(ColumnTypeError, match=r"column 'number' is int64 in the table and string") as caught:
        export.table().commit(seen, change([file], schema=other))
    assert caught.value.facts["columns"] == ["number"]
    assert export.table().look() == seen


@pytest.mark.parametrize("is_first", [True, False])
def test_a_commit_whose_answer_is_lost_is_a_conflict_that_landed(
    export: Export, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Who looks again finds it, and does not repeat it."""
    seen = TableState() if is_first else first(export)[1]
    file = export.write(unit(1), 2)
    with monkeypatch.context() as patched:
        export.library.lose_answer(patched)
        with pytest.raises(TableConflictError, match="read the table again"):
            export.table().commit(seen, change([file]))
    assert file.path in paths(export.table().look())


def test_pyiceberg_commits_once(iceberg: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default it tries five times, after taking in what others did."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    _, seen = first(iceberg)
    calls = []

    def refuse(*arguments: Any, **more: Any) -> None:
        calls.append(1)
        raise CommitFailedException("somebody was faster")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", refuse)
        with pytest.raises(TableConflictError):
            iceberg.table().commit(seen, change([iceberg.write(unit(1), 2)]))
    assert len(calls) == 1
    table: Any = iceberg.table()
    table.commit(seen, change([iceberg.write(unit(1), 2)]))
    with table._catalog() as catalog:
        assert "commit.retry.num-retries" not in table._load(catalog).metadata.properties


def test_any_sequence_of_commits_gives_the_files_it_says(export: Export) -> None:
    """As a dictionary would have them."""
    random_ = random.Random(1)
    oracle: dict[tuple[str, str, int], tuple[str, ...]] = {}
    table = export.table()
    for attempt in range(1, 12):
        if random_.random() < 0.3:
            table = export.table()
        seen = table.look()
        added: list[TableFile] = []
        for chosen in {unit(random_.randrange(4), random_.randrange(2)) for _ in range(random_.randrange(3))}:
            count = random_.randrange(3)
            added += [export.write(chosen, attempt, name=f"part-{number}.parquet") for number in range(count)]
            oracle = {
                key: value for key, value in oracle.items() if key[:2] != (str(chosen.shard), chosen.name)
            }
            if count:
                oracle[str(chosen.shard), chosen.name, attempt] = tuple(file.path for file in added[-count:])
        kept = {path for files in oracle.values() for path in files}
        table.commit(seen, change(added, [path for path in paths(seen) if path not in kept]))
        found = table.look()
        assert {key: tuple(sorted(files)) for key, files in found.files.items()} == oracle


def test_unused_files_are_those_of_no_version_that_is_kept(export: Export) -> None:
    """Those of replaced units once their time is over, and those that were never in the table."""
    file, seen = first(export)
    newer = export.write(unit(0), 2)
    export.table().commit(seen, change([newer], [file.path]))
    never = export.write(unit(3), 9)
    assert file.path not in export.table().unused(timedelta(hours=24))
    time.sleep(0.01)
    assert export.table().unused(timedelta(0)) == sorted([file.path, never.path])
    assert export.store.files.exists(f"{export.store.layout.data}/{file.path}")
    assert paths(export.table().look()) == [newer.path]


def test_a_version_is_kept_since_it_was_replaced(export: Export) -> None:
    """However long ago it was made: somebody may have begun to read it just before the next one."""
    file, seen = first(export)
    time.sleep(0.5)
    newer = export.write(unit(0), 2)
    export.table().commit(seen, change([newer], [file.path]))
    assert export.table().unused(timedelta(seconds=0.4)) == []
    assert paths(export.table().look()) == [newer.path]


def test_a_table_of_somebody_else_is_refused(export: Export) -> None:
    """One that has no partitions of ours, or lies elsewhere."""
    export.library.make_foreign()
    with pytest.raises(TableError, match=r"not created by an export.* another |choose another table"):
        export.table().look()


def test_verify_takes_the_folders_of_tables_for_what_they_are(export: Export) -> None:
    """It names the unit that has no manifest here, and nothing of the log or the metadata."""
    first(export)
    store = ExportStore(export.path, export.feed)
    kinds = [fault.kind for fault in verify(store)]
    assert kinds == [FaultKind.CLAIM_MISSING, FaultKind.LEFTOVER]
