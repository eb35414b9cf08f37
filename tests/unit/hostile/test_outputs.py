# SPDX-License-Identifier: Apache-2.0
"""An output that others can write to: whatever lies there is read, reported or refused, nothing beyond."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.export_plan import Plan
from airflow_changefeed.export.completed import completed_export
from airflow_changefeed.export.job_spec import (
    read_job,
    read_receipt,
    read_spec,
    write_job,
    write_receipt,
    write_spec,
)
from airflow_changefeed.export.result import ExportResult
from airflow_changefeed.export.verify import verify_export, verify_sample
from airflow_changefeed.output import claims
from airflow_changefeed.output.attempts import Start, begin, committed_before
from airflow_changefeed.output.dataset import export_dataset
from airflow_changefeed.output.store import ExportStore
from tests.exports import unit_files
from tests.unit.export.flights import FEED, Flights, found_faults, hours
from tests.unit.hostile.mutation import NAMES, hostile, hostile_texts, value_or_error

SECRET = "of nobody's business"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with an output that has a document of each kind, and a file beside it."""
    home = tmp_path_factory.mktemp("hostile")
    flights = Flights.create(home / "feeds.db")
    flights.add(20, 0, shard=1, length=2)
    flights.add(6, 1, shard=2)
    flights.source.drain(FEED)
    store = ExportStore(str(home / "pristine" / "out"), FEED)
    flights.export(store, hours(0, 2))
    plan = flights.plan(store, hours(0, 2))
    begin(store, plan)
    write_job(store, [write_spec(store, plan)])
    write_receipt(
        store, plan.attempt, plan.attempt, ExportResult("done", attempt=plan.attempt, spec=plan.attempt)
    )
    pq.write_table(pa.table({"changefeed_ulid": [SECRET]}), home / "pristine" / "secret.parquet")
    return home


@pytest.fixture(scope="module")
def plan(home: Path) -> Plan:
    """Give the plan in the output's spec."""
    (spec,) = (home / "pristine").rglob("spec.json")
    return Plan.from_json(spec.read_text(), named="spec")


def _files(root: Path) -> list[Path]:
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())


def _named(name: str) -> str:
    """Return a name as a local folder can have it."""
    found = (
        name.replace("/", "_")
        .replace("\x00", "_")
        .encode(errors="surrogateescape" if "\udcff" in name else "replace")
    )
    return os.fsdecode(found[:200]) or "_"


@st.composite
def _deeds(draw: st.DrawFn, files: list[Path], texts: dict[Path, str]) -> list[tuple[str, Path, Any]]:
    """Draw what somebody does to an output: to documents most, to the bytes of data, and to names."""
    found: list[tuple[str, Path, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        what = draw(
            st.sampled_from(["text", "text", "text", "bytes", "rename", "plant", "folder", "link", "loop"])
        )
        if what == "text":
            path = draw(st.sampled_from(sorted(texts)))
            found.append((what, path, draw(hostile_texts(texts[path]))))
            continue
        path = draw(st.sampled_from(files))
        depth = draw(st.integers(0, len(path.parts) - 1))
        given: Any = None
        if what == "bytes":
            given = draw(st.tuples(st.floats(0, 1), st.binary(max_size=8), st.booleans()))
        elif what in ("rename", "plant"):
            path = Path(*path.parts[: depth + 1])
            key = draw(st.sampled_from(["", "shard=", "date=", "changefeed_shard=", "changefeed_attempt="]))
            tail = draw(st.sampled_from(["", ".json", ".000000000099.json", f".{'9' * 12}.json", ".parquet"]))
            given = _named(key + draw(st.sampled_from(NAMES)) + tail)
        elif what == "link":
            given = draw(st.sampled_from(["../secret.parquet", "../outside", "nowhere"]))
        found.append((what, path, given))
    return found


def _do(root: Path, what: str, path: Path, given: Any) -> None:
    target = root / path
    # What an earlier change linked to is outside: nothing may be written through it.
    if not os.path.lexists(target) or target.resolve() != root.resolve() / path:
        return
    if what == "text":
        target.write_bytes(given.encode(errors="surrogatepass"))
    elif what == "bytes":
        content, (place, piece, is_cut) = target.read_bytes(), given
        at = int(place * len(content))
        target.write_bytes(content[:at] + piece + (b"" if is_cut else content[at + len(piece) :]))
    elif what == "rename":
        target.rename(target.with_name(given))
    elif what == "plant":
        copy = shutil.copytree if target.is_dir() else shutil.copy
        if not os.path.lexists(target.with_name(given)):
            copy(target, target.with_name(given))
    else:
        target.unlink()
        if what == "folder":
            target.mkdir()
        else:
            target.symlink_to(target.name if what == "loop" else given)


def _readers(root: str, plan: Plan) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield everything that reads an output."""
    store, units = ExportStore(root, FEED), {planned.unit: 0 for planned in plan.units}
    start, end = datetime(2013, 1, 1, tzinfo=timezone.utc), datetime(2013, 1, 1, 2, tzinfo=timezone.utc)
    (spec, job), result = _uris(root), ExportResult("done")
    completed = completed_export(plan, store, result)
    assert completed is not None
    yield "rows", lambda: _rows_of(export_dataset(root, FEED))
    yield "some", lambda: export_dataset(root, FEED, start, end, incomplete="read", unify_schemas=True)
    yield "batches", lambda: [batch.to_pylist() for batch in completed.batches()]
    yield "files", lambda: unit_files(store)
    yield "list", lambda: [store.list(), store.dates(), store.claimed(), store.is_table]
    yield "done", lambda: committed_before(store, Start.of(plan), plan.database, units)
    yield "next", lambda: [store.highest_attempt(units), store.older_attempts(99), store.specs()]
    yield "places", lambda: [store.placed_attempts(unit) for unit in units]
    yield "claims", lambda: [claims.tables(store.files, FEED), store.check(plan.database)]
    yield "receipt", lambda: read_receipt(store, plan.attempt)
    yield "spec", lambda: read_spec(spec)
    yield "job", lambda: read_job(job)
    yield "doctor", lambda: found_faults(store, plan.database)
    yield "verify", lambda: verify_export(root, FEED).faults
    yield "sample", lambda: verify_sample(root, FEED, 3, "seed").faults


def _rows_of(dataset: ds.Dataset) -> list[Any]:
    """Return the rows of a dataset, which pyarrow itself reads, with its own errors."""
    with suppress(pa.ArrowException, OSError):
        return list(dataset.to_table().to_pylist())
    return []


def _uris(root: str) -> tuple[str, str]:
    found = [
        path for path in Path(root).rglob("*.json") if path.parent.name == "_jobs" or path.name == "spec.json"
    ]
    specs, jobs = (
        [str(path) for path in found if (path.name == "spec.json") is is_spec] for is_spec in (True, False)
    )
    return (specs or [f"{root}/_changefeed/x/specs/1/spec.json"])[0], (
        jobs or [f"{root}/_changefeed/_jobs/x.json"]
    )[0]


@hostile
@given(data=st.data())
def test_whatever_lies_in_an_output_is_read_reported_or_refused(
    home: Path, plan: Plan, tmp_path: Path, data: st.DataObject
) -> None:
    """No reader fails in a way of its own, and none reads what lies beside."""
    pristine = home / "pristine"
    files = _files(pristine / "out")
    texts = {path: (pristine / "out" / path).read_text() for path in files if path.suffix == ".json"}
    deeds = data.draw(_deeds(files, texts))
    trial = tmp_path / "trial"
    shutil.rmtree(trial, ignore_errors=True)
    shutil.copytree(pristine, trial)
    for deed in deeds:
        # What is not possible after the deed before.
        with suppress(OSError, RuntimeError, ValueError):
            _do(trial / "out", *deed)
    for name, read in _readers(str(trial / "out"), plan):
        with value_or_error():
            found = read()
            assert name in ("verify", "sample", "doctor") or SECRET not in str(found), name
    assert (trial / "secret.parquet").read_bytes() == (pristine / "secret.parquet").read_bytes()
