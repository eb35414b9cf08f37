# SPDX-License-Identifier: Apache-2.0
"""States in an output: whole or not there, replaced as a whole, never mixed; on disks and object stores."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core import codec
from airflow_changefeed.exceptions import ForeignOutputError, ManifestError, OutputNotWritableError
from airflow_changefeed.lake.states import State, StateStore, new_attempt
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.files import Files
from airflow_changefeed.storage.local import LocalFiles
from tests.unit.export.captures import CAPTURE, TABLE, CapturedExport
from tests.unit.export.faults import remote_files
from tests.unit.export.flights import START

FIRST, SECOND, THIRD = (f"01J{number}".ljust(26, "0") for number in range(3))


@pytest.fixture(params=["local", "remote"])
def states(request: pytest.FixtureRequest, tmp_path: Path) -> StateStore:
    """The states of a table, on a disk and on an object store."""
    files: Files = LocalFiles(str(tmp_path / "states")) if request.param == "local" else remote_files()
    store = StateStore("unused", CAPTURE, TABLE, files=files)
    store.claim()
    return store


def write(states: StateStore, attempt: str, *counts: int) -> None:
    """Write an attempt's files, as Spark does: with what else it leaves."""
    folder = states.writing(START, attempt)
    for number, count in enumerate(counts):
        with states.files.writer(f"{folder}/part-{number}-{attempt}.parquet") as file:
            pq.write_table(pa.table({"id": pa.array(range(count), pa.int64())}), file)
    for name in ("_SUCCESS", ".part-0.parquet.crc", "_temporary/0/part-9.parquet"):
        states.files.write(f"{folder}/{name}", b"")


def attempts(states: StateStore) -> list[str]:
    """The attempts whose files lie in the state's folder."""
    return [name for name in states.files.names(states.folder(START)) if name.startswith("changefeed")]


def test_a_state_is_there_when_it_is_committed(states: StateStore) -> None:
    """Not before; then as a whole, with its rows counted."""
    write(states, FIRST, 3, 4)
    assert states.read(START) is None
    state = states.commit(START, FIRST)
    assert (state.rows, state.at, state.table, state.feed) == (7, START, TABLE, CAPTURE)
    assert state.files == tuple(f"part-{number}-{FIRST}.parquet" for number in range(2))
    assert state.path.endswith(f"/{TABLE}/changefeed_at=20130101T000000Z/changefeed_attempt={FIRST}")
    assert states.read(START) == state
    assert states.read(START + timedelta(hours=1)) is None


def test_a_newer_attempt_replaces_the_state_and_an_older_one_changes_nothing(states: StateStore) -> None:
    """
    Nothing of the one before is left. The task of one that comes late was given up: the newer state counts,
    and is its result. What a failed one wrote is removed, and a newer one that works goes on.
    """
    write(states, FIRST, 3)
    states.commit(START, FIRST)
    write(states, THIRD, 1)
    write(states, SECOND, 5)
    state = states.commit(START, SECOND)
    assert (state.attempt, state.rows) == (SECOND, 5)
    write(states, FIRST, 3)
    assert states.commit(START, FIRST) == state
    write(states, FIRST, 3)
    states.discard(START, FIRST)
    assert states.read(START) == state
    assert f"changefeed_attempt={FIRST}" not in attempts(states)
    newest = states.commit(START, THIRD)
    assert (newest.attempt, newest.rows) == (THIRD, 1)
    assert states.read(START) == newest
    assert attempts(states) == [f"changefeed_attempt={THIRD}"]
    assert states.files.names(states.layout.attempts) == []


def test_attempts_sort_by_their_beginning() -> None:
    """To the millisecond; two of one millisecond differ all the same."""
    names = [new_attempt() for _ in range(100)]
    assert len(set(names)) == 100
    assert [name[:10] for name in names] == sorted(name[:10] for name in names)


def damage_text(text: str) -> str:
    """Cut a document."""
    return text[:-20]


def damage_content(text: str) -> str:
    """Leave something out of a document, and sign it."""
    return codec.dump(State.KIND, 1, {"feed": CAPTURE})


@pytest.mark.parametrize("damage", [damage_text, damage_content])
def test_a_damaged_document_is_named(states: StateStore, damage: Callable[[str], str]) -> None:
    """With its path."""
    write(states, FIRST, 3)
    states.commit(START, FIRST)
    where = f"{states.folder(START)}/_state.{FIRST}.json"
    states.files.write(where, damage((states.files.read(where) or b"").decode()).encode())
    with pytest.raises(ManifestError, match=rf"_state\.{FIRST}\.json"):
        states.read(START)


def test_an_output_belongs_to_one_table(tmp_path: Path) -> None:
    """Not to an export, nor to a table of another capture; side by side they may lie."""
    CapturedExport.create(tmp_path)
    StateStore(str(tmp_path), CAPTURE, TABLE).claim()
    StateStore(str(tmp_path), CAPTURE, TABLE).claim()
    StateStore(str(tmp_path), CAPTURE, "shop.Box").claim()
    with pytest.raises(ForeignOutputError, match=f"holds the export of feed '{CAPTURE}', not the table"):
        StateStore(str(tmp_path), "other", CAPTURE).claim()
    with pytest.raises(ForeignOutputError, match=f"holds the table '{TABLE}', folded from feed '{CAPTURE}'"):
        StateStore(str(tmp_path), "shop.other_changes", TABLE).claim()
    with pytest.raises(ForeignOutputError, match=f"holds the table '{TABLE}'.* not the export of '{TABLE}'"):
        ExportStore(str(tmp_path), TABLE).claim("")
    with pytest.raises(ForeignOutputError, match="lies inside"):
        ExportStore(str(tmp_path / TABLE), "shop.Hat").claim("")
    with pytest.raises(ForeignOutputError, match="lies inside"):
        StateStore(str(tmp_path / CAPTURE), CAPTURE, TABLE).claim()


def test_a_claim_that_is_lost_is_written_again_by_the_next_fold(states: StateStore) -> None:
    """By what the states say; one of another capture, or nothing that can be read, is refused."""
    write(states, FIRST, 3)
    states.commit(START, FIRST)
    before = states.files.read(states.layout.claim)
    states.files.remove_file(states.layout.claim)
    with pytest.raises(ForeignOutputError, match=f"folded from feed '{CAPTURE}'"):
        StateStore("unused", "other", TABLE, files=states.files).claim()
    with pytest.raises(ForeignOutputError, match="and no other document names their owner"):
        ExportStore(states.files.root, TABLE, files=states.files).claim("")
    states.claim()
    assert states.files.read(states.layout.claim) == before
    states.files.remove_file(states.layout.claim)
    states.files.write(f"{states.folder(START)}/_state.{FIRST}.json", b"damaged")
    with pytest.raises(ForeignOutputError, match="and no other document names their owner"):
        states.claim()


def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """Before anything is computed."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritableError):
        StateStore(str(tmp_path / "file"), CAPTURE, TABLE).claim()
