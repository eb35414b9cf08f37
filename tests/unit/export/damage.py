# SPDX-License-Identifier: Apache-2.0
"""What can happen to the files of an export, each kind of them, and what a verification must say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_changefeed.core import codec
from airflow_changefeed.core.export_plan import Manifest
from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.output import claims
from airflow_changefeed.output.store import ExportStore
from tests.exports import unit_files
from tests.unit.export.flights import FEED, hours


def corrupt_manifest(store: ExportStore, manifest: Manifest, version: int | None = None) -> None:
    """Cut a manifest in half, or let a newer version have written it."""
    path = Path(store.layout.manifest(manifest.unit, manifest.attempt))
    text = path.read_text()
    path.write_text(
        text[: len(text) // 2]
        if version is None
        else text.replace('"schema_version": 1', f'"schema_version": {version}')
    )


def data_file(store: ExportStore) -> Path:
    """The first data file."""
    return Path(unit_files(store)[0].path)


def first_manifest(store: ExportStore) -> Path:
    """The first unit's manifest."""
    first = store.list()[0]
    return Path(store.layout.manifest(first.unit, first.attempt))


def _flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def change_cell(path: Path) -> None:
    """Change one value, so that all but the checksum may fit."""
    table = pq.read_table(path)
    values = table["delay"].to_pylist()
    pq.write_table(table.set_column(5, "delay", [[values[0] + 1, *values[1:]]]), path)


def copy(path: Path, to: Path) -> None:
    """Copy a file, with the folders that it needs."""
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(path.read_bytes())


def _remove_unit(store: ExportStore) -> None:
    middle = store.list(1)[1]
    store.files.remove(store.layout.unit(middle.unit))
    store.remove_manifest(middle.unit, middle.attempt)


def _claim(store: ExportStore) -> Path:
    return Path(store.layout.claim)


Where = Callable[[ExportStore], Path]
#: What is done to an export, what is found, and which path it names (None where there is none).
Damage = tuple[Callable[[ExportStore], object], FaultKind, Callable[[ExportStore], object]]


def _data(kind: FaultKind, change: Callable[[Path], object]) -> Damage:
    """Something happens to the first data file."""
    return lambda store: change(data_file(store)), kind, data_file


def _manifest(kind: FaultKind, change: Callable[[str], str]) -> Damage:
    """The first manifest gets another text."""

    def damage(store: ExportStore) -> None:
        path = first_manifest(store)
        path.write_text(change(path.read_text()))

    return damage, kind, first_manifest


def _other_claim(kind: FaultKind, change: Callable[[str], str]) -> Damage:
    """The claim gets another text."""
    return lambda store: _claim(store).write_text(change(_claim(store).read_text())), kind, _claim


def _foreign_manifest(text: str) -> str:
    """Write what another feed's export would have: whole in itself."""
    return replace(Manifest.from_json(text, named="here"), feed="nyc.Weather").to_json()


def _no_manifest(place: int) -> Damage:
    """The manifest of an hour is missing."""

    def damage(store: ExportStore) -> None:
        store.remove_manifest(store.list(1)[place].unit, store.list(1)[place].attempt)

    def where(store: ExportStore) -> str:
        unit = ExportUnit.of_window(1, hours(place, place + 1)[0])
        return store.layout.manifest(unit, store.list()[0].attempt)

    return damage, FaultKind.MANIFEST_MISSING, where


def _copied(kind: FaultKind, to: Where, what: Where = data_file) -> Damage:
    """A file is copied to another place."""
    return lambda store: copy(what(store), to(store)), kind, to


def _placed(kind: FaultKind, to: Where) -> Damage:
    """Somebody has put a file there."""
    return _copied(kind, to, _claim)


def _below_data(name: str) -> Where:
    return lambda store: Path(store.layout.data) / name


def _other_date(store: ExportStore) -> Path:
    return first_manifest(store).parents[1] / "date=2013-01-02"


def _flip_first_ulid(store: ExportStore) -> None:
    content = data_file(store).read_bytes()
    _flip(data_file(store), content.rfind(str(unit_files(store)[0].facts.first).encode()))


DAMAGES: dict[str, Damage] = {
    "a file is missing": _data(FaultKind.FILE_MISSING, Path.unlink),
    "a file is cut short": _data(
        FaultKind.FILE_TRUNCATED, lambda path: path.write_bytes(path.read_bytes()[:-100])
    ),
    "a file is empty": _data(FaultKind.FILE_TRUNCATED, lambda path: path.write_bytes(b"")),
    "a file is something else": _data(
        FaultKind.FILE_UNREADABLE, lambda path: path.write_bytes(b"x" * 100_000)
    ),
    "a file's footer is flipped": _data(FaultKind.FILE_UNREADABLE, lambda path: _flip(path, -20)),
    "a file's footer does not cover all values": (_flip_first_ulid, FaultKind.FILE_CHANGED, data_file),
    "a cell is changed": _data(FaultKind.FILE_CHANGED, change_cell),
    "a row is lost": _data(
        FaultKind.FILE_CHANGED,
        lambda path: pq.write_table(pq.read_table(path, partitioning=None).slice(1), path),
    ),
    "a file was exchanged for another unit's": (
        lambda store: copy(Path(unit_files(store)[1].path), data_file(store)),
        FaultKind.FILE_CHANGED,
        data_file,
    ),
    "a file has no ULIDs": _data(
        FaultKind.FILE_TRUNCATED, lambda path: pq.write_table(pa.table({"a": [1]}), path)
    ),
    "a manifest is edited": _manifest(
        FaultKind.MANIFEST_DAMAGED, lambda text: text.replace('"rows": 10', '"rows": 11', 1)
    ),
    "a manifest is no JSON any more": _manifest(
        FaultKind.MANIFEST_DAMAGED, lambda text: text.replace('"rows": 10', '"rows" 10', 1)
    ),
    "a manifest is half written": _manifest(FaultKind.MANIFEST_TRUNCATED, lambda text: text[:300]),
    "a manifest ends behind a file": _manifest(
        FaultKind.MANIFEST_TRUNCATED, lambda text: text.rpartition("}\n  ]")[0] + "}"
    ),
    "a manifest is empty": _manifest(FaultKind.MANIFEST_TRUNCATED, lambda text: ""),
    "a manifest is zeros after a power cut": _manifest(FaultKind.MANIFEST_TRUNCATED, lambda text: "\0" * 900),
    "a manifest is another feed's": _manifest(FaultKind.MANIFEST_FOREIGN, _foreign_manifest),
    "a manifest is another unit's": (
        lambda store: copy(
            Path(store.layout.manifest(store.list(2)[1].unit, store.list(2)[1].attempt)),
            first_manifest(store),
        ),
        FaultKind.MANIFEST_FOREIGN,
        first_manifest,
    ),
    "a manifest is another program's": _manifest(
        FaultKind.MANIFEST_FOREIGN, lambda text: '{"kind": "iceberg"}'
    ),
    "a manifest is of a newer version": (
        lambda store: corrupt_manifest(store, store.list()[0], version=2),
        FaultKind.MANIFEST_NEWER,
        first_manifest,
    ),
    "a manifest is missing": _no_manifest(0),
    "a manifest between others is missing": _no_manifest(1),
    "a file is copied beside": _copied(
        FaultKind.FILE_UNREFERENCED, lambda store: data_file(store).with_name("copy.parquet")
    ),
    "a file is copied above": _copied(
        FaultKind.FILE_UNREFERENCED, lambda store: data_file(store).parents[1] / "copy.parquet"
    ),
    "a file lies in a folder of no unit": _copied(
        FaultKind.FILE_FOREIGN, _below_data("changefeed_shard=9/a/b/x.parquet")
    ),
    "a file lies beside the shards": _copied(FaultKind.FILE_FOREIGN, _below_data("x.parquet")),
    "another program's marker lies among the data": _placed(FaultKind.LEFTOVER, _below_data("_SUCCESS")),
    "a note lies among the manifests": _placed(
        FaultKind.FILE_FOREIGN, lambda store: first_manifest(store).parent / "note.txt"
    ),
    "a note lies among all that": _placed(
        FaultKind.FILE_FOREIGN, lambda store: _claim(store).parent / "note.txt"
    ),
    "a manifest lies under another date": _copied(
        FaultKind.FILE_FOREIGN, lambda store: _other_date(store) / "m.json", first_manifest
    ),
    "a manifest was copied under another date": _copied(
        FaultKind.FILE_FOREIGN,
        lambda store: _other_date(store) / first_manifest(store).name,
        first_manifest,
    ),
    "an attempt died": _placed(
        FaultKind.LEFTOVER, lambda store: Path(store.layout.writing(99)) / "0-1/x.parquet"
    ),
    "a unit is hidden": (
        lambda store: store.retire(store.list()[0].unit, store.list()[0].attempt),
        FaultKind.UNIT_NOT_PLACED,
        data_file,
    ),
    "a window is gone": (_remove_unit, FaultKind.WINDOW_MISSING, lambda store: None),
    "the claim is missing": (lambda store: _claim(store).unlink(), FaultKind.CLAIM_MISSING, _claim),
    "the claim is edited": _other_claim(
        FaultKind.CLAIM_DAMAGED, lambda text: text.replace("nyc.Flight", "nyc.flight", 1)
    ),
    "the claim is another feed's": _other_claim(
        FaultKind.CLAIM_FOREIGN,
        lambda text: codec.dump(claims.Claim.KIND, 1, {"feed": "nyc.Weather", "database": ""}),
    ),
    "the claim is of a newer version": _other_claim(
        FaultKind.CLAIM_NEWER, lambda text: codec.dump(claims.Claim.KIND, 9, {"feed": FEED})
    ),
}
