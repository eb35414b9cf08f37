# SPDX-License-Identifier: Apache-2.0
"""What only Delta tables do: the log, what it tells and how long, and the keys with which it is asked."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_changefeed.exceptions import TableConflictError
from airflow_changefeed.formats import delta as delta_module
from airflow_changefeed.formats.delta import kept_longer
from tests.unit.export.captures import Event, minute, shoe
from tests.unit.formats.current import Current
from tests.unit.formats.exports import COLUMNS, Export, change, first, paths, unit

KEY = ("0", unit(0).name, 1)


def test_files_that_somebody_compacted_are_found_by_their_partition(delta: Export) -> None:
    """They have other names then; who removes the old ones has a conflict."""
    from deltalake import DeltaTable

    files = [delta.write(unit(0), 1, name=f"part-0000{number}-00000.parquet") for number in (0, 1)]
    table = delta.table()
    table.commit(table.look(), change(files))
    before = table.look()
    DeltaTable(delta.store.layout.data).optimize.compact()
    with pytest.raises(TableConflictError):
        table.commit(before, change([delta.write(unit(0), 2)], [file.path for file in files]))
    after = delta.table().look()
    assert list(after.files) == [KEY]
    [compacted] = paths(after)
    assert compacted not in [file.path for file in files]
    newer = delta.write(unit(0), 2)
    table.commit(after, change([newer], [compacted]))
    assert paths(table.look()) == [newer.path]


def test_the_count_of_our_commits_survives_the_log(delta: Export) -> None:
    """It is an application's transaction, which checkpoints keep; notes are gone with the log."""
    table: Any = delta.table()
    for number in range(3):
        table.commit(table.look(), change([delta.write(unit(number), number + 1)], number=str(number)))
    assert [each["number"] for each in delta.library.notes()] == ["0", "1", "2"]
    checkpoint(delta)
    for number in range(2):
        Path(delta.store.layout.data, f"_delta_log/{number:020}.json").unlink()
    assert [each["number"] for each in delta.library.notes()] == ["2"]
    table = delta.table()
    table.commit(table.look(), change([delta.write(unit(3), 4)]))
    assert table._load().transaction_version("changefeed") == 4


def test_a_commit_is_made_with_the_keys_of_now(delta: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was seen may be as old as a job is long, and its keys as well."""
    _, seen = first(delta)
    table = delta.table()
    assert table.look() == seen
    asked = []
    real = delta_module.object_store_options

    def ask(*arguments: Any) -> dict[str, str]:
        asked.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(delta_module, "object_store_options", ask)
    table.commit(seen, change([delta.write(unit(1), 2)]))
    assert len(asked) == 1


def test_a_new_column_alone_is_no_harm(delta: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Delta Lake it is a commit of its own: who is killed behind it finds the table with all its files."""
    file, seen = first(delta)
    wider = pa.schema([*COLUMNS, ("more", pa.string())])
    newer = delta.write(unit(1), 2, [{"number": 1, "more": "x"}], wider)
    with monkeypatch.context() as patched:
        patched.setattr(delta_module, "_add", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            delta.table().commit(seen, change([newer], schema=wider))
    again = delta.table().look()
    assert paths(again) == [file.path]
    delta.table().commit(again, change([newer], schema=wider))
    assert paths(delta.table().look()) == sorted([file.path, newer.path])


DAY = 86_400


def checkpoint(export: Export) -> None:
    """Make a checkpoint, as every tenth commit does: removals that are old are not in it."""
    DeltaTable(export.store.layout.data).create_checkpoint()


def ago(days: float, patched: pytest.MonkeyPatch) -> None:
    """Let a commit be made some days ago, for what Delta's log says of it."""
    then = time.time() - days * DAY
    patched.setattr(delta_module, "time", SimpleNamespace(time=lambda: then))


def replaced(export: Export, days: float, attempt: int) -> str:
    """Replace the file of hour 0, some days ago, by a file of an attempt; return the older one."""
    table = export.table()
    seen = table.look()
    newer = export.write(unit(0), attempt)
    with pytest.MonkeyPatch.context() as patched:
        ago(days, patched)
        table.commit(seen, change([newer], paths(seen)))
    for path in Path(export.store.layout.data).rglob("*.parquet"):
        if "_delta_log" not in str(path):
            os.utime(path, (time.time() - 60 * DAY,) * 2)
    return paths(seen)[0]


def properties(export: Export) -> dict[str, str]:
    """What others read of how long the table is kept."""
    configuration = DeltaTable(export.store.layout.data).metadata().configuration
    return {name: value for name, value in configuration.items() if name.startswith("delta.")}


def test_versions_are_kept_longer_than_checkpoints_name_their_files(
    delta: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do for a week. More hours are a property of the table since they were first asked for."""
    first(delta)
    with monkeypatch.context() as patched:
        ago(59, patched)
        assert delta.table().unused(timedelta(hours=720)) == []
    assert properties(delta) == {"delta.deletedFileRetentionDuration": "interval 720 hours"}
    old, new = replaced(delta, 40, 2), replaced(delta, 10, 3)
    checkpoint(delta)
    assert delta.table().unused(timedelta(hours=720)) == [old]
    assert delta.table().unused(timedelta(hours=168)) == sorted([old, new])
    version = delta.table().look().version
    assert delta.table().unused(timedelta(hours=719.5)) == [old]
    assert delta.table().look().version == version


def test_files_that_the_log_has_forgotten_wait_for_as_long_as_versions_are_kept(
    delta: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a file was removed is not known then: perhaps a week and a minute ago."""
    first(delta)
    forgotten = replaced(delta, 10, 2)
    checkpoint(delta)
    assert delta.table().unused(timedelta(hours=168)) == [forgotten]
    seen = delta.table().look()
    for _ in range(2):
        assert delta.table().unused(timedelta(hours=30 * 24)) == []
    assert delta.table().look().version == seen.version + 1
    assert delta.table().unused(timedelta(hours=168)) == [forgotten]
    with pytest.raises(TableConflictError):
        delta.table().commit(seen, change([delta.write(unit(1), 3)]))
    for days, found in ((22, []), (24, [forgotten])):
        with monkeypatch.context() as patched:
            ago(-days, patched)
            assert delta.table().unused(timedelta(hours=30 * 24)) == found
    # Longer still: the log itself is kept as well, and what it did not tell before it still does not.
    assert delta.table().unused(timedelta(hours=60 * 24)) == []
    assert properties(delta) == dict.fromkeys(
        ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration"), "interval 1440 hours"
    )
    with monkeypatch.context() as patched:
        ago(-52, patched)
        assert delta.table().unused(timedelta(hours=60 * 24)) == []


@pytest.mark.parametrize(
    ("given", "hours"),
    [
        ("interval 3 weeks", 504),
        ("interval 20 days", 480),
        ("Interval 900 HOURS", 900),
        ("5 days 12 hours", 132),
    ],
)
def test_a_property_that_somebody_has_set_counts(given: str, hours: int) -> None:
    """In the words that Spark takes; it is changed if it is too short."""
    configuration = {"delta.deletedFileRetentionDuration": given}
    assert kept_longer(configuration, hours, 0).keys() <= {"delta.logRetentionDuration"}
    longer = kept_longer(configuration, hours + 1, 1e7)
    assert longer["delta.deletedFileRetentionDuration"] == f"interval {hours + 1} hours"
    assert longer["changefeed.removalsSince"] == str(1_000 * (10_000_000 - 3600 * hours))


def test_who_lets_a_table_be_kept_longer_may_be_overtaken(
    delta: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conflict: who cleans is tried again."""
    first(delta)
    table: Any = delta.table()
    real = table._load

    def overtaken() -> Any:
        loaded = real()
        monkeypatch.undo()
        delta.table().unused(timedelta(hours=500))
        return loaded

    monkeypatch.setattr(table, "_load", overtaken)
    with pytest.raises(TableConflictError, match="was changed by somebody else"):
        table.unused(timedelta(hours=720))
    assert table.unused(timedelta(hours=720)) == []


def test_a_merge_keeps_versions_for_its_hours(tmp_path: Path) -> None:
    """From its first commit on."""
    current = Current(tmp_path, "delta")
    current.merge(current.window(0, Event(minute(1), "add", None, shoe(1))), keep_for=timedelta(hours=1_000))
    table = current.library.table()
    assert table.metadata().configuration["delta.deletedFileRetentionDuration"] == "interval 1000 hours"
    current.merge(current.window(1, Event(minute(61), "add", None, shoe(2))), keep_for=timedelta(hours=1_000))
    assert current.library.table().version() == 2
    assert len(current.rows()) == 2
