# SPDX-License-Identifier: Apache-2.0
"""What can happen to the files of an export, each kind of them, and what a verification must say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_changefeed.core import codec
from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.plan import Manifest
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


def _edit(path: Path, was: str, now: str) -> None:
    text = path.read_text()
    assert was in text
    path.write_text(text.replace(was, now, 1))


def _forge(store: ExportStore, change: Callable[[Manifest], Manifest]) -> None:
    """Write what another export would have, over a manifest: whole in itself."""
    path = first_manifest(store)
    path.write_text(change(Manifest.from_json(path.read_text(), named="here")).to_json())


def _remove_unit(store: ExportStore) -> None:
    middle = store.list(1)[1]
    store.files.remove(store.layout.unit(middle.unit))
    store.remove_manifest(middle.unit, middle.attempt)


def _claim(store: ExportStore) -> Path:
    return Path(store.layout.claim)


#: What is done to an export, what is found, and which path it names (None where there is none).
DAMAGES: dict[str, tuple[Callable[[ExportStore], object], FaultKind, Callable[[ExportStore], object]]] = {
    "a file is missing": (lambda store: data_file(store).unlink(), FaultKind.FILE_MISSING, data_file),
    "a file is cut short": (
        lambda store: data_file(store).write_bytes(data_file(store).read_bytes()[:-100]),
        FaultKind.FILE_TRUNCATED,
        data_file,
    ),
    "a file is empty": (
        lambda store: data_file(store).write_bytes(b""),
        FaultKind.FILE_TRUNCATED,
        data_file,
    ),
    "a file is something else": (
        lambda store: data_file(store).write_bytes(b"x" * 100_000),
        FaultKind.FILE_UNREADABLE,
        data_file,
    ),
    "a file's footer is flipped": (
        lambda store: _flip(data_file(store), -20),
        FaultKind.FILE_UNREADABLE,
        data_file,
    ),
    "a file's footer do not cover all values": (
        lambda store: _flip(
            data_file(store),
            data_file(store).read_bytes().rfind(str(unit_files(store)[0].facts.first).encode()),
        ),
        FaultKind.FILE_CHANGED,
        data_file,
    ),
    "a cell is changed": (lambda store: change_cell(data_file(store)), FaultKind.FILE_CHANGED, data_file),
    "a row is lost": (
        lambda store: pq.write_table(
            pq.read_table(data_file(store), partitioning=None).slice(1), data_file(store)
        ),
        FaultKind.FILE_CHANGED,
        data_file,
    ),
    "a file was exchanged for another unit's": (
        lambda store: copy(Path(unit_files(store)[1].path), data_file(store)),
        FaultKind.FILE_CHANGED,
        data_file,
    ),
    "a file has no ULIDs": (
        lambda store: pq.write_table(pa.table({"a": [1]}), data_file(store)),
        FaultKind.FILE_TRUNCATED,
        data_file,
    ),
    "a manifest is edited": (
        lambda store: _edit(first_manifest(store), '"rows": 10', '"rows": 11'),
        FaultKind.MANIFEST_DAMAGED,
        first_manifest,
    ),
    "a manifest is no JSON any more": (
        lambda store: _edit(first_manifest(store), '"rows": 10', '"rows" 10'),
        FaultKind.MANIFEST_DAMAGED,
        first_manifest,
    ),
    "a manifest is half written": (
        lambda store: first_manifest(store).write_text(first_manifest(store).read_text()[:300]),
        FaultKind.MANIFEST_TRUNCATED,
        first_manifest,
    ),
    "a manifest ends behind a file": (
        lambda store: first_manifest(store).write_text(
            first_manifest(store).read_text().rpartition("}\n  ]")[0] + "}"
        ),
        FaultKind.MANIFEST_TRUNCATED,
        first_manifest,
    ),
    "a manifest is empty": (
        lambda store: first_manifest(store).write_text(""),
        FaultKind.MANIFEST_TRUNCATED,
        first_manifest,
    ),
    "a manifest is zeros after a power cut": (
        lambda store: first_manifest(store).write_bytes(bytes(900)),
        FaultKind.MANIFEST_TRUNCATED,
        first_manifest,
    ),
    "a manifest is another feed's": (
        lambda store: _forge(store, lambda manifest: replace(manifest, feed="nyc.Weather")),
        FaultKind.MANIFEST_FOREIGN,
        first_manifest,
    ),
    "a manifest is another unit's": (
        lambda store: copy(
            Path(store.layout.manifest(store.list(2)[1].unit, store.list(2)[1].attempt)),
            first_manifest(store),
        ),
        FaultKind.MANIFEST_FOREIGN,
        first_manifest,
    ),
    "a manifest is another program's": (
        lambda store: first_manifest(store).write_text('{"kind": "iceberg"}'),
        FaultKind.MANIFEST_FOREIGN,
        first_manifest,
    ),
    "a manifest is of a newer version": (
        lambda store: corrupt_manifest(store, store.list()[0], version=2),
        FaultKind.MANIFEST_NEWER,
        first_manifest,
    ),
    "a manifest is missing": (
        lambda store: first_manifest(store).unlink(),
        FaultKind.MANIFEST_MISSING,
        lambda store: store.layout.manifest(ExportUnit.of_window(1, hours(0, 1)[0]), store.list()[0].attempt),
    ),
    "a manifest between others is missing": (
        lambda store: store.remove_manifest(store.list(1)[1].unit, store.list(1)[1].attempt),
        FaultKind.MANIFEST_MISSING,
        lambda store: store.layout.manifest(ExportUnit.of_window(1, hours(1, 2)[0]), store.list()[0].attempt),
    ),
    "a file is copied beside": (
        lambda store: copy(data_file(store), data_file(store).with_name("copy.parquet")),
        FaultKind.FILE_UNREFERENCED,
        lambda store: data_file(store).with_name("copy.parquet"),
    ),
    "a file is copied above": (
        lambda store: copy(data_file(store), data_file(store).parents[1] / "copy.parquet"),
        FaultKind.FILE_UNREFERENCED,
        lambda store: data_file(store).parents[1] / "copy.parquet",
    ),
    "a file lies in a folder of no unit": (
        lambda store: copy(
            data_file(store), Path(store.layout.data) / "changefeed_shard=9" / "a" / "b" / "x.parquet"
        ),
        FaultKind.FILE_FOREIGN,
        lambda store: f"{store.layout.data}/changefeed_shard=9/a/b/x.parquet",
    ),
    "a file lies beside the shards": (
        lambda store: copy(data_file(store), Path(store.layout.data) / "x.parquet"),
        FaultKind.FILE_FOREIGN,
        lambda store: f"{store.layout.data}/x.parquet",
    ),
    "another program's marker lies among the data": (
        lambda store: (Path(store.layout.data) / "_SUCCESS").write_text(""),
        FaultKind.LEFTOVER,
        lambda store: f"{store.layout.data}/_SUCCESS",
    ),
    "a note lies among the manifests": (
        lambda store: (first_manifest(store).parent / "note.txt").write_text("hello"),
        FaultKind.FILE_FOREIGN,
        lambda store: first_manifest(store).parent / "note.txt",
    ),
    "a note lies among all that": (
        lambda store: (_claim(store).parent / "note.txt").write_text("hello"),
        FaultKind.FILE_FOREIGN,
        lambda store: _claim(store).parent / "note.txt",
    ),
    "a manifest lies under another date": (
        lambda store: copy(
            first_manifest(store), first_manifest(store).parents[1] / "date=2013-01-02" / "m.json"
        ),
        FaultKind.FILE_FOREIGN,
        lambda store: first_manifest(store).parents[1] / "date=2013-01-02" / "m.json",
    ),
    "a manifest was copied under another date": (
        lambda store: copy(
            first_manifest(store),
            first_manifest(store).parents[1] / "date=2013-01-02" / first_manifest(store).name,
        ),
        FaultKind.FILE_FOREIGN,
        lambda store: first_manifest(store).parents[1] / "date=2013-01-02" / first_manifest(store).name,
    ),
    "an attempt died": (
        lambda store: store.files.write(f"{store.layout.writing(99)}/0-1/x.parquet", b""),
        FaultKind.LEFTOVER,
        lambda store: f"{store.layout.writing(99)}/0-1/x.parquet",
    ),
    "a unit is hidden": (
        lambda store: store.retire(store.list()[0].unit, store.list()[0].attempt),
        FaultKind.UNIT_NOT_PLACED,
        data_file,
    ),
    "a window is gone": (_remove_unit, FaultKind.WINDOW_MISSING, lambda store: None),
    "the claim is missing": (lambda store: _claim(store).unlink(), FaultKind.CLAIM_MISSING, _claim),
    "the claim is edited": (
        lambda store: _edit(_claim(store), "nyc.Flight", "nyc.flight"),
        FaultKind.CLAIM_DAMAGED,
        _claim,
    ),
    "the claim is another feed's": (
        lambda store: _claim(store).write_text(
            codec.dump(claims.Claim.KIND, 1, {"feed": "nyc.Weather", "database": ""})
        ),
        FaultKind.CLAIM_FOREIGN,
        _claim,
    ),
    "the claim is of a newer version": (
        lambda store: _claim(store).write_text(codec.dump(claims.Claim.KIND, 9, {"feed": FEED})),
        FaultKind.CLAIM_NEWER,
        _claim,
    ),
}
