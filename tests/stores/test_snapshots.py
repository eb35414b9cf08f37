# SPDX-License-Identifier: Apache-2.0
"""Snapshots in an object store, whose uploads appear only once they are completed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_changefeed.lake.bases import base_of
from airflow_changefeed.lake.snapshot_ranges import RangesToRead, read_ranges
from airflow_changefeed.lake.snapshots import Snapshot, SnapshotFiles
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from tests.stores.servers import Server
from tests.unit.lake.stock import CAPTURE, TABLE, Stock


class KilledError(Exception):
    """The process that reads is gone."""


class Bucket:
    """A snapshot's output in a store."""

    def __init__(self, server: Server, stock: Stock) -> None:
        self.stock = stock
        self.options = server.direct
        self.path = f"{server.root}/{uuid.uuid4().hex}"

    def files(self) -> SnapshotFiles:
        """Its snapshots."""
        database = self.stock.source.identity().id
        return SnapshotFiles(self.path, CAPTURE, TABLE, self.options, database=database)

    def take(self, then: Callable[[int], object] = lambda number: None) -> Snapshot:
        """Take a snapshot, and do something behind each range."""

        def read(files: SnapshotFiles, wanted: RangesToRead) -> None:
            for number, range_ in wanted.of_task(0):
                read_ranges(self.stock.source, files, wanted, [(number, range_)])
                then(number)

        request = SnapshotRequest(CAPTURE, None, self.path, "tests/run", range_rows=30)
        return take_snapshot(self.stock.source, request, self.options, read, lambda line: None)

    def ids(self, taken: Snapshot) -> list[int]:
        """What a snapshot has read."""
        files = self.files()
        found: list[int] = []
        for name in taken.files:
            with files.files.reader(f"{files.folder(taken.token)}/{name}") as file:
                found += pq.read_table(file)["id"].to_pylist()
        return sorted(found)


@pytest.fixture
def bucket(server: Server, tmp_path: Path) -> Bucket:
    """An empty one, and a table of a hundred rows."""
    return Bucket(server, Stock.create(tmp_path))


def test_a_killed_snapshot_goes_on_and_counts_as_a_whole(bucket: Bucket) -> None:
    """Its ranges are there as they were read; the base names files that are visible."""

    def die(number: int) -> None:
        if number == 1:
            raise KilledError

    with pytest.raises(KilledError):
        bucket.take(die)
    again: list[int] = []
    taken = bucket.take(again.append)
    assert again == [2, 3]
    assert bucket.ids(taken) == list(range(1, 101))
    base = base_of(bucket.files(), taken)
    assert [path.rpartition("/")[2] for path in base.paths] == list(taken.files)
    assert bucket.files().all() == [taken]


def test_what_a_killed_reader_has_sent_is_removed(
    s3_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload that nobody completes is aborted when the next snapshot begins; Azure's end by themselves."""
    bucket = Bucket(s3_server, Stock.create(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr("airflow_changefeed.storage.remote.RemoteFiles.complete", _killed)
        with pytest.raises(KilledError):
            bucket.take()
    files = bucket.files()
    (claim,) = bucket.stock.source.snapshots()
    folder = files.folder(claim.token)
    assert [one for one in files.files.uploads(folder) if one.path.endswith(".parquet")]
    bucket.stock.source.end_snapshot(CAPTURE, TABLE, token=claim.token)
    taken = bucket.take()
    assert bucket.ids(taken) == list(range(1, 101))
    assert files.files.uploads(folder) == []
    assert files.files.names(folder) == []


def _killed(*arguments: Any) -> bool:
    raise KilledError
