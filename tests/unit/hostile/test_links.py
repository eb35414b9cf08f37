# SPDX-License-Identifier: Apache-2.0
"""
Symbolic links in an output on a disk, wherever somebody who can write to it puts one: nothing of ours reads,
writes, moves or removes what they lead to, and what they stop is said by their names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.doctor.doctor import examine
from airflow_changefeed.exceptions import ChangefeedError, OutputError, SymbolicLinkError, TableError
from airflow_changefeed.export.job_spec import (
    mark_finished,
    read_job,
    read_receipt,
    read_spec,
    remove_spec,
    write_job,
    write_receipt,
    write_spec,
)
from airflow_changefeed.export.result import ExportResult
from airflow_changefeed.export.verify import verify_export
from airflow_changefeed.lake.bases import base_of
from airflow_changefeed.lake.snapshots import Snapshot, SnapshotBegin, SnapshotFiles
from airflow_changefeed.lake.states import StateStore
from airflow_changefeed.output.attempts import begin, end
from airflow_changefeed.output.dataset import export_dataset
from airflow_changefeed.output.layout import token_text
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.files import open_files
from airflow_changefeed.storage.local import LocalFiles
from tests.identity import DATABASE
from tests.unit.export.captures import CAPTURE, TABLE
from tests.unit.export.flights import FEED, START, Flights, hours
from tests.unit.formats.exports import Export, first
from tests.unit.hostile.valid import samples


def _write(files: LocalFiles, path: str) -> None:
    with files.writer(path) as file:
        file.write(b"ours")


CALLS: dict[str, Callable[[LocalFiles, str], Any]] = {
    "names": lambda files, path: files.names(path),
    "sizes": lambda files, path: files.sizes(path),
    "exists": lambda files, path: files.exists(path),
    "size": lambda files, path: files.size(path),
    "read": lambda files, path: files.read(path),
    "reader": lambda files, path: files.reader(path).close(),
    "url": lambda files, path: files.url(path),
    "write": lambda files, path: files.write(path, b"ours"),
    "writer": _write,
    "move from": lambda files, path: files.move(path, f"{files.root}/moved"),
    "move to": lambda files, path: files.move(f"{files.root}/ours", path),
    "swap in from": lambda files, path: files.swap_in(path, f"{files.root}/moved"),
    "swap in to": lambda files, path: files.swap_in(f"{files.root}/folder", path),
    "remove": lambda files, path: files.remove(path),
    "remove_file": lambda files, path: files.remove_file(path),
    "prune": lambda files, path: files.prune(path, files.root),
}


def tree(root: Path) -> dict[str, bytes | str | None]:
    """Return what lies below a folder: content of files, and where links lead."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        found[name] = (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        )
    return found


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Give somebody else's folders and files."""
    outside = tmp_path / "outside"
    for name in ("b/c/file", "c/file", "file", "empty"):
        path = outside / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name == "empty" else path.write_bytes(b"somebody's")
    return outside


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    """Give an output with a file and a folder of ours."""
    files = LocalFiles(str(tmp_path / "out"))
    files.write(f"{files.root}/ours", b"ours")
    files.write(f"{files.root}/folder/ours", b"ours")
    return files


@pytest.mark.parametrize("place", ["a", "a/b", "a/b/c", "a/b/c/file"])
@pytest.mark.parametrize("path", ["a/b/c/file", "a/b/c"])
def test_no_call_follows_a_link(files: LocalFiles, outside: Path, place: str, path: str) -> None:
    """Neither one that a folder of the path is, nor one that the path itself is; and the error names it."""
    link, wanted = Path(files.root) / place, f"{files.root}/{path}"
    before = tree(outside)
    for name, call in CALLS.items():
        shutil.rmtree(Path(files.root) / "a", ignore_errors=True)
        (Path(files.root) / "a").unlink(missing_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(outside / "file" if place.endswith("file") else outside)
        if len(place) > len(path) or (place == path and name.endswith(" to")):
            # It lies in the folder that is asked for, and shares its fate; or is what a rename replaces.
            with suppress(ChangefeedError, IsADirectoryError):
                call(files, wanted)
        elif place == path and name in ("write", "remove", "remove_file", "prune"):
            call(files, wanted)
            assert link.is_symlink() is (name == "prune")
        else:
            with pytest.raises(SymbolicLinkError, match=r"symbolic link.*mount.*make it the root") as caught:
                call(files, wanted)
            assert caught.value.facts["path"] == str(link), name
        assert tree(outside) == before, name


@pytest.mark.parametrize("target", ["nowhere", "a", "/", "..", "../outside/empty"])
def test_no_call_follows_a_link_to_nothing_itself_or_a_folder_above(
    files: LocalFiles, outside: Path, target: str
) -> None:
    """What a link leads to is no matter, and is not made."""
    (Path(files.root) / "a").symlink_to(target)
    before = tree(outside)
    for call in CALLS.values():
        with pytest.raises(SymbolicLinkError, match=f"{files.root}/a is a symbolic link"):
            call(files, f"{files.root}/a/changefeed/x")
    assert tree(outside) == before
    assert not (Path(files.root) / "nowhere").exists()


def test_what_is_removed_does_not_go_where_removed_folders_are_linked_to(
    files: LocalFiles, outside: Path
) -> None:
    """Somebody else's folders were deleted, in which a sweep found what looked like leftovers."""
    link = Path(files.root) / "_changefeed" / "removed"
    link.parent.mkdir()
    link.symlink_to(outside)
    before = tree(outside)
    with pytest.raises(SymbolicLinkError, match="removed is a symbolic link"):
        files.remove(f"{files.root}/folder")
    with pytest.raises(SymbolicLinkError, match="removed is a symbolic link"):
        files.sweep()
    assert tree(outside) == before
    assert files.read(f"{files.root}/folder/ours") == b"ours"


def test_links_in_what_is_removed_are_removed_and_not_followed(files: LocalFiles, outside: Path) -> None:
    """At any depth, also in what a killed removal has left."""
    root = Path(files.root)
    for folder in (root / "folder", root / "_changefeed" / "removed" / "left" / "deep"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a").symlink_to(outside)
        (folder / "b").symlink_to(outside / "file")
    (root / "_changefeed" / "removed" / "itself").symlink_to(outside)
    before = tree(outside)
    files.remove(f"{files.root}/folder")
    files.sweep()
    assert tree(outside) == before
    assert [path.name for path in root.iterdir()] == ["ours"]


def test_a_folder_that_becomes_a_link_on_the_way_is_not_followed(
    files: LocalFiles, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of the whole path before its use would be over by then."""
    shutil.copytree(outside, Path(files.root) / "a")
    before, opened = tree(outside), os.open

    def swapped(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        folder = Path(files.root) / "a"
        if path == "b" and not folder.is_symlink():
            folder.rename(folder.with_name("aside"))
            folder.symlink_to(outside)
        return opened(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", swapped)
    for call in CALLS.values():
        with suppress(ChangefeedError, FileNotFoundError):
            call(files, f"{files.root}/a/b/c/file")
        (Path(files.root) / "a").unlink()
        (Path(files.root) / "aside").rename(Path(files.root) / "a")
    assert tree(outside) == before


def test_a_path_that_leads_out_is_refused(files: LocalFiles, outside: Path) -> None:
    """Whoever made it."""
    places = ("/../outside/file", "/folder/../../outside", "/..", "/folder/..", "x/file")
    before = tree(outside)
    for path in (f"{outside}/file", *(f"{files.root}{place}" for place in places)):
        for name, call in CALLS.items():
            # Above the root nothing is pruned anyway.
            refused = pytest.raises(OutputError, match="does not lie below")
            with suppress(OutputError) if name == "prune" else refused:
                call(files, path)
    assert tree(outside) == before


def test_a_pipe_does_not_hold_who_reads_it(files: LocalFiles) -> None:
    """Nobody writes to it, ever."""
    os.mkfifo(f"{files.root}/pipe")
    assert files.read(f"{files.root}/pipe") == b""
    assert files.size(f"{files.root}/pipe") is None


# ---- an export


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """Give a feed with an hour of events."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(6, 0, shard=1)
    flights.source.drain(FEED)
    return flights


@pytest.fixture
def store(flights: Flights, tmp_path: Path) -> ExportStore:
    """Give its export, with documents of each kind, and leftovers."""
    store = ExportStore(str(tmp_path / "lake" / "out"), FEED)
    flights.export(store, hours(0, 1))
    plan = flights.plan(store, hours(0, 1))
    begin(store, plan)
    write_job(store, [write_spec(store, plan)])
    list(flights.write(store, plan))
    result = ExportResult("done", attempt=plan.attempt, spec=plan.attempt)
    write_receipt(store, plan.attempt, plan.attempt, result)
    return store


def deeds(flights: Flights, store: ExportStore) -> Iterator[Callable[[], object]]:
    """Yield what exports, their jobs, readers and people do to an output."""
    spec = max(store.specs(), default=1)
    uri = f"{store.path}/_changefeed/{FEED}/specs/{token_text(spec)}/spec.json"
    units = list(store.units(1))
    plan = flights.plan(store, hours(0, 1))
    yield lambda: read_spec(uri)
    yield lambda: read_receipt(store, spec)
    yield lambda: [read_job(f"{store.layout.jobs}/{name}") for name in store.files.names(store.layout.jobs)]
    yield lambda: write_receipt(store, spec, 7, ExportResult("done", attempt=7, spec=spec))
    yield lambda: mark_finished(store, spec)
    yield lambda: remove_spec(store, spec)
    yield lambda: write_job(store, [write_spec(store, plan)])
    yield lambda: begin(store, plan)
    yield lambda: flights.commit(store, plan)
    yield lambda: end(store, plan, committed=False)
    yield lambda: flights.export(store, hours(0, 1))
    yield lambda: export_dataset(store.path, FEED).to_table()
    yield lambda: verify_export(store.path, FEED)
    yield lambda: examine(flights.source, open_store=lambda feed: store)
    yield lambda: store.claim(DATABASE)
    yield lambda: [store.withdraw(unit, attempt) for unit in units for attempt in store.attempts_of(unit)]
    yield lambda: store.clean(units, 99)
    yield store.files.sweep


def do_all(flights: Flights, store: ExportStore) -> None:
    """Do it all, whatever is refused."""
    with suppress(ChangefeedError):
        for deed in deeds(flights, store):
            # Tasks hand on nothing but the text of an error.
            with suppress(ChangefeedError, RuntimeError):
                deed()


#: What is not there, and comes: where somebody may put a link before us.
COMING = [
    "_changefeed/removed",
    "_changefeed/_programs",
    f"_changefeed/{FEED}/attempts/000000000003",
    f"_changefeed/{FEED}/attempts/000000000003/writing",
    f"_changefeed/{FEED}/attempts/000000000004/shard=1",
    f"_changefeed/{FEED}/specs/000000000003",
]


@pytest.mark.ci
def test_whatever_of_an_export_is_a_link_nothing_happens_where_it_leads(
    flights: Flights, store: ExportStore, tmp_path: Path
) -> None:
    """Each folder and file in turn lies elsewhere; ``verify`` names the link."""
    root, pristine, outside = Path(store.path), tmp_path / "pristine", tmp_path / "outside"
    shutil.copytree(root, pristine)
    for name in [*tree(pristine), *COMING]:
        shutil.rmtree(root)
        shutil.copytree(pristine, root)
        shutil.rmtree(outside, ignore_errors=True)
        outside.mkdir()
        link = root / name
        if link.exists():
            link.rename(outside / "it")
        else:
            link.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(pristine / "_changefeed" / FEED / "attempts", outside / "it")
        link.symlink_to(outside / "it")
        before = tree(outside)
        own = ExportStore(store.path, FEED)
        found = [fault for fault in verify_export(store.path, FEED).faults if fault.path == str(link)]
        assert [fault.kind for fault in found] == [FaultKind.SYMBOLIC_LINK], name
        do_all(flights, own)
        assert tree(outside) == before, name


@pytest.mark.parametrize("place", [FEED, f"_changefeed/{FEED}", "_changefeed", f"{FEED}/changefeed_shard=1"])
def test_a_link_is_refused_before_anything_is_sealed_or_written(
    flights: Flights, store: ExportStore, tmp_path: Path, place: str
) -> None:
    """A folder that somebody keeps on another disk by a link: the error says what to do instead."""
    link = Path(store.path) / place
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path / "elsewhere")
    refused = pytest.raises((SymbolicLinkError, RuntimeError), match=f"{link} is a symbolic link.*mount that")
    with refused:
        flights.export(ExportStore(store.path, FEED), hours(0, 1))
    assert tree(tmp_path / "elsewhere") == before


def test_the_root_may_be_a_link(flights: Flights, tmp_path: Path) -> None:
    """And so may be what is above it; all goes to where it led when the output was opened."""
    (tmp_path / "disk" / "out").mkdir(parents=True)
    (tmp_path / "mnt").symlink_to(tmp_path / "disk")
    (tmp_path / "mnt" / "linked").symlink_to("out")
    path = f"{tmp_path}/mnt/linked"
    store = ExportStore(path, FEED)
    flights.export(store, hours(0, 1))
    assert export_dataset(path, FEED).count_rows() == 6
    assert verify_export(path, FEED).faults == []
    assert (tmp_path / "disk" / "out" / FEED).is_dir()
    (tmp_path / "disk" / "linked").unlink()
    (tmp_path / "disk" / "linked").symlink_to(tmp_path)
    assert store.list()[0].rows == 6
    assert ExportStore(path, FEED).list() == []


def test_a_file_of_a_unit_that_is_a_link_is_named_with_its_unit(
    flights: Flights, store: ExportStore, tmp_path: Path
) -> None:
    """The other units are verified; who reads by manifests gets the link's name, and no row behind it."""
    (file,) = (Path(store.path) / FEED).rglob("*.parquet")
    file.rename(tmp_path / "file.parquet")
    file.symlink_to(tmp_path / "file.parquet")
    report = verify_export(store.path, FEED)
    (fault,) = [one for one in report.damage if one.kind is FaultKind.SYMBOLIC_LINK]
    assert (fault.path, fault.unit) == (str(file), store.list()[0].unit)
    assert report.units == 1
    with pytest.raises(SymbolicLinkError, match=str(file)):
        export_dataset(store.path, FEED)
    examined = examine(flights.source, open_store=lambda feed: store)
    assert FaultKind.SYMBOLIC_LINK in [one.kind for one in examined.faults]


# ---- captured tables


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Give an output with a state and a snapshot of a table."""
    root = tmp_path / "tables"
    states = StateStore(str(root), CAPTURE, TABLE)
    states.claim()
    _fill(states, "01J0".ljust(26, "0"))
    snapshots = SnapshotFiles(str(root), CAPTURE, TABLE)
    taken = samples(Snapshot)[-1]
    _put(snapshots, f"{snapshots.folder('token')}/part-00000-ab.parquet")
    snapshots._write("token", "snapshot.json", taken)
    snapshots._write("token", "begin.json", samples(SnapshotBegin)[-1])
    return root


def _put(output: StateStore | SnapshotFiles, path: str) -> None:
    with output.files.writer(path) as file:
        pq.write_table(pa.table({"id": [1, 2]}), file)


def _fill(states: StateStore, attempt: str) -> None:
    _put(states, f"{states.writing(START, attempt)}/part-0.parquet")
    states.files.url(states.writing(START, attempt))
    states.commit(START, attempt)


def test_whatever_of_a_captured_table_is_a_link_nothing_happens_where_it_leads(
    tables: Path, tmp_path: Path
) -> None:
    """States and snapshots, as they are written, read, replaced and cleaned."""
    pristine, outside = tmp_path / "pristine", tmp_path / "outside"
    shutil.copytree(tables, pristine)
    later = "01J1".ljust(26, "0")
    coming = [f"_changefeed/{TABLE}/attempts/20130101T000000Z/{later}", "_changefeed/removed"]
    for name in [*tree(pristine), *coming]:
        shutil.rmtree(tables)
        shutil.copytree(pristine, tables)
        shutil.rmtree(outside, ignore_errors=True)
        outside.mkdir()
        link = tables / name
        if link.exists():
            link.rename(outside / "it")
        else:
            link.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(pristine, outside / "it")
        link.symlink_to(outside / "it")
        before = tree(outside)
        states, snapshots = (kind(str(tables), CAPTURE, TABLE) for kind in (StateStore, SnapshotFiles))
        for deed in (
            states.claim,
            lambda states=states: [states.read(at) for at in states.times()],
            lambda states=states: _fill(states, later),
            lambda states=states: states.discard(START, later),
            snapshots.claim,
            snapshots.all,
            lambda snapshots=snapshots: snapshots.remove_range("token", 0),
            lambda snapshots=snapshots: snapshots.clean("zzz"),
            lambda snapshots=snapshots: snapshots.discard("token"),
            states.files.sweep,
        ):
            with suppress(ChangefeedError):
                deed()
        assert tree(outside) == before, name


def test_a_fold_is_not_given_a_file_that_is_a_link(tmp_path: Path) -> None:
    """Spark would read what it leads to, into a table that others may read."""
    snapshots = SnapshotFiles(str(tmp_path / "out"), CAPTURE, TABLE)
    taken = next(one for one in samples(Snapshot) if one.base.shape.tables)
    (tmp_path / "secret.parquet").write_bytes(b"")
    folder = Path(snapshots.folder(taken.token))
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").symlink_to(tmp_path / "secret.parquet")
    object.__setattr__(taken, "files", ("part-0.parquet",))
    with pytest.raises(SymbolicLinkError, match="part-0"):
        base_of(snapshots, taken)


@pytest.mark.parametrize("format", ["delta", pytest.param("iceberg", marks=pytest.mark.ci)])
def test_the_metadata_of_a_table_is_not_written_where_a_link_leads(tmp_path: Path, format: str) -> None:
    """The libraries follow links: their folder is looked at before each call."""
    export = Export(format, tmp_path / "home")
    first(export)
    folder = Path(export.store.layout.data) / ("_delta_log" if format == "delta" else "_iceberg")
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path / "elsewhere")
    table = export.table()
    for act in (table.look, table.columns, lambda: table.unused(timedelta(0))):
        with pytest.raises(SymbolicLinkError, match=folder.name):
            act()
    assert tree(tmp_path / "elsewhere") == before
    folder.unlink()
    (tmp_path / "elsewhere").rename(folder)
    (folder / "planted").symlink_to(tmp_path)
    with pytest.raises(SymbolicLinkError, match="planted"):
        export.table().look()


@pytest.mark.ci
def test_the_metadata_of_an_iceberg_table_cannot_say_that_it_is_written_elsewhere(tmp_path: Path) -> None:
    """It is a file in the output, and the next commit would have written where it says."""
    export = Export("iceberg", tmp_path / "home")
    first(export)
    with export.library.catalog() as catalog:
        table = catalog.load_table(export.library.catalog_table)
        inside = table.properties["write.metadata.path"]
        for path in (f"{tmp_path}/elsewhere", f"{inside}/../../../../elsewhere", f"{inside}x/../../../x"):
            with table.transaction() as transaction:
                transaction.set_properties({"write.metadata.path": path})
            with pytest.raises(TableError, match=r"write\.metadata\.path"):
                export.table().look()
        with table.transaction() as transaction:
            transaction.set_properties({"write.metadata.path": inside})
    export.table().look()


def test_open_files_takes_a_path_with_a_link_in_it(tmp_path: Path) -> None:
    """Its URLs stay as the user wrote them."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "mnt").symlink_to("disk")
    files = open_files(f"file://{tmp_path}/mnt/out")
    files.write(f"{files.root}/a", b"a")
    assert files.url(f"{files.root}/a") == f"file://{tmp_path}/mnt/out/a"
    assert (tmp_path / "disk" / "out" / "a").read_bytes() == b"a"
