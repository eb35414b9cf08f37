# SPDX-License-Identifier: Apache-2.0
"""Tables whose manifests were removed or restored, whose rows were deleted, or that were lost; cleaning."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest

from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import (
    ManifestError,
    OutputError,
    SupersededError,
    TableError,
)
from airflow_changefeed.export.verify import verify_export
from airflow_changefeed.formats.base import UNKNOWN, LakeTable, TableState, clean
from airflow_changefeed.formats.publish import differences, publish
from airflow_changefeed.output.schemas import schema_text
from tests.exports import verify
from tests.unit.export.faults import Killed, kill_at
from tests.unit.export.flights import FEED, Flights, hours
from tests.unit.formats.lakes import ROWS, Lake, check_whole
from tests.unit.formats.libraries import OPTIONS


def test_a_table_becomes_what_the_manifests_say(lake: Lake) -> None:
    """One that was lost is made again; a window that became empty leaves it, and adds no file."""
    lake.attempt(hours(0, 3)).run()
    lake.library.lose()
    assert len(differences(lake.store, lake.table())) == 3
    assert publish(lake.store, lake.table(), None, "tests")
    check_whole(lake, ROWS + 3)
    units = [manifest.unit for manifest in lake.store.list() if manifest.unit.shard == 1 and manifest.files]
    assert units
    for unit in units:
        for token in lake.store.attempts_of(unit):
            lake.store.withdraw(unit, token)
    publish(lake.store, lake.table(), None, "tests")
    assert len(lake.rows()) == ROWS - 5


def test_an_output_keeps_its_format(lakes: Callable[[], Lake], flights: Flights) -> None:
    """
    Both ways, until somebody publishes what is there as a table. Where the claim is lost, the log or metadata
    say which it is, and it is written again.
    """
    lake = lakes()
    lake.attempt(hours(0, 1)).run()
    before = lake.store.claimed()
    with pytest.raises(OutputError, match=f"as {lake.kind}.* the task writes parquet: an output keeps"):
        flights.plan(lake.store, hours(1, 2))
    lake.files.remove_file(lake.store.layout.claim)
    assert lake.store_of(lake.files).is_table
    with pytest.raises(OutputError, match=f"as {lake.kind}.* the task writes parquet"):
        flights.plan(lake.store, hours(0, 1))
    lake.attempt(hours(1, 2)).run()
    assert lake.store.claimed() == before
    check_whole(lake, ROWS)
    plain = lakes()
    flights.export(plain.store, hours(0, 1))
    with pytest.raises(OutputError, match=f"as parquet, but the task writes {lake.kind}"):
        plain.attempt(hours(1, 2))
    plain.store.become_table(OPTIONS[plain.kind])
    assert publish(plain.store, plain.table(), None, "tests")
    plain.attempt(hours(1, 3)).run()
    check_whole(plain, ROWS + 3)


def test_a_table_begins_with_the_first_columns_that_are_known(lake: Lake) -> None:
    """Of an idle hour's job they are not always; where they are, a reader finds no rows, not no table."""
    attempt = lake.attempt(hours(1, 2))
    attempt.write()
    assert not attempt.publish()
    assert lake.table().look().version is None
    columns = schema_text(pa.schema([("changefeed_ulid", pa.string())]))
    for manifest in lake.store.list():
        lake.store.write(replace(manifest, attempt=manifest.attempt + 1, schema=columns))
    assert publish(lake.store, lake.table(), None, "tests")
    assert lake.rows() == []
    assert lake.table().look().schema == pa.schema([("changefeed_ulid", pa.string())])


def test_units_that_overlap_are_not_published(lake: Lake) -> None:
    """
    Where the manifests of the first cut are gone, the table still has its files; where they are there, as in
    an output that was restored, verify names them, as it does without a table.
    """
    lake.attempt(hours(0, 1)).run()
    kept = lake.store.list()
    for manifest in kept:
        lake.store.remove_manifest(manifest.unit, manifest.attempt)
    wider = lake.attempt([Window(hours(0, 2)[0].start, hours(0, 2)[1].end)])
    wider.write()
    with pytest.raises(TableError, match="which overlaps units that are to be committed"):
        wider.publish()
    for manifest in kept:
        lake.store.write(manifest)
    with pytest.raises(TableError, match=r"overlaps .* would get their common rows twice"):
        publish(lake.store, lake.table(), None, "tests")
    report = verify_export(lake.store.path, FEED, table=lake.table())
    assert FaultKind.UNITS_OVERLAP in {fault.kind for fault in report.faults}


def test_rows_that_somebody_deleted_are_noticed_and_come_back(lake: Lake) -> None:
    """As the files that have lost some are others."""
    lake.attempt(hours(0, 3)).run()
    lake.library.delete(f"changefeed_ulid = '{lake.rows()[0][0]}'")
    assert len(lake.rows()) == ROWS + 2
    found = differences(lake.store, lake.table())
    assert len(found) == 2
    assert re.match(r"the table lacks [57] rows of shard", found[0])
    assert found[1].endswith("which belongs to no committed unit")
    assert publish(lake.store, lake.table(), None, "tests")
    check_whole(lake, ROWS + 3)


class _Forgetful:
    """A table that does not say how many rows a unit has, as some commits of others do not."""

    def __init__(self, table: LakeTable) -> None:
        self._table = table
        self.what = table.what
        self.commit = table.commit

    def look(self) -> TableState:
        """Return the same files, without their rows."""
        seen = self._table.look()
        return replace(seen, rows=dict.fromkeys(seen.files, UNKNOWN))


def test_rows_that_are_gone_from_our_own_files_are_named(lake: Lake) -> None:
    """The files are there; only a new attempt at the unit brings the rows back."""
    attempt = lake.attempt(hours(0, 1))
    attempt.run()
    table = _Forgetful(lake.table())
    assert [each.partition(" of ")[0] for each in differences(lake.store, table)] == [
        "the table has other rows"
    ] * 2
    with pytest.raises(TableError, match=r"somebody deleted rows\. Export the unit again"):
        attempt.publish(table)


def test_a_unit_that_is_replaced_while_it_is_published_is_no_older_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is looked at first: what it has then, the manifests have, too."""
    lake.attempt(hours(0, 2)).run()
    table = lake.table()
    look = table.look

    def late() -> TableState:
        monkeypatch.undo()
        lake.attempt(hours(0, 2)).run()
        return look()

    monkeypatch.setattr(table, "look", late)
    assert not publish(lake.store, table, None, "tests")
    check_whole(lake, ROWS)


def test_manifests_that_are_older_than_the_table_are_refused(lake: Lake) -> None:
    """They were restored, or a newer attempt is being committed."""
    first = lake.attempt(hours(0, 1))
    first.run()
    kept = {manifest.unit: manifest for manifest in lake.store.list()}
    second = lake.attempt(hours(0, 1))
    second.run()
    for unit, manifest in kept.items():
        lake.store.remove_manifest(unit, second.plan.attempt)
        lake.store.write(manifest)
    with pytest.raises(SupersededError, match=f"has attempt {second.plan.attempt} at .* restored"):
        first.publish()


def test_a_unit_that_is_not_committed_is_not_published(lake: Lake) -> None:
    """It is named, and the table stays as it is."""
    attempt = lake.attempt(hours(0, 1))
    with pytest.raises(ManifestError, match=r"2 of 2 units .* are not committed, the first shard 0"):
        attempt.publish()
    assert lake.table().look().version is None


def test_what_was_replaced_is_read_until_it_is_cleaned(lake: Lake) -> None:
    """A reader of the older version finds its files; cleaning removes those, and of failed attempts."""
    first = lake.attempt(hours(0, 1))
    first.run()
    # A job that is killed once its files are placed.
    killed = lake.attempt(hours(0, 1))
    with pytest.raises(Killed):
        killed.run(kill_at(4))
    second = lake.attempt(hours(0, 1))
    second.run()
    files = set(lake.store.files.sizes(lake.store.layout.data))
    old = {name for name in files if f"changefeed_attempt={first.plan.attempt}/" in name}
    assert len(old) == 2
    assert not old & set(clean(lake.store, lake.table(), timedelta(hours=1)))
    removed = set(clean(lake.store, lake.table(), timedelta(0)))
    assert old <= removed
    assert not any(f"changefeed_attempt={second.plan.attempt}/" in name for name in removed)
    assert not removed & set(lake.store.files.sizes(lake.store.layout.data))
    check_whole(lake, ROWS)
    assert verify(lake.store) == []


def test_cleaning_leaves_what_a_running_attempt_has_placed(lake: Lake) -> None:
    """Also between its manifests and the table's commit."""
    lake.attempt(hours(0, 1)).run()
    running = lake.attempt(hours(0, 2))
    for changes in (3, 5, 7):
        with pytest.raises(Killed):
            running.run(kill_at(changes))
        assert all("attempt=" in name for name in clean(lake.store, lake.table(), timedelta(0)))
    running.write()
    clean(lake.store, lake.table(), timedelta(0))
    running.publish()
    check_whole(lake, ROWS)
