# SPDX-License-Identifier: Apache-2.0
"""Writing a part, and handing results and secrets over."""

from __future__ import annotations

import stat
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.codec import decode, encode
from airflow_changefeed.core.export_plan import ExportOptions, FileFacts
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import (
    IncompleteReadError,
    MissingEventError,
    OutputNotWritableError,
    TerminalError,
    TransientError,
    error_text,
    own_error,
)
from airflow_changefeed.export.job_spec import JobConnection, read_receipt, write_receipt
from airflow_changefeed.export.parquet import PartFile
from airflow_changefeed.export.parts import Part, PlannedPart, gather, write_adjoining, write_parts
from airflow_changefeed.export.result import ExportResult
from airflow_changefeed.export.verify import read_facts
from airflow_changefeed.output.schemas import schema_text
from airflow_changefeed.output.store import ExportStore, StagedFile
from airflow_changefeed.storage.files import open_files
from airflow_changefeed.storage.local import LocalFiles

SCHEMA = pa.schema([("changefeed_ulid", pa.string()), ("n", pa.int64())])
RANGE = UlidRange(Ulid.MIN, Ulid.of_int(1000))


class Stream:
    """The outermost edge: a database that gives these batches of ULIDs."""

    def __init__(self, *batches: list[int]) -> None:
        self.batches = batches

    def stream(self, *_: object, **__: object) -> Iterator[pa.RecordBatch]:
        """Give the batches."""
        for numbers in self.batches:
            texts = [str(Ulid.of_int(number)) for number in numbers]
            yield pa.RecordBatch.from_pydict({"changefeed_ulid": texts, "n": numbers}, schema=SCHEMA)


def write(stream: Stream, folder: Path, **options: Any) -> list[Any]:
    """Write one part."""
    return [
        facts
        for _, facts, _ in write_adjoining(
            stream,
            LocalFiles(str(folder)),
            [Part(0, "unit", 2, 8, 0, RANGE, str(folder))],
            schema=SCHEMA,
            written=SCHEMA,
            feed="f",
            options=ExportOptions(**options),
        )
    ]


def test_a_file_ends_at_the_rows_asked_for(tmp_path: Path) -> None:
    """Files have exactly the target's rows, whatever the batches, and the last one what is left."""
    facts = write(Stream([1, 2, 3, 4, 5], [6], [7, 8]), tmp_path, target_file_rows=3)
    assert [(fact.name, fact.rows, int(fact.first), int(fact.last)) for fact in facts] == [
        ("part-00002-00000.parquet", 3, 1, 3),
        ("part-00002-00001.parquet", 3, 4, 6),
        ("part-00002-00002.parquet", 2, 7, 8),
    ]
    assert [pq.read_table(tmp_path / fact.name)["n"].to_pylist() for fact in facts] == [
        [1, 2, 3],
        [4, 5, 6],
        [7, 8],
    ]
    assert [(tmp_path / fact.name).stat().st_size for fact in facts] == [fact.size for fact in facts]


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_every_compression_is_written(tmp_path: Path, compression: str) -> None:
    """Each of the plan's compressions is one that the writer knows."""
    (fact,) = write(Stream([1, 2]), tmp_path, compression=compression)
    column = pq.ParquetFile(tmp_path / fact.name).metadata.row_group(0).column(0)
    assert column.compression.lower().replace("uncompressed", "none") == compression


@pytest.mark.parametrize("batches", [([2, 1],), ([1, 1],), ([1, 2], [2]), ([0, 1],), ([1001],)])
def test_a_stream_out_of_order_is_refused(tmp_path: Path, batches: tuple[list[int], ...]) -> None:
    """Descending, repeated or foreign ULIDs are an error, not a file."""
    with pytest.raises(IncompleteReadError, match="out of order or outside"):
        write(Stream(*batches), tmp_path)


def test_large_rows_go_to_small_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group holds a bounded number of bytes, however unequal the rows; a row beyond it has its own."""
    monkeypatch.setattr("airflow_changefeed.export.parquet.ROW_GROUP_BYTES", 1000)
    schema = pa.schema([("changefeed_ulid", pa.string()), ("raw", pa.binary())])
    sizes = [10] * 40 + [5000] + [300] * 5
    texts = [str(Ulid.of_int(number + 1)) for number in range(len(sizes))]
    values = {"changefeed_ulid": texts, "raw": [b"x" * size for size in sizes]}
    batch = pa.RecordBatch.from_pydict(values, schema)
    file = PartFile(
        LocalFiles(str(tmp_path)), f"{tmp_path}/a.parquet", schema, ExportOptions(compression="none"), []
    )
    file.write(batch)
    facts = file.finish()
    assert facts.rows == len(sizes)
    parquet = pq.ParquetFile(tmp_path / "a.parquet")
    groups = [parquet.read_row_group(number) for number in range(parquet.num_row_groups)]
    assert all(group.num_rows == 1 or group.nbytes <= 1000 for group in groups)
    assert pa.concat_tables(groups)["raw"].to_pylist() == batch["raw"].to_pylist()
    store = ExportStore(str(tmp_path), "f")
    assert read_facts(store, f"{tmp_path}/a.parquet", "a.parquet") == facts


def test_a_batch_is_let_go_before_the_next_one(tmp_path: Path) -> None:
    """While the source reads the next batch, nobody holds the last one."""
    held: list[weakref.ref[Any]] = []

    class Watched(Stream):
        def stream(self, *_: object, **__: object) -> Iterator[pa.RecordBatch]:
            for numbers in self.batches:
                assert [each for each in held if each() is not None] == []
                texts = [str(Ulid.of_int(number)) for number in numbers]
                batch = pa.RecordBatch.from_pydict({"changefeed_ulid": texts, "n": numbers}, schema=SCHEMA)
                held.append(weakref.ref(batch))
                yield batch
                del batch

    write(Watched([1, 2, 3], [4, 5], [6]), tmp_path)
    assert len(held) == 3


def test_a_task_that_reports_a_file_of_another_unit_is_not_believed() -> None:
    """It would count for a unit whose own task has not ended."""
    facts = FileFacts("part.parquet", 1, 1, Ulid.of_int(1), Ulid.of_int(1), 0)
    told = [{"schema": schema_text(SCHEMA)}, encode(StagedFile(1, "part.parquet", facts))]
    assert gather(told, [PlannedPart(1, 1, {})]).files[0].facts == facts
    with pytest.raises(IncompleteReadError, match="files of another task's units"):
        gather(told, [PlannedPart(0, 1, {})])


class Feed(Stream):
    """A database with these batches in each of its shards, which counts reads and gives a read its range."""

    def __init__(self, *batches: list[int]) -> None:
        super().__init__(*batches)
        self.reads: list[UlidRange] = []

    def schema(self, _: str) -> pa.Schema:
        """Give the columns."""
        return SCHEMA

    def stream(self, feed: str, shard: int, range_: UlidRange, **_: object) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Give what lies in the range."""
        self.reads.append(range_)
        within = Stream(*([n for n in batch if Ulid.of_int(n) in range_] for batch in self.batches))
        yield from within.stream()


def written_parts(
    feed: Feed, folder: Path, *ranges: tuple[int, int, int], rows: int = 1, **options: Any
) -> dict[int, Any]:
    """Write units of (shard, after, upto), each of so many planned rows; return the rows of its files."""
    contents = [
        {"unit": number, "part": 0, "rows": rows, "shard": str(shard), "folder": f"unit-{number}"}
        | encode(UlidRange(Ulid.of_int(after), Ulid.of_int(upto)))
        for number, (shard, after, upto) in enumerate(ranges)
    ]
    store = ExportStore(str(folder), "f")
    _, *facts = write_parts(
        feed,  # type: ignore[arg-type]
        store.files,
        feed="f",
        attempt=1,
        options=ExportOptions(**options),
        task="0",
        parts=contents,
    )
    written: dict[int, Any] = {}
    for value in facts:
        file = decode(StagedFile, value, named="fact")
        table = pq.read_table(f"{store.layout.attempt(1)}/{file.path}")
        assert read_facts(store, f"{store.layout.attempt(1)}/{file.path}", file.facts.name) == file.facts
        written.setdefault(file.unit, []).append(table["n"].to_pylist())
    return written


@pytest.mark.parametrize("size", [1, 2, 3, 4, 30])
def test_units_that_adjoin_are_one_read(tmp_path: Path, size: int) -> None:
    """It is cut where a unit ends, wherever batches end; a unit without events has no file."""
    numbers = [1, 2, 3, 4, 10, 11, 12, 20, 21, 22, 23, 24, 25, 29]
    feed = Feed(*(numbers[at : at + size] for at in range(0, len(numbers), size)))
    ranges = [(0, 0, 4), (0, 4, 9), (0, 9, 11), (0, 11, 20), (0, 20, 28), (0, 28, 30)]
    rows = written_parts(feed, tmp_path, *ranges, target_file_rows=3)
    assert feed.reads == [UlidRange(Ulid.of_int(0), Ulid.of_int(30))]
    assert rows == {
        0: [[1, 2, 3], [4]],
        2: [[10, 11]],
        3: [[12, 20]],
        4: [[21, 22, 23], [24, 25]],
        5: [[29]],
    }


def test_what_does_not_adjoin_is_read_apart(tmp_path: Path) -> None:
    """What lies between two ranges is another's, and another shard has another order."""
    feed = Feed(list(range(1, 30)))
    rows = written_parts(feed, tmp_path, (0, 0, 4), (0, 6, 8), (1, 8, 9), (1, 9, 10))
    assert rows == {0: [[1, 2, 3, 4]], 1: [[7, 8]], 2: [[9]], 3: [[10]]}
    assert [(int(read.after), int(read.upto)) for read in feed.reads] == [(0, 4), (6, 8), (8, 10)]


def test_large_units_are_read_alone(tmp_path: Path) -> None:
    """What a read checks for all its units, such as a purge meanwhile, is then checked for few rows."""
    feed, ranges = Feed([1, 5, 9]), [(0, 0, 4), (0, 4, 8), (0, 8, 12)]
    assert written_parts(feed, tmp_path, *ranges, rows=7_000) == {0: [[1]], 1: [[5]], 2: [[9]]}
    assert [(int(read.after), int(read.upto)) for read in feed.reads] == [(0, 8), (8, 12)]


def test_nothing_read_is_nothing_written(tmp_path: Path) -> None:
    """A range without events gives no file."""
    assert write(Stream([]), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_is_not_writable(tmp_path: Path) -> None:
    """What the operating system refuses is our error, with the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritableError, match="file/out"):
        write(Stream([1]), tmp_path / "file" / "out")
    with pytest.raises(OutputNotWritableError, match="nowhere"):
        open_files("nowhere://bucket/out")


def test_an_error_comes_out_of_spark_as_it_went_in() -> None:
    """Class, message and kind survive the text of another exception; strangers become transient errors."""
    error = MissingEventError('event "x" {1}\nwas deleted', ulid="0")
    text = f"Traceback ...\nRuntimeError: {error_text(error)}\n\tat org.apache.spark..."
    again = own_error(RuntimeError(text))
    assert type(again) is MissingEventError
    assert again.message == error.message.replace("\n", " ")
    stranger = own_error(MemoryError("no room"))
    assert type(stranger) is TransientError
    assert stranger.message == "MemoryError: no room"


def test_a_result_survives_json() -> None:
    """Done or failed, the operator reads what the job wrote."""
    done = ExportResult("done", ("a.json",), 1, 2, 3, 0.5)
    failed = ExportResult.of_error(MissingEventError("gone"), 4, 3)
    assert ExportResult.from_json(done.to_json(), named="result") == done
    assert ExportResult.from_json(failed.to_json(), named="result") == failed
    done.raise_error()
    with pytest.raises(MissingEventError, match="gone"):
        failed.raise_error()


def test_a_connection_is_for_its_owner_only(tmp_path: Path) -> None:
    """The file has mode 0600, and neither the object's text nor an error about it shows the secret."""
    connection = JobConnection({"type": "sqlite", "password": "hunter2"}, {"key": "hunter2"})
    path = tmp_path / "connection.json"
    connection.save(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert JobConnection.from_json(path.read_text(), named=str(path)) == connection
    assert "hunter2" not in repr(connection)
    with pytest.raises(TerminalError) as caught:
        JobConnection.from_json(path.read_text().replace("hunter2", "hunter3"), named=str(path))
    assert "hunter" not in str(caught.value)


def test_reading_a_receipt_leaves_nothing_of_the_attempt(tmp_path: Path) -> None:
    """Who reads it removes what tasks of a failed job wrote until they ended."""
    store = ExportStore(str(tmp_path), "f")
    store.files.write(f"{store.layout.writing(4)}/0-1/x.parquet", b"late")
    assert read_receipt(store, 3) is None
    failed = ExportResult.of_error(MissingEventError("gone"), 4, 3)
    write_receipt(store, 3, 4, failed)
    assert read_receipt(store, 3) == failed
    assert store.files.names(store.layout.attempts) == []
    assert store.specs() == [3]
