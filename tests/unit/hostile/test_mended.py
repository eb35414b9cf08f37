# SPDX-License-Identifier: Apache-2.0
"""What hostile input once did, each fault by itself."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.capture.shapes import _read as read_shape
from airflow_changefeed.core import codec
from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.cursor import CursorDocument
from airflow_changefeed.core.export_plan import FileFacts, Manifest
from airflow_changefeed.core.feed import DatabaseIdentity
from airflow_changefeed.doctor.airflow import unknown_feeds
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    CursorFormatError,
    IncompleteReadError,
    InvalidArgumentError,
    ManifestError,
    OutputError,
    TableError,
    TerminalError,
)
from airflow_changefeed.export.completed import CompletedExport, completed_export
from airflow_changefeed.export.job_spec import SpecList, read_job, read_spec, write_job, write_spec
from airflow_changefeed.export.parts import PlannedPart, gather
from airflow_changefeed.export.result import ExportResult
from airflow_changefeed.export.verify import verify_sample
from airflow_changefeed.formats.base import PlainFile, TableState
from airflow_changefeed.lake.current import CurrentOutput, MergeRecord
from airflow_changefeed.lake.merge import newest_version
from airflow_changefeed.output import claims
from airflow_changefeed.output.dataset import export_dataset
from airflow_changefeed.output.schemas import parse_schema
from airflow_changefeed.output.store import ExportStore, StagedFile
from airflow_changefeed.sources.base_capture import KeyRange, key_text
from tests.unit.export.flights import FEED, Flights, hours
from tests.unit.hostile.test_variables import ListedVariables
from tests.unit.hostile.valid import samples


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """Give a feed with events in two shards."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(20, 0, shard=1, length=2)
    flights.add(6, 1, shard=2)
    return flights


@pytest.fixture
def store(flights: Flights, tmp_path: Path) -> ExportStore:
    """Give its export of two hours."""
    store = ExportStore(str(tmp_path / "out"), FEED)
    flights.export(store, hours(0, 2))
    return store


def forge(path: Path, kind: type[codec.Document], change: Callable[[dict[str, Any]], None]) -> None:
    """Change a document, with a digest that fits."""
    content = json.loads(path.read_text())
    change(content)
    content = {
        name: each for name, each in content.items() if name not in ("kind", "schema_version", "digest")
    }
    path.write_text(codec.dump(kind.KIND, kind.SCHEMA_VERSION, content))


NO_NAMES = ["../../../../../secret.parquet", "/nowhere/secret.parquet", "..", ".", "", "a/b", "a\\b", "a\0b"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_manifest_cannot_name_a_file_outside_its_unit(store: ExportStore, name: str) -> None:
    """Readers read it, and the next export of the unit removed or moved it."""
    manifest = store.list(1)[0]
    path = Path(store.layout.manifest(manifest.unit, manifest.attempt))
    forge(path, Manifest, lambda content: content["files"][0].update(name=name))
    with pytest.raises(ManifestError, match=r"files\[0\]: .* is not a file name"):
        export_dataset(store.path, FEED)
    with pytest.raises(InvalidArgumentError):
        FileFacts(name, 1, 1, manifest.files[0].first, manifest.files[0].last, 0)


def test_a_spec_cannot_have_files_written_elsewhere(flights: Flights, store: ExportStore) -> None:
    """Tasks wrote to the path that the spec named."""
    uri = write_spec(store, flights.plan(store, hours(0, 2)))
    forge(Path(uri), type(read_spec(uri)[1]), lambda content: content.update(path="/tmp/elsewhere"))
    assert read_spec(uri)[1].path == store.path


def test_a_job_cannot_name_specs_of_another_output(store: ExportStore) -> None:
    """The job opened them with the credentials of its own."""
    uri = write_job(store, [])
    forge(
        Path(uri),
        SpecList,
        lambda content: content.update(specs=[f"s3://b/_changefeed/{FEED}/specs/1/spec.json"]),
    )
    with pytest.raises(TerminalError, match="is not below"):
        read_job(uri)


@pytest.mark.parametrize("name", ["shard=01", "shard=\u0661", "shard=+1", "shard=1_", "shard=-1-"])
def test_a_second_spelling_of_a_shard_is_no_shard(store: ExportStore, name: str) -> None:
    """Its units were listed twice."""
    before = store.list()
    (Path(store.layout.manifests) / name).mkdir()
    assert store.shards() == [1, 2]
    assert store.list() == before


@pytest.mark.parametrize("folder", ["attempts", "specs"])
def test_a_folder_with_digits_that_are_no_number_is_passed_over(store: ExportStore, folder: str) -> None:
    """A superscript two is a digit to Python, and not a number: nothing could be planned any more."""
    (Path(store.layout.control) / folder / "\u00b2").mkdir(parents=True)
    assert store.highest_attempt([]) == 0
    assert store.older_attempts(9) == []


def test_an_attempt_that_no_database_gave_is_named(store: ExportStore) -> None:
    """The next attempt could not be numbered, as it would have had more than 64 bits."""
    (Path(store.layout.attempts) / str((1 << 63) - 1)).mkdir(parents=True)
    with pytest.raises(ManifestError, match="which no database has issued: remove that file or folder"):
        store.highest_attempt([])
    (Path(store.layout.attempts) / str((1 << 63) - 1)).rmdir()
    (Path(store.layout.attempts) / ("9" * 100)).mkdir()
    assert store.highest_attempt([]) == 0


def test_a_folder_that_is_no_date_is_passed_over(store: ExportStore) -> None:
    """A verification of a sample ended with it."""
    for name in ("date=soon", "date=2013-02-31", "date=13-01-01"):
        (Path(store.layout.manifests) / "shard=1" / name).mkdir()
    assert store.dates() == ["2013-01-01"]
    assert verify_sample(store.path, FEED, 9, "seed").units == 4


def test_a_folder_whose_name_is_no_text_is_passed_over(store: ExportStore) -> None:
    """Who looked for folded tables below a path got a UnicodeEncodeError."""
    (Path(store.path) / "_changefeed" / "a\udcff").mkdir()
    assert claims.tables(store.files, FEED) == []


def test_a_folder_in_the_place_of_a_document_is_said(store: ExportStore) -> None:
    """And so is a link to itself: errors of the operating system came as they were."""
    claim = Path(store.layout.claim)
    claim.unlink()
    claim.mkdir()
    with pytest.raises(OutputError, match="IsADirectoryError"):
        store.claimed()
    claim.rmdir()
    claim.symlink_to(claim.name)
    with pytest.raises(OutputError, match="is a symbolic link"):
        store.claimed()


def test_a_damaged_file_is_named_where_batches_are_read(flights: Flights, store: ExportStore) -> None:
    """As pyarrow said it, nobody knew which one."""
    plan = flights.plan(store, hours(0, 2))
    completed = completed_export(plan, store, ExportResult("done"))
    assert completed is not None
    file = Path(completed.files()[0].path)
    file.write_bytes(b"PAR1" + bytes(8) + b"PAR1")
    with pytest.raises(ManifestError, match=file.name):
        list(completed.batches())


def test_a_column_whose_name_is_no_text_is_named() -> None:
    """A manifest's schema is somebody's bytes, whose names pyarrow reads when they are needed."""
    schema = base64.b64encode(
        bytes(pa.schema([("aaaa", pa.int64())]).serialize()).replace(b"aaaa", b"a\xff\xfea")
    )
    with pytest.raises(ColumnTypeError, match=r"m\.json"):
        parse_schema(schema.decode(), named="m.json")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\ud800"])
def test_a_text_that_is_no_json_is_named(text: str) -> None:
    """The settings of a consumer, and the capture in a Parquet file's footer."""
    with pytest.raises(InvalidArgumentError, match="settings of consumer 'c'"):
        ConsumerSpec.from_json("c", "f", text)
    with pytest.raises(InvalidArgumentError, match="the schema's capture"):
        read_shape(text.encode(errors="surrogatepass"))


@pytest.mark.parametrize("extra", [{"windows": "[" * 100_000}, ["a"], "text", 3])
def test_an_extra_that_is_no_object_or_too_deep_is_refused(extra: Any) -> None:
    """A DAG that follows failed with Python's own words."""
    with pytest.raises(InvalidArgumentError, match="the event's extra"):
        CompletedExport.from_extra(extra)


@pytest.mark.parametrize("path", [("feed",), ("shards", "0", "moved_by")])
def test_half_a_character_in_a_variable_is_named_when_it_is_read(path: tuple[str, ...]) -> None:
    """It was read, and the next publishing ended with Python's own error."""
    at = {"ulid": "0" * 26, "resource_version": 1, "moved_at": "2013-01-01T00:00:00Z", "moved_by": "me"}
    content: dict[str, Any] = {
        **{"kind": "changefeed cursors", "schema_version": 1, "consumer": "c", "feed": "f", "database": ""},
        **{"shards": {"0": at}, "recovery_fork": None},
    }
    assert CursorDocument.from_json(json.dumps(content), key="v").to_json()
    inside = content
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = "a\ud800b"
    with pytest.raises(CursorFormatError, match=f"'v'.*{path[-1]}.*half a character"):
        CursorDocument.from_json(json.dumps(content), key="v")


def test_half_a_character_in_a_variable_does_not_stop_doctor() -> None:
    """The names in each Variable are compared with its key."""

    class Source:
        def identity(self) -> DatabaseIdentity:
            return DatabaseIdentity("12345678-1234-1234-1234-123456789012")

    variables = ListedVariables()
    variables.set("changefeed:12345678:x", json.dumps({"consumer": "\ud800 a", "feed": "b/c"}))
    assert unknown_feeds(Source(), variables, []) == []  # type: ignore[arg-type] # of a source it needs no more


@pytest.mark.parametrize(
    "text", ["", "{}", '{"hex": 1}', "[[1]]", '[{"hex": "zz"}]', '[{"x": "00"}]', "7", "[" * 9999]
)
def test_a_range_of_no_key_is_refused(text: str) -> None:
    """Documents of snapshots have ranges, and a query was made of them."""
    with pytest.raises(InvalidArgumentError, match="is not a key"):
        KeyRange(None, text)
    assert KeyRange(key_text([1, "a", b"\0"])).upto is None


@pytest.mark.parametrize(
    "path", ["s3://other/secret.parquet", "/nowhere/secret.parquet", "changefeed_attempt=1/../../x.parquet"]
)
def test_a_current_table_cannot_name_files_elsewhere(tmp_path: Path, path: str) -> None:
    """The next merge read them, and wrote their rows where all readers of the table see them."""
    record = replace(samples(MergeRecord)[0], rows=5)
    output = CurrentOutput(str(tmp_path), record.feed, record.table or "t")
    output.write(record)

    class Lake:
        what = "Delta table t"

        def look(self) -> TableState:
            return TableState(1, pa.schema([]), plain=(PlainFile(path, 5, 9),), marks=record.marks)

    with pytest.raises(TableError, match="is not in its folder"):
        newest_version(output, Lake())  # type: ignore[arg-type] # it is only looked at


@pytest.mark.parametrize("path", ["../../../secret.parquet", "/nowhere/secret.parquet", "writing/../../x"])
def test_a_task_cannot_have_a_file_moved_into_the_output(store: ExportStore, path: str) -> None:
    """The driver moved whatever file an executor named to where readers find it."""
    facts = store.list(1)[0].files[0]
    told = [{"schema": ""}, encode(StagedFile(0, "writing/0-1/part.parquet", facts))]
    assert gather(told, [PlannedPart(0, 1, {})]).files[0].facts == facts
    told[1]["path"] = path
    with pytest.raises(InvalidArgumentError, match="is not a path in the folder of the attempt"):
        gather(told, [])


def test_a_task_cannot_speak_for_units_of_others(store: ExportStore) -> None:
    """Its files were added to them, or were a KeyError."""
    told = [{"schema": ""}, encode(StagedFile(7, "writing/0-1/part.parquet", store.list(1)[0].files[0]))]
    with pytest.raises(IncompleteReadError, match="another task's units"):
        gather(told, [])
