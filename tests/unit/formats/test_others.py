# SPDX-License-Identifier: Apache-2.0
"""Current tables that somebody else has written to: what changed rows is refused, all else does no harm."""

from __future__ import annotations

from copy import copy
from pathlib import Path

import pytest
from deltalake import write_deltalake

from airflow_changefeed.exceptions import OutputError, TableError
from airflow_changefeed.formats.publish import CURRENT_FORMATS
from tests.unit.export.captures import HOUR, Event, minute, shoe
from tests.unit.formats.current import Current
from tests.unit.formats.libraries import LIBRARIES

_WRITTEN = r"something other than a merge has written to .* Restore the version .*base="


def test_what_others_have_done_to_the_table_is_noticed(current: Current) -> None:
    """A lost document, and a snapshot of somebody else; a table of another maker, and another format."""
    end = current.window(0, Event(minute(1), "add", None, shoe(1)))
    current.merge(end)
    with pytest.raises(OutputError, match=r"holds table 'shop.Shoe' as .*, but the task writes"):
        _of_another_format(current).merge(end)
    current.output.files.remove(f"{current.output.layout.control}/merges")
    with pytest.raises(TableError, match=r"has lost the document of its newest commit .*base="):
        current.merge(end)
    current.merge(end, base="beginning")
    current.library.delete("id = 1")
    with pytest.raises(TableError, match=r"something other than a merge has written to .*base="):
        current.merge(end + HOUR)
    current.merge(end, base="beginning")
    assert current.rows() == [shoe(1)]


def _of_another_format(current: Current) -> Current:
    other = copy(current)
    other.format = next(format for format in CURRENT_FORMATS if format != current.format)
    other.library = LIBRARIES[other.format](current.folder, current.output.layout.data)
    return other


def merged(current: Current) -> Current:
    """Return a table that was merged twice: a row came, and was updated."""
    current.merge(current.window(0, Event(minute(1), "add", None, shoe(1))))
    current.merge(current.window(1, Event(minute(61), "upd", shoe(1), shoe(1, "clog"))))
    return current


@pytest.fixture
def delta(tmp_path: Path) -> Current:
    """A Delta table that was merged twice."""
    return merged(Current(tmp_path, "delta"))


def test_an_update_that_keeps_the_number_of_rows_is_noticed(current: Current) -> None:
    """Until the version of the newest merge is there again, or the table is made again."""
    merged(current)
    end = current.window(2, Event(minute(121), "add", None, shoe(2)))
    for _ in range(2):
        current.library.update("id = 1", "name", "pump")
        with pytest.raises(TableError, match=_WRITTEN):
            current.merge(end)
    current.library.restore(1)
    assert current.merge(end).changed
    assert current.rows() == [shoe(1, "clog"), shoe(2)]
    current.library.update("id = 1", "name", "pump")
    assert current.merge(end, base="beginning").changed
    assert current.rows() == [shoe(1, "clog"), shoe(2)]


def test_a_delta_table_that_was_restored_is_refused(delta: Current) -> None:
    """Its marks are those of the newest merge, and its rows are older."""
    end = delta.window(2, Event(minute(121), "add", None, shoe(2)))
    delta.library.restore(0)
    assert delta.rows() == [shoe(1)]
    with pytest.raises(TableError, match=_WRITTEN):
        delta.merge(end)
    delta.library.restore(1)
    assert delta.merge(end).changed
    assert delta.rows() == [shoe(1, "clog"), shoe(2)]


def test_an_iceberg_table_that_was_restored_goes_on_from_there(tmp_path: Path) -> None:
    """Marks are those of its snapshot, so the later window is merged again."""
    current = merged(Current(tmp_path, "iceberg"))
    current.library.restore(0)
    assert current.rows() == [shoe(1)]
    assert current.merge(current.window(2, Event(minute(121), "add", None, shoe(2)))).changed
    assert current.rows() == [shoe(1, "clog"), shoe(2)]


def test_what_changes_no_row_does_no_harm(delta: Current) -> None:
    """Rewritten files, old ones removed, and properties; also around a change that is undone."""
    table = delta.library.table
    for hour in (2, 3):
        merge, before = table().version(), delta.files()
        table().optimize.z_order(["id"])
        assert delta.files() != before
        table().vacuum(24, dry_run=False, enforce_retention_duration=False)
        table().alter.set_table_properties({"delta.appendOnly": "false"})
        if hour > 2:
            delta.library.update("id = 1", "name", "pump")
            table().optimize.z_order(["name"])
            table().restore(merge)
        assert delta.merge(delta.window(hour, Event(minute(60 * hour + 1), "add", None, shoe(hour)))).changed
    assert delta.rows() == [shoe(1, "clog"), shoe(2), shoe(3)]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_change_that_was_undone_does_no_harm_beside_rewritten_files(delta: Current, is_first: bool) -> None:
    """Although the files are not those of the merge any more."""
    table = delta.library.table
    if is_first:
        table().optimize.z_order(["id"])
    before = table().version()
    delta.library.update("id = 1", "name", "pump")
    table().restore(before)
    if not is_first:
        table().optimize.z_order(["id"])
    assert delta.merge(delta.window(2, Event(minute(121), "add", None, shoe(2)))).changed
    assert delta.rows() == [shoe(1, "clog"), shoe(2)]


def clean_log(current: Current) -> None:
    """Make a checkpoint, and remove what it replaces."""
    table = current.library.table()
    table.create_checkpoint()
    log = Path(current.library.data, "_delta_log")
    for number in range(table.version()):
        (log / f"{number:020}.json").unlink(missing_ok=True)


def test_a_log_that_was_cleaned_up_keeps_what_merges_need(delta: Current) -> None:
    """The marks. What others did in a lost part of the log is seen where the number of rows changed."""
    clean_log(delta)
    assert delta.merge(delta.window(2, Event(minute(121), "add", None, shoe(2)))).changed
    delta.library.table().optimize.z_order(["id"])
    clean_log(delta)
    assert delta.merge(delta.window(3, Event(minute(181), "add", None, shoe(3)))).changed
    assert delta.rows() == [shoe(1, "clog"), shoe(2), shoe(3)]
    delta.library.delete("id = 2")
    delta.library.table().alter.set_table_properties({"delta.appendOnly": "false"})
    clean_log(delta)
    with pytest.raises(TableError, match=r"has 2 rows, and its newest merge left 3: something else .*base="):
        delta.merge(delta.window(4))


def test_rows_that_others_added_in_a_lost_part_of_the_log_are_seen(delta: Current) -> None:
    """More than the newest merge has left are as wrong as fewer."""
    write_deltalake(delta.library.table(), delta.library.table().to_pyarrow_table(), mode="append")
    delta.library.table().alter.set_table_properties({"delta.appendOnly": "false"})
    clean_log(delta)
    with pytest.raises(TableError, match="has 2 rows, and its newest merge left 1: something else"):
        delta.merge(delta.window(2))
